//! The file of a parked device.

use super::OpenError;
use crate::random::random;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A file that holds the memory of a parked device. It is removed when nothing refers to it any more: it is of no use to anybody else.
/// (A helper removes it if the job ends before that.)
#[derive(Debug)]
pub(crate) struct KeptFile {
    path: PathBuf,
    /// What identifies its last complete contents.
    pub(super) seal: Mutex<Option<[u8; 32]>>,
}

impl KeptFile {
    /// A name for a new file in a directory.
    pub(super) fn new(directory: &Path, device: u32) -> Result<std::sync::Arc<KeptFile>, OpenError> {
        let number: [u8; 8] = random().map_err(|why| OpenError::FileName(why.to_string()))?;
        let name = format!("mrcuda-{}-{device}-{}.parked", std::process::id(), cuda_api::hex::hex(&number));
        Ok(std::sync::Arc::new(KeptFile { path: directory.join(name), seal: Mutex::new(None) }))
    }

    /// Its path, as a helper gets it.
    pub(super) fn text(&self) -> Result<String, OpenError> {
        self.path.to_str().map(str::to_owned).ok_or_else(|| OpenError::FileName(format!("{} is not UTF-8", self.path.display())))
    }

    pub(super) fn remove(&self) {
        // Its helper may not have created it.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        self.remove();
    }
}
