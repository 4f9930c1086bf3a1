use super::*;

#[test]
fn every_attribute_of_streams_fits_a_value() {
    for (attribute, bytes) in KNOWN {
        assert_eq!(width(attribute), Ok(bytes));
        assert!(bytes <= STREAM_ATTRIBUTE_BYTES);
    }
}

#[test]
fn attributes_of_launches_only_are_refused() {
    for id in [Id::CU_LAUNCH_ATTRIBUTE_IGNORE, Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION] {
        assert_eq!(width(id as u32), Err(code::ERROR_INVALID_VALUE));
    }
    assert_eq!(width(u32::MAX), Err(code::ERROR_INVALID_VALUE));
}
