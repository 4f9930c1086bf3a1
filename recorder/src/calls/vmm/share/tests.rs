use super::*;

#[test]
fn only_descriptors_are_shared() {
    assert_eq!(check_shared_kind(HANDLE_FILE_DESCRIPTOR), Ok(()));
    assert!([2, 4, 8].into_iter().all(|kind| check_shared_kind(kind) == Err(code::ERROR_NOT_SUPPORTED)));
    assert!([0, 3, 16, u32::MAX].into_iter().all(|kind| check_shared_kind(kind) == Err(code::ERROR_INVALID_VALUE)));
}
