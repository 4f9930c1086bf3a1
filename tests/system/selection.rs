//! Which GPUs a server shares.

use crate::{LIMIT, assert_identical, native_orbit};
use serde_json::Value;
use tests::scene::wait_for;
use tests::{Job, Scene, Server};

const STEPS: [&str; 2] = ["--steps", "20"];

/// Starts a server on a machine with four GPUs.
fn server(scene: &Scene, name: &str, options: &[&str], visible: Option<&str>) -> Server {
    let visible = visible.map(|list| ("CUDA_VISIBLE_DEVICES", list));
    let env: Vec<(&str, &str)> = [("SOFTGPU_DEVICES", "4"), ("SOFTGPU_SEED_ID", "box")].into_iter().chain(visible).collect();
    Server::start_with(scene, name, options, &env)
}

/// The UUIDs of a server's GPUs, as `nvidia-smi -L` prints them.
fn uuids(scene: &Scene, server: &Server) -> Vec<String> {
    let ask = || {
        let output = scene.mrcuda().args(["gpus", "--json", &server.address.to_string()]).output().unwrap();
        let list: Value = serde_json::from_slice(&output.stdout).ok()?;
        // A GPU is known when a worker has opened it.
        list[0]["gpus"].as_array()?.iter().map(|gpu| gpu["uuid"].as_str().map(str::to_owned)).collect::<Option<Vec<String>>>()
    };
    let all = wait_for(LIMIT, ask).expect("UUIDs");
    let text = |hex: &String| format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    all.iter().map(text).collect()
}

#[test]
fn gpus_are_shared_by_uuid_and_number() {
    let scene = Scene::new("selection");
    let all = uuids(&scene, &server(&scene, "all", &[], None));
    assert_eq!(all.len(), 4);
    let begins = |gpu: usize| &all[gpu][..13];
    // Beginnings of UUIDs, and numbers among those that are visible.
    let list = format!("{},0", begins(3));
    let some = server(&scene, "some", &["--gpus", &list], None);
    assert_eq!(uuids(&scene, &some), [all[3].clone(), all[0].clone()]);
    let visible = format!("{},{},{},x,{}", begins(2), begins(0), begins(3), begins(1));
    let shown = server(&scene, "shown", &[], Some(&visible));
    assert_eq!(uuids(&scene, &shown), [all[2].clone(), all[0].clone(), all[3].clone()]);
    let both = server(&scene, "both", &["--gpus", &format!("2,{}", all[2])], Some(&visible));
    assert_eq!(uuids(&scene, &both), [all[3].clone(), all[2].clone()]);
    let first = server(&scene, "first", &["--gpus", "1"], Some(&visible));
    assert_eq!(uuids(&scene, &first), [all[2].clone()]);
    // Jobs use the GPU that was meant, and move from server to server as ever.
    let native = native_orbit(&scene, &STEPS);
    for place in [some.place(1), both.place(0)] {
        assert_identical(&Job::orbit(&scene, "job", &["--server", &place], &STEPS, &[]).wait(LIMIT), &native);
    }
}

#[test]
fn what_names_no_gpu_is_refused_with_what_there_is() {
    let scene = Scene::new("selection-refused");
    let serve = |gpus: &str, visible: &str| {
        let mut command = scene.mrcuda();
        command.args(["serve", "--driver", "soft", "--listen", "127.0.0.1:0", "--gpus", gpus]).env("SOFTGPU_DEVICES", "2");
        let output = command.env("CUDA_VISIBLE_DEVICES", visible).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for (gpus, visible, why) in [
        ("GPU-", "0,1", "or a list of GPUs"),
        ("GPU-zz,0", "0,1", "there is no GPU GPU-zz (--gpus): the driver shows GPU-"),
        ("0,2", "0,1", "there is no GPU 2 (--gpus): the driver shows GPU-"),
        ("0,1", "1", "there is no GPU 1 (--gpus): the driver shows GPU-"),
        ("0,0", "0,1", "`0` is named twice"),
        ("MIG-11,0", "0,1", "there is no GPU MIG-11 (--gpus)"),
        ("3", "0,1", "3 GPUs cannot be shared: the driver has 2"),
        ("1", "GPU-zz", "no GPU can be used (CUDA error 100)"),
        ("1", "0,0", "no GPU can be used (CUDA error 101)"),
    ] {
        let said = serve(gpus, visible);
        assert!(said.contains(why), "{gpus} of {visible}: {said}");
    }
}
