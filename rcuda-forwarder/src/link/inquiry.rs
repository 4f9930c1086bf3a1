//! Asks a server why a worker that a job has lost has ended.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum length of a reason that is shown.
const LONGEST: usize = 300;

type Ask = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// What a link's server says of the end of its worker, which it is asked once.
#[derive(Default)]
pub(super) struct Inquiry {
    ask: Option<Ask>,
    said: OnceLock<Option<String>>,
    /// The job has taken its leave: the worker ends because of that.
    is_over: AtomicBool,
}

impl std::fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inquiry").field("said", &self.said).field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl Inquiry {
    /// One that asks in this way.
    pub(super) fn by(ask: impl Fn() -> Option<String> + Send + Sync + 'static) -> Inquiry {
        Inquiry { ask: Some(Box::new(ask)), ..Inquiry::default() }
    }

    /// No more is asked.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// The reason for a loss, with what the server says of it.
    pub(super) fn explain(&self, why: &str) -> String {
        let ask = self.ask.as_ref().filter(|_| !self.is_over.load(Ordering::Acquire));
        // All threads that notice the loss wait for one answer, so that none of them tells its job less than the others.
        let said = ask.and_then(|ask| self.said.get_or_init(ask).clone());
        said.map_or_else(|| why.to_owned(), |said| format!("{why}; its server says: {said}"))
    }
}

/// What is shown of an answer: the server may be anything.
pub(super) fn shown(said: &[u8]) -> Option<String> {
    let said: String = String::from_utf8_lossy(said).chars().filter(|c| !c.is_control()).take(LONGEST).collect();
    Some(said).filter(|said| !said.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_server_is_asked_once_and_not_by_who_has_left() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let inquiry = Inquiry::by(move || {
            count.fetch_add(1, Ordering::SeqCst);
            Some("signal: 9".to_owned())
        });
        assert_eq!(inquiry.explain("it has ended"), "it has ended; its server says: signal: 9");
        assert_eq!(inquiry.explain("sending failed"), "sending failed; its server says: signal: 9");
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let left = Inquiry::by(|| panic!("it has left"));
        left.end();
        assert_eq!(left.explain("it has ended"), "it has ended");
        // A helper has no server, and one that knows nothing says nothing.
        assert_eq!(Inquiry::default().explain("it has ended"), "it has ended");
        assert_eq!(Inquiry::by(|| None).explain("it has ended"), "it has ended");
    }

    #[test]
    fn answers_are_short_and_have_no_control_characters() {
        assert_eq!(shown(b"a\x1b[2Jb\n").as_deref(), Some("a[2Jb"));
        assert_eq!(shown("ü".repeat(10_000).as_bytes()).map(|said| said.chars().count()), Some(LONGEST));
        assert_eq!([shown(b""), shown(b" \n")], [None, None]);
        assert!(shown(&[0xff, b'x']).is_some());
    }
}
