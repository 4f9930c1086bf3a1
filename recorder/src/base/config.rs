//! The environment variables that the recorder reads, each read once.

use super::server_moves::ServerMoves;
use ::control::LONGEST_ID;
use ::control::name::is_name;
use cuda_api::address_map::DEVICES;
use rcuda_forwarder::{PlaceSpec, PlaceSpecError};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// More threads do not copy faster (docs/measurements.md).
const MAX_COPY_THREADS: usize = 64;
/// A place takes no more connections of one kind.
const MAX_CONNECTIONS: u32 = 64;

/// The settings that `mrcuda run` passes to the recorder.
#[derive(Debug)]
pub(crate) struct Config {
    /// `MRCUDA_SERVERS`: a place for each virtual device. Without it the job starts in-process on the local GPU. `MRCUDA_VISIBLE` has the
    /// value of `CUDA_VISIBLE_DEVICES` at that time (`all` if it was unset): a later value, set by a launcher under the job, chooses
    /// among the places.
    pub(crate) servers: Vec<PlaceSpec>,
    /// `MRCUDA_NAME`: the name of the job, if it was given one.
    pub(crate) name: Option<String>,
    /// `MRCUDA_HOME_PLACE`: where the job belongs, which an agent reads.
    pub(crate) home: Option<PlaceSpec>,
    /// `MRCUDA_POLICY`: which policies of an agent may move the job, or `none`; an agent knows which there are.
    pub(crate) policy: Option<String>,
    /// `MRCUDA_WAIT`: how long the job waits for its turn when it starts, if a server has no room, in milliseconds.
    pub(crate) wait: Duration,
    /// `MRCUDA_ON_SIGNAL`: the target of a move by signal.
    pub(crate) on_signal: String,
    /// `MRCUDA_SIGNAL`: which signal.
    pub(crate) signal: i32,
    /// `MRCUDA_ON_STOP`: where the job is parked while it is stopped.
    pub(crate) on_stop: Option<String>,
    /// `MRCUDA_WHEN_FULL`: where a device may move that finds no memory at its place, in this order.
    pub(crate) when_full: Vec<PlaceSpec>,
    /// `MRCUDA_SERVER_MOVES`: where servers may ask the job to move.
    pub(crate) server_moves: ServerMoves,
    /// `MRCUDA_DRIVER`: the driver of the in-process place.
    pub(crate) driver: Option<PathBuf>,
    /// `MRCUDA_TOKEN_FILE`, or the default path.
    pub(crate) token_file: PathBuf,
    /// `MRCUDA_MUNGE` and `MRCUDA_MUNGE_SOCKET`.
    pub(crate) munge: Option<rcuda_forwarder::Munge>,
    /// `MRCUDA_CA`, `MRCUDA_CERTIFICATE`, and the file of known servers.
    pub(crate) trust: rcuda_forwarder::Trust,
    /// `MRCUDA_COPY_THREADS`: how many threads make large copies of pageable memory in-process; 0 leaves them to the driver.
    pub(crate) copy_threads: Option<usize>,
    /// `MRCUDA_BULK_CONNECTIONS`: how many connections in each direction carry the bytes of large copies at a place outside of this
    /// process; 0: the connection of the calls carries them.
    pub(crate) bulk_connections: Option<u32>,
    /// `MRCUDA_MOVE_CONNECTIONS`: how many connections carry memory between two places.
    pub(crate) move_connections: Option<u32>,
    /// `MRCUDA_MANAGED=exclusive`: the program's host does not touch managed memory while kernels run.
    pub(crate) exclusive: bool,
    /// `MRCUDA_COVERAGE`: a file to which the names of called functions are appended at exit.
    pub(crate) coverage: Option<PathBuf>,
    /// `MRCUDA_KEEP_JOURNAL`: a directory in which journals are kept after the job's end.
    pub(crate) keep_journal: Option<PathBuf>,
    /// The directory of the user's history of moves (`XDG_STATE_HOME`), if there is a home.
    pub(crate) history: Option<PathBuf>,
    /// `CUDA_MODULE_LOADING=EAGER`: what the program sees; places load lazily.
    pub(crate) eager_loading: bool,
}

