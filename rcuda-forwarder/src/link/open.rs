//! Opens a connection to a server: connects and greets, and tries again where the server is busy.

use super::error::{LinkError, refused};
use super::time_limits::TimeLimits;
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::greet::{self, GreetError, Limits, Opening, Proof, Protection};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{Duration, Instant};

/// First and longest pause before retrying a server that is busy, or that closed the connection during the greeting.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(320)];

/// How often a server may close the connection during the greeting: a busy one does so for seconds at most. With the
/// pauses, the retries take about ten seconds; a server that still closes it then is another service, or is ending.
pub(super) const HANG_UPS: u32 = 24;

/// How often this end may be too slow for a server: a process that is stopped in the middle of a greeting, by a scheduler for example, greets
/// anew when it continues.
pub(super) const TOO_SLOW: u32 = 2;

/// A server that closes the connection in a greeting that has taken so long has waited for this end, too.
const LATE: Duration = Duration::from_secs(5);

/// Time limits for connecting and greeting.
pub(super) struct Opened {
    pub(super) connection: Duration,
    pub(super) greeting: Duration,
    pub(super) all: Duration,
}

impl Opened {
    /// Maximum number of messages of a greeting.
    const PARTS: u32 = 4;

    pub(super) fn of(limits: &TimeLimits) -> Opened {
        let TimeLimits { connection, greeting, .. } = *limits;
        Opened { connection, greeting, all: connection + Opened::PARTS * greeting }
    }
}

/// Connects and greets; retries within the time limit if the server is busy. Returns the connection with the binding of TLS, or
/// zeros. What the server sends next depends on the opening.
pub(super) fn open(
    to: &Endpoint,
    opening: &Opening,
    (by, protection): (Proof<'_>, Protection<'_>),
    limit: &Opened,
    connect: &dyn Fn(Instant) -> io::Result<Conn>,
) -> Result<(Conn, [u8; 32]), LinkError> {
    let (mut began, mut pause, mut hang_ups, mut too_slow, mut before) = (Instant::now(), PAUSES[0], 0, 0, None);
    loop {
        let (attempt, end, deadline) = (Instant::now(), began + limit.all, began + limit.greeting);
        let connected = end.min(attempt + limit.connection);
        let conn = match connect(connected) {
            Ok(conn) => conn,
            // The earlier error says more.
            Err(source) => return Err(before.unwrap_or_else(|| LinkError::Connect { to: to.clone(), source })),
        };
        match greet::greet(&conn, opening, by, protection, Limits { silence: limit.greeting, end }) {
            Ok(binding) => return Ok((conn, binding)),
            Err(why) => {
                hang_ups += u32::from(matches!(why, GreetError::HungUp(_)));
                let again = matches!(why, GreetError::Busy | GreetError::HungUp(_)) && hang_ups < HANG_UPS;
                let was_late = why.says_too_slow() || matches!(why, GreetError::HungUp(_)) && attempt.elapsed() >= LATE;
                let error = refused(to, &why);
                if was_late && too_slow < TOO_SLOW {
                    (too_slow, began) = (too_slow + 1, Instant::now());
                } else if !again || Instant::now() + 2 * pause >= deadline {
                    return Err(error);
                }
                before = Some(error);
            }
        }
        drop(conn);
        // Randomized, so that clients that were refused together do not return together.
        let part = RandomState::new().hash_one(0) as u32 % 1000;
        std::thread::sleep(pause + pause * part / 1000);
        pause = (2 * pause).min(PAUSES[1]);
    }
}
