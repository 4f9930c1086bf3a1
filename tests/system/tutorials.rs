//! The tutorials (`docs/tutorials`): their commands run, and print what the pages show.
//!
//! A page is a script. A block ` ```console ` has commands of a machine, `gpubox$ mrcuda serve …`, each followed by what it prints;
//! a block with the name of a file, ` ```cuda count.cu `, is that file, in the working directory of each machine. All machines are this
//! one: each has a shell, a home directory and, on the CPU driver, GPUs of its own. `MRCUDA_TUTORIAL_HOSTS=gpubox` has the shell of `gpubox` run on
//! the host of that name instead, through ssh, with mrcuda in its `PATH` there (`cargo xtask machine tutorial`). What a command prints has the lines of the page in this order,
//! apart from numbers, times and bars; `…` in a word stands for anything. Blocks of another kind (`sh`, `text`) do not run.

use crate::LIMIT;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use tests::scene::wait_for;
use tests::toolchain::Toolchain;
use tests::{Scene, install};

/// The address of servers in the pages.
const PORT: &str = "7878";
/// Commands that ask only: they are repeated until they print what the page shows, since a reader types slower than a test.
const QUERIES: [&str; 6] = ["mrcuda ps", "mrcuda gpus", "mrcuda moves", "mrcuda plan", "tail", "cat"];

/// A part of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// The reader writes a file.
    File { name: String, text: String },
    /// The reader types a command.
    Command { machine: String, command: String, shown: Vec<String> },
}

/// The machine and the command in `gpubox$ mrcuda …`.
fn prompt(line: &str) -> Option<(&str, &str)> {
    let (machine, command) = line.split_once("$ ")?;
    (!machine.is_empty() && machine.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())).then_some((machine, command))
}

/// The steps of a page.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```").filter(|kind| !kind.is_empty()) else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        match kind.split_once(' ') {
            Some((_, name)) => steps.push(Step::File { name: name.to_owned(), text: block.join("\n") + "\n" }),
            None if kind == "console" => {
                for line in block {
                    match (prompt(line), steps.last_mut()) {
                        (Some((machine, command)), _) => steps.push(Step::Command {
                            machine: machine.to_owned(),
                            command: command.to_owned(),
                            shown: Vec::new(),
                        }),
                        (None, Some(Step::Command { command, .. })) if command.ends_with('\\') => {
                            command.push('\n');
                            command.push_str(line);
                        }
                        (None, Some(Step::Command { shown, .. })) => shown.push(line.to_owned()),
                        (None, _) => panic!("a block of commands begins with {line}"),
                    }
                }
            }
            None => {}
        }
    }
    steps
}

/// What of a line is the same in every run: its words, with numbers as `#` and their units as `~`.
fn shape(line: &str) -> Vec<String> {
    const UNITS: [&str; 9] = ["B", "KiB", "MiB", "GiB", "ms", "s", "min", "h", "us"];
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let (plain, end) = word.split_at(word.trim_end_matches([',', ';', ')']).len());
        let is_unit = UNITS.contains(&plain) && words.last().is_some_and(|before| before.ends_with('#'));
        // The bars of a timeline.
        let is_bar = word.bytes().all(|b| b == b'-') || word.bytes().all(|b| b == b'#');
        words.push(if is_unit {
            format!("~{end}")
        } else if is_bar {
            "-".to_owned()
        } else {
            numbers(word)
        });
    }
    words
}

/// A word with `#` for each number, in decimal or long hexadecimal digits.
fn numbers(word: &str) -> String {
    let mut shape = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let run = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric()).len();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let is_hex = run >= 8 && rest[..run].bytes().all(|b| b.is_ascii_hexdigit());
        if is_hex || (first.is_ascii_digit() && digits > 0) {
            shape.push('#');
            rest = &rest[if is_hex { run } else { digits }..];
        } else {
            let length = if run > 0 && !rest[..run].bytes().any(|b| b.is_ascii_digit()) { run } else { first.len_utf8() };
            shape.push_str(&rest[..length]);
            rest = &rest[length..];
        }
    }
    shape
}

