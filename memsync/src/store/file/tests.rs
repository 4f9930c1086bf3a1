use super::*;

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("mrcuda-file-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file without pages, which is complete, and its seal.
fn complete(path: &Path) -> (PageFile, [u8; 32]) {
    let file = PageFile::create(path, u64::MAX).expect("a file");
    let seal = file.seal(&[], &[]).expect("sealed");
    (file, seal)
}

#[test]
fn a_file_has_one_writer() {
    let directory = Directory::new("writer");
    let path = directory.0.join("one");
    let (first, seal) = complete(&path);
    let second = OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let refused = lock_for_writing(&second, &path, Duration::from_millis(30)).expect_err("it is being written");
    assert!(refused.to_string().ends_with("the file is being written by another process"), "{refused}");
    drop(second);
    PageFile::open(&path, &seal, 0).expect("a reader needs no lock");
    // A writer waits for the one before it.
    let since = Instant::now();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
    });
    let (second, ..) = PageFile::open(&path, &seal, u64::MAX).expect("the first one has ended");
    assert!(since.elapsed() >= Duration::from_millis(90), "{:?}", since.elapsed());
    ends.join().expect("ended");
    drop(second);
    PageFile::open(&path, &seal, u64::MAX).expect("nobody writes");
}

#[test]
fn what_could_not_be_written_takes_no_room() {
    let directory = Directory::new("failed");
    let path = directory.0.join("one");
    let mut file = PageFile::create(&path, u64::MAX).expect("a file");
    let page: Vec<u8> = (0..=255).collect();
    let read_only = File::open(&path).expect("open");
    let writable = std::mem::replace(&mut file.file, read_only);
    for _ in 0..3 {
        assert!(matches!(file.write([&page[..]].into_iter()), Err(SyncError::File { what: "write", .. })));
    }
    file.file = writable;
    let entries = file.write([&page[..]].into_iter()).expect("written");
    assert_eq!(entries[0].offset, HEADS as u64, "where the first attempt was");
    assert_eq!(lock(&file.room).extents.end(), HEADS as u64 + u64::from(entries[0].stored));
}
