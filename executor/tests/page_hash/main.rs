//! The page hash by which moves choose what to send and verify what arrived, against pages that weak hashes confuse.

mod battery;
mod weak;

use battery::{BATCH, PAGE, findings, findings_in_batches, missed};
use cuda_api::address_map;
use cuda_api::code;
use cuda_api::ops::{Chunk, id};
use cuda_api::wire::Wire;
use executor::{Applied, Executor, Options, PageKey, Piece, Span};
use std::path::PathBuf;

/// Controls: the battery finds every weak hash, also the one that mrcuda had in the beginning, whose collisions made moves lose
/// bytes.
#[test]
fn weak_hashes_are_found() {
    let old = findings(5, weak::multiply_and_shift);
    assert_eq!(missed(&old), ["pairs of high bits", "signs in lattices"], "{old:?}");
    let all = [
        ("exclusive or", missed(&findings(5, weak::exclusive_or))),
        ("sum", missed(&findings(5, weak::sum))),
        ("sum by place", missed(&findings(5, weak::sum_by_place))),
        ("half products", missed(&findings(5, weak::half_products))),
    ];
    for (name, missed) in &all {
        assert!(!missed.is_empty(), "{name} passes");
    }
    // Each family is one that some weak hash does not pass.
    let unused: Vec<_> =
        old.keys().filter(|family| !missed(&old).contains(*family) && !all.iter().any(|(_, m)| m.contains(*family))).collect();
    assert!(unused.is_empty(), "nothing fails in {unused:?}; {all:?}");
}

/// Any key: what the bound leaves to chance is too rare to be seen.
fn key() -> PageKey {
    PageKey::from_seed(&std::array::from_fn(|i| (i * 37) as u8))
}

#[test]
fn the_page_hash_tells_all_pages_apart() {
    let key = key();
    let found = findings(2, |page| key.hash(page));
    assert!(missed(&found).is_empty(), "{found:?}");
}

/// softgpu, which cargo builds for this test and puts beside its executable; `MRCUDA_TEST_DRIVER` names another driver.
fn driver() -> PathBuf {
    if let Some(path) = std::env::var_os("MRCUDA_TEST_DRIVER") {
        return path.into();
    }
    let directory = std::env::current_exe().expect("own path").parent().expect("directory").to_owned();
    [directory.join("libsoftgpu.so"), directory.join("../libsoftgpu.so")].into_iter().find(|p| p.exists()).expect("libsoftgpu.so")
}

/// The kernel that moves use tells all pages apart and agrees with the host's hash. On softgpu only every 61st page is hashed.
#[test]
fn the_kernel_tells_all_pages_apart() {
    const DEVICE: u32 = 3;
    let every = if std::env::var_os("MRCUDA_TEST_DRIVER").is_some() { 1 } else { 61 };
    let exec = Executor::open(&Options { driver: driver(), gpu: 0, virtual_device: DEVICE }).expect("open");
    let base = address_map::own_base(DEVICE);
    let mut chunk = Vec::new();
    Chunk { address: base, bytes: (BATCH * PAGE) as u64 }.put(&mut chunk);
    assert!(matches!(exec.apply(id::CHUNK_MAP, &chunk, &mut Vec::new()), Applied::Done(code::SUCCESS)));
    let key = key();
    let found = findings_in_batches(every, |pages| {
        let mut buffer = exec.pinned(BATCH * PAGE).expect("buffer");
        let mut pieces = Vec::new();
        for (i, page) in pages.iter().enumerate() {
            buffer.bytes_mut()[i * PAGE..][..page.len()].copy_from_slice(page);
            pieces.push(Piece { address: base + (i * PAGE) as u64, at: i * PAGE, bytes: page.len(), raw: false });
        }
        exec.copy_to_gpu(0, buffer, &pieces, false).and_then(|flight| flight.wait()).expect("copy");
        let spans = pieces.iter().map(|p| Span { address: p.address, bytes: p.bytes as u64, skipped: false });
        let hashes = exec.hash(0, &key, spans).expect("hash").as_ref().to_vec();
        assert!(hashes.iter().zip(pages).all(|(hash, page)| *hash == key.hash(page)), "the kernel and the host differ");
        hashes
    });
    assert!(missed(&found).is_empty(), "{found:?}");
    exec.close();
}
