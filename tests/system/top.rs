//! `mrcuda top`: one frame as text, and the screen on a terminal.

use crate::shown::Terminal;
use crate::{LIMIT, remote_orbit};
use std::os::unix::process::ExitStatusExt;
use tests::scene::wait_for;
use tests::{Scene, Server};

/// Does not end by itself.
const ENDLESS: [&str; 5] = ["--steps", "100000", "--pace", "3000", "--progress"];

#[test]
fn a_frame_has_jobs_their_rates_and_the_gpus_of_servers() {
    let scene = Scene::new("top");
    let server = Server::start(&scene, "one");
    let at = server.address.to_string();
    let job = remote_orbit(&scene, "job", &server.place(0), &ENDLESS, &[]);
    let pid = job.pid().to_string();
    // Without a terminal the option changes nothing.
    for options in [&["--once"][..], &[]] {
        let mut command = scene.mrcuda();
        let output = command.args(["top", &at, "127.0.0.1:1", "--interval", "500ms"]).args(options).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let row = |first: &str| text.lines().find(|line| line.trim_start().starts_with(first)).unwrap_or_default().to_owned();
        let (heading, of_job) = (row("PID "), row(&format!("{pid} ")));
        assert!(heading.contains("CALLS/S") && heading.ends_with("MOVED"), "{text}");
        assert!(of_job.contains(&server.place(0)) && of_job.contains("  working  "), "{text}");
        let calls = &of_job[..heading.find("CALLS/S").unwrap() + "CALLS/S".len()];
        assert!(!calls.ends_with(" 0") && !calls.ends_with('-'), "{text}");
        assert!(row(&at).contains(" GiB ") && row("127.0.0.1:1: no answer").contains("127.0.0.1:1"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    // The numbers of a link begin anew at another place, and in its own process there are none.
    let links = || job.status().unwrap()["devices"][0]["link"].clone();
    let carried = links();
    assert!(carried["calls"].as_u64() > Some(10) && carried["bytes_sent"].as_u64() > Some(240), "{carried}");
    assert!(carried["bytes_received"].as_u64() > Some(0), "{carried}");
    assert!(job.migrate(&server.unix_place(0)).unwrap().ok());
    let counted =
        wait_for(LIMIT, || (links()["calls"].as_u64() > Some(0) && links()["bytes_received"].as_u64() > Some(0)).then_some(()));
    assert!(counted.is_some(), "{}", links());
    assert!(job.migrate("local").unwrap().ok());
    assert!(links().is_null());
    let output = scene.mrcuda().args(["top", &at, "--once", "--interval", "100ms"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = text.lines().find(|line| line.trim_start().starts_with(&format!("{pid} "))).unwrap_or_default();
    assert!(row.contains("local:0") && row.contains(" running ") && row.contains(" ms"), "{text}");
}

/// The rows of a terminal to which this was written: only what has changed is written again.
fn screen(written: &str) -> String {
    let mut cells = vec![[' '; 80]; 24];
    let (mut row, mut column) = (0, 0);
    let mut rest = written.chars();
    while let Some(c) = rest.next() {
        if c != '\u{1b}' {
            if let Some(cell) = cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = c;
            }
            column += 1;
            continue;
        }
        let mut end = ' ';
        let is_inner = |c: &char| {
            end = *c;
            !c.is_ascii_alphabetic()
        };
        let numbers: String = rest.by_ref().skip(1).take_while(is_inner).collect();
        let position = numbers.split_once(';').and_then(|(y, x)| Some((y.parse::<usize>().ok()?, x.parse::<usize>().ok()?)));
        if let (Some((y, x)), 'H') = (position, end) {
            (row, column) = (y.saturating_sub(1), x.saturating_sub(1));
        }
    }
    cells.iter().map(|row| row.iter().collect::<String>() + "\n").collect()
}

/// Waits until the screen shows this.
#[track_caller]
fn wait_for_screen(terminal: &Terminal, text: &str) {
    let there = wait_for(LIMIT, || screen(&terminal.shown()).contains(text).then_some(()));
    assert!(there.is_some(), "`{text}` is not shown:\n{}", screen(&terminal.shown()));
}

#[test]
fn the_screen_follows_jobs_and_leaves_the_terminal_as_it_was() {
    let scene = Scene::new("top-screen");
    let server = Server::start(&scene, "one");
    let job = remote_orbit(&scene, "job", &server.place(0), &ENDLESS, &[]);
    let at = server.address.to_string();
    let start = || Terminal::start(&scene, &["top", &at, "--interval", "200ms"]);
    let mut terminal = start();
    terminal.wait_for("\u{1b}[?1049h");
    wait_for_screen(&terminal, &format!("{} ", job.pid()));
    wait_for_screen(&terminal, " working ");
    wait_for_screen(&terminal, " 97% ");
    terminal.enter("?");
    wait_for_screen(&terminal, "this help");
    terminal.enter("?j\r");
    wait_for_screen(&terminal, &format!("job {} orbit", job.pid()));
    wait_for_screen(&terminal, " calls, ");
    terminal.enter("q");
    let (status, shown) = terminal.end();
    assert!(status.success() && shown.contains("\u{1b}[?1049l") && shown.contains("\u{1b}[?25h"), "{shown:?}");
    // Ctrl-C is a key on this screen.
    let mut terminal = start();
    wait_for_screen(&terminal, " working ");
    terminal.enter("\u{3}");
    let (status, shown) = terminal.end();
    assert!(status.success() && shown.contains("\u{1b}[?1049l"), "{shown:?}");
    let terminal = start();
    wait_for_screen(&terminal, " working ");
    terminal.signal(libc::SIGTERM);
    let (status, shown) = terminal.end();
    assert!(status.signal() == Some(libc::SIGTERM) && shown.contains("\u{1b}[?1049l"), "{shown:?}");
}
