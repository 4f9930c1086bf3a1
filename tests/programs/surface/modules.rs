//! Modules, libraries, kernels, launches, occupancy.

use crate::driver::{Surface, bad_handle, static_text};
use crate::memory::Buffers;
use cuda_api::sys::{CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUkernel, CUlaunchConfig, CUlibrary, CUmodule, CUstream};
use std::ffi::{CString, c_void};

/// Kernels of another program: `advance`, `begin`, `twinkle`, and variables.
const KERNELS: &str = include_str!("../orbit/orbit.ptx");

/// What is alive.
pub struct Code {
    module: CUmodule,
    function: CUfunction,
    library: CUlibrary,
    kernel: CUkernel,
}

/// Loads code in every form, also what is none.
pub fn build(s: &Surface) -> Code {
    let mut c = Code {
        module: std::ptr::null_mut(),
        function: std::ptr::null_mut(),
        library: std::ptr::null_mut(),
        kernel: std::ptr::null_mut(),
    };
    let ptx = CString::new(KERNELS).expect("PTX has no NUL");
    let image = ptx.as_ptr().cast();
    let mut extra = std::ptr::null_mut();
    tell!(s, module.cuModuleLoadData(&raw mut extra, c".version 6.5\nnonsense".as_ptr().cast()));
    tell!(s, module.cuModuleLoadData(&raw mut extra, std::ptr::null()));
    tell!(s, module.cuModuleLoad(&raw mut extra, c"/no/such/file".as_ptr()));
    tell!(s, module.cuModuleLoadData(&raw mut c.module, image));
    tell!(s, module.cuModuleLoadDataEx(&raw mut extra, image, 0, std::ptr::null_mut(), std::ptr::null_mut()));
    tell!(s, module.cuModuleUnload(extra));
    tell!(s, module.cuModuleUnload(bad_handle()));
    let file = std::env::temp_dir().join(format!("mrcuda-surface-{}.ptx", std::process::id()));
    let path = CString::new(file.display().to_string()).expect("a path has no NUL");
    if std::fs::write(&file, KERNELS).is_ok() {
        tell!(s, module.cuModuleLoad(&raw mut extra, path.as_ptr()));
        tell!(s, module.cuModuleUnload(extra));
        let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut library = std::ptr::null_mut();
        tell!(
            s,
            module.cuLibraryLoadFromFile(&raw mut library, path.as_ptr(), none, nothing, 0, std::ptr::null_mut(), nothing, 0)
        );
        tell!(s, module.cuLibraryUnload(library));
        // It was only needed for these calls.
        let _ = std::fs::remove_file(&file);
    }
    let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
    tell!(s, module.cuLibraryLoadData(&raw mut c.library, image, none, nothing, 0, std::ptr::null_mut(), nothing, 0));
    tell!(s, module.cuModuleGetFunction(&raw mut c.function, c.module, c"twinkle".as_ptr()));
    tell!(s, module.cuModuleGetFunction(&raw mut c.function, c.module, c"nothing".as_ptr()));
    tell!(s, module.cuLibraryGetKernel(&raw mut c.kernel, c.library, c"twinkle".as_ptr()));
    tell!(s, module.cuLibraryGetKernel(&raw mut c.kernel, c.library, c"nothing".as_ptr()));
    tell!(s, module.cuModuleGetFunction(&raw mut c.function, c.module, c"twinkle".as_ptr()));
    tell!(s, module.cuLibraryGetKernel(&raw mut c.kernel, c.library, c"twinkle".as_ptr()));
    old_settings(s, &c);
    c
}

/// What launches in the way of CUDA 3 have, before a move.
fn old_settings(s: &Surface, c: &Code) {
    let f = c.function;
    tell!(s, launch.cuLaunch(f));
    tell!(s, launch.cuFuncSetBlockShape(f, 0, 1, 1));
    tell!(s, launch.cuFuncSetBlockShape(f, 64, 1, -1));
    tell!(s, launch.cuFuncSetBlockShape(bad_handle(), 64, 1, 1));
    tell!(s, launch.cuFuncSetBlockShape(f, 64, 1, 1));
    tell!(s, launch.cuFuncSetSharedSize(f, 128));
    tell!(s, launch.cuParamSetSize(f, 16));
    tell!(s, launch.cuParamSeti(f, 8, 4096));
    tell!(s, launch.cuParamSeti(f, -4, 4096));
    tell!(s, launch.cuParamSetf(f, 12, 1.5));
    tell!(s, launch.cuParamSetv(f, 0, std::ptr::null_mut(), 8));
}

