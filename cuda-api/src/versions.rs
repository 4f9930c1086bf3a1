//! Selects the exported symbol for a base name, a version and a stream flag, as `cuGetProcAddress` does.
//!
//! The data is `functions-13.0.txt`: every base function of CUDA 13.0's cuda.h. The rule (docs/driver-facts.md 1.9 to
//! 1.12) was compared with the answers of a genuine 580 driver to all 440 requests of cudart 13.0, without a
//! difference.

use std::collections::HashMap;
use std::sync::OnceLock;

const LIST: &str = include_str!("../functions-13.0.txt");

/// One exported symbol of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Name in requests to `cuGetProcAddress`, for example `cuMemcpyHtoD`.
    pub base: &'static str,
    /// First version, as 1000 × major + 10 × minor, for which this symbol is selected.
    pub since: i32,
    /// Whether it is the per-thread-default-stream form (`_ptsz`, `_ptds`).
    pub per_thread: bool,
    /// Exported name, for example `cuMemcpyHtoD_v2_ptds`.
    pub symbol: &'static str,
}

/// The result of a look-up, as `CUdriverProcAddressQueryResult` distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The symbol to return.
    Found(&'static str),
    /// Known, but not in the requested version.
    NeedsNewer,
    /// Not a driver function.
    Unknown,
}

/// All symbols, in the order of cuda.h.
pub fn symbols() -> &'static [Symbol] {
    static ALL: OnceLock<Vec<Symbol>> = OnceLock::new();
    ALL.get_or_init(|| LIST.lines().filter(|l| !l.starts_with('#')).filter_map(parse).collect())
}

/// Base names in the order of cuda.h.
pub fn bases() -> Vec<&'static str> {
    let mut names: Vec<_> = symbols().iter().map(|s| s.base).collect();
    names.dedup();
    names
}

fn parse(line: &'static str) -> Option<Symbol> {
    let mut words = line.split(' ');
    let (base, since, form, symbol) = (words.next()?, words.next()?, words.next()?, words.next()?);
    Some(Symbol { base, since: since.parse().ok()?, per_thread: form != "-", symbol })
}

/// The first version with per-thread default streams.
const PER_THREAD_SINCE: i32 = 7000;

/// Resolves a request. `flags`: 0 default, 1 legacy stream, 2 per-thread default stream.
pub fn resolve(base: &str, version: i32, flags: u64) -> Lookup {
    static BY_BASE: OnceLock<HashMap<&'static str, Vec<Symbol>>> = OnceLock::new();
    let map = BY_BASE.get_or_init(|| {
        let mut m: HashMap<_, Vec<Symbol>> = HashMap::new();
        for s in symbols() {
            m.entry(s.base).or_default().push(*s);
        }
        m
    });
    let Some(forms) = map.get(base) else { return Lookup::Unknown };
    let newest =
        |per_thread: bool| forms.iter().filter(|s| s.per_thread == per_thread && s.since <= version).max_by_key(|s| s.since);
    // A function with per-thread forms has none of them before CUDA 7 (measured: its other form is not returned
    // either).
    let found = match flags & 2 != 0 && forms.iter().any(|s| s.per_thread) {
        true if version < PER_THREAD_SINCE => None,
        true => newest(true).or_else(|| newest(false)),
        false => newest(false),
    };
    found.map_or(Lookup::NeedsNewer, |s| Lookup::Found(s.symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_choose_the_abi() {
        assert_eq!(resolve("cuMemAlloc", 3020, 0), Lookup::Found("cuMemAlloc_v2"));
        assert_eq!(resolve("cuMemcpyHtoD", 7000, 2), Lookup::Found("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(resolve("cuCtxGetDevice", 2000, 0), Lookup::Found("cuCtxGetDevice"));
        assert_eq!(resolve("cuCtxGetDevice", 13000, 2), Lookup::Found("cuCtxGetDevice_v2"));
        assert_eq!(resolve("cuStreamGetCaptureInfo", 12030, 2), Lookup::Found("cuStreamGetCaptureInfo_v3_ptsz"));
        assert_eq!(resolve("cuGetProcAddress", 11030, 0), Lookup::Found("cuGetProcAddress"));
        assert_eq!(resolve("cuLibraryLoadData", 11080, 0), Lookup::NeedsNewer);
        assert_eq!(resolve("cuNoSuchThing", 13000, 0), Lookup::Unknown);
    }

    #[test]
    fn the_list_is_whole() {
        assert!(bases().len() >= 444);
        assert_eq!(symbols().len(), LIST.lines().filter(|l| !l.starts_with('#')).count());
    }
}
