//! `cargo xtask package`: packages for distributions: `.deb`, `.rpm` and `.tar.gz`, and the debug files of their programs apart.
//!
//! Everything is linked for glibc 2.28, the one of RHEL 8 and Debian 10, whatever this machine has.

use crate::error::Error;
use crate::licences;
use crate::step::step;
use ::tests::{install, toolchain};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Arguments of `cargo xtask package`.
#[derive(Debug, clap::Args)]
pub(crate) struct PackageArgs {
    /// Directory for the packages [default: package in the target directory]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
}

/// What is built.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The oldest glibc that the packages run with.
const GLIBC: (u32, u32) = (2, 28);
const VERSION: &str = env!("CARGO_PKG_VERSION");
const SUMMARY: &str = "Runs CUDA programs on GPUs elsewhere, and moves them while they run";

/// Where a file of the packages comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// A program or library that cargo builds.
    Built(&'static str),
    /// A file of the repository.
    Repository(&'static str),
    /// What mrcuda prints with these arguments.
    Printed([&'static str; 2]),
    /// A link to this path.
    Link(&'static str),
    /// The licences of the crates that are linked.
    Licences,
}
use Source::{Built, Licences, Link, Printed, Repository};

/// The files of the packages, in the order in which they are made: mrcuda before what it prints. [`Tree::complete`] adds those whose names mrcuda knows: manual pages, and the directory of libraries.
const FILES: [(&str, Source); 23] = [
    ("usr/bin/mrcuda", Link("../lib/mrcuda/mrcuda")),
    ("usr/lib/mrcuda/mrcuda", Built("mrcuda")),
    ("usr/lib/mrcuda/mhelper", Built("mhelper")),
    ("usr/lib/mrcuda/microbench", Built("microbench")),
    ("usr/lib/mrcuda/libmrcuda_shim.so", Built("libmrcuda_shim.so")),
    ("usr/lib/mrcuda/libmrcuda_nvml.so", Built("libmrcuda_nvml.so")),
    ("usr/lib/mrcuda/libsoftgpu.so", Built("libsoftgpu.so")),
    ("usr/lib/systemd/system/mrcuda.service", Repository("packaging/mrcuda.service")),
    ("usr/lib/systemd/system/mrcuda-agent.service", Repository("packaging/mrcuda-agent.service")),
    ("usr/lib/sysusers.d/mrcuda.conf", Repository("packaging/sysusers.conf")),
    (CONFIGURATION, Repository("packaging/config.toml")),
    ("usr/share/mrcuda/slurm/prolog.sh", Repository("packaging/slurm/prolog.sh")),
    ("usr/share/mrcuda/slurm/epilog.sh", Repository("packaging/slurm/epilog.sh")),
    ("usr/share/mrcuda/grafana/mrcuda.json", Repository("docs/grafana/mrcuda.json")),
    ("usr/share/mrcuda/grafana/mrcuda-agent.json", Repository("docs/grafana/mrcuda-agent.json")),
    ("usr/share/doc/mrcuda/copyright", Repository("packaging/copyright")),
    ("usr/share/doc/mrcuda/LICENSE-MIT", Repository("LICENSE-MIT")),
    ("usr/share/doc/mrcuda/LICENSE-APACHE", Repository("LICENSE-APACHE")),
    ("usr/share/doc/mrcuda/third-party-licenses.txt", Licences),
    ("usr/share/bash-completion/completions/mrcuda", Printed(["completions", "bash"])),
    ("usr/share/fish/vendor_completions.d/mrcuda.fish", Printed(["completions", "fish"])),
    ("usr/share/zsh/site-functions/_mrcuda", Printed(["completions", "zsh"])),
    // Where Debian's zsh looks.
    ("usr/share/zsh/vendor-completions/_mrcuda", Link("../site-functions/_mrcuda")),
];
/// The file that an administrator changes: a new version of a package keeps it.
const CONFIGURATION: &str = "etc/mrcuda/config.toml";
const PROGRAM: &str = "usr/lib/mrcuda/mrcuda";
const MANUAL: &str = "usr/share/man/man1";
/// Directories that belong to the packages alone.
const DIRECTORIES: [&str; 5] =
    ["etc/mrcuda", "usr/lib/mrcuda", "usr/lib/mrcuda/mrcuda-lib", "usr/share/mrcuda", "usr/share/doc/mrcuda"];

const AFTER_INSTALL: &str = include_str!("../../packaging/after-install.sh");
const BEFORE_REMOVE: &str = include_str!("../../packaging/before-remove.sh");

/// Builds the packages.
pub(crate) fn package(args: &PackageArgs) -> Result<(), Error> {
    let target = install::target_directory()?;
    step("building");
    let built = build(&target)?;
    let out = std::path::absolute(args.out.clone().unwrap_or_else(|| target.join("package")))?;
    let tree = Tree { root: target.join("package-tree"), debug: target.join("package-debug") };
    step("collecting files");
    tree.collect(&built)?;
    tree.complete()?;
    step("packing");
    std::fs::create_dir_all(&out).map_err(Error::file(&out))?;
    let name = format!("mrcuda-{VERSION}-x86_64");
    tar(&tree.root.join("usr"), &name, &out.join(format!("{name}.tar.gz")))?;
    tar(&tree.debug, ".", &out.join(format!("{name}-debug.tar.gz")))?;
    // Before `deb`, which adds a directory to the tree.
    if is_installed("rpmbuild") {
        rpm(&tree, &target.join("package-rpm"), &out)?;
    }
    if is_installed("dpkg-deb") {
        deb(&tree, &out)?;
    }
    println!("packages are in {}", out.display());
    Ok(())
}

/// Builds what is released, for [`GLIBC`]. Returns the directory with the programs.
fn build(target: &Path) -> Result<PathBuf, Error> {
    let zig = toolchain::zigbuild(target)?;
    // Cargo finds the program of its command `zigbuild` here.
    let mut path = zig.join("bin").into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut cargo = install::cargo();
    cargo.env("PATH", path).env("PYTHONPATH", &zig).args(["zigbuild", "--release", "--target"]);
    run(cargo.arg(format!("{TARGET}.{}.{}", GLIBC.0, GLIBC.1)).arg("--target-dir").arg(target))?;
    Ok(target.join(TARGET).join("release"))
}

/// The files as they are installed, and the debug files of the programs.
struct Tree {
    root: PathBuf,
    debug: PathBuf,
}

impl Tree {
    /// Makes all files of the list.
    fn collect(&self, built: &Path) -> Result<(), Error> {
        // Of the last time. Files that are not made any more must not stay.
        let _ = std::fs::remove_dir_all(&self.root);
        let _ = std::fs::remove_dir_all(&self.debug);
        for (path, source) in FILES {
            let to = make_parent(self.root.join(path))?;
            match source {
                Built(name) => self.strip(&built.join(name), path)?,
                Repository(name) => {
                    write(&to, &std::fs::read(install::root().join(name)).map_err(Error::file(Path::new(name)))?)?;
                    if name.ends_with(".sh") {
                        std::fs::set_permissions(&to, Permissions::from_mode(0o755)).map_err(Error::file(&to))?;
                    }
                }
                Printed(args) => write(&to, &output(self.mrcuda().args(args))?)?,
                Licences => write(&to, licences::text(TARGET)?.as_bytes())?,
                Link(path) => std::os::unix::fs::symlink(path, &to).map_err(Error::file(&to))?,
            }
        }
        Ok(())
    }

    /// Adds the files that mrcuda makes and names itself.
    fn complete(&self) -> Result<(), Error> {
        let manual = self.root.join(MANUAL);
        output(self.mrcuda().arg("man").arg(&manual))?;
        run(Command::new("sh").args(["-c", "exec gzip -9n *"]).current_dir(&manual))?;
        // mrcuda completes the directory from which programs load its libraries before one is started, wherever it is to run.
        output(self.mrcuda().args(["run", "--server", "127.0.0.1:1", "--export"]))?;
        // Whatever the umask of this user is.
        run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).args([&self.root, &self.debug]))
    }

    /// Divides a program or library into one without symbols and a file of debug information, which refer to each other.
    fn strip(&self, built: &Path, path: &str) -> Result<(), Error> {
        let newest = newest_glibc(&String::from_utf8_lossy(&output(Command::new("objdump").arg("-T").arg(built))?));
        if newest > GLIBC {
            return Err(Error::Found(format!("{} needs glibc {}.{}", built.display(), newest.0, newest.1)));
        }
        // Where debuggers look.
        let debug = make_parent(self.debug.join("usr/lib/debug").join(format!("{path}.debug")))?;
        run(Command::new("objcopy").args(["--only-keep-debug", "--compress-debug-sections"]).arg(built).arg(&debug))?;
        let mut link = OsStr::new("--add-gnu-debuglink=").to_owned();
        link.push(&debug);
        run(Command::new("objcopy").arg("--strip-unneeded").arg(link).arg(built).arg(self.root.join(path)))
    }

    fn mrcuda(&self) -> Command {
        let mut command = Command::new(self.root.join(PROGRAM));
        // Settings of this machine must not appear in the packages.
        command.env("MRCUDA_CONFIG", "");
        command
    }

    /// The paths of all files and links, from the root on.
    fn paths(&self) -> Result<Vec<String>, Error> {
        let found = output(Command::new("find").current_dir(&self.root).args([".", "!", "-type", "d"]))?;
        let mut paths: Vec<String> =
            String::from_utf8_lossy(&found).lines().map(|line| line.trim_start_matches("./").to_owned()).collect();
        paths.sort_unstable();
        Ok(paths)
    }
}

/// Makes a package for Debian and those that follow it.
fn deb(tree: &Tree, out: &Path) -> Result<(), Error> {
    let sums = output(Command::new("sh").current_dir(&tree.root).args(["-c", "find usr etc -type f -exec md5sum {} +"]))?;
    let control = tree.root.join("DEBIAN");
    let bytes = output(Command::new("du").args(["-sk"]).arg(&tree.root))?;
    let kib = String::from_utf8_lossy(&bytes).split_whitespace().next().unwrap_or("0").to_owned();
    let fields = format!(
        "Package: mrcuda\nVersion: {VERSION}\nSection: utils\nPriority: optional\nArchitecture: amd64\nInstalled-Size: {kib}\n\
         Maintainer: The mrcuda authors <mrcuda@localhost>\nDepends: libc6 (>= {}.{})\nDescription: {SUMMARY}\n{}",
        GLIBC.0,
        GLIBC.1,
        " mrcuda replaces libcuda.so.1, so that the driver calls of an unmodified\n program execute on a GPU of a server, and moves \
         the GPU side of a running\n program between GPUs.\n"
    );
    write(&make_parent(control.join("control"))?, fields.as_bytes())?;
    write(&control.join("conffiles"), format!("/{CONFIGURATION}\n").as_bytes())?;
    write(&control.join("md5sums"), &sums)?;
    for (name, script) in [("postinst", AFTER_INSTALL), ("prerm", BEFORE_REMOVE)] {
        write(&control.join(name), script.as_bytes())?;
        run(Command::new("chmod").arg("755").arg(control.join(name)))?;
    }
    // Debian 10 and 11 do not read zstd, which Ubuntu's dpkg-deb would use.
    let mut command = Command::new("dpkg-deb");
    command.args(["--build", "--root-owner-group", "-Zxz"]).arg(&tree.root).arg(out);
    run(command.stdout(Stdio::null()))
}

/// Makes a package for RHEL and those that follow it.
fn rpm(tree: &Tree, work: &Path, out: &Path) -> Result<(), Error> {
    let spec = make_parent(work.join("mrcuda.spec"))?;
    write(&spec, spec_file(&tree.root, &tree.paths()?).as_bytes())?;
    let define = |name: &str, value: &Path| format!("{name} {}", value.display());
    let mut command = Command::new("rpmbuild");
    command.args(["-bb", "--quiet", "--target", "x86_64", "--define"]).arg(define("_topdir", work));
    command
        .arg("--define")
        .arg(define("_rpmdir", out))
        .args(["--define", "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm"]);
    run(command.arg(&spec))
}

/// The description of the package for rpmbuild.
fn spec_file(root: &Path, paths: &[String]) -> String {
    let directories = DIRECTORIES.map(|path| format!("%dir /{path}\n")).concat();
    let entry =
        |path: &String| if path == CONFIGURATION { format!("%config(noreplace) /{path}\n") } else { format!("/{path}\n") };
    let files: String = paths.iter().map(entry).collect();
    let script = |text: &str| text.trim_start_matches("#!/bin/sh\n").to_owned();
    // The programs are stripped already. mrcuda's libcuda.so.1 is for its own programs, so the package must not offer it to others.
    format!(
        "%global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\n%global _build_id_links none\n\
         %global _binary_payload w6.xzdio\n\
         Name: mrcuda\nVersion: {VERSION}\nRelease: 1\nSummary: {SUMMARY}\nLicense: MIT OR Apache-2.0\nAutoProv: no\n\
         %description\n{SUMMARY}.\n%install\ncp -a {}/. %{{buildroot}}\n%post\n{}%preun\n{}\
         %files\n%defattr(-,root,root,-)\n{directories}{files}",
        root.display(),
        script(AFTER_INSTALL),
        script(BEFORE_REMOVE),
    )
}

/// Packs a directory under another name.
fn tar(directory: &Path, name: &str, file: &Path) -> Result<(), Error> {
    let mut command = Command::new("tar");
    command
        .args(["--create", "--gzip", "--owner=0", "--group=0", "--sort=name"])
        .arg(format!("--transform=flags=r;s,^\\.,{name},"));
    run(command.arg("--file").arg(file).arg("--directory").arg(directory).arg("."))
}

/// The newest version of glibc among the symbols that `objdump -T` lists.
fn newest_glibc(symbols: &str) -> (u32, u32) {
    let version = |rest: &str| {
        let (major, minor) = rest.split([')', ' ', '\n']).next()?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    symbols.split("GLIBC_").skip(1).filter_map(version).max().unwrap_or_default()
}

/// Whether a program is installed; says that its package is left out otherwise.
fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

fn make_parent(path: PathBuf) -> Result<PathBuf, Error> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(Error::file(directory))?;
    Ok(path)
}

fn write(path: &Path, text: &[u8]) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::file(path))
}

