//! The process that greets clients: it speaks all that comes before a client has proved who it is, with no secret of the server and no file.
//!
//! The daemon accepts a connection and passes it on, with one end of a socket pair of its own ([`message`]). The greeter carries out the first part
//! of the greeting ([`greet::hear`]), for which the daemon signs the handshake, and returns what it has heard, with the session of TLS. Whether that
//! proves anything is decided by the daemon alone ([`greet::admit`]), which also answers the client. So whoever takes over this process, by an error
//! in what it does with bytes from the network, has the connections that it greets at that time, and one signature of a handshake
//! for each (docs/security.md, "The process that greets clients").

use crate::address_space;
use crate::conn::Conn;
use crate::greet::{self, Offer};
use crate::handshake::{Authority, HandshakeError, Identity, NotSigned, ServerTls, SignHandshake, TranscriptHash};
use crate::orphan;
use crate::packet;
use crate::sandbox::{GreeterConfinement, SandboxError};
use crate::sync::lock;
use crate::threads;
use message::{FromGreeter, NotHeard, Terms, ToGreeter};
use rustls::SignatureScheme;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) mod message;

/// How long the daemon may take to sign. Shorter than a greeting, so that the client is told.
const SIGNING: Duration = Duration::from_secs(4);
/// More than the C library keeps of a thread's stack: `PTHREAD_STACK_MIN`, 16 KiB, and on other processors up to 128 KiB.
const KEPT_STACK: usize = if cfg!(target_arch = "x86_64") { 64 << 10 } else { 256 << 10 };

/// Why the process ends before its daemon does.
#[derive(Debug, thiserror::Error)]
enum GreeterError {
    #[error("cannot confine the process that greets clients: {0}")]
    Sandbox(SandboxError),
    #[error("{0}")]
    Tls(HandshakeError),
    #[error("cannot talk to the server: {0}")]
    Channel(io::Error),
    #[error("the server said something unexpected")]
    Order,
}

/// Entry point of the hidden subcommand that [`crate::serve`] starts. Returns the exit status.
pub fn greeter_main(args: &[OsString]) -> i32 {
    if !args.is_empty() {
        eprintln!("mrcuda greeter: it takes no arguments, it is started by mrcuda serve");
        return 2;
    }
    // Before anything else: of the same user others may be there, too.
    // SAFETY: plain numbers.
    if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) } != 0 {
        eprintln!("mrcuda greeter: {}", io::Error::last_os_error());
        return 1;
    }
    // Whoever has started the server may have left it a file.
    orphan::shed(&[]);
    address_space::after_exec();
    // SAFETY: a text that ends with a zero names the first thread, and so the process in lists. The signals that a terminal or a service
    // manager sends to all processes of a server are the daemon's: this one ends with it.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"mrcuda-greeter".as_ptr());
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
    }
    run(GreeterConfinement::enter, greet_client)
}

/// Greets a client, given how connections are encrypted, the terms, the connection, and where to ask and to say what was heard.
pub(crate) type Greet = fn(Option<&ServerTls>, &Terms, OwnedFd, OwnedFd);

/// Greets clients until the daemon closes the channel. `enter` confines this process, which has one thread, and may have the channel at another
/// descriptor.
pub(crate) fn run(enter: impl FnOnce(&GreeterConfinement, &mut OwnedFd) -> Result<(), SandboxError>, greet: Greet) -> i32 {
    // What is freed is overwritten: libraries that we call leave keys of clients there.
    // SAFETY: plain numbers.
    unsafe { libc::mallopt(libc::M_PERTURB, 0xff) };
    let done = packet::from_stdin().map_err(GreeterError::Channel).and_then(|mut channel| {
        let served = serve(&mut channel, enter, greet);
        if let Err(why) = &served {
            // The daemon may have ended.
            let _ = FromGreeter::Unusable(why.to_string()).send(&channel);
        }
        served
    });
    match done {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("mrcuda greeter: {why}");
            1
        }
    }
}

