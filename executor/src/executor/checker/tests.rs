//! Calls every operation with memory that is not the job's, and checks what the executor passes to a driver.

use super::{BAD, Copy3, CopyEnd, DEVICE, Fill, HOST, Kind, MemoryPart, Resource, StreamMemory, reach, span};
use crate::executor::Executor;
use crate::executor::state::mappings::Arenas;
use crate::gpu::Gpu;
use crate::{Applied, Options, batch};
use cuda_api::address_map::{self, HOST_END, VMM, VMM_END};
use cuda_api::arg::LEGACY;
use cuda_api::array::{ArrayMake, CopyBox, CopyBoxLate, ObjectMake, Sampling, Shape, WINDOWS};
use cuda_api::calls::{self, Call, array, module, stream};
use cuda_api::class::How;
use cuda_api::code::{self, Code};
use cuda_api::handle::compose;
use cuda_api::lock::lock;
use cuda_api::ops::{
    ATTRIBUTE_BYTES, Alias, BulkCopy, Chunk, CopyDevice, CopyIn, CopyInLate, CopyOut, GraphChange, GraphMake, HOLD, HostPin,
    ImageLoad, ImagePut, Launch, Link, Memory, Op, PeerMap, STREAM_ATTRIBUTE_BYTES, Slab, StreamAttribute, TENSOR_MAP_BYTES,
    TensorMapIm2col, TensorMapTiled, id, name,
};
use cuda_api::reference::{ReferenceSet, Setting};
use cuda_api::wire::Wire;
use cuda_api::work::{After, At, Conditional, HostCall, Kernel, MemAlloc, Params, Spec, SpecNode, Work};
use cuda_image::Image;
use std::os::fd::FromRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

pub(in crate::executor) mod stand_in;

const DEVICE_NUMBER: u32 = 23;
const CHUNK: u64 = 2 << 20;
/// Contents of memory that no call may access.
const CANARY: u8 = 0xc5;
/// Contents of the job's memory.
const OWN: u8 = 0x11;
/// Number of bytes that a call refers to.
const BYTES: u64 = 64;
/// Size of the memory around an address that no call may use, so large that nothing else is near it.
const ROOM: usize = 64 << 10;

const CODE: &str = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing(.param .u64 to) { ret; }\n\0";

fn driver() -> PathBuf {
    let directory = std::env::current_exe().expect("own path").parent().expect("directory").to_owned();
    [directory.join("libsoftgpu.so"), directory.join("../libsoftgpu.so")].into_iter().find(|p| p.exists()).expect("libsoftgpu.so")
}

pub(in crate::executor) fn body(op: &impl Wire, rest: &[u8]) -> Vec<u8> {
    let mut b = Vec::new();
    op.put(&mut b);
    b.extend_from_slice(rest);
    b
}

fn handle(kind: Kind) -> u64 {
    compose(kind, 1, 7)
}

fn apply(e: &Executor, call: u16, body: &[u8]) -> Code {
    match e.apply(call, body, &mut Vec::new()) {
        Applied::Done(rc) => rc,
        // Passed to the driver.
        Applied::Pending(_) => code::SUCCESS,
    }
}

/// A place with one object of each kind.
pub(in crate::executor) struct Job {
    pub(in crate::executor) exec: Arc<Executor>,
    pub(in crate::executor) memory: u64,
    image: [u8; 32],
    /// The driver of this process has one place at a time.
    _turn: MutexGuard<'static, ()>,
}

