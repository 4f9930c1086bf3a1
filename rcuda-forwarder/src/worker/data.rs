//! The worker's end of a data connection that RDMA is to carry.

use super::text::complain;
use crate::conn::Conn;
use crate::link::RDMA;
use crate::place::Place;
use crate::rdma::DATA_RING;
use crate::rdma::setup::{self, NoRdma, Rings};
use std::time::Instant;

/// Lets RDMA carry a connection; where that is not possible it stays as it is, and the log has the reason. False if the connection has
/// failed.
pub(super) fn carry_by_rdma<P: Place>(conn: &Conn, may_be_plain: bool, place: &P) -> bool {
    if !may_be_plain {
        return setup::decline(conn, "the server was started without --allow-plain").is_ok();
    }
    // Without an area there are no large copies at all, which is worse than large copies without RDMA.
    let staging = place.staging();
    let others = if staging.areas() == 0 { staging.sizes().area() as u64 } else { 0 };
    let rings = Rings { bytes: DATA_RING, budget: place.budget(), others };
    match setup::accept(conn, rings, Instant::now() + RDMA) {
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
