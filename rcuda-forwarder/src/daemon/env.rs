//! Selects the environment variables that a worker gets: only those on lists.

use super::error::AssignError;

/// Variables that a job may set for the driver. None of them names a file, a library or a GPU, or requests dumps: such
/// values refer to the job's machine.
const OF_JOB: [&str; 17] = [
    "CUDA_AUTO_BOOST",
    "CUDA_BINARY_LOADER_THREAD_COUNT",
    "CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_DISABLE_JIT",
    "CUDA_DISABLE_PERF_BOOST",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_GRAPHS_USE_NODE_PRIORITY",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MANAGED_FORCE_DEVICE_ALLOC",
    "CUDA_MODULE_DATA_LOADING",
    "CUDA_MODULE_LOADING",
    "CUDA_MODULE_LOADING_CALLBACK_MODE",
    "CUDA_SCALE_LAUNCH_QUEUES",
];
/// Variables that a worker inherits from the server: location of the driver and its cache, MPS, format of messages.
const OF_SERVER: [&str; 18] = [
    "CUDA_CACHE_DISABLE",
    "CUDA_CACHE_MAXSIZE",
    "CUDA_CACHE_PATH",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_PIPE_DIRECTORY",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PATH",
    "RUST_BACKTRACE",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
];
/// Variables of softgpu and of tests.
const OURS: [&str; 2] = ["MRCUDA_FAULT", "SOFTGPU_"];
/// Maximum length of the variables in an opening.
const LONGEST: usize = 4096;
/// Maximum length of a value; the driver's values are words or numbers.
const LONGEST_KEPT: usize = 64;

/// The accepted variables of a job, sorted. An error is for the client.
pub(super) fn accepted(env: &[(String, String)]) -> Result<Vec<(String, String)>, AssignError> {
    let mut kept = Vec::new();
    for (name, value) in env {
        let plain = name.starts_with("CUDA_") && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !plain || value.len() > LONGEST || value.contains('\0') {
            return Err(AssignError::Environment);
        }
        let word = value.len() <= LONGEST_KEPT && value.bytes().all(|b| b.is_ascii_graphic());
        if OF_JOB.contains(&name.as_str()) && word {
            kept.push((name.clone(), value.clone()));
        }
    }
    kept.sort();
    kept.dedup_by(|a, b| a.0 == b.0);
    Ok(kept)
}

/// Whether a worker inherits a variable from its server.
pub(super) fn is_servers(name: &str) -> bool {
    OF_SERVER.contains(&name) || OURS.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect()
    }

    #[test]
    fn what_counts_is_sorted_and_all_else_stays_out() {
        let given = pairs(&[
            ("CUDA_MODULE_LOADING", "LAZY"),
            ("CUDA_INJECTION64_PATH", "/elsewhere/evil.so"),
            ("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1"),
            ("CUDA_COREDUMP_PIPE", "/x"),
            ("CUDA_CACHE_PATH", "/home/x"),
            ("CUDA_VISIBLE_DEVICES", "3"),
            ("CUDA_OF_TOMORROW", "1"),
            ("CUDA_FORCE_JIT", "1\n2"),
            ("CUDA_DEVICE_MAX_CONNECTIONS", "8"),
        ]);
        let kept = accepted(&given).unwrap();
        assert_eq!(kept, pairs(&[("CUDA_DEVICE_MAX_CONNECTIONS", "8"), ("CUDA_MODULE_LOADING", "LAZY")]));
        for (list, name) in [(&OF_JOB[..], "of the job"), (&OF_SERVER[..], "of the server")] {
            assert!(list.is_sorted(), "{name}");
        }
    }

    #[test]
    fn secrets_and_libraries_of_the_server_stay_with_it() {
        for name in
            ["LD_PRELOAD", "LD_AUDIT", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "MRCUDA_TOKEN_FILE", "CUDA_VISIBLE_DEVICES"]
        {
            assert!(!is_servers(name), "{name}");
        }
        assert!(["HOME", "LD_LIBRARY_PATH", "SOFTGPU_SEED", "MRCUDA_FAULT_CORRUPT_BYTE"].into_iter().all(is_servers));
    }

    #[test]
    fn other_variables_are_refused() {
        for bad in [("LD_PRELOAD", "x"), ("CUDA_A=B", "x"), ("CUDA_", "a\0b"), ("", "")] {
            assert!(accepted(&pairs(&[bad])).is_err(), "{bad:?}");
        }
        assert!(accepted(&[("CUDA_X".into(), "x".repeat(LONGEST + 1))]).is_err());
    }
}
