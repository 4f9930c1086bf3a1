//! Servers as those who run them see them: who uses them, and how they end.

use crate::schemas::Schemas;
use crate::{LIMIT, assert_identical, native_orbit, remote_orbit, wait_for_step};
use serde_json::Value;
use tests::scene::wait_for;
use tests::{Job, Linkage, Outcome, Programs, Scene, Server};

/// Slow enough on any machine for what happens to a server meanwhile.
const PACED: [&str; 5] = ["--steps", "4000", "--pace", "3000", "--progress"];
/// The job is still at work when its server's time limit is over, and whatever else happens to it.
const LONGER: [&str; 5] = ["--steps", "40000", "--pace", "3000", "--progress"];

/// What `mrcuda gpus --json` prints about these servers, and whether all have answered.
fn gpus(scene: &Scene, servers: &[&str]) -> (bool, Vec<Value>) {
    let output = scene.mrcuda().arg("gpus").args(servers).arg("--json").output().unwrap();
    let list = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    (output.status.success(), list)
}

/// It ended early, since the test waits for it.
#[track_caller]
fn assert_ends_well(outcome: &Outcome) {
    assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "{outcome:?}");
}

pub(crate) fn place(job: &Job) -> Option<String> {
    job.status().and_then(|s| Some(s["devices"][0]["place"].as_str()?.to_owned()))
}

