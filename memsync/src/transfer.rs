//! The two ends of a connection that carries batches of pages, some of them compressed.
//!
//! A compressed batch is one frame of zstd, at level 1: unlike LZ4 it makes floating-point numbers smaller ([decision 0035]).
//!
//! [decision 0035]: ../../docs/decisions/0035-compression-where-links-are-slow.md

use crate::Stream;
use crate::clock::Moment;
use crate::compression::Compression;
use crate::error::SyncError;
use crate::frames::{Batch, send_batch, send_compressed};
use std::fmt;
use zstd::bulk::{Compressor, Decompressor};

const LEVEL: i32 = 1;

/// The source's end. What compression needs is only made when a batch is to be compressed.
pub(crate) struct Outgoing<'a> {
    stream: &'a mut dyn Stream,
    compression: &'a mut Compression,
    compressor: Option<Compressor<'static>>,
    compressed: Vec<u8>,
    carried: u64,
}

impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("compression", &self.compression).field("carried", &self.carried).finish_non_exhaustive()
    }
}

impl<'a> Outgoing<'a> {
    pub(crate) fn new(stream: &'a mut dyn Stream, compression: &'a mut Compression) -> Outgoing<'a> {
        Outgoing { stream, compression, compressor: None, compressed: Vec::new(), carried: 0 }
    }

    /// Bytes of pages that the connection has carried: less than those of the pages if some were compressed.
    pub(crate) fn carried(&self) -> u64 {
        self.carried
    }

    /// Sends a batch of pages; an empty batch marks the end.
    pub(crate) fn send(&mut self, numbers: &[u32], bytes: &[u8]) -> Result<(), SyncError> {
        if self.compression.is_due() && !bytes.is_empty() {
            let compressing = Moment::now();
            let remained = self.compress(bytes);
            let compressing = compressing.elapsed();
            if let Some(remained) = remained {
                let writing = Moment::now();
                send_compressed(self.stream, numbers, bytes.len(), &self.compressed[..remained])?;
                self.carried += remained as u64;
                self.compression.sent_compressed(bytes.len(), remained, compressing, writing.elapsed());
                return Ok(());
            }
            self.compression.did_not_shrink(compressing);
        }
        let writing = Moment::now();
        send_batch(self.stream, numbers, bytes)?;
        self.carried += bytes.len() as u64;
        self.compression.sent_plain(bytes.len(), writing.elapsed());
        Ok(())
    }

    /// Compresses bytes and returns how many remain; `None` if it does not pay to send them so. A compressor that cannot be made, for want
    /// of memory, is none that pays.
    fn compress(&mut self, bytes: &[u8]) -> Option<usize> {
        let limit = Compression::limit(bytes.len());
        if self.compressed.len() < limit {
            self.compressed.resize(limit, 0);
        }
        if self.compressor.is_none() {
            self.compressor = Compressor::new(LEVEL).ok();
        }
        // What does not fit into the limit is an error.
        self.compressor.as_mut()?.compress_to_buffer(bytes, &mut self.compressed[..limit]).ok().filter(|n| *n > 0)
    }
}

/// The target's end. What decompression needs is only made when a batch is compressed.
#[derive(Default)]
pub(crate) struct Incoming {
    decompressor: Option<Decompressor<'static>>,
    compressed: Vec<u8>,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

impl Incoming {
    /// Reads what follows the head of a batch, whose size was checked with the head. `to` has the size of its pages.
    pub(crate) fn read(&mut self, s: &mut dyn Stream, batch: &Batch, to: &mut [u8]) -> Result<(), SyncError> {
        let to = if batch.is_compressed() {
            self.compressed.resize(batch.carried, 0);
            &mut self.compressed[..]
        } else {
            to
        };
        s.read_exact(to).map_err(SyncError::io("receiving pages"))
    }

    /// Decompresses what was read, if it is compressed: into exactly the bytes of its pages, and nothing else.
    pub(crate) fn expand(&mut self, batch: &Batch, to: &mut [u8]) -> Result<(), SyncError> {
        if !batch.is_compressed() {
            return Ok(());
        }
        let failed = SyncError::Decompressor;
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new().map_err(failed)?),
        };
        // It writes into these bytes only, and takes no memory for what a frame announces.
        match decompressor.decompress_to_buffer(&self.compressed, &mut *to) {
            Ok(n) if n == to.len() => Ok(()),
            Ok(_) => Err(SyncError::Protocol("a compressed batch with fewer bytes than its pages have")),
            Err(_) => Err(SyncError::Protocol("a compressed batch that is damaged, or has more bytes than its pages have")),
        }
    }
}
