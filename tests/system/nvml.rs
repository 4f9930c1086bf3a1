//! The NVML library: it says what CUDA says. What servers show of their own NVML.

use crate::LIMIT;
use crate::metrics::{get, metrics_of};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use tests::scene::wait_for;
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

/// A server of one GPU, and where its metrics are.
struct Watched<'a> {
    scene: &'a Scene,
    server: Server,
    metrics: String,
}

impl Watched<'_> {
    fn of(scene: &Scene, server: Server) -> Watched<'_> {
        let metrics = metrics_of(&server);
        Watched { scene, server, metrics }
    }

    /// The answer to `mrcuda gpus --json`.
    fn gpus(&self) -> Value {
        let output = self.scene.mrcuda().args(["gpus", "--json", &self.server.address.to_string()]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone()
    }

    /// The data of the page.
    fn status(&self) -> Value {
        serde_json::from_str(get(&self.metrics, "/status.json").split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// The lines of the metrics that come from NVML.
    fn lines(&self) -> Vec<String> {
        let of_nvml = ["mrcuda_nvml_up", "utilization", "power", "temperature", "sm_clock"];
        let text = get(&self.metrics, "/metrics");
        assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("\nmrcuda_gpu_jobs{gpu=\"0\"} "), "{text}");
        let is_one = |line: &&str| !line.starts_with('#') && of_nvml.iter().any(|word| line.contains(word));
        text.lines().filter(is_one).map(str::to_owned).collect()
    }
}

/// What is said of a GPU's readings.
fn measured(gpu: &Value) -> Value {
    let names = [
        "utilization_percent",
        "memory_utilization_percent",
        "power_watts",
        "power_limit_watts",
        "temperature_celsius",
        "sm_clock_mhz",
    ];
    names.iter().map(|name| gpu.get(name).unwrap_or_else(|| panic!("no {name} in {gpu}")).clone()).collect()
}

/// A copy of softgpu in a directory of its own, with this NVML beside it, where a driver's NVML lies.
pub(crate) fn driver_with_nvml(scene: &Scene, source: &str) -> PathBuf {
    let place = scene.path.join("installation");
    std::fs::create_dir(&place).unwrap();
    let driver = place.join("libsoftgpu.so");
    std::fs::copy(scene.install.file("libsoftgpu.so"), &driver).unwrap();
    let source = install::root().join("tests/programs/nvml").join(source);
    let library = driver.with_file_name("libnvidia-ml.so.1");
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{status:?}");
    driver
}

const WATCHED: [&str; 4] = ["--metrics", "127.0.0.1:0", "--log-format", "json"];

#[test]
fn a_server_shows_what_its_gpus_measure() {
    let scene = Scene::new("measured");
    let mut watched = Watched::of(&scene, Server::start_with(&scene, "one", &WATCHED, &[]));
    // A worker that has not opened the GPU does not know which one it is.
    let is_known = |state: &Value| state["no_readings"].is_null() && !state["gpus"][0]["utilization_percent"].is_null();
    let state = wait_for(LIMIT, || Some(watched.gpus()).filter(is_known)).expect("readings");
    let wanted = json!([97, 41, 312.5, 700.0, 44, 1981]);
    assert_eq!(measured(&state["gpus"][0]), wanted);
    let state = wait_for(LIMIT, || Some(watched.status()).filter(is_known)).expect("readings on the page");
    assert_eq!(measured(&state["gpus"][0]), wanted);
    let lines = [
        "mrcuda_gpu_utilization_ratio{gpu=\"0\"} 0.97",
        "mrcuda_gpu_memory_utilization_ratio{gpu=\"0\"} 0.41",
        "mrcuda_gpu_power_watts{gpu=\"0\"} 312.5",
        "mrcuda_gpu_power_limit_watts{gpu=\"0\"} 700",
        "mrcuda_gpu_temperature_celsius{gpu=\"0\"} 44",
        "mrcuda_gpu_sm_clock_hertz{gpu=\"0\"} 1981000000",
        "mrcuda_nvml_up 1",
    ];
    let last = wait_for(LIMIT, || Some(watched.lines()).filter(|found| *found == lines));
    assert!(last.is_some(), "{:?}", watched.lines());
    for command in [&["gpus"][..], &["top", "--once"]] {
        let output = scene.mrcuda().args(command).arg(watched.server.address.to_string()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        for cell in ["97%", "312 W", "44 °C"] {
            assert!(text.contains(cell), "`{cell}` is missing in {text}");
        }
    }
    assert!(watched.server.stop().is_some_and(|status| status.success()));
}

#[test]
fn an_nvml_that_hangs_or_knows_little_is_shown_as_such() {
    let scene = Scene::new("hangs");
    // The driver that a program takes lies beside it.
    let driver = driver_with_nvml(&scene, "sensors.c");
    let program = driver.with_file_name("mrcuda");
    std::fs::copy(scene.install.file("mrcuda"), &program).unwrap();
    let gate = scene.path.join("gate");
    std::fs::write(&gate, "").unwrap();
    let variables = [("SOFTGPU_NVML_GATE", gate.to_str().unwrap())];
    let mut watched = Watched::of(&scene, Server::start_as(&scene, "one", &program, &WATCHED, &variables));
    // It hangs: everything else is answered, again and again, and says why the readings are missing.
    let hangs = |state: &Value| state["no_readings"] == "NVML has not answered within 2 s";
    let state = wait_for(LIMIT, || Some(watched.gpus()).filter(|state| hangs(state) && state["gpus"][0]["name"].is_string()));
    let nothing = json!([null, null, null, null, null, null]);
    assert_eq!(measured(&state.expect("it does not hang")["gpus"][0]), nothing);
    for _ in 0..3 {
        assert_eq!(watched.lines(), ["mrcuda_nvml_up 0"]);
        let state = watched.status();
        assert!(hangs(&state) && measured(&state["gpus"][0]) == nothing, "{state}");
    }
    assert!(Job::orbit(&scene, "job", &["--server", &watched.server.place(0)], &["--steps", "20"], &[]).wait(LIMIT).ok());
    assert!(watched.server.errors().contains("what GPUs measure is not known: NVML has not answered within 2 s"));
    // It answers again, and knows two of the values; one is not what a share can be.
    std::fs::remove_file(&gate).unwrap();
    let some = json!([0, null, null, null, 17, null]);
    let knows = |state: &Value| state["no_readings"].is_null() && measured(&state["gpus"][0]) == some;
    assert!(wait_for(LIMIT, || knows(&watched.gpus()).then_some(())).is_some(), "{}", watched.gpus());
    assert!(wait_for(LIMIT, || knows(&watched.status()).then_some(())).is_some(), "{}", watched.status());
    let lines = ["mrcuda_gpu_utilization_ratio{gpu=\"0\"} 0", "mrcuda_gpu_temperature_celsius{gpu=\"0\"} 17", "mrcuda_nvml_up 1"];
    assert!(wait_for(LIMIT, || (watched.lines() == lines).then_some(())).is_some(), "{:?}", watched.lines());
    assert!(watched.server.errors().contains("NVML has answered"));
    // A server that ends does not wait for an NVML that hangs.
    std::fs::write(&gate, "").unwrap();
    assert!(wait_for(LIMIT, || hangs(&watched.gpus()).then_some(())).is_some(), "it does not hang");
    assert!(watched.server.stop().is_some_and(|status| status.success()));
}
