//! Stream capture and graphs. The recorder holds the graphs; instances are at the place (docs/execution.md, "Graphs").

calls! { $ for_each_graph_call graph GraphCalls;

    /// Begins a capture in global mode.
    0x0801 local irregular "it reads and writes the program's memory itself" fn cuStreamBeginCapture(hStream: Raw<sys::CUstream>) older ptsz;
    /// Begins a capture.
    0x0802 local irregular "it reads and writes the program's memory itself" fn cuStreamBeginCapture_v2(hStream: Raw<sys::CUstream>, mode: RawEnum<sys::CUstreamCaptureMode>) ptsz;
    /// Begins a capture into a graph that exists.
    0x0803 local irregular "it reads and writes the program's memory itself" fn cuStreamBeginCaptureToGraph(hStream: Raw<sys::CUstream>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, dependencyData: Raw<*const sys::CUgraphEdgeData>, numDependencies: Raw<usize>, mode: RawEnum<sys::CUstreamCaptureMode>) ptsz [null(hGraph, VALUE)];
    /// Ends a capture.
    0x0804 local irregular "it reads and writes the program's memory itself" fn cuStreamEndCapture(hStream: Raw<sys::CUstream>, phGraph: Raw<*mut sys::CUgraph>) ptsz;
    /// Whether a stream is being captured.
    0x0805 local irregular "it reads and writes the program's memory itself" fn cuStreamIsCapturing(hStream: Raw<sys::CUstream>, captureStatus: Raw<*mut sys::CUstreamCaptureStatus>) ptsz [null(captureStatus, VALUE), start, context];
    /// State of a capture.
    0x0806 local irregular "it reads and writes the program's memory itself" fn cuStreamGetCaptureInfo(hStream: Raw<sys::CUstream>, captureStatus_out: Raw<*mut sys::CUstreamCaptureStatus>, id_out: Raw<*mut sys::cuuint64_t>) older ptsz [null(captureStatus_out, VALUE), start, context];
    /// State of a capture.
    0x0807 local irregular "it reads and writes the program's memory itself" fn cuStreamGetCaptureInfo_v2(hStream: Raw<sys::CUstream>, captureStatus_out: Raw<*mut sys::CUstreamCaptureStatus>, id_out: Raw<*mut sys::cuuint64_t>, graph_out: Raw<*mut sys::CUgraph>, dependencies_out: Raw<*mut *const sys::CUgraphNode>, numDependencies_out: Raw<*mut usize>) older ptsz [null(captureStatus_out, VALUE), start, context];
    /// State of a capture.
    0x0808 local irregular "it reads and writes the program's memory itself" fn cuStreamGetCaptureInfo_v3(hStream: Raw<sys::CUstream>, captureStatus_out: Raw<*mut sys::CUstreamCaptureStatus>, id_out: Raw<*mut sys::cuuint64_t>, graph_out: Raw<*mut sys::CUgraph>, dependencies_out: Raw<*mut *const sys::CUgraphNode>, edgeData_out: Raw<*mut *const sys::CUgraphEdgeData>, numDependencies_out: Raw<*mut usize>) ptsz [null(captureStatus_out, VALUE), start, context];
    /// Changes what the next captured node comes after.
    0x0809 local irregular "it reads and writes the program's memory itself" fn cuStreamUpdateCaptureDependencies(hStream: Raw<sys::CUstream>, dependencies: Raw<*mut sys::CUgraphNode>, numDependencies: Raw<usize>, flags: Raw<c_uint>) older ptsz;
    /// Changes what the next captured node comes after.
    0x080a local irregular "it reads and writes the program's memory itself" fn cuStreamUpdateCaptureDependencies_v2(hStream: Raw<sys::CUstream>, dependencies: Raw<*mut sys::CUgraphNode>, dependencyData: Raw<*const sys::CUgraphEdgeData>, numDependencies: Raw<usize>, flags: Raw<c_uint>) ptsz;
    /// Capture mode of the calling thread.
    0x080b local irregular "it reads and writes the program's memory itself" fn cuThreadExchangeStreamCaptureMode(mode: Raw<*mut sys::CUstreamCaptureMode>);
    /// Makes an empty graph.
    0x080c local irregular "it reads and writes the program's memory itself" fn cuGraphCreate(phGraph: Raw<*mut sys::CUgraph>, flags: Raw<c_uint>);
    /// Destroys a graph.
    0x080d local irregular "it reads and writes the program's memory itself" fn cuGraphDestroy(hGraph: Raw<sys::CUgraph>);
    /// Copies a graph.
    0x080e local irregular "it reads and writes the program's memory itself" fn cuGraphClone(phGraphClone: Raw<*mut sys::CUgraph>, originalGraph: Raw<sys::CUgraph>);
    /// The node of a copy that was made from a node.
    0x080f local irregular "it reads and writes the program's memory itself" fn cuGraphNodeFindInClone(phNode: Raw<*mut sys::CUgraphNode>, hOriginalNode: Raw<sys::CUgraphNode>, hClonedGraph: Raw<sys::CUgraph>);
    /// Adds a kernel.
    0x0810 local irregular "it reads and writes the program's memory itself" fn cuGraphAddKernelNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*const c_void>) older [start, null(phGraphNode, VALUE), null(hGraph, HANDLE)];
    /// Adds a kernel.
    0x0811 local irregular "it reads and writes the program's memory itself" fn cuGraphAddKernelNode_v2(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*const sys::CUDA_KERNEL_NODE_PARAMS>) [start, null(phGraphNode, VALUE), null(hGraph, HANDLE)];
    /// Adds a copy.
    0x0812 local irregular "it reads and writes the program's memory itself" fn cuGraphAddMemcpyNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, copyParams: Raw<*const sys::CUDA_MEMCPY3D>, ctx: Raw<sys::CUcontext>) [start, null(phGraphNode, VALUE), null(hGraph, VALUE)];
    /// Adds a fill.
    0x0813 local irregular "it reads and writes the program's memory itself" fn cuGraphAddMemsetNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, memsetParams: Raw<*const sys::CUDA_MEMSET_NODE_PARAMS>, ctx: Raw<sys::CUcontext>);
    /// Adds a host function.
    0x0814 local irregular "it reads and writes the program's memory itself" fn cuGraphAddHostNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*const sys::CUDA_HOST_NODE_PARAMS>) [null(hGraph, VALUE)];
    /// Adds a graph as a node.
    0x0815 local irregular "it reads and writes the program's memory itself" fn cuGraphAddChildGraphNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, childGraph: Raw<sys::CUgraph>);
    /// The graph inside a node.
    0x0816 local irregular "it reads and writes the program's memory itself" fn cuGraphChildGraphNodeGetGraph(hNode: Raw<sys::CUgraphNode>, phGraph: Raw<*mut sys::CUgraph>);
    /// Adds a node that does nothing.
    0x0817 local irregular "it reads and writes the program's memory itself" fn cuGraphAddEmptyNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>) [null(hGraph, VALUE)];
    /// Adds the recording of an event.
    0x0818 local irregular "it reads and writes the program's memory itself" fn cuGraphAddEventRecordNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, event: Raw<sys::CUevent>) [null(hGraph, VALUE)];
    /// Adds the wait for an event.
    0x0819 local irregular "it reads and writes the program's memory itself" fn cuGraphAddEventWaitNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, event: Raw<sys::CUevent>) [null(hGraph, VALUE)];
    /// Adds memory operations.
    0x081a local irregular "it reads and writes the program's memory itself" fn cuGraphAddBatchMemOpNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>) [null(hGraph, VALUE)];
    /// Adds a node of any kind.
    0x081b local irregular "it reads and writes the program's memory itself" fn cuGraphAddNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*mut sys::CUgraphNodeParams>) older [null(phGraphNode, VALUE), start, null(hGraph, HANDLE)];
    /// Adds a node of any kind.
    0x081c local irregular "it reads and writes the program's memory itself" fn cuGraphAddNode_v2(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, dependencyData: Raw<*const sys::CUgraphEdgeData>, numDependencies: Raw<usize>, nodeParams: Raw<*mut sys::CUgraphNodeParams>) [null(phGraphNode, VALUE), start, null(hGraph, HANDLE)];
    /// Removes a node.
    0x081d local irregular "it reads and writes the program's memory itself" fn cuGraphDestroyNode(hNode: Raw<sys::CUgraphNode>);
    /// Kind of a node.
    0x081e local irregular "it reads and writes the program's memory itself" fn cuGraphNodeGetType(hNode: Raw<sys::CUgraphNode>, type_: Raw<*mut sys::CUgraphNodeType>);
    /// The nodes of a graph.
    0x081f local irregular "it reads and writes the program's memory itself" fn cuGraphGetNodes(hGraph: Raw<sys::CUgraph>, nodes: Raw<*mut sys::CUgraphNode>, numNodes: Raw<*mut usize>);
    /// The nodes that wait for none.
    0x0820 local irregular "it reads and writes the program's memory itself" fn cuGraphGetRootNodes(hGraph: Raw<sys::CUgraph>, rootNodes: Raw<*mut sys::CUgraphNode>, numRootNodes: Raw<*mut usize>);
    /// The edges of a graph.
    0x0821 local irregular "it reads and writes the program's memory itself" fn cuGraphGetEdges(hGraph: Raw<sys::CUgraph>, from: Raw<*mut sys::CUgraphNode>, to: Raw<*mut sys::CUgraphNode>, numEdges: Raw<*mut usize>) older;
    /// The edges of a graph.
    0x0822 local irregular "it reads and writes the program's memory itself" fn cuGraphGetEdges_v2(hGraph: Raw<sys::CUgraph>, from: Raw<*mut sys::CUgraphNode>, to: Raw<*mut sys::CUgraphNode>, edgeData: Raw<*mut sys::CUgraphEdgeData>, numEdges: Raw<*mut usize>);
    /// The nodes that a node waits for.
    0x0823 local irregular "it reads and writes the program's memory itself" fn cuGraphNodeGetDependencies(hNode: Raw<sys::CUgraphNode>, dependencies: Raw<*mut sys::CUgraphNode>, numDependencies: Raw<*mut usize>) older;
    /// The nodes that a node waits for.
    0x0824 local irregular "it reads and writes the program's memory itself" fn cuGraphNodeGetDependencies_v2(hNode: Raw<sys::CUgraphNode>, dependencies: Raw<*mut sys::CUgraphNode>, edgeData: Raw<*mut sys::CUgraphEdgeData>, numDependencies: Raw<*mut usize>);
    /// The nodes that wait for a node.
    0x0825 local irregular "it reads and writes the program's memory itself" fn cuGraphNodeGetDependentNodes(hNode: Raw<sys::CUgraphNode>, dependentNodes: Raw<*mut sys::CUgraphNode>, numDependentNodes: Raw<*mut usize>) older;
    /// The nodes that wait for a node.
    0x0826 local irregular "it reads and writes the program's memory itself" fn cuGraphNodeGetDependentNodes_v2(hNode: Raw<sys::CUgraphNode>, dependentNodes: Raw<*mut sys::CUgraphNode>, edgeData: Raw<*mut sys::CUgraphEdgeData>, numDependentNodes: Raw<*mut usize>);
    /// Adds edges.
    0x0827 local irregular "it reads and writes the program's memory itself" fn cuGraphAddDependencies(hGraph: Raw<sys::CUgraph>, from: Raw<*const sys::CUgraphNode>, to: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>) older [null(hGraph, VALUE)];
    /// Adds edges.
    0x0828 local irregular "it reads and writes the program's memory itself" fn cuGraphAddDependencies_v2(hGraph: Raw<sys::CUgraph>, from: Raw<*const sys::CUgraphNode>, to: Raw<*const sys::CUgraphNode>, edgeData: Raw<*const sys::CUgraphEdgeData>, numDependencies: Raw<usize>) [null(hGraph, VALUE)];
    /// Takes edges away.
    0x0829 local irregular "it reads and writes the program's memory itself" fn cuGraphRemoveDependencies(hGraph: Raw<sys::CUgraph>, from: Raw<*const sys::CUgraphNode>, to: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>) older [null(hGraph, VALUE)];
    /// Takes edges away.
    0x082a local irregular "it reads and writes the program's memory itself" fn cuGraphRemoveDependencies_v2(hGraph: Raw<sys::CUgraph>, from: Raw<*const sys::CUgraphNode>, to: Raw<*const sys::CUgraphNode>, edgeData: Raw<*const sys::CUgraphEdgeData>, numDependencies: Raw<usize>) [null(hGraph, VALUE)];
    /// Parameters of a kernel node.
    0x082b local irregular "it reads and writes the program's memory itself" fn cuGraphKernelNodeGetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*mut c_void>) older [null(hNode, VALUE)];
    /// Parameters of a kernel node.
    0x082c local irregular "it reads and writes the program's memory itself" fn cuGraphKernelNodeGetParams_v2(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*mut sys::CUDA_KERNEL_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Changes a kernel node.
    0x082d local irregular "it reads and writes the program's memory itself" fn cuGraphKernelNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const c_void>) older [null(hNode, VALUE)];
    /// Changes a kernel node.
    0x082e local irregular "it reads and writes the program's memory itself" fn cuGraphKernelNodeSetParams_v2(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_KERNEL_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Parameters of a copy node.
    0x082f local irregular "it reads and writes the program's memory itself" fn cuGraphMemcpyNodeGetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*mut sys::CUDA_MEMCPY3D>);
    /// Changes a copy node.
    0x0830 local irregular "it reads and writes the program's memory itself" fn cuGraphMemcpyNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_MEMCPY3D>) [null(hNode, VALUE)];
    /// Parameters of a fill node.
    0x0831 local irregular "it reads and writes the program's memory itself" fn cuGraphMemsetNodeGetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*mut sys::CUDA_MEMSET_NODE_PARAMS>);
    /// Changes a fill node.
    0x0832 local irregular "it reads and writes the program's memory itself" fn cuGraphMemsetNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_MEMSET_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Parameters of a host node.
    0x0833 local irregular "it reads and writes the program's memory itself" fn cuGraphHostNodeGetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*mut sys::CUDA_HOST_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Changes a host node.
    0x0834 local irregular "it reads and writes the program's memory itself" fn cuGraphHostNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_HOST_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Parameters of a memory operations node.
    0x0835 local irregular "it reads and writes the program's memory itself" fn cuGraphBatchMemOpNodeGetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*mut sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Changes a memory operations node.
    0x0836 local irregular "it reads and writes the program's memory itself" fn cuGraphBatchMemOpNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Event of a node.
    0x0837 local irregular "it reads and writes the program's memory itself" fn cuGraphEventRecordNodeGetEvent(hNode: Raw<sys::CUgraphNode>, event_out: Raw<*mut sys::CUevent>) [null(hNode, VALUE)];
    /// Changes the event of a node.
    0x0838 local irregular "it reads and writes the program's memory itself" fn cuGraphEventRecordNodeSetEvent(hNode: Raw<sys::CUgraphNode>, event: Raw<sys::CUevent>) [null(hNode, VALUE)];
    /// Event of a node.
    0x0839 local irregular "it reads and writes the program's memory itself" fn cuGraphEventWaitNodeGetEvent(hNode: Raw<sys::CUgraphNode>, event_out: Raw<*mut sys::CUevent>) [null(hNode, VALUE)];
    /// Changes the event of a node.
    0x083a local irregular "it reads and writes the program's memory itself" fn cuGraphEventWaitNodeSetEvent(hNode: Raw<sys::CUgraphNode>, event: Raw<sys::CUevent>) [null(hNode, VALUE)];
    /// Changes a node of any kind.
    0x083b local irregular "it reads and writes the program's memory itself" fn cuGraphNodeSetParams(hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*mut sys::CUgraphNodeParams>) [null(hNode, VALUE)];
    /// An attribute of a kernel node.
    0x083c local irregular "it reads and writes the program's memory itself" fn cuGraphKernelNodeGetAttribute(hNode: Raw<sys::CUgraphNode>, attr: RawEnum<sys::CUkernelNodeAttrID>, value_out: Raw<*mut sys::CUkernelNodeAttrValue>);
    /// Changes an attribute of a kernel node.
    0x083d local irregular "it reads and writes the program's memory itself" fn cuGraphKernelNodeSetAttribute(hNode: Raw<sys::CUgraphNode>, attr: RawEnum<sys::CUkernelNodeAttrID>, value: Raw<*const sys::CUkernelNodeAttrValue>);
    /// Copies the attributes of a kernel node.
    0x083e local irregular "it reads and writes the program's memory itself" fn cuGraphKernelNodeCopyAttributes(dst: Raw<sys::CUgraphNode>, src: Raw<sys::CUgraphNode>);
    /// Makes an instance.
    0x083f state irregular "it reads and writes the program's memory itself" fn cuGraphInstantiate(phGraphExec: Raw<*mut sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, phErrorNode: Raw<*mut sys::CUgraphNode>, logBuffer: Raw<*mut c_char>, bufferSize: Raw<usize>) older;
    /// Makes an instance.
    0x0840 state irregular "it reads and writes the program's memory itself" fn cuGraphInstantiate_v2(phGraphExec: Raw<*mut sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, phErrorNode: Raw<*mut sys::CUgraphNode>, logBuffer: Raw<*mut c_char>, bufferSize: Raw<usize>) older;
    /// Makes an instance.
    0x0841 state irregular "it reads and writes the program's memory itself" fn cuGraphInstantiateWithFlags(phGraphExec: Raw<*mut sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, flags: Raw<c_ulonglong>);
    /// Makes an instance.
    0x0842 state irregular "it reads and writes the program's memory itself" fn cuGraphInstantiateWithParams(phGraphExec: Raw<*mut sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, instantiateParams: Raw<*mut sys::CUDA_GRAPH_INSTANTIATE_PARAMS>) ptsz [null(phGraphExec, VALUE), start, context];
    /// Flags of an instance.
    0x0843 local irregular "it reads and writes the program's memory itself" fn cuGraphExecGetFlags(hGraphExec: Raw<sys::CUgraphExec>, flags: Raw<*mut sys::cuuint64_t>);
    /// Changes a kernel of an instance.
    0x0844 state irregular "it reads and writes the program's memory itself" fn cuGraphExecKernelNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const c_void>) older [null(hGraphExec, VALUE)];
    /// Changes a kernel of an instance.
    0x0845 state irregular "it reads and writes the program's memory itself" fn cuGraphExecKernelNodeSetParams_v2(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_KERNEL_NODE_PARAMS>) [null(hGraphExec, VALUE)];
    /// Changes a copy of an instance.
    0x0846 state irregular "it reads and writes the program's memory itself" fn cuGraphExecMemcpyNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, copyParams: Raw<*const sys::CUDA_MEMCPY3D>, ctx: Raw<sys::CUcontext>) [null(hGraphExec, VALUE)];
    /// Changes a fill of an instance.
    0x0847 state irregular "it reads and writes the program's memory itself" fn cuGraphExecMemsetNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, memsetParams: Raw<*const sys::CUDA_MEMSET_NODE_PARAMS>, ctx: Raw<sys::CUcontext>) [null(hGraphExec, VALUE)];
    /// Changes a host function of an instance.
    0x0848 state irregular "it reads and writes the program's memory itself" fn cuGraphExecHostNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_HOST_NODE_PARAMS>) [null(hGraphExec, VALUE)];
    /// Changes a child graph of an instance.
    0x0849 state irregular "it reads and writes the program's memory itself" fn cuGraphExecChildGraphNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, childGraph: Raw<sys::CUgraph>) [null(hGraphExec, VALUE)];
    /// Changes an event of an instance.
    0x084a state irregular "it reads and writes the program's memory itself" fn cuGraphExecEventRecordNodeSetEvent(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, event: Raw<sys::CUevent>) [null(hGraphExec, VALUE)];
    /// Changes an event of an instance.
    0x084b state irregular "it reads and writes the program's memory itself" fn cuGraphExecEventWaitNodeSetEvent(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, event: Raw<sys::CUevent>) [null(hGraphExec, VALUE)];
    /// Changes memory operations of an instance.
    0x084c state irregular "it reads and writes the program's memory itself" fn cuGraphExecBatchMemOpNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>) [null(hGraphExec, VALUE)];
    /// Changes a node of an instance.
    0x084d state irregular "it reads and writes the program's memory itself" fn cuGraphExecNodeSetParams(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, nodeParams: Raw<*mut sys::CUgraphNodeParams>) [null(hGraphExec, VALUE)];
    /// Lets an instance skip a node, or not.
    0x084e state irregular "it reads and writes the program's memory itself" fn cuGraphNodeSetEnabled(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, isEnabled: Raw<c_uint>) [null(hGraphExec, VALUE)];
    /// Whether an instance runs a node.
    0x084f local irregular "it reads and writes the program's memory itself" fn cuGraphNodeGetEnabled(hGraphExec: Raw<sys::CUgraphExec>, hNode: Raw<sys::CUgraphNode>, isEnabled: Raw<*mut c_uint>) [null(hGraphExec, VALUE)];
    /// Makes an instance as a graph.
    0x0850 state irregular "it reads and writes the program's memory itself" fn cuGraphExecUpdate(hGraphExec: Raw<sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, hErrorNode_out: Raw<*mut sys::CUgraphNode>, updateResult_out: Raw<*mut u32>) older;
    /// Makes an instance as a graph.
    0x0851 state irregular "it reads and writes the program's memory itself" fn cuGraphExecUpdate_v2(hGraphExec: Raw<sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, resultInfo: Raw<*mut sys::CUgraphExecUpdateResultInfo>);
    /// Prepares the next launch of an instance.
    0x0852 work irregular "it reads and writes the program's memory itself" fn cuGraphUpload(hGraphExec: Raw<sys::CUgraphExec>, hStream: Raw<sys::CUstream>) ptsz [start, context];
    /// Launches an instance.
    0x0853 work irregular "it reads and writes the program's memory itself" fn cuGraphLaunch(hGraphExec: Raw<sys::CUgraphExec>, hStream: Raw<sys::CUstream>) ptsz;
    /// Destroys an instance.
    0x0854 state irregular "it reads and writes the program's memory itself" fn cuGraphExecDestroy(hGraphExec: Raw<sys::CUgraphExec>);
    /// Makes a user object.
    0x0855 local irregular "it reads and writes the program's memory itself" fn cuUserObjectCreate(object_out: Raw<*mut sys::CUuserObject>, ptr: Raw<*mut c_void>, destroy: Raw<sys::CUhostFn>, initialRefcount: Raw<c_uint>, flags: Raw<c_uint>) [null(object_out, VALUE), null(destroy, VALUE)];
    /// Takes references to a user object.
    0x0856 local irregular "it reads and writes the program's memory itself" fn cuUserObjectRetain(object: Raw<sys::CUuserObject>, count: Raw<c_uint>) [null(object, VALUE)];
    /// Gives references to a user object back.
    0x0857 local irregular "it reads and writes the program's memory itself" fn cuUserObjectRelease(object: Raw<sys::CUuserObject>, count: Raw<c_uint>) [null(object, VALUE)];
    /// Lets a graph hold a user object.
    0x0858 local irregular "it reads and writes the program's memory itself" fn cuGraphRetainUserObject(graph: Raw<sys::CUgraph>, object: Raw<sys::CUuserObject>, count: Raw<c_uint>, flags: Raw<c_uint>) [null(graph, VALUE)];
    /// Lets a graph give a user object back.
    0x0859 local irregular "it reads and writes the program's memory itself" fn cuGraphReleaseUserObject(graph: Raw<sys::CUgraph>, object: Raw<sys::CUuserObject>, count: Raw<c_uint>) [null(graph, VALUE)];
    /// Writes a graph to a file.
    0x085a local irregular "it reads and writes the program's memory itself" fn cuGraphDebugDotPrint(hGraph: Raw<sys::CUgraph>, path: Raw<*const c_char>, flags: Raw<c_uint>) [null(hGraph, VALUE)];
    /// Adds memory that the graph allocates.
    0x085b memory irregular "it reads and writes the program's memory itself" fn cuGraphAddMemAllocNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Raw<*mut sys::CUDA_MEM_ALLOC_NODE_PARAMS>);
    /// Parameters of a node that allocates.
    0x085c local irregular "it reads and writes the program's memory itself" fn cuGraphMemAllocNodeGetParams(hNode: Raw<sys::CUgraphNode>, params_out: Raw<*mut sys::CUDA_MEM_ALLOC_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Adds a free of such memory.
    0x085d local irregular "it reads and writes the program's memory itself" fn cuGraphAddMemFreeNode(phGraphNode: Raw<*mut sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Raw<*const sys::CUgraphNode>, numDependencies: Raw<usize>, dptr: Raw<sys::CUdeviceptr>);
    /// What a node frees.
    0x085e local irregular "it reads and writes the program's memory itself" fn cuGraphMemFreeNodeGetParams(hNode: Raw<sys::CUgraphNode>, dptr_out: Raw<*mut sys::CUdeviceptr>) [null(hNode, VALUE)];
    /// Gives back memory of graphs that is not in use.
    0x085f local irregular "it reads and writes the program's memory itself" fn cuDeviceGraphMemTrim(device: Raw<sys::CUdevice>);
    /// How much memory graphs have.
    0x0860 local irregular "it reads and writes the program's memory itself" fn cuDeviceGetGraphMemAttribute(device: Raw<sys::CUdevice>, attr: RawEnum<sys::CUgraphMem_attribute>, value: Raw<*mut c_void>);
    /// Sets a high watermark back.
    0x0861 local irregular "it reads and writes the program's memory itself" fn cuDeviceSetGraphMemAttribute(device: Raw<sys::CUdevice>, attr: RawEnum<sys::CUgraphMem_attribute>, value: Raw<*mut c_void>);
    /// Makes a condition for a node of a graph.
    0x0862 state irregular "it reads and writes the program's memory itself" fn cuGraphConditionalHandleCreate(pHandle_out: Raw<*mut sys::CUgraphConditionalHandle>, hGraph: Raw<sys::CUgraph>, ctx: Raw<sys::CUcontext>, defaultLaunchValue: Raw<c_uint>, flags: Raw<c_uint>) [null(hGraph, VALUE)];
}
