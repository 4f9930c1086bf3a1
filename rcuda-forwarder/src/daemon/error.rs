//! Why the daemon cannot serve, or does not serve a client.

use super::admission::Source;
use super::log::LogLine;
use crate::certificate::CertificateError;
use crate::greet::GreetError;
use crate::munge::MungeError;
use crate::token::TokenError;
use crate::user::User;
use crate::user_tokens::TokensError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the daemon cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Neither an address nor a socket was given.
    #[error("nothing to listen on: neither an address nor a Unix socket was given")]
    Nowhere,
    /// The token cannot be read or created.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The tokens of users cannot be read.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// munge cannot be used.
    #[error("{0} (mrcuda serve --munge)")]
    Munge(#[from] MungeError),
    /// munged takes this process for one of another user.
    #[error(
        "munged says that this process is of uid {said}, and it is of uid {own}: munged must run outside of containers (mrcuda serve --munge)"
    )]
    MungeUser {
        /// The user by munged's word.
        said: u32,
        /// The user.
        own: u32,
    },
    /// A user or group who may use the server does not exist.
    #[error("this machine has no {what} (mrcuda serve {option})")]
    NoSuchUser {
        /// The user or group.
        what: String,
        /// The option that names it.
        option: &'static str,
    },
    /// A file with certificates cannot be read or created.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The certificate cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Tls(String),
    /// The address cannot be used.
    #[error("cannot listen on {at}: {source}")]
    Listen {
        /// The address or path.
        at: String,
        /// The system's error.
        source: io::Error,
    },
    /// The driver cannot be used.
    #[error("cannot use the CUDA driver {driver}: {why}")]
    Driver {
        /// Its path.
        driver: PathBuf,
        /// The reason.
        why: String,
    },
    /// The kernel lacks what the sandbox of workers requires.
    #[error("the kernel does not offer {0}, and --sandbox required needs it (--sandbox auto does with what there is)")]
    Sandbox(String),
    /// Workers cannot run as that user.
    #[error("workers cannot run as {name} (--worker-user): {why}")]
    WorkerUser {
        /// The user's name.
        name: String,
        /// The reason.
        why: String,
    },
    /// Clients cannot be greeted by a process of their own.
    #[error("no process can be started that greets clients (--sandbox required): {0}")]
    Greeter(io::Error),
    /// The host memory of workers cannot be limited.
    #[error(
        "the host memory of workers cannot be limited (--max-host-memory): {0}. The server needs a cgroup (version 2) of its own, with the \
         controller for memory: `Delegate=memory pids` in its unit, which the packages' has; in a shell: systemd-run --user --scope \
         -p Delegate=yes mrcuda serve …"
    )]
    HostMemory(String),
    /// The directory for compiled code cannot be used.
    #[error("{directory} cannot be used (--jit-cache): {why}")]
    JitCache {
        /// Its path.
        directory: PathBuf,
        /// The reason.
        why: String,
    },
    /// None of the GPUs can be opened.
    #[error("no worker can open a GPU: {0}")]
    NoWorker(String),
    /// More GPUs are to be offered than the driver has.
    #[error("{wanted} GPUs cannot be shared: the driver has {there}")]
    Gpus {
        /// Number of GPUs of the driver.
        there: u32,
        /// Number of GPUs requested.
        wanted: u32,
    },
    /// A GPU that is to be offered is not there.
    #[error("there is no GPU {name} (--gpus): the driver shows {there}")]
    UnknownGpu {
        /// What names it.
        name: String,
        /// Those that are there.
        there: String,
    },
    /// What names a GPU is not unique.
    #[error("several GPUs begin with {name} (--gpus): the driver shows {there}")]
    SeveralGpus {
        /// What names it.
        name: String,
        /// Those that are there.
        there: String,
    },
    /// A GPU is to be offered twice.
    #[error("{0} is named twice (--gpus)")]
    GpuTwice(String),
    /// The number of places to which jobs are to move does not match that of the GPUs.
    #[error("--drain names {places} places, and the server has {gpus} GPUs: name one place for all of them, or one for each")]
    DrainPlaces {
        /// Number of places.
        places: usize,
        /// Number of GPUs.
        gpus: usize,
    },
    /// Jobs are to move to files.
    #[error(
        "--drain cannot name file:DIR: a job writes no file on its machine because a server asks for it (memory parks jobs as well)"
    )]
    DrainFile,
    /// The server has ended, and not all jobs had moved away.
    #[error("not all jobs have moved away: {ended} workers were ended with their jobs' GPUs, and {failed} failed before")]
    NotDrained {
        /// Number of workers that still had a job.
        ended: usize,
        /// Number of workers that failed while their jobs were to move away.
        failed: usize,
    },
    /// The file for accounting cannot be used.
    #[error("cannot write the accounting to {file}: {source}")]
    Accounting {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The sockets that a service manager has passed cannot be used.
    #[error("the sockets that the service manager has passed cannot be used: {0}")]
    Passed(io::Error),
    /// A service manager has passed a socket for metrics.
    #[error("the service manager has passed a socket for metrics: add --metrics, whose address it replaces")]
    PassedMetrics,
    /// A service manager has passed sockets to a server that is to take over.
    #[error("the service manager has passed sockets, so there are none to take over (--take-over)")]
    PassedAndTaken,
    /// No other server can be taken over.
    #[error("cannot take over: {0}")]
    TakeOver(io::Error),
    /// The other server listens where this one would not.
    #[error("cannot take over: the other server also listens at {at}, where its clients would find nobody: add {option} {at}")]
    NotRepeated {
        /// The option that is missing.
        option: &'static str,
        /// Its value.
        at: String,
    },
    /// A thread or a signal mask could not be set up.
    #[error("cannot start serving: {0}")]
    Start(io::Error),
}

