//! What a server tells those who watch it: metrics over HTTP, and its log as JSON.

use crate::schemas::Schemas;
use crate::{LIMIT, remote_orbit, wait_for_step};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use tests::scene::wait_for;
use tests::{Job, Scene, Server, install};

/// A job that does not end by itself while it is looked at.
const LONGER: [&str; 5] = ["--steps", "40000", "--pace", "3000", "--progress"];
/// One that ends soon.
const SHORT: [&str; 2] = ["--steps", "20"];

/// The lines of a server's log so far.
#[track_caller]
fn log(server: &Server) -> Vec<Value> {
    let text = server.errors();
    // The last line may be about to be written.
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    text[..end].lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Where a server's metrics are, by its log.
pub(crate) fn metrics_of(server: &Server) -> String {
    let found = wait_for(LIMIT, || {
        let at = |line: &Value| {
            Some(line["message"].as_str()?.strip_prefix("metrics are at http://")?.strip_suffix("/metrics")?.to_owned())
        };
        log(server).iter().find_map(at)
    });
    found.expect("the log does not say where the metrics are")
}

/// What the server answers to `GET` of this path.
pub(crate) fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits until the metrics have this line, or one that begins so and has another value than 0.
#[track_caller]
fn wait_for_line(at: &str, wanted: &str) {
    let mut last = String::new();
    let found = wait_for(LIMIT, || {
        last = get(at, "/metrics");
        let has = |line: &str| line == wanted || wanted.ends_with(' ') && line.strip_prefix(wanted).is_some_and(|n| n != "0");
        last.lines().any(has).then_some(())
    });
    assert!(found.is_some(), "`{wanted}` is missing in {last}");
}

#[test]
fn metrics_follow_a_job_from_its_start_to_its_end() {
    let scene = Scene::new("metrics");
    let accounting = scene.path.join("accounting.jsonl");
    let options =
        ["--metrics", "127.0.0.1:0", "--log-format", "json", "--max-gpu-jobs", "1", "--accounting", accounting.to_str().unwrap()];
    let server = Server::start_with(&scene, "one", &options, &[("SOFTGPU_DEVICES", "2")]);
    let at = metrics_of(&server);
    for line in ["mrcuda_gpu_jobs{gpu=\"0\"} 0", "mrcuda_gpu_jobs{gpu=\"1\"} 0", "mrcuda_gpu_memory_total_bytes{gpu=\"1\"} "] {
        wait_for_line(&at, line);
    }
    let mut job = remote_orbit(&scene, "job", &server.place(0), &LONGER, &[]);
    wait_for_step(&mut job, 20);
    for line in [
        "mrcuda_gpu_jobs{gpu=\"0\"} 1",
        "mrcuda_gpu_unused_seconds{gpu=\"0\"} 0",
        "mrcuda_gpu_memory_used_bytes{gpu=\"0\"} ",
        "mrcuda_jobs_served_total{gpu=\"0\"} 1",
        "mrcuda_traffic_bytes_total{gpu=\"0\",direction=\"in\"} ",
    ] {
        wait_for_line(&at, line);
    }
    // Who it is, is not for everybody.
    assert!(!get(&at, "/metrics").contains("mrcuda_job_"));
    // The GPU is exclusive: another job is refused, and counted.
    let refused = Job::orbit(&scene, "second", &["--server", &server.place(0)], &SHORT, &[]).wait(LIMIT);
    assert!(!refused.ok() && refused.stderr.contains("--max-gpu-jobs"), "{refused:?}");
    wait_for_line(&at, "mrcuda_connections_refused_total{kind=\"job\",reason=\"gpu_full\"} ");
    // It moves to the other GPU.
    let moved = scene.mrcuda().args(["migrate", &job.pid().to_string(), "--to", &server.place(1)]).output().unwrap();
    assert!(moved.status.success(), "{moved:?}");
    for line in [
        "mrcuda_gpu_jobs{gpu=\"0\"} 0",
        "mrcuda_gpu_jobs{gpu=\"1\"} 1",
        "mrcuda_moves_total{gpu=\"0\",direction=\"out\"} 1",
        "mrcuda_moves_total{gpu=\"1\",direction=\"in\"} 1",
    ] {
        wait_for_line(&at, line);
    }
    let pid = job.pid();
    assert!(job.wait(LIMIT).ok());
    for line in ["mrcuda_gpu_jobs{gpu=\"1\"} 0", "mrcuda_gpu_unused_seconds{gpu=\"1\"} ", "mrcuda_accounting_lines_total "] {
        wait_for_line(&at, line);
    }
    assert!(get(&at, "/nothing").starts_with("HTTP/1.1 404 "));
    // The page has it, too.
    let schemas = Schemas::read();
    let status = || schemas.check("status", get(&at, "/status.json").split_once("\r\n\r\n").unwrap().1);
    let have_ended = |now: &Value| now["stays"].as_array().unwrap().iter().filter(|stay| stay["end"] == "left").count() >= 2;
    let left = wait_for(LIMIT, || Some(status()).filter(have_ended));
    let stays = left.expect("both stays").clone()["stays"].as_array().unwrap().clone();
    let of = |gpu: u32, moved: &str| stays.iter().any(|stay| stay["gpu"] == gpu && stay[moved] == true && stay["end"] == "left");
    assert!(of(0, "moved_out") && of(1, "moved_in"), "{stays:?}");
    assert!(get(&at, "/").starts_with("HTTP/1.1 200 "));
    // The log has the same story.
    let lines = log(&server);
    let of_job =
        |word: &str| lines.iter().find(|line| line["job"] == pid && line["message"].as_str().unwrap().contains(word)).cloned();
    let served = of_job("serves job").expect("a line about its start");
    assert_eq!((&served["gpu"], &served["level"]), (&0.into(), &"info".into()), "{served}");
    assert!(served["worker"].is_u64() && served["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{served}");
    assert!(of_job("has left").is_some_and(|line| line["worker"].is_u64()), "{lines:?}");
    let refusal = lines.iter().find(|line| line["message"].as_str().unwrap().contains("--max-gpu-jobs")).expect("the refusal");
    assert_eq!((&refusal["level"], &refusal["gpu"]), (&"warn".into(), &0.into()), "{refusal}");
}

#[test]
fn jobs_have_names_in_metrics_on_request() {
    let scene = Scene::new("metrics-jobs");
    let server = Server::start_with(&scene, "one", &["--metrics", "127.0.0.1:0", "--metrics-jobs", "--log-format", "json"], &[]);
    let at = metrics_of(&server);
    let mut job = remote_orbit(&scene, "job", &server.unix_place(0), &LONGER, &[]);
    wait_for_step(&mut job, 20);
    let mut text = String::new();
    let series = wait_for(LIMIT, || {
        text = get(&at, "/metrics");
        text.lines().find(|line| line.starts_with("mrcuda_job_memory_bytes{") && !line.ends_with(" 0")).map(str::to_owned)
    });
    let series = series.unwrap_or_else(|| panic!("no job in {text}"));
    for label in ["gpu=\"0\"".to_owned(), format!("pid=\"{}\"", job.pid()), "name=\"orbit\"".to_owned(), "host=\"\"".to_owned()] {
        assert!(series.contains(&label), "{label} is missing in {series}");
    }
    assert!(text.contains("mrcuda_jobs_omitted 0\n"), "{text}");
    let status = Schemas::read().check("status", get(&at, "/status.json").split_once("\r\n\r\n").unwrap().1);
    assert_eq!(status["stays"][0]["job"]["pid"].as_u64(), Some(job.pid().into()), "{status}");
}

#[test]
fn every_line_of_the_log_is_json() {
    let scene = Scene::new("log-json");
    let schema: Value = serde_json::from_slice(&std::fs::read(install::root().join("docs/schema/log.json")).unwrap()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let mut server = Server::start_with(&scene, "one", &["--log-format", "json"], &[("MRCUDA_LOG", "debug")]);
    let announced: Value = serde_json::from_str(&server.announcement).unwrap();
    assert!(
        schema.is_valid(&announced) && announced["message"].as_str().unwrap().starts_with("serving 1 GPU on "),
        "{announced}"
    );
    // A job of a wrong token, one that ends well, and one whose worker fails.
    let mut stranger = scene.mrcuda();
    let stranger = stranger.args(["gpus", &server.address.to_string()]);
    let other = scene.path.join("other-token");
    std::fs::write(&other, "ab".repeat(32)).unwrap();
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert!(!stranger.env("MRCUDA_TOKEN_FILE", &other).output().unwrap().status.success());
    assert!(Job::orbit(&scene, "good", &["--server", &server.place(0)], &SHORT, &[]).wait(LIMIT).ok());
    let mut job = remote_orbit(&scene, "lost", &server.place(0), &LONGER, &[]);
    wait_for_step(&mut job, 20);
    let pid = job.pid();
    tests::server::signal(server.worker_of(pid), libc::SIGKILL);
    job.wait(LIMIT);
    let failed = wait_for(LIMIT, || {
        let is_end = |line: &&Value| line["job"] == pid && line["message"].as_str().is_some_and(|m| m.contains("ended: signal"));
        log(&server).iter().find(is_end).cloned()
    });
    assert_eq!(failed.expect("the failure is logged")["level"], "warn");
    assert!(server.stop().is_some_and(|status| status.success()));
    let lines = log(&server);
    for line in &lines {
        let errors: Vec<String> = schema.iter_errors(line).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}: {line}");
    }
    assert!(
        lines.iter().any(|line| line["message"].as_str().unwrap().contains("wrong token") && line["peer"].is_string()),
        "{lines:?}"
    );
    // A server that cannot start says so in the same way.
    let output = scene.mrcuda().args(["serve", "--log-format", "json", "--driver", "/nonexistent/libcuda.so"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(output.status.code() == Some(1) && last["level"] == "error" && schema.is_valid(&last), "{text}");
}
