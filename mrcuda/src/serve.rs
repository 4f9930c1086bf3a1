//! `mrcuda serve` and the hidden `mrcuda worker` that it starts for each client.

use crate::failure::Failure;
use crate::{drivers, table};
use rcuda_forwarder::{ServeOptions, Token};
use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Arguments of `mrcuda serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on; clients must show the token. 0.0.0.0:PORT: on every network [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Unix socket to listen on, for clients of the same user on this machine
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// CUDA driver: a path, or `soft` for the one that needs no GPU
    #[arg(long, value_name = "PATH|soft")]
    driver: Option<OsString>,
    /// How many of the machine's GPUs to lend [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    gpus: Option<u32>,
    /// File with the token; made, readable by its owner only, if it is not there
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Where a server listens when it is not told.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7878";

/// Serves until SIGTERM or SIGINT.
pub(crate) fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let driver = match args.driver.clone().or_else(drivers::from_environment) {
        Some(text) => drivers::named(&text).map_err(Failure::new)?,
        None => drivers::find().ok_or_else(|| {
            Failure::new("this machine has no CUDA driver (mrcuda doctor says more; --driver soft needs no GPU)")
        })?,
    };
    let listen = match (&args.listen, &args.unix) {
        (Some(text), _) => Some(address(text)?),
        (None, Some(_)) => None,
        (None, None) => Some(address(DEFAULT_ADDRESS)?),
    };
    let token = args.token_file.clone().unwrap_or_else(Token::default_path);
    let worker_exe = std::env::current_exe().map_err(|e| Failure::new(format!("cannot find our own program: {e}")))?;
    rcuda_forwarder::serve(ServeOptions {
        listen,
        unix: args.unix.clone(),
        driver,
        gpus: args.gpus,
        token,
        worker_exe,
        announce: |line| table::say(line),
    })
    .map_err(Failure::new)
}

/// The address that a text means; names are looked up.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    let found = text.to_socket_addrs().map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => Failure::with_code(2, format!("cannot listen on `{text}`: an address is HOST:PORT ({e})")),
        _ => Failure::new(format!("cannot listen on `{text}`: {e}")),
    })?;
    found.into_iter().next().ok_or_else(|| Failure::new(format!("cannot listen on `{text}`: the name has no address")))
}

/// Carries out one client's calls; the arguments are the daemon's business.
pub(crate) fn worker(args: Vec<OsString>) -> i32 {
    rcuda_forwarder::worker_main(args)
}
