//! The tables as a runtime library sees them: through pointers alone.

use super::integrity::{Known, answer};
use super::*;
use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

static CURRENT: AtomicUsize = AtomicUsize::new(0);
static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct TestHost;

impl Host for TestHost {
    fn driver_version(&self) -> i32 {
        13000
    }
    fn devices(&self) -> Vec<DeviceIdentity> {
        vec![DEVICE]
    }
    fn current_context(&self) -> usize {
        CURRENT.load(Ordering::Relaxed)
    }
    fn primary_context(&self, ordinal: i32) -> Result<usize, Code> {
        match ordinal {
            0 => Ok(0x1234),
            7 => panic!("a fault in the host"),
            _ => Err(code::ERROR_INVALID_DEVICE),
        }
    }
    fn load_fatbin(&self, image: InPtr<c_void>) -> Result<usize, Code> {
        Ok(image.as_ptr().addr() + 1)
    }
    fn functions(&self, module: usize) -> Result<Vec<(usize, &'static CStr)>, Code> {
        match module {
            5 => Ok(vec![(50, c"first"), (51, c"second")]),
            _ => Err(code::ERROR_INVALID_HANDLE),
        }
    }
    fn unknown_table(&self, uuid: &[u8; 16]) {
        SEEN.lock().unwrap().push(format!("table {:02x}", uuid[0]));
    }
    fn unknown_slot(&self, uuid: &[u8; 16], slot: usize) {
        SEEN.lock().unwrap().push(format!("slot {slot} of {:02x}", uuid[0]));
    }
}

const DEVICE: DeviceIdentity = DeviceIdentity {
    uuid: [0x9A, 0xFE, 0x2B, 0x8A, 0xAC, 0x25, 0x2D, 0x38, 0xEA, 0x37, 0xAE, 0xC5, 0x6D, 0x71, 0x32, 0x5F],
    pci_domain: 0,
    pci_bus: 2,
    pci_device: 0,
};

/// Whom the tables of a test belong to.
pub(super) fn install_host() {
    install(&TestHost);
}

/// A word of a table.
fn word(id: [u8; 16], n: usize) -> *const () {
    install_host();
    let table = table(&id).unwrap().cast::<*const ()>();
    // SAFETY: every table asked for here has more than `n` words.
    unsafe { table.add(n).read() }
}

/// The function in a slot.
macro_rules! slot {
    ($id:expr, $n:literal, $f:ty) => {{
        // SAFETY: the slot holds a function of this type.
        unsafe { std::mem::transmute::<*const (), $f>(word($id, $n)) }
    }};
}

type Load = extern "C" fn(*mut usize, *const c_void) -> Code;
type LoadMore = extern "C" fn(&mut usize, *const c_void, usize, usize, u32) -> Code;
type LoadHeader = extern "C" fn(*const c_void, &mut usize, usize, usize, u32) -> Code;

/// An image, which is passed on by its address.
fn image(address: usize) -> *const c_void {
    without_provenance(address)
}

#[test]
fn published_vector_of_the_integrity_answer() {
    let known = Known {
        driver_version: 0x2F30,
        version: 12082,
        pid: 0x002F_A423,
        thread: 0xF79C_1000,
        interface: 0x7FFF_F695_8240,
        integrity: 0x7FFF_F695_8220,
        function: 0x7FFF_F2AA_F4A0,
        unix_seconds: 0x682B_9CEE,
    };
    let hex = |devices: &[DeviceIdentity]| {
        let [a, b] = answer(&known, devices).unwrap();
        a.to_le_bytes().iter().chain(&b.to_le_bytes()).map(|b| format!("{b:02x}")).collect::<String>()
    };
    assert_eq!(hex(&[DEVICE]), "4448a171b026cef76c8c3e39051b02dd");
    assert_eq!(hex(&[]), "0779ef5e4ffa2dd207527503d1907bfa");
    assert_eq!(answer(&Known { version: 13000, ..known }, &[]), Some([0x3341_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8]));
    assert_eq!(answer(&Known { version: 13001, ..known }, &[]), Some([0x1841_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8]));
}

#[test]
fn the_integrity_slot_hashes_what_the_caller_can_see() {
    let check = slot!(INTEGRITY_CHECK, 1, extern "C" fn(u32, u64, &mut [u64; 2]) -> Code);
    let mut got = [0; 2];
    assert_eq!(check(13002, 1_700_000_000, &mut got), 0);
    let expected = Known {
        driver_version: 13000,
        version: 13002,
        pid: std::process::id(),
        // SAFETY: no preconditions.
        thread: unsafe { libc::pthread_self() } as u32,
        interface: table(&CUDART_INTERFACE).unwrap().addr() as u64,
        integrity: table(&INTEGRITY_CHECK).unwrap().addr() as u64,
        function: word(INTEGRITY_CHECK, 1).addr() as u64,
        unix_seconds: 1_700_000_000,
    };
    assert_eq!(Some(got), answer(&expected, &[DEVICE]));
}

