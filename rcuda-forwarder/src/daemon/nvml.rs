//! What NVML says of GPUs, read by a process of its own ([`crate::nvml_reader`]) while somebody asks: clients of a daemon, or an agent
//! ([`crate::GpuUsers`]).
//!
//! A driver that hangs holds up that process, and the thread here that waits for it. Those who ask wait for a limited time, and are then
//! told that there are no readings.

use super::log::{Log, LogLine, RateLimitedLog};
use super::process::{pass_on, reap};
use super::worker_command::Command;
use crate::channel::{Channel, Message, StartReader};
use crate::sync::lock;
use crate::threads;
use cuda_api::board::Reading;
use cuda_api::lock::wait_timeout;
use executor::{MOST_PROCESSES, NvmlFacts};
use std::collections::HashMap;
use std::io;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Time limit for the process to end once its channel is closed.
const ENDING: Duration = Duration::from_secs(2);
/// Maximum length of a reason, in characters.
const LONGEST: usize = 200;

/// `cuDeviceGetUuid` of a GPU.
type Uuid = [u8; 16];
/// What the GPUs measure.
type Answer = Result<Arc<HashMap<Uuid, NvmlFacts>>, NoReadings>;

/// How often NVML is asked, and how long an answer is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// For so long the same answer is given to all who ask.
    fresh: Duration,
    /// For so long an answer is waited for.
    answer: Duration,
    /// A process that has not answered for so long is ended: another one may fare better.
    give_up: Duration,
    /// A process that nobody has asked for so long is ended. Between two questions of Prometheus is usually at most a minute, and to
    /// open NVML takes longer than to ask it.
    idle: Duration,
}

impl Pace {
    pub(super) const USUAL: Pace = Pace {
        fresh: Duration::from_secs(1),
        answer: Duration::from_secs(2),
        give_up: Duration::from_secs(30),
        idle: Duration::from_secs(150),
    };

    /// For how long somebody waits for an answer.
    pub(super) fn patience(self) -> Duration {
        self.answer
    }
}

/// Why there are no readings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoReadings {
    /// The driver is busy, or hangs.
    #[error("NVML has not answered within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// NVML cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// There is no process that could ask it.
    #[error("cannot start the process that reads NVML: {0}")]
    Start(String),
    /// The process has ended or said something unexpected.
    #[error("the process that reads NVML has failed")]
    Failed,
}

/// Asks NVML.
#[derive(Debug)]
pub(super) struct Nvml(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    command: Command,
    start: StartReader,
    pace: Pace,
    log: Log,
    desk: Mutex<Desk>,
    changed: Condvar,
}

/// Where questions and answers lie.
#[derive(Debug, Default)]
struct Desk {
    /// Whether a thread takes questions, which also starts and ends the process: there is one at most, also if it cannot be ended.
    has_thread: bool,
    /// The GPUs of a question that the thread has not taken.
    question: Option<Vec<Uuid>>,
    /// Since when a question is not answered.
    asked: Option<Instant>,
    /// The last answer.
    last: Option<(Instant, Answer)>,
    /// What the log says of missing readings.
    said: Option<NoReadings>,
    /// The channel to the process, while there is one.
    channel: Option<Arc<Channel>>,
    /// The daemon ends.
    is_ending: bool,
}

impl Nvml {
    pub(super) fn new(command: Command, start: StartReader, pace: Pace, log: Log) -> Nvml {
        Nvml(Arc::new(Shared { command, start, pace, log, desk: Mutex::default(), changed: Condvar::new() }))
    }

    /// Asks for the readings of these GPUs, unless there is an answer that is fresh or a question under way. Does not wait.
    pub(super) fn ask(&self, gpus: Vec<Uuid>) {
        let shared = &self.0;
        let mut desk = lock(&shared.desk);
        let is_fresh = desk.last.as_ref().is_some_and(|(at, _)| at.elapsed() < shared.pace.fresh);
        if is_fresh || desk.asked.is_some() || desk.is_ending {
            return;
        }
        (desk.question, desk.asked) = (Some(gpus), Some(Instant::now()));
        let has_thread = std::mem::replace(&mut desk.has_thread, true);
        drop(desk);
        shared.changed.notify_all();
        if !has_thread {
            let theirs = shared.clone();
            if let Err(e) = threads::spawn("nvml", move || theirs.serve()) {
                shared.end_thread(Err(NoReadings::Start(e.to_string())));
            }
        }
    }

