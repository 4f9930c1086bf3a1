//! The address map of a job, the same in every place (docs/memory.md, "Addresses"), and the limits that follow from it.
//!
//! | range | contents |
//! |---|---|
//! | [`HEAP`] to [`HEAP_END`] | what a driver reserves for itself, the heap of device code among it |
//! | [`VMM`] to [`VMM_END`] | what the program reserves itself, and other mappings of chunks |
//! | [`OWN`] + d × [`ARENA`] | mrcuda's own allocations on virtual device d |
//! | [`PLACED`] + d × [`ARENA`] | what the driver places itself on virtual device d |
//! | [`HOST`] to [`HOST_END`] | pinned memory of the job |
//! | [`SCRATCH`] + d × [`SCRATCH_BYTES`] | other memory of the driver and the executor |
//! | [`VIEW`] | the source's memory during a move |
//! | [`IMPORTS`] to [`IMPORTS_END`] | memory of the job's other GPUs, for copies |
//! | [`DIRECT`] to [`DIRECT_END`] | staging areas in the GPU's memory |

/// Maximum number of devices of a job.
pub const DEVICES: u32 = 32;

/// Size of a device's range of own allocations, and of its range for the driver's placements.
pub const ARENA: u64 = 512 << 30;

/// Granularity of physical memory: the size and the alignment of a chunk are multiples of it.
pub const GRANULE: u64 = 2 << 20;

/// Size of the pages in which host memory is mapped and registered.
pub const PAGE: u64 = 4096;

/// Start of the range that a driver reserves for itself, for the heap of device code among other things. Host memory does not lie in it.
pub const HEAP: u64 = 0x2_0000_0000;
/// End of that range.
pub const HEAP_END: u64 = 0x22_0000_0000;

/// Start of the range for the program's reservations: so low that no allocator of the system uses it by default,
/// whatever the address randomization, and above the ranges of memory checkers.
pub const VMM: u64 = 0x1080_0000_0000;
/// End of that range.
pub const VMM_END: u64 = OWN;

/// First address of the recorder's allocations on device 0.
pub const OWN: u64 = 0x2000_0000_0000;

/// First address of the driver's own placements on device 0.
pub const PLACED: u64 = 0x3000_0000_0000;
/// End of the placements of the drivers of all devices.
pub const PLACED_END: u64 = PLACED + DEVICES as u64 * ARENA;

/// Start of the range of the job's pinned memory, which has the same addresses in every place that maps it; the memory
/// file begins here.
pub const HOST: u64 = 0x4000_0000_0000;
/// End of that range.
pub const HOST_END: u64 = SCRATCH;

/// Alignment of blocks of managed memory that a job uses exclusively. A driver takes the wanted address for a reservation of this size
/// (docs/driver-facts.md 4.11).
pub const SLOT: u64 = 128 << 20;

/// Smallest block of managed memory that a place may keep in the GPU's memory.
pub const SMALLEST_EXCLUSIVE: u64 = GRANULE;

/// Bytes of addresses for a block of managed memory that a job uses exclusively: a place that keeps it in the GPU's memory has it at the
/// beginning, the contents that were agreed on at the end, and nothing between them. `None` if it does not fit in the range of pinned memory.
pub const fn slot(bytes: u64) -> Option<u64> {
    if bytes > HOST_END - HOST {
        return None;
    }
    let bytes = (2 * bytes.next_multiple_of(GRANULE) + GRANULE).next_multiple_of(SLOT);
    if bytes <= HOST_END - HOST { Some(bytes) } else { None }
}

/// First address of scratch memory of device 0.
pub const SCRATCH: u64 = 0x4800_0000_0000;
/// Size of a device's scratch memory.
pub const SCRATCH_BYTES: u64 = 64 << 30;

/// Where memory of another place is mapped during a move, if the range is free.
pub const VIEW: u64 = 0x4a00_0000_0000;

/// Start of the range where a place maps memory of the job's other GPUs to copy from and to it: at addresses that nothing else of the job
/// uses, behind the range for the memory of the source of a move.
pub const IMPORTS: u64 = 0x4a80_0000_0000;
/// End of that range.
pub const IMPORTS_END: u64 = IMPORTS + ARENA;

/// Where a worker maps staging areas in its GPU's memory, if the range is free.
pub const DIRECT: u64 = IMPORTS_END;
/// End of that range, and of all ranges of the job on a device, and of the executor.
pub const DIRECT_END: u64 = DIRECT + ARENA;

// The ranges follow each other, and those that are reserved as arenas begin at multiples of one.
const _: () = {
    assert!(HEAP_END <= VMM && VMM < VMM_END && OWN + DEVICES as u64 * ARENA <= PLACED && PLACED_END <= HOST && HOST < HOST_END);
    assert!(SCRATCH + DEVICES as u64 * SCRATCH_BYTES <= VIEW && VIEW + ARENA <= IMPORTS && IMPORTS_END <= DIRECT);
    assert!(ARENA.is_power_of_two() && ARENA.is_multiple_of(GRANULE));
    assert!(HOST.is_multiple_of(SLOT) && HOST_END.is_multiple_of(SLOT) && SLOT.is_multiple_of(GRANULE));
    assert!(
        VMM.is_multiple_of(ARENA) && OWN.is_multiple_of(ARENA) && PLACED.is_multiple_of(ARENA) && IMPORTS.is_multiple_of(ARENA)
    );
};

/// First address of a device's own allocations.
pub const fn own_base(virtual_device: u32) -> u64 {
    OWN + virtual_device as u64 * ARENA
}

/// First address of the driver's own placements on a device.
pub const fn placed_base(virtual_device: u32) -> u64 {
    PLACED + virtual_device as u64 * ARENA
}
