//! Advice of a program about its managed memory, page by page: it has no effect here, but can be queried.

use crate::batch::Location;
use cuda_api::address_map::PAGE;
use cuda_api::code::{self, Code};
use cuda_api::flags::{LOCATION_DEVICE, LOCATION_HOST_NUMA};
use cuda_api::pointer::{InPtr, OutPtr};
use std::collections::BTreeMap;
use std::ffi::c_void;

/// `CU_DEVICE_CPU` and `CU_DEVICE_INVALID`
const CPU: i32 = -1;
const NONE: i32 = -2;
/// `CU_MEM_ADVISE_SET_PREFERRED_LOCATION` and `CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION`; lower values concern no
/// location.
const PREFER: u32 = 3;
const NO_PREFERENCE: u32 = 4;
/// The last `CUmem_advise`.
const LAST_ADVICE: u32 = 6;

/// The state of a run of pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    read_mostly: bool,
    preferred: Option<Location>,
    prefetched: Option<Location>,
    users: Vec<i32>,
}

/// Runs by first address: the end, and the state up to there. Pages without advice have no entry.
#[derive(Debug, Default)]
pub struct Advice(BTreeMap<u64, (u64, State)>);

/// A location as the older attributes represent it.
fn number((kind, n): Location) -> i32 {
    if kind == LOCATION_DEVICE { n } else { CPU }
}

/// The number that belongs to a kind of location: of a device, or of a NUMA node of the host (measured).
fn number_of_kind((kind, n): Location) -> i32 {
    if matches!(kind, LOCATION_DEVICE | LOCATION_HOST_NUMA) { n } else { CPU }
}

