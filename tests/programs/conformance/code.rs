//! Functions and their attributes, launches, the linker.

use crate::tell::Tell;
use cuda_api::sys::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUmodule};
use std::ffi::{CString, c_void};

/// A program with functions of several shapes: `scale` has shared memory of its own and three parameters, `bound` is for at most 64
/// threads, `outer` calls a function that is in [`INNER`] only.
const WHOLE: &str = include_str!("whole.ptx");
const OUTER: &str = include_str!("outer.ptx");
const INNER: &str = include_str!("inner.ptx");

pub fn load(t: &Tell) -> CUmodule {
    let image = CString::new(WHOLE).unwrap_or_default();
    let mut module = std::ptr::null_mut();
    say!(t, module.cuModuleLoadData(&raw mut module, image.as_ptr().cast()));
    module
}

fn function(t: &Tell, module: CUmodule, name: &std::ffi::CStr) -> CUfunction {
    let mut function = std::ptr::null_mut();
    say!(t, module.cuModuleGetFunction(&raw mut function, module, name.as_ptr()));
    function
}

/// Attributes that depend on the compiler of the driver: only that they are there is told.
const COMPILED: [u32; 6] = [0, 3, 4, 6, 7, 8];

/// Attributes, parameters, occupancy.
pub fn functions(t: &Tell) {
    t.start();
    let module = load(t);
    let (scale, bound) = (function(t, module, c"scale"), function(t, module, c"bound"));
    function(t, module, c"Scale");
    function(t, module, c"");
    t.move_here();
    for (what, f) in [("scale", scale), ("bound", bound)] {
        for attribute in 0..18 {
            let mut value = -1;
            t.about(format!("{what}, attribute {attribute}"));
            let compiled = COMPILED.contains(&attribute) && attribute != 8 && !(attribute == 0 && what == "bound");
            say!(t, module.cuFuncGetAttribute(&raw mut value, attribute, f) => if compiled { 0 } else { value });
        }
        for index in 0..4 {
            let (mut offset, mut size) = (0, 0);
            t.about(format!("{what}, parameter {index}"));
            say!(t, module.cuFuncGetParamInfo(f, index, &raw mut offset, &raw mut size) => offset, size);
            say!(t, module.cuFuncGetParamInfo(f, index, &raw mut offset, std::ptr::null_mut()) => offset);
        }
    }
    for attribute in 0..18 {
        for value in [-1, 0, 1, 1024, 1 << 20] {
            let mut now = -1;
            t.about(format!("attribute {attribute} := {value}"));
            if say!(t, module.cuFuncSetAttribute(scale, attribute, value)) == 0 {
                say!(t, module.cuFuncGetAttribute(&raw mut now, attribute, scale) => now);
            }
        }
    }
    // As they were: clusters and sizes would be those of the questions below.
    for (attribute, value) in [(8, 0), (10, 0), (11, 0), (12, 0), (14, 0), (15, 0)] {
        call!(t, module.cuFuncSetAttribute(scale, attribute, value));
    }
    for config in [0, 1, 2, 3, 4, 77] {
        t.about(format!("configuration {config}"));
        say!(t, module.cuFuncSetCacheConfig(scale, config));
    }
    for (block, shared, flags) in [
        (1, 0, 0),
        (64, 0, 0),
        (65, 0, 0),
        (1024, 0, 0),
        (1025, 0, 0),
        (0, 0, 0),
        (-1, 0, 0),
        (32, 1 << 20, 0),
        (32, 0, 1),
        (32, 0, 2),
    ] {
        let (mut blocks, mut bytes) = (-1, 0);
        t.about(format!("bound, {block} threads, {shared} bytes, flags {flags}"));
        say!(t, launch.cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, bound, block, shared) => blocks);
        say!(t, launch.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&raw mut blocks, bound, block, shared, flags) => blocks);
        say!(t, launch.cuOccupancyAvailableDynamicSMemPerBlock(&raw mut bytes, bound, 1, block) => bytes);
    }
    t.about("");
    let (mut grid, mut block) = (-1, -1);
    say!(t, launch.cuOccupancyMaxPotentialBlockSize(&raw mut grid, &raw mut block, bound, None, 0, 0) => grid, block);
    say!(t, launch.cuOccupancyMaxPotentialBlockSize(&raw mut grid, &raw mut block, scale, None, 0, 100) => grid, block);
    say!(t, launch.cuOccupancyMaxPotentialBlockSize(std::ptr::null_mut(), &raw mut block, scale, None, 0, 100));
    say!(t, launch.cuOccupancyMaxPotentialBlockSizeWithFlags(&raw mut grid, &raw mut block, scale, None, 0, 0, 1) => grid, block);
    let mut count = 0;
    say!(t, module.cuModuleGetFunctionCount(&raw mut count, module) => count);
    let mut mode = 9u32;
    say!(t, module.cuModuleGetLoadingMode((&raw mut mode).cast()) => mode);
    let (mut address, mut bytes) = (0, 0);
    say!(t, module.cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, c"table".as_ptr()) => bytes);
    say!(t, module.cuModuleGetGlobal_v2(std::ptr::null_mut(), &raw mut bytes, module, c"table".as_ptr()) => bytes);
    say!(t, module.cuModuleGetGlobal_v2(&raw mut address, std::ptr::null_mut(), module, c"table".as_ptr()));
    say!(t, module.cuModuleGetGlobal_v2(std::ptr::null_mut(), std::ptr::null_mut(), module, c"table".as_ptr()));
    say!(t, module.cuModuleUnload(module));
}