#[test]
fn a_server_says_who_uses_its_gpus() {
    let scene = Scene::new("gpus");
    let native = native_orbit(&scene, &PACED);
    let server = Server::start_with(&scene, "one", &[], &[("SOFTGPU_DEVICES", "2")]);
    let mut jobs = [server.place(0), server.unix_place(1)].map(|at| remote_orbit(&scene, "job", &at, &PACED, &[]));
    let (at, here) = (server.address.to_string(), server.unix_place(0));
    let gone = "127.0.0.1:1";
    // Its memory is known once the job has allocated some.
    let used = |state: &Value| (0..2).all(|gpu| state["gpus"][gpu]["jobs"][0]["used_bytes"].as_u64().is_some_and(|n| n > 0));
    let state = wait_for(LIMIT, || {
        let (answered, list) = gpus(&scene, &[&at, gone, &here]);
        assert!(!answered && list.len() == 3, "{list:?}");
        assert_eq!(list[1]["ok"], false);
        assert!(list[1]["reason"].as_str().is_some_and(|why| why.contains(gone) && why.contains("mrcuda serve")), "{}", list[1]);
        assert_eq!(list[2]["gpus"][0]["uuid"], list[0]["gpus"][0]["uuid"]);
        Some(list[0].clone()).filter(used)
    });
    let state = state.expect("the jobs' memory is not reported");
    assert_eq!((&state["ok"], &state["ending"], state["pid"].as_u64()), (&true.into(), &false.into(), Some(server.pid().into())));
    for (gpu, job) in jobs.iter().enumerate() {
        let (gpu, seen) = (&state["gpus"][gpu], job.status().expect("a job"));
        // The same as the job says of its GPU.
        for key in ["name", "uuid", "total_bytes"] {
            assert_eq!(gpu[key], seen["devices"][0][key], "{key}");
        }
        assert!(gpu["free_bytes"].as_u64() <= gpu["total_bytes"].as_u64() && gpu["free_bytes"].is_u64(), "{gpu}");
        let served = &gpu["jobs"][0];
        assert_eq!((served["pid"].as_u64(), gpu["jobs"].as_array().map(Vec::len)), (Some(job.pid().into()), Some(1)), "{gpu}");
        assert_eq!(served["worker"].as_u64(), Some(server.worker_of(job.pid()).into()));
    }
    let [first, second] = [0, 1].map(|gpu| &state["gpus"][gpu]["jobs"][0]);
    assert_eq!((&first["host"], &first["uid"]), (&"127.0.0.1".into(), &Value::Null));
    // SAFETY: a system call without arguments.
    let me = unsafe { libc::geteuid() };
    assert_eq!((&second["host"], second["uid"].as_u64()), (&Value::Null, Some(me.into())));
    // For people, on a terminal of 80 columns.
    let output = scene.mrcuda().args(["gpus", &at]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains(&jobs[0].pid().to_string()) && text.contains("127.0.0.1"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // Without the token nobody is told.
    let mut stranger = scene.mrcuda();
    let output = stranger.args(["gpus", &at]).env("MRCUDA_TOKEN_FILE", scene.path.join("none")).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && output.stdout.is_empty() && words.contains("requires a token"), "{words}");
    assert!(jobs.iter_mut().all(Job::runs));
    for job in jobs {
        assert_identical(&job.wait(LIMIT), &native);
    }
}

#[test]
fn doctor_checks_the_way_to_a_server() {
    let scene = Scene::new("doctor-server");
    let server = Server::start(&scene, "one");
    let doctor = |at: &str, env: &[(&str, &str)]| {
        let mut command = scene.mrcuda();
        command.args(["doctor", "--driver", "soft", "--server", at]).envs(env.iter().copied());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let address = server.address.to_string();
    let unix = server.unix_place(0);
    for at in [&address, &unix] {
        let (code, text) = doctor(at, &[]);
        assert_eq!(code, Some(0), "{text}");
        for word in ["accepts connections", "the same build of mrcuda", "free of", "a round trip takes", "over one connection"] {
            assert!(text.contains(word), "`{word}` is missing in {text}");
        }
    }
    // Each failure has its advice.
    let other = scene.path.join("other-token");
    std::fs::write(&other, "ab".repeat(32)).unwrap();
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let none = scene.path.join("no-token");
    for (at, token, wanted) in [
        ("127.0.0.1:1", None, "nothing listens at 127.0.0.1:1: start `mrcuda serve"),
        (address.as_str(), Some(&other), "wrong token: copy the server's token file"),
        (
            address.as_str(),
            Some(&none),
            "requires a token, and there is none (copy the server's token file; on a cluster: MRCUDA_MUNGE)",
        ),
    ] {
        let token = token.map(|path| path.display().to_string());
        let env: Vec<(&str, &str)> = token.iter().map(|path| ("MRCUDA_TOKEN_FILE", path.as_str())).collect();
        let (code, text) = doctor(at, &env);
        assert!(code == Some(1) && text.contains(wanted), "{at}: {text}");
    }
    // No worker has been used.
    let (_, list) = gpus(&scene, &[&address]);
    assert_eq!(list[0]["gpus"][0]["jobs"].as_array().map(Vec::len), Some(0), "{list:?}");
}

/// What `mrcuda token` prints with these arguments, to stdout and stderr, and its exit code.
fn token(scene: &Scene, args: &[&str]) -> (Option<i32>, String, String) {
    let output = scene.mrcuda().arg("token").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Gives a user a token; returns the file that the user has it in.
pub(crate) fn add_user(scene: &Scene, name: &str) -> String {
    let (code, token, _) = token(scene, &["add", name]);
    assert_eq!(code, Some(0));
    let file = scene.path.join(format!("token-of-{name}"));
    std::fs::write(&file, token).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    file.display().to_string()
}

#[test]
fn users_are_told_apart_and_shut_out() {
    let scene = Scene::new("users");
    let native = native_orbit(&scene, &PACED);
    let records = scene.path.join("accounting");
    let server = Server::start_with(&scene, "one", &["--accounting", records.to_str().unwrap()], &[]);
    // The server runs already.
    let [ann, bob] = ["ann", "bob"].map(|name| add_user(&scene, name));
    let [of_ann, of_bob] = [[("MRCUDA_TOKEN_FILE", ann.as_str())], [("MRCUDA_TOKEN_FILE", bob.as_str())]];
    let at = server.place(0);
    let jobs = [of_ann, of_bob].map(|env| remote_orbit(&scene, "job", &at, &PACED, &env));
    let address = server.address.to_string();
    let listed = || {
        let (answered, list) = gpus(&scene, &[&address]);
        assert!(answered, "{list:?}");
        let jobs = list[0]["gpus"][0]["jobs"].as_array().unwrap().clone();
        jobs.iter().map(|job| (job["user"].as_str().map(str::to_owned), job["user_by"].clone())).collect::<Vec<_>>()
    };
    let by_token = |name: &str| (Some(name.to_owned()), Value::from("token"));
    assert_eq!(listed(), [by_token("ann"), by_token("bob")]);
    let output = scene.mrcuda().args(["gpus", &address]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("ann@127.0.0.1") && table.contains("bob@127.0.0.1"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");

    let (code, text, _) = token(&scene, &["revoke", "ann"]);
    assert!(code == Some(0) && text.contains("jobs of ann that run go on until they end"), "{text}");
    let refused = Job::orbit(&scene, "refused", &["--server", &at], &PACED, &of_ann).wait(LIMIT);
    let words = crate::words_of_mrcuda(&refused);
    assert_eq!((refused.code, words.len()), (Some(2), 1), "{}", refused.stderr);
    assert!(words[0].contains("wrong token") && words[0].contains("may have been revoked"), "{}", words[0]);
    let mut question = scene.mrcuda();
    let question = question.args(["gpus", &address]).envs(of_ann).output().unwrap();
    assert!(!question.status.success() && String::from_utf8_lossy(&question.stderr).contains("wrong token"), "{question:?}");
    // The job that runs goes on, and may leave the server, but not come back.
    assert_eq!(listed(), [by_token("ann"), by_token("bob")]);
    let [ann, bob] = jobs;
    let left = ann.migrate("helper").unwrap();
    assert!(left.ok(), "{}", left.reason());
    let back = ann.migrate(&at).unwrap();
    assert!(!back.ok() && back.code() == "target-refused" && back.reason().contains("wrong token"), "{}", back.reason());
    for job in [ann, bob] {
        assert_identical(&job.wait(LIMIT), &native);
    }
    let whose = wait_for(LIMIT, || {
        let text = std::fs::read_to_string(&records).unwrap_or_default();
        let lines: Vec<Value> = text.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
        let named = |name: &str| lines.iter().any(|line| line["user"] == name && line["user_by"] == "token");
        (named("ann") && named("bob")).then_some(())
    });
    assert!(whose.is_some(), "{:?}", std::fs::read_to_string(&records));
    let log = server.errors();
    for line in [" of ann at 127.0.0.1:", "ann was added; bob was added; it has 2 users", "ann was revoked; it has 1 user"] {
        assert!(log.contains(line), "`{line}` is missing: {log}");
    }
}

#[test]
fn tokens_of_users_are_made_listed_and_revoked() {
    let scene = Scene::new("tokens");
    let (code, text, words) = token(&scene, &["add", "ann"]);
    let is_token = |text: &str| text.len() == 65 && text.trim_end().bytes().all(|b| b.is_ascii_hexdigit());
    assert!(code == Some(0) && is_token(&text), "the token alone: {text}");
    let file = scene.path.join("tokens").display().to_string();
    assert!(words.contains(&file) && words.contains("chmod 600") && !words.contains(text.trim_end()), "{words}");
    for (args, code, wanted) in [
        (&["add", "ann"][..], 1, "ann has a token in"),
        (&["add", "a/b"], 1, "`a/b` cannot be the name of a user"),
        (&["add", ""], 1, "cannot be the name of a user"),
        (&["revoke", "bob"], 1, "has no token of a user bob"),
        (&["add"], 2, "NAME"),
        (&["add", "bob", "--file", "/proc/tokens"], 1, "cannot write the tokens file /proc/tokens"),
        (&["list", "--file", "/dev/null"], 1, "cannot read the tokens file /dev/null: it is not a file"),
    ] {
        let (ended, text, why) = token(&scene, args);
        assert!(ended == Some(code) && text.is_empty() && why.contains(wanted), "{args:?}: {ended:?} {text} {why}");
    }
    // Commands that run at the same time lose nobody.
    std::thread::scope(|scope| {
        for n in 0..8 {
            let scene = &scene;
            scope.spawn(move || assert_eq!(token(scene, &["add", &format!("user-{n}")]).0, Some(0)));
        }
    });
    let (_, text, _) = token(&scene, &["list"]);
    assert!(text.lines().count() == 10 && text.contains("FINGERPRINT") && text.contains("ann  "), "{text}");
    let (_, json, _) = token(&scene, &["list", "--json"]);
    let users: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert!(users.len() == 9 && users[0]["name"] == "ann" && !json.contains(&"0".repeat(64)), "{json}");
    let (_, text, _) = token(&scene, &["revoke", "ann"]);
    assert!(text.contains(users[0]["fingerprint"].as_str().unwrap()), "{text}");
    // A server with a broken file does not start.
    std::fs::write(scene.path.join("tokens"), "ann secret\n").unwrap();
    let mut command = scene.mrcuda();
    let output = command.args(["serve", "--driver", "soft", "--listen", "127.0.0.1:0"]).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && why.contains("tokens has an error in line 1") && !why.contains("secret"), "{why}");
}

#[test]
fn gpus_of_an_exclusive_server_are_taken_in_turn() {
    let scene = Scene::new("exclusive");
    let server = Server::start_with(&scene, "one", &["--max-gpu-jobs", "1"], &[]);
    let at = server.place(0);
    let mut first = remote_orbit(&scene, "first", &at, &LONGER, &[]);
    // A job that does not wait is told why.
    let refused = Job::orbit(&scene, "refused", &["--server", &at], &LONGER, &[]).wait(LIMIT);
    assert!(
        !refused.ok() && refused.stderr.contains("GPU 0 has a job, and gets no more (mrcuda serve --max-gpu-jobs)"),
        "{refused:?}"
    );
    let late = Job::orbit(&scene, "late", &["--wait=1s", "--server", &at], &LONGER, &[]).wait(LIMIT);
    assert!(!late.ok() && late.stderr.contains("it has no room: GPU 0 has a job"), "{late:?}");
    let mut second = Job::orbit(&scene, "second", &["--wait", "--server", &at], &LONGER, &[]);
    let told = wait_for(LIMIT, || second.stderr().contains(&format!("waiting for {at}: GPU 0 has a job")).then_some(()));
    assert!(told.is_some() && first.runs() && second.runs(), "{}", second.stderr());
    // It comes when the first one has moved away.
    let moved = first.migrate("helper").unwrap();
    assert!(moved.ok(), "{}", moved.reason());
    second.wait_ready(LIMIT).unwrap();
    // And a move to a server without room is refused, by a plan too.
    let back = first.migrate(&at).unwrap();
    assert!(!back.ok() && back.code() == "target-refused" && back.reason().contains("--max-gpu-jobs"), "{}", back.reason());
    let plan = first.migrate_with(&at, &["--dry-run"]).unwrap();
    assert_eq!(plan.code(), "target-refused");
    for job in [first, second] {
        assert_ends_well(&job.wait(LIMIT));
    }
}

#[test]
fn a_client_starts_no_more_jobs_than_its_rate() {
    let scene = Scene::new("rate");
    let server = Server::start_with(&scene, "one", &["--max-client-rate", "2"], &[]);
    let short = ["--steps", "3"];
    let run = || Job::orbit(&scene, "job", &["--server", &server.place(0)], &short, &[]).wait(LIMIT);
    let outcomes: Vec<_> = (0..4).map(|_| run()).collect();
    let refused: Vec<_> = outcomes.iter().filter(|outcome| !outcome.ok()).collect();
    assert!(outcomes[0].ok() && outcomes[1].ok(), "{outcomes:?}");
    // However slow the machine is, a fourth job within a minute is not let in.
    assert!(refused.iter().all(|o| o.stderr.contains("mrcuda serve --max-client-rate")), "{refused:?}");
}

#[test]
fn a_job_sees_and_gets_only_the_memory_that_its_server_allows() {
    const LIMITED: u64 = 256 << 20;
    let scene = Scene::new("limited");
    let program = Programs::get().path(Linkage::Static, "fill");
    let server = Server::start_with(&scene, "one", &["--max-memory", "256M"], &[]);
    let outcome = Job::start(&scene, "fill", &["--server", &server.place(0)], &program, &[], &[]).wait(LIMIT);
    assert!(outcome.ok(), "{outcome:?}");
    let text = outcome.stdout.clone();
    let figure = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        line.trim().parse().unwrap()
    };
    // The device, the driver and the allocations agree.
    assert_eq!((figure("device"), figure("total")), (LIMITED, LIMITED));
    assert!(figure("free") <= LIMITED && figure("got") <= LIMITED && figure("got") >= LIMITED / 2, "{text}");
    assert!(figure("left") <= figure("free") - figure("got"), "{text}");
    assert_eq!(figure("error"), 2, "cudaErrorMemoryAllocation");
    assert_eq!(figure("again"), figure("got"), "what is freed can be used again");
    assert!(outcome.stderr.contains("at most 256 MiB of GPU memory for a job (mrcuda serve --max-memory)"), "{}", outcome.stderr);
}

#[test]
fn memory_of_every_kind_counts_for_the_limit() {
    let scene = Scene::new("limited-kinds");
    let program = Programs::get().path(Linkage::Static, "room");
    let server = Server::start_with(&scene, "one", &["--max-memory", "512M"], &[]);
    let outcome = Job::start(&scene, "room", &["--server", &server.place(0)], &program, &[], &[]).wait(LIMIT);
    // As on a GPU that has only so much.
    let wanted = "memory for tiles: 0\narray: 0\nmipmapped array: 0\nRESULT ok\n";
    assert!(outcome.ok() && outcome.stdout == wanted, "{outcome:?}");
}

#[test]
fn the_jobs_of_a_client_share_its_memory() {
    let scene = Scene::new("shared-limit");
    let server = Server::start_with(&scene, "one", &["--max-client-memory", "256M"], &[]);
    // A job that holds some of it, and one that takes all that is left.
    let mut first = remote_orbit(&scene, "first", &server.place(0), &LONGER, &[]);
    wait_for_step(&mut first, 10);
    let program = Programs::get().path(Linkage::Static, "fill");
    let fill = |at: &str| {
        let outcome = Job::start(&scene, "fill", &["--server", at], &program, &[], &[]).wait(LIMIT);
        assert!(outcome.ok(), "{outcome:?}");
        let text = outcome.stdout.clone();
        text.lines().find_map(|line| line.strip_prefix("got")?.trim().parse::<u64>().ok()).unwrap()
    };
    let beside = fill(&server.place(0));
    assert!(beside < 256 << 20, "{beside}");
    // By the Unix socket it is another client.
    assert!(fill(&server.unix_place(0)) > beside);
    assert_ends_well(&first.wait(LIMIT));
    assert!(fill(&server.place(0)) > beside, "the memory of a job that has ended is free");
}

#[test]
fn a_server_accounts_for_its_jobs() {
    let (schemas, scene) = (Schemas::read(), Scene::new("accounting"));
    let file = scene.path.join("accounting");
    let options = ["--accounting", file.to_str().unwrap()];
    let two = Server::start(&scene, "two");
    let mut one = Server::start_with(&scene, "one", &options, &[]);
    let mut job = Job::orbit(&scene, "job", &["--name", "train-7", "--server", &one.place(0)], &LONGER, &[]);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 100);
    for to in [two.place(0), one.place(0)] {
        let moved = job.migrate(&to).unwrap();
        assert!(moved.ok(), "{}", moved.reason());
    }
    let pid = job.pid();
    assert_ends_well(&job.wait(LIMIT));
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        // The last line may be on its way.
        let text = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        text.lines().map(|line| schemas.check("accounting", line)).collect()
    };
    let lines = wait_for(LIMIT, || Some(lines()).filter(|lines| lines.len() == 2)).expect("two lines");
    for (line, moved) in lines.iter().zip([[false, true], [true, false]]) {
        assert_eq!(
            (&line["version"], &line["name"], line["pid"].as_u64()),
            (&1.into(), &"train-7".into(), Some(pid.into())),
            "{line}"
        );
        assert_eq!([&line["moved_in"], &line["moved_out"]], [moved[0], moved[1]].map(Value::from).each_ref(), "{line}");
        assert_eq!((&line["end"], &line["gpu"], &line["host"]), (&"left".into(), &0.into(), &"127.0.0.1".into()), "{line}");
        let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}"));
        let seconds = (number("until_unix_ms") - number("since_unix_ms")) / 1e3;
        assert!((number("gpu_seconds") - seconds).abs() < 1e-6 && seconds >= 0.0, "{line}");
        assert!(number("peak_bytes") > 0.0 && number("byte_seconds") <= number("peak_bytes") * (seconds + 60.0), "{line}");
        assert!(number("bytes_in") > 0.0 && number("bytes_out") > 0.0, "{line}");
    }
    // A full disk hurts nobody.
    let full = Server::start_with(&scene, "full", &["--accounting", "/dev/full"], &[]);
    assert_ends_well(&remote_orbit(&scene, "job", &full.place(0), &LONGER, &[]).wait(LIMIT));
    assert!(
        wait_for(LIMIT, || full.errors().contains("a line of accounting is lost").then_some(())).is_some(),
        "{}",
        full.errors()
    );
    assert!(one.end_within(LIMIT).is_some_and(|status| status.success()));
    // A file that cannot be written is named at the start.
    let mut command = scene.mrcuda();
    command.args(["serve", "--driver", "soft", "--listen", "127.0.0.1:0", "--accounting", "/no/such/file", "--token-file"]);
    let output = command.arg(scene.token()).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && words.contains("cannot write the accounting to /no/such/file"), "{words}");
}

