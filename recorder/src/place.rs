//! A place: where the calls of one device execute.

use crate::log::lock;
use cuda_api::code::{self, Code};
use rcuda_forwarder::{Control, ControlReply, Endpoint, InProcess, Landing, Link, Lost, Reply};
use replayer::{Applied, DeviceInfo, Executor, Options, Pending};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

/// Where a device may be asked to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spec {
    /// `local[:GPU]`: in this process.
    Local(u32),
    /// `HOST:PORT[/GPU]`: a worker of a server.
    Remote(Endpoint),
}

impl FromStr for Spec {
    type Err = String;
    fn from_str(s: &str) -> Result<Spec, String> {
        if s == "helper" || s.starts_with("helper:") {
            return Err("helper places are not there yet; use local or HOST:PORT".into());
        }
        if let Some(gpu) = s.strip_prefix("local") {
            return match gpu.strip_prefix(':') {
                None if gpu.is_empty() => Ok(Spec::Local(0)),
                Some(n) => n.parse().map(Spec::Local).map_err(|_| format!("{s}: the GPU after local: is a number")),
                None => Err(format!("{s}: a place is local[:GPU] or HOST:PORT[/GPU]")),
            };
        }
        s.parse().map(Spec::Remote).map_err(|e| format!("{s}: {e}"))
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Spec::Local(gpu) => write!(f, "local:{gpu}"),
            Spec::Remote(e) => write!(f, "{e}"),
        }
    }
}

/// A place that is open. Clones are the same place.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// A worker process behind a connection.
    Remote {
        /// The connection.
        link: Arc<Link>,
        /// Where it leads.
        endpoint: Endpoint,
    },
    /// The executor in this process.
    Local {
        /// It.
        exec: Arc<Executor>,
        /// Answers its control requests.
        attendant: InProcess,
        /// Physical ordinal of its GPU.
        gpu: u32,
    },
}

static LOST: Mutex<Option<String>> = Mutex::new(None);

/// Why a worker was lost, as last heard.
pub(crate) fn why_lost() -> Option<String> {
    lock(&LOST).clone()
}

/// A lost worker, as a driver code.
fn lost(why: Lost) -> Code {
    // The last one counts: the target of a move that failed may have been lost earlier.
    *lock(&LOST) = Some(why.why.to_string());
    code::ERROR_DEVICE_UNAVAILABLE
}

/// An answer on its way.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// From a worker.
    Reply(Reply),
    /// When the GPU of this process gets there.
    Pending(Arc<Executor>, Pending, Vec<u8>),
    /// Already here.
    Done(Code, Vec<u8>),
}

impl Waiting {
    /// Waits. The bytes are the answer, or with an error what the place said of it.
    pub(crate) fn finish(self) -> (Code, Vec<u8>) {
        match self {
            Waiting::Reply(r) => r.wait().unwrap_or_else(|why| (lost(why), Vec::new())),
            Waiting::Pending(exec, pending, mut bytes) => {
                let rc = pending.wait(&exec, &mut bytes);
                (rc, bytes)
            }
            Waiting::Done(rc, bytes) => (rc, bytes),
        }
    }
}

impl Place {
    /// Opens a place for virtual device `device`.
    pub(crate) fn open(spec: &Spec, device: u32) -> Result<Place, String> {
        let config = crate::config::get()?;
        match spec {
            Spec::Local(gpu) => {
                let driver: PathBuf =
                    config.driver.clone().ok_or("there is no CUDA driver on this machine (mrcuda run --driver names one)")?;
                let options = Options { driver, gpu: *gpu, virtual_device: device };
                let exec = Executor::open(&options).map_err(|e| format!("{spec} cannot be used: {e}"))?;
                Ok(Place::Local { attendant: InProcess::new(exec.clone()), exec, gpu: *gpu })
            }
            Spec::Remote(endpoint) => {
                let token = rcuda_forwarder::Token::load(&config.token_file).ok();
                let text =
                    |(k, v): (std::ffi::OsString, std::ffi::OsString)| Some((k.into_string().ok()?, v.into_string().ok()?));
                let env = std::env::vars_os().filter_map(text).filter(|(k, _)| k.starts_with("CUDA_")).collect();
                let hello = rcuda_forwarder::JobHello { virtual_device: device, pid: std::process::id(), env };
                let link = Link::connect(endpoint, token.as_ref(), &hello).map_err(|e| e.to_string())?;
                Ok(Place::Remote { link, endpoint: endpoint.clone() })
            }
        }
    }

