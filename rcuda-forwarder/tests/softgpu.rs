//! A daemon process, its worker processes on softgpu, and links to them. This program is all of them: started with `serve` or
//! `worker` it is the daemon or a worker, and with a process id a helper.

use cuda_api::address_map::{self, HOST};
use cuda_api::calls::{module, stream};
use cuda_api::code;
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::{Chunk, CopyIn, CopyOut, HostPin, ImageLoad, ImagePut, Launch, Slab, id};
use cuda_api::wire::Wire;
use cuda_image::Image;
use memsync::Verify;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcuda_forwarder::{
    BulkMemory, ClientLimits, Control, ControlReply, Credentials, Endpoint, HelperOptions, JobHello, Landing, Link, LogFormat,
    Opens, SandboxMode, ServeOptions, SharedGpus, Token, Trust, WorkerLimits, bulk_connect, count_traffic, greeter_main,
    helper_main, serve, traffic, worker_main,
};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DEVICE: u32 = 1;
const LEGACY: u64 = cuda_api::arg::LEGACY;
const CREATE_STREAM: u16 = 0x0401;
const GET_FUNCTION: u16 = 0x0507;

/// Adds `n` to each of 2^16 words, 256 times over if `slow`.
const BUMP: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 8 .b8 table[100000];
.visible .entry bump(.param .u64 to, .param .u32 n, .param .u32 times) {
  .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p;
  ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [n]; ld.param.u32 %r7, [times];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  mul.wide.u32 %rd2, %r5, 4; add.s64 %rd3, %rd1, %rd2;
again:
  ld.global.u32 %r6, [%rd3]; add.u32 %r6, %r6, %r1; st.global.u32 [%rd3], %r6;
  sub.u32 %r7, %r7, 1; setp.ne.u32 %p, %r7, 0; @%p bra again;
  ret;
}
";
const WORDS: u32 = 1 << 16;

fn beside(name: &str) -> PathBuf {
    // Built for this test because softgpu is a dependency of it; cargo puts it beside the test's own executable.
    let directory = std::env::current_exe().expect("own path").parent().expect("directory").to_owned();
    [directory.join(name), directory.join("..").join(name)].into_iter().find(|p| p.exists()).expect("libsoftgpu.so")
}

