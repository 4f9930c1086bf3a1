//! Which nodes Slurm drains: an operator who takes a node out of service wants the GPUs of its server to become free as well.

use super::tell::Tell;
use agent::{Policy, Settings};
use rcuda_forwarder::Endpoint;
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long Slurm may take to answer: its own limit is 10 s (`MessageTimeout`).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of bytes of an answer: a line for each node and partition.
const LONGEST: u64 = 64 << 20;
/// The states, as `sinfo` prints them, of a node that gets no new jobs until an operator says so.
const DRAINING: [&str; 5] = ["drained", "draining", "drain", "failing", "fail"];

/// Why it is not known which nodes are drained.
#[derive(Debug, thiserror::Error)]
enum SlurmError {
    #[error("sinfo: {0}")]
    Start(#[from] io::Error),
    #[error("sinfo has not answered for {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    #[error("sinfo ended with {status}: {words}")]
    Ended { status: ExitStatus, words: String },
}

/// A node of the cluster.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    name: String,
    address: String,
    host: String,
    is_draining: bool,
}

/// What Slurm has said last.
#[derive(Debug, Default)]
pub(super) struct Slurm {
    nodes: Vec<Node>,
    /// Why it did not say anything the last time.
    missing: Option<String>,
}

impl Slurm {
    /// Asks Slurm, if a policy goes by it. While it does not answer, what it has said before holds.
    pub(super) fn look(&mut self, settings: &Settings, tell: &Tell) {
        if !settings.policies.iter().any(|policy| matches!(policy, Policy::Drain { slurm: true, .. })) {
            *self = Slurm::default();
            return;
        }
        let missing = match ask() {
            Ok(text) => {
                self.nodes = text.lines().filter_map(node).collect();
                None
            }
            Err(why) => Some(why.to_string()),
        };
        if self.missing != missing {
            tell.slurm(missing.as_deref());
            self.missing = missing;
        }
    }

    /// The node of a server, if it is being drained. `name`: how Slurm calls the node, if the settings say so. Where several nodes have the
    /// address of the server, all of them must be draining.
    pub(super) fn drained(&self, server: &Endpoint, name: Option<&String>) -> Option<String> {
        let is_its = |node: &&Node| match name {
            Some(name) => node.name == *name,
            None => [&node.name, &node.address, &node.host].contains(&&server.host),
        };
        let mut nodes = self.nodes.iter().filter(is_its);
        let first = nodes.next()?;
        (first.is_draining && nodes.all(|node| node.is_draining)).then(|| first.name.clone())
    }
}

/// A line of the answer: name, address, host and state. States may have a sign behind them, such as `*`: it does not respond.
fn node(line: &str) -> Option<Node> {
    let [name, address, host, state] = line.trim().split('|').collect::<Vec<_>>().try_into().ok()?;
    let state = state.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
    let is_draining = DRAINING.contains(&state);
    Some(Node { name: name.to_owned(), address: address.to_owned(), host: host.to_owned(), is_draining })
}

fn ask() -> Result<String, SlurmError> {
    let mut command = Command::new("sinfo");
    command.args(["--noheader", "--Node", "--format=%N|%o|%n|%T"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (sender, answer) = channel();
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let read = move || {
        let (mut text, mut words) = (String::new(), String::new());
        let all = out.map_or(Ok(0), |out| out.take(LONGEST).read_to_string(&mut text));
        let all = all.and_then(|_| errors.map_or(Ok(0), |errors| errors.take(LONGEST).read_to_string(&mut words)));
        // Nobody takes it if that took too long.
        let _ = sender.send(all.map(|_| (text, words)));
    };
    let reader = std::thread::Builder::new().name("mrcuda-sinfo".to_owned()).spawn(read);
    let answer = match reader {
        Ok(_) => answer.recv_timeout(ANSWER_TIMEOUT).map_err(|_| SlurmError::Timeout),
        Err(why) => Err(why.into()),
    };
    if answer.is_err() {
        // It may have ended by itself.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let (text, words) = answer??;
    if status.success() { Ok(text) } else { Err(SlurmError::Ended { status, words: words.trim().to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_on_the_node_with_its_address_or_the_name_that_was_given() {
        let text =
            "n1|10.0.0.1|gpu1|idle\nn2|10.0.0.2|gpu2|drained*\nn3|10.0.0.3|gpu3|draining\nn4|10.0.0.3|gpu4|mixed@\nnonsense\n";
        let slurm = Slurm { nodes: text.lines().filter_map(node).collect(), missing: None };
        assert_eq!(slurm.nodes.len(), 4);
        let drained =
            |server: &str, name: Option<&str>| slurm.drained(&server.parse().expect(server), name.map(str::to_owned).as_ref());
        for server in ["gpu2:7878", "10.0.0.2:7878", "tls://n2:7878"] {
            assert_eq!(drained(server, None).as_deref(), Some("n2"), "{server}");
        }
        assert_eq!(drained("gpu1:7878", None), None);
        assert_eq!(drained("10.0.0.3:7878", None), None, "n4 has this address too, and works");
        assert_eq!(drained("10.0.0.3:7878", Some("n3")).as_deref(), Some("n3"));
        assert_eq!(drained("unix:/run/s", None), None);
        assert_eq!(drained("unix:/run/s", Some("n2")).as_deref(), Some("n2"));
        assert_eq!(drained("gpu2:7878", Some("elsewhere")), None, "only what the settings name");
    }
}
