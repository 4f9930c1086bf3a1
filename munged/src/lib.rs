//! A munged for a test, with a key, a socket and a directory of its own. The machine's munged is not touched, and none is needed.
//!
//! Two of them with one key are two machines of a cluster: each knows only the credentials that it has decoded itself.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Where the program is: often not in the `PATH` of users.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"];
/// How long it may take to start. Generous, because the machine may be busy.
const START: Duration = Duration::from_secs(120);

/// A running munged, which ends when this is dropped.
#[derive(Debug)]
pub struct Munged {
    directory: PathBuf,
    process: Child,
}

impl Munged {
    /// Starts one with a new key. `None` where munge is not installed, and then a line on stderr says what is not tested.
    pub fn start(what: &str) -> Option<Munged> {
        let mut key = vec![0; 128];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut key)).expect("random bytes");
        let Some(program) = DIRECTORIES.iter().map(|directory| Path::new(directory).join("munged")).find(|path| path.is_file())
        else {
            eprintln!("munged is not installed (Debian: munge): not tested: {what}");
            return None;
        };
        Some(Munged::with(&program, &key))
    }

    /// Another one with the same key: another machine of the cluster.
    pub fn elsewhere(&self) -> Munged {
        let program = fs::read_link(format!("/proc/{}/exe", self.process.id())).expect("it runs");
        Munged::with(&program, &fs::read(self.directory.join("key")).expect("it has a key"))
    }

    fn with(program: &Path, key: &[u8]) -> Munged {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("mrcuda-munged-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory");
        // All users must get to the socket, and nobody else to the key.
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("permissions");
        fs::write(directory.join("key"), key).expect("a key");
        fs::set_permissions(directory.join("key"), Permissions::from_mode(0o400)).expect("permissions");
        let at = |option: &str, name: &str| format!("--{option}={}", directory.join(name).display());
        let process = Command::new(program)
            .args(["--foreground", "--force", "--num-threads=2"])
            .args([at("key-file", "key"), at("socket", "socket"), at("pid-file", "pid")])
            .args([at("log-file", "log"), at("seed-file", "seed")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(directory.join("stderr")).expect("a file"))
            .spawn()
            .expect("munged starts");
        let mut munged = Munged { directory, process };
        let until = Instant::now() + START;
        while UnixStream::connect(munged.socket()).is_err() {
            let ended = munged.process.try_wait().expect("its state");
            let said = || fs::read_to_string(munged.directory.join("stderr")).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < until, "munged does not run ({ended:?}): {}", said());
            thread::sleep(Duration::from_millis(10));
        }
        munged
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Ends it. Its socket is then not there, or nobody listens.
    pub fn end(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

impl Drop for Munged {
    fn drop(&mut self) {
        self.end();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
