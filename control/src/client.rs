//! The requesting side of the protocol.

use crate::answer::ReadError;
use crate::socket::{connect_within, has_no_listener, left_until};
use crate::{Answer, Event, Job, LONGEST_ANSWER, Migrate, Move, Park, Plan, Refusal, Request, directory, process};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Timeout for the job to accept a connection.
const CONNECTING: Duration = Duration::from_secs(5);
/// Timeout for the job to read a request, if the caller has none.
const WRITING: Duration = Duration::from_secs(5);

/// Why a job did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens: the job has ended, or the process was never a job.
    #[error("it does not run under mrcuda, has not made its first CUDA call yet, or could not open its GPU")]
    NoJob,
    /// The process with this id is a job, but is stopped.
    #[error("the process is stopped, so it does not answer (kill -CONT {0} continues it)")]
    Stopped(u32),
    /// The job refused the request.
    #[error("{}", .0.reason)]
    Refused(Refusal),
    /// Any other failure.
    #[error(transparent)]
    Failed(#[from] NoAnswer),
}

/// Why a running job gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// The job did not answer in time.
    #[error("the job does not answer (is the process stopped?)")]
    Timeout,
    /// The connection is closed.
    #[error("the job closed the connection: it has ended")]
    Ended,
    /// The connection was closed within the answer, or the answer is too long.
    #[error("the job's answer is cut off")]
    CutOff,
    /// The socket is another user's.
    #[error("{path} belongs to user {uid}")]
    OtherUser {
        /// The socket.
        path: PathBuf,
        /// Its user.
        uid: u32,
    },
    /// The answer is not understood.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It is an answer to something else.
    #[error("the job answers something else: {0:?}")]
    Other(Box<Answer>),
    /// The system's error.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for AskError {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::NoJob,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => NoAnswer::Timeout.into(),
            io::ErrorKind::ConnectionReset => NoAnswer::Ended.into(),
            _ => NoAnswer::Io(e).into(),
        }
    }
}

/// A connection to a job.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    /// Bytes that were read but not yet consumed.
    held: Vec<u8>,
}

impl Client {
    /// Connects to the job with this process id.
    ///
    /// # Errors
    /// See [`AskError`]; a directory or socket of another user is refused, except to root.
    pub fn connect(pid: u32) -> Result<Client, AskError> {
        let (directory, owner) = directory::of(pid);
        Client::connect_in(&directory, owner, pid)
    }

    /// Whether a process is a job, as far as that can be seen without waiting: one that refuses, or does not answer, is a job as well.
    pub fn is_job(pid: u32) -> bool {
        let (directory, owner) = directory::of(pid);
        let socket = directory.join(pid.to_string());
        directory::check_owner(&directory, owner).is_ok() && !has_no_listener(&socket)
    }

    /// Connects to the job with this process id in the directory of a user.
    fn connect_in(directory: &Path, owner: u32, pid: u32) -> Result<Client, AskError> {
        directory::check_owner(directory, owner)?;
        let socket = directory.join(pid.to_string());
        if process::is_stopped(pid) {
            // A process that is stopped need not be a job.
            return Err(if has_no_listener(&socket) { AskError::NoJob } else { AskError::Stopped(pid) });
        }
        // The exact user: for root, another user's directory could have a link to a socket of someone else.
        Client::open(&socket, |peer| peer == owner)
    }

    /// Connects to a socket by path.
    ///
    /// # Errors
    /// See [`AskError`]; a socket of another user is refused, except to root.
    pub fn connect_at(path: &Path) -> Result<Client, AskError> {
        let me = nix::unistd::Uid::effective().as_raw();
        Client::open(path, |peer| directory::may_ask(me, peer))
    }

    fn open(path: &Path, accepts: impl Fn(u32) -> bool) -> Result<Client, AskError> {
        let stream = connect_within(path, CONNECTING)?;
        let peer = getsockopt(&stream, PeerCredentials).map_err(io::Error::from)?;
        if !accepts(peer.uid()) {
            return Err(NoAnswer::OtherUser { path: path.to_owned(), uid: peer.uid() }.into());
        }
        Ok(Client { stream, held: Vec::new() })
    }