impl Job {
    pub(in crate::executor) fn open() -> Job {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = lock(&TURN);
        let exec = Executor::open(&Options { driver: driver(), gpu: 0, virtual_device: DEVICE_NUMBER }).expect("open");
        let memory = address_map::own_base(DEVICE_NUMBER);
        let bytes: Vec<u8> = CODE.bytes().collect();
        let image = Image::from_bytes(cuda_image::Kind::Ptx, bytes.into()).expect("image");
        let (hash, kind) = (image.hash(), image.kind.code());
        let must = |call, body: Vec<u8>| {
            let mut reply = Vec::new();
            let rc = match exec.apply(call, &body, &mut reply) {
                Applied::Done(rc) => rc,
                Applied::Pending(p) => p.wait(&exec, &mut reply),
            };
            assert_eq!(rc, code::SUCCESS, "{call:#x}");
        };
        must(id::CHUNK_MAP, body(&Chunk { address: memory, bytes: CHUNK }, &[]));
        let fill =
            cuda_api::ops::Fill { dst: memory, pitch: 0, value: OWN.into(), element: 1, width: CHUNK, rows: 1, stream: LEGACY };
        must(id::FILL, body(&fill, &[]));
        must(
            stream::cuStreamCreate::Fn::ID,
            body(&stream::cuStreamCreate::Sent { phStream: handle(Kind::Stream), Flags: 1 }, &[]),
        );
        must(stream::cuEventCreate::Fn::ID, body(&stream::cuEventCreate::Sent { phEvent: handle(Kind::Event), Flags: 0 }, &[]));
        must(id::IMAGE_PUT, body(&ImagePut { hash, kind }, &image.bytes));
        let load = ImageLoad { handle: handle(Kind::Module), hash, library: false, options: vec![], describe: false };
        must(id::IMAGE_LOAD, body(&load, &[]));
        let (hfunc, hmod) = (handle(Kind::Function), handle(Kind::Module));
        must(
            module::cuModuleGetFunction::Fn::ID,
            body(&module::cuModuleGetFunction::Sent { hfunc, hmod, name: "nothing".into() }, &[]),
        );
        must(id::FUNCTION_INFO, body(&hfunc, &[]));
        must(array::cuTexRefCreate::Fn::ID, body(&array::cuTexRefCreate::Sent { pTexRef: handle(Kind::TextureRef) }, &[]));
        let shape = Shape { width: 64, height: 4, depth: 0, format: 0x20, channels: 1, flags: 0 };
        must(id::ARRAY_MAKE, body(&ArrayMake { handle: handle(Kind::Array), window: WINDOWS, shape, levels: vec![] }, &[]));
        let spec = graph([copy(device(memory), device(memory + 4096)), fill_node(memory), words(memory, 2)]);
        must(id::GRAPH_MAKE, body(&GraphMake { instance: handle(Kind::GraphExec), flags: 0, home: 0, direct: false, spec }, &[]));
        Job { exec, memory, image: hash, _turn: turn }
    }

    fn all_is_as_it_was(&self) {
        let op = CopyOut { src: self.memory, pitch: CHUNK, width: CHUNK, rows: 1, stream: LEGACY };
        let mut reply = Vec::new();
        let Applied::Pending(p) = self.exec.apply(id::COPY_OUT, &body(&op, &[]), &mut reply) else { panic!("no copy") };
        assert_eq!(p.wait(&self.exec, &mut reply), code::SUCCESS);
        assert!(reply.iter().all(|b| *b == OWN), "memory of the job holds what no call may read");
    }
}

fn graph(work: impl IntoIterator<Item = Work<u32>>) -> Spec {
    Spec { graphs: vec![work.into_iter().map(|work| SpecNode { work, after: After::new() }).collect()] }
}

fn device(at: u64) -> CopyEnd {
    CopyEnd { memory: DEVICE, device: at, pitch: BYTES, height: 1, ..CopyEnd::default() }
}

fn copy3(src: CopyEnd, dst: CopyEnd) -> Copy3 {
    Copy3 { src, dst, width: BYTES, rows: 1, depth: 1 }
}

fn copy(src: CopyEnd, dst: CopyEnd) -> Work<u32> {
    Work::Copy(copy3(src, dst))
}

fn fill_node(dst: u64) -> Work<u32> {
    Work::Fill(Fill { dst, pitch: 0, value: 0, element: 1, width: BYTES, rows: 1 })
}

fn words(at: u64, operation: u64) -> Work<u32> {
    Work::MemOps(vec![[operation, at, 0, 0, at, at]])
}

/// A call with a forbidden address, and whether it may succeed because it does not use the address.
type Hostile = (Vec<u8>, bool);

/// Ends of a copy with the address, by every type of memory, in every field that such a type could use.
fn ends(at: u64) -> impl Iterator<Item = CopyEnd> {
    (0..6).chain([77, u32::MAX]).flat_map(move |memory| {
        let e = CopyEnd { memory, pitch: BYTES, height: 1, ..CopyEnd::default() };
        let far = at.wrapping_sub(address_map::own_base(DEVICE_NUMBER));
        // The last: an address of the job with an offset that leads outside.
        [
            CopyEnd { host: at, device: at, array: at, ..e },
            CopyEnd { device: at, ..e },
            CopyEnd { device: address_map::own_base(DEVICE_NUMBER), x: far, pitch: u64::MAX, ..e },
        ]
    })
}

