//! The page hash by which moves choose what to send and verify what arrived, against pages that weak hashes confuse.

mod battery;
mod weak;

use battery::{findings, missed};

/// Controls: the battery finds every weak hash, also the one that mrcuda had in the beginning, whose collisions made moves lose bytes.
#[test]
fn weak_hashes_are_found() {
    let old = findings(3, weak::multiply_and_shift);
    assert_eq!(missed(&old), ["pairs of high bits", "signs in lattices"], "{old:?}");
    let all = [
        ("exclusive or", missed(&findings(3, weak::exclusive_or))),
        ("sum", missed(&findings(3, weak::sum))),
        ("sum by place", missed(&findings(3, weak::sum_by_place))),
        ("half products", missed(&findings(3, weak::half_products))),
    ];
    for (name, missed) in &all {
        assert!(!missed.is_empty(), "{name} passes");
    }
    // Each family is one that some weak hash does not pass.
    let unused: Vec<_> =
        old.keys().filter(|family| !missed(&old).contains(*family) && !all.iter().any(|(_, m)| m.contains(*family))).collect();
    assert!(unused.is_empty(), "nothing fails in {unused:?}; {all:?}");
}
