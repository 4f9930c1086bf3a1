//! `mrcuda ps`: lists the jobs, once or again and again.

use crate::ask::{ANSWER_TIMEOUT, print_json};
use crate::failure::Failure;
use crate::processes::user;
use crate::progress::waiting;
use crate::table::{Table, bytes, note, one_line, say, since, write};
use crate::value_error::ValueError;
use crate::{second_screen, terminal};
use control::{AskError, Client, Device, DeviceState, Job, Move, directory, name};
use nix::unistd::Uid;
use serde::Serialize;
use std::time::Duration;

/// Arguments of `mrcuda ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// List also jobs with another XDG_RUNTIME_DIR and, for root, of all users
    #[arg(long)]
    all: bool,
    /// List them again every so many seconds, until Ctrl-C; 2 if no number is given
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = interval)]
    watch: Option<Duration>,
    /// Print JSON; with --watch a line each time
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, ValueError> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(ValueError::Seconds),
    }
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// No move is under way.
    Running,
    /// One of its GPUs moves.
    Moving,
    /// All its GPUs are parked.
    Parked,
    /// One of its GPUs has failed.
    Failed,
    /// The process is stopped, so it cannot answer.
    Stopped,
    /// It does not answer, for another reason.
    NotAnswering,
}

/// A job and its user. Of one that does not answer only its process id and name are known.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Listed {
    user: String,
    state: State,
    /// Why it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(flatten)]
    pub(crate) job: Job,
    /// The move that is under way.
    #[serde(skip)]
    moving: Option<Move>,
}

impl State {
    /// All of them.
    pub(crate) const ALL: [State; 6] =
        [State::Running, State::Moving, State::Parked, State::Failed, State::Stopped, State::NotAnswering];

    /// As it is written in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Moving => "moving",
            State::Parked => "parked",
            State::Failed => "failed",
            State::Stopped => "stopped",
            State::NotAnswering => "not_answering",
        }
    }
}

impl Listed {
    /// Its user.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// What it does.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Why it does not answer.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// The move that is under way.
    pub(crate) fn moving(&self) -> Option<&Move> {
        self.moving.as_ref()
    }

    /// What it is called.
    pub(crate) fn name(&self) -> String {
        name::of_job(&self.job.name, &self.job.program)
    }

    /// Whether it has answered.
    pub(crate) fn answers(&self) -> bool {
        self.reason.is_none()
    }
}

/// The jobs, and what kept the command from finding more.
#[derive(Debug)]
struct Found {
    jobs: Vec<Listed>,
    problems: Vec<String>,
}

/// Lists the jobs and removes stale sockets of jobs that have ended.
pub(crate) fn ps(args: &PsArgs) -> Result<(), Failure> {
    say_whose(args.all);
    let Some(interval) = args.watch else {
        let shown = waiting("the jobs are asked");
        let found = find(args.all);
        drop(shown);
        return show(args, &found?);
    };
    let on_screen = !args.json && terminal::size(&std::io::stdout()).is_some();
    second_screen::end_by_interrupt(on_screen)?;
    loop {
        let shown = find(args.all).and_then(|found| match terminal::size(&std::io::stdout()) {
            Some(size) if on_screen => {
                write(screen(&(table(&found, args.all) + &notes(&found)), interval, size).as_bytes());
                Ok(())
            }
            _ => show(args, &found),
        });
        if shown.is_err() && on_screen {
            second_screen::leave();
        }
        shown?;
        std::thread::sleep(interval);
    }
}

/// Says that `--all` does not show the jobs of other users, if that is so.
pub(crate) fn say_whose(all: bool) {
    if all && !Uid::effective().is_root() {
        note("only root sees the jobs of other users: these are yours");
    }
}

/// The processes that may be jobs, and what kept the command from finding more.
pub(crate) fn pids(all: bool) -> Result<(Vec<u32>, Vec<String>), Failure> {
    let mut problems = Vec::new();
    let mut pids = match directory::pids() {
        // What somebody else has put in the place of root's own directory does not hide the jobs of users.
        Err(why) if all => {
            problems.push(why.to_string());
            Vec::new()
        }
        pids => pids.map_err(Failure::new)?,
    };
    if all {
        pids.extend(directory::pids_of_processes().map_err(Failure::new)?);
    }
    pids.sort_unstable();
    pids.dedup();
    Ok((pids, problems))
}

