//! The executor on a driver, in this process. One driver library serves one place at a time, so the tests take turns; each
//! opens the place anew, which is a further visit of the same process.

use cuda_api::address_map;
use cuda_api::calls::{context, module, stream};
use cuda_api::code;
use cuda_api::handle::{Kind, compose};
use cuda_api::lock::lock;
use cuda_api::ops::{self, Chunk, CopyDevice, CopyIn, CopyOut, EventRecord, Fill, FunctionInfo, ImageLoad, ImagePut, Launch, id};
use cuda_api::wire::Wire;
use cuda_image::Image;
use executor::{Applied, Difference, Executor, OpenError, Options, Piece, compare_globals, host_mirror, steer};
use replayer::{LocalSink, Record, ReplayError, replay};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

mod exclusive;
mod gpu_areas;
mod hashing;
mod streams;

const DEVICE: u32 = 2;
const LEGACY: u64 = cuda_api::arg::LEGACY;

const ADD: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 runs;
.visible .global .align 8 .b8 table[300000];
.visible .entry add(.param .u64 to, .param .u64 from, .param .u32 n) {
  .reg .b64 %rd<6>; .reg .b32 %r<8>; .reg .pred %p;
  ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p, %r5, %r1; @%p bra done;
  mul.wide.u32 %rd3, %r5, 4;
  add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
  ld.global.u32 %r6, [%rd4]; ld.global.u32 %r7, [%rd5];
  add.u32 %r6, %r6, %r7; st.global.u32 [%rd4], %r6;
done: ret;
}
";

const OTHER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 other[70000];\n.visible .entry nothing() { ret; }\n";

const ALLOCATES: &str = "\
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 r) malloc (.param .b64 n);
.visible .global .align 8 .u64 kept;
.visible .entry allocate(.param .u32 value) {
  .reg .b64 %rd<3>; .reg .b32 %r<2>;
  { .param .b64 n; .param .b64 r; mov.u64 %rd1, 64; st.param.b64 [n+0], %rd1; call.uni (r), malloc, (n); ld.param.b64 %rd2, [r+0]; }
  ld.param.u32 %r1, [value]; st.u32 [%rd2], %r1;
  st.global.u64 [kept], %rd2;
  ret;
}
";

/// Needs 4000 bytes of local memory a thread.
const DEEP: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry deep(.param .u64 to) {
  .local .align 16 .b8 room[4000];
  .reg .b64 %rd<3>; .reg .b32 %r<3>;
  ld.param.u64 %rd1, [to]; mov.u64 %rd2, room; mov.u32 %r1, 7;
  st.local.u32 [%rd2+3996], %r1; ld.local.u32 %r2, [%rd2+3996]; st.global.u32 [%rd1], %r2;
  ret;
}
";

/// softgpu, which cargo builds for this test and puts beside its executable; `MRCUDA_TEST_DRIVER` names another driver.
fn driver() -> PathBuf {
    if let Some(path) = std::env::var_os("MRCUDA_TEST_DRIVER") {
        return path.into();
    }
    let directory = std::env::current_exe().expect("own path").parent().expect("directory").to_owned();
    [directory.join("libsoftgpu.so"), directory.join("../libsoftgpu.so")].into_iter().find(|p| p.exists()).expect("libsoftgpu.so")
}

fn options() -> Options {
    Options { driver: driver(), gpu: 0, virtual_device: DEVICE }
}

/// An open place and the turn to use it.
struct Place {
    exec: Arc<Executor>,
    turn: MutexGuard<'static, ()>,
}

fn place() -> Place {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = lock(&TURN);
    open(turn)
}

fn open(turn: MutexGuard<'static, ()>) -> Place {
    Place { exec: Executor::open(&options()).expect("open"), turn }
}

fn handle(kind: Kind, slot: u32) -> u64 {
    compose(kind, 1, slot)
}

fn body(op: &impl Wire, rest: &[u8]) -> Vec<u8> {
    let mut b = Vec::new();
    op.put(&mut b);
    b.extend_from_slice(rest);
    b
}

impl Place {
    fn try_apply(&self, id: u16, body: &[u8]) -> (i32, Vec<u8>) {
        let mut reply = Vec::new();
        let rc = match self.exec.apply(id, body, &mut reply) {
            Applied::Done(rc) => rc,
            Applied::Pending(p) => p.wait(&self.exec, &mut reply),
        };
        (rc, reply)
    }

    /// Applies what is not answered at once.
    fn later(&self, id: u16, body: &[u8]) -> executor::Pending {
        match self.exec.apply(id, body, &mut Vec::new()) {
            Applied::Pending(w) => w,
            other => panic!("{other:?}"),
        }
    }

    fn apply(&self, id: u16, body: &[u8]) -> Vec<u8> {
        let (rc, reply) = self.try_apply(id, body);
        assert_eq!(rc, code::SUCCESS, "{}: {}", replayer::call_name(id), String::from_utf8_lossy(&reply));
        reply
    }

    fn map(&self, offset: u64, bytes: u64) -> u64 {
        let address = address_map::own_base(DEVICE) + offset;
        self.apply(id::CHUNK_MAP, &body(&Chunk { address, bytes }, &[]));
        address
    }

    fn load(&self, slot: u32, text: &str, library: bool) -> u64 {
        let (put, load) = load_bodies(slot, text, library);
        self.apply(id::IMAGE_PUT, &put);
        self.apply(id::IMAGE_LOAD, &load);
        handle(if library { Kind::Library } else { Kind::Module }, slot)
    }

