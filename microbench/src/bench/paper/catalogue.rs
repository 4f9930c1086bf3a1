//! The figures and tables of the four papers: those that are repeated here, what the papers say, and those that are not, with the reason.

use super::lab::{Findings, Lab};
use super::{migration, mrcuda, p2p, rcuda, schedule};
use crate::error::Error;

/// A paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paper {
    Mrcuda,
    Rcuda,
    P2p,
    Migration,
}

impl Paper {
    /// All, in the order of the page.
    pub(super) const ALL: [Paper; 4] = [Paper::Mrcuda, Paper::Rcuda, Paper::P2p, Paper::Migration];

    /// What the names of its experiments begin with.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Paper::Mrcuda => "mrcuda",
            Paper::Rcuda => "rcuda",
            Paper::P2p => "p2p",
            Paper::Migration => "migration",
        }
    }

    /// Where it was published.
    pub(super) fn citation(self) -> &'static str {
        match self {
            Paper::Mrcuda => {
                "P. Markthub, A. Nomura, S. Matsuoka: mrCUDA: Low-Overhead Middleware for Transparently Migrating CUDA Execution \
                 from Remote to Local GPUs. Poster, SC15, 2015"
            }
            Paper::Rcuda => {
                "A. J. Peña, C. Reaño, F. Silla, R. Mayo, E. S. Quintana-Ortí, J. Duato: A complete and efficient CUDA-sharing \
                 solution for HPC clusters. Parallel Computing, 2014"
            }
            Paper::P2p => {
                "C. Reaño, F. Silla: On the support of inter-node P2P GPU memory copies in rCUDA. Journal of Parallel and \
                 Distributed Computing, 2019"
            }
            Paper::Migration => {
                "J. Prades, F. Silla: GPU-Job Migration: The rCUDA Case. IEEE Transactions on Parallel and Distributed Systems, 2019"
            }
        }
    }

    /// Its hardware.
    pub(super) fn hardware(self) -> &'static str {
        match self {
            Paper::Mrcuda => "two nodes with a K20c each, InfiniBand 4xFDR",
            Paper::Rcuda | Paper::P2p => "nodes with InfiniBand",
            Paper::Migration => "nodes with InfiniBand or 1 Gbit/s Ethernet; K20 and P100 GPUs",
        }
    }
}

/// A figure that a paper gives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Published {
    /// What it is; the experiment puts ours beside it under the same name.
    pub(super) what: &'static str,
    pub(super) value: &'static str,
}

const fn published(what: &'static str, value: &'static str) -> Published {
    Published { what, value }
}

/// A figure or table that is repeated here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Experiment {
    /// Its name on the command line, which begins with that of its paper.
    pub(super) name: &'static str,
    pub(super) paper: Paper,
    pub(super) title: &'static str,
    /// What the figure or table of the paper shows.
    pub(super) figure: &'static str,
    /// What is run here.
    pub(super) here: &'static str,
    /// The unit of its plot's vertical axis.
    pub(super) unit: &'static str,
    /// What the paper says, and we measure as well.
    pub(super) published: &'static [Published],
    /// What a machine needs for it, besides a GPU or softgpu.
    pub(super) needs: &'static str,
    pub(super) run: fn(&Lab<'_>, &mut Findings) -> Result<(), Error>,
}

/// A figure or table that is not repeated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Omitted {
    pub(super) paper: Paper,
    pub(super) figure: &'static str,
    pub(super) reason: &'static str,
}

