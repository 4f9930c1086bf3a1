//! Locates the files of this installation: all are beside the executable; the library directory is created when it
//! is first needed.

use control::directory;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The recorder, which programs load as `libcuda.so.1`.
pub(crate) const RECORDER: &str = "libmrcuda_shim.so";
/// The library of softgpu.
pub(crate) const SOFTGPU: &str = "libsoftgpu.so";
/// Directory beside the executable that holds the recorder under the names that programs look for.
const LIBRARIES: &str = "mrcuda-lib";
/// The recorder's names: linked programs and cudart use the first, Triton and some others the second.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// The NVML replacement, which programs load as `libnvidia-ml.so.1`.
const NVML: &str = "libmrcuda_nvml.so";
/// Its names.
const NVML_NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];
/// Libraries of a GPU's video and optical flow engines. They reach for the real driver behind `libcuda.so.1`, which a job does not have:
/// nvJPEG, for example, then waits in one of them forever. Files that are no libraries stand in for them, so that they cannot be loaded
/// and programs do what they do where there are no such engines.
const ENGINES: [&str; 6] = [
    "libnvcuvid.so.1",
    "libnvcuvid.so",
    "libnvidia-encode.so.1",
    "libnvidia-encode.so",
    "libnvidia-opticalflow.so.1",
    "libnvidia-opticalflow.so",
];
/// The contents of these files.
const NO_ENGINES: &str = "mrcuda: a job has no video and optical flow engines (docs/limitations.md)\n";

/// A file of this installation, beside the executable.
pub(crate) fn beside(name: &str) -> io::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let path = exe.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    let directory = exe.parent().unwrap_or(Path::new("/")).display().to_string();
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!(
            "{name} is missing; it must be next to the mrcuda program in {directory}, where `cargo install` does not put it: install a \
             package, or keep the files of `cargo build --release` together"
        ),
    ))
}

/// The library directory with its links: beside the executable, or among the runtime files if that is not writable.
pub(crate) fn library_directory() -> io::Result<PathBuf> {
    let (recorder, nvml) = (beside(RECORDER)?, beside(NVML)?);
    let installed = recorder.with_file_name(LIBRARIES);
    let up = Path::new("..");
    let all = |directory: &Path, recorder: &Path, nvml: &Path| {
        lay_out(directory, &NAMES, recorder)?;
        lay_out(directory, &NVML_NAMES, nvml)?;
        // A directory that an older version has laid out, and that cannot be written to, is good enough.
        let _ = leave_out(directory, &ENGINES);
        Ok::<_, io::Error>(())
    };
    if all(&installed, &up.join(RECORDER), &up.join(NVML)).is_ok() {
        return Ok(installed);
    }
    // One directory for each installation, since several may be in use at once.
    let mark = fnv1a(recorder.as_os_str());
    let runtime = directory::make()?.join(format!("lib-{mark:016x}"));
    all(&runtime, &recorder, &nvml)?;
    Ok(runtime)
}

/// Creates the directory with its links. Jobs may start at the same time, so each link is created atomically.
fn lay_out(directory: &Path, names: &[&str], target: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for name in names {
        let link = directory.join(name);
        if std::fs::read_link(&link).is_ok_and(|now| now == target) {
            continue;
        }
        let fresh = directory.join(format!(".{name}.{}", std::process::id()));
        std::os::unix::fs::symlink(target, &fresh)?;
        std::fs::rename(&fresh, &link)?;
    }
    Ok(())
}

/// Creates files that no loader takes for these libraries, in the same way.
fn leave_out(directory: &Path, names: &[&str]) -> io::Result<()> {
    for name in names {
        let path = directory.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|now| now == NO_ENGINES) {
            continue;
        }
        let fresh = directory.join(format!(".{name}.{}", std::process::id()));
        std::fs::write(&fresh, NO_ENGINES)?;
        std::fs::rename(&fresh, &path)?;
    }
    Ok(())
}

/// FNV-1a, 64 bits: a stable name for a path.
fn fnv1a(text: &OsStr) -> u64 {
    text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// Prepends `directory` to a search path.
pub(crate) fn prepend(directory: &Path, before: Option<&OsStr>) -> std::ffi::OsString {
    let mut path = directory.as_os_str().to_owned();
    if let Some(rest) = before.filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laying_out_twice_changes_nothing_and_a_wrong_link_is_replaced() {
        let dir = std::env::temp_dir().join(format!("mrcuda-layout-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        lay_out(&dir, &NAMES, Path::new("/a/recorder.so")).unwrap();
        lay_out(&dir, &NAMES, Path::new("/a/recorder.so")).unwrap();
        assert_eq!(std::fs::read_link(dir.join("libcuda.so.1")).unwrap(), Path::new("/a/recorder.so"));
        lay_out(&dir, &NAMES, Path::new("/b/recorder.so")).unwrap();
        assert_eq!(std::fs::read_link(dir.join("libcuda.so")).unwrap(), Path::new("/b/recorder.so"));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn libraries_of_engines_cannot_be_loaded() {
        let dir = std::env::temp_dir().join(format!("mrcuda-engines-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(ENGINES[0]), "older").unwrap();
        leave_out(&dir, &ENGINES).unwrap();
        leave_out(&dir, &ENGINES).unwrap();
        for name in ENGINES {
            // SAFETY: nothing of it is run, because it is no library.
            assert!(unsafe { libloading::Library::new(dir.join(name)) }.is_err());
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), ENGINES.len());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn our_directory_comes_first() {
        assert_eq!(prepend(Path::new("/m"), None), "/m");
        assert_eq!(prepend(Path::new("/m"), Some(OsStr::new(""))), "/m");
        assert_eq!(prepend(Path::new("/m"), Some(OsStr::new("/x:/y"))), "/m:/x:/y");
    }
}
