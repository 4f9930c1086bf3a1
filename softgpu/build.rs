//! Link options of the driver library.
//!
//! No soname: the library is loaded by path beside the recorder, which is called libcuda.so.1 and exports the same names.
fn main() {
    // Own symbols must not be interposed by the recorder's exports of the same names.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Worker threads run this code until the process ends, so dlclose must not unmap it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
