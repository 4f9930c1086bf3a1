use crate::calls::copy::rect::End as Memory;
use crate::calls::cross_device::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Two simulated devices: the requests made, and which of the answers have arrived.
#[derive(Default)]
struct World {
    log: Vec<String>,
    here: BTreeSet<String>,
    errors: Vec<Code>,
    fails: Option<String>,
    code: Code,
}

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<World>>);

struct FakeAnswer(Fake, String);

impl Answer for FakeAnswer {
    fn is_done(&mut self) -> bool {
        self.0.0.borrow().here.contains(&self.1)
    }

    fn finish(mut self) -> (Code, Vec<u8>) {
        assert!(self.is_done(), "{} is waited for", self.1);
        let failed = self.0.0.borrow().fails.as_ref() == Some(&self.1);
        (if failed { self.0.0.borrow().code } else { code::SUCCESS }, self.1.clone().into_bytes())
    }
}

impl Fake {
    fn ask(&self, what: String) -> FakeAnswer {
        self.0.borrow_mut().log.push(what.clone());
        FakeAnswer(self.clone(), what)
    }

    fn arrives(&self, what: &str) {
        self.0.borrow_mut().here.insert(what.to_owned());
    }

    fn fails(&self, what: &str, code: Code) {
        let mut world = self.0.borrow_mut();
        (world.fails, world.code) = (Some(what.to_owned()), code);
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut().log)
    }
}

/// A way past the job: pending until told otherwise.
struct FakeShortcut(Fake);

impl Shortcut for FakeShortcut {
    fn go_on(&mut self) -> Option<bool> {
        let world = self.0.0.borrow();
        let arrived = |what: &str| world.here.contains(what);
        if arrived("past the job") { Some(true) } else { arrived("not past the job").then_some(false) }
    }
}

impl Lane for Fake {
    type Answer = FakeAnswer;
    type Shortcut = FakeShortcut;

    fn read(&self, piece: &Piece) -> Result<FakeAnswer, Code> {
        let Piece::Rows(rows) = piece else { panic!("{piece:?}") };
        Ok(self.ask(format!("read {}", rows.src.address)))
    }

    fn write(&self, piece: &Piece, bytes: &[u8]) -> Result<(), Code> {
        let Piece::Rows(rows) = piece else { panic!("{piece:?}") };
        let what = format!("write {} ({})", rows.dst.address, String::from_utf8_lossy(bytes));
        self.0.borrow_mut().log.push(what);
        Ok(())
    }

    fn settle(&self) -> Result<FakeAnswer, Code> {
        Ok(self.ask("settle".to_owned()))
    }

    fn let_go(&self, token: u64) {
        self.0.borrow_mut().log.push(format!("go {token}"));
    }

    fn failed(&self, _: u16, rc: Code) -> bool {
        self.0.borrow_mut().errors.push(rc);
        true
    }
}

fn carry(world: &Fake, pieces: u64) -> Carry<Fake> {
    let end = |address| Memory { address, pitch: 1, device: true };
    let piece = |n| Piece::Rows(Rect { dst: end(100 + n), src: end(n), width: 1, rows: 1 });
    Carry::new(world.clone(), world.clone(), (0..pieces).map(piece))
}

#[test]
fn a_copy_never_waits_and_keeps_its_order() {
    let world = Fake::default();
    let mut it = carry(&world, 3);
    assert!(!it.go_on());
    assert_eq!(world.log(), ["read 0", "read 1"]);
    // An answer that arrives early is kept until it is needed.
    world.arrives("read 1");
    assert!(!it.go_on() && world.log().is_empty());
    world.arrives("read 0");
    assert!(!it.go_on());
    assert_eq!(world.log(), ["write 100 (read 0)", "read 2", "write 101 (read 1)"]);
    world.arrives("read 2");
    assert!(!it.go_on());
    assert_eq!(world.log(), ["write 102 (read 2)", "settle"]);
    assert!(!it.go_on() && world.log().is_empty());
    world.arrives("settle");
    assert!(it.go_on() && world.0.borrow().errors.is_empty());
}

#[test]
fn a_copy_that_fails_is_over_and_says_so_once() {
    for fails in ["read 0", "settle"] {
        let world = Fake::default();
        world.fails(fails, code::ERROR_ILLEGAL_ADDRESS);
        let mut it = carry(&world, 1);
        assert!(!it.go_on());
        world.arrives("read 0");
        world.arrives("settle");
        assert!(it.go_on());
        assert_eq!(world.0.borrow().errors, [code::ERROR_ILLEGAL_ADDRESS], "{fails}");
    }
}

