//! A plugin for Slurm (SPANK): `srun --mrcuda=PLACE` and `sbatch --mrcuda=PLACE` run each task as `mrcuda run --server PLACE` would
//! (docs/tutorials/slurm.md). What a task needs in its environment, `mrcuda run --export` says; the plugin asks it in each task, as the
//! task's user, just before the program is executed.
//!
//! The interface is declared in Slurm's `slurm/spank.h`; the functions that are called are those of the process that loads the plugin.

#![allow(non_upper_case_globals, reason = "symbols that Slurm looks up")]

mod controller;
mod count;
mod slurm;
mod wanted;

use slurm::{Opt, Spank};
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::os::unix::fs::MetadataExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use wanted::Wanted;

/// Name of the plugin.
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 7] = *b"mrcuda\0";
/// Kind of the plugin.
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";
/// The version of Slurm that it was built for: Slurm refuses others. 0 if the build found none.
#[unsafe(no_mangle)]
pub static plugin_version: c_uint = version();
/// Version of the plugin.
#[unsafe(no_mangle)]
pub static spank_plugin_version: c_uint = 1;

const fn version() -> c_uint {
    match c_uint::from_str_radix(env!("SLURM_VERSION_NUMBER"), 10) {
        Ok(version) => version,
        Err(_) => 0,
    }
}

/// The places of the GPUs that a task sees.
const PLACES: Opt = Opt {
    name: c"mrcuda",
    argument: Some(c"PLACES"),
    usage: c"run tasks with their GPU work at these places of mrcuda, such as gpubox:7878/0",
};
/// Where the signal moves a task.
const ON_SIGNAL: Opt = Opt {
    name: c"mrcuda-on-signal",
    argument: Some(c"PLACE"),
    usage: c"place to which SIGUSR1 (scancel --signal=USR1) moves a task of mrcuda: local (default), memory, ...",
};
/// Where a task belongs.
const HOME: Opt = Opt {
    name: c"mrcuda-home",
    argument: Some(c"PLACE"),
    usage: c"place where a task of mrcuda belongs: an agent moves it there when no job uses that GPU",
};
/// What moves it.
const POLICY: Opt = Opt {
    name: c"mrcuda-policy",
    argument: Some(c"NAME,..."),
    usage: c"policies of an agent that may move a task of mrcuda for its own sake: home, consolidate, balance, or none",
};
/// A batch script that handles the signal itself.
const TRAPS: Opt =
    Opt { name: c"mrcuda-traps", argument: None, usage: c"do not have the shell of a batch script ignore SIGUSR1" };

/// The place for which a GPU is chosen.
const AUTO: &str = "auto";
/// How long a task that starts waits for a controller that is away. srun gives up a step that has not started after ten minutes.
const PATIENCE: Duration = Duration::from_secs(300);
/// By this variable the plugin tells itself in each task how many GPUs `auto` stands for there.
const COUNT: &CStr = c"SPANK_MRCUDA_COUNT";
/// Where a user's sockets are.
const RUNTIME: &str = "XDG_RUNTIME_DIR";

/// What `plugstack.conf` says behind the path of the plugin.
#[derive(Debug)]
struct Settings {
    /// `mrcuda=PATH`: where `mrcuda` is.
    mrcuda: String,
    /// `scontrol=PATH`: where Slurm's `scontrol` is.
    scontrol: String,
    /// `count=NAME`: the gres or licence by which Slurm counts remote GPUs.
    count: Option<String>,
    /// `runtime=DIRECTORY`: in which the prolog makes a directory for each job.
    runtime: Option<PathBuf>,
}