    /// Sends a request and waits for the answer: for at most `timeout` altogether, or without limit.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn ask(&mut self, request: &Request, timeout: Option<Duration>) -> Result<Answer, AskError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        self.request(request, until.unwrap_or_else(|| Instant::now() + WRITING))?;
        self.answer(until)
    }

    fn request(&mut self, request: &Request, until: Instant) -> Result<(), AskError> {
        match self.send(request.line().as_bytes(), until) {
            // A job that refuses the connection sends the reason and closes it, so the reason is read all the
            // same.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => Ok(other?),
        }
    }

    fn answer(&mut self, until: Option<Instant>) -> Result<Answer, AskError> {
        Answer::read(&self.line(until)?).map_err(NoAnswer::Read)?.map_err(AskError::Refused)
    }

    /// Waits without limit for the next event; [`Request::Subscribe`] must have been answered.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn next_event(&mut self) -> Result<Event, AskError> {
        Ok(Event::read(&self.line(None)?).map_err(NoAnswer::Read)?)
    }

    fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(left_until(until)?))?;
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// The next line, with its newline. The time is that for the whole line, however its bytes come.
    fn line(&mut self, until: Option<Instant>) -> Result<Vec<u8>, AskError> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.held[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.held.split_off(searched + at + 1);
                return Ok(std::mem::replace(&mut self.held, rest));
            }
            searched = self.held.len();
            let mut piece = [0; 16 << 10];
            let n = if searched as u64 >= LONGEST_ANSWER { 0 } else { self.read(&mut piece, until)? };
            if n == 0 {
                return Err(if searched == 0 { NoAnswer::Ended } else { NoAnswer::CutOff }.into());
            }
            self.held.extend_from_slice(&piece[..n]);
        }
    }

    fn read(&mut self, to: &mut [u8], until: Option<Instant>) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(until.map(left_until).transpose()?)?;
            match self.stream.read(to) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Requests the state of the job.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn list(&mut self, timeout: Option<Duration>) -> Result<Job, AskError> {
        match self.ask(&Request::List {}, timeout)? {
            Answer::Job(job) => Ok(job),
            other => Err(odd(other)),
        }
    }

    /// Requests a plan of a move.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn plan(&mut self, to: &str, gpu: Option<u32>, allow_different: bool) -> Result<Plan, AskError> {
        match self.ask(&Request::Plan { to: to.to_owned(), gpu, allow_different }, None)? {
            Answer::Plan(plan) => Ok(plan),
            other => Err(odd(other)),
        }
    }

    /// Requests a move.
    ///
    /// # Errors
    /// See [`AskError`]. A move that began and failed is not an error here; its state reports the failure.
    pub fn migrate(&mut self, migrate: Migrate) -> Result<Move, AskError> {
        self.moved(&Request::Migrate(migrate))
    }

    /// Requests that the job be parked.
    ///
    /// # Errors
    /// As for [`Client::migrate`].
    pub fn suspend(&mut self, park: Park) -> Result<Move, AskError> {
        self.moved(&Request::Suspend(park))
    }

    /// Requests that a copy of a job be kept current, and waits for the end of its first round if `wait` is set.
    ///
    /// # Errors
    /// As for [`Client::migrate`].
    pub fn keep_copy(&mut self, to: Option<&str>, every_ms: u64, wait: bool) -> Result<Move, AskError> {
        self.moved(&Request::KeepCopy { to: to.map(str::to_owned), every_ms, wait })
    }

    /// Requests that no copy of a job be kept any more.
    ///
    /// # Errors
    /// As for [`Client::migrate`].
    pub fn end_copy(&mut self) -> Result<Job, AskError> {
        match self.ask(&Request::KeepCopy { to: None, every_ms: 0, wait: true }, None)? {
            Answer::Job(job) => Ok(job),
            other => Err(odd(other)),
        }
    }

    /// Requests that a parked job go on.
    ///
    /// # Errors
    /// As for [`Client::migrate`].
    pub fn resume(&mut self, park: Park) -> Result<Move, AskError> {
        self.moved(&Request::Resume(park))
    }

    fn moved(&mut self, request: &Request) -> Result<Move, AskError> {
        the_move(self.ask(request, None)?)
    }

    /// Cancels a move.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn cancel(&mut self, id: Option<&str>) -> Result<Move, AskError> {
        self.begin_cancel(id)?;
        self.end_cancel()
    }

    /// The first half of [`Client::cancel`]: requests it. The job has the request, whatever becomes of this process.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn begin_cancel(&mut self, id: Option<&str>) -> Result<(), AskError> {
        self.request(&Request::Cancel { id: id.map(str::to_owned) }, Instant::now() + WRITING)
    }

    /// The second half: waits for the answer.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn end_cancel(&mut self) -> Result<Move, AskError> {
        the_move(self.answer(None)?)
    }

    /// Requests reports of moves.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn report(&mut self, id: Option<&str>, timeout: Option<Duration>) -> Result<Vec<Move>, AskError> {
        match self.ask(&Request::Report { id: id.map(str::to_owned), wait: false }, timeout)? {
            Answer::Moves(moves) => Ok(moves),
            other => Err(odd(other)),
        }
    }

    /// Waits until a move is over, and returns its report.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn wait_for(&mut self, id: &str) -> Result<Move, AskError> {
        match self.ask(&Request::Report { id: Some(id.to_owned()), wait: true }, None)? {
            Answer::Moves(mut moves) if moves.len() == 1 => Ok(moves.remove(0)),
            other => Err(odd(other)),
        }
    }
}

/// The move that an answer is about.
fn the_move(answer: Answer) -> Result<Move, AskError> {
    match answer {
        Answer::Move(it) => Ok(it),
        other => Err(odd(other)),
    }
}

