//! What a server reports of its GPUs and of the jobs that it serves, and the messages that carry it (docs/servers.md).

use crate::conn::Conn;
use crate::greet::{self, GreetError};
use crate::user_by::UserBy;
use cuda_api::board::{Reading, Readings};
use cuda_api::wire::Wire;
use cuda_api::wire_struct;
use executor::DeviceInfo;
use serde::Serialize;
use std::io;
use std::time::Instant;

/// Maximum length of a report. One worker takes about 100 bytes of it, and a server has a few thousand workers at most.
const LONGEST: usize = 4 << 20;
/// Bytes of a report in one message, which may have at most 64 KiB.
const PIECE: usize = 60 << 10;

wire_struct! {
    /// The properties by which a GPU is recognized.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct GpuFacts {
        /// Its name.
        pub name: String,
        /// `cuDeviceGetUuid`
        pub uuid: [u8; 16],
        /// Its memory, in bytes.
        pub total_bytes: u64,
        /// `cuDriverGetVersion`: 1000 × major + 10 × minor.
        pub driver_version: i32,
    }
}

impl From<&DeviceInfo> for GpuFacts {
    fn from(info: &DeviceInfo) -> GpuFacts {
        GpuFacts { name: info.name.clone(), uuid: info.uuid, total_bytes: info.total_bytes, driver_version: info.driver_version }
    }
}

wire_struct! {
    /// Memory as one worker sees it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct MemoryUse {
        /// Free bytes of its GPU, unless the driver does not say.
        pub(crate) free_bytes: Option<u64>,
        /// Bytes of its job's memory.
        pub(crate) used_bytes: u64,
        /// Bytes of it that are in host memory, because the job is stopped; not among the others.
        pub(crate) evicted_bytes: u64,
    }
}

wire_struct! {
    /// A worker with its client: one GPU of one job.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ServedJob {
        /// The worker's process on the server.
        pub worker: u32,
        /// The address that the client has connected from; `None`: the server's own machine, by a Unix socket.
        pub host: Option<String>,
        /// The job's process: from a Unix socket as the kernel says, over a network by the client's own word.
        pub pid: u32,
        /// The job's user, if the kernel says.
        pub uid: Option<u32>,
        /// The name of the user whose token the job has shown; otherwise that of `uid`, if the server's machine knows it.
        pub user: Option<String>,
        /// Which of both it is.
        pub user_by: Option<UserBy>,
        /// Since when the worker serves it, in milliseconds since 1970.
        pub since_unix_ms: u64,
        /// Bytes of the job's memory at this worker; `None`: the worker has not answered in time.
        pub used_bytes: Option<u64>,
        /// Bytes of it that were taken off the GPU, because the job is stopped; not among the others.
        pub evicted_bytes: Option<u64>,
    }
}

wire_struct! {
    /// A GPU that a server shares.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct GpuState {
        /// Its properties; `None`: no worker has opened it so far.
        pub facts: Option<GpuFacts>,
        /// Its free memory, in bytes; `None`: no worker has answered in time.
        pub free_bytes: Option<u64>,
        /// Memory that its jobs may still take by their limits, in bytes; `None`: they have none, or a worker has not answered in time.
        pub promised_bytes: Option<u64>,
        /// Workers that wait for a client.
        pub idle_workers: u32,
        /// Jobs that wait for a turn.
        pub waiting: u32,
        /// The workers that have one, longest first.
        pub jobs: Vec<ServedJob>,
        /// What it measures, by its machine's NVML.
        pub readings: Readings,
    }
}

/// What a GPU measures, in the units in which it is shown. What is not known is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Share of the last sample period in which a kernel ran, in percent.
    pub utilization_percent: Option<u32>,
    /// Share of it in which its memory was read or written, in percent.
    pub memory_utilization_percent: Option<u32>,
    /// Power that it draws, in watts.
    pub power_watts: Option<f64>,
    /// Power that it may draw, in watts.
    pub power_limit_watts: Option<f64>,
    /// Temperature of the chip, in degrees Celsius.
    pub temperature_celsius: Option<u32>,
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
}

impl From<&Readings> for Measured {
    fn from(known: &Readings) -> Measured {
        let percent = |reading: Reading| reading.of(known).filter(|share| *share <= 100);
        let watts = |reading: Reading| reading.of(known).map(|milliwatts| f64::from(milliwatts) / 1e3);
        Measured {
            utilization_percent: percent(Reading::Utilization),
            memory_utilization_percent: percent(Reading::MemoryUtilization),
            power_watts: watts(Reading::Power),
            power_limit_watts: watts(Reading::PowerLimit),
            temperature_celsius: Reading::Temperature.of(known),
            sm_clock_mhz: Reading::SmClock.of(known),
        }
    }
}

wire_struct! {
    /// The server from which another one has taken over, and which has jobs left.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FormerServer {
        /// The daemon's process.
        pub pid: u32,
        /// Number of its jobs on each GPU, and of those that wait for one.
        pub jobs: Vec<u32>,
        /// Number of jobs that are parked in its memory.
        pub parked: u32,
    }
}

wire_struct! {
    /// The limits of a server for its clients; `None`: no limit.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct ServerLimits {
        /// Workers with a client, in all,
        pub workers: u32,
        /// and of one client.
        pub client_workers: u32,
        /// Workers with a client on each GPU.
        pub gpu_jobs: Option<u32>,
        /// Workers that one client may start in a minute.
        pub client_rate: Option<u32>,
        /// Bytes of GPU memory of each worker,
        pub memory_bytes: Option<u64>,
        /// and of all workers of one client.
        pub client_memory_bytes: Option<u64>,
    }
}

