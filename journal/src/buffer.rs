//! Records in memory of their own.

use crate::{JournalError, Record, record};

/// Records in the encoding of the journal, in the order in which they were added. They are viewed where they are.
#[derive(Debug, Clone, Default)]
pub struct RecordBuffer {
    words: Vec<u64>,
}

impl RecordBuffer {
    /// Adds a record.
    ///
    /// # Errors
    /// A part of it is longer than the format allows.
    pub fn push(&mut self, r: &Record) -> Result<(), JournalError> {
        let len = record::encoded_len(r)? as usize;
        let at = self.words.len();
        self.words.resize(at + len / size_of::<u64>(), 0);
        self.words[at] = record::encode(r, &mut self.words[at..]);
        Ok(())
    }

    /// Adds the words of a record that has been checked.
    pub(crate) fn push_words(&mut self, words: &[u64]) {
        self.words.extend_from_slice(words);
    }

    /// Makes space for this many more words.
    pub(crate) fn reserve(&mut self, words: usize) {
        self.words.reserve_exact(words);
    }

    /// The records, in order.
    pub fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        let mut rest = &self.words[..];
        std::iter::from_fn(move || {
            let len = *rest.first()? as u32 as usize / size_of::<u64>();
            let (record, after) = rest.split_at(len);
            rest = after;
            Some(record::view(record).expect("only whole records are added"))
        })
    }

    #[cfg(test)]
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }
}

#[cfg(test)]
mod tests;
