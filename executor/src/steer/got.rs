//! Replaces entries of a loaded library's global offset table.
//!
//! The dynamic linker has filled these slots with the addresses of the functions that the library calls; the relocations that
//! give the location and name of each slot are still in memory (System V ABI, chapter "Dynamic Linking").

use super::{exits, hook, text};
use std::ffi::{CStr, c_char, c_void};
use std::io;

/// Number of replaced slots of each function.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slots {
    /// `mmap` and `mmap64`.
    pub(crate) mmap: usize,
    /// `munmap`.
    pub(crate) munmap: usize,
    /// `getenv` and `secure_getenv`.
    pub(crate) getenv: usize,
    /// `__cxa_atexit`.
    pub(crate) exits: usize,
    /// `stdout` and `stderr`, if their text is captured.
    pub(crate) streams: usize,
}

/// `RTLD_DI_LINKMAP`
const LINK_MAP: i32 = 2;
// Tags of the dynamic section.
const PLT_SIZE: i64 = 2;
const STRTAB: i64 = 5;
const SYMTAB: i64 = 6;
const RELA: i64 = 7;
const RELA_SIZE: i64 = 8;
const JMPREL: i64 = 23;
// Relocations that fill a slot with a function's address.
const GLOB_DAT: u64 = 6;
const JUMP_SLOT: u64 = 7;

/// Start of `struct link_map` (`<link.h>`).
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
}

/// `Elf64_Dyn`
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// `Elf64_Rela`
#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

/// `Elf64_Sym`
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// The tables that a library's dynamic section refers to.
#[derive(Default)]
struct Tables {
    symbols: usize,
    names: usize,
    /// Address and bytes of each relocation table.
    relocations: [(usize, usize); 2],
}

/// # Safety
/// `map` is that of a loaded library.
unsafe fn tables(map: &LinkMap) -> Tables {
    let mut found = Tables::default();
    // glibc has made the addresses in this section absolute; other linkers leave them relative.
    let absolute = |value: usize| if value < map.base { value + map.base } else { value };
    let mut at = map.dynamic;
    loop {
        // SAFETY: the section of a loaded library ends with a null tag, at which this loop stops.
        let entry = unsafe { &*at };
        match entry.tag {
            0 => return found,
            SYMTAB => found.symbols = absolute(entry.value),
            STRTAB => found.names = absolute(entry.value),
            RELA => found.relocations[0].0 = absolute(entry.value),
            RELA_SIZE => found.relocations[0].1 = entry.value,
            JMPREL => found.relocations[1].0 = absolute(entry.value),
            PLT_SIZE => found.relocations[1].1 = entry.value,
            _ => {}
        }
        // SAFETY: the end is not reached yet.
        at = unsafe { at.add(1) };
    }
}

/// Protection of the mapping that contains an address, from the text of `/proc/self/maps`.
fn protection(maps: &str, address: usize) -> Option<i32> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        if !(start..end).contains(&address) {
            return None;
        }
        let bit = |flag: char, bit: i32| if rest.chars().take(3).any(|c| c == flag) { bit } else { 0 };
        Some(bit('r', libc::PROT_READ) | bit('w', libc::PROT_WRITE) | bit('x', libc::PROT_EXEC))
    })
}