/// Why an environment variable is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// It contains an invalid place.
    #[error("{name}: {source}")]
    Place {
        /// The variable.
        name: &'static str,
        /// Why the place is invalid.
        source: PlaceSpecError,
    },
    /// More places than a job can have.
    #[error("MRCUDA_SERVERS: {0} places: a job can have at most {max}", max = DEVICES)]
    Places(usize),
    /// Nothing is executed at such a place.
    #[error("{0}: nothing is executed at {1}: a job can only be parked there")]
    Store(&'static str, PlaceSpec),
    /// A job cannot be parked at such a place.
    #[error("MRCUDA_ON_STOP: {0} is not a place where a job is parked: memory, file:DIR or HOST:PORT/memory")]
    Executes(String),
    /// The signal's name is unknown.
    #[error("MRCUDA_SIGNAL: no signal is called {0}")]
    Signal(String),
    /// The job's name is invalid.
    #[error("MRCUDA_NAME: `{0}` is not a name: it has 1 to {LONGEST_ID} letters, digits, dots, dashes or underscores")]
    Name(String),
    /// Several homes.
    #[error("MRCUDA_HOME_PLACE: {0} places: a job belongs at one")]
    Homes(usize),
    /// The list of policies is invalid.
    #[error("MRCUDA_POLICY: `{0}` is not a list of policies, separated by commas, or none")]
    Policy(String),
    /// The time is invalid.
    #[error("MRCUDA_WAIT: {0} is not a number of milliseconds")]
    Wait(String),
    /// The number of threads is invalid.
    #[error("MRCUDA_COPY_THREADS: {0} is not a number from 0 to {MAX_COPY_THREADS}")]
    CopyThreads(String),
    /// There is no such way to use managed memory.
    #[error("MRCUDA_MANAGED: {0} is not concurrent or exclusive")]
    Managed(String),
    /// The number of connections is invalid.
    #[error("{name}: {value} is not a number from {least} to {MAX_CONNECTIONS}")]
    Connections {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The lowest valid number.
        least: u32,
    },
}

