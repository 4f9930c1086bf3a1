//! The apps, programs in the patterns of real ones: what they compute in all their memory is native's in every place, and when
//! they are moved among all places again and again.

use compare::{Comparison, Ending, Mode, Places, Program, Setup, Summary, Verdict};
use std::time::Duration;
use tests::{Programs, Scene, Server};

/// Moves that must succeed in one run.
const MOVES: usize = 4;
/// Initial pause between the steps of a moved app, in microseconds; doubled at each further attempt.
const PACE: u32 = 8000;
/// Attempts until it ends no earlier than after that many moves, on however slow a machine.
const ATTEMPTS: u32 = 8;
/// Time limit of an app: on a busy machine, too, one that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// Two servers, and how programs run.
fn setup(scene: &Scene) -> (Setup, Places, [Server; 2]) {
    let setup = Setup {
        mrcuda: scene.install.file("mrcuda"),
        driver: Some(scene.install.file("libsoftgpu.so")),
        gpus: 1,
        directory: scene.path.clone(),
        token: scene.token(),
        every: Duration::from_millis(5),
    };
    // Between some places the GPU copies memory, between others it travels.
    let servers = [Server::start_beside(scene, "one"), Server::start(scene, "two")];
    let (tcp, unix) = (servers.each_ref().map(|s| s.place(0)), servers.each_ref().map(|s| s.unix_place(0)));
    let places = Places::of_servers(tcp.each_ref().map(String::as_str), unix.each_ref().map(String::as_str));
    (setup, places, servers)
}

fn as_native(name: &str) {
    let scene = Scene::new(name);
    let (setup, places, _servers) = setup(&scene);
    let path = Programs::get().app(name);
    let program = |pace: u32| {
        let args = ["--size".to_owned(), "small".to_owned(), "--pace".to_owned(), pace.to_string()];
        Program { name: name.to_owned(), path: path.clone(), args: args.to_vec(), directory: None, limit: LIMIT }
    };
    let native = Comparison::natively(&setup, &program(0)).unwrap();
    let right = native.out.starts_with("digest ") && native.out.ends_with("\nOK\n");
    assert!(native.expected.ending == Ending::Code(0) && native.expected.stable && right, "natively: {native:?}");
    let run = |mode: Mode, pace: u32| {
        let cell = native.run(&setup, &places, &program(pace), mode).unwrap();
        assert_eq!(cell.verdict, Verdict::Same, "{}: {cell:?}", mode.name());
        cell
    };
    for mode in [Mode::Tcp, Mode::Unix, Mode::Local, Mode::Helper] {
        run(mode, 0);
    }
    for attempt in 0.. {
        let moved = run(Mode::Moved, PACE << attempt);
        if moved.pauses.len() >= MOVES {
            break;
        }
        assert!(attempt + 1 < ATTEMPTS, "it always ended before it was moved {MOVES} times: {moved:?}");
    }
}

macro_rules! apps {
    ($($name:ident)*) => {
        $(#[test] fn $name() { as_native(stringify!($name)); })*

        #[test]
        fn every_app_has_a_test() {
            assert_eq!(tests::programs::APPS.to_vec(), [$(stringify!($name)),*]);
        }
    };
}

apps! {
    decode allocations hostblocks streams graphs registered base64 pipeline zerocopy managed queens btree
    particles heat hydro solver radix hashtable filters alignment triangles gemm
}

/// Programs that behave otherwise under mrcuda: without this, all of the above could say nothing.
#[test]
fn what_is_not_as_native_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new("differences");
    let (setup, places, _servers) = setup(&scene);
    let directory = scene.path.join("foreign");
    std::fs::create_dir_all(directory.join("work")).unwrap();
    let scripts = [
        ("differs", "[ -n \"$MRCUDA_SERVERS\" ] && echo 4 || echo 3"),
        ("fails", "echo 3; [ -z \"$MRCUDA_SERVERS\" ] || { echo no device >&2; exit 7; }"),
        ("hangs", "[ -z \"$MRCUDA_SERVERS\" ] || exec sleep 1000"),
        ("same", "echo \"$1, $2, time: $$ ms\"; pwd; date +%N; touch written; ls ../../foreign/same 2>/dev/null; true"),
        ("where", "pwd; ls -d written 2>/dev/null; true"),
    ];
    for (name, text) in scripts {
        let path = directory.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let list = directory.join("list");
    let lines = "differs\nfails\nhangs @limit=10\n# a remark\nsame \"a b\" c\nwhere @directory=work\nwhere\n";
    std::fs::write(&list, lines).unwrap();
    let programs = compare::read_list(&directory, &list, LIMIT).unwrap();
    let mut summary = Summary::new(&[Mode::Local]);
    let mut verdict = |name: &str| {
        let program = programs.iter().find(|p| p.name == name).unwrap();
        let result = compare::compare(&setup, &places, program, &[Mode::Local]).unwrap();
        let (verdict, out) = (result.cells[&Mode::Local].verdict.clone(), result.out.clone());
        summary.add(name, Ok(result));
        (verdict, out)
    };
    assert_eq!(verdict("differs").0, Verdict::Wrong("`4` instead of `3`".into()));
    assert_eq!(verdict("fails").0, Verdict::Wrong("exit status 7 instead of exit status 0: no device".into()));
    assert_eq!(verdict("hangs").0, Verdict::Wrong("no end within its limit instead of exit status 0: ".into()));
    let (same, out) = verdict("same");
    assert_eq!(same, Verdict::Same);
    assert!(out.starts_with("a b, c, time: "), "{out}");
    // One runs where the list says; the other in a directory of its own, which has what is beside the program, and nothing of
    // other runs.
    let work = std::fs::canonicalize(directory.join("work")).unwrap();
    assert_eq!(verdict("where"), (Verdict::Same, format!("{}\n", work.display())));
    let (_, own) = verdict("where (2)");
    assert!(!own.contains("foreign") && !own.contains("written"), "{own}");
    assert!(!summary.all_as_native());
    assert!(summary.to_string().contains("local    3 of 6 as native"), "{summary}");
}
