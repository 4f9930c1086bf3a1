//! Page hashes, tables of them, and copies of pieces.

use super::{LEGACY, Place, place};
use cuda_api::code;
use cuda_api::ops::id;
use executor::{NO_HASH, PageKey, Piece, Span, Theirs};

#[test]
fn hashes_are_those_of_the_host_and_depend_on_bytes_length_and_key() {
    let p = place();
    let a = p.map(0, 2 << 20);
    let page: Vec<u8> = (0..65536u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    p.write(a, &page, LEGACY);
    p.write(a + 200_003, &page, LEGACY);
    p.apply(id::CONTEXT_SYNC, &[]);
    let key = PageKey::from_seed(&[7; 32]);
    let span = |(address, bytes): &(u64, u64)| Span { address: *address, bytes: *bytes, skipped: false };
    let all = |pages: &[(u64, u64)]| p.exec.hash(0, &key, pages.iter().map(span)).expect("hash").as_ref().to_vec();
    let same = all(&[(a, 65536), (a + 200_003, 65536), (a, 65535), (a + 200_003, 65535), (a, 5), (a + 200_003, 5)]);
    assert_eq!(same[0], same[1]);
    assert_eq!(same[2], same[3]);
    assert_eq!(same[4], same[5]);
    assert!(!same.contains(&NO_HASH) && same[0] != same[2] && same[2] != same[4]);
    // Every length of a last piece, in several rows, aligned and not.
    let lengths = (1..34).chain(2040..2066).chain([4096, 32767, 32768, 65519, 65520, 65521, 65534, 65535, 65536]);
    let pages: Vec<(u64, u64)> = lengths.flat_map(|n| [(a, n), (a + 200_003, n)]).collect();
    for ((at, n), hash) in pages.iter().zip(all(&pages)) {
        assert_eq!(hash, key.hash(&page[..*n as usize]), "{n} bytes at {at:#x}");
    }
    let other = PageKey::from_seed(&[8; 32]);
    assert_eq!(p.exec.hash(3, &other, [span(&(a, 65536))].into_iter()).expect("hash").as_ref(), [other.hash(&page)]);
    assert_ne!(other.hash(&page), key.hash(&page));
    assert_eq!(
        all(&[(a, 16), (a + (2 << 20) - 8, 16), (a + 16, 16)]).iter().map(|h| *h != NO_HASH).collect::<Vec<_>>(),
        [true, false, true]
    );
    let beyond = [Piece { address: a + (4 << 20), at: 0, bytes: 8, raw: false }];
    let flight = p.exec.copy_from_gpu(3, p.exec.pinned(4096).expect("buffer"), &beyond, true).expect("copy");
    assert_eq!(flight.missing(), 1);
    flight.wait().expect("landed");
    for at in [0u64, 1, 15, 16, 4095, 32768, 65535] {
        p.write(a + at, &[page[at as usize] ^ 0x10], LEGACY);
        p.apply(id::CONTEXT_SYNC, &[]);
        assert_ne!(all(&[(a, 65536)])[0], same[0], "byte {at}");
        p.write(a + at, &[page[at as usize]], LEGACY);
    }
    p.apply(id::CONTEXT_SYNC, &[]);
    assert_eq!(all(&[(a, 65536)])[0], same[0]);
    assert_eq!(p.exec.hash(0, &key, [span(&(a, 0))].into_iter()).map(drop), Err(code::ERROR_INVALID_VALUE));
    p.leave();
}

/// Writes so many bytes, no two pages of which are alike, and returns them.
fn fill(p: &Place, at: u64, bytes: u32) -> Vec<u8> {
    let bytes: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    p.write(at, &bytes, LEGACY);
    p.apply(id::CONTEXT_SYNC, &[]);
    bytes
}

#[test]
fn small_pieces_are_copied_at_once_and_others_besides() {
    let p = place();
    let a = p.map(0, 4 << 20);
    let bytes = fill(&p, a, 4 << 20);
    // Pages, a run as long as the driver copies, pieces that no kernel takes (not aligned, here or in the buffer), what is missing.
    let places: [(u64, usize); 9] = [
        (0, 65536),
        (131_072, 65536),
        (1 << 20, 300_000),
        (200_000, 48),
        (300_003, 65536),
        (400_000, 5),
        (500_000, 64),
        (3 << 20, 65536),
        (64 << 20, 16),
    ];
    let mut at = 0;
    let pieces: Vec<Piece> = places
        .iter()
        .map(|(offset, bytes)| {
            let piece = Piece { address: a + offset, at, bytes: *bytes, raw: false };
            at += bytes;
            piece
        })
        .collect();
    let there = &pieces[..8];
    let part = |p: &Piece| (p.address - a) as usize..(p.address - a) as usize + p.bytes;
    let mut before = None;
    for at_rest in [false, true, true] {
        let mut buffer = p.exec.pinned(1 << 20).expect("buffer");
        buffer.bytes_mut().fill(0xee);
        let flight = p.exec.copy_from_gpu(1, buffer, &pieces, at_rest).expect("copy");
        assert_eq!(flight.missing(), 1);
        let buffer = flight.wait().expect("landed");
        assert!(there.iter().all(|p| buffer.bytes()[p.at..p.at + p.bytes] == bytes[part(p)]), "{at_rest}");
        let (last, rest) = (there[7].at + there[7].bytes, buffer.bytes().len());
        assert!(buffer.bytes()[last..rest].iter().all(|b| *b == 0xee), "nothing else is written");
        // And back, changed: only the pieces change.
        let mut buffer = buffer;
        buffer.bytes_mut().iter_mut().for_each(|b| *b ^= 0x5a);
        p.exec.copy_to_gpu(2, buffer, there, at_rest).expect("copy").wait().expect("landed");
        let mut want = bytes.clone();
        there.iter().for_each(|p| want[part(p)].iter_mut().for_each(|b| *b ^= 0x5a));
        let got = p.read(a, 4 << 20, LEGACY);
        assert!(got == want, "{at_rest}: {:?}", got.iter().zip(&want).position(|(a, b)| a != b));
        assert!(before.replace(got.clone()).is_none_or(|before| before == got));
        p.write(a, &bytes, LEGACY);
        p.apply(id::CONTEXT_SYNC, &[]);
    }
    p.leave();
}

/// Pages of the same chunk, numbered from its beginning, at each of these places of a table.
fn spans_at(chunk: u64, pages: &[(u64, u64)]) -> Vec<Span> {
    pages.iter().map(|(page, bytes)| Span { address: chunk + page * 65536, bytes: *bytes, skipped: false }).collect()
}

#[test]
fn a_table_has_the_hashes_of_many_ranges_in_their_order() {
    let p = place();
    let a = p.map(0, 2 << 20);
    let bytes = fill(&p, a, 2 << 20);
    let key = PageKey::from_seed(&[9; 32]);
    // More ranges than one launch takes, most of one page and few bytes; some of several pages, skipped or freed.
    let mut spans = spans_at(a, &[(3, 5 * 65536 + 100), (0, 65536), (1, 65536), (20, 7)]);
    spans.push(Span { skipped: true, ..spans[0] });
    spans.push(Span { address: a + (1 << 30), bytes: 3 * 65536, skipped: false });
    spans.extend((0..4200u64).map(|i| Span { address: a + 16 * (i * 37 % 4099), bytes: 1 + i % 40, skipped: false }));
    spans.push(spans_at(a, &[(30, 2 * 65536)])[0]);
    let table = p.exec.hash(0, &key, spans.iter().copied()).expect("hash");
    let host = |s: &Span| -> Vec<_> {
        let from = (s.address - a) as usize;
        let there = bytes.get(from..from + s.bytes as usize).filter(|_| !s.skipped);
        there.map_or(vec![NO_HASH; s.bytes.div_ceil(65536) as usize], |b| b.chunks(65536).map(|page| key.hash(page)).collect())
    };
    let want: Vec<_> = spans.iter().flat_map(host).collect();
    assert!(table.as_ref() == want, "{:?}", table.as_ref().iter().zip(&want).position(|(a, b)| a != b));
    assert_eq!(table.missing(), 3, "what is skipped is not missing");
    // Their fold is the host's, too.
    assert_eq!(p.exec.fold(1, &key, &table).expect("fold"), key.fold(&want));
    p.leave();
}

#[test]
fn tables_are_compared_page_by_page() {
    let p = place();
    let table = |hashes: &[[u8; 32]]| {
        let mut table = p.exec.hashes(hashes.len()).expect("table");
        table.as_mut().copy_from_slice(hashes);
        table
    };
    for pages in [1usize, 31, 32, 33, 63, 64, 65, 5000] {
        for from in [0, 3] {
            let ours: Vec<[u8; 32]> = (0..from + pages).map(|i| [(i % 255) as u8 + 1; 32]).collect();
            let mut theirs = ours[from..].to_vec();
            // One bit of any part of a hash; a page that is not there is no difference.
            let differ: Vec<usize> = (0..pages).filter(|i| i % 7 == 0 || i + 1 == pages).collect();
            differ.iter().for_each(|i| theirs[*i][i % 32] ^= 0x80);
            (0..pages).filter(|i| i % 7 == 3 && !differ.contains(i)).for_each(|i| theirs[i] = NO_HASH);
            let bits = p.exec.differing(2, &table(&ours), from, Theirs::Received(&table(&theirs))).expect("compared");
            let set: Vec<usize> = (0..64 * bits.len()).filter(|i| bits[i / 64] >> (i % 64) & 1 == 1).collect();
            assert_eq!((set, bits.len()), (differ, pages.div_ceil(64)), "{pages} {from}");
        }
    }
    // Tables that do not belong together, and one that was never shown.
    let (two, three) = (table(&[[1; 32]; 2]), table(&[[1; 32]; 3]));
    for (from, theirs) in [(0, Theirs::Received(&two)), (1, Theirs::Received(&three)), (4, Theirs::Shown), (0, Theirs::Shown)] {
        assert_eq!(p.exec.differing(0, &three, from, theirs), Err(code::ERROR_INVALID_VALUE));
    }
    assert_eq!(p.exec.differing(0, &three, 3, Theirs::Shown), Ok(Vec::new()));
    p.leave();
}
