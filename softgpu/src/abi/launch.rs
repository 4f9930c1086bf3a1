//! Launches.

use super::edge::In;
use super::{Res, abi};
use crate::gpu::capture::{forbid_on, take};
use crate::gpu::launch::{Shape, check, launch};
use crate::gpu::module;
use crate::gpu::stream::{Default, resolve};
use crate::ptx::ParamInfo;
use cuda_api::ops::ATTRIBUTE_BYTES;
use cuda_api::sys::{CUfunction, CUlaunchConfig, CUresult, CUstream};
use cuda_api::work as graph;
use std::ffi::{c_uint, c_void};

/// Keys in the `extra` list of a launch.
const END: usize = 0;
const BUFFER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// The first number behind those of CUDA 13.0.
const LAST_ATTRIBUTE: c_uint = 17;
/// Blocks of the largest cluster of any kernel.
const LARGEST_CLUSTER: u32 = 8;

/// Maximum number of attributes: a larger count than there are kinds is damaged.
const MAX_ATTRIBUTES: u32 = 64;

abi! {
    stream fn cuLaunchKernel / cuLaunchKernel_ptsz(
        function: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: CUstream,
        params: In<In<u8>> as *mut *mut c_void, extra: In<usize> as *mut *mut c_void,
    ) |default| {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, cooperative: false };
        start(function, shape, &[], stream, default, params, extra)
    }

    stream fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz(
        config: In<Config> as *const CUlaunchConfig, function: CUfunction, params: In<In<u8>> as *mut *mut c_void,
        extra: In<usize> as *mut *mut c_void,
    ) |default| {
        let config = config.get()?;
        let cooperative = config.check_attributes()?;
        let shape = Shape { grid: config.grid, block: config.block, shared: config.shared, cooperative };
        let attributes = config.bytes()?;
        start(function, shape, &attributes, config.stream as CUstream, default, params, extra)
    }

    stream fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz(
        function: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: CUstream,
        params: In<In<u8>> as *mut *mut c_void,
    ) |default| {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, cooperative: true };
        start(function, shape, &[], stream, default, params, In::none())
    }
}

/// The attribute that a cooperative launch amounts to.
const COOPERATIVE: graph::Attribute = {
    let mut bytes = [0; ATTRIBUTE_BYTES];
    (bytes[0], bytes[8]) = (2, 1);
    bytes
};

/// `CUlaunchConfig` with plain numbers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    pub shared: c_uint,
    stream: usize,
    attributes: In<Attribute>,
    count: c_uint,
}

/// `CUlaunchAttribute`: a number and 64 bytes whose meaning it determines.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    id: c_uint,
    pad: c_uint,
    value: [c_uint; 16],
}

const _: () = assert!(size_of::<Config>() == size_of::<CUlaunchConfig>());
const _: () = assert!(size_of::<Attribute>() == size_of::<cuda_api::sys::CUlaunchAttribute>());

