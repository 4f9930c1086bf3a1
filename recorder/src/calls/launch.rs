//! Launches: parameters are packed by the layout that the place has returned once, checked, and sent.

use crate::base::encoding::encoded;
use crate::base::log::lock;
use crate::calls::stream_attributes;
use crate::enter::CallContext;
use crate::host_memory::{self, system_atomics};
use crate::job::Device;
use crate::objects::function::{FunctionData, FunctionProperties};
use crate::objects::limits::Limits;
use crate::objects::resident::Resident;
use crate::order::concerned::WaitingCall;
use crate::order::{captures, host_waiting, landing, last_launch};
use crate::pinned::naming;
use cuda_api::arg::{Capture, LEGACY};
use cuda_api::calls::Call;
use cuda_api::calls::launch::cuOccupancyMaxActiveBlocksPerMultiprocessor;
use cuda_api::code::{self, Code};
use cuda_api::flags::LAST_LAUNCH_ATTRIBUTE;
use cuda_api::handle::Kind;
use cuda_api::launch_args::{Config, ExtraParams, KernelParams};
use cuda_api::ops::{self, ATTRIBUTE_BYTES, FunctionInfo, Launch, MAX_PARAM_BYTES};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys::{self, CUlaunchAttributeID_enum as A};
use cuda_api::wire::Wire;
use cuda_api::work::{self, Attribute, Kernel, Params, Work};
use cuda_model::old_launch::Shape;
use cuda_model::parts::LARGEST_CLUSTER;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

/// More attributes than there are kinds indicate a damaged count.
const MAX_ATTRIBUTES: usize = 64;

/// The properties of a function that launches need. The first query on a device loads its code there: a journalled first use.
pub(crate) fn info(cx: &mut CallContext, function: u64) -> Result<&'static FunctionInfo, Code> {
    properties(cx, function).map(|properties| &properties.info)
}

/// As [`info`], with everything else that is known of it.
pub(crate) fn properties(cx: &mut CallContext, function: u64) -> Result<&'static FunctionProperties, Code> {
    let device = cx.device()?;
    properties_on(cx, device, function, cx.job.tables.function(function)?)
}

/// As [`properties`], for a function that has been looked up.
#[inline]
fn properties_on(
    cx: &CallContext,
    device: &'static Device,
    function: u64,
    data: &'static FunctionData,
) -> Result<&'static FunctionProperties, Code> {
    match data.known_on(device.index) {
        Some(properties) => Ok(properties),
        None => ask_info(cx, device, function, data),
    }
}

#[cold]
fn ask_info(
    cx: &CallContext,
    device: &'static Device,
    function: u64,
    data: &'static FunctionData,
) -> Result<&'static FunctionProperties, Code> {
    device.check()?;
    let body = function.to_le_bytes();
    // It may need more local memory, unless the place has said ahead that it does not.
    let is_told = lock(&device.ledger).function_info(function).is_some();
    let waits = (!is_told).then(|| WaitingCall::begin(device));
    let properties = data.learn(device.index, &device.ledger, |ledger| {
        let bytes = match ledger.function_info(function).filter(|_| cx.place(device).is_over_network()) {
            Some(bytes) => {
                let sent = device.record_error(cx.place(device).send(ops::id::FUNCTION_INFO, &[&body]))?;
                device.still_quiet(sent);
                bytes
            }
            None => cx.ask(device, ops::id::FUNCTION_INFO, &[&body])?,
        };
        let info = FunctionInfo::get(&mut &bytes[..]).ok().filter(FunctionInfo::is_sound).ok_or(code::ERROR_UNKNOWN)?;
        ledger.info_asked(function, &body, &info)?;
        Ok(bytes)
    })?;
    drop(waits);
    if properties.info.system_atomics {
        system_atomics::note_kernel(cx, &properties.info.name);
    }
    Ok(properties)
}

fn limit(device: &Device, id: sys::CUdevice_attribute_enum) -> u32 {
    crate::job::attributes::attribute(device, id as u32).and_then(|v| u32::try_from(v).ok()).unwrap_or(u32::MAX)
}

/// The errors that the driver returns from the launch itself.
pub(crate) fn check(device: &Device, info: &FunctionInfo, l: &Launch) -> Result<(), Code> {
    let limits = &device.limits;
    let inside = |values: [u32; 3], limits: [u32; 3]| values.iter().zip(limits).all(|(v, limit)| *v != 0 && *v <= limit);
    if !inside(l.grid, limits.grid) || !inside(l.block, limits.block) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let threads = l.block.iter().map(|b| u64::from(*b)).product::<u64>();
    if threads > u64::from(limits.threads) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if info.max_threads != 0 && threads > u64::from(info.max_threads) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if l.shared > info.max_dynamic_shared {
        return Err(if l.cooperative { code::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE } else { code::ERROR_INVALID_VALUE });
    }
    Ok(())
}

