//! `mrcuda serve` as a process under test.

use crate::clock;
use crate::scene::{Scene, wait_for};
use crate::transport::Transport;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Timeout for a server to print its address, or to log which worker a job has.
const START: Duration = Duration::from_secs(60);
/// Timeout for its orderly end.
const END: Duration = Duration::from_secs(10);

/// A running server; ended when it goes out of scope.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// The address that it listens on.
    pub address: SocketAddr,
    /// What it said when it was ready.
    pub announcement: String,
    /// Its Unix socket, for clients of this machine.
    socket: PathBuf,
    /// The file with what it and its workers write to stderr.
    pub log: PathBuf,
}

impl Server {
    /// Starts a server on a free port. On the CPU driver `name` makes it a machine of its own.
    pub fn start(scene: &Scene, name: &str) -> Server {
        Server::start_with(scene, name, &[], &[])
    }

    /// Starts a server on the job's own machine, of which the CPU driver has the same GPUs.
    pub fn start_beside(scene: &Scene, name: &str) -> Server {
        Server::start_with(scene, name, &[], &[("SOFTGPU_SEED_ID", crate::scene::MACHINE)])
    }

    /// The same with more options and variables.
    pub fn start_with(scene: &Scene, name: &str, options: &[&str], env: &[(&str, &str)]) -> Server {
        Server::start_as(scene, name, &scene.install.file("mrcuda"), options, env)
    }

    /// The same for jobs that reach it in this way.
    pub fn start_for(by: Transport, scene: &Scene, name: &str, options: &[&str], env: &[(&str, &str)]) -> Server {
        let options = [by.options(), options].concat();
        let at = SocketAddr::new(by.listens_at(), 0);
        Server::launch(scene, name, &scene.install.file("mrcuda"), (at, scene.socket(name)), &options, env)
    }

    /// The same with this program.
    pub fn start_as(scene: &Scene, name: &str, program: &Path, options: &[&str], env: &[(&str, &str)]) -> Server {
        Server::launch(scene, name, program, ((Ipv4Addr::LOCALHOST, 0).into(), scene.socket(name)), options, env)
    }

    /// Starts a server that takes over from this one, called `name`, whose machine it has.
    pub fn successor(&self, scene: &Scene, name: &str, machine: &str) -> Server {
        self.successor_with(scene, name, machine, &[])
    }

    /// The same with more variables.
    pub fn successor_with(&self, scene: &Scene, name: &str, machine: &str, env: &[(&str, &str)]) -> Server {
        let env = [&[("SOFTGPU_SEED_ID", machine)], env].concat();
        Server::launch(scene, name, &scene.install.file("mrcuda"), (self.address, self.socket.clone()), &["--take-over"], &env)
    }

    /// The same with this program and more options.
    pub fn successor_as(&self, scene: &Scene, name: &str, machine: &str, program: &Path, options: &[&str]) -> Server {
        let (options, env) = ([&["--take-over"], options].concat(), [("SOFTGPU_SEED_ID", machine)]);
        Server::launch(scene, name, program, (self.address, self.socket.clone()), &options, &env)
    }

    /// Ends it, and starts another one at the same addresses.
    pub fn restart(&mut self, scene: &Scene, name: &str) {
        self.stop();
        let at = (self.address, self.socket.clone());
        *self = Server::launch(scene, name, &scene.install.file("mrcuda"), at, &[], &[]);
    }

    /// Whether its process has ended by itself, within a time; and how.
    pub fn wait_ended(&mut self, limit: Duration) -> Option<ExitStatus> {
        wait_for(limit, || self.child.try_wait().ok().flatten())
    }

    fn launch(
        scene: &Scene,
        name: &str,
        program: &Path,
        (listens_at, socket): (SocketAddr, PathBuf),
        options: &[&str],
        env: &[(&str, &str)],
    ) -> Server {
        let log = scene.path.join(format!("server-{name}.log"));
        let file = std::fs::File::create(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let mut command = std::process::Command::new(program);
        scene.dress(&mut command);
        command
            .args(["serve", "--listen", &listens_at.to_string(), "--token-file"])
            .arg(scene.token())
            .arg("--unix")
            .arg(&socket)
            .args(scene.hardware.option())
            .args(options)
            .env("SOFTGPU_SEED_ID", name)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start a server: {e}"));
        let (sender, receiver) = mpsc::channel();
        let out = child.stdout.take();
        // The thread reads to the end, so that the server never waits for a reader.
        std::thread::spawn(move || {
            for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok) {
                // After the first lines there is no listener.
                let _ = sender.send(line);
            }
        });
        let mut heard = String::new();
        while let Ok(line) = clock::receive(&receiver, START) {
            if let Some(address) = line.split_whitespace().find_map(|word| word.trim_end_matches([',', ';']).parse().ok()) {
                return Server { child, address, announcement: line, socket, log };
            }
            heard.push_str(&line);
        }
        // It said nothing useful: whether it still runs does not matter.
        let _ = child.kill();
        let _ = child.wait();
        let errors = std::fs::read_to_string(&log).unwrap_or_default();
        panic!("server {name} does not serve: {heard}{errors}");
    }

