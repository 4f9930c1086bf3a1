//! The helper process of a job: executes its calls on one GPU of the same machine, over shared memory, and ends with
//! the job.
//!
//! It is a worker like those of `mrcuda serve`, started by the job itself when a move needs a GPU of this machine that
//! cannot be used in the job's process (docs/execution.md, "Helpers").

fn main() {
    std::process::exit(rcuda_forwarder::helper_main());
}
