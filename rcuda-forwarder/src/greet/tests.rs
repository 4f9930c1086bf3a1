use super::opening::VARIABLES;
use super::*;
use crate::conn::pair;
use crate::token::Token;
use crate::user_tokens::UserToken;
use std::thread;

const LIMIT: Duration = Duration::from_secs(5);

fn within(limit: Duration) -> Limits {
    Limits { silence: limit, end: Instant::now() + limit }
}

fn job(pid: u32) -> Opening {
    let hello = JobHello { virtual_device: 3, pid, env: vec![("CUDA_LAUNCH_BLOCKING".into(), "1".into())], name: String::new() };
    Opening::Job { gpu: 1, rdma: false, waits: false, locality: Locality::Machine([6; 32]), hello }
}

/// Runs both ends; returns the result of each.
fn meet(opening: Opening, client: [u8; 32], server: [u8; 32]) -> (Result<(), GreetError>, Result<Opening, GreetError>) {
    let (here, there) = meet_one_of(opening, client, vec![Secret::of_nobody(server)]);
    (here, there.map(|greeted| greeted.opening))
}

/// The same with a server that accepts several secrets.
fn meet_one_of(
    opening: Opening,
    client: [u8; 32],
    secrets: Vec<Secret>,
) -> (Result<(), GreetError>, Result<Greeted, GreetError>) {
    let (a, b) = pair();
    let there =
        thread::spawn(move || receive(&b, LIMIT, Offer::LOCAL, |_, _| Ok(secrets.into())).inspect_err(|why| refuse(&b, why)));
    let here = greet(&a, &opening, &client, Protection::Plain, within(LIMIT));
    (here.map(drop), there.join().unwrap())
}

fn of_user(name: &str, key: u8) -> Secret {
    Secret::of_user(UserToken { name: name.to_owned(), token: Token([key; 32]), added_unix_ms: 5 })
}

#[test]
fn each_user_is_recognized_by_their_own_token_alone() {
    let all = || vec![Secret::of_nobody([1; 32]), of_user("ann", 2), of_user("bob", 3)];
    for (key, user) in [(1, None), (2, Some("ann")), (3, Some("bob"))] {
        // The server proves the same token: the client would not go on with another one.
        let (here, there) = meet_one_of(job(7), [key; 32], all());
        here.unwrap();
        assert_eq!(there.unwrap().secret.user_name().as_deref(), user);
    }
    let (here, there) = meet_one_of(job(7), [4; 32], all());
    assert!(matches!((here, there), (Err(GreetError::TokenRefused), Err(GreetError::WrongToken))));
    // One that was revoked, and a server without any.
    for secrets in [vec![Secret::of_nobody([1; 32]), of_user("bob", 3)], Vec::new()] {
        let (here, there) = meet_one_of(job(7), [2; 32], secrets);
        assert!(matches!((here, there), (Err(GreetError::TokenRefused), Err(GreetError::WrongToken))));
    }
}

#[test]
fn a_server_that_answers_with_another_token_is_not_believed() {
    let (a, mut b) = pair();
    let (ann, bob) = ([2; 32], [3; 32]);
    let there = thread::spawn(move || {
        b.write_all(&[&preamble()[..], &[PLAIN], &[9; 32]].concat()).unwrap();
        let mut said = vec![0; FIRST + 37 + job(7).body().len() + 4 + 32];
        b.read_exact_by(&mut said, Instant::now() + LIMIT).unwrap();
        // Bob knows his own token, and has seen all that Ann has sent.
        let theirs = said[FIRST + 1..FIRST + 33].try_into().unwrap();
        let nonces = [[9; 32], theirs];
        let body = job(7).body();
        let route = Route::default();
        let digest = Transcript { offer: PLAIN, choice: PLAIN, route, binding: [0; 32], nonces, role: 1, body: &body }.digest();
        let is_ann = digest.proof(&ann, "client").as_bytes()[..] == said[said.len() - 32..];
        answer(&b, Ok(digest.proof(&bob, "server").as_bytes())).unwrap();
        is_ann
    });
    let here = greet(&a, &job(7), &ann, Protection::Plain, within(LIMIT));
    assert!(matches!(here, Err(GreetError::WrongToken)));
    assert!(there.join().unwrap(), "the test reads what was sent");
}

