//! The CUDA programs in `programs/cuda/` and `programs/apps/`, compiled by nvcc.

use crate::install::{self, BuildError, Install};
use crate::toolchain::{Toolchain, cudart_11, cudart_12};
use cuda_api::lock::lock;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

/// How a program is linked with the CUDA runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// Statically: nvcc's default.
    Static,
    /// With libcudart.so.13.
    Shared,
    /// Compiled by nvcc 13.0, linked with libcudart.so.12 of CUDA 12.9.
    Shared12,
    /// Compiled by nvcc 13.0, linked with libcudart.so.11.0 of CUDA 11.8, which loads code by the driver's private tables.
    Shared11,
}

impl Linkage {
    /// Name of the directory.
    pub fn name(self) -> &'static str {
        match self {
            Linkage::Static => "static",
            Linkage::Shared => "shared",
            Linkage::Shared12 => "shared12",
            Linkage::Shared11 => "shared11",
        }
    }
}

/// Programs that run anywhere (`sgemm` needs cuBLAS and a GPU).
pub const NAMES: [&str; 59] = [
    "vecadd",
    "matmul",
    "stencil",
    "killer",
    "threads8",
    "twogpu",
    "peers",
    "crossings",
    "carried",
    "shapes",
    "callbacks",
    "pinned",
    "mapped",
    "managed",
    "exclusive",
    "loading",
    "shared_variables",
    "alike",
    "printf",
    "reduce",
    "symbols",
    "events",
    "priorities",
    "parts",
    "external",
    "forks",
    "polls",
    "signals",
    "capture",
    "graphs",
    "pools",
    "vmm",
    "storm",
    "graphhost",
    "graphpinned",
    "arrays",
    "textures",
    "surfaces",
    "sparse",
    "references",
    "rest",
    "graphmem",
    "crowd",
    "graphif",
    "graphdeep",
    "batches",
    "writers",
    "turns",
    "groups",
    "hopper",
    "linked",
    "cubemaps",
    "mix",
    "instances",
    "letters",
    "differences",
    "simulations",
    "blocked",
    "pageable",
];
/// Programs for tests of their own: `assertion` ends in a failed context, which cannot move; `stuck`, `endings`, `late`,
/// `unheard`, `reloads` and `regions` have arguments of their own, `trips` too; `freed` needs two GPUs; `room` and `fill` need a small
/// one; `scopes` counts in memory and with a scope that a variable names; `ipc` and `handles` are two processes; `beside` waits for its test;
/// [`LITMUS`] prints what order it has seen, and [`MANAGED_TIMES`] what it has measured.
const SPECIAL: [&str; 17] = [
    "assertion",
    "beside",
    "stuck",
    "endings",
    "fill",
    "late",
    "unheard",
    "freed",
    "ipc",
    "handles",
    "reloads",
    "regions",
    "room",
    "scopes",
    "trips",
    LITMUS,
    MANAGED_TIMES,
];
/// The program that tries in which order host and GPU see each other's writes (docs/consistency.md).
pub const LITMUS: &str = "litmus";
/// The program that measures how fast managed memory is used.
pub const MANAGED_TIMES: &str = "managed_times";
/// Programs that are also linked with the runtime of CUDA 12.9.
const NAMES_12: [&str; 2] = ["vecadd", "stencil"];
/// And with that of CUDA 11.8.
const NAMES_11: [&str; 2] = ["vecadd", "stencil"];
/// Programs in the patterns of real ones (tests/programs/apps), in the order of its README.
pub const APPS: [&str; 22] = [
    "decode",
    "allocations",
    "hostblocks",
    "streams",
    "graphs",
    "registered",
    "base64",
    "pipeline",
    "zerocopy",
    "managed",
    "queens",
    "btree",
    "particles",
    "heat",
    "hydro",
    "solver",
    "radix",
    "hashtable",
    "filters",
    "alignment",
    "triangles",
    "gemm",
];
/// Modules that `killer` loads by itself, from files beside it.
const KILLER_MODULES: [&str; 3] = ["0", "1", "2"];
/// PTX for any device, machine code for one: the driver of the place takes what fits.
const ARCHITECTURES: [&str; 2] = ["-gencode", "arch=compute_75,code=[compute_75,sm_90]"];

/// The directory with compiled programs.
#[derive(Debug)]
pub struct Programs {
    directory: PathBuf,
    /// What makes them, each when it is first asked for; none where they were brought from another machine.
    makers: Option<Makers>,
}

