//! Whether two places hold the same things at the same addresses.

use super::unexpected;
use crate::place::Place;
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
    let (globals, heap, chunks) = match place.control(&Control::Regions)? {
        ControlReply::Regions { globals, heap, chunks } => (globals, heap, chunks),
        other => return Err(unexpected(&other)),
    };
    let globals = globals.into_iter().map(|g| (g.name, g.address, g.bytes));
    let heap = heap.map(|(a, n)| ("the device heap".to_owned(), a, n));
    let chunks = chunks.into_iter().map(|(a, n)| ("a chunk".to_owned(), a, n));
    Ok(globals.chain(heap).chain(chunks).collect())
}
