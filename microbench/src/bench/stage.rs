//! Processes of a benchmark: servers, jobs, clients; all with a separate runtime directory and token, all ended with
//! it.

use crate::error::Error;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long any answer may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Where programs are, and the directory in which they play.
#[derive(Debug)]
pub(crate) struct Stage {
    /// A scratch directory, removed at the end. Its path is short: that of a Unix socket has room for 107 bytes.
    pub(crate) directory: PathBuf,
    /// The `mrcuda` under measurement.
    pub(crate) mrcuda: PathBuf,
    own: PathBuf,
    /// The token of the servers.
    token: PathBuf,
    /// The driver of this machine.
    pub(crate) driver: PathBuf,
    /// Number of GPUs of softgpu, if it is not its own default; on hardware it is not read.
    soft_gpus: Option<u32>,
}

impl Stage {
    /// `token`: that of servers that run already; otherwise the servers of this stage get one of their own.
    pub(crate) fn new(mrcuda: &Path, driver: &Path, token: Option<PathBuf>) -> Result<Stage, Error> {
        use std::os::unix::fs::DirBuilderExt;
        let directory = std::env::temp_dir().join(format!("mrb-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&directory).map_err(Error::file(&directory))?;
        let own = std::env::current_exe().map_err(|e| format!("cannot find our own program: {e}"))?;
        let token = token.unwrap_or_else(|| directory.join("token"));
        Ok(Stage { directory, mrcuda: mrcuda.to_owned(), own, token, driver: driver.to_owned(), soft_gpus: None })
    }

    /// The same, with so many GPUs if the driver is softgpu.
    pub(crate) fn with_soft_gpus(mut self, count: u32) -> Stage {
        self.soft_gpus = Some(count);
        self
    }

    /// The token of the servers.
    pub(crate) fn token(&self) -> PathBuf {
        self.token.clone()
    }

    fn dress(&self, command: &mut Command) {
        command
            .env("XDG_RUNTIME_DIR", &self.directory)
            .env("XDG_CONFIG_HOME", &self.directory)
            .env("XDG_STATE_HOME", self.directory.join("state"))
            .env("MRCUDA_TOKEN_FILE", self.token())
            .env("MRCUDA_DRIVER", &self.driver)
            .env_remove("MRCUDA_SERVERS")
            // softgpus of one name are one machine; on hardware the variable is not read.
            .env("SOFTGPU_SEED_ID", "local")
            // Servers over TCP represent other machines.
            .env("MRCUDA_FAULT_TCP_IS_FAR", "1")
            .envs(self.soft_gpus.map(|count| ("SOFTGPU_DEVICES", count.to_string())));
    }

    fn mrcuda(&self) -> Command {
        let mut command = Command::new(&self.mrcuda);
        self.dress(&mut command);
        command
    }

    /// Ourselves, on the driver itself.
    pub(crate) fn native(&self, args: &[&str]) -> Result<Process, Error> {
        self.with_driver(args, &self.driver)
    }

    /// Ourselves, on the driver itself, with one only of the GPUs that this process may use.
    pub(crate) fn native_on(&self, gpu: u32, args: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(&self.own);
        self.dress(&mut command);
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        command.env("CUDA_VISIBLE_DEVICES", one_of(&visible, gpu)).args(args).arg("--driver").arg(&self.driver);
        Process::start(command, "the program")
    }

    /// Any program: on the driver itself, or under `mrcuda run` at a place. `soft`: the driver must be put before the machine's.
    pub(crate) fn program(&self, program: &Path, args: &[&str], place: Option<&str>, soft: bool) -> Result<Process, Error> {
        let mut command = match place {
            Some(place) => {
                let mut command = self.mrcuda();
                command.args(["run", "--server", place, "--"]).arg(program);
                command
            }
            None => {
                let mut command = Command::new(program);
                self.dress(&mut command);
                if soft {
                    command.env("LD_LIBRARY_PATH", self.library_path()?);
                }
                command
            }
        };
        command.args(args).current_dir(&self.directory);
        Process::start(command, &program.display().to_string())
    }

    /// Where programs look for libraries, with the driver before all others.
    fn library_path(&self) -> Result<String, Error> {
        let directory = self.directory.join("native");
        let link = directory.join("libcuda.so.1");
        std::fs::create_dir_all(&directory).map_err(Error::file(&directory))?;
        // It is there from the program before.
        if !link.exists() {
            std::os::unix::fs::symlink(&self.driver, &link).map_err(Error::file(&link))?;
        }
        let others = std::env::var("LD_LIBRARY_PATH").map(|path| format!(":{path}")).unwrap_or_default();
        Ok(format!("{}{others}", directory.display()))
    }

    /// Ourselves, on any driver.
    pub(crate) fn with_driver(&self, args: &[&str], driver: &Path) -> Result<Process, Error> {
        let mut command = Command::new(&self.own);
        self.dress(&mut command);
        command.args(args).arg("--driver").arg(driver);
        Process::start(command, "the program")
    }

    /// Ourselves, without any driver.
    pub(crate) fn plain(&self, args: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(&self.own);
        command.args(args);
        Process::start(command, "the peer")
    }

    /// Ourselves, under `mrcuda run`, beginning at a place.
    pub(crate) fn job(&self, place: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Process, Error> {
        let mut command = self.mrcuda();
        command.envs(env.iter().copied()).arg("run");
        if place != "local" {
            command.args(["--server", place]);
        }
        command.arg("--").arg(&self.own).args(args);
        Process::start(command, place)
    }

    /// A server on a free TCP port of the loopback interface and on a Unix socket.
    pub(crate) fn server(&self, name: &str) -> Result<Server, Error> {
        self.server_at(name, Ipv4Addr::LOCALHOST.into())
    }

    /// A server on a free TCP port at this address of the machine and on a Unix socket.
    pub(crate) fn server_at(&self, name: &str, address: IpAddr) -> Result<Server, Error> {
        let listen = SocketAddr::new(address, 0).to_string();
        let socket = self.directory.join(name);
        let mut command = self.mrcuda();
        // Programs that are started one after the other each find a worker ready; many of them are one client for the server.
        command
            .args(["serve", "--warm", "2", "--max-client-workers", "256", "--allow-plain", "--listen", &listen, "--unix"])
            .arg(&socket);
        let mut process = Process::start(command, "the server")?;
        let said = process.line()?;
        let address =
            said.split_whitespace().find(|w| w.starts_with(&format!("{address}:"))).ok_or(format!("the server says `{said}`"))?;
        Ok(Server {
            // Without a prefix the job would share memory with it.
            tls: format!("tls://{address}/0"),
            tcp: format!("plain://{address}/0"),
            unix: format!("unix:{}/0", socket.display()),
            process,
        })
    }

    /// Moves a job; the report. A refusal is an error with its reason.
    pub(crate) fn migrate(&self, pid: u32, to: &str) -> Result<Value, Error> {
        self.command(&["migrate", &pid.to_string(), "--to", to, "--json"])
    }

    /// Parks a job in the memory of this machine; the report.
    pub(crate) fn suspend(&self, pid: u32) -> Result<Value, Error> {
        self.command(&["suspend", &pid.to_string(), "--json"])
    }

    /// Lets a parked job go on at a place; the report.
    pub(crate) fn resume(&self, pid: u32, to: &str) -> Result<Value, Error> {
        self.command(&["resume", &pid.to_string(), "--to", to, "--json"])
    }

    /// The answer of a job to a command.
    fn command(&self, args: &[&str]) -> Result<Value, Error> {
        let output = self.mrcuda().args(args).output()?;
        let report: Value =
            serde_json::from_slice(&output.stdout).map_err(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned())?;
        if report["ok"] == true { Ok(report) } else { Err(report["reason"].as_str().unwrap_or("no reason was given").into()) }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What is left there only costs space.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The name of a GPU by its number among those of a list, which is empty if all are visible.
fn one_of(visible: &str, gpu: u32) -> String {
    visible.split(',').map(str::trim).filter(|name| !name.is_empty()).nth(gpu as usize).map_or(gpu.to_string(), str::to_owned)
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its GPU, over TLS.
    pub(crate) tls: String,
    /// Its GPU, over TCP without encryption.
    pub(crate) tcp: String,
    /// Its GPU, over the Unix socket.
    pub(crate) unix: String,
    process: Process,
}

impl Server {
    /// Process ids of its workers.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let pid = self.process.pid();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok);
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<u32>>()).collect()
    }
}

/// Seconds of processor time that a process has used; its own, without its children.
pub(crate) fn processor_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the program's name, which may contain anything: user and system time are fields 14 and 15.
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11).take(2);
    let ticks: f64 = fields.filter_map(|n| n.parse::<f64>().ok()).sum();
    // SAFETY: a plain question.
    ticks / unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64
}

/// Bytes of memory that a process has to itself.
pub(crate) fn private_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kib = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    text.lines().filter(|l| l.starts_with("Private_")).filter_map(kib).sum::<u64>() << 10
}

