//! The part of `slurm/spank.h` that the plugin uses.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

/// Slurm's handle of what it calls a plugin for.
pub(crate) type Spank = *mut c_void;

/// `struct spank_option`.
#[repr(C)]
struct RawOption {
    name: *const c_char,
    argument: *const c_char,
    usage: *const c_char,
    has_argument: c_int,
    value: c_int,
    callback: Option<extern "C" fn(c_int, *const c_char, c_int) -> c_int>,
}

/// `S_CTX_LOCAL`, `S_CTX_REMOTE`, `S_CTX_ALLOCATOR`: srun, slurmstepd, and sbatch or salloc.
const WITH_OPTIONS: [c_int; 3] = [1, 2, 3];
/// `ESPANK_SUCCESS`.
const SUCCESS: c_int = 0;
/// `ESPANK_NOSPACE`.
const NO_SPACE: c_int = 3005;
/// Items that are one `uint32_t`: `S_JOB_ID`, `S_JOB_STEPID`, `S_JOB_LOCAL_TASK_COUNT`, `S_JOB_TOTAL_TASK_COUNT`.
pub(crate) const JOB: c_int = 2;
const STEP: c_int = 3;
pub(crate) const LOCAL_TASKS: c_int = 6;
pub(crate) const ALL_TASKS: c_int = 7;
/// The step of a batch script, `SLURM_BATCH_SCRIPT`.
const BATCH_SCRIPT: u32 = 0xffff_fffb;
/// Longest value of a variable that is read: Linux gives a program no longer one (`MAX_ARG_STRLEN`).
const LONGEST: usize = 128 << 10;

unsafe extern "C" {
    fn spank_context() -> c_int;
    fn spank_option_register(spank: Spank, option: *mut RawOption) -> c_int;
    fn spank_option_getopt(spank: Spank, option: *mut RawOption, value: *mut *mut c_char) -> c_int;
    fn spank_getenv(spank: Spank, name: *const c_char, to: *mut c_char, bytes: c_int) -> c_int;
    fn spank_setenv(spank: Spank, name: *const c_char, value: *const c_char, overwrite: c_int) -> c_int;
    fn spank_unsetenv(spank: Spank, name: *const c_char) -> c_int;
    fn spank_get_item(spank: Spank, item: c_int, ...) -> c_int;
    fn slurm_error(format: *const c_char, ...);
    fn slurm_info(format: *const c_char, ...);
}

/// An option of `srun` and `sbatch`.
#[derive(Clone, Copy)]
pub(crate) struct Opt {
    pub(crate) name: &'static CStr,
    /// What its argument is called in the help; `None`: it has none.
    pub(crate) argument: Option<&'static CStr>,
    pub(crate) usage: &'static CStr,
}

impl Opt {
    fn raw(&self) -> RawOption {
        RawOption {
            name: self.name.as_ptr(),
            argument: self.argument.map_or(ptr::null(), CStr::as_ptr),
            usage: self.usage.as_ptr(),
            has_argument: c_int::from(self.argument.is_some()),
            value: 0,
            callback: None,
        }
    }

    /// Declares it; false if that fails.
    pub(crate) fn register(&self, spank: Spank) -> bool {
        let mut option = self.raw();
        // SAFETY: Slurm copies the option, whose texts stay.
        unsafe { spank_option_register(spank, &raw mut option) == SUCCESS }
    }

    /// Its value, or an empty text without an argument; `None` if the user has not given it.
    pub(crate) fn value(&self, spank: Spank) -> Option<String> {
        let (mut option, mut value) = (self.raw(), ptr::null_mut());
        // SAFETY: both are writable; Slurm's text stays as long as the plugin.
        let given = unsafe { spank_option_getopt(spank, &raw mut option, &raw mut value) } == SUCCESS;
        if value.is_null() {
            return given.then(String::new);
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(value) };
        given.then(|| text.to_string_lossy().into_owned())
    }
}

/// Whether the process that has loaded the plugin knows options.
pub(crate) fn has_options() -> bool {
    // SAFETY: it takes nothing.
    WITH_OPTIONS.contains(&unsafe { spank_context() })
}

/// Whether the task is the shell of a batch script.
pub(crate) fn is_batch_script(spank: Spank) -> bool {
    number(spank, STEP) == Some(BATCH_SCRIPT)
}

/// An item that is a number; `None` if Slurm does not know it here.
pub(crate) fn number(spank: Spank, item: c_int) -> Option<u32> {
    let mut number = 0u32;
    // SAFETY: these items are one writable `uint32_t`.
    let rc = unsafe { spank_get_item(spank, item, &raw mut number) };
    (rc == SUCCESS).then_some(number)
}

/// A variable of the task; `None` if it has none of this name.
pub(crate) fn variable(spank: Spank, name: &str) -> Result<Option<OsString>, String> {
    let no_text = |_| format!("{name} is no name of a variable");
    let (c_name, mut value) = (CString::new(name).map_err(no_text)?, vec![0u8; LONGEST]);
    // SAFETY: so many bytes are writable; Slurm ends the text with a zero.
    match unsafe { spank_getenv(spank, c_name.as_ptr(), value.as_mut_ptr().cast(), LONGEST as c_int) } {
        SUCCESS => {
            value.truncate(value.iter().position(|byte| *byte == 0).unwrap_or(LONGEST));
            Ok(Some(OsString::from_vec(value)))
        }
        NO_SPACE => Err(format!("{name} has more than {LONGEST} bytes")),
        _ => Ok(None),
    }
}

/// Sets a variable of the task, or removes it.
pub(crate) fn set(spank: Spank, name: &CStr, value: Option<&CStr>) -> Result<(), String> {
    let rc = match value {
        // SAFETY: texts that stay during the call, which copies them.
        Some(value) => unsafe { spank_setenv(spank, name.as_ptr(), value.as_ptr(), 1) },
        // SAFETY: as above. It succeeds for a variable that is not there, too.
        None => unsafe { spank_unsetenv(spank, name.as_ptr()) },
    };
    if rc == SUCCESS { Ok(()) } else { Err(format!("cannot set {}: error {rc} of Slurm", name.to_string_lossy())) }
}

/// Writes an error as Slurm does.
pub(crate) fn error(why: &str) {
    if let Ok(why) = CString::new(format!("mrcuda: {}", why.replace('\0', " "))) {
        // SAFETY: the format takes one text.
        unsafe { slurm_error(c"%s".as_ptr(), why.as_ptr()) };
    }
}

/// Writes to the log of slurmd, and not to the task.
pub(crate) fn info(text: &str) {
    if let Ok(text) = CString::new(format!("mrcuda: {}", text.replace('\0', " "))) {
        // SAFETY: the format takes one text.
        unsafe { slurm_info(c"%s".as_ptr(), text.as_ptr()) };
    }
}
