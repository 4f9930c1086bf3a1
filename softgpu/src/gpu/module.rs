//! Modules, libraries, functions, kernels.
//!
//! A [`Library`] is code without a context. Its module in a context is created when it is loaded, if a context is then
//! current, otherwise on first use there; so addresses follow the order of loading, lazy or eager, as measured on
//! hardware.

use super::attributes::Attributes;
use super::live::Live;
use super::memory::{self, Kind};
use super::place::Room;
use super::reference::{self, Reference};
use super::table::Table;
use super::{allocation, code, context, host, lock, sched, texture, wait};
use crate::ptx::{self, FunctionInfo, GlobalVar, Image, Placement, Program};
use crate::result::Res;
use cuda_api::lock::write_lock;
use cuda_api::sys::{CUfunction, CUresult};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, LazyLock, Mutex, Weak};

/// Modules by handle.
pub(crate) static MODULES: LazyLock<Table<Module>> = LazyLock::new(|| Table::new(4));
/// Functions of modules by handle.
pub(crate) static FUNCTIONS: LazyLock<Table<Function>> = LazyLock::new(|| Table::new(5));
/// Libraries by handle.
pub(crate) static LIBRARIES: LazyLock<Table<Library>> = LazyLock::new(|| Table::new(6));
/// Kernels of libraries by handle.
pub(crate) static KERNELS: LazyLock<Table<Kernel>> = LazyLock::new(|| Table::new(7));

/// Code placed in a context: a module.
pub(crate) struct Module {
    pub handle: usize,
    live: Weak<Live>,
    /// Whether it belongs to a library, which alone may unload it.
    of_library: bool,
    pub program: Arc<Program>,
    room: Room,
    /// Where the code of its functions lies.
    code: Mutex<Vec<u64>>,
    /// Memory of its managed variables, unless its library owns it.
    managed: Vec<u64>,
    attributes: Vec<Arc<Attributes>>,
    /// Handles of functions that were requested, by index.
    functions: Mutex<HashMap<usize, Arc<Function>>>,
    /// Texture and surface references that were requested, by index of the variable.
    references: Mutex<HashMap<usize, Arc<Reference>>>,
}

/// A kernel in a module.
pub(crate) struct Function {
    pub handle: usize,
    live: Weak<Live>,
    pub module: usize,
    pub program: Arc<Program>,
    pub index: usize,
    pub name: CString,
    pub attributes: Arc<Attributes>,
}

/// Code without a context.
pub(crate) struct Library {
    pub handle: usize,
    image: Image,
    /// By number of the context.
    modules: Mutex<HashMap<u64, Arc<Module>>>,
    kernels: Mutex<HashMap<usize, Arc<Kernel>>>,
    /// Memory of its managed variables, which its modules share.
    managed: Vec<u64>,
    /// The attributes that programs have set for the kernels, by device.
    attributes: Mutex<HashMap<usize, Vec<Arc<Attributes>>>>,
}

/// A kernel of a library.
pub(crate) struct Kernel {
    pub handle: usize,
    library: Weak<Library>,
    pub index: usize,
    pub name: CString,
}

impl Function {
    /// The code's description of it.
    pub fn info(&self) -> &FunctionInfo {
        &self.program.image.functions[self.index]
    }

    /// Handle of the kernel in this context, if it was requested.
    pub fn kernel(&self) -> Option<usize> {
        let mut found = None;
        KERNELS.each(|kernel| {
            let library = kernel.library.upgrade();
            let ours = |l: Arc<Library>| lock(&l.modules).values().any(|m| m.handle == self.module);
            if kernel.index == self.index && library.is_some_and(ours) {
                found = Some(kernel.handle);
            }
        });
        found
    }

    /// Whether it can be launched in this context.
    pub fn belongs_to(&self, live: &Arc<Live>) -> bool {
        std::ptr::eq(self.live.as_ptr(), Arc::as_ptr(live))
    }
}

/// Indices of the kernels of an image, in its order.
pub(crate) fn kernels(image: &Image) -> Vec<usize> {
    (0..image.functions.len()).filter(|i| image.functions[*i].is_kernel).collect()
}

