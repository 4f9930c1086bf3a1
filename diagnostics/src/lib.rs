//! The subscriber of `tracing` for the library in the program's process and for servers, configured by `MRCUDA_LOG`.
//!
//! The library is loaded into processes of others, so the subscriber keeps no thread-local values with destructors, takes no lock for a
//! line outside a span, and holds no lock while it writes. Disabled events cost one relaxed load (`tracing`'s maximum level) and format
//! nothing.
//!
//! | module | contents |
//! |---|---|
//! | `setting` | the syntax of `MRCUDA_LOG` |
//! | `sink` | where lines go |
//! | `lines` | the subscriber: spans, and how a line is written |
//! | `json` | a line as JSON |
//! | `text` | what a line may contain |

mod json;
mod lines;
mod setting;
mod sink;
mod text;

pub use json::line as json_line;
pub use lines::{Format, Program};

use lines::Lines;
use setting::{SETTINGS, Setting};
use std::sync::Once;
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// What `MRCUDA_LOG` enables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Enabled {
    /// Whether anything beyond the lines that are always written.
    pub any: bool,
    /// Whether each call of the program is logged.
    pub calls: bool,
}

/// Reads `MRCUDA_LOG` and `MRCUDA_LOG_CALLS` and installs the subscriber; only the first call in a process has an effect. An invalid value
/// is reported on standard error and enables nothing.
pub fn start(program: Program) -> Enabled {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty());
    let setting = match var("MRCUDA_LOG").map(|v| v.into_string()) {
        None => Ok(Setting::OFF),
        Some(Ok(text)) => Setting::parse(&text, var("MRCUDA_LOG_CALLS").is_some()),
        Some(Err(bytes)) => Err(format!("{} is not UTF-8", bytes.display())),
    };
    static ONCE: Once = Once::new();
    let setting = setting.unwrap_or_else(|why| {
        ONCE.call_once(|| {
            program.complain(&format!("MRCUDA_LOG: {why}; nothing is logged. {SETTINGS}"));
        });
        Setting::OFF
    });
    let calls = setting.enables("call", Level::TRACE);
    let enabled = Enabled { any: setting.max() > LevelFilter::OFF, calls };
    let subscriber = Lines::new(program, setting);
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        // A statement that ran in the meantime may have been remembered as disabled.
        tracing::callsite::rebuild_interest_cache();
    }
    enabled
}
