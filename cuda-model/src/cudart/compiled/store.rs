//! A directory of files, one for each compilation, shared by all processes of a user. A file's name is the hash of
//! everything that its contents depend on; the file begins with a hash of its contents, so a file truncated by a crash
//! or a full disk is not used.

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Maximum size of code and of the compiled result.
pub(super) const MAX_BYTES: usize = 256 << 20;
/// Maximum total size where `CUDA_CACHE_MAXSIZE` is not set, and the upper limit of that variable.
const DEFAULT_LIMIT: u64 = 1 << 30;
const HIGHEST_LIMIT: u64 = 4 << 30;
/// Magic number of a file.
const MAGIC: &[u8; 8] = b"MRCODE1\n";
const HEADER: usize = MAGIC.len() + blake3::OUT_LEN;
/// Disk usage of a file is counted in such units.
const BLOCK: u64 = 4096;

/// The hash of everything that a compilation depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cudart) struct Key(blake3::Hash);

impl Key {
    /// The key of code, given its hash, the texts, and an earlier key.
    pub(super) fn of(numbers: [u32; 3], code: blake3::Hash, texts: [&[u8]; 3], before: Option<Key>) -> Key {
        let mut h = blake3::Hasher::new();
        h.update(&before.map_or([0; 32], |key| *key.0.as_bytes()));
        for n in numbers {
            h.update(&n.to_le_bytes());
        }
        h.update(code.as_bytes());
        for part in texts {
            // Lengths are included, so that no byte can move from one text to the next.
            h.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Key(h.finalize())
    }

    /// The name of its file.
    fn name(self) -> String {
        self.0.to_hex().to_string()
    }

    /// The hash of a file's contents, bound to this key.
    fn of_contents(self, contents: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(self.0.as_bytes()).update(contents).finalize()
    }
}

/// The store of compiled code.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
    limit: u64,
    /// Bytes that this process has added since it last counted the total.
    added: AtomicU64,
}