/// Runs a client that sends `bytes`; returns the server's error, and what the server sends after its preamble.
fn hears(bytes: Vec<u8>, limit: Duration) -> (GreetError, String) {
    let (mut a, b) = pair();
    let there = thread::spawn(move || {
        let secrets = |_: &Opening, _| Ok(Arc::from([Secret::of_nobody([1; 32])]));
        receive(&b, limit, Offer::LOCAL, secrets).inspect_err(|why| refuse(&b, why)).unwrap_err()
    });
    a.read_exact_by(&mut [0; PREAMBLE + 33], Instant::now() + LIMIT).unwrap();
    a.write_all(&bytes).unwrap();
    let said = read_answer(&a, Instant::now() + LIMIT).unwrap_err().to_string();
    (there.join().unwrap(), said)
}

#[test]
fn equal_secrets_meet() {
    let (here, there) = meet(job(7), [1; 32], [1; 32]);
    here.unwrap();
    assert_eq!(there.unwrap(), job(7));
    let (here, there) = meet(Opening::Inspect, [1; 32], [1; 32]);
    here.unwrap();
    assert_eq!(there.unwrap(), Opening::Inspect);
    let bulk = Opening::Bulk { name: ticket_name(&[5; 32]), rdma: true };
    let (here, there) = meet(bulk.clone(), ticket_key(&[5; 32]), ticket_key(&[5; 32]));
    here.unwrap();
    assert_eq!(there.unwrap(), bulk);
}

#[test]
fn a_wrong_token_is_named_on_both_sides() {
    let (here, there) = meet(job(7), [1; 32], [2; 32]);
    assert!(matches!(here, Err(GreetError::TokenRefused)), "{here:?}");
    assert!(matches!(there, Err(GreetError::WrongToken)));
}

#[test]
fn a_server_without_the_token_is_refused() {
    let (a, mut b) = pair();
    let there = thread::spawn(move || {
        b.write_all(&[&preamble()[..], &[PLAIN], &[9; 32]].concat()).unwrap();
        b.read_exact_by(&mut [0; FIRST + 37], Instant::now() + LIMIT).unwrap();
        answer(&b, Ok(&[0; 32])).unwrap();
        b
    });
    assert!(matches!(greet(&a, &job(1), &[1; 32], Protection::Plain, within(LIMIT)), Err(GreetError::WrongToken)));
    there.join().unwrap();
}

#[test]
fn another_build_is_named_on_both_sides() {
    let mut other = preamble();
    other[20] ^= 1;
    let (server, said) = hears(other.clone(), LIMIT);
    assert!(matches!(server, GreetError::OtherBuild));
    assert!(said.contains("another build"), "{said}");
    let (a, mut b) = pair();
    b.write_all(&other).unwrap();
    assert!(matches!(greet(&a, &job(1), &[1; 32], Protection::Plain, within(LIMIT)), Err(GreetError::OtherBuild)));
}

