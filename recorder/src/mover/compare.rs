//! Whether two places hold the same things at the same addresses.

use super::unexpected;
use crate::place::Place;
use cuda_api::code::Code;
use rcuda_forwarder::{Control, ControlReply};

/// Both places must have the same globals at the same addresses, the same heap and the same chunks.
pub(super) fn compare(source: &Place, target: &Place) -> Result<(), String> {
    let (a, b) = (shape(source)?, shape(target)?);
    if a == b {
        return Ok(());
    }
    let first = a.iter().zip(&b).find(|(x, y)| x != y);
    Err(match first {
        Some((x, y)) => format!("cannot move: {} lies at {:#x} here and {} at {:#x} in the target", x.0, x.1, y.0, y.1),
        None => format!("cannot move: {} ranges of memory here, {} in the target", a.len(), b.len()),
    })
}

/// Names, addresses and sizes of all memory that a place holds for the job.
fn shape(place: &Place) -> Result<Vec<(String, u64, u64)>, String> {
    let failed = |rc: Code| format!("error {rc} on listing memory");
    let (globals, heap, chunks) = match place {
        Place::Remote { link, .. } => match link.control(&Control::Regions).map_err(|e| e.to_string())? {
            ControlReply::Regions { globals, heap, chunks } => {
                (globals.into_iter().map(|g| (g.name, g.address, g.bytes)).collect::<Vec<_>>(), heap, chunks)
            }
            other => return Err(unexpected(&other)),
        },
        Place::Local { exec, .. } => (
            exec.globals().map_err(failed)?.into_iter().map(|g| (g.name, g.address, g.bytes)).collect(),
            exec.heap().map_err(failed)?,
            exec.chunks().into_iter().map(|c| (c.address, c.bytes)).collect(),
        ),
    };
    let heap = heap.map(|(a, n)| ("the device heap".to_owned(), a, n));
    let chunks = chunks.into_iter().map(|(a, n)| ("a chunk".to_owned(), a, n));
    Ok(globals.into_iter().chain(heap).chain(chunks).collect())
}
