use super::*;

#[test]
fn a_location_passed_by_value_has_a_kind_and_a_number() {
    assert_eq!(parts(0x0000_0003_0000_0001), (1, 3));
    assert_eq!(parts(u64::from(u32::MAX) << 32 | 2), (2, -1));
}

#[test]
fn the_older_functions_name_the_processor_by_a_number() {
    assert_eq!((named(CPU), named(0), named(5)), ((LOCATION_HOST, 0), (LOCATION_DEVICE, 0), (LOCATION_DEVICE, 5)));
}

#[test]
fn memory_that_is_not_managed_is_refused() {
    assert_eq!((check_range(0x1000, 8), check_range(0, 0)), (Err(code::ERROR_INVALID_VALUE), Err(code::ERROR_INVALID_VALUE)));
}
