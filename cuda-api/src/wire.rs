//! The byte encoding shared by the connection, the ring and the journal: little endian, no padding, no text.

use smallvec::{Array, SmallVec};

/// The input is truncated, or contains an impossible length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message is shorter than its fields")]
pub struct Short;

/// A value with a byte encoding.
pub trait Wire: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Decodes a value from the front of `src`.
    fn get(src: &mut &[u8]) -> Result<Self, Short>;

    /// Appends the elements of a list.
    fn put_all(all: &[Self], out: &mut Vec<u8>) {
        all.iter().for_each(|v| v.put(out));
    }

    /// Decodes `n` elements and adds them to a list.
    fn get_all(src: &mut &[u8], n: usize, all: &mut impl List<Self>) -> Result<(), Short> {
        // Every element takes at least one byte, so a larger count is invalid. Elements can be larger than that, so a count that is
        // not exceeded by the input does not bound the memory of a list: long ones grow as they are read.
        const AT_ONCE: usize = 64;
        if n > src.len() {
            return Err(Short);
        }
        all.reserve_exact(n.min(AT_ONCE));
        for _ in 0..n {
            all.push(Self::get(src)?);
        }
        Ok(())
    }
}

/// A list that grows.
pub trait List<T> {
    /// Makes room for this many more elements.
    fn reserve_exact(&mut self, more: usize);
    /// Adds an element.
    fn push(&mut self, one: T);
    /// Adds copies of elements.
    fn extend_from_slice(&mut self, all: &[T])
    where
        T: Copy;
}

impl<T> List<T> for Vec<T> {
    fn reserve_exact(&mut self, more: usize) {
        Vec::reserve_exact(self, more);
    }
    fn push(&mut self, one: T) {
        Vec::push(self, one);
    }
    fn extend_from_slice(&mut self, all: &[T])
    where
        T: Copy,
    {
        Vec::extend_from_slice(self, all);
    }
}

impl<A: Array> List<A::Item> for SmallVec<A> {
    fn reserve_exact(&mut self, more: usize) {
        SmallVec::reserve_exact(self, more);
    }
    fn push(&mut self, one: A::Item) {
        SmallVec::push(self, one);
    }
    fn extend_from_slice(&mut self, all: &[A::Item])
    where
        A::Item: Copy,
    {
        SmallVec::extend_from_slice(self, all);
    }
}

/// Takes `n` bytes off the front.
pub fn take<'a>(src: &mut &'a [u8], n: usize) -> Result<&'a [u8], Short> {
    let (head, tail) = src.split_at_checked(n).ok_or(Short)?;
    *src = tail;
    Ok(head)
}

macro_rules! plain { ($($t:ty)*) => {$(
    impl Wire for $t {
        fn put(&self, out: &mut Vec<u8>) { out.extend_from_slice(&self.to_le_bytes()) }
        fn get(src: &mut &[u8]) -> Result<Self, Short> {
            let (head, tail) = src.split_first_chunk().ok_or(Short)?;
            *src = tail;
            Ok(<$t>::from_le_bytes(*head))
        }
    })*};
}
plain!(u16 u32 u64 i8 i16 i32 i64 f32 f64);

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        let (head, tail) = src.split_first().ok_or(Short)?;
        *src = tail;
        Ok(*head)
    }
    fn put_all(all: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(all);
    }
    fn get_all(src: &mut &[u8], n: usize, all: &mut impl List<u8>) -> Result<(), Short> {
        all.extend_from_slice(take(src, n)?);
        Ok(())
    }
}

impl Wire for usize {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u64).put(out);
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        usize::try_from(u64::get(src)?).map_err(|_| Short)
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        match u8::get(src)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Short),
        }
    }
}

impl Wire for () {
    fn put(&self, _: &mut Vec<u8>) {}
    fn get(_: &mut &[u8]) -> Result<Self, Short> {
        Ok(())
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(v) = self {
            v.put(out);
        }
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        bool::get(src)?.then(|| T::get(src)).transpose()
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        T::put_all(self, out);
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        let (n, mut all) = (usize::get(src)?, Vec::new());
        T::get_all(src, n, &mut all).map(|()| all)
    }
}

