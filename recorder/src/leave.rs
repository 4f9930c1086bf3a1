//! Follows a server that asks this job to move away, because it is about to end, or because somebody has asked it to have the job moved
//! (docs/servers.md).
//!
//! The request comes over the connection to one place. It becomes a move like any other, requested by the server: it is queued, reported
//! and can be cancelled. The job refuses what a server must not decide.

use crate::base::config;
use crate::base::log::lock;
use crate::base::spawn::spawn;
use crate::copies;
use crate::job::{self, Device, Job};
use crate::move_error::MoveError;
use crate::mover;
use crate::moves;
use ::control::{Migrate, Move, ReasonCode};
use rcuda_forwarder::{Control, Endpoint, LeaveRequest, Link, PlaceSpec, PlaceSpecError};
use std::collections::BTreeMap;
use std::sync::{Mutex, Weak};
use std::time::{Duration, Instant};

/// How long the job waits for the requests of its other GPUs at the same server, since those that use each other's memory move only
/// together. Also the pause before the next attempt.
const COLLECTING: Duration = Duration::from_millis(200);
/// Maximum number of requests that wait: one for each GPU, and for each target of a move that is under way.
const WAITING: usize = 64;

/// Why a job does not do what a server asks.
#[derive(Debug, thiserror::Error)]
enum StayError {
    /// A server must not decide that.
    #[error(
        "a server may not ask a job to move to `{0}`: a job follows servers to encrypted places, and to GPUs and memory of its own machine"
    )]
    NotForServers(PlaceSpec),
    /// The job's user does not want that.
    #[error("this job does not move to `{0}` when a server asks for it (MRCUDA_SERVER_MOVES)")]
    NotForUser(PlaceSpec),
    /// The text names no place.
    #[error(transparent)]
    Place(#[from] PlaceSpecError),
    /// The move was refused.
    #[error(transparent)]
    Move(#[from] MoveError),
}

/// A request of the server of one place.
#[derive(Debug)]
struct Asked {
    /// The place whose server asks.
    at: PlaceSpec,
    /// The connection to it, for the reason why the job stays.
    link: Weak<Link>,
    to: String,
    until: Instant,
    /// The number of a request that somebody has made of the server; `None`: the server is about to end.
    request: Option<u64>,
}

impl Asked {
    /// Whether the server is about to end.
    fn is_ending(&self) -> bool {
        self.request.is_none()
    }

    /// Why it asks.
    fn reason(&self) -> &'static str {
        if self.is_ending() { "is ending" } else { "was asked to have this job moved" }
    }
}

/// Requests that have not been followed, and whether a thread does that.
static ASKED: Mutex<(Vec<Asked>, bool)> = Mutex::new((Vec::new(), false));

/// Takes a request; a thread of its own follows it.
pub(crate) fn asked(at: &PlaceSpec, link: &Weak<Link>, request: LeaveRequest) {
    // A limit that no clock can express is as good as none.
    let now = Instant::now();
    let until = now.checked_add(request.limit).unwrap_or(now + Duration::from_secs(u64::from(u32::MAX)));
    let mut asked = lock(&ASKED);
    let (waiting, followed) = &mut *asked;
    let request = Asked { at: at.clone(), link: link.clone(), to: request.to, until, request: request.request };
    if let Err(request) = note(waiting, request) {
        refuse_one_more(&request);
    } else if !*followed {
        match spawn("mrcuda-leave", follow_all) {
            Ok(()) => *followed = true,
            Err(why) => tracing::warn!(target: "job", "cannot follow a server that asks this job to move: {why}"),
        }
    }
}

/// Adds a request, unless there is one of its kind over the same connection, or too many; then it is returned. A server that is ending may
/// change its mind: its newer request replaces the older one.
fn note(waiting: &mut Vec<Asked>, request: Asked) -> Result<(), Asked> {
    let is_same = |other: &&mut Asked| {
        other.at == request.at && other.link.ptr_eq(&request.link) && other.is_ending() == request.is_ending()
    };
    if let Some(before) = waiting.iter_mut().find(is_same) {
        if !request.is_ending() {
            return Err(request);
        }
        *before = request;
        return Ok(());
    }
    if waiting.len() >= WAITING {
        return Err(request);
    }
    waiting.push(request);
    Ok(())
}

