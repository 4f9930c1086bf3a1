//! Journal files, whole and damaged.

use crate::LIMIT;
use crate::schemas::Schemas;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tests::{Job, Linkage, Programs, Scene};

/// Runs orbit in its own process and answers the journal that it leaves.
fn journal(scene: &Scene) -> PathBuf {
    let directory = scene.path.join("journal");
    std::fs::create_dir_all(&directory).unwrap();
    let keep = directory.display().to_string();
    let orbit = scene.install.file("orbit");
    let outcome = Job::start(scene, "job", &[], &orbit, &["--steps", "50"], &[("MRCUDA_KEEP_JOURNAL", &keep)]).wait(LIMIT);
    assert!(outcome.ok(), "{outcome:?}");
    let files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// `mrcuda journal show`: exit code, stdout, stderr.
fn show(scene: &Scene, file: &Path, options: &[&str]) -> (Option<i32>, String, String) {
    let output = scene.mrcuda().args(["journal", "show"]).arg(file).args(options).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_journal_can_be_read_and_names_its_calls() {
    let scene = Scene::new("journal");
    let file = journal(&scene);
    let (code, out, err) = show(&scene, &file, &["--json"]);
    assert_eq!(code, Some(0), "{err}");
    let schemas = Schemas::read();
    let lines: Vec<Value> = out.lines().map(|line| schemas.check("journal", line)).collect();
    let named = |name: &str| lines.iter().filter(|l| l.to_string().contains(name)).count();
    assert!(named("cuStreamCreate") >= 2 && named("cuEventCreate") >= 16, "{out}");
    assert!(named("ImageLoad") >= 1 && named("ChunkMap") >= 1, "{out}");
    assert_eq!(named("Launch"), 0, "work is not recorded: {out}");
    let (code, text, _) = show(&scene, &file, &[]);
    assert_eq!(code, Some(0));
    assert!(text.contains("cuModuleGetFunction") && text.contains("advance"), "{text}");
}

#[test]
fn a_million_events_leave_little_in_the_journal() {
    let scene = Scene::new("million");
    let directory = scene.path.join("journal");
    std::fs::create_dir_all(&directory).unwrap();
    let keep = directory.display().to_string();
    let program = Programs::get().path(Linkage::Static, "events");
    let outcome = Job::start(&scene, "job", &[], &program, &[], &[("MRCUDA_KEEP_JOURNAL", &keep)]).wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.starts_with("events 1000000\n"), "{outcome:?}");
    let size: u64 = std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    // The records of them all would take more than 100 MB.
    assert!((1..32 << 20).contains(&size), "{size} bytes");
}

#[test]
fn damage_is_named_by_record() {
    let scene = Scene::new("damage");
    let file = journal(&scene);
    let whole = std::fs::read(&file).unwrap();
    let used = whole.iter().rposition(|b| *b != 0).unwrap() + 1;
    let damaged = scene.path.join("damaged");
    let wrong = |bytes: &[u8], what: &str| {
        std::fs::write(&damaged, bytes).unwrap();
        let (code, _, err) = show(&scene, &damaged, &[]);
        assert_eq!(code, Some(1), "{what}: {err}");
        assert!(!err.contains("panicked"), "{what}: {err}");
        err
    };
    // Somewhere in the records, well behind the header.
    let mut flipped = whole.clone();
    flipped[used * 3 / 4] ^= 0x10;
    let words = wrong(&flipped, "a flipped bit");
    assert!(words.contains("record"), "{words}");
    let words = wrong(&whole[..used - 5], "a file cut short");
    assert!(words.contains("record"), "{words}");
    // What is before the end mark ends where a record does.
    let mark = whole.windows(8).rposition(|w| w == b"\0\0\0\0END\n").expect("the job has closed its journal");
    let words = wrong(&whole[..mark], "a file cut at the end of a record");
    assert!(words.contains("cut short"), "{words}");
    let mut killed = whole.clone();
    killed[mark..].fill(0);
    std::fs::write(&damaged, &killed).unwrap();
    for (file, closed) in [(&file, true), (&damaged, false)] {
        let (code, out, err) = show(&scene, file, &[]);
        assert!(code == Some(0) && out.contains("not closed") != closed, "{err}");
    }
    let mut other = whole.clone();
    other[0] ^= 0xff;
    wrong(&other, "another kind of file");
    wrong(&[], "an empty file");
    std::fs::remove_file(&damaged).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&damaged).status().unwrap().success());
    let (code, _, err) = show(&scene, &damaged, &[]);
    assert!(code == Some(1) && err.contains("not a regular file"), "{code:?} {err}");
}

#[test]
fn a_journal_of_another_version_is_named() {
    let scene = Scene::new("version");
    let whole = std::fs::read(journal(&scene)).unwrap();
    let file = scene.path.join("later");
    // The version is the first thing after the magic number: whatever a later version has behind it is not looked at.
    for (version, options) in [(4u32, &[][..]), (0, &["--json"]), (u32::MAX, &[])] {
        let mut later = whole.clone();
        later[8..12].copy_from_slice(&version.to_le_bytes());
        std::fs::write(&file, &later).unwrap();
        let (code, out, err) = show(&scene, &file, options);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        let words = [format!("format version {version}"), "this build reads version 5".to_owned(), "later".to_owned()];
        assert!(words.iter().all(|w| err.contains(w)), "{err}");
    }
}
