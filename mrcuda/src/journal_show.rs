//! `mrcuda journal show`: the records of a journal file, for people or as JSON lines.

use crate::failure::Failure;
use crate::table::{one_line, say, say_as_it_is};
use crate::time::date;
use cuda_api::calls::name;
use cuda_api::ops;
use cuda_api::wire::Wire;
use journal::{JournalError, Meta, OwnedRecord, Reader, print_line};
use std::fmt::Debug;
use std::path::PathBuf;

/// Arguments of `mrcuda journal show`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// Journal file
    file: PathBuf,
    /// Print a JSON object for each record
    #[arg(long)]
    json: bool,
}

/// Prints the records. At a damaged record it stops, reports it, and the exit code is 1.
pub(crate) fn show(args: &ShowArgs) -> Result<(), Failure> {
    let failed = |why: JournalError| match why {
        JournalError::Io { .. } => Failure::new(why),
        _ => Failure::new(format!("{}: {why}", args.file.display())),
    };
    let mut reader = Reader::open(&args.file).map_err(failed)?;
    if !args.json {
        say(&heading(reader.meta()));
    }
    let mut count = 0u64;
    for record in reader.records() {
        let record = record.map_err(failed)?;
        if args.json {
            say_as_it_is(&print_line(&record, &|id| name(id).map(str::to_owned), &decode));
        } else {
            say(&line(&record));
        }
        count += 1;
    }
    if !args.json {
        let open = if reader.is_closed() { "" } else { "; not closed: its job still runs, or was killed" };
        say(&format!("{count} records{open}"));
    }
    Ok(())
}

fn heading(meta: &Meta) -> String {
    let driver = format!("{}.{}", meta.driver_version / 1000, meta.driver_version % 1000 / 10);
    let about = about(&meta.about).unwrap_or_else(|| meta.about.clone());
    one_line(&format!("process {}, CUDA {driver}, begun {}, {about}", meta.pid, date(meta.created_unix)))
}

/// What the job has written of its device, for people; `None` if that is something else.
fn about(json: &str) -> Option<String> {
    let about: serde_json::Value = serde_json::from_str(json).ok()?;
    let text = |name: &str| about.get(name)?.as_str();
    Some(format!("GPU {}: {}, compute capability {}", about.get("device")?.as_u64()?, text("name")?, text("capability")?))
}

/// Formats a record for people.
fn line(r: &OwnedRecord) -> String {
    let call = name(r.id).map_or_else(|| format!("{:#06x}", r.id), str::to_owned);
    let mut text = format!("{:8} gpu {} {call:<26}", r.seq, r.device);
    for handle in &r.creates {
        text.push_str(&format!(" makes {handle:#x}"));
    }
    if let Some(handle) = r.ends {
        text.push_str(&format!(" ends {handle:#x}"));
    }
    for handle in &r.uses {
        text.push_str(&format!(" uses {handle:#x}"));
    }
    let words = decode(r.id, &r.body)
        .unwrap_or_else(|| if r.body.is_empty() { String::new() } else { format!("{} bytes", r.body.len()) });
    format!("{text} {words}").trim_end().to_owned()
}

/// Formats arguments: operations field by field; for other calls the texts in them, which are names.
fn decode(id: u16, body: &[u8]) -> Option<String> {
    match id {
        ops::id::CHUNK_MAP | ops::id::CHUNK_UNMAP => fields::<ops::Chunk>(body),
        ops::id::IMAGE_PUT => fields::<ops::ImagePut>(body),
        ops::id::IMAGE_LOAD => fields::<ops::ImageLoad>(body),
        _ => texts(body),
    }
}

fn fields<T: Wire + Debug>(mut body: &[u8]) -> Option<String> {
    T::get(&mut body).ok().map(|value| format!("{value:?}"))
}

/// Runs of at least three printable characters.
fn texts(body: &[u8]) -> Option<String> {
    let runs = body.split(|b| !b.is_ascii_graphic()).filter(|run| run.len() >= 3);
    let texts: Vec<String> = runs.map(|run| format!("{:?}", String::from_utf8_lossy(run))).collect();
    (!texts.is_empty()).then(|| texts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_decoded_and_names_are_found() {
        let mut body = Vec::new();
        ops::Chunk { address: 0x2000_0000_0000, bytes: 2 << 20 }.put(&mut body);
        let words = decode(ops::id::CHUNK_MAP, &body).unwrap();
        assert!(words.contains("bytes: 2097152"), "{words}");
        assert_eq!(decode(ops::id::CHUNK_MAP, &body[..3]), None);
        assert_eq!(decode(0x0507, b"\x01\0\0\0advance\0").as_deref(), Some("\"advance\""));
        assert_eq!(name(0x0507), Some("cuModuleGetFunction"));
        assert_eq!(name(0xffff), None);
    }

    #[test]
    fn a_heading_describes_the_device() {
        let json = r#"{"device":1,"name":"H200","capability":"9.0"}"#;
        assert_eq!(about(json).as_deref(), Some("GPU 1: H200, compute capability 9.0"));
        assert_eq!((about("{}"), about("x"), about("")), (None, None, None));
    }

    #[test]
    fn a_record_is_one_line() {
        let record = OwnedRecord {
            seq: 7,
            id: 0x0507,
            role: journal::Role::Stays,
            setting: None,
            device: 0,
            creates: vec![0x40],
            ends: None,
            uses: vec![0x80],
            body: b"step".to_vec(),
            reply: vec![],
        };
        assert_eq!(line(&record), "       7 gpu 0 cuModuleGetFunction        makes 0x40 uses 0x80 \"step\"");
    }
}
