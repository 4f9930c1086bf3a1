//! `mrcuda ps`: lists the jobs, once or again and again.

use crate::ask::{ANSWER_TIMEOUT, stopped};
use crate::failure::Failure;
use crate::processes::is_stopped;
use crate::progress::waiting;
use crate::table::{Table, bytes, note, printable, say, say_as_it_is, since, write};
use crate::terminal;
use control::{AskError, Client, Device, DeviceState, Job, directory, name};
use nix::unistd::{Uid, User};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Arguments of `mrcuda ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// List the jobs of all users; only root sees those of others
    #[arg(long)]
    all: bool,
    /// List them again every so many seconds, until Ctrl-C; 2 if no number is given
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = interval)]
    watch: Option<Duration>,
    /// Print JSON; with --watch a line each time
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("it must be a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// A job that has answered, and its user.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Listed {
    user: String,
    #[serde(flatten)]
    job: Job,
    /// The phase of the move that is under way.
    #[serde(skip)]
    phase: Option<String>,
    /// Whether that move was requested because a call found no memory.
    #[serde(skip)]
    is_full: bool,
}

/// What is known of a process with a control socket.
#[derive(Debug)]
enum Found {
    Job(Box<Listed>),
    /// The process is stopped, so it cannot answer.
    Stopped(u32),
    /// It does not answer, for this reason.
    Silent(u32, String),
    Ended(u32),
}

/// Lists the jobs and removes stale sockets of jobs that have ended.
pub(crate) fn ps(args: &PsArgs) -> Result<(), Failure> {
    if args.all && !Uid::effective().is_root() {
        note("only root sees the jobs of other users: these are yours");
    }
    let Some(interval) = args.watch else {
        let shown = waiting("the jobs are asked");
        let found = find(args.all);
        drop(shown);
        show(args, &found?);
        return Ok(());
    };
    // Ctrl-C is how this ends: no error.
    let always = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, 0, always).map_err(Failure::new)?;
    let out = std::io::stdout();
    loop {
        let found = find(args.all)?;
        match terminal::size(&out) {
            Some((_, rows)) if !args.json => write(screen(&table(&found, args.all), interval, rows).as_bytes()),
            _ => show(args, &found),
        }
        std::thread::sleep(interval);
    }
}

/// Asks all jobs, each in its own thread: one that does not answer delays the list, but not the others.
fn find(all: bool) -> Result<Vec<Found>, Failure> {
    let pids = if all { directory::pids_of_all_users() } else { directory::pids() }.map_err(Failure::new)?;
    let found: Vec<Found> = std::thread::scope(|scope| {
        let threads: Vec<_> = pids.iter().map(|pid| (*pid, scope.spawn(|| ask(*pid)))).collect();
        let end = |(pid, thread): (u32, std::thread::ScopedJoinHandle<'_, Found>)| {
            thread.join().unwrap_or_else(|_| Found::Silent(pid, "it could not be asked".to_owned()))
        };
        threads.into_iter().map(end).collect()
    });
    found.iter().for_each(|it| {
        if let Found::Ended(pid) = it {
            directory::remove_stale(*pid)
        }
    });
    Ok(found.into_iter().filter(|it| !matches!(it, Found::Ended(_))).collect())
}

fn ask(pid: u32) -> Found {
    if is_stopped(pid) {
        return Found::Stopped(pid);
    }
    let answer = Client::connect(pid).and_then(|mut client| {
        let job = client.list(Some(ANSWER_TIMEOUT))?;
        let report = job.moving.as_ref().and_then(|id| client.report(Some(id), Some(ANSWER_TIMEOUT)).ok()?.pop());
        Ok((job, report))
    });
    match answer {
        Ok((job, report)) => {
            let is_full = report.as_ref().is_some_and(|it| it.by == "out-of-memory");
            Found::Job(Box::new(Listed { user: user(pid), job, phase: report.and_then(|it| it.phase), is_full }))
        }
        Err(AskError::NoJob) => Found::Ended(pid),
        Err(why) => Found::Silent(pid, why.to_string()),
    }
}

/// The name of a process's user, or the number of one without a name.
fn user(pid: u32) -> String {
    let Some(uid) = directory::owner(pid) else { return String::new() };
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Prints what was found: jobs on stdout, those that do not answer on stderr.
fn show(args: &PsArgs, found: &[Found]) {
    for it in found {
        match it {
            Found::Silent(pid, why) => note(&format!("job {pid}: {why}")),
            Found::Stopped(pid) if args.json => note(&format!("job {pid}: {}", stopped(*pid))),
            _ => {}
        }
    }
    if args.json {
        let jobs: Vec<&Listed> =
            found.iter().filter_map(|it| if let Found::Job(job) = it { Some(&**job) } else { None }).collect();
        say_as_it_is(&serde_json::to_string(&jobs).unwrap_or_else(|why| Failure::new(why).exit()));
    } else {
        say(&table(found, args.all));
    }
}

/// A line for each GPU of each job.
fn table(found: &[Found], users: bool) -> String {
    let mut headings = vec!["PID", "NAME", "GPU", "PLACE", "BY", "SINCE", "STATE", "MEMORY"];
    if users {
        headings.insert(1, "USER");
    }
    let mut table = Table::new(&headings);
    let mut rows = 0;
    let mut row = |pid: u32, user: &str, cells: [String; 7]| {
        rows += 1;
        let user = users.then(|| user.to_owned());
        table.row([pid.to_string()].into_iter().chain(user).chain(cells).collect());
    };
    for it in found {
        match it {
            Found::Job(it) => {
                for device in &it.job.devices {
                    let cells = [
                        called(&it.job),
                        device.device.to_string(),
                        device.place.clone(),
                        carried(device),
                        since(device.since_unix_ms),
                        state(it, device),
                        bytes(device.used_bytes),
                    ];
                    row(it.job.pid, &it.user, cells);
                }
            }
            Found::Stopped(pid) => {
                let unknown = || "-".to_owned();
                let cells = [name::of_process(*pid), unknown(), unknown(), unknown(), unknown(), "stopped".to_owned(), unknown()];
                row(*pid, &user(*pid), cells);
            }
            Found::Silent(..) | Found::Ended(_) => {}
        }
    }
    match (rows, found.is_empty()) {
        (0, true) => "no jobs\n".to_owned(),
        (0, false) => "no other jobs\n".to_owned(),
        _ => table.render(),
    }
}

/// The name of the job; a program that was started by an older build has none.
fn called(job: &Job) -> String {
    if job.name.is_empty() { name::of_command(&[], job.program.as_ref()) } else { job.name.clone() }
}

/// How calls travel, and the bytes of large copies if they travel otherwise than one expects.
fn carried(device: &Device) -> String {
    let Device { transport, large_copies, .. } = device;
    let is_usual = large_copies.is_empty() || large_copies == transport || transport == "shm";
    if is_usual { transport.clone() } else { format!("{transport}, large copies {large_copies}") }
}

fn state(it: &Listed, device: &Device) -> String {
    match device.state {
        DeviceState::Idle => "running".to_owned(),
        DeviceState::Parked => "parked".to_owned(),
        DeviceState::Moving => match (&it.job.moving, &it.phase) {
            (Some(id), Some(phase)) if it.is_full => format!("moving ({id}, out of memory: {phase})"),
            (Some(id), Some(phase)) => format!("moving ({id}: {phase})"),
            (Some(id), None) => format!("moving ({id})"),
            // It has ended between the two questions.
            (None, _) => "moving".to_owned(),
        },
        DeviceState::Failed => format!("failed (error {})", device.error),
    }
}

/// The screen with the list: each line takes the place of the one before, so that nothing flickers.
fn screen(list: &str, interval: Duration, rows: usize) -> String {
    let lines: Vec<&str> = list.lines().collect();
    // The first line says what this is, and the cursor takes the last one.
    let shown = lines.len().min(rows.saturating_sub(2).max(1));
    let mut text = format!("\x1b[Hmrcuda ps every {} s, until Ctrl-C\x1b[K\n", interval.as_secs_f64());
    for (number, line) in lines[..shown].iter().enumerate() {
        let more = lines.len() - number;
        let line = if number + 1 == shown && more > 1 { format!("… {more} more lines") } else { printable(line) };
        text.push_str(&format!("{line}\x1b[K\n"));
    }
    text.push_str("\x1b[J");
    text
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
        Listed { user: "you".into(), job, phase: None, is_full: false }
    }

    fn shown(it: &Listed) -> String {
        state(it, &it.job.devices[0])
    }

    #[test]
    fn states_say_what_the_job_does() {
        assert_eq!((shown(&listed(DeviceState::Idle)), shown(&listed(DeviceState::Parked))), ("running".into(), "parked".into()));
        let mut moving = listed(DeviceState::Moving);
        assert_eq!(shown(&moving), "moving");
        moving.job.moving = Some("m1".into());
        assert_eq!(shown(&moving), "moving (m1)");
        moving.phase = Some("precopy".into());
        assert_eq!(shown(&moving), "moving (m1: precopy)");
        moving.is_full = true;
        assert_eq!(shown(&moving), "moving (m1, out of memory: precopy)");
        let mut failed = listed(DeviceState::Failed);
        failed.job.devices[0].error = 700;
        assert_eq!(shown(&failed), "failed (error 700)");
    }

    #[test]
    fn a_usual_list_fits_80_columns_and_has_names_not_interpreters() {
        let found = [Found::Job(Box::new(listed(DeviceState::Idle)))];
        let text = table(&found, false);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("  train.py  ") && !text.contains("python") && !text.contains("you"), "{text}");
        let text = table(&found, true);
        assert!(text.starts_with(" PID  USER  NAME") && text.contains("4711  you   train.py"), "{text}");
        assert_eq!(table(&[], false), "no jobs\n");
        assert_eq!(table(&[Found::Silent(1, String::new())], false), "no other jobs\n");
        let stopped = table(&[Found::Stopped(std::process::id())], false);
        assert!(stopped.contains("stopped") && stopped.contains("  -  "), "{stopped}");
        let json = serde_json::to_value(listed(DeviceState::Idle)).unwrap();
        assert!(
            json["user"] == "you" && json["pid"] == 4711 && json["name"] == "train.py" && json.get("phase").is_none(),
            "{json}"
        );
    }

    #[test]
    fn a_list_that_is_too_long_for_the_screen_says_so() {
        let text = screen("a\nb\x1b[2J\nc\nd\n", Duration::from_millis(500), 5);
        assert_eq!(
            text,
            "\x1b[Hmrcuda ps every 0.5 s, until Ctrl-C\x1b[K\na\x1b[K\nb\\u001b[2J\x1b[K\n… 2 more lines\x1b[K\n\x1b[J"
        );
        assert!(screen("a\n", Duration::from_secs(2), 1).contains("a\x1b[K"));
    }

    #[test]
    fn intervals_are_seconds() {
        assert_eq!((interval("2"), interval("0.5")), (Ok(Duration::from_secs(2)), Ok(Duration::from_millis(500))));
        assert!(["", "0", "-1", "inf", "NaN", "2s", "1e9"].into_iter().all(|text| interval(text).is_err()));
    }
}
