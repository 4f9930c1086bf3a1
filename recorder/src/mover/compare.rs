//! Compares two places: the same memory must be at the same addresses.

use crate::move_error::{Layout, MoveError};
use crate::place::Place;
use rcuda_forwarder::{Control, ControlReply, GlobalInfo};

/// What a chunk is called.
const CHUNK: &str = "a chunk";
const HEAP: &str = "the device heap";

/// Names, addresses and sizes of all memory that a place holds for the job.
#[derive(Debug, Clone, Default)]
pub(super) struct Shape {
    globals: Vec<GlobalInfo>,
    heap: Option<(u64, u64)>,
    chunks: Vec<(u64, u64)>,
}

impl Shape {
    /// The shape in the answer to [`Control::Regions`].
    fn of(answer: ControlReply) -> Result<Shape, MoveError> {
        match answer {
            ControlReply::Regions { globals, heap, chunks } => Ok(Shape { globals, heap, chunks }),
            other => Err(MoveError::unexpected(&other)),
        }
    }

    /// Name, address and bytes of everything.
    fn all(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        let globals = self.globals.iter().map(|g| (g.name.as_str(), g.address, g.bytes));
        let heap = self.heap.iter().map(|(at, bytes)| (HEAP, *at, *bytes));
        globals.chain(heap).chain(self.chunks.iter().map(|(at, bytes)| (CHUNK, *at, *bytes)))
    }

    /// How another place differs from this one.
    fn difference(&self, there: &Shape) -> Option<Layout> {
        if self.all().eq(there.all()) {
            return None;
        }
        let named = |(name, address, _): (&str, u64, u64)| (name.to_owned(), address);
        Some(match self.all().zip(there.all()).find(|(x, y)| x != y) {
            Some((here, there)) => Layout::Address { here: named(here), there: named(there) },
            None => Layout::Count { here: self.all().count(), there: there.all().count() },
        })
    }

    /// Compares a place with this.
    fn compare(&self, there: &Shape) -> Result<(), MoveError> {
        self.difference(there).map_or(Ok(()), |layout| Err(MoveError::LayoutDiffers(layout)))
    }
}

/// Compares globals with their addresses, device heap and chunks of both places, which list them at the same time.
pub(super) fn compare(source: &Place, target: &Place) -> Result<(), MoveError> {
    let there = target.begin_control(Control::Regions)?;
    let here = shape(source)?;
    here.compare(&Shape::of(there.finish()?)?)
}

/// As [`compare`], with what a source had that executes nothing now.
pub(super) fn compare_with(here: &Shape, target: &Place) -> Result<(), MoveError> {
    here.compare(&shape(target)?)
}

/// The shape of a place that executes.
pub(super) fn shape(place: &Place) -> Result<Shape, MoveError> {
    Shape::of(place.control(&Control::Regions)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        let global = |name: &str, address, bytes| GlobalInfo { module: 7, name: name.into(), address, bytes };
        Shape {
            globals: vec![global("x", 0x1000, 4), global("y", 0x2000, 8)],
            heap: Some((0x8000, 64)),
            chunks: vec![(0x1_0000, 32), (0x2_0000, 32)],
        }
    }

    fn difference(change: impl FnOnce(&mut Shape)) -> Option<String> {
        let mut there = shape();
        change(&mut there);
        shape().difference(&there).map(|layout| layout.to_string())
    }

    #[test]
    fn the_first_difference_is_named() {
        assert_eq!(difference(|_| ()), None);
        // The handle of a module says nothing about where its memory is.
        assert_eq!(difference(|s| s.globals[0].module = 8), None);
        let text = |change: fn(&mut Shape)| difference(change).unwrap();
        assert_eq!(text(|s| s.globals[1].address = 0x3000), "y lies at 0x2000 here and y at 0x3000 in the target");
        assert_eq!(text(|s| s.globals[0].name = "z".into()), "x lies at 0x1000 here and z at 0x1000 in the target");
        assert_eq!(text(|s| s.globals[0].bytes = 5), "x lies at 0x1000 here and x at 0x1000 in the target");
        assert_eq!(text(|s| s.heap = None), "the device heap lies at 0x8000 here and a chunk at 0x10000 in the target");
        assert_eq!(text(|s| s.chunks[1].1 = 64), "a chunk lies at 0x20000 here and a chunk at 0x20000 in the target");
        assert_eq!(text(|s| s.chunks.truncate(1)), "5 ranges of memory here, 4 in the target");
        assert_eq!(text(|s| s.chunks.push((0x3_0000, 32))), "5 ranges of memory here, 6 in the target");
    }
}
