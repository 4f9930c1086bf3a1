//! Control requests at the worker.

use super::Worker;
use crate::channel::Message;
use crate::control::{Control, ControlReply};
use crate::link;
use crate::place::{Outcome, Place};
use cuda_api::code;
use std::time::{Duration, Instant};

/// A GPU that answers within this time had nothing to do: the question itself takes some of it.
const AT_ONCE: Duration = Duration::from_micros(100);
/// Between two looks at a GPU that is waited for.
const LOOK: Duration = Duration::from_micros(50);

impl<P: Place> Worker<P> {
    /// Carries a request out; the error is the reason for refusing it.
    pub(super) fn carry_out(&self, request: Control) -> Result<ControlReply, String> {
        let failed = |rc| format!("the driver refused: {}", code::describe(rc).map_or("an unknown error", |d| d.1));
        match request {
            Control::FreeBytes => self.place.free_bytes().map(ControlReply::FreeBytes).map_err(failed),
            Control::Regions => self.place.regions().map_err(failed),
            Control::Expect { ticket, stripes } => {
                self.stripes.add(ticket, stripes)?;
                self.channel.send(&Message::Expect(ticket, stripes), None).map_err(|e| format!("the server is gone: {e}"))?;
                let known = self.stripes.wait_known(&ticket);
                if known.is_err() {
                    self.stripes.remove(&ticket);
                }
                known.map(|()| ControlReply::Ok)
            }
            Control::Connect { to, ticket, stripes } => {
                let endpoint = to.parse().map_err(|e| format!("{to}: {e}"))?;
                self.stripes.add(ticket, stripes)?;
                match link::bulk_connect(&endpoint, &ticket, stripes) {
                    Ok(streams) => {
                        self.stripes.made(&ticket, streams);
                        Ok(ControlReply::Ok)
                    }
                    Err(e) => {
                        self.stripes.remove(&ticket);
                        Err(e.to_string())
                    }
                }
            }
            Control::Accept { ticket } => self.stripes.wait_here(&ticket).map(|()| ControlReply::Ok),
            Control::RoundSource { ticket } => {
                self.stripes.with(&ticket, |s| self.place.round_source(s)).map(|r| ControlReply::Round(r.into()))
            }
            Control::RoundTarget { ticket, verify } => {
                self.stripes.with(&ticket, |s| self.place.round_target(s, verify)).map(|r| ControlReply::Round(r.into()))
            }
            Control::Drain { limit_ms } => self.drain(Duration::from_millis(limit_ms.into())).map_err(failed),
            Control::HangUp { ticket } => {
                self.stripes.remove(&ticket);
                // A server that is gone has forgotten the ticket, too.
                let _ = self.channel.send(&Message::Forget(ticket), None);
                Ok(ControlReply::Ok)
            }
        }
    }

    fn drain(&self, limit: Duration) -> Result<ControlReply, code::Code> {
        let began = Instant::now();
        let mut was_busy = false;
        let rc = match self.place.drain() {
            Outcome::Done(rc) => rc,
            Outcome::Pending(mut p) => loop {
                if let Some(rc) = self.place.poll(&mut p, &mut Vec::new()) {
                    break rc;
                }
                let waited = began.elapsed();
                was_busy |= waited >= AT_ONCE;
                if waited >= limit {
                    let waits_for = "kernels or copies that the job has given to the GPU have not ended".into();
                    return Ok(ControlReply::Drained { idle: false, was_busy: true, waits_for });
                }
                if was_busy {
                    std::thread::sleep(LOOK);
                }
            },
        };
        match rc {
            code::SUCCESS => Ok(ControlReply::Drained { idle: true, was_busy, waits_for: String::new() }),
            rc => Err(rc),
        }
    }
}
