//! The page hash, by which two pages of memory are judged equal, and the bound on its error probability (docs/page-hash.md).
//!
//! NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC: Fast and Secure Message Authentication", CRYPTO 1999) over 32-bit words, four
//! passes with shifted keys (the paper's Toeplitz construction), all 256 bits kept. For two different pages of the same length that were
//! fixed without knowledge of the key, the probability of equal hashes is at most 2^-128; of different lengths, 2^-124.
//!
//! This is the implementation for the host; `kernels/executor.cu` computes the same on the GPU.

/// Maximum size of a page in bytes.
pub const PAGE_BYTES: usize = 64 << 10;
/// Hash of a page.
pub type PageHash = [u8; 32];
/// Replaces the hash of a page whose memory no longer exists.
pub const NO_HASH: PageHash = [0; 32];

/// Number of passes; each adds a factor of 2^-32 to the bound.
const PASSES: usize = 4;
/// Number of words by which each pass's key is shifted against that of the previous pass: the words of one row of threads of the kernel.
const SHIFT: usize = 512;
const WORDS: usize = PAGE_BYTES / 4 + (PASSES - 1) * SHIFT;
/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 4 * WORDS;

/// A key: used for the pages of one comparison, then never again.
#[derive(Clone)]
pub struct PageKey {
    words: Box<[u32]>,
}

impl std::fmt::Debug for PageKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageKey").finish_non_exhaustive()
    }
}

impl PageKey {
    /// The key that both ends of a comparison derive from the same 32 random bytes, by BLAKE3's extendable output.
    pub fn from_seed(seed: &[u8; 32]) -> PageKey {
        PageKey::numbered(seed, 0)
    }

    /// The key with this number of a seed: independent of the others.
    fn numbered(seed: &[u8; 32], number: u64) -> PageKey {
        let mut bytes = vec![0; KEY_BYTES];
        let mut output = blake3::Hasher::new_keyed(seed).finalize_xof();
        output.set_position(number * KEY_BYTES as u64);
        output.fill(&mut bytes);
        PageKey { words: bytes.as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect() }
    }

    /// The hash of a page.
    ///
    /// # Panics
    /// If the page is longer than [`PAGE_BYTES`].
    pub fn hash(&self, page: &[u8]) -> PageHash {
        assert!(page.len() <= PAGE_BYTES, "a page of {} bytes", page.len());
        let (whole, rest) = page.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(&last);
        // One pass after the other, so that compilers vectorize the loop.
        let sums: [u64; PASSES] = std::array::from_fn(|pass| {
            let key = self.words[pass * SHIFT..].as_chunks::<2>().0;
            let product = |(pair, [a, b]): (&[u8; 8], &[u32; 2])| {
                let pair = u64::from_le_bytes(*pair);
                u64::from((pair as u32).wrapping_add(*a)) * u64::from(((pair >> 32) as u32).wrapping_add(*b))
            };
            let sum = whole.iter().zip(key).map(product).fold(0, u64::wrapping_add);
            let sum = sum.wrapping_add(last.map_or(0, |pair| product((pair, &key[whole.len()]))));
            sum.wrapping_add(page.len() as u64)
        });
        let mut hash = NO_HASH;
        hash.as_chunks_mut::<8>().0.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum.to_le_bytes());
        hash
    }

    /// The hashes of a table of hashes, which is taken as memory: what a proof compares instead of the table.
    pub fn fold(&self, table: &[PageHash]) -> Vec<PageHash> {
        table.as_flattened().chunks(PAGE_BYTES).map(|page| self.hash(page)).collect()
    }

    /// The key as the kernel reads it.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = [u8; 4]> + '_ {
        self.words.iter().map(|w| w.to_le_bytes())
    }
}

/// The keys of a proof, each of which is used once.
#[derive(Debug, Clone)]
pub struct ProofKeys {
    /// For the pages.
    pub pages: PageKey,
    /// For the table of their hashes ([`PageKey::fold`]).
    pub table: PageKey,
}

impl ProofKeys {
    /// The keys that both ends derive from the same 32 random bytes.
    pub fn from_seed(seed: &[u8; 32]) -> ProofKeys {
        ProofKeys { pages: PageKey::from_seed(seed), table: PageKey::numbered(seed, 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_proof_are_different_ones() {
        let keys = ProofKeys::from_seed(&[3; 32]);
        let output: Vec<u8> = keys.pages.bytes().chain(keys.table.bytes()).flatten().collect();
        let mut want = vec![0; 2 * KEY_BYTES];
        blake3::Hasher::new_keyed(&[3; 32]).finalize_xof().fill(&mut want);
        assert!(output == want, "successive parts of one output");
    }

    #[test]
    fn a_folded_table_has_a_hash_for_each_2048() {
        let key = counted();
        for (pages, folded) in [(0, 0), (1, 1), (2048, 1), (2049, 2), (5000, 3)] {
            let mut table: Vec<PageHash> = (0..pages).map(|i| [i as u8; 32]).collect();
            let hashes = key.fold(&table);
            assert_eq!(hashes.len(), folded);
            for at in [0i32, 2047, 2048, pages - 1].into_iter().filter(|at| (0..pages).contains(at)) {
                table[at as usize][31] ^= 0x80;
                let differing: Vec<usize> = key.fold(&table).iter().zip(&hashes).map(|(a, b)| usize::from(a != b)).collect();
                assert_eq!((differing.iter().sum::<usize>(), differing[at as usize / 2048]), (1, 1));
                table[at as usize][31] ^= 0x80;
            }
        }
    }

    /// A key whose words are the multiples of a constant.
    fn counted() -> PageKey {
        PageKey { words: (0..WORDS as u32).map(|i| i.wrapping_mul(0x9E37_79B9)).collect() }
    }

    fn sums(hash: PageHash) -> [u64; PASSES] {
        let words = hash.as_chunks::<8>().0;
        std::array::from_fn(|i| u64::from_le_bytes(words[i]))
    }

    #[test]
    fn the_definition_written_out() {
        let key = counted();
        let k = |i: u32| i.wrapping_mul(0x9E37_79B9);
        assert_eq!(sums(key.hash(&[])), [0; 4]);
        // One truncated pair: its missing bytes are zeros.
        let product = |shift: u32| u64::from(k(shift).wrapping_add(0x0403_0201)) * u64::from(k(shift + 1).wrapping_add(5)) + 5;
        assert_eq!(sums(key.hash(&[1, 2, 3, 4, 5])), [0, 512, 1024, 1536].map(product));
    }

    #[test]
    fn vectors_of_the_documentation() {
        let pages: [(&str, Vec<u8>); 4] = [
            ("empty", Vec::new()),
            ("9 bytes 1..9", (1..=9).collect()),
            ("65536 zeros", vec![0; PAGE_BYTES]),
            ("65536 bytes i mod 251", (0..PAGE_BYTES).map(|i| (i % 251) as u8).collect()),
        ];
        let hex = |hash: PageHash| sums(hash).map(|s| format!("{s:016x}")).join(" ");
        let text = include_str!("../../docs/page-hash.md");
        let mut missing = Vec::new();
        for (name, key) in [("counted", counted()), ("seeded", PageKey::from_seed(&std::array::from_fn(|i| i as u8)))] {
            for (page, bytes) in &pages {
                let line = format!("{name}, {page}: {}", hex(key.hash(bytes)));
                if !text.contains(&line) {
                    missing.push(line);
                }
            }
        }
        assert!(missing.is_empty(), "docs/page-hash.md lacks:\n{}", missing.join("\n"));
    }
}
