//! The state of the GPUs and jobs that an agent knows.

/// A GPU that jobs can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The place, as a job is sent there: `HOST:PORT/GPU`, `unix:PATH/GPU`, `local:GPU`.
    pub place: String,
    /// What it belongs to: a server's address, or `local` for GPUs of the agent's own machine outside any server.
    pub server: String,
    /// Free memory in bytes; `None`: not known, as for `local`, where the move itself finds out.
    pub free_bytes: Option<u64>,
    /// Whether it takes jobs: its server answers and is not ending.
    pub takes_jobs: bool,
    /// Jobs that use it and are none of the agent's: of other machines, or of users that it may not move.
    pub others: u32,
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// It runs, and could move.
    Running,
    /// It is parked; whether by an agent, which then also resumes it.
    Parked {
        /// An agent has parked it.
        by_agent: bool,
    },
    /// It cannot move now: a move is under way, its GPU has failed, or it does not answer.
    Busy,
}

/// A job of the agent's machine with one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Process id.
    pub pid: u32,
    /// Name, as `mrcuda ps` shows it.
    pub name: String,
    /// The GPU that it uses: an index into [`World::gpus`]. `None`: it is parked, or uses a GPU that the agent does not know.
    pub gpu: Option<usize>,
    /// Memory that it has allocated, in bytes.
    pub used_bytes: u64,
    /// What it does.
    pub state: JobState,
    /// Larger numbers go first. 0 unless a rule says otherwise.
    pub priority: i32,
    /// The place where it belongs, if a rule names one.
    pub home: Option<String>,
}

/// All that is known at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct World {
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The jobs of this machine that an agent may move.
    pub jobs: Vec<Job>,
}

impl World {
    /// The jobs that use a GPU.
    pub fn jobs_on(&self, gpu: usize) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter(move |job| job.gpu == Some(gpu))
    }

    /// Number of jobs that use a GPU, those of others included.
    pub fn load(&self, gpu: usize) -> u32 {
        self.jobs_on(gpu).count() as u32 + self.gpus[gpu].others
    }

    /// The GPU with this place.
    pub fn gpu_at(&self, place: &str) -> Option<usize> {
        self.gpus.iter().position(|gpu| gpu.place == place)
    }

    /// Whether a job could go to a GPU: it takes jobs, and the job's memory fits with `reserve` bytes left.
    pub fn fits(&self, job: &Job, gpu: usize, reserve: u64) -> bool {
        let needed = job.used_bytes.saturating_add(reserve);
        self.gpus[gpu].takes_jobs && self.gpus[gpu].free_bytes.is_none_or(|free| free >= needed)
    }

    /// The state after a job has left its GPU and, unless it is parked, arrived at another one.
    pub(crate) fn after(mut self, pid: u32, to: Option<usize>) -> World {
        let Some(job) = self.jobs.iter_mut().find(|job| job.pid == pid) else { return self };
        let (from, bytes) = (std::mem::replace(&mut job.gpu, to), job.used_bytes);
        // Whoever has just been moved is left alone by the policies that follow.
        job.state = JobState::Busy;
        if let Some(free) = from.and_then(|gpu| self.gpus[gpu].free_bytes.as_mut()) {
            *free = free.saturating_add(bytes);
        }
        if let Some(free) = to.and_then(|gpu| self.gpus[gpu].free_bytes.as_mut()) {
            *free = free.saturating_sub(bytes);
        }
        self
    }
}
