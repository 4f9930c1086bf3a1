//! The end of contexts: everything that they own is freed.

use super::context::{self, CONTEXTS, Context};
use super::live::Live;
use super::{allocation, array, event, graph, heap, module, sched, stream, texture, wait};
use crate::result::Res;
use cuda_api::sys::CUresult;
use cuda_model::cudart;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Destroys a green context; its streams can no longer be named.
pub(crate) fn destroy_green(context: &Arc<Context>) -> Res {
    CONTEXTS.remove(context.handle).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    stream::STREAMS.each(|created| {
        if created.stream.context == context.handle {
            created.stream.orphaned.store(true, Ordering::Release);
        }
    });
    drop(context.take_live());
    cudart::context_destroyed(context.handle);
    release(context::primary(&context.device))
}

/// Destroys a context created with [`context::create`].
pub(crate) fn destroy(context: &Arc<Context>) -> Res {
    if context.is_primary || context.part.is_some() || CONTEXTS.remove(context.handle).is_none() {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    context::pop_if_top(context);
    deactivate(context);
    Ok(())
}

/// Releases a reference to a primary context; the last one deactivates it.
pub(crate) fn release(context: &Context) -> Res {
    if context.release()? {
        deactivate(context);
    }
    Ok(())
}

/// Destroys everything that a primary context owns, regardless of references; these remain.
pub(crate) fn reset(context: &Context) {
    deactivate(context);
}

fn deactivate(context: &Context) {
    let live = context.take_live();
    cudart::context_destroyed(context.handle);
    if let Some(live) = live {
        end(&live);
    }
}

/// Destroys the context: kernels stop, queued work is dropped, everything it owns is freed.
fn end(live: &Arc<Live>) {
    live.cancel.store(true, Ordering::Release);
    sched::wake();
    sched::wait(&wait::outstanding(live));
    live.output.show();
    live.bury();
    stream::STREAMS.remove_if(|created| created.belongs_to(live));
    event::EVENTS.remove_if(|event| event.belongs_to(live));
    graph::end_context(live);
    module::end_context(live);
    allocation::end_context(live);
    array::end_context(live);
    texture::end_context(live.number);
    heap::release_slot(live.slot);
}
