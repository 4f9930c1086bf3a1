//! `forks`: a program that forks after it has used the GPU, as Python's multiprocessing does by default.
//!
//! In the child every call must answer CUDA_ERROR_NOT_INITIALIZED and touch nothing of the parent's; the parent goes on.
//! Prints `child` and `parent` lines; exit code 0 when all was as it must be.

#[path = "../orbit/driver.rs"]
#[allow(dead_code)] // It uses a few of the calls that orbit needs.
mod driver;

use driver::Gpu;

const NOT_INITIALIZED: &str = "CUDA_ERROR_NOT_INITIALIZED (3)";

fn main() {
    let gpu = Gpu::open().unwrap_or_else(|e| fail(&e.to_string()));
    let memory = gpu.allocate(&[7; 4096]).unwrap_or_else(|e| fail(&e.to_string()));
    // SAFETY: there are no other threads of this program whose locks the child could find taken.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let answers = [gpu.allocate(&[1; 16]).map(drop), gpu.read(memory, 16).map(drop), gpu.synchronize(), gpu.free(memory)];
        let right = answers.iter().all(|a| a.as_ref().is_err_and(|e| e.to_string().ends_with(NOT_INITIALIZED)));
        println!("child {}", if right { "refused" } else { "not refused" });
        // SAFETY: ends the child without running what the parent has registered for its own end.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above; the place for its status is valid.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    let contents = gpu.read(memory, 4096).unwrap_or_else(|e| fail(&e.to_string()));
    let right = child > 0 && waited == child && status == 0 && contents == [7; 4096];
    println!("parent {}", if right { "goes on" } else { "is wrong" });
    std::process::exit(i32::from(!right));
}

fn fail(why: &str) -> ! {
    eprintln!("forks: {why}");
    std::process::exit(2)
}
