//! The driver calls that the executor itself makes, with Rust results.
//!
//! Device addresses and handles are plain numbers here: the driver refuses wrong ones, so they cannot harm this process.

use cuda_api::calls::Driver;
use cuda_api::code::{self, Code};
use cuda_api::flags;
use cuda_api::ops::{EventOffer, MemoryPart, STREAM_ATTRIBUTE_BYTES, StreamMemory, TensorMapTiled};
use cuda_api::sys;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

const _: () = assert!(size_of::<sys::CUstreamBatchMemOpParams>() == size_of::<[u64; 6]>());

/// Calls of one loaded driver.
#[derive(Debug, Clone)]
pub(crate) struct Gpu(pub(crate) Arc<Driver>);

fn checked(rc: Code) -> Result<(), Code> {
    if rc == code::SUCCESS { Ok(()) } else { Err(rc) }
}

/// Calls an entry point; returns `NOT_FOUND` if it is missing.
macro_rules! call {
    ($self:ident.$family:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        let f = $self.0.$family.$name.ok_or(code::ERROR_NOT_FOUND)?;
        // SAFETY: outputs point to live variables of the types that the row gives; where a wrapper takes pointers to host memory, its
        // caller guarantees their validity.
        checked(unsafe { f($($arg),*) })
    }};
}

pub(crate) mod arrays;
pub(crate) mod graphs;
pub(crate) mod references;

impl Gpu {
    pub(crate) fn init(&self) -> Result<(), Code> {
        call!(self.device.cuInit(0))
    }

    pub(crate) fn driver_version(&self) -> Result<i32, Code> {
        let mut v = 0;
        call!(self.device.cuDriverGetVersion(&raw mut v)).map(|()| v)
    }

    pub(crate) fn device_count(&self) -> Result<i32, Code> {
        let mut n = 0;
        call!(self.device.cuDeviceGetCount(&raw mut n)).map(|()| n)
    }

    pub(crate) fn device_name(&self) -> Result<String, Code> {
        let mut text = [0 as c_char; 256];
        call!(self.device.cuDeviceGetName(text.as_mut_ptr(), 255, 0))?;
        // SAFETY: the driver was not given the last byte of the buffer, so there is a NUL.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    pub(crate) fn device_uuid(&self) -> Result<[u8; 16], Code> {
        let mut uuid = [0u8; 16];
        call!(self.device.cuDeviceGetUuid_v2(uuid.as_mut_ptr().cast(), 0)).map(|()| uuid)
    }

    pub(crate) fn total_bytes(&self) -> Result<u64, Code> {
        let mut n = 0usize;
        call!(self.device.cuDeviceTotalMem_v2(&raw mut n, 0)).map(|()| n as u64)
    }

    pub(crate) fn attribute(&self, attribute: u32) -> Result<i32, Code> {
        let mut v = 0;
        call!(self.device.cuDeviceGetAttribute(&raw mut v, attribute, 0)).map(|()| v)
    }

    pub(crate) fn retain(&self) -> Result<usize, Code> {
        let mut context: sys::CUcontext = std::ptr::null_mut();
        call!(self.context.cuDevicePrimaryCtxRetain(&raw mut context, 0)).map(|()| context as usize)
    }

    pub(crate) fn release(&self) -> Result<(), Code> {
        call!(self.context.cuDevicePrimaryCtxRelease_v2(0))
    }

    pub(crate) fn reset(&self) -> Result<(), Code> {
        call!(self.context.cuDevicePrimaryCtxReset_v2(0))
    }

    pub(crate) fn set_current(&self, context: usize) -> Result<(), Code> {
        call!(self.context.cuCtxSetCurrent(context as sys::CUcontext))
    }

    /// Keeps calls of this thread from disturbing another thread's capture (docs/execution.md, "Captures").
    pub(crate) fn relax_capture(&self) -> Result<(), Code> {
        let mut mode = flags::CAPTURE_RELAXED;
        call!(self.graph.cuThreadExchangeStreamCaptureMode((&raw mut mode).cast()))
    }

