//! Targets that pass the greeting, answer as they should for a while, and then with nonsense: the move fails, and the job stays where it was.

use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, wait_for_step};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tests::random::Random;
use tests::{Scene, Server};

/// What a server says in place of what it should.
#[derive(Debug, Clone, Copy)]
enum Nonsense {
    Byte(u8),
    Random(u64),
}

impl Nonsense {
    fn fill(self, bytes: &mut [u8]) {
        match self {
            Nonsense::Byte(byte) => bytes.fill(byte),
            Nonsense::Random(seed) => {
                let mut random = Random::new(seed);
                bytes.fill_with(|| random.below(256) as u8);
            }
        }
    }
}

/// A server that answers in the place of another one, without encryption: what it says first is the other one's.
struct Liar {
    address: SocketAddr,
    /// The most that it has said over one connection.
    said: Arc<AtomicUsize>,
}

impl Liar {
    /// It is honest for so many bytes of each connection.
    fn start(server: SocketAddr, honest: usize, then: Nonsense) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let liar = Liar { address: listener.local_addr().unwrap(), said: Arc::default() };
        let said = liar.said.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(there) = TcpStream::connect(server) else { return };
                for (from, to, is_answer) in [(&client, &there, false), (&there, &client, true)] {
                    let (mut from, mut to, said) = (from.try_clone().unwrap(), to.try_clone().unwrap(), said.clone());
                    std::thread::spawn(move || {
                        let (mut before, mut bytes) = (0, vec![0; 64 << 10]);
                        while let Ok(n @ 1..) = from.read(&mut bytes) {
                            if is_answer {
                                then.fill(&mut bytes[honest.saturating_sub(before).min(n)..n]);
                            }
                            before += n;
                            if is_answer {
                                said.fetch_max(before, Ordering::Relaxed);
                            }
                            if to.write_all(&bytes[..n]).is_err() {
                                break;
                            }
                        }
                        // One of them may have ended.
                        let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        liar
    }

    fn place(&self) -> String {
        format!("plain://{}/0", self.address)
    }
}

#[test]
fn a_job_stays_where_it_was_whatever_a_target_answers() {
    let scene = Scene::new("liar");
    let native = native_orbit(&scene, &LONG);
    let home = Server::start(&scene, "one");
    let server = Server::start_with(&scene, "two", &["--allow-plain"], &[]);
    let mut job = remote_orbit(&scene, "job", &home.place(0), &LONG, &[]);
    // How much is said in a move that succeeds.
    let honest = Liar::start(server.address, usize::MAX, Nonsense::Byte(0));
    for to in [honest.place(), home.place(0)] {
        let moved = job.migrate(&to).unwrap();
        assert!(moved.ok(), "{to}: {}", moved.reason());
    }
    let most = honest.said.load(Ordering::Relaxed);
    assert!(most > 2000, "{most} bytes");
    // In the greeting, in the description of the GPU, among answers.
    for at in [50, 120, 300, 900, most / 8, most / 4] {
        for then in [Nonsense::Byte(0xff), Nonsense::Byte(0), Nonsense::Random(at as u64)] {
            let liar = Liar::start(server.address, at, then);
            let failed =
                job.migrate_with(&liar.place(), &["--deadline", "40s"]).unwrap_or_else(|e| panic!("{at}, {then:?}: {e}"));
            assert!(!failed.ok() && !failed.reason().is_empty(), "{at}, {then:?}: it has moved");
            assert!(!failed.reason().contains(char::is_control), "{at}, {then:?}: {}", failed.reason());
            assert!(job.runs(), "{at}, {then:?}: {}", job.stderr());
        }
    }
    wait_for_step(&mut job, 20);
    assert!(job.status().is_some_and(|status| status["devices"][0]["place"] == home.place(0)), "{:?}", job.status());
    // The server itself has come to no harm, and neither has what the job keeps for a move.
    let moved = job.migrate(&server.place(0)).unwrap();
    assert!(moved.ok(), "{}", moved.reason());
    assert_identical(&job.wait(LIMIT), &native);
}
