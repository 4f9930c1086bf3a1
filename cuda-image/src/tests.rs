//! Synthetic images: what a compiler writes, built here so that no compiler is needed.

use super::*;
use std::ffi::c_void;

/// A small seeded generator (xorshift64*): the loops below must be the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

pub(super) const PTX: &str = r#"

.version 9.0
.target sm_90a, debug
.address_size 64
.extern .func  (.param .b64 func_retval0) malloc ( .param .b64 malloc_param_0 ) ;
.global .align 4 .u32 plain = 7;
/* .global .u32 not_this; */ // .global .u32 nor_this;
.visible .global .attribute(.managed) .align 4 .u32 managed = 5;
.extern .const .align 8 .b8 table[2][8] = {{0, 1}, {2}};
.weak .global .u64 pointers[2] = {generic(plain)+4, managed}, second;
.global .align 1 .b8 $str[4] = {37, 100, 10};
.global .texref no_memory;
.global .v4 .f32 wide;
.file 1 "dir/{odd;name"
.func (.param .b32 r) helper(.param .u64 .ptr .global .align 4 p)
{ .reg .b32 %r<3>; { .shared .b32 local; } ret; }
.visible .entry first(
  .param .u64 .ptr .align 1 first_param_0,
  .param .u8 first_param_1,
  .param .align 16 .b8 first_param_2[0x18],
  .param .f64 first_param_3
)
.maxntid 256
{
  .global .u32 not_at_module_level;
  ret;
}
.entry second_kernel { ret; }
"#;

fn ptx_params() -> Vec<Param> {
    [(0, 8), (8, 1), (16, 24), (40, 8)].map(|(offset, size)| Param { offset, size }).to_vec()
}

