//! PTX on the CPU: parse, link, run. Pure: it knows device memory only as address ranges of this process.
//!
//! CONTRACT (between the ptx helper, who implements it, and the driver helper, who calls it; the ptx helper turns this into docs):
//!
//! ```ignore
//! /// A parsed PTX module, not yet placed.
//! pub struct Image { pub globals: Vec<GlobalVar>, pub functions: Vec<FunctionInfo>, /* private: decoded code */ }
//! pub enum Space { Global, Const }
//! /// Module-scope variable. `init` has `size` bytes (zero-filled); `relocs` are (offset in init, what address to store there, addend).
//! pub struct GlobalVar { pub name: String, pub space: Space, pub align: u64, pub size: u64, pub init: Vec<u8>, pub relocs: Vec<Reloc> }
//! pub struct Reloc { pub offset: u64, pub target: Target, pub addend: i64 }   // Target::Global(usize) | Target::Function(usize)
//! pub struct FunctionInfo { pub name: String, pub is_kernel: bool, pub params: Vec<ParamInfo>, pub static_shared: u32, pub local_bytes: u32, pub max_threads: Option<u32>, pub num_regs: u32 }
//! pub struct ParamInfo { pub offset: u32, pub size: u32, pub align: u32 }
//! impl Image { pub fn parse(ptx: &str) -> Result<Image, PtxError>; }          // PtxError { line: usize, message: String }
//!
//! /// Addresses chosen by the driver: one per `Image::globals`, and code_base; function i has code address code_base + 16*i (so function pointers are plain numbers that stay equal when placement is equal).
//! pub struct Placement { pub globals: Vec<u64>, pub code_base: u64 }
//! pub struct Program { pub image: Image, pub placement: Placement, .. }
//! impl Program { pub fn link(image: Image, placement: Placement) -> Arc<Program>;   // resolves symbols in code
//!                pub fn init_bytes(&self, global: usize) -> Vec<u8>;                // init with relocs applied; the DRIVER writes them to memory
//!                pub fn code_bytes(&self) -> u64; }                                 // 16 * number of functions, at least 16
//!
//! /// What a launch may touch and use; built by the driver for each launch (cheap: Arcs).
//! pub struct Env {
//!   pub ranges: Arc<Ranges>,          // sorted, disjoint accessible [start,end) ranges of device + mapped host memory (addresses are valid pointers of this process)
//!   pub code: Arc<CodeMap>,           // code address -> (Arc<Program>, function index), for calls through pointers, over all loaded modules of the context
//!   pub heap: Arc<dyn DeviceHeap>,    // device malloc/free (vprintf, __assertfail, malloc, free are recognised by name)
//!   pub output: Arc<dyn Fn(&[u8]) + Send + Sync>, // device printf text
//!   pub cancel: Arc<AtomicBool>,      // abort the launch soon after it turns true (returns Fault::Cancelled)
//!   pub threads: usize,               // CPU threads to spread CTAs over
//!   pub clock_hz: u64,                // what %clock64/%globaltimer count from (std::time::Instant based)
//! }
//! pub trait DeviceHeap: Send + Sync { fn malloc(&self, size: u64) -> u64; fn free(&self, addr: u64) -> bool; }
//! pub struct Launch<'a> { pub program: &'a Arc<Program>, pub function: usize, pub grid: [u32;3], pub block: [u32;3], pub dynamic_shared: u32, pub params: &'a [u8] }
//! pub enum Fault { IllegalAddress(u64), MisalignedAddress(u64), IllegalInstruction(String), Assert(String /* text as CUDA prints it */), Trap, InvalidPc(u64), Timeout, Cancelled }
//! pub fn run(launch: &Launch, env: &Env) -> Result<(), Fault>;
//! ```
