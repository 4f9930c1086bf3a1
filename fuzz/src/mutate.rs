//! Changed copies of inputs.

/// No input is longer.
const LONGEST: usize = 64 << 10;
/// Numbers at which parsers have their limits.
const LIMITS: [u64; 16] = [
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Makes inputs (xorshift64* decides how).
pub(crate) struct Mutator(u64);

impl Mutator {
    pub(crate) fn new(seed: u64) -> Mutator {
        Mutator(seed | 1)
    }

    fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.number() >> 32) as usize) % n.max(1)
    }

    /// A part of so many bytes, mostly a short one.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len);
        let most = if self.below(2) == 0 { 16 } else { len };
        start..(start + 1 + self.below(most)).min(len)
    }

    /// An input of the pool with a few changes.
    pub(crate) fn changed(&mut self, pool: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = pool[self.below(pool.len())].clone();
        for _ in 0..1 << self.below(4) {
            let other = &pool[self.below(pool.len())];
            self.change(&mut bytes, other);
        }
        bytes.truncate(LONGEST);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        if bytes.is_empty() {
            bytes.extend_from_slice(other);
            return;
        }
        let at = self.below(bytes.len());
        match self.below(12) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.number() as u8,
            2 | 3 => {
                let value = LIMITS[self.below(LIMITS.len())];
                self.put(bytes, at, value);
            }
            4 => {
                let (end, offset) = (bytes.len() as u64, self.below(17) as u64);
                self.put(bytes, at, (end + offset).wrapping_sub(8));
            }
            5 => {
                let mut word = [0; 8];
                let n = (bytes.len() - at).min(8);
                word[..n].copy_from_slice(&bytes[at..at + n]);
                let value = u64::from_le_bytes(word).wrapping_add(self.below(33) as u64).wrapping_sub(16);
                self.put(bytes, at, value);
            }
            6 => bytes.truncate(at),
            7 => drop(bytes.drain(self.range(bytes.len()))),
            8 => {
                let part = bytes[self.range(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            9 => {
                let part = other[self.range(other.len())].to_vec();
                bytes.splice(at..at, part);
            }
            10 => {
                let part = &other[self.range(other.len())];
                let n = part.len().min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&part[..n]);
            }
            _ => {
                bytes.truncate(at);
                bytes.extend_from_slice(&other[at.min(other.len())..]);
            }
        }
    }

    /// Writes a number of 1, 2, 4 or 8 bytes, as far as there is room.
    fn put(&mut self, bytes: &mut [u8], at: usize, value: u64) {
        let n = (1 << self.below(4)).min(bytes.len() - at);
        bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
    }
}
