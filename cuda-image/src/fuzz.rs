//! Fuzz targets for images from programs and clients.

use super::tests::{PTX, Pack, archive, cubin, fatbin, full_fatbin};
use super::{Image, Kind, load};
use ::fuzz::Limit;

/// Maximum decompressed code of an image in these targets.
const CODE: u64 = 1 << 20;
/// The index of this much code, and the code itself a few times: decompressed, changed, compressed.
const LIMIT: Limit = Limit { bytes: 16 << 20, each: 200 };

/// Calls every query of an image.
fn ask(kind: Kind, bytes: &[u8]) {
    let Ok(image) = Image::from_bytes(kind, bytes.into()) else { return };
    let index = image.index_within(CODE, None);
    for capability in [50, 90, 103] {
        image.index_within(CODE, Some(capability));
    }
    for kernel in index.kernels.keys() {
        index.kernel_params(kernel, 90);
        index.kernel_prints(kernel);
        index.kernel_references(kernel);
        index.kernel_system_atomics(kernel);
    }
    let form = image.load_form().expect("a whole image can be loaded");
    assert!(form.as_ptr().addr().is_multiple_of(8));
    image.module_form().expect("likewise");
    if index.too_large {
        return;
    }
    let entries = image.entries();
    assert!(entries.is_ok() || index.unreadable > 0, "{entries:?}");
    if let Ok(all) = image.managed() {
        let at = all.into_keys().zip((1u64..).map(|n| n << 32)).collect();
        if let Ok(placed) = image.with_managed(&at) {
            assert_eq!(placed.image.kind, kind);
        }
    }
}

#[test]
fn images() {
    let text = PTX.as_bytes();
    let (old, new) = (cubin(75, false, &["vprintf"]), cubin(90, true, &["malloc", "managed"]));
    let several = fatbin(&[(1, 75, 0, Pack::Zstd, text), (2, 90, 0, Pack::Lz4, &new), (1, 90, 0, Pack::Lz4Short, text)]);
    let seeds = vec![
        text.to_vec(),
        super::managed::tests::TEXT.as_bytes().to_vec(),
        old.clone(),
        new.clone(),
        fatbin(&[]),
        full_fatbin(),
        load::contain(&[several.clone(), fatbin(&[]), several.clone()]),
        archive(&[("a.ptx/", text), ("b.cubin/", &old), ("c/", &several)]),
        several,
    ];
    ::fuzz::run("images", seeds, LIMIT, |input| {
        for kind in [Kind::Wrapped, Kind::Linked, Kind::Cubin, Kind::Archive] {
            ask(kind, input);
        }
        // Text ends at its first zero.
        let text = input.split(|b| *b == 0).next().unwrap_or_default();
        ask(Kind::Ptx, &[text, &[0]].concat());
    });
}
