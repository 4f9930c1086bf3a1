//! The sandbox of workers: what the kernel refuses a worker, whatever its job makes it do.
//!
//! The daemon decides at its start what the kernel offers ([`Sandbox::plan`]), and each worker confines itself ([`Confinement::enter`])
//! when it has one thread, before it loads the driver and long before it reads a byte of a client. Two mechanisms of the kernel, which need no
//! privileges, overlap on purpose: Landlock ([`files`]) for files, processes and sockets outside, and a filter of system calls ([`calls`]).

use crate::config_file;
use cuda_api::wire_struct;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

mod calls;
mod error;
mod files;
mod greeter;

pub(crate) use error::SandboxError;
pub(crate) use greeter::GreeterConfinement;

/// Whether workers run in a sandbox: `mrcuda serve --sandbox`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SandboxMode {
    /// In as much of it as the kernel offers.
    #[default]
    Auto,
    /// In all of it, or the server does not start.
    Required,
    /// In none.
    Off,
}

wire_struct! {
    /// What a worker is confined to.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Confinement {
        /// Landlock is to be used.
        pub(crate) landlock: bool,
        /// System calls are to be filtered.
        pub(crate) seccomp: bool,
        /// Files and directories that it may read, besides those of the system.
        pub(crate) readable: Vec<String>,
        /// Directories in which it may create, write and remove files.
        pub(crate) writable: Vec<String>,
        /// It may connect to Unix sockets itself.
        pub(crate) unix_sockets: bool,
    }
}

impl Confinement {
    /// The same with one more directory in which it may write.
    pub(crate) fn with_writable(mut self, directory: Option<String>) -> Confinement {
        self.writable.extend(directory);
        self
    }

    /// Confines this process, which has one thread, for ever.
    pub(crate) fn enter(&self) -> Result<(), SandboxError> {
        executor::share::bind_ahead().map_err(SandboxError::Sockets)?;
        if self.landlock {
            files::restrict(&self.readable, &self.writable, self.unix_sockets)?;
        }
        if self.seccomp {
            calls::restrict(self.unix_sockets)?;
        }
        Ok(())
    }
}

/// What the operator has chosen, and what concerns it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wishes<'a> {
    pub(crate) mode: SandboxMode,
    pub(crate) driver: &'a Path,
    /// Where the driver may keep compiled code for all jobs,
    pub(crate) jit_cache: Option<&'a Path>,
    /// or, in directories in it, for those of each user.
    pub(crate) separate_caches: bool,
    /// As whom workers run, if not as the server's user.
    pub(crate) worker_user: Option<&'a str>,
    /// Files that no worker may read.
    pub(crate) secrets: &'a [PathBuf],
}

/// The sandbox of a server's workers.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    /// `None`: workers are not confined.
    pub(crate) confinement: Option<Confinement>,
    /// What is in force, for the log.
    pub(crate) words: String,
    /// Whether something is missing that was asked for.
    pub(crate) lacks: bool,
}

/// What the kernel offers.
#[derive(Debug, Clone, Copy)]
struct Kernel {
    /// The version of Landlock's interface.
    landlock: Option<u32>,
    seccomp: bool,
}

impl Kernel {
    fn probe() -> Kernel {
        Kernel { landlock: files::version(), seccomp: calls::are_filtered() }
    }

    /// What is missing.
    fn lacks(self) -> Vec<&'static str> {
        let lacks = [(self.landlock.is_none(), "Landlock"), (!self.seccomp, "seccomp")];
        lacks.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what).collect()
    }
}

impl Sandbox {
    /// The sandbox for workers of this machine's kernel. The error says what the kernel lacks of a sandbox that is required.
    pub(crate) fn plan(wishes: &Wishes<'_>) -> Result<Sandbox, String> {
        Sandbox::plan_for(Kernel::probe(), wishes, std::env::var_os("LD_LIBRARY_PATH"))
    }

