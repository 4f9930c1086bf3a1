//! The daemon that this one takes over from: it serves the jobs that it has until they have left.

use super::packets::Packets;
use super::service_manager::Sockets;
use super::socket::is_of_same_user;
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::server_state::FormerServer;
use crate::sync::lock;
use crate::threads;
use cuda_api::lock::wait_timeout;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// First packet of the one that takes over. The number changes with the packets.
pub(super) const ASK: &str = "take-over 1";
/// Its second packet, when it is ready to accept.
pub(super) const GO: &str = "go";
/// The answer: the other one accepts no more.
pub(super) const GONE: &str = "gone";
/// With the descriptor of a connection that the other one is to greet.
pub(super) const CONNECTION: &str = "connection";
/// What precedes the names of the sockets that are passed, the process, and a refusal.
pub(super) const SOCKETS: &str = "sockets ";
pub(super) const REFUSED: &str = "no ";

/// How long the other daemon may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// The name at which a daemon waits for one that takes over. Both have the same user, and listen at this address or path.
pub(super) fn name(listens_at: &str) -> Vec<u8> {
    let user = nix::unistd::geteuid();
    let digest = blake3::derive_key("mrcuda 2026 take-over", format!("{user} {listens_at}").as_bytes());
    let digits: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("mrcuda-{digits}").into_bytes()
}

/// A path as it is part of [`name`].
pub(super) fn of_path(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// What another process has said, for a message to the user.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// How many jobs a daemon has, and those that wait for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Jobs {
    pub(super) by_gpu: Vec<usize>,
    pub(super) in_memory: usize,
}

impl Jobs {
    pub(super) fn on(&self, gpu: u32) -> usize {
        if gpu == Endpoint::MEMORY { self.in_memory } else { self.by_gpu.get(gpu as usize).copied().unwrap_or(0) }
    }

    pub(super) fn all(&self) -> usize {
        self.by_gpu.iter().sum::<usize>() + self.in_memory
    }

    /// As a packet.
    pub(super) fn words(&self) -> String {
        let by_gpu: Vec<String> = self.by_gpu.iter().map(ToString::to_string).collect();
        format!("jobs {} {}", by_gpu.join(","), self.in_memory)
    }
}

impl FromStr for Jobs {
    type Err = ();

    fn from_str(text: &str) -> Result<Jobs, ()> {
        /// What no daemon has more of: a sum of such numbers is none that overflows.
        const MOST: u32 = 1 << 20;
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n <= MOST).map(|n| n as usize).ok_or(());
        let (by_gpu, in_memory) = text.strip_prefix("jobs ").and_then(|rest| rest.split_once(' ')).ok_or(())?;
        let by_gpu = by_gpu.split(',').map(number).collect::<Result<Vec<_>, ()>>()?;
        Ok(Jobs { by_gpu, in_memory: number(in_memory)? })
    }
}

/// What is known of it.
#[derive(Debug, Default)]
struct Known {
    jobs: Jobs,
    is_gone: bool,
    has_ended: bool,
    /// Why it has given up the hand-over, and goes on as before.
    refused: Option<String>,
}

/// The daemon that this one takes over from.
#[derive(Debug)]
pub(super) struct Earlier {
    pid: u32,
    packets: Packets,
    known: Mutex<Known>,
    changed: Condvar,
}

impl Earlier {
    /// Asks the daemon of this user that listens at an address or path for its sockets. It goes on accepting there until
    /// [`Earlier::retire`].
    pub(super) fn ask(listens_at: &str) -> io::Result<(Arc<Earlier>, Sockets)> {
        let packets = Packets::connect(&name(listens_at)).map_err(|e| match e.kind() {
            io::ErrorKind::ConnectionRefused => io::Error::new(e.kind(), "no server of this user can be taken over there"),
            _ => e,
        })?;
        // Anybody can listen at a name.
        if !is_of_same_user(&packets.socket())? {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a process of another user listens in its place"));
        }
        packets.send(ASK, &[])?;
        let (text, fds) = packets.receive(ANSWER)?;
        if let Some(why) = text.strip_prefix(REFUSED) {
            return Err(io::Error::other(printable(why)));
        }
        let unexpected = || io::Error::new(io::ErrorKind::InvalidData, "its answer is not understood");
        let (names, pid) = text.strip_prefix(SOCKETS).and_then(|rest| rest.split_once(' ')).ok_or_else(unexpected)?;
        let sockets = Sockets::named(names.split(',').filter(|name| !name.is_empty()), fds)?;
        let pid = pid.parse().map_err(|_| unexpected())?;
        // Before it is asked for more: so many jobs count from the beginning.
        let jobs = packets.receive(ANSWER)?.0.parse().map_err(|()| unexpected())?;
        let known = Mutex::new(Known { jobs, ..Known::default() });
        let earlier = Arc::new(Earlier { pid, packets, known, changed: Condvar::new() });
        let theirs = earlier.clone();
        threads::spawn("earlier", move || theirs.listen())?;
        Ok((earlier, sockets))
    }

