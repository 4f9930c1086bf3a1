use super::*;
use std::collections::VecDeque;

fn sessions() -> (Session, Session) {
    let (a, b) = (Traffic { secret: [1; 32], number: 0 }, Traffic { secret: [2; 32], number: 0 });
    (Session { write: a.clone(), read: b.clone() }, Session { write: b, read: a })
}

/// Both ends of a connection.
fn ends() -> (Records, Records) {
    let (a, b) = sessions();
    (Records::new(a).unwrap(), Records::new(b).unwrap())
}

fn sealed(by: &Records, pieces: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    by.write(pieces, |bytes| {
        out.extend_from_slice(bytes);
        Ok(())
    })
    .unwrap();
    out
}

/// Gives the bytes, at most `step` at a time, and then nothing.
fn source(bytes: &[u8], step: usize) -> impl FnMut(&mut [u8]) -> io::Result<usize> {
    let mut left: VecDeque<u8> = bytes.iter().copied().collect();
    move |to| {
        let n = to.len().min(step).min(left.len());
        left.drain(..n).zip(to).for_each(|(b, to)| *to = b);
        Ok(n)
    }
}

/// Records without data, as the holder of these keys would send them.
pub(crate) fn without_text(traffic: Traffic, count: usize) -> Vec<u8> {
    let key = Key::new(traffic).unwrap();
    let mut sealer = Sealer { key, out: Vec::new(), start: 0, renewal: RENEWAL, broken: false };
    for _ in 0..count {
        sealer.begin();
        sealer.close(DATA).unwrap();
    }
    sealer.out
}

/// Everything that is read, and why it ends.
fn opened(by: &Records, bytes: &[u8], step: usize) -> (Vec<u8>, io::Result<()>) {
    let (mut all, mut buffer, mut from) = (Vec::new(), [0; 1000], source(bytes, step));
    loop {
        match by.read(&mut buffer, &mut from) {
            Ok(0) => return (all, Ok(())),
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(e) => return (all, Err(e)),
        }
    }
}

fn kind(end: &io::Result<()>) -> Option<io::ErrorKind> {
    end.as_ref().err().map(io::Error::kind)
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn bytes_of_all_sizes_arrive_in_order_however_they_come() {
    for step in [1, 7, 5000, usize::MAX] {
        let (a, b) = ends();
        let sizes = if step < 100 { &[1, 20, 3000][..] } else { &[1, TEXT - 1, TEXT, TEXT + 1, 40, 700_000][..] };
        for &size in sizes {
            let data = pattern(size);
            let pieces = [&data[..size / 3], &[], &data[size / 3..]];
            let (got, end) = opened(&b, &sealed(&a, &pieces), step);
            assert!(got == data, "{step} {size}");
            assert_eq!(kind(&end), Some(io::ErrorKind::UnexpectedEof), "the source ends without a word");
        }
        assert!(sealed(&a, &[&[]]).is_empty());
    }
}

#[test]
fn a_read_takes_all_that_is_there_and_waits_for_no_more() {
    let (a, b) = ends();
    let bytes = [sealed(&a, &[b"one"]), sealed(&a, &[b"two"])].concat();
    let mut calls = 0;
    let mut from = source(&bytes, usize::MAX);
    let mut buffer = [0; 100];
    let n = b
        .read(&mut buffer, |to| {
            calls += 1;
            from(to)
        })
        .unwrap();
    assert_eq!((&buffer[..n], calls, b.is_ready()), (&b"onetwo"[..], 1, false));
    let bytes = sealed(&a, &[b"three"]);
    let would_block = |_: &mut [u8]| Err(io::ErrorKind::WouldBlock.into());
    let mut half = source(&bytes[..10], usize::MAX);
    let mut first = true;
    let e = b.read(&mut buffer, |to| if std::mem::take(&mut first) { half(to) } else { would_block(to) }).unwrap_err();
    assert_eq!((e.kind(), b.is_ready()), (io::ErrorKind::WouldBlock, false), "half a record is nothing to read");
    assert_eq!(b.read(&mut buffer[..2], source(&bytes[10..], usize::MAX)).unwrap(), 2);
    assert!(b.is_ready() && b.session().is_none(), "the rest needs no socket");
    assert_eq!(b.read(&mut buffer, would_block).unwrap(), 3);
    assert!(!b.is_ready() && b.session().is_some());
}

#[test]
fn a_reader_is_not_kept_by_records_without_data() {
    let (a, b) = (sessions().0.write, ends().1);
    let mut records = without_text(a.clone(), WITHOUT_TEXT as usize);
    let mut sealer = Sealer { key: Key::new(a).unwrap(), out: Vec::new(), start: 0, renewal: RENEWAL, broken: false };
    sealer.key.traffic.number = u64::from(WITHOUT_TEXT);
    for text in [&b"some"[..], b"more"] {
        sealer.begin();
        sealer.out.extend_from_slice(text);
        sealer.close(DATA).unwrap();
    }
    records.extend(sealer.out);
    assert_eq!(opened(&b, &records, usize::MAX).0, b"somemore", "some of them do no harm");
    let b = ends().1;
    // Each request for bytes is answered at once, as by a peer that is faster than this end.
    let endless = without_text(sessions().0.write, 100_000);
    let (mut taken, mut from) = (0, source(&endless, 4096));
    let read = b.read(&mut [0; 10], |to| from(to).inspect(|n| taken += n));
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert!(taken < 10_000, "{taken} bytes were read");
}

#[test]
fn no_changed_byte_is_ever_read() {
    let bytes = {
        let (a, _) = ends();
        [sealed(&a, &[b"first"]), sealed(&a, &[b"second"]), sealed(&a, &[b"third"])].concat()
    };
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            let (_, b) = ends();
            let (got, end) = opened(&b, &bad, usize::MAX);
            assert!(b"firstsecondthird".starts_with(&got) && got.len() < 16, "{at} {bit}: {got:?}");
            // A longer record than was sent is never complete.
            let wanted = [Some(io::ErrorKind::InvalidData), Some(io::ErrorKind::UnexpectedEof)];
            assert!(wanted.contains(&kind(&end)), "{at} {bit}: {end:?}");
            if kind(&end) == wanted[0] {
                assert_eq!(kind(&opened(&b, &bytes, usize::MAX).1), wanted[0], "it is over for good");
                assert!(b.is_ready(), "whoever waits for it is told");
            }
        }
    }
}

