//! Lists that are nearly always short: a call creates, destroys and uses a handle or two.

use std::ops::Deref;

/// Number of elements that are stored without allocating.
const INSIDE: usize = 3;

/// A list of numbers that allocates only when it is long.
#[derive(Clone)]
pub struct Few {
    inside: [u64; INSIDE],
    /// Number of valid elements of `inside`; 0 once `more` is used.
    count: usize,
    /// All elements, if they do not fit.
    more: Vec<u64>,
}

impl Few {
    /// An empty list.
    #[inline]
    pub const fn new() -> Few {
        Few { inside: [0; INSIDE], count: 0, more: Vec::new() }
    }

    /// Adds an element.
    #[inline]
    pub fn push(&mut self, n: u64) {
        if self.more.is_empty() && self.count < INSIDE {
            self.inside[self.count] = n;
            self.count += 1;
        } else {
            self.push_to_heap(n);
        }
    }

    #[cold]
    fn push_to_heap(&mut self, n: u64) {
        self.more.extend_from_slice(&self.inside[..self.count]);
        self.more.push(n);
        self.count = 0;
    }

    /// Keeps the elements for which `wanted` returns true.
    pub fn retain(&mut self, wanted: impl FnMut(&u64) -> bool) {
        let mut all = std::mem::take(self).to_vec();
        all.retain(wanted);
        *self = all.into();
    }
}

impl Default for Few {
    #[inline]
    fn default() -> Few {
        Few::new()
    }
}

impl Deref for Few {
    type Target = [u64];
    #[inline]
    fn deref(&self) -> &[u64] {
        if self.more.is_empty() { &self.inside[..self.count.min(INSIDE)] } else { &self.more }
    }
}

impl From<Vec<u64>> for Few {
    fn from(all: Vec<u64>) -> Few {
        if all.len() > INSIDE { Few { more: all, ..Few::new() } } else { all.into_iter().collect() }
    }
}

impl<const N: usize> From<[u64; N]> for Few {
    #[inline]
    fn from(all: [u64; N]) -> Few {
        all.into_iter().collect()
    }
}

impl FromIterator<u64> for Few {
    #[inline]
    fn from_iter<I: IntoIterator<Item = u64>>(all: I) -> Few {
        let mut few = Few::new();
        all.into_iter().for_each(|n| few.push(n));
        few
    }
}

impl<'f> IntoIterator for &'f Few {
    type Item = &'f u64;
    type IntoIter = std::slice::Iter<'f, u64>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Few {
    fn eq(&self, other: &Few) -> bool {
        **self == **other
    }
}

impl Eq for Few {}

impl std::fmt::Debug for Few {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list_of_any_length() {
        let mut few = Few::new();
        let mut all = Vec::new();
        for n in 10..20 {
            assert_eq!(*few, *all);
            assert_eq!(few, Few::from(all.clone()));
            few.push(n);
            all.push(n);
        }
        few.retain(|n| n % 2 == 0);
        assert_eq!(*few, [10, 12, 14, 16, 18]);
        few.retain(|n| *n > 14);
        assert_eq!((&*few, few.more.len()), (&[16, 18][..], 0));
    }
}
