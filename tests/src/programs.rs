//! The CUDA programs in `programs/`, compiled by nvcc.

use crate::install::{self, Install};
use crate::toolchain::{Toolchain, cudart_11, cudart_12};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
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
    /// Name of the folder.
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
pub const NAMES: [&str; 52] = [
    "vecadd",
    "matmul",
    "stencil",
    "killer",
    "threads8",
    "twogpu",
    "peers",
    "callbacks",
    "pinned",
    "mapped",
    "managed",
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
];
/// Programs for tests of their own: `assertion` ends in a failed context, which cannot move; `stuck`, `endings`, `late` and `reloads` have arguments of their own;
/// `ipc` and `handles` are two processes; [`LITMUS`] prints what order it has seen.
const SPECIAL: [&str; 8] = ["assertion", "stuck", "endings", "late", "ipc", "handles", "reloads", LITMUS];
/// The program that tries in which order host and GPU see each other's writes (docs/consistency.md).
pub const LITMUS: &str = "litmus";
/// Programs that are also linked with the runtime of CUDA 12.9.
const NAMES_12: [&str; 2] = ["vecadd", "stencil"];
/// And with that of CUDA 11.8.
const NAMES_11: [&str; 2] = ["vecadd", "stencil"];
/// Modules that `killer` loads by itself, from files beside it.
const KILLER_MODULES: [&str; 3] = ["0", "1", "2"];
/// PTX for any device, machine code for one: the driver of the place takes what fits.
const ARCHITECTURES: [&str; 4] = ["-gencode", "arch=compute_75,code=compute_75", "-gencode", "arch=compute_90,code=sm_90"];

/// The folder with compiled programs.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The programs of this process: the folder in `MRCUDA_PROGRAMS`, or else the target folder, compiled at the first use.
    pub fn get() -> &'static Programs {
        static PROGRAMS: OnceLock<Programs> = OnceLock::new();
        PROGRAMS.get_or_init(|| match std::env::var_os("MRCUDA_PROGRAMS") {
            Some(folder) => Programs { folder: folder.into() },
            None => Programs::build(&Install::get().target).unwrap_or_else(|why| panic!("{why}")),
        })
    }

    /// A compiled program.
    pub fn path(&self, linkage: Linkage, name: &str) -> PathBuf {
        self.folder.join(linkage.name()).join(name)
    }

    /// Compiles what is missing or older than its source.
    pub fn build(target: &Path) -> Result<Programs, String> {
        let programs = Programs { folder: target.join("programs") };
        let sources = Sources::find()?;
        let stale: Vec<Step> = programs.steps(&sources).into_iter().filter(|s| sources.newer_than(s)).collect();
        if stale.is_empty() {
            return Ok(programs);
        }
        let toolchain = Toolchain::get(target)?;
        let runtimes = [
            (Linkage::Shared, toolchain.cudart()),
            (Linkage::Shared12, cudart_12(target)?),
            (Linkage::Shared11, cudart_11(target)?),
        ];
        for (folder, runtime) in runtimes {
            let lib = programs.folder.join(folder.name()).join("lib");
            std::fs::create_dir_all(&lib).map_err(|e| format!("{}: {e}", lib.display()))?;
            let name = runtime.file_name().unwrap_or_default();
            std::fs::copy(&runtime, lib.join(name)).map_err(|e| format!("{}: {e}", runtime.display()))?;
        }
        std::fs::create_dir_all(programs.folder.join("static")).map_err(|e| e.to_string())?;
        for step in stale {
            eprintln!("compiling {}", step.product.display());
            step.run(&toolchain)?;
        }
        Ok(programs)
    }

    fn steps(&self, sources: &Sources) -> Vec<Step> {
        let mut steps = Vec::new();
        for linkage in [Linkage::Static, Linkage::Shared] {
            for name in NAMES.into_iter().chain(SPECIAL) {
                let mut args: Vec<String> = ["-std=c++17", "-O2"].map(str::to_owned).to_vec();
                args.extend(ARCHITECTURES.map(str::to_owned));
                if ["threads8", "storm"].contains(&name) {
                    args.extend(["--default-stream", "per-thread"].map(str::to_owned));
                }
                if linkage == Linkage::Shared {
                    args.extend(["-cudart", "shared", "-Xlinker", "-rpath=$ORIGIN/lib"].map(str::to_owned));
                }
                steps.push(Step { source: sources.file(name), product: self.path(linkage, name), args, older: None });
            }
            for which in KILLER_MODULES {
                let mut args: Vec<String> = vec!["-std=c++17".into(), "-fatbin".into(), format!("-DWHICH={which}")];
                args.extend(ARCHITECTURES.map(str::to_owned));
                let product = self.path(linkage, &format!("killer_{which}.fatbin"));
                steps.push(Step { source: sources.file("killer_module"), product, args, older: None });
            }
        }
        let of_12 = || Older { runtime: self.folder.join("shared12/lib/libcudart.so.12"), bridge: None };
        let bridge = || Some(sources.folder.join("runtime11.cpp"));
        let of_11 = || Older { runtime: self.folder.join("shared11/lib/libcudart.so.11.0"), bridge: bridge() };
        let with_12 = NAMES_12.map(|name| (name, Linkage::Shared12, of_12()));
        for (name, linkage, older) in with_12.into_iter().chain(NAMES_11.map(|name| (name, Linkage::Shared11, of_11()))) {
            let mut args: Vec<String> = ["-std=c++17", "-O2"].map(str::to_owned).to_vec();
            args.extend(ARCHITECTURES.map(str::to_owned));
            steps.push(Step { source: sources.file(name), product: self.path(linkage, name), args, older: Some(older) });
        }
        steps
    }
}

