//! `cargo xtask demo`: a real program moves remote → local → remote → remote while it works, and ends with the output of a
//! native run, bit for bit. Two servers with CPU drivers stand for two machines with GPUs.

use crate::error::Error;
use crate::step::step;
use ::tests::scene::{Hardware, Scene, wait_for};
use ::tests::{Install, Job, Server};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::time::Duration;

/// Arguments of `cargo xtask demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// How long the program should work, in seconds, as far as that can be told in advance
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: u32,
}

/// When the moves happen, as parts of the way.
const MOMENTS: [f64; 3] = [0.2, 0.45, 0.7];
/// How long anything may take before it is a failure.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the demo; the last line says how it went.
pub(crate) fn demo(args: &DemoArgs) -> Result<(), Error> {
    match play(args) {
        Ok(moves) => {
            println!("demo: OK, {moves} moves, output identical");
            Ok(())
        }
        Err(why) => {
            println!("demo: FAILED: {why}");
            std::process::exit(1);
        }
    }
}

fn play(args: &DemoArgs) -> Result<usize, Error> {
    step("building mrcuda, its libraries and softgpu, the CUDA driver without a GPU");
    let install = Install::get();
    let scene = Scene::on("demo", Hardware::Soft);
    let orbit = install.file("orbit");

    step("running the program natively, for comparison");
    let steps = calibrate(&scene, args.seconds)?;
    let steps_text = steps.to_string();
    let native = Job::native(&scene, "native", &orbit, &["--steps", &steps_text]).wait(LIMIT);
    if !native.ok() {
        return Err(Error::Found(format!("the native run ended with {:?}: {}", native.code, native.stderr.trim())));
    }
    print!("{}", native.stdout);

    step("starting two servers");
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    for server in &servers {
        eprintln!("{}", server.announcement);
    }

    let first = servers[0].place(0);
    step(&format!("mrcuda run --server {first} -- orbit --steps {steps}"));
    let options = ["--server", &first, "--on-signal", "local"];
    let mut job = Job::start(&scene, "moved", &options, &orbit, &["--steps", &steps_text, "--progress"], &[]);
    let ready = job.wait_ready(LIMIT)?;
    let progress = Progress::new(u64::from(steps));
    progress.note(&format!("process {}: {}", job.pid(), ready.get("program").and_then(|p| p.as_str()).unwrap_or("orbit")));

    let second = servers[1].place(0);
    let way = [Move::Signal, Move::Request(&second), Move::Request(&first)];
    for (moment, how) in MOMENTS.iter().zip(&way) {
        let due = (moment * f64::from(steps)) as u64;
        progress.follow(&mut job, due)?;
        make(&job, how, &progress)?;
    }
    progress.follow_to_the_end(&mut job);
    let moved = job.wait(LIMIT);
    progress.end();
    if !moved.ok() {
        return Err(Error::Found(format!("the moved run ended with {:?}: {}", moved.code.or(moved.signal), moved.stderr.trim())));
    }
    print!("{}", moved.stdout);
    if moved.stdout != native.stdout {
        return Err(Error::Found("the output differs from the native run's".to_owned()));
    }
    // Each of them committed, or we would not be here.
    Ok(way.len())
}

/// How many steps fill the time.
fn calibrate(scene: &Scene, seconds: u32) -> Result<u32, Error> {
    const PROBE: u32 = 500;
    let orbit = scene.install.file("orbit");
    let probe = Job::native(scene, "probe", &orbit, &["--steps", &PROBE.to_string()]).wait(LIMIT);
    if !probe.ok() {
        return Err(Error::Found(format!("the native run ended with {:?}: {}", probe.code, probe.stderr.trim())));
    }
    let each = probe.wall.as_secs_f64() / f64::from(PROBE);
    Ok(((f64::from(seconds) / each) as u32).clamp(400, 100_000))
}

/// One way to make a job move.
enum Move<'a> {
    /// `kill -USR1 PID`: to the place of `--on-signal`.
    Signal,
    /// `mrcuda migrate PID --to PLACE`.
    Request(&'a str),
}

/// Makes a move and shows its timeline.
fn make(job: &Job, how: &Move, progress: &Progress) -> Result<(), Error> {
    let before = job.moves()?.len();
    let report = match how {
        Move::Signal => {
            progress.note(&format!("kill -USR1 {}", job.pid()));
            job.signal(libc::SIGUSR1);
            let report = wait_for(LIMIT, || job.moves().ok().and_then(|all| all.into_iter().nth(before)));
            report.ok_or("the signal did not move the job")?
        }
        Move::Request(place) => {
            progress.note(&format!("mrcuda migrate {} --to {place}", job.pid()));
            job.migrate(place)?
        }
    };
    progress.note(job.describe_last_move()?.trim_end());
    if report.ok() {
        return Ok(());
    }
    Err(Error::Found(format!("move {}, from {} to {}: {}", before + 1, report.from(), report.to(), report.reason())))
}

/// How far the program is: a bar on a terminal, else a line now and then.
struct Progress {
    bar: ProgressBar,
    plain: bool,
    steps: u64,
    /// The tenth of the way that was shown last.
    said: Cell<u64>,
}

impl Progress {
    fn new(steps: u64) -> Progress {
        let plain = !std::io::stderr().is_terminal();
        let target = if plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        if let Ok(style) = ProgressStyle::with_template("orbit {wide_bar} {pos}/{len} steps, {elapsed}") {
            bar.set_style(style);
        }
        Progress { bar, plain, steps, said: Cell::new(0) }
    }

    /// A line beside the bar.
    fn note(&self, text: &str) {
        if self.plain { eprintln!("{text}") } else { self.bar.println(text) }
    }

    /// Shows progress until the program has made `due` steps.
    fn follow(&self, job: &mut Job, due: u64) -> Result<(), Error> {
        while self.show_steps(job) < due {
            if !job.runs() {
                let (done, words) = (self.show_steps(job), job.stderr());
                return Err(Error::Found(format!(
                    "the program ended after {done} of {} steps: {}",
                    self.steps,
                    last_line(&words)
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Shows progress until the program ends.
    fn follow_to_the_end(&self, job: &mut Job) {
        while job.runs() {
            self.show_steps(job);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Shows how many steps the program has made.
    fn show_steps(&self, job: &Job) -> u64 {
        let done = steps_done(&job.stderr());
        self.bar.set_position(done);
        let tenth = done * 10 / self.steps.max(1);
        if self.said.replace(tenth) != tenth && self.plain {
            eprintln!("{done} of {} steps", self.steps);
        }
        done
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Steps that the program says it has made.
fn steps_done(stderr: &str) -> u64 {
    // The last line may be half written.
    let whole = stderr.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let step = |line: &str| line.strip_prefix("step ")?.split(' ').next()?.parse().ok();
    whole.lines().rev().find_map(step).unwrap_or(0)
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or("no word")
}

#[cfg(test)]
mod tests {
    use super::steps_done;

    #[test]
    fn progress_is_read_from_whole_lines() {
        assert_eq!(steps_done(""), 0);
        assert_eq!(steps_done("orbit: 128 bodies\nstep 10 of 100\nstep 2"), 10);
        assert_eq!(steps_done("step 10 of 100\nmrcuda: moved\n"), 10);
    }
}