/// What compiles programs.
#[derive(Debug)]
struct Makers {
    toolchain: Toolchain,
    all: Vec<Maker>,
}

/// What compiles one source.
#[derive(Debug)]
struct Maker {
    /// The headers that it may include.
    sources: Arc<Sources>,
    step: Step,
    /// Whether it was compiled, or found to be up to date.
    is_done: Mutex<bool>,
}

impl Programs {
    /// The programs of this process: the directory in `MRCUDA_PROGRAMS`, or else the target directory, compiled when they are asked for.
    pub fn get() -> &'static Programs {
        static PROGRAMS: OnceLock<Programs> = OnceLock::new();
        PROGRAMS.get_or_init(|| match std::env::var_os("MRCUDA_PROGRAMS") {
            Some(directory) => Programs { directory: directory.into(), makers: None },
            None => Programs::of_target(&Install::get().target).unwrap_or_else(|why| panic!("{why}")),
        })
    }

    /// A compiled program.
    pub fn path(&self, linkage: Linkage, name: &str) -> PathBuf {
        let program = self.file(linkage, name);
        self.make(&program);
        if name == "killer" {
            KILLER_MODULES.iter().for_each(|which| self.make(&module(&program, which)));
        }
        program
    }

    /// The directory with the compiled apps.
    pub fn apps(&self) -> PathBuf {
        let directory = self.directory.join("apps");
        self.compile_in(&directory).unwrap_or_else(|why| panic!("{why}"));
        directory
    }

    /// A compiled app.
    pub fn app(&self, name: &str) -> PathBuf {
        let app = self.directory.join("apps").join(name);
        self.make(&app);
        app
    }

    /// The programs of a target directory, all compiled.
    pub fn build(target: &Path) -> Result<Programs, BuildError> {
        let programs = Programs::of_target(target)?;
        programs.compile()?;
        Ok(programs)
    }

    /// Compiles everything that is missing or older than its source, as much at a time as there are processors.
    pub fn compile(&self) -> Result<(), BuildError> {
        self.compile_in(&self.directory)
    }

    /// The same for what belongs into a directory.
    fn compile_in(&self, directory: &Path) -> Result<(), BuildError> {
        let Some(makers) = &self.makers else { return Ok(()) };
        let belongs = |maker: &&Maker| maker.step.products.iter().any(|(product, _)| product.starts_with(directory));
        let next = Mutex::new(makers.all.iter().filter(belongs));
        let work = || -> Result<(), BuildError> {
            // The lock is free again before the compiler runs.
            while let Some(maker) = { lock(&next).next() } {
                maker.run(&makers.toolchain)?;
            }
            Ok(())
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|s| {
            let workers: Vec<_> = (0..processors).map(|_| s.spawn(work)).collect();
            workers.into_iter().try_for_each(|w| w.join().unwrap_or(Err(BuildError::Panicked)))
        })
    }

    /// The programs of a target directory, with the compiler and the runtime libraries, which are installed if they are not there.
    pub fn of_target(target: &Path) -> Result<Programs, BuildError> {
        let mut programs = Programs { directory: target.join("programs"), makers: None };
        let (sources, apps) = (Arc::new(Sources::find("tests/programs/cuda")?), Arc::new(Sources::find("tests/programs/apps")?));
        let mut steps: Vec<(Arc<Sources>, Step)> = programs.steps(&sources).into_iter().map(|s| (sources.clone(), s)).collect();
        steps.extend(programs.app_steps(&apps).into_iter().map(|s| (apps.clone(), s)));
        // Long sources take long to compile: first, so that no processor waits for the last of them.
        steps.sort_by_key(|(_, step)| std::cmp::Reverse(std::fs::metadata(&step.source).map_or(0, |m| m.len())));
        let toolchain = Toolchain::get(target)?;
        let runtimes = [
            (Linkage::Shared, toolchain.cudart()),
            (Linkage::Shared12, cudart_12(target)?),
            (Linkage::Shared11, cudart_11(target)?),
        ];
        for (directory, runtime) in runtimes {
            let lib = programs.directory.join(directory.name()).join("lib");
            std::fs::create_dir_all(&lib).map_err(BuildError::file(&lib))?;
            let copy = lib.join(runtime.file_name().unwrap_or_default());
            let bytes = |path: &Path| std::fs::metadata(path).map(|m| m.len()).ok();
            // Other processes may be using it, or doing the same.
            if bytes(&copy) != bytes(&runtime) {
                let new = lib.join(format!("{}.new", std::process::id()));
                let copied = std::fs::copy(&runtime, &new).and_then(|_| std::fs::rename(&new, &copy));
                copied.map_err(BuildError::file(&runtime))?;
            }
        }
        for directory in ["static", "apps"] {
            let path = programs.directory.join(directory);
            std::fs::create_dir_all(&path).map_err(BuildError::file(&path))?;
        }
        let maker = |(sources, step)| Maker { sources, step, is_done: Mutex::new(false) };
        programs.makers = Some(Makers { toolchain, all: steps.into_iter().map(maker).collect() });
        Ok(programs)
    }

    /// Compiles a program if it is missing or older than its source. What no step makes is not there, which its user finds.
    fn make(&self, product: &Path) {
        let Some(makers) = &self.makers else { return };
        let makes = |maker: &&Maker| maker.step.products.iter().any(|(made, _)| made == product);
        if let Some(maker) = makers.all.iter().find(makes) {
            maker.run(&makers.toolchain).unwrap_or_else(|why| panic!("{why}"));
        }
    }

    fn file(&self, linkage: Linkage, name: &str) -> PathBuf {
        self.directory.join(linkage.name()).join(name)
    }

    fn app_steps(&self, sources: &Sources) -> Vec<Step> {
        // Without fused multiply-add the host's own results are the device's, bit for bit.
        let step = |name| {
            let products = vec![(self.directory.join("apps").join(name), Link::Static)];
            Step { source: sources.file(name), args: arguments(&["-O2", "-fmad=false"]), products }
        };
        APPS.into_iter().map(step).collect()
    }

    fn steps(&self, sources: &Sources) -> Vec<Step> {
        let program = |name: &str| {
            let path = |linkage| self.file(linkage, name);
            let mut products = vec![(path(Linkage::Static), Link::Static), (path(Linkage::Shared), Link::Shared)];
            if NAMES_12.contains(&name) {
                let runtime = self.directory.join("shared12/lib/libcudart.so.12");
                products.push((path(Linkage::Shared12), Link::Older { runtime, bridge: None }));
            }
            if NAMES_11.contains(&name) {
                let runtime = self.directory.join("shared11/lib/libcudart.so.11.0");
                let bridge = Some(sources.directory.join("runtime11.cpp"));
                products.push((path(Linkage::Shared11), Link::Older { runtime, bridge }));
            }
            // The host's code takes a third of its time longer to compile with more optimization, and does little.
            let own: &[&str] =
                if ["threads8", "storm"].contains(&name) { &["-O1", "--default-stream", "per-thread"] } else { &["-O1"] };
            Step { source: sources.file(name), args: arguments(own), products }
        };
        let module = |which: &str| {
            let product = |linkage| (module(&self.file(linkage, "killer"), which), Link::Module);
            let products = [Linkage::Static, Linkage::Shared].map(product).to_vec();
            Step { source: sources.file("killer_module"), args: arguments(&[&format!("-DWHICH={which}")]), products }
        };
        NAMES.into_iter().chain(SPECIAL).map(program).chain(KILLER_MODULES.into_iter().map(module)).collect()
    }
}