#[test]
fn garbage_is_named() {
    let (server, _) = hears(b"GET / HTTP/1.1\r\nHost: gpubox\r\n\r\n".to_vec(), LIMIT);
    assert!(matches!(server, GreetError::Garbage));
    for (role, len) in [(1u8, u32::MAX), (1, BODY as u32 + 1), (9, 0), (1, 3), (3, 1)] {
        let mut bytes = preamble();
        bytes.push(PLAIN);
        bytes.extend(Route::default());
        bytes.push(role);
        bytes.extend([0; 32]);
        bytes.extend(len.to_le_bytes());
        bytes.extend([0; 64]);
        let (server, _) = hears(bytes, LIMIT);
        assert!(matches!(server, GreetError::Garbage), "{role} {len}: {server}");
    }
    // A credential that is too long, and one for a server that wants none.
    for credential in [munge::LONGEST as u32 + 1, 9] {
        let question = [&preamble()[..], &[PLAIN], &Route::default(), &[3], &[0; 36], &credential.to_le_bytes()];
        let (server, _) = hears([&question.concat()[..], b"MUNGE:AA:", &[0; 32]].concat(), LIMIT);
        assert!(matches!(server, GreetError::Garbage), "{credential}: {server}");
    }
    let (a, mut b) = pair();
    b.write_all(&[0x20; 200]).unwrap();
    assert!(matches!(greet(&a, &job(1), &[1; 32], Protection::Plain, within(LIMIT)), Err(GreetError::Garbage)));
}

#[test]
fn slow_peers_are_left() {
    let began = Instant::now();
    let (server, said) = hears(preamble(), Duration::from_millis(150));
    assert!(matches!(server, GreetError::TooSlow));
    assert_eq!(said, "too slow");
    let (a, _b) = pair();
    assert!(matches!(
        greet(&a, &job(1), &[1; 32], Protection::Plain, within(Duration::from_millis(150))),
        Err(GreetError::TooSlow)
    ));
    assert!(began.elapsed() < LIMIT);
}

/// A server that sends its messages with a pause before each, until the client disconnects.
fn dawdles(pause: Duration, parts: impl IntoIterator<Item = Vec<u8>> + Send + 'static) -> Conn {
    let (a, mut b) = pair();
    thread::spawn(move || {
        for part in parts {
            thread::sleep(pause);
            if b.write_all(&part).is_err() {
                return;
            }
        }
    });
    a
}

#[test]
fn a_server_that_says_something_is_waited_for() {
    let pause = Duration::from_millis(400);
    let busy = || [preamble()[..8].to_vec(), preamble()[8..].to_vec(), vec![PLAIN; 33], [&[BUSY][..], &[0; 4]].concat()];
    let patient = Limits { silence: Duration::from_secs(60), end: Instant::now() + Duration::from_secs(60) };
    assert!(matches!(greet(&dawdles(pause, busy()), &job(1), &[1; 32], Protection::Plain, patient), Err(GreetError::Busy)));
    // But not forever if the server keeps sending, and not if it sends nothing.
    let hasty = Limits { end: Instant::now() + 2 * pause, ..patient };
    let said = greet(&dawdles(pause, busy()), &job(1), &[1; 32], Protection::Plain, hasty);
    assert!(matches!(said, Err(GreetError::TooSlow)), "{said:?}");
    let quiet = Limits { silence: pause / 4, ..patient };
    assert!(matches!(greet(&dawdles(4 * pause, busy()), &job(1), &[1; 32], Protection::Plain, quiet), Err(GreetError::TooSlow)));
}

#[test]
fn what_is_waited_for_is_the_next_thing_and_no_more_than_all() {
    let limits = Limits { silence: Duration::from_secs(1000), end: Instant::now() + Duration::from_secs(4000) };
    let first = limits.next();
    thread::sleep(Duration::from_millis(5));
    assert!(limits.next() > first && limits.next() < limits.end);
    let short = Limits { end: Instant::now() + Duration::from_secs(10), ..limits };
    assert_eq!(short.next(), short.end);
}

#[test]
fn a_recorded_greeting_cannot_be_used_again() {
    // Everything the client sends is recorded and replayed to a second server, whose nonce differs.
    let (a, mut b) = pair();
    let recorder = thread::spawn(move || {
        b.write_all(&[&preamble()[..], &[PLAIN], &[9; 32]].concat()).unwrap();
        let mut said = vec![0; FIRST + 37 + job(7).body().len() + 4 + 32];
        b.read_exact_by(&mut said, Instant::now() + LIMIT).unwrap();
        said
    });
    let _ = greet(&a, &job(7), &[1; 32], Protection::Plain, within(LIMIT));
    let (server, _) = hears(recorder.join().unwrap(), LIMIT);
    assert!(matches!(server, GreetError::WrongToken));
}

