//! Runs the sections, some at a time, each in processes of its own, and prints their transcripts in order.

use crate::{Options, Section};
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tests::clock;

/// How long one case may take; the start of a process with a GPU is one, too.
const CASE_TIMEOUT: Duration = Duration::from_secs(40);
/// And one that resets a context, which begins a new one with all that its streams will need: that takes long where dozens of processes
/// share a GPU.
const RESET_TIMEOUT: Duration = Duration::from_secs(240);
/// How often a section is begun again.
const TRIES: u32 = 80;

/// Runs sections and prints the transcript.
pub fn run(o: &Options, sections: &[&Section]) {
    let waiting = Mutex::new(sections.iter().enumerate());
    let done: Mutex<Vec<Option<String>>> = Mutex::new(vec![None; sections.len()]);
    std::thread::scope(|s| {
        for _ in 0..o.jobs {
            s.spawn(|| {
                while let Some((index, section)) = waiting.lock().ok().and_then(|mut w| w.next()) {
                    let text = section_text(o, section);
                    if let Ok(mut done) = done.lock() {
                        done[index] = Some(text);
                    }
                }
            });
        }
    });
    for text in done.into_inner().unwrap_or_default().into_iter().flatten() {
        print!("{text}");
    }
}

/// How a process of a section ended.
enum End {
    Well,
    /// In this case.
    In(u32),
    /// Before its first case.
    Early(String),
}

fn section_text(o: &Options, section: &Section) -> String {
    let (mut whole, mut from, mut skip) = (String::new(), 0, Vec::new());
    for _ in 0..TRIES {
        let (text, end) = attempt(o, section, from, &skip);
        if section.resumes {
            whole.push_str(&text)
        } else {
            whole = text
        }
        match end {
            End::Well => return whole,
            End::Early(why) => {
                // Formatting into a string cannot fail.
                let _ = writeln!(whole, "{}: did not run: {why}", section.name);
                return whole;
            }
            End::In(case) if section.resumes => from = case,
            // Without the call the section ends elsewhere, so it is told in the next attempt.
            End::In(case) if !skip.contains(&case) => skip.push(case),
            End::In(..) => break,
        }
    }
    let _ = writeln!(whole, "{}: given up after {TRIES} processes", section.name);
    whole
}

fn attempt(o: &Options, section: &Section, from: u32, skip: &[u32]) -> (String, End) {
    let mut child = match start(o, section, from, skip) {
        Ok(child) => child,
        Err(e) => return (String::new(), End::Early(e.to_string())),
    };
    let (sender, receiver) = mpsc::channel();
    let out = child.stdout.take();
    std::thread::spawn(move || {
        for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok) {
            // Nobody listens any more after a case that hangs.
            let _ = sender.send(line);
        }
    });
    let (mut text, mut open) = (String::new(), None);
    let hangs = loop {
        match clock::receive(&receiver, timeout(open.as_ref().map(|(_, what): &(u32, String)| what.as_str()))) {
            Ok(line) => read(section, &line, &mut text, &mut open),
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if hangs {
        // It may end by itself in this instant, which is as good.
        let _ = child.kill();
    }
    let status = child.wait();
    let well = status.as_ref().is_ok_and(std::process::ExitStatus::success);
    let end = match open {
        Some((case, what)) => {
            let how = if hangs { "hangs" } else { "crashes" };
            let _ = writeln!(text, "{}: {what} = {how}", section.name);
            End::In(case)
        }
        None if well && !hangs => End::Well,
        None => End::Early(format!("the process ended between two cases ({status:?})")),
    };
    (text, end)
}

/// Reads a line of a section's process: the announcement of a case, or its result.
/// How long a case may take.
fn timeout(case: Option<&str>) -> Duration {
    if case.is_some_and(|what| what.contains("CtxReset")) { RESET_TIMEOUT } else { CASE_TIMEOUT }
}

fn read(section: &Section, line: &str, text: &mut String, open: &mut Option<(u32, String)>) {
    if let Some(announced) = line.strip_prefix("> ") {
        let (number, what) = announced.split_once(' ').unwrap_or((announced, ""));
        *open = Some((number.parse().unwrap_or(0), what.to_owned()));
    } else if let Some(result) = line.strip_prefix("= ")
        && let Some((_, what)) = open.take()
    {
        let _ = writeln!(text, "{}: {what} = {result}", section.name);
    }
}

fn start(o: &Options, section: &Section, from: u32, skip: &[u32]) -> io::Result<Child> {
    let me = std::env::current_exe()?;
    let mut command = Command::new(me);
    command.arg("--driver").arg(&o.driver).args(["--section", section.name, "--from", &from.to_string()]);
    for case in skip {
        command.args(["--skip", &case.to_string()]);
    }
    if let Some((mrcuda, place)) = &o.move_by {
        command.arg("--move").arg(mrcuda).arg(place);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}
