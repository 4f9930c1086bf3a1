//! Virtual machines, for tests of what the machine at hand, or its container, does not offer: kernel modules, cgroups, systemd, two hosts.
//!
//! They have no disks: they boot a small initial file system with kernel modules, and mount this machine's files; what they write stays in their memory.
//! So all programs run there as they are. The processor is emulated, because not every machine lets its users virtualize; times mean nothing.

use crate::error::Error;
use crate::step::step;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A program that must be installed, and Debian's package of it.
pub(crate) type Tool = (&'static str, &'static str);

/// What all machines need.
const TOOLS: [Tool; 3] = [("qemu-system-x86_64", "qemu-system-x86"), ("cpio", "cpio"), ("modprobe", "kmod")];

/// Kernel modules of all machines; those that they need come with them.
const MODULES: &str = "virtio_pci 9p 9pnet_virtio overlay";

/// What the scripts of two joined machines begin with.
pub(crate) const PAIR: &str = include_str!("vm/pair.sh");

/// Where statically linked busybox is.
const BUSYBOX: &str = "/bin/busybox";

/// Packages of what is not installed and all machines, or this one, need.
pub(crate) fn missing(also: &[Tool]) -> Vec<&'static str> {
    let tools = TOOLS.iter().chain(also).filter(|(tool, _)| !has_tool(tool)).map(|(_, package)| *package);
    tools.chain((!Path::new(BUSYBOX).exists()).then_some("busybox-static")).collect()
}

pub(crate) fn has_tool(tool: &str) -> bool {
    let directories = ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin", "/usr/local/sbin"];
    directories.iter().any(|directory| Path::new(directory).join(tool).exists())
}

pub(crate) fn run(command: &mut Command) -> Result<(), Error> {
    let status = command.status().map_err(Error::start(&format!("{command:?}")))?;
    Error::unless_success(&format!("{:?}", command.get_program()), status)
}

/// A kernel with its modules.
pub(crate) struct Kernel {
    /// A directory with `boot/vmlinuz-VERSION` and `lib/modules/VERSION`.
    root: PathBuf,
    version: String,
}

impl Kernel {
    /// The kernel of this directory; otherwise Debian's, downloaded once into `directory`. `None`, after a line about it, if there is none.
    pub(crate) fn get(named: Option<&Path>, directory: &Path) -> Result<Option<Kernel>, Error> {
        if let Some(root) = named {
            return Ok(Some(Kernel { version: version(root)?, root: root.to_owned() }));
        }
        let root = directory.join("kernel");
        if version(&root).is_err() {
            step("downloading a kernel");
            let _ = run(Command::new("sh").arg("-euc").arg(DOWNLOAD).current_dir(directory));
        }
        let Ok(version) = version(&root) else {
            println!("skipped: no kernel can be downloaded with apt-get; --kernel names a directory with one");
            return Ok(None);
        };
        Ok(Some(Kernel { root, version }))
    }
}

/// Debian's kernel, into the working directory.
const DOWNLOAD: &str = r#"
    name=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
    test -n "$name" && rm -rf kernel && apt-get download -q "$name" && dpkg-deb -x "$name"_*.deb kernel && rm -f "$name"_*.deb"#;

/// The version of the kernel in this directory.
fn version(root: &Path) -> Result<String, Error> {
    let boot = root.join("boot");
    let names = fs::read_dir(&boot).map_err(Error::file(&boot))?;
    let mut versions = names.filter_map(|f| f.ok()?.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned));
    versions.next().ok_or_else(|| Error::Found(format!("{}: no vmlinuz", boot.display())))
}

/// Makes the initial file system: busybox, the modules, and a program that mounts this machine's files and runs the guest's
/// script there.
const INITRD: &str = r#"
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

/// This machine's files.
const FILES: &str = "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap";

/// A machine that can be booted.
pub(crate) struct Vm {
    kernel: PathBuf,
    initrd: PathBuf,
    /// Memory in MiB.
    memory: u32,
    /// Maximum time in seconds.
    limit: u32,
}