fn run(command: &mut Command) -> Result<(), Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    Error::unless_success(&name, command.status().map_err(Error::start(&name))?)
}

fn output(command: &mut Command) -> Result<Vec<u8>, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(Stdio::inherit()).output().map_err(Error::start(&name))?;
    Error::unless_success(&name, output.status)?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::read;

    #[test]
    fn every_file_of_the_packages_is_built_or_in_the_repository() {
        let root = install::root();
        let workspace = read(&root.join("Cargo.toml")).unwrap();
        let members = workspace.split_once("default-members = [").and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
        let manifests: String =
            members.split(", ").map(|name| read(&root.join(name.trim_matches('"')).join("Cargo.toml")).unwrap()).collect();
        for (path, source) in FILES {
            assert!(!path.starts_with('/'), "{path}");
            match source {
                Built(name) => {
                    let name = name.trim_start_matches("lib").trim_end_matches(".so");
                    assert!(manifests.contains(&format!("name = \"{name}\"")), "{path}: nothing that is built has this name");
                }
                Repository(name) => assert!(root.join(name).is_file(), "{path}: there is no {name}"),
                Link(to) => {
                    let end = to.trim_start_matches("../");
                    assert!(FILES.iter().any(|(path, _)| path.ends_with(end)), "{path}: nothing is at {to}");
                }
                Printed(_) | Licences => {}
            }
        }
        assert!(
            DIRECTORIES.iter().all(|it| *it == "usr/lib/mrcuda/mrcuda-lib" || FILES.iter().any(|(path, _)| path.starts_with(it)))
        );
    }

    #[test]
    fn units_have_sections_and_settings_and_start_a_program_of_the_packages() {
        for (path, source) in FILES.into_iter().filter(|(path, _)| path.ends_with(".service")) {
            let Repository(name) = source else { panic!("{path} is not in the repository") };
            let text = read(&install::root().join(name)).unwrap();
            let lines = || text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            let sections: Vec<&str> = lines().filter(|line| line.starts_with('[')).collect();
            assert_eq!(sections, ["[Unit]", "[Service]", "[Install]"], "{path}");
            for line in lines().filter(|line| !line.starts_with('[')) {
                let key = line.split_once('=').map(|(key, _)| key);
                assert!(key.is_some_and(|key| key.bytes().all(|b| b.is_ascii_alphabetic())), "{path}: {line}");
            }
            let starts = lines().find_map(|line| line.strip_prefix("ExecStart=/")?.split(' ').next());
            assert!(FILES.iter().any(|(path, _)| Some(*path) == starts), "{path}: {starts:?}");
            assert!(lines().any(|line| line == "NoNewPrivileges=yes"), "{path}");
        }
    }

    #[test]
    fn the_newest_version_of_glibc_is_found() {
        let symbols = "0000 w   DF *UND*  0000 (GLIBC_2.2.5) malloc\n0000      DF *UND*  0000 (GLIBC_2.34) dlsym\n\
                       0000      DF *UND*  0000  GLIBC_2.9   pipe2\n0000      DO *UND*  0000 (GLIBC_PRIVATE) x\n";
        assert_eq!(newest_glibc(symbols), (2, 34));
        assert_eq!(newest_glibc("0000 g    DF .text  0010  Base  cuInit\n"), (0, 0));
    }

    #[test]
    fn the_configuration_is_kept_by_rpm_and_libraries_are_not_offered() {
        let spec = spec_file(Path::new("/tree"), &[CONFIGURATION.to_owned(), PROGRAM.to_owned()]);
        for line in
            ["%config(noreplace) /etc/mrcuda/config.toml", "/usr/lib/mrcuda/mrcuda", "%dir /usr/lib/mrcuda", "AutoProv: no"]
        {
            assert!(spec.lines().any(|it| it == line), "{line}: {spec}");
        }
        assert!(!spec.contains("#!"), "{spec}");
    }
}