    pub(crate) fn priorities(&self) -> Result<[i32; 2], Code> {
        let (mut least, mut greatest) = (0, 0);
        call!(self.context.cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)).map(|()| [least, greatest])
    }

    pub(crate) fn limit(&self, limit: sys::CUlimit_enum) -> Result<u64, Code> {
        let mut n = 0usize;
        call!(self.context.cuCtxGetLimit(&raw mut n, limit as u32)).map(|()| n as u64)
    }

    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        call!(self.context.cuCtxSynchronize())
    }

    /// Free and total bytes.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64), Code> {
        let (mut free, mut total) = (0usize, 0usize);
        call!(self.memory.cuMemGetInfo_v2(&raw mut free, &raw mut total)).map(|()| (free as u64, total as u64))
    }

    pub(crate) fn new_stream(&self) -> Result<u64, Code> {
        let mut s: sys::CUstream = std::ptr::null_mut();
        call!(self.stream.cuStreamCreate(&raw mut s, flags::STREAM_NON_BLOCKING)).map(|()| s as u64)
    }

    pub(crate) fn new_stream_with_priority(&self, blocking: bool, priority: i32) -> Result<u64, Code> {
        let mut s: sys::CUstream = std::ptr::null_mut();
        let flags = if blocking { 0 } else { flags::STREAM_NON_BLOCKING };
        call!(self.stream.cuStreamCreateWithPriority(&raw mut s, flags, priority)).map(|()| s as u64)
    }

    pub(crate) fn destroy_stream(&self, stream: u64) -> Result<(), Code> {
        call!(self.stream.cuStreamDestroy_v2(stream as sys::CUstream))
    }

    pub(crate) fn synchronize_stream(&self, stream: u64) -> Result<(), Code> {
        call!(self.stream.cuStreamSynchronize(stream as sys::CUstream))
    }

    /// Waits for an event; unlike a query, this also shows text that device code has printed.
    pub(crate) fn synchronize_event(&self, event: u64) -> Result<(), Code> {
        call!(self.stream.cuEventSynchronize(event as sys::CUevent))
    }

    /// The flags that a stream was created with.
    pub(crate) fn stream_flags(&self, stream: u64) -> Result<u32, Code> {
        let mut flags = 0;
        call!(self.stream.cuStreamGetFlags(stream as sys::CUstream, &raw mut flags)).map(|()| flags)
    }

    /// Returns success if the stream is idle, `NOT_READY` otherwise.
    pub(crate) fn query_stream(&self, stream: u64) -> Result<(), Code> {
        call!(self.stream.cuStreamQuery(stream as sys::CUstream))
    }

    /// Creates an event; without `timing` it is cheaper.
    pub(crate) fn new_event(&self, timing: bool) -> Result<u64, Code> {
        let mut e: sys::CUevent = std::ptr::null_mut();
        let flags = if timing { 0 } else { flags::EVENT_DISABLE_TIMING };
        call!(self.stream.cuEventCreate(&raw mut e, flags)).map(|()| e as u64)
    }

    pub(crate) fn destroy_event(&self, event: u64) -> Result<(), Code> {
        call!(self.stream.cuEventDestroy_v2(event as sys::CUevent))
    }

    pub(crate) fn record(&self, event: u64, stream: u64) -> Result<(), Code> {
        call!(self.stream.cuEventRecord(event as sys::CUevent, stream as sys::CUstream))
    }

    pub(crate) fn record_with_flags(&self, event: u64, stream: u64, flags: u32) -> Result<(), Code> {
        call!(self.stream.cuEventRecordWithFlags(event as sys::CUevent, stream as sys::CUstream, flags))
    }

    pub(crate) fn set_stream_attribute(
        &self,
        stream: u64,
        attribute: u32,
        value: &[u64; STREAM_ATTRIBUTE_BYTES / 8],
    ) -> Result<(), Code> {
        call!(self.stream.cuStreamSetAttribute(stream as sys::CUstream, attribute, value.as_ptr().cast()))
    }

    /// Returns success if the event has occurred, `NOT_READY` before.
    pub(crate) fn wait_event(&self, stream: u64, event: u64) -> Result<(), Code> {
        call!(self.stream.cuStreamWaitEvent(stream as sys::CUstream, event as sys::CUevent, 0))
    }

    /// The data by which other processes can open an event.
    pub(crate) fn share_event(&self, event: u64) -> Result<EventOffer, Code> {
        let mut handle = sys::CUipcEventHandle { reserved: [0; 64] };
        call!(self.memory.cuIpcGetEventHandle(&raw mut handle, event as sys::CUevent)).map(|()| handle.reserved.map(|b| b as u8))
    }

    /// Opens an event of another process.
    pub(crate) fn open_event(&self, offer: &EventOffer) -> Result<u64, Code> {
        let mut event = std::ptr::null_mut();
        let handle = sys::CUipcEventHandle { reserved: offer.map(|b| b as c_char) };
        call!(self.memory.cuIpcOpenEventHandle(&raw mut event, handle)).map(|()| event as u64)
    }

    pub(crate) fn query_event(&self, event: u64) -> Result<(), Code> {
        call!(self.stream.cuEventQuery(event as sys::CUevent))
    }

    /// Milliseconds between two events.
    pub(crate) fn elapsed(&self, from: u64, to: u64) -> Result<f32, Code> {
        let mut ms = 0f32;
        let (from, to) = (from as sys::CUevent, to as sys::CUevent);
        if self.0.stream.cuEventElapsedTime_v2.is_some() {
            return call!(self.stream.cuEventElapsedTime_v2(&raw mut ms, from, to)).map(|()| ms);
        }
        call!(self.stream.cuEventElapsedTime(&raw mut ms, from, to)).map(|()| ms)
    }

    pub(crate) fn reserve(&self, bytes: u64, at: u64) -> Result<u64, Code> {
        let mut address = 0;
        call!(self.vmm.cuMemAddressReserve(&raw mut address, bytes as usize, 0, at, 0)).map(|()| address)
    }

    pub(crate) fn unreserve(&self, at: u64, bytes: u64) -> Result<(), Code> {
        call!(self.vmm.cuMemAddressFree(at, bytes as usize))
    }

    /// Creates physical memory of the device that can be exported to other processes.
    pub(crate) fn create_memory(&self, bytes: u64, rdma: bool) -> Result<u64, Code> {
        self.create(bytes, true, rdma, 0)
    }

    /// Creates physical memory for a usage (`CU_MEM_CREATE_USAGE_…`); `shared` makes it exportable.
    fn create(&self, bytes: u64, shared: bool, rdma: bool, usage: u16) -> Result<u64, Code> {
        use sys::CUmemAllocationHandleType as T;
        let mut handle = 0;
        let prop = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: if shared { T::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } else { T::CU_MEM_HANDLE_TYPE_NONE },
            location: own_device(),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: u8::from(rdma),
                usage,
                reserved: [0; 4],
            },
        };
        call!(self.vmm.cuMemCreate(&raw mut handle, bytes as usize, &raw const prop, 0)).map(|()| handle)
    }

    pub(crate) fn release_memory(&self, handle: u64) -> Result<(), Code> {
        call!(self.vmm.cuMemRelease(handle))
    }

    /// Exports memory as a descriptor, for other processes.
    pub(crate) fn export(&self, memory: u64) -> Result<OwnedFd, Code> {
        let mut fd: c_int = -1;
        call!(self.vmm.cuMemExportToShareableHandle((&raw mut fd).cast(), memory, flags::HANDLE_FILE_DESCRIPTOR, 0))?;
        if fd < 0 {
            return Err(code::ERROR_UNKNOWN);
        }
        // SAFETY: a fresh descriptor, which the driver has passed to us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Imports the memory of a descriptor, which the caller still owns.
    pub(crate) fn import(&self, fd: RawFd) -> Result<u64, Code> {
        let mut handle = 0;
        let fd = std::ptr::without_provenance_mut(fd as usize);
        call!(self.vmm.cuMemImportFromShareableHandle(&raw mut handle, fd, flags::HANDLE_FILE_DESCRIPTOR)).map(|()| handle)
    }

    /// A dma-buf of mapped memory of the device, by which other devices of the machine reach it.
    pub(crate) fn dma_buf(&self, at: u64, bytes: u64) -> Result<OwnedFd, Code> {
        let mut fd: c_int = -1;
        let kind = sys::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as u32;
        call!(self.refused.cuMemGetHandleForAddressRange((&raw mut fd).cast(), at, bytes as usize, kind, 0))?;
        if fd < 0 {
            return Err(code::ERROR_UNKNOWN);
        }
        // SAFETY: a fresh descriptor, which the driver has passed to us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(crate) fn map(&self, at: u64, bytes: u64, handle: u64) -> Result<(), Code> {
        call!(self.vmm.cuMemMap(at, bytes as usize, 0, handle, 0))
    }

    pub(crate) fn unmap(&self, at: u64, bytes: u64) -> Result<(), Code> {
        call!(self.vmm.cuMemUnmap(at, bytes as usize))
    }

    pub(crate) fn allow(&self, at: u64, bytes: u64) -> Result<(), Code> {
        self.allow_as(at, bytes, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32)
    }

    /// As [`Gpu::allow`], with these `CUmemAccess_flags`.
    pub(crate) fn allow_as(&self, at: u64, bytes: u64, flags: u32) -> Result<(), Code> {
        use sys::CUmemAccess_flags as F;
        let flags = match flags {
            0 => F::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            1 => F::CU_MEM_ACCESS_FLAGS_PROT_READ,
            3 => F::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            _ => return Err(code::ERROR_INVALID_VALUE),
        };
        let access = sys::CUmemAccessDesc { location: own_device(), flags };
        call!(self.vmm.cuMemSetAccess(at, bytes as usize, &raw const access, 1))
    }

    /// Page-locked host memory that the device can use at the same address. It is ordinary memory that is registered: the driver's own
    /// allocations would take addresses from the range where it places variables (docs/migration.md, "Preparing a place").
    pub(crate) fn pin(&self, bytes: usize) -> Result<usize, Code> {
        self.pin_mapping(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, (-1, 0))
    }

    /// As [`Gpu::pin`]: memory of a file, from an offset on.
    pub(crate) fn pin_file(&self, bytes: usize, file: BorrowedFd<'_>, offset: u64) -> Result<usize, Code> {
        self.pin_mapping(bytes, libc::MAP_SHARED, (file.as_raw_fd(), offset as libc::off_t))
    }

    fn pin_mapping(&self, bytes: usize, kind: i32, (file, offset): (RawFd, libc::off_t)) -> Result<usize, Code> {
        /// More attempts than a program can have unmapped ranges in the meantime.
        const TRIES: usize = 64;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_POPULATE);
        // Where a program has unregistered and unmapped memory, a driver that has not processed this yet refuses to register other
        // memory.
        let mut in_the_way = Vec::new();
        let pinned = loop {
            // SAFETY: a fresh mapping at an address that the system chooses.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, file, offset) };
            if at == libc::MAP_FAILED {
                break Err(code::ERROR_OUT_OF_MEMORY);
            }
            // SAFETY: the mapping just created. A forked child must not share what the device writes to.
            unsafe { libc::madvise(at, bytes, libc::MADV_DONTFORK) };
            let Err(rc) = self.register(at as u64, bytes as u64, 0) else { break Ok(at as usize) };
            in_the_way.push(at);
            if rc != code::ERROR_HOST_MEMORY_ALREADY_REGISTERED || in_the_way.len() == TRIES {
                break Err(rc);
            }
        };
        for at in in_the_way {
            // SAFETY: mapped above with this length, and not used by anything.
            unsafe { libc::munmap(at, bytes) };
        }
        pinned
    }

    /// Frees memory of [`Gpu::pin`]. If the context was destroyed, so was the registration.
    pub(crate) fn unpin(&self, at: usize, bytes: usize) {
        let unregister = || call!(self.memory.cuMemHostUnregister(at as *mut c_void));
        let _ = unregister();
        // SAFETY: mapped by `pin` with this length; its owner releases it.
        unsafe { libc::munmap(at as *mut c_void, bytes) };
    }

    /// Registers memory that something else owns; `flags` of `cuMemHostRegister`, in addition to those that every registration has.
    pub(crate) fn register(&self, at: u64, bytes: u64, flags: u32) -> Result<(), Code> {
        call!(self.memory.cuMemHostRegister_v2(
            at as *mut c_void,
            bytes as usize,
            flags::HOST_REGISTER_PORTABLE | flags::HOST_REGISTER_DEVICE_MAP | flags & flags::HOST_REGISTER_READ_ONLY
        ))
    }

    pub(crate) fn unregister(&self, at: u64) -> Result<(), Code> {
        call!(self.memory.cuMemHostUnregister(at as *mut c_void))
    }

    /// The device's address of registered memory.
    pub(crate) fn device_pointer(&self, at: u64) -> Result<u64, Code> {
        let mut address = 0;
        call!(self.memory.cuMemHostGetDevicePointer_v2(&raw mut address, at as *mut c_void, 0)).map(|()| address)
    }

    /// # Safety
    /// `from` has `bytes` readable bytes until the copy is complete.
    pub(crate) unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: u64, stream: u64) -> Result<(), Code> {
        call!(self.memory.cuMemcpyHtoDAsync_v2(to, from.cast(), bytes as usize, stream as sys::CUstream))
    }

    /// # Safety
    /// `to` has `bytes` writable bytes until the copy is complete.
    pub(crate) unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: u64, stream: u64) -> Result<(), Code> {
        call!(self.memory.cuMemcpyDtoHAsync_v2(to.cast(), from, bytes as usize, stream as sys::CUstream))
    }

    /// Copies as the driver's functions without a stream do: it waits for the copy.
    ///
    /// # Safety
    /// `host` has `bytes` bytes that can be read or written until the copy is complete.
    pub(crate) unsafe fn copy_now(&self, device: u64, host: u64, bytes: u64, to_device: bool) -> Result<(), Code> {
        if to_device {
            return call!(self.memory.cuMemcpyHtoD_v2(device, host as *const c_void, bytes as usize));
        }
        call!(self.memory.cuMemcpyDtoH_v2(host as *mut c_void, device, bytes as usize))
    }

    pub(crate) fn copy_device(&self, to: u64, from: u64, bytes: u64, stream: u64) -> Result<(), Code> {
        call!(self.memory.cuMemcpyDtoDAsync_v2(to, from, bytes as usize, stream as sys::CUstream))
    }

    /// # Safety
    /// Host ends of the copy are valid until it is complete.
    pub(crate) unsafe fn copy_2d(&self, copy: &sys::CUDA_MEMCPY2D, stream: u64) -> Result<(), Code> {
        call!(self.memory.cuMemcpy2DAsync_v2(copy, stream as sys::CUstream))
    }

    /// Sets `width` elements of 1, 2 or 4 bytes in each of `rows` rows.
    pub(crate) fn fill(&self, op: &cuda_api::ops::Fill, stream: u64) -> Result<(), Code> {
        let stream = stream as sys::CUstream;
        let (pitch, width, rows) = (op.pitch as usize, op.width as usize, op.rows as usize);
        match (op.element, op.rows) {
            (_, 0) => Ok(()),
            (1, 1) => call!(self.memory.cuMemsetD8Async(op.dst, op.value as u8, width, stream)),
            (2, 1) => call!(self.memory.cuMemsetD16Async(op.dst, op.value as u16, width, stream)),
            (4, 1) => call!(self.memory.cuMemsetD32Async(op.dst, op.value, width, stream)),
            (1, _) => call!(self.memory.cuMemsetD2D8Async(op.dst, pitch, op.value as u8, width, rows, stream)),
            (2, _) => call!(self.memory.cuMemsetD2D16Async(op.dst, pitch, op.value as u16, width, rows, stream)),
            (4, _) => call!(self.memory.cuMemsetD2D32Async(op.dst, pitch, op.value, width, rows, stream)),
            _ => Err(code::ERROR_INVALID_VALUE),
        }
    }

    /// # Safety
    /// `function` can be called once with `data`, from any thread, at any time from now on.
    pub(crate) unsafe fn launch_host(
        &self,
        stream: u64,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<(), Code> {
        call!(self.stream.cuLaunchHostFunc(stream as sys::CUstream, Some(function), data))
    }

    /// # Safety
    /// As [`Gpu::launch_host`].
    pub(crate) unsafe fn add_callback(
        &self,
        stream: u64,
        callback: unsafe extern "C" fn(*mut c_void, Code, *mut c_void),
        data: *mut c_void,
    ) -> Result<(), Code> {
        // SAFETY: the same function type in C: the header's types for a stream and a code are a pointer and an int.
        let callback: sys::CUstreamCallback = unsafe { std::mem::transmute(callback) };
        call!(self.stream.cuStreamAddCallback(stream as sys::CUstream, callback, data, 0))
    }

    /// Waits for and writes words of memory in stream order.
    pub(crate) fn stream_memory(&self, stream: u64, op: &StreamMemory) -> Result<(), Code> {
        // As in the header's union: the operation, and the flags of operations without an address; address; value; flags; a word for the
        // driver's use; padding.
        let words = |p: &MemoryPart| match p.bytes() {
            Some(_) => [u64::from(p.operation), p.address, p.value, u64::from(p.flags), 0, 0],
            None => [u64::from(p.operation) | u64::from(p.flags) << 32, 0, 0, 0, 0, 0],
        };
        let mut parts: Vec<[u64; 6]> = op.parts.iter().map(words).collect();
        let (stream, count) = (stream as sys::CUstream, parts.len() as u32);
        let parts = parts.as_mut_ptr().cast::<sys::CUstreamBatchMemOpParams>();
        if op.first_version {
            call!(self.stream.cuStreamBatchMemOp(stream, count, parts, op.flags))
        } else {
            call!(self.stream.cuStreamBatchMemOp_v2(stream, count, parts, op.flags))
        }
    }

    /// Launches with a parameter buffer.
    pub(crate) fn launch(
        &self,
        function: u64,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        stream: u64,
        params: &[u8],
    ) -> Result<(), Code> {
        let mut size = params.len();
        let mut extra = extra(params, &raw mut size);
        let [gx, gy, gz] = grid;
        let [bx, by, bz] = block;
        let (function, stream) = (function as sys::CUfunction, stream as sys::CUstream);
        let extra = if params.is_empty() { std::ptr::null_mut() } else { extra.as_mut_ptr() };
        call!(self.launch.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, std::ptr::null_mut(), extra))
    }

    /// Launches with an array of pointers to the parameters.
    ///
    /// # Safety
    /// There is a pointer to each parameter of the function.
    #[inline]
    pub(crate) unsafe fn launch_with(
        &self,
        function: u64,
        [gx, gy, gz]: [u32; 3],
        [bx, by, bz]: [u32; 3],
        shared: u32,
        stream: u64,
        params: *mut *mut c_void,
    ) -> Result<(), Code> {
        let (function, stream) = (function as sys::CUfunction, stream as sys::CUstream);
        call!(self.launch.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, std::ptr::null_mut()))
    }

    /// As [`Gpu::launch_with`], with attributes.
    ///
    /// # Safety
    /// As for [`Gpu::launch_with`]; the configuration's attributes are valid.
    pub(crate) unsafe fn launch_ex_with(
        &self,
        config: &sys::CUlaunchConfig,
        function: u64,
        params: *mut *mut c_void,
    ) -> Result<(), Code> {
        call!(self.launch.cuLaunchKernelEx(config, function as sys::CUfunction, params, std::ptr::null_mut()))
    }

    /// Launches with attributes.
    ///
    /// # Safety
    /// The configuration's attributes are valid.
    pub(crate) unsafe fn launch_ex(&self, config: &sys::CUlaunchConfig, function: u64, params: &[u8]) -> Result<(), Code> {
        let mut size = params.len();
        let mut extra = extra(params, &raw mut size);
        let extra = if params.is_empty() { std::ptr::null_mut() } else { extra.as_mut_ptr() };
        call!(self.launch.cuLaunchKernelEx(config, function as sys::CUfunction, std::ptr::null_mut(), extra))
    }

    /// # Safety
    /// The configuration's attributes are valid.
    pub(crate) unsafe fn max_active_clusters(&self, function: u64, config: &sys::CUlaunchConfig) -> Result<i32, Code> {
        let mut n = 0;
        call!(self.launch.cuOccupancyMaxActiveClusters(&raw mut n, function as sys::CUfunction, config)).map(|()| n)
    }

    /// # Safety
    /// The configuration's attributes are valid.
    pub(crate) unsafe fn max_cluster_size(&self, function: u64, config: &sys::CUlaunchConfig) -> Result<i32, Code> {
        let mut n = 0;
        call!(self.launch.cuOccupancyMaxPotentialClusterSize(&raw mut n, function as sys::CUfunction, config)).map(|()| n)
    }

    /// Encodes a descriptor for the tensor memory accelerator: computed by the driver without using the GPU.
    pub(crate) fn tensor_map(&self, op: &TensorMapTiled) -> Result<sys::CUtensorMap, Code> {
        let rank = op.dims.len();
        // The driver reads as many elements from each array as the rank implies.
        if op.strides.len() + 1 != rank || op.box_dims.len() != rank || op.element_strides.len() != rank {
            return Err(code::ERROR_INVALID_VALUE);
        }
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut map: sys::CUtensorMap = unsafe { std::mem::zeroed() };
        let [interleave, swizzle, promotion, fill] = op.modes;
        call!(self.launch.cuTensorMapEncodeTiled(
            &raw mut map,
            op.data_type,
            rank as u32,
            std::ptr::without_provenance_mut(op.address as usize),
            op.dims.as_ptr(),
            op.strides.as_ptr(),
            op.box_dims.as_ptr(),
            op.element_strides.as_ptr(),
            interleave,
            swizzle,
            promotion,
            fill,
        ))?;
        Ok(map)
    }

    /// Loads a module; the keys are `CUjit_option`s.
    ///
    /// # Safety
    /// `image` is a complete module image; buffers of options are valid.
    pub(crate) unsafe fn load_module(
        &self,
        image: *const c_void,
        keys: &mut [u32],
        values: &mut [*mut c_void],
    ) -> Result<u64, Code> {
        let mut module: sys::CUmodule = std::ptr::null_mut();
        let count = keys.len().min(values.len()) as u32;
        call!(self.module.cuModuleLoadDataEx(&raw mut module, image, count, keys.as_mut_ptr().cast(), values.as_mut_ptr()))
            .map(|()| module as u64)
    }

    /// As [`Gpu::load_module`], for a library.
    ///
    /// # Safety
    /// As [`Gpu::load_module`].
    pub(crate) unsafe fn load_library(
        &self,
        image: *const c_void,
        keys: &mut [u32],
        values: &mut [*mut c_void],
    ) -> Result<u64, Code> {
        let mut library: sys::CUlibrary = std::ptr::null_mut();
        let (none, no_values) = (std::ptr::null_mut(), std::ptr::null_mut());
        let count = keys.len().min(values.len()) as u32;
        let keys = keys.as_mut_ptr().cast();
        call!(self.module.cuLibraryLoadData(&raw mut library, image, keys, values.as_mut_ptr(), count, none, no_values, 0))
            .map(|()| library as u64)
    }

    pub(crate) fn unload_module(&self, module: u64) -> Result<(), Code> {
        call!(self.module.cuModuleUnload(module as sys::CUmodule))
    }

    pub(crate) fn unload_library(&self, library: u64) -> Result<(), Code> {
        call!(self.module.cuLibraryUnload(library as sys::CUlibrary))
    }

    /// The module of a library in the current context.
    pub(crate) fn library_module(&self, library: u64) -> Result<u64, Code> {
        let mut module: sys::CUmodule = std::ptr::null_mut();
        call!(self.module.cuLibraryGetModule(&raw mut module, library as sys::CUlibrary)).map(|()| module as u64)
    }

    pub(crate) fn function(&self, module: u64, name: &CStr) -> Result<u64, Code> {
        let mut f: sys::CUfunction = std::ptr::null_mut();
        call!(self.module.cuModuleGetFunction(&raw mut f, module as sys::CUmodule, name.as_ptr())).map(|()| f as u64)
    }

    pub(crate) fn kernel(&self, library: u64, name: &CStr) -> Result<u64, Code> {
        let mut k: sys::CUkernel = std::ptr::null_mut();
        call!(self.module.cuLibraryGetKernel(&raw mut k, library as sys::CUlibrary, name.as_ptr())).map(|()| k as u64)
    }

    pub(crate) fn kernel_function(&self, kernel: u64) -> Result<u64, Code> {
        let mut f: sys::CUfunction = std::ptr::null_mut();
        call!(self.module.cuKernelGetFunction(&raw mut f, kernel as sys::CUkernel)).map(|()| f as u64)
    }

    /// Loads a function's code onto the device; drivers before CUDA 12.4 have no call for it.
    pub(crate) fn load_function(&self, function: u64) -> Result<(), Code> {
        if self.0.module.cuFuncLoad.is_none() {
            return Ok(());
        }
        call!(self.module.cuFuncLoad(function as sys::CUfunction))
    }

    /// Offset and size of a parameter; `INVALID_VALUE` after the last.
    pub(crate) fn function_param(&self, function: u64, index: usize) -> Result<(u32, u32), Code> {
        let (mut offset, mut size) = (0usize, 0usize);
        call!(self.module.cuFuncGetParamInfo(function as sys::CUfunction, index, &raw mut offset, &raw mut size))?;
        narrow(offset, size)
    }

    pub(crate) fn function_attribute(&self, function: u64, attribute: sys::CUfunction_attribute_enum) -> Result<u32, Code> {
        let mut v: c_int = 0;
        call!(self.module.cuFuncGetAttribute(&raw mut v, attribute as u32, function as sys::CUfunction))?;
        Ok(u32::try_from(v).unwrap_or(0))
    }

    pub(crate) fn function_name(&self, function: u64) -> Result<String, Code> {
        let mut name: *const c_char = std::ptr::null();
        call!(self.module.cuFuncGetName(&raw mut name, function as sys::CUfunction))?;
        if name.is_null() {
            return Err(code::ERROR_NOT_FOUND);
        }
        // SAFETY: the driver's string lives as long as the module.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    pub(crate) fn kernel_name(&self, kernel: u64) -> Result<String, Code> {
        let mut name: *const c_char = std::ptr::null();
        call!(self.module.cuKernelGetName(&raw mut name, kernel as sys::CUkernel))?;
        if name.is_null() {
            return Err(code::ERROR_NOT_FOUND);
        }
        // SAFETY: the driver's string lives as long as the library.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// Functions of a module.
    pub(crate) fn module_functions(&self, module: u64) -> Result<Vec<u64>, Code> {
        let mut count = 0;
        call!(self.module.cuModuleGetFunctionCount(&raw mut count, module as sys::CUmodule))?;
        let mut functions: Vec<sys::CUfunction> = vec![std::ptr::null_mut(); count as usize];
        call!(self.module.cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module as sys::CUmodule))?;
        Ok(functions.into_iter().filter(|f| !f.is_null()).map(|f| f as u64).collect())
    }

    /// Kernels of a library.
    pub(crate) fn library_kernels(&self, library: u64) -> Result<Vec<u64>, Code> {
        let mut count = 0;
        call!(self.module.cuLibraryGetKernelCount(&raw mut count, library as sys::CUlibrary))?;
        let mut kernels: Vec<sys::CUkernel> = vec![std::ptr::null_mut(); count as usize];
        call!(self.module.cuLibraryEnumerateKernels(kernels.as_mut_ptr(), count, library as sys::CUlibrary))?;
        Ok(kernels.into_iter().filter(|k| !k.is_null()).map(|k| k as u64).collect())
    }

    /// Address and bytes of a variable of a module or library.
    pub(crate) fn variable(&self, owner: u64, library: bool, name: &CString) -> Result<(u64, u64), Code> {
        let (mut address, mut bytes) = (0, 0usize);
        if library {
            call!(self.module.cuLibraryGetGlobal(&raw mut address, &raw mut bytes, owner as sys::CUlibrary, name.as_ptr()))?;
        } else {
            call!(self.module.cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, owner as sys::CUmodule, name.as_ptr()))?;
        }
        Ok((address, bytes as u64))
    }
}

fn own_device() -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 }
}

fn narrow(offset: usize, size: usize) -> Result<(u32, u32), Code> {
    let (Ok(offset), Ok(size)) = (u32::try_from(offset), u32::try_from(size)) else { return Err(code::ERROR_UNKNOWN) };
    Ok((offset, size))
}

/// `CU_LAUNCH_PARAM_BUFFER_POINTER`, `_BUFFER_SIZE` and `_END` with their values.
fn extra(params: &[u8], size: *mut usize) -> [*mut c_void; 5] {
    let key = std::ptr::without_provenance_mut::<c_void>;
    [key(1), params.as_ptr().cast_mut().cast(), key(2), size.cast(), key(0)]
}
