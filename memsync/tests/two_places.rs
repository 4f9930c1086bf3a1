//! Two processes, each with a place; the memory of one is brought to the other.

use cuda_api::address_map;
use cuda_api::calls::module;
use cuda_api::code;
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::{Chunk, CopyIn, CopyOut, ImageLoad, ImagePut, Launch, id};
use cuda_api::wire::Wire;
use cuda_image::Image;
use executor::{Applied, Executor, Options};
use memsync::{Faults, Round, Stream, SyncError, Verify, run_source, run_target};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;

const DEVICE: u32 = 3;
const LEGACY: u64 = cuda_api::arg::LEGACY;
const STRIPES: usize = 3;
/// Descriptors of the connections, told to the second process; its presence makes a process the second.
const CONNECTIONS: &str = "MEMSYNC_TEST_CONNECTIONS";
/// The number of the second process's GPU.
const GPU: &str = "MEMSYNC_TEST_GPU";

/// The second place's GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    SameGpu,
    SameMachine,
    Elsewhere,
}

/// A list in the device heap, its head in a variable; `grow` puts a node in front, `sum` adds up the list.
const LIST: &str = "\
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 r) malloc (.param .b64 n);
.visible .global .align 8 .u64 head;
.visible .const .align 4 .u32 factor = 3;
.visible .global .align 8 .b8 big[200000];
.visible .entry grow(.param .u64 value) {
  .reg .b64 %rd<5>;
  { .param .b64 n; .param .b64 r; mov.u64 %rd1, 16; st.param.b64 [n+0], %rd1; call.uni (r), malloc, (n); ld.param.b64 %rd2, [r+0]; }
  ld.global.u64 %rd3, [head]; ld.param.u64 %rd4, [value];
  st.u64 [%rd2], %rd3; st.u64 [%rd2+8], %rd4;
  st.global.u64 [head], %rd2;
  ret;
}
.visible .entry sum(.param .u64 to) {
  .reg .b64 %rd<6>; .reg .pred %p;
  ld.global.u64 %rd1, [head]; mov.u64 %rd2, 0;
loop:
  setp.eq.u64 %p, %rd1, 0; @%p bra done;
  ld.u64 %rd3, [%rd1+8]; add.u64 %rd2, %rd2, %rd3; ld.u64 %rd1, [%rd1];
  bra loop;
done:
  ld.param.u64 %rd4, [to]; st.global.u64 [%rd4], %rd2;
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

struct Place(Arc<Executor>);

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
    /// Both processes do the same up to here: what a replayed journal does.
    fn prepared() -> Place {
        let gpu = std::env::var(GPU).map_or(0, |number| number.parse().expect("number"));
        let options = Options { driver: driver(), gpu, virtual_device: DEVICE };
        let p = Place(Executor::open(&options).expect("open"));
        for (offset, bytes) in [(0, 6 << 20), (1 << 30, 2 << 20)] {
            p.apply(id::CHUNK_MAP, &body(&Chunk { address: address_map::own_base(DEVICE) + offset, bytes }, &[]));
        }
        let image = Image::from_bytes(cuda_image::Kind::Ptx, LIST.bytes().chain([0]).collect::<Vec<_>>().into()).expect("image");
        p.apply(id::IMAGE_PUT, &body(&ImagePut { hash: image.hash(), kind: image.kind.code() }, &image.bytes));
        let hmod = handle(Kind::Module, 1);
        p.apply(
            id::IMAGE_LOAD,
            &body(&ImageLoad { handle: hmod, hash: image.hash(), library: false, options: vec![], describe: false }, &[]),
        );
        for (slot, name) in [(1, "grow"), (2, "sum")] {
            let hfunc = handle(Kind::Function, slot);
            p.apply(0x0507, &body(&module::cuModuleGetFunction::Sent { hfunc, hmod, name: name.into() }, &[]));
            p.apply(id::FUNCTION_INFO, &body(&hfunc, &[]));
        }
        p
    }

    fn apply(&self, id: u16, body: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        let rc = match self.0.apply(id, body, &mut reply) {
            Applied::Done(rc) => rc,
            Applied::Pending(p) => p.wait(&self.0, &mut reply),
        };
        assert_eq!(rc, code::SUCCESS, "{}", replayer::call_name(id));
        reply
    }

    fn call(&self, function: u32, argument: u64) {
        let function = handle(Kind::Function, function);
        let head = Launch { function, stream: LEGACY, grid: [1; 3], block: [1; 3], shared: 0, attributes: 0, cooperative: false };
        self.apply(id::LAUNCH, &body(&head, &argument.to_le_bytes()));
        self.apply(id::CONTEXT_SYNC, &[]);
    }

    fn grow(&self, value: u64) {
        self.call(1, value);
    }

    fn sum(&self) -> u64 {
        let to = address_map::own_base(DEVICE) + (1 << 30);
        self.call(2, to);
        let bytes = self.apply(id::COPY_OUT, &body(&CopyOut { src: to, pitch: 8, width: 8, rows: 1, stream: LEGACY }, &[]));
        u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
    }

    /// Replaces one of the chunks by other memory.
    fn exchange(&self) {
        let chunk = body(&Chunk { address: address_map::own_base(DEVICE) + (1 << 30), bytes: 2 << 20 }, &[]);
        self.apply(id::CHUNK_UNMAP, &chunk);
        self.apply(id::CHUNK_MAP, &chunk);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let n = bytes.len() as u64;
        let op = CopyIn { dst: address_map::own_base(DEVICE) + offset, pitch: n, width: n, rows: 1, stream: LEGACY };
        self.apply(id::COPY_IN, &body(&op, bytes));
        self.apply(id::CONTEXT_SYNC, &[]);
    }
}

