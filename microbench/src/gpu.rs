//! The measured driver, used like in an ordinary program.

use crate::error::Error;
use cuda_api::code::{Code, SUCCESS};
use cuda_api::driver::Loaded;
use cuda_api::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUgraphExecUpdateResultInfo, CUgraphNode, CUmodule, CUstream, CUstreamCaptureMode,
};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::path::Path;

/// Our kernels.
const KERNELS: &str = include_str!("kernels.ptx");

/// A driver with a context on GPU 0.
pub(crate) struct Gpu {
    loaded: Loaded,
}

/// Calls a function of a family; a missing function and a result other than success are errors.
macro_rules! call {
    ($gpu:expr, $family:ident.$name:ident($($arg:expr),*)) => {{
        match $gpu.loaded.calls.$family.$name {
            // SAFETY: pointers among the arguments point to live values of the types in the table.
            Some(f) => $gpu.check(stringify!($name), unsafe { f($($arg),*) }),
            None => Err(Error::NoFunction(stringify!($name))),
        }
    }};
}

/// Converts the result of a call; the error names the call.
pub(crate) type Done<T = ()> = Result<T, Error>;

impl Gpu {
    /// Loads a driver and makes the primary context of GPU 0 current.
    pub(crate) fn open(driver: &Path) -> Done<Gpu> {
        let gpu = Gpu { loaded: Loaded::open(driver)? };
        call!(gpu, device.cuInit(0))?;
        let context = gpu.retain(0)?;
        gpu.use_context(context)?;
        Ok(gpu)
    }

    /// The primary context of a GPU.
    pub(crate) fn retain(&self, ordinal: i32) -> Done<CUcontext> {
        let mut device = 0;
        call!(self, device.cuDeviceGet(&raw mut device, ordinal))?;
        let mut context: CUcontext = std::ptr::null_mut();
        call!(self, context.cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        Ok(context)
    }

    fn check(&self, call: &'static str, code: Code) -> Done {
        if code == SUCCESS {
            return Ok(());
        }
        let mut name: *const c_char = std::ptr::null();
        if let Some(f) = self.loaded.calls.device.cuGetErrorName {
            // SAFETY: the place for the answer is valid; the code is one that a driver gave.
            unsafe { f(code.cast_unsigned(), &raw mut name) };
        }
        // SAFETY: not null, so the driver answered with a C string of its own.
        let name = if name.is_null() { "unknown".into() } else { unsafe { CStr::from_ptr(name) }.to_string_lossy() };
        Err(Error::Call { call, name: name.into_owned(), code })
    }

    /// Name of the GPU.
    pub(crate) fn name(&self) -> Done<String> {
        let mut text = [0 as c_char; 128];
        call!(self, device.cuDeviceGetName(text.as_mut_ptr(), 128, 0))?;
        // SAFETY: the driver ends the text within the buffer.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Number of GPUs.
    pub(crate) fn count(&self) -> Done<i32> {
        let mut count = 0;
        call!(self, device.cuDeviceGetCount(&raw mut count))?;
        Ok(count)
    }

    /// CUDA version of the driver, as 1000 × major + 10 × minor.
    pub(crate) fn version(&self) -> Done<i32> {
        let mut version = 0;
        call!(self, device.cuDriverGetVersion(&raw mut version))?;
        Ok(version)
    }

    /// Loads our kernels.
    pub(crate) fn kernels(&self) -> Done<CUmodule> {
        let text = CString::new(KERNELS).map_err(|e| Error::Found(e.to_string()))?;
        let mut module = std::ptr::null_mut();
        call!(self, module.cuModuleLoadData(&raw mut module, text.as_ptr().cast()))?;
        Ok(module)
    }

    /// A kernel by name.
    pub(crate) fn function(&self, module: CUmodule, name: &CStr) -> Done<CUfunction> {
        let mut function = std::ptr::null_mut();
        call!(self, module.cuModuleGetFunction(&raw mut function, module, name.as_ptr()))?;
        Ok(function)
    }

    /// Allocates device memory.
    pub(crate) fn allocate(&self, bytes: usize) -> Done<u64> {
        let mut address = 0;
        call!(self, memory.cuMemAlloc_v2(&raw mut address, bytes))?;
        Ok(address)
    }

    /// Frees device memory.
    pub(crate) fn free(&self, address: u64) -> Done {
        call!(self, memory.cuMemFree_v2(address))
    }

    /// Allocates page-locked host memory.
    pub(crate) fn pin(&self, bytes: usize) -> Done<*mut u8> {
        let mut memory = std::ptr::null_mut();
        call!(self, memory.cuMemHostAlloc(&raw mut memory, bytes, 0))?;
        Ok(memory.cast())
    }

    /// Copies to the device and waits.
    pub(crate) fn write(&self, to: u64, from: &[u8]) -> Done {
        call!(self, memory.cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()))
    }

    /// Copies to the device in the order of a stream.
    ///
    /// # Safety
    /// The source has so many bytes until the copy is complete.
    pub(crate) unsafe fn write_later(&self, to: u64, from: *const u8, bytes: usize, stream: CUstream) -> Done {
        call!(self, memory.cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream))
    }

