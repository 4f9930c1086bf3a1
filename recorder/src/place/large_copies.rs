//! How many connections a place has for large copies.

use crate::base::config;
use executor::processors;
use rcuda_forwarder::Link;

/// How many connections carry large copies in each direction between the job and a place: half as many as there are processors, because copies
/// in both directions can be under way. Over shared memory twice as many: the thread of a connection sleeps for half of the time, between two segments.
fn by_processors(processors: [u32; 2], is_shared: bool) -> u32 {
    let least = processors[0].min(processors[1]);
    if is_shared { least.clamp(2, 16) } else { (least / 2).clamp(2, 8) }
}

/// How many connections a place has for large copies in each direction; 0: none.
pub(crate) fn bulk_connections(link: &Link) -> u32 {
    let set = config::get().ok().and_then(|config| config.bulk_connections);
    set.unwrap_or_else(|| by_processors([processors(), link.device().processors], !link.transport().is_network()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_as_many_as_both_ends_have_processors_for() {
        let numbers = |is_shared| [[1, 64], [64, 8], [16, 16], [0, 0], [u32::MAX; 2]].map(|ends| by_processors(ends, is_shared));
        assert_eq!((numbers(false), numbers(true)), ([2, 4, 8, 2, 8], [2, 8, 16, 2, 16]));
    }
}