#[test]
fn a_refusal_before_the_greeting_and_a_busy_server_are_understood() {
    for why in [GreetError::Refused("this socket serves uid 7 only; you are uid 8".into()), GreetError::Busy] {
        let wanted = why.to_string();
        let (a, b) = pair();
        let there = thread::spawn(move || {
            introduce(&b, Offer::LOCAL).unwrap();
            refuse(&b, &why);
        });
        let said = greet(&a, &job(1), &[1; 32], Protection::Plain, within(LIMIT)).unwrap_err();
        assert_eq!(said.to_string(), wanted);
        drop(a);
        there.join().unwrap();
    }
}

#[test]
fn what_a_server_said_before_it_hung_up_is_heard() {
    for (word, wanted) in [(vec![BUSY, 0, 0, 0, 0], "busy"), (vec![], "closed the connection")] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        // Unread bytes: closing the connection causes a reset, and later writes fail.
        (&client).write_all(&[0; 8]).unwrap();
        server.write_all(&[&preamble()[..], &[PLAIN; 33], &word].concat()).unwrap();
        drop(server);
        let conn = Conn::new(client.into());
        let said = greet(&conn, &job(1), &[1; 32], Protection::Plain, within(LIMIT)).unwrap_err();
        assert!(said.to_string().contains(wanted), "{said}");
    }
}

#[test]
fn impossible_jobs_are_refused() {
    let Opening::Job { gpu, rdma, waits, locality, hello } = job(1) else { unreachable!() };
    let far = Opening::Job { gpu, rdma, waits, locality, hello: JobHello { virtual_device: 32, ..hello.clone() } };
    let many = Opening::Job {
        gpu,
        rdma,
        waits,
        locality,
        hello: JobHello { env: vec![(String::new(), String::new()); VARIABLES + 1], ..hello },
    };
    for bad in [far, many] {
        assert!(matches!(meet(bad, [1; 32], [1; 32]).1, Err(GreetError::Garbage)));
    }
}

#[test]
fn who_sends_back_what_it_has_heard_has_proved_nothing() {
    // A server without the token answers with the client's own proof.
    let (a, mut b) = pair();
    let echo = thread::spawn(move || {
        b.write_all(&[&preamble()[..], &[PLAIN], &[9; 32]].concat()).unwrap();
        let mut said = vec![0; FIRST + 37 + job(7).body().len() + 4 + 32];
        b.read_exact_by(&mut said, Instant::now() + LIMIT).unwrap();
        b.write_all(&[&[0][..], &32u32.to_le_bytes(), &said[said.len() - 32..]].concat()).unwrap();
        b
    });
    let client = greet(&a, &job(7), &[1; 32], Protection::Plain, within(LIMIT));
    assert!(matches!(client, Err(GreetError::WrongToken)), "{client:?}");
    echo.join().unwrap();
    // A client without it has the server's nonce as its own one.
    let (a, mut b) = pair();
    let server =
        thread::spawn(move || receive(&a, LIMIT, Offer::LOCAL, |_, _| Ok([Secret::of_nobody([1; 32])].into())).map(drop));
    let mut heard = vec![0; preamble().len() + 1 + 32];
    b.read_exact_by(&mut heard, Instant::now() + LIMIT).unwrap();
    let (nonce, body) = (&heard[heard.len() - 32..], job(7).body());
    let head = [&preamble()[..], &[PLAIN], &Route::default(), &[1], nonce, &(body.len() as u32).to_le_bytes()].concat();
    b.write_all(&[&head[..], &body, &[0; 4], nonce].concat()).unwrap();
    let server = server.join().unwrap();
    assert!(matches!(server, Err(GreetError::WrongToken)), "{server:?}");
}

