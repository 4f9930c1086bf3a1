//! Which nodes Slurm drains: an operator who takes a node out of service wants the GPUs of its server to become free as well.

use super::tell::Tell;
use crate::limited::output_within;
use agent::{Policy, Settings};
use rcuda_forwarder::Endpoint;
use std::io;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long Slurm may take to answer: its own limit is 10 s (`MessageTimeout`).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// What is waited longer for the first answer than for `sinfo`.
const GRACE: Duration = Duration::from_secs(1);
/// The states, as `sinfo` prints them, of a node that gets no new jobs until an operator or its reboot is done. The last two hide that it drains.
const DRAINING: [&str; 7] = ["drained", "draining", "drain", "failing", "fail", "reboot", "inval"];

/// Why it is not known which nodes are drained.
#[derive(Debug, thiserror::Error)]
enum SlurmError {
    #[error("sinfo: {0}")]
    Start(#[from] io::Error),
    #[error("sinfo has not answered for {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    #[error("sinfo ended with {status}: {words}")]
    Ended { status: ExitStatus, words: String },
    #[error("sinfo names no nodes")]
    NoNodes,
}

/// A node of the cluster.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    name: String,
    address: String,
    host: String,
    is_draining: bool,
}

/// What Slurm has said last. It is asked on a thread of its own: while its controller is away, `sinfo` takes long to say so.
#[derive(Debug, Default)]
pub(super) struct Slurm {
    /// None before its first answer.
    nodes: Option<Vec<Node>>,
    /// When it was asked last, and where the answer comes.
    asked: Option<(Instant, Receiver<Result<Vec<Node>, SlurmError>>)>,
    next: Option<Instant>,
    /// What the operator was told last, if something is not as it should be.
    told: Option<String>,
    is_wanted: bool,
}

impl Slurm {
    /// Asks Slurm from time to time, if a policy goes by it. While it does not answer, what it has said before holds.
    pub(super) fn look(&mut self, servers: &[Endpoint], settings: &Settings, tell: &Tell) {
        self.is_wanted = settings.policies.iter().any(|policy| matches!(policy, Policy::Drain { slurm: true, .. }));
        if !self.is_wanted {
            *self = Slurm::default();
            return;
        }
        if self.asked.is_none() && self.next.is_none_or(|next| Instant::now() >= next) {
            self.next = Some(Instant::now() + settings.slurm_every);
            let (sender, answer) = channel();
            // Nobody takes an answer that is too late.
            let ask = move || drop(sender.send(ask()));
            match std::thread::Builder::new().name("mrcuda-slurm".to_owned()).spawn(ask) {
                Ok(_) => self.asked = Some((Instant::now(), answer)),
                Err(why) => return self.tell(Some(why.to_string()), false, tell),
            }
        }
        let Some((since, answer)) = &self.asked else { return };
        // The first answer is waited for: without it no job is sent to a server.
        let wait = if self.nodes.is_none() && self.told.is_none() { ANSWER_TIMEOUT + GRACE } else { Duration::ZERO };
        match answer.recv_timeout(wait) {
            Ok(Ok(nodes)) => {
                let lost = servers.iter().map(Endpoint::server).zip(servers).filter(|(server, at)| {
                    let name = settings.slurm_nodes.get(server);
                    !nodes.iter().any(|node| node.has(at, name))
                });
                let lost: Vec<String> = lost.map(|(server, _)| server).collect();
                let what = || format!("no node is known for {}: `slurm_nodes` can name it", lost.join(", "));
                let told = (!lost.is_empty()).then(what);
                (self.nodes, self.asked) = (Some(nodes), None);
                self.tell(told, true, tell);
            }
            Ok(Err(why)) => {
                self.asked = None;
                self.tell(Some(why.to_string()), false, tell);
            }
            Err(_) if since.elapsed() > ANSWER_TIMEOUT => self.tell(Some(SlurmError::Timeout.to_string()), false, tell),
            Err(_) => {}
        }
    }

    /// Tells the operator, unless that is what was told last.
    fn tell(&mut self, what: Option<String>, ok: bool, tell: &Tell) {
        if self.told != what {
            tell.slurm(ok, what.as_deref());
            self.told = what;
        }
    }

