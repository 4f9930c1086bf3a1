//! Makes lines of what is known, and draws them.

use super::seen::{Asked, Known, Rates, Seen};
use crate::follow;
use crate::gpus::OVERVIEW;
use crate::jobs::carried;
use crate::moves;
use crate::table::{Table, bytes, duration, one_line, since};
use crate::timeline::target;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use std::cmp::Reverse;

/// The columns of the jobs.
const JOBS: [&str; 10] = ["PID", "USER", "NAME", "PLACE", "STATE", "MEMORY", "CALLS/S", "BYTES/S", "DOWNTIME", "MOVED"];
/// Those that give way where there is no room, the first one first.
const DISPENSABLE: [&str; 6] = ["MOVED", "DOWNTIME", "USER", "BYTES/S", "CALLS/S", "MEMORY"];
/// The same of the GPUs. What changes stays longer than what a GPU is.
const DISPENSABLE_OF_GPUS: [&str; 9] = ["LIMIT", "SM-CLOCK", "MEM-UTIL", "MODEL", "MEMORY", "TEMP", "USED", "POWER", "USERS"];

/// How many of its moves the details of a job show.
const MOVES: usize = 10;

const HELP: &str = "\
q, Ctrl-C     quit                     s  sort by the next column
up, k         select the job above     Enter  details of the selected job
down, j       select the job below     ?  this help; Esc, Enter: back

STATE     working: it calls its place    waiting: it has not since the last frame
          running: in its own process, where calls are not counted
          moving, parked, failed, stopped, not answering: as mrcuda ps says
CALLS/S   calls to its places; those that it answers itself are not among them
BYTES/S   bytes over its links in both directions, without those of moves
DOWNTIME  how long its last move held up calls
UTIL      share of time in which the GPU ran kernels, by NVML; MEM-UTIL: of its memory
MOVED     how long ago that move was requested";

/// By what jobs are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Pid,
    Name,
    State,
    Memory,
    Calls,
    Bytes,
}

impl Order {
    /// The one after this.
    pub(super) fn next(self) -> Order {
        match self {
            Order::Pid => Order::Name,
            Order::Name => Order::State,
            Order::State => Order::Memory,
            Order::Memory => Order::Calls,
            Order::Calls => Order::Bytes,
            Order::Bytes => Order::Pid,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Order::Pid => "PID",
            Order::Name => "NAME",
            Order::State => "STATE",
            Order::Memory => "MEMORY",
            Order::Calls => "CALLS/S",
            Order::Bytes => "BYTES/S",
        }
    }

    /// The jobs in this order: figures from the largest on, and jobs that are equal by their process ids.
    fn sorted(self, seen: &Seen) -> Vec<&Known> {
        let mut jobs: Vec<&Known> = seen.jobs.values().collect();
        let whole = |rate: fn(Rates) -> f64| move |job: &&Known| Reverse(job.rates.map_or(0, |rates| rate(rates) as u64));
        match self {
            Order::Pid => {}
            Order::Name => jobs.sort_by_key(|job| job.listed.name()),
            Order::State => jobs.sort_by_key(|job| job.state()),
            Order::Memory => jobs.sort_by_key(|job| Reverse(job.memory())),
            Order::Calls => jobs.sort_by_key(whole(|rates| rates.calls)),
            Order::Bytes => jobs.sort_by_key(whole(|rates| rates.bytes)),
        }
        jobs
    }
}

/// What the screen shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Page {
    /// Jobs, moves and GPUs.
    #[default]
    List,
    /// The selected job.
    Details,
    /// What keys and columns mean.
    Help,
}

/// What the user has chosen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    pub(super) page: Page,
    pub(super) order: Order,
    /// The process id of the selected job.
    pub(super) selected: Option<u32>,
    /// The first job that is shown.
    pub(super) first: usize,
}

impl Screen {
    /// Selects the job so many lines below the selected one, or the first one if none is.
    pub(super) fn select(&mut self, seen: &Seen, below: isize) {
        let pids: Vec<u32> = self.order.sorted(seen).iter().map(|job| job.listed.job.pid).collect();
        let at = self.selected.and_then(|pid| pids.iter().position(|it| *it == pid));
        let at = at.map_or(0, |at| at.saturating_add_signed(below).min(pids.len().saturating_sub(1)));
        self.selected = pids.get(at).copied();
    }
}

/// A rate without a unit.
fn count(rate: f64) -> String {
    match rate {
        0.0..9.95 if rate > 0.0 => format!("{rate:.1}"),
        ..9_999.5 => format!("{rate:.0}"),
        ..999_950.0 => format!("{:.1}k", rate / 1e3),
        ..999_950_000.0 => format!("{:.1}M", rate / 1e6),
        _ => format!("{:.1}G", rate / 1e9),
    }
}

