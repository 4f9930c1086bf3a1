//! Copies to the host that are requested piece by piece, the next one before the last one has arrived.

/// The request that was made last. Its bytes land in the program's memory, which the program may free once the copy has returned, also with
/// an error: so [`InFlight::end`] ends every copy.
#[must_use]
pub(crate) struct InFlight<W>(Option<W>);

impl<W> InFlight<W> {
    pub(crate) fn new() -> InFlight<W> {
        InFlight(None)
    }

    /// Notes a request, and waits for the one before it.
    pub(crate) fn add<E>(&mut self, request: W, wait: impl FnOnce(W) -> Result<(), E>) -> Result<(), E> {
        self.0.replace(request).map_or(Ok(()), wait)
    }

    /// Waits for the last request, whether all were made or the copy has failed before, and returns the first error.
    pub(crate) fn end<E>(self, requested: Result<(), E>, wait: impl FnOnce(W) -> Result<(), E>) -> Result<(), E> {
        let arrived = self.0.map_or(Ok(()), wait);
        requested.and(arrived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of five pieces; the request of one, or the wait for one, fails. Returns what was requested, what was waited for, and the result.
    fn copy(fails_to_request: usize, fails_to_arrive: usize) -> (Vec<usize>, Vec<usize>, Result<(), &'static str>) {
        let (mut requested, mut arrived) = (Vec::new(), Vec::new());
        let mut wait = |piece: usize| {
            arrived.push(piece);
            if piece == fails_to_arrive { Err("wait") } else { Ok(()) }
        };
        let mut in_flight = InFlight::new();
        let all = (0..5).try_for_each(|piece| {
            if piece == fails_to_request {
                return Err("request");
            }
            requested.push(piece);
            in_flight.add(piece, &mut wait)
        });
        let result = in_flight.end(all, wait);
        (requested, arrived, result)
    }

    #[test]
    fn nothing_lands_after_the_end_of_a_copy() {
        const NONE: usize = usize::MAX;
        for fails_to_request in (0..5).chain([NONE]) {
            for fails_to_arrive in (0..5).chain([NONE]) {
                let (requested, arrived, result) = copy(fails_to_request, fails_to_arrive);
                assert_eq!(requested, arrived, "{fails_to_request} {fails_to_arrive}");
                let expected = match (fails_to_request, fails_to_arrive) {
                    (NONE, NONE) => Ok(()),
                    // The wait for a piece comes after the request of the next one.
                    (request, arrive) if arrive.saturating_add(1) < request => Err("wait"),
                    (NONE, _) => Err("wait"),
                    _ => Err("request"),
                };
                assert_eq!(result, expected, "{fails_to_request} {fails_to_arrive}");
            }
        }
    }
}
