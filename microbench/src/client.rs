//! The measured program: an ordinary client of the driver API that executes requests, line by line.
//!
//! It prints `{"ready":true,…}`, then answers each line `CASE COUNT MILLISECONDS` with the nanoseconds of each of at
//! most COUNT batches ([`Case::each`]), measured within about that time, or with the reason why the case is
//! unavailable. It ends at the end of its input.

use crate::cases::{Case, Memory, QUEUED, WHOLE};
use crate::error::Error;
use crate::gpu::{Done, Gpu};
use cuda_api::sys::{CUevent, CUfunction, CUstream};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::BufRead;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `microbench client`.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientArgs {
    /// The driver [default: what the dynamic linker finds]
    #[arg(long, default_value = "libcuda.so.1")]
    driver: PathBuf,
    /// Say when the first kernel is done, and end
    #[arg(long)]
    first: bool,
    /// Make this many steps like those of a training in PyTorch, say how long each took, and end
    #[arg(long, value_name = "N")]
    steps: Option<u32>,
    /// Measure these before anything is asked, some of each
    cases: Vec<Case>,
}

/// What is measured of a case that was named when the client was started: batches and milliseconds.
const NAMED: &str = "20 1000";

/// What lies between the calls of [`Case::Spaced`].
const SPACE: Duration = Duration::from_micros(100);
/// Device attribute: multiprocessors.
const MULTIPROCESSORS: u32 = 16;
/// Number of queries of PyTorch for the current device and for the state of the primary context between two launches, as traced.
const QUERIES: [u32; 2] = [10, 3];
/// Bytes of a step's batch, and number of its operations.
const BATCH: usize = 64 << 10;
const OPERATIONS: u32 = 60;
/// Launches before anything is measured.
const WARM: u32 = 50;
/// Batches of a case that are not measured, at its first time.
const FIRST: u32 = 2;

/// Serves until the input ends.
pub(crate) fn client(args: &ClientArgs) -> Result<(), Error> {
    let gpu = Gpu::open(&args.driver)?;
    let mut client = Client::new(gpu)?;
    client.launch()?;
    client.gpu.wait(client.stream)?;
    if args.first {
        println!("{}", json!({"done": true}));
        return Ok(());
    }
    if let Some(steps) = args.steps {
        let ns = (0..steps).map(|_| client.step()).collect::<Result<Vec<u64>, _>>()?;
        println!("{}", json!({"done": true, "ns": ns}));
        return Ok(());
    }
    for _ in 0..WARM {
        client.launch()?;
    }
    client.gpu.wait(client.stream)?;
    println!(
        "{}",
        json!({"ready": true, "gpu": client.gpu.name()?, "cuda": client.gpu.version()?, "gpus": client.gpu.count()?, "free": client.gpu.free_bytes()?})
    );
    for case in &args.cases {
        client.answer(&format!("{case} {NAMED}")).map_err(|why| format!("{case}: {why}"))?;
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = client.answer(&line).unwrap_or_else(|why| json!({"absent": why.to_string()}));
        println!("{answer}");
    }
    Ok(())
}

/// Bytes of a copy that is made beside a large one.
const BESIDE: usize = 64 << 10;

struct Client {
    gpu: Gpu,
    kernel: CUfunction,
    stream: CUstream,
    /// Another stream, which has what runs beside.
    other: CUstream,
    event: CUevent,
    memory: u64,
    /// Bytes behind `memory`.
    room: usize,
    pageable: Vec<u8>,
    /// Pinned memory of the program, and how much; it lives until the process ends.
    pinned: (*mut u8, usize),
    /// Cases that have been measured before.
    known: HashSet<Case>,
}

impl Client {
    fn new(gpu: Gpu) -> Done<Client> {
        let module = gpu.kernels()?;
        let (kernel, stream, event) = (gpu.function(module, c"empty")?, gpu.stream()?, gpu.event()?);
        let other = gpu.stream()?;
        let room = 1 << 20;
        let memory = gpu.allocate(room)?;
        gpu.record(event, stream)?;
        let pinned = (std::ptr::null_mut(), 0);
        Ok(Client { gpu, kernel, stream, other, event, memory, room, pageable: Vec::new(), pinned, known: HashSet::new() })
    }