impl Store {
    /// In `$CUDA_CACHE_PATH/mrcuda/compiled`, else in `$XDG_CACHE_HOME/mrcuda/compiled`, else in
    /// `~/.cache/mrcuda/compiled`; none if `CUDA_CACHE_DISABLE` is set.
    pub(super) fn of_environment() -> Option<Store> {
        let read = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        let absolute = |name| read(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if read("CUDA_CACHE_DISABLE").is_some_and(|value| value != "0") {
            return None;
        }
        let directory = absolute("CUDA_CACHE_PATH")
            .or_else(|| absolute("XDG_CACHE_HOME"))
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))?
            .join("mrcuda/compiled");
        let said = read("CUDA_CACHE_MAXSIZE").and_then(|value| value.to_str()?.parse().ok());
        Store::at(&directory, said.unwrap_or(DEFAULT_LIMIT).min(HIGHEST_LIMIT)).ok()
    }

    /// In a directory, which is created if it does not exist. Refused if other users can write to it.
    pub(super) fn at(directory: &Path, limit: u64) -> io::Result<Store> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // The first addition counts existing files.
        let store = Store { directory: directory.to_owned(), limit, added: AtomicU64::new(limit) };
        store.open().map(|_| store)
    }

    /// Opens and checks the directory. Files are opened relative to it, not by a path whose target may change. It is
    /// opened for each use, because a program may close descriptors that it does not know and reuse their numbers.
    fn open(&self) -> io::Result<Directory> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = File::from(openat(AT_FDCWD, &self.directory, flags, Mode::empty())?);
        if !is_private(&directory.metadata()?) {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        Ok(Directory(OwnedFd::from(directory)))
    }

    /// The contents stored under a key.
    pub(super) fn find(&self, key: &Key) -> Option<Vec<u8>> {
        let (directory, name) = (self.open().ok()?, key.name());
        let mut file = directory.file(&name, OFlag::O_RDONLY | OFlag::O_NONBLOCK).ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || !is_private(&found) {
            return None;
        }
        let contents = match read(&mut file, found.len(), key) {
            Ok(contents) => contents,
            Err(e) => {
                if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) {
                    // Damaged: it is replaced.
                    directory.remove(&name);
                }
                return None;
            }
        };
        // The least recently used files are removed first.
        let _ = file.set_modified(SystemTime::now());
        Some(contents)
    }

    /// Stores contents under a key. The least recently used files are removed if the limit would be exceeded.
    pub(super) fn keep(&self, key: &Key, contents: &[u8]) -> io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let bytes = room((HEADER + contents.len()) as u64);
        if bytes > self.limit {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let directory = self.open()?;
        // Counting takes time: concurrent additions by others may slightly exceed the limit.
        if self.added.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limit / 16 {
            self.make_room(&directory, bytes)?;
            self.added.store(bytes, Ordering::Relaxed);
        }
        let own = format!(".{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut file = directory.file(&own, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
        let mut write = || -> io::Result<()> {
            file.write_all(MAGIC)?;
            file.write_all(key.of_contents(contents).as_bytes())?;
            file.write_all(contents)?;
            Ok(renameat(&directory.0, own.as_str(), &directory.0, key.name().as_str())?)
        };
        write().inspect_err(|_| directory.remove(&own))
    }

    /// Removes files until there is room for this many bytes.
    fn make_room(&self, directory: &Directory, bytes: u64) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, OsString)> = Vec::new();
        for entry in Dir::from_fd(directory.0.try_clone()?)?.iter() {
            let Ok(entry) = entry else { continue };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if !is_ours(name) {
                continue;
            }
            // Another process may have removed it meanwhile.
            let Ok(found) = directory.file(name, OFlag::O_RDONLY | OFlag::O_NONBLOCK).and_then(|file| file.metadata()) else {
                continue;
            };
            if found.is_file() {
                files.push((found.modified()?, room(found.len()), name.to_owned()));
            }
        }
        let mut all: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        if all.saturating_add(bytes) <= self.limit {
            return Ok(());
        }
        files.sort();
        // Somewhat more, so that the next addition need not do this again.
        let goal = (self.limit - self.limit / 8).saturating_sub(bytes);
        for (_, bytes, name) in files {
            if all <= goal {
                break;
            }
            match unlinkat(&directory.0, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => all -= bytes,
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// The directory, open and checked.
#[derive(Debug)]
struct Directory(OwnedFd);

impl Directory {
    /// Opens a file in the directory. Symbolic links are refused.
    fn file(&self, name: impl AsRef<OsStr>, flags: OFlag) -> io::Result<File> {
        let file = openat(&self.0, name.as_ref(), flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::S_IRUSR | Mode::S_IWUSR)?;
        Ok(File::from(file))
    }

    /// Removes a file, which may already have been removed.
    fn remove(&self, name: &str) {
        let _ = unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir);
    }
}

/// The contents of a file of `len` bytes, if they are complete and belong to the key. Memory is allocated only after
/// the header has been checked.
fn read(file: &mut impl Read, len: u64, key: &Key) -> io::Result<Vec<u8>> {
    let damaged = || io::Error::from(io::ErrorKind::InvalidData);
    let bytes = usize::try_from(len).ok().and_then(|len| len.checked_sub(HEADER)).ok_or_else(damaged)?;
    let mut head = [0; HEADER];
    file.read_exact(&mut head)?;
    if bytes > MAX_BYTES || !head.starts_with(MAGIC) {
        return Err(damaged());
    }
    let mut contents = Vec::new();
    contents.try_reserve_exact(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    file.take(bytes as u64).read_to_end(&mut contents)?;
    let is_whole = contents.len() == bytes && head[MAGIC.len()..] == *key.of_contents(&contents).as_bytes();
    if is_whole { Ok(contents) } else { Err(damaged()) }
}

/// Whether a file's name is one that this store creates: of a key, or a temporary one.
fn is_ours(name: &OsStr) -> bool {
    let is = |text: &str, of: fn(&u8) -> bool| !text.is_empty() && text.as_bytes().iter().all(of);
    let written = |n: &str| n.split_once('-').is_some_and(|(a, b)| is(a, u8::is_ascii_digit) && is(b, u8::is_ascii_digit));
    name.to_str().is_some_and(|n| n.len() == 64 && is(n, u8::is_ascii_hexdigit) || n.strip_prefix('.').is_some_and(written))
}

/// Disk usage of a file.
fn room(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK)
}

/// Whether it belongs to the user of this process, and other users cannot write to it.
fn is_private(of: &Metadata) -> bool {
    // SAFETY: no preconditions.
    of.uid() == unsafe { libc::geteuid() } && of.mode() & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endless stream that counts its bytes.
    struct Endless(usize);

    impl Read for Endless {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            to.fill(0);
            let here = MAGIC.get(self.0..).unwrap_or_default();
            let head = here.len().min(to.len());
            to[..head].copy_from_slice(&here[..head]);
            self.0 += to.len();
            Ok(to.len())
        }
    }

    #[test]
    fn no_more_is_read_than_a_file_had_when_it_was_opened() {
        let key = Key::of([1, 90, 0], blake3::hash(b"code"), [b""; 3], None);
        let mut file = Endless(0);
        let said = (HEADER + 1000) as u64;
        assert_eq!(read(&mut file, said, &key).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(file.0 <= HEADER + 1000, "{} bytes", file.0);
        for len in [0, HEADER as u64 - 1, (HEADER + MAX_BYTES) as u64 + 1, u64::MAX] {
            assert_eq!(read(&mut Endless(0), len, &key).unwrap_err().kind(), io::ErrorKind::InvalidData, "{len}");
        }
    }

    #[test]
    fn a_file_without_the_head_takes_no_memory() {
        let key = Key::of([1, 90, 0], blake3::hash(b"code"), [b""; 3], None);
        let mut file = &[0u8; HEADER][..];
        assert_eq!(read(&mut file, (HEADER + MAX_BYTES) as u64, &key).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(file.is_empty(), "the head was read, and nothing more was asked for");
    }
}
