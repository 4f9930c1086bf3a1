//! The state of the GPUs and jobs that an agent knows.

use crate::choice::Choice;

/// What the GPUs of the agent's own machine belong to that no server has.
pub const LOCAL: &str = "local";

/// A GPU that jobs can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The place, as a job is sent there: `HOST:PORT/GPU`, `unix:PATH/GPU`, `local:GPU`.
    pub place: String,
    /// What it belongs to: a server's address, or [`LOCAL`].
    pub server: String,
    /// Free memory in bytes; `None`: not known. Then no job is sent there, except to [`LOCAL`] ones, where the move itself finds out.
    pub free_bytes: Option<u64>,
    /// Whether it takes jobs: its server answers and is not ending.
    pub takes_jobs: bool,
    /// Jobs that use it and are not in [`World::jobs`]: of other machines, or of users whose jobs the agent does not see. At [`LOCAL`] ones also
    /// programs that are no jobs, if `sees_programs`.
    pub others: u32,
    /// Whether it is known which programs use it that are no jobs.
    pub sees_programs: bool,
    /// The node of its server, if the cluster's scheduler is emptying that node.
    pub draining_node: Option<String>,
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
    /// It is not to be moved now: a move is under way, it has several GPUs, its GPU has failed, it does not answer, or a rule leaves it alone.
    Busy,
}

/// A GPU of a job of the agent's machine. A job with several has an entry for each, all of them [`JobState::Busy`].
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
    /// The place where it belongs, if it or a rule names one.
    pub home: Option<String>,
    /// The policies that it lets move it; none: all.
    pub choice: Option<Choice>,
    /// GPUs at which it has lately failed to arrive: it is not sent there. [`crate::decide()`] fills this in.
    pub avoid: Vec<usize>,
}

impl Job {
    /// Whether it can move now, and lets this policy move it.
    pub(crate) fn may_move(&self, policy: &str) -> bool {
        self.state == JobState::Running && self.choice.as_ref().is_none_or(|choice| choice.contains(policy))
    }
}

/// All that is known at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct World {
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The jobs of this machine.
    pub jobs: Vec<Job>,
    /// Whether a server did not answer, so that there may be room that is not known: then no job is parked.
    pub is_incomplete: bool,
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
        let (needed, it) = (job.used_bytes.saturating_add(reserve), &self.gpus[gpu]);
        let has_room = it.free_bytes.map_or(it.server == LOCAL, |free| free >= needed);
        it.takes_jobs && has_room && !job.avoid.contains(&gpu)
    }

    /// The state after a job has left its GPU and, unless it is parked, arrived at another one.
    pub(crate) fn after(mut self, pid: u32, to: Option<usize>) -> World {
        let Some(job) = self.jobs.iter_mut().find(|job| job.pid == pid) else { return self };
        let (from, bytes) = (std::mem::replace(&mut job.gpu, to), job.used_bytes);
        // The policies that follow leave a job alone that has just been moved.
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
