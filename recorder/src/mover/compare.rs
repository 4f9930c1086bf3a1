//! Compares two places: the same memory must be at the same addresses.

use crate::move_error::{Layout, MoveError};
use crate::place::Place;
use rcuda_forwarder::{Control, ControlReply};

/// Names, addresses and sizes of all memory that a place holds for the job.
pub(super) type Shape = Vec<(String, u64, u64)>;

/// Compares globals with their addresses, device heap and chunks of both places.
pub(super) fn compare(source: &Place, target: &Place) -> Result<(), MoveError> {
    compare_with(&shape(source)?, target)
}

/// As [`compare`], with what a source had that executes nothing now.
pub(super) fn compare_with(a: &Shape, target: &Place) -> Result<(), MoveError> {
    let b = &shape(target)?;
    if a == b {
        return Ok(());
    }
    let first = a.iter().zip(b).find(|(x, y)| x != y);
    Err(MoveError::LayoutDiffers(match first {
        Some((here, there)) => Layout::Address { here: (here.0.clone(), here.1), there: (there.0.clone(), there.1) },
        None => Layout::Count { here: a.len(), there: b.len() },
    }))
}

/// The shape of a place that executes.
pub(super) fn shape(place: &Place) -> Result<Shape, MoveError> {
    let (globals, heap, chunks) = match place.control(&Control::Regions)? {
        ControlReply::Regions { globals, heap, chunks } => (globals, heap, chunks),
        other => return Err(MoveError::unexpected(&other)),
    };
    let globals = globals.into_iter().map(|g| (g.name, g.address, g.bytes));
    let heap = heap.map(|(a, n)| ("the device heap".to_owned(), a, n));
    let chunks = chunks.into_iter().map(|(a, n)| ("a chunk".to_owned(), a, n));
    Ok(globals.chain(heap).chain(chunks).collect())
}
