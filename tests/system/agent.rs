//! `mrcuda agent`: jobs move by policies, and print what they print natively.

use crate::nvml::driver_with_nvml;
use crate::{LIMIT, LONG, assert_identical, native_orbit, wait_for_step};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use tests::scene::wait_for;
use tests::{Agent, Job, Scene, Server};

/// What an agent answers to a request at its metrics' address, with this header.
fn answer(agent: &Agent, header: &str) -> String {
    let said = agent.errors();
    let at = said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("it says where its metrics are");
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\n{header}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits until so many of its moves have succeeded.
#[track_caller]
fn wait_for_moves(agent: &Agent, n: usize) {
    let moved = wait_for(LIMIT, || (agent.moves() >= n).then_some(()));
    assert!(moved.is_some(), "{} of {n} moves: {:#?}", agent.moves(), agent.lines());
}

fn settings(servers: &[&Server], rest: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("{:?}", server.address.to_string())).collect();
    format!("servers = [{}]\nevery = '200ms'\nsettle = '300ms'\nrest = '1s'\nreserve_mib = 0\n{rest}", servers.join(", "))
}

/// A job at a server's GPU, which is under way.
fn job<'a>(scene: &'a Scene, name: &str, server: &Server) -> Job<'a> {
    job_with(scene, name, server, &[])
}

/// The same with more options.
fn job_with<'a>(scene: &'a Scene, name: &str, server: &Server, options: &[&str]) -> Job<'a> {
    let place = format!("tls://{}", server.address);
    let options = [&["--server", &place, "--name", name], options].concat();
    let mut job = Job::orbit(scene, name, &options, &LONG, &[]);
    wait_for_step(&mut job, 5);
    job
}

/// The place of a job's only GPU, without how it is reached.
fn place(job: &Job<'_>) -> Option<String> {
    let status = job.status()?;
    let device = &status["devices"][0];
    if device["state"] == "parked" {
        return Some("parked".to_owned());
    }
    Some(device["place"].as_str()?.trim_start_matches("tls://").to_owned())
}

#[track_caller]
fn arrives(job: &Job<'_>, at: &str, agent: &Agent) {
    let there = wait_for(LIMIT, || place(job).filter(|place| place == at));
    assert!(there.is_some(), "{:?} instead of {at}: {:#?}", place(job), agent.lines());
}

/// Lets jobs end, and compares what they print with a native run.
fn end(scene: &Scene, jobs: Vec<Job<'_>>) {
    jobs.iter().for_each(Job::let_end);
    let native = native_orbit(scene, &LONG);
    jobs.into_iter().for_each(|job| assert_identical(&job.wait(LIMIT), &native));
}

#[test]
fn jobs_spread_over_servers_and_leave_one_that_is_drained() {
    let scene = Scene::new("agent-balance");
    let [one, two, three] = ["one", "two", "three"].map(|name| Server::start(&scene, name));
    let jobs: Vec<Job<'_>> = ["a", "b", "c"].into_iter().map(|name| job(&scene, name, &one)).collect();
    let agent = Agent::start(&scene, "agent", &settings(&[&one, &two, &three], "[[policy]]\nkind = 'balance'\n"));
    wait_for_moves(&agent, 2);
    let mut places: Vec<String> = jobs.iter().filter_map(place).collect();
    places.sort();
    let mut expected = [&one, &two, &three].map(|server| format!("{}/0", server.address));
    expected.sort();
    assert_eq!(places, expected);
    // The settings change while it runs.
    let drain = format!("[[policy]]\nkind = 'drain'\nservers = ['{}']\n[[policy]]\nkind = 'balance'\n", one.address);
    std::fs::write(scene.path.join("agent.toml"), settings(&[&one, &two, &three], &drain)).unwrap();
    let left = wait_for(LIMIT, || {
        let at: Vec<String> = jobs.iter().filter_map(place).collect();
        (at.len() == 3 && !at.contains(&format!("{}/0", one.address))).then_some(())
    });
    assert!(left.is_some(), "{:#?}", agent.lines());
    let up = format!("mrcuda_agent_server_up{{server=\"{}\"}} 1", one.address);
    let moved = "mrcuda_agent_moves_total{policy=\"balance\",action=\"move\",outcome=\"done\"} ";
    let metrics = answer(&agent, "Host: localhost");
    assert!(metrics.contains(&up) && metrics.contains(moved) && metrics.contains("_duration_seconds_count "), "{metrics}");
    assert!(answer(&agent, "Host: evil.example").starts_with("HTTP/1.1 403 "));
    drop(agent);
    end(&scene, jobs);
}

