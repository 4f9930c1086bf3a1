use super::*;

const PLAIN: Record = Record {
    seq: 0,
    id: 1,
    role: Role::Plain,
    setting: None,
    device: 0,
    creates: &[],
    ends: None,
    uses: &[],
    body: &[],
    reply: &[],
};

fn encoded(r: &Record) -> Vec<u64> {
    // What was there before must not show through.
    let mut words = vec![u64::MAX; encoded_len(r).unwrap() as usize / 8];
    words[0] = encode(r, &mut words);
    words
}

/// With a correct checksum.
fn sealed(mut words: Vec<u64>) -> Vec<u64> {
    let mut sum = Sum::of(size_of_val(&words[..]));
    sum.add_all(&words[1..]);
    words[0] = words[0] as u32 as u64 | u64::from(sum.value()) << 32;
    words
}

#[test]
fn records_of_every_shape_come_back() {
    let (handles, bytes) = ([1, u64::MAX, 3, 4], [0xa5u8; 40]);
    for n in 0..3 {
        for body in 0..18 {
            for reply in [0, 1, 7, 8, 9] {
                for (ends, setting) in [(None, None), (Some(9), None), (None, Some([5, 6])), (Some(0), Some([0, u64::MAX]))] {
                    let (creates, uses) = (&handles[..n], &handles[..2 - n]);
                    let r = Record { creates, uses, ends, setting, body: &bytes[..body], reply: &bytes[..reply], ..PLAIN };
                    let words = encoded(&r);
                    assert_eq!((checked(&words), view(&words)), (Ok(r), Ok(r)));
                }
            }
        }
    }
}

#[test]
fn numbers_of_every_size_come_back() {
    for role in [Role::Plain, Role::Stays, Role::Load, Role::LightLoad, Role::Child] {
        let r = Record { seq: u64::MAX, id: u16::MAX, device: u32::MAX, role, ..PLAIN };
        assert_eq!(checked(&encoded(&r)), Ok(r));
    }
}

#[test]
fn a_view_borrows_from_the_words() {
    let r = Record { creates: &[1, 2], uses: &[3], body: b"body", ..PLAIN };
    let words = encoded(&r);
    let seen = checked(&words).unwrap();
    assert_eq!((seen.creates.as_ptr(), seen.uses.as_ptr()), (&raw const words[5], &raw const words[7]));
    assert_eq!(seen.body.as_ptr(), (&raw const words[8]).cast());
}

#[test]
fn every_changed_bit_is_found() {
    let words = encoded(&Record { seq: 7, creates: &[1], ends: Some(2), uses: &[3], body: b"abc", reply: b"defgh", ..PLAIN });
    for at in 0..words.len() {
        for bit in 0..64 {
            let mut damaged = words.clone();
            damaged[at] ^= 1 << bit;
            assert!(checked(&damaged).is_err(), "word {at}, bit {bit}");
        }
    }
}

#[test]
fn words_in_another_order_are_found() {
    let words = encoded(&Record { creates: &[1, 2, 3], body: &[7; 32], ..PLAIN });
    for at in 1..words.len() - 1 {
        let mut damaged = words.clone();
        damaged.swap(at, at + 1);
        assert_eq!(checked(&damaged).is_err(), words[at] != words[at + 1], "word {at}");
    }
}

#[test]
fn a_record_of_another_length_is_refused() {
    let words = encoded(&Record { body: &[7; 32], ..PLAIN });
    for n in 1..words.len() {
        assert_eq!(checked(&words[..n]), Err("its length word does not fit"), "{n}");
    }
    assert!(checked(&[]).is_err());
    let longer = [&words[..], &[0]].concat();
    assert_eq!(checked(&longer), Err("its length word does not fit"));
}

#[test]
fn unknown_roles_and_flags_are_refused() {
    let words = encoded(&PLAIN);
    for flags in (0..16).map(|bit| 1u64 << bit).filter(|flags| *flags > 16).chain([5, 6, 7]) {
        let mut other = words.clone();
        other[2] |= flags << 16;
        assert_eq!(checked(&sealed(other)), Err("it has flags that this version does not know"), "{flags:#x}");
    }
}

#[test]
fn counts_beyond_the_record_are_refused() {
    let words = encoded(&Record { creates: &[1], uses: &[2], body: &[7; 8], reply: &[7; 8], ..PLAIN });
    for (word, shift) in [(3, 0), (3, 32), (4, 0), (4, 32)] {
        let mut other = words.clone();
        other[word] += 100 << shift;
        assert_eq!(checked(&sealed(other)), Err("its fields are longer than the record"), "{word} {shift}");
        let mut other = words.clone();
        other[word] |= 0x7fff_ffff << shift;
        assert_eq!(checked(&sealed(other)), Err("a length in it is beyond the format's limit"), "{word} {shift}");
    }
}

#[test]
fn bytes_that_no_field_covers_are_refused() {
    let words = encoded(&Record { body: &[7; 5], ..PLAIN });
    let mut other = words.clone();
    *other.last_mut().unwrap() |= 1 << 63;
    assert_eq!(checked(&sealed(other)), Err("its fields are shorter than the record"));
    let mut other = words;
    other[3] = 0;
    assert_eq!(checked(&sealed(other)), Err("its fields are shorter than the record"));
}

#[test]
fn length_words_are_checked() {
    assert_eq!((check_len(40), check_len(48)), (Ok(40), Ok(48)));
    assert_eq!(check_len(41), Err("its length is not a multiple of 8"));
    assert_eq!(check_len(32), Err("its length is less than that of its fixed fields"));
    assert_eq!(check_len(u32::MAX - 7), Err("its length is beyond the format's limit"));
}

#[test]
fn the_length_is_that_of_all_fields_in_whole_words() {
    let len = |r: Record| encoded_len(&r).unwrap();
    assert_eq!(
        (len(PLAIN), len(Record { body: &[1], ..PLAIN }), len(Record { body: &[1; 8], reply: &[1], ..PLAIN })),
        (40, 48, 56)
    );
    assert_eq!(len(Record { creates: &[1], ends: Some(1), uses: &[1, 2], setting: Some([1, 2]), ..PLAIN }), 40 + 6 * 8);
}

#[test]
fn an_owned_record_is_the_same_record() {
    let r = Record { seq: 3, creates: &[1], ends: Some(2), uses: &[3], setting: Some([4, 5]), body: b"b", reply: b"r", ..PLAIN };
    assert_eq!(OwnedRecord::from(r).as_record(), r);
}