#[test]
fn sizes_are_those_of_the_driver() {
    let sizes = [
        (CUDART_INTERFACE, 104),
        (TOOLS_RUNTIME_CALLBACK_HOOKS, 56),
        (TOOLS_TLS, 24),
        (CONTEXT_CHECKS, 120),
        (INTEGRITY_CHECK, 24),
        (LIBRARIES, 744),
        (FUNCTIONS, 792),
        (TILE_ORDER, 136),
    ];
    for (id, bytes) in sizes {
        assert_eq!(word(id, 0).addr(), bytes);
        assert!((1..bytes / 8).all(|n| !word(id, n).is_null()));
    }
    assert!(word(CONTEXT_LOCAL_STORAGE, 3).is_null());
}

#[test]
fn unknown_tables_and_slots_are_refused_and_told() {
    install(&TestHost);
    assert!(REFUSED.iter().all(|id| table(id).is_none()));
    assert!(table(&[0xEE; 16]).is_none());
    assert_eq!(slot!(LIBRARIES, 92, extern "C" fn() -> Code)(), code::ERROR_NOT_SUPPORTED);
    assert_eq!(slot!(CUDART_INTERFACE, 3, extern "C" fn() -> Code)(), code::ERROR_NOT_SUPPORTED);
    let seen = SEEN.lock().unwrap();
    for line in ["table ee", "slot 92 of 21", "slot 3 of 6b"] {
        assert!(seen.iter().any(|s| s == line), "{line}");
    }
    assert!(!seen.iter().any(|s| ["table f8", "table 69", "table da"].contains(&s.as_str())));
}

#[test]
fn modules_and_contexts() {
    let mut out = 0;
    let primary = slot!(CUDART_INTERFACE, 2, extern "C" fn(&mut usize, i32) -> Code);
    assert_eq!((primary(&mut out, 0), out), (0, 0x1234));
    assert_eq!(primary(&mut out, 1), code::ERROR_INVALID_DEVICE);
    assert_eq!(primary(&mut out, 7), code::ERROR_UNKNOWN, "a panic becomes a code");
    assert_eq!((slot!(CUDART_INTERFACE, 1, Load)(&raw mut out, image(0x100)), out), (0, 0x101));
    assert_eq!((slot!(CUDART_INTERFACE, 6, LoadMore)(&mut out, image(0x200), 0, 0, 0), out), (0, 0x201));
    assert_eq!((slot!(CUDART_INTERFACE, 8, LoadHeader)(image(0x300), &mut out, 0, 0, 0), out), (0, 0x301));
    assert_eq!(slot!(CUDART_INTERFACE, 6, LoadMore)(&mut out, image(0x200), 0, 0, 1), code::ERROR_NOT_SUPPORTED);
    assert_eq!(slot!(CUDART_INTERFACE, 1, Load)(&raw mut out, image(0)), code::ERROR_INVALID_VALUE);
    assert_eq!(slot!(CUDART_INTERFACE, 1, Load)(std::ptr::null_mut(), image(0x100)), code::ERROR_INVALID_VALUE);
    slot!(CUDART_INTERFACE, 7, extern "C" fn(usize))(0x100);
    assert_eq!(slot!(CUDART_INTERFACE, 12, extern "C" fn() -> Code)(), 0);
}

#[test]
fn hooks_checks_and_library_services() {
    type Hooks = extern "C" fn(&mut *const u32, &mut usize);
    let (mut flags, mut count) = (std::ptr::null(), 0);
    for (hooks, entries) in
        [(slot!(TOOLS_RUNTIME_CALLBACK_HOOKS, 2, Hooks), 1024), (slot!(TOOLS_RUNTIME_CALLBACK_HOOKS, 6, Hooks), 14)]
    {
        hooks(&mut flags, &mut count);
        assert_eq!(count, entries);
        // SAFETY: the hook says that so many entries can be read.
        let flags = unsafe { std::slice::from_raw_parts(flags, count) };
        assert!(flags.iter().all(|f| *f == 0));
    }
    let (mut bits, mut detail) = (9, 9);
    let check = slot!(CONTEXT_CHECKS, 2, extern "C" fn(usize, &mut u32, Option<&mut usize>) -> Code);
    assert_eq!((check(1, &mut bits, Some(&mut detail)), bits, detail), (0, 0, 0));
    assert_eq!(check(1, &mut bits, None), 0);
    assert_eq!(slot!(CONTEXT_CHECKS, 3, extern "C" fn() -> u32)(), 0);
    let mut watcher = 9;
    let watched = slot!(TOOLS_TLS, 2, extern "C" fn(Option<&mut usize>) -> Code);
    assert_eq!((watched(Some(&mut watcher)), watcher), (0, 0));
    assert_eq!(watched(None), 0);
    let mut out = 9;
    let flag = slot!(LIBRARIES, 4, extern "C" fn(usize, &mut u64) -> Code);
    assert_eq!((flag(0, &mut out), out), (0, 0));
    assert_eq!((flag(5, &mut out), out), (0, 1));
    // Context, stream, answer.
    let object = slot!(LIBRARIES, 51, extern "C" fn(usize, usize, &mut u64) -> Code);
    assert_eq!(object(0, usize::MAX, &mut out), code::ERROR_INVALID_HANDLE);
    assert_eq!(object(0, 1, &mut out), 0);
    assert_ne!(out, 1);
}

