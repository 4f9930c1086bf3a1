//! Whether a target that differs can launch what the job launches: the grids of its cooperative launches, and its functions with the limits
//! that it was told.

use super::fit::function_is_as_good;
use super::to_place::answered;
use crate::base::encoding::encode;
use crate::job::{Device, Job};
use crate::move_error::MoveError;
use crate::objects::function::FunctionProperties;
use crate::objects::table::EVERY_DEVICE;
use crate::place::Place;
use cuda_api::calls::Call;
use cuda_api::calls::launch::cuOccupancyMaxActiveBlocksPerMultiprocessor as occupancy;
use cuda_api::code;
use cuda_api::ops::{self, FunctionInfo};
use cuda_api::sys::CUdevice_attribute_enum as A;
use cuda_api::wire::Wire;
use std::ptr;

/// Maximum number of functions about which a target is asked at a time.
const TOGETHER: usize = 256;

/// Why a target that has the job's code cannot hold the blocks of a cooperative launch that the job has made.
pub(super) fn not_resident(job: &Job, device: &Device, target: &Place) -> Result<Option<MoveError>, MoveError> {
    let Some(all) = device.resident.all(|function| job.tables.function(function).is_ok()) else {
        return Ok(Some(MoveError::NotShown("the job has made more kinds of cooperative launches than are remembered")));
    };
    let processors = target.device().attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as i32);
    let processors = processors.and_then(|n| u64::try_from(n).ok()).unwrap_or_default();
    for ((func, threads, shared), blocks) in all {
        let sent = occupancy::Sent { numBlocks: true, func, blockSize: threads as i32, dynamicSMemSize: shared as usize };
        let failed = |error| MoveError::CallFailed { call: "asking for resident blocks".to_owned(), error };
        let each = match answered(target, target.begin(occupancy::Fn::ID, &[&encode(&sent)]).map_err(failed)?)? {
            (code::SUCCESS, bytes) => {
                let reply =
                    <occupancy::Fn as Call>::Reply::get(&mut &bytes[..]).map_err(|e| MoveError::BadAnswer(e.to_string()))?;
                reply.numBlocks.and_then(|n| u64::try_from(n).ok()).unwrap_or_default()
            }
            (error, _) => return Err(failed(error)),
        };
        if blocks > each * processors {
            return Ok(Some(MoveError::NotResident { blocks, resident: each * processors }));
        }
    }
    Ok(None)
}

/// Functions with what the program was told of them.
pub(super) type KnownFunctions = Vec<(u64, &'static FunctionProperties)>;

/// What the program was told of each function that it has used. The journal has those uses.
pub(super) fn known_functions(job: &Job, device: &Device) -> KnownFunctions {
    let (functions, kernels) = (job.tables.functions.all(device.index), job.tables.kernels.all(EVERY_DEVICE));
    let all = functions.into_iter().chain(kernels);
    all.filter_map(|(handle, slot)| Some((handle, slot.data.known_on(device.index)?))).collect()
}

/// Why a target that has the job's code cannot launch all that the program may launch. `known` is at most as new as the records that the
/// target has; a function that has changed since is left to the next check, at the latest that of the idle job.
pub(super) fn weaker_function(
    job: &Job,
    device: &Device,
    target: &Place,
    known: &KnownFunctions,
) -> Result<Option<MoveError>, MoveError> {
    let failed = |error| MoveError::CallFailed { call: "asking for the limits of a function".to_owned(), error };
    let is_same = |handle: u64, known: &FunctionProperties| {
        let now = job.tables.function(handle).ok().and_then(|data| data.known_on(device.index));
        now.is_some_and(|now| ptr::eq(now, known))
    };
    for some in known.chunks(TOGETHER) {
        let mut asked = Vec::with_capacity(some.len());
        for (handle, known) in some.iter().filter(|(handle, known)| is_same(*handle, known)) {
            let answer = target.begin(ops::id::FUNCTION_INFO, &[&handle.to_le_bytes()]).map_err(failed)?;
            asked.push((*handle, *known, answer));
        }
        for (handle, known, answer) in asked {
            let (rc, bytes) = answered(target, answer)?;
            if !is_same(handle, known) {
                continue;
            }
            if rc != code::SUCCESS {
                return Err(failed(rc));
            }
            let got = FunctionInfo::get(&mut &bytes[..]).map_err(|e| MoveError::BadAnswer(e.to_string()))?;
            if !function_is_as_good(&known.info, &got) {
                let why =
                    "a kernel of the job has fewer threads for a block or less shared memory there than the program was told";
                return Ok(Some(MoveError::NotShown(why)));
            }
        }
    }
    Ok(None)
}
