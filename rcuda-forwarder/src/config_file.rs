//! The user's files: where they are, and how they are kept from other users.

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Uid, User};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The value of a variable, if it is set and not empty.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// `$XDG_CONFIG_HOME/mrcuda`, else `~/.config/mrcuda`.
pub(crate) fn directory() -> PathBuf {
    let home = || variable("HOME").or_else(|| Some(User::from_uid(Uid::current()).ok()??.dir));
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
    make_directory(path)?;
    let fresh = write_beside(path, content)?;
    let linked = fs::hard_link(&fresh, path);
    fs::remove_file(&fresh)?;
    linked
}

/// Makes a file with this content, readable by its owner only, in place of the one that may be there: whoever opens it reads the old
/// content or the new one. The new file is on the disk when this returns.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    make_directory(path)?;
    // What replaces a link is in the directory of the file that it leads to.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let fresh = write_beside(path, content)?;
    fs::rename(&fresh, path).inspect_err(|_| drop(fs::remove_file(&fresh)))?;
    File::open(parent(path))?.sync_all()
}

/// Waits for the lock of a file, by which processes that change it take turns. It is in a file of its own, because the file itself is
/// replaced.
///
/// Root changes no file in a directory of another user, who could make it a link to any file of the machine meanwhile.
pub(crate) fn lock(path: &Path) -> io::Result<Flock<File>> {
    make_directory(path)?;
    let owner = Uid::from_raw(fs::metadata(parent(path))?.uid());
    if Uid::effective().is_root() && !owner.is_root() {
        let name = User::from_uid(owner).ok().flatten().map_or_else(|| owner.to_string(), |user| user.name);
        return Err(io::Error::other(format!("its directory is of user {name}; run this as that user (sudo -u {name} …)")));
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path.with_file_name(name))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e.into())
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(parent(path))
}

/// Writes a private file with this content, of a name that nobody else uses, beside another one.
fn write_beside(path: &Path, content: &[u8]) -> io::Result<PathBuf> {
    let fresh = parent(path).join(format!(".mrcuda.{}.{:?}", std::process::id(), std::thread::current().id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let written = (|| {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(content)?;
        file.sync_all()
    })();
    written.inspect_err(|_| drop(fs::remove_file(&fresh)))?;
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_a_link_stays_one() {
        let dir = std::env::temp_dir().join(format!("mrcuda-replace-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let (file, link) = (dir.join("deep").join("file"), dir.join("link"));
        replace(&file, b"one").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let mut before = File::open(&file).unwrap();
        replace(&link, b"two").unwrap();
        let mut read = String::new();
        before.read_to_string(&mut read).unwrap();
        assert_eq!((read.as_str(), fs::read_to_string(&file).unwrap().as_str()), ("one", "two"));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no half-made file stays");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn root_changes_no_file_of_another_user() {
        // Only root can make a directory of another user.
        if !Uid::effective().is_root() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("mrcuda-owner-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        DirBuilder::new().create(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(4242), Some(4243)).unwrap();
        let why = lock(&dir.join("file")).unwrap_err().to_string();
        assert!(why.contains("user 4242"), "{why}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_lock_is_no_link_and_no_pipe() {
        let dir = std::env::temp_dir().join(format!("mrcuda-lock-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let (file, other) = (dir.join("file"), dir.join("other"));
        fs::write(&other, "untouched").unwrap();
        std::os::unix::fs::symlink(&other, dir.join("file.lock")).unwrap();
        assert!(lock(&file).is_err());
        fs::remove_file(dir.join("file.lock")).unwrap();
        nix::unistd::mkfifo(&dir.join("file.lock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(lock(&file).is_err(), "nobody reads it, and nobody waits for a reader");
        fs::remove_dir_all(dir).unwrap();
    }
}
