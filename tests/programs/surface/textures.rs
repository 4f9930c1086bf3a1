//! Texture and surface objects: what is told of them, and calls that are wrong. Numbers are not printed but compared.

use crate::driver::Surface;
use crate::memory::Buffers;
use cuda_api::array::{OF_ARRAY, OF_MEMORY, OF_ROWS, Resource, Sampling, resource, sampling, write_resource, write_sampling};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray, CUarray_format,
};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// What is made before the program may be moved.
pub struct Objects {
    array: CUarray,
    textures: Vec<u64>,
    surface: u64,
}

fn of(array: CUarray) -> Resource {
    Resource { kind: OF_ARRAY, array: array as u64, ..Resource::default() }
}

/// What the driver has set.
fn written<T>(room: &MaybeUninit<T>) -> InPtr<'_, T> {
    // SAFETY: it is there, and zero or as the driver has set it.
    unsafe { InPtr::new(room.as_ptr()) }
}

/// `cuTexObjectCreate` of plain values.
fn texture(s: &Surface, what: &Resource, how: &Sampling) -> (i32, u64) {
    let mut raw_what = MaybeUninit::<CUDA_RESOURCE_DESC>::zeroed();
    let mut raw_how = MaybeUninit::<CUDA_TEXTURE_DESC>::zeroed();
    write_resource(OutPtr::of_room(&mut raw_what), what).unwrap();
    write_sampling(OutPtr::of_room(&mut raw_how), how).unwrap();
    let mut object = 0;
    let code = call!(s, array.cuTexObjectCreate(&raw mut object, raw_what.as_ptr(), raw_how.as_ptr(), null()));
    (code, object)
}

fn surface(s: &Surface, what: &Resource) -> (i32, u64) {
    let mut raw_what = MaybeUninit::<CUDA_RESOURCE_DESC>::zeroed();
    write_resource(OutPtr::of_room(&mut raw_what), what).unwrap();
    let mut object = 0;
    let code = call!(s, array.cuSurfObjectCreate(&raw mut object, raw_what.as_ptr()));
    (code, object)
}

/// Makes objects, some of which end again at once: the numbers that stay have gaps.
pub fn build(s: &Surface) -> Objects {
    let mut array = null_mut();
    let shape = CUDA_ARRAY3D_DESCRIPTOR {
        Width: 64,
        Height: 16,
        Depth: 0,
        Format: CUarray_format::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: 2,
    };
    tell!(s, array.cuArray3DCreate_v2(&raw mut array, &raw const shape));
    let made: Vec<(i32, u64)> = (0..6).map(|_| texture(s, &of(array), &Sampling::default())).collect();
    let (code, surface) = surface(s, &of(array));
    println!("  made: {:?} {code}", made.iter().map(|(code, _)| *code).collect::<Vec<_>>());
    tell!(s, array.cuTexObjectDestroy(made[0].1));
    tell!(s, array.cuTexObjectDestroy(made[3].1));
    Objects { array, textures: vec![made[1].1, made[2].1, made[4].1, made[5].1], surface }
}

/// What is told, and what is wrong.
pub fn use_them(s: &Surface, o: &Objects, b: &Buffers) {
    let mut what = MaybeUninit::<CUDA_RESOURCE_DESC>::zeroed();
    let mut how = MaybeUninit::<CUDA_TEXTURE_DESC>::zeroed();
    for texture in &o.textures {
        show!(s, array.cuTexObjectGetResourceDesc(what.as_mut_ptr(), *texture) => resource(written(&what)) == Ok(of(o.array)));
        show!(s, array.cuTexObjectGetTextureDesc(how.as_mut_ptr(), *texture) => sampling(written(&how)).map(|h| (h.filter, h.flags)));
    }
    let mut seen_as = MaybeUninit::<CUDA_RESOURCE_VIEW_DESC>::zeroed();
    tell!(s, array.cuTexObjectGetResourceViewDesc(seen_as.as_mut_ptr(), o.textures[0]));
    show!(s, array.cuSurfObjectGetResourceDesc(what.as_mut_ptr(), o.surface) => resource(written(&what)) == Ok(of(o.array)));
    // Each kind has its own calls, of numbers that both share.
    tell!(s, array.cuSurfObjectGetResourceDesc(what.as_mut_ptr(), o.textures[0]));
    tell!(s, array.cuTexObjectGetResourceDesc(what.as_mut_ptr(), o.surface));
    tell!(s, array.cuTexObjectGetResourceDesc(null_mut(), o.textures[0]));
    tell!(s, array.cuTexObjectCreate(null_mut(), what.as_ptr(), how.as_ptr(), null()));
    let plain = Sampling::default();
    let memory = Resource { kind: OF_MEMORY, address: b.device, format: 0x20, channels: 1, width: 4096, ..Resource::default() };
    let rows = Resource { kind: OF_ROWS, width: 16, height: 8, pitch: 128, ..memory };
    let cases = [
        ("memory", memory, plain),
        ("memory at +4", Resource { address: b.device + 4, ..memory }, plain),
        ("memory, 3 channels", Resource { channels: 3, ..memory }, plain),
        ("rows", rows, plain),
        ("rows, pitch 48", Resource { pitch: 48, ..rows }, plain),
        ("flags of what", Resource { flags: 1, ..of(o.array) }, plain),
        ("flags of how", of(o.array), Sampling { flags: 0x100, ..plain }),
        ("address mode 7", of(o.array), Sampling { address: [7, 0, 0], ..plain }),
        ("filter 5", of(o.array), Sampling { filter: 5, ..plain }),
        ("kind 9", Resource { kind: 9, ..of(o.array) }, plain),
    ];
    for (name, what, how) in cases {
        let (code, object) = texture(s, &what, &how);
        println!("  texture of {name}: {code}");
        if code == 0 {
            tell!(s, array.cuTexObjectDestroy(object));
        }
    }
    println!("  surface of memory: {}", surface(s, &memory).0);
    // None of these is an error.
    tell!(s, array.cuTexObjectDestroy(0));
    tell!(s, array.cuTexObjectDestroy(0x1234_5678));
    tell!(s, array.cuSurfObjectDestroy(o.textures[0]));
    show!(s, array.cuTexObjectGetResourceDesc(what.as_mut_ptr(), o.textures[0]) => resource(written(&what)) == Ok(of(o.array)));
}

/// Ends what was made, arrays before what sees them.
pub fn end(s: &Surface, o: Objects) {
    tell!(s, array.cuArrayDestroy(o.array));
    for texture in o.textures {
        tell!(s, array.cuTexObjectDestroy(texture));
    }
    tell!(s, array.cuSurfObjectDestroy(o.surface));
    tell!(s, array.cuSurfObjectDestroy(o.surface));
}
