//! A part of the kill matrix, another one for each seed; `cargo xtask kill-matrix` tries all of it.

use tests::kill::{self, Cell};
use tests::random;

/// Cells of a sample: less than a minute.
const SAMPLE: usize = 12;
/// Cells at a time.
const AT_ONCE: usize = 4;

#[test]
fn a_sample_of_the_kill_matrix() {
    let seed = random::seed();
    let mut cells = Cell::all();
    kill::shuffle(&mut cells, seed);
    cells.truncate(SAMPLE);
    let directory = std::env::temp_dir().join(format!("mrt-{}-kill", std::process::id()));
    let ends = kill::sweep(&cells, seed, AT_ONCE, &directory, |_, _, _| ()).unwrap_or_else(|why| panic!("{why}"));
    let failed: Vec<String> = ends.iter().filter_map(|(c, e)| Some(format!("{c}: {}", e.as_ref().err()?))).collect();
    assert!(
        failed.is_empty(),
        "cargo xtask kill-matrix --seed {seed} --sample {SAMPLE}\n{}\n{}",
        failed.join("\n"),
        kill::tables(&ends)
    );
    // Empty now: each cell has taken its own away.
    std::fs::remove_dir_all(directory).unwrap();
}
