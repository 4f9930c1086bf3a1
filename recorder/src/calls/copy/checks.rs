//! Checks the ends of described copies.

use crate::calls::copy::checks;
use crate::calls::copy::rect::ends;
use crate::job::{Device, array_lookup};
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::work::{Copy3, CopyEnd};

/// Checks an end that is an array, on a device.
pub(crate) fn check(device: &Device, e: &CopyEnd, c: &Copy3) -> Result<(), Code> {
    let job = crate::job::get()?;
    if e.array == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if job.tables.device(Kind::Array, e.array)? != device.index {
        return Err(code::ERROR_INVALID_VALUE);
    }
    array_lookup::find(job, e.array)?.shape.check(e, c)
}

/// Checks both ends of a described copy on a device.
pub(crate) fn check_ends(device: &Device, c: &Copy3) -> Result<(), Code> {
    if c.width == 0 || c.rows == 0 || c.depth == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    for (end, memory) in [&c.dst, &c.src].into_iter().zip(ends(c)?) {
        match memory {
            None => checks::check(device, end, c)?,
            Some((end, span)) if end.device => drop(device.check_range(end.address, span)?),
            Some((end, _)) if end.address == 0 => return Err(code::ERROR_INVALID_VALUE),
            Some(_) => {}
        }
    }
    Ok(())
}
