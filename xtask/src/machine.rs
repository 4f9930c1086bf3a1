//! `cargo xtask machine`: system tests in a virtual machine, as root, with Debian's kernel: for those that need what the machine at hand, or its
//! container, does not offer, such as cgroups of version 2.
//!
//! The machine boots as those of `cargo xtask rdma` do; without RDMA nothing is built anew for it.

use crate::error::Error;
use crate::rdma::{BUSYBOX, INITRD, has_tool, kernel, run, version};
use crate::step::step;
use crate::suite;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tests::install;

/// Arguments of `cargo xtask machine`.
#[derive(Debug, clap::Args)]
pub(crate) struct MachineArgs {
    /// Only system tests whose name contains one of these
    #[arg(default_value = "worker_memory")]
    tests: Vec<String>,
    /// Directory with `boot/vmlinuz-VERSION` and `lib/modules/VERSION`, as in a kernel's package; otherwise Debian's, downloaded
    /// with apt-get
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Maximum time for the machine in seconds
    #[arg(long, default_value_t = 1200)]
    limit: u32,
}

/// Programs that must be installed, with Debian's package of each.
const TOOLS: [(&str, &str); 3] = [("qemu-system-x86_64", "qemu-system-x86"), ("cpio", "cpio"), ("modprobe", "kmod")];

/// Kernel modules of the guest; those that they need come with them.
const MODULES: &str = "virtio_pci 9p 9pnet_virtio overlay";

/// How the guest ends what it says.
const STATUS: &str = "STATUS ";

/// Runs the tests; without what it needs it says so and does nothing.
pub(crate) fn machine(args: &MachineArgs) -> Result<(), Error> {
    let mut missing: Vec<&str> = TOOLS.iter().filter(|(tool, _)| !has_tool(tool)).map(|(_, package)| *package).collect();
    missing.extend((!Path::new(BUSYBOX).exists()).then_some("busybox-static"));
    if !missing.is_empty() {
        println!("skipped: a virtual machine needs: apt-get install {}", missing.join(" "));
        return Ok(());
    }
    let directory = install::target_directory()?.join("machine");
    fs::create_dir_all(&directory).map_err(Error::file(&directory))?;
    let Some(kernel) = args.kernel.clone().or_else(|| kernel(&directory)) else {
        println!("skipped: no kernel can be downloaded with apt-get; --kernel names a directory with one");
        return Ok(());
    };
    let install = suite::build(false)?;
    let program = suite::system_program(&install)?;
    let (version, guest, initrd) = (version(&kernel)?, directory.join("guest.sh"), directory.join("initrd.gz"));
    let names: Vec<String> = args.tests.iter().map(|name| format!("'{name}'")).collect();
    let text = format!(
        "BIN='{}'\nPROGRAM='{}'\nDIRECTORY='{}'\nTESTS=\"{}\"\n{}",
        install.bin.display(),
        program.display(),
        install::root().join("tests").display(),
        names.join(" "),
        include_str!("machine-guest.sh")
    );
    fs::write(&guest, text).map_err(Error::file(&guest))?;
    let mut make = Command::new("sh");
    make.arg("-euc").arg(INITRD).env("ROOT", &kernel).env("VERSION", &version);
    run(make.env("GUEST", &guest).env("TO", &initrd).env("MODULES", MODULES))?;
    step("running in a virtual machine");
    let mut qemu = Command::new("timeout");
    qemu.arg(args.limit.to_string());
    qemu.args(["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35", "-smp", "2", "-m", "4096"]);
    qemu.args(["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio", "-kernel"]);
    qemu.arg(kernel.join("boot").join(format!("vmlinuz-{version}"))).arg("-initrd").arg(&initrd);
    qemu.args(["-append", "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off"]);
    qemu.args(["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"]);
    let mut qemu = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(Error::start("qemu-system-x86_64"))?;
    let mut status = None;
    for line in qemu.stdout.take().into_iter().flat_map(|out| BufReader::new(out).split(b'\n')).map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).replace(|c: char| c.is_control() && c != '\t', "");
        match line.strip_prefix(STATUS) {
            Some(said) => status = Some(said.to_owned()),
            None => println!("{line}"),
        }
    }
    qemu.wait()?;
    match status.as_deref() {
        Some("0") => Ok(()),
        Some(other) => Err(Error::Found(format!("tests failed in the virtual machine (exit code {other})"))),
        None => Err(Error::Found(format!("the virtual machine did not finish within {} s", args.limit))),
    }
}
