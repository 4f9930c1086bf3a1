//! Runs the code itself in all orders in which the steps of a few threads can follow each other, up to a number of preemptions. A
//! step is an access to one of the atomic words here, a lock, a wait or a barrier. As on x86-64 a plain store may become visible to others
//! later than what its thread does next: it stands in the thread's buffer, and when it leaves that is a step of its own.
//!
//! A crate whose code is run so takes its atomic words from a module `sync`: in its tests these, else the standard library's. Threads that
//! are not part of a model pass through all of this unchanged.

mod choices;
mod processor;

pub use choices::{Choices, bound, every_choice, random_choices};

use processor::OneProcessor;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{self as real, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;

/// What one of a model's threads does. What it uses stays until all its stores are visible.
pub type Body = Box<dyn Fn() + Send>;

/// Orders that a model may have: more would take too long, and show that it does not end.
const MAX_ORDERS: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Standing {
    Ready,
    /// Looks again when others have made more changes than these.
    Waits(u64),
    /// Goes on when a lock is free ([`State::locks`]).
    Locked,
    /// Sleeps on the word at this address.
    Sleeps(usize),
    Over,
}

type IsFree = Box<dyn Fn() -> bool + Send>;

/// A store that only its own thread sees.
struct Store {
    at: usize,
    value: u64,
    make: Box<dyn FnOnce() + Send>,
}

#[derive(Clone, Copy)]
enum Next {
    Run(usize),
    /// The oldest store of a thread becomes visible.
    Show(usize),
}

const NOWHERE: usize = 0;
const ANYWHERE: usize = usize::MAX;

struct State {
    standing: Vec<Standing>,
    buffers: Vec<VecDeque<Store>>,
    /// The address of the word that each thread's next step looks at or changes ([`NOWHERE`], [`ANYWHERE`]).
    next: Vec<usize>,
    /// For who waits for a lock: whether it is free.
    locks: Vec<Option<IsFree>>,
    /// The locks that each thread had at its last step, in the same form.
    held: Vec<Vec<IsFree>>,
    /// Changes so far that all can see, and those of each thread.
    changes: u64,
    own_changes: Vec<u64>,
    /// Others' changes up to the last time that each thread went on after a pause.
    looked: Vec<u64>,
    running: usize,
    /// Which of how many possibilities was taken, at each point of this order.
    path: Vec<(usize, usize)>,
    at: usize,
    preemptions: usize,
    most_preemptions: usize,
    failed: Option<String>,
    barrier: Barrier,
}

/// What the barrier of the whole process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// It works.
    Works,
    /// It fails, and says so.
    Refused,
    /// It says that it has worked, and has not: what a model must find.
    Lies,
}

struct Shared {
    state: Mutex<State>,
    /// The threads, to wake the one whose turn it is.
    threads: Vec<Thread>,
    /// Number of threads whose bodies have not ended.
    left: real::AtomicUsize,
}

thread_local! {
    static ME: RefCell<Option<(Arc<Shared>, usize)>> = const { RefCell::new(None) };
}

/// The model that the calling thread is part of, and its number there.
fn me() -> Option<(Arc<Shared>, usize)> {
    // A thread whose model has failed unwinds without taking turns.
    if std::thread::panicking() {
        return None;
    }
    ME.try_with(|me| me.borrow().clone()).ok().flatten()
}

/// Ends a thread of a model that has failed elsewhere.
struct GivenUp;

impl State {
    fn others_changes(&self, who: usize) -> u64 {
        self.changes - self.own_changes[who]
    }

    fn can_run(&self, who: usize) -> bool {
        match self.standing[who] {
            Standing::Ready => true,
            Standing::Waits(changes) => self.others_changes(who) > changes,
            Standing::Locked => self.locks[who].as_ref().is_none_or(|is_free| is_free()),
            Standing::Sleeps(_) | Standing::Over => false,
        }
    }

    /// Whether it makes a difference to somebody's next step that a thread's store becomes visible: if not, that can as well come later.
    fn matters(&self, thread: usize) -> bool {
        let looks = |at: usize| (0..self.next.len()).any(|t| t != thread && [at, ANYWHERE].contains(&self.next[t]));
        self.buffers[thread].iter().any(|store| looks(store.at))
    }