/// Asks all jobs, each in its own thread: one that does not answer delays the list, but not the others.
fn find(all: bool) -> Result<Found, Failure> {
    let (pids, problems) = pids(all)?;
    let jobs = std::thread::scope(|scope| {
        let threads: Vec<_> = pids.iter().map(|pid| (*pid, scope.spawn(|| ask(*pid)))).collect();
        let end = |(pid, thread): (u32, std::thread::ScopedJoinHandle<'_, Option<Listed>>)| {
            thread.join().unwrap_or_else(|_| Some(silent(pid, State::NotAnswering, "it could not be asked".to_owned())))
        };
        threads.into_iter().filter_map(end).collect()
    });
    Ok(Found { jobs, problems })
}

/// The jobs of this user, or of all users; what keeps the command from finding more is printed.
pub(crate) fn all(of_all_users: bool) -> Result<Vec<Listed>, Failure> {
    let found = find(of_all_users)?;
    found.problems.iter().for_each(|why| note(why));
    Ok(found.jobs)
}

/// Most GPUs of a job that are shown; ours have at most 32.
const MOST_GPUS: usize = 64;
/// Most kinds of objects of a GPU that are shown.
const MOST_KINDS: usize = 32;
/// Longest text of a job that is shown, in characters,
const LONGEST: usize = 256;
/// and longest path, or list of places.
const LONGEST_PATH: usize = 4096;

/// Asks a job; `None` if it has ended.
pub(crate) fn ask(pid: u32) -> Option<Listed> {
    let answer = Client::connect(pid).and_then(|mut client| {
        let job = client.list(Some(ANSWER_TIMEOUT))?;
        let report = job.moving.as_ref().and_then(|id| client.report(Some(id), Some(ANSWER_TIMEOUT)).ok()?.pop());
        Ok((job, report))
    });
    match answer {
        // Whose socket it is counts, not what it says.
        Ok((job, report)) => Some(answered(Job { pid, ..job }, report)),
        Err(AskError::NoJob) => {
            directory::remove_stale(pid);
            None
        }
        Err(why @ AskError::Stopped(_)) => Some(silent(pid, State::Stopped, why.to_string())),
        Err(why) => Some(silent(pid, State::NotAnswering, why.to_string())),
    }
}

/// A job that has answered so. It can say anything, and what it says must not take long to show.
fn answered(mut job: Job, mut moving: Option<Move>) -> Listed {
    let gpus = job.devices.len();
    if gpus > MOST_GPUS {
        return silent(job.pid, State::NotAnswering, format!("the job's answer is not understood: it has {gpus} GPUs"));
    }
    let Job { program, name, signal, on_signal, when_full, home, policy, copy, moving: id, devices, .. } = &mut job;
    let paths = [program, on_signal, when_full, home].into_iter().chain(copy.as_mut().map(|copy| &mut copy.to));
    paths.for_each(|text| cut(text, LONGEST_PATH));
    [name, policy].into_iter().chain(signal).chain(id).for_each(|text| cut(text, LONGEST));
    for Device { name, place, transport, large_copies, live, .. } in devices {
        [name, place, transport, large_copies].into_iter().for_each(|text| cut(text, LONGEST));
        let mut kinds = 0;
        live.retain(|kind, _| {
            kinds += 1;
            kinds <= MOST_KINDS && kind.len() <= LONGEST
        });
    }
    moving.iter_mut().for_each(cut_move);
    Listed { user: user(job.pid), state: state_of(&job), reason: None, job, moving }
}

/// Cuts the texts of a move that are shown.
pub(crate) fn cut_move(it: &mut Move) {
    it.legs.truncate(MOST_GPUS);
    let Move { id, from, to, phase, waits_for, reason, legs, .. } = it;
    let texts = [id, from, to].into_iter().chain(phase).chain(waits_for).chain(reason);
    texts.chain(legs.iter_mut().map(|leg| &mut leg.to)).for_each(|text| cut(text, LONGEST));
}

