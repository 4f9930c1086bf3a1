//! Fuzz targets for what the network may send to a server, a client to its worker, and a server to a client.

use crate::carried::Carried;
use crate::certificate::Certificate;
use crate::conn::Conn;
use crate::control::{Control, ControlReply, GlobalInfo, Refused};
use crate::frame::{CONTROL, HEAD, Head, filled};
use crate::greet::{
    GreetError, JobHello, Limits, Locality, Offer, Opening, Protection, admit, greet, hear, preamble, read_answer, receive,
};
use crate::greeter::message::{FromGreeter, NotHeard};
use crate::handshake::{self, ServerTls};
use crate::inbox::Inbox;
use crate::move_request::MoveRequest;
use crate::records::{Records, Session, Traffic};
use crate::secret::Secret;
use crate::server_drain::{DrainRequest, DrainWish};
use crate::user_tokens::{UserToken, read_lines};
use fuzz::Limit;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The bodies of a greeting have at most 64 KiB.
const LIMIT: Limit = Limit { bytes: 1 << 20, each: 64 };
/// An inbox has a buffer of 256 KiB, and memory for as much of a long body, which at most doubles with what arrives.
const INBOX: Limit = Limit { bytes: 1 << 20, each: 64 };
const LONG: Duration = Duration::from_secs(60);

/// A connection whose peer sends `bytes` and nothing more. The peer's end must be kept.
fn says(bytes: &[u8]) -> (Conn, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    theirs.write_all(bytes).expect("less than a socket holds");
    theirs.shutdown(Shutdown::Write).expect("it is connected");
    (Conn::new(ours.into()), theirs)
}

