//! What is known of processes: whose they are, which jobs a script or shell has started, and whether one was a job.

use control::{Client, directory, history};
use nix::unistd::{Uid, User};
use std::collections::BTreeSet;

/// The name of a process's user, or the number of one without a name.
pub(crate) fn user(pid: u32) -> String {
    let Some(uid) = directory::owner(pid) else { return String::new() };
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Whether a job with this process id has left moves in the history.
pub(crate) fn has_history(pid: u32) -> bool {
    let history = history::path().and_then(|directory| history::read(&directory).ok());
    history.is_some_and(|history| history.moves.iter().any(|past| past.pid == pid))
}

/// The jobs among the descendants of a process, in ascending order.
pub(crate) fn jobs_below(pid: u32) -> Vec<u32> {
    below(pid, &parents()).into_iter().filter(|pid| Client::is_job(*pid)).collect()
}

/// All processes, each with its parent.
fn parents() -> Vec<(u32, u32)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| Some((pid, parent(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))).collect()
}

/// The parent in the text of `/proc/PID/stat`. The name in it can contain anything.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The descendants of a process, in ascending order. Process ids come again, so a parent can have a greater one than its child.
fn below(pid: u32, parents: &[(u32, u32)]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut next = vec![pid];
    while let Some(above) = next.pop() {
        let children = parents.iter().filter(|(child, parent)| *parent == above && *child != pid);
        next.extend(children.map(|(child, _)| *child).filter(|child| found.insert(*child)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_children_and_their_children() {
        let parents = [(2, 1), (3, 2), (9, 3), (4, 9), (5, 1), (6, 5), (1, 0)];
        assert_eq!(below(2, &parents).into_iter().collect::<Vec<_>>(), [3, 4, 9]);
        assert!(below(6, &parents).is_empty() && below(7, &parents).is_empty());
        // The list is not of one moment: a circle in it does no harm.
        assert_eq!(below(1, &[(2, 1), (1, 2)]).into_iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn parents_are_read_whatever_the_name_is() {
        assert_eq!(parent("7 (a) S 9 b) R 4711 1 1"), Some(4711));
        assert_eq!((parent(""), parent("7 (a) R x")), (None, None));
        let own = std::process::id();
        assert!(parents().contains(&(own, std::os::unix::process::parent_id())));
    }
}