fn odd(answer: Answer) -> AskError {
    NoAnswer::Other(answer.into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    /// A job that gives the same answer to every request.
    fn job(path: &Path, answer: &'static [u8]) -> std::thread::JoinHandle<String> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            (&stream).write_all(answer).unwrap();
            request
        })
    }

    fn scratch(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("mrcuda-control-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn a_job_s_directory_and_socket_belong_to_its_user() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let me = nix::unistd::Uid::effective().as_raw();
        let (ours, theirs) = (scratch("ours"), scratch("theirs"));
        for dir in [&ours, &theirs] {
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        let _listener = UnixListener::bind(ours.join("1")).unwrap();
        Client::connect_in(&ours, me, 1).unwrap();
        assert!(matches!(Client::connect_in(&ours, me, 2), Err(AskError::NoJob)));
        let refused = |dir: &Path, owner| Client::connect_in(dir, owner, 1).unwrap_err().to_string();
        assert!(refused(&ours, me + 1).contains("another user"));
        // Only root asks the jobs of other users, and only root can prepare this.
        symlink(ours.join("1"), theirs.join("1")).unwrap();
        if me == 0 {
            chown(&theirs, Some(me + 1), None).unwrap();
            assert!(refused(&theirs, me + 1).ends_with(&format!("belongs to user {me}")), "a link to another user's job");
        }
        [ours, theirs].iter().for_each(|dir| std::fs::remove_dir_all(dir).unwrap());
    }

    #[test]
    fn a_request_and_its_answer_are_lines() {
        let dir = scratch("ask");
        let path = dir.join("1");
        let job = job(&path, b"{\"v\":2,\"ok\":true,\"job\":{\"pid\":1}}\n");
        let answer = Client::connect_at(&path).unwrap().list(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(answer.pid, 1);
        assert_eq!(job.join().unwrap(), "{\"op\":\"list\",\"v\":2}\n");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_timeout_is_that_for_the_whole_answer() {
        let dir = scratch("slow");
        let path = dir.join("1");
        let listener = UnixListener::bind(&path).unwrap();
        let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_over = over.clone();
        let job = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) && stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut client = Client::connect_at(&path).unwrap();
        let (sender, answer) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let answer = client.list(Some(Duration::from_millis(200)));
            sender.send(answer.map_err(|why| why.to_string())).unwrap();
        });
        // It would never come; the limit is only for this test.
        let answer = answer.recv_timeout(Duration::from_secs(60));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        job.join().unwrap();
        assert!(answer.expect("no timeout").unwrap_err().contains("does not answer"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_stopped_process_is_a_job_only_if_it_has_a_socket() {
        use std::os::unix::fs::PermissionsExt;
        let dir = scratch("stopped");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        let me = nix::unistd::Uid::effective().as_raw();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
        while !process::is_stopped(child.id()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let none = Client::connect_in(&dir, me, child.id());
        let listener = UnixListener::bind(dir.join(child.id().to_string())).unwrap();
        let stopped = Client::connect_in(&dir, me, child.id());
        drop(listener);
        let ended = Client::connect_in(&dir, me, child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!((&none, &ended), (Err(AskError::NoJob), Err(AskError::NoJob))), "{none:?}, {ended:?}");
        assert!(matches!(stopped, Err(AskError::Stopped(_))), "{stopped:?}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn bad_answers_are_named() {
        let dir = scratch("bad");
        for (name, answer, want) in [
            ("empty", &b""[..], "closed"),
            ("cut", b"{\"v\":2", "cut off"),
            ("text", b"hello\n", "not understood"),
            ("version", b"{\"v\":1}\n", "version 1"),
            ("none", b"[]\n", "version none"),
            ("other", b"{\"v\":2,\"ok\":true,\"subscribed\":1}\n", "something else"),
        ] {
            let path = dir.join(name);
            let job = job(&path, answer);
            match Client::connect_at(&path).unwrap().list(Some(Duration::from_secs(5))) {
                Err(AskError::Failed(why)) => assert!(why.to_string().contains(want), "{name}: {why}"),
                other => panic!("{name}: {other:?}"),
            }
            job.join().unwrap();
        }
        let path = dir.join("refused");
        let job = job(&path, b"{\"v\":2,\"ok\":false,\"error\":\"busy\",\"reason\":\"m7 is under way\",\"id\":\"m7\"}\n");
        match Client::connect_at(&path).unwrap().migrate(Migrate::to("local")) {
            Err(AskError::Refused(r)) => assert_eq!((r.error, r.id.as_deref()), (ErrorCode::Busy, Some("m7"))),
            other => panic!("{other:?}"),
        }
        job.join().unwrap();
        assert!(matches!(Client::connect_at(&dir.join("nobody")), Err(AskError::NoJob)));
        let killed = AskError::from(io::Error::from(io::ErrorKind::ConnectionReset));
        assert!(killed.to_string().contains("it has ended"), "{killed}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
