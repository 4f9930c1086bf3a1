//! Large copies over connections of their own.

use super::*;
use crate::link::BulkMemory;
use executor::staging::AREAS;
use std::sync::atomic::{AtomicBool, AtomicUsize};

const CONNECTIONS: u32 = 3;
const STREAM: u64 = 1;

fn memory(host: &mut [u8], device: u64, stream: u64, to_device: bool) -> BulkMemory {
    let (bytes, host) = (host.len() as u64, host.as_mut_ptr());
    BulkMemory { host, device, bytes, stream, to_device, late: false, is_registered: false, before_sent: None }
}

fn open(link: &Link) {
    for to_device in [true, false] {
        assert!(link.has_bulk(to_device, || CONNECTIONS));
    }
}

/// Makes a copy and waits for it.
fn copy(link: &Link, memory: &BulkMemory) -> Result<code::Code, crate::link::Lost> {
    loop {
        // SAFETY: the caller's memory lives longer than this call.
        let Some((reply, copy)) = unsafe { link.request_bulk(memory) }? else {
            thread::yield_now();
            continue;
        };
        let rc = reply.wait().map(|(rc, _)| rc);
        assert!(!copy.finish());
        return rc;
    }
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// Four bytes at a time: one at a time would take most of the time of these tests.
fn random_bytes(state: &mut u64, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    bytes.chunks_mut(4).for_each(|to| to.copy_from_slice(&(random(state, 1 << 32) as u32).to_le_bytes()[..to.len()]));
    bytes
}

#[test]
fn threads_and_streams_copy_bytes_at_any_offset() {
    let s = Scene::new();
    copy_at_any_offset(s.link(0));
}

/// The same through memory that both processes map.
#[test]
fn threads_and_streams_copy_bytes_through_shared_memory() {
    let s = Scene::new();
    copy_at_any_offset(over_unix(&s));
}

/// A link that shares memory with its worker.
fn over_unix(s: &Scene) -> Arc<Link> {
    Link::connect(&s.unix(0), None, &hello(), None).unwrap()
}

fn copy_at_any_offset(link: Arc<Link>) {
    open(&link);
    thread::scope(|scope| {
        for number in 0..6u64 {
            let link = &link;
            scope.spawn(move || {
                // Some threads share a stream.
                let (room, stream, mut state) = (4u64 << 20, STREAM + number % 4, number);
                for _ in 0..12 {
                    let bytes = 1 + random(&mut state, room - 64) as usize;
                    let (at, skip) = (number * room + random(&mut state, 64), random(&mut state, 64) as usize);
                    let mut out = random_bytes(&mut state, skip + bytes);
                    let mut back = vec![0u8; skip + bytes + 8];
                    assert_eq!(copy(link, &memory(&mut out[skip..], at, stream, true)).unwrap(), code::SUCCESS);
                    assert_eq!(copy(link, &memory(&mut back[skip..skip + bytes], at, stream, false)).unwrap(), code::SUCCESS);
                    assert!(back[skip..skip + bytes] == out[skip..], "{bytes} bytes at {at}");
                    assert!(back[..skip].iter().chain(&back[skip + bytes..]).all(|b| *b == 0), "memory beside it has changed");
                }
            });
        }
    });
    assert_eq!(link.outstanding(), 0);
}

#[test]
fn calls_do_not_wait_behind_a_large_copy() {
    let s = Scene::new();
    let link = s.link(0);
    open(&link);
    let mut large = pattern(8 << 20);
    let read = Arc::new(AtomicUsize::new(0));
    let (going, goes) = (Arc::new(AtomicBool::new(false)), read.clone());
    let may_go = going.clone();
    let mut copy_in = memory(&mut large, 0, STREAM, true);
    // The copy stops at its first bytes until it may go on.
    copy_in.before_sent = Some(Arc::new(move |range| {
        goes.fetch_add((range.end - range.start) as usize, Ordering::SeqCst);
        while !may_go.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }));
    let answered = Arc::new(AtomicBool::new(false));
    let ended = answered.clone();
    // SAFETY: the memory lives until the copy is over, below.
    let copy = unsafe { link.send_bulk(&copy_in, move |rc| ended.store(rc == Ok((code::SUCCESS, false)), Ordering::SeqCst)) };
    let copy = copy.unwrap().unwrap();
    assert!(soon(|| read.load(Ordering::SeqCst) > 0));
    let small = pattern(64 << 10);
    for _ in 0..20 {
        put(&link, 16 << 20, &small);
        assert!(get(&link, 16 << 20, small.len()) == small);
    }
    assert!(!answered.load(Ordering::SeqCst) && !copy.over().load(Ordering::SeqCst));
    going.store(true, Ordering::SeqCst);
    copy.wait_sent();
    assert!(soon(|| copy.over().load(Ordering::SeqCst)) && answered.load(Ordering::SeqCst));
    assert_eq!(read.load(Ordering::SeqCst), large.len(), "each byte is read once");
    assert!(get(&link, 0, large.len()) == large);
}

/// The driver waits for bytes of a copy, which name memory that the worker must get before them.
#[test]
fn memory_that_bytes_name_is_given_while_a_call_waits_for_them() {
    let s = Scene::new();
    let link = Arc::new(s.link(0));
    open(&link);
    for late in [false, true] {
        let mut bytes = pattern(200_000);
        let mut copy_in = memory(&mut bytes, 0, STREAM, true);
        let (to, waits) = (link.clone(), Arc::new(AtomicBool::new(false)));
        let is_sent = waits.clone();
        copy_in.late = late;
        copy_in.before_sent = Some(Arc::new(move |_| {
            assert!(soon(|| is_sent.load(Ordering::SeqCst)));
            let given = to.request(id::HOST_PIN, &[&[0; 48]]).unwrap().wait_for(Duration::from_secs(20));
            assert_eq!(given.expect("the request waits for ever").unwrap().0, code::SUCCESS);
        }));
        // SAFETY: the memory lives until the copy is over, below.
        let copy = unsafe { link.send_bulk(&copy_in, |rc| assert_eq!(rc, Ok((code::SUCCESS, false)))) }.unwrap().unwrap();
        let after = link.request(fake::WAIT_FOR_BYTES, &[]).unwrap();
        waits.store(true, Ordering::SeqCst);
        assert_eq!(after.wait_for(Duration::from_secs(20)).expect("the call waits for ever").unwrap().0, code::SUCCESS);
        assert!(soon(|| copy.over().load(Ordering::SeqCst)));
        assert!(get(&link, 0, bytes.len()) == bytes);
    }
}

#[test]
fn late_copies_are_read_when_the_stream_is_there() {
    let s = Scene::new();
    let link = s.link(0);
    open(&link);
    for late in [true, false] {
        kernel(&link, STREAM, 200_000);
        let began = Instant::now();
        let mut bytes = pattern(40_000);
        let first = Arc::new(Mutex::new(None));
        let seen = first.clone();
        let mut copy_in = memory(&mut bytes, 0, STREAM, true);
        copy_in.late = late;
        copy_in.before_sent = Some(Arc::new(move |_| {
            lock(&seen).get_or_insert_with(Instant::now);
        }));
        assert_eq!(copy(&link, &copy_in).unwrap(), code::SUCCESS);
        assert!(began.elapsed() >= Duration::from_millis(150), "the copy waits for its stream");
        let first = lock(&first).unwrap();
        assert!(!late || first >= began + Duration::from_millis(150), "it was read before the stream was there");
        assert!(get(&link, 0, bytes.len()) == bytes);
    }
}

#[test]
fn there_is_room_for_some_copies_at_a_time() {
    let s = Scene::new();
    let link = s.link(0);
    open(&link);
    let mut bytes = pattern(100_000);
    (0..AREAS as u64).for_each(|stream| kernel(&link, stream, 1_000_000));
    let send = |bytes: &mut [u8], stream| {
        // SAFETY: the memory lives until all copies are over.
        unsafe { link.send_bulk(&memory(bytes, 0, stream, true), |rc| assert_eq!(rc, Ok((code::SUCCESS, false)))) }.unwrap()
    };
    let copies: Vec<_> = (0..AREAS as u64).map(|stream| send(&mut bytes, stream).unwrap()).collect();
    assert!(send(&mut bytes, 99).is_none(), "another stream would need another area");
    let mut more = 0;
    while send(&mut bytes, 0).is_some() {
        more += 1;
        assert!(more < 1000);
    }
    assert!(soon(|| copies.iter().all(|c| c.over().load(Ordering::SeqCst)) && link.outstanding() == 0));
    let last = send(&mut bytes, 99).unwrap();
    assert!(soon(|| last.over().load(Ordering::SeqCst)));
}

#[test]
fn a_server_with_little_memory_refuses_no_copy_that_it_has_accepted() {
    let of_worker = WorkerLimits { pinned: 5 * fake::SIZES.area() as u64 / 2, ..WorkerLimits::of_machine() };
    let s = Scene::with(vec![0], |o| o.of_worker = of_worker);
    let link = s.link(0);
    open(&link);
    let mut bytes = pattern(100_000);
    let going = Arc::new(AtomicBool::new(false));
    let mut send = |stream| {
        let (mut memory, may_go) = (memory(&mut bytes, 0, stream, true), going.clone());
        memory.before_sent = Some(Arc::new(move |_| {
            while !may_go.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        }));
        // SAFETY: the memory lives until all copies are over.
        unsafe { link.send_bulk(&memory, |rc| assert_eq!(rc, Ok((code::SUCCESS, false)))) }.unwrap()
    };
    let copies = [send(1).unwrap(), send(2).unwrap(), send(1).unwrap()];
    assert!(send(3).is_none() && send(4).is_none(), "there is room for two areas");
    going.store(true, Ordering::SeqCst);
    assert!(soon(|| copies.iter().all(|c| c.over().load(Ordering::SeqCst)) && link.outstanding() == 0));
    let last = send(3).unwrap();
    assert!(soon(|| last.over().load(Ordering::SeqCst)), "another stream takes an area over");
    assert!(!link.is_lost());
}

#[test]
fn memory_that_cannot_be_accessed_is_reported() {
    let s = Scene::with(vec![0], |o| o.allow_plain = true);
    // Over an encrypted connection a thread of the link meets a bad address itself, unless the memory was registered.
    let connect = |at: &Endpoint| Link::connect(at, Some(&s.credentials), &hello(), None).unwrap();
    let links =
        [(connect(&s.at(0)), true), (connect(&format!("plain://{}/0", s.daemon.address.unwrap()).parse().unwrap()), false)];
    for (link, is_registered) in &links {
        open(link);
        for to_device in [true, false] {
            let mut unmapped = memory(&mut [], 0, STREAM, to_device);
            // The first page of a process is never mapped.
            (unmapped.host, unmapped.bytes) = (std::ptr::without_provenance_mut(64), 3000);
            unmapped.is_registered = *is_registered;
            // SAFETY: such an address does no harm.
            let (reply, copy) = unsafe { link.request_bulk(&unmapped) }.unwrap().unwrap();
            assert_eq!(reply.wait().unwrap().0, code::SUCCESS);
            assert!(copy.finish());
        }
    }
    let [_, (link, _)] = links;
    let refused = memory(&mut [0; 9], fake::MEMORY as u64 - 8, STREAM, true);
    assert_eq!(copy(&link, &refused).unwrap(), code::ERROR_INVALID_VALUE);
    put(&link, 0, b"fine");
    assert_eq!(get(&link, 0, 4), b"fine");
}

#[test]
fn a_copy_ends_with_its_worker() {
    let s = Scene::new();
    for to_device in [true, false] {
        let link = s.link(0);
        open(&link);
        let mut bytes = vec![0; 4 << 20];
        kernel(&link, STREAM, 3_600_000_000);
        let wanted = memory(&mut bytes, 0, STREAM, to_device);
        // SAFETY: the memory lives until the copy is over.
        let (reply, copy) = unsafe { link.request_bulk(&wanted) }.unwrap().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid(&link)), nix::sys::signal::Signal::SIGKILL).unwrap();
        assert!(reply.wait().is_err());
        copy.finish();
        // SAFETY: as above.
        let again = unsafe { link.request_bulk(&wanted) };
        assert!(again.is_ok_and(|c| c.is_none()), "a lost link begins none");
    }
}

