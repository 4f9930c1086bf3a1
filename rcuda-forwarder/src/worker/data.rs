//! The worker's end of a data connection that RDMA is to carry.

use super::text::complain;
use crate::conn::Conn;
use crate::link::RDMA;
use crate::rdma::DATA_RING;
use crate::rdma::setup::{self, NoRdma};
use std::time::Instant;

/// Lets RDMA carry a connection; where that is not possible it stays as it is, and the log has the reason. False if the connection has
/// failed.
pub(super) fn carry_by_rdma(conn: &Conn, may_be_plain: bool) -> bool {
    if !may_be_plain {
        return setup::decline(conn, "the server was started without --allow-plain").is_ok();
    }
    match setup::accept(conn, DATA_RING, Instant::now() + RDMA) {
        Ok(()) => true,
        Err(NoRdma::Unavailable(why)) => {
            complain(&format!("a data connection from {} is not carried by RDMA: {why}", conn.peer()));
            true
        }
        Err(NoRdma::Failed(why)) => {
            complain(&format!("a data connection from {} has failed: {why}", conn.peer()));
            false
        }
    }
}