    fn plan_for(kernel: Kernel, wishes: &Wishes<'_>, libraries: Option<OsString>) -> Result<Sandbox, String> {
        let user = match wishes.worker_user {
            Some(user) => user.to_owned(),
            None => "no user of their own".to_owned(),
        };
        if wishes.mode == SandboxMode::Off {
            return Ok(Sandbox {
                confinement: None,
                words: format!("workers: no sandbox (mrcuda serve --sandbox off); {user}"),
                lacks: true,
            });
        }
        let lacks = kernel.lacks();
        if wishes.mode == SandboxMode::Required && !lacks.is_empty() {
            return Err(lacks.join(" and "));
        }
        if let Some(cache) = wishes.jit_cache
            && contains_secret(wishes, &std::fs::canonicalize(cache).unwrap_or_else(|_| cache.to_owned()))
        {
            return Err(format!("a cache that does not contain the server's secrets: {}", cache.display()));
        }
        let mps = mps_directory(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY"), Path::new("/tmp/nvidia-mps"));
        let unix_sockets = mps.is_some() || faults::asks_on_socket();
        let text = |path: &Path| path.to_str().map(ToOwned::to_owned);
        let has =
            |there: bool, what: &str| if there { what.to_owned() } else { format!("no {what} (the kernel does not offer it)") };
        let landlock = kernel.landlock.map(|version| format!("Landlock {version}"));
        let mut words = format!(
            "workers: {}, {}; {user}",
            landlock.unwrap_or_else(|| has(false, "Landlock")),
            has(kernel.seccomp, "seccomp")
        );
        if mps.is_some() {
            words.push_str("; they may connect to Unix sockets, because of CUDA's Multi-Process Service");
        }
        if let Some(cache) = wishes.jit_cache {
            let who = if wishes.separate_caches { "those of each user write to a directory in" } else { "all of them write to" };
            words.push_str(&format!("; {who} {}", cache.display()));
        }
        let shared_cache = wishes.jit_cache.filter(|_| !wishes.separate_caches);
        let confinement = Confinement {
            landlock: kernel.landlock.is_some(),
            seccomp: kernel.seccomp,
            readable: readable(wishes, libraries).iter().filter_map(|path| text(path)).collect(),
            writable: mps.iter().map(PathBuf::as_path).chain(shared_cache).filter_map(text).collect(),
            unix_sockets,
        };
        Ok(Sandbox { confinement: Some(confinement), words, lacks: !lacks.is_empty() })
    }
}

/// The driver with what lies beside it, and the directories in which the linker looks for libraries first. A directory that contains a secret is left
/// out.
fn readable(wishes: &Wishes<'_>, libraries: Option<OsString>) -> Vec<PathBuf> {
    let real = std::fs::canonicalize(wishes.driver).unwrap_or_else(|_| wishes.driver.to_owned());
    let beside = [wishes.driver, &real].map(|file| file.parent().map(Path::to_owned)).into_iter().flatten();
    let searched: Vec<PathBuf> = libraries.iter().flat_map(std::env::split_paths).filter(|path| path.is_absolute()).collect();
    let is_harmless = |directory: &PathBuf| !contains_secret(wishes, directory);
    let directories = beside.chain(searched).filter_map(|directory| std::fs::canonicalize(directory).ok());
    let mut all: Vec<PathBuf> = directories.filter(is_harmless).chain([real]).collect();
    all.sort();
    all.dedup();
    all
}

/// Whether a secret lies in this directory, given without links. A secret that does not exist yet will be where its directory leads.
fn contains_secret(wishes: &Wishes<'_>, directory: &Path) -> bool {
    let real = |file: &PathBuf| {
        let parent = config_file::parent(file);
        let parent = std::fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned());
        std::fs::canonicalize(file).unwrap_or_else(|_| file.file_name().map_or(parent.clone(), |name| parent.join(name)))
    };
    wishes.secrets.iter().any(|secret| real(secret).starts_with(directory))
}