impl Maker {
    /// Compiles the source, unless its products are newer. Other threads and processes that want the same wait.
    fn run(&self, toolchain: &Toolchain) -> Result<(), BuildError> {
        let (mut is_done, step) = (lock(&self.is_done), &self.step);
        let Some((first, _)) = step.products.first().filter(|_| !*is_done) else { return Ok(()) };
        let path = first.with_extension("lock");
        let held = File::create(&path).and_then(|file| file.lock().map(|()| file)).map_err(BuildError::file(&path))?;
        if self.sources.newer_than(step) {
            eprintln!("compiling {}", step.source.display());
            step.run(toolchain)?;
        }
        drop(held);
        *is_done = true;
        Ok(())
    }
}

/// A module that `killer` loads.
fn module(killer: &Path, which: &str) -> PathBuf {
    killer.with_file_name(format!("killer_{which}.fatbin"))
}

/// Arguments of the compiler: these, and what all sources get.
fn arguments(own: &[&str]) -> Vec<String> {
    ["-std=c++17"].iter().chain(own).copied().chain(ARCHITECTURES).map(str::to_owned).collect()
}

/// A source, and what is made of it.
#[derive(Debug)]
struct Step {
    source: PathBuf,
    /// Arguments of the compiler.
    args: Vec<String>,
    products: Vec<(PathBuf, Link)>,
}