/// A table within `limit` columns: names become shorter, and then columns that are dispensable are left out.
fn fit(headings: &[&str], rows: &[Vec<String>], dispensable: &[&str], limit: Option<usize>) -> Vec<String> {
    let mut left_out = 0;
    loop {
        let is_kept = |heading: &&str| !dispensable[..left_out].contains(heading);
        let kept: Vec<&str> = headings.iter().copied().filter(is_kept).collect();
        let mut table = Table::new(&kept);
        for row in rows {
            table.row(headings.iter().zip(row).filter(|(heading, _)| is_kept(heading)).map(|(_, cell)| cell.clone()).collect());
        }
        let text = table.render_in(limit);
        let fits = limit.is_none_or(|limit| text.lines().all(|line| line.chars().count() <= limit));
        if fits || left_out == dispensable.len() {
            return text.lines().map(str::to_owned).collect();
        }
        left_out += 1;
    }
}

/// A heading, and a line for each job in this order.
fn jobs(jobs: &[&Known], all: bool, limit: Option<usize>) -> Vec<String> {
    let row = |job: &&Known| {
        let unknown = || "-".to_owned();
        let moved = job.last_move();
        let mut cells = vec![
            job.listed.job.pid.to_string(),
            job.listed.user().to_owned(),
            job.listed.name(),
            job.places(),
            job.state().to_owned(),
            bytes(job.memory()),
            job.rates.map_or_else(unknown, |rates| count(rates.calls)),
            job.rates.map_or_else(unknown, |rates| bytes(rates.bytes as u64)),
            moved.map_or_else(unknown, |it| duration(it.downtime_ms)),
            moved.map_or_else(unknown, |it| since(it.at_unix_ms)),
        ];
        if !all {
            cells.remove(1);
        }
        cells
    };
    let headings: Vec<&str> = JOBS.into_iter().filter(|heading| all || *heading != "USER").collect();
    fit(&headings, &jobs.iter().map(row).collect::<Vec<_>>(), &DISPENSABLE, limit)
}

/// A line for each move under way, and for each job that does not answer.
fn moves_and_notes(seen: &Seen) -> Vec<String> {
    let mut lines = Vec::new();
    for job in seen.jobs.values() {
        let of = format!("{} {}", job.listed.job.pid, job.listed.name());
        if let Some(it) = job.listed.moving() {
            let done = match it.chunk_bytes.saturating_sub(it.bytes_adopted) {
                total @ 1.. if it.bytes <= total => format!("{} %, ", (it.bytes as f64 / total as f64 * 100.0) as u64),
                _ => String::new(),
            };
            lines.push(format!("{of}: {} -> {}: {done}{}", it.id, target(it), follow::line(it, job.copied)));
        }
        if let Some(why) = job.listed.reason() {
            lines.push(format!("{of}: {why}"));
        }
    }
    lines.extend(seen.problems.iter().cloned());
    lines.iter().map(|line| one_line(line)).collect()
}

/// A table of the GPUs of all servers that have answered, and a line for each other server.
fn gpus(seen: &Seen, limit: Option<usize>) -> Vec<String> {
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for Asked { server, answer } in &seen.servers {
        match answer.as_ref().map(|answer| (answer, answer.outcome().1)) {
            None => notes.push(format!("{server}: has not answered yet")),
            Some((_, Some(why))) => notes.push(format!("{server}: no answer: {}", without(server, why))),
            Some((answer, None)) => {
                rows.extend(answer.overview());
                notes.extend(answer.no_readings().map(|why| format!("{server}: what its GPUs measure is not known: {why}")));
                if answer.is_ending() {
                    notes.push(format!("{server}: ending, it takes no new jobs"));
                }
            }
        }
    }
    let mut lines = if rows.is_empty() { Vec::new() } else { fit(&OVERVIEW, &rows, &DISPENSABLE_OF_GPUS, limit) };
    lines.extend(notes.iter().map(|note| one_line(note)));
    lines
}

/// A reason without the server's name, with which most begin.
fn without<'a>(server: &str, why: &'a str) -> &'a str {
    why.strip_prefix(server).and_then(|why| why.strip_prefix(": ")).unwrap_or(why)
}

/// One frame as text.
pub(super) fn text(seen: &Seen, limit: Option<usize>) -> String {
    let sorted = Order::Pid.sorted(seen);
    let mut parts = vec![if sorted.is_empty() { vec!["no jobs".to_owned()] } else { jobs(&sorted, seen.all, limit) }];
    parts.extend([moves_and_notes(seen), gpus(seen, limit)].into_iter().filter(|part| !part.is_empty()));
    parts.iter().map(|part| part.join("\n") + "\n").collect::<Vec<_>>().join("\n")
}

