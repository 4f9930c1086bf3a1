//! Streams and events.

calls! { $ for_each_stream_call stream StreamCalls;

    /// Creates a stream.
    0x0401 state send fn cuStreamCreate(phStream: New<Stream>, Flags: Val<c_uint>);
    /// Creates a stream with a priority.
    0x0402 state send fn cuStreamCreateWithPriority(phStream: New<Stream>, flags: Val<c_uint>, priority: Val<c_int>);
    /// Destroys a stream; its work goes on.
    0x0403 state send fn cuStreamDestroy_v2(hStream: End<Stream>);
    /// Whether a stream has finished.
    0x0404 query custom fn cuStreamQuery(hStream: Raw<sys::CUstream>) ptsz;
    /// Waits for a stream.
    0x0405 sync custom fn cuStreamSynchronize(hStream: Raw<sys::CUstream>) ptsz;
    /// Makes a stream wait for an event.
    0x0406 work custom fn cuStreamWaitEvent(hStream: Raw<sys::CUstream>, hEvent: Raw<sys::CUevent>, Flags: Raw<c_uint>) ptsz;
    /// Flags of a stream.
    0x0407 local custom fn cuStreamGetFlags(hStream: Raw<sys::CUstream>, flags: Raw<*mut c_uint>) ptsz;
    /// Priority of a stream.
    0x0408 local custom fn cuStreamGetPriority(hStream: Raw<sys::CUstream>, priority: Raw<*mut c_int>) ptsz;
    /// Context of a stream.
    0x0409 local custom fn cuStreamGetCtx(hStream: Raw<sys::CUstream>, pctx: Raw<*mut sys::CUcontext>) ptsz;
    /// Context of a stream, and its green context.
    0x044a local custom fn cuStreamGetCtx_v2(hStream: Raw<sys::CUstream>, pCtx: Raw<*mut sys::CUcontext>, pGreenCtx: Raw<*mut sys::CUgreenCtx>) ptsz;
    /// How the work of a stream is carried out.
    0x044b state custom fn cuStreamSetAttribute(hStream: Raw<sys::CUstream>, attr: RawEnum<sys::CUstreamAttrID>, value: Raw<*const sys::CUstreamAttrValue>) ptsz;
    /// How the work of a stream is carried out.
    0x044c local custom fn cuStreamGetAttribute(hStream: Raw<sys::CUstream>, attr: RawEnum<sys::CUstreamAttrID>, value_out: Raw<*mut sys::CUstreamAttrValue>) ptsz;
    /// Gives a stream the attributes of another one.
    0x044d state custom fn cuStreamCopyAttributes(dst: Raw<sys::CUstream>, src: Raw<sys::CUstream>) ptsz;
    /// Device of a stream.
    0x040a local custom fn cuStreamGetDevice(hStream: Raw<sys::CUstream>, device: Raw<*mut sys::CUdevice>) ptsz;
    /// Unique number of a stream.
    0x040b local custom fn cuStreamGetId(hStream: Raw<sys::CUstream>, streamId: Raw<*mut c_ulonglong>) ptsz;
    /// Calls a function of the job's process in stream order, and tells it of errors.
    0x040c work custom fn cuStreamAddCallback(hStream: Raw<sys::CUstream>, callback: Raw<sys::CUstreamCallback>, userData: Raw<*mut c_void>, flags: Raw<c_uint>) ptsz;
    /// Calls a function of the job's process in stream order.
    0x040d work custom fn cuLaunchHostFunc(hStream: Raw<sys::CUstream>, fn_: Raw<sys::CUhostFn>, userData: Raw<*mut c_void>) ptsz;
    /// Creates an event.
    0x0412 state send fn cuEventCreate(phEvent: New<Event>, Flags: Val<c_uint>);
    /// Destroys an event.
    0x0413 state send fn cuEventDestroy_v2(hEvent: End<Event>);
    /// Records an event in a stream.
    0x0414 work custom fn cuEventRecord(hEvent: Raw<sys::CUevent>, hStream: Raw<sys::CUstream>) ptsz;
    /// Records an event in a stream.
    0x0415 work custom fn cuEventRecordWithFlags(hEvent: Raw<sys::CUevent>, hStream: Raw<sys::CUstream>, flags: Raw<c_uint>) ptsz;
    /// Whether an event has happened.
    0x0416 query custom fn cuEventQuery(hEvent: Raw<sys::CUevent>);
    /// Waits for an event.
    0x0417 sync custom fn cuEventSynchronize(hEvent: Raw<sys::CUevent>);
    /// Milliseconds between two events.
    0x0418 local custom fn cuEventElapsedTime(pMilliseconds: Raw<*mut f32>, hStart: Raw<sys::CUevent>, hEnd: Raw<sys::CUevent>) older;
    /// Milliseconds between two events.
    0x0419 local custom fn cuEventElapsedTime_v2(pMilliseconds: Raw<*mut f32>, hStart: Raw<sys::CUevent>, hEnd: Raw<sys::CUevent>);
    /// Makes a stream wait until a word of memory fulfils a condition.
    0x0440 work custom fn cuStreamWaitValue32_v2(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint32_t>, flags: Raw<c_uint>) ptsz;
    /// Makes a stream wait until a word of memory fulfils a condition.
    0x0441 work custom fn cuStreamWaitValue64_v2(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint64_t>, flags: Raw<c_uint>) ptsz;
    /// Writes a word of memory in stream order.
    0x0442 work custom fn cuStreamWriteValue32_v2(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint32_t>, flags: Raw<c_uint>) ptsz;
    /// Writes a word of memory in stream order.
    0x0443 work custom fn cuStreamWriteValue64_v2(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint64_t>, flags: Raw<c_uint>) ptsz;
    /// Waits and writes of words of memory in stream order.
    0x0444 work custom fn cuStreamBatchMemOp_v2(stream: Raw<sys::CUstream>, count: Raw<c_uint>, paramArray: Raw<*mut sys::CUstreamBatchMemOpParams>, flags: Raw<c_uint>) ptsz;
    /// Makes a stream wait until a word of memory fulfils a condition.
    0x0445 work custom fn cuStreamWaitValue32(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint32_t>, flags: Raw<c_uint>) older ptsz;
    /// Makes a stream wait until a word of memory fulfils a condition.
    0x0446 work custom fn cuStreamWaitValue64(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint64_t>, flags: Raw<c_uint>) older ptsz;
    /// Writes a word of memory in stream order.
    0x0447 work custom fn cuStreamWriteValue32(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint32_t>, flags: Raw<c_uint>) older ptsz;
    /// Writes a word of memory in stream order.
    0x0448 work custom fn cuStreamWriteValue64(stream: Raw<sys::CUstream>, addr: Raw<sys::CUdeviceptr>, value: Raw<sys::cuuint64_t>, flags: Raw<c_uint>) older ptsz;
    /// Waits and writes of words of memory in stream order.
    0x0449 work custom fn cuStreamBatchMemOp(stream: Raw<sys::CUstream>, count: Raw<c_uint>, paramArray: Raw<*mut sys::CUstreamBatchMemOpParams>, flags: Raw<c_uint>) older ptsz;
    /// The part of a GPU that a stream is bound to: none.
    0x044f local custom fn cuStreamGetGreenCtx(hStream: Raw<sys::CUstream>, phCtx: Raw<*mut sys::CUgreenCtx>);
    /// As `cuStreamDestroy_v2`.
    0x0450 state custom fn cuStreamDestroy(hStream: Raw<sys::CUstream>) older;
    /// As `cuEventDestroy_v2`.
    0x0451 state custom fn cuEventDestroy(hEvent: Raw<sys::CUevent>) older;
}
