//! `mrcuda top`: jobs, moves and GPUs on a screen that refreshes itself.
//!
//! [`query`] asks jobs and servers, each in a thread of its own; [`seen`] keeps what they have answered, and computes rates; [`view`] makes
//! lines of it, for the screen and for `--once`.

mod query;
mod seen;
mod view;

use crate::failure::Failure;
use crate::gpus::{self, Server};
use crate::jobs;
use crate::progress::waiting;
use crate::table::say;
use crate::terminal;
use crate::time::time;
use crate::value_error::ValueError;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rcuda_forwarder::Endpoint;
use seen::Seen;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{IsTerminal, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};
use view::{Page, Screen};

/// Longest time until a key, a signal or an answer is looked at.
const TICK: Duration = Duration::from_millis(50);

/// Answers that wait to be looked at; who has more waits.
const WAITING: usize = 64;

/// Arguments of `mrcuda top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Servers whose GPUs are shown: HOST:PORT, plain://HOST:PORT or unix:PATH [default: 127.0.0.1:7878]
    #[arg(value_name = "SERVER")]
    servers: Vec<Endpoint>,
    /// Time between two frames, for example 500ms or 5s; rates are computed over it
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Show also jobs with another XDG_RUNTIME_DIR and, for root, of all users
    #[arg(long)]
    all: bool,
    /// Print one frame as text; also done if the output is not a terminal
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, ValueError> {
    let bounds = 100..=3_600_000;
    time(text).ok().filter(|ms| bounds.contains(ms)).map(Duration::from_millis).ok_or(ValueError::Interval)
}

/// Shows the screen until the user leaves it, or prints one frame.
pub(crate) fn top(args: &TopArgs) -> Result<(), Failure> {
    jobs::say_whose(args.all);
    let servers = gpus::named_or_usual(&args.servers)?;
    let seen = Seen::new(servers.iter().map(Endpoint::server).collect(), args.all);
    if args.once || !stdout().is_terminal() || !stdin().is_terminal() {
        return once(args, &servers, seen);
    }
    show(args, servers, seen)
}

/// Asks the jobs twice, an interval apart, and the servers meanwhile.
fn once(args: &TopArgs, servers: &[Endpoint], mut seen: Seen) -> Result<(), Failure> {
    let shown = waiting("jobs and servers are asked");
    std::thread::scope(|threads| -> Result<(), Failure> {
        let asked: Vec<_> = servers.iter().map(|at| threads.spawn(move || Server::new(at, gpus::ask(at)))).collect();
        for is_first in [true, false] {
            if !is_first {
                std::thread::sleep(args.interval);
            }
            let (pids, problems) = jobs::pids(args.all)?;
            seen.found(&pids, problems);
            let answers: Vec<_> = pids.iter().map(|&pid| (pid, threads.spawn(move || query::job(pid, None)))).collect();
            // A thread that has panicked has printed why.
            answers.into_iter().for_each(|(pid, thread)| seen.answered(pid, thread.join().ok().flatten()));
        }
        asked.into_iter().enumerate().for_each(|(at, thread)| thread.join().into_iter().for_each(|it| seen.server(at, it)));
        Ok(())
    })?;
    drop(shown);
    say(&view::text(&seen, terminal::columns()));
    Ok(())
}

/// The terminal in the state that the screen needs, until it is dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the screen until a key or a signal ends it.
fn show(args: &TopArgs, servers: Vec<Endpoint>, mut seen: Seen) -> Result<(), Failure> {
    let ended_by = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_usize(signal, ended_by.clone(), signal as usize).map_err(Failure::new)?;
    }
    let (sender, news) = sync_channel(WAITING);
    query::start(args.all, args.interval, servers, sender).map_err(Failure::new)?;
    let restored = Restored;
    // Also restores it before the message of a panic.
    let mut terminal = ratatui::try_init().map_err(Failure::new)?;
    let mut screen = Screen::default();
    let mut drawn: Option<Instant> = None;
    loop {
        let is_due = drawn.is_none_or(|at| at.elapsed() >= args.interval.min(Duration::from_secs(1)));
        let is_news = take(&news, &mut seen);
        if is_due || is_news {
            terminal.draw(|frame| view::draw(frame, &seen, &mut screen)).map_err(Failure::new)?;
            drawn = Some(Instant::now());
        }
        if ended_by.load(Ordering::Relaxed) != 0 {
            break;
        }
        // A terminal that is gone ends it as well.
        if !event::poll(TICK).map_err(Failure::new)? {
            continue;
        }
        match event::read().map_err(Failure::new)? {
            Event::Key(key) if key.kind != KeyEventKind::Release && is_last(key, &mut screen, &seen) => break,
            // The size has changed, or what a key does is to be seen.
            _ => drawn = None,
        }
    }
    drop(terminal);
    drop(restored);
    if ended_by.load(Ordering::Relaxed) == SIGTERM as usize {
        // It does not return.
        let _ = signal_hook::low_level::emulate_default_handler(SIGTERM);
    }
    Ok(())
}

/// Takes what has been answered; returns whether there was something.
fn take(news: &Receiver<query::News>, seen: &mut Seen) -> bool {
    let before = seen.changes();
    for news in news.try_iter() {
        match news {
            query::News::Found(Ok((pids, problems))) => seen.found(&pids, problems),
            query::News::Found(Err(why)) => seen.not_found(why),
            query::News::Job(pid, answer) => seen.answered(pid, answer.map(|answer| *answer)),
            query::News::Server(at, server) => seen.server(at, server),
        }
    }
    seen.changes() != before
}

/// Does what a key is for; returns whether it ends the screen.
fn is_last(key: KeyEvent, screen: &mut Screen, seen: &Seen) -> bool {
    let is_list = screen.page == Page::List;
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('q') => return true,
        KeyCode::Esc | KeyCode::Enter if !is_list => screen.page = Page::List,
        KeyCode::Esc => return true,
        KeyCode::Char('?') => screen.page = if screen.page == Page::Help { Page::List } else { Page::Help },
        KeyCode::Enter if screen.selected.is_some() => screen.page = Page::Details,
        KeyCode::Char('s') => screen.order = screen.order.next(),
        KeyCode::Down | KeyCode::Char('j') => screen.select(seen, 1),
        KeyCode::Up | KeyCode::Char('k') => screen.select(seen, -1),
        _ => {}
    }
    false
}

#[cfg(test)]
mod tests;
