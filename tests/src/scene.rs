//! A scratch directory for one test.

use crate::clock::Clock;
use crate::install::Install;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// softgpu's name of the machine on which jobs run.
pub const MACHINE: &str = "local";

/// Which driver is behind servers and jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hardware {
    /// softgpu.
    Soft,
    /// The driver of this machine.
    Real,
}

impl Hardware {
    /// The option that says so.
    pub fn option(self) -> &'static [&'static str] {
        match self {
            Hardware::Soft => &["--driver", "soft"],
            Hardware::Real => &[],
        }
    }
}

/// A scratch directory with a runtime directory and a token of its own. It is removed at the end, unless the test fails.
#[derive(Debug)]
pub struct Scene {
    /// The directory.
    pub path: PathBuf,
    /// The programs under test.
    pub install: Install,
    /// What GPUs there are.
    pub hardware: Hardware,
    /// `XDG_RUNTIME_DIR`; always a short path, since the path of a Unix socket has room for 107 bytes.
    runtime: PathBuf,
    keep: bool,
}

impl Scene {
    /// A scene on the CPU driver.
    pub fn new(name: &str) -> Scene {
        Scene::on(name, Hardware::Soft)
    }

    /// A scene on the given hardware.
    pub fn on(name: &str, hardware: Hardware) -> Scene {
        Scene::at(&unique(name), hardware)
    }

    /// A scene in a directory of the caller's choice, emptied first.
    pub fn at(path: &Path, hardware: Hardware) -> Scene {
        // What a run before has left.
        let _ = std::fs::remove_dir_all(path);
        let runtime = unique("run");
        make_directory(path);
        make_directory(&runtime);
        Scene { path: path.to_owned(), install: Install::get().clone(), hardware, runtime, keep: false }
    }

    /// Leaves the directory where it is.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// The token of this scene's servers.
    pub fn token(&self) -> PathBuf {
        self.path.join("token")
    }

    /// Where a server may put its Unix socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.runtime.join(format!("{name}.socket"))
    }

    /// Its runtime directory: no process of another scene has it in its environment.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// `mrcuda` with this scene's directories.
    pub fn mrcuda(&self) -> Command {
        let mut command = Command::new(self.install.file("mrcuda"));
        self.dress(&mut command);
        command
    }

    /// The jobs of this scene, as `mrcuda ps --json` lists them.
    ///
    /// # Errors
    /// It fails, or prints something else.
    pub fn jobs(&self) -> io::Result<Vec<Value>> {
        let output = self.mrcuda().args(["ps", "--json"]).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Gives a command this scene's directories, and what it is to know of other scenes: nothing.
    pub fn dress(&self, command: &mut Command) {
        command
            .env("XDG_RUNTIME_DIR", &self.runtime)
            .env("XDG_CONFIG_HOME", &self.path)
            .env("XDG_CACHE_HOME", &self.path)
            .env("XDG_STATE_HOME", self.path.join("state"))
            .env("MRCUDA_TOKEN_FILE", self.token())
            .env_remove("MRCUDA_DRIVER")
            .env_remove("MRCUDA_MUNGE")
            .env_remove("MRCUDA_NAME")
            .env_remove("MRCUDA_SERVERS")
            // Lines would be broken at this width.
            .env_remove("COLUMNS");
        if self.hardware == Hardware::Soft {
            // A machine of its own, with all its GPUs visible.
            command.env("SOFTGPU_SEED_ID", MACHINE).env_remove("CUDA_VISIBLE_DEVICES");
        }
    }

    /// A command that runs natively: on the CPU driver its directory comes first, on hardware it sees one GPU, as a job does.
    pub fn native(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.dress(&mut command);
        if self.hardware == Hardware::Real && std::env::var_os("CUDA_VISIBLE_DEVICES").is_none() {
            command.env("CUDA_VISIBLE_DEVICES", "0");
        }
        if self.hardware == Hardware::Soft {
            let directory = self.path.join("native");
            let link = directory.join("libcuda.so.1");
            if std::fs::symlink_metadata(&link).is_err() {
                std::fs::create_dir_all(&directory)
                    .and_then(|()| std::os::unix::fs::symlink(self.install.file("libsoftgpu.so"), &link))
                    .unwrap_or_else(|e| panic!("cannot make {}: {e}", link.display()));
            }
            command.env("LD_LIBRARY_PATH", directory);
        }
        command
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Leaving either would only cost space.
        let _ = std::fs::remove_dir_all(&self.runtime);
        if self.keep || std::thread::panicking() {
            eprintln!("what happened is in {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A unique path.
fn unique(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("mrt-{}-{number}-{name}", std::process::id()))
}

fn make_directory(path: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(path)
        .unwrap_or_else(|e| panic!("cannot make {}: {e}", path.display()));
}

/// Polls until the answer is available or the time limit is over, in time as [`Clock`] counts it.
pub fn wait_for<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let mut clock = Clock::new();
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if clock.counted() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
