//! nvcc, the runtime libraries and zig, installed from PyPI into the target directory on first use.

use crate::install::BuildError;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of the compiler; their versions belong together.
const NVCC: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];
/// The runtime of the previous CUDA version: programs built for one may run with the other.
const CUDART_12: [&str; 1] = ["nvidia-cuda-runtime-cu12==12.9.79"];
/// The last runtime that loads modules instead of libraries.
const CUDART_11: [&str; 1] = ["nvidia-cuda-runtime-cu11==11.8.89"];

/// NVIDIA's own Python binding of NVML.
const PYNVML: [&str; 1] = ["nvidia-ml-py==13.615.71"];

/// A linker that has the symbols of every version of glibc, and what has cargo use it. Their versions belong together.
const ZIGBUILD: [&str; 2] = ["ziglang==0.17.1", "cargo-zigbuild==0.24.1"];

/// CUDA 13.0's compiler and runtime.
#[derive(Debug, Clone)]
pub struct Toolchain {
    home: PathBuf,
}

impl Toolchain {
    /// The compiler in `target`, installed if it is not there.
    pub fn get(target: &Path) -> Result<Toolchain, BuildError> {
        let directory = target.join("nvcc-13.0.88");
        install(&directory, &NVCC)?;
        let home = directory.join("nvidia/cu13");
        // The wheels lack two links that nvcc relies on.
        link(&home.join("lib64"), "lib")?;
        link(&home.join("lib/libcudart.so"), "libcudart.so.13")?;
        Ok(Toolchain { home })
    }

    /// The compiler.
    pub fn nvcc(&self) -> PathBuf {
        self.home.join("bin/nvcc")
    }

    /// The runtime's headers.
    pub fn include(&self) -> PathBuf {
        self.home.join("include")
    }

    /// CUDA 13.0's shared runtime.
    pub fn cudart(&self) -> PathBuf {
        self.home.join("lib/libcudart.so.13")
    }
}

/// CUDA 12.9's shared runtime, installed into `target` if it is not there.
pub fn cudart_12(target: &Path) -> Result<PathBuf, BuildError> {
    let directory = target.join("cudart-12.9");
    install(&directory, &CUDART_12)?;
    Ok(directory.join("nvidia/cuda_runtime/lib/libcudart.so.12"))
}

/// CUDA 11.8's shared runtime, installed into `target` if it is not there.
pub fn cudart_11(target: &Path) -> Result<PathBuf, BuildError> {
    let directory = target.join("cudart-11.8");
    install(&directory, &CUDART_11)?;
    Ok(directory.join("nvidia/cuda_runtime/lib/libcudart.so.11.0"))
}

/// A directory for Python's search path with NVIDIA's binding of NVML, installed into `target` if it is not there.
pub fn pynvml(target: &Path) -> Result<PathBuf, BuildError> {
    let directory = target.join("pynvml-13.615.71");
    install(&directory, &PYNVML)?;
    Ok(directory)
}

/// A directory for Python's search path with zig, and in `bin` cargo-zigbuild, installed into `target` if they are not there.
pub fn zigbuild(target: &Path) -> Result<PathBuf, BuildError> {
    let directory = target.join("zigbuild-0.24.1");
    install(&directory, &ZIGBUILD)?;
    Ok(directory)
}

/// Installs packages into a separate directory; a marker file distinguishes a complete installation from an
/// interrupted one.
fn install(directory: &Path, packages: &[&str]) -> Result<(), BuildError> {
    let mark = directory.join("installed");
    let want = packages.join("\n");
    if std::fs::read_to_string(&mark).is_ok_and(|have| have == want) {
        return Ok(());
    }
    // An installation that was cut short, or an older one.
    let _ = std::fs::remove_dir_all(directory);
    eprintln!("installing {}", packages.join(" "));
    let mut pip = pip(directory)?;
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]).arg(directory).args(packages);
    let status = pip.status().map_err(BuildError::start("pip"))?;
    if !status.success() {
        return Err(BuildError::Pip { packages: packages.join(" "), status });
    }
    // Wheels are zip files: pip keeps modes of scripts only, so the programs are made executable here.
    if let Ok(entries) = std::fs::read_dir(directory.join("nvidia/cu13/bin")) {
        entries.filter_map(Result::ok).try_for_each(|e| executable(&e.path()))?;
    }
    let cicc = directory.join("nvidia/cu13/nvvm/bin/cicc");
    if cicc.is_file() {
        executable(&cicc)?;
    }
    std::fs::write(&mark, want).map_err(BuildError::file(&mark))
}

/// Python's pip: the system's, or one in a virtual environment where the system has none.
fn pip(beside: &Path) -> Result<Command, BuildError> {
    let runs = |c: &mut Command| c.output().is_ok_and(|o| o.status.success());
    if runs(Command::new("python3").args(["-m", "pip", "--version"])) {
        let mut command = Command::new("python3");
        command.args(["-m", "pip"]);
        return Ok(command);
    }
    let venv = beside.with_extension("venv");
    if runs(Command::new("python3").args(["-m", "venv"]).arg(&venv)) {
        return Ok(Command::new(venv.join("bin/pip")));
    }
    Err(BuildError::NoPip)
}

fn executable(path: &Path) -> Result<(), BuildError> {
    use std::os::unix::fs::PermissionsExt;
    let meta = std::fs::metadata(path).map_err(BuildError::file(path))?;
    if meta.is_file() {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(meta.permissions().mode() | 0o111))
            .map_err(BuildError::file(path))?;
    }
    Ok(())
}

fn link(path: &Path, target: &str) -> Result<(), BuildError> {
    if std::fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    std::os::unix::fs::symlink(target, path).map_err(BuildError::file(path))
}