    /// Chooses what comes next, as this order says or, after its end, the first possibility. None: nothing can.
    fn choose(&mut self) -> Option<Next> {
        if self.standing.iter().all(|s| *s == Standing::Over) {
            return None;
        }
        let current = self.running;
        // The first step of an order is no preemption, whichever thread takes it.
        let goes_on = self.at > 0 && self.can_run(current);
        let mut all = Vec::new();
        if goes_on {
            all.push(Next::Run(current));
        }
        all.extend((0..self.buffers.len()).filter(|t| self.matters(*t)).map(Next::Show));
        if !goes_on || self.preemptions < self.most_preemptions {
            all.extend((0..self.standing.len()).filter(|t| !(goes_on && *t == current) && self.can_run(*t)).map(Next::Run));
        }
        if all.is_empty() {
            return None;
        }
        let next = all[self.take_one(all.len())];
        if matches!(next, Next::Run(t) if t != current && goes_on) {
            self.preemptions += 1;
        }
        Some(next)
    }

    /// One of so many possibilities.
    fn take_one(&mut self, of: usize) -> usize {
        let taken = match self.path.get(self.at) {
            Some((taken, before)) => {
                assert_eq!(*before, of, "the same order of steps does the same");
                *taken
            }
            None => {
                self.path.push((0, of));
                0
            }
        };
        self.at += 1;
        taken
    }

    fn show(&mut self, thread: usize) {
        if let Some(store) = self.buffers[thread].pop_front() {
            (store.make)();
            self.changed(thread);
        }
    }

    fn show_all(&mut self, thread: usize) {
        while !self.buffers[thread].is_empty() {
            self.show(thread);
        }
    }

    /// What a thread stored while it had a lock is visible to who has it next.
    fn gave_back(&mut self, who: usize) {
        let before = self.held[who].len();
        self.held[who].retain(|is_free| !is_free());
        if self.held[who].len() < before {
            self.show_all(who);
        }
    }

    fn changed(&mut self, who: usize) {
        self.changes += 1;
        self.own_changes[who] += 1;
    }

