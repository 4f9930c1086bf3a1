//! `cargo xtask bundle`: `target/bundle/`, a directory to be carried to a machine with GPUs that has no Rust.

use crate::error::Error;
use crate::step::step;
use ::tests::{Install, Linkage, Programs, install, programs};
use std::path::Path;
use std::process::Command;

/// The profile of what is measured, which is what is used.
const MEASURED: &str = "release";
/// The largest bundle that is easy to carry.
const LIMIT: u64 = 64 << 20;
/// What is carried of the installation.
const FILES: [&str; 10] = [
    "mrcuda",
    "mhelper",
    "libmrcuda_shim.so",
    "libmrcuda_nvml.so",
    "libsoftgpu.so",
    "orbit",
    "mill",
    "microbench",
    "conformance",
    "xtask",
];

/// What is run there.
const SCRIPTS: [(&str, &str); 7] = [
    ("run-gpu.sh", include_str!("run-gpu.sh")),
    ("run-apps.sh", include_str!("run-apps.sh")),
    ("build-hecbench.sh", include_str!("build-hecbench.sh")),
    ("run-bench.sh", include_str!("run-bench.sh")),
    ("run-conformance.sh", include_str!("run-conformance.sh")),
    ("run-litmus.sh", include_str!("run-litmus.sh")),
    ("run-managed.sh", include_str!("run-managed.sh")),
];

/// Makes the bundle.
pub(crate) fn bundle() -> Result<(), Error> {
    step("building what is carried");
    let install = Install::build(MEASURED)?;
    build_xtask(&install)?;
    let compiled = Programs::build(&install.target)?;
    let directory = install.target.join("bundle");
    // The one before; files that are not made any more must not stay.
    let _ = std::fs::remove_dir_all(&directory);
    step("copying");
    for name in FILES {
        copy(&install.file(name), &directory.join("bin").join(name), true)?;
    }
    for linkage in [Linkage::Static, Linkage::Shared] {
        let target = directory.join("programs").join(linkage.name());
        for name in programs::NAMES.into_iter().chain([programs::LITMUS, programs::MANAGED_TIMES]) {
            copy(&compiled.path(linkage, name), &target.join(name), true)?;
        }
        for which in 0..3 {
            let name = format!("killer_{which}.fatbin");
            copy(&compiled.path(linkage, &name), &target.join(&name), false)?;
        }
    }
    for name in programs::APPS {
        copy(&compiled.app(name), &directory.join("programs/apps").join(name), true)?;
    }
    let runtime = Path::new("shared/lib/libcudart.so.13");
    copy(&compiled.path(Linkage::Shared, "lib/libcudart.so.13"), &directory.join("programs").join(runtime), false)?;
    // Sources that are compiled there: cuBLAS and the checks of the driver need what that machine has. And what runs there by
    // itself.
    for part in ["tests/programs/cuda", "tests/gpu/driver", "tests/gpu/frameworks", "executor/src/kernels"] {
        let from = install::root().join(part);
        for entry in std::fs::read_dir(&from).map_err(Error::file(&from))?.filter_map(Result::ok) {
            if entry.path().is_file() {
                copy(&entry.path(), &directory.join("sources").join(part).join(entry.file_name()), false)?;
            }
        }
    }
    for (name, text) in SCRIPTS {
        let script = directory.join(name);
        std::fs::write(&script, text).map_err(Error::file(&script))?;
        executable(&script)?;
    }
    pack(&directory, "programs")?;
    let bytes = size(&directory)?;
    println!(
        "{}: {:.1} MiB; there: ./run-gpu.sh, ./run-apps.sh, ./run-bench.sh, ./run-conformance.sh, ./run-litmus.sh, ./run-managed.sh",
        directory.display(),
        bytes as f64 / (1 << 20) as f64
    );
    if bytes > LIMIT { Err(Error::Found(format!("the bundle is larger than {} MiB", LIMIT >> 20))) } else { Ok(()) }
}

/// Packs a directory of the bundle: each of the programs contains the same CUDA runtime. The scripts unpack it at their first
/// start.
fn pack(bundle: &Path, directory: &str) -> Result<(), Error> {
    let status = Command::new("tar")
        .arg("-C")
        .arg(bundle)
        .args(["-czf"])
        .arg(bundle.join(directory).with_extension("tar.gz"))
        .arg(directory)
        .status()
        .map_err(Error::start("tar"))?;
    if !status.success() {
        return Err(Error::Found(format!("tar could not pack {directory} ({status})")));
    }
    std::fs::remove_dir_all(bundle.join(directory)).map_err(Error::file(Path::new(directory)))
}

/// This program: it drives the runs on the other machine.
fn build_xtask(install: &Install) -> Result<(), Error> {
    let mut command = install::cargo();
    command.args(["build", "--profile", MEASURED, "--quiet", "-p", "xtask", "--target-dir"]).arg(&install.target);
    Error::unless_success("cargo build", command.status().map_err(Error::start("cargo"))?)
}

fn copy(from: &Path, to: &Path, strip: bool) -> Result<(), Error> {
    let directory = to.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(Error::file(directory))?;
    std::fs::copy(from, to).map_err(Error::file(from))?;
    if strip {
        let status = Command::new("strip").arg("--strip-unneeded").arg(to).status().map_err(Error::start("strip"))?;
        Error::unless_success(&format!("strip {}", to.display()), status)?;
    }
    Ok(())
}

fn executable(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).map_err(Error::file(path))
}

fn size(directory: &Path) -> Result<u64, Error> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).map_err(Error::file(directory))?.filter_map(Result::ok) {
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { size(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}