/// What a compiled source is linked with.
#[derive(Debug, Clone)]
enum Link {
    /// Nothing: a fat binary.
    Module,
    /// The static runtime.
    Static,
    /// The shared runtime beside the product.
    Shared,
    /// A runtime older than the compiler, by g++ instead of by nvcc; `bridge` is the source of what it lacks.
    Older { runtime: PathBuf, bridge: Option<PathBuf> },
}

impl Step {
    /// Compiles once, then makes each product.
    fn run(&self, toolchain: &Toolchain) -> Result<(), BuildError> {
        let Some((first, link)) = self.products.first() else { return Ok(()) };
        let (object, kind) = match link {
            Link::Module => (first.with_extension("made"), "-fatbin"),
            _ => (first.with_extension("o"), "-c"),
        };
        check(Command::new(toolchain.nvcc()).args(&self.args).args([kind, "-o"]).arg(&object).arg(&self.source))?;
        for (product, link) in &self.products {
            // A process that is killed here leaves no incomplete product.
            let new = product.with_extension("new");
            link.run(toolchain, &object, &new)?;
            std::fs::rename(&new, product).map_err(BuildError::file(product))?;
        }
        std::fs::remove_file(&object).map_err(BuildError::file(&object))
    }
}

impl Link {
    fn run(&self, toolchain: &Toolchain, object: &Path, product: &Path) -> Result<(), BuildError> {
        let mut nvcc = Command::new(toolchain.nvcc());
        // No device code is left to be linked.
        nvcc.args(["--no-device-link", "-o"]).arg(product).arg(object);
        match self {
            Link::Module => std::fs::copy(object, product).map(drop).map_err(BuildError::file(product)),
            Link::Static => check(&mut nvcc),
            Link::Shared => check(nvcc.args(["-cudart", "shared", "-Xlinker", "-rpath=$ORIGIN/lib"])),
            Link::Older { runtime, bridge } => {
                let mut gxx = Command::new("g++");
                gxx.arg("-I").arg(toolchain.include()).arg("-o").arg(product).arg(object).args(bridge);
                check(gxx.arg(runtime).arg("-Wl,-rpath,$ORIGIN/lib"))
            }
        }
    }
}

fn check(command: &mut Command) -> Result<(), BuildError> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command.output().map_err(BuildError::start(&program))?;
    if output.status.success() {
        return Ok(());
    }
    let words = [output.stdout, output.stderr].concat();
    Err(BuildError::Compiler { command: format!("{command:?}"), output: String::from_utf8_lossy(&words).into_owned() })
}

/// The sources, and when each of the headers was written.
#[derive(Debug)]
struct Sources {
    directory: PathBuf,
    /// By the names under which sources of the directory include them.
    headers: Vec<(String, SystemTime)>,
}

impl Sources {
    fn find(directory: &str) -> Result<Sources, BuildError> {
        let directory = install::root().join(directory);
        let mut headers = Vec::new();
        // Apps use headers of the test programs.
        for (part, prefix) in [(".", ""), ("../cuda", "../cuda/")] {
            let path = directory.join(part);
            let entries = std::fs::read_dir(&path).map_err(BuildError::file(&path))?;
            headers.extend(entries.filter_map(Result::ok).filter_map(|entry| {
                let name = entry.file_name().into_string().ok().filter(|name| name.ends_with(".cuh"))?;
                Some((format!("{prefix}{name}"), entry.metadata().ok()?.modified().ok()?))
            }));
        }
        Ok(Sources { directory, headers })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name).with_extension("cu")
    }

    /// Whether its source, or a header that the source includes (itself or by another header), is newer than what it makes.
    fn newer_than(&self, step: &Step) -> bool {
        let written = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        let Some(source) = written(&step.source) else { return true };
        // The oldest product; without one of them all are made.
        let made: Option<Vec<SystemTime>> = step.products.iter().map(|(product, _)| written(product)).collect();
        let Some(made) = made.and_then(|all| all.into_iter().min()) else { return true };
        let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let names = |text: &str, header: &str| text.contains(&format!("#include \"{header}\""));
        let direct = text(&step.source);
        let through: String = self
            .headers
            .iter()
            .filter(|(name, _)| names(&direct, name))
            .map(|(name, _)| text(&self.directory.join(name)))
            .collect();
        let included = |name: &str| names(&direct, name) || names(&through, name);
        made < source || self.headers.iter().any(|(name, written)| made < *written && included(name))
    }
}
