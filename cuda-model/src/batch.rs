//! Batches: several copies, prefetches or discards in one call.

use cuda_api::array::{ARRAY, UNIFIED};
use cuda_api::code::{self, Code};
use cuda_api::pointer::{InPtr, OutPtr, Plain};
use cuda_api::sys;
use cuda_api::work::{Copy3, CopyEnd};

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// When the source of a copy may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// When the stream reaches it.
    Stream,
    /// Before the call returns.
    DuringCall,
    /// At any time.
    Any,
}

/// One copy of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// What is copied.
    pub copy: Copy3,
    /// When its source is read.
    pub order: Order,
}

/// Why a batch is refused, and which of its elements is the cause, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault<E = Code> {
    /// The result of the call.
    pub code: E,
    /// Index of the element.
    pub at: Option<usize>,
}

impl<E> From<E> for Fault<E> {
    fn from(code: E) -> Fault<E> {
        Fault { code, at: None }
    }
}

impl<E> Fault<E> {
    /// Converts the error.
    pub fn map<F>(self, f: impl FnOnce(E) -> F) -> Fault<F> {
        Fault { code: f(self.code), at: self.at }
    }

    /// Writes the index of the failing element, as the functions of CUDA 12.8 do: all bits set for none.
    pub fn write_index(self, fail: OutPtr<usize>) -> E {
        fail.write_if_wanted(self.at.unwrap_or(usize::MAX));
        self.code
    }
}

/// `CUmemcpyAttributes`, with its enums as numbers, since a C program can store any value.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawAttributes {
    order: u32,
    hints: [u32; 4],
    flags: u32,
}

/// `CUmemcpy3DOperand`: a pointer with the length of a row and the height of a layer, or an array with an offset.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawOperand {
    kind: u32,
    words: [u64; 4],
}

/// `CUDA_MEMCPY3D_BATCH_OP`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawOp {
    src: RawOperand,
    dst: RawOperand,
    extent: [u64; 3],
    order: u32,
    flags: u32,
}

// SAFETY: numbers.
unsafe impl Plain for RawAttributes {}
// SAFETY: numbers.
unsafe impl Plain for RawOp {}
const _: () = assert!(size_of::<RawAttributes>() == size_of::<sys::CUmemcpyAttributes>());
const _: () = assert!(size_of::<RawOp>() == size_of::<sys::CUDA_MEMCPY3D_BATCH_OP>());

