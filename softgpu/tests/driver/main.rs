//! The built driver, loaded by path and called as C programs call it.

#[macro_use]
mod support;
mod calls;
mod kernels;
mod vmm;
