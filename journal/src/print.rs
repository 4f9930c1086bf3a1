//! Formats records for people, and for tests that compare text.

use crate::{OwnedRecord, Role};
use std::fmt::Write;

/// Number of bytes that are shown of a reply, or of a body that cannot be decoded.
const SHOWN: usize = 64;

/// Formats a record as one line of JSON, without a line feed. `name` returns a call's name, `decode` formats a body.
/// Ids without a name are shown as numbers; bodies that cannot be decoded, and replies, as hexadecimal digits (the
/// first 64 bytes).
pub fn print_line(
    r: &OwnedRecord,
    name: &dyn Fn(u16) -> Option<String>,
    decode: &dyn Fn(u16, &[u8]) -> Option<String>,
) -> String {
    let mut out = format!("{{\"seq\":{},\"id\":\"0x{:04x}\"", r.seq, r.id);
    if let Some(name) = name(r.id) {
        out.push_str(",\"call\":");
        string(&mut out, &name);
    }
    put(&mut out, format_args!(",\"device\":{}", r.device));
    let role = match r.role {
        Role::Plain => None,
        Role::Stays => Some("stays"),
        Role::Load => Some("load"),
        Role::LightLoad => Some("load without variables"),
        Role::Child => Some("child"),
    };
    if let Some(role) = role {
        put(&mut out, format_args!(",\"role\":\"{role}\""));
    }
    handles(&mut out, "creates", &r.creates);
    if let Some(h) = r.ends {
        put(&mut out, format_args!(",\"ends\":\"0x{h:x}\""));
    }
    handles(&mut out, "uses", &r.uses);
    handles(&mut out, "setting", r.setting.as_slice().as_flattened());
    payload(&mut out, "body", &r.body, decode(r.id, &r.body));
    payload(&mut out, "reply", &r.reply, None);
    out.push('}');
    out
}

fn put(out: &mut String, what: std::fmt::Arguments) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(what);
}

fn handles(out: &mut String, key: &str, list: &[u64]) {
    if list.is_empty() {
        return;
    }
    put(out, format_args!(",\"{key}\":["));
    for (i, h) in list.iter().enumerate() {
        put(out, format_args!("{}\"0x{h:x}\"", if i == 0 { "" } else { "," }));
    }
    out.push(']');
}

fn payload(out: &mut String, key: &str, bytes: &[u8], words: Option<String>) {
    if let Some(words) = words {
        put(out, format_args!(",\"{key}\":"));
        string(out, &words);
    } else if !bytes.is_empty() {
        put(out, format_args!(",\"{key}_bytes\":{},\"{key}_hex\":\"", bytes.len()));
        for b in &bytes[..bytes.len().min(SHOWN)] {
            put(out, format_args!("{b:02x}"));
        }
        out.push_str(if bytes.len() > SHOWN { "...\"" } else { "\"" });
    }
}

/// A JSON string: RFC 8259, section 7.
fn string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c < ' ' || c == '\u{7f}' => put(out, format_args!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}
