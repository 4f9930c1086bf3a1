//! A server's request that a job move away: because the server is about to end, or because it was asked to move the job
//! (docs/formats.md, "Frames").

use cuda_api::wire::Wire;
use std::time::Duration;

/// Maximum length of the body of the message.
pub(crate) const LONGEST: usize = 4 << 10;

/// A server's request that a job move away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveRequest {
    /// The place to which it is to move, as the server has it. The job decides whether it follows.
    pub to: String,
    /// How long the job has: until the server ends, or the one who asks gives up.
    pub limit: Duration,
    /// The number of a request to move the job, which the job names if it stays; `None`: the server is about to end.
    pub request: Option<u64>,
}

impl LeaveRequest {
    /// The body of the message.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        (u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX), (self.to.clone(), self.request)).put(&mut out);
        out
    }

    /// Reads a body; `None` if it is malformed.
    pub(crate) fn read(mut body: &[u8]) -> Option<LeaveRequest> {
        let (ms, (to, request)) = <(u64, (String, Option<u64>))>::get(&mut body).ok()?;
        body.is_empty().then(|| LeaveRequest { to, limit: Duration::from_millis(ms), request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_as_written() {
        let ending = LeaveRequest { to: "local".into(), limit: Duration::from_millis(30_000), request: None };
        assert_eq!(LeaveRequest::read(&ending.body()), Some(ending));
        let asked = LeaveRequest { to: "[::1]:7878/3".into(), limit: Duration::from_millis(30_000), request: Some(7) };
        let body = asked.body();
        assert_eq!(LeaveRequest::read(&body), Some(asked));
        for n in 0..body.len() {
            assert_eq!(LeaveRequest::read(&body[..n]), None);
        }
        assert_eq!(LeaveRequest::read(&[&body[..], &[0]].concat()), None);
        assert_eq!(LeaveRequest::read(&[&body[..16], &[0xff; 12]].concat()), None, "a text that is not UTF-8");
    }
}