/// Everything about a job.
fn details(job: &Known, limit: usize) -> Vec<String> {
    let (listed, it) = (&job.listed, &job.listed.job);
    let mut lines = vec![
        format!("job {} {}, of user {}: {}", it.pid, listed.name(), listed.user(), job.state()),
        format!("program {}", it.program),
    ];
    lines.extend(listed.reason().map(str::to_owned));
    lines.extend(it.signal.as_ref().map(|signal| format!("{signal} moves it to {}", it.on_signal)));
    if !it.when_full.is_empty() {
        lines.push(format!("if a GPU is full, it may move to {}", it.when_full));
    }
    if !it.home.is_empty() {
        lines.push(format!("it belongs at {}", it.home));
    }
    if !it.policy.is_empty() {
        lines.push(format!("policies of an agent that may move it: {}", it.policy));
    }
    lines.extend(it.copy.as_ref().map(|copy| format!("a copy at {} is kept current", copy.to)));
    for gpu in &it.devices {
        lines.push(format!(
            "GPU {}: {} at {} by {} for {}",
            gpu.device,
            gpu.name,
            gpu.place,
            carried(gpu),
            since(gpu.since_unix_ms)
        ));
        let live: Vec<String> = gpu.live.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        lines.push(format!("   {} allocated; {} records; {}", bytes(gpu.used_bytes), gpu.records, live.join(", ")));
        lines.extend(gpu.link.map(|link| {
            let (sent, received) = (bytes(link.bytes_sent), bytes(link.bytes_received));
            format!("   {} calls, {sent} sent and {received} received since then", link.calls)
        }));
    }
    lines.push(String::new());
    let last = &job.moves[job.moves.len().saturating_sub(MOVES)..];
    if last.is_empty() {
        lines.push("no moves yet".to_owned());
    } else {
        lines.extend(moves::of_one_job(last, Some(limit)).lines().map(str::to_owned));
    }
    lines.iter().map(|line| one_line(line)).collect()
}

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, seen: &Seen, screen: &mut Screen) {
    let area = frame.area();
    let [title, body, keys] = rows(area);
    let moving = seen.jobs.values().filter(|job| job.listed.moving().is_some()).count();
    let words = format!("mrcuda top: {} jobs, {moving} moving, by {}", seen.jobs.len(), screen.order.word());
    frame.render_widget(Paragraph::new(words).reversed(), title);
    frame.render_widget(Paragraph::new("q quit  s sort  Enter details  ? help").dim(), keys);
    let limit = usize::from(area.width);
    match (screen.page, screen.selected.and_then(|pid| seen.jobs.get(&pid))) {
        (Page::Help, _) => write(frame, body, &HELP.lines().map(str::to_owned).collect::<Vec<_>>()),
        (Page::Details, Some(job)) => write(frame, body, &details(job, limit)),
        // A job that has ended has no details any more.
        (Page::Details | Page::List, _) => {
            screen.page = Page::List;
            list(frame, body, seen, screen);
        }
    }
}

/// The first line, the last one, and what is between them.
fn rows(area: Rect) -> [Rect; 3] {
    use ratatui::layout::{Constraint::Length, Constraint::Min, Layout};
    Layout::vertical([Length(1), Min(0), Length(1)]).areas(area)
}

/// Writes lines; what is too long or too much is cut.
fn write(frame: &mut Frame<'_>, area: Rect, lines: &[String]) {
    frame.render_widget(Paragraph::new(lines.iter().map(|line| Line::raw(line.as_str())).collect::<Vec<_>>()), area);
}

/// Draws the jobs, and below them moves and GPUs, for which at least half of the rows is left if they need so many.
fn list(frame: &mut Frame<'_>, area: Rect, seen: &Seen, screen: &mut Screen) {
    let limit = Some(usize::from(area.width));
    let sorted = screen.order.sorted(seen);
    let mut lines = if sorted.is_empty() { Vec::new() } else { jobs(&sorted, seen.all, limit) };
    if lines.is_empty() {
        lines.push(if seen.has_found { "no jobs" } else { "looking for jobs" }.to_owned());
    }
    let mut below = Vec::new();
    for part in [moves_and_notes(seen), gpus(seen, limit)] {
        if !part.is_empty() {
            below.push(String::new());
            below.extend(part);
        }
    }
    let rows = usize::from(area.height);
    let height = lines.len().min(rows.saturating_sub(below.len()).max(rows.div_ceil(2)));
    // The heading stays.
    let shown = height.saturating_sub(1);
    let selected = screen.selected.and_then(|pid| sorted.iter().position(|job| job.listed.job.pid == pid));
    let at = selected.unwrap_or(screen.first);
    screen.first = screen.first.min(at).max((at + 1).saturating_sub(shown)).min(sorted.len().saturating_sub(shown));
    let mut styled: Vec<Line<'_>> = lines.first().map(|heading| Line::raw(heading.as_str()).bold()).into_iter().collect();
    for (number, line) in lines.iter().skip(1).enumerate().skip(screen.first).take(shown) {
        let style = match sorted.get(number).map(|job| job.state()) {
            Some("moving") => Style::new().fg(Color::Yellow),
            Some("failed" | "not answering") => Style::new().fg(Color::Red),
            _ => Style::new(),
        };
        let style = if selected == Some(number) { style.reversed() } else { style };
        styled.push(Line::styled(line.as_str(), style));
    }
    let height = u16::try_from(height).unwrap_or(u16::MAX).min(area.height);
    frame.render_widget(Paragraph::new(styled), Rect { height, ..area });
    write(frame, Rect { y: area.y + height, height: area.height - height, ..area }, &below);
}