/// Why a connection was not handed to a worker.
#[derive(Debug, thiserror::Error)]
pub(super) enum AssignError {
    /// The daemon ends.
    #[error("the server is ending and takes no new jobs")]
    Stopping,
    /// An administrator drains the server.
    #[error("the server takes no new jobs for now (mrcuda drain)")]
    Closed,
    /// The connection to the client or the channel to the worker failed.
    #[error("{0}")]
    Connection(#[from] io::Error),
    /// The job wants a GPU that is not offered.
    #[error("{}", there_is_no_gpu(*gpu, *offered))]
    Gpu {
        /// The number that the job wants.
        gpu: u32,
        /// How many are offered.
        offered: u32,
    },
    /// The job's user was shut out while the job waited.
    #[error("{}", shut_out(.0))]
    Revoked(User),
    /// The server runs workers as the users of their jobs, and cannot do so for this one.
    #[error("its worker would have no user of its own: {0} (mrcuda serve --worker-user client)")]
    WorkerUser(String),
    /// The job's environment is malformed.
    #[error("its environment has a variable that cannot be passed on")]
    Environment,
    /// The client has as many workers as one client may.
    #[error("{client} has {workers} workers here, and one client gets no more (mrcuda serve --max-client-workers)")]
    ClientWorkers {
        /// The client.
        client: Source,
        /// Its workers.
        workers: usize,
    },
    /// The server has as many workers as it may.
    #[error("all {0} workers of this server have a client (mrcuda serve --max-workers)")]
    Workers(usize),
    /// The GPU has as many jobs as it may.
    #[error("GPU {gpu} has {}, and gets no more (mrcuda serve --max-gpu-jobs)", if *jobs == 1 { "a job".to_owned() } else { format!("{jobs} jobs") })]
    GpuFull {
        /// The GPU.
        gpu: u32,
        /// Its jobs.
        jobs: usize,
    },
    /// The client has started as many workers lately as it may.
    #[error(
        "{client} has started {per_minute} workers within a minute, and one client may start no more (mrcuda serve --max-client-rate)"
    )]
    Rate {
        /// The client.
        client: Source,
        /// How many it may start.
        per_minute: u32,
    },
    /// Too many jobs wait for a turn.
    #[error("too many jobs wait for a turn at this server")]
    TooManyWait,
    /// The job waited for a turn, and has disconnected.
    #[error("it has waited for a turn, and given up")]
    GaveUp,
    /// Too many clients ask about the server.
    #[error("too many clients ask this server about its state at the same time: ask again in a moment")]
    Questions,
    /// Too many requests wait for jobs to move.
    #[error("too many requests to move jobs wait at this server: ask again in a moment")]
    MoveRequests,
    /// Too many clients follow the server's events.
    #[error("too many clients follow the events of this server")]
    Followers,
    /// No worker has the GPU of this number.
    #[error("there is no such GPU")]
    NoSuchGpu,
    /// The driver's path cannot be sent to a worker.
    #[error("the path of the driver is not UTF-8")]
    DriverPath,
    /// The worker's process, channel or threads could not be made.
    #[error("a worker cannot be started: {0}")]
    Start(io::Error),
    /// The worker cannot open its GPU, and says why.
    #[error("{0}")]
    Opening(String),
    /// The worker ended before it had opened its GPU.
    #[error("its worker ended while it opened the GPU")]
    OpeningEnded,
    /// The worker exceeded the time limit for opening its GPU.
    #[error("its worker could not open the GPU within {} s", .0.as_secs())]
    OpeningTimeout(Duration),
    /// The worker ended before it had the connection.
    #[error("the worker ended before it got the job")]
    WorkerEnded,
    /// The ticket of a connection for large copies was used before.
    #[error("its ticket is used up")]
    TicketUsed,
    /// The worker that asked for a connection for large copies has ended.
    #[error("its worker has ended")]
    TicketWorkerEnded,
}