fn put(bytes: &mut [u8], at: usize, value: u64, width: usize) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// A cubin for `sm` with a kernel `first`, variables, and the wish for `extra` functions.
pub(super) fn cubin(sm: u64, modern: bool, extra: &[&str]) -> Vec<u8> {
    struct Draft {
        name: &'static str,
        kind: u64,
        link: u64,
        body: Vec<u8>,
        claimed: usize,
    }
    let mut strings = vec![0];
    let mut symbols = vec![0; 24];
    let mut symbol = |name: &str, kind: u8, other: u8, section: u64| {
        let mut row = [0; 24];
        put(&mut row, 0, strings.len() as u64, 4);
        row[4] = kind;
        row[5] = other;
        put(&mut row, 6, section, 2);
        symbols.extend_from_slice(&row);
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
    };
    symbol("zeroed", 1, 0, 4);
    symbol("initialised", 13, 0x20, 5);
    symbol("constant", 1, 0, 6);
    symbol(".nv.reservedSmem.offset0", 1, 0, 0);
    symbol("parameters", 1, 0, 7);
    symbol("first", 2, 0x10, 9);
    for name in extra {
        if *name == "managed" {
            symbol(name, 1, 4, 5);
        } else {
            symbol(name, 2, 0, 0);
        }
    }
    // A 0x45 record, 0x17 records in falling order, and others between them.
    let mut info = vec![4, 0x0A, 8, 0, 0, 0, 0, 0, 0x10, 2, 16, 0, 3, 0x19, 16, 0];
    for (ordinal, offset, size) in [(1u16, 8u16, 4u32), (0, 0, 8)] {
        info.extend_from_slice(&[4, 0x17, 12, 0, 0, 0, 0, 0]);
        info.extend_from_slice(&ordinal.to_le_bytes());
        info.extend_from_slice(&offset.to_le_bytes());
        info.extend_from_slice(&(size << 18 | 0x1F000 | 0x500).to_le_bytes());
    }
    info.extend_from_slice(&[4, 0x36, 1, 0, 0xFF, 0, 0, 0]);
    // The kernel calls the first of the others: symbol 7.
    info.extend_from_slice(&[4, 0x0F, 4, 0, 7, 0, 0, 0]);
    info.extend_from_slice(&[4, 0x45, 12, 0, 0, 0, 0, 0, 2, 0, 16, 0, 0x70, 0x17, 0, 0]);
    let plain = |name, kind, body: Vec<u8>| Draft { name, kind, link: 0, claimed: body.len(), body };
    let bare = |name, kind, claimed| Draft { name, kind, link: 0, claimed, body: Vec::new() };
    let mut drafts = vec![
        plain("", 0, Vec::new()),
        plain(".shstrtab", 3, Vec::new()),
        plain(".strtab", 3, strings),
        Draft { name: ".symtab", kind: 2, link: 2, claimed: symbols.len(), body: symbols },
        // Claims far more than the file has, as zero-initialised memory does.
        bare(".nv.global", if modern { 8 } else { 0x7000_0007 }, 1 << 40),
        plain(".nv.global.init", 1, vec![7; 4]),
        plain(".nv.constant3", 1, vec![9; 16]),
        plain(".nv.constant0.first", 1, vec![0; 32]),
        plain(".nv.info.first", 0x7000_0000, info),
        plain(".text.first", 1, vec![0x90; 64]),
    ];
    let mut names = Vec::new();
    let name_at: Vec<usize> = drafts
        .iter()
        .map(|d| {
            let at = names.len();
            names.extend_from_slice(d.name.as_bytes());
            names.push(0);
            at
        })
        .collect();
    drafts[1].claimed = names.len();
    drafts[1].body = names;

    let mut bytes = vec![0; 64];
    bytes[..9].copy_from_slice(if modern { b"\x7fELF\x02\x01\x01\x41\x08" } else { b"\x7fELF\x02\x01\x01\x33\x07" });
    let mut rows = Vec::new();
    for (d, name) in drafts.iter().zip(name_at) {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let mut row = [0; 64];
        put(&mut row, 0x00, name as u64, 4);
        put(&mut row, 0x04, d.kind, 4);
        put(&mut row, 0x18, bytes.len() as u64, 8);
        put(&mut row, 0x20, d.claimed as u64, 8);
        put(&mut row, 0x28, d.link, 4);
        rows.extend_from_slice(&row);
        bytes.extend_from_slice(&d.body);
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let (at, count) = (bytes.len() as u64, rows.len() as u64 / 64);
    bytes.extend_from_slice(&rows);
    put(&mut bytes, 0x10, 2, 2);
    put(&mut bytes, 0x12, 190, 2);
    put(&mut bytes, 0x28, at, 8);
    put(&mut bytes, 0x30, if modern { sm << 8 | 4 } else { 0x5A_0500 | sm }, 4);
    put(&mut bytes, 0x34, 64, 2);
    put(&mut bytes, 0x36, 56, 2);
    put(&mut bytes, 0x3A, 64, 2);
    put(&mut bytes, 0x3C, count, 2);
    put(&mut bytes, 0x3E, 1, 2);
    bytes
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Pack {
    None,
    Lz4,
    Zstd,
    /// LZ4 with an expected size that is too small, as old tools wrote it.
    Lz4Short,
}

pub(super) fn fatbin(entries: &[(u16, u32, u64, Pack, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, sm, flags, pack, plain) in entries {
        let (mut stored, flag) = match pack {
            Pack::None => (plain.to_vec(), 0),
            Pack::Lz4 | Pack::Lz4Short => (lz4_flex::block::compress(plain), 0x2000),
            Pack::Zstd => (zstd::stream::encode_all(*plain, 3).unwrap(), 0x8000),
        };
        let packed = stored.len();
        stored.resize(packed.next_multiple_of(8), 0);
        // Longer than the fixed part, as with names and options.
        let mut header = [0; 80];
        put(&mut header, 0x00, u64::from(*kind), 2);
        put(&mut header, 0x04, 80, 4);
        put(&mut header, 0x08, stored.len() as u64, 8);
        put(&mut header, 0x1C, u64::from(*sm), 4);
        put(&mut header, 0x28, 0x11 | flags | flag, 8);
        if *pack != Pack::None {
            put(&mut header, 0x10, packed as u64, 4);
            put(&mut header, 0x38, if *pack == Pack::Lz4Short { 1 } else { plain.len() as u64 }, 8);
        }
        body.extend_from_slice(&header);
        body.extend_from_slice(&stored);
    }
    let mut bytes = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0];
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

pub(super) fn full_fatbin() -> Vec<u8> {
    let (old, new) = (cubin(75, false, &["vprintf"]), cubin(90, true, &[]));
    fatbin(&[
        (1, 75, 0, Pack::Zstd, PTX.as_bytes()),
        (2, 75, 0, Pack::Lz4, &old),
        (2, 90, 0x10_0000, Pack::None, &new),
        (8, 90, 0, Pack::None, b"something else"),
        (1, 90, 0, Pack::Lz4Short, PTX.as_bytes()),
    ])
}

pub(super) fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, body) in members {
        bytes.extend_from_slice(format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 644, body.len()).as_bytes());
        bytes.extend_from_slice(body);
        if body.len() % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    bytes
}

/// Measures bytes that are followed by others, as in a program's memory.
fn measured(bytes: &[u8]) -> Image {
    let mut longer = bytes.to_vec();
    longer.extend_from_slice(&[0xA5; 100]);
    // SAFETY: `longer` lives until the end of the call.
    unsafe { measure(longer.as_ptr()) }.unwrap()
}

const PTX_GLOBALS: [&str; 7] = ["$str", "managed", "plain", "pointers", "second", "table", "wide"];

#[test]
fn ptx_declarations_are_found_and_bodies_skipped() {
    let mut text = PTX.as_bytes().to_vec();
    text.push(0);
    let image = measured(&text);
    assert_eq!((image.kind, image.bytes.len()), (Kind::Ptx, text.len()));
    assert_eq!(image.global_names(), PTX_GLOBALS);
    assert_eq!(image.kernel_names(), ["first", "second_kernel"]);
    assert_eq!(image.kernel_params("first", 90).unwrap(), ptx_params());
    assert_eq!(image.kernel_params("second_kernel", 90).unwrap(), []);
    assert_eq!(image.kernel_params("helper", 90), None);
    assert!(image.uses_device_heap());
    assert!(image.index().managed);
    let plain = PTX.replace(".attribute(.managed)", "") + "\0";
    assert!(!measured(plain.as_bytes()).index().managed);
    let entries = image.entries().unwrap();
    assert_eq!((entries.len(), entries[0].sm, entries[0].arch_specific), (1, 90, true));
    assert_eq!(entries[0].bytes, PTX.as_bytes());
}

#[test]
fn a_list_that_is_not_understood_hides_nothing() {
    let text = ".version 8.0 .target sm_75 .entry odd ( .param .future a, .param .u64 .ptr .global .align 1 not_a_variable )
        { ret; } .global .u32 one; .entry open ( .param .align 3 .b8 x[4], .param .b8 y[z] ; .global .u32 two;
        .entry huge ( .param .b8 a[0xFFFFFFFFFFFF], .param .u64 b ) { ret; } .const .u32 three;
        .entry plain ( .param .u32 n ) { ret; }\0";
    let image = measured(text.as_bytes());
    assert_eq!(image.global_names(), ["one", "three", "two"]);
    assert_eq!(image.kernel_names(), ["huge", "odd", "open", "plain"]);
    for name in ["odd", "open", "huge"] {
        assert_eq!(image.kernel_params(name, 75), None, "{name}");
    }
    assert_eq!(image.kernel_params("plain", 75).unwrap(), [Param { offset: 0, size: 4 }]);
}

#[test]
fn a_member_called_free_is_not_the_heap() {
    let text = ".version 8.0 .target sm_75 .global .u32 my_free; .func _Z4freev() { ret; } // malloc\n\0";
    assert!(!measured(text.as_bytes()).uses_device_heap() && !measured(text.as_bytes()).prints());
}

#[test]
fn kernels_that_print_are_told_from_others() {
    let head = ".version 8.0 .target sm_75 .address_size 64
        .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
        .extern .func __assertfail (.param .b64 a);";
    let index = |body: &str| measured(format!("{head} {body}\0").as_bytes()).index();
    let quiet = ".entry quiet () { call __assertfail, (a); ret; }";
    let loud = ".entry loud ( .param .u64 x ) { { call (r), vprintf, (a, b); } ret; }";
    let only_quiet = index(quiet);
    assert!(!only_quiet.prints, "a failed assertion is an error");
    assert_eq!(only_quiet.kernel_prints("quiet"), Some(false));
    for both in [format!("{quiet} {loud}"), format!("{loud} {quiet}"), format!("{loud} .func f () {{ ret; }} {quiet}")] {
        let both = index(&both);
        assert!(both.prints);
        assert_eq!([both.kernel_prints("quiet"), both.kernel_prints("loud")], [Some(false), Some(true)]);
        assert_eq!(both.kernel_prints("other"), None);
    }
    // Callers of a function that prints are not marked.
    let through = index(&format!(".func f () {{ call (r), vprintf, (a, b); ret; }} {quiet}"));
    assert!(through.prints && through.kernel_prints("quiet") == Some(true));
    let launches = index(&format!("{loud} .entry starts () {{ call (r), cudaLaunchDeviceV2, (a, b); ret; }} {quiet}"));
    assert_eq!(launches.kernel_prints("quiet"), Some(true), "it may be what launches");
    let bytes = cubin(90, true, &["vprintf", "mallocs"]);
    let first = super::cubin::Cubin::parse(&bytes).unwrap();
    assert!(first.refers("first", &["vprintf"]) && !first.refers("first", &["mallocs"]) && !first.refers("none", &["vprintf"]));
    let named = measured(&cubin(90, true, &["mallocs", "vprintf"])).index();
    assert!(!named.managed);
    assert!(measured(&cubin(90, true, &["mallocs", "managed"])).index().managed);
    assert_eq!((named.prints, named.kernel_prints("first")), (true, Some(true)), "named, and nobody says by whom");
}

#[test]
fn addresses_of_functions_are_told_from_calls() {
    let takes = |text: &str| {
        measured(format!(".version 8.0 .target sm_70 .address_size 64 {text}\0").as_bytes()).takes_addresses_of_functions()
    };
    let functions = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
        .visible .func (.param .b32 r) f (.param .b32 x) { ret; }
        .func .noreturn g () { trap; }";
    let calls = "{ call.uni (r), f, (x); @%p1 call g, (); } { call (r), vprintf, (a, b); } mov.u64 %rd1, table; ret;";
    assert!(!takes(&format!("{functions} .global .u64 table[2]; .entry k (.param .u64 p) {{ {calls} }}")));
    assert!(takes(&format!("{functions} .entry k () {{ mov.u64 %rd1, f; ret; }}")));
    assert!(takes(&format!("{functions} .global .u64 pointer = g;")));
    assert!(takes(&format!("{functions} .global .align 8 .u64 table[2] = {{f, g}};")));
    assert!(takes(".global .u64 later = k; .entry k () { ret; }"));
    assert!(takes(".entry k () { prototype : .callprototype ()_ (); call %rd1, (), prototype; ret; }"));
}

#[test]
fn another_gpu_executes_the_same_code_or_not() {
    let ptx =
        |target: &str| measured(format!(".version 8.0 .target {target} .address_size 64 .entry k () {{ ret; }}\0").as_bytes());
    assert!(ptx("sm_80").is_same_code(90, 100));
    assert!(!ptx("sm_100").is_same_code(90, 100), "there was none before");
    assert!(!ptx("sm_90a").is_same_code(90, 100) && ptx("sm_90a").is_same_code(90, 90));
    // Machine code with PTX of the same capability, and code for the second one.
    let text = |sm: u32| format!(".version 9.0\n.target sm_{sm}\n.visible .entry k() {{ ret; }}\n").into_bytes();
    let (of_80, of_90, text_80, text_90) = (cubin(80, false, &[]), cubin(90, true, &[]), text(80), text(90));
    let (machine_80, machine_90) = ((2, 80, 0, Pack::None, &of_80[..]), (2, 90, 0, Pack::None, &of_90[..]));
    let (ptx_80, ptx_90) = ((1, 80, 0, Pack::None, &text_80[..]), (1, 90, 0, Pack::None, &text_90[..]));
    assert!(measured(&fatbin(&[machine_80, ptx_80])).is_same_code(80, 90));
    assert!(!measured(&fatbin(&[machine_80, ptx_80, machine_90])).is_same_code(80, 90));
    assert!(!measured(&fatbin(&[machine_80, ptx_80, ptx_90])).is_same_code(80, 90));
    assert!(measured(&fatbin(&[machine_80, ptx_80, ptx_90])).is_same_code(90, 100));
    let machine = measured(&cubin(80, true, &[]));
    assert!(machine.is_same_code(80, 89) && !machine.is_same_code(80, 90));
}

#[test]
fn kernels_with_references_are_told_from_others() {
    let text = ".version 6.4 .target sm_52 .address_size 64
        .global .texref picture; .global .surfref board; .global .u32 counter;
        .func (.param .b32 r) look (.param .b32 x) { tex.2d.v4.u32.f32 {a, b, c, d}, [picture, {e, e}]; ret; }
        .func (.param .b32 r) count (.param .b32 x) { ld.global.u32 a, [counter]; ret; }
        .entry plain (.param .u64 out) { call (r), count, (x); ret; }
        .entry through () { call (r), look, (x); ret; }
        .entry itself (.param .u64 out) { { suld.b.2d.b32.trap {a}, [board, {b, c}]; } ret; }\0";
    let index = measured(text.as_bytes()).index();
    let found = ["plain", "through", "itself", "look"].map(|name| index.kernel_references(name));
    assert_eq!(found, [Some(false), Some(true), Some(true), None]);
    assert_eq!(index.globals.iter().collect::<Vec<_>>(), ["counter"]);
    assert_eq!(measured(&cubin(90, true, &[])).index().kernel_references("first"), Some(false));
}

#[test]
fn kernels_with_atomics_of_the_system_are_told_from_others() {
    let text = ".version 8.0 .target sm_70 .address_size 64
        .func (.param .b32 r) count (.param .b64 p) { { red.global.sys.add.u32 [p], 1; } ret; }
        .func (.param .b32 r) other (.param .b64 p) { red.global.add.u32 [p], 1; ret; }
        .entry plain (.param .u64 p) { atom.global.add.u32 a, [p], 1; call (r), other, (x); fence.sys; ld.relaxed.sys.u32 a, [p]; ret; }
        .entry device (.param .u64 p) { atom.relaxed.gpu.global.add.u32 a, [p], 1; ret; }
        .entry itself (.param .u64 p) { atom.acq_rel.sys.global.cas.b32 a, [p], 1, 2; ret; }
        .entry through (.param .u64 p) { call (r), count, (x); ret; }\0";
    let index = measured(text.as_bytes()).index();
    let found = ["plain", "device", "itself", "through", "count"].map(|name| index.kernel_system_atomics(name));
    assert_eq!(found, [Some(false), Some(false), Some(true), Some(true), None]);
}

#[test]
fn cubins_old_and_new() {
    for (sm, modern, extra, heap) in [(75, false, &["free"][..], true), (90, true, &["vprintf", "mallocs"], false)] {
        let bytes = cubin(sm, modern, extra);
        let image = measured(&bytes);
        assert_eq!((image.kind, image.bytes.len()), (Kind::Cubin, bytes.len()), "the claim of .nv.global is not counted");
        assert_eq!(u64::from(image.entries().unwrap()[0].sm), sm);
        assert_eq!(image.global_names(), ["constant", "initialised", "zeroed"]);
        assert_eq!(image.kernel_names(), ["first"]);
        assert_eq!(image.uses_device_heap(), heap);
        assert_eq!(image.prints(), modern, "one of them calls vprintf");
        let expected = [(0, 8), (8, 4), (16, 6000)].map(|(offset, size)| Param { offset, size });
        assert_eq!(image.kernel_params("first", 90).unwrap(), expected);
    }
}

#[test]
fn fat_binaries_in_every_compression() {
    let image = measured(&full_fatbin());
    assert_eq!(image.kind, Kind::Fatbin);
    let entries = image.entries().unwrap();
    let got: Vec<_> = entries.iter().map(|e| (e.kind, e.sm, e.arch_specific)).collect();
    use EntryKind::{Cubin, Other, Ptx};
    assert_eq!(got, [(Ptx, 75, false), (Cubin, 75, false), (Cubin, 90, true), (Other, 90, false), (Ptx, 90, false)]);
    assert_eq!(entries[0].bytes, PTX.as_bytes());
    assert_eq!(entries[1].bytes, cubin(75, false, &["vprintf"]));
    assert_eq!(entries[4].bytes, PTX.as_bytes());
    let index = image.index();
    assert_eq!(index.globals.len(), PTX_GLOBALS.len() + 3);
    assert_eq!(index.unreadable, 0);
    // The cubin's own description where there is one for this capability, PTX's where only that is there.
    assert_eq!(index.kernel_params("first", 75).unwrap().len(), 3);
    let only_ptx = measured(&fatbin(&[(1, 75, 0, Pack::Zstd, PTX.as_bytes())]));
    assert_eq!(only_ptx.kernel_params("first", 90).unwrap(), ptx_params());
}

#[test]
fn what_does_not_decompress_is_an_error_and_is_counted() {
    let mut bytes = full_fatbin();
    let first_frame = 16 + 80;
    bytes[first_frame..first_frame + 4].fill(0);
    let image = measured(&bytes);
    assert_eq!(image.entries(), Err(ImageError::Compression { entry: 0 }));
    let index = image.index();
    assert_eq!(index.unreadable, 1);
    assert!(index.globals.contains("plain"), "the other entries are read all the same");
}

#[test]
fn only_what_a_gpu_may_be_given_is_looked_at() {
    let text = |name: &str| format!(".version 9.0\n.target sm_50\n.visible .entry {name}() {{ ret; }}\n").into_bytes();
    let (of_80, of_90) = (cubin(80, false, &[]), cubin(90, true, &["malloc"]));
    // What is damaged is known only if it is looked at.
    let image = measured(&fatbin(&[
        (2, 80, 0, Pack::Lz4, &of_80),
        (2, 90, 0, Pack::None, &of_90),
        (1, 80, 0, Pack::Zstd, &text("old")),
        (1, 90, 0, Pack::None, &text("new")),
        (1, 100, 0, Pack::None, &text("newer")),
        (2, 120, 0, Pack::None, b"no cubin"),
    ]));
    let seen = |capability| {
        let index = image.index_within(u64::MAX, capability);
        let kernels: Vec<&str> = index.kernels.keys().map(String::as_str).collect();
        (kernels.join(" "), index.uses_device_heap, index.unreadable)
    };
    assert_eq!(seen(None), ("first new newer old".to_owned(), true, 1));
    // Finished code for it makes PTX superfluous.
    assert_eq!(seen(Some(90)), ("first".to_owned(), true, 0));
    // A cubin of the same generation may serve, also for another member of it.
    assert_eq!(seen(Some(86)), ("first old".to_owned(), false, 0));
    // Unless it cannot be read.
    assert_eq!(seen(Some(120)), ("new newer old".to_owned(), false, 1));
    // The same GPU by its later name.
    assert_eq!(seen(Some(110)), seen(Some(101)));
}

#[test]
fn archives() {
    let (mut ptx, cubin, fatbin) = (PTX.as_bytes().to_vec(), cubin(90, true, &[]), full_fatbin());
    ptx.push(b' ');
    let bytes = archive(&[("/", &[0, 0, 0]), ("a.ptx/", &ptx), ("b.cubin/", &cubin), ("c/", &fatbin), ("notes/", b"hello")]);
    let image = measured(&bytes);
    assert_eq!((image.kind, image.bytes.len()), (Kind::Archive, bytes.len()));
    assert_eq!(image.entries().unwrap().len(), 1 + 1 + 5 + 1);
    assert_eq!(image.global_names().len(), PTX_GLOBALS.len() + 3);
}

#[repr(C)]
struct Wrapper(u32, u32, *const c_void, *const c_void);

#[test]
fn wrappers_survive_the_road_to_another_process() {
    let (linked, a, b) = (full_fatbin(), fatbin(&[(1, 75, 0, Pack::Lz4, PTX.as_bytes())]), fatbin(&[]));
    let list: [*const c_void; 3] = [a.as_ptr().cast(), b.as_ptr().cast(), std::ptr::null()];
    let one = Wrapper(0x4662_43B1, 1, linked.as_ptr().cast(), std::ptr::null());
    let two = Wrapper(0x4662_43B1, 2, linked.as_ptr().cast(), list.as_ptr().cast());
    let none = Wrapper(0x4662_43B1, 2, std::ptr::null(), list.as_ptr().cast());
    let mut seen = Vec::new();
    for (w, kind, entries) in [(&one, Kind::Wrapped, 5), (&two, Kind::Linked, 6), (&none, Kind::Linked, 1)] {
        // SAFETY: the wrapper and all that it points to live to the end of the test.
        let image = unsafe { measure(std::ptr::from_ref(w).cast()) }.unwrap();
        assert_eq!(image.kind, kind);
        assert_eq!(image.entries().unwrap().len(), entries);
        let travelled = Image::from_bytes(Kind::from_code(kind.code()).unwrap(), image.bytes.to_vec().into()).unwrap();
        assert_eq!(travelled.hash(), image.hash());
        let form = travelled.load_form().unwrap();
        let moved = std::hint::black_box(Box::new(form));
        // SAFETY: `moved` owns what its pointer leads to.
        assert_eq!(unsafe { measure(moved.as_ptr().cast()) }.unwrap(), image);
        // Modules are not loaded from wrappers.
        match image.module_form().unwrap() {
            // SAFETY: as above.
            Some(bare) => assert_eq!(unsafe { measure(bare.as_ptr().cast()) }.unwrap().kind, Kind::Fatbin),
            None => assert_eq!(kind, Kind::Linked),
        }
        seen.push(image.hash());
    }
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

#[test]
fn load_forms_of_plain_images_are_the_images() {
    let mut text = PTX.as_bytes().to_vec();
    text.push(0);
    for bytes in [full_fatbin(), cubin(90, true, &[]), text] {
        let image = measured(&bytes);
        let form = image.load_form().unwrap();
        assert!(form.as_ptr().addr().is_multiple_of(8));
        // SAFETY: the form holds as many bytes as the image.
        let held = unsafe { std::slice::from_raw_parts(form.as_ptr().cast::<u8>(), bytes.len()) };
        assert_eq!(held, bytes);
    }
}

#[test]
fn pointers_to_nothing_are_errors() {
    // SAFETY: null is allowed.
    assert_eq!(unsafe { measure(std::ptr::null()) }, Err(ImageError::Null));
    let page = 4096;
    // SAFETY: a fresh anonymous mapping of two pages; the second is made unreadable.
    let map = unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            2 * page,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(map.byte_add(page), page, libc::PROT_NONE), 0);
        map.cast::<u8>()
    };
    let end = map.wrapping_add(page);
    let place = |bytes: &[u8]| {
        let at = end.wrapping_sub(bytes.len());
        // SAFETY: these bytes lie in the readable page.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        // SAFETY: the mapping lives on; what cannot be read is refused by the kernel.
        unsafe { measure(at) }
    };
    // Whole images that end exactly where readable memory ends.
    let whole = archive(&[("x/", &cubin(90, true, &[]))]);
    assert_eq!(place(&whole).unwrap().bytes.len(), whole.len());
    assert_eq!(place(b".x\0").unwrap().kind, Kind::Ptx);
    // And those that claim more.
    assert!(matches!(place(b"no end in sight"), Err(ImageError::Unreadable { .. })));
    let bytes = full_fatbin();
    assert_eq!(place(&bytes[..bytes.len() - 1]), Err(ImageError::Unreadable { at: 0 }));
    assert!(matches!(place(&cubin(90, true, &[])[..64]), Err(ImageError::Unreadable { .. })));
    assert!(matches!(
        place(&[0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 255, 255, 255, 255, 255, 255, 255, 255]),
        Err(ImageError::TooLarge { .. })
    ));
    assert!(matches!(place(&[0]), Err(ImageError::Damaged { .. })));
    let wrapper = |version: u32, data: usize, aux: usize| {
        let mut w = [0; 24];
        put(&mut w, 0, 0x4662_43B1, 4);
        put(&mut w, 4, u64::from(version), 4);
        put(&mut w, 8, data as u64, 8);
        put(&mut w, 16, aux as u64, 8);
        w
    };
    assert_eq!(place(&wrapper(1, 0, 0)), Err(ImageError::Null));
    assert!(matches!(place(&wrapper(3, map.addr(), 0)), Err(ImageError::Damaged { .. })));
    assert!(matches!(place(&wrapper(1, end.addr(), 0)), Err(ImageError::Unreadable { .. })));
    assert!(matches!(place(&wrapper(2, 0, end.addr())), Err(ImageError::Unreadable { .. })));
    // SAFETY: mapped above with this length; nothing refers to it any more.
    unsafe { libc::munmap(map.cast(), 2 * page) };
}

#[test]
fn from_bytes_takes_whole_images_only() {
    let bytes = full_fatbin();
    assert!(Image::from_bytes(Kind::Fatbin, bytes.clone().into()).is_ok());
    assert_eq!(Image::from_bytes(Kind::Cubin, bytes.clone().into()), Err(ImageError::NotThis { kind: Kind::Cubin }));
    let mut longer = bytes;
    longer.push(0);
    assert_eq!(Image::from_bytes(Kind::Wrapped, longer.into()), Err(ImageError::NotThis { kind: Kind::Wrapped }));
    assert!(Image::from_bytes(Kind::Ptx, b"text without end".to_vec().into()).is_err());
    assert!(Image::from_bytes(Kind::Ptx, b"two\0texts\0".to_vec().into()).is_err());
}

/// All that can be asked of an image; it must come back.
fn ask(kind: Kind, bytes: &[u8]) {
    if let Ok(image) = Image::from_bytes(kind, bytes.into()) {
        let index = image.index();
        for kernel in index.kernels.keys() {
            index.kernel_params(kernel, 90);
        }
        // Errors are an answer; panics and endless loops are not.
        let _ = image.entries();
        if let Ok(all) = image.managed() {
            let at = all.into_keys().zip((1u64..).map(|n| n << 32)).collect();
            let _ = image.with_managed(&at);
        }
        assert!(image.load_form().is_ok());
    }
}

#[test]
fn damaged_images_never_panic() {
    let mut text = PTX.as_bytes().to_vec();
    text.push(0);
    let parts = [full_fatbin(), fatbin(&[]), full_fatbin()];
    let samples = [
        (Kind::Ptx, text),
        (Kind::Cubin, cubin(90, true, &["malloc"])),
        (Kind::Cubin, cubin(75, false, &[])),
        (Kind::Fatbin, full_fatbin()),
        (Kind::Archive, archive(&[("a/", &cubin(90, true, &[])), ("b/", &full_fatbin())])),
        (Kind::Linked, load::contain(&parts)),
    ];
    let mut random = Random(0x5EED);
    for (kind, whole) in &samples {
        ask(*kind, whole);
        assert!(Image::from_bytes(*kind, whole.clone().into()).is_ok());
        for cut in (0..whole.len()).step_by(7) {
            ask(*kind, &whole[..cut]);
            // A cut text still gets its end, so that the scan sees it.
            let mut ended = whole[..cut].to_vec();
            ended.push(0);
            ask(Kind::Ptx, &ended);
        }
        for _ in 0..1500 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len());
                match random.below(3) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes[at] = [0, 0xFF, 0x7F, 0x80][random.below(4)],
                    _ => {
                        let end = (at + 8).min(bytes.len());
                        bytes[at..end].fill([0, 0xFF][random.below(2)]);
                    }
                }
            }
            ask(*kind, &bytes);
        }
    }
}