/// All that are repeated.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "mrcuda-runtime",
        paper: Paper::Mrcuda,
        title: "A run that is remote for a part, then local",
        figure: "run time of LAMMPS with 100,000 iterations: natively, remote, and migrated after a part of the iterations",
        here: "a simulation in small steps that wait (`microbench work`), natively, at a server over TLS, and moved into its own process after a part of its steps",
        unit: "s",
        published: &[published(mrcuda::RUNTIME_OURS, "almost negligible, compared with rCUDA's own overhead")],
        needs: "",
        run: mrcuda::runtime,
    },
    Experiment {
        name: "mrcuda-record",
        paper: Paper::Mrcuda,
        title: "Overhead of recording",
        figure: "model of the time to record, by the number of calls",
        here: "appending records to the journal; two recorded calls natively and in-process",
        unit: "s",
        published: &[published(mrcuda::RECORD_OURS, "282.5 ns, and 0.34 ms once (model)")],
        needs: "",
        run: mrcuda::record,
    },
    Experiment {
        name: "mrcuda-replay",
        paper: Paper::Mrcuda,
        title: "Overhead of replay",
        figure: "model of the time to replay, by the number of records",
        here: "moves of jobs with more and more events from a server to their own process",
        unit: "s",
        published: &[
            published(mrcuda::REPLAY_OURS, "1.031 us (model)"),
            published(mrcuda::REPLAY_ONCE_OURS, "1.2437 s, with the job paused (model)"),
        ],
        needs: "",
        run: mrcuda::replay,
    },
    Experiment {
        name: "mrcuda-memsync",
        paper: Paper::Mrcuda,
        title: "Overhead of copying memory, by size and regions",
        figure: "model of memory synchronization, by the size and the number of regions",
        here: "moves of jobs with more and more memory in 1 to 128 regions from a server to their own process",
        unit: "s",
        published: &[
            published(mrcuda::MEMSYNC_RATE_OURS, "0.97 to 1.69 GB/s, with the job paused"),
            published(mrcuda::MEMSYNC_PAUSE_OURS, "all of the copy"),
            published(mrcuda::MEMSYNC_REGION_OURS, "1.1 ms"),
        ],
        needs: "",
        run: mrcuda::memsync,
    },
    Experiment {
        name: "mrcuda-helper",
        paper: Paper::Mrcuda,
        title: "Overhead of the helper process",
        figure: "model of calls and copies by way of the helper",
        here: "launches and copies natively and through the helper",
        unit: "s",
        published: &[published(mrcuda::HELPER_LAUNCH_OURS, "1.5 us, 11.4 us"), published(mrcuda::HELPER_COPY_OURS, "0.2")],
        needs: "",
        run: mrcuda::helper,
    },
    Experiment {
        name: "rcuda-start",
        paper: Paper::Rcuda,
        title: "Start of programs at servers with initialised contexts",
        figure: "run time of short CUDA samples natively and with servers that have begun before",
        here: "start of a program to the end of its first kernel, natively, over shared memory and over TLS",
        unit: "s",
        published: &[published(rcuda::START_OURS, "1.3 s saved per run; short samples ran 49 % faster than natively")],
        needs: "",
        run: rcuda::start,
    },
    Experiment {
        name: "rcuda-chunks",
        paper: Paper::Rcuda,
        title: "Pipelined copies, by the size of a piece",
        figure: "rate of copies through a pair of pinned buffers, by the size of the buffers",
        here: "a copy of pageable memory that the program pipelines itself through two pinned buffers, beside the same copy in one call; mrcuda's own areas have a fixed size",
        unit: "GB/s",
        published: &[
            published(rcuda::CHUNKS_OURS, "512 KB over all; 1 MB for verbs, 2 MB over IPoIB"),
            published(rcuda::WHOLE_OURS, "pipelined copies: over 200 % better than unpipelined ones"),
        ],
        needs: "",
        run: rcuda::chunks,
    },
    Experiment {
        name: "rcuda-async",
        paper: Paper::Rcuda,
        title: "Asynchronous against synchronous copies",
        figure: "rate of synchronous and asynchronous copies, by size",
        here: "copies of pageable and pinned memory one by one, and eight queued, beside a raw socket",
        unit: "GB/s",
        published: &[
            published(rcuda::ASYNC_OURS, "95 % (92 % sustained)"),
            published(rcuda::SYNC_OURS, "pageable copies can be faster than native ones"),
        ],
        needs: "",
        run: rcuda::asynchronous,
    },
    Experiment {
        name: "rcuda-product",
        paper: Paper::Rcuda,
        title: "A matrix product with its copies",
        figure: "run time of a matrix product natively and remote",
        here: "the program `gemm` natively, over shared memory and over TLS",
        unit: "s",
        published: &[published(rcuda::PRODUCT_OURS, "10 to 85 % faster than local CUDA")],
        needs: "the programs of tests/programs/apps",
        run: rcuda::product,
    },
    Experiment {
        name: "rcuda-clients",
        paper: Paper::Rcuda,
        title: "Several clients of one GPU",
        figure: "several clients that share a GPU, with a process for each at the server",
        here: "1 to 8 simulations at the same time on one GPU, natively, over shared memory and over TLS",
        unit: "steps a second of all together",
        published: &[published(
            rcuda::CLIENTS_OURS,
            "no figure in our notes of the paper: several clients share a GPU, each by a process of its own",
        )],
        needs: "",
        run: rcuda::clients_of_a_gpu,
    },
    Experiment {
        name: "rcuda-ranks",
        paper: Paper::Rcuda,
        title: "Processes of one job with GPUs of several servers",
        figure: "LAMMPS over MPI with up to 8 remote GPUs",
        here: "1 to 4 simulations with a GPU of two servers by turns; coupled ones pass what they have read to the next one in each step",
        unit: "s",
        published: &[published(rcuda::LOOSE_OURS, "up to 25 %"), published(rcuda::TIGHT_OURS, "up to 35 %")],
        needs: "a GPU for each process; otherwise they share",
        run: rcuda::ranks,
    },
    Experiment {
        name: "p2p-sizes",
        paper: Paper::P2p,
        title: "Copies between GPUs of different servers, by size",
        figure: "latency and rate of copies between remote GPUs, by size",
        here: "copies from place to place over TLS, and by way of the program's memory",
        unit: "GB/s",
        published: &[
            published(p2p::LATENCY_OURS, "72 us (GPUDirect RDMA, up to 200 KB)"),
            published(p2p::RATE_OURS, "5.4 GB/s (several buffers in host memory, pipelined)"),
            published(p2p::CROSSING_OURS, "300 KB, than CUDA's own peer copy inside a node"),
        ],
        needs: "two GPUs; otherwise both places are on one",
        run: p2p::sizes,
    },
    Experiment {
        name: "p2p-connections",
        paper: Paper::P2p,
        title: "Copies between GPUs, by the number of buffers or connections",
        figure: "rate with one buffer and with several that are pipelined, by size",
        here: "copies with 1 to 16 connections, which share the bytes, beside raw sockets",
        unit: "GB/s",
        published: &[published(
            p2p::CONNECTIONS_OURS,
            "2.90 GB/s with one buffer in host memory, 5.4 GB/s with several: 4 of 1 MB over 14 MB, 4 of 512 KB over 4 MB, 8 of 256 KB over 0.6 MB, \
             8 of 128 KB below",
        )],
        needs: "two GPUs; otherwise both places are on one",
        run: p2p::connections,
    },
    Experiment {
        name: "p2p-first",
        paper: Paper::P2p,
        title: "The first copy and the second",
        figure: "time of the first copy between two GPUs and of later ones",
        here: "the first eight copies of 1 MiB of a program; mrcuda connects places at the first one",
        unit: "s",
        published: &[published(p2p::FIRST_OURS, "92 ms; saved by connecting before the first copy")],
        needs: "two GPUs; otherwise both places are on one",
        run: p2p::first,
    },
    Experiment {
        name: "p2p-triangles",
        paper: Paper::P2p,
        title: "Triangle counting",
        figure: "run time of TRICO natively and remote",
        here: "the program `triangles`, on one GPU, natively, over shared memory and over TLS",
        unit: "s",
        published: &[published(p2p::TRIANGLES_OURS, "0.88 (TRICO: a speed-up of 1.13)")],
        needs: "the programs of tests/programs/apps",
        run: p2p::triangles,
    },
    Experiment {
        name: "migration-regions",
        paper: Paper::Migration,
        title: "Moves by the number of memory regions",
        figure: "time of a migration of 4 GB in 1 to 128 regions",
        here: "moves between two servers over TLS of the same memory in 1 to 128 regions",
        unit: "s",
        published: &[published(
            migration::REGIONS_OURS,
            "0.10 s, 0.28 s over InfiniBand; 0.04 s, 0.36 s over Ethernet (4 GB, 1 and 128 regions)",
        )],
        needs: "",
        run: migration::regions,
    },
    Experiment {
        name: "migration-sizes",
        paper: Paper::Migration,
        title: "Moves by the memory of the job",
        figure: "rate of copies of a migration, by size",
        here: "moves between two servers over TLS of 1 MiB to 4 GiB",
        unit: "s",
        published: &[published(migration::SIZES_OURS, "full rate above 10 MB")],
        needs: "",
        run: migration::sizes,
    },
    Experiment {
        name: "migration-links",
        paper: Paper::Migration,
        title: "Moves over links of six speeds",
        figure: "downtime over InfiniBand and over 1 Gbit/s Ethernet",
        here: "moves between two servers through proxies that limit the rate to 1, 2, 5, 10, 25 and 40 Gbit/s, beside raw sockets through such proxies",
        unit: "s",
        published: &[
            published(migration::SLOW_LINK_OURS, "up to 27 s over 1 Gbit/s Ethernet (applications of up to 1.5 GB)"),
            published(migration::FAST_LINK_OURS, "under 0.5 s over InfiniBand (applications of up to 1.5 GB)"),
        ],
        needs: "",
        run: migration::links,
    },
    Experiment {
        name: "migration-apps",
        paper: Paper::Migration,
        title: "Applications moved at 25, 50 and 75 % of their run",
        figure: "downtime of GPU-BLAST, CUDASW++, TeaLeaf, CUDA-MEME and CloverLeaf, migrated at 25, 50 and 75 %",
        here: "hydro (as CloverLeaf), heat (as TeaLeaf), alignment (as CUDASW++), particles (as LAMMPS) and solver, moved between two servers over TLS",
        unit: "s",
        published: &[published(migration::APPS_OURS, "under 0.5 s over InfiniBand (up to 1.5 GB, 3 to 47 regions)")],
        needs: "the programs of tests/programs/apps",
        run: migration::applications,
    },
    Experiment {
        name: "migration-interference",
        paper: Paper::Migration,
        title: "A busy server",
        figure: "run time while other programs use the processors of the server",
        here: "simulations natively, over shared memory and over TLS beside busy threads; server and program are on one machine, so both are disturbed",
        unit: "s",
        published: &[published(migration::INTERFERENCE_OURS, "no figure in our notes of the paper")],
        needs: "",
        run: migration::interference,
    },
    Experiment {
        name: "migration-consolidation",
        paper: Paper::Migration,
        title: "Consolidation",
        figure: "two half-idle GPUs consolidated into one, the other switched off",
        here: "two jobs that use half of a GPU each, one of them moved to the other's GPU at 40 %; GPUs are not switched off",
        unit: "%",
        published: &[
            published(schedule::CONSOLIDATED_OURS, "shown as a use of migration"),
            published(schedule::POWER_OURS, "not in our notes of the paper; the other GPU is switched off"),
        ],
        needs: "two GPUs; nvidia-smi for the power",
        run: schedule::consolidation,
    },
    Experiment {
        name: "migration-balance",
        paper: Paper::Migration,
        title: "Balance",
        figure: "three jobs on one GPU spread over three",
        here: "three jobs on one GPU, left there, and spread over up to three GPUs at 20 %",
        unit: "%",
        published: &[published(schedule::BALANCE_OURS, "shown as a use of migration")],
        needs: "two GPUs",
        run: schedule::balance,
    },
    Experiment {
        name: "migration-priority",
        paper: Paper::Migration,
        title: "Priorities",
        figure: "a job moved off the fast GPU for a more important one",
        here: "a long job makes room at 30 % for an urgent one: moved to another GPU, or parked in memory where there is none",
        unit: "%",
        published: &[
            published(schedule::URGENT_OURS, "shown as a use of migration"),
            published(schedule::AWAY_OURS, "no figure in our notes of the paper"),
        ],
        needs: "",
        run: schedule::priority,
    },
    Experiment {
        name: "migration-park",
        paper: Paper::Migration,
        title: "Parking in host memory",
        figure: "proposed: a job parked in host memory when no GPU has room",
        here: "jobs parked in the memory of their machine and resumed, by their memory",
        unit: "s",
        published: &[published(migration::PARK_OURS, "proposed only")],
        needs: "",
        run: migration::park,
    },
];

