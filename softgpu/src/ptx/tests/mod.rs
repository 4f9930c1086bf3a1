//! Whole kernels: compiled ones from `testdata/kernels.cu`, and short texts for single instructions.

mod instructions;
mod kernels;
mod limits;
mod numerics;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{DeviceHeap, Env, Fault, Image, Launch, Placement, Program, Ranges, RunStats, run};

/// Device memory: one array that is handed out from the front. Atomics, because kernels write behind the compiler's back.
struct Arena {
    words: Vec<AtomicU64>,
    used: AtomicU64,
    freed: Mutex<HashSet<u64>>,
}

impl Arena {
    fn new(bytes: usize) -> Arena {
        Arena { words: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(), used: AtomicU64::new(0), freed: Mutex::default() }
    }

    fn take(&self, bytes: u64) -> u64 {
        let at = self.used.fetch_add(bytes.next_multiple_of(256), Ordering::Relaxed);
        assert!(at + bytes <= self.words.len() as u64 * 8, "arena is full");
        self.words.as_ptr() as u64 + at
    }

    fn range(&self) -> (u64, u64) {
        let start = self.words.as_ptr() as u64;
        (start, start + self.words.len() as u64 * 8)
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        for (n, &byte) in bytes.iter().enumerate() {
            let (word, shift) = self.at(address + n as u64);
            let old = word.load(Ordering::Relaxed) & !(0xff << shift);
            word.store(old | u64::from(byte) << shift, Ordering::Relaxed);
        }
    }

    fn get(&self, address: u64, count: usize) -> Vec<u8> {
        (0..count as u64)
            .map(|n| {
                let (word, shift) = self.at(address + n);
                (word.load(Ordering::Relaxed) >> shift) as u8
            })
            .collect()
    }

    fn at(&self, address: u64) -> (&AtomicU64, u64) {
        let offset = address - self.range().0;
        (&self.words[(offset / 8) as usize], offset % 8 * 8)
    }
}

impl DeviceHeap for Arena {
    fn malloc(&self, size: u64) -> u64 {
        self.take(size)
    }
    fn free(&self, addr: u64) -> bool {
        self.freed.lock().expect("no test panics while holding it").insert(addr)
    }
}

/// A module loaded into memory of its own.
struct Machine {
    arena: Arc<Arena>,
    program: Arc<Program>,
    output: Arc<Mutex<Vec<u8>>>,
    cancel: Arc<AtomicBool>,
    threads: usize,
    cooperative: bool,
    dynamic_shared: u32,
}

impl Machine {
    fn new(ptx: &str) -> Machine {
        let image = Image::parse(ptx).expect("parses");
        let arena = Arc::new(Arena::new(4 << 20));
        let globals = image.globals.iter().map(|g| arena.take(g.size)).collect();
        let program = Program::link(image, Placement { globals });
        for (n, &address) in program.placement.globals.iter().enumerate() {
            arena.put(address, &program.init_bytes(n));
        }
        Machine {
            arena,
            program,
            output: Arc::default(),
            cancel: Arc::default(),
            threads: 2,
            cooperative: false,
            dynamic_shared: 0,
        }
    }

    fn kernels() -> Machine {
        Machine::new(include_str!("../testdata/kernels.ptx"))
    }

    fn env(&self) -> Env {
        let output = self.output.clone();
        Env {
            ranges: Arc::new(Ranges::new([self.arena.range()])),
            objects: Arc::default(),
            references: Arc::default(),
            heap: self.arena.clone(),
            output: Arc::new(move |text| output.lock().expect("unpoisoned").extend_from_slice(text)),
            set_condition: |handle, _| handle == 1,
            cancel: self.cancel.clone(),
            threads: self.threads,
            clock_hz: 1_000_000_000,
        }
    }

    /// Launches a kernel; each argument is the bytes of one parameter.
    fn launch(&self, name: &str, grid: u32, block: u32, args: &[&[u8]]) -> Result<RunStats, Fault> {
        let function = self.program.image.functions.iter().position(|f| f.name == name).expect("kernel exists");
        let info = &self.program.image.functions[function];
        let mut params = vec![0; info.param_bytes() as usize];
        assert_eq!(args.len(), info.params.len());
        for (arg, param) in args.iter().zip(&info.params) {
            assert_eq!(arg.len(), param.size as usize);
            params[param.offset as usize..][..arg.len()].copy_from_slice(arg);
        }
        let launch = Launch {
            program: &self.program,
            function,
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            dynamic_shared: self.dynamic_shared,
            params: &params,
            cooperative: self.cooperative,
        };
        run(&launch, &self.env())
    }

    /// A buffer with the given contents.
    fn buffer<T: Plain>(&self, values: &[T]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.bytes()).collect();
        let address = self.arena.take(bytes.len() as u64);
        self.arena.put(address, &bytes);
        address
    }

    fn read<T: Plain>(&self, address: u64, count: usize) -> Vec<T> {
        self.arena.get(address, count * size_of::<T>()).chunks(size_of::<T>()).map(T::parse).collect()
    }

    fn printed(&self) -> String {
        String::from_utf8(self.output.lock().expect("unpoisoned").clone()).expect("text")
    }
}

/// Numbers as bytes.
trait Plain: Copy {
    fn bytes(&self) -> Vec<u8>;
    fn parse(bytes: &[u8]) -> Self;
}
macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Plain for $t {
            fn bytes(&self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn parse(bytes: &[u8]) -> $t {
                <$t>::from_le_bytes(bytes.try_into().expect("right size"))
            }
        }
    )*};
}
plain!(u8, i32, u32, f32, u64, f64);
