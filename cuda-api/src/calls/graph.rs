//! Capture, graphs and stream memory operations: refused for now, exported because libraries refuse to start without the names.

calls! { $ for_each_graph_call graph GraphCalls;

    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x0801 refused refused fn cuGraphDestroy(hGraph: Raw<sys::CUgraph>);
    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x0802 refused refused fn cuGraphExecDestroy(hGraphExec: Raw<sys::CUgraphExec>);
    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x0803 refused refused fn cuGraphExecKernelNodeSetParams(hGraphExec: Raw<*mut c_void>, hNode: Raw<*mut c_void>, nodeParams: Raw<*const c_void>) older;
    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x0804 refused refused fn cuGraphGetNodes(hGraph: Raw<sys::CUgraph>, nodes: Raw<*mut sys::CUgraphNode>, numNodes: Raw<*mut usize>);
    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x0805 refused refused fn cuGraphInstantiate(phGraphExec: Raw<*mut *mut c_void>, hGraph: Raw<*mut c_void>, phErrorNode: Raw<*mut *mut c_void>, logBuffer: Raw<*mut c_char>, bufferSize: Raw<usize>) older;
    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x0806 refused refused fn cuGraphKernelNodeGetParams(hNode: Raw<*mut c_void>, nodeParams: Raw<*mut c_void>) older;
    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x0807 refused refused fn cuGraphLaunch(hGraphExec: Raw<sys::CUgraphExec>, hStream: Raw<sys::CUstream>) ptsz;
    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x0808 refused refused fn cuGraphNodeGetType(hNode: Raw<sys::CUgraphNode>, type_: Raw<*mut sys::CUgraphNodeType>);
    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x0809 refused refused fn cuStreamBeginCapture_v2(hStream: Raw<sys::CUstream>, mode: RawEnum<sys::CUstreamCaptureMode>) ptsz;
    /// Stream capture and graphs are not carried to other places yet; libraries look the name up.
    0x080a refused refused fn cuStreamEndCapture(hStream: Raw<sys::CUstream>, phGraph: Raw<*mut sys::CUgraph>) ptsz;
    /// Waiting for memory in a stream is not carried to other places yet; libraries look the name up.
    0x080b refused refused fn cuStreamBatchMemOp(stream: Raw<*mut c_void>, count: Raw<c_uint>, paramArray: Raw<*mut c_void>, flags: Raw<c_uint>) older ptsz;
    /// Waiting for memory in a stream is not carried to other places yet; libraries look the name up.
    0x080c refused refused fn cuStreamWaitValue32(stream: Raw<*mut c_void>, addr: Raw<u64>, value: Raw<u32>, flags: Raw<c_uint>) older ptsz;
    /// There is no managed memory to prefetch; libraries look the name up.
    0x080d refused refused fn cuMemPrefetchAsync(devPtr: Raw<u64>, count: Raw<usize>, dstDevice: Raw<c_int>, hStream: Raw<*mut c_void>) older ptsz;
}
