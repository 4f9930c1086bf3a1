//! `cargo xtask rdma`: jobs over RDMA between two hosts: virtual machines whose kernels have a software RDMA device (SoftRoCE),
//! joined by a network cable. Two network namespaces of one machine are not enough: the device of Debian's kernel routes in the
//! first one only.

use crate::error::Error;
use crate::step::step;
use crate::vm::{self, Kernel, Tool, Vm, has_tool};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use tests::{Programs, install};

/// Arguments of `cargo xtask rdma`.
#[derive(Debug, clap::Args)]
pub(crate) struct RdmaArgs {
    /// Directory with `boot/vmlinuz-VERSION` and `lib/modules/VERSION`, as in a kernel's package; otherwise Debian's, downloaded
    /// with apt-get
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Test programs to run, instead of a choice
    #[arg(long, value_delimiter = ',', conflicts_with = "all")]
    programs: Vec<String>,
    /// All test programs
    #[arg(long)]
    all: bool,
    /// Fewer programs, and only the moves and failures that concern large amounts of data
    #[arg(long, conflicts_with = "all")]
    quick: bool,
    /// Maximum time for the machines in seconds
    #[arg(long, default_value_t = 1200)]
    limit: u32,
}

/// Programs with small calls, large copies, answers of all kinds, and several threads.
const PROGRAMS: [&str; 14] = [
    "vecadd",
    "matmul",
    "stencil",
    "threads8",
    "callbacks",
    "pinned",
    "mapped",
    "events",
    "printf",
    "graphs",
    "pools",
    "arrays",
    "pageable",
    "storm",
];

/// Those of a quick run.
const QUICK_PROGRAMS: [&str; 2] = ["vecadd", "pinned"];

/// Kernel modules of the guests.
const MODULES: &str = "virtio_net crc32_generic ib_uverbs rdma_rxe";

/// What must be installed besides what all machines need.
const TOOLS: [Tool; 2] = [("rdma", "iproute2"), ("ibv_devices", "ibverbs-utils ibverbs-providers")];

/// Runs everything; without what it needs it says so and does nothing.
pub(crate) fn rdma(args: &RdmaArgs) -> Result<(), Error> {
    let missing: Vec<&str> = vm::missing(&TOOLS).into_iter().chain(missing_to_build()).collect();
    if !missing.is_empty() {
        println!("skipped: RDMA is tested in virtual machines, which need: apt-get install {}", missing.join(" "));
        return Ok(());
    }
    let target = install::target_directory()?;
    let directory = target.join("rdma");
    fs::create_dir_all(&directory).map_err(Error::file(&directory))?;
    let Some(kernel) = Kernel::get(args.kernel.as_deref(), &directory)? else { return Ok(()) };
    step("building with RDMA, and the test programs");
    let mut cargo = install::cargo();
    cargo.args(["build", "--profile", install::PROFILE, "--features", "mrcuda/rdma,recorder/rdma", "--target-dir"]).arg(&target);
    vm::run(cargo.args(["-p", "mrcuda", "-p", "mhelper", "-p", "nvml", "-p", "recorder", "-p", "softgpu", "-p", "tests"]))?;
    Programs::build(&target)?;
    // The next build without RDMA replaces what is in the directory of the profile.
    let machines = Vm::new(&kernel, MODULES, &script(args, &target), &directory, 2048, args.limit)?;
    step("running in two virtual machines");
    let (log, mut table) = (directory.join("server.log"), Table::new());
    machines.run_pair(&log, |line| table.line(line))?;
    println!("{} passed, {} failed", table.passed, table.failed);
    if table.failed == 0 && table.ended && table.passed > 0 {
        return Ok(());
    }
    Err(Error::Found(format!("the run over RDMA failed; the server's words are in {}", log.display())))
}

/// Packages of what is not installed and the feature `rdma` needs to build.
pub(crate) fn missing_to_build() -> Vec<&'static str> {
    let clang = |directory: PathBuf| directory.join("lib/libclang.so").exists() || directory.join("lib/libclang.so.1").exists();
    let versions = fs::read_dir("/usr/lib").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let needed = [
        ("cmake", has_tool("cmake")),
        ("libibverbs-dev", Path::new("/usr/include/infiniband/verbs.h").exists()),
        ("libclang-dev", std::env::var_os("LIBCLANG_PATH").is_some() || versions.into_iter().any(clang)),
    ];
    needed.into_iter().filter(|(_, there)| !there).map(|(package, _)| package).collect()
}

/// The script that the guest runs.
fn script(args: &RdmaArgs, target: &Path) -> String {
    let names = match (args.all, args.programs.is_empty()) {
        (true, _) => ::tests::programs::NAMES.join(" "),
        (false, true) if args.quick => QUICK_PROGRAMS.join(" "),
        (false, true) => PROGRAMS.join(" "),
        (false, false) => args.programs.join(" "),
    };
    let mut text = String::new();
    let (bin, programs) = (target.join(install::PROFILE), target.join("programs").join("static"));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "BIN='{}'\nPROGRAMS='{}'\nNAMES='{names}'", bin.display(), programs.display());
    let _ = writeln!(text, "QUICK='{}'", if args.quick { "yes" } else { "" });
    text + vm::PAIR + include_str!("rdma-guest.sh")
}

/// What the client's machine has said.
#[derive(Debug, Default)]
struct Table {
    passed: u32,
    failed: u32,
    ended: bool,
}

impl Table {
    fn new() -> Table {
        println!("{:<32} {:>8}  result", "over RDMA", "seconds");
        Table::default()
    }

    /// Prints a line as it comes.
    fn line(&mut self, line: &str) {
        // The firmware's control codes may stand in front of the first row.
        let row = line.find("ROW ").map_or(line, |at| &line[at..]);
        let mut words = row.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("ROW"), Some(name), Some(seconds), Some(result)) => {
                println!("{name:<32} {seconds:>8}  {result}");
                *(if result == "ok" { &mut self.passed } else { &mut self.failed }) += 1;
            }
            (Some("END"), ..) => self.ended = true,
            _ => eprintln!("client: {line}"),
        }
    }
}