/// All that are not.
pub(super) const OMITTED: &[Omitted] = &[
    Omitted {
        paper: Paper::Mrcuda,
        figure: "several GPUs of one job, all but the first by helpers",
        reason: "a property, not a figure: helpers are measured by mrcuda-helper, and several GPUs of a job are tested",
    },
    Omitted {
        paper: Paper::Rcuda,
        figure: "94 of 118 CUDA samples ran",
        reason: "needs NVIDIA's samples of that time; `./run-apps.sh DIRECTORY` compares any programs with native runs (measurements.md)",
    },
    Omitted {
        paper: Paper::Rcuda,
        figure: "chunk sizes of verbs and IPoIB, start-up of verbs (under 20 ms longer than TCP)",
        reason: "needs InfiniBand; `mrcuda bench --only rdma` measures RoCE where there is a device",
    },
    Omitted {
        paper: Paper::Rcuda,
        figure: "LAMMPS with 8 remote GPUs, 10.7 times a 12-core CPU",
        reason: "needs eight nodes; rcuda-ranks has its pattern",
    },
    Omitted {
        paper: Paper::Rcuda,
        figure: "SLURM with GPUs as a global pool, exclusive and shared",
        reason: "no figures in our notes of the paper; the Slurm tutorial shows it with mrcuda",
    },
    Omitted {
        paper: Paper::P2p,
        figure: "GPUDirect RDMA: registration per copy (1.4 GB/s), registered GPU buffers (2.25 GB/s), several of them (2.6 GB/s)",
        reason: "needs adapters with GPUDirect RDMA, and mrcuda copies by way of host memory",
    },
    Omitted {
        paper: Paper::P2p,
        figure: "copies between GPUs of one server",
        reason: "the driver's own peer copy, as natively; `mrcuda bench --only peer` measures it",
    },
    Omitted {
        paper: Paper::Migration,
        figure: "moves between a K20 and a P100 (CloverLeaf: 271 s and 80 s alone, 150 s and 227 s when moved at a third)",
        reason: "needs GPUs of two kinds; mrcuda moves between them with --allow-different only where all that a job relies on holds",
    },
    Omitted {
        paper: Paper::Migration,
        figure: "two generations of InfiniBand",
        reason: "needs InfiniBand; migration-links has links of six speeds",
    },
    Omitted {
        paper: Paper::Migration,
        figure: "CUDA arrays and page-locked host memory of a job, which take longer to migrate",
        reason: "no figures in our notes of the paper; both move, and are tested",
    },
];
