//! Which GPU of this machine each place of a move gets.

use rcuda_forwarder::PlaceSpec;

/// Selects the GPU for each place of this machine and decides which place is in this process. Without a number it is the lowest GPU that
/// the job does not use otherwise: `taken` are the GPUs of devices that do not move. A process can use only one GPU for one device, for
/// as long as it runs: that is the first `local` one, or `bound` (GPU, device); further ones are in helpers.
pub(crate) fn choose(wanted: Vec<(u32, PlaceSpec)>, taken: &[u32], mut bound: Option<(u32, u32)>) -> Vec<PlaceSpec> {
    let mut used: Vec<u32> = wanted.iter().filter_map(|(_, s)| s.local_number()).chain(taken.iter().copied()).collect();
    let mut chosen = Vec::new();
    for (device, spec) in wanted {
        let mut lowest = |preferred: Option<u32>| {
            let free = preferred.filter(|g| !used.contains(g)).or_else(|| (0..).find(|g| !used.contains(g)));
            used.extend(free);
            free.unwrap_or(0)
        };
        chosen.push(match spec {
            spec @ (PlaceSpec::Remote(_) | PlaceSpec::Memory | PlaceSpec::File(_)) => spec,
            PlaceSpec::Helper(gpu) => PlaceSpec::Helper(Some(gpu.unwrap_or_else(|| lowest(None)))),
            PlaceSpec::Local(gpu) => {
                let own = bound.filter(|(_, d)| *d == device).map(|(g, _)| g);
                let gpu = gpu.unwrap_or_else(|| lowest(own));
                if *bound.get_or_insert((gpu, device)) == (gpu, device) {
                    PlaceSpec::Local(Some(gpu))
                } else {
                    PlaceSpec::Helper(Some(gpu))
                }
            }
        });
    }
    chosen
}

#[cfg(test)]
mod tests;
