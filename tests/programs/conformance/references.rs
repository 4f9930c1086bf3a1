//! Texture and surface references.

use crate::tell::Tell;
use cuda_api::sys::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUarray_format, CUmipmappedArray, CUmodule, CUsurfref, CUtexref,
};
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

/// `look` reads the texture `picture` and the surface `board`; nobody uses `other`.
const CODE: &str = include_str!("references.ptx");

fn load(t: &Tell) -> CUmodule {
    let (image, mut module) = (CString::new(CODE).unwrap_or_default(), null_mut());
    say!(t, module.cuModuleLoadData(&raw mut module, image.as_ptr().cast()));
    module
}

fn texture(t: &Tell, module: CUmodule, name: &CStr) -> CUtexref {
    let mut texture = null_mut();
    say!(t, module.cuModuleGetTexRef(&raw mut texture, module, name.as_ptr()));
    texture
}

fn surface(t: &Tell, module: CUmodule, name: &CStr) -> CUsurfref {
    let mut surface = null_mut();
    say!(t, module.cuModuleGetSurfRef(&raw mut surface, module, name.as_ptr()));
    surface
}

fn array(t: &Tell, format: CUarray_format, channels: u32, flags: u32) -> CUarray {
    let what = CUDA_ARRAY3D_DESCRIPTOR { Width: 16, Height: 8, Depth: 0, Format: format, NumChannels: channels, Flags: flags };
    let mut array = null_mut();
    call!(t, array.cuArray3DCreate_v2(&raw mut array, &raw const what));
    array
}

/// Everything that a texture reference says of itself.
fn tell(t: &Tell, about: &str, texture: CUtexref) {
    t.about(about);
    for dimension in -1..4 {
        let mut mode = 77u32;
        t.about(format!("{about}, dimension {dimension}"));
        say!(t, array.cuTexRefGetAddressMode((&raw mut mode).cast(), texture, dimension) => mode);
    }
    t.about(about);
    let (mut word, mut low, mut high) = (77u32, 77.0f32, 77.0f32);
    say!(t, array.cuTexRefGetFilterMode((&raw mut word).cast(), texture) => word);
    say!(t, array.cuTexRefGetMipmapFilterMode((&raw mut word).cast(), texture) => word);
    say!(t, array.cuTexRefGetMipmapLevelBias(&raw mut low, texture) => low);
    say!(t, array.cuTexRefGetMipmapLevelClamp(&raw mut low, &raw mut high, texture) => low, high);
    say!(t, array.cuTexRefGetFlags(&raw mut word, texture) => word);
    let (mut most, mut colour) = (77, [77.0f32; 4]);
    say!(t, array.cuTexRefGetMaxAnisotropy(&raw mut most, texture) => most);
    say!(t, array.cuTexRefGetBorderColor(colour.as_mut_ptr(), texture) => colour);
    sees(t, texture);
}

/// What a texture reference says that it sees.
fn sees(t: &Tell, texture: CUtexref) {
    let (mut format, mut channels) = (77u32, 77);
    say!(t, array.cuTexRefGetFormat((&raw mut format).cast(), &raw mut channels, texture) => format, channels);
    let (mut address, mut array, mut mipmap) = (0, null_mut(), null_mut());
    say!(t, array.cuTexRefGetAddress_v2(&raw mut address, texture) => t.name(address));
    say!(t, array.cuTexRefGetArray(&raw mut array, texture) => t.name(array as u64));
    say!(t, array.cuTexRefGetMipmappedArray(&raw mut mipmap, texture) => t.name(mipmap as u64));
}