    /// Notes what it says, until it ends.
    fn listen(&self) {
        const LONG: Duration = Duration::from_secs(3600);
        const PAUSE: Duration = Duration::from_millis(50);
        loop {
            let said = self.packets.receive(LONG);
            let mut known = lock(&self.known);
            match said {
                Ok((text, _)) if text == GONE => known.is_gone = true,
                Ok((text, _)) => match (text.strip_prefix(REFUSED), text.parse()) {
                    (Some(why), _) => known.refused = Some(printable(why)),
                    (None, Ok(jobs)) => known.jobs = jobs,
                    // What a later build may say is ignored.
                    (None, Err(())) => {}
                },
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    (known.jobs, known.has_ended) = (Jobs::default(), true);
                    self.changed.notify_all();
                    return;
                }
                Err(_) => {
                    drop(known);
                    std::thread::sleep(PAUSE);
                }
            }
            self.changed.notify_all();
        }
    }

    /// Has it accept no more, and end when it has no jobs. Returns when it no longer accepts, also because its process has ended; fails if
    /// it goes on instead.
    pub(super) fn retire(&self) -> io::Result<()> {
        match self.packets.send(GO, &[]) {
            // Whether it has ended or given up is what the other thread reads.
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
            r => r?,
        }
        let until = Instant::now() + ANSWER;
        let mut known = lock(&self.known);
        while !known.is_gone && !known.has_ended && known.refused.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
            }
            known = wait_timeout(&self.changed, known, left).0;
        }
        known.refused.clone().map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.packets.close();
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Its jobs, and those that wait for it; none once it has ended.
    pub(super) fn jobs(&self) -> Jobs {
        lock(&self.known).jobs.clone()
    }

    /// For those who ask.
    pub(super) fn described(&self) -> FormerServer {
        let jobs = self.jobs();
        let by_gpu = jobs.by_gpu.iter().map(|n| *n as u32).collect();
        FormerServer { pid: self.pid, jobs: by_gpu, parked: jobs.in_memory as u32 }
    }

    /// Whether its process is no longer there.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.known).has_ended
    }

    /// Has it greet a client, of which nothing has been read.
    pub(super) fn pass(&self, conn: &Conn) -> io::Result<()> {
        self.packets.send(CONNECTION, &[conn.socket()?])
    }
}

#[cfg(test)]
mod tests {
    use super::super::packets;
    use super::*;
    use crate::token::random;
    use nix::sys::socket::accept;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    #[test]
    fn jobs_are_written_and_read_back_and_other_text_is_refused() {
        for jobs in [Jobs { by_gpu: vec![1, 0, 32], in_memory: 2 }, Jobs { by_gpu: vec![0], in_memory: 0 }] {
            assert_eq!(jobs.words().parse(), Ok(jobs));
        }
        for bad in ["", "jobs", "jobs 1", "jobs  1", "jobs 1,x 1", "jobs 1 -1", "jobs 4294967295 0", "job 1 1", "jobs 1 1 1"] {
            assert_eq!(bad.parse::<Jobs>(), Err(()), "{bad}");
        }
        let jobs = Jobs { by_gpu: vec![1, 2], in_memory: 4 };
        assert_eq!((jobs.on(0), jobs.on(1), jobs.on(2), jobs.on(Endpoint::MEMORY), jobs.all()), (1, 2, 0, 4, 7));
    }

    /// What comes of it if the former daemon, instead of an answer to [`GO`], says this and ends, without reading anything.
    fn retired(says: Option<&str>) -> io::Result<()> {
        let at: String = random().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        let listener = packets::listen(&name(&at)).unwrap();
        std::thread::scope(|s| {
            let former = s.spawn(|| {
                // SAFETY: just made by accept; nothing else owns it.
                let fd = unsafe { OwnedFd::from_raw_fd(accept(listener.as_raw_fd()).unwrap()) };
                let packets = Packets::over(fd);
                assert_eq!(packets.receive(ANSWER).unwrap().0, ASK);
                packets.send(&format!("{SOCKETS} 1"), &[]).unwrap();
                packets.send(&Jobs { by_gpu: vec![3], in_memory: 0 }.words(), &[]).unwrap();
                packets
            });
            let (earlier, sockets) = Earlier::ask(&at).unwrap();
            assert!(sockets.is_empty() && earlier.jobs().all() == 3 && !earlier.has_ended());
            let former = former.join().unwrap();
            // Left unread: what it has said last must not be lost by that.
            earlier.packets.send("something", &[]).unwrap();
            says.into_iter().for_each(|text| former.send(text, &[]).unwrap());
            drop(former);
            let retired = earlier.retire();
            assert_eq!(earlier.jobs().all(), if earlier.has_ended() { 0 } else { 3 });
            retired
        })
    }

    #[test]
    fn a_daemon_that_has_ended_accepts_no_more_and_one_that_has_given_up_does() {
        retired(None).unwrap();
        retired(Some(GONE)).unwrap();
        assert_eq!(retired(Some("no it took too\nlong")).unwrap_err().to_string(), "it took too long");
    }

    #[test]
    fn a_name_is_of_a_user_and_an_address() {
        assert_eq!(name("127.0.0.1:7878"), name("127.0.0.1:7878"));
        assert_ne!(name("127.0.0.1:7878"), name("0.0.0.0:7878"));
        assert_eq!(of_path(Path::new("/a/b")), "/a/b");
        assert!(of_path(Path::new("b")).starts_with('/'));
    }
}
