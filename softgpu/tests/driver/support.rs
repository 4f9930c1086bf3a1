//! Loads the built driver by path, as the executor does, and calls it through its exported symbols.

use cuda_api::sys::*;
use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::sync::OnceLock;

pub const SUCCESS: u32 = 0;

/// The driver library beside this test program.
pub fn library() -> &'static libloading::Library {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let mut path: PathBuf = std::env::current_exe().expect("own path");
        path.set_file_name("libsoftgpu.so");
        // SAFETY: the driver reads its settings later, and nothing else in this program reads the environment meanwhile.
        unsafe { std::env::set_var("SOFTGPU_DEVICES", "4") };
        // SAFETY: loading runs no code of the library but its constructors, of which it has none.
        unsafe { libloading::Library::new(&path) }.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    })
}

/// Calls an exported function: `call!(cuMemAlloc_v2(&mut p, 4): fn(*mut CUdeviceptr, usize))` gives the code.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?): fn($($ty:ty),*)) => {{
        // SAFETY: the symbol has this signature, compared with the header when the driver is compiled, and the arguments
        // are what the test means them to be.
        unsafe {
            let f: libloading::Symbol<unsafe extern "C" fn($($ty),*) -> u32> =
                $crate::support::library().get(concat!(stringify!($name), "\0").as_bytes()).expect(stringify!($name));
            f($($arg),*)
        }
    }};
}

/// A context of its own for one test, current on the calling thread.
pub struct Context(pub CUcontext);

impl Context {
    pub fn new() -> Context {
        Context::on(0)
    }

    pub fn on(device: i32) -> Context {
        assert_eq!(call!(cuInit(0): fn(u32)), SUCCESS);
        let mut context = std::ptr::null_mut();
        assert_eq!(call!(cuCtxCreate_v2(&mut context, 0, device): fn(*mut CUcontext, u32, i32)), SUCCESS);
        Context(context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        assert_eq!(call!(cuCtxDestroy_v2(self.0): fn(CUcontext)), SUCCESS);
    }
}

pub fn alloc(size: usize) -> u64 {
    let mut address = 0;
    assert_eq!(call!(cuMemAlloc_v2(&mut address, size): fn(*mut u64, usize)), SUCCESS);
    address
}

pub fn free(address: u64) -> u32 {
    call!(cuMemFree_v2(address): fn(u64))
}

pub fn write<T: Copy>(address: u64, data: &[T]) -> u32 {
    call!(cuMemcpyHtoD_v2(address, data.as_ptr().cast(), size_of_val(data)): fn(u64, *const u8, usize))
}

pub fn read<T: Copy + Default>(address: u64, count: usize) -> Vec<T> {
    let mut data = vec![T::default(); count];
    let size = size_of_val(&data[..]);
    assert_eq!(call!(cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), address, size): fn(*mut u8, u64, usize)), SUCCESS);
    data
}

pub fn stream(flags: u32) -> CUstream {
    let mut stream = std::ptr::null_mut();
    assert_eq!(call!(cuStreamCreate(&mut stream, flags): fn(*mut CUstream, u32)), SUCCESS);
    stream
}

pub fn event() -> CUevent {
    let mut event = std::ptr::null_mut();
    assert_eq!(call!(cuEventCreate(&mut event, 0): fn(*mut CUevent, u32)), SUCCESS);
    event
}

pub fn record(event: CUevent, stream: CUstream) {
    assert_eq!(call!(cuEventRecord(event, stream): fn(CUevent, CUstream)), SUCCESS);
}

pub fn event_state(event: CUevent) -> u32 {
    call!(cuEventQuery(event): fn(CUevent))
}

pub fn synchronise(stream: CUstream) -> u32 {
    call!(cuStreamSynchronize(stream): fn(CUstream))
}

pub fn synchronise_all() -> u32 {
    call!(cuCtxSynchronize(): fn())
}

/// Page-locked memory for `count` values.
pub fn pinned<T>(count: usize) -> &'static mut [T] {
    let mut at = std::ptr::null_mut();
    assert_eq!(call!(cuMemHostAlloc(&mut at, count * size_of::<T>(), 0): fn(*mut *mut T, usize, u32)), SUCCESS);
    // SAFETY: freshly allocated for this many values, zeroed, and freed only with the context.
    unsafe { std::slice::from_raw_parts_mut(at, count) }
}

pub fn load(ptx: &str) -> (u32, CUmodule) {
    let text = CString::new(ptx).expect("PTX");
    let mut module = std::ptr::null_mut();
    let code = call!(cuModuleLoadData(&mut module, text.as_ptr().cast()): fn(*mut CUmodule, *const u8));
    (code, module)
}

pub fn function(module: CUmodule, name: &str) -> CUfunction {
    let name = CString::new(name).expect("name");
    let mut function = std::ptr::null_mut();
    assert_eq!(
        call!(cuModuleGetFunction(&mut function, module, name.as_ptr()): fn(*mut CUfunction, CUmodule, *const c_char)),
        SUCCESS
    );
    function
}

pub fn variable(module: CUmodule, name: &str) -> (u64, usize) {
    let name = CString::new(name).expect("name");
    let (mut address, mut size) = (0, 0);
    let code = call!(cuModuleGetGlobal_v2(&mut address, &mut size, module, name.as_ptr()): fn(*mut u64, *mut usize, CUmodule, *const c_char));
    assert_eq!(code, SUCCESS);
    (address, size)
}

/// Launches with parameters of 8 bytes each.
pub fn launch(function: CUfunction, grid: u32, block: u32, stream: CUstream, params: &[u64]) -> u32 {
    let pointers: Vec<*const u64> = params.iter().map(std::ptr::from_ref).collect();
    call!(cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, pointers.as_ptr(), std::ptr::null()):
        fn(CUfunction, u32, u32, u32, u32, u32, u32, u32, CUstream, *const *const u64, *const u8))
}

pub fn properties(device: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

pub fn reserve(hint: u64, size: usize) -> u64 {
    let mut at = 0;
    assert_eq!(call!(cuMemAddressReserve(&mut at, size, 0, hint, 0): fn(*mut u64, usize, usize, u64, u64)), SUCCESS);
    at
}

pub fn create(device: i32, size: usize) -> u64 {
    let mut handle = 0;
    assert_eq!(
        call!(cuMemCreate(&mut handle, size, &properties(device), 0): fn(*mut u64, usize, *const CUmemAllocationProp, u64)),
        SUCCESS
    );
    handle
}

pub fn map(at: u64, size: usize, handle: u64) -> u32 {
    call!(cuMemMap(at, size, 0, handle, 0): fn(u64, usize, usize, u64, u64))
}

pub fn allow(device: i32, at: u64, size: usize) -> u32 {
    let access = CUmemAccessDesc {
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    call!(cuMemSetAccess(at, size, &access, 1): fn(u64, usize, *const CUmemAccessDesc, usize))
}

/// Fresh memory of a device, mapped somewhere.
pub fn mapped(device: i32, size: usize) -> u64 {
    let (at, handle) = (reserve(0, size), create(device, size));
    assert_eq!((map(at, size, handle), allow(device, at, size)), (SUCCESS, SUCCESS));
    assert_eq!(call!(cuMemRelease(handle): fn(u64)), SUCCESS);
    at
}