wire_struct! {
    /// A server at one moment.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ServerState {
        /// The daemon's process.
        pub pid: u32,
        /// Since when it serves, in milliseconds since 1970.
        pub since_unix_ms: u64,
        /// Whether it takes no new jobs because it is ending.
        pub ending: bool,
        /// Its limits for clients.
        pub limits: ServerLimits,
        /// Its GPUs, by their number in places.
        pub gpus: Vec<GpuState>,
        /// Jobs that are parked in its memory.
        pub parked: Vec<ServedJob>,
        /// The server before it.
        pub earlier: Option<FormerServer>,
        /// Why what its GPUs measure is not known.
        pub no_readings: Option<String>,
    }
}

impl ServerState {
    /// Sends the report to a client that has asked for it.
    pub(crate) fn send(&self, conn: &Conn) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        greet::answer(conn, Ok(&(bytes.len() as u64).to_le_bytes()))?;
        bytes.chunks(PIECE).try_for_each(|piece| greet::answer(conn, Ok(piece)))
    }
}

/// Receives the report of a server that has been asked for it.
pub(crate) fn receive(conn: &Conn, deadline: Instant) -> Result<ServerState, GreetError> {
    let length = greet::read_answer(conn, deadline)?;
    let length = usize::get(&mut &length[..]).ok().filter(|n| *n <= LONGEST).ok_or(GreetError::Garbage)?;
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let piece = greet::read_answer(conn, deadline)?;
        if piece.is_empty() || piece.len() > length - bytes.len() {
            return Err(GreetError::Garbage);
        }
        bytes.extend(piece);
    }
    let mut rest = &bytes[..];
    ServerState::get(&mut rest).ok().filter(|_| rest.is_empty()).ok_or(GreetError::Garbage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::pair;
    use std::time::Duration;

    fn state(jobs: usize) -> ServerState {
        let job = |n: usize| ServedJob {
            worker: n as u32,
            host: n.is_multiple_of(2).then(|| "10.0.0.7".into()),
            pid: 4711,
            uid: (!n.is_multiple_of(2)).then_some(1000),
            user: (!n.is_multiple_of(2)).then(|| "ann".into()),
            user_by: [None, Some(UserBy::Token), None, Some(UserBy::System)][n % 4],
            since_unix_ms: 1 << 40,
            used_bytes: Some(n as u64),
            evicted_bytes: Some(n as u64 / 2),
        };
        let facts = GpuFacts { name: "GPU of a test".into(), uuid: [7; 16], total_bytes: 1 << 30, driver_version: 13_000 };
        let gpu = GpuState {
            facts: Some(facts),
            free_bytes: Some(1 << 29),
            promised_bytes: Some(1 << 28),
            idle_workers: 1,
            waiting: 2,
            jobs: (0..jobs).map(job).collect(),
            readings: vec![(Reading::Temperature as u32, 44)],
        };
        let unknown = GpuState { facts: None, free_bytes: None, jobs: Vec::new(), ..gpu.clone() };
        ServerState {
            pid: 7,
            since_unix_ms: 9,
            ending: false,
            limits: ServerLimits { workers: 64, client_workers: 16, memory_bytes: Some(1 << 20), ..ServerLimits::default() },
            gpus: vec![gpu, unknown],
            parked: vec![job(3)],
            earlier: Some(FormerServer { pid: 6, jobs: vec![1, 2], parked: 3 }),
            no_readings: Some("NVML sleeps".into()),
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn reports_of_any_length_arrive() {
        for jobs in [0, 1, 5000] {
            let (here, there) = pair();
            let sender = std::thread::spawn(move || state(jobs).send(&there));
            assert_eq!(receive(&here, soon()).unwrap(), state(jobs));
            sender.join().unwrap().unwrap();
        }
    }

    #[test]
    fn readings_that_are_absent_are_not_0() {
        let all = Reading::ALL.map(|reading| (reading as u32, 99)).to_vec();
        let Measured { power_watts, power_limit_watts, .. } = Measured::from(&all);
        assert_eq!((power_watts, power_limit_watts), (Some(0.099), Some(0.099)));
        assert_eq!(Measured::from(&Readings::new()), Measured::default());
        let known = vec![(Reading::Temperature as u32, 0), (Reading::Utilization as u32, 101), (u32::MAX, 7)];
        assert_eq!(Measured::from(&known), Measured { temperature_celsius: Some(0), ..Measured::default() });
    }

    #[test]
    fn what_no_server_sends_is_named() {
        let mut whole = Vec::new();
        state(1).put(&mut whole);
        let length = |n: u64| n.to_le_bytes().to_vec();
        let n = whole.len() as u64;
        let cases = [
            vec![length(LONGEST as u64 + 1)],
            vec![vec![1, 2]],
            vec![length(n), Vec::new()],
            vec![length(n - 1), whole[..whole.len() - 1].to_vec()],
            vec![length(n), [&whole[..], &[0]].concat()],
            vec![length(n + 1), [&whole[..], &[0]].concat()],
            vec![length(8), length(u64::MAX)],
        ];
        for said in cases {
            let (here, there) = pair();
            said.iter().for_each(|piece| greet::answer(&there, Ok(piece)).unwrap());
            assert!(matches!(receive(&here, soon()), Err(GreetError::Garbage)), "{said:?}");
        }
        let (here, there) = pair();
        greet::answer(&there, Err("no\x1b time")).unwrap();
        let why = receive(&here, soon()).unwrap_err();
        assert_eq!(why.to_string(), "no time");
    }
}
