//! `cargo xtask rdma`: jobs over RDMA between two hosts: virtual machines whose kernels have a software RDMA device (SoftRoCE),
//! joined by a network cable. Two network namespaces of one machine are not enough: the device of Debian's kernel routes in the
//! first one only.
//!
//! The machines have no disks: they boot a small initial file system with kernel modules, and mount this machine's files
//! read-only, so all programs run there as they are. The processor is emulated, because not every machine lets its users
//! virtualize; times mean nothing.

use crate::error::Error;
use crate::step::step;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
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

/// Kernel modules of the guest; those that they need come with them.
const MODULES: &str = "virtio_pci virtio_net 9p 9pnet_virtio overlay crc32_generic ib_uverbs rdma_rxe";

/// Programs that must be installed, with Debian's package of each.
const TOOLS: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    ("rdma", "iproute2"),
    ("ibv_devices", "ibverbs-utils ibverbs-providers"),
];

/// Where statically linked busybox is.
pub(crate) const BUSYBOX: &str = "/bin/busybox";

/// Runs everything; without what it needs it says so and does nothing.
pub(crate) fn rdma(args: &RdmaArgs) -> Result<(), Error> {
    let missing = missing();
    if !missing.is_empty() {
        println!("skipped: RDMA is tested in virtual machines, which need: apt-get install {}", missing.join(" "));
        return Ok(());
    }
    let target = install::target_directory()?;
    let directory = target.join("rdma");
    fs::create_dir_all(&directory).map_err(Error::file(&directory))?;
    let Some(kernel) = args.kernel.clone().or_else(|| kernel(&directory)) else {
        println!("skipped: no kernel with SoftRoCE can be downloaded with apt-get; --kernel names a directory with one");
        return Ok(());
    };
    step("building with RDMA, and the test programs");
    let mut cargo = install::cargo();
    cargo.args(["build", "--profile", install::PROFILE, "--features", "mrcuda/rdma,recorder/rdma", "--target-dir"]).arg(&target);
    run(cargo.args(["-p", "mrcuda", "-p", "mhelper", "-p", "nvml", "-p", "recorder", "-p", "softgpu", "-p", "tests"]))?;
    Programs::build(&target)?;
    // The next build without RDMA replaces what is in the directory of the profile.
    let version = version(&kernel)?;
    let guest = directory.join("guest.sh");
    fs::write(&guest, script(args, &target)).map_err(Error::file(&guest))?;
    let initrd = directory.join("initrd.gz");
    run(Command::new("sh")
        .arg("-euc")
        .arg(INITRD)
        .env("ROOT", &kernel)
        .env("VERSION", &version)
        .env("GUEST", &guest)
        .env("TO", &initrd)
        .env("MODULES", MODULES))?;
    step("running in two virtual machines");
    let machines =
        Machines { kernel: kernel.join("boot").join(format!("vmlinuz-{version}")), initrd, directory, limit: args.limit };
    machines.run()
}

/// Packages of what is not installed.
fn missing() -> Vec<&'static str> {
    let tools = TOOLS.iter().filter(|(tool, _)| !has_tool(tool)).map(|(_, package)| *package);
    tools.chain((!Path::new(BUSYBOX).exists()).then_some("busybox-static")).chain(missing_to_build()).collect()
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

pub(crate) fn has_tool(tool: &str) -> bool {
    let directories = ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin", "/usr/local/sbin"];
    directories.iter().any(|directory| Path::new(directory).join(tool).exists())
}

/// Debian's kernel, downloaded once.
pub(crate) fn kernel(directory: &Path) -> Option<PathBuf> {
    let to = directory.join("kernel");
    if version(&to).is_ok() {
        return Some(to);
    }
    step("downloading a kernel");
    let get = r#"
        name=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
        test -n "$name" && rm -rf kernel && apt-get download -q "$name" && dpkg-deb -x "$name"_*.deb kernel && rm -f "$name"_*.deb"#;
    run(Command::new("sh").arg("-euc").arg(get).current_dir(directory)).ok()?;
    version(&to).is_ok().then_some(to)
}

/// The version of the kernel in this directory.
pub(crate) fn version(root: &Path) -> Result<String, Error> {
    let boot = root.join("boot");
    let names = fs::read_dir(&boot).map_err(Error::file(&boot))?;
    let mut versions = names.filter_map(|f| f.ok()?.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned));
    versions.next().ok_or_else(|| Error::Found(format!("{}: no vmlinuz", boot.display())))
}

/// Makes the initial file system: busybox, the modules, and a program that mounts this machine's files and runs the guest's
/// script there.
pub(crate) const INITRD: &str = r#"
    to=$(mktemp -d); trap 'rm -rf "$to"' EXIT
    mkdir -p "$to"/bin "$to"/mods "$to"/dev "$to"/proc "$to"/sys "$to"/newroot
    cp /bin/busybox "$to"/bin/
    for name in sh mount insmod switch_root mkdir; do ln -sf busybox "$to"/bin/$name; done
    PATH=$PATH:/usr/sbin:/sbin
    depmod -b "$ROOT" "$VERSION"
    for module in $MODULES; do modprobe -d "$ROOT" -S "$VERSION" --show-depends $module; done |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do cp "$file" "$to"/mods/; basename "$file"; done > "$to"/mods/list
    cat > "$to"/init <<END
