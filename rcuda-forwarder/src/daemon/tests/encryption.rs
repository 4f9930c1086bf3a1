//! Tests of connections on which somebody listens, or changes what passes.

use super::*;
use crate::carried::Carried;
use crate::certificate::Certificate;
use crate::handshake;
use std::net::Shutdown;

/// What passes in one direction: whether it goes to the server, how much has passed before, and the bytes.
type Meddle = dyn Fn(bool, usize, &mut Vec<u8>) + Send + Sync;

/// Somebody between clients and a server.
pub(super) fn between(server: SocketAddr, meddle: impl Fn(bool, usize, &mut Vec<u8>) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let meddle: Arc<Meddle> = Arc::new(meddle);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(there) = TcpStream::connect(server) else { return };
            for (from, to, up) in [(&client, &there, true), (&there, &client, false)] {
                let (mut from, mut to, meddle) = (from.try_clone().unwrap(), to.try_clone().unwrap(), meddle.clone());
                to.set_nodelay(true).unwrap();
                thread::spawn(move || {
                    let (mut before, mut bytes) = (0, vec![0; 64 << 10]);
                    while let Ok(n @ 1..) = from.read(&mut bytes) {
                        let mut some = bytes[..n].to_vec();
                        meddle(up, before, &mut some);
                        before += n;
                        if to.write_all(&some).is_err() {
                            break;
                        }
                    }
                    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                });
            }
        }
    });
    address
}

/// Where a server states its offer, and a client its choice: behind magic, protocol and build.
pub(super) const OFFER: usize = 44;
const BOTH: u8 = 3;
const TLS: u8 = 1;
const PLAIN: u8 = 2;
/// More bytes than a greeting has in either direction.
const GREETING_BYTES: usize = 16 << 10;

pub(super) fn endpoint(scheme: &str, at: SocketAddr) -> Endpoint {
    format!("{scheme}{at}/0").parse().unwrap()
}

fn connect(s: &Scene, to: &Endpoint) -> Result<Arc<Link>, LinkError> {
    Link::connect(to, Some(&s.credentials), &hello(), None)
}

pub(super) fn known_servers(s: &Scene) -> String {
    std::fs::read_to_string(&s.credentials.trust.known_servers).unwrap_or_default()
}

/// Whether some bytes are a part of others.
fn has(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|w| w == part)
}

/// Somebody who changes the server's offer, or the client's choice (`up`), to this.
pub(super) fn changed(s: &Scene, up: bool, to: u8) -> SocketAddr {
    between(s.daemon.address.unwrap(), move |toward, before, bytes| {
        if toward == up && (before..before + bytes.len()).contains(&OFFER) {
            bytes[OFFER - before] = to;
        }
    })
}

#[test]
fn both_ends_must_say_that_they_do_without_encryption() {
    let (strict, free) = (Scene::lending(vec![0]), Scene::with(vec![0], |o| o.allow_plain = true));
    let said = connect(&strict, &endpoint("plain://", strict.daemon.address.unwrap())).unwrap_err().to_string();
    assert!(said.contains("encrypted connections only"), "{said}");
    assert!(logged(|l| l.contains("was refused: this server accepts encrypted connections only")));
    let said = connect(&strict, &endpoint("rdma://", strict.daemon.address.unwrap())).unwrap_err().to_string();
    assert!(said.contains("RDMA is not encrypted"), "{said}");
    for (scheme, transport) in [("plain://", Transport::Tcp), ("", Transport::Shm), ("tls://", Transport::Tls)] {
        let link = connect(&free, &endpoint(scheme, free.daemon.address.unwrap())).unwrap();
        assert_eq!(link.transport(), transport);
        put(&link, 0, b"text");
        assert_eq!(get(&link, 0, 4), b"text");
    }
    assert_eq!(Link::connect(&free.unix(0), None, &hello(), None).unwrap().transport(), Transport::Shm);
}

#[test]
fn without_a_device_a_place_over_rdma_is_refused_with_the_reason() {
    let s = Scene::with(vec![0], |o| o.allow_plain = true);
    let said = connect(&s, &endpoint("rdma://", s.daemon.address.unwrap())).unwrap_err().to_string();
    assert!(said.contains("cannot be used: RDMA at the server: "), "{said}");
    // The loopback interface has no such device, if there are any.
    assert!(said.contains("built without RDMA") || said.contains("RDMA devices"), "{said}");
    assert_eq!(connect(&s, &endpoint("tls://", s.daemon.address.unwrap())).unwrap().transport(), Transport::Tls);
}

