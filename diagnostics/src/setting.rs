//! The syntax of `MRCUDA_LOG`: `1`, a file, or a list of levels and targets.

use crate::sink::Sink;
use std::path::PathBuf;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// The targets, so that a misspelt one is an error instead of silence.
const TARGETS: [&str; 7] = ["call", "code", "job", "memory", "migrate", "place", "serve"];

/// Added to the message about an invalid value.
pub(crate) const SETTINGS: &str = "Valid are: 1 (level debug, to standard error), a path with a slash (level debug, to this file), or levels \
     and targets like debug,migrate=trace (levels: error, warn, info, debug, trace, off; targets: call, code, job, memory, migrate, place, \
     serve)";

/// Maximum length of a value: it is an environment variable, so its length is not ours to choose.
const LONGEST: usize = 4096;

/// What is logged, and where to.
#[derive(Debug)]
pub(crate) struct Setting {
    targets: Option<Targets>,
    pub(crate) sink: Sink,
}

impl Setting {
    pub(crate) const OFF: Setting = Setting { targets: None, sink: Sink::Stderr };

    /// Parses a value that is not empty. With `calls`, each call is logged as well, unless the log is off.
    pub(crate) fn parse(text: &str, calls: bool) -> Result<Setting, String> {
        if text.len() > LONGEST {
            return Err(format!("a value of {} bytes is too long", text.len()));
        }
        let (targets, sink) = match text {
            "0" => return Ok(Setting::OFF),
            "1" => (Targets::new().with_default(Level::DEBUG), Sink::Stderr),
            path if path.contains('/') => (Targets::new().with_default(Level::DEBUG), Sink::file(PathBuf::from(path))),
            list => {
                list.split(',').try_for_each(check)?;
                (list.parse().map_err(|e| format!("`{list}`: {e}"))?, Sink::Stderr)
            }
        };
        let is_on = targets.iter().any(|(_, level)| level > LevelFilter::OFF)
            || targets.default_level().is_some_and(|level| level > LevelFilter::OFF);
        let targets = if calls && is_on { targets.with_target("call", Level::TRACE) } else { targets };
        Ok(Setting { targets: is_on.then_some(targets), sink })
    }

    /// Sends the lines to a file.
    #[cfg(test)]
    pub(crate) fn with_file(self, path: PathBuf) -> Setting {
        Setting { sink: Sink::file(path), ..self }
    }

    pub(crate) fn enables(&self, target: &str, level: Level) -> bool {
        self.targets.as_ref().is_some_and(|t| t.would_enable(target, &level))
    }

    /// The lowest level that some target has enabled.
    pub(crate) fn max(&self) -> LevelFilter {
        let Some(targets) = &self.targets else { return LevelFilter::OFF };
        let all = targets.iter().map(|(_, level)| level).chain(targets.default_level());
        all.max().unwrap_or(LevelFilter::OFF)
    }
}

/// Checks one element of a list: LEVEL, TARGET or TARGET=LEVEL.
fn check(element: &str) -> Result<(), String> {
    let (target, level) = element.split_once('=').map_or((element, None), |(target, level)| (target, Some(level)));
    // Neither a number nor nothing, which `tracing` accepts too.
    let is_level = |text: &str| text.starts_with(char::is_alphabetic) && text.parse::<LevelFilter>().is_ok();
    match level {
        None if is_level(target) => Ok(()),
        Some(level) if !is_level(level) => Err(format!("`{level}` is not a level")),
        _ if !TARGETS.contains(&target) => Err(format!("`{target}` is neither a level nor a target")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enabled(text: &str, calls: bool) -> [bool; 4] {
        let s = Setting::parse(text, calls).unwrap();
        [("job", Level::INFO), ("job", Level::DEBUG), ("migrate", Level::TRACE), ("call", Level::TRACE)]
            .map(|(t, l)| s.enables(t, l))
    }

    #[test]
    fn levels_and_targets() {
        assert_eq!(enabled("1", false), [true, true, false, false]);
        assert_eq!(enabled("1", true), [true, true, false, true]);
        assert_eq!(enabled("/tmp/a,b=c", false), [true, true, false, false], "a file");
        assert_eq!(enabled("debug,migrate=trace", false), [true, true, true, false]);
        assert_eq!(enabled("migrate", false), [false, false, true, false]);
        assert_eq!(enabled("info,call=trace", false), [true, false, false, true]);
        assert_eq!(enabled("trace,call=off", false), [true, true, true, false]);
        assert_eq!(enabled("migrate=trace", true), [false, false, true, true]);
        assert_eq!((enabled("0", true), enabled("off", true)), ([false; 4], [false; 4]));
    }

    #[test]
    fn the_lowest_level() {
        let max = |text| Setting::parse(text, false).unwrap().max();
        assert_eq!((max("off"), max("info"), max("migrate")), (LevelFilter::OFF, LevelFilter::INFO, LevelFilter::TRACE));
        assert_eq!(Setting::OFF.max(), LevelFilter::OFF);
    }

    #[test]
    fn other_values_are_refused_with_the_reason() {
        let why = |text: &str| Setting::parse(text, true).unwrap_err();
        assert_eq!(why("log.txt"), "`log.txt` is neither a level nor a target");
        assert_eq!(why("debug,migrate=loud"), "`loud` is not a level");
        assert_eq!(why("2"), "`2` is neither a level nor a target");
        assert_eq!(why(","), "`` is neither a level nor a target");
        for text in ["a=b=c", "migrate=debug=x", "call[{x}]=trace", "[{", "=", "debug,,info", "\u{0}\n%s%n", &"x".repeat(1 << 20)]
        {
            why(text);
        }
    }
}
