//! Times in the command line.

use crate::value_error::ValueError;

/// A time in milliseconds.
pub(crate) fn time(text: &str) -> Result<u64, ValueError> {
    let units = [("ms", 1.0), ("min", 60_000.0), ("s", 1000.0), ("m", 60_000.0), ("h", 3_600_000.0), ("d", 86_400_000.0)];
    let read = units.iter().find_map(|(unit, ms)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * ms));
    match read {
        Some(ms) if (0.0..1e12).contains(&ms) => Ok(ms.round() as u64),
        _ => Err(ValueError::Time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