/// Launches of every form, in and out of range.
pub fn launches(t: &Tell) {
    t.start();
    let module = load(t);
    let (scale, bound) = (function(t, module, c"scale"), function(t, module, c"bound"));
    let mut data = 0;
    call!(t, memory.cuMemAlloc_v2(&raw mut data, 4096));
    call!(t, memory.cuMemsetD32_v2(data, 3, 1024));
    t.move_here();
    let (mut n, mut factor) = (1024u32, 5u32);
    let mut params: [*mut c_void; 3] = [(&raw mut data).cast(), (&raw mut n).cast(), (&raw mut factor).cast()];
    let (p, none, stream) = (params.as_mut_ptr(), std::ptr::null_mut(), std::ptr::null_mut());
    let shapes: [[u32; 7]; 14] = [
        [8, 1, 1, 128, 1, 1, 0],
        [0, 1, 1, 1, 1, 1, 0],
        [1, 0, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 1, 1, 0],
        [1, 1, 1, 1, 1, 65, 0],
        [1, 1, 1, 1, 2048, 1, 0],
        [1, 65536, 1, 1, 1, 1, 0],
        [1, 1, 65536, 1, 1, 1, 0],
        [u32::MAX, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1024, 2, 1, 0],
        [1, 1, 1, 32, 1, 1, 1 << 30],
        [1, 1, 1, 32, 1, 1, 49152],
        [1, 1, 1, 32, 1, 1, 40000],
        [1, 1, 1, 65, 1, 1, 0],
    ];
    for [gx, gy, gz, bx, by, bz, shared] in shapes {
        t.about(format!("grid {gx} {gy} {gz}, block {bx} {by} {bz}, {shared} bytes"));
        say!(t, launch.cuLaunchKernel(scale, gx, gy, gz, bx, by, bz, shared, stream, p, none));
        say!(t, launch.cuLaunchKernel(bound, gx, gy, gz, bx, by, bz, shared, stream, p, none));
        say!(t, launch.cuLaunchCooperativeKernel(bound, gx, gy, gz, bx, by, bz, shared, stream, p));
        say!(t, context.cuCtxSynchronize());
    }
    t.about("`extra`");
    let tag = |n: usize| std::ptr::without_provenance_mut::<c_void>(n);
    let mut packed = [0u8; 24];
    packed[..8].copy_from_slice(&data.to_le_bytes());
    packed[8..12].copy_from_slice(&n.to_le_bytes());
    packed[12..16].copy_from_slice(&7u32.to_le_bytes());
    let bytes: *mut c_void = packed.as_mut_ptr().cast();
    for size in [16usize, 12, 20, 24, 0] {
        let mut size = size;
        t.about(format!("`extra` of {size} bytes"));
        let mut extra = [tag(1), bytes, tag(2), (&raw mut size).cast(), tag(0)];
        say!(t, launch.cuLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, stream, none, extra.as_mut_ptr()));
        say!(t, launch.cuLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, stream, p, extra.as_mut_ptr()));
        say!(t, context.cuCtxSynchronize());
    }
    t.about("`extra` of other shapes");
    let mut end = [tag(0)];
    say!(t, launch.cuLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, stream, none, end.as_mut_ptr()));
    let mut wrong = [tag(9), bytes, tag(0)];
    say!(t, launch.cuLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, stream, none, wrong.as_mut_ptr()));
    say!(t, launch.cuLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, stream, none, none));
    say!(t, context.cuCtxSynchronize());
    attributes(t, scale, p);
    // What the launches above have left is no driver's promise: a list of 12 bytes leaves the factor undefined, and launches that may overlap race.
    t.about("after all of them");
    say!(t, memory.cuMemsetD32_v2(data, 3, 1024));
    say!(t, launch.cuLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, stream, p, none));
    let mut host = [0u32; 1024];
    say!(t, memory.cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), data, 4096) => host[0], host.iter().all(|w| *w == host[0]));
    say!(t, module.cuModuleUnload(module));
    say!(t, context.cuCtxSynchronize());
}

