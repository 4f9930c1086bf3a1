//! Times in the command line, and dates as people write them.

use crate::value_error::ValueError;
use std::time::{Duration, UNIX_EPOCH};

/// A time in milliseconds.
pub(crate) fn time(text: &str) -> Result<u64, ValueError> {
    let units = [("ms", 1.0), ("min", 60_000.0), ("s", 1000.0), ("m", 60_000.0), ("h", 3_600_000.0), ("d", 86_400_000.0)];
    let read = units.iter().find_map(|(unit, ms)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * ms));
    match read {
        Some(ms) if (0.0..1e12).contains(&ms) => Ok(ms.round() as u64),
        _ => Err(ValueError::Time),
    }
}

/// A time of day in UTC, as people write it. `unix`: seconds since 1970.
pub(crate) fn date(unix: u64) -> String {
    /// The end of the year 9999: dates after it cannot be written.
    const LAST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(unix.min(LAST));
    humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_can_be_read() {
        assert_eq!((date(0), date(1_795_802_594)), ("1970-01-01 00:00:00 UTC".into(), "2026-11-27 18:03:14 UTC".into()));
        assert_eq!(date(u64::MAX), "9999-12-31 23:59:59 UTC");
    }

    #[test]
    fn times_have_units() {
        assert_eq!((time("200ms"), time("1.5s"), time("2min"), time("0s")), (Ok(200), Ok(1500), Ok(120_000), Ok(0)));
        assert_eq!((time("10m"), time("1.5h")), (Ok(600_000), Ok(5_400_000)));
        assert_eq!(time("2d"), Ok(172_800_000));
        for bad in ["", "5", "s", "h", "-1s", "d", "infs", "NaNms", "1e20s"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
