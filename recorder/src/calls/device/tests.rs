use super::*;

fn text(len: usize, text: &str) -> Result<Vec<u8>, Code> {
    let mut to = vec![0xffu8; len.max(1)];
    give_text(to.as_mut_ptr().cast(), len as c_int, text).map(|()| to)
}

#[test]
fn a_text_is_cut_to_its_buffer_and_ends_with_zero() {
    assert_eq!(text(4, "GPU name"), Ok(b"GPU\0".to_vec()));
    assert_eq!(text(1, "GPU"), Ok(vec![0]));
    assert_eq!(text(4, "GPU"), Ok(b"GPU\0".to_vec()));
    assert_eq!(text(6, "GPU"), Ok(b"GPU\0\xff\xff".to_vec()), "the rest is left alone");
    assert_eq!(text(3, ""), Ok(b"\0\xff\xff".to_vec()));
}

#[test]
fn a_buffer_must_have_space() {
    let mut byte = 0;
    for len in [0, -1, c_int::MIN] {
        assert_eq!(give_text(&raw mut byte, len, "x"), Err(code::ERROR_INVALID_VALUE), "{len}");
    }
    assert_eq!(give_text(std::ptr::null_mut(), 8, "x"), Err(code::ERROR_INVALID_VALUE));
}