#[test]
fn a_server_that_ends_has_its_jobs_moved_first() {
    let scene = Scene::new("drain");
    let native = native_orbit(&scene, &PACED);
    let two = Server::start(&scene, "two");
    let mut one = Server::start_with(&scene, "one", &["--drain", &two.place(0), "--drain-timeout", "2m"], &[]);
    let places = [one.place(0), one.unix_place(0), one.nearest(0)];
    let mut jobs = places.map(|at| remote_orbit(&scene, "job", &at, &PACED, &[]));
    jobs.iter_mut().for_each(|job| wait_for_step(job, 100));
    let status = one.end_within(LIMIT).expect("it ends");
    assert!(status.success(), "{status}: {}", one.errors());
    assert!(one.errors().contains("3 workers have jobs and are asked to move to"), "{}", one.errors());
    assert!(one.errors().contains("all jobs have left"), "{}", one.errors());
    for job in &jobs {
        assert_eq!(place(job), Some(two.place(0)));
        let moves = job.moves().unwrap();
        assert_eq!(moves.len(), 1);
        assert!(moves[0].ok() && moves[0].0["by"] == "server" && moves[0].to() == two.place(0), "{}", moves[0].0);
        let pid = job.pid().to_string();
        let shown = scene.mrcuda().args(["moves", &pid]).output().unwrap();
        assert!(String::from_utf8_lossy(&shown.stdout).contains("because its server was drained"), "{shown:?}");
    }
    for job in jobs {
        assert_identical(&job.wait(LIMIT), &native);
    }
}