#[test]
fn a_worker_ends_with_one_of_these_connections() {
    let s = Scene::new();
    let link = s.link(0);
    let ticket = [3; 32];
    link.control(&Control::Expect { ticket, stripes: 2 }).unwrap();
    assert!(link.control(&Control::Bulk { ticket, to_device: true, shared: false }).is_err(), "they have not arrived");
    let connections = bulk_connect(&s.at(0), &ticket, 2).unwrap();
    link.control(&Control::Accept { ticket }).unwrap();
    assert!(link.control(&Control::Bulk { ticket: [4; 32], to_device: true, shared: false }).is_err(), "another ticket");
    assert!(!link.has_bulk(false, || 0), "none were wanted");
    drop(connections);
    let lost = || link.request(fake::ECHO, &[]).and_then(crate::link::Reply::wait).is_err();
    assert!(!lost(), "nobody uses them");
    let ticket = [5; 32];
    link.control(&Control::Expect { ticket, stripes: 2 }).unwrap();
    let connections = bulk_connect(&s.at(0), &ticket, 2).unwrap();
    link.control(&Control::Accept { ticket }).unwrap();
    drop(connections);
    link.control(&Control::Bulk { ticket, to_device: false, shared: false }).unwrap();
    // The worker notices it when it uses the connection, at the latest.
    let mut bytes = vec![0; 1 << 20];
    let wanted = memory(&mut bytes, 0, STREAM, false);
    // SAFETY: the memory lives until the copy is over.
    let (reply, copy) = unsafe { link.request_bulk(&wanted) }.unwrap().unwrap();
    assert!(reply.wait().is_err());
    copy.finish();
    assert!(lost());
}

