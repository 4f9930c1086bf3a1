use super::*;
use crate::staging::{Room, Staging, WORDS};

const SIZES: Sizes = Sizes { region: 8192, piece: 4096, segment: [4096, 4096] };

fn map(bytes: usize, part: Option<&Part>) -> usize {
    let (kind, file, offset) = match part {
        Some(part) => (libc::MAP_SHARED, part.file().as_raw_fd(), part.offset()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
    };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address that the system chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, kind, file, offset as libc::off_t) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn add_area(staging: &Staging, stream: u64) {
    let part = staging.part();
    let regions = map(SIZES.regions(), part.as_ref());
    // SAFETY: fresh mappings.
    let room = unsafe { Room::new((regions, SIZES.regions()), map(WORDS, None), part) };
    assert!(staging.add(Arc::new(room), stream));
}

#[test]
fn both_sides_see_the_bytes_of_a_segment_at_the_offset_that_it_says() {
    let (job, file) = Mapped::create(&SIZES).unwrap();
    let worker = Staging::new(SIZES);
    worker.share(file).unwrap();
    for stream in 0..AREAS as u64 {
        add_area(&worker, stream);
        worker.begin(stream, stream, SIZES.regions() as u64, true, false).unwrap();
    }
    let mut offsets = Vec::new();
    while let Some(mut segment) = worker.try_next(true) {
        let at = segment.in_file().unwrap();
        let theirs = job.at(at, segment.size() as u64).unwrap();
        let byte = offsets.len() as u8;
        // SAFETY: bytes of the mapping, which nothing else uses now.
        unsafe { theirs.write_bytes(byte, segment.size()) };
        assert!(segment.bytes_mut().unwrap().iter().all(|b| *b == byte));
        offsets.push(at);
        worker.over(&segment);
    }
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), SIZES.file() / 4096, "no two segments lie at the same place");
}

#[test]
fn what_lies_outside_of_the_file_is_not_found() {
    let (job, _file) = Mapped::create(&SIZES).unwrap();
    let end = SIZES.file() as u64;
    assert!(job.at(0, end).is_some() && job.at(end - 1, 1).is_some() && job.at(end, 0).is_some());
    for (offset, bytes) in [(end, 1), (end - 1, 2), (0, end + 1), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        assert!(job.at(offset, bytes).is_none(), "{bytes} bytes at {offset}");
    }
}

#[test]
fn files_that_could_shrink_or_are_too_small_are_refused() {
    let refused = |file| Staging::new(SIZES).share(file).is_err();
    let create = |bytes, seals| memory_file::create(bytes, c"test", seals).unwrap();
    assert!(refused(create(SIZES.file(), 0)));
    assert!(refused(create(SIZES.file(), libc::F_SEAL_GROW | libc::F_SEAL_SEAL)));
    assert!(refused(create(SIZES.file() - 1, memory_file::SIZE)));
    assert!(refused(std::fs::File::open("/dev/zero").unwrap().into()));
    let (_job, file) = Mapped::create(&SIZES).unwrap();
    // SAFETY: plain system call.
    assert_ne!(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }, 0, "nobody can take it away");
    let worker = Staging::new(SIZES);
    worker.share(file).unwrap();
    assert!(worker.share(create(SIZES.file(), memory_file::SIZE)).is_err(), "there is one");
}

/// The job may still write to a segment of an area that has ended: no other area may lie there.
#[test]
fn a_part_is_free_when_nobody_uses_a_segment_there() {
    let (_job, file) = Mapped::create(&SIZES).unwrap();
    let worker = Staging::new(SIZES);
    worker.share(file).unwrap();
    add_area(&worker, 1);
    worker.begin(1, 7, 4096, true, false).unwrap();
    let segment = worker.next(true);
    worker.let_go();
    drop(worker.end());
    let parts: Vec<Part> = std::iter::from_fn(|| worker.part()).collect();
    assert_eq!(parts.len(), AREAS - 1);
    assert!(parts.iter().all(|p| Some(p.offset()) != segment.in_file()));
    let offset = segment.in_file();
    drop(segment);
    assert_eq!(worker.part().map(|p| p.offset()), offset);
}

#[test]
fn forked_children_do_not_have_the_mapping() {
    let (job, _file) = Mapped::create(&SIZES).unwrap();
    let mut status = 0;
    // SAFETY: the child only asks the kernel whether the range is mapped, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut page = 0u8;
            libc::_exit(i32::from(libc::mincore(job.at as *mut libc::c_void, 4096, &raw mut page) == 0));
        }
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert_eq!(status, 0);
}

/// A message is sent at once: one connection could take all segments before the job has copied the first.
#[test]
fn segments_in_shared_memory_go_first_to_connections_that_have_none() {
    let (_job, file) = Mapped::create(&SIZES).unwrap();
    let (apart, shared) = (Staging::new(SIZES), Staging::new(SIZES));
    shared.share(file).unwrap();
    for staging in [&apart, &shared] {
        add_area(staging, 1);
        staging.begin(1, 7, 4 * 4096, true, false).unwrap();
        lock(&staging.state).waiting[1] = 2;
    }
    let taken = |staging: &Staging| std::iter::from_fn(|| staging.try_next(true)).count();
    assert_eq!(taken(&apart), 4, "bytes that are under way hold up a connection");
    assert_eq!(taken(&shared), 2, "two are left to those that wait");
    lock(&shared.state).waiting[1] = 0;
    assert_eq!(taken(&shared), 2);
}
