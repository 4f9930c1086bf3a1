//! Copies between host memory and a device, piece by piece.

use crate::base::encoding::encode;
use crate::calls::copy::in_flight::InFlight;
use crate::calls::copy::rect::{Rect, TABLE, Until, pieces};
use crate::calls::copy::sending::submit;
use crate::calls::host_function::{self, changes_later};
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::Device;
use crate::order::{host_waiting, landing};
use crate::pinned::{blocks, naming};
use crate::place::Place;
use cuda_api::arg::stage_stream;
use cuda_api::code::Code;
use cuda_api::ops::{self, CopyIn, CopyInLate, CopyOut};
use faults::Point;
use std::sync::atomic::Ordering;

pub(crate) fn copy_in(
    cx: &mut CallContext,
    device: &'static Device,
    known: bool,
    r: Rect,
    stream: u64,
    until: Until,
) -> Result<(), Code> {
    if let Place::Local { exec, .. } = cx.place(device) {
        let live = stage_stream(stream, exec.bindings())?;
        // Copies of pinned memory are left to the driver as natively, and managed memory is pinned here.
        if r.rows == 1 && (until == Until::Done || blocks::is_managed(r.src.address)) {
            exec.make_current()?;
            device.record_error(exec.await_turn(live, r.width))?;
        }
        return device.record_error(exec.copy_rows_in((r.dst.address, r.dst.pitch), &r.source(), live));
    }
    landing::before_work(cx, device, stream)?;
    let span = r.src.span(r.width, r.rows)?;
    let late = until == Until::Submitted
        && blocks::is_pinned(r.src.address, span)
        && (changes_later(cx, device, stream, r.src.address, span) || host_waiting::holds(cx, device, stream));
    if late && !known {
        // Only the place can tell whether the address is valid, and the answer to a late copy arrives late.
        cx.settle_stream(device, stream)?;
    }
    pieces(r, |piece| {
        let op = CopyIn { dst: piece.dst.address, pitch: piece.dst.pitch, width: piece.width, rows: piece.rows, stream };
        if late && known {
            if naming::any_unmapped() {
                // They are searched again when they are read, but then a stream waits for the round trip.
                piece.source().with_bytes(|bytes| note_many(cx, &piece, bytes))?;
            }
            let body = |token| encode(&CopyInLate { token, to: op });
            return host_function::copy_late(cx, (device, stream), ops::id::COPY_IN_LATE, piece.source(), body);
        }
        faults::at(Point::CopyIn);
        piece.source().with_bytes(|bytes| {
            note_many(cx, &piece, bytes)?;
            submit(cx, device, known, ops::id::COPY_IN, &[&encode(&op), bytes])
        })
    })
}

/// Notes the addresses among more bytes than the copy itself has searched.
pub(crate) fn note_many(cx: &CallContext, r: &Rect, bytes: &[u8]) -> Result<(), Code> {
    if bytes.len() as u64 > TABLE { host_memory::note_copied(cx, r.dst.address, bytes) } else { Ok(()) }
}

pub(crate) fn copy_out(cx: &mut CallContext, device: &'static Device, r: Rect, stream: u64, until: Until) -> Result<(), Code> {
    if let Place::Local { exec, .. } = cx.place(device) {
        let live = stage_stream(stream, exec.bindings())?;
        device.record_error(exec.copy_rows_out(&r.destination(), (r.src.address, r.src.pitch), live))?;
        // With the driver of this process a pageable destination is written when the call returns; otherwise waits for the stream.
        return if until == Until::Done { cx.settle_stream(device, stream) } else { Ok(()) };
    }
    let pinned = r.dst.is_pinned(&r)?;
    let (mut in_flight, mut epoch) = (InFlight::new(), 0);
    let requested = pieces(r, |piece| {
        // Queried for each piece: the place may have changed during a wait outside the gate.
        let link = match cx.place(device) {
            Place::Local { .. } => return copy_out(cx, device, piece, stream, Until::Done),
            Place::Remote { link, .. } => link.clone(),
        };
        let op = CopyOut { src: piece.src.address, pitch: piece.src.pitch, width: piece.width, rows: piece.rows, stream };
        let (to, is_registered) = (piece.destination(), blocks::is_registered(piece.dst.address));
        if until == Until::Submitted && pinned {
            let answer = Place::send_into(&link, ops::id::COPY_OUT, &[&encode(&op)], to, is_registered);
            let answer = device.record_error(answer)?;
            faults::at(Point::CopyOut);
            // Answers arrive in stream order: a later wait for the stream finds the bytes landed (docs/formats.md).
            let end = piece.dst.address + piece.dst.span(piece.width, piece.rows)?;
            landing::note(device, stream, piece.dst.address..end, landing::Arrival::Reply(answer));
            return Ok(());
        }
        let waiting = Place::begin_into(&link, ops::id::COPY_OUT, &[&encode(&op)], to, is_registered);
        let waiting = device.record_error(waiting)?;
        faults::at(Point::CopyOut);
        epoch = device.epoch.load(Ordering::Relaxed);
        in_flight.add(waiting, |before| cx.wait_for(device, before).map(drop))
    });
    in_flight.end(requested, |last| cx.wait_for_stream(device, last, epoch, stream))
}
