//! Which calls the tests have exercised: the recorder reports, tests/coverage.txt lists, `mrcuda calls` shows. Also whether their classes are
//! true: what each of them has recorded in the journal, against its row.

use crate::{LIMIT, remote_orbit};
use cuda_api::calls::rows;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use tests::programs::NAMES;
use tests::{Install, Job, Linkage, Programs, Scene, Server, install};

const HEADING: &str = "# Calls that the whole-system tests exercise, as the recorder reports them; written by: UPDATE=1 cargo test -p tests coverage\n";

/// What a call of any class may record besides itself: the state that it is the first to need. A place that replaces another one must
/// have it before it needs it.
const FIRST_NEED: [&str; 10] = [
    // The events by which the streams of a context wait for each other.
    "cuEventCreate",
    // The first use of a function, and what its code needs of the context.
    "FunctionInfo",
    "LocalGrow",
    "HeapMake",
    // The calling thread's own default stream, and the end of those of threads that have ended.
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    // The function of a kernel in the current context.
    "cuKernelGetFunction",
    // Physical memory for allocations, and spare memory that is given back.
    "ChunkMap",
    "ChunkUnmap",
    // Host memory that the GPU uses from now on.
    "HostPin",
];

/// Runs what there is and collects the names that the recorder has seen, each with what it has recorded.
fn called() -> BTreeMap<String, BTreeSet<String>> {
    let scene = Scene::new("coverage");
    let server = Server::start(&scene, "one");
    let list = scene.path.join("called").display().to_string();
    let env = [("MRCUDA_COVERAGE", list.as_str())];
    let place = server.place(0);
    // The two runtime libraries make the same calls, so one of each program will do. Several at a time: the list is written in lines.
    let next = Mutex::new(NAMES.into_iter().zip([Linkage::Static, Linkage::Shared].into_iter().cycle()));
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while let Some((name, linkage)) = { next.lock().unwrap().next() } {
                    let program = Programs::get().path(linkage, name);
                    let outcome = Job::start(&scene, name, &["--server", &place], &program, &[], &env).wait(LIMIT);
                    assert!(outcome.ok(), "{name}: {outcome:?}");
                }
            });
        }
    });
    let surface = Install::get().file("surface");
    let outcome = Job::start(&scene, "surface", &["--server", &place], &surface, &[], &env).wait(LIMIT);
    assert!(outcome.ok(), "{outcome:?}");
    let orbit = remote_orbit(&scene, "orbit", &place, &["--steps", "200", "--progress"], &env);
    assert!(orbit.wait(LIMIT).ok());
    let bench = Install::get().file("microbench");
    let cases = "launch launches:9 wait fill record reach query-event query-stream event stream memory-info attribute \
                 allocate:4096 in:64 pinned-in:64 out:64 pinned-out:64";
    let cases: Vec<&str> = ["client"].into_iter().chain(cases.split_whitespace()).collect();
    let outcome = Job::start(&scene, "bench", &["--server", &place], &bench, &cases, &env).wait(LIMIT);
    assert!(outcome.ok(), "{outcome:?}");
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in std::fs::read_to_string(list).expect("the recorder has written no list").lines() {
        let mut words = line.split(' ').map(str::to_owned);
        all.entry(words.next().unwrap_or_default()).or_default().extend(words);
    }
    all
}

/// Calls that have recorded something though their rows say that they do not.
fn unexpected(called: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for row in rows().filter(|row| !row.class.recorded()) {
        let records = called.get(row.name).into_iter().flatten();
        let own: Vec<&str> = records.map(String::as_str).filter(|record| !FIRST_NEED.contains(record)).collect();
        if !own.is_empty() {
            wrong.push(format!("{} ({}) records {}", row.name, row.class.name(), own.join(", ")));
        }
    }
    wrong
}

#[test]
fn coverage_list_is_true() {
    let seen = called();
    let wrong = unexpected(&seen);
    assert!(wrong.is_empty(), "rows whose class is not true:\n{}", wrong.join("\n"));
    let recording = rows().filter(|row| row.class.recorded() && seen.get(row.name).is_some_and(|records| !records.is_empty()));
    assert!(recording.count() > 50, "few calls record anything: {seen:?}");
    let called: BTreeSet<String> = seen.into_keys().collect();
    assert!(called.contains("cuInit") && called.contains("cuLaunchKernel"), "{called:?}");
    let path = install::root().join("tests/coverage.txt");
    if std::env::var_os("UPDATE").is_some() {
        let lines: Vec<String> = called.iter().map(|name| format!("{name}\n")).collect();
        std::fs::write(&path, format!("{HEADING}{}", lines.concat())).unwrap();
        return;
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let listed: BTreeSet<String> = text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect();
    let never: Vec<_> = listed.difference(&called).collect();
    assert!(never.is_empty(), "listed as tested, but never called: {never:?}");
    let unlisted: Vec<_> = called.difference(&listed).collect();
    assert!(unlisted.is_empty(), "called, but not listed (UPDATE=1 writes the list): {unlisted:?}");
}
