//! Commands that must end in time.

use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Maximum number of bytes that are taken of what a command prints.
const LONGEST: u64 = 64 << 20;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Runs a command without input and reads what it prints, however much that is. One that takes longer than `limit` is ended; `None` then.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> io::Result<Option<Output>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let start = Instant::now();
    // At the same time: a command that finds no room in one of them waits.
    let readers = (read(child.stdout.take()), read(child.stderr.take()));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            // It may already have ended; either way there is no answer.
            let _ = child.kill();
            let _ = child.wait();
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    };
    Ok(Some(Output { status, stdout: all_of(readers.0)?, stderr: all_of(readers.1)? }))
}

fn read(pipe: Option<impl Read + Send + 'static>) -> io::Result<JoinHandle<io::Result<Vec<u8>>>> {
    thread::Builder::new().name("mrcuda-output".to_owned()).spawn(move || {
        let mut bytes = Vec::new();
        pipe.map_or(Ok(0), |pipe| pipe.take(LONGEST).read_to_end(&mut bytes))?;
        Ok(bytes)
    })
}

fn all_of(reader: io::Result<JoinHandle<io::Result<Vec<u8>>>>) -> io::Result<Vec<u8>> {
    reader?.join().unwrap_or_else(|_| Err(io::Error::other("what it has printed could not be read")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Option<Output> {
        output_within(Command::new("sh").args(["-c", script]), limit).expect("sh")
    }

    #[test]
    fn all_of_both_pipes_is_read_and_a_late_command_is_ended() {
        let much = "head -c 300000 /dev/zero >&2; head -c 200000 /dev/zero; exit 3";
        let output = sh(much, Duration::from_secs(600)).expect("it ends");
        assert_eq!((output.status.code(), output.stdout.len(), output.stderr.len()), (Some(3), 200_000, 300_000));
        assert!(sh("exec sleep 600", Duration::from_millis(50)).is_none());
    }
}
