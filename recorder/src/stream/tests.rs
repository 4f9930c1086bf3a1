use super::*;

#[test]
fn moments_grow_with_the_place_and_its_order() {
    assert!(moment(0, 0) < moment(1, 0) && moment(1, 7) < moment(1, 8) && moment(1, (1 << POSITION_BITS) - 1) < moment(2, 0));
    // A moment that is too large is never complete.
    assert_eq!((moment(1, 1 << POSITION_BITS), moment(u64::MAX >> POSITION_BITS, 0)), (u64::MAX, u64::MAX));
}

fn stream_body(flags: u32) -> Vec<u8> {
    crate::memory::encode(&cuStreamCreate::Sent { phStream: 7, Flags: flags })
}

fn event_body(flags: u32) -> Vec<u8> {
    crate::memory::encode(&cuEventCreate::Sent { phEvent: 9, Flags: flags })
}

#[test]
fn a_stream_has_one_flag() {
    for (flags, is_valid) in [(0, true), (1, true), (2, false), (3, false), (1 << 31, false)] {
        let made = creation(cuStreamCreate::Fn::ID, &stream_body(flags));
        assert_eq!(made.as_ref().map(|c| c.map(|c| (c.handle, c.flags))).ok(), is_valid.then_some(Some((7, flags))), "{flags}");
        if !is_valid {
            assert_eq!(made.err(), Some(code::ERROR_INVALID_VALUE));
        }
    }
}

#[test]
fn a_stream_keeps_its_priority() {
    let body = crate::memory::encode(&cuStreamCreateWithPriority::Sent { phStream: 7, flags: 1, priority: -5 });
    let made = creation(cuStreamCreateWithPriority::Fn::ID, &body).unwrap().unwrap();
    assert_eq!((made.handle, made.flags, made.priority), (7, 1, -5));
}

#[test]
fn an_event_for_other_processes_has_no_times() {
    let is_valid = |flags| creation(cuEventCreate::Fn::ID, &event_body(flags)).is_ok();
    assert_eq!((0..9).map(is_valid).collect::<Vec<_>>(), [true, true, true, true, false, false, true, true, false]);
}

#[test]
fn other_calls_create_no_stream_or_event() {
    assert!(matches!(creation(0x0501, &[]), Ok(None)));
}

#[test]
fn a_creation_that_is_cut_short_is_an_error() {
    let body = stream_body(0);
    for n in 0..body.len() {
        assert_eq!(creation(cuStreamCreate::Fn::ID, &body[..n]).err(), Some(code::ERROR_UNKNOWN), "{n}");
    }
}

#[test]
fn moments_grow_with_epoch_and_position() {
    let all = [moment(0, 0), moment(0, 1), moment(0, (1 << 48) - 1), moment(1, 0), moment(1, 8), moment(2, 0), moment(65_534, 0)];
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:x?}");
}

#[test]
fn moments_that_do_not_fit_are_never_over() {
    assert_eq!((moment(0, 1 << 48), moment(65_535, 0), moment(u64::MAX, u64::MAX)), (u64::MAX, u64::MAX, u64::MAX));
    assert_ne!(moment(65_534, (1 << 48) - 1), u64::MAX);
}
