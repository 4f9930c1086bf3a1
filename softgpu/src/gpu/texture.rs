//! Texture and surface objects: what a context's kernels may be given the numbers of. As on hardware the lowest free number is
//! taken, by textures and surfaces alike, and memory is not looked at until a kernel samples it. What references see
//! ([`super::reference`]) lies beside them.

use super::array::{self, Array};
use super::live::Live;
use super::lock;
use crate::ptx::{Channel, Level, Object, Objects, Outside, Sampler, Tiled};
use crate::result::Res;
use cuda_api::array::{CUBEMAP, LAYERED, OF_ARRAY, OF_MEMORY, OF_MIPMAP, OF_ROWS, Resource, Sampling, Shape, View, channel};
use cuda_api::sys::CUresult;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex};

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

/// `CU_TRSF_READ_AS_INTEGER`, `CU_TRSF_NORMALIZED_COORDINATES`, `CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION`
const AS_INTEGER: u32 = 1;
const NORMALIZED: u32 = 2;
const KNOWN_FLAGS: u32 = AS_INTEGER | NORMALIZED | 0x20;
/// `CU_TRSF_SRGB`, `CU_TRSF_SEAMLESS_CUBEMAP`
const UNSUPPORTED_FLAGS: u32 = 0x10 | 0x40;
/// Memory that a texture sees begins at a multiple of this.
const ALIGNED: u64 = 512;
/// Rows that a texture sees are so far apart.
const PITCH: u64 = 32;
/// Elements of memory, at most.
const MAX_ELEMENTS: u64 = 1 << 28;

/// An object with its description.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub resource: Resource,
    pub sampling: Option<Sampling>,
    pub view: Option<View>,
}

/// Objects of a context.
#[derive(Default)]
struct OfContext {
    made: BTreeMap<u64, Made>,
    /// Objects that kernels access by number.
    objects: Arc<Objects>,
    /// The bindings of references, by their address.
    bound: Arc<Objects>,
}

/// By number of the context.
static OBJECTS: LazyLock<Mutex<HashMap<u64, OfContext>>> = LazyLock::new(Mutex::default);

/// The objects of a context now.
pub(crate) fn of_context(number: u64) -> Arc<Objects> {
    lock(&OBJECTS).get(&number).map_or_else(Arc::default, |o| o.objects.clone())
}

/// What the references of a context see now, by their address.
pub(crate) fn references(number: u64) -> Arc<Objects> {
    lock(&OBJECTS).get(&number).map_or_else(Arc::default, |o| o.bound.clone())
}

/// The binding of an unbound reference: it reads zeros, as on hardware.
fn nothing() -> Object {
    Object {
        levels: Vec::new(),
        channel: Channel::Float,
        bytes: 4,
        channels: 1,
        in_memory: false,
        layered: false,
        cube: false,
        sampler: None,
        owner: None,
    }
}

/// Removes the reference at an address.
pub(crate) fn unbind(live: &Live, address: u64, surface: bool) {
    if let Some(all) = lock(&OBJECTS).get_mut(&live.number) {
        let bound = Arc::make_mut(&mut all.bound);
        let group = if surface { &mut bound.surfaces } else { &mut bound.textures };
        group.remove(&address);
    }
}

/// Changes the binding of the reference at an address, or removes it.
pub(crate) fn bind(live: &Live, address: u64, surface: bool, object: Option<Object>) {
    let mut all = lock(&OBJECTS);
    let bound = Arc::make_mut(&mut all.entry(live.number).or_default().bound);
    let group = if surface { &mut bound.surfaces } else { &mut bound.textures };
    group.insert(address, Arc::new(object.unwrap_or_else(nothing)));
}

/// Removes the objects of a context that was destroyed.
pub(crate) fn end_context(number: u64) {
    lock(&OBJECTS).remove(&number);
}

fn outside(mode: u32) -> Res<Outside> {
    match mode {
        0 => Ok(Outside::Wrap),
        1 => Ok(Outside::Clamp),
        2 => Ok(Outside::Mirror),
        3 => Ok(Outside::Border),
        _ => Err(BAD),
    }
}

fn sampler(s: &Sampling, format: Channel, bytes: u64) -> Res<Sampler> {
    if s.flags & !(KNOWN_FLAGS | UNSUPPORTED_FLAGS) != 0 || s.filter > 1 || s.mip_filter > 1 {
        return Err(BAD);
    }
    if s.flags & UNSUPPORTED_FLAGS != 0 || s.anisotropy > 1 {
        return Err(UNSUPPORTED);
    }
    let to_float = s.flags & AS_INTEGER == 0;
    let integers = format != Channel::Float && (!to_float || bytes == 4);
    if s.filter == 1 && integers {
        return Err(BAD);
    }
    let modes = [outside(s.address[0])?, outside(s.address[1])?, outside(s.address[2])?];
    Ok(Sampler {
        outside: modes,
        linear: s.filter == 1,
        normalized: s.flags & NORMALIZED != 0,
        to_float,
        between_levels: s.mip_filter == 1,
        bias: f32::from_bits(s.mip_bias),
        clamp: s.mip_clamp.map(f32::from_bits),
        border: s.border.map(f32::from_bits),
    })
}

