//! What the system reports of a process: whether it is stopped.

/// Whether a process is stopped: then it answers nothing until it is continued.
pub fn is_stopped(pid: u32) -> bool {
    state(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()).is_some_and(|state| "Tt".contains(state))
}

/// The state in the text of `/proc/PID/stat`. The name in it can contain anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_whatever_the_name_is() {
        assert_eq!(
            (state("4711 (a) S b) T 1 2"), state("1 (T) S 1"), state(""), state("1 (x")),
            (Some('T'), Some('S'), None, None)
        );
        assert!(!is_stopped(std::process::id()) && !is_stopped(u32::MAX));
    }
}