/// Who has made a request of a server waits for the answer.
fn refuse_one_more(request: &Asked) {
    if !request.is_ending() {
        report_stay(request, "it has not followed earlier requests of this server yet".to_owned());
    }
}

/// Follows requests until there are none.
fn follow_all() {
    let mut pending: Vec<Asked> = Vec::new();
    loop {
        std::thread::sleep(COLLECTING);
        {
            let mut asked = lock(&ASKED);
            for request in std::mem::take(&mut asked.0) {
                note(&mut pending, request).unwrap_or_else(|request| refuse_one_more(&request));
            }
            pending.retain(|asked| {
                let is_over = asked.until <= Instant::now();
                if is_over {
                    report_stay(asked, "its time was over before it could move".to_owned());
                }
                !is_over
            });
            if pending.is_empty() {
                asked.1 = false;
                return;
            }
        }
        // A move that is under way, or was asked for by somebody else, may bring a GPU to such a place, or away from it.
        let Some(job) = job::opened().filter(|_| moves::now() == (None, Vec::new())) else { continue };
        // Before a server ends, what was asked of it is settled: the job may then be where it wants.
        let (later, now): (Vec<Asked>, Vec<Asked>) = {
            let asked_for: Vec<PlaceSpec> = pending.iter().filter(|it| !it.is_ending()).map(|it| it.at.clone()).collect();
            pending.into_iter().partition(|it| it.is_ending() && asked_for.contains(&it.at))
        };
        pending = later;
        let ends = settle(&now, |asked| attempt(job, asked));
        for (asked, end) in now.into_iter().zip(ends) {
            match end {
                End::Later => pending.push(asked),
                End::Stays { why, .. } => report_stay(&asked, why),
                End::Left => {}
            }
        }
    }
}

/// Maximum number of reasons that are on their way over one connection: a server that asks again and again and answers nothing gets no
/// more threads of the job.
const REPORTS: usize = 4;

/// The connections over which reasons are on their way, each as often as there are some.
#[derive(Debug)]
struct UnderWay<T>(Vec<Weak<T>>);

impl<T> UnderWay<T> {
    /// Counts a reason, if one more may be on its way over this connection.
    fn begins(&mut self, link: &Weak<T>) -> bool {
        let has_room = self.0.iter().filter(|other| other.ptr_eq(link)).count() < REPORTS;
        if has_room {
            self.0.push(link.clone());
        }
        has_room
    }

    fn ends(&mut self, link: &Weak<T>) {
        if let Some(done) = self.0.iter().position(|other| other.ptr_eq(link)) {
            self.0.swap_remove(done);
        }
    }
}

/// Tells a server why the job stays, on a thread of its own: a server that does not answer must not delay what others have asked.
fn report_stay(asked: &Asked, why: String) {
    static UNDER_WAY: Mutex<UnderWay<Link>> = Mutex::new(UnderWay(Vec::new()));
    // A server that has ended meanwhile needs no reason.
    let Some(link) = asked.link.upgrade() else { return };
    if !lock(&UNDER_WAY).begins(&asked.link) {
        return;
    }
    let stay = Control::Stay { request: asked.request, why };
    let here = asked.link.clone();
    let report = move || {
        drop(link.control(&stay));
        lock(&UNDER_WAY).ends(&here);
    };
    if let Err(error) = spawn("mrcuda-stay", report) {
        lock(&UNDER_WAY).ends(&asked.link);
        tracing::warn!(target: "job", "cannot tell the server of {} why this job stays: {error}", asked.at);
    }
}

/// What an attempt to follow requests has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    /// The GPUs have moved, or are no longer at that server.
    Left,
    /// It can be tried again.
    Later,
    /// The job stays.
    Stays {
        /// The reason.
        why: String,
        /// One of the GPUs moves only together with others.
        needs_others: bool,
    },
}

