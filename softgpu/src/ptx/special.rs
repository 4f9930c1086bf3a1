//! Special registers that are constant during a launch, as rows a warp reads like registers.

use super::operand::{LANES, Row};

/// What the values of special registers follow from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) cta: [u32; 3],
    /// Number of the CTA in the grid.
    pub(crate) cta_number: u64,
    /// Number of the warp in the CTA.
    pub(crate) warp: u32,
    pub(crate) dynamic_shared: u32,
    pub(crate) total_shared: u32,
    /// Address of the workspace of a cooperative launch, or 0.
    pub(crate) workspace: u64,
}

/// Number of streaming multiprocessors that `%smid` distinguishes.
const SMS: u32 = 132;

const NAMES: [&str; 57] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%laneid",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%envreg1",
    "%envreg2",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%aggr_smem_size",
    "%clusterid.x",
    "%clusterid.y",
    "%clusterid.z",
    "%nclusterid.x",
    "%nclusterid.y",
    "%nclusterid.z",
    "%cluster_ctaid.x",
    "%cluster_ctaid.y",
    "%cluster_ctaid.z",
    "%cluster_nctaid.x",
    "%cluster_nctaid.y",
    "%cluster_nctaid.z",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
    "%envreg0",
    "%envreg3",
    "%envreg4",
    "%envreg5",
    "%envreg6",
    "%envreg7",
    "%pm0",
    "%pm1",
    "%pm2",
    "%pm3",
    "%gridid",
    "%tid",
    "WARP_SZ",
];

/// Index of the row of a special register.
pub(crate) fn index(name: &str) -> Option<u32> {
    NAMES.iter().position(|n| *n == name).and_then(|n| u32::try_from(n).ok())
}

/// The rows of a warp, in the order of `index`.
pub(crate) fn rows(p: &Place) -> Vec<Row<u32>> {
    let thread = |l: usize| p.warp * 32 + l as u32;
    let by_lane = |f: &dyn Fn(usize) -> u32| Row(std::array::from_fn::<u32, LANES, _>(f));
    let [bx, by, _] = p.block;
    let warps = (p.block.iter().product::<u32>()).div_ceil(32);
    NAMES
        .iter()
        .map(|name| {
            let (name, axis) = match name.rsplit_once('.') {
                Some((name, "x")) => (name, 0),
                Some((name, "y")) => (name, 1),
                Some((name, _)) => (name, 2),
                None => (*name, 0),
            };
            match name {
                "%tid" => match axis {
                    0 => by_lane(&|l| thread(l) % bx),
                    1 => by_lane(&|l| thread(l) / bx % by),
                    _ => by_lane(&|l| thread(l) / bx / by),
                },
                "%laneid" => by_lane(&|l| l as u32),
                "%lanemask_eq" => by_lane(&|l| 1 << l),
                "%lanemask_le" => by_lane(&|l| u32::MAX >> (31 - l)),
                "%lanemask_lt" => by_lane(&|l| (1 << l) - 1),
                "%lanemask_ge" => by_lane(&|l| u32::MAX << l),
                "%lanemask_gt" => by_lane(&|l| u32::MAX << l << 1),
                uniform => Row([match uniform {
                    "%ntid" => p.block[axis],
                    "%ctaid" | "%clusterid" => p.cta[axis],
                    "%nctaid" | "%nclusterid" => p.grid[axis],
                    "%warpid" => p.warp,
                    "%nwarpid" => warps,
                    "%smid" => (p.cta_number % u64::from(SMS)) as u32,
                    "%nsmid" => SMS,
                    // Cooperative groups read the address of their workspace here, the high half first.
                    "%envreg1" => (p.workspace >> 32) as u32,
                    "%envreg2" => p.workspace as u32,
                    "%dynamic_smem_size" => p.dynamic_shared,
                    "%total_smem_size" | "%aggr_smem_size" => p.total_shared,
                    "%cluster_nctaid" | "%cluster_nctarank" => 1,
                    "WARP_SZ" => 32,
                    _ => 0,
                }; LANES]),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_numbered_x_first() {
        let place = Place {
            grid: [1; 3],
            block: [5, 3, 4],
            cta: [0; 3],
            cta_number: 0,
            warp: 1,
            dynamic_shared: 0,
            total_shared: 0,
            workspace: 7 << 32 | 9,
        };
        let rows = rows(&place);
        let at = |name: &str, lane: usize| rows[index(name).expect("known") as usize].0[lane];
        // Thread 37 = 37 % 5, 37 / 5 % 3, 37 / 15.
        assert_eq!([at("%tid.x", 5), at("%tid.y", 5), at("%tid.z", 5)], [2, 1, 2]);
        assert_eq!([at("%envreg1", 0), at("%envreg2", 0), at("%nwarpid", 0)], [7, 9, 2]);
        assert_eq!([at("%lanemask_gt", 31), at("%lanemask_le", 31), at("%lanemask_lt", 0)], [0, u32::MAX, 0]);
    }
}
