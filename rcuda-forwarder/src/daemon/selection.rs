//! Chooses the GPUs that a server shares.
//!
//! The driver itself reads `CUDA_VISIBLE_DEVICES`, in a separate process that names what it sees. From then on a GPU is known by its UUID,
//! which stays true when another process counts GPUs differently.

use super::error::ServeError;
use super::privileges::Privileges;
use super::worker_command::Command;
use crate::endpoint::GPUS;
use crate::worker;
use std::path::Path;
use std::process::Stdio;
use std::str::FromStr;

/// What the driver reads to know which GPUs a process may use.
pub(super) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// How UUIDs of GPUs, and of instances of GPUs, begin.
const OF_GPU: &str = "GPU-";
const OF_INSTANCE: &str = "MIG-";
/// Maximum length of a word: that of `MIG-GPU-UUID/INSTANCE/INSTANCE` is 50.
const LONGEST: usize = 64;

/// Which of the GPUs that the driver shows are shared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SharedGpus {
    /// All, but no more than a server can have.
    #[default]
    All,
    /// The first ones.
    First(u32),
    /// These, in this order.
    Listed(Vec<GpuName>),
}

/// What names a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuName {
    /// Its number among those that the driver shows.
    Number(u32),
    /// Its UUID as `nvidia-smi -L` prints it, or the beginning.
    Uuid(String),
}

/// Why a text does not say which GPUs are shared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SharedGpusError {
    /// The number is out of range.
    #[error("it must be a number from 1 to {GPUS}, or a list of GPUs")]
    Number,
    /// A word of a list names no GPU.
    #[error("`{0}` is no GPU: a GPU is its number, or the beginning of its UUID (GPU-…, MIG-…; nvidia-smi -L lists them)")]
    Word(String),
    /// A GPU is named twice.
    #[error("`{0}` is named twice")]
    Twice(String),
    /// There are too many.
    #[error("it names {0} GPUs, and a server shares at most {GPUS}")]
    Many(usize),
}

impl FromStr for SharedGpus {
    type Err = SharedGpusError;

    fn from_str(text: &str) -> Result<SharedGpus, SharedGpusError> {
        // One number is how many, as it is written without a comma.
        if !text.contains(',') && !is_uuid(text.trim()) {
            let n = text.trim().parse().ok().filter(|n| (1..=GPUS).contains(n));
            return n.map(SharedGpus::First).ok_or(SharedGpusError::Number);
        }
        let mut names = Vec::new();
        for word in text.split(',').map(str::trim) {
            let number = || word.parse().ok().filter(|_| word.bytes().all(|b| b.is_ascii_digit()));
            let uuid = is_uuid(word).then(|| GpuName::Uuid(word.to_owned()));
            let name = uuid.or_else(|| number().map(GpuName::Number)).ok_or_else(|| SharedGpusError::Word(word.to_owned()))?;
            if names.contains(&name) {
                return Err(SharedGpusError::Twice(word.to_owned()));
            }
            names.push(name);
        }
        if names.len() > GPUS as usize {
            return Err(SharedGpusError::Many(names.len()));
        }
        Ok(SharedGpus::Listed(names))
    }
}

/// Whether a word can be the beginning of a UUID. As for the driver, at least one digit must follow.
fn is_uuid(word: &str) -> bool {
    let rest = word.strip_prefix(OF_GPU).or_else(|| word.strip_prefix(OF_INSTANCE));
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'/';
    word.len() <= LONGEST && rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_part))
}

/// The GPUs to share, as words of `CUDA_VISIBLE_DEVICES`, each for one GPU.
pub(super) fn select(command: &Command, driver: &Path, wanted: &SharedGpus) -> Result<Vec<String>, ServeError> {
    let visible = std::env::var_os(VISIBLE).map(|list| list.to_string_lossy().into_owned());
    choose(visible.as_deref(), wanted, |visible| probe(command, driver, visible))
}

/// The UUIDs of the GPUs that a driver shows a process with this value of `CUDA_VISIBLE_DEVICES`.
fn probe(command: &Command, driver: &Path, visible: Option<&str>) -> Result<Vec<String>, ServeError> {
    let failed = |why: String| ServeError::Driver { driver: driver.into(), why };
    // It serves no client. A driver that root starts may make its device files, for which a worker lacks the rights.
    let mut probe = Command { privileges: Privileges::default(), ..command.clone() }.prepare(None);
    probe.envs(visible.map(|list| (VISIBLE, list)));
    let out = probe.arg(worker::PROBE).arg(driver).stdin(Stdio::null()).output().map_err(|e| failed(e.to_string()))?;
    if !out.status.success() {
        return Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_owned()));
    }
    // A driver may print lines of its own.
    let lines = String::from_utf8_lossy(&out.stdout);
    Ok(lines.lines().filter(|line| is_uuid(line)).map(str::to_owned).collect())
}

