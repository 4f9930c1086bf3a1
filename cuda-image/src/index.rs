//! The declarations of an image, over all its entries.

use super::cubin::{Cubin, Symbol};
use super::kind::{Entry, EntryKind, ImageError, Param, Result};
use super::ptx;
use std::collections::{BTreeMap, BTreeSet};

/// Names, kernels and properties of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Variables in global or constant memory of any entry.
    pub globals: BTreeSet<String>,
    /// Kernels of any entry.
    pub kernels: BTreeMap<String, Kernel>,
    /// Whether there are managed variables (`__managed__`), which host and GPU share.
    pub managed: bool,
    /// Whether device code allocates with `malloc` or frees with `free`.
    pub uses_device_heap: bool,
    /// Whether device code may print without a failure, with `printf`. This is assumed for entries that could not be
    /// read.
    pub prints: bool,
    /// Whether it is unknown which kernels may print: then each of them may.
    any_prints: bool,
    /// Whether functions that any kernel may call use atomic operations with system scope.
    any_system_atomics: bool,
    /// Number of entries that could not be read: names may be missing if it is not 0.
    pub unreadable: usize,
    /// Its decompressed code exceeds the limit, so it must not be given to a driver.
    pub too_large: bool,
}

/// Properties of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Parameters as each entry describes them; those of cubins first.
    layouts: Vec<(EntryKind, u32, Vec<Param>)>,
    /// Whether it may print, in some entry.
    prints: bool,
    /// Whether it uses texture or surface references, in some entry.
    references: bool,
    /// Whether it uses atomic operations with system scope, in some entry.
    system_atomics: bool,
}

impl Index {
    /// Builds the index of the entries that `visit` passes, each of which may be unreadable.
    pub(super) fn of<'a>(visit: impl FnOnce(&mut dyn FnMut(Result<Entry<'a>>) -> Result<()>) -> Result<()>) -> Index {
        let mut index = Index::default();
        let whole = visit(&mut |entry| {
            let read = entry.as_ref().is_ok_and(|e| match e.kind {
                EntryKind::Cubin => index.add_cubin(e),
                EntryKind::Ptx => {
                    index.add_ptx(e);
                    true
                }
                EntryKind::Other => true,
            });
            index.unreadable += usize::from(!read);
            Ok(())
        });
        index.too_large = matches!(whole, Err(ImageError::TooLarge { .. }));
        index.unreadable += usize::from(whole.is_err());
        index.any_prints |= index.unreadable > 0;
        index.prints |= index.any_prints;
        for kernel in index.kernels.values_mut() {
            kernel.layouts.sort_by_key(|(kind, ..)| *kind != EntryKind::Cubin);
        }
        index
    }

    /// Parameters of a kernel, in order: as in the code for `sm`, otherwise as in any other entry.
    pub fn kernel_params(&self, name: &str, sm: u32) -> Option<&[Param]> {
        let layouts = &self.kernels.get(name)?.layouts;
        let exact = layouts.iter().find(|(_, for_sm, _)| *for_sm == sm);
        exact.or(layouts.first()).map(|(.., params)| params.as_slice())
    }

    /// Whether a kernel may print without a failure; `None` if there is no such kernel.
    pub fn kernel_prints(&self, name: &str) -> Option<bool> {
        self.kernels.get(name).map(|k| k.prints || self.any_prints)
    }

    /// Whether a kernel uses texture or surface references; `None` if there is no such kernel.
    pub fn kernel_references(&self, name: &str) -> Option<bool> {
        self.kernels.get(name).map(|k| k.references)
    }

    /// Whether a kernel's code shows that it may use atomic operations with system scope; `None` if there is no such
    /// kernel.
    pub fn kernel_system_atomics(&self, name: &str) -> Option<bool> {
        self.kernels.get(name).map(|k| k.system_atomics || self.any_system_atomics)
    }

    fn add_cubin(&mut self, entry: &Entry<'_>) -> bool {
        let Ok(cubin) = Cubin::parse(&entry.bytes) else {
            return false;
        };
        self.managed |= cubin.has_managed();
        let has_references = cubin.has_references();
        let (mut named, mut known, mut launches) = (false, false, false);
        for symbol in cubin.symbols() {
            match symbol {
                Symbol::Variable(name) => {
                    insert(&mut self.globals, name);
                }
                Symbol::Kernel(name) => {
                    let prints = cubin.refers(name, PRINTERS);
                    known |= prints;
                    self.add_kernel(name, entry, cubin.params(name), prints, has_references && cubin.uses_references(name));
                }
                Symbol::Function(name) => {
                    self.uses_device_heap |= matches!(name, "malloc" | "free");
                    named |= PRINTERS.contains(&name);
                    // Kernels launched by other kernels may print on their behalf.
                    launches |= name.starts_with("cudaLaunchDevice") || name.starts_with("cudaGraphLaunch");
                }
            }
        }
        for name in cubin.system_atomics(entry.sm) {
            // Other functions may be called by any code that is linked with them.
            match self.kernels.get_mut(name) {
                Some(kernel) => kernel.system_atomics = true,
                None => self.any_system_atomics = true,
            }
        }
        self.prints |= named;
        self.any_prints |= named && (!known || launches);
        true
    }

    fn add_ptx(&mut self, entry: &Entry<'_>) {
        let module = ptx::module(&entry.bytes);
        self.managed |= module.managed;
        self.uses_device_heap |= module.device_heap;
        self.prints |= module.prints || !module.printers.is_empty();
        self.any_prints |= module.prints;
        self.globals.extend(module.variables);
        for (name, params) in module.kernels {
            let (prints, references) = (module.printers.contains(&name), module.referring.contains(name.as_bytes()));
            let system_atomics = module.system_atomics.contains(name.as_bytes());
            self.add_kernel(&name, entry, params, prints, references);
            self.kernels.entry(name).or_default().system_atomics |= system_atomics;
        }
    }

    fn add_kernel(&mut self, name: &str, entry: &Entry<'_>, params: Option<Vec<Param>>, prints: bool, references: bool) {
        if !self.kernels.contains_key(name) {
            self.kernels.insert(name.to_owned(), Kernel::default());
        }
        let Some(kernel) = self.kernels.get_mut(name) else { return };
        kernel.prints |= prints;
        kernel.references |= references;
        if let Some(params) = params {
            kernel.layouts.push((entry.kind, entry.sm, params));
        }
    }
}

/// Functions that device code prints with.
const PRINTERS: &[&str] = &["vprintf"];

/// Most names are in several entries, so existing ones are not copied.
fn insert(names: &mut BTreeSet<String>, name: &str) {
    if !names.contains(name) {
        names.insert(name.to_owned());
    }
}