#[test]
fn a_server_that_ends_keeps_parked_jobs_parked() {
    let scene = Scene::new("drain-parked");
    let native = native_orbit(&scene, &PACED);
    let two = Server::start(&scene, "two");
    let mut one = Server::start_with(&scene, "one", &["--drain", &two.place(0), "--drain-timeout", "2m"], &[]);
    let (here, there) = (format!("tls://{}/memory", one.address), format!("tls://{}/memory", two.address));
    let mut job = remote_orbit(&scene, "job", &one.place(0), &PACED, &[]);
    wait_for_step(&mut job, 100);
    let parked = job.ask("suspend", &["--to", &here]).unwrap();
    assert!(parked.ok(), "{}", parked.reason());
    let (_, list) = gpus(&scene, &[&one.address.to_string()]);
    assert_eq!(list[0]["parked"][0]["pid"].as_u64(), Some(job.pid().into()), "{list:?}");
    assert!(one.end_within(LIMIT).is_some_and(|status| status.success()), "{}", one.errors());
    assert_eq!(place(&job), Some(there));
    assert_eq!(job.status().expect("a job")["devices"][0]["state"], "parked");
    let resumed = job.ask("resume", &["--to", &two.place(0)]).unwrap();
    assert!(resumed.ok(), "{}", resumed.reason());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_server_that_ends_can_send_its_jobs_home() {
    let scene = Scene::new("drain-home");
    let native = native_orbit(&scene, &PACED);
    let mut one = Server::start_with(&scene, "one", &["--drain", "local", "--drain-timeout", "2m"], &[]);
    let mut job = remote_orbit(&scene, "job", &one.place(0), &PACED, &[]);
    wait_for_step(&mut job, 100);
    // As a terminal or a service manager does: to the server and its workers.
    for worker in one.workers() {
        // SAFETY: a plain system call; the worker is a child of our server.
        assert_eq!(unsafe { libc::kill(worker as i32, libc::SIGTERM) }, 0);
    }
    assert!(one.end_within(LIMIT).is_some_and(|status| status.success()), "{}", one.errors());
    assert_eq!(place(&job).as_deref(), Some("local:0"));
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_job_that_cannot_move_away_is_named_with_the_reason() {
    let scene = Scene::new("drain-fails");
    // Nobody listens there.
    let mut one = Server::start_with(&scene, "one", &["--drain", "127.0.0.1:1/0", "--drain-timeout", "10s"], &[]);
    let mut job = remote_orbit(&scene, "job", &one.place(0), &LONGER, &[]);
    wait_for_step(&mut job, 10);
    let pid = job.pid();
    let status = one.end_within(LIMIT).expect("it ends");
    assert_eq!(status.code(), Some(1), "{}", one.errors());
    let log = one.errors();
    assert!(log.contains("its job does not move away") && log.contains("127.0.0.1:1"), "{log}");
    assert!(log.contains(&format!("1 worker has a job, whose GPU ends with this server: job {pid} (its own word)")), "{log}");
    let outcome = job.wait(LIMIT);
    assert!(!outcome.ok() && outcome.stderr.contains("127.0.0.1:1"), "{outcome:?}");
}

#[test]
fn a_server_that_may_not_wait_says_whom_it_leaves() {
    let scene = Scene::new("no-drain");
    let mut one = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "job", &one.place(0), &LONGER, &[]);
    wait_for_step(&mut job, 10);
    assert!(one.end_within(LIMIT).is_some_and(|status| status.success()), "{}", one.errors());
    assert!(one.errors().contains(&format!("whose GPU ends with this server: job {}", job.pid())), "{}", one.errors());
    assert!(!job.wait(LIMIT).ok());
}

#[test]
fn where_jobs_cannot_move_a_server_does_not_start() {
    let scene = Scene::new("drain-args");
    let serve = |places: &str| {
        let mut command = scene.mrcuda();
        command.args(["serve", "--driver", "soft", "--gpus", "1", "--listen", "127.0.0.1:0", "--drain", places, "--token-file"]);
        let output = command.arg(scene.token()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (places, code, wanted) in
        [("nowhere", 2, "expected HOST:PORT"), ("a:1/0,b:1/0", 1, "2 places"), ("file:/scratch", 1, "memory parks jobs as well")]
    {
        let (status, words) = serve(places);
        assert!(status == Some(code) && words.contains(wanted), "{places}: {status:?} {words}");
    }
}
