//! Images that were measured lately: programs load the same code again and again, and comparing costs a fraction of copying and hashing.

use super::kind::{Kind, Result};
use super::load::{self, WRAPPER_MAGIC};
use super::source::{Memory, u32_at, u64_at};
use super::{Image, measure};
use std::collections::VecDeque;

/// Maximum number of images, and of their bytes together.
const MAX_IMAGES: usize = 64;
const MAX_BYTES: usize = 32 << 20;
/// Larger images are libraries, which are loaded once.
const MAX_IMAGE_BYTES: usize = 4 << 20;

/// Images that were measured lately, the newest first.
#[derive(Debug, Default)]
pub struct Known {
    images: VecDeque<Image>,
    bytes: usize,
    /// A buffer for what is compared.
    piece: Vec<u8>,
}

impl Known {
    /// No image.
    pub const fn new() -> Known {
        Known { images: VecDeque::new(), bytes: 0, piece: Vec::new() }
    }

    /// As [`measure`]. An image that is known, whose every byte is compared, is returned without a copy, with its hash if that was
    /// computed.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// # Safety
    /// As for [`measure`].
    pub unsafe fn measure(&mut self, ptr: *const u8) -> Result<Image> {
        // SAFETY: the caller vouches for the memory at `ptr`.
        if let Some(at) = unsafe { self.find(ptr) }
            && let Some(image) = self.images.remove(at)
        {
            self.images.push_front(image.clone());
            return Ok(image);
        }
        // SAFETY: as above.
        let image = unsafe { measure(ptr) }?;
        self.add(&image);
        Ok(image)
    }

    /// The position of the image that is at `ptr`.
    ///
    /// # Safety
    /// As for [`measure`].
    unsafe fn find(&mut self, ptr: *const u8) -> Option<usize> {
        // SAFETY: the caller vouches for the memory at `ptr`.
        let mut memory = unsafe { Memory::new(ptr) }.ok()?;
        let mut head = [0; load::WRAPPER];
        // A text may be shorter than a wrapper.
        let is_wrapper = memory.read_some(0, &mut head) == Ok(head.len()) && u32_at(&head, 0) == WRAPPER_MAGIC;
        if is_wrapper {
            if u32_at(&head, 4) != 1 {
                return None;
            }
            // SAFETY: the caller vouches for what the wrapper points to as well.
            memory = unsafe { Memory::new(load::pointer(u64_at(&head, 8)).cast()) }.ok()?;
        }
        let Known { images, piece, .. } = self;
        images.iter().position(|image| (image.kind == Kind::Wrapped) == is_wrapper && memory.holds(&image.bytes, piece))
    }

