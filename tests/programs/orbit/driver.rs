//! The CUDA driver API as this program needs it: loaded by the name that every CUDA program uses, checked at each call.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// A stream, event, module, function or context: an opaque pointer of the driver.
pub type Handle = *mut c_void;
/// An address of the GPU.
pub type Address = u64;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {name} ({code})")]
pub struct CudaError {
    call: &'static str,
    code: c_int,
    name: String,
}

/// Why the GPU could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no driver, or it lacks a function.
    #[error(transparent)]
    Driver(#[from] libloading::Error),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CudaError),
}

macro_rules! functions {
    ($($name:ident($($p:ident: $t:ty),*);)*) => {
        /// Entry points of the loaded driver.
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($t),*) -> c_int,)* }
        impl Functions {
            fn load(library: &Library) -> Result<Functions, libloading::Error> {
                // SAFETY: the symbols of a CUDA driver have the prototypes of cuda.h, which are repeated below.
                unsafe {
                    Ok(Functions { $($name: *library.get(stringify!($name).as_bytes())?,)* })
                }
            }
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuGetErrorName(code: c_int, name: *mut *const c_char);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuDevicePrimaryCtxReset_v2(device: c_int);
    cuCtxSetCurrent(context: Handle);
    cuCtxSynchronize();
    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleUnload(module: Handle);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuModuleGetGlobal_v2(address: *mut Address, bytes: *mut usize, module: Handle, name: *const c_char);
    cuMemAlloc_v2(address: *mut Address, bytes: usize);
    cuMemFree_v2(address: Address);
    cuMemcpyHtoD_v2(to: Address, from: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2(to: *mut c_void, from: Address, bytes: usize);
    cuMemcpyDtoDAsync_v2(to: Address, from: Address, bytes: usize, stream: Handle);
    cuStreamCreate(stream: *mut Handle, flags: c_uint);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventDestroy_v2(event: Handle);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventSynchronize(event: Handle);
    cuLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void);
}

/// A driver with a context on GPU 0.
pub struct Gpu {
    f: Functions,
    device: c_int,
    /// Drivers have threads of their own and are never unloaded.
    _library: std::mem::ManuallyDrop<Library>,
}

const NON_BLOCKING: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;

macro_rules! call {
    ($gpu:expr, $name:ident($($arg:expr),*)) => {{
        // SAFETY: pointers among the arguments point to live values of the types in cuda.h.
        let code = unsafe { ($gpu.f.$name)($($arg),*) };
        $gpu.check(stringify!($name), code)
    }};
}

impl Gpu {
    /// Loads the driver and makes the primary context of GPU 0 current.
    pub fn open() -> Result<Gpu, OpenError> {
        // SAFETY: loading a CUDA driver runs its constructors, which every CUDA program relies on.
        let library = unsafe { Library::new("libcuda.so.1") }?;
        let f = Functions::load(&library)?;
        let mut gpu = Gpu { f, device: 0, _library: std::mem::ManuallyDrop::new(library) };
        gpu.start()?;
        Ok(gpu)
    }

    fn start(&mut self) -> Result<(), CudaError> {
        call!(self, cuInit(0))?;
        let mut device = 0;
        call!(self, cuDeviceGet(&raw mut device, 0))?;
        self.device = device;
        let mut context = std::ptr::null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        call!(self, cuCtxSetCurrent(context))
    }