/// References and their settings.
pub fn settings(t: &Tell) {
    t.start();
    let module = load(t);
    let (picture, board) = (texture(t, module, c"picture"), surface(t, module, c"board"));
    let again = texture(t, module, c"picture");
    t.begin("the same reference");
    t.end(&(again == picture).to_string());
    t.about("wrong names");
    for name in [c"nothing", c"board", c"look", c"counter", c""] {
        t.about(format!("a texture called {name:?}"));
        texture(t, module, name);
    }
    for name in [c"nothing", c"picture", c""] {
        t.about(format!("a surface called {name:?}"));
        surface(t, module, name);
    }
    t.about("");
    let (mut address, mut bytes, mut none) = (0, 0, null_mut());
    say!(t, module.cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, c"picture".as_ptr()));
    say!(t, module.cuModuleGetTexRef(null_mut(), module, c"picture".as_ptr()));
    say!(t, module.cuModuleGetTexRef(&raw mut none, module, std::ptr::null()));
    t.move_here();
    tell(t, "fresh", picture);
    let mut made = null_mut();
    say!(t, array.cuTexRefCreate(&raw mut made));
    tell(t, "made", made);
    for (dimension, mode) in [(-1, 1), (0, 2), (1, 3), (2, 1), (3, 1), (0, 4), (0, u32::MAX)] {
        t.about(format!("dimension {dimension}, mode {mode}"));
        say!(t, array.cuTexRefSetAddressMode(picture, dimension, mode));
    }
    for mode in [1, 2, u32::MAX] {
        t.about(format!("filter {mode}"));
        say!(t, array.cuTexRefSetFilterMode(picture, mode));
        say!(t, array.cuTexRefSetMipmapFilterMode(picture, mode));
    }
    for flags in [1, 2, 3, 4, 8, 0x10, 0x20, 0x40, 0x80, 0x100, 0x63, u32::MAX] {
        let mut now = 77;
        t.about(format!("flags {flags:#x}"));
        say!(t, array.cuTexRefSetFlags(picture, flags));
        say!(t, array.cuTexRefGetFlags(&raw mut now, picture) => now);
    }
    for most in [0, 1, 2, 3, 16, 17, 1000, u32::MAX] {
        let mut now = 77;
        t.about(format!("anisotropy {most}"));
        say!(t, array.cuTexRefSetMaxAnisotropy(picture, most));
        say!(t, array.cuTexRefGetMaxAnisotropy(&raw mut now, picture) => now);
    }
    for bias in [1.5, -100.0, 100.0, f32::NAN, 0.001] {
        let mut now = 77.0;
        t.about(format!("bias {bias}"));
        say!(t, array.cuTexRefSetMipmapLevelBias(picture, bias));
        say!(t, array.cuTexRefGetMipmapLevelBias(&raw mut now, picture) => now);
    }
    for (low, high) in [(5.0, 2.0), (-1.0, 3.0), (0.3, 100.0), (f32::NAN, 1.0)] {
        let (mut from, mut to) = (77.0, 77.0);
        t.about(format!("levels {low} to {high}"));
        say!(t, array.cuTexRefSetMipmapLevelClamp(picture, low, high));
        say!(t, array.cuTexRefGetMipmapLevelClamp(&raw mut from, &raw mut to, picture) => from, to);
    }
    for (format, channels) in
        [(99, 1), (1, 0), (1, 3), (1, 5), (1, -1), (0x10, 2), (0x20, 4), (8, 1), (0xc0, 1), (0xc0, 4), (0xb0, 2), (0x91, 1)]
    {
        let (mut is, mut of) = (77u32, 77);
        t.about(format!("format {format:#x}, {channels} channels"));
        say!(t, array.cuTexRefSetFormat(picture, format, channels));
        say!(t, array.cuTexRefGetFormat((&raw mut is).cast(), &raw mut of, picture) => is, of);
        say!(t, array.cuTexRefGetFormat(null_mut(), &raw mut of, picture) => of);
    }
    t.about("");
    let mut colour = [2.5, -1.0, 0.3, 1e30];
    say!(t, array.cuTexRefSetBorderColor(picture, null_mut()));
    say!(t, array.cuTexRefSetBorderColor(picture, colour.as_mut_ptr()));
    tell(t, "set", picture);
    t.about("");
    let mut function = null_mut();
    say!(t, module.cuModuleGetFunction(&raw mut function, module, c"look".as_ptr()));
    for unit in [-1, 0, 1] {
        t.about(format!("unit {unit}"));
        say!(t, array.cuParamSetTexRef(function, unit, picture));
        say!(t, array.cuParamSetTexRef(function, unit, made));
    }
    t.about("the end");
    let mut array = null_mut();
    say!(t, array.cuSurfRefGetArray(&raw mut array, board) => t.name(array as u64));
    say!(t, array.cuTexRefDestroy(made));
    say!(t, module.cuModuleUnload(module));
}

