//! Contexts, and the calling thread's stack of them.
//!
//! A [`Context`] is the identity behind a handle; a [`Live`] is what it owns while it is active. The primary context of
//! a device has its handle from the start and a new `Live` after each reset, as programs expect.

use super::device::Device;
use super::live::Live;
use super::lock;
use super::table::Table;
use crate::config::MAX_DEVICES;
use crate::result::Res;
use cuda_api::sys::{CUcontext, CUresult};
use cuda_model::parts::Part;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

/// Contexts by handle.
pub(crate) static CONTEXTS: LazyLock<Table<Context>> = LazyLock::new(|| Table::new(3));

/// Flags of a context that exist: scheduling 0 to 2 and 4, map host, resize local memory, core dumps, memory operations.
const FLAGS: u32 = 0xff;
/// The flag that a primary context always reports, and that it rejects as an argument.
const MAP_HOST: u32 = 8;

/// The identity of a context.
pub(crate) struct Context {
    pub handle: usize,
    pub device: Arc<Device>,
    pub is_primary: bool,
    /// The resources of a green context, which shares everything but its streams with the primary one.
    pub part: Option<Part>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    references: u32,
    /// Additional references by `cuCtxAttach`.
    attached: u32,
    flags: u32,
}

thread_local! {
    // Never dropped as a thread-local: exit handlers, which run later, still find their context.
    static STACK: ManuallyDrop<RefCell<Vec<Arc<Context>>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    static AT_END: AtEnd = const { AtEnd };
}

/// Empties the stack of a thread that ends, unless the process ends with it.
struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        // By number: glibc has a function for it from 2.30 on.
        // SAFETY: these calls have no preconditions.
        if unsafe { libc::syscall(libc::SYS_gettid) != libc::c_long::from(libc::getpid()) } {
            STACK.with(|stack| stack.take());
        }
    }
}

fn with_stack<T>(f: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> T {
    // From its first use on it is dropped when the thread ends.
    let _ = AT_END.try_with(|_| ());
    STACK.with(|stack| f(&mut stack.borrow_mut()))
}

/// The current context of the calling thread, active or not.
pub(crate) fn top() -> Option<Arc<Context>> {
    with_stack(|stack| stack.last().cloned())
}

/// The current context, active and without a fault.
pub(crate) fn current() -> Res<Arc<Live>> {
    let live = top().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?.live()?;
    live.check()?;
    Ok(live)
}

/// The context of a handle.
pub(crate) fn resolve(handle: CUcontext) -> Res<Arc<Context>> {
    CONTEXTS.get(handle as usize).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Replaces the top of the stack by `context`; `None` only removes the top.
pub(crate) fn set_current(context: Option<Arc<Context>>) -> Res {
    with_stack(|stack| {
        stack.pop();
        stack.extend(context);
    });
    Ok(())
}

/// Pushes `context` onto the stack.
pub(crate) fn push(context: Arc<Context>) -> Res {
    with_stack(|stack| stack.push(context));
    Ok(())
}

/// Pops the top of the stack.
pub(crate) fn pop() -> Res<Arc<Context>> {
    with_stack(Vec::pop).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// The primary context of a device that this process sees, active or not.
pub(crate) fn primary(device: &Arc<Device>) -> &'static Arc<Context> {
    static PRIMARY: [OnceLock<Arc<Context>>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];
    PRIMARY[device.ordinal as usize].get_or_init(|| {
        let device = device.clone();
        CONTEXTS.insert_with(|handle| Context { handle, device, is_primary: true, part: None, state: Mutex::default() })
    })
}

/// Removes a context from the top of the stack, if it is there.
pub(crate) fn pop_if_top(context: &Arc<Context>) {
    with_stack(|stack| {
        if stack.last().is_some_and(|top| Arc::ptr_eq(top, context)) {
            stack.pop();
        }
    });
}

/// Creates a context that is not a primary one.
pub(crate) fn create(device: &Arc<Device>, flags: u32) -> Res<Arc<Context>> {
    check_flags(flags)?;
    Ok(CONTEXTS.insert_with(|handle| {
        let live = Some(Live::new(handle, device.clone()));
        Context {
            handle,
            device: device.clone(),
            is_primary: false,
            part: None,
            state: Mutex::new(State { live, references: 1, attached: 0, flags }),
        }
    }))
}

/// Creates a green context.
pub(crate) fn create_green(device: &Arc<Device>, part: Part) -> Res<Arc<Context>> {
    primary(device).retain();
    let live = Some(primary(device).live()?);
    Ok(CONTEXTS.insert_with(|handle| Context {
        handle,
        device: device.clone(),
        is_primary: false,
        part: Some(part),
        state: Mutex::new(State { live, references: 1, attached: 0, flags: 0 }),
    }))
}

/// Stops the kernels of every context, at process exit.
pub(crate) fn cancel_all() {
    CONTEXTS.each(|context| {
        // `try_lock`: exit must not wait for a thread that is inside the driver.
        if let Ok(state) = context.state.try_lock()
            && let Some(live) = &state.live
        {
            live.cancel.store(true, Ordering::Release);
        }
    });
}

fn check_flags(flags: u32) -> Res {
    let schedule = flags & 7;
    if flags & !FLAGS != 0 || !matches!(schedule, 0 | 1 | 2 | 4) { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

impl Context {
    /// The state of the context; an inactive one is `CONTEXT_IS_DESTROYED`.
    pub fn live(&self) -> Res<Arc<Live>> {
        lock(&self.state).live.clone().ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Flags as given, and whether the context is active.
    pub fn flags(&self) -> (u32, bool) {
        let state = lock(&self.state);
        (state.flags, state.live.is_some())
    }

    /// Flags as `cuCtxGetFlags` reports them.
    pub fn reported_flags(&self) -> u32 {
        match self.part {
            Some(_) => primary(&self.device).reported_flags(),
            None => lock(&self.state).flags | if self.is_primary { MAP_HOST } else { 0 },
        }
    }

    /// Changes the flags.
    pub fn set_flags(&self, flags: u32) -> Res {
        if self.is_primary && flags & MAP_HOST != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        check_flags(flags)?;
        lock(&self.state).flags = flags;
        Ok(())
    }

    /// Retains a primary context, which activates it.
    pub fn retain(&self) {
        let mut state = lock(&self.state);
        state.references += 1;
        if state.live.is_none() {
            state.live = Some(Live::new(self.handle, self.device.clone()));
        }
    }

    /// `cuCtxAttach`: adds a reference to an active context.
    pub fn attach(&self) {
        lock(&self.state).attached += 1;
    }

    /// `cuCtxDetach`; true: the last reference to a context of the program was released.
    pub fn detach(&self) -> Res<bool> {
        let mut state = lock(&self.state);
        match state.attached.checked_sub(1) {
            Some(left) => state.attached = left,
            None if self.is_primary || self.part.is_some() => return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
            None => return Ok(true),
        }
        Ok(false)
    }

    /// Releases a reference; true: it was the last one.
    pub fn release(&self) -> Res<bool> {
        let mut state = lock(&self.state);
        state.references = state.references.checked_sub(1).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if state.references == 0 {
            state.flags = 0;
        }
        Ok(state.references == 0)
    }

    /// Makes it inactive; returns the state that it had.
    pub fn take_live(&self) -> Option<Arc<Live>> {
        lock(&self.state).live.take()
    }
}
