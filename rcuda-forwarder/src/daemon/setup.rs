//! What a server decides of its workers before it starts the first one: as whom they run, and what they are confined to.

use super::cgroups::Cgroups;
use super::error::ServeError;
use super::greeters::{Greeters, Pace, StartWith};
use super::log::{Log, LogLine};
use super::options::ServeOptions;
use super::privileges::{Privileges, WorkerUser};
use super::worker_command::Command;
use super::worker_users::{ClientUsers, WorkerUserSpec};
use crate::config_file;
use crate::handshake::ServerTls;
use crate::sandbox::{Confinement, GreeterConfinement, Sandbox, SandboxMode, Wishes};

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

/// What is decided of workers.
#[derive(Debug)]
pub(super) struct Setup {
    /// How they are started.
    pub(super) command: Command,
    /// The process that greets clients; `None`: the daemon does it itself.
    pub(super) greeter: Option<GreeterSetup>,
    /// What they confine themselves to.
    pub(super) confinement: Option<Confinement>,
    /// Where their host memory is limited, if it is.
    pub(super) cgroups: Option<Arc<Cgroups>>,
    /// The users that they run as, if each is that of its job.
    pub(super) client_users: Option<ClientUsers>,
}

impl Setup {
    /// What the options say. The log says what is in force.
    pub(super) fn of(o: &ServeOptions, log: Log) -> Result<Setup, ServeError> {
        let is_root = nix::unistd::geteuid().is_root();
        let named = match &o.worker_user {
            Some(WorkerUserSpec::Named(name) | WorkerUserSpec::Client(Some(name))) => Some(WorkerUser::find(name)?),
            Some(WorkerUserSpec::Client(None)) if !is_root => return Err(WorkerUser::only_root("client")),
            Some(WorkerUserSpec::Client(None)) | None => None,
        };
        let sandbox = sandbox(o)?;
        log(&if sandbox.lacks { LogLine::warning(&sandbox.words) } else { LogLine::info(&sandbox.words) });
        if is_root && o.worker_user.is_none() {
            let why = "serving as root: workers have root's files as far as no sandbox keeps them from these; better serve as a user who can \
                do less, or have workers run as one (--worker-user)";
            log(&LogLine::warning(why));
        }
        let (user, client_users) = if separates_users(o) {
            let users = ClientUsers::new(named, o.jit_cache.as_deref())?;
            (users.other.clone(), Some(users))
        } else {
            (named, None)
        };
        let cgroups = o.host_memory.map(Cgroups::of_this_process).transpose().map_err(ServeError::HostMemory)?.map(Arc::new);
        cgroups.iter().for_each(|cgroups| log(&LogLine::info(cgroups.words())));
        let command = worker_command(o, user, sandbox.confinement.is_some());
        let greeter = GreeterSetup::of(o, &sandbox, is_root);
        Ok(Setup { command, greeter, confinement: sandbox.confinement, cgroups, client_users })
    }
}

/// The process that greets clients.
#[derive(Debug)]
pub(super) struct GreeterSetup {
    pub(super) with: StartWith,
    /// Without it the server does not start.
    pub(super) is_required: bool,
    pub(super) pace: Pace,
}

impl GreeterSetup {
    /// `None`: such a process could do all that the daemon can.
    fn of(o: &ServeOptions, sandbox: &Sandbox, is_root: bool) -> Option<GreeterSetup> {
        let confinement =
            sandbox
                .confinement
                .as_ref()
                .map_or(GreeterConfinement { landlock: false, seccomp: false, own_user: is_root }, |workers| {
                    GreeterConfinement { landlock: workers.landlock, seccomp: workers.seccomp, own_user: is_root }
                });
        if !is_root && !confinement.seccomp {
            return None;
        }
        let command = Command {
            program: o.worker_exe.clone(),
            arguments: vec!["greeter".into()],
            // It ends with the daemon, which has clients until then.
            ignores_sigterm: true,
            privileges: Privileges { user: is_root.then(WorkerUser::nobody), without_capabilities: false },
            variables: Vec::new(),
        };
        let is_required = o.sandbox == SandboxMode::Required;
        Some(GreeterSetup { with: StartWith { command, confinement }, is_required, pace: Pace::USUAL })
    }

