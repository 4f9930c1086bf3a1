//! The subscriber: which spans and events are enabled, and how a line is written.

use crate::json;
use crate::setting::Setting;
use crate::sink::{Sink, write_stderr};
use crate::text::one_line;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

/// The kind of program that logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// A process with the recorder: its output streams belong to someone else, so only warnings and errors are always written.
    Job,
    /// `mrcuda serve`: standard error is its log.
    Server(Format),
}

/// How the log of a server is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// An object of JSON in each line, with what the line is about in fields of its own.
    Json,
}

impl Program {
    /// Lines of this level and above are written to standard error, whatever `MRCUDA_LOG` says.
    fn always(self) -> Level {
        match self {
            Program::Job => Level::WARN,
            Program::Server(_) => Level::INFO,
        }
    }

    /// Writes that a setting is wrong.
    pub(crate) fn complain(self, text: &str) {
        let text = one_line(text);
        write_stderr(&match self {
            Program::Job | Program::Server(Format::Text) => format!("mrcuda: {text}\n"),
            Program::Server(Format::Json) => json::line(Level::ERROR, &text),
        });
    }
}

/// Maximum number of spans that one thread has entered; further ones do not show in its lines.
const DEEPEST: usize = 8;

thread_local! {
    /// The spans that this thread has entered: their number, and their ids. It has no destructor, so it can be used until the thread ends.
    static ENTERED: Cell<(usize, [u64; DEEPEST])> = const { Cell::new((0, [0; DEEPEST])) };
}

/// A span that is not closed yet.
#[derive(Debug)]
struct Span {
    metadata: &'static Metadata<'static>,
    /// `name{fields}`, after those of its parents.
    path: String,
    handles: usize,
    since: Instant,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Lines {
    program: Program,
    setting: Setting,
    next: AtomicU64,
    /// Used by spans and by lines in spans only: moves.
    spans: Mutex<BTreeMap<u64, Span>>,
}

impl Lines {
    pub(crate) fn new(program: Program, setting: Setting) -> Lines {
        Lines { program, setting, next: AtomicU64::new(1), spans: Mutex::default() }
    }