impl Settings {
    /// # Safety
    /// These must be the arguments that Slurm passes.
    unsafe fn read(argc: c_int, argv: *mut *mut c_char) -> Result<Settings, String> {
        let mut settings = Settings { mrcuda: "mrcuda".to_owned(), scontrol: "scontrol".to_owned(), count: None, runtime: None };
        for i in 0..usize::try_from(argc).unwrap_or(0) {
            // SAFETY: so many strings, which stay during the call.
            let text = unsafe { CStr::from_ptr(*argv.add(i)) }.to_string_lossy();
            match text.split_once('=') {
                Some(("mrcuda", path)) => settings.mrcuda = path.to_owned(),
                Some(("scontrol", path)) => settings.scontrol = path.to_owned(),
                Some(("count", name)) => settings.count = Some(name.to_owned()),
                Some(("runtime", path)) => settings.runtime = Some(path.into()),
                _ => return Err(format!("plugstack.conf: `{text}` is no setting of mrcuda")),
            }
        }
        Ok(settings)
    }
}

/// Success for Slurm, and a failure, by which it ends the task.
const OK: c_int = 0;
const FAILED: c_int = -1;

/// Called by Slurm when the plugin has been loaded: declares the options.
///
/// # Safety
/// As Slurm calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(spank: Spank, _argc: c_int, _argv: *mut *mut c_char) -> c_int {
    guarded(|| {
        if slurm::has_options() && ![PLACES, ON_SIGNAL, HOME, POLICY, TRAPS].iter().all(|option| option.register(spank)) {
            return Err("its options cannot be registered".to_owned());
        }
        Ok(())
    })
}

/// Called by Slurm on each node before it starts the tasks of a step, as their user.
///
/// # Safety
/// As Slurm calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_user_init(spank: Spank, argc: c_int, argv: *mut *mut c_char) -> c_int {
    guarded(|| {
        // SAFETY: Slurm's arguments.
        let settings = unsafe { Settings::read(argc, argv) }?;
        // Once for the node: each question reaches the controller.
        let Some(name) = settings.count.filter(|_| PLACES.value(spank).as_deref() == Some(AUTO)) else { return Ok(()) };
        let job = slurm::number(spank, slurm::JOB).ok_or("Slurm does not say which job this is")?;
        let shown = controller::shown(&settings.scontrol, job, PATIENCE)?;
        // A job that has asked for none gets one, as without the setting.
        let Some(count) = count::of_job(&shown, &name) else { return Ok(()) };
        let tasks = |what| if slurm::is_batch_script(spank) { 1 } else { slurm::number(spank, what).unwrap_or(1) };
        let each = count.for_each_task(&name, tasks(slurm::LOCAL_TASKS), tasks(slurm::ALL_TASKS))?;
        let each = CString::new(each.to_string()).map_err(|_| "a number contains a zero".to_owned())?;
        slurm::set(spank, COUNT, Some(&each))
    })
}

/// Called by Slurm in each task, as its user, just before the program is executed.
///
/// # Safety
/// As Slurm calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(spank: Spank, argc: c_int, argv: *mut *mut c_char) -> c_int {
    guarded(|| {
        let Some(places) = PLACES.value(spank) else { return Ok(()) };
        if TRAPS.value(spank).is_none() || !slurm::is_batch_script(spank) {
            // Before anything that takes time: a signal must not end a task that starts. What ignores the signal passes that on to what it
            // executes; a program of mrcuda then moves by it.
            // SAFETY: no handler is installed.
            unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
        }
        // SAFETY: Slurm's arguments.
        let settings = unsafe { Settings::read(argc, argv) }?;
        set_runtime(spank, settings.runtime.as_deref())?;
        let count = slurm::variable(spank, &COUNT.to_string_lossy())?.and_then(|count| count.into_string().ok());
        slurm::set(spank, COUNT, None)?;
        let places = count.filter(|_| places == AUTO).map_or(places, |count| format!("{AUTO}:{count}"));
        let [on_signal, home, policy] = [ON_SIGNAL, HOME, POLICY].map(|option| option.value(spank));
        let variables = export(spank, &settings.mrcuda, &Wanted { places, on_signal, home, policy })?;
        for variable in variables.split(|byte| *byte == 0).filter(|entry| !entry.is_empty() && *entry != b"MRCUDA_WAIT") {
            set(spank, variable)?;
        }
        Ok(())
    })
}

