//! Captures.

use super::{Done, Host, INVALID};
use crate::graph::capture::{Info, Status};
use crate::graph::{Mode, Stream, exchange_mode};
use cuda_api::code::{self, Code};
use cuda_api::graph::{edges, nodes, with_edges};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys::{CUgraph, CUgraphEdgeData, CUgraphNode, CUstream, CUstreamCaptureStatus};
use cuda_api::work::Edge;
use std::ffi::c_uint;

/// Begins a capture in the mode of the first version: global.
pub fn cuStreamBeginCapture<H: Host>(h: &mut H, stream: u64) -> Result<(), Code> {
    cuStreamBeginCapture_v2(h, stream, 0)
}

/// Begins a capture.
pub fn cuStreamBeginCapture_v2<H: Host>(h: &mut H, stream: u64, mode: u32) -> Result<(), Code> {
    let stream = h.stream(stream)?;
    let mode = Mode::from_number(mode)?;
    h.shared().with(|g| g.begin(&stream, mode, None))
}

/// Begins a capture into an existing graph.
pub fn cuStreamBeginCaptureToGraph<H: Host>(
    h: &mut H,
    stream: u64,
    graph: u64,
    after: Vec<u64>,
    edges: Option<Vec<Edge>>,
    mode: u32,
) -> Result<(), Code> {
    let stream = h.stream(stream)?;
    let mode = Mode::from_number(mode)?;
    h.shared().with(|g| g.begin(&stream, mode, Some((graph, with_edges(after, edges)))))
}

/// Ends a capture. For a capture into an existing graph, the output may be null.
pub fn cuStreamEndCapture<H: Host>(h: &mut H, stream: CUstream, graph: OutPtr<CUgraph>) -> Done {
    let stream = h.stream(stream as u64)?;
    if graph.is_null() {
        // A missing capture is reported first.
        if !captures(h, &stream)? {
            return Err(code::ERROR_ILLEGAL_STATE);
        }
        return h.shared().with(|g| if g.makes_a_graph(&stream) { Err(INVALID) } else { g.end(&stream).map(|_| ()) });
    }
    graph.write(std::ptr::null_mut())?;
    let done = h.shared().with(|g| g.end(&stream))?;
    graph.write(done as CUgraph)
}

/// Whether a stream is being captured.
pub fn cuStreamIsCapturing<H: Host>(h: &mut H, stream: u64) -> Result<u32, Code> {
    let stream = h.stream(stream)?;
    let now = if h.shared().capturing() { h.shared().with(|g| g.status(&stream))? } else { Status::None };
    Ok(number(&now))
}

/// Whether there is a capture, even an invalid one.
fn captures<H: Host>(h: &mut H, stream: &Stream) -> Result<bool, code::Code> {
    h.shared().with(|g| g.status(stream)).map(|now| !matches!(now, Status::None))
}

fn number(s: &Status) -> u32 {
    match s {
        Status::None => 0,
        Status::Active(_) => 1,
        Status::Invalidated => 2,
    }
}

/// Status and id of a capture.
pub fn cuStreamGetCaptureInfo<H: Host>(
    h: &mut H,
    stream: CUstream,
    status: OutPtr<CUstreamCaptureStatus>,
    id: OutPtr<u64>,
) -> Done {
    let (graph, nodes, edges, count) = (OutPtr::null(), OutPtr::null(), OutPtr::null(), OutPtr::null());
    cuStreamGetCaptureInfo_v3(h, stream, status, id, graph, nodes, edges, count)
}

/// State of a capture.
pub fn cuStreamGetCaptureInfo_v2<H: Host>(
    h: &mut H,
    stream: CUstream,
    status: OutPtr<CUstreamCaptureStatus>,
    id: OutPtr<u64>,
    graph: OutPtr<CUgraph>,
    dependencies: OutPtr<*const CUgraphNode>,
    count: OutPtr<usize>,
) -> Done {
    cuStreamGetCaptureInfo_v3(h, stream, status, id, graph, dependencies, OutPtr::null(), count)
}