    /// A GPU of this server as a place that is reached over TCP, encrypted.
    pub fn place(&self, gpu: u32) -> String {
        format!("tls://{}/{gpu}", self.address)
    }

    /// The same GPU, reached in the best way that there is.
    pub fn nearest(&self, gpu: u32) -> String {
        format!("{}/{gpu}", self.address)
    }

    /// The same GPU over TCP without encryption.
    pub fn plain(&self, gpu: u32) -> String {
        format!("plain://{}/{gpu}", self.address)
    }

    /// The same GPU, reached in this way.
    pub fn by(&self, transport: Transport, gpu: u32) -> String {
        match transport {
            Transport::Tls => self.place(gpu),
            Transport::Plain => self.plain(gpu),
            Transport::Shm => self.unix_place(gpu),
            Transport::Rdma => format!("rdma://{}/{gpu}", self.address),
            Transport::Nearest => self.nearest(gpu),
        }
    }

    /// The same GPU over shared memory.
    pub fn unix_place(&self, gpu: u32) -> String {
        format!("unix:{}/{gpu}", self.socket.display())
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Process ids of its workers.
    pub fn workers(&self) -> Vec<u32> {
        let mut all = children(self.pid());
        all.retain(|pid| !is_greeter(*pid));
        all
    }

    /// The processes that greet its clients: one for those over TCP, and one for those at Unix sockets.
    pub fn greeters(&self) -> Vec<u32> {
        let mut all = children(self.pid());
        all.retain(|pid| is_greeter(*pid));
        all
    }

    /// The worker that serves a job: the log says so once the job has called it.
    pub fn worker_of(&self, job: u32) -> u32 {
        wait_for(START, || workers_of(&self.log, job).first().copied()).expect("a worker is named")
    }

    /// Kills it and all its workers at once, as in a power failure.
    pub fn kill(&mut self) {
        for pid in children(self.pid()).into_iter().chain([self.pid()]) {
            signal(pid, libc::SIGKILL);
        }
        // The process was ours; that it ended is all there is to know.
        let _ = self.child.wait();
    }

    /// Asks it to end, and waits for that. `None`: it did not in time, and was killed.
    pub fn stop(&mut self) -> Option<std::process::ExitStatus> {
        self.end_within(END)
    }

    /// The same with this time limit, in which jobs may move away.
    pub fn end_within(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        if self.runs() {
            signal(self.pid(), libc::SIGTERM);
        }
        let ended = wait_for(limit, || self.child.try_wait().ok().flatten());
        if ended.is_none() {
            self.kill();
        }
        ended
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What the server and its workers wrote to stderr so far.
    pub fn errors(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Workers that a server has given to a job according to its log, whether they live or not.
pub(crate) fn workers_of(log: &Path, job: u32) -> Vec<u32> {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let worker = |line: &str| {
        let (worker, rest) = line.split_once("worker ")?.1.split_once(" serves job ")?;
        (rest.split(' ').next()? == job.to_string()).then(|| worker.parse().ok())?
    };
    log.lines().filter_map(worker).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends a signal to a process that this test has started.
pub fn signal(pid: u32, signal: i32) {
    if let Ok(pid) = i32::try_from(pid) {
        // SAFETY: a system call without pointers. A process that has ended already is fine.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Whether this process greets clients for a server.
pub fn is_greeter(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "mrcuda-greeter")
}

/// Children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok);
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// The helper processes of a job: they are not its children, but have its process id as an argument.
pub fn helpers(job: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_helper = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|b| *b == 0);
        words.next().is_some_and(|w| w.ends_with(b"/mhelper")) && words.next() == Some(job.to_string().as_bytes())
    };
    pids.filter(is_helper).collect()
}
