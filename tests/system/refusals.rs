//! Moves that cannot work are refused in the plan, with the figures; the job goes on where it is.

use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, words_of_mrcuda};
use tests::{Scene, Server};

/// Starts orbit on a good server, tries to move it to one that differs in `env`, and wants a refusal with this code and these words.
fn refused(name: &str, env: &[(&str, &str)], code: &str, words: &[&str]) {
    let scene = Scene::new(name);
    let native = native_orbit(&scene, &LONG);
    let good = Server::start(&scene, "good");
    let other = Server::start_with(&scene, "other", &[], env);
    let mut job = remote_orbit(&scene, "moved", &good.place(0), &LONG, &[]);
    for options in [&["--dry-run"][..], &[]] {
        let report = job.migrate_with(&other.place(0), options).unwrap();
        assert!(!report.ok(), "{}", report.0);
        assert_eq!(report.code(), code, "{}", report.0);
        for word in words {
            assert!(report.reason().contains(word), "`{word}` is missing in: {}", report.reason());
        }
    }
    assert!(job.runs());
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, &native);
    assert_eq!(words_of_mrcuda(&outcome).len(), 1, "one line for the refused move: {}", outcome.stderr);
}

#[test]
fn too_little_memory() {
    refused("memory", &[("SOFTGPU_MEMORY", "67108864")], "no-memory", &["needs", "MiB free"]);
}

#[test]
fn another_driver_version() {
    refused("driver", &[("SOFTGPU_DRIVER_VERSION", "12080")], "driver-version", &["13.0", "12.8"]);
}

#[test]
fn another_build_of_the_driver() {
    // A place whose driver does not tell its version is not refused for that.
    let scene = Scene::new("build");
    let native = native_orbit(&scene, &LONG);
    let build = |version| [("SOFTGPU_DRIVER_BUILD", version)];
    let good = Server::start_with(&scene, "good", &[], &build("580.159.03"));
    let other = Server::start_with(&scene, "other", &[], &build("580.82.07"));
    let unknown = Server::start(&scene, "unknown");
    let job = remote_orbit(&scene, "moved", &good.place(0), &LONG, &[]);
    let report = job.migrate(&other.place(0)).unwrap();
    assert_eq!(report.code(), "driver-build", "{}", report.0);
    assert!(["580.82.07", "580.159.03"].iter().all(|word| report.reason().contains(word)), "{}", report.0);
    let report = job.migrate(&unknown.place(0)).unwrap();
    assert!(report.ok(), "{}", report.reason());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_gpu_of_fewer_multiprocessors() {
    // A part of a GPU, say, of which each difference is named.
    let env = [("SOFTGPU_ATTRIBUTES", "16=66,97=101376,95=0")];
    refused(
        "fewer",
        &env,
        "gpu-attribute",
        &["multiprocessors: 66", "shared memory that a block can ask for: 101376", "cooperative launches"],
    );
}

#[test]
fn a_gpu_of_another_generation() {
    // What was loaded may be machine code for the first GPU.
    refused("capability", &[("SOFTGPU_CC", "8.0")], "compute-capability", &["8.0", "9.0"]);
}

#[test]
fn a_gpu_that_cannot_run_the_code() {
    // Our own kernels are for nothing that old, so its server says at its start that it cannot serve.
    let scene = Scene::new("too-old");
    let mut serve = scene.mrcuda();
    serve
        .args(["serve", "--driver", "soft", "--listen", "127.0.0.1:0", "--token-file"])
        .arg(scene.path.join("token"))
        .env("SOFTGPU_CC", "6.0");
    let output = serve.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("CUDA_ERROR_NO_BINARY_FOR_GPU"), "{said}");
}

#[test]
fn a_place_where_nobody_listens() {
    let scene = Scene::new("nobody");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let gone = Server::start(&scene, "gone").place(0);
    let job = remote_orbit(&scene, "moved", &server.place(0), &LONG, &[]);
    let report = job.migrate(&gone).unwrap();
    assert_eq!(report.code(), "target-unreachable", "{}", report.0);
    let address = gone.split('/').next().unwrap_or_default();
    assert!(report.reason().contains(address), "{}", report.reason());
    // A GPU that the server does not have is no place either.
    let report = job.migrate(&server.place(7)).unwrap();
    assert!(report.code() == "target-refused" && report.reason().contains('7'), "{}", report.0);
    assert_identical(&job.wait(LIMIT), &native);
}
