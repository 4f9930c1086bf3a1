//! Fuzz target for the files of stores: heads, and lists with right hashes over wrong contents.

use super::file::{ENTRY, Head, PageFile, read_list};
use crate::region::{Kind, PAGE, REGION_BYTES, Region};
use fuzz::Limit;

/// The list is as long as the input; its entries take more room in memory.
const LIMIT: Limit = Limit { bytes: 1 << 20, each: 16 };

#[test]
fn files() {
    let directory = std::env::temp_dir().join(format!("mrcuda-store-fuzz-{}", std::process::id()));
    let path = directory.join("one");
    let file = PageFile::create(&path, u64::MAX).expect("a file");
    let regions = [
        Region { address: 0x10_0000, bytes: PAGE + 5, kind: Kind::Chunk },
        Region { address: 0x30_0000, bytes: 9, kind: Kind::Global },
    ];
    let pages = [vec![7; PAGE as usize], vec![1, 2, 3, 4, 5], (0..9).collect()];
    let entries = file.write(pages.iter().map(Vec::as_slice)).expect("written");
    let entries: Vec<_> = [0x10_0000, 0x10_0000 + PAGE, 0x30_0000].into_iter().zip(entries).collect();
    file.seal(&regions, &entries).expect("sealed");
    let whole = std::fs::read(&path).expect("read");
    std::fs::remove_dir_all(&directory).expect("removed");
    let head: Vec<u8> = whole[..4096].to_vec();
    let list = whole[whole.len() - (16 + 2 * REGION_BYTES + 3 * ENTRY)..].to_vec();
    assert!(read_list(&list, whole.len() as u64).is_some());
    fuzz::run("files-of-parked-jobs", [head, list], LIMIT, |input| {
        if let Some((regions, entries)) = read_list(input, 1 << 40) {
            assert!(regions.len() * REGION_BYTES + entries.len() * ENTRY + 16 == input.len());
        }
        if let Some(head) = input.first_chunk()
            && let Ok((known, seal)) = Head::read(head)
        {
            assert_eq!(known.write(), (*head, seal));
        }
    });
}
