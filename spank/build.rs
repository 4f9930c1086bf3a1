//! Slurm loads a plugin only if it names the version of Slurm that it was built for.

use std::env;
use std::path::Path;

const HEADER: &str = "/usr/include/slurm/slurm_version.h";

fn main() {
    println!("cargo::rerun-if-env-changed=SLURM_VERSION");
    // A file that is not there would make each build run this again.
    println!("cargo::rerun-if-changed={}", if Path::new(HEADER).exists() { HEADER } else { "build.rs" });
    let version = match env::var("SLURM_VERSION") {
        Ok(text) => Some(number(&text).unwrap_or_else(|| panic!("SLURM_VERSION is `{text}`: expected a version like 23.11.4"))),
        Err(_) => std::fs::read_to_string(HEADER).ok().and_then(|header| of_header(&header)),
    };
    if version.is_none() && env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!(
            "cargo::warning=no version of Slurm is known ({HEADER}, or SLURM_VERSION=23.11.4): no Slurm will load this plugin"
        );
    }
    println!("cargo::rustc-env=SLURM_VERSION_NUMBER={}", version.unwrap_or(0));
}

/// `23.11.4` as Slurm counts: a byte for each part.
fn number(text: &str) -> Option<u32> {
    let parts: Vec<u32> = text.split('.').map(|part| part.parse().ok().filter(|n| *n < 256)).collect::<Option<_>>()?;
    if let [major, minor, micro] = parts[..] { Some(major << 16 | minor << 8 | micro) } else { None }
}

/// `#define SLURM_VERSION_NUMBER 0x160508`
fn of_header(header: &str) -> Option<u32> {
    let value = header.lines().find_map(|line| line.strip_prefix("#define SLURM_VERSION_NUMBER"))?;
    u32::from_str_radix(value.trim().strip_prefix("0x")?, 16).ok()
}