#[test]
fn a_copy_past_the_job_is_made_once_and_a_failed_one_from_the_start() {
    for made in [true, false] {
        let world = Fake::default();
        let mut it = carry(&world, 2).past_the_job(Some(FakeShortcut(world.clone())));
        assert!(!it.go_on() && world.log().is_empty(), "nothing is read while it is tried");
        world.arrives(if made { "past the job" } else { "not past the job" });
        assert_eq!(it.go_on(), made);
        if !made {
            assert_eq!(world.log(), ["read 0", "read 1"]);
            ["read 0", "read 1", "settle"].iter().for_each(|what| world.arrives(what));
            assert!(it.go_on());
            assert_eq!(world.log(), ["write 100 (read 0)", "write 101 (read 1)", "settle"]);
        }
        assert!(world.log().is_empty() && world.0.borrow().errors.is_empty());
    }
}

/// A stream that is held while a copy of one piece is made, optionally by a separate call.
fn held(world: &Fake, by_own_call: bool) -> Item<Fake> {
    Item {
        holder: world.clone(),
        token: Some(7),
        hold: by_own_call.then(|| world.ask("hold".to_owned())),
        ahead: Some(world.ask("ahead".to_owned())),
        asked: if by_own_call { id::EVENT_REACHED } else { id::HOST_CALL },
        other: world.clone(),
        then: Some(Then::Carry(carry(world, 1))),
        concern: None,
        outcome: pending(),
    }
}

#[test]
fn a_stream_that_is_held_goes_on_behind_what_it_is_held_for() {
    for by_own_call in [true, false] {
        let world = Fake::default();
        let mut it = held(&world, by_own_call);
        world.log();
        for what in ["ahead", "hold", "read 0", "settle"] {
            assert!(!it.go_on(), "{what}");
            world.arrives(what);
        }
        assert!(it.go_on() && it.outcome.load(Ordering::Acquire) == code::SUCCESS);
        assert_eq!(world.log(), ["read 0", "write 100 (read 0)", "settle", "go 7"]);
        assert!(world.0.borrow().errors.is_empty());
    }
}

#[test]
fn a_stream_that_is_not_held_is_not_let_go() {
    for (by_own_call, fails) in [(true, "hold"), (false, "ahead")] {
        let world = Fake::default();
        world.fails(fails, code::ERROR_OUT_OF_MEMORY);
        let mut it = held(&world, by_own_call);
        world.log();
        assert!(!it.go_on() && it.outcome.load(Ordering::Acquire) == PENDING);
        world.arrives(fails);
        assert!(it.go_on(), "{fails}");
        assert_eq!(it.outcome.load(Ordering::Acquire), code::ERROR_OUT_OF_MEMORY);
        assert!(world.log().is_empty(), "nothing is done in the order of a stream that does not wait");
        assert_eq!(world.0.borrow().errors, [code::ERROR_OUT_OF_MEMORY], "the error is reported");
    }
}

#[test]
fn a_stream_is_let_go_where_what_it_waits_for_fails() {
    for (by_own_call, code) in [(true, code::ERROR_INVALID_VALUE), (false, code::ERROR_ILLEGAL_ADDRESS)] {
        let world = Fake::default();
        world.fails("ahead", code);
        let mut it = held(&world, by_own_call);
        world.log();
        ["hold", "ahead"].iter().for_each(|what| world.arrives(what));
        assert!(it.go_on());
        assert_eq!((world.log(), world.0.borrow().errors.clone()), (vec!["go 7".to_owned()], vec![code]));
    }
}

#[test]
fn whoever_waits_hears_how_a_copy_failed_and_of_one_that_is_given_up() {
    let world = Fake::default();
    world.fails("settle", code::ERROR_ILLEGAL_ADDRESS);
    let mut it = held(&world, true);
    ["hold", "ahead", "read 0", "settle"].iter().for_each(|what| world.arrives(what));
    assert!(it.go_on());
    assert_eq!(it.outcome.load(Ordering::Acquire), code::ERROR_ILLEGAL_ADDRESS);
    let given_up = held(&world, true).outcome.clone();
    assert_eq!(given_up.load(Ordering::Acquire), code::ERROR_UNKNOWN);
}

