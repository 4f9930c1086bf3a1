//! User objects: counted references that graphs hold for the program.

use super::model::Owner;
use super::tables::{Destructor, Graphs, Object};
use cuda_api::code::{self, Code};
use std::ffi::c_void;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// Runs destructors on a separate thread, because they may take locks that the caller holds.
pub(super) fn run(due: Vec<Destructor>) {
    if due.is_empty() {
        return;
    }
    let call = move || {
        for d in due {
            // SAFETY: the program gave function and argument to be called like this, once.
            unsafe { (d.function)(d.data as *mut c_void) };
        }
    };
    // Without a thread they never run: their memory is freed at the end of the process.
    let _ = std::thread::Builder::new().name("cuda-objects".into()).spawn(call);
}

impl Graphs {
    pub(super) fn new_object(&mut self, destructor: Destructor, references: u32) -> Result<u64, Code> {
        if references == 0 {
            return Err(INVALID);
        }
        Ok(self.objects.insert(Object { references: references.into(), destructor }))
    }

    pub(super) fn retain_object(&mut self, object: u64, count: u32) -> Result<(), Code> {
        let o = self.objects.get_mut(object).filter(|_| count > 0).ok_or(INVALID)?;
        o.references += u64::from(count);
        Ok(())
    }

    pub(super) fn release_object(&mut self, object: u64, count: u32) -> Result<(), Code> {
        let o = self.objects.get_mut(object).filter(|o| count > 0 && o.references >= u64::from(count)).ok_or(INVALID)?;
        o.references -= u64::from(count);
        if o.references == 0
            && let Some(gone) = self.objects.remove(object)
        {
            self.due.push(gone.destructor);
        }
        Ok(())
    }

    /// Releases the references of a graph.
    pub(super) fn release_objects(&mut self, held: Vec<(u64, u32)>) {
        for (object, count) in held {
            // Objects exist as long as they are referenced, so this cannot fail.
            let _ = self.release_object(object, count);
        }
    }

    /// Adds references of a graph: new ones, or (`moved`) the caller's.
    pub(super) fn graph_retains(&mut self, graph: u64, object: u64, count: u32, moved: bool) -> Result<(), Code> {
        self.store.graph(graph)?;
        if moved {
            self.objects.get(object).filter(|o| count > 0 && o.references >= u64::from(count)).ok_or(INVALID)?;
        } else {
            self.retain_object(object, count)?;
        }
        let held = &mut self.store.graph_mut(graph)?.objects;
        match held.iter_mut().find(|(o, _)| *o == object) {
            Some((_, n)) => *n = n.checked_add(count).ok_or(INVALID)?,
            None => held.push((object, count)),
        }
        Ok(())
    }

    /// Releases references of a graph.
    pub(super) fn graph_releases(&mut self, graph: u64, object: u64, count: u32) -> Result<(), Code> {
        let held = &mut self.store.graph_mut(graph)?.objects;
        let at = held.iter().position(|(o, n)| *o == object && count > 0 && *n >= count).ok_or(INVALID)?;
        held[at].1 -= count;
        if held[at].1 == 0 {
            held.remove(at);
        }
        self.release_object(object, count)
    }

    /// Copies a graph. The copy holds the user objects that the original holds, including embedded graphs.
    pub(super) fn copy_graph(&mut self, graph: u64, owner: Owner) -> Result<u64, Code> {
        let copy = self.store.copy(graph, owner)?;
        for (object, count) in self.store.held_inside(copy) {
            // It exists, because the original holds it.
            let _ = self.retain_object(object, count);
        }
        Ok(copy)
    }

    /// Removes a graph, with its references to user objects.
    pub(super) fn drop_graph(&mut self, graph: u64) {
        let held = self.store.drop_graph(graph);
        self.release_objects(held);
    }
}