/// A running process that speaks in lines. Ended when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Receiver<String>,
    name: String,
}

impl Process {
    fn start(mut command: Command, name: &str) -> Result<Process, Error> {
        let failed = |e| format!("cannot start {name}: {e}");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let (out, err) = (child.stdout.take().map(read), child.stderr.take().map(read));
        let (Some(lines), Some(errors)) = (out, err) else { return Err(Error::Found(format!("{name} has no output"))) };
        Ok(Process { input: child.stdin.take(), child, lines, errors, name: name.to_owned() })
    }

    /// Process id: `mrcuda run` becomes the program, so it is the program's.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line; an error if it ends or says nothing for too long.
    pub(crate) fn line(&mut self) -> Result<String, Error> {
        self.lines.recv_timeout(LIMIT).map_err(|_| {
            // Of several words the first is the cause.
            Error::Found(match self.errors.recv_timeout(Duration::from_millis(100)) {
                Ok(why) => {
                    ["mrcuda: ", "microbench: ", "error: "].iter().fold(&why[..], |w, p| w.trim_start_matches(p)).to_owned()
                }
                Err(_) => format!("{} exited, or did not answer within {LIMIT:?}", self.name),
            })
        })
    }

    /// The next line as JSON.
    pub(crate) fn answer(&mut self) -> Result<Value, Error> {
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|_| Error::Found(format!("{} says `{line}`", self.name)))
    }

    /// All lines to its end.
    pub(crate) fn all_lines(&mut self) -> Result<Vec<String>, Error> {
        let (mut all, until) = (Vec::new(), Instant::now() + LIMIT);
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => all.push(line),
                Err(RecvTimeoutError::Disconnected) => return Ok(all),
                Err(RecvTimeoutError::Timeout) => return Err(format!("{} did not end within {LIMIT:?}", self.name).into()),
            }
        }
    }

    /// Sends a line.
    pub(crate) fn send_line(&mut self, line: &str) -> Result<(), Error> {
        let input = self.input.as_mut().ok_or("its input is closed")?;
        // If it has ended, reading returns the reason.
        let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        Ok(())
    }

    /// Sends a line and reads one.
    pub(crate) fn ask(&mut self, line: &str) -> Result<Value, Error> {
        self.send_line(line)?;
        self.answer()
    }

    /// Waits for its end; an error if that is not success.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        self.input = None;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(Error::Found(format!("{} ended with {status}", self.name))) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A server ends its workers when it is asked to end; the others end with their input or at once.
        self.input = None;
        if matches!(self.child.try_wait(), Ok(None)) {
            if let Ok(pid) = i32::try_from(self.child.id()) {
                // SAFETY: a system call without pointers, on a child of ours that has not been waited for.
                unsafe { libc::kill(pid, libc::SIGTERM) };
            }
            for _ in 0..200 {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Lines as they come; the thread reads to the end, so that the process never waits for a reader.
fn read(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // There may be no listener any more.
            let _ = sender.send(line);
        }
    });
    receiver
}

/// The first server's GPU, over TLS: where jobs begin.
pub(super) fn home(servers: &[Server; 2]) -> &str {
    &servers[0].tls
}

#[cfg(test)]
mod tests {
    use super::one_of;

    #[test]
    fn a_gpu_is_one_of_those_that_may_be_used() {
        assert_eq!([one_of("", 1), one_of("3,GPU-5b2f", 1), one_of("3", 0)], ["1", "GPU-5b2f", "3"]);
    }
}
