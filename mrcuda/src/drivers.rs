//! Finds a CUDA driver on this machine: the genuine one, never the recorder, which has the same name.

use crate::elf::Elf;
use crate::layout;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A symbol that the recorder exports and no driver has.
const MARKER: &str = "mrcuda_shim_version";

/// Locations of drivers that are in neither the search path nor the linker's cache.
const KNOWN: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

/// Why a driver that the user names cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    /// softgpu is not installed.
    #[error(transparent)]
    Softgpu(io::Error),
    /// The path cannot be made absolute.
    #[error("{path}: {source}")]
    Path {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no file.
    #[error("no driver found at {0}")]
    NotFound(PathBuf),
    /// It is the recorder.
    #[error("{0} is mrcuda's own library, not a driver")]
    Recorder(PathBuf),
}

/// The driver that an option names: a path, or `soft` for softgpu.
pub(crate) fn named(text: &OsStr) -> Result<PathBuf, DriverError> {
    if text == "soft" {
        return layout::beside(layout::SOFTGPU).map_err(DriverError::Softgpu);
    }
    let path = std::path::absolute(text).map_err(|source| DriverError::Path { path: text.into(), source })?;
    if !path.is_file() {
        return Err(DriverError::NotFound(path));
    }
    if is_recorder(&path) {
        return Err(DriverError::Recorder(path));
    }
    Ok(path)
}

/// The driver that the environment names, in the syntax of the option.
pub(crate) fn from_environment() -> Option<OsString> {
    std::env::var_os("MRCUDA_DRIVER").filter(|text| !text.is_empty())
}

/// The driver of this machine, if it has one.
pub(crate) fn find() -> Option<PathBuf> {
    candidates().find(|path| path.is_file() && !is_recorder(path))
}

/// All candidate locations of this machine's driver, best first. The linker's cache is read only if the search path has none: it takes a
/// process.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let mut directories: Vec<PathBuf> = std::env::var_os("LD_LIBRARY_PATH")
        .map(|path| std::env::split_paths(&path).filter(|p| p.is_absolute()).collect())
        .unwrap_or_default();
    // Stub directories hold libraries to link with, not to run.
    directories.retain(|f| !f.components().any(|c| c.as_os_str() == "stubs"));
    let cached = std::iter::once_with(|| from_cache(&linker_cache())).flatten();
    let known = KNOWN.iter().map(|f| Path::new(f).join("libcuda.so.1"));
    directories.into_iter().map(|f| f.join("libcuda.so.1")).chain(cached).chain(known)
}

/// The contents of the dynamic linker's cache, as `ldconfig -p` prints it; empty if there is no ldconfig.
fn linker_cache() -> String {
    ["/sbin/ldconfig", "ldconfig"]
        .iter()
        .find_map(|program| Command::new(program).arg("-p").output().ok().filter(|o| o.status.success()))
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default()
}

/// How the linker's cache names this machine's processor.
const PROCESSOR: &str = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };

/// Drivers for this machine's processor in the listing of the cache.
fn from_cache(listing: &str) -> Vec<PathBuf> {
    listing
        .lines()
        .filter_map(|line| line.trim().split_once(" => "))
        .filter(|(name, _)| name.starts_with("libcuda.so.1 ") && name.contains(PROCESSOR))
        .map(|(_, path)| PathBuf::from(path))
        .collect()
}

/// Whether a library is the recorder under another name: the same file, or one that exports the marker.
pub(crate) fn is_recorder(path: &Path) -> bool {
    let real = std::fs::canonicalize(path).ok();
    if real.is_some() && real == layout::beside(layout::RECORDER).ok().and_then(|p| std::fs::canonicalize(p).ok()) {
        return true;
    }
    Elf::read(path).is_ok_and(|library| library.mentions(MARKER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_gives_drivers_for_this_processor_only() {
        let line = |name: &str, kind: &str, path: &str| format!("\t{name} ({kind}) => {path}\n");
        let (own, both) = ("/usr/lib/own/libcuda.so.1", format!("libc6,{PROCESSOR}"));
        let other = if PROCESSOR == "x86-64" { "libc6,AArch64" } else { "libc6,x86-64" };
        let listing = [
            "1000 libs found in cache `/etc/ld.so.cache'\n".to_owned(),
            line("libcudart.so.13", &both, "/usr/lib/libcudart.so.13"),
            line("libcuda.so.1", "libc6", "/usr/lib/i386-linux-gnu/libcuda.so.1"),
            line("libcuda.so.1", other, "/usr/lib/other/libcuda.so.1"),
            line("libcuda.so.1", &both, own),
            line("libcuda.so", &both, "/usr/lib/own/libcuda.so"),
        ];
        assert_eq!(from_cache(&listing.concat()), [PathBuf::from(own)]);
        assert!(from_cache("").is_empty());
    }

    #[test]
    fn our_own_library_is_no_driver() {
        let path = std::env::temp_dir().join(format!("mrcuda-marker-{}.so", std::process::id()));
        std::fs::write(&path, crate::elf::tests::library(None, MARKER)).unwrap();
        assert!(is_recorder(&path));
        assert!(matches!(named(path.as_os_str()), Err(DriverError::Recorder(_))));
        std::fs::write(&path, crate::elf::tests::library(None, "cuInit")).unwrap();
        assert!(!is_recorder(&path));
        assert_eq!(named(path.as_os_str()).unwrap(), path);
        std::fs::remove_file(&path).unwrap();
        assert!(named(path.as_os_str()).is_err());
    }
}