impl AssignError {
    /// What [`AssignError::reason`] says of jobs;
    pub(super) const REASONS_OF_JOBS: [&str; 18] = [
        "stopping",
        "closed",
        "revoked",
        "no_such_gpu",
        "environment",
        "worker_user",
        "client_workers",
        "workers",
        "gpu_full",
        "client_rate",
        "too_many_wait",
        "gave_up",
        "worker_start",
        "gpu_opening",
        "gpu_opening_ended",
        "gpu_opening_timeout",
        "worker_ended",
        "connection",
    ];
    /// of questions;
    pub(super) const REASONS_OF_QUESTIONS: [&str; 2] = ["too_many", "connection"];
    /// and of connections for large copies.
    pub(super) const REASONS_OF_COPIES: [&str; 3] = ["ticket_used", "worker_ended", "connection"];

    /// In one word, for those who count.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            AssignError::Stopping => "stopping",
            AssignError::Closed => "closed",
            AssignError::Connection(_) => "connection",
            AssignError::Gpu { .. } | AssignError::NoSuchGpu => "no_such_gpu",
            AssignError::Revoked(_) => "revoked",
            AssignError::Environment => "environment",
            AssignError::WorkerUser(_) => "worker_user",
            AssignError::ClientWorkers { .. } => "client_workers",
            AssignError::Workers(_) => "workers",
            AssignError::GpuFull { .. } => "gpu_full",
            AssignError::Rate { .. } => "client_rate",
            AssignError::TooManyWait => "too_many_wait",
            AssignError::GaveUp => "gave_up",
            AssignError::Questions | AssignError::MoveRequests | AssignError::Followers => "too_many",
            AssignError::DriverPath | AssignError::Start(_) => "worker_start",
            AssignError::Opening(_) => "gpu_opening",
            AssignError::OpeningEnded => "gpu_opening_ended",
            AssignError::OpeningTimeout(_) => "gpu_opening_timeout",
            AssignError::WorkerEnded | AssignError::TicketWorkerEnded => "worker_ended",
            AssignError::TicketUsed => "ticket_used",
        }
    }

    /// Whether the client may be served if it waits for others to leave.
    pub(super) fn may_pass(&self) -> bool {
        matches!(
            self,
            AssignError::GpuFull { .. } | AssignError::Rate { .. } | AssignError::ClientWorkers { .. } | AssignError::Workers(_)
        )
    }
}

fn shut_out(user: &User) -> String {
    match user {
        User::Token(token) => format!("the token of {} was revoked (mrcuda token)", token.name),
        User::Munge(account) => format!("{} may no longer use this server (mrcuda serve --munge)", account.name),
        User::System(account) => format!("{} may no longer use this server (mrcuda serve --unix-users)", account.name),
    }
}

