//! `cargo xtask apps`: programs of any directory, natively, in each place and moved, compared. The rules are those of the crate
//! `compare`.

use crate::error::Error;
use crate::step::step;
use ::tests::scene::Hardware;
use ::tests::{Programs, Scene, Server};
use compare::{Mode, Places, Program, Setup, Summary};
use cuda_api::lock::lock;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Arguments of `cargo xtask apps`.
#[derive(Debug, clap::Args)]
pub(crate) struct AppsArgs {
    /// Directory with the programs; all its executable files unless there is a list [default: our own, compiled from tests/programs/apps]
    directory: Option<PathBuf>,
    /// A file with a line for each program: its path in the directory, its arguments, and @directory=PATH (where it runs) and
    /// @limit=SECONDS as wanted
    #[arg(long, value_name = "FILE", requires = "directory")]
    list: Option<PathBuf>,
    /// On the CPU driver instead of this machine's GPU
    #[arg(long)]
    soft: bool,
    /// Only these programs
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    only: Vec<String>,
    /// All but these
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    skip: Vec<String>,
    /// Only a part of them, for example 2/4 for the second of four: each fourth program
    #[arg(long, value_name = "K/N", value_parser = part)]
    part: Option<(usize, usize)>,
    /// Begin no program after so many seconds; the others are not in the table
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    within: Option<u64>,
    /// Where they run, apart from natively
    #[arg(long, value_delimiter = ',', value_name = "MODE,…", default_value = "tcp,unix,local,helper,moved")]
    modes: Vec<Mode>,
    /// How many GPUs a program sees
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: u32,
    /// How long a run may take, in seconds, unless the list says otherwise
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86400))]
    limit: u64,
    /// Milliseconds between the end of a move and the next one
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=60000))]
    every: u64,
    /// How many programs at a time; the times then say little
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Size of our own apps; small ones are over in an instant on a GPU [default: large, with --soft: small]
    #[arg(long, value_parser = ["small", "large"], conflicts_with = "directory")]
    size: Option<String>,
    /// A file for the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Compares everything; the exit status is 1 if any run was not as native.
pub(crate) fn apps(args: &AppsArgs) -> Result<(), Error> {
    let programs = programs(args)?;
    let hardware = if args.soft { Hardware::Soft } else { Hardware::Real };
    let scene = Scene::on("apps", hardware);
    let setup = Setup {
        mrcuda: scene.install.file("mrcuda"),
        driver: args.soft.then(|| scene.install.file("libsoftgpu.so")),
        gpus: args.gpus,
        directory: scene.path.clone(),
        token: scene.token(),
        every: Duration::from_millis(args.every),
    };
    let devices = args.gpus.to_string();
    let beside = [("SOFTGPU_SEED_ID", "local"), ("SOFTGPU_DEVICES", devices.as_str())];
    let servers = [Server::start_with(&scene, "one", &[], &beside), Server::start_with(&scene, "two", &[], &beside[1..])];
    let (tcp, unix) = (servers.each_ref().map(|s| s.place(0)), servers.each_ref().map(|s| s.unix_place(0)));
    let places = Places::of_servers(tcp.each_ref().map(String::as_str), unix.each_ref().map(String::as_str));
    step(&format!("{} programs", programs.len()));
    let end = args.within.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let not_begun = AtomicUsize::new(0);
    let (summary, next) = (Mutex::new(Summary::new(&args.modes)), Mutex::new(programs.iter()));
    std::thread::scope(|s| {
        for _ in 0..args.jobs {
            s.spawn(|| {
                while let Some(program) = { lock(&next).next() } {
                    if end.is_some_and(|end| Instant::now() > end) {
                        not_begun.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let result = compare::compare(&setup, &places, program, &args.modes);
                    match &result {
                        Ok(comparison) => eprintln!("{comparison}"),
                        Err(why) => eprintln!("{}: {why}", program.name),
                    }
                    let mut summary = lock(&summary);
                    summary.add(&program.name, result);
                    // What there is so far, should the rest not end.
                    if let Some(path) = &args.json {
                        write(path, &format!("{:#}\n", summary.json())).unwrap_or_else(|why| eprintln!("{why}"));
                    }
                }
            });
        }
    });
    let summary = summary.into_inner().map_err(|_| "a program's thread panicked")?;
    print!("{summary}");
    if not_begun.load(Ordering::Relaxed) > 0 {
        println!("{} of {} programs were not begun: the time was over", not_begun.into_inner(), programs.len());
    }
    if let Some(path) = &args.json {
        write(path, &format!("{:#}\n", summary.json()))?;
    }
    if summary.all_as_native() {
        return Ok(());
    }
    Err(Error::Found("apps: not all as natively".to_owned()))
}

/// The programs that were asked for.
fn programs(args: &AppsArgs) -> Result<Vec<Program>, Error> {
    let limit = Duration::from_secs(args.limit);
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(Error::file(path));
    let mut all = match (&args.directory, &args.list) {
        (Some(directory), Some(list)) => compare::read_list(&absolute(directory)?, list, limit)?,
        (Some(directory), None) => compare::executables(&absolute(directory)?, &[], limit)?,
        (None, _) => {
            let size = args.size.as_deref().unwrap_or(if args.soft { "small" } else { "large" });
            compare::executables(&Programs::get().apps(), &["--size", size], limit)?
        }
    };
    all.retain(|p| (args.only.is_empty() || args.only.contains(&p.name)) && !args.skip.contains(&p.name));
    if let Some((which, parts)) = args.part {
        all = all.into_iter().skip(which - 1).step_by(parts).collect();
    }
    if all.is_empty() { Err(Error::Found("there are no programs to run".to_owned())) } else { Ok(all) }
}

/// `2/4`
fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(which, parts)| Some((which.parse().ok()?, parts.parse().ok()?)));
    numbers
        .filter(|(which, parts)| (1..=*parts).contains(which))
        .ok_or_else(|| format!("`{text}` is not a part: it is written as 2/4"))
}

fn write(path: &PathBuf, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::file(path))
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_have_numbers() {
        assert_eq!(part("2/4"), Ok((2, 4)));
        for bad in ["0/4", "5/4", "1", "1/0", "a/b"] {
            assert!(part(bad).is_err(), "{bad}");
        }
    }
}