/// Follows requests by attempts, each with the requests for one move, and returns the end of each request. What one server asks for is
/// independent of the others: a target that cannot be used, or a short time limit, concerns nobody else's GPUs.
fn settle(asked: &[Asked], mut attempt: impl FnMut(&[&Asked]) -> End) -> Vec<End> {
    let mut ends = vec![End::Later; asked.len()];
    let mut attempt = |numbers: &[usize], ends: &mut Vec<End>| {
        let end = attempt(&numbers.iter().map(|n| &asked[*n]).collect::<Vec<_>>());
        numbers.iter().for_each(|n| ends[*n] = end.clone());
    };
    let mut servers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (n, asked) in asked.iter().enumerate() {
        servers.entry(server(&asked.at)).or_default().push(n);
    }
    servers.values().for_each(|numbers| attempt(numbers, &mut ends));
    // The same server can have two addresses.
    let need_others = |numbers: &&Vec<usize>| numbers.iter().all(|n| matches!(ends[*n], End::Stays { needs_others: true, .. }));
    let together: Vec<&Vec<usize>> = servers.values().filter(need_others).collect();
    if together.len() > 1 {
        attempt(&together.into_iter().flatten().copied().collect::<Vec<_>>(), &mut ends);
    }
    // Of several GPUs, those leave whose targets can be used.
    for numbers in servers.values().filter(|numbers| numbers.len() > 1) {
        for n in numbers {
            if matches!(ends[*n], End::Stays { needs_others: false, .. }) {
                attempt(&[*n], &mut ends);
            }
        }
    }
    ends
}

/// The server of a place.
fn server(at: &PlaceSpec) -> String {
    if let PlaceSpec::Remote(endpoint) = at { endpoint.server() } else { at.to_string() }
}

/// Moves the GPUs that are still at the places whose servers have asked, in one move.
fn attempt(job: &'static Job, asked: &[&Asked]) -> End {
    let Some(until) = asked.iter().map(|asked| asked.until).min() else { return End::Left };
    let concerned = concerned(job, asked);
    let has_no_gpu = |at: &PlaceSpec| concerned.iter().all(|(_, other)| other.at != *at);
    // The job runs elsewhere, but the server waits until this copy has left, too. It can be made again anywhere.
    for asked in asked.iter().filter(|asked| asked.is_ending() && has_no_gpu(&asked.at)) {
        if copies::end_at(&asked.at) {
            tracing::warn!(target: "job", "the server of {} is ending: the copy of this job there is no longer kept", asked.at);
        }
    }
    if concerned.is_empty() {
        // Unless it has just left: then the server sees that, and gets no reason.
        return if asked.iter().all(|asked| asked.is_ending()) {
            End::Left
        } else {
            stays("none of its GPUs is there, but a copy of it may be")
        };
    }
    let is_over = || Instant::now() >= until;
    let (why, code) = match move_away(job, &concerned, until) {
        Ok(report) if report.ok => return End::Left,
        // Long kernels: the server waits for them, too.
        Ok(report) if report.code == Some(ReasonCode::NotIdle) && !is_over() => return End::Later,
        // Another move came first, and may have taken the GPU elsewhere.
        Err(StayError::Move(MoveError::Busy { .. } | MoveError::AlreadyThere)) if !is_over() => return End::Later,
        // The move has written why.
        Ok(report) => (report.reason.unwrap_or_default(), report.code),
        Err(why) => {
            let servers = concerned.iter().map(|(_, asked)| asked.at.to_string()).collect::<Vec<_>>().join(", ");
            let reason = concerned.first().map_or("", |(_, asked)| asked.reason());
            tracing::warn!(target: "job", "the server of {servers} {reason}, and this job does not move away: {why}");
            (why.to_string(), None)
        }
    };
    End::Stays { why, needs_others: code == Some(ReasonCode::PeerAccess) }
}

fn stays(why: &str) -> End {
    End::Stays { why: why.to_owned(), needs_others: false }
}

/// The GPUs that are at places whose servers have asked.
fn concerned<'a>(job: &'static Job, asked: &[&'a Asked]) -> Vec<(&'static Device, &'a Asked)> {
    let at = |place: &str| asked.iter().copied().find(|asked| asked.at.to_string() == place);
    job.devices.iter().filter_map(|device| Some((device, at(&device.whereabouts().place)?))).collect()
}

