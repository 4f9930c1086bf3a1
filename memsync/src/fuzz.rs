//! Fuzz targets for the messages of a round.

use crate::frames::{BATCH, BATCH_PAGES};
use crate::frames::{Hello, Seeds, Show, Word, receive_batch, receive_hashes, send_batch, send_compressed, send_hashes};
use crate::region::{Kind, Region};
use crate::transfer::Incoming;
use crate::{SyncError, Verify};
use executor::{PageHash, Shown};
use fuzz::Limit;
use std::io::{self, Cursor, Read};
use std::os::unix::net::UnixStream;

/// Lists grow with the received data, in steps of a mebibyte; a batch takes its bytes twice at most, a mebibyte each.
const LIMIT: Limit = Limit { bytes: 3 << 20, each: 8 };

fn sent(send: impl FnOnce(&mut Cursor<Vec<u8>>) -> Result<(), SyncError>) -> Vec<u8> {
    let mut s = Cursor::new(Vec::new());
    send(&mut s).expect("a vector takes everything");
    s.into_inner()
}

/// What the only connection carries.
fn hashes_sent(hashes: &[PageHash]) -> Vec<u8> {
    let (a, mut b) = UnixStream::pair().expect("sockets");
    send_hashes(&mut [Box::new(a)], hashes).expect("they fit into the socket's buffer");
    let mut bytes = Vec::new();
    b.read_to_end(&mut bytes).expect("the other end is closed");
    bytes
}

/// So many bytes, of which few vary.
fn compressed(bytes: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..bytes).map(|i| (i / 100) as u8).collect();
    zstd::bulk::compress(&bytes, 1).expect("compressed")
}

#[test]
fn frames() {
    let seeds = Seeds::draw().expect("random bytes");
    let regions = vec![
        Region { address: 0x10_0000, bytes: 0x1_0005, kind: Kind::Chunk },
        Region { address: 0x30_0000, bytes: 9, kind: Kind::Global },
        Region { address: 0x40_0000, bytes: 1 << 20, kind: Kind::Heap },
    ];
    let show = |n| Show {
        gpu: [8; 16],
        offer: [9; 32],
        hashes: (n > 0).then_some([7; 32]),
        chunks: vec![Shown { address: 1 << 45, bytes: 2 << 20, number: 7 }; n],
        regions: regions[n..].to_vec(),
    };
    let hello = |sent, seen| Hello {
        sent,
        seen,
        regions: regions.clone(),
        in_view: vec![true, false, false],
        adopted: vec![Shown { address: 1 << 46, bytes: 2 << 20, number: 7 }],
    };
    let hashes: Vec<PageHash> = (0..4).map(|n| [n; 32]).collect();
    let trouble = SyncError::Protocol("too many chunks");
    let all = [
        sent(|s| show(2).send(&seeds, s)),
        sent(|s| show(0).send(&seeds, s)),
        sent(|s| hello(Verify::Hash, Verify::Bytes).send(s)),
        sent(|s| hello(Verify::Skip, Verify::Skip).send(s)),
        hashes_sent(&hashes),
        sent(|s| Word::send(s, None, [7; 32])),
        sent(|s| Word::send(s, Some(&trouble), [7; 32])),
        sent(|s| send_batch(s, &[1, 2, 9], &[5; 100])),
        sent(|s| send_batch(s, &[], &[])),
        sent(|s| send_compressed(s, &[1, 2], 9000, &compressed(9000))),
        // More than it claims, and less.
        sent(|s| send_compressed(s, &[3], 5000, &compressed(900_000))),
        sent(|s| send_compressed(s, &[3], 5000, &compressed(4999))),
    ];
    fuzz::run("frames-of-a-round", all, LIMIT, |input| {
        let read = || Cursor::new(input);
        if let Ok((seeds, show)) = Show::receive(&mut stream(read())) {
            assert!(input.starts_with(&sent(|s| show.send(&seeds, s))));
        }
        if let Ok(hello) = Hello::receive(&mut stream(read())) {
            let again = Hello::receive(&mut Cursor::new(sent(|s| hello.send(s)))).expect("what was sent arrives");
            assert_eq!((again.sent, again.seen), (hello.sent, hello.seen));
            assert_eq!((&again.regions, &again.in_view), (&hello.regions, &hello.in_view));
            let (theirs, seen) = hello.pages();
            let pages: u64 = hello.regions.iter().map(Region::pages).sum();
            assert_eq!((theirs.len() + seen.len()) as u64, pages);
        }
        for pages in [4, 1000] {
            let mut hashes = vec![[0; 32]; pages];
            if receive_hashes(&mut [Box::new(Cursor::new(input.to_vec()))], &mut hashes).is_ok() {
                assert!(input.starts_with(&hashes_sent(&hashes)));
            }
        }
        if let Ok(digest) = Word::receive(&mut stream(read())) {
            assert!(input.starts_with(&sent(|s| Word::send(s, None, digest))));
        }
        let mut batches = stream(read());
        if let Ok(Some(batch)) = receive_batch(&mut batches) {
            assert!((1..=BATCH_PAGES).contains(&batch.numbers.len()) && (1..=BATCH).contains(&batch.bytes));
            assert!((1..=batch.bytes).contains(&batch.carried));
            let (mut incoming, mut bytes) = (Incoming::default(), vec![0; batch.bytes]);
            if incoming.read(&mut batches, &batch, &mut bytes).is_ok() {
                // Whether it is what it claims to be or not, it needs no more memory than this.
                let _ = incoming.expand(&batch, &mut bytes);
            }
        }
    });
}

/// A peer with fixed messages; whatever is sent to it is discarded.
struct Peer<'a>(Cursor<&'a [u8]>);

fn stream(from: Cursor<&[u8]>) -> Peer<'_> {
    Peer(from)
}

impl io::Read for Peer<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to)
    }
}

impl io::Write for Peer<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