/// State of a capture, with the data of edges.
pub fn cuStreamGetCaptureInfo_v3<H: Host>(
    h: &mut H,
    stream: CUstream,
    status: OutPtr<CUstreamCaptureStatus>,
    id: OutPtr<u64>,
    graph: OutPtr<CUgraph>,
    dependencies: OutPtr<*const CUgraphNode>,
    edge_data: OutPtr<*const CUgraphEdgeData>,
    count: OutPtr<usize>,
) -> Done {
    let stream = h.stream(stream as u64)?;
    if status.is_null() || (!edge_data.is_null() && dependencies.is_null()) {
        return Err(INVALID);
    }
    if !h.shared().capturing() {
        return status.cast::<u32>().write(0);
    }
    let now = h.shared().with(|g| g.status(&stream))?;
    if let Status::Active(info) = &now {
        let lossy = edge_data.is_null() && info.after.iter().any(|(_, e)| *e != Edge::default());
        if lossy && !dependencies.is_null() {
            return Err(code::ERROR_LOSSY_QUERY);
        }
        id.write_if_wanted(info.id);
        graph.write_if_wanted(info.graph as CUgraph);
        count.write_if_wanted(info.after.len());
        if !dependencies.is_null() {
            return_pointers(h, &stream, info, dependencies, edge_data)?;
        }
    }
    status.cast::<u32>().write(number(&now))
}

/// Returns pointers to a list that the capture keeps.
fn return_pointers<H: Host>(
    h: &H,
    stream: &Stream,
    info: &Info,
    dependencies: OutPtr<*const CUgraphNode>,
    edge_data: OutPtr<*const CUgraphEdgeData>,
) -> Done {
    let nodes: Box<[u64]> = info.after.iter().map(|(n, _)| *n).collect();
    let words: Box<[u64]> =
        info.after.iter().map(|(_, e)| u64::from_le_bytes([e.from_port, e.to_port, e.kind, 0, 0, 0, 0, 0])).collect();
    dependencies.write(nodes.as_ptr().cast())?;
    edge_data.write_if_wanted(words.as_ptr().cast());
    h.shared().with(|g| g.keep_returned(stream, vec![nodes, words]));
    Ok(())
}

/// Changes the predecessors of the next captured node.
pub fn cuStreamUpdateCaptureDependencies<H: Host>(
    h: &mut H,
    stream: CUstream,
    dependencies: InPtr<CUgraphNode>,
    count: usize,
    flags: c_uint,
) -> Done {
    cuStreamUpdateCaptureDependencies_v2(h, stream, dependencies, InPtr::null(), count, flags)
}

/// Changes the predecessors of the next captured node, and the data of the edges.
pub fn cuStreamUpdateCaptureDependencies_v2<H: Host>(
    h: &mut H,
    stream: CUstream,
    dependencies: InPtr<CUgraphNode>,
    edge_data: InPtr<CUgraphEdgeData>,
    count: usize,
    flags: c_uint,
) -> Done {
    let stream = h.stream(stream as u64)?;
    if !captures(h, &stream)? {
        return Err(code::ERROR_ILLEGAL_STATE);
    }
    // `CU_STREAM_ADD_CAPTURE_DEPENDENCIES` is 0, `CU_STREAM_SET_CAPTURE_DEPENDENCIES` 1.
    if flags > 1 {
        return Err(INVALID);
    }
    // Read before anything changes: the list may be the one that was returned.
    let after = nodes(dependencies, edge_data, count)?;
    if edge_data.is_null() { Ok(()) } else { edges(edge_data, count).map(drop) }?;
    h.shared().with(|g| g.set_after(&stream, after, flags == 1))
}

/// Swaps the calling thread's mode with that of the caller.
pub fn cuThreadExchangeStreamCaptureMode<H: Host>(_: &mut H, mode: u32) -> Result<u32, Code> {
    let wanted = Mode::from_number(mode)?;
    Ok(exchange_mode(wanted) as u32)
}