/// Carries out the move, and waits for its end.
fn move_away(job: &'static Job, concerned: &[(&'static Device, &Asked)], until: Instant) -> Result<Move, StayError> {
    let mut targets = Vec::new();
    for (device, asked) in concerned {
        let to: PlaceSpec = asked.to.parse()?;
        allowed(&asked.at, &to)?;
        if config::get().is_ok_and(|config| !config.server_moves.allow(&to)) {
            return Err(StayError::NotForUser(to));
        }
        // What is parked stays parked: only its user lets it go on.
        if asked.at.is_store() && !to.is_store() {
            return Err(StayError::NotForServers(to));
        }
        targets.push((*device, to));
    }
    // A job that is parked moves with all its GPUs, also those that stay.
    if mover::parked::home().is_some() {
        for device in job.devices.iter().filter(|device| concerned.iter().all(|(other, _)| other.index != device.index)) {
            targets.push((device, device.whereabouts().place.parse()?));
        }
        targets.sort_by_key(|(device, _)| device.index);
    }
    let left = u64::try_from(until.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX);
    let to = targets.iter().map(|(_, to)| to.to_string()).collect::<Vec<_>>().join(",");
    let wanted = Migrate { deadline_ms: Some(left), ..Migrate::to(&to) };
    let is_ending = concerned.iter().any(|(_, asked)| asked.is_ending());
    let reason = concerned.first().map_or("", |(_, asked)| asked.reason());
    tracing::info!(target: "job", "a server {reason}: this job is to move to {to}");
    let from = concerned.iter().map(|(device, asked)| (device.index, asked.at.to_string())).collect();
    let by = if is_ending { "server" } else { "server-request" };
    let id = moves::request_by_server(job, wanted, targets, from, by, mover::run)?;
    Ok(moves::wait_for(&id)?)
}

