//! What a daemon tells over HTTP, and what nobody can do to it there.

use super::*;
use crate::daemon::metrics::http::{ASKING, REQUEST};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Shutdown;

/// A scene whose daemon serves metrics, and where.
fn scene(gpus: Vec<u32>, jobs: bool, change: impl FnOnce(&mut ServeOptions)) -> (Scene, SocketAddr) {
    let s = Scene::with(gpus, |options| {
        let at = "127.0.0.1:0".parse().unwrap();
        options.metrics = Some(MetricsOptions { at, jobs, version: "1.2.3".into(), commit: "abc".into() });
        change(options);
    });
    let listener = s.daemon.listeners.socket(Kind::Metrics).unwrap();
    let listener = TcpListener::from(listener.try_clone().unwrap());
    let at = listener.local_addr().unwrap();
    (s, at)
}

/// Sends this and reads to the end.
fn ask(at: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A value, with the metric and its labels.
type Series = BTreeMap<(String, Vec<(String, String)>), f64>;

/// Reads the text format; panics at whatever is not as it should be.
fn parse(text: &str) -> Series {
    let (mut series, mut seen, mut current) = (Series::new(), BTreeSet::new(), (String::new(), String::new()));
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            current = (help.split_once(' ').unwrap().0.to_owned(), String::new());
            assert!(seen.insert(current.0.clone()), "{} is there twice", current.0);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(name == current.0 && ["gauge", "counter"].contains(&kind), "{line}");
            current.1 = kind.to_owned();
        } else {
            let end = line.find(['{', ' ']).unwrap();
            let (name, mut rest) = line.split_at(end);
            assert!(name == current.0 && !current.1.is_empty(), "{line}");
            let mut labels = Vec::new();
            if let Some(inner) = rest.strip_prefix('{') {
                rest = inner;
                loop {
                    let (label, after) = rest.split_once("=\"").unwrap();
                    let mut value = String::new();
                    let mut chars = after.chars();
                    loop {
                        match chars.next().unwrap() {
                            '"' => break,
                            '\\' => value.push(match chars.next().unwrap() {
                                'n' => '\n',
                                c @ ('\\' | '"') => c,
                                c => panic!("\\{c} in {line}"),
                            }),
                            c => value.push(c),
                        }
                    }
                    labels.push((label.to_owned(), value));
                    rest = chars.as_str();
                    match rest.strip_prefix(',') {
                        Some(more) => rest = more,
                        None => break,
                    }
                }
                rest = rest.strip_prefix('}').unwrap();
            }
            let value: f64 = rest.strip_prefix(' ').unwrap().parse().unwrap();
            assert!(value >= 0.0 && series.insert((name.to_owned(), labels), value).is_none(), "{line}");
        }
    }
    series
}

