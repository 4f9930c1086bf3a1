//! The threads of the connections for large copies, and a copy as its requester sees it.

use super::bulk::End;
use super::common::Common;
use super::shared::Shared;
use crate::conn::Conn;
use crate::greet::has_hung_up;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl Common {
    /// Serves a connection for large copies until it ends. Without it the link is of no use.
    fn serve_bulk(&self, conn: &Conn, to_device: bool) {
        if let Err(why) = self.bulk.serve(conn, to_device, &self.alike) {
            let text = format!("a connection for large copies has failed: {why}");
            if has_hung_up(&why) { self.hung_up(&text) } else { self.lose(&text) }
        }
    }
}

/// Starts the threads of connections.
pub(super) fn start(shared: &Arc<Shared>, connections: Vec<Arc<Conn>>, to_device: bool) -> io::Result<()> {
    shared.common.bulk.add(&connections);
    connections.into_iter().try_for_each(|conn| {
        let shared = shared.clone();
        crate::threads::spawn("mrcuda-bulk", move || shared.common.serve_bulk(&conn, to_device)).map(drop)
    })?;
    if !to_device {
        shared.common.alike.begin_to_use_connections();
    }
    Ok(())
}

/// A copy that was requested.
#[derive(Debug)]
pub struct BulkCopy {
    shared: Arc<Shared>,
    token: u64,
    end: End,
}

impl BulkCopy {
    pub(super) fn new(shared: Arc<Shared>, token: u64, end: End) -> BulkCopy {
        BulkCopy { shared, token, end }
    }

    /// Waits until the bytes of a copy to the device have been read, or it has ended. Returns whether some of its memory could not be
    /// accessed.
    pub fn wait_sent(&self) -> bool {
        self.shared.common.bulk.wait_sent(self.token);
        self.end.is_bad()
    }

    /// Ends a copy that was answered: its memory is not used any more. Returns whether some of it could not be accessed.
    pub fn finish(&self) -> bool {
        self.shared.common.bulk.finish(self.token);
        self.end.is_bad()
    }

    /// A flag that is set when the copy has ended and its memory is not used any more.
    pub fn over(&self) -> Arc<AtomicBool> {
        self.end.over.clone()
    }
}