/// Launch attributes, each with values in and out of range.
fn attributes(t: &Tell, f: CUfunction, p: *mut *mut c_void) {
    // SAFETY: all-zero is a valid value of these plain C structs.
    let (mut config, mut attribute): (CUlaunchConfig, CUlaunchAttribute) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    (config.gridDimX, config.gridDimY, config.gridDimZ) = (8, 1, 1);
    (config.blockDimX, config.blockDimY, config.blockDimZ) = (128, 1, 1);
    t.about("no attributes");
    say!(t, launch.cuLaunchKernelEx(&raw const config, f, p, std::ptr::null_mut()));
    say!(t, launch.cuLaunchKernelEx(std::ptr::null(), f, p, std::ptr::null_mut()));
    config.numAttrs = 1;
    say!(t, launch.cuLaunchKernelEx(&raw const config, f, p, std::ptr::null_mut()));
    config.attrs = &raw mut attribute;
    // Id and the first words of the value. Those with events (8, 12) and nodes (13) are told by programs of their own.
    let tried: [(u32, [u32; 3]); 22] = [
        (0, [0; 3]),
        (2, [0, 0, 0]),
        (2, [1, 0, 0]),
        (2, [2, 0, 0]),
        (3, [1, 0, 0]),
        (3, [9, 0, 0]),
        (4, [1, 1, 1]),
        (4, [2, 1, 1]),
        (4, [8, 1, 1]),
        (4, [3, 1, 1]),
        (4, [0, 1, 1]),
        (4, [16, 1, 1]),
        (5, [0, 0, 0]),
        (5, [2, 0, 0]),
        (6, [0, 0, 0]),
        (6, [1, 0, 0]),
        (8, [0, 0, 0]),
        (8, [u32::MAX, 0, 0]),
        (10, [0, 0, 0]),
        (10, [1, 0, 0]),
        (14, [50, 0, 0]),
        (99, [0; 3]),
    ];
    for (id, words) in tried {
        let at: *mut u32 = (&raw mut attribute).cast();
        // SAFETY: the id is the first word, the value begins at the third; the struct has 72 bytes.
        unsafe {
            at.write(id);
            for (index, word) in words.into_iter().enumerate() {
                at.add(2 + index).write(word);
            }
        }
        t.about(format!("launch attribute {id}, value {words:?}"));
        let (mut clusters, mut size) = (-1, -1);
        say!(t, launch.cuLaunchKernelEx(&raw const config, f, p, std::ptr::null_mut()));
        say!(t, context.cuCtxSynchronize());
        if id == 4 {
            say!(t, launch.cuOccupancyMaxActiveClusters(&raw mut clusters, f, &raw const config) => clusters > 0);
            say!(t, launch.cuOccupancyMaxPotentialClusterSize(&raw mut size, f, &raw const config) => size);
        }
    }
    t.about("");
}

