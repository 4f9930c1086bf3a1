//! Large copies between pageable memory and the device of a place in this process.

use super::{Rect, Until};
use crate::config;
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::Device;
use cuda_api::arg::stage_stream;
use cuda_api::code::Code;
use executor::bulk::{Bulk, SMALLEST};

/// Makes such a copy with several threads. False if it is another one, or if it is left to the driver. The device's end is known memory, and
/// everything that may still change the host's end has been waited for.
pub(super) fn copy(cx: &CallContext, device: &'static Device, r: &Rect, stream: u64, until: Until) -> Result<bool, Code> {
    if r.rows != 1 || r.width < SMALLEST as u64 {
        return Ok(false);
    }
    let Some(exec) = cx.place(device).in_process() else { return Ok(false) };
    let host = if r.dst.device { r.src } else { r.dst };
    // The driver copies pinned memory by itself, as natively.
    if host_memory::touches(host.address..host.address + r.width) {
        return Ok(false);
    }
    let copy = Bulk {
        device: if r.dst.device { r.dst.address } else { r.src.address },
        host: host.address,
        bytes: r.width as usize,
        to_device: r.dst.device,
        stream: stage_stream(stream, exec.bindings())?,
        wait: until == Until::Done,
    };
    let threads = config::get().ok().and_then(|c| c.copy_threads);
    let mut made = false;
    cx.wait_here(device, exec, |exec| {
        // SAFETY: the program says that its end has this size, and keeps it during the call.
        made = unsafe { exec.copy_bulk(&copy, threads) }?;
        Ok(())
    })?;
    Ok(made)
}