/// `serve DIRECTORY`: the daemon, on any port and on DIRECTORY/socket; with a file DIRECTORY/small its workers may take little.
fn daemon(directory: &Path) -> ExitCode {
    let usual = WorkerLimits::of_machine();
    let small = WorkerLimits { images: 1 << 20, pinned: 1 << 20, memory: 16 << 20, ..usual };
    let is_small = directory.join("small").exists();
    let served = serve(ServeOptions {
        listen: Some(([127, 0, 0, 1], 0).into()),
        unix_users: Vec::new(),
        unix: Some(directory.join("socket")),
        driver: beside("libsoftgpu.so"),
        gpus: SharedGpus::All,
        token: directory.join("token"),
        tokens: None,
        munge: None,
        certificate: None,
        client_ca: None,
        allow_plain: false,
        gpudirect: false,
        worker_exe: std::env::current_exe().expect("own path"),
        max_workers: None,
        max_client_workers: None,
        clients: ClientLimits { memory: is_small.then_some(20 << 20), ..ClientLimits::default() },
        warm: 1,
        of_worker: if is_small { small } else { usual },
        host_memory: None,
        evict_stopped: None,
        drain: None,
        accounting: None,
        metrics: None,
        take_over: false,
        log_format: LogFormat::Text,
        targets: Vec::new(),
        sandbox: SandboxMode::default(),
        worker_user: None,
        jit_cache: None,
        announce: |line| println!("{line}"),
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// What a client of the daemon in this directory needs.
fn credentials(directory: &Path) -> Credentials {
    let trust = Trust { authorities: None, known_servers: directory.join("known_servers"), certificate: None };
    Credentials { token: Some(Token::load_or_create(&directory.join("token")).expect("token")), munge: None, trust }
}

/// A daemon process with two GPUs.
struct Server {
    process: Child,
    directory: PathBuf,
    at: String,
    credentials: Credentials,
}

impl Server {
    fn start() -> Server {
        Server::start_in(|_| {})
    }

    fn start_in(prepare: impl FnOnce(&Path)) -> Server {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let n = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("mrcuda-softgpu-{}-{n}", std::process::id()));
        let credentials = credentials(&directory);
        prepare(&directory);
        let mut process = Command::new(std::env::current_exe().expect("own path"))
            .arg("serve")
            .arg(&directory)
            .env("SOFTGPU_DEVICES", "2")
            .env("SOFTGPU_SEED_ID", n.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("daemon");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("its output")).read_line(&mut line).expect("its announcement");
        assert!(line.starts_with("mrcuda: serving 2 GPUs on 127.0.0.1:") && line.contains(" (token file "), "{line}");
        let at = line.split(' ').nth(5).expect("an address").to_owned();
        Server { process, directory, at, credentials }
    }

    fn at(&self, gpu: u32) -> Endpoint {
        format!("tls://{}/{gpu}", self.at).parse().expect("endpoint")
    }

    fn job(&self, gpu: u32) -> Job {
        let hello = JobHello { virtual_device: DEVICE, pid: std::process::id(), env: Vec::new(), name: String::new() };
        Job { link: Link::connect(&self.at(gpu), Some(&self.credentials), &hello, None).expect("link") }
    }

    /// Number of worker processes, once it is as `wanted` or that does not come.
    fn workers(&self, wanted: impl Fn(usize) -> bool) -> usize {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let n = children(self.process.id());
            if wanted(n) || Instant::now() > until {
                return n;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.process.id() as i32), signal).expect("signal");
        self.process.wait().expect("end")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Living children of a process, whichever of its threads started them.
fn children(pid: u32) -> usize {
    let parent = |stat: String| {
        let (name, rest) = stat.rsplit_once(") ")?;
        let mut words = rest.split(' ');
        let state = words.next()?;
        // The process that greets clients is no worker.
        (state != "Z" && !name.ends_with("(mrcuda-greeter")).then_some(words.next()?.parse::<u32>().ok()?)
    };
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes.filter(|p| std::fs::read_to_string(p.path().join("stat")).ok().and_then(parent) == Some(pid)).count()
}

fn bytes(v: &impl Wire) -> Vec<u8> {
    let mut out = Vec::new();
    v.put(&mut out);
    out
}

/// A job on one GPU.
struct Job {
    link: Arc<Link>,
}

impl Job {
    fn ask(&self, id: u16, parts: &[&[u8]]) -> Vec<u8> {
        let (rc, reply) = self.link.request(id, parts).expect("request").wait().expect("answer");
        assert_eq!(rc, code::SUCCESS, "call {id:#x}: {}", String::from_utf8_lossy(&reply));
        reply
    }

    fn send(&self, id: u16, parts: &[&[u8]]) {
        self.link.send(id, parts).expect("send");
    }

    /// 4 MiB of memory and the kernel, the same in every place.
    fn build(&self) -> (u64, u64) {
        let address = address_map::own_base(DEVICE);
        self.ask(id::CHUNK_MAP, &[&bytes(&Chunk { address, bytes: 4 << 20 })]);
        let image = Image::from_bytes(cuda_image::Kind::Ptx, BUMP.bytes().chain([0]).collect::<Vec<u8>>().into()).expect("image");
        let (hash, module) = (image.hash(), compose(Kind::Module, 1, 1));
        self.ask(id::IMAGE_PUT, &[&bytes(&ImagePut { hash, kind: image.kind.code() }), &image.bytes]);
        self.ask(
            id::IMAGE_LOAD,
            &[&bytes(&ImageLoad { handle: module, hash, library: false, options: Vec::new(), describe: false })],
        );
        let hfunc = compose(Kind::Function, 1, 1);
        self.ask(GET_FUNCTION, &[&bytes(&module::cuModuleGetFunction::Sent { hfunc, hmod: module, name: "bump".into() })]);
        self.ask(id::FUNCTION_INFO, &[&bytes(&hfunc)]);
        (address, hfunc)
    }

    fn bump(&self, function: u64, stream: u64, to: u64, n: u32, times: u32) {
        let head = Launch {
            function,
            stream,
            grid: [WORDS / 256, 1, 1],
            block: [256, 1, 1],
            shared: 0,
            attributes: 0,
            cooperative: false,
        };
        let params = [&to.to_le_bytes()[..], &n.to_le_bytes(), &times.to_le_bytes()].concat();
        self.send(id::LAUNCH, &[&bytes(&head), &params]);
    }

    fn write(&self, dst: u64, data: &[u8], stream: u64) {
        let n = data.len() as u64;
        self.send(id::COPY_IN, &[&bytes(&CopyIn { dst, pitch: n, width: n, rows: 1, stream }), data]);
    }

    fn read(&self, src: u64, n: usize, stream: u64) -> Vec<u8> {
        let mut host = vec![0; n];
        let landing = Landing { ptr: host.as_mut_ptr(), pitch: n, width: n, rows: 1, is_registered: false };
        let op = CopyOut { src, pitch: n as u64, width: n as u64, rows: 1, stream };
        // SAFETY: `host` is kept until the answer has come.
        let reply = unsafe { self.link.request_into(id::COPY_OUT, &[&bytes(&op)], landing) }.expect("request");
        assert_eq!(reply.wait().expect("answer"), (code::SUCCESS, Vec::new()));
        host
    }

    fn control(&self, c: &Control) -> ControlReply {
        self.link.control(c).expect("control")
    }

    fn free(&self) -> u64 {
        match self.control(&Control::FreeBytes { beside: 0 }) {
            ControlReply::FreeBytes(n) => n,
            other => panic!("{other:?}"),
        }
    }
}

fn words(f: impl Fn(u32) -> u32) -> Vec<u8> {
    (0..WORDS).flat_map(|i| f(i).to_le_bytes()).collect()
}

fn calls_run_on_the_gpu_of_a_server() {
    let server = Server::start();
    let (job, other) = (server.job(0), server.job(1));
    assert_eq!(job.link.device().name, "softgpu");
    assert_ne!(job.link.device().uuid, other.link.device().uuid);
    let (memory, bump) = job.build();
    let stream = compose(Kind::Stream, 1, 1);
    job.send(CREATE_STREAM, &[&bytes(&stream::cuStreamCreate::Sent { phStream: stream, Flags: 1 })]);
    job.write(memory, &words(|i| i), stream);
    for n in 1..=20 {
        job.bump(bump, stream, memory, n, 1);
    }
    assert!(job.read(memory, 4 * WORDS as usize, stream) == words(|i| i + 210));
    // A copy that is not waited for has landed when the stream's synchronisation returns.
    job.bump(bump, stream, memory, 1, 200);
    let mut host = vec![0u8; 4 * WORDS as usize];
    let landing = Landing { ptr: host.as_mut_ptr(), pitch: host.len(), width: host.len(), rows: 1, is_registered: false };
    let op = CopyOut { src: memory, pitch: 0, width: host.len() as u64, rows: 1, stream };
    // SAFETY: `host` is kept until the stream is synchronised, which is answered later.
    drop(unsafe { job.link.request_into(id::COPY_OUT, &[&bytes(&op)], landing) }.expect("request"));
    job.ask(id::STREAM_SYNC, &[&bytes(&stream)]);
    assert!(host == words(|i| i + 410));
    // An unknown function is a fault of that launch; what follows goes on.
    job.bump(compose(Kind::Function, 1, 9), stream, memory, 1, 1);
    job.ask(id::CONTEXT_SYNC, &[]);
    let fault = job.link.take_fault().expect("a fault");
    assert_eq!((fault.code, fault.id), (code::ERROR_INVALID_HANDLE, id::LAUNCH));
    assert!(job.read(memory, 8, LEGACY) == words(|i| i + 410)[..8]);
}

fn the_end_of_a_job_ends_its_worker() {
    let server = Server::start();
    let orderly = server.job(0);
    let before = orderly.free();
    let (memory, bump) = orderly.build();
    assert!(orderly.free() + (4 << 20) <= before);
    orderly.bump(bump, LEGACY, memory, 1, 1);
    let lost = server.job(0);
    let (memory, bump) = lost.build();
    // It would take minutes: nobody waits for it.
    lost.bump(bump, LEGACY, memory, 1, u32::MAX);
    let ControlReply::Drained { idle: false, was_busy: true, .. } = lost.control(&Control::Drain { limit_ms: 50 }) else {
        panic!("it should be busy")
    };
    let with_jobs = server.workers(|n| n == 4);
    assert_eq!(with_jobs, 4, "two with jobs, two that wait");
    orderly.link.close();
    assert_eq!(server.workers(|n| n == 3), 3);
    drop(lost);
    assert_eq!(server.workers(|n| n == 2), 2);
}

/// `fork SERVER DIRECTORY`: a job that has forked a child and is killed while the child lives on.
fn forking_job(server: &str, directory: &Path) -> ExitCode {
    let credentials = credentials(directory);
    let hello = JobHello { virtual_device: DEVICE, pid: std::process::id(), env: Vec::new(), name: String::new() };
    let link = Link::connect(&server.parse().expect("server"), Some(&credentials), &hello, None).expect("link");
    // SAFETY: the child only sleeps and ends.
    match unsafe { nix::unistd::fork() }.expect("fork") {
        nix::unistd::ForkResult::Child => {
            std::thread::sleep(Duration::from_secs(60));
            // SAFETY: ends the process; nothing is touched after it.
            unsafe { libc::_exit(0) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            println!("{child}");
            assert!(link.request(id::CONTEXT_SYNC, &[]).and_then(|r| r.wait()).is_ok(), "the child has not harmed the parent");
            std::thread::sleep(Duration::from_secs(60));
            ExitCode::FAILURE
        }
    }
}

fn a_forked_child_does_not_keep_the_gpu_of_its_dead_parent() {
    let server = Server::start();
    let mut job = Command::new(std::env::current_exe().expect("own path"))
        .arg("fork")
        .args([server.at(0).to_string().as_str(), &server.directory.display().to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("job");
    let mut line = String::new();
    BufReader::new(job.stdout.take().expect("its output")).read_line(&mut line).expect("its child");
    let child = Pid::from_raw(line.trim().parse().expect("a pid"));
    assert_eq!(server.workers(|n| n == 3), 3, "one serves, two wait");
    std::thread::sleep(Duration::from_millis(300));
    assert!(job.try_wait().expect("job").is_none());
    job.kill().expect("kill");
    job.wait().expect("end");
    assert!(kill(child, None).is_ok(), "the child lives");
    let left = server.workers(|n| n == 2);
    kill(child, Signal::SIGKILL).expect("kill");
    assert_eq!(left, 2);
}

fn memory_moves_from_server_to_server() {
    let (here, there) = (Server::start(), Server::start());
    let (source, target) = (here.job(1), there.job(0));
    let (memory, bump) = source.build();
    assert_eq!(target.build(), (memory, bump), "the same addresses in every place");
    source.write(memory, &words(|i| i * 7), LEGACY);
    source.bump(bump, LEGACY, memory, 5, 3);
    let ControlReply::Drained { idle: true, .. } = source.control(&Control::Drain { limit_ms: 10_000 }) else { panic!("busy") };
    let regions = |j: &Job| j.control(&Control::Regions);
    assert_eq!(regions(&source), regions(&target));
    let ticket = [0x77; 32];
    target.control(&Control::Expect { ticket, stripes: 3 });
    source.control(&Control::Connect { to: there.at(0).to_string(), ticket, stripes: 3 });
    target.control(&Control::Accept { ticket });
    let mut moved = 0;
    for verify in [false, true] {
        let how = if verify { Verify::Auto } else { Verify::Skip };
        let (a, b) = std::thread::scope(|s| {
            let a = s.spawn(|| source.control(&Control::RoundSource { ticket, send_regions: false }));
            let b = target.control(&Control::RoundTarget { ticket, verify: how, by_descriptor: true });
            (a.join().expect("source"), b)
        });
        let (ControlReply::Round(a), ControlReply::Round(b)) = (a, b) else { panic!("no rounds") };
        assert!(!verify || a.digest == b.digest && a.digest != [0; 32]);
        assert!(a.bytes_total >= 4 << 20 && (verify || a.bytes_sent >= u64::from(4 * WORDS)), "{a:?}");
        assert!(!verify || a.bytes_sent == 0, "nothing has changed since: {a:?}");
        moved += a.bytes_sent + b.bytes_fetched;
        assert_eq!(
            (target.control(&Control::Moved), source.control(&Control::Moved)),
            (ControlReply::Moved(moved), ControlReply::Moved(0))
        );
    }
    source.link.close();
    target.bump(bump, LEGACY, memory, 1, 1);
    assert!(target.read(memory, 4 * WORDS as usize, LEGACY) == words(|i| i * 7 + 16));
    assert!(bulk_connect(&there.at(0), &ticket, 1).is_err(), "a ticket is good once");
}

fn a_killed_server_is_noticed_and_another_is_not_harmed() {
    let (mut dying, living) = (Server::start(), Server::start());
    let (lost, kept) = (dying.job(0), living.job(0));
    let (memory, bump) = lost.build();
    lost.bump(bump, LEGACY, memory, 1, u32::MAX);
    let waiting = lost.link.request(id::CONTEXT_SYNC, &[]).expect("request");
    assert_eq!(dying.end(Signal::SIGKILL).signal(), Some(9));
    let why = waiting.wait().expect_err("the server is gone").why;
    assert!(lost.link.is_lost() && !why.contains("no sign of life"), "it was noticed late: {why}");
    let (memory, bump) = kept.build();
    kept.write(memory, &words(|_| 0), LEGACY);
    kept.bump(bump, LEGACY, memory, 2, 2);
    assert!(kept.read(memory, 4 * WORDS as usize, LEGACY) == words(|_| 4));
}

fn a_server_ends_in_order() {
    let mut server = Server::start();
    let job = server.job(0);
    assert!(server.directory.join("socket").exists());
    let over_unix: Endpoint = format!("unix:{}/1", server.directory.join("socket").display()).parse().expect("endpoint");
    let hello = JobHello { virtual_device: 0, pid: 1, env: Vec::new(), name: String::new() };
    drop(Link::connect(&over_unix, None, &hello, None).expect("the same user needs no token"));
    assert_eq!(server.end(Signal::SIGTERM).code(), Some(0));
    assert!(!server.directory.join("socket").exists());
    assert!(job.link.request(id::CONTEXT_SYNC, &[]).and_then(|r| r.wait()).is_err());
}

fn a_missing_driver_is_named() {
    let out =
        Command::new(std::env::current_exe().expect("own path")).args(["worker", "--probe", "/nowhere/libcuda.so.1"]).output();
    let out = out.expect("probe");
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("/nowhere/libcuda.so.1"));
    let out =
        Command::new(std::env::current_exe().expect("own path")).arg("worker").stdin(Stdio::null()).output().expect("worker");
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("started by mrcuda only"));
}

/// Copies to idle streams follow each other without a wait; everything else finds their bytes, on whichever stream.
fn copies_at_rest_are_complete_before_other_calls() {
    let server = Server::start();
    let job = server.job(0);
    let (memory, bump) = job.build();
    let streams = [1, 2].map(|n| compose(Kind::Stream, 1, n));
    for stream in streams {
        job.send(CREATE_STREAM, &[&bytes(&stream::cuStreamCreate::Sent { phStream: stream, Flags: 1 })]);
    }
    let write = |dst: u64, data: &[u8], rows: u64, stream: u64| {
        let width = data.len() as u64 / rows;
        job.send(id::COPY_IN_AT_REST, &[&bytes(&CopyIn { dst, pitch: width, width, rows, stream }), data]);
    };
    const PIECE: usize = 1 << 10;
    for round in 0..100 {
        let [one, other] = if round % 2 == 0 { streams } else { [streams[1], streams[0]] };
        for stream in [one, other] {
            let data = words(|i| i.wrapping_mul(stream as u32).wrapping_add(round));
            for (at, piece) in data.chunks(PIECE).enumerate() {
                write(memory + (at * PIECE) as u64, piece, if at % 3 == 0 { 2 } else { 1 }, stream);
            }
        }
        let expected = |n: u32| words(|i| i.wrapping_mul(other as u32).wrapping_add(round + n));
        match round % 3 {
            0 => job.bump(bump, one, memory, 1, 1),
            // A request is carried out by another thread of the worker.
            1 => _ = job.free(),
            _ => {}
        }
        assert!(job.read(memory, 4 * WORDS as usize, one) == expected(u32::from(round % 3 == 0)), "round {round}");
    }
    let wrong = address_map::own_base(DEVICE) + (1 << 38);
    write(wrong, &[7; 64], 1, streams[0]);
    job.ask(id::CONTEXT_SYNC, &[]);
    assert_eq!(job.link.take_fault().expect("a fault").id, id::COPY_IN_AT_REST);
}

fn a_job_takes_no_more_of_the_servers_memory_than_it_may() {
    let server = Server::start_in(|directory| std::fs::write(directory.join("small"), "").expect("file"));
    let job = server.job(0);
    let said = Arc::new(Mutex::new(Vec::new()));
    let to = said.clone();
    job.link.set_text_hook(move |_, text| to.lock().expect("no panic").extend_from_slice(text));
    let put = |n: u32| {
        let text = format!("{BUMP}//{n}{}\0", "x".repeat(300 << 10));
        let image = Image::from_bytes(cuda_image::Kind::Ptx, text.into_bytes().into()).expect("image");
        let head = bytes(&ImagePut { hash: image.hash(), kind: image.kind.code() });
        job.link.request(id::IMAGE_PUT, &[&head, &image.bytes]).expect("request").wait().expect("answer").0
    };
    assert_eq!([put(1), put(2), put(3), put(4)], [code::SUCCESS, code::SUCCESS, code::SUCCESS, code::ERROR_OUT_OF_MEMORY]);
    assert_eq!(put(2), code::SUCCESS, "what is there already takes nothing");
    let pin = |at: u64, bytes_: u64| {
        let op = bytes(&HostPin { address: at, bytes: bytes_, flags: 0, apart: true, exclusive: false, slab: Slab::default() });
        job.link.request(id::HOST_PIN, &[&op]).expect("request").wait().expect("answer").0
    };
    let at = |n: u64| HOST + n * (1 << 30);
    assert_eq!([pin(at(0), 700 << 10), pin(at(1), 700 << 10)], [code::SUCCESS, code::ERROR_OUT_OF_MEMORY]);
    job.ask(id::HOST_UNPIN, &[&bytes(&at(0))]);
    assert_eq!(pin(at(1), 700 << 10), code::SUCCESS, "room comes back");
    job.ask(id::CONTEXT_SYNC, &[]);
    let until = Instant::now() + Duration::from_secs(20);
    let both = || {
        let said = String::from_utf8_lossy(&said.lock().expect("no panic")).into_owned();
        said.contains("--max-images") && said.contains("--max-pinned")
    };
    while !both() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(both(), "the job is told why");
}

fn a_job_sees_and_gets_as_much_memory_of_the_gpu_as_it_may() {
    const MIB: u64 = 1 << 20;
    let server = Server::start_in(|directory| std::fs::write(directory.join("small"), "").expect("file"));
    // On two GPUs: the client's limit counts all of them.
    let (first, second) = (server.job(0), server.job(1));
    let info = |job: &Job| {
        let (free, total) = <(u64, u64)>::get(&mut &job.ask(id::MEMORY_INFO, &[])[..]).expect("two numbers");
        (free / MIB, total / MIB)
    };
    let chunk = |at: u64, mib: u64| bytes(&Chunk { address: address_map::own_base(DEVICE) + at * MIB, bytes: mib * MIB });
    let map = |job: &Job, at: u64, mib: u64| {
        job.link.request(id::CHUNK_MAP, &[&chunk(at, mib)]).expect("request").wait().expect("answer").0
    };
    assert_eq!((first.link.device().total_bytes, info(&first)), (16 * MIB, (16, 16)));
    assert_eq!([map(&first, 0, 12), map(&first, 12, 6)], [code::SUCCESS, code::ERROR_OUT_OF_MEMORY]);
    assert_eq!((info(&first), first.free() / MIB, info(&second)), ((4, 16), 4, (8, 16)));
    assert_eq!([map(&second, 0, 10), map(&second, 0, 8)], [code::ERROR_OUT_OF_MEMORY, code::SUCCESS]);
    assert_eq!((map(&first, 12, 2), info(&first)), (code::ERROR_OUT_OF_MEMORY, (0, 16)));
    // What is freed can be used again, and so can what a job had that has ended.
    first.ask(id::CHUNK_UNMAP, &[&chunk(0, 12)]);
    assert_eq!((map(&second, 8, 8), info(&first)), (code::SUCCESS, (4, 16)));
    second.link.close();
    let until = Instant::now() + Duration::from_secs(120);
    while info(&first) != (16, 16) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(map(&first, 0, 16), code::SUCCESS);
}

/// A helper of this process on the first GPU.
fn helper() -> Job {
    let program = std::env::current_exe().expect("own path");
    let options = HelperOptions { program, opens: Opens::Gpu { driver: beside("libsoftgpu.so"), gpu: 0 }, hidden: Vec::new() };
    let hello = JobHello { virtual_device: DEVICE, pid: std::process::id(), env: Vec::new(), name: String::new() };
    Job { link: Link::to_helper(&options, &hello, None).expect("helper") }
}

/// A helper gets connections for large copies as a server's worker does, and all bytes of such copies pass through shared memory.
fn a_helper_has_connections_for_large_copies() {
    const BYTES: usize = 3 << 20;
    count_traffic();
    let carried = || [id::BULK_IN, id::BULK_OUT].map(|id| traffic().get(&id).map_or((0, 0), |t| (t.carried, t.mapped)));
    let job = helper();
    let (memory, _) = job.build();
    assert!(!helper().link.has_bulk(true, || 0), "none were wanted");
    let mut out: Vec<u8> = (0..BYTES).map(|i| ((i * i) >> 7) as u8).collect();
    let mut back = vec![0; BYTES];
    for (number, (host, to_device)) in (1..).zip([(&mut out, true), (&mut back, false)]) {
        assert!(job.link.has_bulk(to_device, || 3));
        let (host, bytes) = (host.as_mut_ptr(), BYTES as u64);
        let copy = BulkMemory {
            host,
            device: memory,
            bytes,
            stream: LEGACY,
            to_device,
            late: false,
            is_registered: false,
            before_sent: None,
        };
        // SAFETY: the memory outlives the copy, which is finished below.
        let (reply, copy) = unsafe { job.link.request_bulk(&copy) }.expect("request").expect("there is room for one");
        assert_eq!(reply.wait().expect("answer").0, code::SUCCESS);
        assert!(!copy.finish());
        let mapped: u64 = carried().iter().map(|(_, mapped)| mapped).sum();
        assert_eq!(mapped, number * BYTES as u64, "bytes that have passed through shared memory");
    }
    assert!(back == out && job.read(memory, BYTES, LEGACY) == out);
    assert_eq!(carried(), [(0, BYTES as u64); 2]);
    job.link.close();
    assert!(job.link.is_lost());
}

/// The tests, by name.
const TESTS: [(&str, fn()); 11] = [
    ("a_helper_has_connections_for_large_copies", a_helper_has_connections_for_large_copies),
    ("copies_at_rest_are_complete_before_other_calls", copies_at_rest_are_complete_before_other_calls),
    ("a_job_takes_no_more_of_the_servers_memory_than_it_may", a_job_takes_no_more_of_the_servers_memory_than_it_may),
    ("a_forked_child_does_not_keep_the_gpu_of_its_dead_parent", a_forked_child_does_not_keep_the_gpu_of_its_dead_parent),
    ("calls_run_on_the_gpu_of_a_server", calls_run_on_the_gpu_of_a_server),
    ("the_end_of_a_job_ends_its_worker", the_end_of_a_job_ends_its_worker),
    ("memory_moves_from_server_to_server", memory_moves_from_server_to_server),
    ("a_killed_server_is_noticed_and_another_is_not_harmed", a_killed_server_is_noticed_and_another_is_not_harmed),
    ("a_server_ends_in_order", a_server_ends_in_order),
    ("a_job_sees_and_gets_as_much_memory_of_the_gpu_as_it_may", a_job_sees_and_gets_as_much_memory_of_the_gpu_as_it_may),
    ("a_missing_driver_is_named", a_missing_driver_is_named),
];

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let first = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    match (first.to_str(), rest.as_slice()) {
        (Some("serve"), [directory]) => return daemon(Path::new(directory)),
        (Some("fork"), [server, directory]) => return forking_job(&server.to_string_lossy(), Path::new(directory)),
        // As `Link::to_helper` starts it: its job's process id, and its build.
        (Some(pid), [_]) if pid.parse::<u32>().is_ok() => return ExitCode::from(helper_main() as u8),
        (Some("greeter"), _) => return ExitCode::from(greeter_main(&rest) as u8),
        (Some("worker"), _) => return ExitCode::from(worker_main(rest) as u8),
        (Some("--list"), _) => {
            TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let filter = first.to_str().filter(|f| !f.starts_with('-')).unwrap_or_default();
    let exact = rest.iter().any(|arg| arg == "--exact");
    let is_chosen = |name: &str| if exact { name == filter } else { name.contains(filter) };
    let chosen: Vec<_> = TESTS.iter().filter(|(name, _)| is_chosen(name)).collect();
    println!("\nrunning {} tests", chosen.len());
    let failed = chosen
        .iter()
        .filter(|(name, test)| {
            let ok = catch_unwind(AssertUnwindSafe(test)).is_ok();
            println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
            !ok
        })
        .count();
    let (passed, out) = (chosen.len() - failed, TESTS.len() - chosen.len());
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {out} filtered out\n");
    ExitCode::from(u8::from(failed != 0))
}
