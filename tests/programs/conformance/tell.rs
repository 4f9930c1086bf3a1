//! How a section calls the driver and tells what it answered.

use crate::Options;
pub use tests::driver::{static_text, text};

use cuda_api::driver::{LoadError, Loaded};
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// Makes a call and tells it with its result code and, when it succeeded, the outputs after the arrow. Answers the code; that of a
/// call that must not be made is -2.
macro_rules! say {
    ($t:expr, $family:ident.$name:ident($($arg:expr),* $(,)?) $(=> $($out:expr),+)?) => {{
        if $t.begin(concat!(stringify!($name), "(", stringify!($($arg),*), ")")) {
            match call!($t, $family.$name($($arg),*)) {
                -1 => { $t.end("absent"); -1 }
                0 => {
                    #[allow(unused_mut)]
                    let mut result = String::from("0");
                    $($(result.push_str(&format!(" {:?}", $out));)+)?
                    $t.end(&result);
                    0
                }
                code => { $t.end(&code.to_string()); code }
            }
        } else {
            -2
        }
    }};
}

/// The driver, and the transcript of a section.
pub struct Tell {
    /// The driver.
    pub loaded: Loaded,
    from: u32,
    skip: Vec<u32>,
    count: Cell<u32>,
    label: RefCell<String>,
    names: RefCell<Vec<u64>>,
    move_by: Option<(PathBuf, String)>,
}

impl Tell {
    /// Loads the driver; nothing of it is called.
    pub fn open(o: &Options) -> Result<Tell, LoadError> {
        Ok(Tell {
            loaded: Loaded::open(&o.driver)?,
            from: o.from,
            skip: o.skip.clone(),
            count: Cell::new(0),
            label: RefCell::default(),
            names: RefCell::default(),
            move_by: o.move_by.clone(),
        })
    }

    /// What the next calls are about.
    pub fn about(&self, label: impl Into<String>) {
        *self.label.borrow_mut() = label.into();
    }

    /// Announces a case: `false` means that it must not be run. The words come first, so that a crash has a name.
    pub fn begin(&self, what: &str) -> bool {
        let number = self.count.get() + 1;
        self.count.set(number);
        if number <= self.from {
            return false;
        }
        let label = self.label.borrow();
        let space = if label.is_empty() { "" } else { ": " };
        // White space of the source is not part of the transcript.
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = if self.skip.contains(&number) {
            format!("> {number} {label}{space}{what}\n= crashes\n")
        } else {
            format!("> {number} {label}{space}{what}\n")
        };
        // Whoever started this process reads it; without a reader there is nobody to tell.
        let _ = std::io::stdout().write_all(line.as_bytes());
        let _ = std::io::stdout().flush();
        !self.skip.contains(&number)
    }

    /// Tells the result of the case that was announced.
    pub fn end(&self, result: &str) {
        let _ = std::io::stdout().write_all(format!("= {result}\n").as_bytes());
        let _ = std::io::stdout().flush();
    }

    /// A handle or address by the order in which such values appeared; 0 is `null`.
    pub fn name(&self, value: u64) -> String {
        if value == 0 {
            return "null".to_owned();
        }
        let mut names = self.names.borrow_mut();
        let index = names.iter().position(|v| *v == value).unwrap_or_else(|| {
            names.push(value);
            names.len() - 1
        });
        format!("#{}", index + 1)
    }

    /// Lets this process be moved, where the command line asks for that.
    pub fn move_here(&self) {
        let Some((mrcuda, place)) = &self.move_by else { return };
        let output = Command::new(mrcuda).args(["migrate", &std::process::id().to_string(), "--to", place]).output();
        let why = match output {
            Ok(output) if output.status.success() => return,
            Ok(output) => {
                let said = [output.stdout, output.stderr].concat();
                format!("{} {}", output.status, String::from_utf8_lossy(&said).trim().replace('\n', " "))
            }
            Err(e) => e.to_string(),
        };
        println!("> 0 the move\n= failed: {why}");
    }

    /// Makes the primary context of device 0 current.
    pub fn start(&self) {
        let mut context = std::ptr::null_mut();
        let code = call!(self, device.cuInit(0));
        let code = if code == 0 { call!(self, context.cuDevicePrimaryCtxRetain(&raw mut context, 0)) } else { code };
        let code = if code == 0 { call!(self, context.cuCtxSetCurrent(context)) } else { code };
        if code != 0 {
            println!("> 0 the start\n= {code}");
            std::process::exit(3);
        }
    }
}