/// Has the task use the directory that the prolog has made for its job. Without one, a variable that sbatch has passed on from the login
/// node, and that names nothing of this user here, is removed: a socket is then in /tmp.
fn set_runtime(spank: Spank, parent: Option<&Path>) -> Result<(), String> {
    // SAFETY: it takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    let is_own = |path: &Path| path.is_absolute() && path.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
    let of_job = parent.zip(slurm::number(spank, slurm::JOB)).map(|(parent, job)| parent.join(job.to_string()));
    if let Some(own) = of_job.filter(|path| is_own(path)) {
        return set(spank, format!("{RUNTIME}={}", own.display()).as_bytes());
    }
    match slurm::variable(spank, RUNTIME)? {
        Some(given) if !is_own(Path::new(&given)) => {
            slurm::info(&format!("{RUNTIME}={} is no directory of this user here, and is not used", given.display()));
            set(spank, RUNTIME.as_bytes())
        }
        _ => Ok(()),
    }
}

/// What `mrcuda run` would set: entries `NAME=VALUE`, or `NAME` if it would remove the variable, each ended by a zero.
fn export(spank: Spank, mrcuda: &str, wanted: &Wanted) -> Result<Vec<u8>, String> {
    let mut command = Command::new(mrcuda);
    command.env_clear().args(wanted.arguments());
    // The task's own, not those of slurmstepd; they have precedence over configuration files.
    for name in [
        "HOME",
        "PATH",
        "LD_LIBRARY_PATH",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
        "CUDA_VISIBLE_DEVICES",
        "SLURM_JOB_ID",
        "SLURM_PROCID",
        "SLURM_STEP_ID",
        "MRCUDA_CONFIG",
        "MRCUDA_DRIVER",
        "MRCUDA_NAME",
        "MRCUDA_WAIT",
        "MRCUDA_WHEN_FULL",
        "MRCUDA_ON_STOP",
        "MRCUDA_HOME_PLACE",
        "MRCUDA_POLICY",
        "MRCUDA_MANAGED",
        "MRCUDA_TOKEN_FILE",
        "MRCUDA_MUNGE",
        "MRCUDA_MUNGE_SOCKET",
        "MRCUDA_CA",
        "MRCUDA_CERTIFICATE",
        "MRCUDA_MOVE_CONNECTIONS",
        "MRCUDA_BULK_CONNECTIONS",
        "MRCUDA_COPY_THREADS",
        "MRCUDA_KEEP_JOURNAL",
        "MRCUDA_LOG",
        "MRCUDA_LOG_CALLS",
    ] {
        if let Some(value) = slurm::variable(spank, name)? {
            command.env(name, value);
        }
    }
    let output = command.output().map_err(|why| format!("cannot run {mrcuda}: {why}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match (output.status.success(), said.trim().trim_start_matches("mrcuda: ")) {
        (true, _) => Ok(output.stdout),
        (false, "") => Err(format!("{mrcuda} run --export: {}", output.status)),
        (false, said) => Err(said.to_owned()),
    }
}

/// Carries out an entry in the environment of the task.
fn set(spank: Spank, entry: &[u8]) -> Result<(), String> {
    let at = entry.iter().position(|byte| *byte == b'=');
    let (name, value) = match at {
        Some(at) => (&entry[..at], Some(&entry[at + 1..])),
        None => (entry, None),
    };
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| "a variable contains a zero".to_owned());
    slurm::set(spank, &text(name)?, value.map(text).transpose()?.as_deref())
}

/// Tells Slurm whether it worked. What goes wrong is in the task's stderr and in the log of slurmd.
fn guarded(run: impl FnOnce() -> Result<(), String> + std::panic::UnwindSafe) -> c_int {
    match catch_unwind(run) {
        Ok(Ok(())) => OK,
        Ok(Err(why)) => {
            slurm::error(&why);
            FAILED
        }
        Err(_) => {
            slurm::error("the plugin has panicked");
            FAILED
        }
    }
}
