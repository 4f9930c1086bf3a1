//! The file in which a client records the certificates of servers at their first use, as ssh does.
//!
//! Each line is `HOST:PORT sha256:DIGITS`. Empty lines and lines that begin with `#` are ignored.

use crate::certificate::Fingerprint;
use crate::config_file;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Maximum size of the file.
const FILE: u64 = 16 << 20;

/// The certificates that a file records for a server.
pub(crate) fn recorded(file: &Path, server: &str) -> io::Result<Vec<String>> {
    let (content, _) = match config_file::read(file, FILE) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    // The line of this server could be behind what was read.
    if content.len() as u64 == FILE {
        return Err(io::Error::other(format!("it has more than {} MiB", FILE >> 20)));
    }
    let text = String::from_utf8_lossy(&content).into_owned();
    let of_server = |line: &str| {
        let (name, fingerprint) = line.trim().split_once(char::is_whitespace)?;
        (name == server).then(|| fingerprint.trim().to_owned())
    };
    Ok(text.lines().filter(|line| !line.starts_with('#')).filter_map(of_server).collect())
}

/// Records the certificate of a server, unless the file has one for it.
pub(crate) fn record(file: &Path, server: &str, fingerprint: &Fingerprint) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(config_file::parent(file))?;
    let open = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    // Jobs that start at the same time take turns.
    let mut open = Flock::lock(open, FlockArg::LockExclusive).map_err(|(_, e)| io::Error::from(e))?;
    if !recorded(file, server)?.is_empty() {
        return Ok(());
    }
    // The last line of a file that was edited may not be complete.
    let is_whole = config_file::read(file, FILE)?.0.last().is_none_or(|b| *b == b'\n');
    open.write_all(format!("{}{server} {fingerprint}\n", if is_whole { "" } else { "\n" }).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_recorded_and_stays() {
        let directory = std::env::temp_dir().join(format!("mrcuda-known-{}", std::process::id()));
        let file = directory.join("known_servers");
        let [one, two] = [Fingerprint([1; 32]), Fingerprint([2; 32])];
        assert!(recorded(&file, "a:1").unwrap().is_empty());
        std::thread::scope(|s| (0..8).for_each(|_| drop(s.spawn(|| record(&file, "a:1", &one).unwrap()))));
        record(&file, "a:1", &two).unwrap();
        record(&file, "[::1]:1", &two).unwrap();
        assert_eq!(recorded(&file, "a:1").unwrap(), [one.to_string()]);
        assert_eq!(recorded(&file, "[::1]:1").unwrap(), [two.to_string()]);
        assert!(recorded(&file, "a:11").unwrap().is_empty());
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 2);
        std::fs::write(&file, format!("# a:1 {one}\n\na:1\n a:1   {two} \nnonsense\n")).unwrap();
        assert_eq!(recorded(&file, "a:1").unwrap(), [two.to_string()]);
        std::fs::write(&file, format!("b:1 {one}")).unwrap();
        record(&file, "a:1", &two).unwrap();
        assert_eq!([recorded(&file, "a:1").unwrap(), recorded(&file, "b:1").unwrap()], [[two.to_string()], [one.to_string()]]);
        let long = format!("{}\nc:1 {one}\n", "#".repeat(FILE as usize));
        std::fs::write(&file, long).unwrap();
        assert!(recorded(&file, "c:1").is_err() && record(&file, "c:1", &two).is_err(), "its end is not read");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
