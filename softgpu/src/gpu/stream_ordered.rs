//! Stream-ordered allocations, implemented in the simplest way: memory is allocated at the call and freed when the stream
//! reaches the free. Later uses are therefore detected.

use super::live::Live;
use super::memory::{self, Kind};
use super::pool::UNIT;
use super::sched::Work;
use super::stream::Target;
use super::{allocation, lock, mempool, shared_pool};
use crate::result::Res;
use cuda_api::sys::CUresult;

/// `cuMemAllocFromPoolAsync`.
pub(crate) fn allocate(handle: usize, live: &Live, size: u64) -> Res<u64> {
    let pool = mempool::resolve(handle)?;
    if size == 0 || pool.lender.is_some() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let room = size.checked_next_multiple_of(UNIT).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let mut state = lock(&pool.state);
    if state.most != 0 && state.used[0] + room > state.most {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    let address = if pool.is_exportable {
        shared_pool::allocate(live, size, pool.device, handle)?
    } else {
        allocation::allocate_as(live, size, pool.device, Kind::Pooled(handle))?
    };
    state.count(size);
    Ok(address)
}

/// `cuMemFreeAsync`, also of memory of `cuMemAlloc`.
pub(crate) fn free(target: &Target, address: u64) -> Res {
    allocation::mark_freed(address)?;
    let work = move |_: &Live| {
        allocation::release_device(&mut memory::write(), address);
        Ok(())
    };
    target.submit(Work::Always(Box::new(work)), Vec::new());
    Ok(())
}
