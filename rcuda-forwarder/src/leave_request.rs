//! A server's request that a job move away, because the server is about to end (docs/formats.md, "Frames").

use cuda_api::wire::Wire;
use std::time::Duration;

/// Maximum length of the body of the message.
pub(crate) const LONGEST: usize = 4 << 10;

/// A server's request that a job move away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveRequest {
    /// The place to which it is to move, as the server has it. The job decides whether it follows.
    pub to: String,
    /// For how long the server still serves the job.
    pub limit: Duration,
}

impl LeaveRequest {
    /// The body of the message.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        (u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX), self.to.clone()).put(&mut out);
        out
    }

    /// Reads a body; `None` if it is malformed.
    pub(crate) fn read(mut body: &[u8]) -> Option<LeaveRequest> {
        let (ms, to) = <(u64, String)>::get(&mut body).ok()?;
        body.is_empty().then(|| LeaveRequest { to, limit: Duration::from_millis(ms) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_as_written() {
        let request = LeaveRequest { to: "[::1]:7878/3".into(), limit: Duration::from_millis(30_000) };
        let body = request.body();
        assert_eq!(LeaveRequest::read(&body), Some(request));
        for n in 0..body.len() {
            assert_eq!(LeaveRequest::read(&body[..n]), None);
        }
        assert_eq!(LeaveRequest::read(&[&body[..], &[0]].concat()), None);
        assert_eq!(LeaveRequest::read(&[&body[..16], &[0xff; 12]].concat()), None, "a text that is not UTF-8");
    }
}
