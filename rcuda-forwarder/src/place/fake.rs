//! A place without a driver, for tests: memory, streams that are busy for a while, and calls that fail.

use super::{OpenError, Outcome, Place};
use crate::channel::Start;
use crate::control::{ControlReply, GlobalInfo, Refused};
use crate::sync::lock;
use cuda_api::code::{self, Code};
use cuda_api::ops::{BulkCopy, CopyIn, CopyOut, Offer, id};
use cuda_api::wire::Wire;
use executor::host_mirror::PlaceChanges;
use executor::staging::{self, Room, Sizes, Staging, Step, WORDS, Word};
use executor::{Budget, Busy, DeviceInfo};
use memsync::{Compression, Part, Stream, Verify};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of memory.
pub(crate) const MEMORY: usize = 32 << 20;
/// Body: a stream, microseconds (u64 each). The stream is busy for this time.
pub(crate) const KERNEL: u16 = id::LAUNCH;
/// Body: a code. The call returns it.
pub(crate) const FAIL: u16 = 0x0fe0;
/// Body: milliseconds (u64). The executor itself blocks for this time.
pub(crate) const STUCK: u16 = 0x0fe1;
/// Body: anything. The reply is the number of calls so far and the body.
pub(crate) const ECHO: u16 = 0x0fe2;
/// Body: text. It is written to the standard output and then to the standard error, as device code's would be.
pub(crate) const PRINT: u16 = 0x0fe4;
/// The call itself waits until no host call is outstanding, as a driver's call may.
pub(crate) const WAIT_FOR_HOST: u16 = 0x0fe5;
/// Of the threads that the reading thread starts from now on, the next one cannot be started.
pub(crate) const NO_THREAD: u16 = 0x0fe6;
/// The call itself waits until no stream waits for bytes of a large copy.
pub(crate) const WAIT_FOR_BYTES: u16 = 0x0fe7;
/// Body: a path. From now on rounds say that all memory was handed over, and the end of the place makes a directory there and waits until
/// that is removed.
pub(crate) const HAND_OVER: u16 = 0x0fe8;
/// From now on the place has mapped memory of another GPU.
pub(crate) const USE_PEER: u16 = 0x0fe9;
/// Body: a code. From now on there is mirrored memory, and looking for the GPU's changes fails with this code.
pub(crate) const FAIL_CHANGES: u16 = 0x0fea;
/// The process panics in the middle of the call.
pub(crate) const PANIC: u16 = 0x0fe3;

/// The place.
#[derive(Debug)]
pub(crate) struct Fake {
    info: DeviceInfo,
    memory: Arc<Mutex<Vec<u8>>>,
    /// The time at which each stream becomes idle.
    streams: Mutex<HashMap<u64, Instant>>,
    calls: Mutex<u64>,
    /// Tokens of host calls that have not completed; their streams reach them at once.
    host_calls: Mutex<HashSet<u64>>,
    staging: Staging,
    budget: Arc<Budget>,
    /// The last large copy of each stream: whether it is over.
    bulk: Mutex<HashMap<u64, Arc<AtomicBool>>>,
    /// The body of [`HAND_OVER`].
    hands_over: Mutex<Option<PathBuf>>,
    uses_peers: AtomicBool,
    /// See [`FAIL_CHANGES`].
    fails_changes: AtomicI32,
}

/// A point that a stream must reach.
#[derive(Debug)]
pub(crate) struct Due {
    at: Instant,
    /// Bytes of the memory to answer with.
    copy: Option<CopyOut>,
    /// The large copy that it is.
    bulk: Option<Arc<AtomicBool>>,
}

/// What the job is said to have allocated, for its client's account.
pub(crate) const ALLOCATED: u64 = 1 << 20;

