//! Carries out encoded calls.

use super::{Direct, Executor, handle, short};
use crate::batch;
use crate::pending::{Applied, Pending};
use cuda_api::code::{self, Code};
use cuda_api::ops::{CopyDevice, EventRecord, Fill, StreamWaitEvent, id};
use cuda_api::wire::Wire;
use std::path::Path;

impl Executor {
    /// Carries out a call: a row of [`cuda_api::calls`] or an operation of [`cuda_api::ops`]. Never waits for the GPU, except where the
    /// driver itself does (loading and unloading code) or when too many copies are under way. The answer is appended to `reply`.
    pub fn apply(&self, call: u16, body: &[u8], reply: &mut Vec<u8>) -> Applied {
        if call == id::HOST_DONE {
            // Handled without any lock that the waiting call may hold.
            return Applied::Done(self.job_says_done(body).err().unwrap_or(code::SUCCESS));
        }
        if call == id::HOST_BYTES {
            return Applied::Done(self.host_bytes(body).err().unwrap_or(code::SUCCESS));
        }
        match self.make_current().and_then(|()| self.carry(call, body, reply)) {
            Ok(None) => Applied::Done(code::SUCCESS),
            Ok(Some(pending)) => Applied::Pending(pending),
            Err(rc) => Applied::Done(rc),
        }
    }