/// What a process says that greets for the daemon, and that was taken over: none of it lets in a client that has not proved a secret, and nothing
/// that the daemon has not offered.
#[test]
fn of_what_was_only_said_nothing_is_believed() {
    let key = [1; 32];
    let nonce = [3; 32];
    let offer = Offer { munge: true, ..Offer::LOCAL };
    let opening = Opening::Bulk { name: [4; 32], rdma: false };
    let transcript = |heard: &Heard| {
        let Heard { choice, route, binding, nonce: theirs, role, ref body, .. } = *heard;
        Transcript { offer: offer.bits(), choice, route, binding, nonces: [nonce, theirs], role, body }.digest()
    };
    let genuine = |opening: &Opening| {
        let mut heard = Heard {
            choice: PLAIN,
            route: opening.route(),
            is_certified: false,
            binding: [0; 32],
            nonce: [5; 32],
            role: opening.role(),
            body: opening.body(),
            credential: Vec::new(),
            proof: [0; 32],
        };
        heard.proof = *transcript(&heard).proof(&key, "client").as_bytes();
        heard
    };
    let admitted = |heard: &Heard, nonce: [u8; 32]| {
        let (a, _b) = pair();
        admit(&a, heard, offer, nonce, |_, _| Ok([Secret::of_nobody(key)].into())).map(|greeted| greeted.opening)
    };
    assert_eq!(admitted(&genuine(&opening), nonce).unwrap(), opening);
    // The proof is for the nonce that this daemon has drawn for this connection, and covers all that was said.
    assert!(matches!(admitted(&genuine(&opening), [6; 32]), Err(GreetError::WrongToken)));
    let changes: [(&str, fn(&mut Heard)); 5] = [
        ("nonce", |heard| heard.nonce[31] ^= 1),
        ("body", |heard| heard.body[32] ^= 1),
        ("opening", |heard| {
            (heard.role, heard.body, heard.route) = (Opening::Inspect.role(), Vec::new(), Route::default());
        }),
        ("proof", |heard| heard.proof[0] ^= 1),
        ("no proof", |heard| heard.proof = [0; 32]),
    ];
    for (what, change) in changes {
        let mut heard = genuine(&opening);
        change(&mut heard);
        assert!(matches!(admitted(&heard, nonce), Err(GreetError::WrongToken)), "{what}");
    }
    // Even with a proof of all that: what was not offered, and what a connection without encryption does not have.
    let changes: [(&str, fn(&mut Heard)); 8] = [
        ("encrypted", |heard| heard.choice = TLS),
        ("both", |heard| heard.choice = TLS | PLAIN),
        ("binding", |heard| heard.binding[0] = 1),
        ("certificate", |heard| heard.is_certified = true),
        ("long body", |heard| heard.body = vec![0; BODY + 1]),
        ("role", |heard| heard.role = 99),
        ("credential of a copy", |heard| heard.credential = b"MUNGE:AwQFAAA/:".to_vec()),
        ("long credential", |heard| heard.credential = vec![b'A'; munge::LONGEST + 1]),
    ];
    for (what, change) in changes {
        let mut heard = genuine(&opening);
        change(&mut heard);
        heard.proof = *transcript(&heard).proof(&key, "client").as_bytes();
        assert!(matches!(admitted(&heard, nonce), Err(GreetError::Garbage)), "{what}");
    }
    let mut other = genuine(&opening);
    other.route = [9; 8];
    other.proof = *transcript(&other).proof(&key, "client").as_bytes();
    assert!(matches!(admitted(&other, nonce), Err(GreetError::UnknownTicket)));
    let without = Offer { munge: false, ..offer };
    let mut credential = genuine(&Opening::Inspect);
    credential.credential = b"MUNGE:AwQFAAA/:".to_vec();
    let (a, _b) = pair();
    let said = admit(&a, &credential, without, nonce, |_, _| panic!("no secret is looked for"));
    assert!(matches!(said, Err(GreetError::Garbage)));
}
