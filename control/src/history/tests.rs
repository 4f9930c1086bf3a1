use super::*;
use crate::MoveState;
use std::os::unix::fs::PermissionsExt;

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("mrcuda-history-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn past(pid: u32, id: &str) -> Past {
    let it = Move { id: id.into(), state: MoveState::Done, ok: true, bytes: 7, ..Move::default() };
    Past { pid, program: "/bin/train".into(), name: "train.py".into(), it }
}

#[test]
fn what_was_appended_is_read_in_order() {
    let dir = scratch("order").join("state/mrcuda");
    assert_eq!(read(&dir).unwrap(), History::default(), "no directory, no moves");
    let all = [past(1, "m1"), past(2, "m1"), past(1, "m2")];
    all.iter().for_each(|one| append(&dir, one).unwrap());
    assert_eq!(read(&dir).unwrap(), History { moves: all.to_vec(), skipped: 0 });
    let mode = |name: &str| std::fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(FILES[0]), mode(".")), (0o600, 0o700));
    std::fs::remove_dir_all(dir.parent().unwrap().parent().unwrap()).unwrap();
}

#[test]
fn torn_and_hostile_lines_are_skipped_and_the_next_one_is_whole() {
    let dir = scratch("torn");
    append(&dir, &past(1, "m1")).unwrap();
    let file = dir.join(FILES[0]);
    let mut text = std::fs::read(&file).unwrap();
    let line = text.clone();
    // Cut at every byte: what a machine leaves that stops while a line is written.
    for cut in 0..line.len() {
        std::fs::write(&file, [&line[..], &line[..cut]].concat()).unwrap();
        append(&dir, &past(2, "m2")).unwrap();
        let history = read(&dir).unwrap();
        let ids: Vec<_> = history.moves.iter().map(|past| past.it.id.as_str()).collect();
        let whole = cut == line.len() - 1;
        assert_eq!(ids, if whole { vec!["m1", "m1", "m2"] } else { vec!["m1", "m2"] }, "cut at {cut}");
        assert_eq!(history.skipped, usize::from(cut > 0 && !whole), "cut at {cut}");
    }
    let long = format!("{{\"pid\":1,\"program\":\"{}\",\"move\":{{\"state\":\"done\"}}}}", "x".repeat(LONGEST));
    let running = "{\"pid\":1,\"program\":\"p\",\"move\":{\"state\":\"running\"}}";
    for bad in [&b"\xff\xfe"[..], b"{}", b"[[[[", b"null", &b"[".repeat(100_000), long.as_bytes(), running.as_bytes()] {
        text = [bad, b"\n", &line].concat();
        std::fs::write(&file, &text).unwrap();
        let history = read(&dir).unwrap();
        assert_eq!((history.moves.len(), history.skipped), (1, 1), "{:?}", String::from_utf8_lossy(&bad[..bad.len().min(40)]));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn it_is_bounded_and_the_newest_moves_stay() {
    let dir = scratch("bounded");
    let reason = "x".repeat(60 << 10);
    let count = 4 * LARGEST / reason.len() as u64;
    for number in 0..count {
        let mut one = past(1, &format!("m{number}"));
        one.it.reason = Some(reason.clone());
        append(&dir, &one).unwrap();
    }
    let sizes = [FILES[0], FILES[1]].map(|name| std::fs::metadata(dir.join(name)).unwrap().len());
    assert!(sizes.iter().all(|size| *size <= LARGEST), "{sizes:?}");
    let history = read(&dir).unwrap();
    let numbers: Vec<u64> = history.moves.iter().map(|past| past.it.id[1..].parse().unwrap()).collect();
    let first = numbers[0];
    assert!(first > 0 && numbers.len() as u64 >= LARGEST / (reason.len() as u64 + 1000), "{}", numbers.len());
    assert!(numbers.iter().copied().eq(first..count), "without a gap up to the last one");
    // A report that is longer than a line may be comes without the details of each GPU.
    let mut long = past(9, "long");
    long.it.legs = vec![crate::GpuMove { by_socket: Some(reason), ..Default::default() }; 32];
    append(&dir, &long).unwrap();
    let last = read(&dir).unwrap().moves.pop().unwrap();
    assert!(last.pid == 9 && last.it.legs.is_empty());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn writers_take_turns() {
    let dir = scratch("turns");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let dir = &dir;
            scope.spawn(move || (0..50).for_each(|n| append(dir, &past(writer, &format!("m{n}"))).unwrap()));
        }
    });
    let history = read(&dir).unwrap();
    assert_eq!((history.moves.len(), history.skipped), (200, 0));
    for writer in 0..4 {
        let ids = history.moves.iter().filter(|past| past.pid == writer).map(|past| past.it.id.clone());
        assert!(ids.eq((0..50).map(|n| format!("m{n}"))), "each one's moves are in order");
    }
    // A process that keeps the lock delays writers for a limited time, and readers not at all.
    let _held = lock(&dir).unwrap();
    let why = append(&dir, &past(1, "m1")).unwrap_err().to_string();
    assert!(why.contains("locked"), "{why}");
    assert_eq!(read(&dir).unwrap().moves.len(), 200);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_others_could_have_prepared_is_refused() {
    let dir = scratch("hostile");
    append(&dir, &past(1, "m1")).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    for refused in [append(&dir, &past(1, "m1")).unwrap_err(), read(&dir).unwrap_err()] {
        assert!(refused.to_string().contains("0700"), "{refused}");
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    // A link, and what makes its readers wait.
    let file = dir.join(FILES[0]);
    std::fs::rename(&file, dir.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.join("elsewhere"), &file).unwrap();
    assert!(append(&dir, &past(1, "m1")).is_err() && read(&dir).is_err());
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(append(&dir, &past(1, "m1")).is_err() && read(&dir).is_err());
    std::fs::remove_dir_all(dir).unwrap();
}