    fn carry(&self, call: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<Option<Pending>, Code> {
        // These calls lock the context's state themselves.
        match call {
            id::CONTEXT_RESET => return self.reset().map(|made_heap| made_heap.put(reply)).map(|()| None),
            id::BATCH => return self.batch(body, reply).map(|()| None),
            _ => {}
        }
        let life = self.life();
        match call {
            id::LAUNCH => self.launch(body)?,
            id::MAX_ACTIVE_CLUSTERS | id::MAX_CLUSTER_SIZE => self.clusters(call, body)?.put(reply),
            id::TENSOR_MAP_TILED => self.tensor_map(body, reply)?,
            id::LINK => self.link(body)?.put(reply),
            id::COPY_IN => self.copy_in(&life, body)?,
            id::COPY_IN_AT_REST => self.copy_in_at_rest(&life, body)?,
            id::COPY_OUT => return self.copy_out(&life, body),
            id::BULK_IN | id::BULK_OUT => return self.bulk_copy(&life, body, call == id::BULK_IN),
            id::COPY_DEVICE => self.direct::<CopyDevice>(body)?,
            id::FILL => self.direct::<Fill>(body)?,
            id::CHUNK_MAP => self.map_chunk(body)?,
            id::CHUNK_UNMAP => self.unmap_chunk(&life, body)?,
            id::ALIAS_MAP => self.map_alias(body)?,
            id::ALIAS_ACCESS => self.allow_alias(body)?,
            id::ALIAS_UNMAP => self.unmap_alias(body)?,
            id::HOST_PIN => self.host_pin(body)?,
            id::HOST_UNPIN => self.host_unpin(body)?,
            id::EVENT_REACHED => return self.event_reached(&life, handle(body)?),
            id::STREAM_HOLD => self.hold_stream(&life, body)?,
            id::STREAM_FENCE => return self.fence_stream(&life, body),
            id::CHUNK_OFFER => self.offer_chunk(body)?.put(reply),
            id::CHUNK_WITHDRAW => self.withdraw_chunk(handle(body)?),
            id::PEER_MAP => self.map_peer(body)?,
            id::PEER_UNMAP => self.unmap_peer(body)?,
            id::EVENT_SHARE => self.share_event(handle(body)?)?.put(reply),
            id::EVENT_OPEN => self.open_event(body)?,
            id::MEMORY_INFO => self.gpu.memory_info()?.put(reply),
            id::BOARD => crate::board::ask(Path::new(&self.device.driver_path), self.device.pci).put(reply),
            id::VARIABLE_AROUND => self.variable_around(handle(body)?)?.put(reply),
            id::IMAGE_PUT => self.put_image(body)?,
            id::IMAGE_LOAD => self.load_image(&life, body, reply)?,
            id::IMAGE_END => self.end_image(body)?,
            id::HEAP_MAKE => self.make_heap(&life)?,
            id::LOCAL_GROW => self.provide_local(&life, body)?,
            id::FUNCTION_INFO => self.function_info(&life, handle(body)?)?.put(reply),
            id::CODE_FACTS => self.code_facts(handle(body)?)?.put(reply),
            id::KERNEL_NAMES => self.kernel_names(handle(body)?)?.put(reply),
            id::HOST_CALL => return self.host_call(&life, body),
            id::COPY_IN_LATE => return self.copy_in_late(&life, body),
            id::STREAM_MEMORY => return self.stream_memory(&life, body),
            id::STREAM_SYNC => return self.sync_stream(&life, handle(body)?),
            id::CONTEXT_SYNC => return self.sync_context(&life).map(Some),
            id::EVENT_SYNC => return self.sync_event(&life, handle(body)?),
            id::EVENT_RECORD => self.direct::<EventRecord>(body)?,
            id::EVENT_QUERY => self.query_event(handle(body)?)?,
            id::EVENT_ELAPSED => self.event_elapsed(body)?.put(reply),
            id::EVENT_TIME => self.event_time(&life, handle(body)?)?.put(reply),
            id::STREAM_WAIT_EVENT => self.direct::<StreamWaitEvent>(body)?,
            id::STREAM_QUERY => self.query_stream(handle(body)?)?,
            id::GRAPH_MAKE => self.make_graph(body)?,
            id::GRAPH_CHANGE => self.change_graph(body)?,
            id::GRAPH_SWITCH => self.switch_graph(body)?,
            id::OVERTAKEN => {}
            id::STREAM_ATTRIBUTE => self.set_stream_attribute(body)?,
            id::REFERENCE_SET => self.set_reference(body)?.into_iter().for_each(|offset| offset.put(reply)),
            id::GRAPH_LAUNCH => self.launch_graph(&life, body, false)?,
            id::GRAPH_UPLOAD => self.launch_graph(&life, body, true)?,
            id::GRAPH_CONDITION => self.new_condition(body)?.put(reply),
            id::GRAPH_CONDITIONS_END => self.end_conditions(handle(body)?)?,
            id::GRAPH_CALL => return self.graph_call(&life, body),
            id::GRAPH_END => self.end_graph(handle(body)?)?,
            id::ARRAY_MAKE => self.make_array(body)?.into_iter().for_each(|layout| layout.put(reply)),
            id::ARRAY_END => self.end_array(&life, handle(body)?)?,
            id::TILE_POOL_MAKE => self.make_tile_pool(&life, body)?,
            id::TILE_POOL_END => self.end_tile_pool(&life, body)?,
            id::TILES_MAP => self.map_tiles(&life, body)?,
            id::COPY_BOX => self.copy_box(body)?,
            id::COPY_BOX_IN => self.copy_box_in(&life, body)?,
            id::COPY_BOX_LATE => return self.copy_box_late(&life, body),
            id::COPY_BOX_OUT => return self.copy_box_out(&life, body),
            id::OBJECT_MAKE => self.make_object(body)?.put(reply),
            id::OBJECT_END => self.end_object(handle(body)?)?,
            id::TENSOR_MAP_IM2COL => self.tensor_map_im2col(body, reply)?,
            id::TENSOR_MAP_ADDRESS => self.tensor_map_address(body, reply)?,
            id::EVENT_TIMES => self.event_times(&life, body)?.put(reply),
            id::EVENT_REFERENCE => return self.record_reference(&life).map(Some),
            row => self.row(&life, row, body, reply)?,
        }
        Ok(None)
    }

    fn direct<O: Direct>(&self, mut body: &[u8]) -> Result<(), Code> {
        O::get(&mut body).map_err(short)?.carry_out(self)
    }

    /// Carries out the calls of a batch.
    fn batch(&self, mut body: &[u8], reply: &mut Vec<u8>) -> Result<(), Code> {
        let mut answer = Vec::new();
        while !body.is_empty() {
            let (call, one) = batch::next_call(&mut body).map_err(short)?;
            if call == id::BATCH {
                return Err(code::ERROR_INVALID_VALUE);
            }
            answer.clear();
            let rc = match self.apply(call, one, &mut answer) {
                Applied::Done(rc) => rc,
                Applied::Pending(pending) => pending.wait(self, &mut answer),
            };
            batch::add_result(reply, rc, &answer);
            if rc != code::SUCCESS {
                break;
            }
        }
        Ok(())
    }
}
