//! Executes control requests at a place: a worker, or the job's own process.

use crate::channel::{Channel, Destination, Message, NotConnected};
use crate::conn::Conn;
use crate::control::{Control, ControlReply, Refused};
use crate::dialer::Dialer;
use crate::endpoint::Endpoint;
use crate::link::{self, Terms};
use crate::place::Place;
use crate::stripes::Stripes;
use crate::targets::{self, Sender};
use crate::worker::complain;
use cuda_api::code;
use executor::{Busy, Executor};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A GPU that responds within this time was idle; the query itself takes part of it.
const AT_ONCE: Duration = Duration::from_micros(100);
/// After how long a client gets the error that its worker could not connect: the maximum duration of connecting and greeting.
const UNIFORM: Duration = Duration::from_millis(5500);
/// Maximum length of a reason that a job gives its server, in characters.
pub(crate) const LONGEST_REASON: usize = 1000;
/// Poll interval while waiting for the GPU.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Who accepts the connections of other places to this one.
#[derive(Debug)]
pub(crate) enum Reach {
    /// The daemon, which must know their ticket, and which makes those that go out.
    Daemon(Daemon),
    /// The job: other processes cannot connect to this place.
    Job,
}

/// The daemon of a worker, as far as the connections of its place are concerned.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) channel: Arc<Channel>,
    pub(crate) dialer: Arc<Dialer>,
    /// Who sends the worker to other places.
    pub(crate) sender: Sender,
    /// Whether connections need not be encrypted.
    pub(crate) plain: bool,
}

/// Executes the control requests of one place.
#[derive(Debug)]
pub(crate) struct Attendant<P: Place> {
    place: Arc<P>,
    reach: Reach,
    stripes: Stripes,
}

fn not_idle(busy: Busy) -> ControlReply {
    ControlReply::Drained { idle: false, was_busy: true, waits_for: busy.what, runs: busy.runs }
}

impl<P: Place> Attendant<P> {
    pub(crate) fn new(place: Arc<P>, reach: Reach) -> Attendant<P> {
        Attendant { place, reach, stripes: Stripes::default() }
    }

    /// The data connections of this place.
    pub(crate) fn stripes(&self) -> &Stripes {
        &self.stripes
    }

    /// Whether data connections need not be encrypted, as far as this end is concerned.
    pub(crate) fn may_be_plain(&self) -> bool {
        match &self.reach {
            Reach::Daemon(daemon) => daemon.plain,
            // The job has named the other end.
            Reach::Job => true,
        }
    }

    /// Executes a request; the error is the reason for a refusal.
    pub(crate) fn carry_out(&self, request: Control) -> Result<ControlReply, Refused> {
        match request {
            Control::FreeBytes { beside } => self.place.free_bytes(beside).map(ControlReply::FreeBytes).map_err(Refused::Driver),
            Control::Regions => self.place.regions().map_err(Refused::Driver),
            Control::Expect { ticket, stripes } => {
                self.stripes.add(ticket, stripes)?;
                let known = self.make_known(ticket, stripes);
                if known.is_err() {
                    self.forget(ticket);
                }
                known.map(|()| ControlReply::Ok)
            }
            Control::Connect { to, ticket, stripes } => {
                let endpoint = Endpoint::of_place(&to).map_err(|e| Refused::Other(format!("{to}: {e}")))?;
                self.stripes.add(ticket, stripes)?;
                let connected = self.connect(&endpoint, &to, &ticket, stripes);
                match connected {
                    Ok(streams) => {
                        self.stripes.made(&ticket, streams);
                        Ok(ControlReply::Ok)
                    }
                    Err(why) => {
                        self.stripes.remove(&ticket);
                        Err(why)
                    }
                }
            }
            Control::Accept { ticket } => self.stripes.wait_here(&ticket).map(ControlReply::Connected),
            Control::RoundSource { ticket, send_regions } => {
                let round = self.stripes.with(&ticket, |s, compression| self.place.round_source(s, compression, send_regions));
                round.map(ControlReply::Round)
            }
            Control::RoundTarget { ticket, verify, by_descriptor } => {
                self.stripes.with(&ticket, |s, _| self.place.round_target(s, verify, by_descriptor)).map(ControlReply::Round)
            }
            Control::Moved => Ok(ControlReply::Moved(self.place.moved())),
            Control::ShowMemory => self.place.show_memory(),
            Control::CouldAdopt { offer, chunks } => self.place.could_adopt(&offer, &chunks).map(ControlReply::Adoptable),
            Control::AdoptFrom { offer, chunks } => self.place.adopt_from(&offer, &chunks).map(|()| ControlReply::Ok),
            Control::Drain { limit_ms } => self.drain(Duration::from_millis(limit_ms.into())).map_err(Refused::Driver),
            Control::Bulk { .. } | Control::Areas { .. } => {
                Err(Refused::Other("only a worker makes large copies in this way".into()))
            }
            Control::PeerOut { ticket, number, parts } => {
                self.stripes.with(&ticket, |s, _| self.place.send_parts(s, number, &parts)).map(|()| ControlReply::Ok)
            }
            Control::PeerIn { ticket, number, parts } => {
                self.stripes.with(&ticket, |s, _| self.place.receive_parts(s, number, &parts)).map(|()| ControlReply::Ok)
            }
            Control::EndLink { ticket } => {
                self.forget(ticket);
                Ok(ControlReply::Ok)
            }
            Control::Readings => Ok(ControlReply::Readings(self.place.readings())),
            Control::Stay { request, why } => {
                self.report_stay(request, &why);
                Ok(ControlReply::Ok)
            }
            Control::HangUp { ticket } => {
                self.forget(ticket);
                self.place.end_rounds();
                Ok(ControlReply::Ok)
            }
        }
    }

