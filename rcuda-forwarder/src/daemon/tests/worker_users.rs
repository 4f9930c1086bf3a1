//! Tests of a daemon whose workers run as the users of their jobs.

use super::*;
use crate::targets::Sender;
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
fn what_a_users_worker_asks_for_is_not_asked_as_root() {
    let [daemon, bin] = ["daemon", "bin"].map(|name| WorkerUser::named(name).unwrap());
    if !can_run_as(&bin) {
        return;
    }
    let senders = |spec: Option<WorkerUserSpec>| {
        let s = Scene::with(vec![0], |options| {
            options.unix_users = vec![UserSpec::Any];
            options.worker_user = spec;
        });
        std::fs::set_permissions(&s.directory, std::fs::Permissions::from_mode(0o711)).unwrap();
        let connect = || Link::connect(&s.unix(0), None, &hello(), None).unwrap();
        let links = [connect(), act_as(daemon.uid(), "senders", connect).unwrap()];
        let workers = s.daemon.state.pool.occupants();
        let sender = |link: &Arc<Link>| {
            let worker = workers.iter().find(|(worker, _)| i64::from(worker.pid()) == i64::from(pid(link))).unwrap();
            worker.0.sender().unwrap()
        };
        links.each_ref().map(|link| (uid_of(link), sender(link)))
    };
    let here = Sender::At(std::net::Ipv4Addr::LOCALHOST.into());
    // Root's job, and a user's.
    assert_eq!(senders(None), [(0, Sender::SameUser), (0, here)]);
    assert_eq!(senders(Some(WorkerUserSpec::Named("bin".into()))), [(bin.uid(), here); 2]);
    let client = WorkerUserSpec::Client(Some("bin".into()));
    assert_eq!(senders(Some(client)), [(bin.uid(), here), (daemon.uid(), here)]);
}

#[test]
fn a_job_that_is_not_admitted_is_not_looked_up() {
    let [daemon] = ["daemon"].map(|name| WorkerUser::named(name).unwrap());
    if !can_run_as(&daemon) {
        return;
    }
    let s = Scene::with(vec![0], |options| {
        options.unix_users = vec![UserSpec::Any];
        options.worker_user = Some(WorkerUserSpec::Client(None));
        options.clients.gpu_jobs = Some(1);
    });
    std::fs::set_permissions(&s.directory, std::fs::Permissions::from_mode(0o711)).unwrap();
    let connect = |uid| act_as(uid, "admission", || Link::connect(&s.unix(0), None, &hello(), None)).unwrap();
    let link = connect(daemon.uid()).unwrap();
    let why = || connect(ANN).map(drop).unwrap_err().to_string();
    assert!(why().contains("GPU 0 has a job"), "{}", why());
    link.close();
    assert!(soon(|| why().contains(&format!("no user of uid {ANN}"))), "{}", why());
}

#[test]
fn each_user_has_one_worker_that_is_kept_ready() {
    let [daemon, bin, nobody] = ["daemon", "bin", "nobody"].map(|name| WorkerUser::named(name).unwrap());
    if ![&daemon, &bin, &nobody].into_iter().all(can_run_as) {
        return;
    }
    let s = Scene::with(vec![0], |options| {
        options.worker_user = Some(WorkerUserSpec::Client(None));
        options.warm = 2;
    });
    let (state, pool) = (&s.daemon.state, &s.daemon.state.pool);
    let profile = |user: &WorkerUser, virtual_device| Profile {
        gpu: 0,
        virtual_device,
        env: Vec::new(),
        user: Some(Arc::new(user.clone())),
    };
    let keep = |profile: &Profile| pool.keep_warm(start(state, profile.clone()).unwrap());
    let kept = |user: &WorkerUser| [0, 1].map(|virtual_device| pool.warm(&profile(user, virtual_device)).len());
    assert_eq!(pool.lacks(&profile(&daemon, 0)), 1);
    keep(&profile(&daemon, 0));
    keep(&profile(&bin, 0));
    assert_eq!((pool.lacks(&profile(&daemon, 0)), kept(&daemon), kept(&bin)), (0, [1, 0], [1, 0]));
    // Another profile of one user costs the other user nothing.
    keep(&profile(&bin, 1));
    assert_eq!((kept(&daemon), kept(&bin)), ([1, 0], [0, 1]));
    // A third user takes the place of who has been there longest.
    keep(&profile(&nobody, 0));
    assert_eq!((kept(&daemon), kept(&bin), kept(&nobody)), ([0, 0], [0, 1], [1, 0]));
}

#[test]
fn a_users_worker_is_not_believed_how_much_memory_is_free() {
    let daemon = WorkerUser::named("daemon").unwrap();
    if !can_run_as(&daemon) {
        return;
    }
    let s = Scene::with(vec![0], |options| {
        options.unix_users = vec![UserSpec::Any];
        options.worker_user = Some(WorkerUserSpec::Client(Some("bin".into())));
    });
    std::fs::set_permissions(&s.directory, std::fs::Permissions::from_mode(0o711)).unwrap();
    let ask = || crate::inspect::inspect(&s.unix(0), None).unwrap().gpus.remove(0);
    assert!(soon(|| ask().free_bytes == Some(fake::MEMORY as u64)), "the worker of the server's start");
    let connect = || Link::connect(&s.unix(0), None, &hello(), None).unwrap();
    let link = act_as(daemon.uid(), "free memory", connect).unwrap();
    assert_eq!(uid_of(&link), daemon.uid());
    // It is still asked what its job uses; its user's next one has taken the place of the server's.
    assert!(soon(|| (ask().free_bytes, ask().idle_workers) == (None, 1)));
    assert!(soon(|| ask().jobs[0].used_bytes.is_some()) && ask().free_bytes.is_none());
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
