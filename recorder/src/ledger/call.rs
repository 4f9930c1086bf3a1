//! State-building calls, without I/O: what is to be done for a call, and what is recorded when it has succeeded. A call that has failed
//! leaves nothing.

use crate::ledger::{Keep, Key, Ledger, change};
use cuda_api::arg::Edges;
use cuda_api::calls::Call;
use cuda_api::code::Code;
use cuda_api::few::Few;
use cuda_api::ops::{FunctionInfo, ImageLoaded, id};
use journal::Role;

/// What is to be done for a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// Nothing: the setting has this value already.
    IsSet,
    /// Nothing: the same request has returned this handle before.
    Known(u64),
    /// Send it, and report its success with [`Ledger::succeeded`].
    Send(Entry),
}

/// A call that is being carried out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// By what a repeated request is recognised.
    key: Option<Key>,
}

/// Code that was loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load<'a> {
    /// The module or library.
    pub(crate) handle: u64,
    pub(crate) hash: [u8; 32],
    /// The journal's name of the image.
    pub(crate) image: u64,
    /// The request as sent.
    pub(crate) body: &'a [u8],
}

impl Ledger {
    /// Begins a call of a row.
    pub(crate) fn begin<C: Call>(&self, body: &[u8], edges: &Edges) -> Begun {
        if self.is_set::<C>(body, edges) {
            return Begun::IsSet;
        }
        // The handle that the request creates comes first.
        let repeats = C::IS_CODE && edges.ends.is_none() && !edges.creates.is_empty();
        let key = body.get(size_of::<u64>()..).filter(|_| repeats).map(|request| (C::ID, request.to_vec()));
        match key.as_ref().and_then(|key| self.known(key)) {
            Some(handle) => Begun::Known(handle),
            None => Begun::Send(Entry { key }),
        }
    }

    /// Records a call of a row that has succeeded. Returns images that the device need not keep: they are to be evicted, and each is
    /// reported with [`Ledger::end_image`].
    pub(crate) fn succeeded<C: Call>(
        &mut self,
        call: Entry,
        body: &[u8],
        reply: &[u8],
        edges: &Edges,
    ) -> Result<Vec<[u8; 32]>, Code> {
        if let Some(keep) = self.keep::<C>(body, edges) {
            self.append(C::ID, body, reply, edges, keep)?;
        }
        if let Some(key) = call.key {
            self.learn(key, edges);
        }
        Ok(edges.ends.filter(|_| C::IS_CODE).map(|ended| self.unloaded(ended)).unwrap_or_default())
    }

    /// Records that code was loaded.
    pub(crate) fn load_succeeded(&mut self, load: &Load<'_>, loaded: &ImageLoaded) -> Result<(), Code> {
        if loaded.made_heap {
            // The heap outlives the code that first needed it.
            self.append(id::HEAP_MAKE, &[], &[], &Edges::default(), Keep::stays(id::HEAP_MAKE, 0))?;
        }
        let role = if loaded.variables > 0 { Role::Load } else { Role::LightLoad };
        let edges = Edges { creates: [load.handle].into(), uses: [load.image].into(), ..Edges::default() };
        self.append(id::IMAGE_LOAD, load.body, &[], &edges, Keep { role, setting: None })?;
        self.loaded(load.handle, load.hash);
        self.code.learn(load.handle, &loaded.facts);
        Ok(())
    }

    /// Records that the place has said what a function needs.
    pub(crate) fn info_asked(&mut self, function: u64, body: &[u8], info: &FunctionInfo) -> Result<(), Code> {
        let edges = Edges { uses: [function].into(), ..Edges::default() };
        // The first look-up places the function's code. Later ones, made because an attribute has changed, place nothing. The answer
        // depends on attributes, of which only the last values are replayed, so a replay does not compare it.
        let key = [function, u64::from(id::FUNCTION_INFO)];
        if self.values.insert(key, Vec::new()).is_none() {
            self.append(id::FUNCTION_INFO, body, &[], &edges, Keep::PLAIN)?;
        }
        if info.local_grew > 0 {
            // This memory stays when the function is gone.
            let bytes = info.local_grew;
            self.append(id::LOCAL_GROW, &bytes.to_le_bytes(), &[], &Edges::default(), Keep::stays(id::LOCAL_GROW, bytes))?;
        }
        Ok(())
    }

    /// Records that the context was reset. Returns the handles that were destroyed.
    pub(crate) fn reset_succeeded(&mut self, made_heap: bool) -> Result<Vec<u64>, Code> {
        // This supersedes the record of an earlier reset.
        self.append(id::CONTEXT_RESET, &[], &[], &Edges::default(), Keep::setting(0, id::CONTEXT_RESET, 0))?;
        if made_heap {
            self.append(id::HEAP_MAKE, &[], &[], &Edges::default(), Keep::stays(id::HEAP_MAKE, 0))?;
        }
        self.context_ended()
    }

    /// Records a change that replaces an earlier one (`old`), which need not be replayed any more. Returns its name.
    pub(crate) fn replace(&mut self, old: Option<u64>, id: u16, (body, reply): (&[u8], &[u8]), uses: Few) -> Result<u64, Code> {
        let new = change();
        self.append(id, body, reply, &Edges { creates: [new].into(), ends: None, uses }, Keep::PLAIN)?;
        old.map_or(Ok(()), |old| self.overtaken(old))?;
        Ok(new)
    }
}
