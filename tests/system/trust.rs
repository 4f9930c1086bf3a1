//! Who may use a server.

use crate::{LIMIT, assert_identical, native_orbit, words_of_mrcuda};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use tests::{Job, Scene, Server};

const SHORT: [&str; 2] = ["--steps", "100"];

fn orbit<'a>(scene: &'a Scene, name: &str, server: &Server, env: &[(&str, &str)]) -> Job<'a> {
    Job::start(scene, name, &["--server", &server.place(0)], &scene.install.file("orbit"), &SHORT, env)
}

#[test]
fn the_token_opens_the_server_and_nothing_else_does() {
    let scene = Scene::new("token");
    let native = native_orbit(&scene, &SHORT);
    let server = Server::start(&scene, "one");
    assert_eq!(std::fs::metadata(scene.token()).unwrap().mode() & 0o777, 0o600);
    let wrong = scene.path.join("wrong");
    std::fs::write(&wrong, "00".repeat(32)).unwrap();
    std::fs::set_permissions(&wrong, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let missing = scene.path.join("missing");
    for (name, file) in [("wrong", &wrong), ("missing", &missing)] {
        let outcome = orbit(&scene, name, &server, &[("MRCUDA_TOKEN_FILE", &file.display().to_string())]).wait(LIMIT);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        let words = words_of_mrcuda(&outcome);
        assert!(words.len() == 1 && words[0].contains("token"), "{}", outcome.stderr);
    }
    assert!(server.errors().contains("token"), "the server says nothing: {}", server.errors());
    assert_identical(&orbit(&scene, "right", &server, &[]).wait(LIMIT), &native);
}

#[test]
fn strangers_are_sent_away_and_the_server_goes_on() {
    let scene = Scene::new("garbage");
    let native = native_orbit(&scene, &SHORT);
    let server = Server::start(&scene, "one");
    // Held open without a word all the time.
    let silent = TcpStream::connect(server.address).unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 64], b"\0"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The server may close before all is written.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // It says who it is and ends the connection; a reset is an end as well.
        let mut answer = Vec::new();
        if let Err(e) = stream.read_to_end(&mut answer) {
            assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}");
        }
    }
    assert_identical(&orbit(&scene, "right", &server, &[]).wait(LIMIT), &native);
    drop(silent);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let scene = Scene::new("absent");
    let place = Server::start(&scene, "gone").place(0);
    let outcome = Job::start(&scene, "job", &["--server", &place], &scene.install.file("orbit"), &SHORT, &[]).wait(LIMIT);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    let address = place.split('/').next().unwrap_or_default();
    assert!(words_of_mrcuda(&outcome).iter().any(|line| line.contains(address)), "{}", outcome.stderr);
}