    fn unload(&self, slot: u32) {
        self.apply(0x0505, &body(&module::cuModuleUnload::Sent { hmod: handle(Kind::Module, slot) }, &[]));
    }

    fn function(&self, slot: u32, module: u64, name: &str) -> (u64, FunctionInfo) {
        let hfunc = handle(Kind::Function, slot);
        self.apply(0x0507, &body(&module::cuModuleGetFunction::Sent { hfunc, hmod: module, name: name.into() }, &[]));
        let info = self.apply(id::FUNCTION_INFO, &body(&hfunc, &[]));
        (hfunc, FunctionInfo::get(&mut &info[..]).expect("info"))
    }

    fn write(&self, dst: u64, bytes: &[u8], stream: u64) {
        let n = bytes.len() as u64;
        self.apply(id::COPY_IN, &body(&CopyIn { dst, pitch: n, width: n, rows: 1, stream }, bytes));
    }

    fn read(&self, src: u64, n: u64, stream: u64) -> Vec<u8> {
        self.apply(id::COPY_OUT, &body(&CopyOut { src, pitch: n, width: n, rows: 1, stream }, &[]))
    }

    fn launch(&self, function: u64, grid: u32, block: u32, stream: u64, params: &[u8]) {
        let head =
            Launch { function, stream, grid: [grid, 1, 1], block: [block, 1, 1], shared: 0, attributes: 0, cooperative: false };
        self.apply(id::LAUNCH, &body(&head, params));
    }

    fn stream(&self, slot: u32, flags: u32) -> u64 {
        let s = handle(Kind::Stream, slot);
        self.apply(0x0401, &body(&stream::cuStreamCreate::Sent { phStream: s, Flags: flags }, &[]));
        s
    }

    fn leave(self) {
        drop(self.leave_keeping_the_turn());
    }

    fn leave_keeping_the_turn(self) -> MutexGuard<'static, ()> {
        self.exec.clone().close();
        assert_eq!(self.exec.make_current(), Err(code::ERROR_DEINITIALIZED));
        assert!(steer::is_free(DEVICE), "something is left in the ranges");
        self.turn
    }
}

fn load_bodies(slot: u32, text: &str, library: bool) -> (Vec<u8>, Vec<u8>) {
    let bytes: Vec<u8> = text.bytes().chain([0]).collect();
    let image = Image::from_bytes(cuda_image::Kind::Ptx, bytes.into()).expect("image");
    let hash = image.hash();
    let handle = handle(if library { Kind::Library } else { Kind::Module }, slot);
    let put = body(&ImagePut { hash, kind: image.kind.code() }, &image.bytes);
    (put, body(&ImageLoad { handle, hash, library, options: vec![], describe: false }, &[]))
}

fn words(n: u32, f: impl Fn(u32) -> u32) -> Vec<u8> {
    (0..n).flat_map(|i| f(i).to_le_bytes()).collect()
}

#[test]
fn vectors_are_added_by_operations() {
    let p = place();
    assert!(p.exec.device().total_bytes >= p.exec.free_bytes().expect("free"));
    let a = p.map(0, 4 << 20);
    let b = a + (2 << 20);
    let module = p.load(1, ADD, false);
    let (add, info) = p.function(1, module, "add");
    assert_eq!(info.name, "add");
    assert_eq!(info.params, [(0, 8), (8, 8), (16, 4)]);
    assert!(info.max_threads >= 256);
    // Clusters that an attribute requires are those of the function, as if its code did.
    for width in [2, 0] {
        const REQUIRED_CLUSTER_WIDTH: u32 = 11;
        let set = module::cuFuncSetAttribute::Sent { hfunc: add, attrib: REQUIRED_CLUSTER_WIDTH, value: width };
        p.apply(0x0519, &body(&set, &[]));
        let info = FunctionInfo::get(&mut &p.apply(id::FUNCTION_INFO, &body(&add, &[]))[..]).expect("info");
        assert_eq!(info.clusters, width > 1);
    }
    let stream = p.stream(1, 1);
    let n = 100_000;
    p.write(a, &words(n, |i| i * 3), stream);
    p.write(b, &words(n, |i| i ^ 5), stream);
    let params: Vec<u8> = [a, b, u64::from(n)].iter().flat_map(|v| v.to_le_bytes()).collect();
    p.launch(add, n.div_ceil(256), 256, stream, &params[..20]);
    assert_eq!(p.read(a, u64::from(n) * 4, stream), words(n, |i| (i * 3).wrapping_add(i ^ 5)));
    // The same through events and the whole context's synchronisation.
    let event = handle(Kind::Event, 1);
    p.apply(0x0412, &body(&stream::cuEventCreate::Sent { phEvent: event, Flags: 0 }, &[]));
    p.launch(add, n.div_ceil(256), 256, stream, &params[..20]);
    p.apply(id::EVENT_RECORD, &body(&EventRecord { event, stream, flags: 0 }, &[]));
    p.apply(id::EVENT_SYNC, &body(&event, &[]));
    assert_eq!(p.try_apply(id::EVENT_QUERY, &body(&event, &[])).0, code::SUCCESS);
    let time = f64::get(&mut &p.apply(id::EVENT_TIME, &body(&event, &[]))[..]).expect("time");
    assert!(time > 0.0, "{time}");
    // Times that are kept for another place: from one event to the next they are what the driver says, whatever lies between
    // them and the moment of asking.
    let (later, unrecorded) = (handle(Kind::Event, 2), handle(Kind::Event, 3));
    for e in [later, unrecorded] {
        p.apply(0x0412, &body(&stream::cuEventCreate::Sent { phEvent: e, Flags: 0 }, &[]));
    }
    p.write(a + (1 << 20), &words(n, |i| i), stream);
    p.apply(id::EVENT_RECORD, &body(&EventRecord { event: later, stream, flags: 0 }, &[]));
    p.apply(id::STREAM_SYNC, &body(&stream, &[]));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    p.apply(id::EVENT_REFERENCE, &[]);
    let times = Vec::<f64>::get(&mut &p.apply(id::EVENT_TIMES, &body(&vec![later, unrecorded, event], &[]))[..]).expect("times");
    let between = f32::get(&mut &p.apply(id::EVENT_ELAPSED, &body(&(event, later), &[]))[..]).expect("time");
    assert!(times[1].is_nan() && times[0] <= -1500.0, "{times:?}");
    assert!((times[0] - times[2] - f64::from(between)).abs() < 1e-9, "{times:?}, {between}");
    p.apply(0x0403, &body(&stream::cuStreamDestroy_v2::Sent { hStream: stream }, &[]));
    p.apply(id::CONTEXT_SYNC, &[]);
    assert_eq!(p.read(a, 8, LEGACY), words(2, |i| (i * 3).wrapping_add(2 * (i ^ 5))));
    p.leave();
}