    /// Keeps an image whose end is known from its own bytes: what starts with all of them is this image, and no longer one.
    fn add(&mut self, image: &Image) {
        if image.bytes.len() > MAX_IMAGE_BYTES || !matches!(image.kind, Kind::Ptx | Kind::Cubin | Kind::Fatbin | Kind::Wrapped) {
            return;
        }
        self.bytes += image.bytes.len();
        self.images.push_front(image.clone());
        while self.images.len() > MAX_IMAGES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.images.pop_back() else { break };
            self.bytes -= oldest.bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::PAGE;
    use std::sync::Arc;

    /// Longer than what is compared at once, and different from any other number's text near its end only.
    fn text(number: usize, end: &str) -> Vec<u8> {
        let mut text = format!(".version 7.0\n.target sm_70\n// {}\n// {number} {end}\n", "x".repeat(200_000)).into_bytes();
        text.push(0);
        text
    }

    fn measured(known: &mut Known, bytes: &[u8]) -> Image {
        // SAFETY: the bytes are a whole text.
        unsafe { known.measure(bytes.as_ptr()) }.expect("a text")
    }

    #[test]
    fn the_same_bytes_at_another_address_are_the_same_image() {
        let mut known = Known::new();
        let first = measured(&mut known, &text(1, ""));
        let hash = first.hash();
        let again = measured(&mut known, &text(1, ""));
        assert!(Arc::ptr_eq(&first.bytes, &again.bytes));
        assert_eq!(again.hash(), hash);
    }

    #[test]
    fn one_different_byte_is_another_image() {
        let mut known = Known::new();
        let one = text(1, "");
        measured(&mut known, &one);
        for at in [0, 63, 4095, 4096, 65_535, 65_536, 69_631, 69_632, one.len() / 2, one.len() - 2] {
            let mut other = one.clone();
            other[at] ^= 1;
            let image = measured(&mut known, &other);
            assert_eq!(*image.bytes, *other, "byte {at}");
            assert_ne!(image.hash(), measured(&mut known, &one).hash(), "byte {at}");
        }
    }

    #[test]
    fn beginnings_and_continuations_are_other_images() {
        let mut known = Known::new();
        let (short, long) = (text(1, ""), text(1, "and more"));
        measured(&mut known, &long);
        assert_eq!(*measured(&mut known, &short).bytes, *short);
        assert_eq!(*measured(&mut known, &long).bytes, *long);
        assert_eq!(*measured(&mut known, &short).bytes, *short);
        assert_eq!(known.images.len(), 2);
    }

    #[test]
    fn a_fat_binary_and_its_wrapper_are_different_images() {
        // An empty one: magic number, version, size of the header; nothing after it.
        let fatbin: [u64; 2] = [0x0010_0001_BA55_ED50, 0];
        let wrapper = [u64::from(WRAPPER_MAGIC) | 1 << 32, fatbin.as_ptr().expose_provenance() as u64, 0];
        let mut known = Known::new();
        for _ in 0..2 {
            for (at, kind) in [(&wrapper[..], Kind::Wrapped), (&fatbin, Kind::Fatbin)] {
                // SAFETY: a whole image.
                let image = unsafe { known.measure(at.as_ptr().cast()) }.expect("an image");
                assert_eq!((image.kind, image.bytes.len()), (kind, 16));
            }
        }
        assert_eq!(known.images.len(), 2);
    }

    /// Forbids the calling thread to read through the kernel, as sandboxes do.
    fn forbid_reads() {
        let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let mut steps = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_process_vm_readv as u32, 1),
            step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0),
            step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        ];
        let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: changes this thread only; the filter lives until the call returns.
        let forbidden = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
        };
        assert!(forbidden, "{}", std::io::Error::last_os_error());
    }

    /// The bytes at the end of readable memory.
    fn before_a_gap(bytes: &[u8]) -> *const u8 {
        let room = bytes.len().next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new mappings, of which all but the last page are made writable.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), room + PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: as above; the bytes fit.
        unsafe {
            assert_eq!(libc::mprotect(at, room, libc::PROT_READ | libc::PROT_WRITE), 0);
            let to = at.cast::<u8>().add(room - bytes.len());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            to
        }
    }

    #[test]
    fn nothing_after_an_image_is_read_where_the_kernel_refuses_to_read() {
        let run = || {
            let mut known = Known::new();
            let long = text(1, "");
            let first = measured(&mut known, &long);
            forbid_reads();
            // They begin as the known one; one is shorter than a page, one is longer, one is shorter than a wrapper.
            for len in [100, 5000, 10] {
                let short = [&long[..len - 1], b"\0"].concat();
                // SAFETY: a whole text.
                let image = unsafe { known.measure(before_a_gap(&short)) }.expect("a text");
                assert_eq!(*image.bytes, *short);
            }
            // SAFETY: as above.
            let again = unsafe { known.measure(before_a_gap(&long)) }.expect("a text");
            assert!(Arc::ptr_eq(&first.bytes, &again.bytes));
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn the_images_not_used_for_longest_are_dropped() {
        let mut known = Known::new();
        let kept = measured(&mut known, &text(0, ""));
        for number in 1..3 * MAX_IMAGES {
            measured(&mut known, &text(number, ""));
            assert!(Arc::ptr_eq(&kept.bytes, &measured(&mut known, &text(0, "")).bytes), "image {number}");
        }
        assert_eq!(known.images.len(), MAX_IMAGES);
        assert_eq!(known.bytes, known.images.iter().map(|image| image.bytes.len()).sum::<usize>());
        for size in 1..16 {
            let long = [b"// ".repeat(size << 16), text(size, "")].concat();
            measured(&mut known, &long);
            assert!(known.bytes <= MAX_BYTES);
        }
    }
}
