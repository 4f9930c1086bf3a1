//! `cargo xtask kill-matrix`: tries every cell of the kill matrix and prints it as tables.

use crate::error::Error;
use crate::step::step;
use ::tests::kill::{self, Cell};
use ::tests::{Install, Transport};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

/// Arguments of `cargo xtask kill-matrix`.
#[derive(Debug, clap::Args)]
pub(crate) struct KillArgs {
    /// Seed of the moments and delays; printed, so that a run can be repeated
    #[arg(long)]
    seed: Option<u64>,
    /// Only cells whose name (way.point.victim.action) contains this; several with commas
    #[arg(long)]
    only: Option<String>,
    /// Only so many cells, chosen by the seed
    #[arg(long)]
    sample: Option<usize>,
    /// Only cells with a server that is reached in this way: tls, plain, shm, rdma, or
    /// nearest for an address without a prefix [default: all, by TLS and shared memory]
    #[arg(long)]
    transport: Option<Transport>,
    /// Cells at a time: most of them mostly wait
    #[arg(long, default_value_t = 6)]
    jobs: usize,
}

/// Tries the cells; any that fails is an error.
pub(crate) fn kill_matrix(args: &KillArgs) -> Result<(), Error> {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let seed = args.seed.unwrap_or_else(now);
    let transport = args.transport.unwrap_or(Transport::Tls);
    transport.check()?;
    step("building mrcuda, its libraries and softgpu");
    let directory = Install::get().target.join("kill-matrix");
    let wanted = |c: &Cell| args.only.as_ref().is_none_or(|only| only.split(',').any(|o| c.to_string().contains(o)));
    let is_over = |c: &Cell| args.transport.is_none_or(|transport| c.is_over(transport));
    let mut cells: Vec<Cell> = Cell::all().into_iter().filter(|cell| wanted(cell) && is_over(cell)).collect();
    kill::shuffle(&mut cells, seed);
    cells.truncate(args.sample.unwrap_or(usize::MAX));
    step(&format!("{} cells, seed {seed}", cells.len()));
    let (began, done) = (Instant::now(), AtomicUsize::new(0));
    let ends = kill::sweep(&cells, seed, args.jobs, transport, &directory, |cell, end, wall| {
        let words = end.as_ref().map_or_else(|why| format!("FAILED: {why}"), |e| format!("{e:?}"));
        let n = done.fetch_add(1, Ordering::Relaxed) + 1;
        eprintln!("{n:4}/{} {:5.1} s {cell}: {words}", cells.len(), wall.as_secs_f64());
    })?;
    println!("{}seed {seed}, {:.0} s", kill::tables(&ends), began.elapsed().as_secs_f64());
    match ends.values().filter(|e| e.is_err()).count() {
        0 => Ok(()),
        n => Err(Error::Found(format!("{n} cells failed"))),
    }
}
