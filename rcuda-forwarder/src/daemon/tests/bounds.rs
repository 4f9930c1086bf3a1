//! Tests of strangers, of clients that exceed limits, and of targets that are not allowed.

use super::*;
use crate::channel::Start;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Ends the threads that poll it, even if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn strangers_lock_nobody_out() {
    let s = Scene::new();
    let (over, at) = (AtomicBool::new(false), s.daemon.address.unwrap());
    let held = AtomicU32::new(0);
    thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            // They never greet, and each dropped one is replaced by another. All have one address, which is the worst
            // case.
            let mut silent = std::collections::VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                silent.extend(TcpStream::connect(at));
                if silent.len() > 2 * AT_TCP.of_one {
                    silent.pop_front();
                }
                held.store(silent.len() as u32, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        assert!(soon(|| held.load(Ordering::Relaxed) as usize > AT_TCP.of_one));
        for _ in 0..5 {
            s.link(0).close();
            Link::connect(&s.unix(0), None, &hello(), None).unwrap().close();
        }
    });
}

#[test]
fn a_client_has_so_many_workers_and_no_more() {
    let s = Scene::with(vec![0, 1], |o| (o.max_client_workers, o.max_workers) = (Some(2), Some(3)));
    let links = [s.link(0), s.link(1)];
    let refused = |r: Result<Arc<Link>, LinkError>| r.unwrap_err().to_string();
    let third = || Link::connect(&s.at(0), Some(&s.credentials), &hello(), None);
    assert!(refused(third()).contains("127.0.0.1 has 2 workers here"), "one address");
    let here = || Link::connect(&s.unix(0), None, &hello(), None);
    let own = here().unwrap();
    assert!(refused(here()).contains("all 3 workers"), "all together");
    own.close();
    links[0].close();
    drop(links);
    assert!(soon(|| third().is_ok()), "room comes back");
}

#[test]
fn a_dead_worker_that_was_kept_ready_costs_nobody_a_refusal() {
    let s = Scene::lending(vec![0]);
    let profile = Profile { gpu: 0, virtual_device: 0, env: Vec::new(), user: None };
    for _ in 0..5 {
        assert!(soon(|| !s.daemon.state.pool.warm(&profile).is_empty()));
        let warm = s.daemon.state.pool.warm(&profile).remove(0);
        warm.wait_ready(Instant::now() + Duration::from_secs(20)).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(warm.pid() as i32), Signal::SIGKILL).unwrap();
        let link = s.link(0);
        assert_ne!(pid(&link), warm.pid() as i32);
    }
}

#[test]
fn a_worker_that_hangs_while_it_is_kept_ready_gets_no_client() {
    let s = Scene::lending(vec![0]);
    let profile = Profile { gpu: 0, virtual_device: 0, env: Vec::new(), user: None };
    let warm = s.daemon.state.pool.warm(&profile).remove(0);
    warm.wait_ready(Instant::now() + Duration::from_secs(20)).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(warm.pid() as i32), Signal::SIGSTOP).unwrap();
    // It takes a moment until the signal has reached all of its threads.
    let stopped =
        |thread: std::path::PathBuf| std::fs::read_to_string(thread.join("status")).is_ok_and(|s| s.contains("State:\tT"));
    let threads = || std::fs::read_dir(format!("/proc/{}/task", warm.pid())).unwrap();
    assert!(soon(|| threads().all(|thread| stopped(thread.unwrap().path()))));
    let (a, _b) = crate::conn::pair();
    let admitted = s.daemon.state.pool.admit(&admission::Source::Here, 0).unwrap();
    let until = Instant::now() + Duration::from_millis(300);
    let client = Client::of(&a, &hello(), None, geteuid().as_raw());
    let served = warm.serve(&Message::Job(hello(), None, false), &a, &client, admitted, until);
    assert!(served.unwrap_err().1.is_some(), "the client can have another one");
    assert!(!runs(warm.pid() as i32), "and this one never wakes up");
}