    /// What is in force, for the log.
    fn words(&self) -> String {
        let GreeterConfinement { landlock, seccomp, .. } = self.with.confinement;
        let user = self.with.command.privileges.user.as_ref().map(|user| format!("as user {}", user.name));
        let all = [user, landlock.then(|| "Landlock".to_owned()), seccomp.then(|| "seccomp".to_owned())];
        let all: Vec<String> = all.into_iter().flatten().collect();
        if all.is_empty() { "no sandbox".to_owned() } else { all.join(", ") }
    }

    /// Starts it for these clients. Where it cannot be, the daemon greets them itself, unless it is required.
    pub(super) fn start(
        &self,
        clients: &'static str,
        tls: Option<Arc<ServerTls>>,
        log: Log,
    ) -> Result<Option<Greeters>, ServeError> {
        match Greeters::start(self.with.clone(), (clients, tls), self.pace, log) {
            Ok(greeters) => {
                log(&LogLine::info(format!("{clients} are greeted by another process: {}", self.words())));
                Ok(Some(greeters))
            }
            Err(why) if self.is_required => Err(ServeError::Greeter(why)),
            Err(why) => {
                let text =
                    format!("{clients} are greeted by this process itself, because no other one can be started for it: {why}");
                log(&LogLine::warning(text));
                Ok(None)
            }
        }
    }
}

/// Whether each worker runs as the user of its job.
fn separates_users(o: &ServeOptions) -> bool {
    matches!(o.worker_user, Some(WorkerUserSpec::Client(_)))
}

/// The sandbox of workers, and the directory of compiled code, which it needs.
fn sandbox(o: &ServeOptions) -> Result<Sandbox, ServeError> {
    if let Some(directory) = &o.jit_cache {
        let failed = |why: String| ServeError::JitCache { directory: directory.clone(), why };
        if !directory.is_absolute() {
            return Err(failed("it is not an absolute path".to_owned()));
        }
        let is_new = !directory.exists();
        std::fs::create_dir_all(directory).map_err(|e| failed(e.to_string()))?;
        if is_new && separates_users(o) {
            // Each user has a directory in it.
            std::fs::set_permissions(directory, Permissions::from_mode(0o711)).map_err(|e| failed(e.to_string()))?;
        }
    }
    let beside_token = |name| config_file::parent(&o.token).join(name);
    let secrets: Vec<PathBuf> = [
        Some(o.token.clone()),
        Some(o.tokens.clone().unwrap_or_else(|| beside_token("tokens"))),
        Some(o.certificate.clone().unwrap_or_else(|| beside_token("server.pem"))),
        o.accounting.clone(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let worker_user = o.worker_user.as_ref().map(ToString::to_string);
    let wishes = Wishes {
        mode: o.sandbox,
        driver: &o.driver,
        jit_cache: o.jit_cache.as_deref(),
        separate_caches: separates_users(o),
        worker_user: worker_user.as_deref(),
        secrets: &secrets,
    };
    Sandbox::plan(&wishes).map_err(ServeError::Sandbox)
}

/// How workers are started, as this user or the server's.
fn worker_command(o: &ServeOptions, user: Option<WorkerUser>, confined: bool) -> Command {
    let mut variables: Vec<(&'static str, OsString)> = Vec::new();
    match o.jit_cache.as_ref().filter(|_| !separates_users(o)) {
        Some(directory) => variables.push(("CUDA_CACHE_PATH", directory.into())),
        // What one job has had compiled could be something else for the next one.
        None if confined || separates_users(o) => variables.push(("CUDA_CACHE_DISABLE", "1".into())),
        None => {}
    }
    let without_capabilities = confined && user.is_none() && nix::unistd::geteuid().is_root();
    let command = Command {
        program: o.worker_exe.clone(),
        arguments: vec!["worker".into()],
        ignores_sigterm: o.drain.is_some(),
        privileges: Privileges { user: None, without_capabilities },
        variables,
    };
    user.map_or_else(|| command.clone(), |user| command.as_user(&user))
}
