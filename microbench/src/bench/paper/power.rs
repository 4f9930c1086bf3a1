//! The power that the GPUs of this machine take, as NVML tells it: by `nvidia-smi`, which asks it.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two questions; an answer takes some 50 ms more.
const INTERVAL: Duration = Duration::from_millis(100);

/// Asks for the power of all GPUs together again and again.
#[derive(Debug)]
pub(super) struct Meter {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Instant, f64)>>,
}

/// Watts of all GPUs together at moments.
#[derive(Debug, Clone, Default)]
pub(super) struct Watts(Vec<(Instant, f64)>);

/// Watts of all GPUs together now, or why NVML does not tell.
fn now() -> Result<f64, String> {
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=power.draw", "--format=csv,noheader,nounits"]).stdin(Stdio::null());
    let output = command.output().map_err(|e| format!("nvidia-smi cannot be run: {e}"))?;
    if !output.status.success() {
        return Err(format!("nvidia-smi ended with {}", output.status));
    }
    sum(&String::from_utf8_lossy(&output.stdout))
}

/// The sum of a number in each line.
fn sum(text: &str) -> Result<f64, String> {
    let watts = text.lines().map(|line| line.trim().parse::<f64>().map_err(|_| format!("NVML says `{}`", line.trim())));
    let watts = watts.collect::<Result<Vec<_>, _>>()?;
    if watts.is_empty() { Err("NVML knows no GPU".to_owned()) } else { Ok(watts.iter().sum()) }
}

impl Meter {
    /// Begins, if NVML gives the power.
    pub(super) fn start() -> Result<Meter, String> {
        now()?;
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                all.extend(now().ok().map(|watts| (Instant::now(), watts)));
                std::thread::sleep(INTERVAL);
            }
            all
        });
        Ok(Meter { over, thread })
    }

    /// Ends.
    pub(super) fn stop(self) -> Watts {
        self.over.store(true, Ordering::Relaxed);
        Watts(self.thread.join().unwrap_or_default())
    }
}

impl Watts {
    /// The mean between two moments, if there is a figure.
    pub(super) fn mean(&self, from: Instant, to: Instant) -> Option<f64> {
        let inside: Vec<f64> = self.0.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, watts)| *watts).collect();
        (!inside.is_empty()).then(|| inside.iter().sum::<f64>() / inside.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_added() {
        assert_eq!(sum("70.50\n80.25\n"), Ok(150.75));
        assert!(sum("").is_err() && sum("[N/A]\n").is_err());
    }

    #[test]
    fn means_are_of_the_time_between() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let watts = Watts(vec![(at(0), 100.0), (at(10), 200.0), (at(20), 300.0)]);
        assert_eq!((watts.mean(at(0), at(10)), watts.mean(at(5), at(9))), (Some(150.0), None));
    }
}
