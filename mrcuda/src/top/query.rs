//! Asks jobs and servers again and again. Each has a thread of its own, so one that does not answer holds up nothing but itself.

use crate::ask::ANSWER_TIMEOUT;
use crate::gpus::{self, Server};
use crate::jobs::{self, Listed};
use control::{Client, Job, Move};
use rcuda_forwarder::Endpoint;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Shortest time between two questions to a server: each is a connection of its own.
const SERVERS: Duration = Duration::from_secs(2);

/// Moves of a job that are kept, the last ones; ours have no more.
const MOST_MOVES: usize = 1000;

/// What has become known.
pub(super) enum News {
    /// The processes that may be jobs, and what kept the command from finding more; or why it finds none.
    Found(Result<(Vec<u32>, Vec<String>), String>),
    /// A job has answered, or has not; `None`: it has ended.
    Job(u32, Option<Box<Answer>>),
    /// The server with this number has answered, or has not.
    Server(usize, Server),
}

/// The answer of a job.
pub(super) struct Answer {
    pub(super) at: Instant,
    pub(super) listed: Listed,
    /// Its moves, unless they are known.
    pub(super) moves: Option<Vec<Move>>,
}

/// By this the moves of a job are known: the one that is under way, and how many GPUs have moved. Lists of moves are long, so they are asked
/// for only when it has changed.
type Mark = (Option<String>, u64);

fn mark(job: &Job) -> Mark {
    (job.moving.clone(), job.devices.iter().fold(0, |sum, device| sum.saturating_add(device.moves)))
}

/// Asks a job, and for its moves unless this is their mark; `None` if it has ended.
pub(super) fn job(pid: u32, known: Option<&Mark>) -> Option<Answer> {
    let listed = jobs::ask(pid)?;
    let (at, is_new) = (Instant::now(), listed.answers() && known != Some(&mark(&listed.job)));
    let ask = || {
        let mut moves = Client::connect(pid).and_then(|mut job| job.report(None, Some(ANSWER_TIMEOUT))).ok()?;
        moves.drain(..moves.len().saturating_sub(MOST_MOVES));
        moves.iter_mut().for_each(jobs::cut_move);
        Some(moves)
    };
    Some(Answer { at, listed, moves: if is_new { ask() } else { None } })
}

/// What the threads that ask jobs have in common.
#[derive(Default)]
struct Desk {
    /// Jobs that have not answered yet, or whose answer was not sent yet.
    asked: HashSet<u32>,
    marks: HashMap<u32, Mark>,
}

/// Starts the threads. They end when nobody receives the news.
pub(super) fn start(all: bool, interval: Duration, servers: Vec<Endpoint>, news: SyncSender<News>) -> io::Result<()> {
    for (number, at) in servers.into_iter().enumerate() {
        let news = news.clone();
        let ask = move || {
            while news.send(News::Server(number, Server::new(&at, gpus::ask(&at)))).is_ok() {
                std::thread::sleep(interval.max(SERVERS));
            }
        };
        Builder::new().name("ask-server".into()).spawn(ask)?;
    }
    let desk = Arc::new(Mutex::new(Desk::default()));
    let find = move || {
        loop {
            let found = jobs::pids(all).map_err(|why| why.message().to_owned());
            let pids = found.as_ref().ok().map(|(pids, _)| pids.clone());
            if news.send(News::Found(found)).is_err() {
                return;
            }
            // Without a list the jobs are what they were.
            if let Some(pids) = pids {
                // The screen has forgotten the moves of the others.
                desk.lock().unwrap_or_else(PoisonError::into_inner).marks.retain(|pid, _| pids.contains(pid));
                pids.into_iter().for_each(|pid| ask_in_thread(pid, &desk, &news));
            }
            std::thread::sleep(interval);
        }
    };
    Builder::new().name("ask-jobs".into()).spawn(find).map(drop)
}

/// Asks a job, unless it has not answered the last question yet.
fn ask_in_thread(pid: u32, desk: &Arc<Mutex<Desk>>, news: &SyncSender<News>) {
    let lock = |desk: &Arc<Mutex<Desk>>, change: &mut dyn FnMut(&mut Desk)| {
        change(&mut desk.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let (mut is_new, mut known) = (false, None);
    lock(desk, &mut |desk| (is_new, known) = (desk.asked.insert(pid), desk.marks.get(&pid).cloned()));
    if !is_new {
        return;
    }
    let (theirs, news) = (desk.clone(), news.clone());
    let ask = move || {
        let answer = job(pid, known.as_ref());
        // Before it is sent: else the mark of moves that the screen has forgotten meanwhile could stay.
        lock(&theirs, &mut |desk| match &answer {
            Some(Answer { listed, moves: Some(_), .. }) => drop(desk.marks.insert(pid, mark(&listed.job))),
            Some(_) => {}
            None => drop(desk.marks.remove(&pid)),
        });
        // Without a receiver the screen is gone.
        let _ = news.send(News::Job(pid, answer.map(Box::new)));
        lock(&theirs, &mut |desk| _ = desk.asked.remove(&pid));
    };
    if Builder::new().name("ask-job".into()).spawn(ask).is_err() {
        // There are too many threads now: it is asked in the next round.
        lock(desk, &mut |desk| _ = desk.asked.remove(&pid));
    }
}
