//! The NVML library: it says what CUDA says.

use crate::LIMIT;
use std::path::PathBuf;
use std::process::Command;
use tests::{Job, Scene, Server, install, toolchain};

fn compile(scene: &Scene, name: &str) -> PathBuf {
    let program = scene.path.join(name);
    let source = install::root().join("tests/programs/nvml").join(format!("{name}.c"));
    let status = Command::new("cc").arg("-o").arg(&program).arg(source).args(["-std=gnu11", "-w", "-ldl"]).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{status:?}");
    program
}

#[test]
fn nvml_says_what_cuda_says() {
    let scene = Scene::new("agrees");
    let program = compile(&scene, "agrees");
    let server = Server::start(&scene, "one");
    let two = format!("{},{}", server.place(0), "local");
    for (name, places, count) in [("remote", server.place(0), "1"), ("local", "local".to_owned(), "1"), ("two", two, "2")] {
        let outcome = Job::start(&scene, name, &["--server", &places], &program, &[count], &[]).wait(LIMIT);
        assert!(outcome.ok() && outcome.stdout == "NVML agrees\n", "{name}: {outcome:?}");
    }
}

#[test]
fn nvml_serves_nvidias_own_binding() {
    let scene = Scene::new("binding");
    let server = Server::start(&scene, "one");
    let packages = toolchain::pynvml(&scene.install.target).unwrap_or_else(|why| panic!("{why}"));
    let script = install::root().join("tests/programs/nvml/binding.py");
    let (script, packages) = (script.display().to_string(), packages.display().to_string());
    let env = [("PYTHONPATH", packages.as_str())];
    let places = format!("{},{}", server.place(0), "helper");
    let job = Job::start(&scene, "job", &["--server", &places], "python3".as_ref(), &[&script], &env);
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok(), "{outcome:?}");
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines[0], "count 2");
    assert!(lines[1].contains("softgpu") || lines[1].contains("GPU-"), "{lines:?}");
    assert_eq!(lines[3..], ["to itself 0", "Invalid Argument"]);
}
