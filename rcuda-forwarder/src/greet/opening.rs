//! What a connection is for, as its client says in the greeting.

use super::ticket::{Route, route};
use crate::move_request::MoveRequest;
use crate::server_drain::DrainRequest;
use cuda_api::wire::{Short, Wire};
use cuda_api::wire_struct;

/// Maximum length of the name of a job.
const LONGEST_NAME: usize = 256;
/// Maximum number of environment variables in an opening.
pub(super) const VARIABLES: usize = 256;

wire_struct! {
    /// A job's description of itself for a worker's server.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JobHello {
        /// Number of the device in the job (0 to 31), which determines the addresses.
        pub virtual_device: u32,
        /// The job's process.
        pub pid: u32,
        /// The job's `CUDA_*` environment.
        pub env: Vec<(String, String)>,
        /// The job's name, by its own word.
        pub name: String,
    }
}

/// What a job says about a socket of the server on its machine (see [`crate::local_socket`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locality {
    /// Nothing: it stays on this connection.
    None,
    /// Over TCP: it would rather use that socket, if the server is on this machine.
    Machine([u8; 32]),
    /// At the socket: it has an invitation of this name.
    Invited([u8; 32]),
}

impl Wire for Locality {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Locality::None => 0u8.put(out),
            Locality::Machine(machine) => (1u8, *machine).put(out),
            Locality::Invited(name) => (2u8, *name).put(out),
        }
    }

    fn get(src: &mut &[u8]) -> Result<Locality, Short> {
        match u8::get(src)? {
            0 => Ok(Locality::None),
            1 => Ok(Locality::Machine(Wire::get(src)?)),
            2 => Ok(Locality::Invited(Wire::get(src)?)),
            _ => Err(Short),
        }
    }
}

/// The purpose of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The calls of a job for one GPU of the server.
    Job {
        /// Number of the GPU.
        gpu: u32,
        /// RDMA is to carry its calls.
        rdma: bool,
        /// The job waits if the server is full.
        waits: bool,
        /// What it says about a socket of the server on its machine.
        locality: Locality,
        /// The job.
        hello: JobHello,
    },
    /// One data connection of a copy between places.
    Bulk {
        /// Digest of the ticket.
        name: [u8; 32],
        /// RDMA is to carry it, if possible.
        rdma: bool,
    },
    /// A question about the server: the client gets its [`crate::ServerState`].
    Inspect,
    /// A measurement of the connection.
    Trial,
    /// A request that a job move.
    Move(MoveRequest),
    /// What happens at the server, from now on.
    Events,
    /// A request about a drain of the server.
    Drain(DrainRequest),
    /// A question of a job that has lost the worker with this process: how it has failed.
    WorkerEnd(u32),
}

impl Opening {
    pub(crate) fn role(&self) -> u8 {
        match self {
            Opening::Job { .. } => 1,
            Opening::Bulk { .. } => 2,
            Opening::Inspect => 3,
            Opening::Trial => 4,
            Opening::Move(_) => 5,
            Opening::Events => 6,
            Opening::Drain(_) => 7,
            Opening::WorkerEnd(_) => 8,
        }
    }

    /// What the client says of its ticket before the greeting.
    pub(super) fn route(&self) -> Route {
        match self {
            Opening::Bulk { name, .. } => route(name),
            _ => Route::default(),
        }
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Opening::Job { gpu, rdma, waits, locality, hello } => {
                gpu.put(&mut out);
                (*rdma, *waits).put(&mut out);
                locality.put(&mut out);
                hello.put(&mut out);
            }
            Opening::Bulk { name, rdma } => (*name, *rdma).put(&mut out),
            Opening::Move(request) => request.put(&mut out),
            Opening::Drain(request) => request.put(&mut out),
            Opening::WorkerEnd(worker) => worker.put(&mut out),
            Opening::Inspect | Opening::Trial | Opening::Events => {}
        }
        out
    }

    pub(crate) fn read(role: u8, mut body: &[u8]) -> Result<Opening, Short> {
        let src = &mut body;
        let opening = match role {
            1 => {
                let (gpu, rdma, waits) = (Wire::get(src)?, Wire::get(src)?, Wire::get(src)?);
                Opening::Job { gpu, rdma, waits, locality: Wire::get(src)?, hello: Wire::get(src)? }
            }
            2 => Opening::Bulk { name: Wire::get(src)?, rdma: Wire::get(src)? },
            3 => Opening::Inspect,
            4 => Opening::Trial,
            5 => Opening::Move(Wire::get(src)?),
            6 => Opening::Events,
            7 => Opening::Drain(Wire::get(src)?),
            8 => Opening::WorkerEnd(Wire::get(src)?),
            _ => return Err(Short),
        };
        match &opening {
            Opening::Job { hello, .. }
                if hello.virtual_device >= 32 || hello.env.len() > VARIABLES || hello.name.len() > LONGEST_NAME =>
            {
                Err(Short)
            }
            Opening::Move(request) if !request.is_valid() => Err(Short),
            Opening::Drain(request) if !request.is_valid() => Err(Short),
            _ if src.is_empty() => Ok(opening),
            _ => Err(Short),
        }
    }
}