/// Asks about code and launches it.
pub fn use_them(s: &Surface, c: &Code, b: &Buffers, stream: CUstream) {
    let mut mode = 0u32;
    show!(s, module.cuModuleGetLoadingMode((&raw mut mode).cast()) => mode);
    let (mut address, mut bytes, mut count) = (0, 0, 0);
    show!(s, module.cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, c.module, c"octants".as_ptr()) => address != 0, bytes);
    tell!(s, module.cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, c.module, c"nothing".as_ptr()));
    show!(s, module.cuLibraryGetGlobal(&raw mut address, &raw mut bytes, c.library, c"tracks".as_ptr()) => address != 0, bytes);
    let mut unified = std::ptr::null_mut();
    tell!(s, module.cuLibraryGetUnifiedFunction(&raw mut unified, c.library, c"tracks".as_ptr()));
    tell!(s, module.cuLibraryGetUnifiedFunction(&raw mut unified, c.library, std::ptr::null()));
    tell!(s, module.cuLibraryGetUnifiedFunction(&raw mut unified, bad_handle(), c"tracks".as_ptr()));
    show!(s, module.cuModuleGetFunctionCount(&raw mut count, c.module) => count);
    show!(s, module.cuLibraryGetKernelCount(&raw mut count, c.library) => count);
    older_names(s);
    enumerate(s, c);
    kernels(s, c);
    functions(s, c);
    occupancy(s, c.function);
    launches(s, c, b, stream);
}

/// Names of earlier versions, which libraries look up: cuDNN links by `cuLinkCreate`.
fn older_names(s: &Surface) {
    let ptx = CString::new(KERNELS).expect("PTX has no NUL");
    let (mut link, mut image, mut size) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    let none = std::ptr::null_mut::<c_void>();
    tell!(s, module.cuLinkCreate(0, none.cast(), none.cast(), &raw mut link));
    let text = ptx.as_bytes_with_nul();
    let data = text.as_ptr().cast_mut().cast();
    tell!(s, module.cuLinkAddData(link, 1, data, text.len(), c"kernels".as_ptr(), 0, none.cast(), none.cast()));
    tell!(s, module.cuLinkAddFile(link, 1, c"/no/such/file".as_ptr(), 0, none.cast(), none.cast()));
    show!(s, module.cuLinkComplete(link, &raw mut image, &raw mut size) => image.is_null(), size > 0);
    tell!(s, module.cuLinkDestroy(link));
    let (mut stream, mut event, mut context) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    tell!(s, stream.cuStreamCreate(&raw mut stream, 1));
    tell!(s, stream.cuEventCreate(&raw mut event, 0));
    tell!(s, stream.cuEventRecord(event, stream));
    tell!(s, stream.cuStreamDestroy(stream));
    tell!(s, stream.cuEventDestroy(event));
    tell!(s, context.cuCtxCreate(&raw mut context, 0, 0));
    tell!(s, context.cuCtxDestroy(context));
    let mut own = vec![0u8; 3 << 12];
    let page = own.as_mut_ptr().map_addr(|a| a.next_multiple_of(4096)).cast();
    tell!(s, memory.cuMemHostRegister(page, 4096, 0));
    tell!(s, memory.cuMemHostUnregister(page));
}

fn enumerate(s: &Surface, c: &Code) {
    let (mut functions, mut kernels) = ([std::ptr::null_mut(); 64], [std::ptr::null_mut(); 64]);
    tell!(s, module.cuModuleEnumerateFunctions(functions.as_mut_ptr(), 1, c.module));
    println!("asked for one, {} given", functions.iter().filter(|f| !f.is_null()).count());
    tell!(s, module.cuModuleEnumerateFunctions(functions.as_mut_ptr(), 64, c.module));
    tell!(s, module.cuLibraryEnumerateKernels(kernels.as_mut_ptr(), 64, c.library));
    let mut name = std::ptr::null();
    for function in functions.into_iter().filter(|f| !f.is_null()) {
        show!(s, module.cuFuncGetName(&raw mut name, function) => static_text(name), function == c.function);
    }
    for kernel in kernels.into_iter().filter(|k| !k.is_null()) {
        show!(s, module.cuKernelGetName(&raw mut name, kernel) => static_text(name), kernel == c.kernel);
    }
}