fn serve(
    channel: &mut OwnedFd,
    enter: impl FnOnce(&GreeterConfinement, &mut OwnedFd) -> Result<(), SandboxError>,
    greet: Greet,
) -> Result<(), GreeterError> {
    let receive = |channel: &OwnedFd| packet::receive(channel, 2).and_then(ToGreeter::of_packet).map_err(GreeterError::Channel);
    let mut authorities: Vec<Authority> = Vec::new();
    let start = loop {
        match receive(channel)? {
            Some((ToGreeter::Authority(one), _)) => authorities.push(one),
            Some((ToGreeter::Start(start), _)) => break start,
            Some(_) => return Err(GreeterError::Order),
            // The daemon no longer needs it.
            None => return Ok(()),
        }
    };
    // Before it has read a byte of a client, and while there is one thread.
    enter(&start.confinement, channel).map_err(GreeterError::Sandbox)?;
    let tls = start.certificate.map(|certificate| {
        let authorities = start.certified_only.then_some(authorities);
        ServerTls::of(Arc::new(Identity { certificate, authorities }), Arc::new(NoKey))
    });
    let tls = tls.transpose().map_err(GreeterError::Tls)?.map(Arc::new);
    FromGreeter::Ready.send(channel).map_err(GreeterError::Channel)?;
    let greetings = Arc::new(Greetings::default());
    loop {
        match receive(channel)? {
            Some((ToGreeter::Greet(terms), fds)) => {
                let [client, answers] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| GreeterError::Order)?;
                let (tls, seat) = (tls.clone(), greetings.begin());
                // Without a thread both are closed, by which the daemon knows.
                let _ = threads::spawn("greeting", move || {
                    let _seat = seat;
                    below_kept_stack(move || greet(tls.as_deref(), &terms, client, answers));
                });
            }
            // The end of the channel is still the end of this process.
            Some((ToGreeter::Finish, _)) => greetings.finish(),
            Some(_) => return Err(GreeterError::Order),
            None => return Ok(()),
        }
    }
}

/// The greetings under way.
#[derive(Debug, Default)]
struct Greetings {
    state: Mutex<Going>,
}

#[derive(Debug, Default)]
struct Going {
    greetings: usize,
    /// The process ends with the last one.
    is_finishing: bool,
}

/// A greeting under way.
#[derive(Debug)]
struct Seat(Arc<Greetings>);

impl Greetings {
    fn begin(self: &Arc<Self>) -> Seat {
        lock(&self.state).greetings += 1;
        Seat(self.clone())
    }

    fn finish(&self) {
        let mut state = lock(&self.state);
        state.is_finishing = true;
        state.end_if_over();
    }
}

impl Going {
    fn end_if_over(&self) {
        if self.is_finishing && self.greetings == 0 {
            std::process::exit(0);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.greetings -= 1;
        state.end_if_over();
    }
}

/// Calls a function so deep in the stack of this thread that the C library gives back the pages that it has used: for the next thread it keeps
/// the first ones alone, which would keep what lies there of a client's keys.
#[inline(never)]
fn below_kept_stack(body: impl FnOnce()) {
    let first = [0u8; KEPT_STACK];
    std::hint::black_box(&first);
    body();
    std::hint::black_box(&first);
}

/// See [`Greet`].
pub(crate) fn greet_client(tls: Option<&ServerTls>, terms: &Terms, client: OwnedFd, answers: OwnedFd) {
    let deadline = Instant::now() + Duration::from_millis(terms.limit_ms);
    let (conn, answers) = (Conn::new(client), Arc::new(answers));
    let tls = tls.map(|tls| tls.signed_by(Arc::new(DaemonKey(answers.clone()))));
    let offer = Offer::of_bits(terms.offer, tls.as_ref());
    let heard = greet::hear(&conn, deadline, offer, &terms.nonce).and_then(|heard| Ok((heard, conn.session()?)));
    let message = match heard {
        Ok((heard, session)) => FromGreeter::Heard(heard, session),
        Err(why) => FromGreeter::NotHeard(NotHeard::of(&why), conn.session_to_part()),
    };
    // The daemon may have given the client up.
    let _ = message.send(&answers);
}

/// In place of the key that signs, before there is a connection.
#[derive(Debug)]
struct NoKey;

impl SignHandshake for NoKey {
    fn sign(&self, _: SignatureScheme, _: &TranscriptHash) -> Result<Vec<u8>, NotSigned> {
        Err(NotSigned("there is no key here".to_owned()))
    }
}

/// The key, which the daemon has.
#[derive(Debug)]
struct DaemonKey(Arc<OwnedFd>);

impl SignHandshake for DaemonKey {
    fn sign(&self, scheme: SignatureScheme, transcript: &TranscriptHash) -> Result<Vec<u8>, NotSigned> {
        let asked = FromGreeter::Sign(scheme.into(), *transcript).send(&self.0);
        let answer = asked.and_then(|()| {
            packet::wait(&self.0, Instant::now() + SIGNING)?;
            ToGreeter::receive_answer(&self.0)
        });
        match answer {
            Ok(Some(ToGreeter::Signed(Ok(signature)))) => Ok(signature),
            Ok(Some(ToGreeter::Signed(Err(why)))) => Err(NotSigned(why)),
            Ok(_) => Err(NotSigned("the server has no answer".to_owned())),
            Err(why) => Err(NotSigned(why.to_string())),
        }
    }
}
