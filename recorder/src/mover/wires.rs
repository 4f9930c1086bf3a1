//! The connections on which a move's bytes travel.

use super::{random, unexpected};
use crate::place::Place;
use rcuda_forwarder::{Control, ControlReply, Link, RoundInfo};
use replayer::Executor;
use std::sync::Arc;

/// Connections that carry a move's bytes.
const STRIPES: u32 = 4;

/// The connections between source and target, and who sits at their ends.
pub(super) enum Wires {
    /// From server to server, not through this process.
    Servers { source: Arc<Link>, target: Arc<Link>, ticket: [u8; 32] },
    /// From a server into this process.
    Home { source: Arc<Link>, exec: Arc<Executor>, conns: Vec<Box<dyn memsync::Stream>>, ticket: [u8; 32] },
    /// From this process to a server.
    Away { exec: Arc<Executor>, target: Arc<Link>, conns: Vec<Box<dyn memsync::Stream>>, ticket: [u8; 32] },
}

fn control(link: &Link, c: &Control) -> Result<ControlReply, String> {
    match link.control(c).map_err(|e| e.to_string())? {
        ControlReply::Refused(why) => Err(why),
        reply => Ok(reply),
    }
}

impl Wires {
    pub(super) fn connect(source: &Place, target: &Place) -> Result<Wires, String> {
        let ticket = random()?;
        let expect = Control::Expect { ticket, stripes: STRIPES };
        match (source, target) {
            (Place::Remote { link: s, .. }, Place::Remote { link: t, endpoint }) => {
                control(t, &expect)?;
                control(s, &Control::Connect { to: endpoint.to_string(), ticket, stripes: STRIPES })?;
                control(t, &Control::Accept { ticket })?;
                Ok(Wires::Servers { source: s.clone(), target: t.clone(), ticket })
            }
            (Place::Remote { link, endpoint }, Place::Local { exec, .. }) => {
                control(link, &expect)?;
                let conns = rcuda_forwarder::bulk_connect(endpoint, &ticket, STRIPES).map_err(|e| e.to_string())?;
                control(link, &Control::Accept { ticket })?;
                Ok(Wires::Home { source: link.clone(), exec: exec.clone(), conns, ticket })
            }
            (Place::Local { exec, .. }, Place::Remote { link, endpoint }) => {
                control(link, &expect)?;
                let conns = rcuda_forwarder::bulk_connect(endpoint, &ticket, STRIPES).map_err(|e| e.to_string())?;
                control(link, &Control::Accept { ticket })?;
                Ok(Wires::Away { exec: exec.clone(), target: link.clone(), conns, ticket })
            }
            (Place::Local { .. }, Place::Local { .. }) => Err("cannot move inside this process".into()),
        }
    }

    /// One round of memsync: both ends run at the same time, and both must succeed.
    pub(super) fn round(&mut self, verify: bool) -> Result<RoundInfo, String> {
        let remote = |link: &Link, c: Control| match control(link, &c)? {
            ControlReply::Round(r) => Ok(r),
            other => Err(unexpected(&other)),
        };
        std::thread::scope(|s| {
            let (from, to) = match self {
                Wires::Servers { source, target, ticket } => {
                    let ticket = *ticket;
                    let from = s.spawn(move || remote(source, Control::RoundSource { ticket }));
                    let to = remote(target, Control::RoundTarget { ticket, verify });
                    (from.join(), to)
                }
                Wires::Home { source, exec, conns, ticket } => {
                    let ticket = *ticket;
                    let from = s.spawn(move || remote(source, Control::RoundSource { ticket }));
                    let to = memsync::run_target(exec, conns, verify).map(RoundInfo::from).map_err(|e| e.to_string());
                    (from.join(), to)
                }
                Wires::Away { exec, target, conns, ticket } => {
                    let ticket = *ticket;
                    let to = s.spawn(move || remote(target, Control::RoundTarget { ticket, verify }));
                    let from = memsync::run_source(exec, conns, memsync::Faults::from_env())
                        .map(RoundInfo::from)
                        .map_err(|e| e.to_string());
                    (Ok(from), to.join().unwrap_or_else(|_| Err("the copying thread failed".into())))
                }
            };
            let from = from.unwrap_or_else(|_| Err("the copying thread failed".into()))?;
            let to = to?;
            if verify && from.digest != to.digest {
                return Err("the target holds other bytes than the source".into());
            }
            Ok(RoundInfo { digest: to.digest, ..from })
        })
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        let hang_up = |link: &Link, ticket: [u8; 32]| drop(link.control(&Control::HangUp { ticket }));
        match self {
            Wires::Servers { source, target, ticket } => {
                hang_up(source, *ticket);
                hang_up(target, *ticket);
            }
            Wires::Home { source, ticket, .. } => hang_up(source, *ticket),
            Wires::Away { target, ticket, .. } => hang_up(target, *ticket),
        }
    }
}
