//! Opening over a fake network whose links all have the same delay: no message arrives before each connection that is being opened has sent
//! its own. So the round trips are counted, whatever the machine does meanwhile.

use super::*;
use crate::endpoint::Scheme;
use crate::greet::Offer;
use crate::secret::Secret;
use fake_network::{Faults, Network, to_its_end};
use std::io::{Read, Write};
use std::sync::Barrier;
use std::thread;

const TICKET: [u8; 32] = [7; 32];
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(100);
/// Round trips that a connection without encryption takes: the connection, which brings the server's preamble, and the proof, which brings
/// the server's answer and that of the worker.
const TRIPS: u32 = 2;

/// What a server does with a connection.
type Serve = dyn Fn(&Place, &Conn, u32) -> Result<(), GreetError> + Send + Sync;

/// A place that expects connections, behind a network.
struct Place {
    network: Mutex<Network>,
    serve: Box<Serve>,
    /// Connections that were begun, those of them that have no answer yet, and the most of these at any time.
    begun: AtomicU32,
    opening: AtomicU32,
    most: AtomicU32,
    /// Numbers given out.
    numbers: AtomicU32,
}

impl Place {
    fn new(seed: u64, serve: impl Fn(&Place, &Conn, u32) -> Result<(), GreetError> + Send + Sync + 'static) -> Arc<Place> {
        let [begun, opening, most, numbers] = [const { AtomicU32::new(0) }; 4];
        Arc::new(Place { network: Mutex::new(Network::new(seed)), serve: Box::new(serve), begun, opening, most, numbers })
    }