/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`: the only flag, and a hint.
const LAST_FLAG: u32 = 1;

fn order(order: u32, flags: u32) -> Result<Order, Code> {
    match order {
        _ if flags > LAST_FLAG => Err(INVALID),
        1 => Ok(Order::Stream),
        2 => Ok(Order::DuringCall),
        3 => Ok(Order::Any),
        _ => Err(INVALID),
    }
}

/// The value for each of `count` elements: each value applies to the elements from its index to the next value's index.
fn spread<T: Plain>(values: InPtr<T>, from: InPtr<usize>, n: usize, count: usize) -> Result<Vec<T>, Code> {
    if n == 0 || n > count {
        return Err(INVALID);
    }
    let (values, from) = (values.read_list(n)?, from.read_list(n)?);
    if from[0] != 0 || from[n - 1] >= count || from.windows(2).any(|w| w[0] >= w[1]) {
        return Err(INVALID);
    }
    let ends = from.iter().skip(1).copied().chain([count]);
    Ok(values.iter().zip(from.iter().zip(ends)).flat_map(|(v, (from, end))| std::iter::repeat_n(*v, end - from)).collect())
}

/// The copies of `cuMemcpyBatchAsync`.
///
/// # Errors
/// `INVALID_VALUE` for null, an empty batch, and invalid attributes.
pub fn copies(
    (dsts, srcs, sizes, count): (InPtr<u64>, InPtr<u64>, InPtr<usize>, usize),
    (attributes, from, n): (InPtr<sys::CUmemcpyAttributes>, InPtr<usize>, usize),
) -> Result<Vec<Item>, Fault> {
    let attributes = spread(attributes.cast::<RawAttributes>(), from, n, count)?;
    let (dsts, srcs, sizes) = (dsts.read_list(count)?, srcs.read_list(count)?, sizes.read_list(count)?);
    let end = |address: u64| CopyEnd { memory: UNIFIED, device: address, ..CopyEnd::default() };
    let item = |i: usize| {
        let order = order(attributes[i].order, attributes[i].flags).map_err(|code| Fault { code, at: Some(i) })?;
        let copy = Copy3 { src: end(srcs[i]), dst: end(dsts[i]), width: sizes[i] as u64, rows: 1, depth: 1 };
        Ok(Item { copy, order })
    };
    (0..count).map(item).collect()
}

/// The copies of `cuMemcpy3DBatchAsync`; `element` returns the size of an array's elements.
///
/// # Errors
/// `INVALID_VALUE` for null, an empty batch, and invalid descriptions.
pub fn boxes(
    ops: InPtr<sys::CUDA_MEMCPY3D_BATCH_OP>,
    count: usize,
    flags: u64,
    element: impl Fn(u64) -> Result<u64, Code>,
) -> Result<Vec<Item>, Fault> {
    if count == 0 || flags != 0 {
        return Err(INVALID.into());
    }
    let one = |(i, op): (usize, RawOp)| make_box(&op, &element).map_err(|code| Fault { code, at: Some(i) });
    ops.cast::<RawOp>().elements(count)?.enumerate().map(one).collect()
}

fn make_box(op: &RawOp, element: &impl Fn(u64) -> Result<u64, Code>) -> Result<Item, Code> {
    const POINTER: u32 = 1;
    const OF_ARRAY: u32 = 2;
    let of = |o: &RawOperand| match o.kind {
        POINTER => Ok(None),
        OF_ARRAY => element(o.words[0]).map(Some),
        _ => Err(INVALID),
    };
    let bytes = match (of(&op.src)?, of(&op.dst)?) {
        (Some(a), Some(b)) if a != b => return Err(INVALID),
        (a, b) => a.or(b).unwrap_or(1),
    };
    let [width, rows, depth] = op.extent;
    if [width, rows, depth].contains(&0) {
        return Err(INVALID);
    }
    let end = |o: &RawOperand| {
        let [first, x, y, z] = o.words;
        if o.kind == OF_ARRAY {
            let x = x.checked_mul(bytes).ok_or(INVALID)?;
            return Ok(CopyEnd { memory: ARRAY, array: first, x, y, z, ..CopyEnd::default() });
        }
        let (row, height) = (x, y);
        if row != 0 && row < width || height != 0 && height < rows {
            return Err(INVALID);
        }
        let pitch = row.checked_mul(bytes).ok_or(INVALID)?;
        Ok(CopyEnd { memory: UNIFIED, device: first, pitch, height, ..CopyEnd::default() })
    };
    let width = width.checked_mul(bytes).ok_or(INVALID)?;
    Ok(Item { copy: Copy3 { src: end(&op.src)?, dst: end(&op.dst)?, width, rows, depth }, order: order(op.order, op.flags)? })
}

/// Kind and number of a `CUmemLocation`.
pub type Location = (u32, i32);

/// The ranges of a batch of prefetches or discards: address, bytes, destination.
///
/// # Errors
/// `INVALID_VALUE` for null, an empty batch, flags, and locations that apply to no range.
pub fn ranges(
    (at, sizes, count): (InPtr<u64>, InPtr<usize>, usize),
    to: Option<(InPtr<sys::CUmemLocation>, InPtr<usize>, usize)>,
    flags: u64,
) -> Result<Vec<(u64, usize, Option<Location>)>, Code> {
    if count == 0 || flags != 0 {
        return Err(INVALID);
    }
    let to = match to {
        Some((locations, from, n)) => spread(locations.cast::<[u32; 2]>(), from, n, count)?,
        None => Vec::new(),
    };
    let mut ranges = Vec::new();
    ranges.try_reserve_exact(count).map_err(|_| INVALID)?;
    for (number, (at, bytes)) in at.elements(count)?.zip(sizes.elements(count)?).enumerate() {
        ranges.push((at, bytes, to.get(number).map(|[kind, n]| (*kind, *n as i32))));
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_absurd_length_is_an_error() {
        let none = |count| ranges((InPtr::null(), InPtr::null(), count), None, 0).map(|all| all.len());
        assert_eq!((none(3), none(1 << 56), none(usize::MAX)), (Err(INVALID), Err(INVALID), Err(INVALID)));
        let two = ranges((InPtr::of_list(&[7, 9]), InPtr::of_list(&[1, 2]), 2), None, 0);
        assert_eq!(two, Ok(vec![(7, 1, None), (9, 2, None)]));
    }

    #[test]
    fn attributes_concern_what_follows_their_index() {
        let spread = |from: &[usize], count| super::spread(InPtr::of_list(&[7, 8, 9]), InPtr::of_list(from), from.len(), count);
        assert_eq!(spread(&[0, 1, 4], 6), Ok(vec![7, 8, 8, 8, 9, 9]));
        assert_eq!(spread(&[0], 2), Ok(vec![7, 7]));
        for (from, count) in [(&[][..], 1), (&[1][..], 2), (&[0, 2][..], 2), (&[0, 0][..], 2), (&[0, 1, 2][..], 2)] {
            assert_eq!(spread(from, count), Err(INVALID), "{from:?} of {count}");
        }
    }

    #[test]
    fn boxes_are_counted_in_elements() {
        let pointer = RawOperand { kind: 1, words: [0x1000, 10, 0, 0] };
        let array = RawOperand { kind: 2, words: [0x77, 3, 4, 5] };
        let op = RawOp { src: pointer, dst: array, extent: [8, 2, 3], order: 2, flags: 0 };
        let run = |op: RawOp| boxes(InPtr::of(&op).cast(), 1, 0, |_| Ok(4));
        let made = run(op).unwrap()[0];
        assert_eq!((made.copy.width, made.copy.rows, made.copy.depth, made.order), (32, 2, 3, Order::DuringCall));
        assert_eq!((made.copy.src.pitch, made.copy.src.device, made.copy.dst.x, made.copy.dst.array), (40, 0x1000, 12, 0x77));
        for wrong in [
            RawOp { extent: [8, 0, 3], ..op },
            RawOp { extent: [11, 2, 3], ..op },
            RawOp { order: 0, ..op },
            RawOp { flags: 2, ..op },
            RawOp { src: RawOperand { kind: 3, ..pointer }, ..op },
        ] {
            assert_eq!(run(wrong), Err(Fault { code: INVALID, at: Some(0) }));
        }
        assert_eq!(boxes(InPtr::of(&op).cast(), 1, 1, |_| Ok(4)), Err(INVALID.into()));
    }
}