    /// Resets the GPU. Its primary context, which is the current one, is a new one then.
    pub fn reset(&self) -> Result<(), CudaError> {
        call!(self, cuDevicePrimaryCtxReset_v2(self.device))?;
        let mut context = std::ptr::null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&raw mut context, self.device))?;
        call!(self, cuCtxSetCurrent(context))
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the place for the answer is valid.
        let known = unsafe { (self.f.cuGetErrorName)(code, &raw mut name) } == 0 && !name.is_null();
        // SAFETY: the driver answered with a C string that lives as long as the driver.
        let name = if known { unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned() } else { "unknown error".into() };
        Err(CudaError { call, code, name })
    }

    /// Name of the GPU.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut text = [0 as c_char; 128];
        call!(self, cuDeviceGetName(text.as_mut_ptr(), text.len() as c_int, self.device))?;
        // SAFETY: the driver ends the text within the buffer.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Waits for everything.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        call!(self, cuCtxSynchronize())
    }

    /// Loads PTX.
    pub fn load(&self, ptx: &str) -> Result<Handle, CudaError> {
        let text = c_string(ptx);
        let mut module = std::ptr::null_mut();
        call!(self, cuModuleLoadData(&raw mut module, text.as_ptr().cast()))?;
        Ok(module)
    }

    /// Unloads a module.
    pub fn unload(&self, module: Handle) -> Result<(), CudaError> {
        call!(self, cuModuleUnload(module))
    }

    /// A kernel by name.
    pub fn function(&self, module: Handle, name: &str) -> Result<Handle, CudaError> {
        let name = c_string(name);
        let mut function = std::ptr::null_mut();
        call!(self, cuModuleGetFunction(&raw mut function, module, name.as_ptr()))?;
        Ok(function)
    }

    /// Address and size of a variable.
    pub fn global(&self, module: Handle, name: &str) -> Result<(Address, usize), CudaError> {
        let name = c_string(name);
        let (mut address, mut bytes) = (0, 0);
        call!(self, cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, name.as_ptr()))?;
        Ok((address, bytes))
    }

    /// Device memory with these contents.
    pub fn allocate(&self, contents: &[u8]) -> Result<Address, CudaError> {
        let mut address = 0;
        call!(self, cuMemAlloc_v2(&raw mut address, contents.len()))?;
        call!(self, cuMemcpyHtoD_v2(address, contents.as_ptr().cast(), contents.len()))?;
        Ok(address)
    }

    /// Puts bytes into device memory.
    #[allow(dead_code, reason = "for mill")]
    pub fn write(&self, to: Address, contents: &[u8]) -> Result<(), CudaError> {
        call!(self, cuMemcpyHtoD_v2(to, contents.as_ptr().cast(), contents.len()))
    }

    /// Frees device memory.
    pub fn free(&self, address: Address) -> Result<(), CudaError> {
        call!(self, cuMemFree_v2(address))
    }

    /// Device memory as bytes.
    pub fn read(&self, address: Address, bytes: usize) -> Result<Vec<u8>, CudaError> {
        let mut contents = vec![0; bytes];
        call!(self, cuMemcpyDtoH_v2(contents.as_mut_ptr().cast(), address, bytes))?;
        Ok(contents)
    }

    /// Copies inside the device, in stream order.
    pub fn copy(&self, to: Address, from: Address, bytes: usize, stream: Handle) -> Result<(), CudaError> {
        call!(self, cuMemcpyDtoDAsync_v2(to, from, bytes, stream))
    }

    /// A stream that does not wait for the default stream.
    pub fn stream(&self) -> Result<Handle, CudaError> {
        let mut stream = std::ptr::null_mut();
        call!(self, cuStreamCreate(&raw mut stream, NON_BLOCKING))?;
        Ok(stream)
    }

    /// Ends a stream.
    pub fn end_stream(&self, stream: Handle) -> Result<(), CudaError> {
        call!(self, cuStreamDestroy_v2(stream))
    }

    /// An event without times.
    pub fn event(&self) -> Result<Handle, CudaError> {
        let mut event = std::ptr::null_mut();
        call!(self, cuEventCreate(&raw mut event, DISABLE_TIMING))?;
        Ok(event)
    }

    /// Ends an event.
    pub fn end_event(&self, event: Handle) -> Result<(), CudaError> {
        call!(self, cuEventDestroy_v2(event))
    }

    /// Marks the place that a stream has reached.
    pub fn record(&self, event: Handle, stream: Handle) -> Result<(), CudaError> {
        call!(self, cuEventRecord(event, stream))
    }

    /// Lets a stream wait for an event.
    pub fn wait(&self, stream: Handle, event: Handle) -> Result<(), CudaError> {
        call!(self, cuStreamWaitEvent(stream, event, 0))
    }

    /// Waits for an event.
    pub fn reach(&self, event: Handle) -> Result<(), CudaError> {
        call!(self, cuEventSynchronize(event))
    }

    /// Launches a kernel of one-dimensional blocks. A parameter is passed as the 8 bytes in which its value stands first, as
    /// on any little-endian machine.
    pub fn launch(&self, kernel: Handle, blocks: u32, threads: u32, stream: Handle, params: &[u64]) -> Result<(), CudaError> {
        let mut pointers: Vec<*mut c_void> = params.iter().map(|p| std::ptr::from_ref(p).cast_mut().cast()).collect();
        call!(self, cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, pointers.as_mut_ptr(), std::ptr::null_mut()))
    }

    /// Gives the context back.
    pub fn close(self) -> Result<(), CudaError> {
        call!(self, cuDevicePrimaryCtxRelease_v2(self.device))
    }
}

/// Names and PTX are our own texts: without a NUL inside.
fn c_string(text: &str) -> CString {
    CString::new(text).expect("a text of this program has no NUL")
}
