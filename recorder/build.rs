//! Gives the shim the name that programs look for.
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its threads would go on in memory that is gone if a program unloads it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
