//! `mrcuda doctor`: checks the requirements, and reports what will not work on this machine and how to fix it.

mod finding;
mod machine;
mod program;
mod server;

use crate::config::ConfigError;
use crate::failure::Failure;
use crate::progress::waiting;
use crate::table::say;
use crate::{drivers, layout, probe};
use control::directory;
use finding::{Finding, Verdict};
use rcuda_forwarder::{Endpoint, Munge};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;

/// Arguments of `mrcuda doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// CUDA driver to check: a path, or `soft` for softgpu, which needs no GPU [default: $MRCUDA_DRIVER, or this machine's]
    #[arg(long, value_name = "PATH|soft")]
    driver: Option<OsString>,
    /// Check also the way to this server, and its GPUs: HOST:PORT, plain://HOST:PORT or unix:PATH
    #[arg(long, value_name = "SERVER")]
    server: Option<Endpoint>,
    /// Program to check: whether it would load mrcuda's libcuda.so.1
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Prints all findings; exit code 1 if something will not work. `unread`: why the configuration files cannot be used.
pub(crate) fn doctor(args: &DoctorArgs, unread: Option<&ConfigError>) -> Result<(), Failure> {
    let mut findings =
        vec![recorder(), driver(args.driver.clone().or_else(drivers::from_environment).as_ref()), runtime_directory(), token()];
    findings.extend(munge());
    findings.extend(unread.map(|why| Finding::bad("settings", why.to_string())));
    findings.extend(machine::check());
    if let Some(server) = &args.server {
        findings.extend(server::check(server));
    }
    if let Some(name) = args.program.first() {
        findings.extend(program::check(name));
    }
    let mut bad = 0;
    for finding in &findings {
        let mark = match finding.verdict {
            Verdict::Good => "ok",
            Verdict::Note => "note",
            Verdict::Bad => "BAD",
        };
        bad += usize::from(finding.verdict == Verdict::Bad);
        say(&format!("{mark:<5}{:<16}{}", finding.subject, finding.text));
    }
    if bad == 0 {
        say("everything that was looked at will work");
        Ok(())
    } else {
        say(&format!("{bad} of {} will not work", findings.len()));
        Err(Failure::silent(1))
    }
}

fn recorder() -> Finding {
    const SUBJECT: &str = "library";
    let path = match layout::beside(layout::RECORDER) {
        Ok(path) => path,
        Err(e) => return Finding::bad(SUBJECT, format!("{e}; cargo build --release makes it")),
    };
    let shown = waiting("the library is loaded");
    let loaded = probe::ask(&path, true);
    drop(shown);
    if let Err(why) = loaded {
        return Finding::bad(SUBJECT, format!("{} cannot be loaded: {why}", path.display()));
    }
    match layout::library_directory() {
        Ok(directory) => Finding::good(SUBJECT, format!("programs get it from {}", directory.display())),
        Err(e) => Finding::bad(SUBJECT, format!("the library directory cannot be laid out: {e}")),
    }
}

fn driver(named: Option<&OsString>) -> Finding {
    const SUBJECT: &str = "driver";
    let path = match named {
        Some(text) => match drivers::named(text) {
            Ok(path) => path,
            Err(why) => return Finding::bad(SUBJECT, why.to_string()),
        },
        None => match drivers::find() {
            Some(path) => path,
            None => {
                return Finding::note(
                    SUBJECT,
                    "none on this machine: jobs can start on a server (run --server) and cannot move to `local`",
                );
            }
        },
    };
    let soft = layout::beside(layout::SOFTGPU).is_ok_and(|soft| soft == path);
    let place = if soft { "softgpu, the driver without a GPU".to_owned() } else { path.display().to_string() };
    let shown = waiting("the driver starts");
    let probed = probe::ask(&path, false);
    drop(shown);
    match probed {
        Err(why) => Finding::bad(SUBJECT, format!("{place}: {why}")),
        Ok(found) => {
            let version = format!("CUDA {}.{}", found.version / 1000, found.version % 1000 / 10);
            match (found.init, found.gpus) {
                (0, 0) => Finding::bad(SUBJECT, format!("{place}: {version}, but it shows no GPU")),
                (0, n) => Finding::good(SUBJECT, format!("{place}: {version}, {n} GPU{}", if n == 1 { "" } else { "s" })),
                (code, _) => Finding::bad(SUBJECT, format!("{place}: {version}, but cuInit answers error {code}")),
            }
        }
    }
}

fn runtime_directory() -> Finding {
    const SUBJECT: &str = "control sockets";
    match directory::make() {
        Ok(path) => Finding::good(SUBJECT, format!("in {}", path.display())),
        Err(e) => Finding::bad(SUBJECT, format!("{e}; ps and migrate need it")),
    }
}

/// munge, if jobs of this user show it to servers.
fn munge() -> Option<Finding> {
    const SUBJECT: &str = "munge";
    let munge = Munge::from_environment()?;
    Some(match munge.check() {
        Ok(()) => Finding::good(SUBJECT, format!("munged answers; servers run as {}", munge.server)),
        Err(why) => Finding::bad(SUBJECT, why.to_string()),
    })
}

fn token() -> Finding {
    const SUBJECT: &str = "token";
    let path = rcuda_forwarder::Token::default_path();
    match std::fs::symlink_metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Finding::note(
            SUBJECT,
            format!("{} is not there: mrcuda serve makes one, copy it from there to use a server elsewhere", path.display()),
        ),
        Err(e) => Finding::bad(SUBJECT, format!("{}: {e}", path.display())),
        Ok(meta) if meta.mode() & 0o077 != 0 => Finding::bad(
            SUBJECT,
            format!("{} can be read by others (mode {:o}): chmod 600 it", path.display(), meta.mode() & 0o777),
        ),
        Ok(_) => match rcuda_forwarder::Token::load(&path) {
            Ok(token) => Finding::good(SUBJECT, format!("{}, fingerprint {}", path.display(), token.fingerprint())),
            Err(e) => Finding::bad(SUBJECT, e.to_string()),
        },
    }
}