impl Fake {
    /// Opens a GPU; there are four.
    pub(crate) fn open(start: &Start) -> Result<Arc<Fake>, OpenError> {
        if start.gpu >= 4 {
            return Err(OpenError::NoGpu(start.gpu));
        }
        let mut env: Vec<String> =
            std::env::vars().filter(|(n, _)| n.starts_with("CUDA_")).map(|(n, v)| format!("{n}={v}")).collect();
        env.sort();
        let name = format!("pid={} gpu={} device={} env={}", std::process::id(), start.gpu, start.virtual_device, env.join(","));
        Ok(Arc::new(Fake {
            info: DeviceInfo {
                name,
                uuid: [7; 16],
                pci: [0, 1, 0],
                total_bytes: MEMORY as u64,
                free_bytes: MEMORY as u64,
                driver_version: 13000,
                driver_build: String::new(),
                capability: [9, 0],
                attributes: vec![(1, 1024)],
                priorities: [0, -5],
                driver_path: start.driver.clone(),
                processors: 4,
            },
            memory: Arc::new(Mutex::new(vec![0; MEMORY])),
            streams: Mutex::default(),
            calls: Mutex::new(0),
            host_calls: Mutex::default(),
            staging: Staging::new(SIZES),
            budget: Budget::new(start.limits.pinned),
            bulk: Mutex::default(),
            hands_over: Mutex::default(),
            uses_peers: AtomicBool::default(),
            fails_changes: AtomicI32::new(code::SUCCESS),
        }))
    }

    /// The first bytes of its memory.
    pub(crate) fn first(&self, bytes: usize) -> Vec<u8> {
        lock(&self.memory)[..bytes].to_vec()
    }

    fn due(&self, stream: u64) -> Instant {
        lock(&self.streams).get(&stream).copied().unwrap_or_else(Instant::now)
    }
}

fn number(mut body: &[u8]) -> Result<u64, Code> {
    u64::get(&mut body).map_err(|_| code::ERROR_INVALID_VALUE)
}

/// Small areas, so that copies of the tests have many pieces.
pub(crate) const SIZES: Sizes = Sizes { region: 64 << 10, piece: 16 << 10, segment: [4 << 10, 8 << 10] };

/// Memory for an area, in the job's file if there is one.
fn map(bytes: usize, part: Option<&staging::Part>) -> Result<usize, Code> {
    let (kind, file, offset) = match part {
        Some(part) => (libc::MAP_SHARED, part.file().as_raw_fd(), part.offset()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
    };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address that the system chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, kind, file, offset as libc::off_t) };
    if at == libc::MAP_FAILED { Err(code::ERROR_OUT_OF_MEMORY) } else { Ok(at as usize) }
}

/// Carries out an operation of a stream on a word.
fn word(word: Word) {
    // SAFETY: a word of a staging area, which lives as long as the process.
    let at = |address: u64| unsafe { AtomicU32::from_ptr(address as *mut u32) };
    match word {
        Word::Write(address, value) => at(address).store(value, Ordering::Release),
        Word::Wait(address, value) => {
            for looks in 0.. {
                match looks {
                    _ if (at(address).load(Ordering::Acquire).wrapping_sub(value) as i32) >= 0 => break,
                    ..1000 => std::thread::yield_now(),
                    // The copy may never go on.
                    _ => std::thread::sleep(Duration::from_micros(100)),
                }
            }
        }
    }
}

impl Fake {
    /// Starts a thread that carries out the commands of a large copy, after its stream's earlier work.
    fn copy_bulk(&self, op: &BulkCopy, call: u16) -> Result<Arc<AtomicBool>, Code> {
        let to_device = call == id::BULK_IN;
        if self.staging.lacks_area(op.stream) {
            self.add_area(op.stream)?;
        }
        let (steps, last) =
            self.staging.begin(op.stream, op.token, op.bytes, to_device, op.late).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let (memory, device, due) = (self.memory.clone(), op.address as usize, self.due(op.stream));
        let over = Arc::new(AtomicBool::new(false));
        let (before, ended) = (lock(&self.bulk).insert(op.stream, over.clone()), over.clone());
        let step = move |s: Step| {
            s.words.into_iter().for_each(word);
            let mut memory = lock(&memory);
            let device = &mut memory[device + s.offset as usize..][..s.bytes];
            // SAFETY: a piece of an area, which the words give to this thread.
            let piece = unsafe { std::slice::from_raw_parts_mut(s.at as *mut u8, s.bytes) };
            if to_device { device.copy_from_slice(piece) } else { piece.copy_from_slice(device) }
        };
        std::thread::spawn(move || {
            while before.as_ref().is_some_and(|b| !b.load(Ordering::Acquire)) || Instant::now() < due {
                std::thread::yield_now();
            }
            steps.into_iter().for_each(step);
            last.into_iter().for_each(word);
            ended.store(true, Ordering::Release);
        });
        Ok(over)
    }