#[test]
fn rectangles_and_fills() {
    let p = place();
    let a = p.map(64 << 20, 2 << 20);
    let (pitch, width, rows) = (1024u64, 300u64, 7u64);
    let packed: Vec<u8> = (0..width * rows).map(|i| (i % 251) as u8).collect();
    p.apply(id::FILL, &body(&Fill { dst: a, pitch: 0, value: 0xabcd, element: 2, width: 4096, rows: 1, stream: LEGACY }, &[]));
    p.apply(id::COPY_IN, &body(&CopyIn { dst: a, pitch, width, rows, stream: LEGACY }, &packed));
    let copy = CopyDevice { dst: a + (1 << 20), dst_pitch: 512, src: a, src_pitch: pitch, width, rows, stream: LEGACY };
    p.apply(id::COPY_DEVICE, &body(&copy, &[]));
    let back = p.apply(id::COPY_OUT, &body(&CopyOut { src: a + (1 << 20), pitch: 512, width, rows, stream: LEGACY }, &[]));
    assert_eq!(back, packed);
    assert_eq!(p.read(a + width, 4, LEGACY), [0xcd, 0xab, 0xcd, 0xab], "beside the rectangle");
    let fill = Fill { dst: a, pitch, value: 7, element: 4, width: 3, rows: 2, stream: LEGACY };
    p.apply(id::FILL, &body(&fill, &[]));
    assert_eq!(p.read(a + pitch + 8, 4, LEGACY), [7, 0, 0, 0]);
    assert_eq!(p.try_apply(id::FILL, &body(&Fill { element: 3, ..fill }, &[])).0, code::ERROR_INVALID_VALUE);
    // A copy larger than a staging buffer, and one whose body is shorter than it says.
    let big = p.map(128 << 20, 16 << 20);
    let long: Vec<u8> = (0..13u32 << 20).map(|i| (i >> 7) as u8).collect();
    p.write(big, &long, LEGACY);
    assert_eq!(p.read(big, long.len() as u64, LEGACY), long);
    let lie = CopyIn { dst: a, pitch: 100, width: 100, rows: 1, stream: LEGACY };
    assert_eq!(p.try_apply(id::COPY_IN, &body(&lie, &[0; 99])).0, code::ERROR_INVALID_VALUE);
    p.leave();
}

