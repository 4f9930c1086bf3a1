//! A part of the kill matrix: cells that have failed once, and others for each seed. `cargo xtask kill-matrix` tries all of it.

use tests::kill::{self, Cell};
use tests::{Transport, random};

/// Cells of a sample: less than a minute.
const SAMPLE: usize = 12;
/// The store is silent when its proof is there; the job must stay where it was.
const FAILED_ONCE: [&str; 1] = ["tcp-to-memory.verify.target-worker.stop"];
/// Cells at a time.
const AT_ONCE: usize = 4;

#[test]
fn a_sample_of_the_kill_matrix() {
    let seed = random::seed();
    let mut cells = Cell::all();
    kill::shuffle(&mut cells, seed);
    let has_failed = |cell: &Cell| FAILED_ONCE.contains(&cell.to_string().as_str());
    cells.sort_by_key(|cell| !has_failed(cell));
    assert!(cells[..FAILED_ONCE.len()].iter().all(has_failed), "no such cell");
    cells.truncate(FAILED_ONCE.len() + SAMPLE);
    let directory = std::env::temp_dir().join(format!("mrt-{}-kill", std::process::id()));
    let ends = kill::sweep(&cells, seed, AT_ONCE, Transport::Tls, &directory, |_, _, _| ()).unwrap_or_else(|why| panic!("{why}"));
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