/// What a channel of a format holds, and its bytes.
fn format_of(format: u32) -> Res<(Channel, u64)> {
    let (bytes, _) = channel(format).ok_or(BAD)?;
    Ok(match format {
        0x01..=0x03 => (Channel::Unsigned, bytes),
        0x08..=0x0a => (Channel::Signed, bytes),
        0x10 | 0x20 => (Channel::Float, bytes),
        // Numbers from 0 to 1 that are always read as such.
        _ => return Err(UNSUPPORTED),
    })
}

fn level(array: &Array) -> Res<Level> {
    let [row, rows, slices] = array.shape.rows().map_err(|_| BAD)?;
    let width = array.shape.width;
    let tiles = array.tiles.clone().map(|tiles| tiles as Arc<dyn Tiled>);
    Ok(Level { base: array.base, size: [width, rows, slices], pitch: row, slice: row * rows, tiles })
}

/// What an object of arrays sees.
fn of_arrays(shape: &Shape, levels: Vec<Level>, owner: Arc<dyn std::any::Any + Send + Sync>) -> Res<Object> {
    let (channel, bytes) = format_of(shape.format)?;
    let layered = shape.flags & LAYERED != 0;
    let cube = shape.flags & CUBEMAP != 0;
    let channels = u64::from(shape.channels);
    Ok(Object { levels, channel, bytes, channels, in_memory: false, layered, cube, sampler: None, owner: Some(owner) })
}

/// What a resource is to kernels.
fn object_for_kernels(r: &Resource) -> Res<Object> {
    if r.flags != 0 {
        return Err(BAD);
    }
    match r.kind {
        OF_ARRAY => {
            let array = array::resolve(r.array as usize).map_err(|_| BAD)?;
            of_arrays(&array.shape, vec![level(&array)?], array.storage.clone())
        }
        OF_MIPMAP => {
            let mipmap = array::resolve_mipmap(r.array as usize).map_err(|_| BAD)?;
            let levels = mipmap.levels.iter().map(|a| level(a)).collect::<Res<Vec<Level>>>()?;
            of_arrays(&mipmap.levels[0].shape, levels, mipmap.levels[0].storage.clone())
        }
        OF_MEMORY | OF_ROWS => {
            let (channel, bytes) = format_of(r.format)?;
            if !matches!(r.channels, 1 | 2 | 4) || !r.address.is_multiple_of(ALIGNED) {
                return Err(BAD);
            }
            let element = bytes * u64::from(r.channels);
            let (size, pitch) = if r.kind == OF_MEMORY {
                ([r.width / element, 1, 1], 0)
            } else if r.pitch.is_multiple_of(PITCH) && r.pitch > 0 {
                ([r.width, r.height, 1], r.pitch)
            } else {
                return Err(BAD);
            };
            if size[0] > MAX_ELEMENTS || size[1] > 65_536 {
                return Err(BAD);
            }
            let levels = vec![Level { base: r.address, size, pitch, slice: 0, tiles: None }];
            let channels = u64::from(r.channels);
            Ok(Object {
                levels,
                channel,
                bytes,
                channels,
                in_memory: true,
                layered: false,
                cube: false,
                sampler: None,
                owner: None,
            })
        }
        _ => Err(BAD),
    }
}

/// What a texture sees, or a surface, without sampling.
pub(crate) fn object(resource: &Resource, sampling: Option<&Sampling>) -> Res<Object> {
    let mut object = object_for_kernels(resource)?;
    match sampling {
        Some(s) => {
            let mut how = sampler(s, object.channel, object.bytes)?;
            if object.cube {
                // Directions have no other measure, and nothing lies beyond the edges of a face.
                (how.normalized, how.outside) = (true, [Outside::Clamp; 3]);
            }
            object.sampler = Some(how);
        }
        None if resource.kind != OF_ARRAY => return Err(BAD),
        None if object.cube => return Err(UNSUPPORTED),
        None => {}
    }
    Ok(object)
}

/// Creates a texture object, or a surface object without sampling. Returns its number.
pub(crate) fn create(live: &Live, made: Made) -> Res<u64> {
    let object = object(&made.resource, made.sampling.as_ref())?;
    if made.view.is_some() {
        // A view as another format is not carried out here.
        return Err(UNSUPPORTED);
    }
    let mut all = lock(&OBJECTS);
    let here = all.entry(live.number).or_default();
    let number = (1..).find(|n| !here.made.contains_key(n)).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    here.made.insert(number, made);
    let objects = Arc::make_mut(&mut here.objects);
    let group = if made.sampling.is_some() { &mut objects.textures } else { &mut objects.surfaces };
    group.insert(number, Arc::new(object));
    Ok(number)
}

/// An object as it was described.
pub(crate) fn find(live: &Live, number: u64, surface: bool) -> Res<Made> {
    let made = lock(&OBJECTS).get(&live.number).and_then(|o| o.made.get(&number)).copied();
    made.filter(|m| m.sampling.is_none() == surface).ok_or(BAD)
}

/// Destroys an object; an unknown number is not an error, as on hardware.
pub(crate) fn destroy(live: &Live, number: u64, surface: bool) {
    if find(live, number, surface).is_err() {
        return;
    }
    if let Some(here) = lock(&OBJECTS).get_mut(&live.number) {
        here.made.remove(&number);
        let objects = Arc::make_mut(&mut here.objects);
        let group = if surface { &mut objects.surfaces } else { &mut objects.textures };
        group.remove(&number);
    }
}
