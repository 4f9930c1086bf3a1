//! Which of a job's environment variables its worker gets.

/// Endings of variables that name files or folders: those of the job's machine mean nothing here, or something else.
const FILES: [&str; 5] = ["_PATH", "_DIRECTORY", "_FILE", "_HOME", "_PIPE"];
/// Variables that choose GPUs: the server does that.
const CHOICE: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];
/// Longest value.
const LONGEST: usize = 4096;

/// The variables that count, sorted. An error is for the client.
pub(super) fn accepted(env: &[(String, String)]) -> Result<Vec<(String, String)>, String> {
    let mut kept = Vec::new();
    for (name, value) in env {
        let plain = name.starts_with("CUDA_") && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !plain || value.len() > LONGEST || value.contains('\0') {
            return Err("its environment has a variable that cannot be passed on".into());
        }
        if is_jobs(name) {
            kept.push((name.clone(), value.clone()));
        }
    }
    kept.sort();
    kept.dedup_by(|a, b| a.0 == b.0);
    Ok(kept)
}

/// Whether a `CUDA_*` variable is the job's to set.
pub(super) fn is_jobs(name: &str) -> bool {
    // CUDA_INJECTION64_PATH names a library that the driver loads: it must never come from outside.
    name.starts_with("CUDA_") && !CHOICE.contains(&name) && !FILES.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect()
    }

    #[test]
    fn what_counts_is_sorted_and_files_stay_out() {
        let given = pairs(&[
            ("CUDA_MODULE_LOADING", "LAZY"),
            ("CUDA_INJECTION64_PATH", "/elsewhere/evil.so"),
            ("CUDA_CACHE_PATH", "/home/x"),
            ("CUDA_VISIBLE_DEVICES", "3"),
            ("CUDA_DEVICE_MAX_CONNECTIONS", "8"),
        ]);
        let kept = accepted(&given).unwrap();
        assert_eq!(kept, pairs(&[("CUDA_DEVICE_MAX_CONNECTIONS", "8"), ("CUDA_MODULE_LOADING", "LAZY")]));
    }

    #[test]
    fn other_variables_are_refused() {
        for bad in [("LD_PRELOAD", "x"), ("CUDA_A=B", "x"), ("CUDA_", "a\0b"), ("", "")] {
            assert!(accepted(&pairs(&[bad])).is_err(), "{bad:?}");
        }
        assert!(accepted(&[("CUDA_X".into(), "x".repeat(LONGEST + 1))]).is_err());
    }
}
