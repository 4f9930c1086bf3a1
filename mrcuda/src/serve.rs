//! `mrcuda serve` and the hidden `mrcuda worker` that it starts for each client.

use crate::failure::Failure;
use crate::time::time;
use crate::value_error::ValueError;
use crate::{drivers, table};
use clap::ArgAction;
use rcuda_forwarder::{
    ClientLimits, Drain, EvictStopped, LogFormat, MetricsOptions, MungeOptions, PlaceSpec, SandboxMode, ServeOptions, SharedGpus,
    Target, Token, UserSpec, WorkerLimits, WorkerUserSpec, error_line, info_line,
};
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `mrcuda serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// TCP address to listen on, for clients that have the token; 0.0.0.0:PORT listens on all networks [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Unix socket to listen on, for clients of the same user on this machine
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Users of this machine who may use the Unix socket, too: any, USER (a name or number) or @GROUP [default: only the server's own user and
    /// root]
    #[arg(long, value_name = "USER,…", value_delimiter = ',')]
    unix_users: Vec<UserSpec>,
    /// CUDA driver: a path, or `soft` for softgpu, which needs no GPU
    #[arg(long, value_name = "PATH|soft")]
    driver: Option<OsString>,
    /// Which GPUs to share: the first N, or these, in this order: numbers, or UUIDs of GPUs or MIG instances (GPU-…, MIG-…), of which
    /// the beginning is enough. What CUDA_VISIBLE_DEVICES hides is not there [default: all]
    #[arg(long, value_name = "N|GPU,…")]
    gpus: Option<SharedGpus>,
    /// Token file; created, readable by its owner only, if it does not exist [default: ~/.config/mrcuda/token]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the tokens of users (mrcuda token), which may change while the server runs [default: tokens beside the token file]
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Clients over TCP who show a credential of munge need no token: those of these users of the cluster, who are any, USER (a name or
    /// number) or @GROUP, besides the server's own user and root [default: munge is not accepted]
    #[arg(long, value_name = "USER,…", value_delimiter = ',')]
    munge: Vec<UserSpec>,
    /// Unix socket of munged [default: that of libmunge]
    #[arg(long, value_name = "PATH")]
    munge_socket: Option<PathBuf>,
    /// File with the server's certificate (and those that lead from it to an authority) and its private key, in the PEM format
    /// [default: server.pem beside the token file; created, readable by its owner only, if it does not exist]
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// File with the certificates of authorities, in the PEM format: clients over TCP must have a certificate of one of them
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Accept connections without encryption, too, from clients that ask for it (plain://HOST:PORT, rdma://HOST:PORT)
    #[arg(long, action = ArgAction::Set, value_name = "true|false", num_args = 0..=1, require_equals = true)]
    #[arg(default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    allow_plain: bool,
    /// Over RDMA, let network cards write large copies to the GPU's memory and read them from there (GPUDirect RDMA by dma-buf), in place of
    /// this machine's memory; with --allow-plain. Never run on such a card: not for work that matters
    #[arg(long, action = ArgAction::Set, value_name = "true|false", num_args = 0..=1, require_equals = true)]
    #[arg(default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    gpudirect: bool,
    /// Maximum number of concurrent workers: one for each GPU of each job [default: 64 for each shared GPU, at least 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_workers: Option<u32>,
    /// Maximum number of concurrent workers for one client: a user with a token of their own, of a cluster (--munge) or of this machine (--unix-users), or an address over TCP [default: 16 for each shared GPU, at least 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_client_workers: Option<u32>,
    /// Maximum number of concurrent workers on each GPU; 1: GPUs are exclusive [default: no limit of its own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_gpu_jobs: Option<u32>,
    /// Maximum number of workers that one such client may start in a minute [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_client_rate: Option<u32>,
    /// Maximum GPU memory of each worker, so for each GPU of a job: programs see a GPU with this memory. Without what the driver needs
    /// for the context [default: that of the GPU]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_memory: Option<u64>,
    /// Maximum GPU memory of all workers of one such client together, and of all of the server's own user and root at its Unix socket
    /// [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_client_memory: Option<u64>,
    /// Workers kept ready for each shared GPU: this many clients that come at the same time need not wait until theirs has opened it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), default_value_t = 1)]
    warm: u32,
    /// Maximum host memory of each worker, with what its driver takes, which the kernel enforces by ending a worker that needs more. The server
    /// needs a cgroup of its own (systemd: Delegate=memory pids) [default: no limit but those that follow]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_host_memory: Option<u64>,
    /// Maximum memory for the module images of each worker; also for the decompressed code of one image [default: 8G, at most half of
    /// --max-host-memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_images: Option<u64>,
    /// Maximum memory for calls that wait at a worker, for example for a host function of the job. A worker whose queue stays full
    /// for 10 s ends [default: 2G, at most half of --max-host-memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_queue: Option<u64>,
    /// Maximum host memory that a worker mirrors (pinned, managed and registered memory that kernels use by address) [default: half
    /// of the machine's memory, or of --max-host-memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_pinned: Option<u64>,
    /// Maximum memory of a GPU that is parked here (HOST:PORT/memory); pages of zeros take none [default: half of the machine's memory, or
    /// of --max-host-memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_parked: Option<u64>,
    /// Evict the GPU memory of a job that gives no sign of life for this time, because it is stopped (SIGSTOP, a frozen cgroup): it is kept in
    /// host memory, and comes back before the job goes on. At least 15s [default: it stays on the GPU]
    #[arg(long, value_name = "TIME", value_parser = time)]
    evict_stopped: Option<u64>,
    /// Maximum host memory for that, for all jobs together; what does not fit stays on the GPU [default: half of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "evict_stopped")]
    evict_memory: Option<u64>,
    /// Targets to which jobs of other machines may move from here: any, none, ADDRESS[/BITS][:PORT[-PORT]], unix:PATH [default: the
    /// networks of this machine and the job's own address, ports from 1024 on]
    #[arg(long, value_name = "TARGET,…", value_delimiter = ',')]
    allow_target: Vec<Target>,
    /// Whether workers run in a sandbox of the kernel: auto, in as much of one as it offers; required, in a whole one, or the server
    /// does not start; off, in none
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Sandboxed::Auto)]
    sandbox: Sandboxed,
    /// As whom workers run; only for a server that root starts: a user (name or number), or `client`, the user of each job, as tokens, munge
    /// or the Unix socket name them. A job of root, or of who is not known, then runs as the USER of `client,USER`, or is refused. These users
    /// need access to the GPUs' devices [default: the server's user]
    #[arg(long, value_name = "USER|client[,USER]")]
    worker_user: Option<WorkerUserSpec>,
    /// Directory in which the driver keeps what it has compiled from PTX, for all jobs together: for jobs that trust each other [default: in
    /// a sandbox it keeps nothing]
    #[arg(long, value_name = "DIR")]
    jit_cache: Option<PathBuf>,
    /// On SIGTERM, take no new jobs, ask those that are served to move to this place, and end when all have left; one place, or one for
    /// each shared GPU. `local`: a GPU of the job's own machine; `memory`: park there. A second SIGTERM, and Ctrl-C, end at once
    #[arg(long, value_name = "PLACE,…", value_delimiter = ',')]
    drain: Vec<PlaceSpec>,
    /// End after this time even if jobs have not moved away; they lose their GPU
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s", requires = "drain")]
    drain_timeout: u64,
    /// Append a line of JSON to this file for each worker that has served a job: who has used which GPU, since when, how much memory
    #[arg(long, value_name = "FILE")]
    accounting: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics, and a page for browsers at http://ADDRESS:PORT/, to anyone who can
    /// connect; a port alone means 127.0.0.1 [default: nowhere]
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    metrics: Option<String>,
    /// Have the metrics and the page name each job, with its user and the machine that it comes from
    #[arg(long, action = ArgAction::Set, value_name = "true|false", num_args = 0..=1, require_equals = true)]
    #[arg(requires = "metrics")]
    #[arg(default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    metrics_jobs: bool,
    /// Take over from the server of this user that listens at the same address (otherwise at the same Unix socket): it gives its sockets to
    /// this one when this one can serve, takes no new jobs, and ends when the last of its jobs has left
    #[arg(long)]
    take_over: bool,
    /// How the log is written: as lines for people, or as an object of JSON in each line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogForm::Text)]
    log_format: LogForm,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LogForm {
    Text,
    Json,
}

/// Whether workers run in a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sandboxed {
    Auto,
    Required,
    Off,
}

/// Bytes, as people write them.
fn size(text: &str) -> Result<u64, ValueError> {
    let units = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let number = text.strip_suffix("iB").unwrap_or(text);
    let unit = units.iter().find_map(|(unit, shift)| Some((number.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    let bytes = digits.parse::<u64>().ok().filter(|n| *n > 0).and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or(ValueError::Bytes)
}

/// Default address of a server.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7878";

/// Serves until SIGTERM or SIGINT.
pub(crate) fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let served = serve_with(args);
    match args.log_format {
        LogForm::Text => served,
        // The reason is a line of the log, too.
        LogForm::Json => served.map_err(|why| why.printed_by(|message| _ = write!(io::stderr(), "{}", error_line(message)))),
    }
}

fn serve_with(args: &ServeArgs) -> Result<(), Failure> {
    let driver = match &args.driver {
        Some(text) => drivers::named(text).map_err(Failure::new)?,
        None => drivers::find().ok_or_else(|| {
            Failure::new("this machine has no CUDA driver (mrcuda doctor says more; --driver soft needs no GPU)")
        })?,
    };
    if args.gpudirect && !args.allow_plain {
        return Err(Failure::new("--gpudirect needs --allow-plain: RDMA is not encrypted"));
    }
    let listen = match (&args.listen, &args.unix) {
        (Some(text), _) => Some(address(text)?),
        (None, Some(_)) => None,
        (None, None) => Some(address(DEFAULT_ADDRESS)?),
    };
    let token = args.token_file.clone().unwrap_or_else(Token::default_path);
    let usual = WorkerLimits::within(args.max_host_memory);
    let of_worker = WorkerLimits {
        images: args.max_images.unwrap_or(usual.images),
        queue: args.max_queue.unwrap_or(usual.queue),
        pinned: args.max_pinned.unwrap_or(usual.pinned),
        parked: args.max_parked.unwrap_or(usual.parked),
        memory: args.max_memory.unwrap_or(usual.memory),
    };
    let evict_stopped = args.evict_stopped.map(|ms| silence(ms, EvictStopped::shortest())).transpose()?;
    // The usual limit of parked memory, which takes host memory in the same way.
    let evict_memory = args.evict_memory.unwrap_or(WorkerLimits::of_machine().parked);
    let metrics = args.metrics.as_deref().map(metrics_address).transpose()?.map(|at| MetricsOptions {
        at,
        jobs: args.metrics_jobs,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("MRCUDA_COMMIT").to_owned(),
    });
    rcuda_forwarder::serve(ServeOptions {
        listen,
        unix: args.unix.clone(),
        unix_users: args.unix_users.clone(),
        driver,
        gpus: args.gpus.clone().unwrap_or_default(),
        token,
        tokens: args.tokens.clone(),
        munge: (!args.munge.is_empty()).then(|| MungeOptions { users: args.munge.clone(), socket: args.munge_socket.clone() }),
        certificate: args.certificate.clone(),
        client_ca: args.client_ca.clone(),
        allow_plain: args.allow_plain,
        gpudirect: args.gpudirect,
        // Not by its path, where another file could be put while this process runs: its workers must be the same
        // program.
        worker_exe: "/proc/self/exe".into(),
        max_workers: args.max_workers,
        max_client_workers: args.max_client_workers,
        clients: ClientLimits { memory: args.max_client_memory, rate: args.max_client_rate, gpu_jobs: args.max_gpu_jobs },
        warm: args.warm,
        of_worker,
        host_memory: args.max_host_memory,
        evict_stopped: evict_stopped.map(|after| EvictStopped { after, memory: evict_memory }),
        targets: args.allow_target.clone(),
        sandbox: match args.sandbox {
            Sandboxed::Auto => SandboxMode::Auto,
            Sandboxed::Required => SandboxMode::Required,
            Sandboxed::Off => SandboxMode::Off,
        },
        worker_user: args.worker_user.clone(),
        jit_cache: args.jit_cache.clone(),
        drain: (!args.drain.is_empty())
            .then(|| Drain { to: args.drain.clone(), timeout: Duration::from_millis(args.drain_timeout) }),
        accounting: args.accounting.clone(),
        metrics,
        take_over: args.take_over,
        log_format: match args.log_format {
            LogForm::Text => LogFormat::Text,
            LogForm::Json => LogFormat::Json,
        },
        announce: match args.log_format {
            LogForm::Text => |line| table::say(line),
            LogForm::Json => |line| table::say_as_it_is(&info_line(line.trim_start_matches("mrcuda: "))),
        },
    })
    .map_err(Failure::new)
}

/// Whole seconds without a sign of life, from milliseconds: there is one sign in a second.
fn silence(ms: u64, shortest: u32) -> Result<u32, Failure> {
    let seconds = u32::try_from(ms.div_ceil(1000)).ok().filter(|_| ms >= u64::from(shortest) * 1000);
    seconds.ok_or_else(|| {
        let why =
            format!("--evict-stopped: at least {shortest}s, because a job itself waits 10s for a sign of life of its server");
        Failure::with_code(2, why)
    })
}

/// Parses an address; names are resolved.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    let found = text.to_socket_addrs().map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => Failure::with_code(2, format!("cannot listen on `{text}`: an address is HOST:PORT ({e})")),
        _ => Failure::new(format!("cannot listen on `{text}`: {e}")),
    })?;
    found.into_iter().next().ok_or_else(|| Failure::new(format!("cannot listen on `{text}`: the name has no address")))
}

/// Parses the address for metrics: a port alone is one of this machine only.
pub(crate) fn metrics_address(text: &str) -> Result<SocketAddr, Failure> {
    match text.parse() {
        Ok(port) => Ok((Ipv4Addr::LOCALHOST, port).into()),
        Err(_) => address(text),
    }
}

/// Executes one client's calls; the daemon defines the arguments.
pub(crate) fn worker(args: Vec<OsString>) -> i32 {
    rcuda_forwarder::worker_main(args)
}

/// Greets clients; the daemon defines the arguments.
pub(crate) fn greeter(args: &[OsString]) -> i32 {
    rcuda_forwarder::greeter_main(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_for_this_machine_unless_an_address_is_given() {
        for (text, address) in [("9878", "127.0.0.1:9878"), ("0.0.0.0:1", "0.0.0.0:1"), ("[::1]:1", "[::1]:1")] {
            assert_eq!(metrics_address(text).unwrap().to_string(), address);
        }
        for bad in ["", "70000", "-1", "127.0.0.1", ":"] {
            assert!(metrics_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_silence_has_whole_seconds_and_is_not_too_short() {
        let seconds = |ms| silence(ms, 2).ok();
        assert_eq!([1999, 2000, 2001, 60_000].map(seconds), [None, Some(2), Some(3), Some(60)]);
        assert_eq!([14_999, 15_000].map(|ms| silence(ms, EvictStopped::shortest()).ok()), [None, Some(15)]);
        assert_eq!(seconds(u64::MAX), None);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("1"), size("3K"), size("2G"), size("5MiB")), (Ok(1), Ok(3 << 10), Ok(2 << 30), Ok(5 << 20)));
        for bad in ["", "0", "G", "iB", "1iB", "3GB", "-1", "1.5G", "1 G", "99999999T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
