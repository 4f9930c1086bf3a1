//! Workers that their jobs have left for places that have adopted their memory.

use super::*;
use crate::inspect::inspect;
use std::os::unix::ffi::OsStrExt;

/// Has a worker say in a round with another one that its memory is handed over, and make this directory at its end.
fn hand_over(s: &Scene, [source, target]: [&Link; 2], gpu: u32, end: &Path, ticket: [u8; 32]) {
    assert_eq!(source.request(fake::HAND_OVER, &[end.as_os_str().as_bytes()]).unwrap().wait().unwrap().0, code::SUCCESS);
    target.control(&Control::Expect { ticket, stripes: 1 }).unwrap();
    source.control(&Control::Connect { to: s.at(gpu).to_string(), ticket, stripes: 1 }).unwrap();
    target.control(&Control::Accept { ticket }).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| source.control(&Control::RoundSource { ticket, send_regions: false }).unwrap());
        target.control(&Control::RoundTarget { ticket, verify: memsync::Verify::Auto, by_descriptor: true }).unwrap();
    });
    [source, target].iter().for_each(|end| drop(end.control(&Control::HangUp { ticket }).unwrap()));
}

/// A job with a time limit for its leave that no test exceeds.
fn patient(s: &Scene, gpu: u32) -> Arc<Link> {
    let limits = TimeLimits { goodbye: Duration::from_secs(120), ..TimeLimits::default() };
    Link::connect_with(&s.at(gpu), Some(&s.credentials), &hello(), None, limits).unwrap()
}

#[test]
fn a_job_does_not_wait_for_a_worker_whose_memory_was_adopted_nor_is_it_refused_because_of_it() {
    let s = Scene::with(vec![0, 1], |o| (o.clients.gpu_jobs, o.max_client_workers, o.max_workers) = (Some(1), Some(2), Some(2)));
    let end = s.directory.join("end");
    let (mut source, mut target) = (patient(&s, 0), patient(&s, 1));
    for round in 0..4u8 {
        let (from, to) = (u32::from(round % 2), u32::from(1 - round % 2));
        hand_over(&s, [&source, &target], to, &end, [round + 1; 32]);
        let worker = pid(&source);
        // It would wait until the directory is removed.
        source.close();
        assert!(soon(|| end.is_dir()) && runs(worker), "the worker has not ended");
        // The daemon hears of it on a thread of its own.
        let jobs = || inspect(&s.at(0), Some(&s.credentials)).unwrap().gpus.iter().map(|gpu| gpu.jobs.len()).collect::<Vec<_>>();
        assert!(soon(|| jobs()[from as usize] == 0) && jobs()[to as usize] == 1);
        // The next move comes back at once: this GPU has a job at most, which has left, and so has the whole client two.
        let next = thread::scope(|scope| {
            let next = scope.spawn(|| patient(&s, from));
            assert!(soon(|| s.daemon.state.lines.waiting(from) == 1), "it waits");
            assert!(!next.is_finished() && runs(worker));
            std::fs::remove_dir(&end).unwrap();
            next.join().unwrap()
        });
        assert!(soon(|| !runs(worker)));
        // It has left in order: this is no failed worker.
        assert!(logged(|l| l.contains(&format!("worker {worker}: ")) && l.contains("has left")));
        (source, target) = (target, next);
    }
    assert_eq!(s.daemon.state.pool.failed(), 0);
    [source, target].iter().for_each(|link| link.close());
}

#[test]
fn a_worker_whose_job_has_gone_on_releases_everything_before_the_job_goes_on() {
    let s = Scene::lending(vec![0, 1]);
    let end = s.directory.join("end");
    let (source, target) = (patient(&s, 0), patient(&s, 1));
    hand_over(&s, [&source, &target], 1, &end, [7; 32]);
    // The move has failed: the memory is this worker's.
    source.request(fake::ECHO, &[]).unwrap().wait().unwrap();
    releases_first(&s, &source, &end);
    target.close();
}

#[test]
fn a_worker_that_has_memory_of_another_gpu_releases_everything_before_the_job_goes_on() {
    let s = Scene::lending(vec![0, 1]);
    let end = s.directory.join("end");
    let (source, target) = (patient(&s, 0), patient(&s, 1));
    // The job has been told that the memory there is free, or is about to be.
    source.request(fake::USE_PEER, &[]).unwrap().wait().unwrap();
    hand_over(&s, [&source, &target], 1, &end, [9; 32]);
    releases_first(&s, &source, &end);
    target.close();
}

/// The job leaves a worker, which answers only when it has released everything.
fn releases_first(s: &Scene, source: &Link, end: &Path) {
    thread::scope(|scope| {
        let closing = scope.spawn(|| source.close());
        assert!(soon(|| end.is_dir()));
        assert!(!closing.is_finished() && inspect(&s.at(0), Some(&s.credentials)).unwrap().gpus[0].jobs.len() == 1);
        std::fs::remove_dir(end).unwrap();
    });
    assert!(soon(|| !runs(pid(source))));
}

#[test]
fn a_worker_that_is_killed_while_it_ends_gives_its_room_back() {
    let s = Scene::with(vec![0, 1], |o| o.clients.gpu_jobs = Some(1));
    let end = s.directory.join("end");
    let (source, target) = (patient(&s, 0), patient(&s, 1));
    hand_over(&s, [&source, &target], 1, &end, [8; 32]);
    source.close();
    assert!(soon(|| end.is_dir()));
    let worker = pid(&source);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker), Signal::SIGKILL).unwrap();
    let next = patient(&s, 0);
    assert!(!runs(worker));
    [target, next].iter().for_each(|link| link.close());
}