/// Copies with such an end on either side. `host`: the sides at which the executor inserts memory of its own, whatever the call
/// contains.
fn copies(at: u64, own: u64, host: [bool; 2]) -> impl Iterator<Item = (Copy3, bool)> {
    let good = |side: usize| {
        if host[side] { CopyEnd { memory: HOST, ..CopyEnd::default() } } else { device(own + 4096) }
    };
    let (src, dst) = (good(0), good(1));
    ends(at).flat_map(move |e| {
        let free = |side: usize| host[side] && e.memory == HOST;
        [(copy3(e, dst), free(0)), (copy3(src, e), free(1))]
    })
}

fn attribute(number: u32, at: u64) -> Vec<u8> {
    let words: [u64; ATTRIBUTE_BYTES / 8] = std::array::from_fn(|i| if i == 0 { number.into() } else { at });
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Attributes that have addresses, pointers or the driver's handles, and some unknown ones.
const ATTRIBUTES: [u32; 6] = [7, 12, 13, 17, 40, u32::MAX];
/// Such options of the compiler.
const OPTIONS: [u32; 15] = [2, 3, 4, 5, 6, 17, 18, 19, 25, 26, 27, 28, 35, 77, u32::MAX];

fn works(at: u64, own: u64) -> Vec<(Work<u32>, bool)> {
    let kernel = |number: u32| Kernel {
        function: handle(Kind::Function),
        grid: [1; 3],
        block: [1; 3],
        shared: 0,
        attributes: vec![attribute(number, at).try_into().expect("its size")],
        params: Params::from_elem(0, 8),
    };
    // For a copy from or to the host, the place supplies the other end with memory of its own.
    let copies = copies(at, own, [false; 2]).map(|(c, _)| (Work::Copy(c), c.src.memory == HOST || c.dst.memory == HOST));
    let ops = (0..10).chain([77]).map(|n| (words(at, n), matches!(n, 3 | 6)));
    let alone = [
        fill_node(at),
        Work::Fill(Fill { dst: own, pitch: at.wrapping_sub(own), value: 0, element: 1, width: 4, rows: 2 }),
        Work::Fill(Fill { dst: own, pitch: 4, value: 0, element: 8, width: 4, rows: 1 }),
        Work::EventWait(at),
        Work::EventRecord(at),
        Work::Conditional(Conditional { handle: at, kind: 0, bodies: vec![] }),
        Work::MemAlloc(MemAlloc { address: at, bytes: BYTES, device: 0 }),
        Work::MemFree(at),
    ];
    let host = [(Work::Host(HostCall { function: at, data: at }), true)];
    let kernels = ATTRIBUTES.map(|n| (Work::Kernel(kernel(n)), false));
    copies.chain(ops).chain(alone.map(|w| (w, false))).chain(host).chain(kernels).collect()
}

fn resources(at: u64) -> impl Iterator<Item = Resource> {
    (0..5).chain([77]).flat_map(move |kind| {
        let r = Resource { kind, format: 0x20, channels: 1, width: BYTES, height: 2, pitch: BYTES * 4, ..Resource::default() };
        [Resource { address: at, ..r }, Resource { array: at, ..r }, Resource { address: at, array: at, ..r }]
    })
}

fn launch(number: u32, at: u64) -> Vec<u8> {
    let (function, stream) = (handle(Kind::Function), LEGACY);
    let head = Launch { function, stream, grid: [1; 3], block: [1; 3], shared: 0, attributes: 1, cooperative: false };
    let rest = [attribute(number, at), vec![0; 8]].concat();
    body(&head, &rest)
}

/// Calls of an operation with an address in every possible field.
fn calls_of(op: u16, at: u64, job: &Job) -> Vec<Hostile> {
    let own = job.memory;
    let all = |bodies: Vec<Vec<u8>>| -> Vec<Hostile> { bodies.into_iter().map(|b| (b, false)).collect() };
    let into = |dst, pitch, rows| CopyIn { dst, pitch, width: BYTES / rows, rows, stream: LEGACY };
    let filled = [OWN; BYTES as usize];
    let boxes = |host: [bool; 2], rest: &[u8]| -> Vec<Hostile> {
        copies(at, own, host).map(|(copy, free)| (body(&CopyBox { copy, stream: LEGACY }, rest), free)).collect()
    };
    let far = at.wrapping_sub(own);
    match op {
        id::LAUNCH | id::MAX_ACTIVE_CLUSTERS | id::MAX_CLUSTER_SIZE => all(ATTRIBUTES.map(|n| launch(n, at)).into()),
        id::COPY_IN | id::COPY_IN_AT_REST => {
            all(vec![body(&into(at, 0, 1), &filled), body(&into(own, far, 2), &filled), body(&into(at, 64, 2), &filled)])
        }
        id::COPY_IN_LATE => {
            let late = |to| body(&CopyInLate { token: 5, to }, &[]);
            all(vec![late(into(at, 0, 1)), late(into(own, far, 2))])
        }
        id::COPY_OUT => {
            let out = |src, pitch, rows| body(&CopyOut { src, pitch, width: BYTES / rows, rows, stream: LEGACY }, &[]);
            all(vec![out(at, 0, 1), out(own, far, 2), out(at, BYTES, 2)])
        }
        id::BULK_IN | id::BULK_OUT => {
            let copy = |address, bytes| body(&BulkCopy { token: 5, address, bytes, stream: LEGACY, late: false }, &[]);
            all(vec![copy(at, BYTES), copy(own, far), copy(own, u64::MAX)])
        }
        id::COPY_DEVICE => {
            let copy = |dst, dst_pitch, src, src_pitch, rows| {
                body(&CopyDevice { dst, dst_pitch, src, src_pitch, width: BYTES / rows, rows, stream: LEGACY }, &[])
            };
            all(vec![
                copy(at, 0, own, 0, 1),
                copy(own, 0, at, 0, 1),
                copy(at, 0, at, 0, 1),
                copy(own, far, own, BYTES, 2),
                copy(own, BYTES, own, far, 2),
                copy(at, BYTES, own, BYTES, 2),
            ])
        }
        id::FILL => [(1u8, 1), (2, 1), (4, 1), (1, 2), (4, 2)]
            .into_iter()
            .flat_map(|(element, rows)| {
                let fill = |dst, pitch| cuda_api::ops::Fill { dst, pitch, value: 1, element, width: 16, rows, stream: LEGACY };
                let second = if rows == 1 { fill(at, at) } else { fill(own, far) };
                [fill(at, BYTES), second].map(|f| (body(&f, &[]), false))
            })
            .collect(),
        id::STREAM_MEMORY => (0..10)
            .chain([77])
            .map(|operation| {
                let parts = vec![MemoryPart { operation, address: at, value: at, flags: 0 }];
                // Flushes and barriers have no address, and get none.
                (body(&StreamMemory { stream: LEGACY, first_version: false, flags: 0, parts }, &[]), matches!(operation, 3 | 6))
            })
            .collect(),
        id::GRAPH_MAKE => works(at, own)
            .into_iter()
            .map(|(work, free)| {
                let instance = compose(Kind::GraphExec, 1, 99);
                (body(&GraphMake { instance, flags: 0, home: 0, direct: false, spec: graph([work]) }, &[]), free)
            })
            .collect(),
        id::GRAPH_CHANGE => works(at, own)
            .into_iter()
            .map(|(work, _)| {
                let node = match &work {
                    Work::Copy(_) => 0,
                    Work::Fill(_) => 1,
                    _ => 2,
                };
                let free = matches!(&work, Work::Host(_)) || matches!(&work, Work::MemOps(m) if matches!(m[0][0], 3 | 6));
                // Attributes do not change with a node.
                let free = free || matches!(&work, Work::Kernel(_));
                let at = At { graph: 0, node };
                (body(&GraphChange { instance: handle(Kind::GraphExec), at, work }, &[]), free)
            })
            .collect(),
        id::COPY_BOX => boxes([false, false], &[]),
        id::COPY_BOX_IN => boxes([true, false], &filled),
        id::COPY_BOX_OUT => boxes([false, true], &[]),
        id::COPY_BOX_LATE => copies(at, own, [true, false])
            .zip(1..)
            .map(|((copy, free), token)| {
                (body(&CopyBoxLate { token: HOLD | token, to: CopyBox { copy, stream: LEGACY } }, &[]), free)
            })
            .collect(),
        id::OBJECT_MAKE => {
            let object =
                |resource, sampling| ObjectMake { handle: handle(Kind::Object), number: 0, resource, sampling, view: None };
            let both = |r| [object(r, Some(Sampling::default())), object(r, None)];
            all(resources(at).flat_map(both).map(|o| body(&o, &[])).collect())
        }
        id::REFERENCE_SET => {
            let set = |r| ReferenceSet { reference: handle(Kind::TextureRef), setting: Setting::Resource(r) };
            all(resources(at).map(|r| body(&set(r), &[])).collect())
        }
        id::TENSOR_MAP_TILED => {
            let (dims, strides, box_dims, element_strides) = (vec![64, 64], vec![256], vec![16, 16], vec![1, 1]);
            let op = TensorMapTiled { data_type: 7, address: at, dims, strides, box_dims, element_strides, modes: [0; 4] };
            all(vec![body(&op, &[])])
        }
        id::TENSOR_MAP_IM2COL => {
            let (dims, strides, element_strides) = (vec![64; 4], vec![256; 3], vec![1; 4]);
            let (lower, upper, channels, pixels) = (vec![0; 2], vec![0; 2], 8, 8);
            let modes = [0; 4];
            let op = TensorMapIm2col {
                data_type: 7,
                address: at,
                dims,
                strides,
                lower,
                upper,
                channels,
                pixels,
                element_strides,
                modes,
                wide: None,
            };
            all(vec![body(&op, &[])])
        }
        id::TENSOR_MAP_ADDRESS => all(vec![body(&([0u64; TENSOR_MAP_BYTES / 8], at), &[])]),
        id::STREAM_ATTRIBUTE => {
            let value: [u8; STREAM_ATTRIBUTE_BYTES] = std::array::from_fn(|i| at.to_le_bytes()[i % 8]);
            all(ATTRIBUTES.map(|attribute| body(&StreamAttribute { stream: LEGACY, attribute, value }, &[])).into())
        }
        id::IMAGE_LOAD => {
            let load = |library: bool, key| {
                let kind = if library { Kind::Library } else { Kind::Module };
                body(
                    &ImageLoad {
                        handle: compose(kind, 1, 50),
                        hash: job.image,
                        library,
                        options: vec![(key, at)],
                        describe: false,
                    },
                    &[],
                )
            };
            all(OPTIONS.into_iter().flat_map(|key| [load(true, key), load(false, key)]).collect())
        }
        id::LINK => all(OPTIONS.map(|key| body(&Link { options: vec![(key, at)], inputs: vec![], complete: false }, &[])).into()),
        // The address identifies an object of the place. For two of these, an unknown address is not an error.
        id::HOST_UNPIN | id::CHUNK_WITHDRAW => vec![(body(&at, &[]), true)],
        id::VARIABLE_AROUND => all(vec![body(&at, &[])]),
        id::HOST_BYTES => all(vec![body(&[at & !63, u64::MAX, 1, 2, 3, 4, 5, 6, 7, 8], &[])]),
        id::CHUNK_UNMAP | id::CHUNK_OFFER | id::PEER_UNMAP => all(vec![body(&Chunk { address: at, bytes: CHUNK }, &[])]),
        id::ALIAS_UNMAP | id::ALIAS_ACCESS => all(vec![body(&Alias { address: at, bytes: CHUNK, chunk: at, access: 3 }, &[])]),
        // Each in a separate range.
        id::CHUNK_MAP => all(vec![
            body(&Chunk { address: at, bytes: CHUNK }, &[]),
            body(&Chunk { address: at & !(CHUNK - 1), bytes: CHUNK }, &[]),
            body(&Chunk { address: own, bytes: far & !(CHUNK - 1) }, &[]),
        ]),
        id::ALIAS_MAP => {
            let (low, access) = (at & !(CHUNK - 1), 3);
            let alias = |address, chunk| body(&Alias { address, bytes: CHUNK, chunk, access }, &[]);
            // Chunks are mapped again in the range of reservations.
            let outside = Some(alias(low, own)).filter(|_| !(VMM..VMM_END).contains(&at));
            all(outside.into_iter().chain([alias(VMM, low), alias(VMM, at)]).collect())
        }
        id::PEER_MAP => {
            let peer = |address| body(&PeerMap { address, bytes: CHUNK, offer: [7; 32] }, &[]);
            all(vec![peer(at), peer(at & !(CHUNK - 1))])
        }
        id::HOST_PIN => {
            let pin = |apart| {
                body(&HostPin { address: at, bytes: BYTES, flags: 0, apart, exclusive: false, slab: Slab::default() }, &[])
            };
            // Mirrored memory may be allocated in the range of pinned memory.
            let apart = Some(pin(true)).filter(|_| !(address_map::HOST..HOST_END).contains(&at));
            all(apart.into_iter().chain([pin(false)]).collect())
        }
        id::HOST_BLOCK => {
            let slab = Slab { address: at & !4095, bytes: BYTES, number: 1 };
            all(vec![body(&HostPin { address: at, bytes: 8, flags: 0, apart: true, exclusive: false, slab }, &[])])
        }
        id::BATCH => {
            let mut several = Vec::new();
            let op = CopyOut { src: at, pitch: 0, width: BYTES, rows: 1, stream: LEGACY };
            batch::add(&mut several, id::COPY_OUT, &body(&op, &[]));
            // The batch has an answer for each call.
            vec![(several, true)]
        }
        other => panic!("no test knows what {:?} ({other:#x}) does with an address", name(other)),
    }
}

/// Memory of this process, and unused numbers.
struct Outside {
    all: Vec<(&'static str, u64)>,
    canaries: Vec<u64>,
}

impl Outside {
    fn new(job: &Job, stack: &mut [u8; ROOM]) -> Outside {
        let heap: &'static mut [u8] = vec![CANARY; ROOM].leak();
        stack.fill(CANARY);
        let mut lane = job.exec.pinned(ROOM).expect("a buffer of a lane");
        lane.bytes_mut().fill(CANARY);
        let lane = std::mem::ManuallyDrop::new(lane);
        // SAFETY: a fresh memory file, mapped as those that a worker shares with its job.
        let ring = unsafe {
            let fd = std::os::fd::OwnedFd::from_raw_fd(libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC));
            std::fs::File::from(fd.try_clone().expect("descriptor")).set_len(ROOM as u64).expect("size");
            let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
            libc::mmap(std::ptr::null_mut(), ROOM, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(ring, libc::MAP_FAILED);
        // SAFETY: the mapping just made.
        unsafe { std::slice::from_raw_parts_mut(ring.cast::<u8>(), ROOM) }.fill(CANARY);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("own mappings");
        let exe = std::env::current_exe().expect("own path").display().to_string();
        let header = maps.lines().find(|line| line.ends_with(&exe)).expect("the program is mapped");
        let program = u64::from_str_radix(header.split('-').next().expect("a range"), 16).expect("an address");
        let middle = |start: *const u8| start as u64 + ROOM as u64 / 2;
        let canaries = vec![heap.as_ptr(), stack.as_ptr(), lane.bytes().as_ptr(), ring.cast()];
        let canaries: Vec<u64> = canaries.into_iter().map(middle).collect();
        let names = ["heap", "stack", "a lane's buffer", "a shared ring"];
        let own = address_map::own_base(DEVICE_NUMBER);
        let numbers = [
            ("the program", program),
            ("code", libc::getpid as *const () as u64),
            ("the executor's scratch", 0x4800_0000_0000),
            ("its scratch for this device", 0x4800_0000_0000 + u64::from(DEVICE_NUMBER) * (64 << 30) + 4096),
            ("memory of a source", 0x4a00_0000_0000),
            ("memory of other GPUs", 0x4a80_0000_0000),
            ("another device's memory", address_map::own_base(DEVICE_NUMBER + 1) + 4096),
            ("another device's variables", address_map::placed_base(DEVICE_NUMBER - 1) + 4096),
            ("the byte before it", own - 8),
            ("reservations without memory", VMM + (5 << 30)),
            ("pinned memory that is none", address_map::HOST + (1 << 40)),
            ("the last of it", HOST_END - 8),
            ("the first page", 8),
            ("the system's half", 0xffff_8000_0000_0000),
            ("the last bytes", u64::MAX - 15),
        ];
        Outside { all: names.into_iter().zip(canaries.iter().copied()).chain(numbers).collect(), canaries }
    }

    fn are_unharmed(&self) {
        for at in &self.canaries {
            // SAFETY: mapped as long as this lives, and so many bytes at least.
            let bytes = unsafe { std::slice::from_raw_parts((*at - ROOM as u64 / 2) as *const u8, ROOM) };
            assert!(bytes.iter().all(|b| *b == CANARY), "somebody has written to {at:#x}");
        }
    }
}

/// Calls that a driver may see before a refused one: they have no address.
const HARMLESS: [&str; 6] =
    ["cuGraphCreate", "cuGraphDestroy", "cuEventQuery", "cuStreamQuery", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"];

/// Returns whether a word is an address near `at`.
fn close_to(at: u64, word: u64) -> bool {
    word.abs_diff(at) < 4096 && at > 1 << 20
}

/// Random calls, made of numbers that are typical of calls: none of them ends this process.
fn random_calls_are_answered(job: &Job, outside: &Outside) {
    const EACH: usize = 300;
    // Excluded, since a stand-in cannot carry them out: changes of the place's memory, and calls that use all of the driver.
    const NOT: [u16; 4] = [id::CHUNK_UNMAP, id::CHUNK_MAP, id::CONTEXT_RESET, id::BOARD];
    let kinds = (0..=u8::MAX).filter_map(Kind::from_number);
    let sizes = [0, 1, 2, 3, 4, 8, 16, 64, 4096, CHUNK, 1 << 63, u64::MAX, u64::MAX - 7];
    let addresses = outside.all.iter().map(|(_, at)| *at).chain([LEGACY, job.memory, job.memory + 4096]);
    let numbers: Vec<u64> = kinds.map(handle).chain(sizes).chain(addresses).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    for op in Op::ALL.iter().map(|op| op.id()).filter(|op| !NOT.contains(op)) {
        for _ in 0..EACH {
            let mut body: Vec<u8> = (0..draw(40)).flat_map(|_| numbers[draw(numbers.len())].to_le_bytes()).collect();
            // Headers that are not whole words, and lengths of lists.
            for _ in 0..draw(6) {
                let at = draw(body.len() + 1);
                body.insert(at, draw(5) as u8);
            }
            apply(&job.exec, op, &body);
            stand_in::seen();
        }
    }
}

#[test]
fn no_driver_sees_memory_that_is_not_the_jobs() {
    let mut job = Job::open();
    let mut stack = [0; ROOM];
    let outside = Outside::new(&job, &mut stack);
    // The driver that opened the place is replaced, so that nothing is carried out and every call is seen.
    let mut d = (*job.exec.gpu.0).clone();
    stand_in::replace(&mut d);
    let exec = Arc::get_mut(&mut job.exec).expect("nobody else has it");
    let real = std::mem::replace(&mut exec.gpu, Gpu(Arc::new(d)));
    stand_in::seen();
    let (mut count, mut wrong) = (0, Vec::new());
    for (op, memory) in Op::ALL.iter().map(|op| (op.id(), op.memory())) {
        // Without a body: they use all of the driver.
        if matches!(op, id::CONTEXT_RESET | id::BOARD) {
            continue;
        }
        for (what, at) in &outside.all {
            let hostile = match memory {
                // Every field has this value, whatever it means.
                Memory::Nothing => vec![(at.to_le_bytes().repeat(64), true), (at.to_le_bytes().repeat(3), true)],
                _ => calls_of(op, *at, &job),
            };
            for (number, (body, free)) in hostile.into_iter().enumerate() {
                let rc = apply(&job.exec, op, &body);
                let about = || format!("{} {number} with {what} ({at:#x}): {rc}", name(op).unwrap_or_default());
                if !free && rc == code::SUCCESS {
                    wrong.push(format!("{}: it is let through", about()));
                }
                for (function, words) in stand_in::seen() {
                    if words.iter().any(|w| close_to(*at, *w)) {
                        wrong.push(format!("{}: {function} sees it", about()));
                    } else if !free && !HARMLESS.contains(&function) {
                        wrong.push(format!("{}: {function} is called", about()));
                    }
                }
                count += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
    assert!(count > 5_000, "{count}");
    random_calls_are_answered(&job, &outside);
    let exec = Arc::get_mut(&mut job.exec).expect("nobody else has it");
    exec.gpu = real;

    // The same with a driver that would read and write the address.
    let naming = |op: &&Op| matches!(op.memory(), Memory::Named | Memory::Known | Memory::Inside);
    for (op, memory) in Op::ALL.iter().filter(naming).map(|op| (op.id(), op.memory())) {
        for (_, at) in &outside.all {
            for (body, free) in calls_of(op, *at, &job) {
                let rc = apply(&job.exec, op, &body);
                assert!(free || rc != code::SUCCESS, "{} {memory:?} {at:#x}", name(op).unwrap_or_default());
            }
        }
    }
    assert_eq!(apply(&job.exec, id::STREAM_SYNC, &body(&LEGACY, &[])), code::SUCCESS);
    outside.are_unharmed();
    job.all_is_as_it_was();
    assert!(job.exec.has_collided(), "memory was asked for where this process has its own");

    // The same executor in the job's own process leaves addresses to the driver.
    job.exec.run_host_functions_here(|_, _| ());
    assert_eq!(job.exec.check_memory(outside.canaries[0], 8), Ok(()));
    job.exec.close();
}

#[test]
fn rows_have_no_addresses() {
    // A kind of argument that is not listed here may be a pointer. `Val` accepts no 64-bit numbers, so a device pointer does not
    // compile as one.
    const WITHOUT: [&str; 11] =
        ["Val", "Enum", "KeyEnum", "Out", "OutEnum", "New", "Use", "End", "StreamArg", "Str", "DeviceArg"];
    let carried = |row: &&calls::Row| matches!(row.how, How::Send | How::Wait);
    let mut count = 0;
    for row in calls::rows().filter(carried) {
        for (name, kind) in row.params {
            let outer = kind.split('<').next().unwrap_or_default().trim();
            assert!(WITHOUT.contains(&outer), "{} {name}: {kind} may have an address: let the checker see it", row.name);
            let pointer = outer == "Val" && (kind.contains('*') || kind.contains("deviceptr"));
            assert!(!pointer, "{} {name}: {kind} is an address", row.name);
        }
        count += 1;
    }
    assert!(count > 30, "{count}");
}

#[test]
fn spans_and_reaches_do_not_overflow() {
    assert_eq!(span(0x1000, 8, 8, 4), Ok(32));
    assert_eq!(span(0x1000, 8, 8, 0), Ok(0));
    for (start, pitch, width, rows) in [(u64::MAX, 0, 2, 1), (0, u64::MAX, 1, 3), (1, u64::MAX, 0, 2), (0, 1 << 63, 1 << 63, 2)] {
        assert_eq!(span(start, pitch, width, rows), Err(BAD), "{start:x} {pitch:x}");
    }
    let c = Copy3 { width: 4, rows: 3, depth: 2, ..Copy3::default() };
    let e = |x, y, z, pitch, height| CopyEnd { x, y, z, pitch, height, ..CopyEnd::default() };
    assert_eq!(reach(&e(0, 0, 0, 0, 0), &c), Some((0, 24)));
    assert_eq!(reach(&e(1, 2, 3, 10, 5), &c), Some((171, 74)));
    assert_eq!(reach(&e(u64::MAX, 0, 0, 0, 0), &c), None);
    assert_eq!(reach(&e(0, 0, u64::MAX, 8, 8), &c), None);
    assert_eq!(reach(&CopyEnd { lod: 1, ..e(0, 0, 0, 0, 0) }, &c), None);
}

#[test]
fn arenas_are_whole_ranges() {
    let a = Arenas::default();
    let (first, size) = (0x2000_0000_0000, address_map::ARENA);
    a.add(first);
    a.add(first + size);
    a.add(1 << 60);
    assert!(a.contain(first, 1) && a.contain(first + size - 8, 16) && a.contain(first, 2 * size) && a.contain(first + 5, 0));
    for (at, bytes) in [(first - 1, 2), (first + size, size + 1), (first, u64::MAX), (u64::MAX, 1), (1 << 60, 1), (0, 1)] {
        assert!(!a.contain(at, bytes), "{at:#x} {bytes:#x}");
    }
    a.remove(first);
    assert!(!a.contain(first, 1) && a.contain(first + size, 1));
}