#[test]
fn a_worker_that_its_daemon_does_not_hear_leaves_the_client_to_another_one() {
    let (ours, theirs) = crate::channel::Channel::pair().unwrap();
    let arguments = ["--exact", "daemon::tests::worker_process", "--nocapture"];
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let mut child = command.args(arguments).stdin(theirs).stdout(std::process::Stdio::null()).spawn().unwrap();
    // The command holds a copy of the worker's end.
    drop(command);
    let start = Start { driver: "driver".into(), ..Start::of_test() };
    ours.send(&Message::Start(start), None).unwrap();
    assert!(matches!(ours.receive().unwrap(), Some((Message::Ready(Ok(_)), None))));
    let (conn, mut client) = crate::conn::pair();
    // As if it had hung until the daemon gave it up: the message is on its way, and its answer can no longer be sent.
    ours.hear_no_more();
    ours.send(&Message::Job(hello(), None, false), Some(conn.socket().unwrap())).unwrap();
    drop(conn);
    let mut said = Vec::new();
    client.read_to_end(&mut said).unwrap();
    assert!(said.is_empty(), "two workers would use the same keys");
    child.wait().unwrap();
}

#[test]
fn tickets_for_no_connection_are_refused() {
    let s = Scene::lending(vec![0]);
    let profile = Profile { gpu: 0, virtual_device: 0, env: Vec::new(), user: None };
    let worker = s.daemon.state.pool.warm(&profile).remove(0);
    for (left, known) in [(0, 0), (2, 1)] {
        s.daemon.state.expect(&worker, [7; 32], left);
        assert_eq!(s.daemon.state.tickets.left().len(), known);
    }
}

#[test]
fn a_ticket_that_one_worker_expects_is_not_given_to_another() {
    let s = Scene::lending(vec![0]);
    let (first, other) = (s.link(0), s.link(0));
    let ticket = [0x51; 32];
    first.control(&Control::Expect { ticket, stripes: 2 }).unwrap();
    let why = other.control(&Control::Expect { ticket, stripes: 2 }).unwrap_err().to_string();
    assert!(!why.is_empty(), "it is refused");
    assert!(logged(|l| l == format!("worker {} asked for a ticket that it cannot have", pid(&other))));
    // Those who show it get to the first one.
    assert_eq!(s.daemon.state.tickets.left(), [(2, Some(pid(&first) as u32))]);
    assert_eq!(bulk_connect(&s.at(0), &ticket, 2).unwrap().len(), 2);
}

#[test]
fn a_client_that_never_reads_answers_is_read_no_more_and_fills_no_memory() {
    let of_worker = WorkerLimits { queue: 1 << 20, ..WorkerLimits::of_machine() };
    let s = Scene::with(vec![0], |o| o.of_worker = of_worker);
    let (conn, worker) = raw(&s);
    let socket = conn.socket().unwrap().try_clone_to_owned().unwrap();
    let mut seq = 0;
    let mut call = |id: u16, ticket: u64, body: &[u8]| {
        let head = Head { len: (24 + body.len()) as u32, id, flags: 0, seq, ticket };
        seq += 1;
        [&head.bytes()[..], body].concat()
    };
    // Each answer has a mebibyte, and nobody takes one.
    let op = bytes(&CopyOut { src: 0, pitch: 0, width: 1 << 20, rows: 1, stream: 1 });
    // More than the kernel keeps for both ends.
    let (mut sent, most) = (0u64, 1 << 20);
    let until = Instant::now() + Duration::from_secs(120);
    let stopped = loop {
        // A record of TLS is sent whole, so room is asked for first.
        let mut waits = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
        let has_room = poll(&mut waits, PollTimeout::from(2000u16)).is_ok_and(|n| n == 1);
        if !has_room || (&conn).write_all(&call(id::COPY_OUT, sent + 1, &op)).is_err() {
            break true;
        }
        sent += 1;
        if sent == most || Instant::now() > until {
            break false;
        }
    };
    assert!(stopped, "the worker took {sent} calls whose answers nobody reads");
    let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    assert!(peak.is_none_or(|kib| kib < 256 << 10), "{peak:?} KiB");
    assert_eq!(about(&s.link(0), "gpu"), "0", "others are served");
    drop((conn, socket));
    assert!(soon(|| !runs(worker)));
}