impl Vm {
    /// A machine with these kernel modules besides those of all, whose first process is a shell with this script. Its files are in `directory`.
    pub(crate) fn new(
        kernel: &Kernel,
        modules: &str,
        script: &str,
        directory: &Path,
        memory: u32,
        limit: u32,
    ) -> Result<Vm, Error> {
        let (guest, initrd) = (directory.join("guest.sh"), directory.join("initrd.gz"));
        fs::write(&guest, script).map_err(Error::file(&guest))?;
        let mut make = Command::new("sh");
        make.arg("-euc").arg(INITRD).env("ROOT", &kernel.root).env("VERSION", &kernel.version);
        run(make.env("GUEST", &guest).env("TO", &initrd).env("MODULES", format!("{MODULES} {modules}")))?;
        Ok(Vm { kernel: kernel.root.join("boot").join(format!("vmlinuz-{}", kernel.version)), initrd, memory, limit })
    }

    /// qemu, with words for the kernel's command line. Its standard output is the machine's console.
    fn command(&self, words: &str) -> Command {
        let mut qemu = Command::new("timeout");
        qemu.arg(self.limit.to_string());
        qemu.args(["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35", "-smp", "2"]);
        qemu.args([
            "-m",
            &self.memory.to_string(),
            "-nographic",
            "-no-reboot",
            "-nodefaults",
            "-serial",
            "stdio",
            "-virtfs",
            FILES,
        ]);
        qemu.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initrd).arg("-append");
        qemu.arg(format!("console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off {words}")).stdin(Stdio::null());
        qemu
    }

    /// Boots it; `line` gets each line of its console. Returns when the machine has ended.
    pub(crate) fn run(&self, line: impl FnMut(&str)) -> Result<(), Error> {
        let mut qemu = start(self.command("").stdout(Stdio::piped()))?;
        each_line(&mut qemu, line);
        qemu.wait()?;
        Ok(())
    }

    /// Boots two of them, whose network cards are joined by a cable. `role=server` and `role=client` on the kernel's command line tells which is
    /// which; `line` gets each line of the client's console, and the console of the server's machine goes to the file `log`. When the client's
    /// machine has ended, the other one has ten seconds to do the same.
    pub(crate) fn run_pair(&self, log: &Path, line: impl FnMut(&str)) -> Result<(), Error> {
        let output = fs::File::create(log).map_err(Error::file(log))?;
        // Short, because the path of a socket has room for 107 bytes.
        let socket = std::env::temp_dir().join(format!("mrcuda-cable-{}", std::process::id()));
        let machine = |role: &str, number: u32, end: &str| {
            let mut qemu = self.command(&format!("role={role}"));
            qemu.args(["-netdev", &format!("stream,id=cable,server={end},addr.type=unix,addr.path={}", socket.display())]);
            qemu.args(["-device", &format!("virtio-net-pci,netdev=cable,mac=52:54:00:00:00:{number:02}")]);
            qemu
        };
        let mut server = start(machine("server", 1, "on").stdout(output))?;
        // The other machine needs the socket. Without it this ends with the first one.
        while !socket.exists() && server.try_wait().is_ok_and(|status| status.is_none()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut client = start(machine("client", 2, "off").stdout(Stdio::piped()))?;
        each_line(&mut client, line);
        let client = client.wait();
        for _ in 0..100 {
            if server.try_wait()?.is_none() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        // `timeout` passes the signal on.
        let _ = Command::new("kill").arg(server.id().to_string()).stderr(Stdio::null()).status();
        // It has written everything.
        let _ = (server.wait(), fs::remove_file(&socket));
        client?;
        Ok(())
    }
}

fn start(command: &mut Command) -> Result<Child, Error> {
    command.spawn().map_err(Error::start("qemu-system-x86_64"))
}

/// Calls this with each line that the process prints, without control codes.
fn each_line(child: &mut Child, mut line: impl FnMut(&str)) {
    for bytes in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).split(b'\n')).map_while(Result::ok) {
        line(&String::from_utf8_lossy(&bytes).replace(|c: char| c.is_control() && c != '\t', ""));
    }
}