/// The second process: prepares its place, then carries out commands from the first connection.
fn second(list: &str) {
    // SAFETY: descriptors that the first process made for this one.
    let mut sockets = list.split(' ').map(|fd| unsafe { UnixStream::from_raw_fd(fd.parse().expect("descriptor")) });
    let mut control = sockets.next().expect("connection");
    let mut conns: Vec<Box<dyn Stream>> = sockets.map(|s| Box::new(s) as Box<dyn Stream>).collect();
    let p = Place::prepared();
    control.write_all(b"!").expect("ready");
    let mut word = [0];
    while control.read_exact(&mut word).is_ok() {
        let answer = match word[0] {
            b'p' | b'v' | b'c' => match run_target(
                &p.0,
                &mut conns,
                if word[0] == b'p' { Verify::Skip } else { Verify::Auto },
                true,
                &faults(word[0] == b'c'),
            ) {
                Ok(round) => format!("ok {:02x?} {} {}", round.digest, round.bytes_fetched, round.not_in_view),
                Err(e) => e.to_string(),
            },
            b's' => p.sum().to_string(),
            b'g' => {
                p.grow(1000);
                String::new()
            }
            b'x' => {
                p.exchange();
                String::new()
            }
            _ => break,
        };
        control.write_all(&(answer.len() as u32).to_le_bytes()).expect("answer");
        control.write_all(answer.as_bytes()).expect("answer");
    }
    p.0.close();
}

/// Spoils a byte, or not.
fn faults(spoil: bool) -> Faults {
    Faults { corrupt_page: spoil.then_some(1), ..Faults::default() }
}

struct Second {
    child: Child,
    tell: UnixStream,
    conns: Vec<Box<dyn Stream>>,
}

impl Second {
    fn start(place: Where) -> Second {
        let (mine, theirs): (Vec<UnixStream>, Vec<UnixStream>) =
            (0..=STRIPES).map(|_| UnixStream::pair().expect("sockets")).unzip();
        for s in &theirs {
            // SAFETY: an open descriptor; the second process inherits it.
            unsafe { libc::fcntl(s.as_raw_fd(), libc::F_SETFD, 0) };
        }
        let list: Vec<String> = theirs.iter().map(|s| s.as_raw_fd().to_string()).collect();
        let child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "memory_is_brought_to_another_process", "--nocapture"])
            .env(CONNECTIONS, list.join(" "))
            .env("SOFTGPU_SEED_ID", if place == Where::Elsewhere { "elsewhere" } else { "" })
            .env("SOFTGPU_DEVICES", "2")
            .env(GPU, if place == Where::SameMachine { "1" } else { "0" })
            .spawn()
            .expect("second process");
        let mut mine = mine.into_iter();
        let mut tell = mine.next().expect("connection");
        tell.read_exact(&mut [0]).expect("the second process is ready");
        Second { child, tell, conns: mine.map(|s| Box::new(s) as Box<dyn Stream>).collect() }
    }

    fn say(&mut self, word: u8) {
        self.tell.write_all(&[word]).expect("told");
    }

    fn answer(&mut self) -> String {
        let mut len = [0; 4];
        self.tell.read_exact(&mut len).expect("answer");
        let mut text = vec![0; u32::from_le_bytes(len) as usize];
        self.tell.read_exact(&mut text).expect("answer");
        String::from_utf8(text).expect("text")
    }

    /// One round of this kind: the source's result, the target's, and what it has fetched.
    fn round(&mut self, from: &Place, kind: u8) -> (Result<Round, SyncError>, String, u64) {
        self.say(kind);
        let round = run_source(&from.0, &mut self.conns, &mut Vec::new(), false, &faults(kind == b'c'));
        let answer = self.answer();
        let fetched = answer.rsplit_once(']').and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        (round, answer, fetched)
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // It may have ended by itself, which is what is wanted.
        let _ = self.tell.write_all(b"q");
        let _ = self.child.wait();
    }
}

