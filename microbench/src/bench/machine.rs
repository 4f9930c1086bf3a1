//! Describes the measured machine.

use super::stage::Stage;
use crate::error::Error;
use models::Machine;
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of softgpu's GPU.
const SOFT: &str = "softgpu";

/// What it is; asks the driver itself for its GPU.
pub(super) fn describe(stage: &Stage) -> Result<Machine, Error> {
    let mut client = stage.native(&["client"])?;
    let said = client.answer()?;
    client.finish()?;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let gpu = said["gpu"].as_str().unwrap_or("unknown").to_owned();
    let version = said["cuda"].as_i64().unwrap_or(0);
    let module = if gpu == SOFT { String::new() } else { read("/sys/module/nvidia/version").trim().to_owned() };
    let mut driver = format!("{}.{}", version / 1000, version % 1000 / 10);
    if !module.is_empty() {
        driver.push_str(&format!(" ({module})"));
    }
    let info = read("/proc/cpuinfo");
    let cpu =
        info.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split_once(": ")).map_or("unknown", |(_, name)| name);
    let release = read("/proc/sys/kernel/osrelease");
    Ok(Machine {
        soft: gpu == SOFT,
        gpu,
        driver,
        cpu: cpu.trim().to_owned(),
        cores: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        system: format!("Linux {}", release.trim()),
    })
}

/// Number of its GPUs, as the driver itself says.
pub(super) fn gpus(stage: &Stage) -> Result<u32, Error> {
    let mut client = stage.native(&["client"])?;
    let said = client.answer()?;
    client.finish()?;
    Ok(said["gpus"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(1))
}

/// Today, as `2026-11-21`.
pub(super) fn date() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86400);
    let (y, m, d) = civil(days);
    format!("{y}-{m:02}-{d:02}")
}

/// Year, month and day of a number of days since 1970: years of March to February in cycles of 400.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (cycle * 400 + year + u64::from(month <= 2), month, date)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_have_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_778), (2026, 11, 21));
        assert_eq!(civil(20_818), (2026, 12, 31));
    }
}