#[test]
fn errors_are_the_drivers_and_stay_with_their_handles() {
    let p = place();
    let (_, load) = load_bodies(1, ADD, false);
    assert_eq!(p.try_apply(id::IMAGE_LOAD, &load).0, code::ERROR_INVALID_IMAGE, "never put");
    // Nothing of the host's would be at the address of such a variable.
    let managed = OTHER.replace(".global .align", ".global .attribute(.managed) .align");
    let (put, load) = load_bodies(2, &managed, false);
    p.apply(id::IMAGE_PUT, &put);
    assert_eq!(p.try_apply(id::IMAGE_LOAD, &load).0, code::ERROR_NOT_SUPPORTED);
    let broken = ADD.replace("add.u32 %r6, %r6, %r7", "adder.u32 %r6");
    let (put, load) = load_bodies(1, &broken, false);
    p.apply(id::IMAGE_PUT, &put);
    let (rc, log) = p.try_apply(id::IMAGE_LOAD, &load);
    if rc != code::SUCCESS {
        assert!(!log.is_empty(), "the compiler's words");
        let get = module::cuModuleGetFunction::Sent {
            hfunc: handle(Kind::Function, 1),
            hmod: handle(Kind::Module, 1),
            name: "add".into(),
        };
        assert_eq!(p.try_apply(0x0507, &body(&get, &[])).0, rc, "the use of what was never made gives its error");
    }
    let mut wrong = put.clone();
    wrong[0] ^= 1;
    assert_eq!(p.try_apply(id::IMAGE_PUT, &wrong).0, code::ERROR_INVALID_IMAGE);
    let base = address_map::own_base(DEVICE);
    for (address, bytes) in [
        (base + 1, 2 << 20),
        (base, 1 << 20),
        (base - (2 << 20), 2 << 20),
        (base + address_map::ARENA, 2 << 20),
        (u64::MAX - 1, 2 << 20),
    ] {
        assert_eq!(p.try_apply(id::CHUNK_MAP, &body(&Chunk { address, bytes }, &[])).0, code::ERROR_INVALID_VALUE, "{address:x}");
    }
    let at = p.map(0, 4 << 20);
    assert_eq!(
        p.try_apply(id::CHUNK_MAP, &body(&Chunk { address: at + (2 << 20), bytes: 2 << 20 }, &[])).0,
        code::ERROR_ALREADY_MAPPED
    );
    assert_eq!(p.try_apply(id::CHUNK_UNMAP, &body(&Chunk { address: at, bytes: 2 << 20 }, &[])).0, code::ERROR_NOT_MAPPED);
    assert_eq!(p.exec.chunks(), [Chunk { address: at, bytes: 4 << 20 }]);
    p.apply(id::CHUNK_UNMAP, &body(&Chunk { address: at, bytes: 4 << 20 }, &[]));
    assert_ne!(
        p.try_apply(id::COPY_OUT, &body(&CopyOut { src: at, pitch: 4, width: 4, rows: 1, stream: LEGACY }, &[])).0,
        code::SUCCESS
    );
    assert_eq!(p.try_apply(0x0fff, &[]).0, code::ERROR_NOT_SUPPORTED);
    assert_eq!(p.try_apply(id::LAUNCH, &[1, 2, 3]).0, code::ERROR_INVALID_VALUE);
    p.leave();
}

#[test]
fn addresses_come_again_in_the_same_order_and_differ_in_another() {
    let first = place();
    first.load(1, ADD, false);
    first.load(2, OTHER, true);
    let one = first.exec.globals().expect("globals");
    assert_eq!(one.iter().map(|g| g.name.as_str()).collect::<Vec<_>>(), ["runs", "table", "other"]);
    let placed = address_map::placed_base(DEVICE)..address_map::placed_base(DEVICE) + address_map::ARENA;
    assert!(one.iter().all(|g| placed.contains(&g.address)), "{one:x?}");
    assert!(matches!(Executor::open(&options()), Err(OpenError::Busy { .. })));
    let other = Options { virtual_device: DEVICE + 1, ..options() };
    let turn = first.leave_keeping_the_turn();
    assert!(matches!(Executor::open(&other), Err(OpenError::OtherDevice { .. })));
    assert!(matches!(Executor::open(&Options { gpu: 1, ..options() }), Err(OpenError::OtherGpu { .. })));

    let again = open(turn);
    for i in 0..40 {
        again.stream(i, i & 1);
    }
    again.map(0, 32 << 20);
    again.load(1, ADD, false);
    again.load(2, OTHER, true);
    assert_eq!(compare_globals(&one, &again.exec.globals().expect("globals")), Ok(()));
    let other = open(again.leave_keeping_the_turn());
    let before = other.load(3, OTHER, false);
    other.load(1, ADD, false);
    other.load(2, OTHER, true);
    let mut globals = other.exec.globals().expect("globals");
    globals.retain(|g| g.module != before);
    assert!(matches!(compare_globals(&one, &globals), Err(Difference::Address { .. })), "{globals:x?}");
    other.unload(3);
    assert_eq!(other.exec.globals().expect("globals"), globals);
    other.leave();
}

#[test]
fn a_reset_leaves_a_fresh_context_with_its_libraries() {
    let p = place();
    p.load(1, ADD, false);
    p.load(2, OTHER, true);
    let a = p.map(0, 2 << 20);
    p.apply(id::CONTEXT_RESET, &[]);
    assert!(p.exec.chunks().is_empty());
    let left = p.exec.globals().expect("globals");
    assert_eq!(left.iter().map(|g| g.name.as_str()).collect::<Vec<_>>(), ["other"]);
    assert_eq!(p.map(0, 2 << 20), a);
    p.write(a, &[1, 2, 3], LEGACY);
    assert_eq!(p.read(a, 3, LEGACY), [1, 2, 3]);
    let set = context::cuCtxSetLimit::Sent { limit: 0, value: 2048 };
    p.apply(0x0215, &body(&set, &[]));
    p.leave();
}

#[test]
fn the_heap_is_found_and_moves_as_bytes() {
    let p = place();
    assert_eq!(p.exec.heap(), Ok(None));
    let module = p.load(1, ALLOCATES, false);
    let (at, bytes) = p.exec.heap().expect("heap").expect("used");
    assert_eq!((at % (2 << 20), bytes), (0, 8 << 20));
    let (allocate, _) = p.function(1, module, "allocate");
    p.launch(allocate, 1, 1, LEGACY, &77u32.to_le_bytes());
    p.apply(id::CONTEXT_SYNC, &[]);
    let kept = p.exec.globals().expect("globals").into_iter().find(|g| g.name == "kept").expect("kept");
    let block = u64::get(&mut &p.read(kept.address, 8, LEGACY)[..]).expect("address");
    assert!((at..at + bytes).contains(&block), "{block:x}");
    let buffer = p.exec.pinned(4096).expect("buffer");
    let piece = Piece { address: block, at: 16, bytes: 4, raw: true };
    let mut buffer = p.exec.copy_from_gpu(0, buffer, &[piece], false).expect("copy").wait().expect("landed");
    assert_eq!(buffer.bytes()[16..20], 77u32.to_le_bytes());
    buffer.bytes_mut()[16..20].copy_from_slice(&78u32.to_le_bytes());
    let buffer = p.exec.copy_to_gpu(1, buffer, &[piece], false).expect("copy").wait().expect("landed");
    let buffer = p.exec.copy_from_gpu(0, buffer, &[Piece { at: 32, ..piece }], true).expect("copy").wait().expect("landed");
    assert_eq!(buffer.bytes()[32..36], 78u32.to_le_bytes());
    drop(buffer);
    p.leave();
}