#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read module; do insmod /mods/\$module; done < /mods/list
mkdir -p /lower /up
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro root /lower
mount -t tmpfs tmpfs /up; mkdir -p /up/u /up/w
mount -t overlay -o lowerdir=/lower,upperdir=/up/u,workdir=/up/w overlay /newroot
mount --move /dev /newroot/dev; mkdir -p /newroot/proc /newroot/sys /newroot/run /newroot/dev/pts /newroot/dev/shm
mount -t proc proc /newroot/proc; mount -t sysfs sys /newroot/sys; mount -t tmpfs tmpfs /newroot/run
mount -t devpts devpts /newroot/dev/pts; mount -t tmpfs t /newroot/dev/shm
exec switch_root /newroot /bin/bash "$GUEST"
END
    chmod +x "$to"/init
    (cd "$to" && find . | cpio -o -H newc -R 0:0 --quiet | gzip -1) > "$TO"
"#;

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
    text + include_str!("rdma-guest.sh")
}

pub(crate) fn run(command: &mut Command) -> Result<(), Error> {
    let status = command.status().map_err(Error::start(&format!("{command:?}")))?;
    Error::unless_success(&format!("{:?}", command.get_program()), status)
}

/// The two machines.
struct Machines {
    kernel: PathBuf,
    initrd: PathBuf,
    directory: PathBuf,
    limit: u32,
}

impl Machines {
    /// A machine with its end of the cable.
    fn machine(&self, role: &str, number: u32, cable: &str) -> Command {
        let mut qemu = Command::new("timeout");
        qemu.arg(self.limit.to_string()).args([
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-machine",
            "q35",
        ]);
        qemu.args(["-smp", "2", "-m", "2048", "-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio", "-kernel"])
            .arg(&self.kernel);
        qemu.arg("-initrd").arg(&self.initrd).arg("-append");
        qemu.arg(format!("console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off role={role}"));
        qemu.args(["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap", "-netdev", cable]);
        qemu.args(["-device", &format!("virtio-net-pci,netdev=cable,mac=52:54:00:00:00:{number:02}")]).stdin(Stdio::null());
        qemu
    }

    /// Boots both and prints the rows as they come.
    fn run(&self) -> Result<(), Error> {
        let start = |command: &mut Command| command.spawn().map_err(Error::start("qemu-system-x86_64"));
        let log = self.directory.join("server.log");
        let output = fs::File::create(&log).map_err(Error::file(&log))?;
        // Short, because the path of a socket has room for 107 bytes.
        let socket = std::env::temp_dir().join(format!("mrcuda-rdma-{}", std::process::id()));
        let cable = |end: &str| format!("stream,id=cable,server={end},addr.type=unix,addr.path={}", socket.display());
        let mut server = start(self.machine("server", 1, &cable("on")).stdout(output))?;
        // The other machine needs the socket. Without it this ends with the first one.
        while !socket.exists() && server.try_wait().is_ok_and(|status| status.is_none()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut client = start(self.machine("client", 2, &cable("off")).stdout(Stdio::piped()))?;
        let table = Table::read(client.stdout.take());
        let status = client.wait().map_err(|e| Error::Found(format!("qemu-system-x86_64: {e}")))?;
        if !table.ended {
            // No request to end has come.
            let _ = server.kill();
        }
        // Both have written everything.
        let _ = (server.wait(), fs::remove_file(&socket));
        println!("{} passed, {} failed", table.passed, table.failed);
        if table.failed == 0 && table.ended && table.passed > 0 {
            return Ok(());
        }
        Err(Error::Found(format!(
            "the run over RDMA failed (the client's machine: {status}); the server's words are in {}",
            log.display()
        )))
    }
}

/// What the client's machine has said.
#[derive(Debug, Default)]
struct Table {
    passed: u32,
    failed: u32,
    ended: bool,
}

impl Table {
    fn read(output: Option<std::process::ChildStdout>) -> Table {
        let mut table = Table::default();
        println!("{:<32} {:>8}  result", "over RDMA", "seconds");
        for line in output.into_iter().flat_map(|out| BufReader::new(out).split(b'\n')).map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).replace(char::is_control, "");
            // The firmware's control codes may stand in front of the first row.
            let row = line.find("ROW ").map_or(&*line, |at| &line[at..]);
            let mut words = row.splitn(4, ' ');
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("ROW"), Some(name), Some(seconds), Some(result)) => {
                    println!("{name:<32} {seconds:>8}  {result}");
                    *(if result == "ok" { &mut table.passed } else { &mut table.failed }) += 1;
                }
                (Some("END"), ..) => table.ended = true,
                _ => eprintln!("client: {line}"),
            }
        }
        table
    }
}
