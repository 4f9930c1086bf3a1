use super::*;

fn stream_body(flags: u32) -> Vec<u8> {
    crate::base::encoding::encode(&cuStreamCreate::Sent { phStream: 7, Flags: flags })
}

fn event_body(flags: u32) -> Vec<u8> {
    crate::base::encoding::encode(&cuEventCreate::Sent { phEvent: 9, Flags: flags })
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
    let body = crate::base::encoding::encode(&cuStreamCreateWithPriority::Sent { phStream: 7, flags: 1, priority: -5 });
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