#[test]
fn local_memory_grows_at_the_first_use() {
    let p = place();
    let a = p.map(0, 2 << 20);
    let module = p.load(1, DEEP, false);
    let (deep, _) = p.function(1, module, "deep");
    p.launch(deep, 1, 1, LEGACY, &a.to_le_bytes());
    assert_eq!(p.read(a, 4, LEGACY), [7, 0, 0, 0]);
    p.leave();
}

#[test]
fn a_journal_is_replayed_and_a_wrong_answer_is_noticed() {
    let base = address_map::own_base(DEVICE);
    let (put, load) = load_bodies(1, ADD, false);
    let chunk = body(&Chunk { address: base, bytes: 2 << 20 }, &[]);
    let get = body(
        &module::cuModuleGetGlobal_v2::Sent { dptr: true, bytes: true, hmod: handle(Kind::Module, 1), name: "runs".into() },
        &[],
    );
    let p = place();
    p.apply(id::IMAGE_PUT, &put);
    p.apply(id::IMAGE_LOAD, &load);
    let answer = p.apply(0x0508, &get);
    let turn = p.leave_keeping_the_turn();
    let journal = |answer: &'static [u8]| {
        [(id::CHUNK_MAP, &chunk, &[][..]), (id::IMAGE_PUT, &put, &[]), (id::IMAGE_LOAD, &load, &[]), (0x0508, &get, answer)]
            .into_iter()
            .enumerate()
            .map(|(i, (id, body, reply))| Record { seq: i as u64, id, body, reply })
    };
    let p = open(turn);
    let right: &'static [u8] = answer.clone().leak();
    let report = replay(journal(right), &mut LocalSink::new(&p.exec), 4).expect("the same");
    assert_eq!(report.records, 4);
    let mut other = answer;
    other[1] ^= 0x40;
    let p = open(p.leave_keeping_the_turn());
    let failed = replay(journal(other.leak()), &mut LocalSink::new(&p.exec), 4).unwrap_err();
    let ReplayError::Diverged(divergence) = failed else { panic!("{failed}") };
    assert_eq!((divergence.seq, divergence.call.as_str()), (3, "cuModuleGetGlobal_v2"));
    p.leave();
}

#[test]
fn host_functions_run_here_where_this_process_is_the_jobs() {
    static RAN: Mutex<Vec<(u64, i32)>> = Mutex::new(Vec::new());
    let p = place();
    let a = p.map(0, 2 << 20);
    p.exec.run_host_functions_here(|token, status| RAN.lock().unwrap().push((token, status)));
    let stream = p.stream(1, 1);
    for token in 1..=20u64 {
        p.write(a, &token.to_le_bytes(), stream);
        let op = ops::HostCall { token, stream, callback: token % 2 == 0 };
        assert!(matches!(p.exec.apply(id::HOST_CALL, &body(&op, &[]), &mut Vec::new()), Applied::Done(code::SUCCESS)));
    }
    p.apply(id::STREAM_SYNC, &body(&stream, &[]));
    assert_eq!(*RAN.lock().unwrap(), (1..=20).map(|t| (t, code::SUCCESS)).collect::<Vec<_>>());
    // Memory of this process, pinned: the driver sees it at its own address.
    let memory = vec![9u8; 1 << 16];
    let at = memory.as_ptr() as u64;
    p.exec.pin_host(at, 1 << 16, 0, ops::Slab::default()).expect("pin");
    assert_eq!(p.exec.pinned_host(), [(at, 1 << 16)]);
    assert!(p.exec.pin_host(at, 1 << 16, 0, ops::Slab::default()).is_err(), "twice");
    p.exec.unpin_host(at);
    assert!(p.exec.pinned_host().is_empty());
    p.exec.pin_host(at, 1 << 16, 0, ops::Slab::default()).expect("pin again");
    p.leave();
}

/// A memory file that cannot shrink.
#[test]
fn buffers_lie_beside_what_the_driver_still_has() {
    let p = place();
    const BYTES: usize = 20 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping, given back while the driver takes it for registered: so does a program that has told only its own
    // place.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) } as u64;
    p.exec.pin_host(at, BYTES as u64, 0, ops::Slab::default()).expect("pin");
    // SAFETY: mapped above.
    unsafe { libc::munmap(at as *mut libc::c_void, BYTES) };
    let buffers: Vec<_> = (0..3).map(|_| p.exec.pinned(BYTES).expect("buffer")).collect();
    for buffer in &buffers {
        let start = buffer.bytes().as_ptr() as u64;
        assert!(start + BYTES as u64 <= at || at + BYTES as u64 <= start);
    }
    drop(buffers);
    p.exec.unpin_host(at);
    p.leave();
}

