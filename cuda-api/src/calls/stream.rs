//! Streams and events.

calls! { $ for_each_stream_call stream StreamCalls;

    /// Creates a stream.
    0x0401 state send fn cuStreamCreate(phStream: New<Stream>, Flags: Val<c_uint>) [null(phStream, VALUE), start, context];
    /// Creates a stream with a priority.
    0x0402 state send fn cuStreamCreateWithPriority(phStream: New<Stream>, flags: Val<c_uint>, priority: Val<c_int>) [null(phStream, VALUE), start, context];
    /// Destroys a stream; its work goes on.
    0x0403 state send fn cuStreamDestroy_v2(hStream: End<Stream>) [null(hStream, HANDLE)];
    /// Whether a stream has finished.
    0x0404 query answer fn cuStreamQuery(hStream: StreamArg) ptsz;
    /// Waits for a stream.
    0x0405 sync answer fn cuStreamSynchronize(hStream: StreamArg) ptsz;
    /// Makes a stream wait for an event.
    0x0406 work irregular "hot path: flags are checked before handles" fn cuStreamWaitEvent(hStream: Raw<sys::CUstream>, hEvent: Raw<sys::CUevent>, Flags: Raw<c_uint>) ptsz;
    /// Flags of a stream.
    0x0407 local answer fn cuStreamGetFlags(hStream: StreamArg, flags: Out<c_uint>) ptsz [null(flags, VALUE), start, context];
    /// Priority of a stream.
    0x0408 local answer fn cuStreamGetPriority(hStream: StreamArg, priority: Out<c_int>) ptsz [null(priority, VALUE), start, context];
    /// Context of a stream.
    0x0409 local answer fn cuStreamGetCtx(hStream: HandleArg<sys::CUstream>, pctx: OutHandle<sys::CUcontext>) ptsz [null(pctx, VALUE), start, context];
    /// Context of a stream, and its green context.
    0x044a local answer fn cuStreamGetCtx_v2(hStream: HandleArg<sys::CUstream>, pCtx: OutHandle<sys::CUcontext>, pGreenCtx: OutHandle<sys::CUgreenCtx>) ptsz [null(pCtx, VALUE), start, context];
    /// How the work of a stream is carried out.
    0x044b state irregular "the attribute determines the type of the value" fn cuStreamSetAttribute(hStream: Raw<sys::CUstream>, attr: RawEnum<sys::CUstreamAttrID>, value: Reads<sys::CUstreamAttrValue>) ptsz;
    /// How the work of a stream is carried out.
    0x044c local irregular "the attribute determines the type of the value" fn cuStreamGetAttribute(hStream: Raw<sys::CUstream>, attr: RawEnum<sys::CUstreamAttrID>, value_out: Writes<sys::CUstreamAttrValue>) ptsz;
    /// Gives a stream the attributes of another one.
    0x044d state answer fn cuStreamCopyAttributes(dst: HandleArg<sys::CUstream>, src: HandleArg<sys::CUstream>) ptsz;
    /// Device of a stream.
    0x040a local answer fn cuStreamGetDevice(hStream: StreamArg, device: Out<sys::CUdevice>) ptsz [null(device, VALUE), start, context];
    /// Unique number of a stream.
    0x040b local answer fn cuStreamGetId(hStream: StreamArg, streamId: Out<c_ulonglong>) ptsz [null(streamId, VALUE), start, context];
    /// Calls a function of the job's process in stream order, and tells it of errors.
    0x040c work irregular "a function of the program that the job calls later" fn cuStreamAddCallback(hStream: Raw<sys::CUstream>, callback: Raw<sys::CUstreamCallback>, userData: Raw<*mut c_void>, flags: Raw<c_uint>) ptsz [null(callback, VALUE)];
    /// Calls a function of the job's process in stream order.
    0x040d work irregular "a function of the program that the job calls later" fn cuLaunchHostFunc(hStream: Raw<sys::CUstream>, fn_: Raw<sys::CUhostFn>, userData: Raw<*mut c_void>) ptsz [null(fn_, VALUE)];
    /// Creates an event.
    0x0412 state send fn cuEventCreate(phEvent: New<Event>, Flags: Val<c_uint>) [start, context];
    /// Destroys an event.
    0x0413 state send fn cuEventDestroy_v2(hEvent: End<Event>) [null(hEvent, HANDLE)];
    /// Records an event in a stream.
    0x0414 work irregular "hot path: flags are checked before handles" fn cuEventRecord(hEvent: Raw<sys::CUevent>, hStream: Raw<sys::CUstream>) ptsz [start, context, null(hEvent, HANDLE)];
    /// Records an event in a stream.
    0x0415 work irregular "hot path: flags are checked before handles" fn cuEventRecordWithFlags(hEvent: Raw<sys::CUevent>, hStream: Raw<sys::CUstream>, flags: Raw<c_uint>) ptsz [start, context, null(hEvent, HANDLE)];
    /// Whether an event has happened.
    0x0416 query answer fn cuEventQuery(hEvent: Use<Event>) [null(hEvent, HANDLE)];
    /// Waits for an event.
    0x0417 sync answer fn cuEventSynchronize(hEvent: Use<Event>) [null(hEvent, HANDLE)];
    /// Milliseconds between two events.
    0x0418 local answer fn cuEventElapsedTime(pMilliseconds: Out<f32>, hStart: HandleArg<sys::CUevent>, hEnd: HandleArg<sys::CUevent>) older [null(pMilliseconds, HANDLE), null(hStart, HANDLE), null(hEnd, HANDLE)];
    /// Milliseconds between two events.
    0x0419 local answer fn cuEventElapsedTime_v2(pMilliseconds: Out<f32>, hStart: HandleArg<sys::CUevent>, hEnd: HandleArg<sys::CUevent>) [null(pMilliseconds, HANDLE), null(hStart, HANDLE), null(hEnd, HANDLE)];
    /// Makes a stream wait until a word of memory fulfils a condition.
    0x0440 work irregular "hot path: one operation of a batch" fn cuStreamWaitValue32_v2(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint32_t>, flags: Raw<c_uint>) ptsz;
    /// Makes a stream wait until a word of memory fulfils a condition.
    0x0441 work irregular "hot path: one operation of a batch" fn cuStreamWaitValue64_v2(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint64_t>, flags: Raw<c_uint>) ptsz;
    /// Writes a word of memory in stream order.
    0x0442 work irregular "hot path: one operation of a batch" fn cuStreamWriteValue32_v2(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint32_t>, flags: Raw<c_uint>) ptsz;
    /// Writes a word of memory in stream order.
    0x0443 work irregular "hot path: one operation of a batch" fn cuStreamWriteValue64_v2(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint64_t>, flags: Raw<c_uint>) ptsz;
    /// Waits and writes of words of memory in stream order.
    0x0444 work irregular "an array whose elements are unions" fn cuStreamBatchMemOp_v2(stream: Raw<sys::CUstream>, count: Raw<c_uint>, paramArray: ReadsMut<sys::CUstreamBatchMemOpParams>, flags: Raw<c_uint>) ptsz [start, context];
    /// Makes a stream wait until a word of memory fulfils a condition.
    0x0445 work irregular "hot path: one operation of a batch" fn cuStreamWaitValue32(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint32_t>, flags: Raw<c_uint>) older ptsz;
    /// Makes a stream wait until a word of memory fulfils a condition.
    0x0446 work irregular "hot path: one operation of a batch" fn cuStreamWaitValue64(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint64_t>, flags: Raw<c_uint>) older ptsz;
    /// Writes a word of memory in stream order.
    0x0447 work irregular "hot path: one operation of a batch" fn cuStreamWriteValue32(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint32_t>, flags: Raw<c_uint>) older ptsz;
    /// Writes a word of memory in stream order.
    0x0448 work irregular "hot path: one operation of a batch" fn cuStreamWriteValue64(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint64_t>, flags: Raw<c_uint>) older ptsz;
    /// Waits and writes of words of memory in stream order.
    0x0449 work irregular "an array whose elements are unions" fn cuStreamBatchMemOp(stream: Raw<sys::CUstream>, count: Raw<c_uint>, paramArray: ReadsMut<sys::CUstreamBatchMemOpParams>, flags: Raw<c_uint>) older ptsz [start, context];
    /// The part of a GPU that a stream is bound to: none.
    0x044f local answer fn cuStreamGetGreenCtx(hStream: HandleArg<sys::CUstream>, phCtx: OutHandle<sys::CUgreenCtx>) [null(phCtx, VALUE), start, context];
    /// As `cuStreamDestroy_v2`.
    0x0450 state answer fn cuStreamDestroy(hStream: Use<Stream>) older [null(hStream, HANDLE)];
    /// As `cuEventDestroy_v2`.
    0x0451 state answer fn cuEventDestroy(hEvent: HandleArg<sys::CUevent>) older [null(hEvent, HANDLE)];
}