    fn spans(&self) -> MutexGuard<'_, BTreeMap<u64, Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is said about `metadata`, in a span with this path; `event` has it in fields, unless a span ends.
    fn write(&self, metadata: &Metadata<'_>, path: &str, text: &str, event: Option<&Event<'_>>) {
        let (level, text) = (*metadata.level(), one_line(text));
        let time = humantime::format_rfc3339_millis(SystemTime::now());
        let (is_shown, is_enabled) = (level <= self.program.always(), self.setting.enables(metadata.target(), level));
        let is_json = self.program == Program::Server(Format::Json);
        let on_stderr = matches!(self.setting.sink, Sink::Stderr);
        match self.program {
            Program::Server(Format::Json) if is_shown || is_enabled && on_stderr => {
                write_stderr(&json::of(metadata, path, &text, event));
            }
            Program::Job if is_shown => write_stderr(&format!("mrcuda: {text}\n")),
            Program::Server(Format::Text) if is_shown => write_stderr(&format!("mrcuda serve: {time} {text}\n")),
            _ => {}
        }
        let repeated = on_stderr && (is_shown || is_json);
        if !repeated && is_enabled {
            let (pid, target, colon) = (std::process::id(), metadata.target(), if path.is_empty() { "" } else { " " });
            self.setting.sink.write(&format!("{time} mrcuda[{pid}] {level} {target}{colon}{path}: {text}\n"));
        }
    }
}

/// Collects the message and the other fields as `message name=value …`.
#[derive(Default)]
struct Fields {
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.others, "{}{name}={value:?}", if self.others.is_empty() { "" } else { " " }),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl Subscriber for Lines {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.program.always()
            || self.setting.enables(metadata.target(), *metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.setting.max().max(LevelFilter::from_level(self.program.always())))
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = if attributes.is_contextual() { current() } else { attributes.parent().map(Id::into_u64) };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut spans = self.spans();
        let outer = parent.and_then(|p| spans.get(&p)).map(|p| format!("{}:", p.path)).unwrap_or_default();
        let path = format!("{outer}{}{{{}}}", attributes.metadata().name(), one_line(&fields.others));
        spans.insert(number, Span { metadata: attributes.metadata(), path, handles: 1, since: Instant::now() });
        Id::from_u64(number)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        if let Some(span) = self.spans().get_mut(&span.into_u64()) {
            let _ = write!(span.path, "{{{}}}", one_line(&fields.others));
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let parent = if event.is_contextual() { current() } else { event.parent().map(Id::into_u64) };
        let path = parent.and_then(|p| self.spans().get(&p).map(|span| span.path.clone())).unwrap_or_default();
        let space = if fields.message.is_empty() || fields.others.is_empty() { "" } else { " " };
        self.write(event.metadata(), &path, &format!("{}{space}{}", fields.message, fields.others), Some(event));
    }

    fn enter(&self, span: &Id) {
        let (depth, mut ids) = ENTERED.get();
        if let Some(slot) = ids.get_mut(depth) {
            *slot = span.into_u64();
        }
        ENTERED.set((depth + 1, ids));
    }

    fn exit(&self, _: &Id) {
        let (depth, ids) = ENTERED.get();
        ENTERED.set((depth.saturating_sub(1), ids));
    }

    fn clone_span(&self, span: &Id) -> Id {
        if let Some(span) = self.spans().get_mut(&span.into_u64()) {
            span.handles += 1;
        }
        span.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let closed = {
            let mut spans = self.spans();
            let Some(span) = spans.get_mut(&id.into_u64()) else { return false };
            span.handles -= 1;
            if span.handles > 0 { None } else { spans.remove(&id.into_u64()) }
        };
        let Some(span) = closed else { return false };
        // A span ends as a line with its duration.
        self.write(span.metadata, &span.path, &format!("{:.3} ms", span.since.elapsed().as_secs_f64() * 1e3), None);
        true
    }
}

/// The innermost span that this thread has entered.
fn current() -> Option<u64> {
    let (depth, ids) = ENTERED.get();
    depth.min(DEEPEST).checked_sub(1).map(|last| ids[last])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// What is written to the file while `run` has the subscriber. The line's time and process are left out.
    fn logged(setting: &str, run: impl FnOnce()) -> Vec<String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mrcuda-lines-{}-{number}", std::process::id()));
        let setting = Setting::parse(setting, false).unwrap().with_file(path.clone());
        tracing::subscriber::with_default(Arc::new(Lines::new(Program::Job, setting)), run);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        text.lines().map(|line| line.splitn(3, ' ').last().unwrap().to_owned()).collect()
    }

    #[test]
    fn lines_have_level_target_and_text_on_one_line() {
        let run = || {
            tracing::debug!(target: "job", "one\ntwo\u{1b}[0m");
            tracing::debug!(target: "call", rc = 3, symbol = "cuInit", "returns");
            tracing::trace!(target: "job", "too fine");
        };
        assert_eq!(logged("debug", run), ["DEBUG job: one\\ntwo\\u{1b}[0m", "DEBUG call: returns rc=3 symbol=cuInit"]);
        assert_eq!(logged("migrate=trace", run), [""; 0]);
    }

    #[test]
    fn spans_show_in_lines_of_other_threads_and_end_with_their_duration() {
        let lines = logged("debug", || {
            let outer = tracing::info_span!(target: "migrate", "move", id = "m1");
            let dispatch = tracing::dispatcher::get_default(Clone::clone);
            std::thread::scope(|s| {
                s.spawn(|| {
                    tracing::dispatcher::with_default(&dispatch, || {
                        let _inside = tracing::debug_span!(target: "migrate", parent: &outer, "phase", name = "replay").entered();
                        tracing::info!(target: "migrate", "text");
                    });
                });
            });
            drop(outer);
        });
        let [text, phase, whole] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(text, "INFO migrate move{id=m1}:phase{name=replay}: text");
        assert!(phase.starts_with("DEBUG migrate move{id=m1}:phase{name=replay}: ") && phase.ends_with(" ms"), "{phase}");
        assert!(whole.starts_with("INFO migrate move{id=m1}: "), "{whole}");
    }

    #[test]
    fn more_spans_than_are_kept_are_entered_and_left() {
        let spans: Vec<_> = (0..2 * DEEPEST as u64).map(|n| Id::from_u64(n + 1)).collect();
        let lines = Lines::new(Program::Job, Setting::OFF);
        spans.iter().for_each(|span| lines.enter(span));
        assert_eq!(current(), Some(DEEPEST as u64));
        spans.iter().rev().for_each(|span| lines.exit(span));
        assert_eq!(current(), None);
    }
}
