//! A part of the kill matrix: cells that have failed once, and others for each seed, which also chooses how servers are reached. `cargo xtask kill-matrix`
//! tries all of it.

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
    let transport = Transport::of_run(seed);
    let mut cells = Cell::all();
    // As the command does without a transport: by TLS all of them, also those without a server.
    cells.retain(|cell| transport == Transport::Tls || cell.is_over(transport));
    kill::shuffle(&mut cells, seed);
    let has_failed = |cell: &Cell| FAILED_ONCE.contains(&cell.to_string().as_str());
    cells.sort_by_key(|cell| !has_failed(cell));
    let failed_once = cells.iter().filter(|cell| has_failed(cell)).count();
    assert!(transport != Transport::Tls || failed_once == FAILED_ONCE.len(), "no such cell");
    cells.truncate(failed_once + SAMPLE);
    let directory = std::env::temp_dir().join(format!("mrt-{}-kill", std::process::id()));
    let ends = kill::sweep(&cells, seed, AT_ONCE, transport, &directory, |_, _, _| ()).unwrap_or_else(|why| panic!("{why}"));
    let failed: Vec<String> = ends.iter().filter_map(|(c, e)| Some(format!("{c}: {}", e.as_ref().err()?))).collect();
    assert!(
        failed.is_empty(),
        "by {transport}: cargo xtask kill-matrix --seed {seed} --sample {SAMPLE}\n{}\n{}",
        failed.join("\n"),
        kill::tables(&ends)
    );
    // Empty now: each cell has taken its own away.
    std::fs::remove_dir_all(directory).unwrap();
}