#[test]
fn a_copy_that_waits_holds_no_other_one_up() {
    // The first one's answer arrives only after the second one is over, as if its stream waited for the other's release.
    let (first, second) = (Fake::default(), Fake::default());
    let mut all = vec![carry(&first, 1), carry(&second, 1)];
    for what in ["read 0", "settle"] {
        second.arrives(what);
        all.retain_mut(|it| !it.go_on());
    }
    assert_eq!(all.len(), 1);
    first.arrives("read 0");
    first.arrives("settle");
    all.retain_mut(|it| !it.go_on());
    assert!(all.is_empty());
}

/// What the thread does with all copies between two checks for new ones.
type Round = fn(&mut Vec<(usize, Carry<Fake>)>);

/// As [`attend`].
fn each(all: &mut Vec<(usize, Carry<Fake>)>) {
    all.retain_mut(|(_, it)| !it.go_on());
}

/// The former, wrong behaviour: waits for the first copy.
fn one_after_the_other(all: &mut Vec<(usize, Carry<Fake>)>) {
    if all.first_mut().is_some_and(|(_, it)| it.go_on()) {
        all.remove(0);
    }
}

/// Runs copies with this number of pieces each in all orders in which answers can arrive and rounds can be made. `after` lists copies
/// whose last answer arrives only when another one is over, since their streams wait for that. Returns the number of orders, or the steps
/// taken when no further progress was possible.
fn all_orders(pieces: u64, copies: usize, after: &[(usize, usize)], round: Round) -> Result<usize, String> {
    let mut path: Vec<(usize, usize)> = Vec::new();
    let mut orders = 0;
    loop {
        orders += 1;
        let worlds: Vec<Fake> = (0..copies).map(|_| Fake::default()).collect();
        let mut all: Vec<_> = worlds.iter().map(|w| carry(w, pieces)).enumerate().collect();
        let mut done = vec![Vec::new(); copies];
        let mut is_looked_at = false;
        for at in 0.. {
            for (done, world) in done.iter_mut().zip(&worlds) {
                done.extend(world.log());
            }
            if all.is_empty() {
                break;
            }
            let is_over = |n: usize| all.iter().all(|(m, _)| *m != n);
            let mut next: Vec<Option<(usize, &String)>> = Vec::new();
            for (n, done) in done.iter().enumerate() {
                let here = &worlds[n].0.borrow().here;
                let waits = |what: &str| what == "settle" && !after.iter().all(|(a, b)| *a != n || is_over(*b));
                let can_come = |what: &&String| !what.starts_with("write") && !here.contains(*what) && !waits(what);
                next.extend(done.iter().filter(can_come).map(|what| Some((n, what))));
            }
            if !is_looked_at {
                next.push(None);
            }
            if next.is_empty() {
                return Err(format!("{done:?}"));
            }
            if at == path.len() {
                path.push((0, next.len()));
            }
            match next[path[at].0] {
                Some((n, what)) => worlds[n].arrives(what),
                None => round(&mut all),
            }
            is_looked_at = next[path[at].0].is_none();
        }
        for (done, world) in done.iter().zip(&worlds) {
            let writes: Vec<_> = done.iter().filter(|what| what.starts_with("write")).cloned().collect();
            let expected: Vec<_> = (0..pieces).map(|n| format!("write {} (read {n})", 100 + n)).collect();
            assert_eq!((writes, done.last().map(|s| &s[..])), (expected, Some("settle")));
            assert!(world.0.borrow().errors.is_empty());
        }
        while path.last().is_some_and(|(taken, of)| taken + 1 == *of) {
            path.pop();
        }
        match path.last_mut() {
            Some((taken, _)) => *taken += 1,
            None => return Ok(orders),
        }
    }
}

#[test]
fn in_no_order_of_answers_does_a_copy_hold_up_what_it_waits_for() {
    assert!(all_orders(3, 1, &[], each).unwrap() > 5);
    for after in [&[][..], &[(0, 1)], &[(1, 0)]] {
        assert!(all_orders(2, 2, after, each).unwrap() > 50, "{after:?}");
    }
    for after in [&[(0, 1), (1, 2)][..], &[(0, 2), (1, 2)], &[(2, 1), (1, 0)]] {
        assert!(all_orders(1, 3, after, each).unwrap() > 50, "{after:?}");
    }
    assert!(all_orders(1, 2, &[(0, 1)], one_after_the_other).is_err(), "the model finds what hangs");
    assert!(all_orders(1, 2, &[(0, 1), (1, 0)], each).is_err(), "so does what waits for itself");
}