#[test]
fn a_worker_takes_no_file_whose_memory_may_go() {
    use executor::memory_file::{SIZE, create};
    let s = Scene::new();
    let whole = fake::SIZES.file();
    let cases = [
        (true, Some(create(whole, c"test", 0).unwrap()), "not what it should be"),
        (true, Some(create(whole - 1, c"test", SIZE).unwrap()), "not what it should be"),
        (true, Some(std::fs::File::open("/dev/zero").unwrap().into()), "not what it should be"),
        (true, None, "descriptors were expected"),
        (false, None, "descriptors were expected"),
    ];
    for (number, (is_unix, file, why)) in (1..).zip(cases) {
        let (link, at) = if is_unix { (over_unix(&s), s.unix(0)) } else { (s.link(0), s.at(0)) };
        let ticket = [number; 32];
        link.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
        let connections = bulk_connect(&at, &ticket, 1).unwrap();
        link.control(&Control::Accept { ticket }).unwrap();
        match file {
            Some(file) => connections[0].send_descriptors(file.as_fd(), None).unwrap(),
            None => connections[0].write_pieces(&[&[0]]).unwrap(),
        }
        let refused = link.control(&Control::Bulk { ticket, to_device: true, shared: true }).unwrap_err().to_string();
        assert!(refused.contains(why), "{number}: {refused}");
        assert_eq!(link.request(fake::ECHO, &[b"on"]).unwrap().wait().unwrap().0, code::SUCCESS);
        link.close();
    }
}

