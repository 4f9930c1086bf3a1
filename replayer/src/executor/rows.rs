//! Rows of the driver's table: carried out from their kinds, with what the executor must remember of them.

use super::{Executor, Life};
use crate::steer::Placing;
use cuda_api::calls::context::cuCtxSetLimit;
use cuda_api::calls::{self, Call, Visit};
use cuda_api::class::Class;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, kind};
use cuda_api::wire::Wire;

struct Carry<'a> {
    e: &'a Executor,
    life: &'a Life,
    body: &'a [u8],
    reply: &'a mut Vec<u8>,
}

impl Visit for Carry<'_> {
    type Out = Result<(), Code>;

    fn visit<C: Call>(self) -> Result<(), Code> {
        let sent = C::Sent::get(&mut { self.body }).map_err(super::short)?;
        // Calls about code may place it; limits decide what else is placed with the next code.
        let _placing = (C::ORDERED || C::ID == cuCtxSetLimit::Fn::ID).then(|| Placing::enter(self.e.virtual_device));
        if C::CLASS != Class::State {
            C::run(&self.e.gpu.0, &sent, &self.e.bindings)?.put(self.reply);
            return Ok(());
        }
        let edges = C::edges(&sent);
        if let Some(stream) = edges.ends.filter(|h| kind(*h) == Some(Kind::Stream)) {
            self.e.stream_ends(self.life, self.e.bindings.live(stream)?)?;
        }
        let code_goes = edges.ends.is_some_and(|h| matches!(kind(h), Some(Kind::Module | Kind::Library)));
        let _going = if code_goes { Some(self.e.no_transfers(self.life)?) } else { None };
        let reply = C::run(&self.e.gpu.0, &sent, &self.e.bindings)?;
        for made in edges.creates.into_iter().filter(|h| kind(*h) == Some(Kind::Stream)) {
            self.e.stream_made(made, self.e.bindings.live(made)?);
        }
        if let Some(ended) = edges.ends {
            self.e.unit_ended(ended);
        }
        reply.put(self.reply);
        Ok(())
    }
}

impl Executor {
    pub(super) fn row(&self, life: &Life, id: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<(), Code> {
        calls::by_id(id, Carry { e: self, life, body, reply }).unwrap_or(Err(code::ERROR_NOT_SUPPORTED))
    }
}