/// Whether a server, whose place is `at`, may ask the job to move to `to`. It must not make the job write files, give up encryption, or use
/// the sockets of its own machine.
fn allowed(at: &PlaceSpec, to: &PlaceSpec) -> Result<(), StayError> {
    // Calls over RDMA are not encrypted, but its greeting is, and checks the certificate; without encryption nothing is checked.
    let protection = |server: &Endpoint| match server.unix_path() {
        None if server.is_plain() => 0,
        None if server.is_rdma() => 1,
        _ => 2,
    };
    let is_allowed = match (at, to) {
        (_, PlaceSpec::File(_)) => false,
        (_, PlaceSpec::Local(_) | PlaceSpec::Helper(_) | PlaceSpec::Memory) => true,
        (PlaceSpec::Remote(at), PlaceSpec::Remote(to)) if to.unix_path().is_some() => at.unix_path().is_some(),
        (PlaceSpec::Remote(at), PlaceSpec::Remote(to)) => protection(to) >= protection(at),
        // Places without a server.
        (_, PlaceSpec::Remote(_)) => false,
    };
    if is_allowed { Ok(()) } else { Err(StayError::NotForServers(to.clone())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn may(at: &str, to: &str) -> bool {
        allowed(&at.parse().unwrap(), &to.parse().unwrap()).is_ok()
    }

    #[test]
    fn few_reasons_are_on_their_way_over_one_connection() {
        let (one, other) = (Arc::new(()), Arc::new(()));
        let (one, other) = (Arc::downgrade(&one), Arc::downgrade(&other));
        let mut under_way = UnderWay(Vec::new());
        assert_eq!((0..REPORTS + 2).filter(|_| under_way.begins(&one)).count(), REPORTS);
        assert!(under_way.begins(&other), "another server waits for nobody");
        under_way.ends(&one);
        assert!(under_way.begins(&one) && !under_way.begins(&one));
        (0..REPORTS).for_each(|_| under_way.ends(&one));
        under_way.ends(&other);
        assert!(under_way.0.is_empty());
    }

    #[test]
    fn a_server_may_name_other_servers_and_the_gpus_and_memory_of_the_job() {
        for at in ["a:1/0", "unix:/run/a/0", "plain://a:1/0", "a:1/memory"] {
            for to in ["b:1/3", "tls://b:1", "local", "local:1", "helper", "memory", "b:1/memory"] {
                assert!(may(at, to), "{at} {to}");
            }
        }
        assert!(may("unix:/run/a/0", "unix:/run/b/1"));
    }

    #[test]
    fn a_server_decides_neither_files_nor_encryption_nor_local_sockets() {
        for (at, to) in [
            ("a:1/0", "file:/home/you/.ssh"),
            ("unix:/run/a/0", "file:/scratch"),
            ("a:1/0", "plain://b:1/0"),
            ("a:1/0", "rdma://b:1/0"),
            ("a:1/0", "unix:/run/docker.sock"),
            ("plain://a:1/0", "unix:/run/docker.sock"),
            ("unix:/run/a/0", "plain://b:1/0"),
            ("helper", "b:1/0"),
        ] {
            assert!(!may(at, to), "{at} {to}");
        }
        // What is not encrypted now need not be encrypted then.
        for (at, to) in [("plain://a:1/0", "plain://b:1/0"), ("rdma://a:1/0", "rdma://b:1/0")] {
            assert!(may(at, to), "{at} {to}");
        }
    }

    #[test]
    fn a_server_that_asks_again_and_again_fills_no_memory() {
        let asked = |at: &str, request| Asked {
            at: at.parse().unwrap(),
            link: Weak::new(),
            to: "local".into(),
            until: Instant::now(),
            request,
        };
        let mut waiting = Vec::new();
        let mut is_new = |at, request| note(&mut waiting, asked(at, request)).is_ok();
        assert!(is_new("a:1/0", None) && is_new("a:1/1", None));
        assert!(is_new("a:1/0", Some(1)) && !is_new("a:1/0", Some(2)), "one of each kind");
        let elsewhere = Asked { to: "b:1/0".into(), ..asked("a:1/0", None) };
        assert!(note(&mut waiting, elsewhere).is_ok(), "a server that is ending changes its mind");
        assert_eq!((waiting.len(), waiting[0].to.as_str()), (3, "b:1/0"));
        for port in 1..=1000 {
            let _ = note(&mut waiting, asked(&format!("b:{port}/0"), Some(port)));
        }
        assert_eq!(waiting.len(), WAITING);
    }

    fn asked_by(at: &[&str]) -> Vec<Asked> {
        let asked = |at: &&str| Asked {
            at: at.parse().unwrap(),
            link: Weak::new(),
            to: "local".into(),
            until: Instant::now(),
            request: None,
        };
        at.iter().map(asked).collect()
    }

    /// Settles the requests of these places, and returns the attempts that were made and whose GPUs have left.
    fn settled(at: &[&str], end: impl Fn(&[&str]) -> End) -> (Vec<String>, Vec<String>) {
        let (asked, mut attempts) = (asked_by(at), Vec::new());
        let ends = settle(&asked, |asked| {
            let places: Vec<String> = asked.iter().map(|asked| asked.at.to_string()).collect();
            attempts.push(places.join(" "));
            end(&places.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let left = at.iter().zip(ends).filter(|(_, end)| *end == End::Left).map(|(at, _)| (*at).to_owned()).collect();
        (attempts, left)
    }

    fn stays_with(needs_others: bool) -> End {
        End::Stays { why: "it cannot".into(), needs_others }
    }

    #[test]
    fn a_target_that_cannot_be_used_keeps_no_other_gpu() {
        // Two servers, of which one names a bad target for one of its GPUs.
        let bad = |places: &[&str]| if places.contains(&"a:1/1") { stays_with(false) } else { End::Left };
        let (attempts, left) = settled(&["a:1/0", "b:1/0", "a:1/1", "b:1/1"], bad);
        assert_eq!(attempts, ["a:1/0 a:1/1", "b:1/0 b:1/1", "a:1/0", "a:1/1"]);
        assert_eq!(left, ["a:1/0", "b:1/0", "b:1/1"]);
        // One move for one server's GPUs, if that is possible; nothing is tried twice.
        assert_eq!(settled(&["a:1/0", "a:1/1"], |_| End::Left).0, ["a:1/0 a:1/1"]);
        assert_eq!(settled(&["a:1/0"], |_| stays_with(false)).0, ["a:1/0"]);
        assert_eq!(settled(&["a:1/0", "a:1/1"], |_| End::Later).0, ["a:1/0 a:1/1"]);
    }

    #[test]
    fn gpus_that_need_each_other_move_together_although_their_server_has_two_addresses() {
        let peers = |places: &[&str]| {
            let among = |place| places.contains(&place);
            if among("a:1/0") == among("unix:/a/1") { End::Left } else { stays_with(true) }
        };
        let (attempts, left) = settled(&["a:1/0", "unix:/a/1", "b:1/0"], peers);
        assert_eq!(attempts.last().map(String::as_str), Some("a:1/0 unix:/a/1"), "{attempts:?}");
        assert_eq!(left, ["a:1/0", "unix:/a/1", "b:1/0"]);
    }

    #[test]
    fn refusals_name_the_place() {
        let why = allowed(&"a:1/0".parse().unwrap(), &"file:/x".parse().unwrap()).unwrap_err();
        assert!(why.to_string().contains("to move to `file:/x`: "), "{why}");
    }
}
