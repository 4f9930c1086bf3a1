//! `cargo xtask machine`: what needs virtual machines with Debian's kernel, because the machine at hand, or its container, does not offer it:
//! cgroups of version 2, systemd, two hosts.

use crate::error::Error;
use crate::step::step;
use crate::suite;
use crate::vm::{self, Kernel, Tool, Vm};
use std::fs;
use std::path::{Path, PathBuf};
use tests::install;

/// Arguments of `cargo xtask machine`.
#[derive(Debug, clap::Args)]
pub(crate) struct MachineArgs {
    #[command(subcommand)]
    what: What,
    /// Directory with `boot/vmlinuz-VERSION` and `lib/modules/VERSION`, as in a kernel's package; otherwise Debian's, downloaded
    /// with apt-get
    #[arg(long, global = true)]
    kernel: Option<PathBuf>,
    /// Maximum time for the machines in seconds
    #[arg(long, global = true, default_value_t = 1200)]
    limit: u32,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Run system tests as root
    Tests {
        /// Only those whose name contains one of these
        #[arg(default_value = "worker_memory")]
        names: Vec<String>,
    },
    /// Install the package, and try its units with systemd
    Units {
        /// The `.deb`, as `cargo xtask package` makes it [default: that in the target directory]
        #[arg(long)]
        package: Option<PathBuf>,
    },
    /// Follow the first tutorial with two machines, as a user without privileges
    Tutorial,
}

/// How a guest ends what it says.
const STATUS: &str = "STATUS ";

/// What the machines of the tutorial need.
const SSH: [Tool; 2] = [("sshd", "openssh-server"), ("ssh", "openssh-client")];
/// What the units need, besides systemd as the machine's first process.
const SYSTEMD: [Tool; 2] = [("systemctl", "systemd"), ("systemd-sysusers", "systemd")];

/// Runs it; without what it needs it says so and does nothing.
pub(crate) fn machine(args: &MachineArgs) -> Result<(), Error> {
    let tools: &[Tool] = match args.what {
        What::Tests { .. } => &[],
        What::Units { .. } => &SYSTEMD,
        What::Tutorial => &SSH,
    };
    let missing = vm::missing(tools);
    if !missing.is_empty() {
        println!("skipped: virtual machines need: apt-get install {}", missing.join(" "));
        return Ok(());
    }
    let directory = install::target_directory()?.join("machine");
    fs::create_dir_all(&directory).map_err(Error::file(&directory))?;
    let Some(kernel) = Kernel::get(args.kernel.as_deref(), &directory)? else { return Ok(()) };
    let (modules, script, memory) = match &args.what {
        What::Tests { names } => {
            let names: Vec<String> = names.iter().map(|name| quoted(Path::new(name))).collect();
            let script = format!("TESTS=\"{}\"\n{}{}", names.join(" "), system_tests()?, include_str!("machine/tests.sh"));
            ("", script, 4096)
        }
        What::Units { package } => {
            let package = package.clone().map_or_else(package_here, Ok)?;
            let package = fs::canonicalize(&package).map_err(Error::file(&package))?;
            let bin = suite::build(false)?.bin;
            let variables = format!("PART=\nPACKAGE={}\nBIN={}\n", quoted(&package), quoted(&bin));
            ("", variables + include_str!("machine/units.sh"), 3072)
        }
        What::Tutorial => ("virtio_net", system_tests()? + vm::PAIR + include_str!("machine/tutorial.sh"), 3072),
    };
    let vm = Vm::new(&kernel, modules, &script, &directory, memory, args.limit)?;
    let mut status = Status::default();
    if matches!(args.what, What::Tutorial) {
        step("running in two virtual machines");
        vm.run_pair(&directory.join("server.log"), |line| status.line(line))?;
    } else {
        step("running in a virtual machine");
        vm.run(|line| status.line(line))?;
    }
    match status.said.as_deref() {
        Some("0") => Ok(()),
        Some(other) => Err(Error::Found(format!("failed in the virtual machine (exit status {other})"))),
        None => Err(Error::Found(format!("the virtual machine did not finish within {} s", args.limit))),
    }
}

/// A word of a shell's script.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}

/// Variables of the scripts that run system tests.
fn system_tests() -> Result<String, Error> {
    let install = suite::build(false)?;
    let program = suite::system_program(&install)?;
    let directory = install::root().join("tests");
    Ok(format!("BIN={}\nPROGRAM={}\nDIRECTORY={}\n", quoted(&install.bin), quoted(&program), quoted(&directory)))
}

/// The package that `cargo xtask package` has made.
fn package_here() -> Result<PathBuf, Error> {
    let directory = install::target_directory()?.join("package");
    let files = fs::read_dir(&directory).map_err(Error::file(&directory))?;
    let mut packages =
        files.filter_map(|file| Some(file.ok()?.path())).filter(|path| path.extension().is_some_and(|end| end == "deb"));
    packages.next().ok_or_else(|| Error::Found(format!("{}: no .deb; cargo xtask package makes one", directory.display())))
}

/// What a guest says at its end.
#[derive(Debug, Default)]
struct Status {
    said: Option<String>,
}

impl Status {
    /// Prints a line as it comes, or keeps the last one.
    fn line(&mut self, line: &str) {
        match line.strip_prefix(STATUS) {
            Some(said) => self.said = Some(said.to_owned()),
            None => println!("{line}"),
        }
    }
}
