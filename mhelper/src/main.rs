//! The helper process of a job: carries out its calls on one GPU of its own machine, over shared memory, and ends with it.
//!
//! It is a worker like those of `mrcuda serve`; the job starts it itself, when a move wants a GPU of this machine that its own
//! process cannot have (docs/execution.md, "Helpers").

fn main() {
    std::process::exit(rcuda_forwarder::helper_main());
}