    /// Gives the turn to whoever comes next.
    fn pass_on(&mut self) {
        loop {
            match self.choose() {
                Some(Next::Show(thread)) => self.show(thread),
                Some(Next::Run(thread)) => {
                    self.running = thread;
                    if let Standing::Waits(_) = self.standing[thread] {
                        self.looked[thread] = self.others_changes(thread);
                    }
                    if self.standing[thread] != Standing::Over {
                        self.standing[thread] = Standing::Ready;
                    }
                    return;
                }
                None => {
                    if self.standing.iter().any(|s| *s != Standing::Over) {
                        self.failed.get_or_insert_with(|| format!("nothing happens any more: {:?}", self.standing));
                    }
                    return;
                }
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread whose turn it is, all if the model has failed. The lock is given back first: they take it at once.
    fn wake_next(&self, state: MutexGuard<'_, State>) {
        let (failed, running) = (state.failed.is_some(), state.running);
        drop(state);
        if failed {
            self.threads.iter().for_each(Thread::unpark);
        } else {
            self.threads[running].unpark();
        }
    }

    /// Waits for this thread's turn.
    fn wait_for_turn(&self, who: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while state.failed.is_none() && state.running != who {
            drop(state);
            std::thread::park();
            state = self.lock();
        }
        if state.failed.is_some() {
            drop(state);
            resume_unwind(Box::new(GivenUp));
        }
        state
    }

    /// A step of this thread at a word follows: others may come first.
    fn step(&self, who: usize, standing: Standing, at: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.gave_back(who);
        state.standing[who] = standing;
        state.next[who] = at;
        state.pass_on();
        if state.failed.is_none() && state.running == who {
            return state;
        }
        self.wake_next(state);
        self.wait_for_turn(who)
    }

    /// Runs a thread from its first turn to its end.
    fn run(self: Arc<Shared>, who: usize, body: Body) {
        ME.with(|me| *me.borrow_mut() = Some((self.clone(), who)));
        let ended = catch_unwind(AssertUnwindSafe(|| {
            drop(self.wait_for_turn(who));
            body();
            self.step(who, Standing::Ready, NOWHERE).show_all(who);
        }));
        ME.with(|me| *me.borrow_mut() = None);
        let mut state = self.lock();
        if let Err(why) = ended
            && !why.is::<GivenUp>()
        {
            let text = why.downcast_ref::<String>().cloned().or_else(|| why.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            state.failed.get_or_insert(text.unwrap_or_else(|| "it has panicked".to_owned()));
        }
        state.standing[who] = Standing::Over;
        state.next[who] = NOWHERE;
        state.changed(who);
        if state.failed.is_none() {
            state.pass_on();
        }
        self.wake_next(state);
    }
}

/// What a thread of a model runs next.
type Slot = Arc<Mutex<Option<(Arc<Shared>, Body)>>>;

/// The threads of a model. They run one order of steps after the other, because making new ones would take most of the time: what a body leaves in
/// thread-local storage is still there in the next order. What takes time then is that threads sleep and are woken. So each is woken
/// only when its turn comes, and the thread that explores only when all bodies have ended. All of them run on one processor, because
/// only one runs at a time, and to wake a thread on another processor takes several times as long.
struct ThreadPool {
    threads: Vec<Thread>,
    slots: Vec<Slot>,
    /// A message for each order whose bodies have all ended.
    ended: Receiver<()>,
}

impl ThreadPool {
    fn new(n: usize) -> ThreadPool {
        let (tell, ended) = channel();
        let slots: Vec<Slot> = (0..n).map(|_| Slot::default()).collect();
        let start = |(who, slot): (usize, &Slot)| {
            let (slot, tell) = (Arc::downgrade(slot), tell.clone());
            let run = move || {
                // The pool has been dropped if its slots are gone.
                while let Some(slot) = slot.upgrade() {
                    let next = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
                    drop(slot);
                    let Some((shared, body)) = next else {
                        std::thread::park();
                        continue;
                    };
                    shared.clone().run(who, body);
                    if shared.left.fetch_sub(1, Ordering::AcqRel) == 1 && tell.send(()).is_err() {
                        return;
                    }
                }
            };
            std::thread::spawn(run).thread().clone()
        };
        ThreadPool { threads: slots.iter().enumerate().map(start).collect(), slots, ended }
    }

    /// Runs one order.
    fn run(&self, mut state: State, bodies: Vec<Body>) -> Result<Arc<Shared>, &'static str> {
        // Who begins is a choice, too.
        state.pass_on();
        let left = real::AtomicUsize::new(bodies.len());
        let shared = Arc::new(Shared { state: Mutex::new(state), threads: self.threads.clone(), left });
        for (slot, body) in self.slots.iter().zip(bodies) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some((shared.clone(), body));
        }
        shared.wake_next(shared.lock());
        if self.ended.recv().is_ok() { Ok(shared) } else { Err("the threads of the model have ended by themselves") }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.slots.clear();
        self.threads.iter().for_each(Thread::unpark);
    }
}

/// Runs what `bodies` makes, once for each order of its steps with at most so many preemptions; gives the number of orders, or what went
/// wrong in the first one where something did.
pub fn explore(most_preemptions: usize, barrier: Barrier, bodies: impl Fn() -> Vec<Body>) -> Result<usize, String> {
    let (mut path, mut pool, _one) = (Vec::new(), None, OneProcessor::begin());
    for orders in 1.. {
        if orders > MAX_ORDERS {
            return Err(format!("more than {MAX_ORDERS} orders"));
        }
        let bodies = bodies();
        let n = bodies.len();
        let state = State {
            standing: vec![Standing::Ready; n],
            buffers: (0..n).map(|_| VecDeque::new()).collect(),
            next: vec![NOWHERE; n],
            locks: (0..n).map(|_| None).collect(),
            held: (0..n).map(|_| Vec::new()).collect(),
            changes: 0,
            own_changes: vec![0; n],
            looked: vec![0; n],
            running: 0,
            path: std::mem::take(&mut path),
            at: 0,
            preemptions: 0,
            most_preemptions,
            failed: None,
            barrier,
        };
        let shared = pool.get_or_insert_with(|| ThreadPool::new(n)).run(state, bodies)?;
        let mut state = shared.lock();
        if let Some(why) = state.failed.take() {
            return Err(why);
        }
        path = std::mem::take(&mut state.path);
        loop {
            match path.pop() {
                Some((taken, of)) if taken + 1 < of => {
                    path.push((taken + 1, of));
                    break;
                }
                Some(_) => {}
                None => return Ok(orders),
            }
        }
    }
    unreachable!("the range has no end")
}

/// Locks, whether or not a holder has panicked.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    when_free(m).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock that nobody holds now: in a model a step, which comes when that is so.
fn when_free<T>(m: &Mutex<T>) -> &Mutex<T> {
    let Some((shared, who)) = me() else { return m };
    let at = At(&raw const *m);
    let is_free = move || {
        let at = &at;
        // SAFETY: the bodies of a model, which are kept until it is over, or the process hold its locks.
        !matches!(unsafe { &*at.0 }.try_lock(), Err(TryLockError::WouldBlock))
    };
    let is_free: Box<dyn Fn() -> bool + Send + '_> = Box::new(is_free);
    // SAFETY: what it refers to stays, as above.
    let is_free = unsafe { std::mem::transmute::<Box<dyn Fn() -> bool + Send + '_>, IsFree>(is_free) };
    shared.lock().locks[who] = Some(is_free);
    let mut state = shared.step(who, Standing::Locked, NOWHERE);
    let is_free = state.locks[who].take();
    state.held[who].extend(is_free);
    state.show_all(who);
    state.changed(who);
    m
}

/// A pause of somebody who then looks again, if others have changed something since the pause before; false outside of a model.
pub fn pause() -> bool {
    let Some((shared, who)) = me() else { return false };
    let waits = Standing::Waits(shared.lock().looked[who]);
    drop(shared.step(who, waits, ANYWHERE));
    true
}

/// Whether the calling thread is part of a model, where looking again and again is of no use.
pub fn is_model() -> bool {
    me().is_some()
}

/// Whether a time is over; none outside of a model. Here both may be the case, one after the other.
pub fn is_over() -> Option<bool> {
    let (shared, _) = me()?;
    Some(shared.lock().take_one(2) == 1)
}

/// A barrier of all threads, and whether it has worked; none outside of a model.
pub fn barrier() -> Option<bool> {
    let (shared, who) = me()?;
    let mut state = shared.step(who, Standing::Ready, NOWHERE);
    if state.barrier == Barrier::Works {
        (0..state.buffers.len()).for_each(|t| state.show_all(t));
    }
    Some(state.barrier != Barrier::Refused)
}

/// Sleeps on a word while it has a value; false outside of a model. Here no time ever passes.
pub fn sleep<W: Word>(word: &W, value: W::Value) -> bool {
    let Some((shared, who)) = me() else { return false };
    let mut state = shared.step(who, Standing::Ready, address(word));
    state.show_all(who);
    if word.now() == value {
        drop(state);
        drop(shared.step(who, Standing::Sleeps(address(word)), NOWHERE));
    }
    true
}

/// Wakes who sleeps on a word; false outside of a model.
pub fn wake<W: Word>(word: &W) -> bool {
    let Some((shared, who)) = me() else { return false };
    let mut state = shared.step(who, Standing::Ready, address(word));
    state.show_all(who);
    for standing in state.standing.iter_mut().filter(|s| **s == Standing::Sleeps(address(word))) {
        *standing = Standing::Ready;
    }
    state.changed(who);
    true
}

/// As the standard library's.
pub fn fence(order: Ordering) {
    real::fence(order);
    if let Some((shared, who)) = me()
        && order == Ordering::SeqCst
    {
        shared.step(who, Standing::Ready, NOWHERE).show_all(who);
    }
}

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

/// A word on which threads sleep.
pub trait Word {
    /// What it holds.
    type Value: Eq;
    /// Its value, whoever else has a newer one.
    fn now(&self) -> Self::Value;
}

impl Word for AtomicI32 {
    type Value = i32;
    fn now(&self) -> i32 {
        self.word.load(Ordering::SeqCst)
    }
}

impl Word for AtomicU32 {
    type Value = u32;
    fn now(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }
}

/// A value as it stands in a buffer.
trait Bits: Copy {
    fn bits(self) -> u64;
    fn of(bits: u64) -> Self;
}

impl Bits for bool {
    fn bits(self) -> u64 {
        self.into()
    }
    fn of(bits: u64) -> bool {
        bits != 0
    }
}

impl Bits for i32 {
    fn bits(self) -> u64 {
        u64::from(self.cast_unsigned())
    }
    fn of(bits: u64) -> i32 {
        (bits as u32).cast_signed()
    }
}

impl Bits for u32 {
    fn bits(self) -> u64 {
        self.into()
    }
    fn of(bits: u64) -> u32 {
        bits as u32
    }
}

impl Bits for u64 {
    fn bits(self) -> u64 {
        self
    }
    fn of(bits: u64) -> u64 {
        bits
    }
}

impl<T> Bits for *mut T {
    fn bits(self) -> u64 {
        self.expose_provenance() as u64
    }
    fn of(bits: u64) -> *mut T {
        std::ptr::with_exposed_provenance_mut(bits as usize)
    }
}

/// A word that a buffered store will be made to, or a lock that is waited for.
struct At<W>(*const W);

// SAFETY: words and locks can be used from all threads, and a thread's body, which holds them, is dropped only after the thread's last store has been made.
unsafe impl<W> Send for At<W> {}

macro_rules! atomic {
    ($name:ident $(<$t:ident>)?, $value:ty) => {
        /// As the standard library's.
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $name $(<$t>)? {
            word: real::$name $(<$t>)?,
        }

        impl $(<$t>)? Default for $name $(<$t>)? {
            fn default() -> Self {
                Self { word: real::$name::default() }
            }
        }

        impl $(<$t: 'static>)? $name $(<$t>)? {
            /// As the standard library's.
            pub const fn new(value: $value) -> Self {
                Self { word: real::$name::new(value) }
            }

            /// As the standard library's.
            pub fn load(&self, order: Ordering) -> $value {
                let Some((shared, who)) = me() else { return self.word.load(order) };
                let state = shared.step(who, Standing::Ready, address(self));
                let own = state.buffers[who].iter().rev().find(|s| s.at == address(self));
                own.map_or_else(|| self.word.load(order), |store| <$value>::of(store.value))
            }

            /// As the standard library's.
            pub fn store(&self, value: $value, order: Ordering) {
                let Some((shared, who)) = me() else { return self.word.store(value, order) };
                let mut state = shared.step(who, Standing::Ready, address(self));
                if order == Ordering::SeqCst {
                    state.show_all(who);
                    state.changed(who);
                    return self.word.store(value, order);
                }
                let (at, bits) = (At(&raw const self.word), value.bits());
                let make = move || {
                    let at = at;
                    // SAFETY: see `At`.
                    unsafe { (*at.0).store(<$value>::of(bits), order) }
                };
                state.buffers[who].push_back(Store { at: address(self), value: bits, make: Box::new(make) });
            }

            /// A step that reads and writes: it comes after all stores of its thread.
            #[allow(dead_code)] // Not every word is used so.
            fn update<R>(&self, change: impl FnOnce(&real::$name $(<$t>)?) -> R) -> R {
                let Some((shared, who)) = me() else { return change(&self.word) };
                let mut state = shared.step(who, Standing::Ready, address(self));
                state.show_all(who);
                state.changed(who);
                change(&self.word)
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicI32, i32);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicPtr<T>, *mut T);

impl AtomicBool {
    /// As the standard library's.
    pub fn compare_exchange(&self, old: bool, new: bool, yes: Ordering, no: Ordering) -> Result<bool, bool> {
        self.update(|w| w.compare_exchange(old, new, yes, no))
    }
}

impl AtomicI32 {
    /// As the standard library's.
    pub fn fetch_or(&self, value: i32, order: Ordering) -> i32 {
        self.update(|w| w.fetch_or(value, order))
    }

    /// As the standard library's.
    pub fn fetch_and(&self, value: i32, order: Ordering) -> i32 {
        self.update(|w| w.fetch_and(value, order))
    }

    /// As the standard library's.
    pub fn as_ptr(&self) -> *mut i32 {
        self.word.as_ptr()
    }
}

impl AtomicU32 {
    /// As the standard library's.
    pub fn as_ptr(&self) -> *mut u32 {
        self.word.as_ptr()
    }

    /// As the standard library's.
    pub fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.update(|w| w.fetch_add(value, order))
    }

    /// As the standard library's.
    pub fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        self.update(|w| w.fetch_sub(value, order))
    }
}

impl AtomicU64 {
    /// As the standard library's.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn from_ptr<'a>(at: *mut u64) -> &'a AtomicU64 {
        // SAFETY: the caller's promise; the word is all that there is here.
        unsafe { &*at.cast::<AtomicU64>() }
    }

    /// As the standard library's.
    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.update(|w| w.swap(value, order))
    }

    /// As the standard library's.
    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.update(|w| w.fetch_add(value, order))
    }

    /// As the standard library's.
    pub fn compare_exchange(&self, old: u64, new: u64, yes: Ordering, no: Ordering) -> Result<u64, u64> {
        self.update(|w| w.compare_exchange(old, new, yes, no))
    }
}

#[cfg(test)]
mod tests;