/// Returns whether an encoded attribute has this id.
fn is(attribute: &[u8], id: A) -> bool {
    attribute[..4] == (id as u32).to_le_bytes()
}

/// Returns whether a launch is cooperative, by its kind or by an attribute. Not for launches with clusters, which have a limit of their
/// own.
fn is_cooperative(l: &Launch, attributes: &[u8]) -> bool {
    let mut all = attributes.chunks_exact(ATTRIBUTE_BYTES);
    let clustered = all.clone().any(|a| is(a, A::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION));
    let asked = all.any(|a| is(a, A::CU_LAUNCH_ATTRIBUTE_COOPERATIVE) && a[8..12] != [0; 4]);
    (l.cooperative || asked) && !clustered
}

/// Notes a launch with clusters of more than one block, or a cooperative one with any: how many of them another GPU holds is not known.
fn note_clusters(resident: &Resident, info: &FunctionInfo, l: &Launch, attributes: &[u8]) {
    let of_one = |a: &[u8]| a[8..20].chunks_exact(4).all(|n| n == 1_u32.to_le_bytes());
    let mut all = attributes.chunks_exact(ATTRIBUTE_BYTES);
    let cooperative = l.cooperative || all.clone().any(|a| is(a, A::CU_LAUNCH_ATTRIBUTE_COOPERATIVE) && a[8..12] != [0; 4]);
    if info.clusters || all.any(|a| is(a, A::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) && (cooperative || !of_one(a))) {
        resident.note_clusters();
    }
}

/// Notes a cooperative launch, and one with clusters: a move to a GPU that differs depends on them.
pub(crate) fn note_cooperative(device: &Device, info: &FunctionInfo, l: &Launch, attributes: &[u8]) {
    note_clusters(&device.resident, info, l, attributes);
    if is_cooperative(l, attributes) {
        device.resident.note(l);
    }
}

/// A cooperative grid must be resident as a whole; the driver checks this at the launch. The place returns the maximum number of blocks
/// once for each block size of a function.
fn check_residence(cx: &mut CallContext, device: &'static Device, l: &Launch) -> Result<(), Code> {
    let mut sent = cuOccupancyMaxActiveBlocksPerMultiprocessor::Sent {
        numBlocks: true,
        func: l.function,
        blockSize: l.block.iter().product::<u32>() as c_int,
        dynamicSMemSize: l.shared as usize,
    };
    let (each, processors) = if device.differs.load(Ordering::Relaxed) {
        // What is cached may be of another GPU.
        let bytes = encoded(&sent, |body| cx.ask(device, cuOccupancyMaxActiveBlocksPerMultiprocessor::Fn::ID, &[body]))?;
        let reply = <cuOccupancyMaxActiveBlocksPerMultiprocessor::Fn as Call>::Reply::get(&mut &bytes[..]);
        let there = Limits::of(cx.place(device).device()).processors;
        (reply.map_err(|_| code::ERROR_UNKNOWN)?.numBlocks, there)
    } else {
        (cx.carry::<cuOccupancyMaxActiveBlocksPerMultiprocessor::Fn>(&mut sent)?.numBlocks, device.limits.processors)
    };
    let resident = each.and_then(|n| u64::try_from(n).ok()).unwrap_or(0) * u64::from(processors);
    let blocks = l.grid.iter().map(|g| u64::from(*g)).product::<u64>();
    if blocks > resident { Err(code::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) } else { Ok(()) }
}