#[test]
fn a_job_of_lower_priority_is_parked_and_goes_on_when_the_other_has_ended() {
    let scene = Scene::new("agent-yield");
    let one = Server::start(&scene, "one");
    let low = job(&scene, "batch-1", &one);
    let rules = "[[job]]\nname = 'urgent*'\npriority = 10\n[[policy]]\nkind = 'yield'\npark = true\n";
    let agent = Agent::start(&scene, "agent", &settings(&[&one], rules));
    let urgent = job(&scene, "urgent-1", &one);
    arrives(&low, "parked", &agent);
    // An agent that is killed has not lost it.
    drop(agent);
    let agent = Agent::start(&scene, "agent", &settings(&[&one], rules));
    assert_eq!(place(&urgent), Some(format!("{}/0", one.address)));
    end(&scene, vec![urgent]);
    arrives(&low, &format!("{}/0", one.address), &agent);
    drop(agent);
    end(&scene, vec![low]);
}

#[test]
fn a_job_goes_home_and_nothing_is_done_in_a_dry_run() {
    let scene = Scene::new("agent-home");
    let one = Server::start(&scene, "one");
    let away = job(&scene, "away", &one);
    let rules =
        "local_gpus = 1\n[[job]]\nname = 'away'\nhome = 'local'\n[[job]]\nname = '*'\nleave = true\n[[policy]]\nkind = 'home'\n";
    let (config, text) = (scene.path.join("agent.toml"), settings(&[&one], ""));
    std::fs::write(&config, text + rules).unwrap();
    let run = |option: &str| {
        let output = scene.mrcuda().args(["agent", "--once", option, "--config"]).arg(&config).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (ok, said) = run("--dry-run");
    assert!(ok && said.contains(&format!("home: job {} (away) would move to local:0", away.pid())), "{said}");
    assert_eq!(place(&away), Some(format!("{}/0", one.address)));
    // Besides what it says of this machine's own GPUs, which may have no NVML.
    let of_jobs = |said: &str| said.lines().filter(|line| !line.contains("\"local_gpus\"")).count();
    let (ok, said) = run("--json");
    assert!(ok && of_jobs(&said) == 2, "{said}");
    assert_eq!(place(&away).as_deref(), Some("local:0"));
    let moves = away.all_moves().unwrap();
    assert!(moves.len() == 1 && moves[0].id().starts_with("agent-home-"), "{moves:?}");
    let (ok, said) = run("--json");
    assert!(ok && of_jobs(&said) == 0, "at home: {said}");
    end(&scene, vec![away]);
}

#[test]
fn what_a_job_says_of_its_home_and_policies_comes_before_the_settings() {
    let scene = Scene::new("agent-wishes");
    let [one, two] = ["one", "two"].map(|name| Server::start(&scene, name));
    let goes = job_with(&scene, "goes", &one, &["--home", "local"]);
    let stays = job_with(&scene, "stays", &one, &["--policy", "consolidate,balance"]);
    let home = format!("{}/0", two.address);
    let rules = format!("local_gpus = 1\n[[job]]\nname = '*'\nhome = '{home}'\npolicy = 'home'\n[[policy]]\nkind = 'home'\n");
    let config = scene.path.join("agent.toml");
    std::fs::write(&config, settings(&[&one, &two], &rules)).unwrap();
    let once = || scene.mrcuda().args(["agent", "--once", "--json", "--config"]).arg(&config).output().unwrap();
    let output = once();
    let said = String::from_utf8_lossy(&output.stdout);
    let of_jobs = said.lines().filter(|line| !line.contains("\"local_gpus\"")).count();
    assert!(output.status.success() && of_jobs == 2, "{output:?}");
    assert_eq!((place(&goes).as_deref(), place(&stays)), (Some("local:0"), Some(format!("{}/0", one.address))));
    let listed = scene.jobs().unwrap();
    let said = |name: &str| listed.iter().find(|job| job["name"] == name).map(|job| (job["home"].clone(), job["policy"].clone()));
    assert_eq!(said("goes"), Some(("local".into(), "".into())));
    assert_eq!(said("stays"), Some(("".into(), "consolidate,balance".into())));
    // An operator's drain moves it in any case.
    let drain = format!("{rules}[[policy]]\nkind = 'drain'\nservers = ['{}']\n", one.address);
    std::fs::write(&config, settings(&[&one, &two], &drain)).unwrap();
    let output = once();
    assert!(output.status.success() && place(&stays) == Some(home), "{output:?}");
    for (option, wrong, why) in [("--home", "local,helper", "2 places"), ("--policy", "drain", "`drain` is none of home")] {
        let output = scene.mrcuda().args(["run", "--driver", "soft", option, wrong, "--", "true"]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains(why), "{stderr}");
    }
    end(&scene, vec![goes, stays]);
}

#[test]
fn settings_that_cannot_be_used_are_refused_in_words() {
    let scene = Scene::new("agent-settings");
    let config = scene.path.join("agent.toml");
    for (text, why) in [
        (None, "agent.toml: No such file"),
        (Some("[[policy]]\nkind = 'sleep'"), "unknown variant `sleep`"),
        (Some("servers = ['nowhere']\n[[policy]]\nkind = 'home'"), "server `nowhere`: a server is"),
    ] {
        if let Some(text) = text {
            std::fs::write(&config, text).unwrap();
        }
        let output = scene.mrcuda().args(["agent", "--config"]).arg(&config).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(why), "{text:?}: {stderr}");
    }
}

