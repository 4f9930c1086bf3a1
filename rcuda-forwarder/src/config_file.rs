//! The user's files: where they are, and how they are kept from other users.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The value of a variable, if it is set and not empty.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// `$XDG_CONFIG_HOME/mrcuda`, else `~/.config/mrcuda`.
pub(crate) fn directory() -> PathBuf {
    let home = || variable("HOME").or_else(|| Some(nix::unistd::User::from_uid(nix::unistd::getuid()).ok()??.dir));
    let config = variable("XDG_CONFIG_HOME").unwrap_or_else(|| home().unwrap_or_default().join(".config"));
    config.join("mrcuda")
}

/// The directory of a file.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// At most `most` bytes of a file, and whether other users can read it.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<(Vec<u8>, bool)> {
    // Opening a pipe would block until another process writes.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut content = Vec::new();
    file.take(most).read_to_end(&mut content)?;
    Ok((content, meta.mode() & 0o077 != 0))
}

/// Makes a file with this content, readable by its owner only, which appears at once; an existing file is an error.
pub(crate) fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = parent(path);
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let fresh = directory.join(format!(".mrcuda.{}.{:?}", std::process::id(), std::thread::current().id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let written = (|| {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::hard_link(&fresh, path)
    })();
    fs::remove_file(&fresh)?;
    written
}