    /// The answer to the question that was just asked, if it comes before `until` and in time.
    pub(super) fn answer(&self, until: Instant) -> Answer {
        let Shared { desk, changed, pace, .. } = &*self.0;
        let mut desk = lock(desk);
        while let Some(asked) = desk.asked {
            // Who asks while a driver hangs does not wait as long as the first one.
            let left = until.min(asked + pace.answer).saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoReadings::Timeout(pace.answer));
            }
            desk = wait_timeout(changed, desk, left).0;
        }
        desk.last.as_ref().map_or(Err(NoReadings::Failed), |(_, answer)| answer.clone())
    }

    /// Ends the process. Nothing is asked any more.
    pub(super) fn end(&self) {
        let mut desk = lock(&self.0.desk);
        desk.is_ending = true;
        desk.channel.iter().for_each(|channel| channel.close());
        drop(desk);
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// Starts the process and has it answer, until there are no questions for some time.
    fn serve(&self) {
        loop {
            match self.start() {
                Ok((channel, mut child)) => {
                    if let Err(why) = self.converse(&channel) {
                        self.publish(Err(why));
                    }
                    lock(&self.desk).channel = None;
                    channel.close();
                    // For as long as the driver keeps it from ending, no other one is started. How it has ended does not matter.
                    let _ = reap(&mut child, || ENDING);
                }
                Err(e) => return self.end_thread(Err(NoReadings::Start(e.to_string()))),
            }
            let mut desk = lock(&self.desk);
            if desk.question.is_none() || desk.is_ending {
                desk.has_thread = false;
                return;
            }
        }
    }

    /// Starts the process.
    fn start(&self) -> io::Result<(Arc<Channel>, Child)> {
        let (channel, theirs) = Channel::pair()?;
        let (output, input) = io::pipe()?;
        let mut command = self.command.prepare(None);
        command.stdin(theirs).stdout(input.try_clone()?).stderr(input);
        let mut child = command.spawn()?;
        // The command holds our copies of the process's ends: while they are open, its end cannot be detected.
        drop(command);
        let (pid, limited) = (child.id(), RateLimitedLog::new(self.log, "lines of the process that reads NVML"));
        let passed = threads::spawn("output", move || pass_on(output, &|line| limited.say(&LogLine::output(pid, line))));
        let channel = Arc::new(channel);
        if let Err(e) = passed.and_then(|_| channel.send(&Message::StartReader(self.start.clone()), None)) {
            channel.close();
            let _ = reap(&mut child, || ENDING);
            return Err(e);
        }
        let mut desk = lock(&self.desk);
        desk.channel = Some(channel.clone());
        if desk.is_ending {
            channel.close();
        }
        Ok((channel, child))
    }

    /// Has the process answer questions, until there are none for some time or the daemon ends.
    fn converse(&self, channel: &Channel) -> Result<(), NoReadings> {
        while let Some(gpus) = self.next_question() {
            channel.send(&Message::Read(gpus.clone()), None).map_err(|_| NoReadings::Failed)?;
            let all = self.receive(channel)?;
            let is_bounded = |it: &NvmlFacts| {
                it.readings.len() <= Reading::ALL.len() && it.usage.processes.iter().all(|all| all.len() <= MOST_PROCESSES)
            };
            if all.len() != gpus.len() || !all.iter().all(is_bounded) {
                return Err(NoReadings::Failed);
            }
            self.publish(Ok(Arc::new(gpus.into_iter().zip(all).collect())));
        }
        Ok(())
    }

    /// Waits for a question.
    fn next_question(&self) -> Option<Vec<Uuid>> {
        let until = Instant::now() + self.pace.idle;
        let mut desk = lock(&self.desk);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if desk.is_ending || desk.question.is_some() || left.is_zero() {
                return desk.question.take().filter(|_| !desk.is_ending);
            }
            desk = wait_timeout(&self.changed, desk, left).0;
        }
    }

    /// Receives an answer of the process.
    fn receive(&self, channel: &Channel) -> Result<Vec<NvmlFacts>, NoReadings> {
        let (sent, timeout) = (Instant::now(), NoReadings::Timeout(self.pace.answer));
        let is_late = |heard: &io::Result<_>| heard.as_ref().is_err_and(|e: &io::Error| e.kind() == io::ErrorKind::TimedOut);
        let mut heard = channel.receive_by(sent + self.pace.answer);
        if is_late(&heard) {
            self.say(Some(&timeout));
            heard = channel.receive_by(sent + self.pace.give_up);
        }
        match heard {
            Ok(Some((Message::Readings(Ok(all)), None))) => Ok(all),
            Ok(Some((Message::Readings(Err(why)), None))) => {
                Err(NoReadings::Unusable(why.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect()))
            }
            heard if is_late(&heard) => Err(timeout),
            _ => Err(NoReadings::Failed),
        }
    }

    /// Answers the question, and the one that the thread has not taken.
    fn publish(&self, answer: Answer) {
        self.answer(answer, |_| {});
    }

    /// As [`Shared::publish`], and no thread takes questions any more: the next one starts another.
    fn end_thread(&self, answer: Answer) {
        self.answer(answer, |desk| desk.has_thread = false);
    }

    fn answer(&self, answer: Answer, then: impl FnOnce(&mut Desk)) {
        self.say(answer.as_ref().err());
        let mut desk = lock(&self.desk);
        (desk.question, desk.asked, desk.last) = (None, None, Some((Instant::now(), answer)));
        then(&mut desk);
        drop(desk);
        self.changed.notify_all();
    }

    /// Tells the log that readings are missing, or are there again, if it has not been told.
    fn say(&self, why: Option<&NoReadings>) {
        let mut desk = lock(&self.desk);
        if desk.said.as_ref() == why || desk.is_ending {
            return;
        }
        desk.said = why.cloned();
        drop(desk);
        (self.log)(&match why {
            Some(why) => LogLine::warning(format!("what GPUs measure is not known: {why}")),
            None => LogLine::info("what GPUs measure is known again: NVML has answered"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::privileges::Privileges;
    use executor::Usage;
    use nix::sys::socket::{SockType, getsockopt, sockopt};
    use std::ffi::OsString;
    use std::os::fd::AsFd;

    /// The variable that says how the process of these tests behaves.
    const BEHAVIOUR: &str = "MRCUDA_TEST_NVML";
    const GPU: Uuid = [7; 16];

    /// Not a test by itself: the tests start this program with only this test, as the process that reads NVML.
    #[test]
    fn nvml_process() {
        if !matches!(getsockopt(&io::stdin().as_fd(), sockopt::SockType), Ok(SockType::SeqPacket)) {
            return;
        }
        let channel = Channel::from_stdin().unwrap();
        let behaviour = std::env::var(BEHAVIOUR).unwrap();
        assert!(matches!(channel.receive().unwrap(), Some((Message::StartReader(_), None))));
        let mut answers = 0u32;
        while let Some((Message::Read(gpus), None)) = channel.receive().unwrap() {
            // The number of answers of this process, and which process it is.
            let known = NvmlFacts { readings: vec![(0, answers), (3, std::process::id())], ..NvmlFacts::default() };
            let readings = match &*behaviour {
                "answers" => Ok(gpus.iter().map(|_| known.clone()).collect()),
                "is late" => {
                    std::thread::sleep(Duration::from_millis(500));
                    Ok(gpus.iter().map(|_| known.clone()).collect())
                }
                "hangs" => loop {
                    std::thread::park();
                },
                "dies" => std::process::abort(),
                "has no NVML" => Err("none\x1b there".to_owned()),
                "says too little" => Ok(Vec::new()),
                "says too much" => {
                    Ok(gpus.iter().map(|_| NvmlFacts { readings: vec![(0, 0); 1000], ..NvmlFacts::default() }).collect())
                }
                "lists too many" => {
                    let usage = Usage { free_bytes: None, processes: Some(vec![1; MOST_PROCESSES + 1]) };
                    Ok(gpus.iter().map(|_| NvmlFacts { usage: usage.clone(), ..NvmlFacts::default() }).collect())
                }
                other => panic!("{other}"),
            };
            channel.send(&Message::Readings(readings), None).unwrap();
            answers += 1;
        }
        std::process::exit(0);
    }

    static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn nvml(behaviour: &'static str, pace: Pace) -> Nvml {
        let command = Command {
            program: std::env::current_exe().unwrap(),
            arguments: ["--exact", "daemon::nvml::tests::nvml_process", "--nocapture"].map(OsString::from).to_vec(),
            ignores_sigterm: false,
            privileges: Privileges::default(),
            variables: vec![(BEHAVIOUR, behaviour.into())],
        };
        Nvml::new(command, StartReader { driver: "driver".into(), usage: false, confinement: None }, pace, |line| {
            lock(&LOG).push(line.words())
        })
    }

    /// Long enough for a busy machine.
    const LONG: Duration = Duration::from_secs(120);
    const PATIENT: Pace = Pace { fresh: Duration::ZERO, answer: LONG, give_up: LONG, idle: LONG };

    fn asked(nvml: &Nvml) -> Answer {
        nvml.ask(vec![GPU]);
        nvml.answer(Instant::now() + LONG)
    }

    /// What the process says of itself: the number of its answers before, and its id.
    fn read(nvml: &Nvml) -> (u32, u32) {
        let known = asked(nvml).unwrap();
        (Reading::Utilization.of(&known[&GPU].readings).unwrap(), Reading::Power.of(&known[&GPU].readings).unwrap())
    }

    fn soon(met: impl Fn() -> bool) -> bool {
        let until = Instant::now() + LONG;
        while !met() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        met()
    }

    fn has_thread(nvml: &Nvml) -> bool {
        lock(&nvml.0.desk).has_thread
    }

    #[test]
    fn one_process_answers_all_questions_and_ends_when_there_are_none() {
        let quiet = nvml("answers", PATIENT);
        assert!(!has_thread(&quiet), "nobody has asked");
        let (first, second) = (read(&quiet), read(&quiet));
        assert_eq!((first.0, second.0, first.1), (0, 1, second.1));
        // A GPU that was not asked for is not known.
        assert_eq!(asked(&quiet).unwrap().get(&[8; 16]), None);
        quiet.end();
        assert!(soon(|| !has_thread(&quiet)));
        let idle = nvml("answers", Pace { idle: Duration::ZERO, ..PATIENT });
        let first = read(&idle);
        assert!(soon(|| !has_thread(&idle)), "it ends when nobody asks");
        let second = read(&idle);
        assert!(first.0 == 0 && second.0 == 0 && first.1 != second.1, "{first:?} {second:?}");
    }

    #[test]
    fn many_who_ask_get_the_same_answer() {
        let nvml = nvml("answers", Pace { fresh: LONG, ..PATIENT });
        let all: Vec<(u32, u32)> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..20).map(|_| scope.spawn(|| read(&nvml))).collect();
            asking.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        nvml.end();
    }

    #[test]
    fn a_driver_that_hangs_holds_nobody_up() {
        let answer = Duration::from_millis(30);
        let pace = Pace { answer, give_up: LONG, ..PATIENT };
        let hangs = nvml("hangs", pace);
        for _ in 0..100 {
            assert_eq!(asked(&hangs), Err(NoReadings::Timeout(answer)));
        }
        // All the while there was one question, and so one process.
        assert!(has_thread(&hangs) && soon(|| lock(&LOG).iter().any(|line| line.contains("has not answered within 0.03 s"))));
        let told = lock(&LOG).iter().filter(|line| line.contains("0.03 s")).count();
        assert_eq!(told, 1, "the log is told once");
        hangs.end();
        assert!(soon(|| !has_thread(&hangs)), "it does not outlive the daemon");
    }

    #[test]
    fn a_process_that_hangs_for_long_is_replaced() {
        let answer = Duration::from_millis(20);
        let hangs = nvml("hangs", Pace { answer, give_up: Duration::from_millis(500), ..PATIENT });
        // Each has its channel; kept, so that no other one can be at the same address.
        let seen: Mutex<Vec<Arc<Channel>>> = Mutex::default();
        assert!(soon(|| {
            // Each time is a question, if the one before was given up.
            assert_eq!(asked(&hangs), Err(NoReadings::Timeout(answer)));
            let mut seen = lock(&seen);
            let now = lock(&hangs.0.desk).channel.clone();
            let new = now.filter(|now| !seen.iter().any(|one| Arc::ptr_eq(one, now)));
            seen.extend(new);
            seen.len() > 1
        }));
        hangs.end();
    }

    #[test]
    fn an_answer_that_comes_late_is_not_lost() {
        // Not fresh, so that each question is one.
        let late = nvml("is late", Pace { answer: Duration::from_millis(10), ..PATIENT });
        let first = asked(&late);
        // On a busy machine this thread may be even later.
        assert!(first.is_ok() || first == Err(NoReadings::Timeout(Duration::from_millis(10))), "{first:?}");
        assert!(soon(|| lock(&late.0.desk).last.as_ref().is_some_and(|(_, answer)| answer.is_ok())));
        late.end();
    }

    #[test]
    fn without_an_answer_there_is_a_reason() {
        for (behaviour, why) in [
            ("dies", NoReadings::Failed),
            ("has no NVML", NoReadings::Unusable("none  there".to_owned())),
            ("says too little", NoReadings::Failed),
            ("says too much", NoReadings::Failed),
            ("lists too many", NoReadings::Failed),
        ] {
            let nvml = nvml(behaviour, PATIENT);
            assert_eq!(asked(&nvml), Err(why.clone()), "{behaviour}");
            assert_eq!(asked(&nvml), Err(why), "{behaviour}: again, with another process");
            nvml.end();
        }
        let mut nowhere = nvml("answers", PATIENT);
        Arc::get_mut(&mut nowhere.0).unwrap().command.program = "/nonexistent/program".into();
        assert!(matches!(asked(&nowhere), Err(NoReadings::Start(_))));
        // Nothing tries again before somebody asks again.
        assert!(soon(|| !lock(&nowhere.0.desk).has_thread));
        assert!(matches!(asked(&nowhere), Err(NoReadings::Start(_))));
    }
}
