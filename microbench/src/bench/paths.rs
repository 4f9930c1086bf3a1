//! The ways by which measured programs reach a GPU.

use super::figures::Ask;
use super::stage::{Process, Server, Stage, home};
use crate::error::Error;
use crate::peer::Controls;
use std::path::PathBuf;

/// What makes a program's calls.
#[derive(Debug, Clone)]
enum Driver {
    /// This machine's driver.
    Native,
    /// Another replacement of the driver.
    Against(PathBuf),
    /// mrcuda: at a place, moved to another one if that is given.
    At(String, Option<&'static str>),
}

/// A way to a GPU.
#[derive(Debug, Clone)]
pub(super) struct Path {
    pub(super) name: String,
    driver: Driver,
}

impl Path {
    pub(super) fn native() -> Path {
        Path { name: "native".into(), driver: Driver::Native }
    }

    /// At a place from the start.
    pub(super) fn at(name: &str, place: &str) -> Path {
        Path { name: name.into(), driver: Driver::At(place.into(), None) }
    }

    fn moved(name: &str, place: &str, to: &'static str) -> Path {
        Path { name: name.into(), driver: Driver::At(place.into(), Some(to)) }
    }

    /// Ourselves by this way. `env` is for jobs only.
    pub(super) fn start(&self, stage: &Stage, args: &[&str], env: &[(&str, &str)]) -> Result<Process, Error> {
        match &self.driver {
            Driver::Native => stage.native(args),
            Driver::Against(library) => stage.with_driver(args, library),
            Driver::At(place, _) => stage.job(place, args, env),
        }
    }

    /// Ourselves by this way, ready to be asked.
    pub(super) fn open(&self, stage: &Stage) -> Result<Process, Error> {
        let mut process = self.start(stage, &["client"], &[])?;
        process.answer()?;
        if let Driver::At(_, Some(to)) = &self.driver {
            stage.migrate(process.pid(), to)?;
        }
        Ok(process)
    }
}

/// What the parts of the benchmark measure with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bench<'b> {
    pub(super) stage: &'b Stage,
    pub(super) servers: &'b [Server; 2],
    pub(super) others: &'b Others,
    pub(super) controls: &'b Controls,
    pub(super) ask: Ask,
    /// Directory for the plots.
    pub(super) out: &'b std::path::Path,
}

/// What is measured besides the native driver.
#[derive(Debug, Clone, Default)]
pub(super) struct Others {
    /// Places on servers that run already, instead of those of this machine.
    pub(super) places: Vec<String>,
    /// Another replacement of the driver.
    pub(super) against: Option<PathBuf>,
}

impl Others {
    /// The other replacement of the driver.
    pub(super) fn against(&self) -> Option<Path> {
        self.against.as_ref().map(|library| Path { name: "against".into(), driver: Driver::Against(library.clone()) })
    }

    fn with_common(&self, own: Vec<Path>) -> Vec<Path> {
        let named = self.places.iter().map(|place| Path::at(place, place));
        let mrcuda: Vec<Path> = if self.places.is_empty() { own } else { named.collect() };
        std::iter::once(Path::native()).chain(mrcuda).chain(self.against()).collect()
    }

    /// All ways, with jobs that were moved to this machine.
    pub(super) fn all(&self, servers: &[Server; 2]) -> Vec<Path> {
        let home = home(servers);
        self.with_common(vec![
            Path::moved("in-process", home, "local"),
            Path::moved("helper", home, "helper"),
            Path::at("shm", &servers[0].unix),
            Path::at("tcp", &servers[0].tcp),
            Path::at("tls", home),
        ])
    }

    /// All ways, from the start of the program.
    pub(super) fn starting(&self, servers: &[Server; 2]) -> Vec<Path> {
        self.with_common(vec![
            Path::at("in-process", "local"),
            Path::at("helper", "helper"),
            Path::at("shm", &servers[0].unix),
            Path::at("tls", home(servers)),
        ])
    }

    /// mrcuda's ways over sockets.
    pub(super) fn remote(&self, servers: &[Server; 2]) -> Vec<Path> {
        if self.places.is_empty() {
            return vec![Path::at("shm", &servers[0].unix), Path::at("tcp", &servers[0].tcp), Path::at("tls", home(servers))];
        }
        self.places.iter().map(|place| Path::at(place, place)).collect()
    }

    /// The first place over TCP. RDMA is no such: its packets would not pass through a proxy.
    pub(super) fn tcp(&self, servers: &[Server; 2]) -> Option<String> {
        if self.places.is_empty() {
            Some(home(servers).to_owned())
        } else {
            let is_tcp = |p: &&String| p.contains(':') && !["unix:", "rdma:"].iter().any(|other| p.starts_with(other));
            self.places.iter().find(is_tcp).cloned()
        }
    }
}