    fn launch(&self) -> Done {
        self.gpu.launch(self.kernel, 1, 32, self.stream, &[self.memory, 1, 2])
    }

    /// A step of training in eager mode, as PyTorch makes it; its time in nanoseconds. Only the loss, read at the end, is waited for.
    fn step(&mut self) -> Done<u64> {
        self.make_room(Case::In(Memory::Pageable, BATCH))?;
        let since = Instant::now();
        self.gpu.write(self.memory, &self.pageable[..BATCH])?;
        self.gpu.fill(self.memory, 0, 4096, std::ptr::null_mut())?;
        for _ in 0..OPERATIONS {
            self.one(Case::Operation)?;
        }
        self.gpu.record(self.event, std::ptr::null_mut())?;
        let mut loss = [0; 4];
        self.gpu.read(&mut loss, self.memory)?;
        self.gpu.wait(std::ptr::null_mut())?;
        Ok(since.elapsed().as_nanos() as u64)
    }

    fn answer(&mut self, line: &str) -> Done<Value> {
        let mut words = line.split_whitespace();
        let case: Case = words.next().unwrap_or_default().parse()?;
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok()).ok_or(format!("`{line}` is not understood"));
        let (count, limit) = (number()?, Duration::from_millis(number()?));
        self.make_room(case)?;
        if self.known.insert(case) {
            for _ in 0..FIRST {
                self.batch(case)?;
            }
        }
        let mut times = Vec::new();
        let start = Instant::now();
        while (times.len() as u64) < count && (times.is_empty() || start.elapsed() < limit) {
            if case == Case::Spaced {
                self.launch()?;
                let last = Instant::now();
                while last.elapsed() < SPACE {
                    std::hint::spin_loop();
                }
            }
            if let Case::Beside(n) = case {
                self.keep_copying(n)?;
            }
            let since = Instant::now();
            self.batch(case)?;
            times.push(since.elapsed().as_nanos() as u64);
            // What is queued must not be what the next batch waits for.
            self.gpu.wait(self.stream)?;
        }
        self.gpu.wait(self.other)?;
        Ok(json!({"ns": times}))
    }

    /// Makes sure that a copy runs in the other stream.
    fn keep_copying(&self, bytes: usize) -> Done {
        if self.gpu.query_stream(self.other).is_ok() {
            // SAFETY: `make_room` has made this many bytes, which nothing changes.
            unsafe { self.gpu.write_later(self.memory + BESIDE as u64, self.pinned.0, bytes, self.other) }?;
        }
        Ok(())
    }

    /// Memory at both ends for a copy; bytes that differ, since copies of zeros may be cheaper.
    fn make_room(&mut self, case: Case) -> Done {
        let Some(bytes) = case.bytes() else { return Ok(()) };
        let inside = matches!(case, Case::Inside(_));
        let room = match case {
            Case::Inside(_) => 2 * bytes,
            Case::Beside(_) => bytes + BESIDE,
            _ => bytes,
        };
        if self.room < room {
            self.gpu.free(self.memory)?;
            self.memory = self.gpu.allocate(room)?;
            self.room = room;
        }
        if inside {
            return Ok(());
        }
        let pinned = match case {
            Case::In(Memory::Pinned, n) | Case::Out(Memory::Pinned, n) | Case::Later(n) | Case::Beside(n) => n,
            // A pair of buffers.
            Case::Pieces(n) => 2 * n,
            _ => 0,
        };
        let plain = if matches!(case, Case::Beside(_)) {
            BESIDE
        } else if pinned > 0 && !matches!(case, Case::Pieces(_)) {
            0
        } else {
            bytes
        };
        if self.pageable.len() < plain {
            self.pageable = vec![0; plain];
            scramble(&mut self.pageable);
        }
        if self.pinned.1 < pinned {
            self.pinned = (self.gpu.pin(pinned)?, pinned);
            // SAFETY: the driver has just given this many bytes, and nothing else refers to them.
            scramble(unsafe { std::slice::from_raw_parts_mut(self.pinned.0, pinned) });
        }
        Ok(())
    }

    fn batch(&mut self, case: Case) -> Done {
        for _ in 0..case.each() {
            self.one(case)?;
        }
        Ok(())
    }

    /// Copies [`WHOLE`] bytes in pieces, as a program that pipelines its own copies: a piece is copied into one pinned buffer while the
    /// GPU reads the other one.
    fn in_pieces(&self, piece: usize) -> Done {
        let streams = [self.stream, self.other];
        for (number, part) in self.pageable[..WHOLE].chunks(piece).enumerate() {
            let stream = streams[number % 2];
            // The buffer is free when the copy out of it is complete; each buffer has a stream of its own.
            self.gpu.wait(stream)?;
            // SAFETY: `make_room` has made two buffers of this size, and the copy out of this one is complete.
            unsafe {
                let buffer = self.pinned.0.add(number % 2 * piece);
                std::ptr::copy_nonoverlapping(part.as_ptr(), buffer, part.len());
                self.gpu.write_later(self.memory + (number * piece) as u64, buffer, part.len(), stream)?;
            }
        }
        streams.into_iter().try_for_each(|stream| self.gpu.wait(stream))
    }

    fn one(&mut self, case: Case) -> Done {
        let gpu = &self.gpu;
        match case {
            Case::Launch | Case::Spaced => self.launch(),
            Case::Launches(n) => (0..n).try_for_each(|_| self.launch()).and_then(|()| gpu.wait(self.stream)),
            Case::Wait => gpu.wait(self.stream),
            Case::In(Memory::Pageable, n) => gpu.write(self.memory, &self.pageable[..n]),
            Case::Out(Memory::Pageable, n) => gpu.read(&mut self.pageable[..n], self.memory),
            // SAFETY: `make_room` has made this many bytes, which nothing else uses.
            Case::In(Memory::Pinned, n) => gpu.write(self.memory, unsafe { std::slice::from_raw_parts(self.pinned.0, n) }),
            // SAFETY: as above.
            Case::Out(Memory::Pinned, n) => gpu.read(unsafe { std::slice::from_raw_parts_mut(self.pinned.0, n) }, self.memory),
            Case::Beside(_) => {
                // SAFETY: `make_room` has made these bytes, and the wait is for the copy.
                unsafe { gpu.write_later(self.memory, self.pageable.as_ptr(), BESIDE, self.stream) }?;
                gpu.wait(self.stream)
            }
            Case::Later(n) => {
                // SAFETY: `make_room` has made these bytes, which nothing changes; the wait is for the copies.
                (0..QUEUED).try_for_each(|_| unsafe { gpu.write_later(self.memory, self.pinned.0, n, self.stream) })?;
                gpu.wait(self.stream)
            }
            Case::Pieces(n) => self.in_pieces(n),
            Case::Inside(n) => gpu.copy(self.memory + n as u64, self.memory, n, self.stream).and_then(|()| gpu.wait(self.stream)),
            Case::Allocate(n) => gpu.allocate(n).and_then(|a| gpu.free(a)),
            Case::Fill => gpu.fill(self.memory, 3, 4096, self.stream),
            Case::Record => gpu.record(self.event, self.stream),
            Case::Reach => gpu.record(self.event, self.stream).and_then(|()| gpu.reach(self.event)),
            Case::QueryEvent => gpu.query_event(self.event),
            Case::QueryStream => gpu.query_stream(self.stream),
            Case::Event => gpu.event().and_then(|e| gpu.end_event(e)),
            Case::Stream => gpu.stream().and_then(|s| gpu.end_stream(s)),
            Case::MemoryInfo => gpu.free_bytes().map(drop),
            Case::Attribute => gpu.attribute(MULTIPROCESSORS).map(drop),
            Case::Operation => {
                (0..QUERIES[0]).try_for_each(|_| gpu.current_device().map(drop))?;
                (0..QUERIES[1]).try_for_each(|_| gpu.primary_state().map(drop))?;
                gpu.launch(self.kernel, 1, 32, std::ptr::null_mut(), &[self.memory, 1, 2])
            }
        }
    }
}

/// Fills memory with bytes without a pattern.
pub(crate) fn scramble(bytes: &mut [u8]) {
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    for chunk in bytes.chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}
