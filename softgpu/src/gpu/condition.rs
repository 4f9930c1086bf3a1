//! Conditions of graphs: values that device code sets and conditional nodes evaluate.

use super::lock;
use std::sync::Mutex;

#[derive(Clone, Copy)]
struct Condition {
    value: u32,
    /// Its value at the start of a launch.
    default: Option<u32>,
}

static ALL: Mutex<Vec<Option<Condition>>> = Mutex::new(Vec::new());

/// Handles are neither addresses nor small numbers that a program could use by accident.
const FIRST: u64 = 0xc0d1_0000_0000_0010;

fn with<T>(handle: u64, f: impl FnOnce(&mut Option<Condition>) -> T) -> Option<T> {
    let index = usize::try_from(handle.checked_sub(FIRST)? / 16).ok()?;
    lock(&ALL).get_mut(index).filter(|c| c.is_some() && handle.is_multiple_of(16)).map(f)
}

/// Creates a condition with the lowest free number.
pub(crate) fn create(default: u32, flags: u32) -> u64 {
    let condition = Some(Condition { value: default, default: (flags & 1 != 0).then_some(default) });
    let mut all = lock(&ALL);
    let index = all.iter().position(Option::is_none).unwrap_or(all.len());
    match all.get_mut(index) {
        Some(free) => *free = condition,
        None => all.push(condition),
    }
    FIRST + 16 * index as u64
}

/// Destroys a condition.
pub(crate) fn end(handle: u64) {
    with(handle, |c| *c = None);
}

/// Sets a condition from device code; false: it does not exist.
pub(crate) fn set(handle: u64, value: u32) -> bool {
    with(handle, |c| c.as_mut().map(|c| c.value = value)).is_some()
}

/// Its value; 0 if it does not exist.
pub(crate) fn get(handle: u64) -> u32 {
    with(handle, |c| c.map_or(0, |c| c.value)).unwrap_or(0)
}

/// Sets the initial value for a launch.
pub(crate) fn begin(handle: u64) {
    with(handle, |c| c.as_mut().map(|c| c.value = c.default.unwrap_or(c.value)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_used_again_and_dead_ones_are_refused() {
        let (a, b) = (create(3, 1), create(4, 0));
        assert_ne!(a, b);
        assert!(set(a, 7) && set(b, 8) && !set(b + 1, 8) && !set(5, 8));
        begin(a);
        begin(b);
        assert_eq!((get(a), get(b)), (3, 8), "only one of them has a value for the start of a launch");
        end(a);
        assert!(!set(a, 1));
        assert_eq!(create(0, 0), a);
        end(a);
        end(b);
    }
}
