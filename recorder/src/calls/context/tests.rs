use super::*;

#[test]
fn a_context_has_one_way_of_waiting() {
    let ways: Vec<u32> = (0..8).filter(|flags| check_flags(*flags).is_ok()).collect();
    assert_eq!(ways, [0, 1, 2, 4]);
}

#[test]
fn unknown_flags_of_a_context_are_refused() {
    assert_eq!(
        (check_flags(1 << 31), check_primary_flags(1 << 31)),
        (Err(code::ERROR_INVALID_VALUE), Err(code::ERROR_INVALID_VALUE))
    );
}

#[test]
fn host_memory_need_not_be_mapped_for_a_primary_context() {
    assert_eq!((check_flags(CONTEXT_MAP_HOST), check_primary_flags(CONTEXT_MAP_HOST)), (Ok(()), Err(code::ERROR_INVALID_VALUE)));
    assert_eq!(check_primary_flags(4), Ok(()));
}

#[test]
fn a_null_context_is_refused_where_one_is_needed() {
    assert_eq!((given(0), given(7)), (Err(code::ERROR_INVALID_VALUE), Ok(7)));
}

#[test]
fn hexadecimal_digits_are_lower_case_and_padded() {
    assert_eq!((cuda_api::hex::hex(&[0, 0x0a, 0xff]), cuda_api::hex::hex(&[])), ("000aff".to_owned(), String::new()));
}