    /// What its GPU is.
    pub(crate) fn device(&self) -> &DeviceInfo {
        match self {
            Place::Remote { link, .. } => link.device(),
            Place::Local { exec, .. } => exec.device(),
        }
    }

    /// How it was asked for.
    pub(crate) fn spec(&self) -> Spec {
        match self {
            Place::Remote { endpoint, .. } => Spec::Remote(endpoint.clone()),
            Place::Local { gpu, .. } => Spec::Local(*gpu),
        }
    }

    /// Carries out a request that concerns the place as a whole. A refusal is an error.
    pub(crate) fn control(&self, request: &Control) -> Result<ControlReply, String> {
        match self {
            Place::Remote { link, .. } => link.control(request).map_err(|e| e.to_string()),
            Place::Local { attendant, .. } => attendant.control(request),
        }
    }

    /// Where other places can connect to it.
    pub(crate) fn address(&self) -> Option<&Endpoint> {
        match self {
            Place::Remote { endpoint, .. } => Some(endpoint),
            Place::Local { .. } => None,
        }
    }

    /// Gives a place that nobody can connect to its end of a connection, whose ticket it expects.
    pub(crate) fn hand_over(&self, ticket: &[u8; 32], socket: UnixStream) -> Result<(), String> {
        match self {
            Place::Remote { endpoint, .. } => Err(format!("{endpoint} takes no connections from the job")),
            Place::Local { attendant, .. } => {
                attendant.hand_over(ticket, socket);
                Ok(())
            }
        }
    }

    /// Leaves the place: everything there is freed.
    pub(crate) fn release(self) {
        match self {
            Place::Remote { link, .. } => link.close(),
            Place::Local { exec, .. } => exec.close(),
        }
    }

    /// Leaves a place in haste: whoever waits for it gets an error at once, and what it holds is freed later.
    pub(crate) fn abandon(&self) {
        match self {
            Place::Remote { link, .. } => link.abandon(),
            // It makes nobody wait.
            Place::Local { .. } => {}
        }
    }

    /// How calls get there.
    pub(crate) fn transport(&self) -> &'static str {
        match self {
            Place::Remote { endpoint, .. } if endpoint.unix_path().is_some() => "unix",
            Place::Remote { .. } => "tcp",
            Place::Local { .. } => "in-process",
        }
    }

    /// Hands a call over without waiting for it.
    pub(crate) fn send(&self, id: u16, parts: &[&[u8]]) -> Result<(), Code> {
        match self {
            Place::Remote { link, .. } => link.send(id, parts).map_err(lost),
            Place::Local { .. } => match self.begin(id, parts)?.finish().0 {
                code::SUCCESS => Ok(()),
                rc => Err(rc),
            },
        }
    }

    /// Hands a call over; the answer is waited for with [`Waiting::finish`], outside the gate if the GPU must get there first.
    pub(crate) fn begin(&self, id: u16, parts: &[&[u8]]) -> Result<Waiting, Code> {
        match self {
            Place::Remote { link, .. } => link.request(id, parts).map(Waiting::Reply).map_err(lost),
            Place::Local { exec, .. } => {
                let mut bytes = Vec::new();
                let joined;
                let body = match parts {
                    [one] => *one,
                    more => {
                        joined = more.concat();
                        &joined
                    }
                };
                Ok(match exec.apply(id, body, &mut bytes) {
                    Applied::Done(rc) => Waiting::Done(rc, bytes),
                    Applied::Pending(p) => Waiting::Pending(exec.clone(), p, bytes),
                })
            }
        }
    }

    /// As [`Place::begin`] for a worker; the answer's bytes go straight into host memory.
    ///
    /// # Safety
    /// The landing stays writable until the answer has come.
    pub(crate) unsafe fn begin_into(link: &Arc<Link>, id: u16, parts: &[&[u8]], landing: Landing) -> Result<Waiting, Code> {
        // SAFETY: passed on.
        unsafe { link.request_into(id, parts, landing) }.map(Waiting::Reply).map_err(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        assert_eq!("local".parse(), Ok(Spec::Local(0)));
        assert_eq!("local:3".parse(), Ok(Spec::Local(3)));
        assert!(matches!("gpubox:7878/1".parse(), Ok(Spec::Remote(e)) if e.port == 7878 && e.gpu == 1));
        for bad in ["", "local:x", "localhost", "helper", "a:b", "local2"] {
            assert!(bad.parse::<Spec>().is_err(), "{bad}");
        }
    }
}