/// Calls: the place is refused. Data: they travel in another way.
#[test]
fn rdma_beyond_the_limit_of_pinned_memory_is_refused_with_the_reason() {
    let of_worker = WorkerLimits { pinned: 1 << 20, ..WorkerLimits::of_machine() };
    let s = Scene::with(vec![0], |o| (o.allow_plain, o.of_worker) = (true, of_worker));
    let to = endpoint("rdma://", s.daemon.address.unwrap());
    let said = connect(&s, &to).unwrap_err().to_string();
    let why = "RDMA at the server: 2 MiB more would be more pinned memory than the 1 MiB for a job (mrcuda serve --max-pinned)";
    assert!(said.contains(why), "{said}");
    let link = connect(&s, &endpoint("tls://", s.daemon.address.unwrap())).unwrap();
    let ticket = [0x5e; 32];
    link.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
    assert_eq!(bulk_connect(&to, &ticket, 1).unwrap()[0].carried(), Carried::TLS);
    let tried = format!("worker {}: a data connection", pid(&link));
    assert!(logged(|l| l.starts_with(&tried) && l.contains("not carried by RDMA: RDMA at the server: 8 MiB more")));
    let ControlReply::Connected(by) = link.control(&Control::Accept { ticket }).unwrap() else { panic!() };
    assert_eq!(by.to_string(), "tls");
}

#[test]
fn an_offer_or_a_choice_that_was_changed_on_the_way_is_no_downgrade() {
    let s = Scene::with(vec![0], |o| o.allow_plain = true);
    let change = |up: bool, to: u8| changed(&s, up, to);
    for (name, scheme, up, to, wanted) in [
        ("the offer is taken away", "tls://", false, PLAIN, "offers no encryption"),
        ("the offer is another one", "tls://", false, TLS, "wrong token"),
        ("the same, without encryption", "plain://", false, PLAIN, "wrong token"),
        ("the choice is another one", "tls://", true, PLAIN, "does not speak the mrcuda protocol"),
        ("nothing is changed", "tls://", false, BOTH, ""),
    ] {
        let said = connect(&s, &endpoint(scheme, change(up, to))).map_or_else(|e| e.to_string(), |_| String::new());
        assert!(said.contains(wanted) && said.is_empty() == wanted.is_empty(), "{name}: {said}");
    }
    assert_eq!(known_servers(&s).lines().count(), 1, "only the genuine one is known: {}", known_servers(&s));
}

/// An impostor that has a TLS connection with each end, once, and passes on everything that is inside.
pub(super) fn impostor(s: &Scene) -> SocketAddr {
    let server = s.daemon.address.unwrap();
    let impostor = ServerTls::new(&Certificate::load_or_create(&s.directory.join("other.pem")).unwrap(), None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let soon = || Instant::now() + Duration::from_secs(20);
        let client = Conn::new(listener.accept().unwrap().0.into());
        let there = Conn::new(TcpStream::connect(server).unwrap().into());
        // The preambles pass; then it has an encrypted connection with each, and passes on what it reads.
        let pass = |from: &Conn, mut to: &Conn, n: usize| {
            let mut bytes = vec![0; n];
            from.read_exact_by(&mut bytes, soon()).and_then(|()| to.write_all(&bytes)).is_ok()
        };
        assert!(pass(&there, &client, OFFER + 1 + 32) && pass(&client, &there, OFFER + 1 + 8));
        impostor.accept(&client, soon()).unwrap();
        handshake::connect(&there, None, soon).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| while pass(&there, &client, 1) {});
            while pass(&client, &there, 1) {}
        });
    });
    at
}

#[test]
fn nobody_can_be_the_other_end_of_both() {
    let s = Scene::lending(vec![0]);
    let said = connect(&s, &endpoint("tls://", impostor(&s))).unwrap_err().to_string();
    assert!(said.contains("wrong token"), "{said}");
    assert!(logged(|l| l.ends_with("was refused: wrong token")));
    assert_eq!(known_servers(&s), "", "and its certificate is not recorded");
}

