//! The program that calls everything answers the same wherever the GPU is. That the answers are the driver's is compared on hardware:
//! `cargo xtask conformance --driver real`.

use std::time::Duration;
use tests::conformance::{self, Plan};
use tests::{Scene, Server};

/// What depends on where the place is: kernels reach pinned memory by its address only where it is shared.
const NEAR_ONLY: [&str; 2] = ["pointers: ", "devices: device 0: cuDeviceGetAttribute"];

#[track_caller]
fn same_as_remote(mode: &str) {
    let scene = Scene::new(mode);
    let plan = Plan { only: None, jobs: 2, limit: Duration::from_secs(300) };
    // Identities are compared as well: the server is the same machine.
    let server = Server::start(&scene, "local");
    let transcript = |mode| conformance::under_mrcuda(&scene, &server, mode, plan).unwrap_or_else(|why| panic!("{why}"));
    let (remote, other) = (transcript("remote"), transcript(mode));
    let lines = |text: &str| -> Vec<String> {
        text.lines().filter(|l| !NEAR_ONLY.iter().any(|start| l.starts_with(start))).map(str::to_owned).collect()
    };
    let (remote, other) = (lines(&remote), lines(&other));
    assert!(remote.len() > 4000, "only {} cases", remote.len());
    let pairs = remote.iter().zip(&other).filter(|(a, b)| a != b);
    let different: Vec<String> = pairs.map(|(a, b)| format!("remote: {a}\n  {mode}: {b}")).collect();
    assert!(different.is_empty(), "{} differences:\n{}", different.len(), different.join("\n"));
    assert_eq!(remote.len(), other.len());
    assert!(!remote.iter().any(|l| l.ends_with("= crashes") || l.ends_with("= hangs")), "a call crashed: {remote:#?}");
}

#[test]
fn conformance_after_a_move() {
    same_as_remote("moved");
}

#[test]
fn conformance_in_process() {
    same_as_remote("inside");
}

#[test]
fn conformance_in_a_helper() {
    same_as_remote("helper");
}
