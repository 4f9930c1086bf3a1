//! `cuGetProcAddress`: symbols by base name and version.

use super::{Export, Out, Res, Text, abi};
use crate::config;
use cuda_api::sys::{CUdriverProcAddressQueryResult, CUresult};
use cuda_api::versions::{self, Lookup};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;
const NEEDS_NEWER: c_int = 2;

abi! {
    early fn cuGetProcAddress [gone] (
        symbol: Text as *const c_char, function: Out<*mut c_void> as *mut *mut c_void, version: c_int, flags: u64,
    ) {
        // Runtimes of CUDA 11 crash on success with NULL, so this form fails instead.
        match find(symbol, version, flags)? {
            (address, FOUND) => function.set(address),
            _ => {
                function.set(std::ptr::null_mut())?;
                Err(CUresult::CUDA_ERROR_NOT_FOUND)
            }
        }
    }

    early fn cuGetProcAddress_v2(
        symbol: Text as *const c_char, function: Out<*mut c_void> as *mut *mut c_void, version: c_int, flags: u64,
        status: Out<c_int> as *mut CUdriverProcAddressQueryResult,
    ) {
        let (address, found) = find(symbol, version, flags)?;
        status.set_if_wanted(found);
        function.set(address)
    }
}

fn find(symbol: Text, version: c_int, flags: u64) -> Res<(*mut c_void, c_int)> {
    let name = symbol.get()?;
    if flags > 3 || version > config::get().driver_version {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(match versions::resolve(name, version, flags) {
        // A function that this driver does not have is like one that does not exist.
        Lookup::Found(symbol) => export(symbol).map_or((std::ptr::null_mut(), NOT_FOUND), |address| (address, FOUND)),
        Lookup::NeedsNewer => (std::ptr::null_mut(), NEEDS_NEWER),
        Lookup::Unknown => (std::ptr::null_mut(), NOT_FOUND),
    })
}

/// Address of an exported symbol.
fn export(symbol: &str) -> Option<*mut c_void> {
    static BY_NAME: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let map = BY_NAME.get_or_init(|| all().map(|e| (e.name, e.address as usize)).collect());
    map.get(symbol).map(|address| *address as *mut c_void)
}

/// Every exported symbol.
fn all() -> impl Iterator<Item = &'static Export> {
    BY_SUBJECT.iter().chain(super::graph::FORMS).copied().flatten()
}

static BY_SUBJECT: &[&[Export]] = &[
    super::array::EXPORTS,
    super::context::EXPORTS,
    super::device::EXPORTS,
    super::event::EXPORTS,
    super::external::EXPORTS,
    super::function::EXPORTS,
    super::graph::EXPORTS,
    super::green::EXPORTS,
    super::launch::EXPORTS,
    super::library::EXPORTS,
    super::linker::EXPORTS,
    super::managed::EXPORTS,
    super::memcpy::EXPORTS,
    super::memory::EXPORTS,
    super::mempool::EXPORTS,
    super::memset::EXPORTS,
    super::module::EXPORTS,
    super::old_launch::EXPORTS,
    super::pointer::EXPORTS,
    EXPORTS,
    super::reference::EXPORTS,
    super::stream::EXPORTS,
    super::stream_attribute::EXPORTS,
    super::stream_memory::EXPORTS,
    super::system::EXPORTS,
    super::tables::EXPORTS,
    super::texture::EXPORTS,
    super::logs_and_coredump::EXPORTS,
    super::vmm::EXPORTS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_export_is_a_function_of_the_header() {
        let known: std::collections::HashSet<_> = versions::symbols().iter().map(|s| s.symbol).collect();
        let odd: Vec<_> = all().map(|e| e.name).filter(|n| !known.contains(n)).collect();
        assert!(odd.is_empty(), "not in cuda.h: {odd:?}");
    }

    #[test]
    fn look_ups_give_own_symbols() {
        assert!(export("cuMemAlloc_v2").is_some());
        assert!(export("cuGraphLaunch_ptsz").is_some() && export("cuGraphicsMapResources").is_none());
    }
}
