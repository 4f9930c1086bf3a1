//! What the commands print.

use crate::{LIMIT, LONG, remote_orbit, wait_for_step};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use tests::{Job, Linkage, Programs, Scene, Server};

/// The names in an object.
fn names(value: &Value) -> BTreeSet<&str> {
    value.as_object().map(|o| o.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[track_caller]
fn assert_has(value: &Value, wanted: &[&str]) {
    let have = names(value);
    let missing: Vec<_> = wanted.iter().filter(|w| !have.contains(**w)).collect();
    assert!(missing.is_empty(), "{missing:?} are missing in {value}");
}

#[test]
fn the_shapes_of_status_and_reports() {
    let scene = Scene::new("shapes");
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &LONG, &[]);
    wait_for_step(&mut job, 100);
    let status = scene.jobs().unwrap().remove(0);
    assert_has(&status, &["pid", "user", "state", "program", "name", "devices"]);
    assert_eq!(status["state"], "running");
    assert_eq!(status["name"], "orbit");
    assert!(status["program"].as_str().unwrap().contains("orbit"));
    let device = &status["devices"][0];
    assert_has(device, &["device", "place", "name", "used_bytes", "live", "records", "moves", "uuid", "transport", "state"]);
    assert_eq!(device["place"], Value::from(server.place(0)));
    assert!(device["used_bytes"].as_u64().unwrap() >= 4 << 20, "{device}");
    let live = |kind: &str| device["live"][kind].as_u64().unwrap_or(0);
    assert_eq!((live("streams"), live("events"), live("modules"), live("allocations")), (2, 16, 1, 5), "{device}");

    let report = job.migrate("local").unwrap();
    let wanted = [
        "ok",
        "from",
        "to",
        "bytes",
        "records",
        "downtime_ms",
        "gpu_idle_ms",
        "total_ms",
        "phases",
        "digest",
        "reason",
        "code",
        "kernel_running",
        "live_objects",
    ];
    assert_has(&report.0, &wanted);
    assert!(report.ok(), "{}", report.reason());
    assert!(report.0["reason"].is_null() && report.0["code"].is_null() && report.0.get("v").is_none(), "{}", report.0);
    assert!(report.number(&["total_ms"]) >= report.downtime_ms(), "{}", report.0);
    let phases = names(&report.0["phases"]);
    assert!(["prepare", "quiesce", "delta", "verify"].iter().all(|p| phases.contains(p)), "{}", report.0);
    let moves = job.moves().unwrap();
    assert_has(&moves[0].0, &wanted);
    assert_has(&moves[0].0, &["id", "state", "by", "at_unix_ms", "legs"]);
    assert_eq!(moves[0].digest(), report.digest());

    // The same for people.
    let shown = String::from_utf8(scene.mrcuda().arg("ps").output().unwrap().stdout).unwrap();
    assert!(shown.contains("PID") && shown.contains(&job.pid().to_string()) && shown.contains("local"), "{shown}");
    assert!(job.describe_last_move().unwrap().contains("verify"));
}

#[test]
fn help_has_examples_and_fits_80_columns() {
    let scene = Scene::new("help");
    let commands = ["", "run", "serve", "ps", "migrate", "moves", "bench", "models fit", "journal show"];
    for command in commands {
        let output = scene.mrcuda().args(command.split_whitespace()).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(output.status.success() && long.is_empty() && help.contains("\nExamples:\n"), "{command}: {long:?} in {help}");
    }
    let output = scene.mrcuda().arg("--version").output().unwrap();
    let version = String::from_utf8(output.stdout).unwrap();
    assert!(version.starts_with("mrcuda ") && version.ends_with(")\n") && version.contains(" ("), "{version}");
}

#[test]
fn completions_and_manual_pages() {
    let scene = Scene::new("pages");
    let script = scene.mrcuda().args(["completions", "bash"]).output().unwrap();
    assert!(script.status.success() && String::from_utf8_lossy(&script.stdout).contains("--max-downtime"), "{script:?}");
    let pages = scene.path.join("man1");
    let output = scene.mrcuda().arg("man").arg(&pages).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(pages.join("mrcuda-migrate.1")).unwrap();
    assert!(page.contains(".SH EXAMPLES") && page.contains("max\\-downtime"), "{page}");
}

#[test]
fn output_that_cannot_be_written_is_reported() {
    let scene = Scene::new("full");
    for command in [&["calls", "--json"][..], &["ps", "--json"], &["completions", "zsh"], &["--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = scene.mrcuda().args(command).stdout(full).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && words.contains("No space left on device"), "{command:?}: {words}");
        assert_eq!(words.lines().count(), 1, "{words}");
    }
    // Errors that cannot be written change nothing.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = scene.mrcuda().args(["plan", "4194999", "--to", "local"]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
    // A reader that has gone is no error.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = scene.mrcuda().args(["calls", "--json"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn jobs_that_are_not_there() {
    let scene = Scene::new("nojob");
    assert!(scene.jobs().unwrap().is_empty());
    // Not this process, which has started the jobs of other tests.
    let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
    let own = sleeper.id().to_string();
    for command in [&["migrate", own.as_str(), "--to", "local"][..], &["moves", own.as_str()]] {
        let output = scene.mrcuda().args(command).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(words.contains(&own) && words.contains("does not run under mrcuda"), "{words}");
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let output = scene.mrcuda().args(["migrate", "train", "--to", "local"]).output().unwrap();
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("a process id, a number"));
    // A place that is none is a mistake in the command.
    let output = scene.mrcuda().args(["migrate", &own, "--to", "nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn what_a_job_answers_does_not_control_the_terminal() {
    let scene = Scene::new("escapes");
    let directory = scene.runtime().join("mrcuda");
    std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    let own = std::process::id().to_string();
    let listener = UnixListener::bind(directory.join(&own)).unwrap();
    let hostile = r"\u001b]0;gone\u0007 \u009b2J\u007f";
    let moves = format!("{{\"v\":2,\"ok\":true,\"moves\":[{{\"state\":\"failed\",\"reason\":\"{hostile}\"}}]}}\n");
    let refusal = format!("{{\"v\":2,\"ok\":false,\"error\":\"busy\",\"reason\":\"{hostile}\"}}\n");
    let list = format!("{{\"v\":2,\"ok\":true,\"job\":{{\"name\":\"{hostile}\"}}}}\n");
    let moves = vec![list, moves];
    let answers = [moves.clone(), moves, vec![refusal.clone()], vec![refusal]];
    let job = std::thread::spawn(move || {
        for answers in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(stream.try_clone().unwrap()).lines();
            for answer in answers {
                requests.next().unwrap().unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    for command in [&["moves", own.as_str()][..], &["moves", own.as_str(), "--json"], &["moves", own.as_str()], &["ps"]] {
        let output = scene.mrcuda().args(command).output().unwrap();
        let shown = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(shown.contains(hostile), "{shown:?}");
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    }
    job.join().unwrap();
}

#[test]
fn run_answers_like_a_shell() {
    let scene = Scene::new("run");
    let missing = Job::start(&scene, "missing", &[], Path::new("no-such-program"), &[], &[]).wait(LIMIT);
    assert_eq!(missing.code, Some(127), "{missing:?}");
    assert!(missing.stderr.contains("no-such-program"));
    let plain = scene.path.join("plain");
    std::fs::write(&plain, "text").unwrap();
    let plain = Job::start(&scene, "plain", &[], &plain, &[], &[]).wait(LIMIT);
    assert_eq!(plain.code, Some(126), "{plain:?}");
    let code = Job::start(&scene, "code", &[], Path::new("sh"), &["-c", "exit 7"], &[]).wait(LIMIT);
    assert_eq!(code.code, Some(7), "{code:?}");
    assert_eq!(code.stderr, "", "a program without CUDA hears nothing of mrcuda");
}

#[test]
fn the_program_keeps_the_process_id_and_its_environment() {
    let scene = Scene::new("env");
    let script = "echo $$ $MRCUDA_SERVERS $MRCUDA_ON_SIGNAL $MRCUDA_SIGNAL; echo $LD_LIBRARY_PATH; echo $TRITON_LIBCUDA_PATH";
    let options = ["--server", "a:1,b:2/3", "--on-signal", "helper:1", "--signal", "sigusr2"];
    let job = Job::start(&scene, "env", &options, Path::new("sh"), &["-c", script], &[("LD_LIBRARY_PATH", "/else")]);
    let pid = job.pid();
    let outcome = job.wait(LIMIT);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert_eq!(lines[0], format!("{pid} a:1,b:2/3 helper:1 USR2"));
    let directory = lines[2];
    assert_eq!(lines[1], format!("{directory}:/else"));
    for name in ["libcuda.so.1", "libcuda.so"] {
        let there = std::fs::canonicalize(Path::new(directory).join(name)).unwrap();
        assert_eq!(there, std::fs::canonicalize(scene.install.file("libmrcuda_shim.so")).unwrap());
    }
}

#[test]
fn doctor_finds_nothing_wrong_here_and_names_what_is() {
    let scene = Scene::new("doctor");
    let orbit = scene.install.file("orbit");
    let well = scene.mrcuda().args(["doctor", "--driver", "soft", "--"]).arg(&orbit).output().unwrap();
    let text = String::from_utf8_lossy(&well.stdout);
    assert_eq!(well.status.code(), Some(0), "{text}");
    assert!(text.contains("softgpu") && text.contains("CUDA 13.0, 1 GPU"), "{text}");
    let ill = scene.mrcuda().args(["doctor", "--driver", "/no/such/driver", "--", "no-such-program"]).output().unwrap();
    let text = String::from_utf8_lossy(&ill.stdout);
    assert_eq!(ill.status.code(), Some(1), "{text}");
    assert!(text.contains("/no/such/driver") && text.contains("no-such-program was not found"), "{text}");
    // Too little address space: what a shell's `ulimit -v` does.
    let exe = scene.install.file("mrcuda").display().to_string();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("ulimit -v 8000000; exec {exe} doctor --driver soft")]);
    scene.dress(&mut shell);
    let text = String::from_utf8_lossy(&shell.output().unwrap().stdout).into_owned();
    assert!(text.contains("ulimit -v"), "{text}");
}

#[test]
fn the_list_of_calls() {
    let scene = Scene::new("calls");
    let output = scene.mrcuda().args(["calls", "--json"]).output().unwrap();
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let list = list.as_array().unwrap();
    assert!(list.len() >= 440, "{} functions", list.len());
    for line in list {
        assert_eq!(names(line), BTreeSet::from(["name", "version", "class", "how", "recorded", "state", "reason"]), "{line}");
        assert!(["tested", "untested"].contains(&line["state"].as_str().unwrap()), "{line}");
        assert!(line["recorded"].is_boolean() && line["name"].as_str().unwrap().starts_with("cu"), "{line}");
    }
    let of = |name: &str| list.iter().find(|l| l["name"] == name).unwrap_or_else(|| panic!("{name} is not listed"));
    assert_eq!(of("cuModuleUnload")["recorded"], true);
    assert_eq!(of("cuMemAlloc_v2")["class"], "memory");
    assert_eq!(of("cuMemAlloc_v2")["version"], "3.2");
}

#[test]
fn the_exit_report_names_only_what_was_used() {
    let scene = Scene::new("exit");
    let log = scene.path.join("log");
    let run = |program: &Path| {
        let _ = std::fs::remove_file(&log);
        let outcome = Job::start(&scene, "job", &[], program, &[], &[("MRCUDA_LOG", &log.display().to_string())]).wait(LIMIT);
        assert!(outcome.ok(), "{outcome:?}");
        std::fs::read_to_string(&log).unwrap()
    };
    // A runtime asks for hundreds of functions at its start; the program uses a dozen.
    let output = run(&Programs::get().path(Linkage::Static, "vecadd"));
    assert!(output.contains("a CUDA runtime starts"), "{output}");
    assert!(!output.contains("exit: "), "{output}");
    // This one asks for a function that nobody has.
    let output = run(&scene.install.file("surface"));
    let report = output.lines().rfind(|l| l.contains("exit: ")).unwrap_or_else(|| panic!("no report in {output}"));
    assert!(report.contains("cuNoSuchThing"), "{report}");
}

#[test]
fn the_log_has_levels_targets_and_calls() {
    let scene = Scene::new("log");
    let (log, program) = (scene.path.join("log").display().to_string(), Programs::get().path(Linkage::Static, "vecadd"));
    let run = |env: &[(&str, &str)]| {
        let outcome = Job::start(&scene, "job", &[], &program, &[], env).wait(LIMIT);
        assert!(outcome.ok(), "{outcome:?}");
        outcome.stderr
    };
    run(&[("MRCUDA_LOG", &log), ("MRCUDA_LOG_CALLS", "1")]);
    let text = std::fs::read_to_string(&log).unwrap();
    let launch = text.lines().find(|l| l.contains(" TRACE call: cuLaunchKernel(")).unwrap_or_else(|| panic!("{text}"));
    assert!(launch.contains("(f=0x") && launch.contains(") returns 0 after "), "{launch}");
    let output = run(&[("MRCUDA_LOG", "job=debug")]);
    assert!(output.contains(" DEBUG job: a CUDA runtime starts") && output.lines().all(|l| l.contains(" job: ")), "{output}");
    assert_eq!(run(&[("MRCUDA_LOG", "off"), ("MRCUDA_LOG_CALLS", "1")]), "");
    for hostile in ["log.txt", "a=b=c", "debug,migrate=loud", "[{", "%s%n"] {
        let output = run(&[("MRCUDA_LOG", hostile)]);
        assert!(output.lines().count() == 1 && output.starts_with("mrcuda: MRCUDA_LOG: `"), "{hostile}: {output}");
    }
    let output = run(&[("MRCUDA_LOG", "/nowhere/log")]);
    assert!(output.lines().count() == 1 && output.contains("cannot write to /nowhere/log"), "{output}");
}

#[test]
fn what_is_asked_of_a_running_job() {
    let scene = Scene::new("asked");
    let server = Server::start(&scene, "one");
    // It does not end by itself while it is asked.
    let steps = ["--steps", "100000", "--pace", "3000", "--progress"];
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &steps, &[]);
    wait_for_step(&mut job, 50);
    let pid = job.pid().to_string();
    let ask = |args: &[&str]| {
        let output = scene.mrcuda().args(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = ask(&["moves", &pid]);
    assert_eq!((code, out.trim(), err.as_str()), (Some(0), "no moves yet", ""));
    let (code, _, err) = ask(&["cancel", &pid]);
    assert!(code == Some(1) && err.contains(&pid) && err.contains("no move is under way"), "{err}");
    let (code, out, err) = ask(&["moves", &pid, "m7", "--json"]);
    let refused: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    assert_eq!((code, &refused["error"], &refused["id"]), (Some(1), &Value::from("no_such_move"), &Value::from("m7")));
    assert_eq!(refused["code"], "no-such-move");
    for bad in [&["--deadline", "5"][..], &["--max-downtime", "soon"], &["--gpu", "x"]] {
        let (code, _, err) = ask(&[&["migrate", &pid, "--to", "local"][..], bad].concat());
        assert!(code == Some(2) && err.contains("invalid value"), "{bad:?}: {err}");
    }
    let (code, out, _) = ask(&["plan", &pid, "--to", "local"]);
    assert!(code == Some(0) && out.contains("would move") && out.contains("regions"), "{out}");
    let (code, out, _) = ask(&["plan", &pid, "--to", "127.0.0.1:1/0"]);
    assert!(code == Some(1) && out.contains("would not move") && out.contains("cannot connect to 127.0.0.1:1/0"), "{out}");

    // One that does not wait, one that waits in the queue, and what is told of both.
    let (code, out, err) = ask(&["migrate", &pid, "--to", "local", "--id", "first", "--no-wait"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let there = server.place(0);
    let (code, out, err) = ask(&["migrate", &pid, "--to", &there, "--queue", "--deadline", "2min", "--max-downtime", "90s"]);
    assert!(code == Some(0) && out.contains("; downtime "), "{out}{err}");
    let (code, _, err) = ask(&["migrate", &pid, "--to", "local", "--id", "first"]);
    assert!(code == Some(1) && err.contains("has a move first already"), "{err}");
    let (code, out, err) = ask(&["migrate", &pid, "--to", "local", "--deadline", "0s"]);
    assert!(
        code == Some(1) && out.contains("did not move: abandoned") && out.contains("within 0 ms") && err.is_empty(),
        "{out}{err}"
    );
    let (code, out, _) = ask(&["moves", &pid]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(code == Some(0) && lines.len() == 4 && lines[0].contains("DOWNTIME"), "{out}");
    assert!(lines[1].starts_with("first") && lines[1].ends_with("done") && lines[2].ends_with("done"), "{out}");
    assert!(lines[3].contains("failed: abandoned"), "{out}");
    let (code, _, err) = ask(&["cancel", &pid, "first"]);
    assert!(code == Some(1) && err.contains("too late"), "{err}");
    let (_, out, _) = ask(&["ps"]);
    assert!(out.contains("running") && out.contains(&there), "{out}");
}

#[test]
fn who_reads_json_reads_that_there_is_no_job() {
    let scene = Scene::new("nojob");
    // No process has this number.
    let pid = "4194999";
    for (command, to) in [("moves", None), ("plan", Some("--to=local")), ("migrate", Some("--to=local")), ("cancel", None)] {
        let output = scene.mrcuda().args([command, pid, "--json"]).args(to).output().unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{command:?}: {e}: {output:?}"));
        assert_eq!((output.status.code(), &said["ok"], &said["error"]), (Some(1), &Value::Bool(false), &Value::from("no_job")));
        assert_eq!(said["code"], "no-job");
        assert!(said["reason"].as_str().is_some_and(|r| r.contains("there is no such process")), "{said}");
    }
}
