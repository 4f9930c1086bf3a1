//! Carries out encoded calls.

use super::{Direct, Executor, handle, short};
use crate::batch;
use crate::pending::{Applied, Pending};
use cuda_api::code::{self, Code};
use cuda_api::ops::{CopyDevice, EventRecord, Fill, Op, StreamWaitEvent};
use cuda_api::wire::Wire;
use std::path::Path;

impl Executor {
    /// Carries out a call: a row of [`cuda_api::calls`] or an operation of [`cuda_api::ops`]. Never waits for the GPU, except where the
    /// driver itself does (loading and unloading code) or when too many copies are under way. The answer is appended to `reply`.
    pub fn apply(&self, call: u16, body: &[u8], reply: &mut Vec<u8>) -> Applied {
        let op = Op::from_id(call);
        if self.has_copies_at_rest()
            && !matches!(op, Some(Op::CopyInAtRest | Op::HostDone | Op::HostBytes | Op::HostRuns | Op::HostBlock | Op::HostPin))
            && let Err(rc) = self.finish_copies()
        {
            return Applied::Done(rc);
        }
        let carried = match op {
            // Handled without any lock that the waiting call may hold.
            Some(Op::HostDone) => self.job_says_done(body).map(|()| None),
            Some(Op::HostBytes) => self.host_bytes(body).map(|()| None),
            Some(Op::HostRuns) => self.host_runs().map(|()| None),
            Some(Op::HostBlock) => self.host_block(body).map(|()| None),
            // These lock the context's state themselves.
            Some(Op::ContextReset) => {
                self.make_current().and_then(|()| self.reset()).map(|made_heap| made_heap.put(reply)).map(|()| None)
            }
            Some(Op::Batch) => self.make_current().and_then(|()| self.batch(body, reply)).map(|()| None),
            Some(op) => self.make_current().and_then(|()| self.operate(op, body, reply)),
            None => self.make_current().and_then(|()| self.row(&self.life(), call, body, reply)).map(|()| None),
        };
        match carried {
            Ok(None) => Applied::Done(code::SUCCESS),
            Ok(Some(pending)) => Applied::Pending(pending),
            Err(rc) => Applied::Done(rc),
        }
    }