type Put = extern "C" fn(usize, usize, usize, Option<unsafe extern "C" fn(usize, usize, usize)>) -> Code;
type Get = extern "C" fn(&mut usize, usize, usize) -> Code;
type Delete = extern "C" fn(usize, usize) -> Code;

static DESTROYED: Mutex<Vec<(usize, usize, usize)>> = Mutex::new(Vec::new());

/// As the runtime's own: it looks its value up and attaches a new one.
extern "C" fn destroy(context: usize, key: usize, value: usize) {
    let mut out = 0;
    let found = slot!(CONTEXT_LOCAL_STORAGE, 2, Get)(&mut out, context, key);
    assert_eq!(found, code::ERROR_INVALID_HANDLE, "taken out before the call");
    DESTROYED.lock().unwrap().push((context, key, value));
    if key == 2 {
        assert_eq!(slot!(CONTEXT_LOCAL_STORAGE, 0, Put)(context, key, value + 1, Some(destroy)), 0);
    }
}

#[test]
fn values_of_contexts() {
    let put = slot!(CONTEXT_LOCAL_STORAGE, 0, Put);
    let delete = slot!(CONTEXT_LOCAL_STORAGE, 1, Delete);
    let get = slot!(CONTEXT_LOCAL_STORAGE, 2, Get);
    let mut out = 0;
    assert_eq!(get(&mut out, 0, 1), code::ERROR_INVALID_CONTEXT);
    assert_eq!(put(0, 1, 10, None), code::ERROR_INVALID_CONTEXT);
    assert_eq!(delete(0, 1), code::ERROR_INVALID_CONTEXT);
    CURRENT.store(0xC0, Ordering::Relaxed);
    assert_eq!(get(&mut out, 0, 1), code::ERROR_INVALID_HANDLE);
    assert_eq!(put(0, 1, 10, Some(destroy)), 0);
    assert_eq!(put(0, 1, 11, Some(destroy)), 0, "a later value replaces");
    assert_eq!((get(&mut out, 0xC0, 1), out), (0, 11));
    assert_eq!(put(0xC0, 2, 20, Some(destroy)), 0);
    assert_eq!(put(0xC0, 3, 30, Some(destroy)), 0);
    assert_eq!(put(0xC1, 1, 40, None), 0);
    assert_eq!(delete(0, 3), 0);
    assert_eq!(get(&mut out, 0, 3), code::ERROR_INVALID_HANDLE);
    context_destroyed(0xC0);
    assert_eq!(*DESTROYED.lock().unwrap(), [(0xC0, 1, 11), (0xC0, 2, 20)], "in order, not the deleted one");
    assert_eq!(get(&mut out, 0, 1), code::ERROR_INVALID_HANDLE);
    assert_eq!((get(&mut out, 0, 2), out), (0, 21), "what a destructor attaches stays");
    assert_eq!((get(&mut out, 0xC1, 1), out), (0, 40), "other contexts are untouched");
    context_destroyed(0xC1);
    CURRENT.store(0, Ordering::Relaxed);
}

#[test]
fn functions_of_a_module_are_visited() {
    extern "C" fn visit(seen: usize, function: usize, name: *const c_char, _: usize) {
        // SAFETY: the test's vector and the table's string.
        let (seen, name) =
            unsafe { (&mut *std::ptr::with_exposed_provenance_mut::<Vec<(usize, String)>>(seen), CStr::from_ptr(name)) };
        seen.push((function, name.to_str().unwrap().to_owned()));
    }
    type Visit = extern "C" fn(usize, usize, *const c_char, usize);
    let each = slot!(FUNCTIONS, 7, extern "C" fn(usize, usize, Option<Visit>, usize) -> usize);
    let mut seen: Vec<(usize, String)> = Vec::new();
    let to = (&raw mut seen).expose_provenance();
    assert_eq!(each(0, 5, Some(visit), to), 2);
    assert_eq!(each(0, 6, Some(visit), to), 0);
    assert_eq!(each(0, 5, None, to), 0);
    assert_eq!(seen, [(50, "first".to_owned()), (51, "second".to_owned())]);
}