impl Config {
    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().fold(1, |n, b| n.saturating_mul(*b))
    }

    /// The attributes, unchanged.
    fn bytes(&self) -> Res<Vec<graph::Attribute>> {
        let list: In<graph::Attribute> = self.attributes.cast();
        (0..self.count as usize).map(|i| list.at(i)).collect()
    }

    /// Whether clusters of this size divide the grid and are within the limit.
    fn fits(&self, cluster: [u32; 3]) -> bool {
        let divides = cluster.iter().zip(self.grid).all(|(c, g)| *c != 0 && g % c == 0);
        divides && cluster.iter().fold(1, |n: u32, c| n.saturating_mul(*c)) <= LARGEST_CLUSTER
    }

    /// Checks that all attributes are known; returns whether one requests a cooperative launch.
    pub fn check_attributes(&self) -> Res<bool> {
        if self.count > MAX_ATTRIBUTES {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut cooperative = false;
        for index in 0..self.count as usize {
            let attribute = self.attributes.at(index)?;
            let first = attribute.value[0];
            match attribute.id {
                // Nothing; cache window, order of clusters, overlap with the kernel before, priority, memory domains, carveout:
                // permissions and hints that change no result.
                0 | 1 | 5 | 6 | 8 | 9 | 10 | 14 => {}
                2 => cooperative = first != 0,
                4 | 11 if !self.fits([attribute.value[0], attribute.value[1], attribute.value[2]]) => {
                    return Err(CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
                }
                // Clusters of one block.
                4 | 11 if attribute.value[..3] == [1, 1, 1] => {}
                // A setting of streams, and unknown attributes.
                3 | LAST_ATTRIBUTE.. => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
                _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            }
        }
        Ok(cooperative)
    }
}

fn start(
    function: CUfunction,
    shape: Shape,
    attributes: &[graph::Attribute],
    stream: CUstream,
    default: Default,
    params: In<In<u8>>,
    extra: In<usize>,
) -> Res {
    let (found, _) = module::resolve_function(function)?;
    let infos = &found.info().params;
    let packed = match packed(infos, params, extra)? {
        Some(packed) => packed,
        None => pack(infos, params)?,
    };
    start_with(function, shape, attributes, stream, default, packed)
}

/// A launch with its parameters in one buffer.
pub(super) fn start_packed(function: CUfunction, shape: Shape, stream: CUstream, default: Default, mut params: Vec<u8>) -> Res {
    let (found, _) = module::resolve_function(function)?;
    let need = size_of_params(&found.info().params);
    if params.len() < need {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    params.truncate(need);
    start_with(function, shape, &[], stream, default, params)
}

fn start_with(
    function: CUfunction,
    shape: Shape,
    attributes: &[graph::Attribute],
    stream: CUstream,
    default: Default,
    packed: Vec<u8>,
) -> Res {
    let handle = function as u64;
    let (function, _) = module::resolve_function(function)?;
    let target = resolve(stream, default)?;
    let kernel = || {
        check(&function, &shape)?;
        let mut attributes = attributes.to_vec();
        if shape.cooperative && attributes.is_empty() {
            attributes.push(COOPERATIVE);
        }
        graph::inherit(&mut attributes, super::stream_attribute::of_kernels(&target.stream));
        let (grid, block, shared) = (shape.grid, shape.block, shape.shared);
        let params = graph::Params::from_slice(&packed);
        Ok(graph::Work::Kernel(graph::Kernel { function: handle, grid, block, shared, attributes, params }))
    };
    if function.info().references {
        forbid_on(&target)?;
    }
    if take(&target, false, kernel)? { Ok(()) } else { launch(function, &target, shape, packed) }
}

fn size_of_params(infos: &[ParamInfo]) -> usize {
    infos.iter().map(|p| p.offset as usize + p.size as usize).max().unwrap_or(0)
}

/// Parameters as an array of pointers.
fn pack(infos: &[ParamInfo], params: In<In<u8>>) -> Res<Vec<u8>> {
    let mut bytes = vec![0; size_of_params(infos)];
    for (index, info) in infos.iter().enumerate() {
        let param = params.at(index)?;
        for i in 0..info.size as usize {
            bytes[info.offset as usize + i] = param.at(i)?;
        }
    }
    Ok(bytes)
}

/// Parameters given as one buffer, in the list `BUFFER, pointer, BUFFER_SIZE, pointer to its size, END`. An empty buffer is none, a
/// short one is filled up, and there must not be both (measured).
fn packed(infos: &[ParamInfo], params: In<In<u8>>, extra: In<usize>) -> Res<Option<Vec<u8>>> {
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    if extra.is_null() {
        return Ok(None);
    }
    let (mut buffer, mut size) = (None, None);
    let mut at = 0;
    loop {
        match extra.at(at)? {
            END => break,
            BUFFER if buffer.is_none() => buffer = Some(extra.pointer_at::<u8>(at + 1)?),
            BUFFER_SIZE if size.is_none() => size = Some(extra.pointer_at::<usize>(at + 1)?.get()?),
            _ => return Err(bad),
        }
        at += 2;
    }
    let need = size_of_params(infos);
    let (buffer, size) = (buffer.ok_or(bad)?, size.ok_or(bad)?);
    if size == 0 {
        return Ok(None);
    }
    if !params.is_null() {
        return Err(bad);
    }
    if size > need.next_multiple_of(8) {
        return Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    }
    (0..need).map(|i| if i < size { buffer.at(i) } else { Ok(0) }).collect::<Res<_>>().map(Some)
}
