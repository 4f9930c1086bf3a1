//! Modules and libraries: images, loading in order, variables and their addresses, first use of functions.

use super::checker::check_options;
use super::globals::Global;
use super::own::{find_heap, grow_local};
use super::state::modules::{Heap, Kept, Modules, Unit};
use super::{ContextState, Executor, short};
use crate::gpu::graphs::NodeParams;
use crate::limits::{MAX_IMAGES, report_once};
use crate::steer::Placing;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, kind, slot};
use cuda_api::lock::lock;
use cuda_api::ops::{CodeFacts, FunctionInfo, ImageLoad, ImageLoaded, ImagePut, MAX_PARAM_BYTES, PlacedVariable, Variable};
use cuda_api::sys::{CUfunction_attribute_enum as F, CUlimit_enum};
use cuda_api::wire::Wire;
use cuda_api::work::Kernel;
use cuda_image::{Image, LoadForm};
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Size of the buffer for each of the compiler's and the linker's logs.
pub(super) const LOG: usize = 16 << 10;
/// `CU_JIT_ERROR_LOG_BUFFER`, `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;
/// Errors that the log explains: such a load is repeated with a log.
const EXPLAINED: [Code; 4] =
    [code::ERROR_INVALID_IMAGE, code::ERROR_NO_BINARY_FOR_GPU, code::ERROR_INVALID_PTX, code::ERROR_UNSUPPORTED_PTX_VERSION];
/// Maximum number of options, more than exist.
const MAX_OPTIONS: usize = 64;
/// Local memory that a context has from the start: its default stack, in bytes per thread.
const DEFAULT_LOCAL: u32 = 1024;

/// Tags the size of the parameters as that of the function that has this handle now.
fn param_tag(handle: u64) -> u64 {
    1 << 63 | (handle >> 30 & 0x3ffff) << 32
}

/// The text that the compiler has written, if any.
fn log_text(log: &[u8]) -> &[u8] {
    log.split(|b| *b == 0).next().unwrap_or_default()
}

