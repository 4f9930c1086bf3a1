//! Passes descriptors between processes of one machine: how a place accesses physical memory of another.
//!
//! Each process that offers something listens at an abstract Unix socket with a random name. A process of the same user (or root) that
//! knows the name and the sixteen-byte ticket of a descriptor receives it. Both are random, and only the job gets them.
//!
//! A process in a sandbox creates no sockets: it binds those at which it listens before ([`bind_ahead`]), and has another process connect
//! for it ([`connect_through`]).

use cuda_api::lock::lock;
use cuda_api::ops::Offer;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Name of the socket at which a process serves other processes of its machine.
pub type Name = [u8; 16];

/// Timeout of each side for the other's messages.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);
/// Size of a control message with one descriptor.
const CONTROL: usize = 64;

static OFFERS: Mutex<Option<HashMap<[u8; 16], OwnedFd>>> = Mutex::new(None);

/// Bytes of the system's random source.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0u8; N];
    // SAFETY: the buffer has this length.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(n) == Ok(bytes.len()) { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

fn address(name: &Name) -> io::Result<SocketAddr> {
    let hex: String = name.iter().map(|b| format!("{b:02x}")).collect();
    SocketAddr::from_abstract_name(format!("mrcuda-share-{hex}"))
}

/// Returns whether the peer belongs to our user or to root.
fn is_ours(stream: &UnixStream) -> bool {
    let mut who = MaybeUninit::<libc::ucred>::uninit();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, at) = (stream.as_raw_fd(), who.as_mut_ptr().cast());
    // SAFETY: the descriptor is open and the buffer has this length.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len) };
    // SAFETY: the call cannot fail.
    let me = unsafe { libc::geteuid() };
    // SAFETY: filled in by the call, which has succeeded.
    rc == 0 && matches!(unsafe { who.assume_init() }.uid, uid if uid == 0 || uid == me)
}

/// The name of this process's socket, which is created at the first use.
fn server() -> io::Result<Name> {
    static NAME: OnceLock<Option<Name>> = OnceLock::new();
    let name = NAME.get_or_init(|| serve("mrcuda-share", TIMEOUT, answer).ok());
    name.ok_or_else(|| io::Error::other("no socket for sharing memory can be made"))
}

/// Sockets with their names that were bound before they are needed.
static BOUND_AHEAD: Mutex<Vec<(Name, UnixListener)>> = Mutex::new(Vec::new());

/// Number of sockets at which one place serves others: [`offer`] and [`crate::Executor::show`] have one each.
const SOCKETS_OF_PLACE: usize = 2;

fn bind() -> io::Result<(Name, UnixListener)> {
    let name = random()?;
    Ok((name, UnixListener::bind_addr(&address(&name)?)?))
}

/// Binds the sockets at which a place of this process may serve others later, when it can create none any more.
///
/// # Errors
/// A socket cannot be created.
pub fn bind_ahead() -> io::Result<()> {
    for _ in 0..SOCKETS_OF_PLACE {
        let bound = bind()?;
        lock(&BOUND_AHEAD).push(bound);
    }
    Ok(())
}

/// Connects to the socket with a name on behalf of this process.
type Connector = Box<dyn Fn(&Name) -> io::Result<UnixStream> + Send + Sync>;

static CONNECTOR: OnceLock<Connector> = OnceLock::new();

/// From now on this process does not connect to sockets itself but has `connect` do so. The first call counts.
pub fn connect_through(connect: impl Fn(&Name) -> io::Result<UnixStream> + Send + Sync + 'static) {
    // A process has one daemon.
    let _ = CONNECTOR.set(Box::new(connect));
}

/// Connects to the socket with this name, whoever listens there.
///
/// # Errors
/// There is none.
pub fn connect(name: &Name) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&address(name)?)
}

/// Pause after a connection could not be accepted.
const BREATH: Duration = Duration::from_millis(50);