fn file(bytes: i64, seals: i32) -> OwnedFd {
    // SAFETY: plain system calls; the descriptor is fresh and belongs to nothing else.
    unsafe {
        let fd = OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING));
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), bytes), 0);
        assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
        fd
    }
}

#[test]
fn parts_of_the_jobs_file_are_mapped_where_the_job_has_them() {
    let p = place();
    let pin = |address, bytes| {
        p.try_apply(
            id::HOST_PIN,
            &body(&ops::HostPin { address, bytes, flags: 0, apart: false, exclusive: false, slab: ops::Slab::default() }, &[]),
        )
        .0
    };
    let (at, bytes) = (address_map::HOST + 8192, 10_000);
    assert_eq!(pin(at, bytes), code::ERROR_NOT_SUPPORTED, "without a file");
    assert!(p.exec.set_pinned_file(file(0, 0)).is_err(), "it could shrink");
    assert!(p.exec.set_pinned_file(std::fs::File::open("/dev/zero").expect("open").into()).is_err());
    let ours = file(64 << 10, libc::F_SEAL_SHRINK);
    p.exec.set_pinned_file(ours.try_clone().expect("clone")).expect("file");
    assert!(p.exec.set_pinned_file(ours.try_clone().expect("clone")).is_err(), "twice");
    for (address, bytes) in [
        (at + 1, 8),
        (at, 0),
        (address_map::HOST - 4096, 4096),
        (at, 64 << 10),
        (address_map::HOST_END - 4096, 8192),
        (at, u64::MAX),
    ] {
        assert_eq!(pin(address, bytes), code::ERROR_INVALID_VALUE, "{address:x} {bytes}");
    }
    assert_eq!(pin(at, bytes), code::SUCCESS);
    assert_ne!(pin(at, bytes), code::SUCCESS, "it is there");
    assert_eq!(p.exec.pinned_host(), [(at, bytes)]);

    // What the job writes to its file is what the copy finds, and the other way round.
    let file = std::fs::File::from(ours);
    file.write_all_at(b"from the job", 8192 + 100).expect("write");
    let a = p.map(0, 2 << 20);
    let copy = |dst, src, width, rows| {
        let op = CopyDevice { dst, dst_pitch: 64, src, src_pitch: 64, width, rows, stream: LEGACY };
        p.try_apply(id::COPY_DEVICE, &body(&op, &[])).0
    };
    assert_eq!(copy(a, at + 100, 12, 1), code::SUCCESS);
    assert_eq!(copy(at + 128, a, 6, 2), code::SUCCESS);
    p.apply(id::STREAM_SYNC, &body(&LEGACY, &[]));
    let mut seen = [0; 76];
    file.read_exact_at(&mut seen, 8192 + 128).expect("read");
    assert_eq!((&seen[..8], &seen[64..70]), (&b"from t\0\0"[..], &[0; 6][..]));
    // No other memory of this process can be named.
    for (dst, src, width) in [(a, at + bytes - 8, 9), (at - 8, a, 16), (a, at - 4096, 8), (at, at + 64, 8)] {
        assert_ne!(copy(dst, src, width, 1), code::SUCCESS, "{dst:x} {src:x}");
    }
    p.apply(id::HOST_UNPIN, &body(&at, &[]));
    assert_ne!(copy(a, at, 8, 1), code::SUCCESS);
    assert_eq!(pin(at, bytes), code::SUCCESS, "and again");
    p.leave();
}

/// Blocks that do not lie in their slab, a slab of 64 KiB, and slabs that cannot be.
fn misplaced(slab: ops::Slab) -> [(u64, u64, ops::Slab); 8] {
    let first = slab.address;
    [
        (first, 0, slab),
        (first, (64 << 10) + 1, slab),
        (first + (64 << 10), 8, slab),
        (first, u64::MAX, slab),
        (first, 8, ops::Slab { address: slab.address + 8, ..slab }),
        (first, 8, ops::Slab { bytes: 100, ..slab }),
        (first, 8, ops::Slab { bytes: u64::MAX - 4095, ..slab }),
        (0x5a00_0000_0000, 8, ops::Slab { address: 0x5a00_0000_0000, ..slab }),
    ]
}

