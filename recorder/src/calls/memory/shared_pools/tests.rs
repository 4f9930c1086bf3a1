use super::*;

#[test]
fn pools_are_shared_as_descriptors_without_flags() {
    assert_eq!(shareable(HANDLE_FILE_DESCRIPTOR, 0), Ok(()));
    for kind in 0..20 {
        assert_eq!(shareable(kind, 1), Err(code::ERROR_INVALID_VALUE), "{kind}");
    }
}

#[test]
fn other_handles_of_pools_are_not_supported_or_unknown() {
    let all: Vec<Code> = (0..10).filter_map(|kind| shareable(kind, 0).err()).collect();
    let (no, bad) = (code::ERROR_NOT_SUPPORTED, code::ERROR_INVALID_VALUE);
    assert_eq!(all, [bad, no, bad, no, bad, bad, bad, no, bad]);
}