/// Stores the address of a function or variable in a slot, even if the linker has made the page read-only (RELRO).
fn store(slot: usize, target: usize, maps: &str) -> io::Result<()> {
    let before = protection(maps, slot).ok_or_else(|| io::Error::other("a slot of the library's offset table is not mapped"))?;
    let page = slot & !4095;
    let protect = |bits: i32| {
        // SAFETY: the page belongs to the library's data; rights are only added, and restored below.
        if unsafe { libc::mprotect(page as *mut c_void, 4096, bits) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    protect(before | libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: a slot is an aligned word that other threads read as a whole, so an atomic store is safe.
    unsafe { &*(slot as *const std::sync::atomic::AtomicUsize) }.store(target, std::sync::atomic::Ordering::Release);
    protect(before)
}

/// Replaces the slots of the functions of [`hook`] and [`exits`] and of the streams of [`text`] in a library.
///
/// # Safety
/// `handle` came from `dlopen` and is not closed.
pub(crate) unsafe fn patch(handle: *mut c_void) -> io::Result<Slots> {
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: a live handle; the request stores one pointer.
    if unsafe { libc::dlinfo(handle, LINK_MAP, (&raw mut map).cast()) } != 0 || map.is_null() {
        return Err(io::Error::other("the dynamic linker does not say where the library lies"));
    }
    // SAFETY: the linker's record of a library that stays loaded.
    let map = unsafe { &*map };
    // SAFETY: as above.
    let tables = unsafe { tables(map) };
    if tables.symbols == 0 || tables.names == 0 {
        return Err(io::Error::other("the library has no symbol table"));
    }
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut slots = Slots::default();
    for (table, bytes) in tables.relocations {
        for i in 0..bytes / size_of::<Relocation>() {
            // SAFETY: inside a table of the loaded library, which the linker has processed.
            let r = unsafe { &*(table as *const Relocation).add(i) };
            let symbol = (r.info >> 32) as usize;
            if symbol == 0 || !matches!(r.info & 0xffff_ffff, GLOB_DAT | JUMP_SLOT) {
                continue;
            }
            // SAFETY: the linker has resolved this symbol by this name.
            let name = unsafe {
                CStr::from_ptr(
                    (tables.names as *const c_char).add((*(tables.symbols as *const Symbol).add(symbol)).name as usize),
                )
            };
            let (target, count) = match name.to_bytes() {
                b"mmap" | b"mmap64" => (hook::mmap as *const () as usize, &mut slots.mmap),
                b"munmap" => (hook::munmap as *const () as usize, &mut slots.munmap),
                b"getenv" | b"secure_getenv" => (hook::getenv as *const () as usize, &mut slots.getenv),
                b"__cxa_atexit" => (exits::cxa_atexit as *const () as usize, &mut slots.exits),
                other => match text::stand_in(other) {
                    Some(variable) => (variable, &mut slots.streams),
                    None => continue,
                },
            };
            store(map.base + r.offset, target, &maps)?;
            *count += 1;
        }
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::Mutex;

    /// A library that calls the functions through its offset table, built with the C compiler.
    fn library(name: &str, flags: &[&str]) -> *mut c_void {
        let directory = std::env::temp_dir().join(format!("executor-got-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("directory");
        let (source, object) = (directory.join(format!("{name}.c")), directory.join(format!("lib{name}.so")));
        let text = "#include <stdio.h>\n#include <stdlib.h>\n#include <sys/mman.h>\n\
            void *ask(unsigned long n) { return mmap(0, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }\n\
            int back(void *p, unsigned long n) { return munmap(p, n); }\n\
            int say(const char *s) { fprintf(stderr, \"%s, \", s); return fputs(s, stdout); }\n\
            int last(void (*f)(void)) { return atexit(f); }\n\
            char *seen(void) { return getenv(\"CUDA_VISIBLE_DEVICES\"); }\n";
        std::fs::write(&source, text).expect("source");
        let built = Command::new("cc").args(["-shared", "-fPIC"]).args(flags).arg(&source).arg("-o").arg(&object).status();
        assert!(built.expect("a C compiler").success());
        let path = std::ffi::CString::new(object.to_str().expect("path")).expect("path");
        // SAFETY: a test library without constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        handle
    }

    fn symbol<F: Copy>(handle: *mut c_void, name: &CStr) -> F {
        // SAFETY: an open handle; the library defines the name with the type that the caller states.
        unsafe {
            let p = libc::dlsym(handle, name.as_ptr());
            assert!(!p.is_null());
            std::mem::transmute_copy(&p)
        }
    }

    #[test]
    fn calls_of_the_library_go_to_the_hooks() {
        let _turn = super::super::TURN.lock();
        static SAID: Mutex<[Vec<u8>; 2]> = Mutex::new([Vec::new(), Vec::new()]);
        super::super::catch_text(|to, text| SAID.lock().expect("unpoisoned")[to as usize - 1].extend_from_slice(text))
            .expect("streams");
        super::super::hold_ranges(26).expect("address space");
        static ENDED: Mutex<Vec<u32>> = Mutex::new(Vec::new());
        extern "C" fn first() {
            ENDED.lock().expect("unpoisoned").push(1);
        }
        extern "C" fn second() {
            ENDED.lock().expect("unpoisoned").push(2);
        }
        for (name, flags) in
            [("lazy", ["-Wl,-z,lazy", "-O1"]), ("relro", ["-Wl,-z,relro,-z,now", "-O1"]), ("noplt", ["-fno-plt", "-Wl,-z,now"])]
        {
            let handle = library(name, &flags);
            // SAFETY: opened above, never closed.
            let slots = unsafe { patch(handle) }.expect("patched");
            assert_eq!(slots, Slots { mmap: 1, munmap: 1, getenv: 1, exits: 1, streams: 2 }, "{name}");
            let ask: extern "C" fn(usize) -> usize = symbol(handle, c"ask");
            let back: extern "C" fn(usize, usize) -> i32 = symbol(handle, c"back");
            let placing = super::super::Placing::enter(26);
            let at = ask(2 << 20);
            drop(placing);
            assert!((super::super::placed_base(26)..super::super::placed_base(27)).contains(&(at as u64)), "{name}: {at:x}");
            assert_eq!(back(at, 2 << 20), 0);
            let say: extern "C" fn(*const c_char) -> i32 = symbol(handle, c"say");
            assert!(say(c"text".as_ptr()) >= 0);
            assert_eq!(std::mem::take(&mut *SAID.lock().expect("unpoisoned")), [b"text".to_vec(), b"text, ".to_vec()]);
            assert!(super::super::is_free(26));
            let last: extern "C" fn(extern "C" fn()) -> i32 = symbol(handle, c"last");
            super::super::keep_exit_handlers();
            assert_eq!((last(first), last(second)), (0, 0));
            super::super::run_exit_handlers();
            super::super::run_exit_handlers();
            assert_eq!(std::mem::take(&mut *ENDED.lock().expect("unpoisoned")), [2, 1], "{name}: the last first, once");
        }
    }

    #[test]
    fn protections_are_read() {
        let maps = "1000-2000 r--p 00000000 00:00 0\n2000-3000 rw-p 0 0:0 0 /x\n7000-8000 r-xp 0 0:0 0\n";
        assert_eq!(protection(maps, 0x1fff), Some(libc::PROT_READ));
        assert_eq!(protection(maps, 0x2000), Some(libc::PROT_READ | libc::PROT_WRITE));
        assert_eq!(protection(maps, 0x7008), Some(libc::PROT_READ | libc::PROT_EXEC));
        assert_eq!(protection(maps, 0x3000), None);
    }
}
