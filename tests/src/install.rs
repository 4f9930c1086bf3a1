//! Locates the programs under test.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;

/// The profile in which everything is tested: only what executes kernels, compares memory or computes what tests expect is optimized, so that the rest is
/// compiled in a quarter of the time.
pub const PROFILE: &str = "quick";

/// Why mrcuda or the programs under test could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A file or directory could not be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A program that builds could not be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// The program.
        program: String,
        /// The system's error.
        error: io::Error,
    },
    /// Cargo reported an error.
    #[error("cargo build --profile {profile} failed ({status})")]
    Cargo {
        /// The profile that was to be built.
        profile: String,
        /// How cargo ended.
        status: ExitStatus,
    },
    /// A compiler or linker reported an error.
    #[error("{command} failed:\n{output}")]
    Compiler {
        /// The command line.
        command: String,
        /// What it wrote.
        output: String,
    },
    /// A thread that runs compilers panicked.
    #[error("a compiler thread panicked")]
    Panicked,
    /// Pip reported an error.
    #[error("pip could not install {packages} ({status})")]
    Pip {
        /// The packages that were to be installed.
        packages: String,
        /// How pip ended.
        status: ExitStatus,
    },
    /// Python lacks what installs packages.
    #[error("python3 with pip or venv is needed to install nvcc from PyPI (Debian: apt-get install python3-venv)")]
    NoPip,
    /// The path of the running program is not known.
    #[error("{0}")]
    NoProgram(io::Error),
    /// The running program was not built by cargo, or has been copied elsewhere.
    #[error("{} is not in a target directory of cargo: set MRCUDA_BIN_DIR", .0.display())]
    NoTarget(PathBuf),
}

impl BuildError {
    /// Adds the path to an error of the system.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> BuildError {
        |error| BuildError::File { path: path.to_owned(), error }
    }

    /// Adds the program to the error of its start.
    pub(crate) fn start(program: &str) -> impl FnOnce(io::Error) -> BuildError {
        |error| BuildError::Start { program: program.to_owned(), error }
    }
}

/// An installation of mrcuda: a directory with the program and its libraries.
#[derive(Debug, Clone)]
pub struct Install {
    /// The directory with `mrcuda`, `mhelper`, `libmrcuda_shim.so`, `libmrcuda_nvml.so`, `libsoftgpu.so` and `orbit`.
    pub bin: PathBuf,
    /// Cargo's target directory, for whatever else is built; where there is no cargo, the directory above `bin`.
    pub target: PathBuf,
}

impl Install {
    /// The installation that the tests of this process use: the directory in `MRCUDA_BIN_DIR`, or else a build, made
    /// by cargo at the first use.
    pub fn get() -> &'static Install {
        static INSTALL: OnceLock<Install> = OnceLock::new();
        INSTALL.get_or_init(|| match std::env::var_os("MRCUDA_BIN_DIR") {
            Some(bin) => {
                let bin =
                    std::fs::canonicalize(&bin).unwrap_or_else(|e| panic!("MRCUDA_BIN_DIR, {}: {e}", Path::new(&bin).display()));
                Install { target: bin.parent().unwrap_or(&bin).to_owned(), bin }
            }
            None => Install::build(PROFILE).unwrap_or_else(|why| panic!("{why}")),
        })
    }

    /// Builds everything that runs under test, in a profile of `Cargo.toml`: [`PROFILE`] for tests, `release` for measurements.
    pub fn build(profile: &str) -> Result<Install, BuildError> {
        let target = target_directory()?;
        let status = cargo()
            .args(["build", "--profile", profile, "--target-dir"])
            .arg(&target)
            .args(
                ["mrcuda", "mhelper", "nvml", "recorder", "softgpu", "spank", "tests", "microbench"]
                    .iter()
                    .flat_map(|package| ["-p", package]),
            )
            .status()
            .map_err(BuildError::start("cargo"))?;
        if !status.success() {
            return Err(BuildError::Cargo { profile: profile.to_owned(), status });
        }
        Ok(Install { bin: target.join(profile), target })
    }

    /// A file of the installation.
    pub fn file(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The cargo that runs this program, or else the installed one, in the root of the workspace.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // The variables by which cargo describes this program. Build scripts that ask cargo to run them again when such a variable changes (ring's) would
    // run again, and all that uses their crates would be compiled again, whenever cargo runs below `cargo run` and then by itself.
    let names = std::env::vars_os().map(|(name, _)| name);
    let of_this_program =
        |name: &OsString| name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
    names.filter(of_this_program).for_each(|name| _ = command.env_remove(name));
    command
}

/// Cargo's target directory, from where the running program is.
pub fn target_directory() -> Result<PathBuf, BuildError> {
    let exe = std::env::current_exe().map_err(BuildError::NoProgram)?;
    target_of(&exe).map(Path::to_owned).ok_or(BuildError::NoTarget(exe))
}

/// The target directory that this program is in, as `PROFILE/PROGRAM` or `PROFILE/deps/PROGRAM`. Cargo's mark CACHEDIR.TAG does not tell:
/// cargo leaves it out where the directory was there before.
fn target_of(exe: &Path) -> Option<&Path> {
    let directory = exe.parent()?;
    let profile = if directory.ends_with("deps") { directory.parent()? } else { directory };
    if ["release", "debug", PROFILE].iter().any(|name| profile.ends_with(name)) { profile.parent() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_directories_are_found() {
        let found = |exe| target_of(Path::new(exe)).and_then(Path::to_str);
        assert_eq!(found("/m/target/quick/xtask"), Some("/m/target"));
        assert_eq!(found("/m/target/release/xtask"), Some("/m/target"));
        assert_eq!(found("/m/target/debug/deps/system-0f"), Some("/m/target"));
        assert_eq!(found("/bundle/bin/xtask"), None);
    }

    #[test]
    fn what_cargo_says_of_a_program_is_not_handed_down() {
        let cargo = cargo();
        let given =
            std::env::vars_os().map(|(name, _)| name).filter(|name| name == "CARGO_PKG_NAME" || name == "CARGO_MANIFEST_DIR");
        for name in given {
            assert!(cargo.get_envs().any(|(removed, value)| removed == name && value.is_none()), "{name:?}");
        }
    }
}