fn cut(text: &mut String, longest: usize) {
    if let Some((end, _)) = text.char_indices().nth(longest) {
        text.truncate(end);
    }
}

/// A job that does not answer.
pub(crate) fn silent(pid: u32, state: State, mut reason: String) -> Listed {
    cut(&mut reason, LONGEST);
    let job = Job { pid, name: name::of_process(pid), ..Job::default() };
    Listed { user: user(pid), state, reason: Some(reason), job, moving: None }
}

fn state_of(job: &Job) -> State {
    let is = |state| move |device: &Device| device.state == state;
    let mut devices = job.devices.iter();
    match job.devices.len() {
        _ if devices.clone().any(is(DeviceState::Failed)) => State::Failed,
        _ if devices.clone().any(is(DeviceState::Moving)) => State::Moving,
        1.. if devices.all(is(DeviceState::Parked)) => State::Parked,
        _ => State::Running,
    }
}

/// Prints what was found. In JSON, each job says why it does not answer.
fn show(args: &PsArgs, found: &Found) -> Result<(), Failure> {
    if args.json {
        found.problems.iter().for_each(|why| note(why));
        return print_json(&found.jobs);
    }
    notes(found).lines().for_each(note);
    say(&table(found, args.all));
    Ok(())
}

/// A line for each job that does not answer, unless its row says why, and for each problem.
fn notes(found: &Found) -> String {
    let unanswered = found.jobs.iter().filter(|it| it.state == State::NotAnswering);
    let jobs = unanswered.map(|it| format!("job {}: {}", it.job.pid, it.reason.as_deref().unwrap_or_default()));
    jobs.chain(found.problems.iter().cloned()).map(|line| one_line(&line) + "\n").collect()
}

/// A line for each GPU of each job.
fn table(found: &Found, users: bool) -> String {
    let mut headings = vec!["PID", "NAME", "GPU", "PLACE", "BY", "SINCE", "STATE", "MEMORY"];
    if users {
        headings.insert(1, "USER");
    }
    if found.jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let mut table = Table::new(&headings);
    for it in &found.jobs {
        let mut row = |cells: [String; 6]| {
            let user = users.then(|| it.user.clone());
            table.row([it.job.pid.to_string()].into_iter().chain(user).chain([it.name()]).chain(cells).collect());
        };
        for device in &it.job.devices {
            row([
                device.device.to_string(),
                device.place.clone(),
                carried(device),
                since(device.since_unix_ms),
                state(it, device),
                bytes(device.used_bytes),
            ]);
        }
        if it.job.devices.is_empty() {
            row(["-", "-", "-", "-", without_gpu(it.state), "-"].map(str::to_owned));
        }
    }
    table.render()
}

/// The state of a job of which no GPU is known.
pub(crate) fn without_gpu(state: State) -> &'static str {
    match state {
        State::Stopped => "stopped",
        State::NotAnswering => "not answering",
        State::Running | State::Moving | State::Parked | State::Failed => "no GPU yet",
    }
}

/// How calls travel, and the bytes of large copies if they travel otherwise than one expects.
pub(crate) fn carried(device: &Device) -> String {
    let Device { transport, large_copies, .. } = device;
    let is_usual = large_copies.is_empty() || large_copies == transport || transport == "shm";
    if is_usual { transport.clone() } else { format!("{transport}, large copies {large_copies}") }
}

fn state(it: &Listed, device: &Device) -> String {
    match device.state {
        DeviceState::Running => "running".to_owned(),
        DeviceState::Parked => "parked".to_owned(),
        DeviceState::Moving => match (&it.job.moving, it.moving.as_ref().and_then(|moving| moving.phase.as_ref())) {
            (Some(id), Some(phase)) if it.moving.as_ref().is_some_and(|moving| moving.by == "out-of-memory") => {
                format!("moving ({id}, out of memory: {phase})")
            }
            (Some(id), Some(phase)) => format!("moving ({id}: {phase})"),
            (Some(id), None) => format!("moving ({id})"),
            // It has ended between the two questions.
            (None, _) => "moving".to_owned(),
        },
        DeviceState::Failed => format!("failed (error {})", device.error),
    }
}