    /// Connects to it.
    fn connect(self: &Arc<Place>) -> Conn {
        let mut network = lock(&self.network);
        // Both ends of a greeting write before they read, which fits into the buffers of any socket.
        let faults = Faults { room: Faults::NONE.room, ..Faults::of(network.random()) };
        let (ours, theirs) = network.connect_with(faults);
        drop(network);
        let (ours, theirs) = (Conn::over(ours), Conn::over(theirs));
        let begun = self.begun.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(self.opening.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let place = self.clone();
        thread::spawn(move || {
            if let Err(why) = (place.serve)(&place, &theirs, begun) {
                place.opening.fetch_sub(1, Ordering::SeqCst);
                greet::refuse(&theirs, &why);
            }
            // Until the other end is closed.
            let _ = (&theirs).read(&mut [0]);
        });
        ours
    }

    /// The worker's answer, and as a first byte of data the number that it has given the connection.
    fn admit(&self, mut conn: &Conn) -> Result<(), GreetError> {
        let number = self.numbers.fetch_add(1, Ordering::SeqCst);
        self.opening.fetch_sub(1, Ordering::SeqCst);
        greet::answer(conn, Ok(&number.to_le_bytes()))?;
        Ok(conn.write_all(&[number as u8])?)
    }

    fn open(self: &Arc<Place>, scheme: &str, stripes: u32, log: &(dyn Fn(&str) + Sync)) -> Result<Vec<Conn>, LinkError> {
        let to = format!("{scheme}a:1").parse().unwrap();
        let connect = |_| Ok(self.connect());
        connect_all(&to, &TICKET, stripes, &Terms { connect: &connect, log, budget: &Budget::new(u64::MAX) })
    }
}

fn greet_plainly(conn: &Conn, before_answer: impl FnOnce()) -> Result<bool, GreetError> {
    let heard = greet::receive(conn, LONG, Offer::LOCAL, |_, _| {
        before_answer();
        Ok([Secret::of_nobody(greet::ticket_key(&TICKET))].into())
    });
    let Opening::Bulk { name, rdma } = heard?.opening else { panic!("another opening") };
    assert_eq!(name, greet::ticket_name(&TICKET));
    Ok(rdma)
}

/// The connections are in the order of their numbers.
fn are_in_order(opened: &[Conn]) -> bool {
    let numbers = opened.iter().map(|conn| {
        let mut number = [0];
        conn.read_exact_by(&mut number, Instant::now() + LONG).unwrap();
        u32::from(number[0])
    });
    numbers.eq(0..opened.len() as u32)
}

/// Opens so many connections over links on which messages of `together` connections arrive together. Returns the round trips.
fn trips(seed: u64, stripes: u32, together: u32) -> u32 {
    let trips = Arc::new(AtomicU32::new(0));
    let counted = trips.clone();
    let [connected, proved] = [(); 2].map(|()| Barrier::new(together as usize));
    let arrive = move |all: &Barrier| {
        if all.wait().is_leader() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    };
    let place = Place::new(seed, move |place, conn, _| {
        arrive(&connected);
        assert!(!greet_plainly(conn, || arrive(&proved))?);
        place.admit(conn)
    });
    let opened = place.open("plain://", stripes, &|_| ()).unwrap();
    assert!(opened.len() as u32 == stripes && are_in_order(&opened));
    assert!(place.most.load(Ordering::SeqCst) <= AT_ONCE);
    trips.load(Ordering::SeqCst)
}

#[test]
fn connections_that_are_opened_at_once_take_the_round_trips_of_one() {
    for seed in 0..4 {
        to_its_end(seed, move || {
            assert_eq!([1, 2, AT_ONCE].map(|stripes| trips(seed, stripes, stripes)), [TRIPS; 3]);
            assert_eq!(trips(seed, 2 * AT_ONCE, AT_ONCE), 2 * TRIPS);
        });
    }
}

#[test]
fn without_threads_one_after_the_other_is_opened() {
    to_its_end(0, || {
        faults::refuse_thread(Some(0));
        assert_eq!(trips(0, 5, 1), 5 * TRIPS);
        faults::refuse_thread(None);
    });
}

#[test]
fn only_the_first_connection_learns_that_there_is_no_rdma() {
    to_its_end(0, || {
        let place = Place::new(0, |place, conn, begun| {
            let rdma = greet_plainly(conn, || ())?;
            assert_eq!(rdma, begun == 0);
            if rdma {
                assert_eq!(place.begun.load(Ordering::SeqCst), 1, "it is alone");
                setup::decline(conn, "none here")?;
            }
            place.admit(conn)
        });
        let said = AtomicU32::new(0);
        let log = |why: &str| {
            assert!(why.ends_with("none here"), "{why}");
            said.fetch_add(1, Ordering::SeqCst);
        };
        // A connection to a place with RDMA is encrypted, unless the place is reached by a Unix socket.
        let to = Endpoint { scheme: Scheme::Rdma, .."unix:/a".parse().unwrap() };
        let connect = |_| Ok(place.connect());
        let opened =
            connect_all(&to, &TICKET, 5, &Terms { connect: &connect, log: &log, budget: &Budget::new(u64::MAX) }).unwrap();
        assert!(opened.len() == 5 && are_in_order(&opened));
        assert_eq!(said.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn after_a_failure_no_more_are_opened() {
    to_its_end(0, || {
        let place = Place::new(0, |_, conn, _| {
            greet::introduce(conn, Offer::LOCAL)?;
            Err(GreetError::UnknownTicket)
        });
        assert!(matches!(place.open("plain://", 64, &|_| ()), Err(LinkError::Greeting { .. })));
        assert!((1..=AT_ONCE).contains(&place.begun.load(Ordering::SeqCst)));
        // One failure is that of all of them.
        let place = Place::new(0, |place, conn, begun| {
            greet_plainly(conn, || ())?;
            if begun == 11 { Err(GreetError::Refused("no more".into())) } else { place.admit(conn) }
        });
        let why = place.open("plain://", 12, &|_| ()).unwrap_err().to_string();
        assert!(why.ends_with("no more"), "{why}");
    });
}

#[test]
fn numbers_that_are_no_order_are_refused() {
    to_its_end(0, || {
        for lie in [|_| 0, |number: u32| number * 2, |_| u32::MAX] {
            let place = Place::new(0, move |place, conn, _| {
                greet_plainly(conn, || ())?;
                let number = place.numbers.fetch_add(1, Ordering::SeqCst);
                Ok(greet::answer(conn, Ok(&lie(number).to_le_bytes()))?)
            });
            assert!(matches!(place.open("plain://", 3, &|_| ()), Err(LinkError::Greeting { .. })));
        }
    });
}

#[test]
fn a_busy_server_gets_one_at_a_time() {
    to_its_end(0, || {
        let all = Barrier::new(AT_ONCE as usize);
        let [again, most] = [const { AtomicU32::new(0) }; 2].map(Arc::new);
        let seen = most.clone();
        let place = Place::new(0, move |place, conn, begun| {
            if begun < AT_ONCE {
                all.wait();
                greet::introduce(conn, Offer::LOCAL)?;
                return Err(GreetError::Busy);
            }
            most.fetch_max(again.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let is_over = || {
                again.fetch_sub(1, Ordering::SeqCst);
            };
            greet_plainly(conn, is_over)?;
            place.admit(conn)
        });
        let opened = place.open("plain://", AT_ONCE, &|_| ()).unwrap();
        assert!(opened.len() as u32 == AT_ONCE && are_in_order(&opened));
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    });
}