/// What references see.
pub fn bindings(t: &Tell) {
    t.start();
    let module = load(t);
    let (picture, other, board) = (texture(t, module, c"picture"), texture(t, module, c"other"), surface(t, module, c"board"));
    let (mut memory, mut offset) = (0, 0);
    call!(t, memory.cuMemAlloc_v2(&raw mut memory, 1 << 20));
    t.about("");
    say!(t, array.cuTexRefSetFormat(picture, 0x20, 1));
    for (what, from, bytes) in [
        ("4096 bytes", 0, 4096),
        ("4 bytes on", 4, 4096),
        ("3 bytes on", 3, 4096),
        ("32 bytes on", 32, 64),
        ("256 bytes on", 256, 4096),
        ("512 bytes on", 512, 4096),
        ("no bytes", 0, 0),
        ("2 bytes", 0, 2),
        ("more than there is", 0, 1 << 22),
        ("2^29 bytes", 0, 1 << 29),
        ("2^29 bytes and 4", 0, (1 << 29) + 4),
        ("2^30 bytes", 0, 1 << 30),
        ("2^30 bytes and 4", 0, (1 << 30) + 4),
        ("2^40 bytes", 0, 1 << 40),
    ] {
        let mut now = memory;
        t.about(what);
        offset = 77;
        say!(t, array.cuTexRefSetAddress_v2(&raw mut offset, picture, memory + from, bytes) => offset);
        say!(t, array.cuTexRefGetAddress_v2(&raw mut now, picture) => now - memory);
        say!(t, array.cuTexRefSetAddress_v2(null_mut(), picture, memory + from, bytes));
    }
    for (what, from) in [("null", 0), ("nowhere", 0x123_4500_0000)] {
        t.about(what);
        say!(t, array.cuTexRefSetAddress_v2(&raw mut offset, picture, from, 4096) => offset);
    }
    call!(t, array.cuTexRefSetAddress_v2(&raw mut offset, picture, memory, 4096));
    tell(t, "memory", picture);
    t.about("a format of memory that is seen");
    say!(t, array.cuTexRefSetFormat(picture, 1, 4));
    sees(t, picture);
    let plain = CUDA_ARRAY_DESCRIPTOR { Width: 64, Height: 32, Format: CUarray_format::CU_AD_FORMAT_FLOAT, NumChannels: 1 };
    let wide = |width| CUDA_ARRAY_DESCRIPTOR { Width: width, ..plain };
    let high = |height| CUDA_ARRAY_DESCRIPTOR { Height: height, ..plain };
    for (what, shape, from, pitch) in [
        ("rows", plain, 0, 256),
        ("rows without pitch", plain, 0, 0),
        ("rows of 260 bytes", plain, 0, 260),
        ("rows of 288 bytes", plain, 0, 288),
        ("rows that overlap", plain, 0, 128),
        ("rows, 4 bytes on", plain, 4, 256),
        ("rows, 256 bytes on", plain, 256, 256),
        ("rows, 512 bytes on", plain, 512, 256),
        ("no rows", high(0), 0, 256),
        ("rows of nothing", wide(0), 0, 256),
        ("three channels", CUDA_ARRAY_DESCRIPTOR { NumChannels: 3, ..plain }, 0, 1024),
        ("bytes", CUDA_ARRAY_DESCRIPTOR { Format: CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8, ..plain }, 0, 256),
        ("65000 rows", high(65000), 0, 256),
        ("65001 rows", high(65001), 0, 256),
        ("65536 rows", high(65536), 0, 256),
        ("65537 rows", high(65537), 0, 256),
        ("rows of 131072", wide(131_072), 0, 131_072 * 4),
        ("rows of 131073", wide(131_073), 0, 131_104 * 4),
        ("rows of 2^22 bytes", plain, 0, 1 << 22),
    ] {
        t.about(what);
        say!(t, array.cuTexRefSetAddress2D_v3(picture, &raw const shape, memory + from, pitch));
        sees(t, picture);
    }
    t.about("no description");
    say!(t, array.cuTexRefSetAddress2D_v3(picture, std::ptr::null(), memory, 256));
    t.about("a format of rows that are seen");
    say!(t, array.cuTexRefSetFormat(picture, 1, 4));
    t.move_here();
    sees(t, picture);
    let (bytes, words) = (CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8, CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32);
    let (plane, writable, none) = (array(t, bytes, 4, 0), array(t, words, 1, 2), null_mut());
    let (mut mipmap, mut level): (CUmipmappedArray, CUarray) = (null_mut(), null_mut());
    let what = CUDA_ARRAY3D_DESCRIPTOR { Width: 16, Height: 8, Depth: 0, Format: words, NumChannels: 1, Flags: 0 };
    call!(t, array.cuMipmappedArrayCreate(&raw mut mipmap, &raw const what, 3));
    call!(t, array.cuMipmappedArrayGetLevel(&raw mut level, mipmap, 1));
    for flags in [0, 1, 2, 3] {
        t.about(format!("flags {flags}"));
        say!(t, array.cuTexRefSetArray(picture, plane, flags));
        say!(t, array.cuTexRefSetMipmappedArray(other, mipmap, flags));
        say!(t, array.cuSurfRefSetArray(board, writable, flags));
    }
    t.about("nothing");
    say!(t, array.cuTexRefSetArray(picture, none, 1));
    say!(t, array.cuTexRefSetMipmappedArray(other, null_mut(), 1));
    say!(t, array.cuSurfRefSetArray(board, none, 0));
    t.about("not writable");
    say!(t, array.cuSurfRefSetArray(board, plane, 0));
    tell(t, "an array", picture);
    tell(t, "a mipmapped array", other);
    t.about("a format of an array that is seen");
    say!(t, array.cuTexRefSetFormat(picture, 0x20, 1));
    sees(t, picture);
    t.about("a level");
    say!(t, array.cuTexRefSetArray(other, level, 1));
    sees(t, other);
    ends(t, module, [plane, writable], mipmap, (picture, other, board));
}

