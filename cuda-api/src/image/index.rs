//! What an image declares, over all of its entries.

use super::cubin::{Cubin, Symbol};
use super::{Entry, EntryKind, Image, Param, ptx};
use std::collections::{BTreeMap, BTreeSet};

/// Names, kernels and needs of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Variables in global or constant memory of any entry.
    pub globals: BTreeSet<String>,
    /// Kernels of any entry.
    pub kernels: BTreeMap<String, Kernel>,
    /// Whether device code allocates with `malloc` or frees with `free`.
    pub uses_device_heap: bool,
    /// Whether device code may print: with `printf`, or when an `assert` fails. So it is assumed of entries that could not
    /// be read.
    pub prints: bool,
    /// Number of entries that could not be read: names may be missing if it is not 0.
    pub unreadable: usize,
}

/// What is known of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Parameters as each entry describes them; those of cubins first.
    layouts: Vec<(EntryKind, u32, Vec<Param>)>,
}

impl Index {
    pub(super) fn of(image: &Image) -> Index {
        let mut index = Index::default();
        let whole = image.visit(&mut |entry| {
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
        index.unreadable += usize::from(whole.is_err());
        index.prints |= index.unreadable > 0;
        for kernel in index.kernels.values_mut() {
            kernel
                .layouts
                .sort_by_key(|(kind, ..)| *kind != EntryKind::Cubin);
        }
        index
    }

    /// Parameters of a kernel, in order: as the code for `sm` has them, else as any other does.
    pub fn kernel_params(&self, name: &str, sm: u32) -> Option<&[Param]> {
        let layouts = &self.kernels.get(name)?.layouts;
        let exact = layouts.iter().find(|(_, for_sm, _)| *for_sm == sm);
        exact
            .or(layouts.first())
            .map(|(.., params)| params.as_slice())
    }

    fn add_cubin(&mut self, entry: &Entry) -> bool {
        let Ok(cubin) = Cubin::parse(&entry.bytes) else {
            return false;
        };
        for symbol in cubin.symbols() {
            match symbol {
                Symbol::Variable(name) => {
                    insert(&mut self.globals, name);
                }
                Symbol::Kernel(name) => self.add_kernel(name, entry, cubin.params(name)),
                Symbol::Function(name) => {
                    self.uses_device_heap |= matches!(name, "malloc" | "free");
                    self.prints |= matches!(name, "vprintf" | "__assertfail");
                }
            }
        }
        true
    }

    fn add_ptx(&mut self, entry: &Entry) {
        let module = ptx::module(&entry.bytes);
        self.uses_device_heap |= module.device_heap;
        self.prints |= module.prints;
        self.globals.extend(module.variables);
        for (name, params) in module.kernels {
            self.add_kernel(&name, entry, params);
        }
    }

    fn add_kernel(&mut self, name: &str, entry: &Entry, params: Option<Vec<Param>>) {
        if !self.kernels.contains_key(name) {
            self.kernels.insert(name.to_owned(), Kernel::default());
        }
        if let (Some(kernel), Some(params)) = (self.kernels.get_mut(name), params) {
            kernel.layouts.push((entry.kind, entry.sm, params));
        }
    }
}

/// Most names are in several entries: no copy is made for those already there.
fn insert(names: &mut BTreeSet<String>, name: &str) {
    if !names.contains(name) {
        names.insert(name.to_owned());
    }
}