fn kernels(s: &Surface, c: &Code) {
    let (mut name, mut library, mut module) = (std::ptr::null(), std::ptr::null_mut(), std::ptr::null_mut());
    show!(s, module.cuKernelGetName(&raw mut name, c.kernel) => static_text(name));
    show!(s, module.cuKernelGetLibrary(&raw mut library, c.kernel) => library == c.library);
    show!(s, module.cuLibraryGetModule(&raw mut module, c.library) => module.is_null());
    let (mut function, mut value) = (std::ptr::null_mut(), 0);
    show!(s, module.cuKernelGetFunction(&raw mut function, c.kernel) => function.is_null());
    show!(s, module.cuKernelGetAttribute(&raw mut value, 0, c.kernel, 0) => value > 0);
    tell!(s, module.cuKernelGetAttribute(&raw mut value, 0, c.kernel, 7));
    tell!(s, module.cuKernelSetAttribute(8, 1024, c.kernel, 0));
    show!(s, module.cuKernelGetAttribute(&raw mut value, 8, c.kernel, 0) => value);
    tell!(s, module.cuKernelSetCacheConfig(c.kernel, 1, 0));
    for index in 0..4 {
        let (mut offset, mut size) = (0, 0);
        show!(s, module.cuKernelGetParamInfo(c.kernel, index, &raw mut offset, &raw mut size) => offset, size);
        show!(s, module.cuFuncGetParamInfo(c.function, index, &raw mut offset, &raw mut size) => offset, size);
    }
}

fn functions(s: &Surface, c: &Code) {
    let (mut name, mut module, mut state, mut value) = (std::ptr::null(), std::ptr::null_mut(), 9, 0);
    show!(s, module.cuFuncGetName(&raw mut name, c.function) => static_text(name));
    show!(s, module.cuFuncGetModule(&raw mut module, c.function) => module == c.module);
    tell!(s, module.cuFuncLoad(c.function));
    show!(s, module.cuFuncIsLoaded(&raw mut state, c.function) => state);
    for attribute in [0, 1, 2, 3, 8, 9] {
        print!("{attribute:4} ");
        show!(s, module.cuFuncGetAttribute(&raw mut value, attribute, c.function) => value >= 0, (attribute != 1) || value == 0);
    }
    tell!(s, module.cuFuncGetAttribute(&raw mut value, 9999, c.function));
    tell!(s, module.cuFuncSetAttribute(c.function, 8, 2048));
    show!(s, module.cuFuncGetAttribute(&raw mut value, 8, c.function) => value);
    tell!(s, module.cuFuncSetAttribute(c.function, 8, 1 << 30));
    tell!(s, module.cuFuncSetCacheConfig(c.function, 2));
    tell!(s, module.cuFuncGetAttribute(&raw mut value, 0, bad_handle()));
}

fn occupancy(s: &Surface, f: CUfunction) {
    let (mut blocks, mut size, mut bytes) = (0, 0, 0);
    show!(s, launch.cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, f, 128, 0) => blocks > 0);
    show!(s, launch.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&raw mut blocks, f, 128, 0, 0) => blocks > 0);
    show!(s, launch.cuOccupancyAvailableDynamicSMemPerBlock(&raw mut bytes, f, 1, 128) => bytes > 0);
    show!(s, launch.cuOccupancyMaxPotentialBlockSize(&raw mut blocks, &raw mut size, f, None, 0, 0) => blocks > 0, size % 32);
    show!(s, launch.cuOccupancyMaxPotentialBlockSizeWithFlags(&raw mut blocks, &raw mut size, f, None, 0, 256, 0) => size);
}

