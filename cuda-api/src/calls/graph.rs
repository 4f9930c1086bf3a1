//! Stream capture and graphs. The recorder holds the graphs; instances are at the place (docs/execution.md, "Graphs").

calls! { $ for_each_graph_call graph GraphCalls;

    /// Begins a capture in global mode.
    0x0801 local answer fn cuStreamBeginCapture(hStream: HandleArg<sys::CUstream>) older ptsz;
    /// Begins a capture.
    0x0802 local answer fn cuStreamBeginCapture_v2(hStream: HandleArg<sys::CUstream>, mode: Enum<sys::CUstreamCaptureMode>) ptsz;
    /// Begins a capture into a graph that exists.
    0x0803 local answer fn cuStreamBeginCaptureToGraph(hStream: HandleArg<sys::CUstream>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 4>, dependencyData: InSliceOpt<sys::CUgraphEdgeData, 4>, numDependencies: Len<usize>, mode: Enum<sys::CUstreamCaptureMode>) ptsz [null(hGraph, VALUE)];
    /// Ends a capture.
    0x0804 local irregular "its output may be null in some captures only" fn cuStreamEndCapture(hStream: Raw<sys::CUstream>, phGraph: Writes<sys::CUgraph>) ptsz;
    /// Whether a stream is being captured.
    0x0805 local answer fn cuStreamIsCapturing(hStream: HandleArg<sys::CUstream>, captureStatus: OutEnum<sys::CUstreamCaptureStatus>) ptsz [null(captureStatus, VALUE), start, context];
    /// State of a capture.
    0x0806 local irregular "outputs that are written only during a capture" fn cuStreamGetCaptureInfo(hStream: Raw<sys::CUstream>, captureStatus_out: Writes<sys::CUstreamCaptureStatus>, id_out: Writes<sys::cuuint64_t>) older ptsz [null(captureStatus_out, VALUE), start, context];
    /// State of a capture.
    0x0807 local irregular "outputs that are written only during a capture" fn cuStreamGetCaptureInfo_v2(hStream: Raw<sys::CUstream>, captureStatus_out: Writes<sys::CUstreamCaptureStatus>, id_out: Writes<sys::cuuint64_t>, graph_out: Writes<sys::CUgraph>, dependencies_out: Writes<*const sys::CUgraphNode>, numDependencies_out: Writes<usize>) older ptsz [null(captureStatus_out, VALUE), start, context];
    /// State of a capture.
    0x0808 local irregular "outputs that are written only during a capture" fn cuStreamGetCaptureInfo_v3(hStream: Raw<sys::CUstream>, captureStatus_out: Writes<sys::CUstreamCaptureStatus>, id_out: Writes<sys::cuuint64_t>, graph_out: Writes<sys::CUgraph>, dependencies_out: Writes<*const sys::CUgraphNode>, edgeData_out: Writes<*const sys::CUgraphEdgeData>, numDependencies_out: Writes<usize>) ptsz [null(captureStatus_out, VALUE), start, context];
    /// Changes what the next captured node comes after.
    0x0809 local irregular "its array may be one that the driver lent" fn cuStreamUpdateCaptureDependencies(hStream: Raw<sys::CUstream>, dependencies: ReadsMut<sys::CUgraphNode>, numDependencies: Raw<usize>, flags: Raw<c_uint>) older ptsz;
    /// Changes what the next captured node comes after.
    0x080a local irregular "its array may be one that the driver lent" fn cuStreamUpdateCaptureDependencies_v2(hStream: Raw<sys::CUstream>, dependencies: ReadsMut<sys::CUgraphNode>, dependencyData: Reads<sys::CUgraphEdgeData>, numDependencies: Raw<usize>, flags: Raw<c_uint>) ptsz;
    /// Capture mode of the calling thread.
    0x080b local answer fn cuThreadExchangeStreamCaptureMode(mode: InOut<sys::CUstreamCaptureMode>);
    /// Makes an empty graph.
    0x080c local answer fn cuGraphCreate(phGraph: OutHandle<sys::CUgraph>, flags: Val<c_uint>);
    /// Destroys a graph.
    0x080d state answer fn cuGraphDestroy(hGraph: HandleArg<sys::CUgraph>);
    /// Copies a graph.
    0x080e local answer fn cuGraphClone(phGraphClone: OutHandle<sys::CUgraph>, originalGraph: HandleArg<sys::CUgraph>);
    /// The node of a copy that was made from a node.
    0x080f local answer fn cuGraphNodeFindInClone(phNode: OutHandle<sys::CUgraphNode>, hOriginalNode: HandleArg<sys::CUgraphNode>, hClonedGraph: HandleArg<sys::CUgraph>);
    /// Adds a kernel.
    0x0810 local answer fn cuGraphAddKernelNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, nodeParams: In<sys::CUDA_KERNEL_NODE_PARAMS_v1>) older [start, null(phGraphNode, VALUE), null(hGraph, HANDLE)];
    /// Adds a kernel.
    0x0811 local answer fn cuGraphAddKernelNode_v2(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, nodeParams: In<sys::CUDA_KERNEL_NODE_PARAMS>) [start, null(phGraphNode, VALUE), null(hGraph, HANDLE)];
    /// Adds a copy.
    0x0812 local answer fn cuGraphAddMemcpyNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, copyParams: In<sys::CUDA_MEMCPY3D>, ctx: HandleArg<sys::CUcontext>) [start, null(phGraphNode, VALUE), null(hGraph, VALUE)];
    /// Adds a fill.
    0x0813 local answer fn cuGraphAddMemsetNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, memsetParams: In<sys::CUDA_MEMSET_NODE_PARAMS>, ctx: HandleArg<sys::CUcontext>);
    /// Adds a host function.
    0x0814 local answer fn cuGraphAddHostNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, nodeParams: In<sys::CUDA_HOST_NODE_PARAMS>) [null(hGraph, VALUE)];
    /// Adds a graph as a node.
    0x0815 local answer fn cuGraphAddChildGraphNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, childGraph: HandleArg<sys::CUgraph>);
    /// The graph inside a node.
    0x0816 local answer fn cuGraphChildGraphNodeGetGraph(hNode: HandleArg<sys::CUgraphNode>, phGraph: OutHandle<sys::CUgraph>);
    /// Adds a node that does nothing.
    0x0817 local answer fn cuGraphAddEmptyNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>) [null(hGraph, VALUE)];
    /// Adds the recording of an event.
    0x0818 local answer fn cuGraphAddEventRecordNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, event: HandleArg<sys::CUevent>) [null(hGraph, VALUE)];
    /// Adds the wait for an event.
    0x0819 local answer fn cuGraphAddEventWaitNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, event: HandleArg<sys::CUevent>) [null(hGraph, VALUE)];
    /// Adds memory operations.
    0x081a local answer fn cuGraphAddBatchMemOpNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, nodeParams: In<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>) [null(hGraph, VALUE)];
    /// Adds a node of any kind.
    0x081b local irregular "its structure is read and written in place" fn cuGraphAddNode(phGraphNode: Writes<sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Reads<sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Updates<sys::CUgraphNodeParams>) older [null(phGraphNode, VALUE), start, null(hGraph, HANDLE)];
    /// Adds a node of any kind.
    0x081c local irregular "its structure is read and written in place" fn cuGraphAddNode_v2(phGraphNode: Writes<sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Reads<sys::CUgraphNode>, dependencyData: Reads<sys::CUgraphEdgeData>, numDependencies: Raw<usize>, nodeParams: Updates<sys::CUgraphNodeParams>) [null(phGraphNode, VALUE), start, null(hGraph, HANDLE)];
    /// Removes a node.
    0x081d local answer fn cuGraphDestroyNode(hNode: HandleArg<sys::CUgraphNode>);
    /// Kind of a node.
    0x081e local answer fn cuGraphNodeGetType(hNode: HandleArg<sys::CUgraphNode>, type_: OutEnum<sys::CUgraphNodeType>);
    /// The nodes of a graph.
    0x081f local irregular "a list, or only its length if the list is null" fn cuGraphGetNodes(hGraph: Raw<sys::CUgraph>, nodes: Writes<sys::CUgraphNode>, numNodes: Updates<usize>);
    /// The nodes that wait for none.
    0x0820 local irregular "a list, or only its length if the list is null" fn cuGraphGetRootNodes(hGraph: Raw<sys::CUgraph>, rootNodes: Writes<sys::CUgraphNode>, numRootNodes: Updates<usize>);
    /// The edges of a graph.
    0x0821 local irregular "a list, or only its length if the list is null" fn cuGraphGetEdges(hGraph: Raw<sys::CUgraph>, from: Writes<sys::CUgraphNode>, to: Writes<sys::CUgraphNode>, numEdges: Updates<usize>) older;
    /// The edges of a graph.
    0x0822 local irregular "a list, or only its length if the list is null" fn cuGraphGetEdges_v2(hGraph: Raw<sys::CUgraph>, from: Writes<sys::CUgraphNode>, to: Writes<sys::CUgraphNode>, edgeData: Writes<sys::CUgraphEdgeData>, numEdges: Updates<usize>);
    /// The nodes that a node waits for.
    0x0823 local irregular "a list, or only its length if the list is null" fn cuGraphNodeGetDependencies(hNode: Raw<sys::CUgraphNode>, dependencies: Writes<sys::CUgraphNode>, numDependencies: Updates<usize>) older;
    /// The nodes that a node waits for.
    0x0824 local irregular "a list, or only its length if the list is null" fn cuGraphNodeGetDependencies_v2(hNode: Raw<sys::CUgraphNode>, dependencies: Writes<sys::CUgraphNode>, edgeData: Writes<sys::CUgraphEdgeData>, numDependencies: Updates<usize>);
    /// The nodes that wait for a node.
    0x0825 local irregular "a list, or only its length if the list is null" fn cuGraphNodeGetDependentNodes(hNode: Raw<sys::CUgraphNode>, dependentNodes: Writes<sys::CUgraphNode>, numDependentNodes: Updates<usize>) older;
    /// The nodes that wait for a node.
    0x0826 local irregular "a list, or only its length if the list is null" fn cuGraphNodeGetDependentNodes_v2(hNode: Raw<sys::CUgraphNode>, dependentNodes: Writes<sys::CUgraphNode>, edgeData: Writes<sys::CUgraphEdgeData>, numDependentNodes: Updates<usize>);
    /// Adds edges.
    0x0827 local answer fn cuGraphAddDependencies(hGraph: HandleArg<sys::CUgraph>, from: InSlice<sys::CUgraphNode, 3>, to: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>) older [null(hGraph, VALUE)];
    /// Adds edges.
    0x0828 local answer fn cuGraphAddDependencies_v2(hGraph: HandleArg<sys::CUgraph>, from: InSlice<sys::CUgraphNode, 4>, to: InSlice<sys::CUgraphNode, 4>, edgeData: InSliceOpt<sys::CUgraphEdgeData, 4>, numDependencies: Len<usize>) [null(hGraph, VALUE)];
    /// Takes edges away.
    0x0829 local answer fn cuGraphRemoveDependencies(hGraph: HandleArg<sys::CUgraph>, from: InSlice<sys::CUgraphNode, 3>, to: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>) older [null(hGraph, VALUE)];
    /// Takes edges away.
    0x082a local answer fn cuGraphRemoveDependencies_v2(hGraph: HandleArg<sys::CUgraph>, from: InSlice<sys::CUgraphNode, 4>, to: InSlice<sys::CUgraphNode, 4>, edgeData: InSliceOpt<sys::CUgraphEdgeData, 4>, numDependencies: Len<usize>) [null(hGraph, VALUE)];
    /// Parameters of a kernel node.
    0x082b local answer fn cuGraphKernelNodeGetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: OutStruct<sys::CUDA_KERNEL_NODE_PARAMS_v1>) older [null(hNode, VALUE)];
    /// Parameters of a kernel node.
    0x082c local answer fn cuGraphKernelNodeGetParams_v2(hNode: HandleArg<sys::CUgraphNode>, nodeParams: OutStruct<sys::CUDA_KERNEL_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Changes a kernel node.
    0x082d local answer fn cuGraphKernelNodeSetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_KERNEL_NODE_PARAMS_v1>) older [null(hNode, VALUE)];
    /// Changes a kernel node.
    0x082e local answer fn cuGraphKernelNodeSetParams_v2(hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_KERNEL_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Parameters of a copy node.
    0x082f local answer fn cuGraphMemcpyNodeGetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: OutStruct<sys::CUDA_MEMCPY3D>);
    /// Changes a copy node.
    0x0830 local answer fn cuGraphMemcpyNodeSetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_MEMCPY3D>) [null(hNode, VALUE)];
    /// Parameters of a fill node.
    0x0831 local answer fn cuGraphMemsetNodeGetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: OutStruct<sys::CUDA_MEMSET_NODE_PARAMS>);
    /// Changes a fill node.
    0x0832 local answer fn cuGraphMemsetNodeSetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_MEMSET_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Parameters of a host node.
    0x0833 local answer fn cuGraphHostNodeGetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: OutStruct<sys::CUDA_HOST_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Changes a host node.
    0x0834 local answer fn cuGraphHostNodeSetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_HOST_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Parameters of a memory operations node.
    0x0835 local answer fn cuGraphBatchMemOpNodeGetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: OutStruct<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Changes a memory operations node.
    0x0836 local answer fn cuGraphBatchMemOpNodeSetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Event of a node.
    0x0837 local answer fn cuGraphEventRecordNodeGetEvent(hNode: HandleArg<sys::CUgraphNode>, event_out: OutHandle<sys::CUevent>) [null(hNode, VALUE)];
    /// Changes the event of a node.
    0x0838 local answer fn cuGraphEventRecordNodeSetEvent(hNode: HandleArg<sys::CUgraphNode>, event: HandleArg<sys::CUevent>) [null(hNode, VALUE)];
    /// Event of a node.
    0x0839 local answer fn cuGraphEventWaitNodeGetEvent(hNode: HandleArg<sys::CUgraphNode>, event_out: OutHandle<sys::CUevent>) [null(hNode, VALUE)];
    /// Changes the event of a node.
    0x083a local answer fn cuGraphEventWaitNodeSetEvent(hNode: HandleArg<sys::CUgraphNode>, event: HandleArg<sys::CUevent>) [null(hNode, VALUE)];
    /// Changes a node of any kind.
    0x083b local answer fn cuGraphNodeSetParams(hNode: HandleArg<sys::CUgraphNode>, nodeParams: InMut<sys::CUgraphNodeParams>) [null(hNode, VALUE)];
    /// An attribute of a kernel node.
    0x083c local answer fn cuGraphKernelNodeGetAttribute(hNode: HandleArg<sys::CUgraphNode>, attr: Enum<sys::CUkernelNodeAttrID>, value_out: OutStruct<sys::CUkernelNodeAttrValue>);
    /// Changes an attribute of a kernel node.
    0x083d local answer fn cuGraphKernelNodeSetAttribute(hNode: HandleArg<sys::CUgraphNode>, attr: Enum<sys::CUkernelNodeAttrID>, value: In<sys::CUkernelNodeAttrValue>);
    /// Copies the attributes of a kernel node.
    0x083e local answer fn cuGraphKernelNodeCopyAttributes(dst: HandleArg<sys::CUgraphNode>, src: HandleArg<sys::CUgraphNode>);
    /// Makes an instance.
    0x083f state irregular "outputs that are written when it fails" fn cuGraphInstantiate(phGraphExec: Writes<sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, phErrorNode: Writes<sys::CUgraphNode>, logBuffer: Writes<c_char>, bufferSize: Raw<usize>) older;
    /// Makes an instance.
    0x0840 state irregular "outputs that are written when it fails" fn cuGraphInstantiate_v2(phGraphExec: Writes<sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, phErrorNode: Writes<sys::CUgraphNode>, logBuffer: Writes<c_char>, bufferSize: Raw<usize>) older;
    /// Makes an instance.
    0x0841 state answer fn cuGraphInstantiateWithFlags(phGraphExec: OutHandle<sys::CUgraphExec>, hGraph: HandleArg<sys::CUgraph>, flags: Val<c_ulonglong>) [start, context];
    /// Makes an instance.
    0x0842 state irregular "outputs that are written when it fails" fn cuGraphInstantiateWithParams(phGraphExec: Writes<sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, instantiateParams: Updates<sys::CUDA_GRAPH_INSTANTIATE_PARAMS>) ptsz [null(phGraphExec, VALUE), start, context];
    /// Flags of an instance.
    0x0843 local answer fn cuGraphExecGetFlags(hGraphExec: HandleArg<sys::CUgraphExec>, flags: Out<sys::cuuint64_t>);
    /// Changes a kernel of an instance.
    0x0844 state answer fn cuGraphExecKernelNodeSetParams(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_KERNEL_NODE_PARAMS_v1>) older [null(hGraphExec, VALUE)];
    /// Changes a kernel of an instance.
    0x0845 state answer fn cuGraphExecKernelNodeSetParams_v2(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_KERNEL_NODE_PARAMS>) [null(hGraphExec, VALUE)];
    /// Changes a copy of an instance.
    0x0846 state answer fn cuGraphExecMemcpyNodeSetParams(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, copyParams: In<sys::CUDA_MEMCPY3D>, ctx: HandleArg<sys::CUcontext>) [null(hGraphExec, VALUE)];
    /// Changes a fill of an instance.
    0x0847 state answer fn cuGraphExecMemsetNodeSetParams(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, memsetParams: In<sys::CUDA_MEMSET_NODE_PARAMS>, ctx: HandleArg<sys::CUcontext>) [null(hGraphExec, VALUE)];
    /// Changes a host function of an instance.
    0x0848 state answer fn cuGraphExecHostNodeSetParams(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_HOST_NODE_PARAMS>) [null(hGraphExec, VALUE)];
    /// Changes a child graph of an instance.
    0x0849 state answer fn cuGraphExecChildGraphNodeSetParams(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, childGraph: HandleArg<sys::CUgraph>) [null(hGraphExec, VALUE)];
    /// Changes an event of an instance.
    0x084a state answer fn cuGraphExecEventRecordNodeSetEvent(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, event: HandleArg<sys::CUevent>) [null(hGraphExec, VALUE)];
    /// Changes an event of an instance.
    0x084b state answer fn cuGraphExecEventWaitNodeSetEvent(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, event: HandleArg<sys::CUevent>) [null(hGraphExec, VALUE)];
    /// Changes memory operations of an instance.
    0x084c state answer fn cuGraphExecBatchMemOpNodeSetParams(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, nodeParams: In<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>) [null(hGraphExec, VALUE)];
    /// Changes a node of an instance.
    0x084d state answer fn cuGraphExecNodeSetParams(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, nodeParams: InMut<sys::CUgraphNodeParams>) [null(hGraphExec, VALUE)];
    /// Lets an instance skip a node, or not.
    0x084e state answer fn cuGraphNodeSetEnabled(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, isEnabled: Val<c_uint>) [null(hGraphExec, VALUE)];
    /// Whether an instance runs a node.
    0x084f local answer fn cuGraphNodeGetEnabled(hGraphExec: HandleArg<sys::CUgraphExec>, hNode: HandleArg<sys::CUgraphNode>, isEnabled: Out<c_uint>) [null(hGraphExec, VALUE)];
    /// Makes an instance as a graph.
    0x0850 state irregular "outputs that are written when it fails" fn cuGraphExecUpdate(hGraphExec: Raw<sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, hErrorNode_out: Writes<sys::CUgraphNode>, updateResult_out: Writes<u32>) older;
    /// Makes an instance as a graph.
    0x0851 state irregular "outputs that are written when it fails" fn cuGraphExecUpdate_v2(hGraphExec: Raw<sys::CUgraphExec>, hGraph: Raw<sys::CUgraph>, resultInfo: Writes<sys::CUgraphExecUpdateResultInfo>);
    /// Prepares the next launch of an instance.
    0x0852 work answer fn cuGraphUpload(hGraphExec: HandleArg<sys::CUgraphExec>, hStream: HandleArg<sys::CUstream>) ptsz [start, context];
    /// Launches an instance.
    0x0853 work answer fn cuGraphLaunch(hGraphExec: HandleArg<sys::CUgraphExec>, hStream: HandleArg<sys::CUstream>) ptsz;
    /// Destroys an instance.
    0x0854 state answer fn cuGraphExecDestroy(hGraphExec: HandleArg<sys::CUgraphExec>);
    /// Makes a user object.
    0x0855 local answer fn cuUserObjectCreate(object_out: OutHandle<sys::CUuserObject>, ptr: HostAddress, destroy: Val<sys::CUhostFn>, initialRefcount: Val<c_uint>, flags: Val<c_uint>) [null(object_out, VALUE), null(destroy, VALUE)];
    /// Takes references to a user object.
    0x0856 local answer fn cuUserObjectRetain(object: HandleArg<sys::CUuserObject>, count: Val<c_uint>) [null(object, VALUE)];
    /// Gives references to a user object back.
    0x0857 local answer fn cuUserObjectRelease(object: HandleArg<sys::CUuserObject>, count: Val<c_uint>) [null(object, VALUE)];
    /// Lets a graph hold a user object.
    0x0858 local answer fn cuGraphRetainUserObject(graph: HandleArg<sys::CUgraph>, object: HandleArg<sys::CUuserObject>, count: Val<c_uint>, flags: Val<c_uint>) [null(graph, VALUE)];
    /// Lets a graph give a user object back.
    0x0859 local answer fn cuGraphReleaseUserObject(graph: HandleArg<sys::CUgraph>, object: HandleArg<sys::CUuserObject>, count: Val<c_uint>) [null(graph, VALUE)];
    /// Writes a graph to a file.
    0x085a local answer fn cuGraphDebugDotPrint(hGraph: HandleArg<sys::CUgraph>, path: Str, flags: Val<c_uint>) [null(hGraph, VALUE)];
    /// Adds memory that the graph allocates.
    0x085b memory irregular "its structure is read and written in place" fn cuGraphAddMemAllocNode(phGraphNode: Writes<sys::CUgraphNode>, hGraph: Raw<sys::CUgraph>, dependencies: Reads<sys::CUgraphNode>, numDependencies: Raw<usize>, nodeParams: Updates<sys::CUDA_MEM_ALLOC_NODE_PARAMS>);
    /// Parameters of a node that allocates.
    0x085c local answer fn cuGraphMemAllocNodeGetParams(hNode: HandleArg<sys::CUgraphNode>, params_out: OutStruct<sys::CUDA_MEM_ALLOC_NODE_PARAMS>) [null(hNode, VALUE)];
    /// Adds a free of such memory.
    0x085d local answer fn cuGraphAddMemFreeNode(phGraphNode: OutHandleOrNull<sys::CUgraphNode>, hGraph: HandleArg<sys::CUgraph>, dependencies: InSlice<sys::CUgraphNode, 3>, numDependencies: Len<usize>, dptr: Address);
    /// What a node frees.
    0x085e local answer fn cuGraphMemFreeNodeGetParams(hNode: HandleArg<sys::CUgraphNode>, dptr_out: Out<sys::CUdeviceptr>) [null(hNode, VALUE)];
    /// Gives back memory of graphs that is not in use.
    0x085f local answer fn cuDeviceGraphMemTrim(device: Val<sys::CUdevice>);
    /// How much memory graphs have.
    0x0860 local answer fn cuDeviceGetGraphMemAttribute(device: Val<sys::CUdevice>, attr: Enum<sys::CUgraphMem_attribute>, value: OutVoid<u64>);
    /// Sets a high watermark back.
    0x0861 local answer fn cuDeviceSetGraphMemAttribute(device: Val<sys::CUdevice>, attr: Enum<sys::CUgraphMem_attribute>, value: InVoid<u64>);
    /// Makes a condition for a node of a graph.
    0x0862 state answer fn cuGraphConditionalHandleCreate(pHandle_out: Out<sys::CUgraphConditionalHandle>, hGraph: HandleArg<sys::CUgraph>, ctx: HandleArg<sys::CUcontext>, defaultLaunchValue: Val<c_uint>, flags: Val<c_uint>) [null(hGraph, VALUE)];
}