#[test]
fn a_client_that_reads_nothing_holds_up_no_thread() {
    let s = Scene::lending(vec![0]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let conn = Conn::new(listener.accept().unwrap().0.into());
    s.daemon.state.check(Entrance::Tcp, &conn).unwrap();
    let limit = getsockopt(&conn.socket().unwrap(), sockopt::TcpUserTimeout).unwrap();
    assert_eq!(u128::from(limit), GREETING.as_millis());
}

#[test]
fn a_job_cannot_fill_the_memory_of_its_worker_with_calls_that_wait() {
    let of_worker = WorkerLimits { queue: 4 << 20, ..WorkerLimits::of_machine() };
    let s = Scene::with(vec![0], |o| o.of_worker = of_worker);
    let link = s.link(0);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let to = heard.clone();
    link.set_text_hook(move |_, text| lock(&to).extend_from_slice(text));
    link.request_then(id::HOST_CALL, &[&7u64.to_le_bytes()], |_| {}).unwrap();
    link.send(fake::WAIT_FOR_HOST, &[]).unwrap();
    assert!(soon(|| {
        let op = CopyIn { dst: 0, pitch: 0, width: 1 << 20, rows: 1, stream: 1 };
        link.send(id::COPY_IN, &[&bytes(&op), &[0; 1 << 20]]).is_err()
    }));
    assert!(logged(|l| l.contains(&format!("worker {}: more than 4 MiB of calls wait", pid(&link)))));
    // A thread of the link takes what was said before the end.
    let said = || String::from_utf8(lock(&heard).clone()).unwrap();
    assert!(soon(|| said().contains("--max-queue")), "{}", said());
}

#[test]
fn a_worker_goes_where_its_server_allows_and_tells_nothing_of_other_places() {
    let s = Scene::new();
    let link = s.link(0);
    let said = |to: &str| {
        let began = Instant::now();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let ticket = [NEXT.fetch_add(1, Ordering::Relaxed) as u8; 32];
        let why = link.control(&Control::Connect { to: to.into(), ticket, stripes: 1 }).unwrap_err().to_string();
        (why.replace(to, "IT"), began.elapsed())
    };
    for (to, what) in [("10.255.255.1:7878/0", "another network"), ("127.0.0.1:22/0", "a port of the system")] {
        let (why, took) = said(to);
        assert!(why.starts_with("this server does not connect to IT") && took < Duration::from_secs(4), "{what}: {why} {took:?}");
    }
    assert!(said("unix:/run/docker.sock/0").0.starts_with("this server does not connect"), "a socket of this machine");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let [silent_at, other_at] = [&silent, &other].map(|l| l.local_addr().unwrap());
    thread::spawn(move || other.accept().map(|(mut c, _)| c.write_all(b"SSH-2.0-OpenSSH_9.6\r\n")));
    let answers: Vec<_> = thread::scope(|scope| {
        let all = [closed, silent_at, other_at].map(|a| scope.spawn(move || said(&format!("{a}/0"))));
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let shortest = answers.iter().map(|(_, took)| *took).min().unwrap();
    assert!(answers.iter().all(|(why, _)| *why == answers[0].0), "{answers:?}");
    assert!(shortest >= Duration::from_secs(5), "which of them it is cannot be seen by the time: {answers:?}");
    // A client of this machine's user could find out by itself.
    let own = Link::connect(&s.unix(0), None, &hello(), None).unwrap();
    let connect = Control::Connect { to: format!("{closed}/0"), ticket: [3; 32], stripes: 1 };
    assert!(own.control(&connect).unwrap_err().to_string().contains("refused"));
}

#[test]
fn an_expectation_that_is_not_noted_in_time_is_taken_back() {
    let (daemon, ours) = crate::channel::Channel::pair().unwrap();
    let ours = Arc::new(crate::channel::Channel::over(ours));
    let dialer = Arc::new(crate::dialer::Dialer::new(ours.clone()));
    let reach = crate::attendant::Reach::Daemon(crate::attendant::Daemon {
        channel: ours,
        dialer,
        sender: crate::targets::Sender::SameUser,
        plain: false,
    });
    let attendant = crate::attendant::Attendant::new(Fake::open(&Start::of_test()).unwrap(), reach);
    let ticket = [8; 32];
    assert!(attendant.carry_out(Control::Expect { ticket, stripes: 2 }).is_err());
    let said = || daemon.receive_by(Instant::now() + Duration::from_secs(10)).unwrap().unwrap().0;
    assert_eq!([said(), said()], [Message::Expect(ticket, 2), Message::Forget(ticket)]);
}

#[test]
fn workers_get_what_they_need_and_no_more() {
    let s = Scene::new();
    let link = s.link(0);
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", pid(&link))).unwrap();
    assert!(read("status").lines().any(|l| l.split_whitespace().eq(["NoNewPrivs:", "1"])));
    let limits = read("limits");
    let of = |name: &str| limits.lines().find(|l| l.starts_with(name)).unwrap().to_owned();
    assert!(of("Max core file size").split_whitespace().skip(4).take(2).eq(["0", "0"]), "{limits}");
    let files: u64 = of("Max open files").split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(files <= 1 << 16, "{limits}");
    for variable in read("environ").split('\0').filter(|v| !v.is_empty()) {
        let name = variable.split('=').next().unwrap();
        assert!(env::is_servers(name) || name.starts_with("CUDA_"), "{name}");
    }
}

#[test]
fn a_server_says_that_it_serves_when_a_worker_has_opened_a_gpu() {
    let none = Scene::lending(vec![7]);
    let why = wait_for_first_workers(&none.daemon.state, &none.daemon.first).unwrap_err().to_string();
    assert!(why.starts_with("no worker can open a GPU: GPU 0: ") && why.contains("fallen off the bus"), "{why}");
    let one = Scene::lending(vec![0, 7]);
    // A failed worker is still counted after its end, and one that has served counts.
    drop(one.link(0));
    let gone = |w: &Result<Arc<pool::Worker>, AssignError>| {
        !std::path::Path::new(&format!("/proc/{}", w.as_ref().unwrap().pid())).exists()
    };
    assert!(soon(|| one.daemon.first.iter().all(gone)));
    wait_for_first_workers(&one.daemon.state, &one.daemon.first).unwrap();
    assert!(logged(|l| l.starts_with("cannot be used: GPU 1: ")));
}

#[test]
fn as_many_workers_are_kept_ready_as_asked() {
    let s = Scene::with(vec![0], |o| o.warm = 3);
    let profile = Profile { gpu: 0, virtual_device: 0, env: Vec::new(), user: None };
    let kept = || s.daemon.state.pool.warm(&profile).iter().map(|w| w.pid() as i32).collect::<Vec<_>>();
    assert!(soon(|| kept().len() == 3));
    let first = kept();
    // They come at the same time, and each finds one ready.
    let links: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(|| s.link(0))).collect();
        clients.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let mut served: Vec<i32> = links.iter().map(|l| pid(l)).collect();
    let mut expected = first.clone();
    served.sort_unstable();
    expected.sort_unstable();
    assert_eq!(served, expected);
    assert!(soon(|| kept().len() == 3) && kept().iter().all(|pid| !first.contains(pid)), "others take their place");
    // Clients of another kind get theirs, at the cost of these.
    let other = Profile { virtual_device: 2, ..profile.clone() };
    // Nobody starts more of them meanwhile.
    s.daemon.state.warming.run(other.clone(), |other| {
        s.daemon.state.pool.keep_warm(start(&s.daemon.state, other.clone()).unwrap());
        assert_eq!((kept().len(), s.daemon.state.pool.warm(&other).len()), (2, 1));
    });
}

/// Each of them needs a worker that is not there yet, and all are served at the same time.
#[test]
fn a_burst_of_clients_is_served() {
    const CLIENTS: u32 = 64;
    let s = Scene::with(vec![0], |o| o.max_client_workers = Some(CLIENTS));
    let together = std::sync::Barrier::new(CLIENTS as usize);
    let pids = thread::scope(|scope| {
        let client = |number: u32| {
            let (s, together) = (&s, &together);
            move || {
                together.wait();
                let link =
                    if number.is_multiple_of(2) { s.link(0) } else { Link::connect(&s.unix(0), None, &hello(), None).unwrap() };
                put(&link, 4096, &number.to_le_bytes());
                // No worker leaves before the last client is served.
                together.wait();
                assert_eq!(get(&link, 4096, 4), number.to_le_bytes());
                let pid = pid(&link);
                link.close();
                pid
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(client(number))).collect();
        clients.into_iter().map(|c| c.join().unwrap()).collect::<std::collections::BTreeSet<i32>>()
    });
    assert_eq!(pids.len(), CLIENTS as usize, "each has a worker of its own");
}

#[test]
fn a_request_for_which_there_is_no_thread_is_refused() {
    let s = Scene::new();
    let link = s.link(0);
    let ticket = [9; 32];
    let requests = [
        Control::FreeBytes { beside: 0 },
        Control::Regions,
        Control::Expect { ticket, stripes: 1 },
        Control::Connect { to: s.at(0).to_string(), ticket, stripes: 1 },
        Control::Accept { ticket },
        Control::RoundSource { ticket, send_regions: false },
        Control::RoundTarget { ticket, verify: memsync::Verify::Auto, by_descriptor: true },
        Control::Drain { limit_ms: 0 },
        Control::Bulk { ticket, to_device: true, shared: false },
        Control::Areas { at_least: 1 },
        Control::PeerOut { ticket, number: 1, parts: vec![memsync::Part { address: 0, pitch: 0, width: 1, rows: 1 }] },
        Control::PeerIn { ticket, number: 1, parts: vec![memsync::Part { address: 0, pitch: 0, width: 1, rows: 1 }] },
        Control::EndLink { ticket },
        Control::HangUp { ticket },
    ];
    for request in requests {
        assert_eq!(link.request(fake::NO_THREAD, &[]).unwrap().wait().unwrap().0, code::SUCCESS);
        let refused = link.control(&request).unwrap_err().to_string();
        assert!(refused.contains("cannot start a thread"), "{request:?}: {refused}");
        assert_eq!(link.request(fake::ECHO, &[b"on"]).unwrap().wait().unwrap().0, code::SUCCESS);
    }
    assert!(matches!(link.control(&Control::Regions), Ok(ControlReply::Regions { .. })));
    link.close();
}

#[test]
fn rounds_that_do_not_end_can_be_ended_however_many_they_are() {
    let s = Scene::new();
    let link = s.link(0);
    // Each waits for connections that do not come.
    let tickets: Vec<[u8; 32]> = (0..16).map(|n| [n; 32]).collect();
    tickets.iter().for_each(|t| drop(link.control(&Control::Expect { ticket: *t, stripes: 1 }).unwrap()));
    // The question below is a request too: one of these that comes beside it can be the one too many, and comes again.
    let accept = |ticket: &[u8; 32]| {
        while link.control(&Control::Accept { ticket: *ticket }).unwrap_err().to_string().contains("too many requests") {}
    };
    thread::scope(|scope| {
        let accept = &accept;
        let waiting: Vec<_> = tickets.iter().map(|t| scope.spawn(move || accept(t))).collect();
        assert!(soon(|| link
            .control(&Control::FreeBytes { beside: 0 })
            .is_err_and(|e| e.to_string().contains("too many requests"))));
        tickets.iter().for_each(|t| assert_eq!(link.control(&Control::HangUp { ticket: *t }).unwrap(), ControlReply::Ok));
        waiting.into_iter().for_each(|w| w.join().unwrap());
    });
    assert!(matches!(link.control(&Control::FreeBytes { beside: 0 }), Ok(ControlReply::FreeBytes(_))));
    link.close();
}