/// Packs the parameters after the head: from the array of pointers, or from the one buffer of `extra`.
fn pack(body: &mut Vec<u8>, info: &FunctionInfo, params: KernelParams, extra: ExtraParams) -> Result<(), Code> {
    let start = body.len();
    if !extra.is_null() {
        let (buffer, n) = extra.buffer()?;
        let buffer = buffer.not_null()?;
        // As the driver behaves (measured): an empty buffer counts as none, there must not be both, and not more than fits.
        if n > 0 && !params.is_null() || n > MAX_PARAM_BYTES {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if n > info.params.last().map_or(0, |(offset, bytes)| (offset + bytes) as usize).next_multiple_of(8) {
            return Err(code::ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        if n > 0 {
            body.extend_from_slice(buffer.bytes(n)?);
            return Ok(());
        }
    }
    if info.params.is_empty() {
        return Ok(());
    }
    if params.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    for ((offset, _), value) in info.params.iter().zip(params.values(&info.params)) {
        let offset = *offset as usize;
        if offset + value.len() > MAX_PARAM_BYTES {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if body.len() < start + offset {
            body.resize(start + offset, 0);
        }
        body.extend_from_slice(value);
    }
    Ok(())
}

/// Notes the pinned memory whose addresses a kernel receives.
fn note_pinned(cx: &CallContext, info: &FunctionInfo, params: KernelParams) -> Result<(), Code> {
    if naming::any_unmapped() { host_memory::note_all(cx, params.values(&info.params)) } else { Ok(()) }
}

/// The graph node of a captured launch.
fn node(info: &FunctionInfo, head: &Launch, attributes: &[u8], params: KernelParams, extra: ExtraParams) -> Result<Kernel, Code> {
    let params = encoded(&(), |packed| pack(packed, info, params, extra).map(|()| Params::from_slice(packed)))?;
    let mut attributes: Vec<Attribute> = attributes.chunks_exact(ATTRIBUTE_BYTES).filter_map(|a| a.try_into().ok()).collect();
    if head.cooperative {
        let mut cooperative: Attribute = [0; ATTRIBUTE_BYTES];
        (cooperative[0], cooperative[8]) = (sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_COOPERATIVE as u8, 1);
        attributes.push(cooperative);
    }
    let (function, grid, block, shared) = (head.function, head.grid, head.block, head.shared);
    Ok(Kernel { function, grid, block, shared, attributes, params })
}

/// A launch: `head` without handles, attributes as the program passed them.
fn launch(
    cx: &mut CallContext,
    function: u64,
    stream: u64,
    mut head: Launch,
    attributes: &[u8],
    params: KernelParams,
    extra: ExtraParams,
) -> Result<(), Code> {
    head.stream = cx.use_stream(stream)?;
    let on = cx.device()?;
    head.function = function;
    let data = cx.job.tables.function(function)?;
    on.check()?;
    let info = &properties_on(cx, on, function, data)?.info;
    check(on, info, &head)?;
    if cx.job.graphs.capturing() {
        if info.references {
            cx.job.graphs.forbid_on(&captures::seen(cx, head.stream, on)?)?;
        }
        let kernel = || {
            let mut kernel = node(info, &head, attributes, params, extra)?;
            work::inherit(&mut kernel.attributes, stream_attributes::of_kernels(cx, on, head.stream)?);
            Ok(Work::Kernel(kernel))
        };
        if captures::take(cx, on, head.stream, false, kernel)? {
            note_cooperative(on, info, &head, attributes);
            return Ok(());
        }
    }
    if let Some(exec) = cx.place(on).in_process()
        && extra.is_null()
    {
        if params.is_null() && !info.params.is_empty() {
            return Err(code::ERROR_INVALID_VALUE);
        }
        note_pinned(cx, info, params)?;
        on.record_error(exec.launch_with(&head, attributes, params))?;
        last_launch::note(cx, on, head.stream, function);
        note_cooperative(on, info, &head, attributes);
        return Ok(());
    }
    note_clusters(&on.resident, info, &head, attributes);
    if is_cooperative(&head, attributes) {
        check_residence(cx, on, &head)?;
        on.resident.note(&head);
    }
    encoded(&head, |body| {
        body.extend_from_slice(attributes);
        let head_bytes = body.len();
        pack(body, info, params, extra)?;
        host_memory::note_words(cx, &body[head_bytes..])?;
        landing::before_work(cx, on, head.stream)?;
        let span = cx.work_at(on, ops::id::LAUNCH, &[body])?;
        last_launch::note(cx, on, head.stream, function);
        crate::order::delay::note_delay(cx, on, head.stream, span.as_ref());
        if host_waiting::may_wait(&body[head_bytes..]) {
            host_waiting::note(on, head.stream, span.map(|s| s.end));
        }
        Ok(())
    })
}

/// A launch with its parameters in one buffer.
pub(crate) fn packed(cx: &mut CallContext, function: u64, stream: u64, grid: [u32; 3], shape: Shape) -> Result<(), Code> {
    let (head, extra) = (head(grid, shape.block, shape.shared), ExtraParams::of(&shape.params));
    launch(cx, function, stream, head, &[], KernelParams::none(), extra)
}

fn head(grid: [c_uint; 3], block: [c_uint; 3], shared: c_uint) -> Launch {
    Launch { function: 0, stream: 0, grid, block, shared, attributes: 0, cooperative: false }
}

pub(crate) fn cuLaunchKernel(
    cx: &mut CallContext,
    f: sys::CUfunction,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: sys::CUstream,
    params: KernelParams,
    extra: ExtraParams,
) -> Result<(), Code> {
    let head = head([gx, gy, gz], [bx, by, bz], shared);
    launch(cx, f as u64, stream as u64, head, &[], params, extra)
}

pub(crate) fn cuLaunchCooperativeKernel(
    cx: &mut CallContext,
    f: sys::CUfunction,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: sys::CUstream,
    params: KernelParams,
) -> Result<(), Code> {
    let head = Launch { cooperative: true, ..head([gx, gy, gz], [bx, by, bz], shared) };
    launch(cx, f as u64, stream as u64, head, &[], params, ExtraParams::none())
}

/// Reads a launch configuration: head, stream, attributes as bytes.
fn read_config<'a>(cx: &CallContext, config: InPtr<'a, sys::CUlaunchConfig>) -> Result<(Launch, u64, &'a [u8]), Code> {
    let c = Config::read(config, MAX_ATTRIBUTES)?;
    check_attributes(c.attributes)?;
    check_clusters(cx, c.attributes, c.grid)?;
    let attributes = (c.attributes.len() / ATTRIBUTE_BYTES) as u16;
    Ok((Launch { attributes, ..head(c.grid, c.block, c.shared) }, c.stream, c.attributes))
}

/// Checks that clusters divide the grid and are not too large, and that the device supports them.
fn check_clusters(cx: &CallContext, bytes: &[u8], grid: [u32; 3]) -> Result<(), Code> {
    for a in bytes.chunks_exact(ATTRIBUTE_BYTES).filter(|a| is(a, A::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)) {
        let word = |i: usize| u32::from_le_bytes([a[i], a[i + 1], a[i + 2], a[i + 3]]);
        let cluster = [word(8), word(12), word(16)];
        let divides = cluster.iter().zip(grid).all(|(c, g)| *c != 0 && g % c == 0);
        if !divides || cluster.iter().map(|c| u64::from(*c)).product::<u64>() > u64::from(LARGEST_CLUSTER) {
            return Err(code::ERROR_INVALID_CLUSTER_SIZE);
        }
        let known = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH as u32;
        if cluster != [1; 3] && crate::job::attributes::attribute(cx.device()?, known) != Some(1) {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
    }
    Ok(())
}

/// Refuses attributes that contain handles, which would need translation.
pub(crate) fn check_attributes(bytes: &[u8]) -> Result<(), Code> {
    for a in bytes.chunks_exact(ATTRIBUTE_BYTES) {
        let id = u32::from_le_bytes([a[0], a[1], a[2], a[3]]);
        use sys::CUlaunchAttributeID_enum as A;
        let names_handles = [
            A::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
            A::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
            A::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
        ];
        // An attribute of streams, or an unknown one.
        if id == A::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY as u32 || id > LAST_LAUNCH_ATTRIBUTE {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if names_handles.iter().any(|x| *x as u32 == id) {
            crate::base::log::missed(format!("launch attribute {id}"));
            return Err(code::ERROR_NOT_SUPPORTED);
        }
    }
    Ok(())
}

pub(crate) fn cuLaunchKernelEx(
    cx: &mut CallContext,
    config: InPtr<sys::CUlaunchConfig>,
    f: sys::CUfunction,
    params: KernelParams,
    extra: ExtraParams,
) -> Result<(), Code> {
    let (head, stream, attributes) = read_config(cx, config)?;
    launch(cx, f as u64, stream, head, attributes, params, extra)
}

/// Occupancy queries that take a launch configuration: sent in the encoding of a launch.
fn clusters(
    cx: &mut CallContext,
    to: OutPtr<c_int>,
    f: sys::CUfunction,
    config: InPtr<sys::CUlaunchConfig>,
    op: u16,
) -> Result<(), Code> {
    let (mut head, _, attributes) = read_config(cx, config)?;
    head.stream = LEGACY;
    let device = cx.device()?;
    head.function = cx.use_handle(Kind::Function, Kind::Kernel, f as u64)?;
    cx.on(device);
    let mut body = Vec::new();
    head.put(&mut body);
    body.extend_from_slice(attributes);
    let bytes = cx.ask_about(&cx.job.tables.function(head.function)?.answers, device, op, &body)?;
    to.write(i32::get(&mut &bytes[..]).map_err(|_| code::ERROR_UNKNOWN)?)
}

pub(crate) fn cuOccupancyMaxActiveClusters(
    cx: &mut CallContext,
    to: OutPtr<c_int>,
    f: sys::CUfunction,
    config: InPtr<sys::CUlaunchConfig>,
) -> Result<(), Code> {
    clusters(cx, to, f, config, ops::id::MAX_ACTIVE_CLUSTERS)
}

pub(crate) fn cuOccupancyMaxPotentialClusterSize(
    cx: &mut CallContext,
    to: OutPtr<c_int>,
    f: sys::CUfunction,
    config: InPtr<sys::CUlaunchConfig>,
) -> Result<(), Code> {
    clusters(cx, to, f, config, ops::id::MAX_CLUSTER_SIZE)
}

/// Dynamic shared memory of a block of this size, as the program says.
#[expect(unsafe_code, reason = "it calls a function of the program")]
fn shared_for(callback: unsafe extern "C" fn(c_int) -> usize, threads: u32) -> usize {
    // SAFETY: the program's callback, called on the program's thread as the driver would.
    unsafe { callback(threads as c_int) }
}

fn potential_block_size(
    cx: &mut CallContext,
    grid: OutPtr<c_int>,
    block: OutPtr<c_int>,
    f: sys::CUfunction,
    shared_of: sys::CUoccupancyB2DSize,
    shared: usize,
    block_limit: c_int,
    flags: c_uint,
) -> Result<(), Code> {
    use cuda_api::calls::launch::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags as row;
    use sys::CUdevice_attribute_enum as A;
    let device = cx.device()?;
    let function = cx.use_handle(Kind::Function, Kind::Kernel, f as u64)?;
    cx.on(device);
    let info = info(cx, function)?;
    let warp = 32;
    let most = limit(device, A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK).min(info.max_threads.max(warp));
    let most = if block_limit > 0 { most.min(block_limit as u32) } else { most };
    let processors = limit(device, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let threads_per = limit(device, A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    let (mut best, mut best_block, mut best_blocks) = (0, 0, 0);
    let mut size = most.next_multiple_of(warp);
    while size > 0 {
        let size_here = size.min(most);
        let bytes = shared_of.map_or(shared, |callback| shared_for(callback, size_here));
        let mut sent =
            row::Sent { numBlocks: true, func: function, blockSize: size_here as c_int, dynamicSMemSize: bytes, flags };
        let blocks = cx.carry::<row::Fn>(&mut sent)?.numBlocks.unwrap_or(0).max(0) as u32;
        if blocks * size_here > best {
            (best, best_block, best_blocks) = (blocks * size_here, size_here, blocks);
        }
        if best == threads_per {
            break;
        }
        size -= warp;
    }
    grid.write((best_blocks * processors) as c_int)?;
    block.write(best_block as c_int)
}

pub(crate) fn cuOccupancyMaxPotentialBlockSize(
    cx: &mut CallContext,
    grid: OutPtr<c_int>,
    block: OutPtr<c_int>,
    f: sys::CUfunction,
    shared_of: sys::CUoccupancyB2DSize,
    shared: usize,
    block_limit: c_int,
) -> Result<(), Code> {
    potential_block_size(cx, grid, block, f, shared_of, shared, block_limit, 0)
}

pub(crate) fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    cx: &mut CallContext,
    grid: OutPtr<c_int>,
    block: OutPtr<c_int>,
    f: sys::CUfunction,
    shared_of: sys::CUoccupancyB2DSize,
    shared: usize,
    block_limit: c_int,
    flags: c_uint,
) -> Result<(), Code> {
    potential_block_size(cx, grid, block, f, shared_of, shared, block_limit, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_launches_and_of_code_are_noted() {
        let head =
            Launch { function: 1, stream: 0, grid: [4, 1, 1], block: [32, 1, 1], shared: 0, attributes: 0, cooperative: false };
        let noted = |info: &FunctionInfo, head: &Launch, attributes: &[u8]| {
            let resident = Resident::default();
            note_clusters(&resident, info, head, attributes);
            resident.has_clusters()
        };
        let of = |blocks: u32| {
            let mut bytes = vec![0; ATTRIBUTE_BYTES];
            bytes[..4].copy_from_slice(&(A::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as u32).to_le_bytes());
            [blocks, 1, 1].iter().zip(bytes[8..20].chunks_exact_mut(4)).for_each(|(n, to)| to.copy_from_slice(&n.to_le_bytes()));
            bytes
        };
        let plain = FunctionInfo::default();
        assert!(!noted(&plain, &head, &[]) && !noted(&plain, &head, &of(1)));
        assert!(noted(&plain, &head, &of(2)));
        assert!(noted(&plain, &Launch { cooperative: true, ..head }, &of(1)));
        assert!(noted(&FunctionInfo { clusters: true, ..plain }, &head, &[]));
    }
}