/// Creates a socket with a random name, and a thread that serves clients of our user, one after the other. `timeout` is the timeout for
/// each message of a client.
///
/// # Errors
/// The socket or the thread cannot be created.
pub fn serve(
    thread: &str,
    timeout: Duration,
    answer: impl Fn(UnixStream) -> io::Result<()> + Send + 'static,
) -> io::Result<Name> {
    let ahead = lock(&BOUND_AHEAD).pop();
    let (name, listener) = ahead.map_or_else(bind, Ok)?;
    let admit = move |visitor: UnixStream| {
        visitor.set_read_timeout(Some(timeout))?;
        visitor.set_write_timeout(Some(timeout))?;
        if is_ours(&visitor) { answer(visitor) } else { Ok(()) }
    };
    spawn_with_signals_blocked(thread, move || {
        listener.incoming().for_each(|visitor| match visitor {
            Ok(visitor) => drop(admit(visitor)),
            // Out of descriptors or memory, which may be temporary; retrying at once would keep a processor busy.
            Err(_) => std::thread::sleep(BREATH),
        })
    })?;
    Ok(name)
}

/// Connects to the socket with this name, which a process of our user has on this machine.
///
/// # Errors
/// There is none, or it belongs to another user.
pub fn visit(name: &Name, timeout: Duration) -> io::Result<UnixStream> {
    let stream = CONNECTOR.get().map_or_else(|| connect(name), |connector| connector(name))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    if is_ours(&stream) { Ok(stream) } else { Err(io::Error::from(io::ErrorKind::PermissionDenied)) }
}

/// Runs `run` with all signals blocked, so that a thread that it starts receives none: the program's handlers run on the program's
/// threads.
pub(crate) fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: plain sets of signals, filled by the first call; the mask is this thread's own.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = run();
    // SAFETY: `before` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// Starts a thread with all signals blocked.
pub(crate) fn spawn_with_signals_blocked(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    with_signals_blocked(|| std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop))
}

/// Unblocks the signals of this thread's own faults: it uses memory that the program may protect in order to detect accesses by a signal
/// handler.
pub(crate) fn take_faults() {
    let mut faults = MaybeUninit::uninit();
    // SAFETY: a plain set of signals, emptied by the first call; the mask is this thread's own.
    unsafe {
        libc::sigemptyset(faults.as_mut_ptr());
        libc::sigaddset(faults.as_mut_ptr(), libc::SIGSEGV);
        libc::sigaddset(faults.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, faults.as_ptr(), std::ptr::null_mut());
    }
}

/// Serves one client: reads which descriptor it requests, and sends that.
fn answer(mut visitor: UnixStream) -> io::Result<()> {
    let mut ticket = [0; 16];
    visitor.read_exact(&mut ticket)?;
    let wanted = lock(&OFFERS).as_ref().and_then(|all| all.get(&ticket)?.try_clone().ok());
    match wanted {
        Some(fd) => send(&visitor, fd.as_raw_fd()),
        None => visitor.write_all(&[0]),
    }
}

/// A message of one byte, with room for one descriptor; `use_it` sends or receives it.
fn message(
    socket: RawFd,
    byte: &mut u8,
    control: &mut [u64; CONTROL / 8],
    use_it: impl FnOnce(RawFd, *mut libc::msghdr) -> isize,
) -> isize {
    let mut part = libc::iovec { iov_base: std::ptr::from_mut(byte).cast(), iov_len: 1 };
    // SAFETY: all-zero is a valid message without anything.
    let mut m: libc::msghdr = unsafe { std::mem::zeroed() };
    (m.msg_iov, m.msg_iovlen) = (&raw mut part, 1);
    (m.msg_control, m.msg_controllen) = (control.as_mut_ptr().cast(), CONTROL);
    use_it(socket, &raw mut m)
}