fn there_is_no_gpu(gpu: u32, offered: u32) -> String {
    match offered {
        1 => format!("this server lends 1 GPU, number 0; there is no GPU {gpu}"),
        n => format!("this server lends {n} GPUs, numbered 0 to {}; there is no GPU {gpu}", n - 1),
    }
}

/// Why a client was refused, for the log; the client has been told already.
#[derive(Debug, thiserror::Error)]
pub(super) enum WelcomeError {
    /// Its greeting.
    #[error("a client at {peer} was refused: {error}")]
    Client {
        /// The client's address.
        peer: String,
        /// Why.
        error: GreetError,
    },
    /// A job.
    #[error("a job{} at {peer} was refused: {error}", of(user.as_ref()))]
    Job {
        /// The client's address.
        peer: String,
        /// The user that it has proved to be of.
        user: Option<User>,
        /// The GPU that it wants.
        gpu: u32,
        /// Its process, by its own word.
        pid: u32,
        /// Why.
        error: AssignError,
    },
    /// A question about the server.
    #[error("a question{} from {peer} was not answered: {error}", of(user.as_ref()))]
    Question {
        /// The client's address.
        peer: String,
        /// The user that it has proved to be of.
        user: Option<User>,
        /// Why.
        error: AssignError,
    },
    /// A connection for large copies.
    #[error("a copy from {peer} was refused: {error}")]
    Bulk {
        /// The client's address.
        peer: String,
        /// Why.
        error: AssignError,
    },
}

/// Whose a job is, for a sentence about it.
pub(super) fn of(user: Option<&User>) -> String {
    user.map(|user| format!(" of {}", user.name())).unwrap_or_default()
}

impl WelcomeError {
    /// The line of the log.
    pub(super) fn line(&self) -> LogLine {
        let line = LogLine::warning(self.to_string());
        match self {
            WelcomeError::Job { peer, user, gpu, pid, .. } => line.at_peer(peer).of_user(user.as_ref()).of_job(*pid).at_gpu(*gpu),
            WelcomeError::Question { peer, user, .. } => line.at_peer(peer).of_user(user.as_ref()),
            WelcomeError::Client { peer, .. } | WelcomeError::Bulk { peer, .. } => line.at_peer(peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::Account;
    use std::sync::Arc;

    #[test]
    fn every_reason_for_a_refused_job_is_in_the_list() {
        let here = Source::Here;
        let all = [
            AssignError::Stopping,
            AssignError::Closed,
            AssignError::Connection(io::ErrorKind::BrokenPipe.into()),
            AssignError::Gpu { gpu: 1, offered: 1 },
            AssignError::Environment,
            AssignError::WorkerUser(String::new()),
            AssignError::Revoked(User::Munge(Arc::new(Account { uid: 5, name: "ann".into() }))),
            AssignError::ClientWorkers { client: here.clone(), workers: 1 },
            AssignError::Workers(1),
            AssignError::GpuFull { gpu: 0, jobs: 1 },
            AssignError::Rate { client: here, per_minute: 1 },
            AssignError::TooManyWait,
            AssignError::GaveUp,
            AssignError::NoSuchGpu,
            AssignError::DriverPath,
            AssignError::Start(io::ErrorKind::NotFound.into()),
            AssignError::Opening(String::new()),
            AssignError::OpeningEnded,
            AssignError::OpeningTimeout(Duration::ZERO),
            AssignError::WorkerEnded,
        ];
        assert!(all.iter().all(|why| AssignError::REASONS_OF_JOBS.contains(&why.reason())));
        assert!(AssignError::REASONS_OF_JOBS.iter().all(|reason| all.iter().any(|why| why.reason() == *reason)));
        let page = include_str!("../../../docs/servers.md");
        let reasons = [
            &AssignError::REASONS_OF_JOBS[..],
            &AssignError::REASONS_OF_QUESTIONS,
            &AssignError::REASONS_OF_COPIES,
            &GreetError::REASONS,
        ];
        for reason in reasons.concat() {
            assert!(page.contains(&format!("`{reason}`")), "docs/servers.md does not name `{reason}`");
        }
    }
}
