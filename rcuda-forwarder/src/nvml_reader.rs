//! The process in which a daemon reads what its GPUs measure, and an agent who uses them: NVML is the driver's code, which may hang or crash.
//!
//! It creates no context, serves no job, and runs in the sandbox of workers.

use crate::channel::{Channel, Message, StartReader};
use crate::sandbox::{Confinement, SandboxError};
use crate::threads;
use executor::{NvmlFacts, Sensors, SensorsError, Usage};
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};

/// Why the process ends before its daemon does.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReaderError {
    /// It cannot confine itself.
    #[error("cannot confine the process that reads NVML: {0}")]
    Sandbox(SandboxError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The channel to the daemon has failed.
    #[error("cannot talk to the server: {0}")]
    Channel(io::Error),
    /// The daemon sent an unexpected message.
    #[error("the server said something unexpected")]
    Order,
    /// The thread that reads has ended, by a panic.
    #[error("the thread that reads NVML has ended")]
    Ended,
}

/// Answers the daemon's questions until it closes the channel; then the process ends. Returns only if something fails.
pub(crate) fn run(channel: Channel, start: StartReader) -> Result<Infallible, ReaderError> {
    // SAFETY: a text that ends with a zero; names the first thread, and so the process in lists.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"mrcuda-nvml".as_ptr()) };
    // Before anything of the driver runs, and while there is one thread.
    start.confinement.as_ref().map_or(Ok(()), Confinement::enter).map_err(ReaderError::Sandbox)?;
    let (channel, driver, usage) = (Arc::new(channel), start.driver, start.usage);
    let (questions, to_read) = mpsc::channel::<Vec<[u8; 16]>>();
    let theirs = channel.clone();
    // Not this thread, which ends the process with the daemon even if the driver hangs.
    threads::spawn("nvml", move || answer(&theirs, Path::new(&driver), usage, to_read)).map_err(ReaderError::Thread)?;
    loop {
        match channel.receive().map_err(ReaderError::Channel)? {
            Some((Message::Read(gpus), None)) => questions.send(gpus).map_err(|_| ReaderError::Ended)?,
            Some(_) => return Err(ReaderError::Order),
            // What the driver does at an exit could wait for its call that hangs.
            // SAFETY: ends the process.
            None => unsafe { libc::_exit(0) },
        }
    }
}

fn answer(channel: &Channel, driver: &Path, usage: bool, questions: mpsc::Receiver<Vec<[u8; 16]>>) {
    let mut opened = None;
    for gpus in questions {
        let sensors = opened.get_or_insert_with(|| Sensors::open(driver));
        let of_gpu = |sensors: &Sensors, uuid| NvmlFacts {
            readings: sensors.read(uuid),
            usage: if usage { sensors.usage(uuid) } else { Usage::default() },
        };
        let read = |sensors: &Sensors| gpus.iter().map(|uuid| of_gpu(sensors, uuid)).collect();
        let answer = sensors.as_ref().map(read).map_err(SensorsError::to_string);
        // If the daemon has ended, the other thread ends the process.
        let _ = channel.send(&Message::Readings(answer), None);
    }
}
