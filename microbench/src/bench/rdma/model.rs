//! A model of what RDMA gives: each way is as fast as the slowest of the link, the threads that copy, and the GPU
//! (docs/decisions/0028-rdma-carries-the-byte-stream.md, "What hardware would give").
//!
//! It leaves out hashing, memory of the program that is touched for the first time, and that the other end may be another machine.

use std::collections::BTreeMap;
use std::fmt;

/// Rates of links, in bits a second.
pub(super) const LINKS: [f64; 4] = [25e9, 100e9, 200e9, 400e9];
/// Share of a link's rate that is data: RoCE v2 with packets of 4096 bytes.
const DATA: f64 = 0.98;

/// Figures of a machine; rates are in bytes a second.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) processors: u32,
    /// What so many threads copy together from memory to memory.
    pub(super) copying: BTreeMap<u32, f64>,
    /// Copies of pinned memory to the GPU, and from it.
    pub(super) to_gpu: f64,
    pub(super) from_gpu: f64,
}

/// What limits a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Link,
    Copying,
    Gpu,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Link => "link",
            Part::Copying => "copying",
            Part::Gpu => "GPU",
        })
    }
}

/// A way of bytes over RDMA. Its connections have one thread each, which copies every byte once at the end that copies more.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) name: &'static str,
    copying: f64,
    gpu: f64,
}

impl Way {
    /// Bytes a second over a link of this rate, and what limits them.
    pub(super) fn rate(&self, link: f64) -> (f64, Part) {
        let parts = [(link / 8.0 * DATA, Part::Link), (self.copying, Part::Copying), (self.gpu, Part::Gpu)];
        parts.into_iter().fold((f64::INFINITY, Part::Link), |least, part| if part.0 < least.0 { part } else { least })
    }
}

/// Connections of large copies in each direction, and of copies between two places, over RDMA: mrcuda's defaults
/// (`recorder/src/connections.rs`) where both ends have so many processors.
fn connections(processors: u32) -> [u32; 2] {
    [(processors / 2).clamp(2, 8), processors.clamp(4, 8)]
}

/// The numbers of threads whose copying the model needs.
pub(super) fn threads(processors: u32) -> Vec<u32> {
    let [large, between] = connections(processors);
    vec![1, large, between]
}

/// All ways of a machine.
pub(super) fn ways(machine: &Machine) -> [Way; 4] {
    let [large, between] = connections(machine.processors);
    let copying = |threads: u32| machine.copying.get(&threads).copied().unwrap_or(f64::INFINITY);
    let way = |name, threads, gpu| Way { name, copying: copying(threads), gpu };
    [
        // Their bytes are few: the GPU does not limit them.
        way("calls, small copies", 1, f64::INFINITY),
        way("large copies to the device", large, machine.to_gpu),
        way("large copies from the device", large, machine.from_gpu),
        way("moves, copies between GPUs", between, machine.to_gpu.min(machine.from_gpu)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(machine: &Machine, link: f64) -> [(f64, Part); 4] {
        ways(machine).map(|way| {
            let (rate, part) = way.rate(link);
            ((rate / 1e8).round() / 10.0, part)
        })
    }

    /// The tables of docs/decisions/0028, with eight connections between places.
    #[test]
    fn a_way_is_as_fast_as_its_slowest_part() {
        let copying = [(1, 8e9), (8, 64e9)].into();
        let machine = |gpu| Machine { processors: 64, copying, to_gpu: gpu, from_gpu: gpu };
        let machine = machine(25e9);
        assert_eq!(rates(&machine, 25e9), [(3.1, Part::Link); 4]);
        assert_eq!(rates(&machine, 100e9), [(8.0, Part::Copying), (12.3, Part::Link), (12.3, Part::Link), (12.3, Part::Link)]);
        assert_eq!(rates(&machine, 400e9), [(8.0, Part::Copying), (25.0, Part::Gpu), (25.0, Part::Gpu), (25.0, Part::Gpu)]);
        let slow = Machine { copying: [(1, 4e9), (8, 16e9)].into(), from_gpu: 12e9, ..machine };
        assert_eq!(rates(&slow, 200e9), [(4.0, Part::Copying), (16.0, Part::Copying), (12.0, Part::Gpu), (12.0, Part::Gpu)]);
    }

    #[test]
    fn connections_are_those_of_the_processors() {
        assert_eq!([1, 6, 12, 64].map(connections), [[2, 4], [3, 6], [6, 8], [8, 8]]);
        assert_eq!(threads(6), [1, 3, 6]);
    }
}
