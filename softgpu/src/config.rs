//! Settings, read once in `cuInit`.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `SOFTGPU_DEVICES` | number of devices (at most 32) | 1 |
//! | `SOFTGPU_MEMORY` | bytes of memory of each device | 2 GiB |
//! | `SOFTGPU_PINNED` | bytes of page-locked memory that a process can have | no limit |
//! | `SOFTGPU_CC` | compute capability, `major.minor` | 9.0 |
//! | `SOFTGPU_DRIVER_VERSION` | what `cuDriverGetVersion` says | 13000 |
//! | `SOFTGPU_DRIVER_BUILD` | what NVML says of the driver's own version | none |
//! | `SOFTGPU_ATTRIBUTES` | attributes of all devices that differ from an H200's: `16=66,97=101376` | none |
//! | `SOFTGPU_SEED_ID` | text that uuids and PCI ids are made from: another text is another machine | empty |
//! | `SOFTGPU_SEED` | seed of delays and interleavings; 0: no delays, oldest stream first | 1 |
//! | `SOFTGPU_MAX_DELAY_US` | longest delay before a piece of work may start, in microseconds | 200 |
//! | `SOFTGPU_COPY_GATE` | a file: of the copies of 1 MiB and more between host and devices as many are made as it has bytes | no limit |
//! | `SOFTGPU_DISPLACE` | file name of a program: in its process variables lie a page further on than elsewhere | none |
//! | `CUDA_VISIBLE_DEVICES` | as on the real driver: ordinals or `GPU-…` uuids, up to the first bad one | all |
//! | `CUDA_MODULE_LOADING` | `EAGER` or `LAZY`, only reported | `LAZY` |

use std::path::PathBuf;
use std::sync::OnceLock;

/// Maximum number of devices of a machine: as many as a job can have.
pub(crate) const MAX_DEVICES: usize = cuda_api::address_map::DEVICES as usize;

/// The settings of this process.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub devices: usize,
    pub memory: u64,
    /// Maximum amount of page-locked memory.
    pub pinned: u64,
    pub compute: (u32, u32),
    pub driver_version: i32,
    pub driver_build: String,
    pub attributes: Vec<(u32, i32)>,
    pub seed_id: String,
    pub seed: u64,
    pub max_delay_us: u64,
    /// The offset added to addresses of variables.
    pub displaced: u64,
    /// The file that lets large copies go on.
    pub copy_gate: Option<PathBuf>,
    pub visible: Option<String>,
    pub eager: bool,
}

impl Config {
    /// `compute` as one number: 90 for 9.0.
    pub fn sm(&self) -> u32 {
        self.compute.0 * 10 + self.compute.1
    }

    fn read(get: impl Fn(&str) -> Option<String>) -> Config {
        let number = |name: &str, default: u64| get(name).and_then(|v| v.trim().parse().ok()).unwrap_or(default);
        let compute = get("SOFTGPU_CC")
            .and_then(|v| v.split_once('.').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?))))
            .filter(|(major, minor)| *major < 100 && *minor < 10)
            .unwrap_or((9, 0));
        Config {
            devices: (number("SOFTGPU_DEVICES", 1) as usize).min(MAX_DEVICES),
            memory: number("SOFTGPU_MEMORY", 2 << 30),
            pinned: number("SOFTGPU_PINNED", u64::MAX),
            compute,
            driver_version: i32::try_from(number("SOFTGPU_DRIVER_VERSION", 13000)).unwrap_or(13000),
            driver_build: get("SOFTGPU_DRIVER_BUILD").unwrap_or_default(),
            attributes: get("SOFTGPU_ATTRIBUTES").map(|list| pairs(&list)).unwrap_or_default(),
            seed_id: get("SOFTGPU_SEED_ID").unwrap_or_default(),
            seed: number("SOFTGPU_SEED", 1),
            max_delay_us: number("SOFTGPU_MAX_DELAY_US", 200),
            displaced: if get("SOFTGPU_DISPLACE").is_some_and(|name| is_program(&name)) { 4096 } else { 0 },
            copy_gate: get("SOFTGPU_COPY_GATE").map(PathBuf::from),
            visible: get("CUDA_VISIBLE_DEVICES"),
            eager: get("CUDA_MODULE_LOADING").is_some_and(|v| v.eq_ignore_ascii_case("EAGER")),
        }
    }
}

/// Numbers and values, up to the first bad one.
fn pairs(list: &str) -> Vec<(u32, i32)> {
    let pair =
        |word: &str| word.split_once('=').and_then(|(id, value)| Some((id.trim().parse().ok()?, value.trim().parse().ok()?)));
    list.split(',').map_while(pair).collect()
}

/// Whether this process runs a program with this file name.
fn is_program(name: &str) -> bool {
    std::env::current_exe().is_ok_and(|path| path.file_name().is_some_and(|own| own == name))
}

/// The settings, read on the first call.
pub(crate) fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config::read(|name| std::env::var(name).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_falls_back_to_defaults() {
        let c = Config::read(|name| match name {
            "SOFTGPU_CC" => Some("nine".into()),
            "SOFTGPU_DEVICES" => Some("1000".into()),
            "SOFTGPU_MEMORY" => Some("-4".into()),
            _ => None,
        });
        assert_eq!((c.compute, c.devices, c.memory), ((9, 0), MAX_DEVICES, 2 << 30));
        let c = Config::read(|n| (n == "SOFTGPU_ATTRIBUTES").then(|| "16=66, 97=5,x=1,2=2".into()));
        assert_eq!(c.attributes, [(16, 66), (97, 5)]);
        assert_eq!(Config::read(|n| (n == "SOFTGPU_CC").then(|| "7.5".into())).sm(), 75);
    }
}
