use super::*;

#[test]
fn words_for_graphs_come_back_as_they_were() {
    for operation in [1, 2, 4, 5] {
        let part = MemoryPart { operation, address: 0x2000_0000_0008, value: 0x1234_5678, flags: 3 };
        assert_eq!(part_of(&words_of(&part)), part);
    }
}

#[test]
fn barriers_have_flags_only() {
    for operation in [3, 6, 7] {
        let part = MemoryPart { operation, address: 0, value: 0, flags: 9 };
        assert_eq!(words_of(&part), [u64::from(operation) | 9 << 32, 0, 0, 0, 0, 0]);
        assert_eq!(part_of(&words_of(&part)), part);
    }
}

#[test]
fn the_padding_of_a_short_value_is_ignored() {
    let of = |operation| part_of(&[operation, 8, 0xdead_beef_0000_0007, 0, 0, 0]).value;
    assert_eq!((of(1), of(2), of(4), of(5)), (7, 7, 0xdead_beef_0000_0007, 0xdead_beef_0000_0007));
}

#[test]
fn the_addresses_of_all_parts_are_listed() {
    let parts = [[1, 8, 0, 0, 0, 0], [6, 99, 0, 0, 0, 0], [5, 16, 0, 0, 0, 0]];
    assert_eq!(addresses(&parts).collect::<Vec<_>>(), [8, 0, 16], "a barrier has none");
}