    /// Tells the server why the job does not leave.
    fn report_stay(&self, request: Option<u64>, why: &str) {
        if let Reach::Daemon(Daemon { channel, .. }) = &self.reach {
            let why = why.chars().take(LONGEST_REASON).collect();
            // A server that has ended needs no reason.
            let _ = channel.send(&Message::Stays(request, why), None);
        }
    }

    /// Forgets a ticket.
    fn forget(&self, ticket: [u8; 32]) {
        self.stripes.remove(&ticket);
        if let Reach::Daemon(Daemon { channel, .. }) = &self.reach {
            // If the server has ended, the ticket is gone as well.
            let _ = channel.send(&Message::Forget(ticket), None);
        }
    }

    /// Connects to another place, if the server allows it; the daemon decides that. To a client of another user or machine, a failure reveals
    /// nothing about the network: it gets the same error after the same time, whatever is at the target. The log has
    /// the reason.
    fn connect(&self, endpoint: &Endpoint, to: &str, ticket: &[u8; 32], stripes: u32) -> Result<Vec<Conn>, Refused> {
        let endpoint = &if self.may_be_plain() { endpoint.clone() } else { endpoint.clone().without_rdma() };
        let Reach::Daemon(Daemon { dialer, sender, .. }) = &self.reach else {
            let connected = link::bulk_connect_within(endpoint, ticket, stripes, self.place.budget());
            return connected.map_err(|e| Refused::Unreachable(e.to_string()));
        };
        let began = Instant::now();
        let denied = AtomicBool::new(false);
        let connect = |until| {
            let connected = dialer.connect(Destination::Place(to.to_owned()), until);
            let is_denied = connected.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
            denied.fetch_or(is_denied, Ordering::Relaxed);
            Conn::opened(connected?)
        };
        let terms = Terms { connect: &connect, log: &|why| complain(&why), budget: self.place.budget() };
        link::connect_all(endpoint, ticket, stripes, &terms).map_err(|why| {
            if *sender == Sender::SameUser {
                return Refused::Unreachable(why.to_string());
            }
            if denied.load(Ordering::Relaxed) && targets::is_literal(&endpoint.host) {
                return Refused::Unreachable(targets::not_allowed(to));
            }
            complain(&format!("cannot connect to {to}: {why}"));
            std::thread::sleep(UNIFORM.saturating_sub(began.elapsed()));
            let hint = "its log has the reason; mrcuda serve --allow-target says where it may connect";
            Refused::Unreachable(format!("{to} cannot be reached from this server ({hint})"))
        })
    }

    /// Takes the daemon's answer to a request to connect.
    pub(crate) fn connected(&self, number: u32, error: Option<NotConnected>, fd: Option<OwnedFd>) {
        if let Reach::Daemon(Daemon { dialer, .. }) = &self.reach {
            dialer.take(number, error, fd);
        }
    }

    fn make_known(&self, ticket: [u8; 32], stripes: u32) -> Result<(), Refused> {
        match &self.reach {
            Reach::Daemon(Daemon { channel, .. }) => {
                channel
                    .send(&Message::Expect(ticket, stripes), None)
                    .map_err(|e| Refused::Other(format!("the server is gone: {e}")))?;
                self.stripes.wait_known(&ticket)
            }
            // The job accepts them itself.
            Reach::Job => Ok(()),
        }
    }

    /// Describes what keeps the GPU from being idle.
    pub(crate) fn busy(&self) -> Result<ControlReply, Refused> {
        self.place.busy().map(not_idle).map_err(Refused::Driver)
    }

    fn drain(&self, limit: Duration) -> Result<ControlReply, code::Code> {
        let began = Instant::now();
        let mut was_busy = false;
        while !self.place.is_idle()? {
            let waited = began.elapsed();
            was_busy |= waited >= AT_ONCE;
            if waited >= limit {
                return self.place.busy().map(not_idle);
            }
            if was_busy {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(ControlReply::Drained { idle: true, was_busy, waits_for: String::new(), runs: None })
    }
}

/// An executor in the job's process, as a place that answers the same control requests as a worker.
#[derive(Debug, Clone)]
pub struct InProcess(Arc<Attendant<Executor>>);

impl InProcess {
    /// Creates a place for this executor.
    pub fn new(executor: Arc<Executor>) -> InProcess {
        InProcess(Arc::new(Attendant::new(executor, Reach::Job)))
    }

    /// Executes a request; the error is the reason for a refusal.
    pub fn control(&self, request: &Control) -> Result<ControlReply, Refused> {
        self.0.carry_out(request.clone())
    }

    /// Hands it a connection whose ticket it expects.
    pub fn hand_over(&self, ticket: &[u8; 32], socket: UnixStream) {
        drop(self.0.stripes().arrived(ticket, Conn::apart(socket.into())));
    }
}