fn read() -> Result<Config, ConfigError> {
    let place = |name| move |source| ConfigError::Place { name, source };
    let var = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let executing = |name| -> Result<Option<Vec<PlaceSpec>>, ConfigError> {
        let Some(list) = var(name) else { return Ok(None) };
        let places = list.split(',').map(|s| s.parse().map_err(place(name))).collect::<Result<Vec<PlaceSpec>, _>>()?;
        match places.iter().find(|place| place.is_store()) {
            Some(store) => Err(ConfigError::Store(name, store.clone())),
            None => Ok(Some(places)),
        }
    };
    let servers = executing("MRCUDA_SERVERS")?.unwrap_or_else(|| vec![PlaceSpec::Local(None)]);
    if servers.len() > DEVICES as usize {
        return Err(ConfigError::Places(servers.len()));
    }
    let shown = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let servers = match std::env::var("MRCUDA_VISIBLE").ok() {
        Some(before) if shown.as_deref().unwrap_or("all") != before => visible(servers, shown.as_deref()),
        _ => servers,
    };
    let signal = match var("MRCUDA_SIGNAL").as_deref() {
        None => libc::SIGUSR1,
        Some(name) => signal_number(name).ok_or_else(|| ConfigError::Signal(name.to_owned()))?,
    };
    let on_signal = var("MRCUDA_ON_SIGNAL").unwrap_or_else(|| "local".into());
    on_signal.split(',').try_for_each(|place| place.parse::<PlaceSpec>().map(drop)).map_err(place("MRCUDA_ON_SIGNAL"))?;
    let on_stop = var("MRCUDA_ON_STOP");
    for text in on_stop.iter().flat_map(|list| list.split(',')) {
        if !text.parse::<PlaceSpec>().map_err(place("MRCUDA_ON_STOP"))?.is_store() {
            return Err(ConfigError::Executes(text.to_owned()));
        }
    }
    let server_moves = var("MRCUDA_SERVER_MOVES").map_or(Ok(ServerMoves::Any), |text| ServerMoves::read(&text));
    let server_moves = server_moves.map_err(place("MRCUDA_SERVER_MOVES"))?;
    let name = var("MRCUDA_NAME");
    if let Some(name) = name.as_ref().filter(|name| !is_name(name)) {
        return Err(ConfigError::Name(name.clone()));
    }
    let mut homes = executing("MRCUDA_HOME_PLACE")?.unwrap_or_default();
    if homes.len() > 1 {
        return Err(ConfigError::Homes(homes.len()));
    }
    let policy = var("MRCUDA_POLICY");
    if let Some(list) = policy.as_ref().filter(|list| list.len() > LONGEST_ID || !list.split(',').all(is_name)) {
        return Err(ConfigError::Policy(list.clone()));
    }
    let wait = match var("MRCUDA_WAIT") {
        None => Duration::ZERO,
        Some(ms) => Duration::from_millis(ms.parse().map_err(|_| ConfigError::Wait(ms.clone()))?),
    };
    let copy_threads = match var("MRCUDA_COPY_THREADS") {
        None => None,
        Some(n) => Some(n.parse().ok().filter(|n| *n <= MAX_COPY_THREADS).ok_or_else(|| ConfigError::CopyThreads(n.clone()))?),
    };
    let connections = |name, least| {
        let number = |value: String| match value.parse().ok().filter(|n| (least..=MAX_CONNECTIONS).contains(n)) {
            Some(n) => Ok(n),
            None => Err(ConfigError::Connections { name, value, least }),
        };
        var(name).map(number).transpose()
    };
    let exclusive = match var("MRCUDA_MANAGED").as_deref() {
        None | Some("concurrent") => false,
        Some("exclusive") => true,
        Some(other) => return Err(ConfigError::Managed(other.to_owned())),
    };
    Ok(Config {
        servers,
        name,
        home: homes.pop(),
        policy,
        wait,
        on_signal,
        signal,
        on_stop,
        when_full: executing("MRCUDA_WHEN_FULL")?.unwrap_or_default(),
        server_moves,
        driver: var("MRCUDA_DRIVER").map(PathBuf::from),
        token_file: rcuda_forwarder::Token::default_path(),
        munge: rcuda_forwarder::Munge::from_environment(),
        trust: rcuda_forwarder::Trust::from_environment(),
        copy_threads,
        bulk_connections: connections("MRCUDA_BULK_CONNECTIONS", 0)?,
        move_connections: connections("MRCUDA_MOVE_CONNECTIONS", 1)?,
        exclusive,
        coverage: var("MRCUDA_COVERAGE").map(PathBuf::from),
        keep_journal: var("MRCUDA_KEEP_JOURNAL").map(PathBuf::from),
        // Unit tests leave nothing in the user's history.
        history: ::control::history::path().filter(|_| !cfg!(test)),
        eager_loading: var("CUDA_MODULE_LOADING").is_some_and(|mode| mode.eq_ignore_ascii_case("EAGER")),
    })
}

/// The places that `CUDA_VISIBLE_DEVICES` selects by number: everything up to the first invalid or repeated entry, as natively.
fn visible(places: Vec<PlaceSpec>, shown: Option<&str>) -> Vec<PlaceSpec> {
    let Some(shown) = shown else { return places };
    let mut chosen: Vec<usize> = Vec::new();
    for word in shown.split(',') {
        match word.trim().parse() {
            Ok(n) if n < places.len() && !chosen.contains(&n) => chosen.push(n),
            _ => break,
        }
    }
    chosen.into_iter().map(|n| places[n].clone()).collect()
}

fn signal_number(name: &str) -> Option<i32> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    format!("SIG{name}").parse::<nix::sys::signal::Signal>().ok().map(|s| s as i32)
}

/// The configuration, or why it is invalid.
pub(crate) fn get() -> Result<&'static Config, &'static ConfigError> {
    static CONFIG: OnceLock<Result<Config, ConfigError>> = OnceLock::new();
    CONFIG.get_or_init(read).as_ref()
}

/// Returns whether the program's host does not touch managed memory while kernels run.
pub(crate) fn is_exclusive() -> bool {
    get().is_ok_and(|config| config.exclusive)
}

#[cfg(test)]
mod tests;
