//! A client that has the token and means no good: what it can reach of its worker.

use crate::LIMIT;
use cuda_api::address_map::{HEAP, HOST, OWN, PLACED, SCRATCH, VIEW, VMM};
use cuda_api::arg::LEGACY;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::{Chunk, CopyOut, DIRECT_COPY, Fill, GraphCall, GraphChange, GraphMake, HostPin, Slab, id};
use cuda_api::wire::Wire;
use cuda_api::work::{self, At, Copy3, CopyEnd, Spec, SpecNode, Work};
use rcuda_forwarder::{Credentials, JobHello, Link, Lost, Token, Trust};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tests::scene::wait_for;
use tests::{Scene, Server};

const CHUNK: u64 = 2 << 20;
const BYTES: u64 = 64;
/// A client, and the number of the process that it says that it is, by which the server's log names it.
struct Client {
    link: Arc<Link>,
    pid: u32,
}

impl std::ops::Deref for Client {
    type Target = Arc<Link>;

    fn deref(&self) -> &Arc<Link> {
        &self.link
    }
}

fn client(scene: &Scene, server: &Server) -> Client {
    static NEXT: AtomicU32 = AtomicU32::new(4242);
    let pid = NEXT.fetch_add(1, Ordering::Relaxed);
    let trust = Trust { authorities: None, known_servers: scene.path.join("known_servers"), certificate: None };
    let credentials = Credentials { token: Some(Token::load(&scene.token()).expect("token")), munge: None, trust };
    let hello = JobHello { virtual_device: 0, pid, env: vec![], name: String::new() };
    let link = Link::connect(&server.place(0).parse().expect("place"), Some(&credentials), &hello, None).expect("connect");
    assert_eq!(ask(&link, id::CHUNK_MAP, &Chunk { address: OWN, bytes: CHUNK }), Ok(code::SUCCESS));
    let fill = Fill { dst: OWN, pitch: 0, value: 0, element: 1, width: CHUNK, rows: 1, stream: LEGACY };
    assert_eq!(ask(&link, id::FILL, &fill), Ok(code::SUCCESS));
    Client { link, pid }
}

fn ask(link: &Arc<Link>, call: u16, op: &impl Wire) -> Result<Code, Lost> {
    let mut body = Vec::new();
    op.put(&mut body);
    link.request(call, &[&body])?.wait().map(|(rc, _)| rc)
}

/// Where the program of a process begins, and a writable page of its own.
fn layout(pid: u32) -> (u64, u64) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let start = |line: &str| u64::from_str_radix(line.split('-').next().expect("a range"), 16).expect("an address");
    let of = |what: &str, rights: &str| maps.lines().find(|l| l.contains(what) && l.contains(rights)).map(start).expect(what);
    (of("mrcuda", "r--p"), of("[heap]", "rw-p"))
}

fn end(memory: u32, at: u64) -> CopyEnd {
    CopyEnd { memory, host: at, device: at, pitch: BYTES, height: 1, ..CopyEnd::default() }
}

fn graph(instance: u64, src: CopyEnd, dst: CopyEnd) -> GraphMake {
    let work = Work::Copy(Copy3 { src, dst, width: BYTES, rows: 1, depth: 1 });
    GraphMake {
        instance,
        flags: 0,
        home: 0,
        direct: true,
        spec: Spec { graphs: vec![vec![SpecNode { work, after: Default::default() }]] },
    }
}