    fn add_area(&self, stream: u64) -> Result<(), Code> {
        let held = self.budget.hold(self.staging.sizes().area() as u64).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let part = self.staging.part();
        let regions = map(self.staging.sizes().regions(), part.as_ref())?;
        // SAFETY: mappings of this place.
        let room = unsafe { Room::new((regions, self.staging.sizes().regions()), map(WORDS, None)?, part) };
        let room = Arc::new(room);
        // The streams of a place that is dropped may still wait for its words.
        std::mem::forget(room.clone());
        if !self.staging.add(room, stream) {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        // Areas stay.
        std::mem::forget(held);
        Ok(())
    }

    fn carry_out(&self, id: u16, mut body: &[u8], reply: &mut Vec<u8>) -> Result<Outcome<Due>, Code> {
        let short = |_| code::ERROR_INVALID_VALUE;
        let bad = code::ERROR_INVALID_VALUE;
        *lock(&self.calls) += 1;
        match id {
            id::COPY_IN => {
                let op = CopyIn::get(&mut body).map_err(short)?;
                let mut memory = lock(&self.memory);
                memory.get_mut(op.dst as usize..op.dst as usize + body.len()).ok_or(bad)?.copy_from_slice(body);
            }
            id::COPY_OUT => {
                let op = CopyOut::get(&mut body).map_err(short)?;
                return Ok(Outcome::Pending(Due { at: self.due(op.stream), copy: Some(op), bulk: None }));
            }
            id::BULK_IN | id::BULK_OUT => {
                let op = BulkCopy::get(&mut body).map_err(short)?;
                if op.address.checked_add(op.bytes).is_none_or(|end| end > MEMORY as u64) || op.bytes == 0 {
                    return Err(bad);
                }
                return Ok(Outcome::Pending(Due { at: self.due(op.stream), copy: None, bulk: Some(self.copy_bulk(&op, id)?) }));
            }
            KERNEL => {
                let (stream, us) = <(u64, u64)>::get(&mut body).map_err(short)?;
                let at = self.due(stream).max(Instant::now()) + Duration::from_micros(us);
                lock(&self.streams).insert(stream, at);
            }
            id::STREAM_SYNC => return Ok(Outcome::Pending(Due { at: self.due(number(body)?), copy: None, bulk: None })),
            id::EVENT_QUERY if self.due(number(body)?) > Instant::now() => return Err(code::ERROR_NOT_READY),
            id::EVENT_QUERY => {}
            id::HOST_CALL => {
                lock(&self.host_calls).insert(number(body)?);
                return Ok(Outcome::Pending(Due { at: Instant::now(), copy: None, bulk: None }));
            }
            id::HOST_DONE => drop(lock(&self.host_calls).remove(&number(body)?)),
            WAIT_FOR_HOST => {
                while !lock(&self.host_calls).is_empty() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            WAIT_FOR_BYTES => {
                while self.staging.awaits_bytes() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            id::HOST_PIN => {}
            FAIL => return Err(i32::get(&mut body).map_err(short)?),
            FAIL_CHANGES => self.fails_changes.store(i32::get(&mut body).map_err(short)?, Ordering::Release),
            id::HOST_BYTES => return Err(code::ERROR_NOT_SUPPORTED),
            STUCK => std::thread::sleep(Duration::from_millis(number(body)?)),
            ECHO => {
                lock(&self.calls).put(reply);
                reply.extend_from_slice(body);
            }
            PRINT => {
                // Through C's stream, which buffers it, as a driver's text may be.
                unsafe extern "C" {
                    static stdout: *mut libc::FILE;
                }
                // SAFETY: C's own stream; the bytes live during the call.
                unsafe { libc::fwrite(body.as_ptr().cast(), 1, body.len(), stdout) };
                std::io::stderr().write_all(body).map_err(|_| bad)?;
            }
            USE_PEER => self.uses_peers.store(true, Ordering::Relaxed),
            HAND_OVER => *lock(&self.hands_over) = Some(OsStr::from_bytes(body).into()),
            NO_THREAD => faults::refuse_thread(Some(0)),
            PANIC => panic!("as asked"),
            _ => return Err(code::ERROR_NOT_SUPPORTED),
        }
        Ok(Outcome::Done(code::SUCCESS))
    }
}

impl Place for Fake {
    type Pending = Due;

    fn device(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn apply(&self, id: u16, body: &[u8], reply: &mut Vec<u8>) -> Outcome<Due> {
        self.carry_out(id, body, reply).unwrap_or_else(Outcome::Done)
    }

    fn has_copies_at_rest(&self) -> bool {
        false
    }

    fn finish_copies(&self) -> Result<(), Code> {
        Ok(())
    }

    fn poll(&self, due: &mut Due, reply: &mut Vec<u8>) -> Option<Code> {
        if Instant::now() < due.at || due.bulk.as_ref().is_some_and(|b| !b.load(Ordering::Acquire)) {
            return None;
        }
        if let Some(op) = due.copy {
            let memory = lock(&self.memory);
            for row in 0..op.rows {
                let at = (op.src + row * op.pitch) as usize;
                match memory.get(at..at + op.width as usize) {
                    Some(bytes) => reply.extend_from_slice(bytes),
                    None => return Some(code::ERROR_ILLEGAL_ADDRESS),
                }
            }
        }
        Some(code::SUCCESS)
    }

    fn host_calls(&self) -> usize {
        lock(&self.host_calls).len()
    }

    fn awaits_job(&self) -> bool {
        self.host_calls() > 0
    }

    fn staging(&self) -> &Staging {
        &self.staging
    }

    fn provide_areas(&self, at_least: u32) -> Result<(), Code> {
        while self.staging.areas() < at_least as usize {
            self.add_area(0)?;
        }
        Ok(())
    }

    fn provide_gpu_area(&self, reach: &mut dyn FnMut(&Arc<Room>) -> bool) -> Result<bool, Code> {
        let regions = (map(self.staging.sizes().regions(), None)?, self.staging.sizes().regions());
        let dma_buf = std::fs::File::open("/dev/null").map_err(|_| code::ERROR_UNKNOWN)?;
        // SAFETY: mappings of this place; the regions stay. They stand for the memory of a GPU, which only the fake GPU and network use.
        let room = Arc::new(unsafe { Room::on_gpu(regions, map(WORDS, None)?, dma_buf.into()) });
        std::mem::forget(room.clone());
        Ok(reach(&room) && self.staging.add(room, 0))
    }

    fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    fn busy(&self) -> Result<Busy, Code> {
        Ok(Busy { what: "a stream is busy".into(), runs: Some(1) })
    }

    fn is_idle(&self) -> Result<bool, Code> {
        Ok(lock(&self.streams).values().all(|at| *at <= Instant::now()))
    }

    fn set_pinned_file(&self, file: OwnedFd) -> io::Result<()> {
        match std::fs::File::from(file).metadata()?.len() {
            0 => Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty")),
            _ => Ok(()),
        }
    }

    fn has_apart(&self) -> bool {
        self.fails_changes.load(Ordering::Acquire) != code::SUCCESS
    }

    fn end_block(&self, _: &[u8]) -> bool {
        false
    }

    fn has_collided(&self) -> bool {
        false
    }

    fn collect_changes(&self) -> PlaceChanges {
        PlaceChanges::default()
    }

    fn uses_peers(&self) -> bool {
        self.uses_peers.load(Ordering::Relaxed)
    }

    fn collect_gpu_changes(&self, _: u64, _: &mut dyn FnMut(PlaceChanges)) -> Result<(), Code> {
        match self.fails_changes.load(Ordering::Acquire) {
            code::SUCCESS => Ok(()),
            rc => Err(rc),
        }
    }

    fn prints(&self) -> bool {
        lock(&self.hands_over).is_none()
    }

    fn free_bytes(&self, beside: u64) -> Result<u64, Code> {
        Ok((MEMORY as u64 - *lock(&self.calls)).saturating_sub(beside))
    }

    fn set_account(&self, account: Arc<dyn executor::Account>) {
        // As if the job had this memory from the start.
        account.hold(ALLOCATED);
    }

    fn used_bytes(&self) -> u64 {
        *lock(&self.calls)
    }

    fn regions(&self) -> Result<ControlReply, Code> {
        let global = GlobalInfo { module: 1, name: "counter".into(), address: 0x1000, bytes: 4 };
        Ok(ControlReply::Regions { globals: vec![global], heap: None, chunks: vec![(0, MEMORY as u64)] })
    }

    fn show_memory(self: &Arc<Self>) -> Result<ControlReply, Refused> {
        Err(Refused::Other("it has no memory to hand over".into()))
    }

    fn could_adopt(&self, _: &Offer, _: &[[u64; 3]]) -> Result<u64, Refused> {
        Err(Refused::Other("it adopts nothing".into()))
    }

    fn adopt_from(&self, _: &Offer, _: &[[u64; 3]]) -> Result<(), Refused> {
        Err(Refused::Other("it adopts nothing".into()))
    }

    fn round_source(
        self: &Arc<Self>,
        conns: &mut [Box<dyn Stream>],
        _: &mut Vec<Compression>,
        _tell: bool,
    ) -> Result<memsync::Round, Refused> {
        let memory = lock(&self.memory);
        let part = MEMORY / conns.len();
        for (conn, bytes) in conns.iter_mut().zip(memory.chunks(part)) {
            conn.write_all(bytes).map_err(|e| Refused::OtherEnd(e.to_string()))?;
        }
        Ok(memsync::Round { handed_over: lock(&self.hands_over).is_some(), ..round(&memory) })
    }

    fn round_target(
        self: &Arc<Self>,
        conns: &mut [Box<dyn Stream>],
        verify: Verify,
        _by_descriptor: bool,
    ) -> Result<memsync::Round, Refused> {
        let mut memory = lock(&self.memory);
        let part = MEMORY / conns.len();
        for (conn, bytes) in conns.iter_mut().zip(memory.chunks_mut(part)) {
            conn.read_exact(bytes).map_err(|e| Refused::OtherEnd(e.to_string()))?;
        }
        if verify == Verify::Auto { Ok(round(&memory)) } else { Err(Refused::Other("this fake wants to verify".into())) }
    }

    /// The first part's bytes, at its address in the memory.
    fn send_parts(self: &Arc<Self>, conns: &mut [Box<dyn Stream>], _: u64, parts: &[Part]) -> Result<(), Refused> {
        let (memory, at) = (lock(&self.memory), parts[0].address as usize);
        conns[0].write_all(&memory[at..at + parts[0].width as usize]).map_err(|e| Refused::OtherEnd(e.to_string()))
    }

    fn receive_parts(self: &Arc<Self>, conns: &mut [Box<dyn Stream>], _: u64, parts: &[Part]) -> Result<(), Refused> {
        let (mut memory, at) = (lock(&self.memory), parts[0].address as usize);
        conns[0].read_exact(&mut memory[at..at + parts[0].width as usize]).map_err(|e| Refused::OtherEnd(e.to_string()))
    }

    fn moved(&self) -> u64 {
        0
    }

    fn end_rounds(&self) {}

    fn close(self: Arc<Self>) {
        if let Some(path) = lock(&self.hands_over).take() {
            let _ = std::fs::create_dir(&path);
            while path.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn round(memory: &[u8]) -> memsync::Round {
    memsync::Round { bytes_total: MEMORY as u64, digest: *blake3::hash(memory).as_bytes(), ..memsync::Round::default() }
}
