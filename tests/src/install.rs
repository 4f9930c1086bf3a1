//! Locates the programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// An installation of mrcuda: a directory with the program and its libraries.
#[derive(Debug, Clone)]
pub struct Install {
    /// The directory with `mrcuda`, `mhelper`, `libmrcuda_shim.so`, `libmrcuda_nvml.so`, `libsoftgpu.so` and `orbit`.
    pub bin: PathBuf,
    /// Cargo's target directory, for whatever else is built; where there is no cargo, the directory above `bin`.
    pub target: PathBuf,
}

impl Install {
    /// The installation that the tests of this process use: the directory in `MRCUDA_BIN_DIR`, or else a release build, made
    /// by cargo at the first use.
    pub fn get() -> &'static Install {
        static INSTALL: OnceLock<Install> = OnceLock::new();
        INSTALL.get_or_init(|| match std::env::var_os("MRCUDA_BIN_DIR") {
            Some(bin) => {
                let bin =
                    std::fs::canonicalize(&bin).unwrap_or_else(|e| panic!("MRCUDA_BIN_DIR, {}: {e}", Path::new(&bin).display()));
                Install { target: bin.parent().unwrap_or(&bin).to_owned(), bin }
            }
            None => Install::build().unwrap_or_else(|why| panic!("{why}")),
        })
    }

    /// Builds everything that runs under test, in the release profile: the interpreter of the CPU driver needs it.
    pub fn build() -> Result<Install, String> {
        let target = target_directory()?;
        let status = cargo()
            .args(["build", "--release", "--target-dir"])
            .arg(&target)
            .args([
                "-p",
                "mrcuda",
                "-p",
                "mhelper",
                "-p",
                "nvml",
                "-p",
                "recorder",
                "-p",
                "softgpu",
                "-p",
                "tests",
                "-p",
                "microbench",
            ])
            .status()
            .map_err(|e| format!("cannot start cargo: {e}"))?;
        if !status.success() {
            return Err(format!("cargo build --release failed ({status})"));
        }
        Ok(Install { bin: target.join("release"), target })
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
    command
}

/// Cargo's target directory, from where the running program is.
pub fn target_directory() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    exe.ancestors()
        .find(|directory| directory.join("CACHEDIR.TAG").is_file())
        .map(Path::to_owned)
        .ok_or_else(|| format!("{} is not in a target directory of cargo: set MRCUDA_BIN_DIR", exe.display()))
}
