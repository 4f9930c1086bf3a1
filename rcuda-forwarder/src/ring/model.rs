//! A model of the ring in all interleavings (`interleave`): calls arrive complete, once, in one order, and no thread
//! waits forever.

use super::*;
use crate::inbox::Inbox;
use interleave::{Barrier, Body, bound, explore};

/// Bytes of the ring: a page.
const BYTES: usize = 4096;
/// A body of which two frames fill the ring.
const HALF: usize = BYTES / 2 - HEAD;

/// Calls of one producer: bytes of each body.
type Calls = &'static [usize];

/// The consumer's behaviour.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    /// Correct.
    Well,
    /// It releases what it has not read yet: an error that the model must find.
    Early,
}

fn body(producer: usize, n: usize, bytes: usize) -> Vec<u8> {
    vec![(1 + producer * 16 + n) as u8; bytes]
}

/// Checks that the frames are those of the producers, in each one's order.
struct Checked {
    producers: &'static [Calls],
    next: Vec<usize>,
    seq: u64,
}

impl Checked {
    fn new(producers: &'static [Calls]) -> Checked {
        Checked { producers, next: vec![0; producers.len()], seq: 0 }
    }

    fn left(&self) -> usize {
        self.producers.iter().zip(&self.next).map(|(calls, next)| calls.len() - next).sum()
    }

    fn take(&mut self, head: Head, bytes: &[u8]) {
        let producer = usize::from(head.id);
        let n = self.next[producer];
        assert_eq!((head.seq, head.flags), (self.seq, 0), "the order of sending is the total order");
        assert!(bytes == body(producer, n, self.producers[producer][n]), "a frame of something else");
        self.next[producer] += 1;
        self.seq += 1;
    }

    fn take_all(&mut self, mut frames: &[u8]) {
        while let Some((head, rest)) = frames.split_first_chunk() {
            let head = Head::read(head);
            let bytes = head.body().expect("a possible length");
            self.take(head, &rest[..bytes]);
            frames = &rest[filled(bytes)..];
        }
    }
}

fn pushes(ring: &Arc<Ring>, producers: &'static [Calls], ticket: u64) -> Vec<Body> {
    let each = producers.iter().enumerate().map(|(producer, calls)| {
        let ring = ring.clone();
        let body = move || {
            for (n, bytes) in calls.iter().enumerate() {
                ring.push(producer as u16, ticket, &[&body(producer, n, *bytes)]).unwrap();
            }
        };
        Box::new(body) as Body
    });
    each.collect()
}

/// Producers with a consumer of the same process. With a ticket their callers wait for answers.
fn own(producers: &'static [Calls], ticket: u64, takes: Takes, most_preemptions: usize) -> Result<usize, String> {
    explore(most_preemptions, Barrier::Works, || {
        let memory = Arc::new(Memory::small(BYTES, 2));
        let ring = Arc::new(Ring::over(memory, Bodies::Lent(AtomicU32::new(0)), Closed::default()));
        let mut bodies = pushes(&ring, producers, ticket);
        bodies.push(Box::new(move || {
            // SAFETY: the only one of this ring.
            let mut consumer = unsafe { Consumer::new(&ring) };
            let mut checked = Checked::new(producers);
            while checked.left() > 0 {
                if takes == Takes::Early {
                    ring.words().tail.0.store(consumer.cursor.position + (BYTES / 2) as u64, Ordering::SeqCst);
                }
                let taken = consumer.take(|taken| {
                    // Others may run while the frames are read.
                    ring.is_gone();
                    match taken {
                        Taken::Frames(frames) => checked.take_all(frames),
                        Taken::Long(head, parts, _) => checked.take(Head::read(&head), &parts.concat()),
                    }
                    Ok::<(), ()>(())
                });
                assert_eq!(taken, Some(Ok(())));
            }
        }));
        bodies
    })
}

/// Producers with a worker, which reads a byte stream until the connection is closed.
fn apart(producers: &'static [Calls], most_preemptions: usize) -> Result<usize, String> {
    explore(most_preemptions, Barrier::Works, || {
        let (memory, closed) = (Arc::new(Memory::small(BYTES, 2)), Closed::default());
        let ring = Arc::new(Ring::shared(memory.clone(), closed.clone()));
        let mut bodies = pushes(&ring, producers, NO_TICKET);
        bodies.push(Box::new(move || {
            let mut inbox = Inbox::new(super::Calls::new(memory.clone(), closed.clone()));
            let (mut checked, mut long) = (Checked::new(producers), Vec::new());
            while checked.left() > 0 {
                let head = Head::read(&inbox.head().unwrap().expect("more to come"));
                let bytes = head.body().expect("a possible length");
                inbox.with(filled(bytes), &mut long, |b| checked.take(head, &b[..bytes])).unwrap();
            }
        }));
        bodies
    })
}

#[test]
fn in_no_order_is_a_call_lost_or_anybody_held_up() {
    for (ticket, one, two) in [(NO_TICKET, 3, 2), (7, bound(2, 3), bound(1, 2))] {
        assert!(own(&[&[8, 0]], ticket, Takes::Well, one).unwrap() > 100);
        assert!(own(&[&[8], &[16]], ticket, Takes::Well, two).unwrap() > bound(500, 1000));
    }
    assert!(apart(&[&[8], &[16]], 2).unwrap() > 1000);
}

#[test]
fn in_no_order_does_a_full_ring_hold_up_a_producer() {
    assert!(own(&[&[HALF, HALF, HALF]], NO_TICKET, Takes::Well, 2).unwrap() > 200);
    assert!(own(&[&[HALF, HALF], &[HALF]], NO_TICKET, Takes::Well, 1).unwrap() > 200);
    assert!(apart(&[&[HALF, HALF], &[HALF]], 1).unwrap() > 200);
}

#[test]
fn in_no_order_does_a_lent_body_hold_up_its_caller() {
    assert!(own(&[&[INLINE + 1]], NO_TICKET, Takes::Well, 3).unwrap() > 100);
    assert!(own(&[&[INLINE + 1], &[8]], NO_TICKET, Takes::Well, 1).unwrap() > 100);
}

#[test]
fn the_model_of_the_ring_finds_what_is_given_back_too_early() {
    let found = own(&[&[HALF, HALF], &[HALF]], NO_TICKET, Takes::Early, 2).unwrap_err();
    assert!(found.contains("a frame of something else") || found.contains("total order"), "{found}");
}

/// When the consumer is dropped, producers stop waiting, whatever they wait for.
#[test]
fn in_no_order_does_anybody_wait_for_a_consumer_that_has_gone() {
    for sizes in [&[HALF, HALF, HALF][..], &[INLINE + 1]] {
        let orders = explore(3, Barrier::Works, || {
            let memory = Arc::new(Memory::small(BYTES, 2));
            let ring = Arc::new(Ring::over(memory, Bodies::Lent(AtomicU32::new(0)), Closed::default()));
            let theirs = ring.clone();
            let push = move || {
                let pushed: Vec<_> = sizes.iter().map(|n| theirs.push(0, NO_TICKET, &[&vec![1; *n]])).collect();
                assert_eq!(pushed.last(), Some(&Err(PushError::Gone)));
            };
            // SAFETY: the only one of this ring.
            let goes = move || drop(unsafe { Consumer::new(&ring) });
            vec![Box::new(push) as Body, Box::new(goes)]
        });
        assert!(orders.unwrap() > 10);
    }
}
