//! Whether a target that differs can hold the grids of the job's cooperative launches.

use super::to_place::answered;
use crate::base::encoding::encode;
use crate::job::{Device, Job};
use crate::move_error::MoveError;
use crate::place::Place;
use cuda_api::calls::Call;
use cuda_api::calls::launch::cuOccupancyMaxActiveBlocksPerMultiprocessor as occupancy;
use cuda_api::code;
use cuda_api::sys::CUdevice_attribute_enum as A;
use cuda_api::wire::Wire;

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
