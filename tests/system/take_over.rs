//! A server that takes over from another one (`mrcuda serve --take-over`), also as the unit of the packages has it do.

use crate::{LIMIT, assert_identical, native_orbit, remote_orbit, wait_for_step};
use serde_json::Value;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use tests::scene::wait_for;
use tests::server::signal;
use tests::{Scene, Server};

/// The jobs are still at work when they have moved several times.
const LONG: [&str; 5] = ["--steps", "8000", "--pace", "3000", "--progress"];

fn told(scene: &Scene, server: &str) -> Value {
    let output = scene.mrcuda().args(["gpus", server, "--json"]).output().unwrap();
    serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))[0].clone()
}

#[test]
fn jobs_of_a_server_that_is_replaced_go_on_and_move_and_the_former_one_ends_by_itself() {
    let scene = Scene::new("take-over");
    let native = native_orbit(&scene, &LONG);
    let mut former = Server::start(&scene, "one");
    let other = Server::start(&scene, "two");
    // One at each socket, one that stays, and one that moves from one daemon to the other.
    let places = [former.place(0), former.unix_place(0), former.nearest(0), former.place(0)];
    let mut jobs = places.map(|at| remote_orbit(&scene, "job", &at, &LONG, &[]));
    jobs.iter_mut().for_each(|job| wait_for_step(job, 200));
    let new = former.successor(&scene, "new", "one");
    assert!(new.announcement.contains(&format!(", after process {}", former.pid())), "{}", new.announcement);
    let state = told(&scene, &new.address.to_string());
    assert_eq!((&state["pid"], &state["earlier"]["pid"]), (&new.pid().into(), &former.pid().into()));
    assert_eq!((&state["earlier"]["jobs"][0], state["gpus"][0]["jobs"].as_array().map(Vec::len)), (&4.into(), Some(0)));
    // The data of these moves comes from the former daemon's workers, over connections that arrive at the new one.
    for (job, to) in jobs.iter().zip([other.place(0), "helper".to_owned()]) {
        let moved = job.migrate(&to).unwrap();
        assert!(moved.ok(), "{to}: {}", moved.reason());
    }
    let moved = jobs[3].migrate(&new.place(0)).unwrap();
    assert!(moved.ok(), "{}", moved.reason());
    // And back to the address where they were.
    let back = jobs[0].migrate(&new.place(0)).unwrap();
    assert!(back.ok(), "{}", back.reason());
    let state = wait_for(LIMIT, || Some(told(&scene, &new.address.to_string())).filter(|state| state["earlier"]["jobs"][0] == 1));
    assert_eq!(state.map(|state| state["gpus"][0]["jobs"].as_array().map(Vec::len)), Some(Some(2)));
    for job in jobs {
        assert_identical(&job.wait(LIMIT), &native);
    }
    assert_eq!(former.wait_ended(LIMIT).as_ref().map(ExitStatus::success), Some(true), "{}", former.errors());
    assert!(wait_for(LIMIT, || told(&scene, &new.address.to_string())["earlier"].is_null().then_some(())).is_some());
    assert!(former.errors().contains("all jobs have left"), "{}", former.errors());
    // Not one of the jobs was told of it.
    assert!(!new.errors().contains("unknown ticket") && !former.errors().contains("unknown ticket"), "{}", new.errors());
}

/// A server as a service manager runs it: its settings are in a file, and the manager hears which process is the main one when that serves.
struct Service {
    first: Child,
    /// The main process.
    main: u32,
    manager: UnixDatagram,
}

impl Service {
    /// Starts `mrcuda serve`, which listens at a Unix socket.
    fn start(scene: &Scene, program: &Path) -> Service {
        let settings = format!("[serve]\nunix = '{}'\ndriver = 'soft'\n", scene.socket("service").display());
        std::fs::create_dir_all(scene.path.join("mrcuda")).unwrap();
        std::fs::write(scene.path.join("mrcuda/config.toml"), settings).unwrap();
        let notify = scene.socket("notify");
        let manager = UnixDatagram::bind(&notify).unwrap();
        manager.set_read_timeout(Some(LIMIT)).unwrap();
        let mut command = Command::new(program);
        scene.dress(&mut command);
        let log = std::fs::File::create(scene.path.join("service.log")).unwrap();
        command.arg("serve").env("NOTIFY_SOCKET", &notify).env("SOFTGPU_SEED_ID", "one");
        let first = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut service = Service { main: first.id(), first, manager };
        assert_eq!(service.wait_ready(), service.first.id());
        service
    }

