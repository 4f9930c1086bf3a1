//! The options of a server.

use super::cluster_users::MungeOptions;
use super::drain::Drain;
use super::metrics_options::MetricsOptions;
use super::permitted::UserSpec;
use super::selection::SharedGpus;
use super::worker_users::WorkerUserSpec;
use crate::limits::{ClientLimits, EvictStopped, WorkerLimits};
use crate::sandbox::SandboxMode;
use crate::targets::Target;
use diagnostics::Format;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Options of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// TCP address; port 0 selects a free one.
    pub listen: Option<SocketAddr>,
    /// Unix socket, for the same user and root.
    pub unix: Option<PathBuf>,
    /// Other users who may use the Unix socket.
    pub unix_users: Vec<UserSpec>,
    /// CUDA driver.
    pub driver: PathBuf,
    /// Which of the GPUs that the driver shows are offered.
    pub gpus: SharedGpus,
    /// Token file; created if it does not exist. Needed for TCP only.
    pub token: PathBuf,
    /// File with the tokens of users; `None`: `tokens` beside the token. It need not exist, and may change while the server runs.
    pub tokens: Option<PathBuf>,
    /// Clients over TCP may show a credential of munge in place of a token.
    pub munge: Option<MungeOptions>,
    /// File with the server's certificate and private key; `None`: `server.pem` beside the token, created if it does not
    /// exist.
    pub certificate: Option<PathBuf>,
    /// File with the authorities that certify clients: jobs over TCP must then have a certificate, too.
    pub client_ca: Option<PathBuf>,
    /// Whether clients may do without encryption.
    pub allow_plain: bool,
    /// Whether network cards may write to and read from the memory of GPUs, for large copies over RDMA.
    pub gpudirect: bool,
    /// Program whose `worker` subcommand is [`crate::worker_main`].
    pub worker_exe: PathBuf,
    /// Maximum number of workers with a client; `None`: 64 for each GPU, at least 128.
    pub max_workers: Option<u32>,
    /// Maximum for one client address over TCP; `None`: 16 for each GPU, at least 32.
    pub max_client_workers: Option<u32>,
    /// Limits of what clients use together.
    pub clients: ClientLimits,
    /// Workers kept warm for each GPU, so that clients need not wait until theirs has opened it; at least 1.
    pub warm: u32,
    /// Resource limits of each worker.
    pub of_worker: WorkerLimits,
    /// When the memory of stopped jobs is evicted; `None`: it stays on the GPU.
    pub evict_stopped: Option<EvictStopped>,
    /// Bytes of host memory of each worker, which the kernel enforces by a cgroup; `None`: no limit.
    pub host_memory: Option<u64>,
    /// Where workers may connect to for moves; empty: the networks that this machine is in (docs/formats.md, "Control").
    pub targets: Vec<Target>,
    /// Whether workers run in a sandbox.
    pub sandbox: SandboxMode,
    /// As whom workers run; `None`: as the server's user. Only root can name another one.
    pub worker_user: Option<WorkerUserSpec>,
    /// Directory in which the driver keeps the code that it has compiled, for all jobs; `None`: it compiles for each job anew.
    pub jit_cache: Option<PathBuf>,
    /// Where jobs are to move on SIGTERM; `None`: they lose their GPU.
    pub drain: Option<Drain>,
    /// File to which a line of JSON is appended for each worker that has served a job.
    pub accounting: Option<PathBuf>,
    /// Where metrics are served; `None`: nowhere.
    pub metrics: Option<MetricsOptions>,
    /// Take over the sockets of the server of this user that listens at the same address or path.
    pub take_over: bool,
    /// How the log is written.
    pub log_format: Format,
    /// Called once with a text that says where the daemon listens.
    pub announce: fn(&str),
}
