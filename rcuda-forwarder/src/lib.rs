//! Forwards the calls of a job to a GPU in another process, on the same or another machine.
//!
//! * [`Link`] is the job's end: many threads put calls into a [`ring`]; the worker receives them in one order.
//! * [`serve`] is the daemon: it authenticates clients ([`Token`], [`TokensFile`]) and hands each to a worker process
//!   ([`worker_main`]). A process without privileges greets them first ([`greeter_main`]).
//! * [`Link::to_helper`] starts a helper: a worker on the job's machine ([`helper_main`]).
//! * [`inspect()`] asks a server for its [`ServerState`]: its GPUs and the jobs that it serves.
//! * [`trial()`] measures the connection to a server.
//! * [`Control`] requests concern a place as a whole; [`bulk_connect`] opens data connections, over which memory is
//!   copied.
//!
//! docs/formats.md describes the protocol. Both ends must be the same build ([`build_digest`]).

mod account;
mod address_space;
mod attendant;
mod bulk;
mod byte_stream;
mod carried;
mod carrier;
mod certificate;
mod channel;
mod config_file;
mod conn;
mod control;
mod daemon;
mod dialer;
mod endpoint;
mod eviction;
mod exposition;
mod frame;
mod futex;
#[cfg(test)]
mod fuzz;
mod greet;
mod greeter;
mod handshake;
mod helper;
mod host_mirror;
mod inbox;
mod inspect;
mod known_servers;
mod leave_request;
mod limits;
mod link;
mod local_socket;
mod log_line;
mod move_request;
mod munge;
mod nvml_reader;
pub mod orphan;
mod packet;
mod pipe;
mod place;
mod place_spec;
mod rdma;
mod records;
mod request_drain;
mod request_move;
pub mod ring;
mod rlimit;
mod sandbox;
mod secret;
mod server_drain;
mod server_event;
mod server_state;
mod shm;
mod socket;
mod stripes;
mod sync;
mod targets;
mod threads;
mod token;
mod traffic;
mod trial;
mod user;
mod user_by;
mod user_tokens;
mod worker;

pub use attendant::InProcess;
pub use carried::Carried;
pub use certificate::CertificateError;
pub use channel::StoreAt;
pub use control::{Control, ControlReply, GlobalInfo, Refused};
pub use daemon::{
    Drain, GpuName, GpuUsers, MetricsOptions, MetricsServer, MungeOptions, NoReadings, ServeError, ServeOptions, SharedGpus,
    SharedGpusError, UserSpec, UserSpecError, WorkerUserSpec, WorkerUserSpecError, serve,
};
pub use diagnostics::Format as LogFormat;
pub use endpoint::{Endpoint, EndpointError, Scheme};
pub use executor::Usage as GpuUsage;
pub use executor::fork::NotInherited;
pub use exposition::{Exposition, Family, Histogram};
pub use frame::MAX_BODY;
pub use greet::{JobHello, NotGreeted, build_digest};
pub use greeter::greeter_main;
pub use handshake::Trust;
pub use helper::{HelperOptions, Opens};
pub use inspect::inspect;
pub use leave_request::LeaveRequest;
pub use limits::{ClientLimits, EvictStopped, WorkerLimits};
pub use link::{
    BeforeSent, BulkCopy, BulkMemory, ControlUnderWay, Credentials, Fault, Landing, Link, LinkCounts, LinkError, Lost, Reply,
    TimeLimits, Transport, bulk_connect, read_registered,
};
pub use log_line::{error_line, info_line};
pub use move_request::{MoveAnswer, MoveOutcome, MoveRequest, MovedGpu};
pub use munge::{Munge, MungeError};
pub use place_spec::{PlaceSpec, PlaceSpecError};
pub use request_drain::drain;
pub use request_move::request_move;
pub use sandbox::SandboxMode;
pub use server_drain::{DrainRequest, DrainState, DrainWish, NotLeft};
pub use server_event::{ServerEvent, ServerEventKind, ServerEvents};
pub use server_state::{FormerServer, GpuFacts, GpuState, Measured, ServedJob, ServerLimits, ServerState};
pub use targets::{Target, TargetError};
pub use token::{Token, TokenError};
pub use traffic::{Traffic, count_traffic, traffic};
pub use trial::{Trial, trial};
pub use user_by::UserBy;
pub use user_tokens::{LineError, TokensError, TokensFile, UserToken};
pub use worker::{helper_main, worker_main};