/// Sends a descriptor.
pub(crate) fn send(to: &UnixStream, fd: RawFd) -> io::Result<()> {
    let (mut byte, mut control) = (1, [0; CONTROL / 8]);
    let sent = message(to.as_raw_fd(), &mut byte, &mut control, |socket, m| {
        // SAFETY: the message's control buffer has room for one descriptor (64 bytes, aligned), and lives across the call.
        unsafe {
            (*m).msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
            let head = libc::CMSG_FIRSTHDR(m);
            ((*head).cmsg_level, (*head).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*head).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd);
            libc::sendmsg(socket, m, libc::MSG_NOSIGNAL)
        }
    });
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives a descriptor.
pub(crate) fn receive(from: &UnixStream) -> io::Result<OwnedFd> {
    let (mut byte, mut control) = (0, [0; CONTROL / 8]);
    let mut found = None;
    let got = message(from.as_raw_fd(), &mut byte, &mut control, |socket, m| {
        // SAFETY: buffers of the stated lengths, which live across the call; the kernel fills in what the macros read.
        unsafe {
            let got = libc::recvmsg(socket, m, libc::MSG_CMSG_CLOEXEC);
            let head = libc::CMSG_FIRSTHDR(m);
            let one = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            if got == 1
                && !head.is_null()
                && ((*head).cmsg_level, (*head).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
                && (*head).cmsg_len == one
            {
                found = Some(OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned()));
            }
            got
        }
    });
    match found {
        Some(fd) => Ok(fd),
        None if got < 0 => Err(io::Error::last_os_error()),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "it is not offered any more")),
    }
}

/// Offers a descriptor to processes that know the returned offer.
pub(crate) fn offer(fd: OwnedFd) -> io::Result<Offer> {
    let (name, ticket) = (server()?, random()?);
    lock(&OFFERS).get_or_insert_default().insert(ticket, fd);
    let mut offer = [0; 32];
    offer[..16].copy_from_slice(&name);
    offer[16..].copy_from_slice(&ticket);
    Ok(offer)
}

/// Withdraws an offer of this process.
pub(crate) fn withdraw(offer: &Offer) {
    if let (Some(all), Some(ticket)) = (lock(&OFFERS).as_mut(), offer.last_chunk::<16>()) {
        all.remove(ticket);
    }
}

/// Fetches the descriptor of an offer, from this process or another one.
pub(crate) fn fetch(offer: &Offer) -> io::Result<OwnedFd> {
    let (name, ticket) = offer.split_at(16);
    let name = name.try_into().map_err(io::Error::other)?;
    let mut stream = visit(name, TIMEOUT)?;
    stream.write_all(ticket)?;
    receive(&stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Serializes the tests: a client that sends nothing delays the others.
    static TURN: Mutex<()> = Mutex::new(());

    #[test]
    fn who_knows_the_words_gets_the_descriptor() {
        let _turn = lock(&TURN);
        let file = File::open("/proc/self/exe").unwrap();
        let inode = |f: &File| std::os::unix::fs::MetadataExt::ino(&f.metadata().unwrap());
        let want = inode(&file);
        let offered = offer(file.into()).unwrap();
        for _ in 0..2 {
            assert_eq!(inode(&fetch(&offered).unwrap().into()), want);
        }
        let mut wrong = offered;
        wrong[20] ^= 1;
        assert_eq!(fetch(&wrong).unwrap_err().kind(), io::ErrorKind::NotFound);
        withdraw(&offered);
        assert_eq!(fetch(&offered).unwrap_err().kind(), io::ErrorKind::NotFound);
        wrong[3] ^= 1;
        assert_eq!(fetch(&wrong).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn one_who_says_nothing_keeps_nobody_for_long() {
        let _turn = lock(&TURN);
        let offered = offer(File::open("/proc/self/exe").unwrap().into()).unwrap();
        let _silent = UnixStream::connect_addr(&address(offered.first_chunk().unwrap()).unwrap()).unwrap();
        let short = UnixStream::connect_addr(&address(offered.first_chunk().unwrap()).unwrap()).unwrap();
        (&short).write_all(&[1, 2, 3]).unwrap();
        drop(short);
        let mut tries = 0;
        while fetch(&offered).is_err() {
            tries += 1;
            assert!(tries < 4);
        }
    }
}