#[test]
fn a_changed_bit_or_a_foreign_frame_loses_the_connection_and_changes_nothing() {
    let s = Scene::lending(vec![0]);
    let server = s.daemon.address.unwrap();
    let data = pattern(1 << 20);
    // A call of the protocol, as it would be without encryption.
    let frame = Head { len: 24, id: fake::ECHO, flags: 0, seq: 3, ticket: 9 }.bytes();
    for (name, up, inject) in [("down", false, false), ("up", true, false), ("frame down", false, true), ("frame up", true, true)]
    {
        let done = Arc::new(AtomicBool::new(false));
        let has_struck = done.clone();
        let at = between(server, move |toward, before, bytes| {
            if toward == up && before > 2 * GREETING_BYTES && !done.swap(true, Ordering::SeqCst) {
                if inject {
                    bytes.splice(0..0, frame);
                } else {
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 0x10;
                }
            }
        });
        let link = connect(&s, &endpoint("tls://", at)).unwrap();
        put(&link, 0, &data);
        let mut host = vec![0x55u8; data.len()];
        let landing = Landing { ptr: host.as_mut_ptr(), pitch: 0, width: data.len(), rows: 1, is_registered: false };
        let op = CopyOut { src: 0, pitch: 0, width: data.len() as u64, rows: 1, stream: 1 };
        // SAFETY: `host` outlives the wait.
        let reply = unsafe { link.request_into(id::COPY_OUT, &[&bytes(&op)], landing) }.and_then(crate::link::Reply::wait);
        assert!(has_struck.load(Ordering::SeqCst), "{name}");
        let lost = reply.unwrap_err();
        assert!(up || lost.why.contains("changed or forged") || lost.why.contains("not encrypted"), "{name}: {lost}");
        assert!(link.is_lost() && soon(|| !runs(pid(&link))), "{name}");
        // Whatever has landed is right.
        assert!(host.iter().zip(&data).all(|(got, sent)| *got == 0x55 || got == sent), "{name}");
        if up {
            let worker = format!("worker {}: the connection to the job failed: a record ", pid(&link));
            assert!(logged(|l| l.starts_with(&worker)), "{name}");
        }
    }
    assert_eq!(about(&s.link(0), "gpu"), "0");
}

#[test]
fn a_listener_learns_nothing_and_can_take_no_connection() {
    let (s, t) = (Scene::lending(vec![0]), Scene::lending(vec![0]));
    // From each server, and to it.
    let heard: Arc<Mutex<[Vec<u8>; 4]>> = Arc::default();
    let tap = |at: usize, server| {
        let heard = heard.clone();
        between(server, move |up, _, bytes| lock(&heard)[at + usize::from(up)].extend_from_slice(bytes))
    };
    let (to_source, to_target) = (tap(0, s.daemon.address.unwrap()), tap(2, t.daemon.address.unwrap()));
    let known = JobHello { env: vec![("CUDA_MODULE_LOADING".into(), "EAGER".into())], ..hello() };
    let source = Link::connect(&endpoint("tls://", to_source), Some(&s.credentials), &known, None).unwrap();
    let target = t.link(0);
    let secret = b"a secret of the program";
    put(&source, 0, secret);
    assert_eq!(get(&source, 0, secret.len()), secret);
    let ticket = [0xc3; 32];
    target.control(&Control::Expect { ticket, stripes: 2 }).unwrap();
    // One of two connections: the other one is what the listener tries to take.
    let to = endpoint("tls://", to_target).to_string();
    assert!(source.control(&Control::Connect { to, ticket, stripes: 1 }).is_ok());
    let all = lock(&heard).clone();
    for said in &all {
        for part in [&secret[..], b"CUDA_MODULE_LOADING", &ticket, &greet::ticket_name(&ticket)] {
            assert!(!has(said, part), "it is heard");
        }
    }
    let replayed = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(t.daemon.address.unwrap()).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut answer);
        answer.len()
    };
    assert!(replayed(&all[3]) < GREETING_BYTES);
    assert!(logged(|l| l.contains("was refused: ") && l.contains("TLS: ")));
    assert_eq!(t.daemon.state.tickets.left().iter().map(|(left, _)| *left).collect::<Vec<_>>(), [1]);
}