    /// Copies from the device in the order of a stream.
    ///
    /// # Safety
    /// The destination has so many bytes, and nothing else uses them, until the copy is complete.
    pub(crate) unsafe fn read_later(&self, to: *mut u8, from: u64, bytes: usize, stream: CUstream) -> Done {
        call!(self, memory.cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream))
    }

    /// Copies from the device and waits.
    pub(crate) fn read(&self, to: &mut [u8], from: u64) -> Done {
        call!(self, memory.cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()))
    }

    /// Copies on the device, in stream order.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize, stream: CUstream) -> Done {
        call!(self, memory.cuMemcpyDtoDAsync_v2(to, from, bytes, stream))
    }

    /// Fills memory with a byte, in stream order.
    pub(crate) fn fill(&self, address: u64, byte: u8, bytes: usize, stream: CUstream) -> Done {
        call!(self, memory.cuMemsetD8Async(address, byte, bytes, stream))
    }

    /// Free memory of the GPU in bytes.
    pub(crate) fn free_bytes(&self) -> Done<usize> {
        let (mut free, mut total) = (0, 0);
        call!(self, memory.cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok(free)
    }

    /// Creates a stream that does not synchronize with the default stream.
    pub(crate) fn stream(&self) -> Done<CUstream> {
        let mut stream = std::ptr::null_mut();
        call!(self, stream.cuStreamCreate(&raw mut stream, 1))?;
        Ok(stream)
    }

    /// Destroys a stream.
    pub(crate) fn end_stream(&self, stream: CUstream) -> Done {
        call!(self, stream.cuStreamDestroy_v2(stream))
    }

    /// Waits for a stream.
    pub(crate) fn wait(&self, stream: CUstream) -> Done {
        call!(self, stream.cuStreamSynchronize(stream))
    }

    /// Queries a stream, which must be idle.
    pub(crate) fn query_stream(&self, stream: CUstream) -> Done {
        call!(self, stream.cuStreamQuery(stream))
    }

    /// Creates an event without timing.
    pub(crate) fn event(&self) -> Done<CUevent> {
        let mut event = std::ptr::null_mut();
        call!(self, stream.cuEventCreate(&raw mut event, 2))?;
        Ok(event)
    }

    /// Destroys an event.
    pub(crate) fn end_event(&self, event: CUevent) -> Done {
        call!(self, stream.cuEventDestroy_v2(event))
    }

    /// Records an event.
    pub(crate) fn record(&self, event: CUevent, stream: CUstream) -> Done {
        call!(self, stream.cuEventRecord(event, stream))
    }

    /// Waits for an event.
    pub(crate) fn reach(&self, event: CUevent) -> Done {
        call!(self, stream.cuEventSynchronize(event))
    }

    /// Queries an event, which must have completed.
    pub(crate) fn query_event(&self, event: CUevent) -> Done {
        call!(self, stream.cuEventQuery(event))
    }

    /// A property of the GPU.
    pub(crate) fn attribute(&self, which: c_uint) -> Done<i32> {
        let mut value = 0;
        call!(self, device.cuDeviceGetAttribute(&raw mut value, which, 0))?;
        Ok(value)
    }

    /// The current context.
    pub(crate) fn current_context(&self) -> Done<CUcontext> {
        let mut context = std::ptr::null_mut();
        call!(self, context.cuCtxGetCurrent(&raw mut context))?;
        Ok(context)
    }

    /// Makes a context current for this thread.
    pub(crate) fn use_context(&self, context: CUcontext) -> Done {
        call!(self, context.cuCtxSetCurrent(context))
    }

    /// The GPU of the current context.
    pub(crate) fn current_device(&self) -> Done<i32> {
        let mut device = 0;
        call!(self, context.cuCtxGetDevice_v2(&raw mut device, std::ptr::null_mut()))?;
        Ok(device)
    }

    /// Flags of the primary context, and whether it is active.
    pub(crate) fn primary_state(&self) -> Done<(c_uint, c_int)> {
        let (mut flags, mut active) = (0, 0);
        call!(self, context.cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active))?;
        Ok((flags, active))
    }

    /// Launches a kernel; each parameter is passed as the 8 bytes in which its value stands first.
    pub(crate) fn launch(&self, kernel: CUfunction, blocks: u32, threads: u32, stream: CUstream, params: &[u64]) -> Done {
        let (mut pointers, nothing) = (pointers(params), std::ptr::null_mut());
        call!(self, launch.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, pointers.as_mut_ptr(), nothing))
    }
}

/// Pointers to at most 8 parameters.
fn pointers(params: &[u64]) -> [*mut c_void; 8] {
    let mut pointers = [std::ptr::null_mut::<c_void>(); 8];
    for (pointer, param) in pointers.iter_mut().zip(params) {
        *pointer = std::ptr::from_ref(param).cast_mut().cast();
    }
    pointers
}