/// Text of so many bytes that takes almost none as stored.
fn blank(bytes: u64) -> Vec<u8> {
    use std::io::Read;
    zstd::stream::encode_all(std::io::repeat(b' ').take(bytes), 1).unwrap()
}

#[test]
fn little_that_becomes_much_is_refused_before_it_takes_memory() {
    const ZSTD: u64 = 0x8000;
    let of = |entries: &[(u16, u32, u64, Pack, &[u8])]| measured(&fatbin(entries));
    let one = blank(1 << 30);
    assert!(one.len() < 64 << 10);
    // One entry, and several that are small each.
    let part = blank(90 << 20);
    let several: Vec<(u16, u32, u64, Pack, &[u8])> = (0..3).map(|_| (1, 80, ZSTD, Pack::None, &part[..])).collect();
    for image in [of(&[(1, 80, ZSTD, Pack::None, &one)]), of(&several)] {
        assert!(matches!(image.entries(), Err(ImageError::TooLarge { .. })));
        let index = image.index();
        assert!(index.too_large && index.unreadable > 0);
    }
    // What a driver would be given is bounded by the code that keeps the image, too.
    for pack in [Pack::Zstd, Pack::Lz4, Pack::Lz4Short, Pack::None] {
        let image = of(&[(1, 80, 0, pack, &[b' '; 2 << 20])]);
        assert!(image.index_within(1 << 20, None).too_large && !image.index_within(2 << 20, None).too_large);
        assert!(image.entries().is_ok());
    }
    // A size that is only claimed costs nothing, and damage is damage.
    let mut claims = fatbin(&[(1, 80, 0, Pack::Lz4, b"// text")]);
    put(&mut claims, 16 + 0x38, u64::MAX, 8);
    assert_eq!(measured(&claims).entries().unwrap()[0].bytes, &b"// text"[..]);
    let damaged = of(&[(1, 80, ZSTD, Pack::None, &[0x28, 0xB5, 0x2F, 0xFD, 0xFF, 0xFF])]);
    assert_eq!(damaged.entries(), Err(ImageError::Compression { entry: 0 }));
    assert!(!damaged.index().too_large);
}