/// Checks a `CUmem_advise` as a 580 driver does (measured): its kind, the range of memory, the location. Returns
/// whether it must be recorded.
///
/// # Errors
/// `INVALID_VALUE`, and the errors of `range`.
pub fn check(
    advice: u32,
    range: Result<(), Code>,
    (kind, ordinal): Location,
    check_location: impl FnOnce(Location) -> bool,
) -> Result<bool, Code> {
    if !(1..=LAST_ADVICE).contains(&advice) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // NUMA nodes may be preferred for any memory, without an effect; they access nothing.
    if kind == LOCATION_HOST_NUMA && advice > NO_PREFERENCE {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if kind == LOCATION_HOST_NUMA && range.is_err() {
        return Ok(false);
    }
    range?;
    // The kind of location must be valid; its value matters only if the advice concerns it.
    let any = advice < PREFER || advice == NO_PREFERENCE;
    if check_location((kind, if any { 0 } else { ordinal })) { Ok(true) } else { Err(code::ERROR_INVALID_VALUE) }
}

impl Advice {
    /// Creates a state without advice.
    pub const fn new() -> Advice {
        Advice(BTreeMap::new())
    }

    /// Splits a run at `at`.
    fn cut(&mut self, at: u64) {
        if let Some((_, run)) = self.0.range_mut(..at).next_back()
            && run.0 > at
        {
            let rest = (std::mem::replace(&mut run.0, at), run.1.clone());
            self.0.insert(at, rest);
        }
    }

    fn change(&mut self, at: u64, bytes: u64, change: impl Fn(&mut State)) {
        let (mut from, end) = (at & !(PAGE - 1), (at + bytes).next_multiple_of(PAGE));
        self.cut(from);
        self.cut(end);
        while from < end {
            let next = self.0.range(from..end).next().map_or(end, |(start, _)| *start);
            let run = if next == from { self.0.get_mut(&from) } else { None };
            match run {
                Some(run) => {
                    change(&mut run.1);
                    from = run.0;
                }
                None => {
                    self.0.insert(from, (next, State::default()));
                }
            }
        }
    }

    /// The states of a range, part by part.
    fn states(&self, at: u64, bytes: u64) -> Vec<State> {
        let (from, end) = (at & !(PAGE - 1), (at + bytes).next_multiple_of(PAGE));
        let mut all = Vec::new();
        let before = self.0.range(..from).next_back().filter(|(_, run)| run.0 > from);
        let mut known = from;
        for (start, (until, state)) in before.into_iter().chain(self.0.range(from..end)) {
            if *start > known {
                all.push(State::default());
            }
            all.push(state.clone());
            known = *until;
        }
        if known < end {
            all.push(State::default());
        }
        all
    }

    /// Records a `CUmem_advise` that has been checked.
    pub fn advise(&mut self, at: u64, bytes: u64, advice: u32, to: Location) {
        let user = number(to);
        self.change(at, bytes, |s| match advice {
            1 => s.read_mostly = true,
            2 => s.read_mostly = false,
            PREFER => s.preferred = Some(to),
            NO_PREFERENCE => s.preferred = None,
            5 if !s.users.contains(&user) => s.users.push(user),
            6 => s.users.retain(|u| *u != user),
            _ => {}
        });
    }

    /// Records the location of the last prefetch of a range.
    pub fn prefetch(&mut self, at: u64, bytes: u64, to: Location) {
        self.change(at, bytes, |s| s.prefetched = Some(to));
    }

    /// Removes the advice of a range, for new memory.
    pub fn forget(&mut self, at: u64, bytes: u64) {
        self.change(at, bytes, |s| *s = State::default());
        self.0.retain(|_, run| run.1 != State::default());
    }

    /// The answer to `cuMemRangeGetAttribute`, of `size` bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown attributes, and for a size that does not fit.
    fn attribute(&self, attribute: u32, size: usize, at: u64, bytes: u64) -> Result<Vec<i32>, Code> {
        const USERS: u32 = 3;
        if size == 0 || !size.is_multiple_of(4) || attribute != USERS && size != 4 {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let states = self.states(at, bytes);
        let common = |of: fn(&State) -> Option<Location>| {
            let first = states.first().and_then(of);
            first.filter(|_| states.iter().all(|s| of(s) == first))
        };
        let preferred = || common(|s| s.preferred);
        let prefetched = || common(|s| s.prefetched);
        Ok(vec![match attribute {
            1 => states.iter().all(|s| s.read_mostly).into(),
            2 => preferred().map_or(NONE, number),
            6 => preferred().map_or(NONE, number_of_kind),
            USERS => {
                let first = states.first().map_or(&[][..], |s| &s.users);
                let mut users: Vec<i32> = first.iter().copied().filter(|u| states.iter().all(|s| s.users.contains(u))).collect();
                users.try_reserve(size / 4).map_err(|_| code::ERROR_INVALID_VALUE)?;
                users.resize(size / 4, NONE);
                return Ok(users);
            }
            4 => prefetched().map_or(NONE, number),
            8 => prefetched().map_or(NONE, number_of_kind),
            5 => preferred().map_or(0, |(kind, _)| kind as i32),
            7 => prefetched().map_or(0, |(kind, _)| kind as i32),
            _ => return Err(code::ERROR_INVALID_VALUE),
        }])
    }

    /// Writes an attribute for the program.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null, unknown attributes, and a size that does not fit.
    pub fn write_attribute(&self, to: OutPtr<c_void>, attribute: u32, size: usize, at: u64, bytes: u64) -> Result<(), Code> {
        if to.is_null() {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let words = self.attribute(attribute, size, at, bytes)?;
        to.typed::<i32>().write_list(&words)
    }

    /// As [`Self::write_attribute`], for several attributes.
    ///
    /// # Errors
    /// As [`Self::write_attribute`].
    pub fn write_attributes(
        &self,
        (to, sizes, attributes, n): (InPtr<*mut c_void>, InPtr<usize>, InPtr<u32>, usize),
        at: u64,
        bytes: u64,
    ) -> Result<(), Code> {
        if n == 0 {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let mut wanted = to.outputs(n)?.zip(sizes.elements(n)?).zip(attributes.elements(n)?);
        wanted.try_for_each(|((to, size), attribute)| self.write_attribute(to, attribute, size, at, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_what_all_its_pages_have() {
        let mut a = Advice::new();
        let ask = |a: &Advice, attribute, at, bytes| a.attribute(attribute, 4, at, bytes).unwrap()[0];
        let (one, two) = ((1, 0), (1, 7));
        a.advise(0x10000, 0x4000, 3, one);
        a.advise(0x12000, 0x1000, 3, two);
        assert_eq!(ask(&a, 2, 0x10000, 0x2000), 0);
        assert_eq!(ask(&a, 2, 0x12000, 1), 7);
        assert_eq!(ask(&a, 2, 0x10000, 0x4000), NONE);
        assert_eq!(ask(&a, 2, 0x13000, 0x1000), 0);
        // There is no advice beyond the range.
        assert_eq!((ask(&a, 2, 0x13000, 0x2000), ask(&a, 5, 0x13000, 0x2000)), (NONE, 0));
        a.prefetch(0x0f000, 0x8000, (2, 0));
        assert_eq!((ask(&a, 4, 0x10000, 0x4000), ask(&a, 7, 0x10000, 0x4000)), (CPU, 2));
        a.advise(0x10000, 0x1000, 1, one);
        assert_eq!((ask(&a, 1, 0x10000, 0x1000), ask(&a, 1, 0x10000, 0x1001)), (1, 0));
        a.advise(0x10000, 0x2000, 5, one);
        a.advise(0x10000, 0x1000, 5, (2, 0));
        assert_eq!(a.attribute(3, 12, 0x10000, 0x1000), Ok(vec![0, CPU, NONE]));
        assert_eq!(a.attribute(3, 4, 0x10000, 0x2000), Ok(vec![0]));
        a.forget(0x10000, 0x8000);
        assert_eq!((ask(&a, 2, 0x12000, 1), ask(&a, 4, 0x0f000, 0x1000)), (NONE, CPU));
        for (attribute, size) in [(1, 8), (3, 0), (3, 6), (0, 4), (9, 4)] {
            assert_eq!(a.attribute(attribute, size, 0x10000, 1), Err(code::ERROR_INVALID_VALUE));
        }
    }
}
