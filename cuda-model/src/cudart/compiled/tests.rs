use super::store::{Key, Store};
use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// An empty directory that goes with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("compiled-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Directory(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path()).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key(n: u32) -> Key {
    Key::of([1, 90, n], blake3::hash(b"code"), [b"-arch=sm_90", b"HOST64", b"1"], None)
}

#[test]
fn what_was_compiled_is_found_by_other_processes() {
    let directory = Directory::new("found");
    let (one, other) = (Store::at(&directory.0, 1 << 20).unwrap(), Store::at(&directory.0, 1 << 20).unwrap());
    assert_eq!(one.find(&key(0)), None);
    one.keep(&key(0), b"result").unwrap();
    one.keep(&key(1), b"another").unwrap();
    one.keep(&key(0), b"result").unwrap();
    assert_eq!(other.find(&key(0)).as_deref(), Some(&b"result"[..]));
    assert_eq!(other.find(&key(1)).as_deref(), Some(&b"another"[..]));
    assert_eq!(directory.files().len(), 2, "nothing else stays");
    assert_eq!(directory.0.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn everything_that_a_result_depends_on_is_in_its_key() {
    let key = |n, code: &[u8], texts| Key::of(n, blake3::hash(code), texts, None);
    let one = key([1, 90, 0], b"code", [b"a", b"b", b"c"]);
    assert_eq!(one, key([1, 90, 0], b"code", [b"a", b"b", b"c"]));
    for other in [
        key([2, 90, 0], b"code", [b"a", b"b", b"c"]),
        key([1, 80, 0], b"code", [b"a", b"b", b"c"]),
        key([1, 90, 1], b"code", [b"a", b"b", b"c"]),
        key([1, 90, 0], b"cod", [b"a", b"b", b"c"]),
        key([1, 90, 0], b"code", [b"ab", b"", b"c"]),
        key([1, 90, 0], b"code", [b"a", b"b", b"d"]),
    ] {
        assert_ne!(one, other);
    }
}

#[test]
fn damaged_and_exchanged_files_are_not_used() {
    let directory = Directory::new("damaged");
    let store = Store::at(&directory.0, 1 << 20).unwrap();
    let damage: [&dyn Fn(&mut Vec<u8>); 4] = [
        &|bytes| bytes.truncate(bytes.len() - 1),
        &|bytes| *bytes.last_mut().unwrap() ^= 1,
        &|bytes| bytes.truncate(20),
        &|bytes| bytes[0] = b'X',
    ];
    for change in damage {
        store.keep(&key(0), b"result").unwrap();
        let path = directory.files().pop().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(store.find(&key(0)), None);
        assert!(!path.exists(), "it is made anew");
    }
    store.keep(&key(0), b"result").unwrap();
    let first = directory.files().pop().unwrap();
    store.keep(&key(1), b"another").unwrap();
    let second = directory.files().into_iter().find(|path| *path != first).unwrap();
    std::fs::rename(second, first).unwrap();
    assert_eq!(store.find(&key(0)), None, "that is the result of other code");
}

#[test]
fn what_was_not_used_for_longest_goes_first() {
    let directory = Directory::new("room");
    let store = Store::at(&directory.0, 100 << 10).unwrap();
    let contents = vec![7; 9 << 10];
    let long_ago = SystemTime::now() - Duration::from_secs(1000);
    for n in 0..8 {
        store.keep(&key(n), &contents).unwrap();
        // Files in the order of their making, whatever the clock of the file system is like.
        for path in directory.files() {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            if file.metadata().unwrap().modified().unwrap() > long_ago + Duration::from_secs(500) {
                file.set_modified(long_ago + Duration::from_secs(u64::from(n))).unwrap();
            }
        }
    }
    assert!(store.find(&key(0)).is_some(), "used: now the youngest");
    store.keep(&key(8), &contents).unwrap();
    let there: Vec<u32> = (0..9).filter(|n| store.find(&key(*n)).is_some()).collect();
    assert_eq!(there, [0, 3, 4, 5, 6, 7, 8]);
    assert!(store.keep(&key(9), &vec![0; 100 << 10]).is_err(), "more than all");
}

#[test]
fn a_directory_that_others_can_write_to_is_not_used() {
    let directory = Directory::new("others");
    Store::at(&directory.0, 1 << 20).unwrap();
    std::fs::set_permissions(&directory.0, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(Store::at(&directory.0, 1 << 20).is_err());
    let link = Directory::new("link");
    std::fs::set_permissions(&directory.0, PermissionsExt::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(&directory.0, &link.0).unwrap();
    assert!(Store::at(&link.0, 1 << 20).is_err());
    std::fs::remove_file(&link.0).unwrap();
}

#[test]
fn what_compilers_never_ask_is_refused() {
    crate::cudart::tests::install_host();
    let mut key = std::ptr::null_mut();
    let text = c"x".as_ptr();
    // SAFETY: readable bytes, texts and places for answers, or nulls; each key ends once.
    unsafe {
        assert_eq!(make_key(&raw mut key, 1, std::ptr::null(), 4, text, text, text, 90, 0), code::ERROR_INVALID_VALUE);
        assert_eq!(make_key(&raw mut key, 1, b"code".as_ptr(), 0, text, text, text, 90, 0), code::ERROR_INVALID_VALUE);
        assert_eq!(
            make_key(&raw mut key, 1, b"code".as_ptr(), 4, text, std::ptr::null(), text, 90, 0),
            code::ERROR_INVALID_VALUE
        );
        assert_eq!(make_key(std::ptr::null_mut(), 1, b"code".as_ptr(), 4, text, text, text, 90, 0), code::ERROR_INVALID_VALUE);
        assert_eq!(make_key(&raw mut key, 1, b"code".as_ptr(), 4, text, text, text, 90, 0), code::SUCCESS);
        let (mut data, mut bytes) = (std::ptr::null_mut(), 0);
        assert_eq!(find(key, 1, &raw mut data, &raw mut bytes), code::ERROR_INVALID_VALUE);
        assert_eq!(find(std::ptr::null(), 0, &raw mut data, &raw mut bytes), code::ERROR_INVALID_VALUE);
        assert_eq!(find(key, 0, std::ptr::null_mut(), &raw mut bytes), code::ERROR_INVALID_VALUE);
        assert_eq!(keep(key, 0, std::ptr::null(), 4), code::ERROR_INVALID_VALUE);
        assert_eq!(keep(key, 0, b"code".as_ptr(), 0), code::ERROR_INVALID_VALUE);
        assert_eq!(free_data(data), code::SUCCESS);
        assert_eq!(end_key(key), code::SUCCESS);
        assert_eq!(end_key(std::ptr::null_mut()), code::ERROR_INVALID_VALUE);
    }
}

#[test]
fn machine_code_of_bitcode_depends_on_what_its_ptx_was_asked_with() {
    let (bitcode, text) = (b"BC\xC0\xDE and so on", b"HOST64");
    let ask = |kind, code: &[u8], options: &[u8]| key_of([kind, 90, 0], code, [options, text, b"1"]);
    assert_eq!(ask(MACHINE_CODE, bitcode, b"-arch=sm_90"), None, "its options are not known");
    ask(PTX, bitcode, b"-prec-div=1").unwrap();
    let exact = ask(MACHINE_CODE, bitcode, b"-arch=sm_90").unwrap();
    ask(PTX, bitcode, b"-prec-div=0").unwrap();
    let fast = ask(MACHINE_CODE, bitcode, b"-arch=sm_90").unwrap();
    assert_ne!(exact, fast);
    ask(PTX, b"BC\xC0\xDE other", b"-prec-div=1").unwrap();
    assert_eq!(ask(MACHINE_CODE, bitcode, b"-arch=sm_90"), None);
    assert!(ask(MACHINE_CODE, b".version 8.0", b"-arch=sm_90").is_some(), "PTX says all by itself");
}

#[test]
fn only_files_of_its_own_make_room() {
    let directory = Directory::new("others-files");
    let store = Store::at(&directory.0, 3 * 4096).unwrap();
    std::fs::write(directory.0.join("README.md"), [0; 40000]).unwrap();
    for n in 0..8 {
        store.keep(&key(n), b"result").unwrap();
    }
    assert!(directory.0.join("README.md").exists() && store.find(&key(7)).is_some());
}

#[test]
fn a_directory_that_is_exchanged_is_not_used() {
    let (directory, other) = (Directory::new("exchanged"), Directory::new("elsewhere"));
    let store = Store::at(&directory.0, 1 << 20).unwrap();
    Store::at(&other.0, 1 << 20).unwrap().keep(&key(0), b"other").unwrap();
    std::fs::remove_dir(&directory.0).unwrap();
    std::os::unix::fs::symlink(&other.0, &directory.0).unwrap();
    assert_eq!(store.find(&key(0)), None, "a link leads elsewhere");
    assert!(store.keep(&key(1), b"result").is_err());
    std::fs::remove_file(&directory.0).unwrap();
    std::fs::rename(&other.0, &directory.0).unwrap();
    std::fs::set_permissions(&directory.0, PermissionsExt::from_mode(0o770)).unwrap();
    assert_eq!(store.find(&key(0)), None, "others can write to it");
    assert!(store.keep(&key(1), b"result").is_err());
    std::fs::set_permissions(&directory.0, PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(store.find(&key(0)).as_deref(), Some(&b"other"[..]));
    assert_eq!(directory.files().len(), 1);
}

#[test]
fn links_and_files_of_great_length_are_not_read() {
    let directory = Directory::new("links");
    let store = Store::at(&directory.0, 1 << 30).unwrap();
    store.keep(&key(0), b"result").unwrap();
    let path = directory.files().pop().unwrap();
    // As many bytes as a file may have, of which only the first are there.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(256 << 20).unwrap();
    assert_eq!(store.find(&key(0)), None);
    assert!(!path.exists(), "it is made anew");
    store.keep(&key(1), b"another").unwrap();
    let other = directory.files().pop().unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    assert_eq!(store.find(&key(0)), None);
    assert!(path.symlink_metadata().is_ok() && other.exists(), "a link is left alone");
}

#[test]
fn a_forked_process_does_not_wait_for_threads_that_it_does_not_have() {
    static VALUE: AtomicPtr<u32> = AtomicPtr::new(std::ptr::null_mut());
    let (begun, go) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|s| {
        let slow = s.spawn(|| {
            once(&VALUE, || {
                begun.wait();
                go.wait();
                1
            })
        });
        // What a child of this moment finds: the thread that makes the value, and never ends.
        begun.wait();
        assert_eq!(*once(&VALUE, || 2), 2);
        go.wait();
        assert_eq!(*slow.join().unwrap(), 2, "one value for all");
    });
}