#[test]
fn blocks_of_a_slab_are_registered_with_it_and_go_with_its_last() {
    let p = place();
    let ours = file(1 << 20, libc::F_SEAL_SHRINK);
    p.exec.set_pinned_file(ours.try_clone().expect("clone")).expect("file");
    let slab = ops::Slab { address: address_map::HOST + (64 << 10), bytes: 64 << 10, number: 1 };
    let pin = |address, bytes, slab| {
        p.try_apply(id::HOST_PIN, &body(&ops::HostPin { address, bytes, flags: 0, apart: false, exclusive: false, slab }, &[])).0
    };
    let unpin = |address: u64| p.apply(id::HOST_UNPIN, &body(&address, &[]));
    let (first, second) = (slab.address, slab.address + 8192);
    let others = [(first - 8, 8, slab), (first, 8, ops::Slab { bytes: 1 << 30, ..slab })];
    for (address, bytes, slab) in others.into_iter().chain(misplaced(slab)) {
        assert_eq!(pin(address, bytes, slab), code::ERROR_INVALID_VALUE, "{address:x} {bytes} {slab:?}");
    }
    assert_eq!((pin(first, 100, slab), pin(second, 8192, slab)), (code::SUCCESS, code::SUCCESS));
    assert_eq!(pin(first, 100, slab), code::ERROR_INVALID_VALUE, "twice");
    assert_eq!(p.exec.pinned_host(), [(first, 100), (second, 8192)]);

    let file = std::fs::File::from(ours);
    file.write_all_at(b"from the job", second - address_map::HOST).expect("write");
    let a = p.map(0, 2 << 20);
    let copy = |dst, src, width| {
        let op = CopyDevice { dst, dst_pitch: 0, src, src_pitch: 0, width, rows: 1, stream: LEGACY };
        p.try_apply(id::COPY_DEVICE, &body(&op, &[])).0
    };
    assert_eq!((copy(a, second, 12), copy(first, a, 12)), (code::SUCCESS, code::SUCCESS));
    p.apply(id::STREAM_SYNC, &body(&LEGACY, &[]));
    let mut seen = [0; 12];
    file.read_exact_at(&mut seen, first - address_map::HOST).expect("read");
    assert_eq!(&seen, b"from the job");
    // What lies between and behind them in the slab is nobody's.
    for (src, width) in [(first + 96, 8), (first + 4096, 8), (second + 8192, 8), (second, 8200)] {
        assert_ne!(copy(a, src, width), code::SUCCESS, "{src:x}");
    }
    // The job has made another slab at its address while a block of this one is left: that would still be the old memory.
    let next = ops::Slab { number: 2, ..slab };
    unpin(first);
    assert_ne!(copy(a, first, 8), code::SUCCESS);
    assert_eq!(pin(first, 100, next), code::ERROR_INVALID_VALUE);
    assert_eq!(copy(a, second, 12), code::SUCCESS);
    p.apply(id::STREAM_SYNC, &body(&LEGACY, &[]));
    unpin(second);
    assert_eq!(pin(first, 100, next), code::SUCCESS);
    // A new context has everything again.
    p.apply(id::CONTEXT_RESET, &[]);
    let a = p.map(0, 2 << 20);
    let copied = copy_again(&p, a, first);
    assert_eq!(copied, code::SUCCESS);
    p.leave();
}

#[test]
fn mirrored_blocks_share_the_registration_of_their_slab() {
    let p = place();
    let slab = ops::Slab { address: address_map::HOST + (64 << 10), bytes: 64 << 10, number: 1 };
    let request = |id, address, bytes, slab| {
        p.try_apply(id, &body(&ops::HostPin { address, bytes, flags: 0, apart: true, exclusive: false, slab }, &[])).0
    };
    let unpin = |address: u64| p.apply(id::HOST_UNPIN, &body(&address, &[]));
    let tell = |address: u64, value: u64| {
        let line: host_mirror::Line = [address, 0xff, value, 0, 0, 0, 0, 0, 0, 0];
        p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(&[line])).0
    };
    let (first, second, third) = (slab.address, slab.address + 8192, slab.address + 20480);
    assert_eq!(request(id::HOST_BLOCK, first, 8, slab), code::ERROR_INVALID_VALUE, "there is no slab yet");
    for (address, bytes, slab) in [(first - 4096, 8, slab), (first + 8, 8, slab)].into_iter().chain(misplaced(slab)) {
        assert_eq!(request(id::HOST_PIN, address, bytes, slab), code::ERROR_INVALID_VALUE, "{address:x} {bytes} {slab:?}");
        assert_eq!((p.exec.has_apart(), p.exec.pinned_host().len()), (false, 0), "nothing is left of it");
    }
    assert_eq!((request(id::HOST_PIN, first, 100, slab), request(id::HOST_BLOCK, second, 8192, slab)), (0, 0));
    assert_eq!(p.exec.collect_changes().blocks, 2, "the refused request counts, as the job has counted it");
    for wrong in [ops::Slab { number: 2, ..slab }, ops::Slab { bytes: 32 << 10, ..slab }, ops::Slab::default()] {
        assert_eq!(request(id::HOST_BLOCK, third, 8, wrong), code::ERROR_INVALID_VALUE, "{wrong:?}");
    }
    let a = p.map(0, 2 << 20);
    let copy = |dst, src, width| {
        let op = CopyDevice { dst, dst_pitch: 0, src, src_pitch: 0, width, rows: 1, stream: LEGACY };
        let rc = p.try_apply(id::COPY_DEVICE, &body(&op, &[])).0;
        p.apply(id::STREAM_SYNC, &body(&LEGACY, &[]));
        rc
    };
    assert_eq!((tell(second + 64, 0x1234), copy(a, second + 64, 8), copy(first + 64, a, 8)), (0, 0, 0));
    let found = p.exec.collect_changes().lines;
    assert_eq!((found.len(), &found[0][..3]), (1, &[first + 64, 3, 0x1234][..]));
    // What lies between and behind them in the slab is nobody's.
    for (src, width) in [(first + 96, 8), (first + 4096, 8), (second + 8192, 8), (second, 8200)] {
        assert_ne!(copy(a, src, width), code::SUCCESS, "{src:x}");
    }
    assert_eq!(tell(third, 1), code::ERROR_INVALID_VALUE);
    // A block that is made again is zero, also if only a part of its pages was another block's, of which the job has told nothing.
    assert!(!p.exec.end_block(third), "it is no block");
    assert!(p.exec.end_block(second));
    assert!(!p.exec.end_block(first), "the slab would end with it");
    assert_eq!(tell(second + 64, 1), code::ERROR_INVALID_VALUE);
    assert_eq!(request(id::HOST_BLOCK, second, 4097, slab), code::SUCCESS);
    assert_eq!((copy(a, second + 64, 8), copy(first + 64, a, 8)), (0, 0));
    let found = p.exec.collect_changes().lines;
    assert_eq!((found.len(), &found[0][..3]), (1, &[first + 64, 3, 0][..]));
    assert_eq!((tell(second + 4096, 5), request(id::HOST_BLOCK, second + 4096, 4096, slab)), (0, 0));
    assert_eq!(p.exec.pinned_host(), [(first, 100), (second + 4096, 4096)]);
    assert_eq!((copy(a, second + 4096, 8), copy(first + 64, a, 8), p.exec.collect_changes().lines.len()), (0, 0, 0));
    // A new context has everything again.
    p.apply(id::CONTEXT_RESET, &[]);
    let a = p.map(0, 2 << 20);
    assert_eq!(copy_again(&p, a, second + 4096), code::SUCCESS);
    // The job has unmapped the slab without a message, and uses its addresses for another slab or for memory of its own.
    let next = ops::Slab { number: 2, ..slab };
    assert_eq!(request(id::HOST_PIN, third, 8, next), code::SUCCESS);
    assert_eq!(p.exec.pinned_host(), [(third, 8)]);
    assert_eq!(request(id::HOST_PIN, second, 8192, ops::Slab::default()), code::SUCCESS);
    assert_eq!(p.exec.pinned_host(), [(second, 8192)]);
    unpin(second);
    assert!(!p.exec.has_apart() && p.exec.pinned_host().is_empty());
    assert_eq!(request(id::HOST_PIN, first, 8, slab), code::SUCCESS, "its pages have been unmapped");
    p.leave();
}

