//! Tests of a daemon whose workers run as the users of their jobs.

use super::*;
use crate::daemon::privileges::WorkerUser;
use std::os::unix::fs::MetadataExt;

fn uid_of(link: &Link) -> u32 {
    std::fs::metadata(format!("/proc/{}", pid(link))).unwrap().uid()
}

/// Whether processes of this user can be started from this test's program.
fn can_run_as(user: &WorkerUser) -> bool {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", &user.uid().to_string(), "--clear-groups", "--"]).arg(program).arg("--list");
    let runs = geteuid().is_root() && command.output().is_ok_and(|output| output.status.success());
    if !runs {
        eprintln!("no process of {} can be started here: nothing was tested", user.name);
    }
    runs
}

#[test]
fn a_worker_that_is_kept_ready_is_for_its_user_alone() {
    let [daemon, bin] = ["daemon", "bin"].map(|name| WorkerUser::named(name).unwrap());
    if !can_run_as(&daemon) {
        return;
    }
    let s = Scene::with(vec![0], |options| {
        options.unix_users = vec![UserSpec::Any];
        options.worker_user = Some(WorkerUserSpec::Client(None));
    });
    std::fs::set_permissions(&s.directory, std::fs::Permissions::from_mode(0o711)).unwrap();
    let connect = |user: &WorkerUser| {
        let connect = || Link::connect(&s.unix(0), None, &hello(), None);
        act_as(user.uid(), "workers as users", connect).unwrap()
    };
    let link = connect(&daemon).unwrap();
    assert_eq!(uid_of(&link), daemon.uid());
    let profile = |user: &WorkerUser| Profile { gpu: 0, virtual_device: 0, env: Vec::new(), user: Some(Arc::new(user.clone())) };
    let pool = &s.daemon.state.pool;
    assert!(soon(|| pool.warm(&profile(&daemon)).first().is_some_and(|worker| worker.has_opened())));
    let kept = pool.warm(&profile(&daemon))[0].pid();
    let other = connect(&bin).unwrap();
    assert_eq!(uid_of(&other), bin.uid());
    // Somebody else has the number by now.
    let mut changed = daemon.clone();
    changed.home = "/elsewhere".into();
    let changed = profile(&changed);
    assert!(
        pool.take_warm(&changed).is_none()
            && pool.take_warm(&Profile { user: None, ..profile(&daemon) }).is_none_or(|w| w.pid() != kept)
    );
    // Root's own job, and one with the server's token.
    for at in [s.unix(0), s.at(0)] {
        let by = at.unix_path().is_none().then_some(&s.credentials);
        let why = Link::connect(&at, by, &hello(), None).map(drop).unwrap_err().to_string();
        assert!(why.contains("root's jobs have no other user (mrcuda serve --worker-user client)"), "{at}: {why}");
    }
}