    /// Whether it is not known which nodes are drained, though a policy goes by it.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_wanted && self.nodes.is_none()
    }

    /// The node of a server, if it is being drained. `name`: how Slurm calls the node, if the settings say so. Where several nodes have the
    /// address of the server, all of them must be draining.
    pub(super) fn drained(&self, server: &Endpoint, name: Option<&String>) -> Option<String> {
        let mut nodes = self.nodes.iter().flatten().filter(|node| node.has(server, name));
        let first = nodes.next()?;
        (first.is_draining && nodes.all(|node| node.is_draining)).then(|| first.name.clone())
    }
}

impl Node {
    /// Whether a server is on this node.
    fn has(&self, server: &Endpoint, name: Option<&String>) -> bool {
        let is = |text: &String| text.eq_ignore_ascii_case(name.unwrap_or(&server.host));
        if name.is_some() { is(&self.name) } else { [&self.name, &self.address, &self.host].into_iter().any(is) }
    }
}

/// A line of the answer: name, address, host and state. States may have a sign behind them, such as `*`: it does not respond.
fn node(line: &str) -> Option<Node> {
    let [name, address, host, state] = line.trim().split('|').collect::<Vec<_>>().try_into().ok()?;
    let state = state.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
    let is_draining = DRAINING.contains(&state);
    Some(Node { name: name.to_owned(), address: address.to_owned(), host: host.to_owned(), is_draining })
}

fn ask() -> Result<Vec<Node>, SlurmError> {
    let mut command = Command::new("sinfo");
    // Also nodes of hidden partitions, and of all, whatever the user usually looks at.
    command.args(["--all", "--noheader", "--Node", "--format=%N|%o|%n|%T"]).env_remove("SINFO_PARTITION");
    let output = output_within(&mut command, ANSWER_TIMEOUT)?.ok_or(SlurmError::Timeout)?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(SlurmError::Ended { status: output.status, words });
    }
    let nodes: Vec<Node> = String::from_utf8_lossy(&output.stdout).lines().filter_map(node).collect();
    if nodes.is_empty() { Err(SlurmError::NoNodes) } else { Ok(nodes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_on_the_node_with_its_address_or_the_name_that_was_given() {
        let text = [
            "n1|10.0.0.1|gpu1|idle",
            "n2|10.0.0.2|gpu2|drained*",
            "n3|10.0.0.3|gpu3|draining",
            "n4|10.0.0.3|gpu4|mixed@",
            "nonsense",
            "n5|10.0.0.5|gpu5|reboot^",
            "n6|10.0.0.6|gpu6|inval",
            "n7|10.0.0.7|gpu7|down*",
        ];
        let nodes: Vec<Node> = text.into_iter().filter_map(node).collect();
        assert_eq!(nodes.len(), 7);
        let slurm = Slurm { nodes: Some(nodes), is_wanted: true, ..Slurm::default() };
        let drained =
            |server: &str, name: Option<&str>| slurm.drained(&server.parse().expect(server), name.map(str::to_owned).as_ref());
        for server in ["gpu2:7878", "10.0.0.2:7878", "tls://n2:7878", "GPU2:7878"] {
            assert_eq!(drained(server, None).as_deref(), Some("n2"), "{server}");
        }
        assert_eq!(drained("n5:1", None).as_deref(), Some("n5"), "it restarts when it is empty");
        assert_eq!(drained("n6:1", None).as_deref(), Some("n6"), "Slurm has drained it");
        assert_eq!(drained("n7:1", None), None, "it may only not answer Slurm");
        assert_eq!(drained("gpu1:7878", None), None);
        assert_eq!(drained("10.0.0.3:7878", None), None, "n4 has this address too, and works");
        assert_eq!(drained("10.0.0.3:7878", Some("n3")).as_deref(), Some("n3"));
        assert_eq!(drained("unix:/run/s", None), None);
        assert_eq!(drained("unix:/run/s", Some("n2")).as_deref(), Some("n2"));
        assert_eq!(drained("gpu2:7878", Some("elsewhere")), None, "only what the settings name");
        assert!(!slurm.is_unknown() && Slurm { is_wanted: true, ..Slurm::default() }.is_unknown());
    }
}
