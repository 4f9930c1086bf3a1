//! Start and end of the job: connects to the places, starts the recorder's threads, and cleans up at process exit.

use crate::abi::start;
use crate::base::config::{self, ConfigError};
use crate::base::{coverage, log, output};
use crate::calls::host_function;
use crate::job::{self, Device, Job};
use crate::mover::parked;
use crate::place::{self, OpenError, Place};
use crate::thread::{self, here};
use crate::{children, control, gate, internal_error, leave, moves};
use cuda_api::address_map::DEVICES;
use cuda_api::calls;
use cuda_api::code::{self, Code};
use cuda_api::pointer::OutPtr;
use std::ffi::c_int;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) extern "C" fn in_forked_child() {
    internal_error::guard("a fork", || {
        job::note_fork();
        thread::note_fork();
        control::in_forked_child();
        children::in_child();
    });
}

/// `cuInit`: makes the job available to calls.
pub(crate) fn start() -> Result<(), Code> {
    job::publish(open()?)
}

/// Connects to the places and starts the control socket. Only the first call has an effect.
pub(crate) fn open() -> Result<&'static Job, Code> {
    let job = job::get_or_make(|| {
        if config::get().is_ok_and(|c| c.servers.is_empty()) {
            // The program, or the process that started it, has made no device visible.
            return Err(code::ERROR_NO_DEVICE);
        }
        connect().map_err(|why| {
            tracing::error!(target: "place", "{why}");
            code::ERROR_NO_DEVICE
        })
    })?;
    static CONTROL: OnceLock<()> = OnceLock::new();
    CONTROL.get_or_init(control::start);
    Ok(job)
}

/// Prepares for a driver in this process, which a move may bring much later.
fn receive_driver(driver: Option<&Path>) {
    // Without this, text may be shown slightly early.
    if let Err(e) = executor::steer::catch_text(output::arrived) {
        tracing::debug!(target: "place", "the driver writes to the program's own streams: {e}");
    }
    // The driver must not be shut down before the program's exit handlers have run and the last move was abandoned.
    executor::steer::keep_exit_handlers();
    if let Some(Err(why)) = driver.map(executor::preload) {
        tracing::debug!(target: "place", "no driver for this process: {why}");
    }
}

/// Why a job has no places.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Config(#[from] &'static ConfigError),
    #[error("cannot hold the addresses of GPU {index}: {source}")]
    Addresses { index: u32, source: std::io::Error },
    #[error(transparent)]
    Place(#[from] OpenError),
}

pub(crate) fn connect() -> Result<Job, ConnectError> {
    let config = config::get()?;
    // Done before anything that takes long: the child of a concurrent fork would otherwise wait forever for the initializing thread,
    // which it does not have. SAFETY: plain functions of this library, which is never unloaded (its build script).
    unsafe { libc::pthread_atfork(Some(children::before), Some(children::in_parent), Some(in_forked_child)) };
    internal_error::watch(job::fail_calls);
    place::run_host_functions_by(host_function::run_here);
    place::follow_servers_by(leave::asked);
    gate::init();
    receive_driver(config.driver.as_deref());
    if log::enabled().any {
        rcuda_forwarder::count_traffic();
    }
    let specs = place::choose((0u32..).zip(config.servers.iter().cloned()).collect(), &[], None);
    let mut devices = Vec::new();
    for (index, spec) in (0..DEVICES).zip(&specs) {
        executor::steer::hold_ranges(index).map_err(|source| ConnectError::Addresses { index, source })?;
        let place = Place::open_first(spec, index)?;
        tracing::debug!(target: "place", "device {index} is {} at {spec}", place.device().name);
        let device = Device::new(index, place);
        device.watch(device.place(&gate::enter(here(), "cuInit")));
        devices.push(device);
    }
    // SAFETY: the handler is a plain function of this library, which is never unloaded (its build script).
    unsafe { libc::atexit(crate::abi::start::at_exit) };
    Ok(Job::new(devices))
}

/// How long the exit of the program waits for a move that cannot be interrupted: one that opens a driver in this process takes seconds on
/// a busy machine, and a driver whose process ends meanwhile may abort it.
const LAST_MOVE: Duration = Duration::from_secs(60);

/// Runs at process exit: stops moves, writes the exit report (unsupported features that the program tried to use, and called functions),
/// and closes the driver of this process.
extern "C" fn at_exit() {
    internal_error::guard("the exit of the program", end);
}

fn end() {
    if job::is_forked_child() {
        return;
    }
    moves::close(LAST_MOVE);
    if let Some(job) = job::opened() {
        parked::end(job);
    }
    let missed = log::missed_list();
    if !missed.is_empty() {
        tracing::info!(target: "job", "exit: wanted and not here: {}", missed.join(", "));
    }
    for (id, t) in rcuda_forwarder::traffic() {
        let name = calls::name(id).map_or_else(|| format!("{id:#06x}"), str::to_owned);
        let rcuda_forwarder::Traffic { calls, bytes, waits, carried, mapped } = t;
        tracing::debug!(
            target: "job",
            "exit: sent {name}: {calls} calls, {bytes} bytes, {waits} answers waited for, {carried} bytes over connections of their own, \
             {mapped} bytes through shared memory"
        );
    }
    coverage::write_report();
    control::stop();
    job::end();
    executor::steer::run_exit_handlers();
}

/// Driver version that the job sees: that of its first place, also for queries before `cuInit` (docs/driver-facts.md 1.7). It never
/// changes during the process: the runtime's check hashes it.
pub(crate) fn driver_version() -> i32 {
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        // Without a place, the newest known version is reported.
        let _ = start::open();
        job::opened().and_then(|j| j.devices.first()).map_or(13000, |d| d.info.driver_version)
    })
}

/// `cuDriverGetVersion` works before `cuInit` (docs/driver-facts.md 1.7), so it does not enter.
pub(crate) fn get_version(to: OutPtr<c_int>) -> Result<(), Code> {
    to.write(driver_version())
}
