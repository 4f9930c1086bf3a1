//! Copies of devices that run, kept current in stores (`mrcuda suspend --every`): a move to such a store carries only what has changed.

use crate::base::log::lock;
use crate::place::Place;
use rcuda_forwarder::PlaceSpec;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The copies, by device.
static COPIES: Mutex<BTreeMap<u32, Standing>> = Mutex::new(BTreeMap::new());

/// A device of which a copy is kept.
#[derive(Debug)]
struct Standing {
    /// Where.
    to: PlaceSpec,
    /// The store, once there is one, while no move has it.
    store: Option<Place>,
}

/// From now on copies are kept of these devices, at these places, and of no others.
pub(crate) fn begin(targets: impl Iterator<Item = (u32, PlaceSpec)>) {
    let mut before = std::mem::take(&mut *lock(&COPIES));
    let as_before = |(device, to): (u32, PlaceSpec)| {
        let store = before.remove(&device).filter(|old| old.to == to).and_then(|old| old.store);
        (device, Standing { to, store })
    };
    let now: BTreeMap<u32, Standing> = targets.map(as_before).collect();
    *lock(&COPIES) = now;
    before.into_values().filter_map(|old| old.store).for_each(Place::release);
}

/// No copies are kept any more.
pub(crate) fn end() {
    begin(std::iter::empty());
}

/// Whether copies are kept at this place.
pub(crate) fn is_at(place: &PlaceSpec) -> bool {
    lock(&COPIES).values().any(|copy| copy.to.is_same_as(place))
}

/// The program ends: a helper that is lost cannot remove its file.
pub(crate) fn remove_files() {
    lock(&COPIES).values().filter_map(|copy| copy.store.as_ref()).for_each(Place::remove_file);
}

/// The store with the copy of a device at this place, if there is one. If its process is lost, its file is opened again, for so many bytes:
/// it has the last complete state.
pub(super) fn take(device: u32, to: &PlaceSpec, most: u64) -> Option<Place> {
    let store = lock(&COPIES).get_mut(&device).filter(|copy| copy.to.is_same_as(to))?.store.take()?;
    if store.answers() {
        return Some(store);
    }
    let again = store.file_again(device, most)?;
    again.inspect_err(|why| tracing::warn!(target: "migrate", "the copy of GPU {device} is of no use: {why}")).ok()
}

/// Keeps a store that a move does not need any more, if it is the one of the copy; returns any other place.
pub(super) fn keep(device: u32, place: Place) -> Option<Place> {
    match lock(&COPIES).get_mut(&device).filter(|copy| copy.to.is_same_as(&place.spec()) && copy.store.is_none()) {
        Some(copy) => {
            copy.store = Some(place);
            None
        }
        None => Some(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_at_its_place_until_it_ends() {
        let place = |text: &str| text.parse::<PlaceSpec>().expect("a place");
        begin([(0, place("a:1/memory")), (1, place("b:1/memory"))].into_iter());
        assert!(is_at(&place("a:1/memory")) && is_at(&place("b:1/memory")));
        assert!(is_at(&place("tls://a:1/memory")) && !is_at(&place("plain://a:1/memory")));
        assert!(!is_at(&place("a:1/0")) && !is_at(&place("c:1/memory")));
        end();
        assert!(!is_at(&place("a:1/memory")));
    }
}