/// As [`select`], by what `probe` says of the driver.
fn choose(
    visible: Option<&str>,
    wanted: &SharedGpus,
    mut probe: impl FnMut(Option<&str>) -> Result<Vec<String>, ServeError>,
) -> Result<Vec<String>, ServeError> {
    let mut there = match visible {
        // A process sees one instance, whatever the list says.
        Some(list) if list.contains(OF_INSTANCE) => one_by_one(list, &mut probe),
        _ => Vec::new(),
    };
    if there.is_empty() {
        there = probe(visible)?;
    }
    let count = there.len() as u32;
    match wanted {
        SharedGpus::All => there.truncate(GPUS as usize),
        SharedGpus::First(n) if *n > count || *n > GPUS => return Err(ServeError::Gpus { there: count, wanted: *n }),
        SharedGpus::First(n) => there.truncate(*n as usize),
        SharedGpus::Listed(names) => {
            let mut chosen: Vec<String> = Vec::new();
            for name in names {
                let found = find(name, &there, |word| if visible.is_none() { probe(Some(word)) } else { Ok(Vec::new()) })?;
                if chosen.contains(&found) {
                    return Err(ServeError::GpuTwice(found));
                }
                chosen.push(found);
            }
            there = chosen;
        }
    }
    Ok(there)
}

/// Asks for each word of a list on its own; as in the driver the list ends at the first one that names no GPU. None if one is there twice:
/// the driver may refuse that.
fn one_by_one(list: &str, probe: &mut impl FnMut(Option<&str>) -> Result<Vec<String>, ServeError>) -> Vec<String> {
    let mut there: Vec<String> = Vec::new();
    for word in list.split(',') {
        match probe(Some(word)).as_deref() {
            Ok([one]) if there.contains(one) => return Vec::new(),
            Ok([one]) => there.push(one.clone()),
            _ => break,
        }
    }
    there
}

