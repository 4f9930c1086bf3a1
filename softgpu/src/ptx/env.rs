//! What a launch needs from the driver: memory and services.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::texture::{Object, Objects};
use super::window::Ranges;

/// The memory and services of a launch. Cheap to create for every launch.
pub struct Env {
    /// Accessible memory. Every byte must stay mapped until the launch ends.
    pub ranges: Arc<Ranges>,
    /// Texture and surface objects.
    pub objects: Arc<Objects>,
    /// What texture and surface references were bound to when the kernel was launched, by their address.
    pub references: Arc<Objects>,
    /// Device `malloc` and `free`; its memory must lie within `ranges` from the start.
    pub heap: Arc<dyn DeviceHeap>,
    /// Receives the text of each device `printf` in one piece.
    pub output: Arc<Output>,
    /// Sets a condition of a graph; false: there is none with this handle.
    pub set_condition: fn(handle: u64, value: u32) -> bool,
    /// The launch ends with `Fault::Cancelled` soon after this turns true.
    pub cancel: Arc<AtomicBool>,
    /// Number of CPU threads for the CTAs, including the calling one.
    pub threads: usize,
    /// Frequency of `%clock` and `%clock64` (Hz).
    pub clock_hz: u64,
}

impl Env {
    /// The texture of a number.
    pub(crate) fn texture(&self, number: u64) -> Option<&Arc<Object>> {
        self.objects.textures.get(&number).or_else(|| self.references.textures.get(&number))
    }

    /// The surface of a number.
    pub(crate) fn surface(&self, number: u64) -> Option<&Arc<Object>> {
        self.objects.surfaces.get(&number).or_else(|| self.references.surfaces.get(&number))
    }
}

/// Receives the text of a device `printf`.
pub type Output = dyn Fn(&[u8]) + Send + Sync;

/// Memory for device `malloc`.
pub trait DeviceHeap: Send + Sync {
    /// Allocates `size` bytes, aligned to 16; returns 0 if there is no room.
    fn malloc(&self, size: u64) -> u64;
    /// Frees memory of `malloc`; false if `addr` is not such an address.
    fn free(&self, addr: u64) -> bool;
}
