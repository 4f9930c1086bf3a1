//! Settings of GPU core dumps (`cuCoredump…`): values that are stored and returned, globally and by context.
//!
//! No core dump is ever written; a failure at a place is reported as an error.

use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

const INVALID: Code = code::ERROR_INVALID_VALUE;
/// Bytes of a text with its NUL.
const TEXT: usize = 1024;

/// `CUcoredumpSettings`
const ON_EXCEPTION: u32 = 1;
const TRIGGER_HOST: u32 = 2;
const LIGHTWEIGHT: u32 = 3;
const USER_TRIGGER: u32 = 4;
const FILE: u32 = 5;
const PIPE: u32 = 6;
const FLAGS: u32 = 7;

/// By context (0: global) and setting.
static SET: Mutex<BTreeMap<(u64, u32), Vec<u8>>> = Mutex::new(BTreeMap::new());

fn width(setting: u32) -> Result<usize, Code> {
    match setting {
        ON_EXCEPTION | TRIGGER_HOST | LIGHTWEIGHT | USER_TRIGGER => Ok(1),
        FILE | PIPE => Ok(TEXT),
        FLAGS => Ok(4),
        _ => Err(INVALID),
    }
}

/// The default values (CUDA driver API reference, `cuCoredumpGetAttribute`).
fn initial(setting: u32) -> Vec<u8> {
    let name = |start: &str| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{start}.{}.{}", host.trim(), std::process::id()).into_bytes()
    };
    match setting {
        TRIGGER_HOST => vec![1],
        FILE => name("core.cuda"),
        PIPE => name("corepipe.cuda"),
        FLAGS => vec![0; 4],
        _ => vec![0],
    }
}

/// `cuCoredumpGetAttribute` for a context, or `cuCoredumpGetAttributeGlobal` for context 0. As in the driver, the
/// context is determined last.
///
/// # Errors
/// `INVALID_VALUE`: an unknown setting, no size, or a buffer that is too small; errors of `context`.
pub fn get(
    context: impl FnOnce() -> Result<u64, Code>,
    setting: u32,
    value: OutPtr<c_void>,
    size: InOutPtr<usize>,
) -> Result<(), Code> {
    let bytes = width(setting)?;
    if size.is_null() {
        return Err(INVALID);
    }
    if value.is_null() {
        return size.write(bytes);
    }
    let context = context()?;
    let set = lock(&SET);
    let known = set.get(&(context, setting)).or_else(|| set.get(&(0, setting))).cloned();
    let mut own = known.unwrap_or_else(|| initial(setting));
    if bytes == TEXT {
        own.push(0);
    }
    if size.read()? < own.len() {
        return Err(INVALID);
    }
    value.typed::<u8>().write_list(&own)
}

/// `cuCoredumpSetAttribute` for a context, or `cuCoredumpSetAttributeGlobal` for context 0.
///
/// # Errors
/// `INVALID_VALUE`: an unknown setting, one that is global only, or a size that does not fit it; errors of `context`.
pub fn set(
    context: impl FnOnce() -> Result<u64, Code>,
    setting: u32,
    value: InPtr<c_void>,
    size: InOutPtr<usize>,
) -> Result<(), Code> {
    let bytes = width(setting)?;
    if size.is_null() {
        return Err(INVALID);
    }
    let context = context()?;
    if context != 0 && matches!(setting, USER_TRIGGER | PIPE) {
        return Err(INVALID);
    }
    if value.is_null() {
        return size.write(bytes);
    }
    let given = size.read()?;
    if given > bytes || bytes != TEXT && given != bytes {
        return Err(INVALID);
    }
    let mut own = value.typed::<u8>().bytes(given)?.to_vec();
    if bytes == TEXT {
        own.truncate(own.iter().position(|b| *b == 0).unwrap_or(own.len()));
        if own.is_empty() || own.len() == TEXT {
            return Err(INVALID);
        }
    }
    lock(&SET).insert((context, setting), own);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(context: u64, setting: u32) -> Result<String, Code> {
        let (mut bytes, mut size) = ([0u8; TEXT], TEXT);
        get(|| Ok(context), setting, OutPtr::of_list(&mut bytes).untyped(), InOutPtr::of(&mut size))?;
        Ok(String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or_default()).into_owned())
    }

    #[test]
    fn contexts_have_what_all_have_unless_they_have_their_own() {
        assert!(text(7, FILE).unwrap().ends_with(&format!(".{}", std::process::id())));
        let put = |context: u64, setting: u32, value: &[u8]| {
            let mut size = value.len();
            set(|| Ok(context), setting, InPtr::of_list(value).untyped(), InOutPtr::of(&mut size))
        };
        put(0, FILE, b"all").unwrap();
        assert_eq!(text(7, FILE).unwrap(), "all");
        put(7, FILE, b"own\0more").unwrap();
        assert_eq!((text(7, FILE).unwrap(), text(8, FILE).unwrap()), ("own".to_owned(), "all".to_owned()));
        assert_eq!(put(7, PIPE, b"own"), Err(INVALID));
        assert_eq!(put(0, ON_EXCEPTION, b"12"), Err(INVALID));
        assert_eq!(put(0, 8, b"1"), Err(INVALID));
        let mut size = 0;
        get(|| Ok(0), FLAGS, OutPtr::null(), InOutPtr::of(&mut size)).unwrap();
        assert_eq!(size, 4);
    }
}
