//! Texture and surface references: variables of a module that kernels name. Settings are kept as they are set
//! ([`cuda_model::reference`]); what the reference sees with them is put where launches look ([`super::texture::bind`]).

use super::graph_table::error;
use super::live::Live;
use super::table::Table;
use super::{array, context, lock, texture};
use crate::ptx;
use crate::result::Res;
use cuda_api::array::{OF_ARRAY, OF_MEMORY, OF_MIPMAP, OF_ROWS, Resource, SURFACE, Shape, channel};
use cuda_api::reference::Setting;
use cuda_api::sys::CUresult;
use cuda_model::reference::{ALIGNED, Reference as Kept};
use std::sync::{Arc, LazyLock, Mutex, Weak};

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Bytes of memory, at most. Hardware was seen to take 2^30 and more, and not 2^40: a texture has 2^28 elements of up to 16 bytes.
const MAX_BYTES: u64 = 1 << 32;
/// Elements of a row, rows, and bytes from row to row, at most (`CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_…`).
const MAX_IN_ROWS: [u64; 3] = [131_072, 65_000, 2_097_120];
/// Required alignment of the distance between rows.
const PITCH: u64 = 32;

/// References by handle.
static REFERENCES: LazyLock<Table<Reference>> = LazyLock::new(|| Table::new(15));

/// A reference.
pub(crate) struct Reference {
    pub handle: usize,
    live: Weak<Live>,
    kind: ptx::Reference,
    /// Its module and its address; none for one created by the program, which no kernel names.
    of_module: Option<(usize, u64)>,
    kept: Mutex<Kept>,
}

/// Creates a reference.
pub(crate) fn make(live: &Arc<Live>, kind: ptx::Reference, of_module: Option<(usize, u64)>) -> Arc<Reference> {
    let live = Arc::downgrade(live);
    REFERENCES.insert_with(|handle| Reference { handle, live, kind, of_module, kept: Mutex::default() })
}

/// The reference of a handle, in the current context.
pub(crate) fn resolve(handle: usize, kind: ptx::Reference) -> Res<(Arc<Reference>, Arc<Live>)> {
    let live = context::current()?;
    let found = REFERENCES.get(handle).filter(|r| r.kind == kind && std::ptr::eq(r.live.as_ptr(), Arc::as_ptr(&live)));
    Ok((found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?, live))
}

/// Whether a reference still exists.
pub(crate) fn is_alive(reference: &Reference) -> bool {
    REFERENCES.get(reference.handle).is_some()
}

/// Unbinds an array, or a mipmapped one, that was destroyed.
pub(crate) fn array_ended(handle: usize) {
    REFERENCES.each(|reference| {
        let mut kept = lock(&reference.kept);
        let sees = kept.resource.is_some_and(|r| matches!(r.kind, OF_ARRAY | OF_MIPMAP) && r.array == handle as u64);
        if sees && let Some(live) = reference.live.upgrade() {
            kept.resource = None;
            reference.show(&live, None);
        }
    });
}

/// `cuTexRefDestroy`
pub(crate) fn destroy(handle: usize) -> Res {
    let (reference, live) = resolve(handle, ptx::Reference::Texture)?;
    end(&live, &reference);
    Ok(())
}

/// Destroys a reference, with its module or by itself.
pub(crate) fn end(live: &Live, reference: &Reference) {
    REFERENCES.remove(reference.handle);
    reference.show(live, None);
}

/// Removes the references of a context that was destroyed.
pub(crate) fn end_context(live: &Arc<Live>) {
    REFERENCES.remove_if(|r| std::ptr::eq(r.live.as_ptr(), Arc::as_ptr(live)));
}

/// The array that a reference is bound to.
pub(crate) fn of_array(handle: usize, kind: ptx::Reference) -> Res<Resource> {
    let array = array::resolve(handle)?;
    if kind == ptx::Reference::Surface && array.shape.flags & SURFACE == 0 {
        return Err(BAD);
    }
    Ok(seen(OF_ARRAY, handle, &array.shape))
}

/// The mipmapped array that a reference is bound to.
pub(crate) fn of_mipmap(handle: usize) -> Res<Resource> {
    Ok(seen(OF_MIPMAP, handle, &array::resolve_mipmap(handle)?.levels[0].shape))
}

fn seen(kind: u32, handle: usize, shape: &Shape) -> Resource {
    Resource { kind, array: handle as u64, format: shape.format, channels: shape.channels, ..Resource::default() }
}

/// Whether hardware allows binding a reference to this memory, of any format.
fn check_memory(r: &Resource) -> Res {
    let element = channel(r.format).map_or(0, |(bytes, _)| bytes * u64::from(r.channels));
    let fits = match r.kind {
        OF_MEMORY => r.width <= MAX_BYTES,
        _ => {
            let inside = [r.width, r.height, r.pitch].iter().zip(MAX_IN_ROWS).all(|(n, most)| *n <= most);
            let apart = r.pitch.is_multiple_of(PITCH) && r.pitch > 0 && r.pitch >= r.width.saturating_mul(element);
            inside && apart && r.address.is_multiple_of(ALIGNED)
        }
    };
    if fits { Ok(()) } else { Err(BAD) }
}

/// The bound range of memory, from an aligned address on.
fn aligned(r: &Resource) -> Resource {
    let before = if r.kind == OF_MEMORY { r.address % ALIGNED } else { 0 };
    Resource { address: r.address - before, width: r.width.saturating_add(before), ..*r }
}

impl Reference {
    /// Its current settings.
    pub fn kept(&self) -> Kept {
        *lock(&self.kept)
    }

    /// Changes a setting.
    pub fn set(&self, live: &Live, setting: &Setting) -> Res {
        let mut kept = lock(&self.kept);
        let mut next = *kept;
        next.set(setting).map_err(error)?;
        if let Setting::Resource(r) = setting
            && matches!(r.kind, OF_MEMORY | OF_ROWS)
        {
            check_memory(r)?;
        }
        *kept = next;
        self.show(live, Some(&next));
        Ok(())
    }

    /// Binds it to memory. Returns the offset of the memory from the aligned start of the texture.
    pub fn see_memory(&self, live: &Live, address: u64, bytes: u64) -> Res<u64> {
        let [format, channels] = self.kept().format;
        let resource = Resource { kind: OF_MEMORY, address, format, channels, width: bytes, ..Resource::default() };
        self.set(live, &Setting::Resource(resource))?;
        Ok(address % ALIGNED)
    }

    /// Publishes its binding for launches. A binding of which no object could be created is ignored by kernels.
    fn show(&self, live: &Live, kept: Option<&Kept>) {
        let Some((_, address)) = self.of_module else { return };
        let surface = self.kind == ptx::Reference::Surface;
        let object = kept.and_then(|kept| {
            let [format, channels] = kept.format;
            let resource = Resource { format, channels, flags: 0, ..kept.resource? };
            // No memory is how a program takes it away.
            if resource.memory().is_some_and(|(_, bytes)| bytes == 0) {
                return None;
            }
            texture::object(&aligned(&resource), (!surface).then_some(&kept.sampling)).ok()
        });
        texture::bind(live, address, surface, object);
    }
}