#[test]
fn nodes_of_graphs_reach_no_memory_of_the_worker() {
    let scene = Scene::new("hostile-graph");
    let server = Server::start(&scene, "one");
    let link = client(&scene, &server);
    let (program, heap) = layout(server.worker_of(link.pid));
    let own = end(2, OWN);
    let good = compose(Kind::GraphExec, 1, 1);
    assert_eq!(ask(&link, id::GRAPH_MAKE, &graph(good, end(2, OWN + 4096), own)), Ok(code::SUCCESS));
    // Device and the type by which the address decides, for reading and for writing, in a new graph and in a change of one.
    for memory in [0, 2, 4, 77] {
        for (src, dst) in [(end(memory, program), own), (own, end(memory, heap)), (end(memory, heap), own)] {
            let other = compose(Kind::GraphExec, 1, 2);
            assert_eq!(ask(&link, id::GRAPH_MAKE, &graph(other, src, dst)), Ok(code::ERROR_INVALID_VALUE), "{memory}");
            let work = Work::Copy(Copy3 { src, dst, width: BYTES, rows: 1, depth: 1 });
            let change = GraphChange { instance: good, at: At { graph: 0, node: 0 }, work };
            assert_eq!(ask(&link, id::GRAPH_CHANGE, &change), Ok(code::ERROR_INVALID_VALUE), "{memory}");
        }
    }
    assert_eq!(ask(&link, id::GRAPH_LAUNCH, &(good, LEGACY)), Ok(code::SUCCESS));
    let mut body = Vec::new();
    CopyOut { src: OWN, pitch: 0, width: BYTES, rows: 1, stream: LEGACY }.put(&mut body);
    let answer = link.request(id::COPY_OUT, &[&body]).and_then(|r| r.wait()).expect("the worker is there");
    assert_eq!(answer, (code::SUCCESS, vec![0; BYTES as usize]), "the worker's memory is read");
    link.close();
}

/// What a copy of a graph reads at the worker by itself is memory that the job has there; bytes that come with a call are as many as it takes.
#[test]
fn copies_of_graphs_read_nothing_else() {
    let scene = Scene::new("hostile-own");
    let server = Server::start(&scene, "one");
    let link = client(&scene, &server);
    let (program, heap) = layout(server.worker_of(link.pid));
    let at = At { graph: 0, node: 0 };
    let call = |instance, token, own| GraphCall { token, stream: LEGACY, instance, at, acknowledged: false, own };
    for (n, address) in [(1, program), (2, heap), (3, OWN), (4, 0), (5, u64::MAX - 8), (6, HOST)] {
        let instance = compose(Kind::GraphExec, n, n);
        assert_eq!(ask(&link, id::GRAPH_MAKE, &graph(instance, end(work::HOST, address), end(2, OWN))), Ok(code::SUCCESS));
        assert_eq!(
            ask(&link, id::GRAPH_CALL, &call(instance, u64::from(n), true)),
            Ok(code::ERROR_INVALID_VALUE),
            "{address:#x}"
        );
        assert_eq!(ask(&link, id::GRAPH_LAUNCH, &[instance, LEGACY, DIRECT_COPY]), Ok(code::ERROR_INVALID_VALUE), "{address:#x}");
    }
    // A copy to the host has no source here.
    let out = compose(Kind::GraphExec, 7, 7);
    assert_eq!(ask(&link, id::GRAPH_MAKE, &graph(out, end(2, OWN), end(work::HOST, program))), Ok(code::SUCCESS));
    assert_eq!(ask(&link, id::GRAPH_CALL, &call(out, 20, true)), Ok(code::ERROR_INVALID_VALUE));
    assert_eq!(ask(&link, id::GRAPH_LAUNCH, &[out, LEGACY, DIRECT_COPY]), Ok(code::ERROR_INVALID_VALUE));
    // With memory that the job has here the same launch is possible, until the memory has ended.
    let pin = HostPin { address: HOST, bytes: 4096, flags: 0, apart: true, exclusive: false, slab: Slab::default() };
    assert_eq!(ask(&link, id::HOST_PIN, &pin), Ok(code::SUCCESS));
    let sixth = compose(Kind::GraphExec, 6, 6);
    assert_eq!(ask(&link, id::GRAPH_LAUNCH, &[sixth, LEGACY, DIRECT_COPY]), Ok(code::SUCCESS));
    assert_eq!(ask(&link, id::GRAPH_LAUNCH, &[sixth, LEGACY, 77]), Ok(code::ERROR_INVALID_VALUE), "a token without a call");
    assert_eq!(ask(&link, id::HOST_UNPIN, &HOST), Ok(code::SUCCESS));
    assert_eq!(ask(&link, id::GRAPH_CALL, &call(sixth, 40, true)), Ok(code::ERROR_INVALID_VALUE));
    assert_eq!(ask(&link, id::GRAPH_LAUNCH, &[sixth, LEGACY, DIRECT_COPY]), Ok(code::ERROR_INVALID_VALUE));
    let instance = compose(Kind::GraphExec, 1, 1);
    let mut body = Vec::new();
    call(instance, 30, false).put(&mut body);
    for bytes in [1, BYTES - 1, BYTES + 1] {
        let answer =
            link.request(id::GRAPH_CALL, &[&body, &vec![7; bytes as usize]]).and_then(|r| r.wait()).expect("the worker is there");
        assert_eq!(answer.0, code::ERROR_INVALID_VALUE, "{bytes} bytes");
    }
    let there = link.request(id::GRAPH_CALL, &[&body, &[7; BYTES as usize]]).expect("the worker is there");
    assert_eq!(ask(&link, id::GRAPH_LAUNCH, &[instance, LEGACY, 30]), Ok(code::SUCCESS));
    assert_eq!(there.wait().map(|(rc, _)| rc), Ok(code::SUCCESS));
    let mut body = Vec::new();
    CopyOut { src: OWN, pitch: 0, width: BYTES, rows: 1, stream: LEGACY }.put(&mut body);
    let answer = link.request(id::COPY_OUT, &[&body]).and_then(|r| r.wait()).expect("the worker is there");
    assert_eq!(answer, (code::SUCCESS, vec![7; BYTES as usize]));
    link.close();
}