/// The metrics now.
fn metrics(at: SocketAddr) -> Series {
    let answer = ask(at, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", text.len())), "{head}");
    parse(text)
}

/// The value of a metric with these labels, among others.
fn value(series: &Series, name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
    let has = |labels: &[(String, String)]| wanted.iter().all(|w| labels.iter().any(|(n, v)| (&**n, &**v) == *w));
    series.iter().find(|((n, labels), _)| n == name && has(labels)).map(|(_, value)| *value)
}

#[test]
fn a_job_is_counted_while_it_is_there_and_after() {
    let (s, at) = scene(vec![0, 1], false, |_| {});
    assert!(soon(|| value(&metrics(at), "mrcuda_gpu_idle_workers", &[("gpu", "1")]) == Some(1.0)));
    let before = metrics(at);
    assert_eq!(value(&before, "mrcuda_build_info", &[("version", "1.2.3"), ("commit", "abc")]), Some(1.0));
    assert_eq!(
        value(&before, "mrcuda_gpu_info", &[("gpu", "1"), ("uuid", "GPU-07070707-0707-0707-0707-070707070707")]),
        Some(1.0)
    );
    assert_eq!(value(&before, "mrcuda_gpu_memory_free_bytes", &[("gpu", "1")]), Some(fake::MEMORY as f64));
    assert_eq!(value(&before, "mrcuda_jobs_served_total", &[("gpu", "1")]), Some(0.0));
    let link = s.link(1);
    link.send(fake::ECHO, &[]).unwrap();
    link.request(fake::ECHO, &[]).unwrap().wait().unwrap();
    assert!(soon(|| value(&metrics(at), "mrcuda_gpu_memory_used_bytes", &[("gpu", "1")]) == Some(2.0)));
    let during = metrics(at);
    for (name, gpu, wanted) in [
        ("mrcuda_gpu_jobs", "1", 1.0),
        ("mrcuda_gpu_jobs", "0", 0.0),
        ("mrcuda_gpu_unused_seconds", "1", 0.0),
        ("mrcuda_jobs_served_total", "1", 1.0),
        ("mrcuda_jobs_served_total", "0", 0.0),
        ("mrcuda_queue_jobs", "1", 0.0),
    ] {
        assert_eq!(value(&during, name, &[("gpu", gpu)]), Some(wanted), "{name} {gpu}");
    }
    assert!(value(&during, "mrcuda_gpu_unused_seconds", &[("gpu", "0")]) > Some(0.0));
    assert_eq!(value(&during, "mrcuda_connections_accepted_total", &[("kind", "job")]), Some(1.0));
    let traffic = |series: &Series| value(series, "mrcuda_traffic_bytes_total", &[("gpu", "1"), ("direction", "in")]);
    assert!(traffic(&during) > Some(0.0), "before the end");
    assert!(!during.keys().any(|(name, _)| name.starts_with("mrcuda_job_")), "nobody is told who they are");
    link.close();
    assert!(soon(|| value(&metrics(at), "mrcuda_gpu_jobs", &[("gpu", "1")]) == Some(0.0)));
    assert!(soon(|| value(&metrics(at), "mrcuda_gpu_unused_seconds", &[("gpu", "1")]) > Some(0.0)));
    let after = metrics(at);
    assert!(traffic(&after) >= traffic(&during));
    assert_eq!(value(&after, "mrcuda_workers_failed_total", &[("gpu", "1")]), Some(0.0));
    assert!(value(&after, "mrcuda_workers_started_total", &[("gpu", "1")]) >= Some(1.0));
    // No counter has become smaller.
    for ((name, labels), value) in before.iter().filter(|((name, _), _)| name.ends_with("_total")) {
        assert!(after[&(name.clone(), labels.clone())] >= *value, "{name} {labels:?}");
    }
}

#[test]
fn jobs_are_named_on_request() {
    let (s, at) = scene(vec![0], true, |_| {});
    let named = JobHello { name: "a \"b\" \\ c".into(), ..hello() };
    let link = Link::connect(&s.at(0), Some(&s.credentials), &named, None).unwrap();
    let here = Link::connect(&s.unix(0), None, &hello(), None).unwrap();
    let me = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().map(|user| user.name).unwrap_or_default();
    let (worker, here_worker) = (pid(&link).to_string(), pid(&here).to_string());
    assert!(soon(|| value(&metrics(at), "mrcuda_gpu_jobs", &[]) == Some(2.0)));
    let series = metrics(at);
    let labels = [("gpu", "0"), ("worker", &*worker), ("name", "a \"b\" \\ c"), ("user", ""), ("host", "127.0.0.1")];
    assert!(value(&series, "mrcuda_job_memory_bytes", &labels).is_some(), "{series:?}");
    assert!(value(&series, "mrcuda_job_start_time_seconds", &labels) > Some(1e9));
    let labels = [("worker", &*here_worker), ("user", &me), ("host", "")];
    assert!(value(&series, "mrcuda_job_memory_bytes", &labels).is_some(), "{series:?}");
    assert_eq!(value(&series, "mrcuda_jobs_omitted", &[]), Some(0.0));
}

/// What is served at a path: its type and its text.
fn get(at: SocketAddr, path: &str) -> (String, String) {
    let answer = ask(at, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.to_lowercase().contains("cookie"), "{answer}");
    for header in ["X-Content-Type-Options: nosniff", "Content-Security-Policy: default-src 'none'; script-src 'self'; "] {
        assert!(head.contains(&format!("\r\n{header}")), "{head}");
    }
    let kind = head.lines().find_map(|line| line.strip_prefix("Content-Type: ")).unwrap();
    (kind.to_owned(), text.to_owned())
}

fn status(at: SocketAddr) -> serde_json::Value {
    let (kind, text) = get(at, "/status.json");
    assert_eq!(kind, "application/json");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_page_is_served_with_what_it_needs() {
    let (_s, at) = scene(vec![0], false, |_| {});
    let (kind, page) = get(at, "/");
    assert!(kind == "text/html; charset=utf-8" && page.starts_with("<!DOCTYPE html>"), "{kind}: {page}");
    for (path, wanted) in [("page.css", "text/css; charset=utf-8"), ("page.js", "text/javascript; charset=utf-8")] {
        assert!(page.contains(&format!("\"{path}\"")));
        assert_eq!(get(at, &format!("/{path}")).0, wanted);
    }
}

#[test]
fn the_status_has_jobs_and_those_that_have_left() {
    let (s, at) = scene(vec![0, 1], true, |_| {});
    let bad = "<script>alert(1)</script>";
    let named = JobHello { name: bad.into(), ..hello() };
    let link = Link::connect(&s.at(1), Some(&s.credentials), &named, None).unwrap();
    assert!(soon(|| status(at)["gpus"][1]["jobs"] == 1));
    let now = status(at);
    assert!(now["version"] == "1.2.3" && now["ending"] == false && now["names_jobs"] == true, "{now}");
    assert_eq!((&now["gpus"][0]["gpu"], &now["gpus"][0]["jobs"], &now["gpus"][0]["waiting"]), (&0.into(), &0.into(), &0.into()));
    let stay = &now["stays"][0];
    assert!(stay["gpu"] == 1 && stay["until_unix_ms"].is_null() && stay["end"].is_null(), "{stay}");
    // It is text in a document that is no page.
    assert!(stay["job"]["name"] == bad && stay["job"]["host"] == "127.0.0.1" && stay["job"]["pid"].is_u64(), "{stay}");
    link.close();
    assert!(soon(|| status(at)["stays"][0]["end"] == "left"));
    let stay = status(at)["stays"][0].clone();
    assert!(stay["until_unix_ms"].as_u64() >= stay["since_unix_ms"].as_u64() && stay["job"]["name"] == bad, "{stay}");
    // Every field is documented.
    let page = include_str!("../../../../docs/servers.md");
    let now = status(at);
    for value in [&now, &now["gpus"][0], &stay, &stay["job"]] {
        for name in value.as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{name}`")), "docs/servers.md does not name `{name}`");
        }
    }
}

#[test]
fn the_status_names_jobs_only_on_request() {
    let (s, at) = scene(vec![0], false, |_| {});
    let link = s.link(0);
    assert!(soon(|| status(at)["gpus"][0]["jobs"] == 1));
    let now = status(at);
    let is_coarse = |time: &serde_json::Value| time.as_u64().is_some_and(|ms| ms % 10_000 == 0);
    let stay = &now["stays"][0];
    assert!(now["names_jobs"] == false && stay["job"].is_null() && stay["used_bytes"].is_null(), "{now}");
    assert!(is_coarse(&stay["since_unix_ms"]) && now["gpus"][0]["used_bytes"].is_u64(), "{now}");
    link.close();
    assert!(soon(|| status(at)["stays"][0]["end"] == "left"));
    let stay = status(at)["stays"][0].clone();
    assert!(is_coarse(&stay["since_unix_ms"]) && is_coarse(&stay["until_unix_ms"]) && stay["job"].is_null(), "{stay}");
}

#[test]
fn refusals_and_failures_are_counted() {
    let (s, at) = scene(vec![0], false, |options| options.clients.gpu_jobs = Some(1));
    let refused = |kind: &str, reason: &str| {
        value(&metrics(at), "mrcuda_connections_refused_total", &[("kind", kind), ("reason", reason)]).unwrap()
    };
    let link = s.link(0);
    Link::connect(&s.at(0), Some(&s.credentials), &hello(), None).unwrap_err();
    Link::connect(&s.at(7), Some(&s.credentials), &hello(), None).unwrap_err();
    let wrong = Credentials { token: Some(Token([9; 32])), ..s.credentials.clone() };
    Link::connect(&s.at(0), Some(&wrong), &hello(), None).unwrap_err();
    assert!(soon(|| refused("job", "gpu_full") == 1.0 && refused("job", "no_such_gpu") == 1.0));
    assert!(soon(|| refused("greeting", "wrong_token") == 1.0));
    assert_eq!(refused("job", "workers"), 0.0);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid(&link)), Signal::SIGKILL).unwrap();
    assert!(soon(|| value(&metrics(at), "mrcuda_workers_failed_total", &[("gpu", "0")]) == Some(1.0)));
}

#[test]
fn a_job_that_waits_is_in_the_queue() {
    let (s, at) = scene(vec![0], false, |options| options.clients.gpu_jobs = Some(1));
    let link = s.link(0);
    let waiting = |n: f64| soon(|| value(&metrics(at), "mrcuda_queue_jobs", &[("gpu", "0")]) == Some(n));
    assert!(waiting(0.0));
    let turn = s.daemon.state.lines.enter(Source::Here, 0, true).unwrap();
    assert!(waiting(1.0));
    drop((turn, link));
    assert!(waiting(0.0));
}

#[test]
fn other_requests_are_told_why_not() {
    let (_s, at) = scene(vec![0], false, |_| {});
    for (request, wanted) in [
        ("GET /nothing HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\n"),
        ("hello\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 505 "),
        ("GET /status.json HTTP/1.1\r\nHost: x.org:9878\r\n\r\n", "HTTP/1.1 403 Forbidden\r\n"),
    ] {
        let answer = ask(at, request.as_bytes());
        assert!(answer.starts_with(wanted) && answer.contains("\r\nConnection: close\r\n"), "{request}: {answer}");
    }
    // A client that closes halfway, or at once, is none.
    let mut half = TcpStream::connect(at).unwrap();
    half.write_all(b"GET /metr").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    drop(TcpStream::connect(at).unwrap());
    metrics(at);
}

#[test]
fn hostile_clients_cost_little_and_hold_up_nobody() {
    let (s, at) = scene(vec![0], false, |_| {});
    // Headers without an end.
    let mut endless = TcpStream::connect(at).unwrap();
    endless.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let mut sent = 0;
    while sent < 1 << 20 && endless.write_all(&[b'a'; 1000]).is_ok() {
        sent += 1000;
    }
    let mut answer = Vec::new();
    // The server has closed with bytes unread, so the answer may be lost; what counts is the end.
    let _ = endless.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
    let ended = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (mut answer, since) = (String::new(), Instant::now());
        stream.read_to_string(&mut answer).unwrap();
        (answer, since.elapsed())
    };
    thread::scope(|scope| {
        // No bytes, and one every half second, which must not prolong it.
        let silent = scope.spawn(|| ended(TcpStream::connect(at).unwrap()));
        let slow = scope.spawn(|| {
            let stream = TcpStream::connect(at).unwrap();
            let mut writer = stream.try_clone().unwrap();
            let drip = thread::spawn(move || {
                for byte in b"GET /metrics HTTP/1.1\r\nHost: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" {
                    if writer.write_all(&[*byte]).is_err() {
                        return;
                    }
                    thread::sleep(Duration::from_millis(500));
                }
            });
            let ended = ended(stream);
            drip.join().unwrap();
            ended
        });
        for (answer, time) in [silent.join().unwrap(), slow.join().unwrap()] {
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            assert!(time + Duration::from_millis(100) >= REQUEST && time < 6 * REQUEST, "{time:?}");
        }
    });
    // Many that send nothing: others are answered at once, and jobs are served.
    let many: Vec<TcpStream> = (0..10 * ASKING.all).map(|_| TcpStream::connect(at).unwrap()).collect();
    let began = Instant::now();
    for _ in 0..5 {
        metrics(at);
    }
    s.link(0).close();
    assert!(began.elapsed() < REQUEST * 4, "{:?}", began.elapsed());
    drop(many);
    // One that does not read its answers.
    let deaf: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    assert!(soon(|| ask(at, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 ")));
    drop(deaf);
}