/// One call of the compiler.
struct Step {
    source: PathBuf,
    product: PathBuf,
    args: Vec<String>,
    /// Linked with this runtime by g++ instead of by nvcc.
    older: Option<Older>,
}

/// A runtime older than the compiler.
struct Older {
    runtime: PathBuf,
    /// Source of what it lacks.
    bridge: Option<PathBuf>,
}

impl Step {
    fn run(&self, toolchain: &Toolchain) -> Result<(), String> {
        let Some(older) = &self.older else {
            return check(Command::new(toolchain.nvcc()).args(&self.args).arg("-o").arg(&self.product).arg(&self.source));
        };
        let object = self.product.with_extension("o");
        check(Command::new(toolchain.nvcc()).args(&self.args).arg("-c").arg("-o").arg(&object).arg(&self.source))?;
        let mut link = Command::new("g++");
        link.arg("-I").arg(toolchain.include()).arg("-o").arg(&self.product).arg(&object).args(&older.bridge);
        check(link.arg(&older.runtime).arg("-Wl,-rpath,$ORIGIN/lib"))
    }
}

fn check(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("cannot start {}: {e}", Path::new(command.get_program()).display()))?;
    if output.status.success() {
        return Ok(());
    }
    let words = [output.stdout, output.stderr].concat();
    Err(format!("{command:?} failed:\n{}", String::from_utf8_lossy(&words)))
}

/// The sources, and when each of the headers was written.
struct Sources {
    folder: PathBuf,
    /// By their names.
    headers: Vec<(String, SystemTime)>,
}

impl Sources {
    fn find() -> Result<Sources, String> {
        let folder = install::root().join("tests/programs");
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let header = |e: std::fs::DirEntry| {
            let name = e.file_name().into_string().ok().filter(|name| name.ends_with(".cuh"))?;
            Some((name, e.metadata().ok()?.modified().ok()?))
        };
        let headers = entries.filter_map(Result::ok).filter_map(header).collect();
        Ok(Sources { folder, headers })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name).with_extension("cu")
    }

    /// Whether its source, or a header that the source includes (headers include none of the others), is newer than what it makes.
    fn newer_than(&self, step: &Step) -> bool {
        let written = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified());
        let (Ok(made), Ok(source)) = (written(&step.product), written(&step.source)) else { return true };
        let text = std::fs::read_to_string(&step.source).unwrap_or_default();
        let included = |name: &str| text.contains(&format!("#include \"{name}\""));
        made < source || self.headers.iter().any(|(name, written)| made < *written && included(name))
    }
}