/// Where the Multi-Process Service has its pipes, if it runs: a driver connects to it when it starts. The usual place counts only if nobody
/// but root and this user could have made it.
fn mps_directory(named: Option<OsString>, usual: &Path) -> Option<PathBuf> {
    let directory = named.as_deref().map_or(usual, Path::new);
    if named.is_none() {
        let about = std::fs::symlink_metadata(directory).ok()?;
        let is_ours = about.uid() == 0 || about.uid() == nix::unistd::geteuid().as_raw();
        if !about.is_dir() || !is_ours || about.mode() & 0o022 != 0 {
            return None;
        }
    }
    directory.join("control").exists().then(|| std::fs::canonicalize(directory).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Kernel = Kernel { landlock: Some(7), seccomp: true };
    const NONE: Kernel = Kernel { landlock: None, seccomp: true };

    fn wishes(mode: SandboxMode) -> Wishes<'static> {
        Wishes {
            mode,
            driver: Path::new("/usr/lib/libcuda.so.1"),
            jit_cache: None,
            separate_caches: false,
            worker_user: None,
            secrets: &[],
        }
    }

    #[test]
    fn what_the_kernel_lacks_is_said_and_what_is_required_must_be_there() {
        let auto = Sandbox::plan_for(FULL, &wishes(SandboxMode::Auto), None).unwrap();
        assert_eq!((auto.words.as_str(), auto.lacks), ("workers: Landlock 7, seccomp; no user of their own", false));
        let less = Sandbox::plan_for(NONE, &wishes(SandboxMode::Auto), None).unwrap();
        assert_eq!(less.words, "workers: no Landlock (the kernel does not offer it), seccomp; no user of their own");
        assert!(less.lacks && !less.confinement.unwrap().landlock);
        assert_eq!(Sandbox::plan_for(NONE, &wishes(SandboxMode::Required), None).unwrap_err(), "Landlock");
        let nothing = Kernel { landlock: None, seccomp: false };
        assert_eq!(Sandbox::plan_for(nothing, &wishes(SandboxMode::Required), None).unwrap_err(), "Landlock and seccomp");
        assert!(!Sandbox::plan_for(FULL, &wishes(SandboxMode::Required), None).unwrap().lacks);
        let off = Sandbox::plan_for(FULL, &wishes(SandboxMode::Off), None).unwrap();
        assert!(off.confinement.is_none() && off.lacks && off.words.contains("--sandbox off"), "{off:?}");
        let own = Wishes { worker_user: Some("as user gpu"), ..wishes(SandboxMode::Auto) };
        assert!(Sandbox::plan_for(FULL, &own, None).unwrap().words.ends_with("; as user gpu"));
    }

    #[test]
    fn a_directory_with_a_secret_is_not_readable() {
        let directory = std::env::temp_dir().join(format!("mrcuda-sandbox-{}", std::process::id()));
        let (libraries, home) = (directory.join("lib"), directory.join("home"));
        for path in [&libraries, &home] {
            std::fs::create_dir_all(path).unwrap();
            std::fs::write(path.join("libcuda.so.1"), "").unwrap();
        }
        let secrets = [home.join("token")];
        std::fs::write(&secrets[0], "").unwrap();
        let at = |driver: &Path| {
            let wishes = Wishes { driver, secrets: &secrets, ..wishes(SandboxMode::Auto) };
            let searched = std::env::join_paths([libraries.as_path(), &home, &directory, Path::new("relative")]).unwrap();
            readable(&wishes, Some(searched))
        };
        let (beside, driver) = (home.join("libcuda.so.1"), libraries.join("libcuda.so.1"));
        assert_eq!(at(&driver), [libraries.clone(), driver]);
        assert_eq!(at(&beside), [beside, libraries.clone()]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn secrets_that_are_made_later_and_caches_with_secrets_are_known() {
        let directory = std::env::temp_dir().join(format!("mrcuda-sandbox-later-{}", std::process::id()));
        let (home, link) = (directory.join("home"), directory.join("link"));
        std::fs::create_dir_all(&home).unwrap();
        std::os::unix::fs::symlink(&home, &link).unwrap();
        // The server makes it at its first start, by a path with a link.
        let secrets = [link.join("token")];
        let wishes = Wishes { secrets: &secrets, ..wishes(SandboxMode::Auto) };
        assert!(contains_secret(&wishes, &home) && contains_secret(&wishes, &directory));
        assert!(!contains_secret(&wishes, &home.join("cache")));
        let with_cache = |cache: &Path| Sandbox::plan_for(FULL, &Wishes { jit_cache: Some(cache), ..wishes }, None);
        for cache in [&home, &link, &directory] {
            let why = with_cache(cache).unwrap_err();
            assert!(why.starts_with("a cache that does not contain the server's secrets: "), "{why}");
        }
        assert!(with_cache(&directory.join("cache")).is_ok());
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn pipes_that_others_could_have_made_open_no_sockets_to_workers() {
        use std::os::unix::fs::PermissionsExt;
        let directory = std::env::temp_dir().join(format!("mrcuda-sandbox-mps-{}", std::process::id()));
        let (usual, link) = (directory.join("nvidia-mps"), directory.join("link"));
        std::fs::create_dir_all(&usual).unwrap();
        std::os::unix::fs::symlink(&usual, &link).unwrap();
        let allow = |mode| std::fs::set_permissions(&usual, std::fs::Permissions::from_mode(mode)).unwrap();
        allow(0o755);
        assert_eq!(mps_directory(None, &usual), None, "nothing listens there");
        std::fs::write(usual.join("control"), "").unwrap();
        let real = std::fs::canonicalize(&usual).unwrap();
        assert_eq!(mps_directory(None, &usual), Some(real.clone()));
        assert_eq!(mps_directory(None, &link), None, "a link that anybody can have put there");
        for mode in [0o775, 0o757, 0o777] {
            allow(mode);
            assert_eq!(mps_directory(None, &usual), None, "{mode:o}");
            // The operator may name what they like.
            assert_eq!(mps_directory(Some(usual.clone().into()), Path::new("/nowhere")), Some(real.clone()));
        }
        allow(0o755);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&usual, Some(4_000_001), None).unwrap();
            assert_eq!(mps_directory(None, &usual), None, "of another user");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