/// The screen of `(columns, rows)` with the list: each line takes the place of the one before, so that nothing flickers.
fn screen(list: &str, interval: Duration, (columns, rows): (usize, usize)) -> String {
    let lines: Vec<&str> = list.lines().collect();
    // The first line says what this is, and the cursor takes the last one.
    let shown = lines.len().min(rows.saturating_sub(2).max(1));
    let mut text = format!("\x1b[Hmrcuda ps every {} s, until Ctrl-C\x1b[K\n", interval.as_secs_f64());
    for (number, line) in lines[..shown].iter().enumerate() {
        let more = lines.len() - number;
        let line = if number + 1 == shown && more > 1 { format!("… {more} more lines") } else { one_line(line) };
        // A longer one would take two rows.
        text.extend(line.chars().take(columns));
        text.push_str("\x1b[K\n");
    }
    text.push_str("\x1b[J");
    text
}

#[cfg(test)]
impl Listed {
    /// A job of user `you` that has answered so.
    pub(crate) fn of_test(job: Job, moving: Option<Move>) -> Listed {
        Listed { user: "you".into(), state: state_of(&job), reason: None, job, moving }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(state: DeviceState) -> Listed {
        let device =
            Device { place: "gpubox:7878/0".into(), transport: "tls".into(), state, used_bytes: 5 << 30, ..Device::default() };
        let job = Job {
            pid: 4711,
            program: "/usr/bin/python3.12".into(),
            name: "train.py".into(),
            devices: vec![device],
            ..Job::default()
        };
        Listed::of_test(job, None)
    }

    fn found(jobs: Vec<Listed>) -> Found {
        Found { jobs, problems: Vec::new() }
    }

    fn shown(it: &Listed) -> String {
        state(it, &it.job.devices[0])
    }

    #[test]
    fn states_say_what_the_job_does() {
        assert_eq!(
            (shown(&listed(DeviceState::Running)), shown(&listed(DeviceState::Parked))),
            ("running".into(), "parked".into())
        );
        let mut moving = listed(DeviceState::Moving);
        assert_eq!(shown(&moving), "moving");
        moving.job.moving = Some("m1".into());
        assert_eq!(shown(&moving), "moving (m1)");
        moving.moving = Some(Move { phase: Some("precopy".into()), ..Move::default() });
        assert_eq!(shown(&moving), "moving (m1: precopy)");
        moving.moving.as_mut().unwrap().by = "out-of-memory".into();
        assert_eq!(shown(&moving), "moving (m1, out of memory: precopy)");
        let mut failed = listed(DeviceState::Failed);
        failed.job.devices[0].error = 700;
        assert_eq!(shown(&failed), "failed (error 700)");
    }

    #[test]
    fn a_usual_list_fits_80_columns_and_has_names_not_interpreters() {
        let one = found(vec![listed(DeviceState::Running)]);
        let text = table(&one, false);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("  train.py  ") && !text.contains("python") && !text.contains("you"), "{text}");
        let text = table(&one, true);
        assert!(text.starts_with(" PID  USER  NAME") && text.contains("4711  you   train.py"), "{text}");
        assert_eq!(table(&found(Vec::new()), false), "no jobs\n");
        let json = serde_json::to_value(listed(DeviceState::Running)).unwrap();
        assert!(
            json["user"] == "you" && json["pid"] == 4711 && json["name"] == "train.py" && json.get("phase").is_none(),
            "{json}"
        );
        assert!(json["state"] == "running" && json["devices"][0]["state"] == "running" && json.get("reason").is_none(), "{json}");
    }