/// Whether a word of the page stands for this one.
fn stands_for(shown: &str, word: &str) -> bool {
    match shown.split_once('…') {
        None => shown == word,
        Some((head, tail)) => word.len() >= head.len() + tail.len() && word.starts_with(head) && word.ends_with(tail),
    }
}

/// The first line of the page that is not in the output behind the lines before it.
fn missing<'a>(shown: &'a [String], output: &str) -> Option<&'a str> {
    let mut lines = output.lines().map(shape);
    // What a shell says of a job in the background; blank lines.
    let of_shell = |line: &str| line.trim().is_empty() || line.starts_with('[') && line.contains("] ");
    shown.iter().map(String::as_str).filter(|line| !of_shell(line)).find(|line| {
        let wanted = shape(line);
        let is_it = |words: Vec<String>| {
            words.len() == wanted.len() && wanted.iter().zip(&words).all(|(shown, word)| stands_for(shown, word))
        };
        !lines.any(is_it)
    })
}

/// A machine of a page: a shell with a home directory.
struct Machine {
    home: PathBuf,
    runtime: PathBuf,
    shell: Child,
    input: ChildStdin,
    commands: usize,
    /// Where the server of this machine listens, if not at the address in the page.
    address: Option<String>,
    /// The host that it is, if not this one.
    host: Option<String>,
}

impl Machine {
    fn start(scene: &Scene, name: &str, tools: &Path) -> Machine {
        if hosts().iter().any(|host| host == name) {
            return Machine::on_host(name);
        }
        let home = scene.path.join(name);
        let runtime = scene.runtime().join(name);
        for directory in [&home, &runtime] {
            std::fs::DirBuilder::new().mode(0o700).create(directory).unwrap();
        }
        // What a page has the reader build with cargo.
        std::os::unix::fs::symlink(scene.install.file("bring"), home.join("bring")).unwrap();
        let mut command = Command::new("bash");
        scene.dress(&mut command);
        for variable in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "MRCUDA_TOKEN_FILE"] {
            command.env_remove(variable);
        }
        let nvcc = Toolchain::get(&scene.install.target).unwrap().nvcc();
        let path = [tools, &scene.install.bin, nvcc.parent().unwrap()].map(|p| p.display().to_string()).join(":");
        let before = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:{before}")).env("HOME", &home).env("XDG_RUNTIME_DIR", &runtime);
        if hosts().is_empty() {
            // The servers are those of other machines.
            command.env("MRCUDA_FAULT_TCP_IS_FAR", "1");
        }
        command.env("SOFTGPU_SEED_ID", name).env("MRCUDA_DRIVER", "soft").env("PYTHONDONTWRITEBYTECODE", "1");
        command.args(["--noprofile", "--norc"]).current_dir(&home).process_group(0);
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let input = shell.stdin.take().unwrap();
        Machine { home, runtime, shell, input, commands: 0, address: None, host: None }
    }

    /// A shell in the user's home directory on another host.
    fn on_host(name: &str) -> Machine {
        let mut command = Command::new("ssh");
        command.args(["-T", name, "bash --noprofile --norc"]).process_group(0);
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut input = shell.stdin.take().unwrap();
        writeln!(input, "export MRCUDA_DRIVER=soft SOFTGPU_SEED_ID={name} PATH=~/bin:$PATH").unwrap();
        let user = std::env::var("USER").unwrap();
        let [home, runtime] = [format!("/home/{user}"), "/run/user/1000".to_owned()].map(PathBuf::from);
        Machine { home, runtime, shell, input, commands: 0, address: None, host: Some(name.to_owned()) }
    }

    /// What is in a file of the machine. `None` if it is not there.
    fn read(&self, file: &Path) -> Option<String> {
        let bytes = match &self.host {
            None => std::fs::read(file).ok()?,
            Some(host) => {
                let cat = Command::new("ssh").args([host, "cat"]).arg(file).stderr(Stdio::null()).output().unwrap();
                cat.status.success().then_some(cat.stdout)?
            }
        };
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Types a command and waits for its end. Returns the file with its output, and whether it has succeeded.
    fn type_in(&mut self, command: &str) -> (PathBuf, bool) {
        self.commands += 1;
        let file = self.home.join(format!(".output-{}", self.commands));
        let (shown, end) = (file.display(), file.with_extension("end"));
        writeln!(
            self.input,
            "{{ {command}\n}} > {shown} 2>&1 < /dev/null; echo $? > {shown}.code; mv {shown}.code {}",
            end.display()
        )
        .unwrap();
        let status = wait_for(LIMIT, || self.read(&end));
        (file, status.unwrap_or_else(|| panic!("`{command}` does not end")).trim() == "0")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: a system call without pointers, for the processes that this test has started.
        unsafe { libc::kill(-(self.shell.id() as i32), libc::SIGKILL) };
        // It was ours; that it ended is all there is to know.
        let _ = self.shell.wait();
    }
}