#[test]
fn connections_take_no_pinned_memory_before_a_copy_needs_it() {
    // Not enough for an area.
    let of_worker = WorkerLimits { pinned: 1 << 10, ..WorkerLimits::of_machine() };
    let s = Scene::with(vec![0], |o| o.of_worker = of_worker);
    let link = s.link(0);
    open(&link);
    let mut bytes = vec![0; 1 << 20];
    // SAFETY: no such copy begins.
    let begun = unsafe { link.request_bulk(&memory(&mut bytes, 0, STREAM, false)) };
    assert!(begun.is_ok_and(|copy| copy.is_none()), "it travels with the calls");
    assert!(!link.is_lost());
}

/// The answer would let the job read what is outdated; and what was not written would be missing in what kernels read.
#[test]
fn a_worker_whose_driver_cannot_copy_managed_memory_gives_no_answer() {
    let s = Scene::new();
    let fails = |link: &Link| {
        let said = Arc::new(Mutex::new(Vec::new()));
        let to = said.clone();
        link.set_text_hook(move |_, text| lock(&to).extend_from_slice(text));
        said
    };
    let (link, other) = (s.link(0), s.link(1));
    let (said, said_other) = (fails(&link), fails(&other));
    let (rc, _) = link.request(fake::FAIL_CHANGES, &[&2i32.to_le_bytes()]).unwrap().wait().unwrap();
    assert_eq!(rc, code::SUCCESS);
    assert!(link.request(id::STREAM_SYNC, &[&1u64.to_le_bytes()]).unwrap().wait().is_err());
    // A message that is not applied.
    assert!(other.send(id::HOST_BYTES, &[]).is_ok());
    assert!(soon(|| other.request(fake::ECHO, &[]).and_then(crate::link::Reply::wait).is_err()));
    for (said, code) in [(said, 2), (said_other, code::ERROR_NOT_SUPPORTED)] {
        let text = || String::from_utf8(lock(&said).clone()).unwrap();
        assert!(soon(|| text().contains(&format!("cannot copy managed memory any more (CUDA error {code})"))), "{}", text());
    }
}