impl Executor {
    /// Keeps an image for later loads, as the op that carries the image's bytes does, without copying them.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn keep_image(&self, image: &Image) -> Result<(), Code> {
        let hash = image.hash();
        if self.has_room_for(&hash, image.bytes.len() as u64)? {
            self.insert_image(hash, image.clone());
        }
        Ok(())
    }

    pub(super) fn put_image(&self, mut body: &[u8]) -> Result<(), Code> {
        let head = ImagePut::get(&mut body).map_err(short)?;
        let kind = cuda_image::Kind::from_code(head.kind).ok_or(code::ERROR_INVALID_IMAGE)?;
        // Checked before the bytes are copied.
        if !self.has_room_for(&head.hash, body.len() as u64)? {
            return Ok(());
        }
        let image = Image::from_bytes(kind, body.into()).map_err(|_| code::ERROR_INVALID_IMAGE)?;
        if image.hash() != head.hash {
            return Err(code::ERROR_INVALID_IMAGE);
        }
        self.insert_image(head.hash, image);
        Ok(())
    }

    /// Returns false if an image with this hash is kept already.
    fn has_room_for(&self, hash: &[u8; 32], bytes: u64) -> Result<bool, Code> {
        let (limits, modules) = (self.limits(), lock(&self.modules));
        if modules.images.contains_key(hash) {
            return Ok(false);
        }
        if modules.bytes.load(Ordering::Relaxed).saturating_add(bytes) > limits.images || modules.images.len() >= MAX_IMAGES {
            report_once(&modules.reported, "module images", limits.images, "--max-images");
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        Ok(true)
    }

    fn insert_image(&self, hash: [u8; 32], image: Image) {
        let (most, bytes) = (self.limits().images, image.bytes.len() as u64);
        let mut modules = lock(&self.modules);
        modules.bytes.fetch_add(bytes, Ordering::Relaxed);
        let kept = Kept { image, bytes, all: modules.bytes.clone(), most, capability: self.device.sm(), index: OnceLock::new() };
        modules.images.insert(hash, Arc::new(kept));
    }

    pub(super) fn load_image(&self, life: &ContextState, mut body: &[u8], reply: &mut Vec<u8>) -> Result<(), Code> {
        let op = ImageLoad::get(&mut body).map_err(short)?;
        let wanted = if op.library { Kind::Library } else { Kind::Module };
        if kind(op.handle) != Some(wanted) {
            return Err(code::ERROR_INVALID_HANDLE);
        }
        self.end_spare_instances();
        let mut modules = lock(&self.modules);
        let had_heap = modules.has_heap();
        let loaded = self.load_unit(life, &mut modules, &op, reply);
        match loaded {
            Ok(unit) => {
                self.bindings.bind(op.handle, unit.live);
                let variables = u32::try_from(unit.globals.len()).unwrap_or(u32::MAX);
                modules.units.push(unit);
                let facts = if op.describe { self.code_facts(&modules) } else { CodeFacts::default() };
                ImageLoaded { made_heap: modules.has_heap() && !had_heap, variables, facts }.put(reply);
                Ok(())
            }
            Err(rc) => {
                self.bindings.bind_failed(op.handle, rc);
                Err(rc)
            }
        }
    }

    fn load_unit(&self, life: &ContextState, modules: &mut Modules, op: &ImageLoad, reply: &mut Vec<u8>) -> Result<Unit, Code> {
        let kept = modules.images.get(&op.hash).cloned().ok_or(code::ERROR_INVALID_IMAGE)?;
        if kept.index().too_large {
            // The driver would decompress it too, without a limit.
            report_once(&modules.reported, "decompressed code of one image", kept.most, "--max-images");
            return Err(code::ERROR_INVALID_IMAGE);
        }
        if kept.index().managed {
            // The host's memory would not be used at their addresses: the recorder changes such code, and loads the result.
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        if kept.index().uses_device_heap {
            self.hold_heap(modules)?;
            self.prepare_heap(life, modules);
        }
        if kept.index().prints {
            self.can_print.store(true, Ordering::Relaxed);
        }
        let form = if op.library { None } else { kept.image.module_form().map_err(|_| code::ERROR_INVALID_IMAGE)? };
        let (as_module, form) = match form {
            Some(form) => (true, form),
            None => (false, kept.image.load_form().map_err(|_| code::ERROR_INVALID_IMAGE)?),
        };
        if op.options.len() > MAX_OPTIONS {
            return Err(code::ERROR_INVALID_VALUE);
        }
        check_options(&op.options)?;
        faults::at(faults::Point::Load);
        let _placing = Placing::enter(self.virtual_device);
        let loaded = self.load_form(&form, as_module, &op.options, None).or_else(|rc| {
            if !EXPLAINED.contains(&rc) {
                return Err(rc);
            }
            let mut log = vec![0u8; LOG];
            self.load_form(&form, as_module, &op.options, Some(&mut log)).inspect_err(|_| reply.extend_from_slice(log_text(&log)))
        })?;
        let make = || -> Result<Unit, Code> {
            let lends = !op.library && !as_module;
            let (live, lender) = if lends { (self.gpu.library_module(loaded)?, Some(loaded)) } else { (loaded, None) };
            let mut unit = Unit {
                handle: op.handle,
                live,
                library: op.library,
                lender,
                kept: kept.clone(),
                globals: Vec::new(),
                _held: None,
            };
            unit.globals = self.place(&unit)?;
            unit._held = Some(self.memory.hold(unit.globals.iter().fold(0, |sum, global| sum.saturating_add(global.bytes)))?);
            Ok(unit)
        };
        make().inspect_err(|_| {
            // The first error is reported.
            let _ = if as_module { self.gpu.unload_module(loaded) } else { self.gpu.unload_library(loaded) };
        })
    }

    /// Makes the driver load an image, with a buffer for its log or without: the first attempt has no option that a native load would not
    /// have, so that the driver finds its cached compilation.
    fn load_form(&self, form: &LoadForm, as_module: bool, options: &[(u32, u64)], log: Option<&mut [u8]>) -> Result<u64, Code> {
        // The driver takes options as an array of keys and one of pointer-sized values.
        let (mut keys, mut values): (Vec<u32>, Vec<*mut c_void>) =
            options.iter().map(|(key, value)| (*key, std::ptr::without_provenance_mut(*value as usize))).unzip();
        if let Some(log) = log {
            keys.extend([ERROR_LOG, ERROR_LOG_SIZE]);
            values.extend([log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len().saturating_sub(1))]);
        }
        // SAFETY: a checked image that lives across the call; the log's buffer and size agree; other options are numbers.
        unsafe {
            if as_module {
                self.gpu.load_module(form.as_ptr(), &mut keys, &mut values)
            } else {
                self.gpu.load_library(form.as_ptr(), &mut keys, &mut values)
            }
        }
    }

    /// The driver's library that owns a module.
    pub(super) fn lender(&self, module: u64) -> Option<u64> {
        lock(&self.modules).units.iter().find(|u| u.handle == module)?.lender
    }

    /// Drops an image from which nothing will be loaded any more. What was loaded from it stays.
    pub(super) fn end_image(&self, mut body: &[u8]) -> Result<(), Code> {
        let hash = <[u8; 32]>::get(&mut body).map_err(short)?;
        lock(&self.modules).images.remove(&hash);
        Ok(())
    }

    /// Makes the context create its heap, whatever is loaded.
    pub(super) fn make_heap(&self, life: &ContextState) -> Result<(), Code> {
        self.end_spare_instances();
        let mut modules = lock(&self.modules);
        self.hold_heap(&mut modules)?;
        self.prepare_heap(life, &mut modules);
        if let Heap::Unknown(rc) = modules.heap { Err(rc) } else { Ok(()) }
    }

    /// Makes the context provide this amount of local memory.
    pub(super) fn provide_local(&self, life: &ContextState, mut body: &[u8]) -> Result<(), Code> {
        let bytes = u32::get(&mut body).map_err(short)?;
        self.end_spare_instances();
        self.need_local(life, &mut lock(&self.modules), bytes);
        Ok(())
    }

    /// Returns the amount of local memory that the context had to provide because a function needs it, or 0.
    fn need_local(&self, life: &ContextState, modules: &mut Modules, bytes: u32) -> u32 {
        if bytes <= modules.local.max(DEFAULT_LOCAL) {
            return 0;
        }
        // If there is no memory for it, the launch reports that.
        let _ = grow_local(&self.gpu, self.virtual_device, bytes, life.lanes[0]);
        modules.local = bytes;
        bytes
    }

    /// Counts the device heap as used memory, before it is made.
    fn hold_heap(&self, modules: &mut Modules) -> Result<(), Code> {
        if modules.held_heap.is_none() {
            let bytes = self.gpu.limit(CUlimit_enum::CU_LIMIT_MALLOC_HEAP_SIZE)?;
            modules.held_heap = Some(self.memory.hold(bytes)?);
        }
        Ok(())
    }

    /// Called before the first code that allocates, which is the executor's own.
    fn prepare_heap(&self, life: &ContextState, modules: &mut Modules) {
        if !modules.has_heap() {
            modules.heap = match find_heap(&self.gpu, self.virtual_device, life.lanes[0]) {
                Ok((address, bytes)) => Heap::At(address, bytes),
                // The job continues; only a move needs the heap's address.
                Err(rc) => Heap::Unknown(rc),
            };
        }
    }

    /// Places the libraries, which survive a reset, in the new context, in their order. Returns whether that has created the heap.
    pub(super) fn place_libraries(&self, life: &ContextState) -> Result<bool, Code> {
        let mut modules = lock(&self.modules);
        for i in 0..modules.units.len() {
            if modules.units[i].kept.index().uses_device_heap {
                self.prepare_heap(life, &mut modules);
            }
            modules.units[i].globals = self.place(&modules.units[i])?;
        }
        Ok(modules.has_heap())
    }

    /// Makes the driver place a module or library now, at this point of the journal, and queries the address of every variable. A library
    /// would otherwise be placed by the first call that happens to use it.
    fn place(&self, unit: &Unit) -> Result<Vec<Global>, Code> {
        let index = unit.kept.index();
        if unit.library && index.globals.is_empty() {
            for name in index.kernels.keys() {
                let Ok(name) = CString::new(name.as_str()) else { continue };
                match self.gpu.kernel(unit.live, &name).and_then(|k| self.gpu.kernel_function(k)) {
                    Ok(_) => break,
                    Err(code::ERROR_NOT_FOUND) => {}
                    Err(rc) => return Err(rc),
                }
            }
        }
        let mut found = Vec::new();
        for name in &index.globals {
            let Ok(c_name) = CString::new(name.as_str()) else { continue };
            match self.gpu.variable(unit.live, unit.library, &c_name) {
                Ok((address, bytes)) if bytes > 0 => {
                    found.push(Global { module: unit.handle, name: name.clone(), address, bytes })
                }
                // Optimised away, or only in code for another GPU.
                Ok(_) | Err(code::ERROR_NOT_FOUND) => {}
                Err(rc) => return Err(rc),
            }
        }
        Ok(found)
    }

    /// Notes that a module or library was unloaded.
    pub(super) fn unit_ended(&self, handle: u64) {
        if matches!(kind(handle), Some(Kind::Module | Kind::Library)) {
            let mut modules = lock(&self.modules);
            modules.units.retain(|u| u.handle != handle);
            let mut ended = vec![handle];
            while let Some(one) = ended.pop() {
                self.bindings.unbind(one);
                lock(&self.layouts).remove(&one);
                ended.extend(modules.parts.remove(&one).unwrap_or_default());
            }
        }
    }

    /// Notes that something was obtained from a module, a library or a kernel, with which it is destroyed.
    pub(super) fn part_made(&self, of: u64, made: u64) {
        if matches!(kind(made), Some(Kind::Function | Kind::Kernel)) {
            // The cached values are those of the handle's previous owner.
            self.param_cell(made).store(0, Ordering::Relaxed);
            lock(&self.layouts).remove(&made);
        }
        lock(&self.modules).parts.entry(of).or_default().push(made);
    }

    /// Variables of all loaded modules and libraries, in the order of loading.
    pub fn globals(&self) -> Result<Vec<Global>, Code> {
        self.make_current()?;
        Ok(lock(&self.modules).units.iter().flat_map(|u| u.globals.iter().cloned()).collect())
    }

    /// Address and size of each variable of loaded code: [`Executor::globals`] without their names.
    pub fn variables(&self) -> Result<Vec<(u64, u64)>, Code> {
        self.make_current()?;
        Ok(lock(&self.modules).units.iter().flat_map(|u| u.globals.iter().map(|g| (g.address, g.bytes))).collect())
    }

    /// The variable that contains an address.
    pub(super) fn variable_around(&self, address: u64) -> Result<Variable, Code> {
        let modules = lock(&self.modules);
        let mut all = modules.units.iter().flat_map(|u| &u.globals);
        let found = all.find(|g| address.checked_sub(g.address).is_some_and(|at| at < g.bytes.max(1)));
        let g = found.ok_or(code::ERROR_NOT_FOUND)?;
        Ok(Variable { module: g.module, start: g.address, bytes: g.bytes })
    }

    /// Returns whether bytes lie in a variable of loaded code.
    pub(super) fn is_in_variable(&self, address: u64, bytes: u64) -> bool {
        let inside = |g: &Global| address.checked_sub(g.address).is_some_and(|at| at <= g.bytes && bytes <= g.bytes - at);
        lock(&self.modules).units.iter().flat_map(|u| &u.globals).any(inside)
    }

    /// Address and size of the variables of loaded code and of the device heap, by address.
    pub(super) fn code_ranges(&self) -> Vec<(u64, u64)> {
        let modules = lock(&self.modules);
        let mut all: Vec<(u64, u64)> =
            modules.units.iter().flat_map(|u| u.globals.iter().map(|g| (g.address, g.bytes))).collect();
        if let Heap::At(address, bytes) = modules.heap {
            all.push((address, bytes));
        }
        all.sort_unstable();
        // Symbols may overlap: a range that begins inside another one must not hide what lies behind it.
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (address, bytes) in all {
            match merged.last_mut() {
                Some((start, len)) if address <= *start + *len => *len = (*len).max(address + bytes - *start),
                _ => merged.push((address, bytes)),
            }
        }
        merged
    }

    /// Address and size of the device heap, if the context has one. It may have blocks in use after the code that allocated them is
    /// unloaded.
    ///
    /// # Errors
    /// There is one, and its address could not be found.
    pub fn heap(&self) -> Result<Option<(u64, u64)>, Code> {
        match lock(&self.modules).heap {
            Heap::Unused => Ok(None),
            Heap::At(address, bytes) => Ok(Some((address, bytes))),
            Heap::Unknown(rc) => Err(rc),
        }
    }

    /// Names of the kernels of a library or of the functions of a module.
    pub(super) fn kernel_names(&self, handle: u64) -> Result<Vec<String>, Code> {
        if kind(handle) == Some(Kind::Library) {
            let kernels = self.gpu.library_kernels(self.bindings.live(Kind::Library, handle)?)?;
            return kernels.into_iter().map(|k| self.gpu.kernel_name(k)).collect();
        }
        let functions = self.gpu.module_functions(self.bindings.live(Kind::Module, handle)?)?;
        functions.into_iter().map(|f| self.gpu.function_name(f)).collect()
    }

    /// Offset and size of each parameter of a function, given by the driver's handle.
    fn layout(&self, function: u64) -> Result<Vec<(u32, u32)>, Code> {
        let mut params = Vec::new();
        loop {
            match self.gpu.function_param(function, params.len()) {
                Ok(param) if params.len() < MAX_PARAM_BYTES => params.push(param),
                Ok(_) => return Err(code::ERROR_UNKNOWN),
                Err(code::ERROR_INVALID_VALUE) => return Ok(params),
                Err(rc) => return Err(rc),
            }
        }
    }

    /// Total size of the parameters of a function or kernel with the driver's handle `live`: a driver reads that many bytes at a launch.
    #[inline]
    pub(super) fn param_bytes(&self, handle: u64, live: u64) -> Result<usize, Code> {
        let known = self.param_cell(handle).load(Ordering::Relaxed);
        if known & !u64::from(u32::MAX) == param_tag(handle) {
            return Ok(known as u32 as usize);
        }
        let function = if kind(handle) == Some(Kind::Kernel) { self.gpu.kernel_function(live)? } else { live };
        Ok(self.note_params(handle, &self.layout(function)?))
    }

    fn param_cell(&self, handle: u64) -> &AtomicU64 {
        self.params[usize::from(kind(handle) == Some(Kind::Kernel))].at(slot(handle))
    }

    fn note_params(&self, handle: u64, layout: &[(u32, u32)]) -> usize {
        let end = layout.last().map_or(0, |(offset, bytes)| offset.saturating_add(*bytes));
        self.param_cell(handle).store(param_tag(handle) | u64::from(end), Ordering::Relaxed);
        end as usize
    }

    /// A kernel as a node of a graph.
    pub(super) fn kernel_params<'k>(&self, k: &'k Kernel) -> Result<NodeParams<'k>, Code> {
        let _placing = Placing::enter(self.virtual_device);
        let live = self.callable(k.function)?;
        let function = || if kind(k.function) == Some(Kind::Kernel) { self.gpu.kernel_function(live) } else { Ok(live) };
        let known = lock(&self.layouts).get(&k.function).cloned();
        let layout = match known {
            Some(layout) => layout,
            None => {
                let layout: Arc<[_]> = self.layout(function()?)?.into();
                lock(&self.layouts).insert(k.function, layout.clone());
                layout
            }
        };
        NodeParams::kernel(k, live, &layout)
    }

    pub(super) fn function_info(&self, life: &ContextState, handle: u64) -> Result<FunctionInfo, Code> {
        self.end_spare_instances();
        let _placing = Placing::enter(self.virtual_device);
        let live = self.callable(handle)?;
        let function = if kind(handle) == Some(Kind::Kernel) { self.gpu.kernel_function(live)? } else { live };
        self.gpu.load_function(function)?;
        let mut modules = lock(&self.modules);
        let mut info = self.describe(&modules, function, self.gpu.function_name(function)?)?;
        self.note_params(handle, &info.params);
        info.local_grew = self.need_local(life, &mut modules, self.local_bytes(function)?);
        if self.can_print.load(Ordering::Relaxed) {
            // If several kernels have this name, the result holds for any of them; nothing is known of a name that no image contains.
            let mut named = modules.units.iter().filter_map(|u| u.kept.index().kernel_prints(&info.name)).peekable();
            if named.peek().is_none() || named.any(|prints| prints) {
                self.printer(handle).store(handle, Ordering::Relaxed);
            }
        }
        Ok(info)
    }

    /// Properties of a function that do not depend on what the context has provided for it.
    fn describe(&self, modules: &Modules, function: u64, name: String) -> Result<FunctionInfo, Code> {
        let attribute = |a| self.gpu.function_attribute(function, a);
        // If several kernels have this name, the result is true only if it is for all of them.
        let mut named = modules.units.iter().filter_map(|u| u.kept.index().kernel_references(&name)).peekable();
        let references = named.peek().is_some() && named.all(|references| references);
        let mut named = modules.units.iter().filter_map(|u| u.kept.index().kernel_system_atomics(&name));
        let system_atomics = named.any(|uses| uses);
        // Drivers before 11.8 do not know these.
        let required = [
            F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
            F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
            F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
        ];
        let clusters = required.into_iter().any(|a| attribute(a).is_ok_and(|blocks| blocks > 1));
        Ok(FunctionInfo {
            references,
            system_atomics,
            clusters,
            local_grew: 0,
            params: self.layout(function)?,
            max_threads: attribute(F::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            static_shared: attribute(F::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            max_dynamic_shared: attribute(F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
            name,
        })
    }

    fn local_bytes(&self, function: u64) -> Result<u32, Code> {
        self.gpu.function_attribute(function, F::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
    }

    /// What programs ask next of the code that was loaded last. Functions are left out if there are many, or if their first use may make
    /// local memory grow. The driver loads the code of those that it looks up, which places large code (docs/driver-facts.md 8.20).
    fn code_facts(&self, modules: &Modules) -> CodeFacts {
        let Some(unit) = modules.units.last() else { return CodeFacts::default() };
        let _placing = Placing::enter(self.virtual_device);
        let variable = |g: &Global| PlacedVariable { name: g.name.clone(), address: g.address, bytes: g.bytes };
        let variables = unit.globals.iter().take(CodeFacts::VARIABLES).map(variable).collect();
        let kernels = &unit.kept.index().kernels;
        let names = kernels.keys().filter(|_| kernels.len() <= CodeFacts::FUNCTIONS);
        let describe = |name: &String| {
            let c_name = CString::new(name.as_str()).ok()?;
            let found = if unit.library {
                self.gpu.kernel(unit.live, &c_name).and_then(|kernel| self.gpu.kernel_function(kernel))
            } else {
                self.gpu.function(unit.live, &c_name)
            };
            // What the driver does not find is asked for, which returns the driver's error.
            let function = found.ok()?;
            let info = self.describe(modules, function, name.clone()).ok()?;
            (self.local_bytes(function).ok()? <= DEFAULT_LOCAL).then_some(info)
        };
        CodeFacts { variables, functions: names.filter_map(describe).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_ends_at_its_nul() {
        assert_eq!(log_text(b"ptxas: no\0\0\0"), b"ptxas: no");
        assert_eq!(log_text(b"\0\0"), b"");
    }
}
