//! The threads of a worker's connections for large copies.

use super::ending::leave;
use super::text::complain;
use super::{BULK_END, SETUP, Worker, bulk};
use crate::control::{ControlReply, Refused};
use crate::place::Place;
use crate::sync::lock;
use crate::threads;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Instant;

impl<P: Place> Worker<P> {
    /// Makes staging areas for large copies until there are so many.
    pub(super) fn provide_areas(&self, at_least: u32) -> Result<ControlReply, Refused> {
        self.place.provide_areas(at_least).map(|()| ControlReply::Ok).map_err(Refused::Driver)
    }

    /// Starts the threads of connections for large copies in one direction.
    pub(super) fn open_bulk(self: &Arc<Self>, ticket: &[u8; 32], to_device: bool, shared: bool) -> Result<ControlReply, Refused> {
        let connections = self.attendant.stripes().take(ticket)?;
        if let Some(first) = connections.first().filter(|_| shared) {
            bulk::receive_file(first, self.place.staging(), Instant::now() + SETUP).map_err(|e| Refused::Other(e.to_string()))?;
        }
        let mut connections: Vec<bulk::Slots> = connections.into_iter().map(bulk::Slots::new).collect();
        // Under one lock: connections of the other direction may be opened at the same time, and must know the areas that are made for these.
        lock(&self.gpu_areas).admit(&mut connections, &*self.place).map_err(|why| {
            complain(&format!("connections for large copies do not reach the GPU's memory: {why}"));
            Refused::Other(why.to_string())
        })?;
        if self.bulk[usize::from(to_device)].swap(true, Ordering::AcqRel) {
            return Err(Refused::Other("large copies have their connections already".into()));
        }
        self.start_bulk(connections, to_device)
            .inspect_err(|_| self.bulk[usize::from(to_device)].store(false, Ordering::Release))?;
        if !to_device {
            self.place.staging().begin_to_carry_changes();
        }
        Ok(ControlReply::Ok)
    }

    fn start_bulk(self: &Arc<Self>, connections: Vec<bulk::Slots>, to_device: bool) -> Result<(), Refused> {
        // No thread begins before all are there: one whose connection is closed ends this process.
        let mut begin = Vec::new();
        for mut slots in connections {
            bulk::prepare(slots.conn()).map_err(|e| Refused::Other(e.to_string()))?;
            let (worker, (go, wait)) = (self.clone(), mpsc::channel());
            let started = threads::spawn("bulk", move || {
                if wait.recv().is_ok() {
                    worker.carry_bulk(&mut slots, to_device);
                }
            });
            started.map_err(|e| Refused::Other(format!("cannot start a thread: {e}")))?;
            begin.push(go);
        }
        for go in begin {
            // Its thread waits for this.
            let _ = go.send(());
        }
        Ok(())
    }

    /// Serves a connection for large copies. Without it this process is of no use to the job.
    fn carry_bulk(&self, slots: &mut bulk::Slots, to_device: bool) {
        // SAFETY: affects only how late this thread's sleeps may end.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        let staging = self.place.staging();
        let carried = if to_device {
            bulk::receive(slots, staging)
        } else {
            bulk::send(slots, staging, [&|bytes| self.counting.answer(bytes), &|bytes| self.counting.changes(bytes)])
        };
        if !self.conn.wait_gone(BULK_END) {
            carried.unwrap_or_else(|why| complain(&format!("a connection for large copies has failed: {why}")));
        }
        leave(1, &self.conn);
    }
}