/// The machines of a page.
struct Machines {
    by_name: BTreeMap<String, Machine>,
}

impl Machines {
    /// The machines that the steps name.
    fn new(scene: &Scene, steps: &[Step]) -> Machines {
        let tools = scene.path.join("tools");
        std::fs::create_dir(&tools).unwrap();
        // The home directories of the other machines are on this one.
        let scp =
            format!("#!/bin/sh\n[ \"$1\" = -p ] && cp -p \"{}/$(echo \"$2\" | sed s,:,/,)\" \"$3\"\n", scene.path.display());
        if hosts().is_empty() {
            std::fs::write(tools.join("scp"), scp).unwrap();
            std::fs::set_permissions(tools.join("scp"), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let named: BTreeSet<&String> =
            steps.iter().filter_map(|step| if let Step::Command { machine, .. } = step { Some(machine) } else { None }).collect();
        Machines { by_name: named.into_iter().map(|name| (name.clone(), Machine::start(scene, name, &tools))).collect() }
    }

    fn get(&mut self, name: &str) -> &mut Machine {
        self.by_name.get_mut(name).unwrap()
    }

    /// The command with the addresses that servers have here.
    fn with_addresses(&self, command: &str) -> String {
        let known = self.by_name.iter().filter_map(|(name, machine)| Some((name, machine.address.as_ref()?)));
        known.fold(command.to_owned(), |text, (name, at)| text.replace(&format!("{name}:{PORT}"), at))
    }

    /// The output with the addresses and directories of the page, and without what only slow machines add.
    fn as_in_the_page(&self, output: &str) -> String {
        let output = output.replace(" (it aimed at 300 ms)", "");
        self.by_name.iter().fold(output, |text, (name, machine)| {
            let text = text.replace(&machine.home.display().to_string(), "/home/you");
            let text = text.replace(&machine.runtime.display().to_string(), "/run/user/1000");
            machine.address.iter().fold(text, |text, at| text.replace(at, &format!("{name}:{PORT}")))
        })
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::File { name, text } => {
                let here = self.by_name.values().filter(|machine| machine.host.is_none());
                here.for_each(|machine| std::fs::write(machine.home.join(name), text).unwrap());
            }
            Step::Command { machine, command, shown } => {
                let serves = command.starts_with("mrcuda serve ") && !command.ends_with('&');
                let mut typed = self.with_addresses(command);
                if self.get(machine).host.is_none() {
                    typed = typed.replace(&format!("0.0.0.0:{PORT}"), "127.0.0.1:0");
                }
                if serves {
                    typed.push_str(" &");
                }
                let asks = QUERIES.iter().any(|query| command.starts_with(query));
                let (mut file, succeeds) = self.get(machine).type_in(&typed);
                let mut output = String::new();
                let printed = wait_for(LIMIT, || {
                    output = self.get(machine).read(&file).unwrap_or_default();
                    if serves {
                        let at = announced(&output);
                        output = at.iter().fold(output.clone(), |text, at| text.replace(at, &format!("0.0.0.0:{PORT}")));
                        self.get(machine).address = at;
                    }
                    output = self.as_in_the_page(&output);
                    let complete = missing(shown, &output).is_none();
                    if !complete && asks {
                        (file, _) = self.get(machine).type_in(&typed);
                    }
                    complete.then_some(())
                });
                let line = missing(shown, &output).unwrap_or_default();
                assert!(printed.is_some() && (succeeds || asks), "{machine}$ {command}\nlacks: {line}\nprints:\n{output}");
            }
        }
    }
}

/// The machines that are other hosts.
fn hosts() -> Vec<String> {
    let named = std::env::var("MRCUDA_TUTORIAL_HOSTS").unwrap_or_default();
    named.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The address in what a server prints when it is ready.
fn announced(output: &str) -> Option<String> {
    let words = output.lines().filter(|line| line.contains(": serving ")).flat_map(str::split_whitespace);
    words.map(|word| word.trim_end_matches([',', ';'])).find(|word| word.starts_with("127.0.0.1:")).map(str::to_owned)
}

fn page(name: &str) -> String {
    std::fs::read_to_string(install::root().join("docs/tutorials").join(name)).unwrap()
}

/// Does what a page says.
fn follow(name: &str) {
    let steps = steps(&page(name));
    assert!(steps.iter().any(|step| matches!(step, Step::Command { .. })), "{name} has no commands");
    let scene = Scene::new("tutorial");
    let mut machines = Machines::new(&scene, &steps);
    steps.iter().for_each(|step| machines.run(step));
}

#[test]
fn the_first_move() {
    follow("first-move.md");
}

#[test]
fn a_shared_gpu_box() {
    follow("shared-box.md");
}

#[test]
fn a_scheduler_of_your_own() {
    follow("scheduler.md");
}

/// Files that pages show are also files of the repository, for those who want to copy them.
#[test]
fn the_pages_show_the_files() {
    for (page_name, file) in [
        ("first-move.md", "docs/tutorials/count.cu"),
        ("shared-box.md", "docs/tutorials/count.cu"),
        ("scheduler.md", "docs/tutorials/bring.py"),
        ("scheduler.md", "control/examples/bring.rs"),
    ] {
        let text = std::fs::read_to_string(install::root().join(file)).unwrap();
        let name = file.rsplit('/').next().unwrap().to_owned();
        let there = steps(&page(page_name)).iter().any(|step| *step == Step::File { name: name.clone(), text: text.clone() });
        assert!(there, "docs/tutorials/{page_name} does not show {file} as it is");
    }
}

#[test]
fn steps_and_outputs_are_recognized() {
    let page =
        "```console\nhere$ mrcuda ps \\\n    --all\nno jobs\ngpubox$ true\n```\n```sh\nfalse\n```\n```python a.py\nx\n```\n";
    let command = |machine: &str, command: &str, shown: &[&str]| Step::Command {
        machine: machine.into(),
        command: command.into(),
        shown: shown.iter().map(|&line| line.into()).collect(),
    };
    assert_eq!(
        steps(page),
        [
            command("here", "mrcuda ps \\\n    --all", &["no jobs"]),
            command("gpubox", "true", &[]),
            Step::File { name: "a.py".into(), text: "x\n".into() }
        ]
    );
    let shown =
        ["[1] 4711".to_owned(), "4711  count  gpubox:7878/0  tls  12 s  GPU-5f2c91d0".to_owned(), "sha256:5f2c…)".to_owned()];
    let output = "PID\n99  count gpubox:7878/0  tls   3 ms GPU-0123abcd\nother\nsha256:77aa77aa77aa77aa77aa)\n";
    assert_eq!(missing(&shown, output), Some(shown[2].as_str()), "digits before `…` are compared");
    let shown = [shown[0].clone(), shown[1].clone(), "sha256:…)".to_owned()];
    assert_eq!(missing(&shown, output), None);
    assert_eq!(missing(&shown, &output.replace("tls", "shm")), Some(shown[1].as_str()));
    assert_eq!(missing(&shown, &output.replace("other\n", "").replace("sha256:", "md5:")), Some(shown[2].as_str()));
}