#[test]
fn another_certificate_than_before_is_refused_in_words() {
    let s = Scene::lending(vec![0]);
    s.link(0).close();
    let server = s.at(0).server();
    let wanted = Certificate::load(&s.directory.join("server.pem")).unwrap().fingerprint();
    assert_eq!(known_servers(&s), format!("{server} {wanted}\n"));
    s.link(0).close();
    let other = Certificate::load_or_create(&s.directory.join("other.pem")).unwrap().fingerprint();
    std::fs::write(&s.credentials.trust.known_servers, format!("{server} {other}\n")).unwrap();
    let said = connect(&s, &s.at(0)).unwrap_err().to_string();
    for part in ["its certificate has changed", &wanted.to_string(), &other.to_string(), &server, "known_servers"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(known_servers(&s).lines().count(), 1);
    // Who has a wrong token records nothing.
    std::fs::remove_file(&s.credentials.trust.known_servers).unwrap();
    let wrong = Credentials { token: Some(Token([7; 32])), ..s.credentials.clone() };
    assert!(Link::connect(&s.at(0), Some(&wrong), &hello(), None).unwrap_err().to_string().contains("wrong token"));
    assert_eq!(known_servers(&s), "");
}

#[test]
fn jobs_show_a_certificate_if_the_server_requires_one_and_other_places_a_ticket() {
    let directory = std::env::temp_dir().join(format!("mrcuda-mutual-{}", std::process::id()));
    let (ca, of_server) = handshake::tests::signed(&directory, "127.0.0.1");
    let (client_ca, of_client) = handshake::tests::signed(&directory, "client");
    let s = Scene::with(vec![0], |o| {
        (o.certificate, o.client_ca, o.allow_plain) = (Some(of_server), Some(client_ca), true);
    });
    let trust = |certificate| Trust { authorities: Some(ca.clone()), certificate, ..s.credentials.trust.clone() };
    let connect = |scheme: &str, certificate| {
        let credentials = Credentials { trust: trust(certificate), ..s.credentials.clone() };
        Link::connect(&endpoint(scheme, s.daemon.address.unwrap()), Some(&credentials), &hello(), None)
    };
    for scheme in ["tls://", "plain://"] {
        let said = connect(scheme, None).unwrap_err().to_string();
        assert!(said.contains("requires a certificate from its clients"), "{said}");
    }
    let link = connect("tls://", Some(of_client)).unwrap();
    assert_eq!(known_servers(&s), "", "an authority knows it");
    let ticket = [0x77; 32];
    link.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
    assert_eq!(bulk_connect(&s.at(0), &ticket, 1).unwrap().len(), 1);
    link.control(&Control::Accept { ticket }).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

/// There is no device here, or this build has none: data connections that want RDMA stay encrypted, and all of them are there.
#[test]
fn data_connections_without_rdma_are_encrypted_ones() {
    for allow_plain in [true, false] {
        let (s, t) = (Scene::new(), Scene::with(vec![0, 1], |o| o.allow_plain = allow_plain));
        let (source, target) = (s.link(0), t.link(1));
        let to = endpoint("rdma://", t.daemon.address.unwrap());
        let ticket = [0x5d; 32];
        target.control(&Control::Expect { ticket, stripes: 3 }).unwrap();
        let opened = bulk_connect(&to, &ticket, 1).unwrap();
        assert_eq!(opened[0].carried(), Carried::TLS);
        // A worker whose server wants encryption does not ask for RDMA, whatever the job says.
        source.control(&Control::Connect { to: to.to_string(), ticket, stripes: 2 }).unwrap();
        let ControlReply::Connected(by) = target.control(&Control::Accept { ticket }).unwrap() else { panic!() };
        assert_eq!(by.to_string(), "tls");
        let tried = format!("worker {}: a data connection", pid(&target));
        assert!(!allow_plain || logged(|l| l.starts_with(&tried) && l.contains("not carried by RDMA: RDMA at the server: ")));
        assert_eq!(lock(&LOG).iter().filter(|l| l.starts_with(&tried)).count(), usize::from(allow_plain));
    }
}

#[test]
fn a_client_that_stops_in_the_handshake_is_too_slow() {
    let s = Scene::lending(vec![0]);
    let mut stream = TcpStream::connect(s.daemon.address.unwrap()).unwrap();
    stream.write_all(&[&greet::preamble()[..], &[TLS], &[0; 8], &[22, 3, 1, 0, 100], &[1; 20]].concat()).unwrap();
    let from = stream.local_addr().unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert!(said.ends_with(b"too slow"));
    assert!(logged(|l| l == format!("a client at {from} was refused: too slow")));
}

#[test]
fn a_client_that_sends_records_without_end_and_proves_nothing_is_turned_away() {
    let s = Scene::lending(vec![0]);
    let stream = TcpStream::connect(s.daemon.address.unwrap()).unwrap();
    let (from, soon) = (stream.local_addr().unwrap(), || Instant::now() + Duration::from_secs(60));
    let conn = Conn::new(stream.into());
    conn.read_exact_by(&mut [0; OFFER + 1 + 32], soon()).unwrap();
    (&conn).write_all(&[&greet::preamble()[..], &[TLS], &[0; 8]].concat()).unwrap();
    handshake::connect(&conn, None, soon).unwrap();
    let session = conn.session().unwrap().unwrap();
    let mut stream = TcpStream::from(conn.socket().unwrap().try_clone_to_owned().unwrap());
    let records = crate::records::tests::without_text(session.write, 1 << 16);
    // The connection ends before all of them have been taken.
    let _ = stream.write_all(&records);
    assert!(logged(|l| l.starts_with(&format!("a client at {from} was refused: ")) && l.contains("without data")));
}