#[test]
fn pins_do_not_tell_where_the_worker_lies() {
    let scene = Scene::new("hostile-pins");
    let server = Server::start(&scene, "one");
    let pin = |link: &Arc<Link>, address, bytes| {
        ask(link, id::HOST_PIN, &HostPin { address, bytes, flags: 0, apart: true, exclusive: false, slab: Slab::default() })
    };
    let first = client(&scene, &server);
    // What is the executor's or the job's on the device is no host memory, whether something lies there or not.
    for at in [OWN, OWN + CHUNK, OWN + (1 << 44), PLACED, SCRATCH, VIEW, VMM, HEAP] {
        assert_eq!(pin(&first, at, 8192), Ok(code::ERROR_INVALID_VALUE), "{at:#x}");
    }
    // Pinned memory has a range of its own, in which only the job can be in its own way.
    assert_eq!(pin(&first, HOST, 1 << 20), Ok(code::SUCCESS));
    assert_eq!(pin(&first, HOST + 4096, 4096), Ok(code::ERROR_OUT_OF_MEMORY));
    // Elsewhere an answer says that the memory was free; where it was not there is nobody who answers.
    // A page of the program, one of its heap, and much around it in which it lies somewhere.
    let around = |at: u64| at & !((256 << 20) - 1);
    type Pick = fn(u64, u64, &dyn Fn(u64) -> u64) -> (u64, u64);
    let places: [Pick; 3] =
        [|program, _, _| (program + 4096, 4096), |_, heap, _| (heap, 4096), |program, _, around| (around(program), 256 << 20)];
    for place in places {
        let link = client(&scene, &server);
        let (program, heap) = layout(server.worker_of(link.pid));
        let (at, bytes) = place(program, heap, &around);
        assert_eq!(pin(&link, 0x6000_0000_0000, 4096), Ok(code::SUCCESS));
        let lost = pin(&link, at, bytes).expect_err("the worker tells that something is there");
        assert!(link.is_lost(), "{lost}");
    }
    // Others notice nothing.
    assert_eq!(pin(&first, HOST + (1 << 30), 4096), Ok(code::SUCCESS));
    let is_logged = || server.errors().contains("at an address that this worker uses itself").then_some(());
    wait_for(LIMIT, is_logged).unwrap_or_else(|| panic!("{}", server.errors()));
}