#[test]
fn records_are_read_once_and_in_their_order() {
    let (a, _) = ends();
    let [one, two] = [b"one", b"two"].map(|text| sealed(&a, &[text]));
    let (c, other) = ends();
    let injected = sealed(&other, &[b"one"]);
    let plain = [&[DATA, 3, 3, 0, 40][..], &[7; 40]].concat();
    drop(c);
    for (name, bytes, wanted) in [
        ("repeated", [&one[..], &one].concat(), &b"one"[..]),
        ("out of order", [&two[..], &one].concat(), b""),
        ("one is missing", [&two[..]].concat(), b""),
        ("of the other direction", [&one[..], &injected].concat(), b"one"),
        ("not sealed", [&one[..], &plain].concat(), b"one"),
        ("a handshake", [&one[..], &[HANDSHAKE, 3, 3, 0, 1, 0]].concat(), b"one"),
        ("an answer of the greeting", [&one[..], &[2, 0, 0, 0, 0]].concat(), b"one"),
        ("too short", [&one[..], &[DATA, 3, 3, 0, 16], &[0; 16]].concat(), b"one"),
        ("too long", [&one[..], &[DATA, 3, 3, 0xff, 0xff]].concat(), b"one"),
    ] {
        let (_, b) = ends();
        let (got, end) = opened(&b, &bytes, usize::MAX);
        assert_eq!((&got[..], kind(&end)), (wanted, Some(io::ErrorKind::InvalidData)), "{name}");
    }
}

/// Seals one record with this content.
fn record(by: &Records, text: &[u8], content: u8) -> Vec<u8> {
    let mut sealer = lock(&by.sealer);
    sealer.begin();
    sealer.out.extend_from_slice(text);
    sealer.close(content).unwrap();
    std::mem::take(&mut sealer.out)
}

#[test]
fn what_a_peer_with_the_keys_may_send() {
    for (name, text, content, wanted) in [
        ("nothing", &[][..], DATA, None),
        ("padding", b"text\x17\0\0", 0, None),
        ("only padding", &[0; 10], 0, Some("no type")),
        ("too much", &[1; TEXT + 1], DATA, Some("too long")),
        ("another alert", &[2, 20], ALERT, Some("reports an error")),
        ("half an alert", &[1], ALERT, Some("reports an error")),
        ("a ticket", &[4, 0, 0, 1, 0], HANDSHAKE, Some("unexpected type")),
        ("half a key", &[24, 0, 0, 1], HANDSHAKE, Some("unexpected type")),
        ("no content of TLS", b"text", 99, Some("unexpected type")),
    ] {
        let (a, b) = ends();
        let bytes = [record(&a, text, content), sealed(&a, &[b"next"])].concat();
        let (got, end) = opened(&b, &bytes, usize::MAX);
        match wanted {
            None => assert!(got.ends_with(b"next") && kind(&end) == Some(io::ErrorKind::UnexpectedEof), "{name}"),
            Some(why) => assert!(got.is_empty() && end.unwrap_err().to_string().contains(why), "{name}"),
        }
    }
}

#[test]
fn an_end_is_orderly_or_not() {
    let (a, b) = ends();
    let mut bytes = sealed(&a, &[b"text"]);
    a.close(|last| bytes.extend_from_slice(last));
    a.close(|_| panic!("once"));
    assert!(a.write(&[b"more"], |_| panic!("after the end")).is_err());
    let (got, end) = opened(&b, &bytes, usize::MAX);
    assert!(got == b"text" && end.is_ok() && b.is_ready());
    assert_eq!(b.read(&mut [0; 8], |_| panic!("after the end")).unwrap(), 0);
}

#[test]
fn nothing_follows_what_may_not_have_been_sent() {
    let (a, _) = ends();
    assert!(a.write(&[b"lost"], |_| Err(io::ErrorKind::WouldBlock.into())).is_err());
    assert_eq!(a.write(&[b"next"], |_| panic!("sent")).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    a.close(|_| panic!("sent"));
}

#[test]
fn keys_are_replaced_and_another_process_goes_on() {
    let (mut a, mut b) = ends();
    let mut secrets = Vec::new();
    for n in 0..50u8 {
        for end in [&mut a, &mut b] {
            // A connection that another process has taken over.
            *end = Records::new(end.session().unwrap()).unwrap();
            lock(&end.sealer).renewal = 3;
        }
        let data = [n; 20];
        assert_eq!(opened(&b, &sealed(&a, &[&data]), usize::MAX).0, data);
        assert_eq!(opened(&a, &sealed(&b, &[&data, &data]), usize::MAX).0, data.repeat(2));
        let write = a.session().unwrap().write;
        assert!(write.number <= 3);
        secrets.push(write.secret);
    }
    secrets.dedup();
    assert_eq!(secrets.len(), 50 / 3 + 1, "each key seals three records");
    assert_eq!(
        format!("{:?}", a.session().unwrap().read),
        format!("Traffic {{ number: {}, .. }}", a.session().unwrap().read.number)
    );
}