/// Linking at run time.
pub fn linker(t: &Tell) {
    t.start();
    let none: *mut c_void = std::ptr::null_mut();
    let (outer, inner) = (CString::new(OUTER).unwrap_or_default(), CString::new(INNER).unwrap_or_default());
    let (mut state, mut image, mut size) = (none.cast(), none, 0usize);
    let ptx = 1;
    let data = |text: &CString| text.as_ptr().cast_mut().cast::<c_void>();
    t.about("an empty link");
    say!(t, module.cuLinkCreate_v2(0, none.cast(), none.cast(), none.cast()));
    say!(t, module.cuLinkCreate_v2(0, none.cast(), none.cast(), &raw mut state));
    say!(t, module.cuLinkComplete(state, &raw mut image, &raw mut size));
    say!(t, module.cuLinkDestroy(state));
    t.about("a bad input");
    say!(t, module.cuLinkCreate_v2(0, none.cast(), none.cast(), &raw mut state));
    say!(
        t,
        module.cuLinkAddData_v2(
            state,
            ptx,
            c".version nonsense".as_ptr().cast_mut().cast(),
            18,
            c"bad".as_ptr(),
            0,
            none.cast(),
            none.cast()
        )
    );
    say!(t, module.cuLinkAddData_v2(state, ptx, none, 18, c"bad".as_ptr(), 0, none.cast(), none.cast()));
    say!(t, module.cuLinkAddData_v2(state, 77, data(&inner), INNER.len() + 1, c"bad".as_ptr(), 0, none.cast(), none.cast()));
    say!(t, module.cuLinkAddFile_v2(state, ptx, c"/no/such/file".as_ptr(), 0, none.cast(), none.cast()));
    say!(t, module.cuLinkDestroy(state));
    t.about("an undefined function");
    say!(t, module.cuLinkCreate_v2(0, none.cast(), none.cast(), &raw mut state));
    say!(t, module.cuLinkAddData_v2(state, ptx, data(&outer), OUTER.len() + 1, none.cast(), 0, none.cast(), none.cast()));
    say!(t, module.cuLinkComplete(state, &raw mut image, &raw mut size));
    say!(t, module.cuLinkDestroy(state));
    t.about("two parts");
    say!(t, module.cuLinkCreate_v2(0, none.cast(), none.cast(), &raw mut state));
    say!(t, module.cuLinkAddData_v2(state, ptx, data(&outer), OUTER.len() + 1, c"outer".as_ptr(), 0, none.cast(), none.cast()));
    t.move_here();
    say!(t, module.cuLinkAddData_v2(state, ptx, data(&inner), INNER.len() + 1, c"inner".as_ptr(), 0, none.cast(), none.cast()));
    say!(t, module.cuLinkComplete(state, none.cast(), &raw mut size));
    if say!(t, module.cuLinkComplete(state, &raw mut image, &raw mut size) => !image.is_null(), size > 0) == 0 {
        let (mut module, mut n, mut data) = (none.cast(), 5u32, 0u64);
        say!(t, module.cuModuleLoadData(&raw mut module, image));
        say!(t, module.cuLinkDestroy(state));
        call!(t, memory.cuMemAlloc_v2(&raw mut data, 16));
        let f = function(t, module, c"outer");
        let mut params: [*mut c_void; 2] = [(&raw mut data).cast(), (&raw mut n).cast()];
        say!(t, launch.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, none.cast(), params.as_mut_ptr(), none.cast()));
        let mut word = 0u32;
        say!(t, memory.cuMemcpyDtoH_v2((&raw mut word).cast(), data, 4) => word);
        say!(t, module.cuModuleUnload(module));
    }
    t.about("one whole part, from a file");
    let file = std::env::temp_dir().join(format!("conformance-{}.ptx", std::process::id()));
    let path = CString::new(file.display().to_string()).unwrap_or_default();
    if std::fs::write(&file, WHOLE).is_ok() {
        say!(t, module.cuLinkCreate_v2(0, none.cast(), none.cast(), &raw mut state));
        say!(t, module.cuLinkAddFile_v2(state, ptx, path.as_ptr(), 0, none.cast(), none.cast()));
        say!(t, module.cuLinkComplete(state, &raw mut image, &raw mut size) => !image.is_null(), size > 0);
        say!(t, module.cuLinkDestroy(state));
        // It was only needed for these calls.
        let _ = std::fs::remove_file(&file);
    }
}