fn kernel_named(image: &Image, name: &str) -> Res<usize> {
    image.functions.iter().position(|f| f.is_kernel && f.name == name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
}

/// Parses code; errors are printed to stderr.
pub(crate) fn parse(text: &str) -> Res<Image> {
    parse_with_log(text, |_| {})
}

/// Parses code; errors are printed to stderr and written to `log`.
pub(crate) fn parse_with_log(text: &str, log: impl FnOnce(&str)) -> Res<Image> {
    let refused = |error, message: &str| {
        code::complain(message);
        log(message);
        Err(error)
    };
    if !text.contains(".version") {
        return refused(CUresult::CUDA_ERROR_INVALID_IMAGE, "the image is no PTX");
    }
    match Image::parse(text) {
        Ok(image) => Ok(image),
        Err(error) => refused(CUresult::CUDA_ERROR_INVALID_PTX, &error.to_string()),
    }
}

/// What a library has for its modules.
pub(crate) struct OfLibrary {
    attributes: Vec<Arc<Attributes>>,
    managed: Vec<u64>,
}

/// Places code in a context. Waits for running kernels, as the real driver does.
pub(crate) fn load(live: &Arc<Live>, image: Image, library: Option<OfLibrary>) -> Res<Arc<Module>> {
    {
        let _no_launches = write_lock(&live.loading);
        wait::synchronise(live)?;
    }
    if image.uses_heap {
        allocation::heap(live)?;
    }
    let (attributes, of_library) = match library {
        Some(library) => (library.attributes, Some(library.managed)),
        None => (Attributes::fresh(&image), None),
    };
    let plain = image.globals.iter().filter(|global| !global.managed);
    let variables: Vec<(u64, u64)> = plain.map(|global| (global.size.max(1), global.align.max(1))).collect();
    let room = lock(&live.place).take(&live.device, &variables)?;
    let own = match of_library {
        Some(_) => Vec::new(),
        None => make_managed(Some(live), &image).inspect_err(|_| lock(&live.place).leave(&room))?,
    };
    let (mut plain, mut shared) = (room.addresses.iter(), of_library.as_ref().unwrap_or(&own).iter());
    let place = |global: &GlobalVar| if global.managed { shared.next() } else { plain.next() }.copied().unwrap_or(0);
    let globals: Vec<u64> = image.globals.iter().map(place).collect();
    let program = Program::link(image, Placement { globals });
    {
        let mut memory = memory::write();
        for (index, global) in program.image.globals.iter().enumerate().filter(|(_, g)| g.size > 0 && !g.managed) {
            let (address, size) = (program.placement.globals[index], global.size);
            let bytes = program.init_bytes(index);
            let len = bytes.len().min(size as usize);
            // SAFETY: the driver has just taken this room, of `size` bytes, for this variable.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, len) };
            memory.add(address, size, Kind::Variable, live.device.ordinal as usize, Some(live));
        }
    }
    let module = MODULES.insert_with(|handle| Module {
        handle,
        live: Arc::downgrade(live),
        of_library: of_library.is_some(),
        program,
        room,
        code: Mutex::default(),
        managed: own,
        attributes,
        functions: Mutex::default(),
        references: Mutex::default(),
    });
    for (address, kind) in module.all_references() {
        texture::bind(live, address, kind == ptx::Reference::Surface, None);
    }
    Ok(module)
}

/// Allocates memory for the managed variables of an image. No compiler uses addresses as their initial values.
fn make_managed(live: Option<&Live>, image: &Image) -> Res<Vec<u64>> {
    let mut made = Vec::new();
    for global in image.globals.iter().filter(|global| global.managed) {
        made.push(host::allocate_variable(live, &global.init).inspect_err(|_| host::release_variables(&made))?);
    }
    Ok(made)
}

/// The module of a handle, in the current context.
pub(crate) fn resolve(handle: usize) -> Res<(Arc<Module>, Arc<Live>)> {
    let live = context::current()?;
    let module = MODULES.get(handle).filter(|m| m.belongs_to(&live)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    Ok((module, live))
}

/// `cuModuleUnload`: waits for running kernels. A library's module goes with its library.
pub(crate) fn unload(handle: usize) -> Res {
    let (module, live) = resolve(handle)?;
    if module.of_library {
        return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    wait::synchronise(&live)?;
    module.remove(&live);
    Ok(())
}

impl Module {
    fn belongs_to(&self, live: &Arc<Live>) -> bool {
        std::ptr::eq(self.live.as_ptr(), Arc::as_ptr(live))
    }

    fn remove(&self, live: &Arc<Live>) {
        if MODULES.remove(self.handle).is_none() {
            return;
        }
        FUNCTIONS.remove_if(|function| function.module == self.handle);
        lock(&self.references).values().for_each(|r| reference::end(live, r));
        for (address, kind) in self.all_references() {
            texture::unbind(live, address, kind == ptx::Reference::Surface);
        }
        {
            let mut memory = memory::write();
            for (global, address) in self.program.image.globals.iter().zip(&self.program.placement.globals) {
                if global.size > 0 && !global.managed {
                    memory.remove(*address);
                }
            }
        }
        host::release_variables(&self.managed);
        {
            let mut place = lock(&live.place);
            place.leave(&self.room);
            lock(&self.code).drain(..).for_each(|code| place.leave_function(code));
        }
    }

    /// A kernel by index.
    pub fn function(&self, index: usize) -> Arc<Function> {
        let mut functions = lock(&self.functions);
        let made = functions.entry(index).or_insert_with(|| {
            self.place_code(index);
            FUNCTIONS.insert_with(|handle| Function {
                handle,
                live: self.live.clone(),
                module: self.handle,
                program: self.program.clone(),
                index,
                name: c_name(&self.program.image, index),
                attributes: self.attributes[index].clone(),
            })
        });
        made.clone()
    }

    /// Places the code of a function, as a driver that loads lazily does when the function is looked up.
    fn place_code(&self, index: usize) {
        let Some(live) = self.live.upgrade() else { return };
        let bytes = self.program.code.bytes_of(index).max(1);
        // Without room the launch would fail on a driver; here the code is in the process anyway.
        lock(&self.code).extend(lock(&live.place).take_function(&live.device, bytes).ok());
    }

    /// A kernel by name.
    pub fn function_named(&self, name: &str) -> Res<Arc<Function>> {
        Ok(self.function(kernel_named(&self.program.image, name)?))
    }

    /// Address and size of a variable.
    pub fn variable(&self, name: &str) -> Res<(u64, u64)> {
        if self.program.image.globals.iter().any(|g| g.name == name && g.reference.is_some()) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let index = self.global(name, None)?;
        Ok((self.program.placement.globals[index], self.program.image.globals[index].size))
    }

    /// Index of a variable of this kind.
    fn global(&self, name: &str, kind: Option<ptx::Reference>) -> Res<usize> {
        let mut globals = self.program.image.globals.iter();
        globals.position(|g| g.name == name && g.reference == kind).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }

    /// Address and kind of each texture or surface reference.
    fn all_references(&self) -> impl Iterator<Item = (u64, ptx::Reference)> {
        let globals = self.program.image.globals.iter().zip(&self.program.placement.globals);
        globals.filter_map(|(global, address)| Some((*address, global.reference?)))
    }

    /// A texture or surface reference by name. One that was destroyed by itself is not found any more, as on hardware.
    pub fn reference(&self, live: &Arc<Live>, name: &str, kind: ptx::Reference) -> Res<Arc<Reference>> {
        let index = self.global(name, Some(kind))?;
        let mut references = lock(&self.references);
        let address = self.program.placement.globals[index];
        let made = references.entry(index).or_insert_with(|| reference::make(live, kind, Some((self.handle, address))));
        if reference::is_alive(made) { Ok(made.clone()) } else { Err(CUresult::CUDA_ERROR_NOT_FOUND) }
    }
}

fn c_name(image: &Image, index: usize) -> CString {
    // PTX names have no NUL in them.
    CString::new(image.functions[index].name.as_str()).unwrap_or_default()
}

/// Removes the modules of a context that was destroyed.
pub(crate) fn end_context(live: &Arc<Live>) {
    FUNCTIONS.remove_if(|function| function.belongs_to(live));
    reference::end_context(live);
    MODULES.remove_if(|module| module.belongs_to(live));
    LIBRARIES.each(|library| drop(lock(&library.modules).remove(&live.number)));
}

/// `cuLibraryLoadData`.
pub(crate) fn load_library(image: Image) -> Res<Arc<Library>> {
    let managed = make_managed(None, &image)?;
    let library = LIBRARIES.insert_with(|handle| Library {
        handle,
        image,
        managed,
        modules: Mutex::default(),
        kernels: Mutex::default(),
        attributes: Mutex::default(),
    });
    // A context that has failed, or none: the module is made later, or never.
    if let Ok(live) = context::current()
        && let Err(error) = library.module(&live)
    {
        LIBRARIES.remove(library.handle);
        host::release_variables(&library.managed);
        return Err(error);
    }
    Ok(library)
}

/// The library of a handle.
pub(crate) fn resolve_library(handle: usize) -> Res<Arc<Library>> {
    LIBRARIES.get(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// `cuLibraryUnload`: its modules go from every context, after their work.
pub(crate) fn unload_library(handle: usize) -> Res {
    let library = LIBRARIES.remove(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    KERNELS.remove_if(|kernel| std::ptr::eq(kernel.library.as_ptr(), Arc::as_ptr(&library)));
    for module in std::mem::take(&mut *lock(&library.modules)).into_values() {
        if let Some(live) = module.live.upgrade() {
            sched::wait(&wait::outstanding(&live));
            module.remove(&live);
        }
    }
    host::release_variables(&library.managed);
    Ok(())
}

impl Library {
    /// Indices of its kernels.
    pub fn kernels(&self) -> Vec<usize> {
        kernels(&self.image)
    }

    /// Address and size of a managed variable.
    pub fn managed(&self, name: &str) -> Res<(u64, u64)> {
        let mut all = self.image.globals.iter().filter(|g| g.managed).zip(&self.managed);
        let found = all.find(|(global, _)| global.name == name);
        found.map(|(global, address)| (*address, global.size)).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }

    /// Its module in a context.
    pub fn module(&self, live: &Arc<Live>) -> Res<Arc<Module>> {
        let mut modules = lock(&self.modules);
        if let Some(module) = modules.get(&live.number) {
            return Ok(module.clone());
        }
        let attributes = self.attributes_on(live.device.ordinal as usize);
        let module = load(live, self.image.clone(), Some(OfLibrary { attributes, managed: self.managed.clone() }))?;
        modules.insert(live.number, module.clone());
        Ok(module)
    }

    fn attributes_on(&self, device: usize) -> Vec<Arc<Attributes>> {
        lock(&self.attributes).entry(device).or_insert_with(|| Attributes::fresh(&self.image)).clone()
    }

    /// A kernel by index.
    pub fn kernel(self: &Arc<Self>, index: usize) -> Arc<Kernel> {
        let mut kernels = lock(&self.kernels);
        let made = kernels.entry(index).or_insert_with(|| {
            let (library, name) = (Arc::downgrade(self), c_name(&self.image, index));
            KERNELS.insert_with(|handle| Kernel { handle, library, index, name })
        });
        made.clone()
    }

    /// A kernel by name.
    pub fn kernel_named(self: &Arc<Self>, name: &str) -> Res<Arc<Kernel>> {
        Ok(self.kernel(kernel_named(&self.image, name)?))
    }

    /// The code's description of a kernel.
    pub fn info(&self, index: usize) -> &FunctionInfo {
        &self.image.functions[index]
    }
}

/// The kernel of a handle.
pub(crate) fn resolve_kernel(handle: usize) -> Res<(Arc<Kernel>, Arc<Library>)> {
    let kernel = KERNELS.get(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let library = kernel.library.upgrade().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    Ok((kernel, library))
}

impl Kernel {
    /// The attributes that programs have set for it on a device.
    pub fn attributes(&self, library: &Library, device: usize) -> Arc<Attributes> {
        library.attributes_on(device)[self.index].clone()
    }
}

/// The function that a handle means in the current context: a `CUfunction`, or a `CUkernel`, which callers may pass for it.
pub(crate) fn resolve_function(handle: CUfunction) -> Res<(Arc<Function>, Arc<Live>)> {
    let handle = handle as usize;
    let live = context::current()?;
    if let Some(function) = FUNCTIONS.get(handle) {
        return if function.belongs_to(&live) { Ok((function, live)) } else { Err(CUresult::CUDA_ERROR_INVALID_HANDLE) };
    }
    let (kernel, library) = resolve_kernel(handle)?;
    Ok((library.module(&live)?.function(kernel.index), live))
}
