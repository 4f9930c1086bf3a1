//! Who uses the GPUs of a machine, whether mrcuda knows them or not: for an agent, which runs beside no daemon.

use super::nvml::{NoReadings, Nvml, Pace};
use super::privileges::Privileges;
use super::worker_command::Command;
use crate::channel::StartReader;
use executor::Usage;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Asks the NVML of a driver, in a process of its own, which ends with this value.
#[derive(Debug)]
pub struct GpuUsers(Nvml);

impl GpuUsers {
    /// `worker_exe`: the program whose `worker` subcommand is [`crate::worker_main`].
    pub fn new(worker_exe: PathBuf, driver: &Path) -> GpuUsers {
        let command = Command {
            program: worker_exe,
            arguments: vec!["worker".into()],
            ignores_sigterm: false,
            privileges: Privileges::default(),
            variables: Vec::new(),
        };
        let start = StartReader { driver: driver.to_string_lossy().into_owned(), usage: true, confinement: None };
        // Whoever asks is told why there is no answer.
        GpuUsers(Nvml::new(command, start, Pace::USUAL, |_| {}))
    }

    /// Who uses the GPUs with these UUIDs. Waits for a limited time, also where the driver hangs.
    ///
    /// # Errors
    /// NVML cannot be used, or has not answered in time.
    pub fn ask(&self, gpus: &[[u8; 16]]) -> Result<HashMap<[u8; 16], Usage>, NoReadings> {
        self.0.ask(gpus.to_vec());
        let known = self.0.answer(Instant::now() + Pace::USUAL.patience())?;
        Ok(known.iter().map(|(uuid, facts)| (*uuid, facts.usage.clone())).collect())
    }
}

impl Drop for GpuUsers {
    fn drop(&mut self) {
        self.0.end();
    }
}