#[test]
fn greetings_of_clients() {
    let env = vec![("CUDA_LAUNCH_BLOCKING".into(), "1".into()), ("CUDA_CACHE_DISABLE".into(), String::new())];
    let job = Opening::Job {
        gpu: 1,
        rdma: true,
        waits: false,
        locality: Locality::Machine([4; 32]),
        hello: JobHello { virtual_device: 3, pid: 7, env, name: String::new() },
    };
    let said = |opening: &Opening| {
        let body = opening.body();
        let credential: &[u8] = if opening.role() == 3 { b"MUNGE:AwQFAAA/:" } else { b"" };
        let lengths = [&body[..], credential].map(|part| (part.len() as u32).to_le_bytes());
        [&[opening.role()][..], &[9; 32], &lengths[0], &body, &lengths[1], credential, &[5; 32]].concat()
    };
    let seeds = [
        said(&job),
        said(&Opening::Bulk { name: [3; 32], rdma: true }),
        said(&Opening::Inspect),
        said(&Opening::Move(MoveRequest { pid: 7, worker: Some(8), to: "b:1/0,local".into(), limit_ms: 60_000 })),
        said(&Opening::Events),
        said(&Opening::WorkerEnd(4711)),
        said(&Opening::Drain(DrainRequest { wish: DrainWish::Begin, to: Some("local".into()), limit_ms: 60_000 })),
        preamble(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    fuzz::run("greetings-of-clients", seeds, LIMIT, |input| {
        let hear = |bytes: &[u8]| {
            let (ours, _theirs) = says(bytes);
            // The input cannot contain a proof that depends on a nonce drawn here.
            let secrets = |_: &Opening, _| Ok([1, 2].map(|n| Secret::of_nobody([n; 32])).into());
            receive(&ours, LONG, Offer { munge: true, ..Offer::LOCAL }, secrets).expect_err("nobody is let in");
        };
        hear(input);
        hear(&[&preamble(), &[2; 9][..], input].concat());
        for role in 0..8 {
            if let Ok(opening) = Opening::read(role, input) {
                assert_eq!(opening.body(), input);
            }
        }
    });
}

/// What a process that greets for a daemon can say to it when it was taken over.
#[test]
fn messages_of_greeters() {
    let session = || Session { read: Traffic { secret: [1; 32], number: 1 }, write: Traffic { secret: [2; 32], number: 0 } };
    let heard = |opening: &Opening| {
        let body = opening.body();
        let lengths = [(body.len() as u32).to_le_bytes(), [0; 4]];
        let said =
            [&preamble(), &[2; 1][..], &[0; 8], &[opening.role()], &[9; 32], &lengths[0], &body, &lengths[1], &[5; 32]].concat();
        let (ours, _theirs) = says(&said);
        hear(&ours, Instant::now() + LONG, Offer::LOCAL, &[7; 32]).expect("a greeting")
    };
    let of_move = Opening::Move(MoveRequest { pid: 7, worker: Some(8), to: "b:1/0,local".into(), limit_ms: 60_000 });
    let seeds = [
        FromGreeter::Ready,
        FromGreeter::Unusable("a reason that is long enough".into()),
        FromGreeter::Sign(0x0403, [3; 32]),
        FromGreeter::Heard(heard(&Opening::Inspect), None),
        FromGreeter::Heard(heard(&of_move), Some(session())),
        FromGreeter::NotHeard(NotHeard::of(&GreetError::Tls("a reason".into())), Some(session())),
    ];
    fuzz::run("messages-of-greeters", seeds.map(|message| message.bytes().to_vec()), LIMIT, |input| {
        let Ok(message) = FromGreeter::read(input) else { return };
        assert_eq!(*message.bytes(), input);
        match message {
            FromGreeter::Heard(heard, _) => {
                let (ours, _theirs) = says(&[]);
                // It cannot contain a proof of a secret that it does not know.
                let secrets = |_: &Opening, _| Ok([1, 2].map(|n| Secret::of_nobody([n; 32])).into());
                admit(&ours, &heard, Offer { munge: true, ..Offer::LOCAL }, [7; 32], secrets).expect_err("nobody is let in");
            }
            FromGreeter::NotHeard(why, _) => {
                let words = why.error().to_string();
                assert!(words.len() < 2000 && !words.contains(char::is_control), "{words:?}");
            }
            _ => {}
        }
    });
}

#[test]
fn files_with_the_tokens_of_users() {
    let line = |name: &str, digit: &str| format!("{name} {} 1795900000000\n", digit.repeat(64));
    let seeds =
        [format!("# two\n{}\n{}", line("ann", "a"), line("bob.b-2", "0F")), line("ann", "b").repeat(2), "a b c".to_owned()];
    fuzz::run("files-with-the-tokens-of-users", seeds.map(String::into_bytes), LIMIT, |input| {
        if let Ok(users) = read_lines(input) {
            let written = |user: &UserToken| format!("{} {} {}\n", user.name, user.token.digits(), user.added_unix_ms);
            let text: String = users.iter().map(written).collect();
            assert_eq!(read_lines(text.as_bytes()).expect("what was read can be written"), users);
        }
    });
}

#[test]
fn greetings_of_servers() {
    let answer = |status: u8, body: &[u8]| [&[2; 33][..], &[status], &(body.len() as u32).to_le_bytes(), body].concat();
    let seeds = [
        answer(0, &[7; 32]),
        answer(1, b"unknown ticket"),
        answer(2, &[]),
        answer(3, b"wrong token"),
        b"SSH-2.0-OpenSSH".to_vec(),
    ];
    let opening = Opening::Bulk { name: [3; 32], rdma: true };
    fuzz::run("greetings-of-servers", seeds, LIMIT, |input| {
        let limits = Limits { silence: LONG, end: Instant::now() + LONG };
        for said in [input, &[&preamble(), input].concat()] {
            let (ours, _theirs) = says(said);
            greet(&ours, &opening, &[1; 32], Protection::Plain, limits).expect_err("no server knows the secret");
        }
        let (ours, _theirs) = says(input);
        if let Ok(body) = read_answer(&ours, Instant::now() + LONG) {
            assert!(body.len() < input.len());
        }
    });
}

#[test]
fn handshakes() {
    let directory = std::env::temp_dir().join(format!("mrcuda-fuzz-{}", std::process::id()));
    let certificate = Certificate::load_or_create(&directory.join("server.pem")).expect("a certificate");
    std::fs::remove_dir_all(directory).expect("it was made");
    let server = ServerTls::new(&certificate, None).expect("a server");
    // What a genuine client says first, and what a genuine server answers.
    let (client, mut there) = UnixStream::pair().expect("sockets");
    let hello = std::thread::spawn(move || {
        let conn = Conn::new(client.into());
        handshake::connect(&conn, None, || Instant::now() + LONG).expect_err("nobody answers");
    });
    let mut said = vec![0; 1024];
    let n = there.read(&mut said).expect("a message");
    said.truncate(n);
    let (ours, mut theirs) = says(&said);
    server.accept(&ours, Instant::now() + LONG).expect_err("the client says no more");
    drop(ours);
    let mut answer = Vec::new();
    theirs.read_to_end(&mut answer).expect("an answer");
    drop(there);
    hello.join().expect("the client ends");
    fuzz::run("handshakes", [said, answer, vec![22, 3, 3, 0, 4, 1, 0, 0, 0], vec![21, 3, 3, 0, 2, 2, 40]], LIMIT, |input| {
        let (ours, _theirs) = says(input);
        server.accept(&ours, Instant::now() + LONG).expect_err("it cannot know our half of the keys");
        let (ours, _theirs) = says(input);
        handshake::connect(&ours, None, || Instant::now() + LONG).expect_err("it cannot know our half of the keys");
    });
}

#[test]
fn records() {
    let session = || {
        let traffic = |n| Traffic { secret: [n; 32], number: 0 };
        Session { read: traffic(1), write: traffic(1) }
    };
    let mut genuine = Vec::new();
    let sealer = Records::new(session()).expect("keys");
    for text in [&b"one"[..], &[7; 300], b"three"] {
        let keep = |bytes: &[u8]| {
            genuine.extend_from_slice(bytes);
            Ok(())
        };
        sealer.write(&[text], keep).expect("kept");
    }
    let all = [&b"one"[..], &[7; 300], b"three"].concat();
    fuzz::run("records", [genuine.clone()], LIMIT, |input| {
        let (opener, mut left, mut got) = (Records::new(session()).expect("keys"), input, Vec::new());
        let mut buffer = [0; 1000];
        while let Ok(n @ 1..) = opener.read(&mut buffer, |to| left.read(to)) {
            got.extend_from_slice(&buffer[..n]);
        }
        assert!(all.starts_with(&got), "only what was sealed, in its order");
    });
}

/// A call in its encoded form.
fn frame(id: u16, body: &[u8]) -> Vec<u8> {
    let head = Head { len: (HEAD + body.len()) as u32, id, flags: 0, seq: 0, ticket: 1 };
    let mut bytes = [&head.bytes()[..], body].concat();
    bytes.resize(filled(bytes.len()), 0);
    bytes
}

fn requests() -> Vec<Control> {
    let ticket = [9; 32];
    vec![
        Control::FreeBytes { beside: 0 },
        Control::Expect { ticket, stripes: 4 },
        Control::Connect { to: "[::1]:7878/3".into(), ticket, stripes: 4 },
        Control::RoundTarget { ticket, verify: memsync::Verify::Hash, by_descriptor: true },
        Control::PeerOut { ticket, number: 3, parts: vec![memsync::Part { address: 4096, pitch: 1, width: 2, rows: 3 }] },
        Control::Moved,
        Control::Readings,
        Control::ShowMemory,
        Control::CouldAdopt { offer: [5; 32], chunks: vec![[4096, 2 << 20, 9]] },
        Control::AdoptFrom { offer: [5; 32], chunks: vec![[4096, 2 << 20, 9]] },
        Control::Drain { limit_ms: 7 },
    ]
}

/// What a worker does with its client's messages, up to the calls themselves (`bodies_of_calls` of `cuda-api`).
#[test]
fn frames_of_clients() {
    let mut seeds: Vec<Vec<u8>> = requests().iter().map(|r| frame(CONTROL, &r.encode().expect("encoded"))).collect();
    seeds.push([frame(0x0401, &[1; 13]), frame(0x0f02, &[]), frame(0x0f05, &[7; 100])].concat());
    fuzz::run("frames-of-clients", seeds, INBOX, |input| {
        let (mut inbox, mut long) = (Inbox::new(input), Vec::new());
        while let Ok(Some(bytes)) = inbox.head::<HEAD>() {
            let head = Head::read(&bytes);
            assert_eq!(head.bytes(), bytes);
            let Some(n) = head.body() else { return };
            let taken = inbox.with(filled(n), &mut long, |body| {
                let request = Control::decode(&body[..n]);
                if let (CONTROL, Ok(request)) = (head.id, request) {
                    assert_eq!(Control::decode(&request.encode().expect("encoded")).expect("decoded"), request);
                }
            });
            if taken.is_err() {
                return;
            }
        }
    });
}

#[test]
fn answers_to_control_requests() {
    let global = GlobalInfo { module: 1, name: "a counter of some length".into(), address: 2, bytes: 3 };
    let seeds = [
        ControlReply::Ok,
        ControlReply::Connected(Carried::TLS),
        ControlReply::FreeBytes(7),
        ControlReply::Shown { offer: [5; 32], chunks: vec![[4096, 2 << 20, 9]] },
        ControlReply::Adoptable(2 << 20),
        ControlReply::Regions { globals: vec![global; 3], heap: Some((4, 5)), chunks: vec![(6, 7), (8, 9)] },
        ControlReply::Drained { idle: false, was_busy: true, waits_for: "a kernel".into(), runs: Some(7) },
        ControlReply::Refused(Refused::Other("a long enough reason, which does not lie inline".into())),
        ControlReply::Refused(Refused::Driver(700)),
    ];
    fuzz::run("answers-to-control-requests", seeds.map(|r| r.encode().expect("encoded").into_vec()), LIMIT, |input| {
        if let Ok(reply) = ControlReply::decode(input) {
            let bytes = reply.encode().expect("encoded");
            // Floating-point values may not equal themselves, so the bytes are compared.
            assert_eq!(ControlReply::decode(&bytes).and_then(|r| r.encode()).expect("decoded")[..], bytes[..]);
        }
    });
}