    #[test]
    fn jobs_that_do_not_answer_are_listed() {
        let own = std::process::id();
        let jobs = [(State::Stopped, "it is stopped"), (State::NotAnswering, "it\nsleeps")];
        let jobs = found(jobs.map(|(state, why)| silent(own, state, why.to_owned())).into());
        let text = table(&jobs, false);
        assert!(text.lines().count() == 3 && text.contains(" stopped ") && text.contains(" not answering "), "{text}");
        assert!(text.contains(&name::of_process(own)) && text.contains("  -  "), "{text}");
        assert_eq!(notes(&jobs), format!("job {own}: it\\u000asleeps\n"));
        let json = serde_json::to_value(&jobs.jobs).unwrap();
        assert_eq!((&json[0]["state"], &json[1]["state"]), (&"stopped".into(), &"not_answering".into()));
        assert!(
            json[1]["reason"] == "it\nsleeps" && json[1]["pid"] == own && json[1]["devices"] == serde_json::json!([]),
            "{json}"
        );
    }

    #[test]
    fn an_answer_that_is_too_long_is_cut_or_none() {
        let long = || "ä".repeat(1 << 16);
        let live = (0..1000).map(|n| (n.to_string(), 1)).chain([(long(), 1)]).collect();
        let device = Device { place: long(), name: long(), live, ..Device::default() };
        let with = |gpus| Job { program: long(), name: long(), devices: vec![device.clone(); gpus], ..Job::default() };
        let leg = control::GpuMove { to: long(), ..Default::default() };
        let moving = Move { reason: Some(long()), to: long(), legs: vec![leg; 1000], ..Move::default() };
        let it = answered(with(MOST_GPUS), Some(moving));
        assert!(it.answers() && it.job.devices.len() == MOST_GPUS);
        let (job, gpu, moving) = (&it.job, &it.job.devices[0], it.moving().unwrap());
        let texts = [&job.name, &gpu.place, &gpu.name, moving.reason.as_ref().unwrap(), &moving.to, &moving.legs[0].to];
        assert!(texts.into_iter().all(|text| text.chars().count() == LONGEST));
        assert_eq!((job.program.chars().count(), gpu.live.len(), moving.legs.len()), (LONGEST_PATH, MOST_KINDS, MOST_GPUS));
        let it = answered(with(MOST_GPUS + 1), None);
        assert!(it.state == State::NotAnswering && it.job.devices.is_empty() && it.reason().unwrap().contains("65 GPUs"));
        assert_eq!(silent(1, State::NotAnswering, long()).reason().unwrap().chars().count(), LONGEST);
    }

    #[test]
    fn the_state_of_a_job_is_that_of_its_gpus() {
        use DeviceState::{Failed, Moving, Parked, Running};
        let all = |states: &[DeviceState]| {
            state_of(&Job {
                devices: states.iter().map(|state| listed(*state).job.devices.remove(0)).collect(),
                ..Job::default()
            })
        };
        assert_eq!((all(&[]), all(&[Running]), all(&[Running, Parked])), (State::Running, State::Running, State::Running));
        assert_eq!((all(&[Parked, Parked]), all(&[Parked, Moving])), (State::Parked, State::Moving));
        assert_eq!(all(&[Moving, Failed]), State::Failed);
    }

    #[test]
    fn a_list_that_is_too_long_for_the_screen_says_so() {
        let text = screen("a\nb\x1b[2J\nc\nd\n", Duration::from_millis(500), (80, 5));
        assert_eq!(
            text,
            "\x1b[Hmrcuda ps every 0.5 s, until Ctrl-C\x1b[K\na\x1b[K\nb\\u001b[2J\x1b[K\n… 2 more lines\x1b[K\n\x1b[J"
        );
        assert!(screen("a\n", Duration::from_secs(2), (80, 1)).contains("a\x1b[K"));
        assert!(screen(&"ä".repeat(90), Duration::from_secs(2), (80, 9)).contains(&format!("\n{}\x1b[K\n", "ä".repeat(80))));
    }

    #[test]
    fn intervals_are_seconds() {
        assert_eq!((interval("2"), interval("0.5")), (Ok(Duration::from_secs(2)), Ok(Duration::from_millis(500))));
        assert!(["", "0", "-1", "inf", "NaN", "2s", "1e9"].into_iter().all(|text| interval(text).is_err()));
    }
}
