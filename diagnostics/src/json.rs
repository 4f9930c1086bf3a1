//! A line of a server's log as JSON (docs/log.md, "JSON").

use crate::text::one_line;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    level: String,
    target: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    span: &'a str,
    message: &'a str,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl<'a> Line<'a> {
    fn new(level: Level, target: &'a str, message: &'a str) -> Line<'a> {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        Line { time, level: level.as_str().to_ascii_lowercase(), target, span: "", message, fields: Map::new() }
    }

    fn text(&self) -> String {
        // Strings and numbers are always JSON.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// A line of the server without further fields, with its line feed.
pub fn line(level: Level, message: &str) -> String {
    Line::new(level, "serve", &one_line(message)).text()
}

/// What an event says, or, without one, `text`.
pub(crate) fn of(metadata: &Metadata<'_>, span: &str, text: &str, event: Option<&Event<'_>>) -> String {
    let mut fields = Fields::default();
    event.iter().for_each(|event| event.record(&mut fields));
    let message = if event.is_some() { one_line(&fields.message) } else { text.to_owned() };
    Line { span, fields: fields.others, ..Line::new(*metadata.level(), metadata.target(), &message) }.text()
}

/// Collects the message and the other fields.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.others.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.put(field, one_line(&format!("{value:?}"))),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex, PoisonError};
    use tracing::Subscriber;
    use tracing::span::{Attributes, Id, Record};

    /// Keeps the lines of events.
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let line = of(event.metadata(), "", "", Some(event));
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn fields_keep_their_types_and_no_text_imitates_a_line() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        tracing::subscriber::with_default(Kept(lines.clone()), || {
            let (peer, absent) = (Some("10.0.0.7:1"), None::<u32>);
            tracing::warn!(target: "serve", worker = 7u32, peer, user = absent, good = true, "one\ntwo\u{1b}[0m \"{}\"", 3);
        });
        let lines = lines.lock().unwrap();
        let [text] = &lines[..] else { panic!("{lines:?}") };
        assert!(text.ends_with('\n') && text.trim_end().lines().count() == 1, "{text}");
        let line: Map<String, Value> = serde_json::from_str(text).unwrap();
        assert_eq!(line["message"], "one\\ntwo\\u{1b}[0m \"3\"");
        assert_eq!((&line["level"], &line["target"], &line["worker"]), (&"warn".into(), &"serve".into(), &7.into()));
        assert_eq!((&line["peer"], &line["good"]), (&"10.0.0.7:1".into(), &true.into()));
        assert!(!line.contains_key("user") && !line.contains_key("span"), "{text}");
        assert!(humantime::parse_rfc3339(line["time"].as_str().unwrap()).is_ok(), "{text}");
        assert!(text.starts_with("{\"time\":\""), "for people, the time comes first: {text}");
    }

    #[test]
    fn lines_without_an_event() {
        let line: Value = serde_json::from_str(&line(Level::ERROR, "it\u{7}")).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"error".into(), &"it\\u{7}".into()));
    }
}