/// Launches, captures, and what stays when arrays and references end.
fn ends(t: &Tell, module: CUmodule, arrays: [CUarray; 2], mipmap: CUmipmappedArray, of: (CUtexref, CUtexref, CUsurfref)) {
    let ([plane, writable], (picture, other, board)) = (arrays, of);
    let (mut look, mut plain, mut stream, mut memory, mut seen) = (null_mut(), null_mut(), null_mut(), 0, null_mut());
    t.about("launches");
    say!(t, module.cuModuleGetFunction(&raw mut look, module, c"look".as_ptr()));
    say!(t, module.cuModuleGetFunction(&raw mut plain, module, c"plain".as_ptr()));
    call!(t, stream.cuStreamCreate(&raw mut stream, 1));
    call!(t, memory.cuMemAlloc_v2(&raw mut memory, 4096));
    let pixels = [3u8; 16 * 8 * 4];
    let words = [5u32; 16 * 8];
    call!(t, array.cuMemcpyHtoA_v2(plane, 0, pixels.as_ptr().cast(), 64));
    call!(t, array.cuMemcpyHtoA_v2(writable, 0, words.as_ptr().cast(), 64));
    say!(t, array.cuTexRefSetFormat(picture, 1, 4));
    say!(t, array.cuTexRefSetFlags(picture, 1));
    say!(t, array.cuTexRefSetArray(picture, plane, 1));
    say!(t, array.cuSurfRefSetArray(board, writable, 0));
    let (mut params, none) = ([(&raw mut memory).cast()], null_mut());
    say!(t, launch.cuLaunchKernel(look, 1, 1, 1, 1, 1, 1, 0, stream, params.as_mut_ptr(), none));
    say!(t, stream.cuStreamSynchronize(stream));
    let mut sum = 0u32;
    say!(t, memory.cuMemcpyDtoH_v2((&raw mut sum).cast(), memory, 4) => sum);
    for (what, f) in [("a kernel without references", plain), ("a kernel with references", look)] {
        let mut graph = null_mut();
        t.about(format!("captured: {what}"));
        say!(t, graph.cuStreamBeginCapture_v2(stream, 2));
        say!(t, launch.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params.as_mut_ptr(), none));
        say!(t, graph.cuStreamEndCapture(stream, &raw mut graph));
    }
    t.about("destroyed while they are seen");
    say!(t, array.cuTexRefSetMipmappedArray(other, mipmap, 1));
    say!(t, array.cuArrayDestroy(plane));
    sees(t, picture);
    say!(t, array.cuMipmappedArrayDestroy(mipmap));
    sees(t, other);
    say!(t, array.cuArrayDestroy(writable));
    say!(t, array.cuSurfRefGetArray(&raw mut seen, board) => t.name(seen as u64));
    t.about("the end");
    say!(t, array.cuTexRefDestroy(other));
    texture(t, module, c"other");
    say!(t, memory.cuMemFree_v2(memory));
    say!(t, module.cuModuleUnload(module));
}