/// Copies 8 bytes of host memory to the device and waits.
fn copy_again(p: &Place, dst: u64, src: u64) -> i32 {
    let op = CopyDevice { dst, dst_pitch: 0, src, src_pitch: 0, width: 8, rows: 1, stream: LEGACY };
    let rc = p.try_apply(id::COPY_DEVICE, &body(&op, &[])).0;
    p.apply(id::STREAM_SYNC, &body(&LEGACY, &[]));
    rc
}

#[test]
fn memory_of_its_own_is_kept_as_the_jobs() {
    let p = place();
    let pin = |address, bytes| {
        p.try_apply(
            id::HOST_PIN,
            &body(&ops::HostPin { address, bytes, flags: 0, apart: true, exclusive: false, slab: ops::Slab::default() }, &[]),
        )
        .0
    };
    let tell = |lines: &[host_mirror::Line]| p.try_apply(id::HOST_BYTES, host_mirror::bytes_of(lines)).0;
    // In pages of the arena, and in the middle of pages elsewhere.
    for at in [address_map::HOST + (1 << 30), 0x5a00_0000_0000 + 100 * 8] {
        assert!(!p.exec.has_apart());
        for (address, bytes) in [(at, 0), (at, u64::MAX), (0, 4096), (1 << 47, 4096)] {
            assert_eq!(pin(address, bytes), code::ERROR_INVALID_VALUE, "{address:x} {bytes}");
        }
        assert_eq!(pin(at, 10_000), code::SUCCESS);
        let line = at.next_multiple_of(64);
        let mut first: host_mirror::Line = [0; 10];
        (first[0], first[1], first[2], first[3]) = (line, 0xff0f, 0x0102_0304_0506_0708, 77);
        assert_eq!(tell(&[first]), code::SUCCESS);
        assert!(p.exec.collect_changes().lines.is_empty(), "what the job has told is not told to it");
        let a = p.map(0, 2 << 20);
        let copy = |dst, src, width| {
            let op = CopyDevice { dst, dst_pitch: 0, src, src_pitch: 0, width, rows: 1, stream: LEGACY };
            p.try_apply(id::COPY_DEVICE, &body(&op, &[])).0
        };
        assert_eq!(copy(a, line, 16), code::SUCCESS);
        assert_eq!(copy(line + 128, a, 16), code::SUCCESS);
        p.apply(id::STREAM_SYNC, &body(&LEGACY, &[]));
        let lines = p.exec.collect_changes().lines;
        assert_eq!(lines.len(), 1);
        // Only the bytes whose bits were set have come.
        assert_eq!((lines[0][0], lines[0][1], lines[0][2], lines[0][3]), (line + 128, 0x010f, 0x0506_0708, 77));
        // Other memory of this process is none of the job's business.
        first[0] = at + (1 << 20);
        assert_eq!(tell(&[first]), code::ERROR_INVALID_VALUE);
        assert_eq!(p.try_apply(id::HOST_BYTES, &[1, 2, 3]).0, code::ERROR_INVALID_VALUE);
        assert_ne!(copy(a, at + 9_999, 2), code::SUCCESS);
        // Made anew it is zero again.
        assert_eq!(pin(at, 10_000), code::SUCCESS);
        assert_eq!(copy(line, a, 1), code::SUCCESS);
        p.apply(id::STREAM_SYNC, &body(&LEGACY, &[]));
        assert_eq!(p.exec.collect_changes().lines[0][1..3], [1, 8]);
        p.apply(id::HOST_UNPIN, &body(&at, &[]));
        first[0] = line;
        assert_eq!(tell(&[first]), code::ERROR_INVALID_VALUE);
        p.apply(id::CHUNK_UNMAP, &body(&ops::Chunk { address: a, bytes: 2 << 20 }, &[]));
    }
    p.leave();
}