    /// Carries out an operation that needs the context's state.
    fn operate(&self, op: Op, body: &[u8], reply: &mut Vec<u8>) -> Result<Option<Pending>, Code> {
        let life = self.life();
        match op {
            // See `apply`.
            Op::HostDone | Op::HostBytes | Op::HostRuns | Op::HostBlock | Op::ContextReset | Op::Batch => {
                return Err(code::ERROR_NOT_SUPPORTED);
            }
            Op::Launch => self.launch(body)?,
            Op::MaxActiveClusters | Op::MaxClusterSize => self.clusters(op, body)?.put(reply),
            Op::TensorMapTiled => self.tensor_map(body, reply)?,
            Op::Link => self.link(body)?.put(reply),
            Op::CopyIn => self.copy_in(&life, body)?,
            Op::CopyInAtRest => self.copy_in_at_rest(&life, body)?,
            Op::CopyOut => return self.copy_out(&life, body),
            Op::BulkIn | Op::BulkOut => return self.bulk_copy(&life, body, op == Op::BulkIn),
            Op::CopyDevice => self.direct::<CopyDevice>(body)?,
            Op::Fill => self.direct::<Fill>(body)?,
            Op::ChunkMap => self.map_chunk(body)?,
            Op::ChunkUnmap => self.unmap_chunk(&life, body)?,
            Op::AliasMap => self.map_alias(body)?,
            Op::AliasAccess => self.allow_alias(body)?,
            Op::AliasUnmap => self.unmap_alias(body)?,
            Op::HostPin => self.host_pin(&life, body)?.put(reply),
            Op::HostUnpin => self.host_unpin(body)?,
            Op::EventReached => return self.event_reached(&life, handle(body)?),
            Op::StreamHold => self.hold_stream(&life, body)?,
            Op::StreamFence => return self.fence_stream(&life, body),
            Op::ChunkOffer => self.offer_chunk(body)?.put(reply),
            Op::ChunkWithdraw => self.withdraw_chunk(handle(body)?),
            Op::PeerMap => self.map_peer(body)?,
            Op::PeerUnmap => self.unmap_peer(body)?,
            Op::EventShare => self.share_event(handle(body)?)?.put(reply),
            Op::EventOpen => self.open_event(body)?,
            Op::MemoryInfo => self.memory_info()?.put(reply),
            Op::Board => crate::board::ask(Path::new(&self.device.driver_path), &self.device.uuid).put(reply),
            Op::VariableAround => self.variable_around(handle(body)?)?.put(reply),
            Op::ImagePut => self.put_image(body)?,
            Op::ImageLoad => self.load_image(&life, body, reply)?,
            Op::ImageEnd => self.end_image(body)?,
            Op::HeapMake => self.make_heap(&life)?,
            Op::LocalGrow => self.provide_local(&life, body)?,
            Op::FunctionInfo => self.function_info(&life, handle(body)?)?.put(reply),
            Op::KernelNames => self.kernel_names(handle(body)?)?.put(reply),
            Op::HostCall => return self.host_call(&life, body),
            Op::CopyInLate => return self.copy_in_late(&life, body),
            Op::StreamMemory => return self.stream_memory(&life, body),
            Op::StreamSync => return self.sync_stream(&life, handle(body)?),
            Op::ContextSync => return self.sync_context(&life).map(Some),
            Op::EventSync => return self.sync_event(&life, handle(body)?),
            Op::EventRecord => self.direct::<EventRecord>(body)?,
            Op::EventQuery => self.query_event(handle(body)?)?,
            Op::EventElapsed => self.event_elapsed(body)?.put(reply),
            Op::EventTime => self.event_time(&life, handle(body)?)?.put(reply),
            Op::StreamWaitEvent => self.direct::<StreamWaitEvent>(body)?,
            Op::StreamQuery => self.query_stream(handle(body)?)?,
            Op::GraphMake => self.make_graph(body)?,
            Op::GraphChange => self.change_graph(body)?,
            Op::GraphSwitch => self.switch_graph(body)?,
            Op::Overtaken => {}
            Op::StreamAttribute => self.set_stream_attribute(body)?,
            Op::ReferenceSet => self.set_reference(body)?.into_iter().for_each(|offset| offset.put(reply)),
            Op::GraphLaunch => self.launch_graph(&life, body, false)?,
            Op::GraphUpload => self.launch_graph(&life, body, true)?,
            Op::GraphCondition => self.new_condition(body)?.put(reply),
            Op::GraphConditionsEnd => self.end_conditions(handle(body)?)?,
            Op::GraphCall => return self.graph_call(&life, body),
            Op::GraphEnd => self.end_graph(handle(body)?)?,
            Op::ArrayMake => self.make_array(body)?.into_iter().for_each(|layout| layout.put(reply)),
            Op::ArrayEnd => self.end_array(&life, handle(body)?)?,
            Op::TilePoolMake => self.make_tile_pool(&life, body)?,
            Op::TilePoolEnd => self.end_tile_pool(&life, body)?,
            Op::TilesMap => self.map_tiles(&life, body)?,
            Op::CopyBox => self.copy_box(body)?,
            Op::CopyBoxIn => self.copy_box_in(&life, body)?,
            Op::CopyBoxLate => return self.copy_box_late(&life, body),
            Op::CopyBoxOut => return self.copy_box_out(&life, body),
            Op::ObjectMake => self.make_object(body)?.put(reply),
            Op::ObjectEnd => self.end_object(handle(body)?)?,
            Op::TensorMapIm2col => self.tensor_map_im2col(body, reply)?,
            Op::TensorMapAddress => self.replace_tensor_map_address(body, reply)?,
            Op::EventTimes => self.event_times(&life, body)?.put(reply),
            Op::EventReference => return self.record_reference(&life).map(Some),
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
            if call == Op::Batch.id() {
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