fn launches(s: &Surface, c: &Code, b: &Buffers, stream: CUstream) {
    let mut sky = b.device;
    let (mut words, mut step, mut next) = (4096u32, 1u32, 2u32);
    let mut params: [*mut c_void; 3] = [(&raw mut sky).cast(), (&raw mut words).cast(), (&raw mut step).cast()];
    let p = params.as_mut_ptr();
    let (none, f) = (std::ptr::null_mut(), c.function);
    tell!(s, launch.cuLaunchKernel(f, 2, 1, 1, 64, 1, 1, 0, stream, p, none));
    // A kernel where a function is wanted, as cudart does it.
    tell!(s, launch.cuLaunchKernel(c.kernel.cast(), 2, 1, 1, 64, 1, 1, 0, stream, p, none));
    tell!(s, launch.cuLaunchCooperativeKernel(f, 2, 1, 1, 64, 1, 1, 0, stream, p));
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut config: CUlaunchConfig = unsafe { std::mem::zeroed() };
    (config.gridDimX, config.gridDimY, config.gridDimZ) = (2, 1, 1);
    (config.blockDimX, config.blockDimY, config.blockDimZ) = (64, 1, 1);
    config.hStream = stream;
    params[2] = (&raw mut next).cast();
    let p = params.as_mut_ptr();
    tell!(s, launch.cuLaunchKernelEx(&raw const config, f, p, none));
    // The parameters as one buffer: the other of the two ways.
    let mut buffer = [0u8; 16];
    buffer[..8].copy_from_slice(&sky.to_le_bytes());
    buffer[8..12].copy_from_slice(&words.to_le_bytes());
    buffer[12..].copy_from_slice(&3u32.to_le_bytes());
    let mut bytes = buffer.len();
    // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
    let tag = |n: usize| std::ptr::without_provenance_mut::<c_void>(n);
    let mut extra = [tag(1), buffer.as_mut_ptr().cast(), tag(2), (&raw mut bytes).cast(), tag(0)];
    tell!(s, launch.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, none, extra.as_mut_ptr()));
    tell!(s, launch.cuParamSetv(f, 0, (&raw mut sky).cast(), 8));
    tell!(s, launch.cuParamSeti(f, 12, 5));
    tell!(s, launch.cuLaunchGridAsync(f, 3, 1, stream));
    tell!(s, launch.cuLaunchGridAsync(f, 3, 0, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    tell!(s, launch.cuLaunchGrid(f, 2, 1));
    tell!(s, launch.cuLaunch(f));
    tell!(s, context.cuCtxSynchronize());
    tell!(s, launch.cuLaunchKernel(f, 0, 1, 1, 64, 1, 1, 0, stream, p, none));
    tell!(s, launch.cuLaunchKernel(f, 1, 1, 1, 4096, 1, 1, 0, stream, p, none));
    tell!(s, launch.cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 1 << 24, stream, p, none));
    tell!(s, launch.cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, bad_handle(), p, none));
    tell!(s, launch.cuLaunchKernel(bad_handle(), 1, 1, 1, 64, 1, 1, 0, stream, p, none));
    tell!(s, launch.cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, stream, none, none));
    tell!(s, stream.cuStreamSynchronize(stream));
    let mut host = vec![0u8; 16384];
    tell!(s, memory.cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), b.device, 16384));
    let hash = host.iter().fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3));
    println!("  kernels wrote {hash:016x}");
    captured(s, c, p, stream);
}

/// A kernel that a capture records has its stream's attributes, but for those that its launch sets.
fn captured(s: &Surface, c: &Code, params: *mut *mut c_void, stream: CUstream) {
    let mut graph: CUgraph = std::ptr::null_mut();
    let none = std::ptr::null_mut();
    tell!(s, graph.cuStreamBeginCapture_v2(stream, 2));
    tell!(s, launch.cuLaunchKernel(c.function, 1, 1, 1, 64, 1, 1, 0, stream, params, none));
    // SAFETY: all-zero is a valid value of these plain C structs.
    let (mut config, mut own): (CUlaunchConfig, [u64; 9]) = unsafe { (std::mem::zeroed(), [0; 9]) };
    // The domain of memory barriers.
    (own[0], own[1]) = (10, 1);
    (config.gridDimX, config.gridDimY, config.gridDimZ) = (1, 1, 1);
    (config.blockDimX, config.blockDimY, config.blockDimZ) = (64, 1, 1);
    (config.hStream, config.attrs, config.numAttrs) = (stream, own.as_mut_ptr().cast(), 1);
    tell!(s, launch.cuLaunchKernelEx(&raw const config, c.function, params, none));
    tell!(s, graph.cuStreamEndCapture(stream, &raw mut graph));
    let mut nodes: [CUgraphNode; 2] = [std::ptr::null_mut(); 2];
    let mut count = 2;
    show!(s, graph.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) => count);
    for node in nodes {
        for attribute in [1, 3, 8, 9, 10] {
            let mut value = [0u32; 16];
            print!("{attribute:3} ");
            show!(s, graph.cuGraphKernelNodeGetAttribute(node, attribute, value.as_mut_ptr().cast()) => &value[..7]);
        }
    }
    let mut made: CUgraphExec = std::ptr::null_mut();
    tell!(s, graph.cuGraphInstantiateWithFlags(&raw mut made, graph, 0));
    tell!(s, graph.cuGraphLaunch(made, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    tell!(s, graph.cuGraphExecDestroy(made));
    tell!(s, graph.cuGraphDestroy(graph));
}

/// Unloads; twice is an error.
pub fn end(s: &Surface, c: Code) {
    tell!(s, module.cuModuleUnload(c.module));
    tell!(s, module.cuModuleUnload(c.module));
    tell!(s, module.cuLibraryUnload(c.library));
    tell!(s, module.cuLibraryUnload(c.library));
}