/// Parameters of a node that runs a kernel in one block of 32 threads, with pointers to its parameters.
fn kernel_node(func: CUfunction, pointers: &mut [*mut c_void; 8]) -> CUDA_KERNEL_NODE_PARAMS {
    let one = 1;
    CUDA_KERNEL_NODE_PARAMS {
        func,
        gridDimX: one,
        gridDimY: one,
        gridDimZ: one,
        blockDimX: 32,
        blockDimY: one,
        blockDimZ: one,
        kernelParams: pointers.as_mut_ptr(),
        sharedMemBytes: 0,
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    }
}

/// Graphs.
impl Gpu {
    /// Makes an empty graph.
    pub(crate) fn graph(&self) -> Done<CUgraph> {
        let mut graph = std::ptr::null_mut();
        call!(self, graph.cuGraphCreate(&raw mut graph, 0))?;
        Ok(graph)
    }

    /// Destroys a graph.
    pub(crate) fn end_graph(&self, graph: CUgraph) -> Done {
        call!(self, graph.cuGraphDestroy(graph))
    }

    /// Adds a copy behind other nodes.
    pub(crate) fn add_copy(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        c: &CUDA_MEMCPY3D,
        context: CUcontext,
    ) -> Done<CUgraphNode> {
        let mut node = std::ptr::null_mut();
        call!(self, graph.cuGraphAddMemcpyNode(&raw mut node, graph, after.as_ptr(), after.len(), c, context))?;
        Ok(node)
    }

    /// Adds a fill behind other nodes.
    pub(crate) fn add_fill(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        f: &CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) -> Done<CUgraphNode> {
        let mut node = std::ptr::null_mut();
        call!(self, graph.cuGraphAddMemsetNode(&raw mut node, graph, after.as_ptr(), after.len(), f, context))?;
        Ok(node)
    }

    /// Adds a kernel behind other nodes; its parameters as for [`Gpu::launch`].
    pub(crate) fn add_kernel(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        kernel: CUfunction,
        params: &[u64],
    ) -> Done<CUgraphNode> {
        let (mut pointers, mut node) = (pointers(params), std::ptr::null_mut());
        let params = kernel_node(kernel, &mut pointers);
        call!(self, graph.cuGraphAddKernelNode_v2(&raw mut node, graph, after.as_ptr(), after.len(), &raw const params))?;
        Ok(node)
    }

    /// Adds an edge.
    pub(crate) fn add_edge(&self, graph: CUgraph, from: CUgraphNode, to: CUgraphNode) -> Done {
        call!(self, graph.cuGraphAddDependencies_v2(graph, &raw const from, &raw const to, std::ptr::null(), 1))
    }

    /// Instantiates a graph.
    pub(crate) fn instantiate(&self, graph: CUgraph) -> Done<CUgraphExec> {
        let mut instance = std::ptr::null_mut();
        call!(self, graph.cuGraphInstantiateWithFlags(&raw mut instance, graph, 0))?;
        Ok(instance)
    }

    /// Changes the parameters of a kernel of an instance.
    pub(crate) fn set_kernel(&self, instance: CUgraphExec, node: CUgraphNode, kernel: CUfunction, params: &[u64]) -> Done {
        let mut pointers = pointers(params);
        let params = kernel_node(kernel, &mut pointers);
        call!(self, graph.cuGraphExecKernelNodeSetParams_v2(instance, node, &raw const params))
    }

    /// Updates an instance from a graph of the same shape.
    pub(crate) fn update(&self, instance: CUgraphExec, graph: CUgraph) -> Done {
        let mut info = MaybeUninit::<CUgraphExecUpdateResultInfo>::uninit();
        call!(self, graph.cuGraphExecUpdate_v2(instance, graph, info.as_mut_ptr()))
    }

    /// Launches an instance.
    pub(crate) fn launch_graph(&self, instance: CUgraphExec, stream: CUstream) -> Done {
        call!(self, graph.cuGraphLaunch(instance, stream))
    }

    /// Destroys an instance.
    pub(crate) fn end_instance(&self, instance: CUgraphExec) -> Done {
        call!(self, graph.cuGraphExecDestroy(instance))
    }

    /// Begins the capture of a stream.
    pub(crate) fn begin_capture(&self, stream: CUstream) -> Done {
        call!(self, graph.cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32))
    }

    /// Ends the capture of a stream.
    pub(crate) fn end_capture(&self, stream: CUstream) -> Done<CUgraph> {
        let mut graph = std::ptr::null_mut();
        call!(self, graph.cuStreamEndCapture(stream, &raw mut graph))?;
        Ok(graph)
    }

    /// Makes a stream wait for an event.
    pub(crate) fn wait_event(&self, stream: CUstream, event: CUevent) -> Done {
        call!(self, stream.cuStreamWaitEvent(stream, event, 0))
    }
}