/// As a [`Vec`] of the same elements.
impl<A: Array<Item: Wire>> Wire for SmallVec<A> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        A::Item::put_all(self, out);
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        let (n, mut all) = (usize::get(src)?, SmallVec::new());
        A::Item::get_all(src, n, &mut all).map(|()| all)
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        let n = usize::get(src)?;
        String::from_utf8(take(src, n)?.to_vec()).map_err(|_| Short)
    }
}

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    fn put(&self, out: &mut Vec<u8>) {
        T::put_all(self, out);
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        let mut all = [T::default(); N];
        for v in &mut all {
            *v = T::get(src)?;
        }
        Ok(all)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        Ok((A::get(src)?, B::get(src)?))
    }
}

/// Declares a struct whose encoding is that of its fields in order.
#[macro_export]
macro_rules! wire_struct {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $fvis:vis $field:ident : $t:ty),* $(,)? }) => {
        $(#[$meta])* $vis struct $name { $($(#[$fmeta])* $fvis $field: $t),* }
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::put(&self.$field, out);)*
                // Of a struct without fields.
                let _ = out;
            }
            fn get(src: &mut &[u8]) -> Result<Self, $crate::wire::Short> {
                let it = Self { $($field: $crate::wire::Wire::get(src)?),* };
                let _ = src;
                Ok(it)
            }
        }
    };
}

/// Declares an enum without fields whose encoding is one byte, the number of the variant. `ALL` has the variants in order.
#[macro_export]
macro_rules! wire_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $number:literal),* $(,)? }) => {
        $(#[$meta])*
        #[repr(u8)]
        $vis enum $name { $($(#[$vmeta])* $variant = $number),* }
        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($name::$variant),*].len()] = [$($name::$variant),*];
        }
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::wire::Wire::put(&(*self as u8), out);
            }
            fn get(src: &mut &[u8]) -> Result<Self, $crate::wire::Short> {
                let number = <u8 as $crate::wire::Wire>::get(src)?;
                Self::ALL.into_iter().find(|one| *one as u8 == number).ok_or($crate::wire::Short)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_no_variant_is_refused() {
        wire_enum! {
            #[derive(Debug, Clone, Copy, PartialEq)]
            enum Kind { First = 0, Third = 2 }
        }
        let mut out = Vec::new();
        Kind::ALL.iter().for_each(|kind| kind.put(&mut out));
        assert_eq!(out, [0, 2]);
        assert_eq!((Kind::get(&mut &[0][..]), Kind::get(&mut &[2][..])), (Ok(Kind::First), Ok(Kind::Third)));
        assert_eq!([&[1][..], &[3], &[]].map(|bytes| Kind::get(&mut &bytes[..])), [Err(Short); 3]);
    }

    #[test]
    fn a_lying_length_is_refused() {
        let mut out = Vec::new();
        vec![1u32, 2, 3].put(&mut out);
        assert_eq!(Vec::<u32>::get(&mut &out[..]), Ok(vec![1, 2, 3]));
        out[0] = 200;
        assert_eq!(Vec::<u32>::get(&mut &out[..]), Err(Short));
        out[..8].fill(0xff);
        assert_eq!(Vec::<u32>::get(&mut &out[..]), Err(Short));
        assert_eq!(Vec::<u8>::get(&mut &out[..]), Err(Short));
    }

    #[test]
    fn lists_of_all_kinds_have_one_encoding() {
        for n in [0, 3, 40, 200] {
            let list: Vec<u8> = (0..n).collect();
            let (mut one, mut other, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
            list.put(&mut one);
            SmallVec::<[u8; 32]>::from_slice(&list).put(&mut other);
            list.len().put(&mut bytes);
            list.iter().for_each(|b| b.put(&mut bytes));
            assert!(one == other && one == bytes);
            assert_eq!(SmallVec::<[u8; 32]>::get(&mut &one[..]).unwrap().as_slice(), list);
            assert_eq!(Vec::<u8>::get(&mut &one[..]), Ok(list.clone()));
            let pairs: Vec<(u32, u8)> = list.iter().map(|n| (u32::from(*n) << 9, *n)).collect();
            one.clear();
            pairs.put(&mut one);
            assert_eq!(SmallVec::<[(u32, u8); 2]>::get(&mut &one[..]).unwrap().as_slice(), pairs);
            assert!((0..one.len()).all(|cut| Vec::<(u32, u8)>::get(&mut &one[..cut]) == Err(Short)));
        }
    }
}