#[test]
fn memory_is_brought_to_another_process() {
    if let Ok(list) = std::env::var(CONNECTIONS) {
        return second(&list);
    }
    for place in [Where::SameGpu, Where::SameMachine, Where::Elsewhere] {
        both_ways(place);
    }
}

fn both_ways(place: Where) {
    let same_machine = place != Where::Elsewhere;
    let p = Place::prepared();
    let mut other = Second::start(place);
    (1..=10).for_each(|v| p.grow(v));
    p.write(12345, &(0..3_000_000u32).map(|i| (i >> 5) as u8).collect::<Vec<_>>());

    // While it could still work.
    let (round, answer, fetched) = other.round(&p, b'p');
    let before = round.expect("pre-copy");
    assert!(answer.starts_with("ok"), "{answer}");
    assert!(before.bytes_sent + fetched >= 3_000_000 && before.regions >= 5, "{before:?}");
    // Of the same machine the chunks did not travel; the variables and the heap did.
    assert_eq!((fetched >= 3_000_000, fetched > 0), (same_machine, same_machine), "{answer}");
    assert!(same_machine || answer.contains("importing memory of the source"), "{answer}");
    assert!(before.bytes_sent > 0, "the list and its head are in no chunk");

    // It went on; the rest is little, and is verified.
    p.grow(100);
    p.write(5 << 20, b"changed");
    let (round, answer, fetched) = other.round(&p, b'v');
    let delta = round.expect("delta");
    assert!(answer.starts_with(&format!("ok {:02x?} ", delta.digest)), "{answer}");
    let copied = delta.bytes_sent + fetched;
    assert!(copied > 0 && copied < 1 << 20 && (fetched > 0) == same_machine, "{delta:?} {answer}");
    let (round, _, fetched) = other.round(&p, b'v');
    assert_eq!((round.expect("nothing left").bytes_sent, fetched), (0, 0));

    // The list in the device heap is whole at the other place, and goes on there.
    assert_eq!(p.sum(), 155);
    other.say(b's');
    assert_eq!(other.answer(), "155");
    other.say(b'g');
    other.answer();
    other.say(b's');
    assert_eq!(other.answer(), "1155");

    // Other memory at the same address, at one end after the other: the hashes that were shown are not taken for those of a later round.
    p.write((1 << 30) + 65536, &[3; 200_000]);
    p.exchange();
    p.write(1 << 30, &[7; 70_000]);
    let (round, answer, _) = other.round(&p, b'p');
    assert!(round.is_ok() && answer.starts_with("ok"), "{round:?} {answer}");
    other.say(b'x');
    other.answer();
    let (round, answer, _) = other.round(&p, b'v');
    assert!(round.is_ok() && answer.starts_with("ok"), "{round:?} {answer}");
    let (round, _, fetched) = other.round(&p, b'v');
    assert_eq!((round.expect("nothing left").bytes_sent, fetched), (0, 0));

    // A byte that changes on the way is noticed by both.
    p.write(100, b"more");
    let (round, answer, _) = other.round(&p, b'c');
    // The target compares what it has in view byte by byte if both places are of one GPU.
    let by_target = matches!(&round, Err(SyncError::Peer(text)) if text.contains("not identical"));
    let by_both = matches!(round, Err(SyncError::Digest { .. }));
    assert!(if place == Where::SameGpu { by_target } else { by_both }, "{place:?}: {round:?}");
    assert!(answer.starts_with("the copy is not identical"), "{answer}");

    // So is memory that only one of them has.
    p.apply(id::CHUNK_MAP, &body(&Chunk { address: address_map::own_base(DEVICE) + (2 << 30), bytes: 2 << 20 }, &[]));
    let (round, answer, _) = other.round(&p, b'v');
    assert!(matches!(round, Err(SyncError::Regions(_))), "{round:?}");
    assert!(answer.contains("do not hold the same memory"), "{answer}");
    p.0.close();
}
