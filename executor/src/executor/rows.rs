//! Rows of the driver's table: carried out from their argument kinds, with the state that the executor must keep.

use super::streams::options_of;
use super::{ContextState, Executor};
use crate::steer::Placing;
use cuda_api::arg::Edges;
use cuda_api::calls::context::cuCtxSetLimit;
use cuda_api::calls::{self, Call, Visit};
use cuda_api::class::Class;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, kind};
use cuda_api::wire::Wire;

struct Carry<'a> {
    e: &'a Executor,
    life: &'a ContextState,
    body: &'a [u8],
    reply: &'a mut Vec<u8>,
}

impl Visit for Carry<'_> {
    type Out = Result<(), Code>;

    fn visit<C: Call>(self) -> Result<(), Code> {
        let sent = C::Sent::get(&mut { self.body }).map_err(super::short)?;
        let edges = if C::CLASS == Class::State { C::edges(&sent) } else { Edges::default() };
        self.e.carry_row::<C>(Some(self.life), &sent, &edges).map(|reply| reply.put(self.reply))
    }
}

impl Executor {
    pub(super) fn row(&self, life: &ContextState, id: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<(), Code> {
        calls::by_id(id, Carry { e: self, life, body, reply }).unwrap_or(Err(code::ERROR_NOT_SUPPORTED))
    }

    /// Carries out a row with decoded arguments: [`Executor::apply`] without the encoding. `edges` are those of `sent`.
    ///
    /// # Errors
    /// The driver's error, or `DEINITIALIZED` if the executor is closed.
    pub fn call<C: Call>(&self, sent: &C::Sent, edges: &Edges) -> Result<C::Reply, Code> {
        self.make_current()?;
        self.carry_row::<C>(None, sent, edges)
    }

    fn carry_row<C: Call>(&self, life: Option<&ContextState>, sent: &C::Sent, edges: &Edges) -> Result<C::Reply, Code> {
        // Calls about code may place it; limits determine what is placed together with later code.
        let _placing = (C::IS_CODE || C::ID == cuCtxSetLimit::Fn::ID).then(|| Placing::enter(self.virtual_device));
        if C::CLASS != Class::State {
            return C::run(&self.gpu.0, sent, &self.bindings);
        }
        let ends = edges.ends.and_then(kind);
        let harmless = |h: &u64| matches!(kind(*h), Some(Kind::Stream | Kind::Event | Kind::Function | Kind::Kernel));
        if !edges.ends.iter().chain(&edges.creates).any(harmless) {
            self.end_spare_instances();
        }
        let asked = options_of(sent);
        if let (Some(options), Some(stream)) = (asked, edges.creates.iter().next())
            && self.reuse_stream(*stream, options)
        {
            return C::Reply::get(&mut [].as_slice()).map_err(super::short);
        }
        if let (Some(Kind::Stream), Some(stream)) = (ends, edges.ends) {
            let _held = life.is_none().then(|| self.life());
            self.end_stream(stream)?;
            return C::Reply::get(&mut [].as_slice()).map_err(super::short);
        }
        let code_goes = matches!(ends, Some(Kind::Module | Kind::Library));
        let held = (life.is_none() && code_goes).then(|| self.life());
        let life = life.or(held.as_deref());
        let _going = if let (true, Some(life)) = (code_goes, life) { Some(self.no_transfers(life)?) } else { None };
        let reply = match edges.ends.filter(|_| code_goes).and_then(|ended| Some((ended, self.lender(ended)?))) {
            // The module of a library is destroyed with the library.
            Some((module, lender)) => {
                self.gpu.unload_library(lender)?;
                self.bindings.unbind(module);
                C::Reply::get(&mut [].as_slice()).map_err(super::short)?
            }
            None => C::run(&self.gpu.0, sent, &self.bindings)?,
        };
        if let Some(of) = edges.uses.iter().find(|h| matches!(kind(**h), Some(Kind::Module | Kind::Library | Kind::Kernel))) {
            edges.creates.iter().for_each(|made| self.part_made(*of, *made));
        }
        for made in edges.creates.iter().filter(|h| kind(**h) == Some(Kind::Stream)) {
            self.stream_made(*made, self.bindings.live(Kind::Stream, *made)?, asked);
        }
        if code_goes && let Some(ended) = edges.ends {
            self.unit_ended(ended);
        }
        Ok(reply)
    }
}
