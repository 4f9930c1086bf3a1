//! Tests of the gate with real threads.

use super::*;
use crate::thread::here;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// All tests share one gate.
pub(super) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn nobody_is_inside_a_closed_gate() {
    let _one = lock(&ONE_AT_A_TIME);
    init();
    static INSIDE: AtomicU64 = AtomicU64::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                while !STOP.load(Ordering::Relaxed) {
                    let _pass = enter(here(), "call");
                    INSIDE.fetch_add(1, Ordering::SeqCst);
                    std::hint::spin_loop();
                    INSIDE.fetch_sub(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for _ in 0..interleave::bound(30, 300) {
        let closed = close(Duration::from_secs(60), || true).expect("threads come out");
        for _ in 0..100 {
            assert_eq!(INSIDE.load(Ordering::SeqCst), 0);
        }
        drop(closed);
    }
    STOP.store(true, Ordering::Relaxed);
    for t in threads {
        t.join().unwrap();
    }
    let pass = enter(here(), "call");
    assert_eq!(close(Duration::from_millis(20), || true).err(), Some(NotClosed::Busy), "a thread inside keeps the gate open");
    pass.outside(|| assert!(close(Duration::from_secs(60), || true).is_ok()));
    let asked = std::cell::Cell::new(0);
    let twice = || asked.replace(asked.get() + 1) < 2;
    assert!(close(Duration::from_secs(60), twice).is_err() && asked.get() == 3, "it can be given up");
}

#[test]
fn an_attempt_that_ends_before_its_turn_leaves_the_gate_as_it_is() {
    let _one = lock(&ONE_AT_A_TIME);
    init();
    let closed = close(Duration::from_secs(60), || true).expect("no thread is inside");
    let (sender, receiver) = std::sync::mpsc::channel();
    let in_vain = move || sender.send(close(Duration::from_millis(10), || true).err());
    std::thread::spawn(in_vain);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(Some(NotClosed::Taken)));
    assert_ne!(STATE.load(Ordering::SeqCst) & CLOSED, 0, "it is still closed");
    drop(closed);
    drop(close(Duration::from_secs(60), || true).expect("and can be closed again"));
}

/// Makes a call when it is dropped, which must wait while the gate is closed.
struct CallAtEnd(&'static AtomicU64);

impl Drop for CallAtEnd {
    fn drop(&mut self) {
        for _ in 0..200 {
            let _pass = enter(here(), "call");
            self.0.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(50));
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn calls_of_a_thread_that_ends_are_held() {
    let _one = lock(&ONE_AT_A_TIME);
    init();
    static INSIDE: AtomicU64 = AtomicU64::new(0);
    // One is dropped like thread-locals, the other after all state of a thread.
    thread_local!(static LOCAL: CallAtEnd = const { CallAtEnd(&INSIDE) });
    extern "C" fn at_key_end(_: *mut libc::c_void) {
        drop(CallAtEnd(&INSIDE));
    }
    let slots = || lock(&SLOTS).len();
    let ended = || {
        std::thread::spawn(|| {
            LOCAL.with(|_| ());
            let _pass = enter(here(), "call");
            // A key that is created after the recorder's: its values are destroyed later in each round.
            let mut key = 0;
            // SAFETY: the key is writable, and the function stays; the value is not null and never dereferenced.
            unsafe {
                assert_eq!(libc::pthread_key_create(&raw mut key, Some(at_key_end)), 0);
                libc::pthread_setspecific(key, (&raw const INSIDE).cast());
            }
            key
        })
    };
    let mut closed_often = 0;
    let mut most = 0;
    let rounds = interleave::bound(10, 20);
    for round in 0..rounds {
        let thread = ended();
        while !thread.is_finished() {
            if let Ok(closed) = close(Duration::from_secs(60), || true) {
                closed_often += 1;
                for _ in 0..50 {
                    assert_eq!(INSIDE.load(Ordering::SeqCst), 0, "a call at the end of a thread passes the closed gate");
                }
                drop(closed);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let key = thread.join().unwrap();
        // SAFETY: created above; its thread has ended.
        unsafe { libc::pthread_key_delete(key) };
        if round == 0 {
            most = slots();
        }
    }
    assert!(closed_often >= rounds, "{closed_often}");
    assert_eq!(slots(), most, "the next thread takes the slot of the one before");
}

#[test]
fn without_the_promised_barrier_it_stays_open() {
    let _one = lock(&ONE_AT_A_TIME);
    init();
    let refused = std::thread::spawn(|| {
        refuse_membarrier();
        close(Duration::from_secs(60), || true).err()
    });
    let expected = if STATE.load(Ordering::SeqCst) & FENCE == 0 { Some(NotClosed::NoBarrier) } else { None };
    assert_eq!(refused.join().unwrap(), expected);
    drop(enter(here(), "call"));
    assert!(close(Duration::from_secs(60), || true).is_ok(), "other threads have it still");
}

/// Makes `membarrier` fail in this thread from now on.
fn refuse_membarrier() {
    let jump = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let answer = |k| jump(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let filter = [
        jump(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: both only concern the calling thread; the program is as long as it says.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_trace_has_the_calls_that_waited() {
    let _one = lock(&ONE_AT_A_TIME);
    init();
    let call = |name: &'static str| std::thread::spawn(move || drop(enter(here(), name)));
    let (inside, entered) = std::sync::mpsc::channel();
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    // It has begun before the trace, and comes back while the gate is closed.
    let before = std::thread::spawn(move || {
        enter(here(), "before").outside(|| {
            inside.send(()).unwrap();
            finished.recv().unwrap();
        });
    });
    entered.recv().unwrap();
    let tracing = trace();
    call("passes").join().unwrap();
    let closed = close(Duration::from_secs(60), || true).unwrap();
    let waits = call("waits");
    finish.send(()).unwrap();
    while held::waiting() < 2 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(5));
    drop(closed);
    waits.join().unwrap();
    trace_commit();
    call("afterwards").join().unwrap();
    call(OWN_CALL).join().unwrap();
    let Traced { held: (held, more), calls } = tracing.end();
    let mut names: Vec<_> = held.iter().map(|held| held.call).collect();
    names.sort_unstable();
    assert_eq!((names, more), (vec![None, Some("waits")], 0), "{held:?}");
    assert!(held.iter().all(|held| held.took >= Duration::from_millis(5)), "{held:?}");
    before.join().unwrap();
    // One that had begun before it has no beginning in it.
    let mut names: Vec<_> = calls.0.iter().map(|call| call.name).collect();
    names.sort_unstable();
    assert_eq!((names, calls.1), (vec!["afterwards", "passes", "waits"], 0), "{calls:?}");
    let waited = calls.0.iter().find(|call| call.name == "waits").unwrap();
    assert!(held.iter().any(|held| held.thread == waited.thread && held.took <= waited.took), "{calls:?}, {held:?}");
    // Without a trace nothing is noted.
    let closed = close(Duration::from_secs(60), || true).unwrap();
    let waits = call("not noted");
    while held_for().is_none() {
        std::thread::yield_now();
    }
    drop(closed);
    waits.join().unwrap();
    let none = trace().end();
    assert!(none.held.0.is_empty() && none.calls.0.is_empty(), "{none:?}");
    // Who waits to close the gate itself is held up by who has closed it, and by nobody else.
    let closed = close(Duration::from_secs(60), || true).unwrap();
    assert!(held_for().is_none());
    note_held();
    assert!(held_for().is_some());
    drop(closed);
    held::begin();
    note_held();
    assert!(held_for().is_none());
}