/// The GPU with a name, among those that are there. Of instances the driver may show one only: `probe` asks for another.
fn find(
    name: &GpuName,
    there: &[String],
    probe: impl FnOnce(&str) -> Result<Vec<String>, ServeError>,
) -> Result<String, ServeError> {
    let unknown = |name: String| ServeError::UnknownGpu { name, there: there.join(", ") };
    let word = match name {
        GpuName::Number(n) => return there.get(*n as usize).cloned().ok_or_else(|| unknown(n.to_string())),
        GpuName::Uuid(word) => word,
    };
    // Not their first letters, as in the driver.
    let begins = |uuid: &&String| {
        let (head, rest) = (&word[..OF_GPU.len()], &word[OF_GPU.len()..]);
        let of_uuid = uuid.strip_prefix(head).and_then(|of_uuid| of_uuid.get(..rest.len()));
        of_uuid.is_some_and(|of_uuid| of_uuid.eq_ignore_ascii_case(rest))
    };
    match there.iter().filter(begins).collect::<Vec<_>>()[..] {
        [one] => Ok(one.clone()),
        [] if word.starts_with(OF_INSTANCE) => match probe(word).as_deref() {
            Ok([one]) => Ok(one.clone()),
            _ => Err(unknown(word.clone())),
        },
        [] => Err(unknown(word.clone())),
        _ => Err(ServeError::SeveralGpus { name: word.clone(), there: there.join(", ") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 4] = ["GPU-aa-1", "GPU-ab-2", "MIG-aa-3", "MIG-aa-4"];

    /// A driver with these GPUs, which shows a process that may use an instance only that.
    fn driver(visible: Option<&str>) -> Result<Vec<String>, ServeError> {
        let named = |word: &str| ALL.iter().find(|uuid| uuid.starts_with(word)).map(|uuid| (*uuid).to_owned());
        let shown: Vec<String> = match visible {
            None => ALL[..3].iter().map(|uuid| (*uuid).to_owned()).collect(),
            Some(list) => list.split(',').map_while(named).collect(),
        };
        let shown: Vec<String> = match shown.iter().find(|uuid| visible.is_some() && uuid.starts_with("MIG")) {
            Some(instance) => vec![instance.clone()],
            None => shown,
        };
        let nothing = ServeError::Driver { driver: "d".into(), why: "CUDA error 100".into() };
        if shown.is_empty() { Err(nothing) } else { Ok(shown) }
    }

    fn chosen(visible: Option<&str>, wanted: &str) -> Result<Vec<String>, String> {
        let wanted = if wanted == "all" { SharedGpus::All } else { wanted.parse().unwrap() };
        choose(visible, &wanted, driver).map_err(|why| why.to_string())
    }

    #[test]
    fn what_is_no_list_of_gpus_is_refused() {
        assert_eq!("2".parse(), Ok(SharedGpus::First(2)));
        let listed = |names: &[GpuName]| Ok(SharedGpus::Listed(names.to_vec()));
        let uuid = |text: &str| GpuName::Uuid(text.to_owned());
        assert_eq!("GPU-8f".parse(), listed(&[uuid("GPU-8f")]));
        assert_eq!("GPU-8f, MIG-1,0".parse(), listed(&[uuid("GPU-8f"), uuid("MIG-1"), GpuName::Number(0)]));
        assert_eq!("MIG-GPU-8f/7/0".parse(), listed(&[uuid("MIG-GPU-8f/7/0")]));
        for bad in ["", "0", "33", "-1", "GPU-", "gpu-8f", "8f", "0,", ",0", "0,-1", "0,+1", "0,GPU-", "0,1,0", "GPU-8f ab"] {
            assert!(bad.parse::<SharedGpus>().is_err(), "{bad}");
        }
        assert!(format!("GPU-{}", "0".repeat(61)).parse::<SharedGpus>().is_err());
        let many: Vec<String> = (0..33).map(|n| n.to_string()).collect();
        assert_eq!(many.join(",").parse::<SharedGpus>(), Err(SharedGpusError::Many(33)));
    }

    #[test]
    fn the_driver_says_which_gpus_are_visible() {
        assert_eq!(chosen(None, "all"), Ok(vec![ALL[0].into(), ALL[1].into(), ALL[2].into()]));
        assert_eq!(chosen(Some("GPU-ab,GPU-aa,x,GPU-ab"), "all"), Ok(vec![ALL[1].into(), ALL[0].into()]));
        assert_eq!(chosen(Some("GPU-ab,GPU-aa"), "1"), Ok(vec![ALL[1].into()]));
        assert!(chosen(Some("GPU-ab"), "2").unwrap_err().contains("2 GPUs cannot be shared"));
        assert!(chosen(Some("x"), "all").unwrap_err().contains("CUDA error 100"));
    }

    #[test]
    fn instances_are_asked_for_one_by_one() {
        let both = [ALL[3].to_owned(), ALL[2].to_owned()];
        assert_eq!(chosen(Some("MIG-aa-4,MIG-aa-3,x,GPU-aa"), "all"), Ok(both.to_vec()));
        assert_eq!(chosen(Some("MIG-aa-4,MIG-aa-4,MIG-aa-3"), "all"), Ok(vec![ALL[3].into()]));
        assert!(chosen(Some("x,MIG-aa-4"), "all").unwrap_err().contains("CUDA error 100"));
        // Not shown by default, but there.
        assert_eq!(chosen(None, "MIG-aa-4,0"), Ok(vec![ALL[3].into(), ALL[0].into()]));
        assert!(chosen(Some("GPU-aa"), "MIG-aa-4").is_err(), "what the environment hides is not shared");
    }

    #[test]
    fn a_name_means_one_gpu() {
        assert_eq!(chosen(None, "GPU-ab,0"), Ok(vec![ALL[1].into(), ALL[0].into()]));
        assert_eq!(chosen(None, "GPU-AB"), Ok(vec![ALL[1].into()]));
        assert_eq!(chosen(Some("GPU-ab"), "GPU-a"), Ok(vec![ALL[1].into()]), "only one of those that are visible begins so");
        assert!(chosen(None, "GPU-a").unwrap_err().contains("several GPUs"));
        for unknown in ["GPU-ac", "0,3", "GPU-aa-1-2", "MIG-x"] {
            assert!(chosen(None, unknown).unwrap_err().contains("GPU-aa-1, GPU-ab-2"), "{unknown}");
        }
        assert!(chosen(None, "GPU-aa,0").unwrap_err().contains("twice"));
    }
}