    /// Waits until a process says that it serves, which is then the main one.
    fn wait_ready(&mut self) -> u32 {
        let mut said = [0; 256];
        let n = self.manager.recv(&mut said).expect("a server becomes ready");
        let said = std::str::from_utf8(&said[..n]).unwrap();
        let pid = said.strip_prefix("READY=1\nMAINPID=").and_then(|pid| pid.trim_end().parse().ok());
        self.main = pid.unwrap_or_else(|| panic!("{said}"));
        self.main
    }

    /// What `systemctl reload` does with the unit of the packages.
    fn reload(&self) {
        let unit = include_str!("../../packaging/mrcuda.service");
        let reload = unit.lines().find_map(|line| line.strip_prefix("ExecReload=/bin/")).expect("the unit can be reloaded");
        let reload = reload.replace("$MAINPID", &self.main.to_string());
        assert!(Command::new("sh").args(["-c", &reload]).status().unwrap().success(), "{reload}");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        signal(self.main, libc::SIGTERM);
        // It may have ended by itself.
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

#[test]
fn a_reload_of_the_packaged_service_starts_the_new_program_and_jobs_go_on() {
    let scene = Scene::new("reload");
    let native = native_orbit(&scene, &LONG);
    let directory = scene.path.join("bin");
    std::fs::create_dir_all(&directory).unwrap();
    let program = directory.join("mrcuda");
    for name in ["mrcuda", "libsoftgpu.so"] {
        std::fs::copy(scene.install.file(name), directory.join(name)).unwrap();
    }
    let mut service = Service::start(&scene, &program);
    let former = service.main;
    let server = format!("unix:{}", scene.socket("service").display());
    let place = format!("{server}/0");
    let mut old = remote_orbit(&scene, "old", &place, &LONG, &[]);
    wait_for_step(&mut old, 200);
    // As an upgrade of the package puts another file in the program's place.
    std::fs::copy(&program, directory.join("new")).unwrap();
    std::fs::rename(directory.join("new"), &program).unwrap();
    service.reload();
    let main = service.wait_ready();
    assert_ne!(main, former);
    assert_eq!(std::fs::read_link(format!("/proc/{main}/exe")).unwrap(), program, "the program as it is on the disk now");
    let state = told(&scene, &server);
    assert_eq!(
        (&state["pid"], &state["earlier"]["pid"], &state["earlier"]["jobs"][0]),
        (&main.into(), &former.into(), &1.into())
    );
    // A new job is the new process's, and the old one can still move away and come back.
    let new = remote_orbit(&scene, "new", &place, &LONG, &[]);
    let jobs = told(&scene, &server)["gpus"][0]["jobs"].clone();
    assert_eq!(jobs.as_array().map(Vec::len), Some(1), "{jobs}");
    assert_eq!(jobs[0]["pid"], new.pid(), "{jobs}");
    for to in ["helper", &place] {
        let moved = old.migrate(to).unwrap();
        assert!(moved.ok(), "{to}: {}", moved.reason());
    }
    let ended = wait_for(LIMIT, || service.first.try_wait().unwrap());
    assert_eq!(ended.map(|status| status.success()), Some(true), "the former process ends when its last job has left");
    for job in [old, new] {
        assert_identical(&job.wait(LIMIT), &native);
    }
    let log = std::fs::read_to_string(scene.path.join("service.log")).unwrap();
    assert!(log.contains(&format!("process {main} of {} takes over", program.display())), "{log}");
    // It is reloaded again, without jobs.
    service.reload();
    assert_ne!(service.wait_ready(), main);
}