#[test]
fn a_job_stays_away_from_home_while_a_program_uses_its_gpu_there() {
    let scene = Scene::new("agent-home");
    let server = Server::start(&scene, "one");
    let away = job(&scene, "train", &server);
    let rules = "local_gpus = 1\n[[job]]\nname = 'train'\nhome = 'local'\n[[policy]]\nkind = 'home'\n";
    let config = scene.path.join("home.toml");
    std::fs::write(&config, settings(&[&server], rules)).unwrap();
    // What would be done, beside this driver: what it lacks is said.
    let would = |driver: &Path, users: &Path| -> Vec<Value> {
        let mut command = scene.mrcuda();
        command.args(["agent", "--json", "--dry-run", "--once", "--config"]).arg(&config);
        let output = command.env("MRCUDA_DRIVER", driver).env("SOFTGPU_NVML_USERS", users).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let said = |lines: &[Value], event: &str, key: &str| -> Option<String> {
        lines.iter().find(|line| line["event"] == event).map(|line| line[key].as_str().unwrap_or_default().to_owned())
    };
    // softgpu's own NVML says nothing of it.
    let users = scene.path.join("users");
    let lines = would(&scene.install.file("libsoftgpu.so"), &users);
    assert_eq!(said(&lines, "local_gpus", "reason").as_deref(), Some("NVML does not say it of local:0"), "{lines:?}");
    let unsure = "no job uses the GPU where it belongs; whether another program does is not known";
    assert_eq!(said(&lines, "decision", "why").as_deref(), Some(unsure));
    let driver = driver_with_nvml(&scene, "users.c");
    std::fs::write(&users, format!("{} 1 {}", 1u64 << 40, std::process::id())).unwrap();
    // An answer may be late on a busy machine; then no job is sent there either.
    let knows = |lines: &Vec<Value>| said(lines, "local_gpus", "reason").is_none();
    let lines = wait_for(LIMIT, || Some(would(&driver, &users)).filter(knows)).expect("NVML answers");
    assert!(lines.is_empty(), "{lines:?}");
    // No room: the job has used memory, and the process that would be in its way is the job itself.
    std::fs::write(&users, format!("1 {}", away.pid())).unwrap();
    let lines = wait_for(LIMIT, || Some(would(&driver, &users)).filter(knows)).expect("NVML answers");
    assert!(lines.is_empty(), "{lines:?}");
    std::fs::write(&users, format!("{} {}", 1u64 << 40, away.pid())).unwrap();
    let mut agent = scene.mrcuda();
    agent.args(["agent", "--json", "--config"]).arg(&config).env("MRCUDA_DRIVER", &driver).env("SOFTGPU_NVML_USERS", &users);
    let agent = Agent::run(&scene, "agent", agent);
    arrives(&away, "local:0", &agent);
    let decided = agent.lines();
    assert_eq!(said(&decided, "decision", "why").as_deref(), Some("nothing uses the GPU where it belongs"), "{decided:?}");
    drop(agent);
    end(&scene, vec![away]);
}
