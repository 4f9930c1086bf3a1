//! The job's handles: which are live, on which device, and what the recorder knows about each.

use crate::objects::arrays::{ArrayData, MipmapData};
use crate::objects::events::EventData;
use crate::objects::function::FunctionData;
use crate::objects::instances::InstanceData;
use crate::objects::references::ReferenceData;
use crate::objects::streams::StreamData;
use crate::objects::table::{EVERY_DEVICE, Known, Slot, Table};
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;

/// Data of kinds about which the recorder needs no more.
#[derive(Debug, Default)]
pub(crate) struct Nothing;

impl Known for Nothing {
    fn forget(&self) {}
}

/// All handles of the job.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) streams: Table<StreamData>,
    pub(crate) events: Table<EventData>,
    pub(crate) modules: Table<Nothing>,
    pub(crate) libraries: Table<Nothing>,
    pub(crate) functions: Table<FunctionData>,
    pub(crate) kernels: Table<FunctionData>,
    pub(crate) instances: Table<InstanceData>,
    pub(crate) arrays: Table<ArrayData>,
    pub(crate) mipmaps: Table<MipmapData>,
    pub(crate) objects: Table<Nothing>,
    /// Texture references.
    pub(crate) textures: Table<ReferenceData>,
    /// Surface references.
    pub(crate) surfaces: Table<ReferenceData>,
}

impl Tables {
    pub(crate) fn new() -> Self {
        Tables {
            streams: Table::new(Kind::Stream),
            events: Table::new(Kind::Event),
            modules: Table::new(Kind::Module),
            libraries: Table::new(Kind::Library),
            functions: Table::new(Kind::Function),
            kernels: Table::new(Kind::Kernel),
            instances: Table::new(Kind::GraphExec),
            arrays: Table::new(Kind::Array),
            mipmaps: Table::new(Kind::Mipmap),
            objects: Table::new(Kind::Object),
            textures: Table::new(Kind::TextureRef),
            surfaces: Table::new(Kind::SurfaceRef),
        }
    }

    /// Creates a handle of any kind except contexts.
    pub(crate) fn make(&self, kind: Kind, device: u32, context: u64) -> Result<u64, Code> {
        match kind {
            Kind::Stream => self.streams.make(device, context),
            Kind::Event => self.events.make(device, context),
            Kind::Module => self.modules.make(device, context),
            Kind::Library => self.libraries.make(EVERY_DEVICE, context),
            Kind::Function => self.functions.make(device, context),
            Kind::Kernel => self.kernels.make(EVERY_DEVICE, context),
            Kind::GraphExec => self.instances.make(device, context),
            Kind::Array => self.arrays.make(device, context),
            Kind::Mipmap => self.mipmaps.make(device, context),
            Kind::Object => self.objects.make(device, context),
            Kind::TextureRef => self.textures.make(device, context),
            Kind::SurfaceRef => self.surfaces.make(device, context),
            Kind::Context
            | Kind::GreenContext
            | Kind::Graph
            | Kind::GraphNode
            | Kind::UserObject
            | Kind::Pool
            | Kind::Physical => Err(code::ERROR_INVALID_HANDLE),
        }
    }

    /// Device of a live handle of this kind.
    pub(crate) fn device(&self, kind: Kind, handle: u64) -> Result<u32, Code> {
        match kind {
            Kind::Stream => self.streams.get(handle).map(Slot::device),
            Kind::Event => self.events.get(handle).map(Slot::device),
            Kind::Module => self.modules.get(handle).map(Slot::device),
            Kind::Library => self.libraries.get(handle).map(Slot::device),
            Kind::Function => self.functions.get(handle).map(Slot::device),
            Kind::Kernel => self.kernels.get(handle).map(Slot::device),
            Kind::GraphExec => self.instances.get(handle).map(Slot::device),
            Kind::Array => self.arrays.get(handle).map(Slot::device),
            Kind::Mipmap => self.mipmaps.get(handle).map(Slot::device),
            Kind::Object => self.objects.get(handle).map(Slot::device),
            Kind::TextureRef => self.textures.get(handle).map(Slot::device),
            Kind::SurfaceRef => self.surfaces.get(handle).map(Slot::device),
            Kind::Graph | Kind::GraphNode | Kind::UserObject => Err(code::ERROR_INVALID_HANDLE),
            Kind::Context => Err(code::ERROR_INVALID_CONTEXT),
            Kind::GreenContext | Kind::Pool | Kind::Physical => Err(code::ERROR_INVALID_HANDLE),
        }
    }

    /// Removes a handle of any kind; functions and kernels are removed with their module or library (`children.rs`).
    pub(crate) fn end(&self, handle: u64) -> bool {
        match cuda_api::handle::kind(handle) {
            Some(Kind::Stream) => self.streams.end(handle),
            Some(Kind::Event) => self.events.end(handle),
            Some(Kind::Module) => self.modules.end(handle),
            Some(Kind::Library) => self.libraries.end(handle),
            Some(Kind::Function) => self.functions.end(handle),
            Some(Kind::Kernel) => self.kernels.end(handle),
            Some(Kind::GraphExec) => self.instances.end(handle),
            Some(Kind::Array) => self.arrays.end(handle),
            Some(Kind::Mipmap) => self.mipmaps.end(handle),
            Some(Kind::Object) => self.objects.end(handle),
            Some(Kind::TextureRef) => self.textures.end(handle),
            Some(Kind::SurfaceRef) => self.surfaces.end(handle),
            Some(
                Kind::Context
                | Kind::GreenContext
                | Kind::Graph
                | Kind::GraphNode
                | Kind::UserObject
                | Kind::Pool
                | Kind::Physical,
            )
            | None => false,
        }
    }

    /// The data of a function or kernel.
    pub(crate) fn function(&self, handle: u64) -> Result<&FunctionData, Code> {
        match cuda_api::handle::kind(handle) {
            Some(Kind::Kernel) => self.kernels.get(handle).map(|s| &s.data),
            Some(Kind::Function) => self.functions.get(handle).map(|s| &s.data),
            _ => Err(code::ERROR_INVALID_HANDLE),
        }
    }
}
