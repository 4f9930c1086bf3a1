//! Devices: identity, attributes, memory in use.

use super::engines::Engines;
use crate::config;
use crate::result::Res;
use cuda_api::sys::{CUdevice, CUresult};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum threads of a multiprocessor.
pub(crate) const THREADS_PER_SM: u32 = 2048;
/// Maximum blocks of a multiprocessor.
pub(crate) const BLOCKS_PER_SM: u32 = 32;
/// Shared memory of a multiprocessor.
pub(crate) const SHARED_PER_SM: u32 = 233_472;
/// Shared memory of each block reserved by the system.
pub(crate) const SHARED_RESERVED: u32 = 1024;
/// Default maximum of shared memory of a block.
pub(crate) const SHARED_PER_BLOCK: u32 = 49_152;
/// Opt-in maximum of shared memory of a block.
pub(crate) const SHARED_OPTIN: u32 = 232_448;
/// Multiprocessors.
const MULTIPROCESSORS: u32 = 132;
/// Registers of a multiprocessor and of a block.
pub(crate) const REGISTERS: u32 = 65_536;

/// Multiprocessors of a device: an H200's, unless a setting says otherwise.
pub(crate) fn multiprocessors() -> u32 {
    let set = config::get().attributes.iter().find(|(id, _)| *id == 16).and_then(|(_, value)| u32::try_from(*value).ok());
    set.unwrap_or(MULTIPROCESSORS)
}

/// One device that this process sees.
pub(crate) struct Device {
    /// Number in this process.
    pub ordinal: CUdevice,
    /// Number in the machine, the same in every process with the same settings.
    pub physical: usize,
    pub uuid: [u8; 16],
    pub pci_domain: i32,
    pub pci_bus: i32,
    /// Bytes of memory.
    pub total: u64,
    used: AtomicU64,
    /// Kernels running now.
    pub running: AtomicUsize,
    pub engines: Engines,
}

/// The devices of this process, in order.
pub(crate) fn all() -> &'static [Arc<Device>] {
    static ALL: OnceLock<Vec<Arc<Device>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let visible = visible(&machine(), config::get().visible.as_deref());
        visible
            .unwrap_or_default()
            .into_iter()
            .enumerate()
            .map(|(ordinal, physical)| Arc::new(Device::new(ordinal, physical)))
            .collect()
    })
}

/// Devices of the machine that this process does not see, whose memory may be imported. Their ordinals are unused.
pub(crate) fn unseen() -> &'static [Arc<Device>] {
    static UNSEEN: OnceLock<Vec<Arc<Device>>> = OnceLock::new();
    UNSEEN.get_or_init(|| {
        let other = |physical: &usize| all().iter().all(|d| d.physical != *physical);
        let others = (0..config::get().devices).filter(other);
        others.map(|physical| Arc::new(Device::new(config::MAX_DEVICES + physical, physical))).collect()
    })
}

/// Identities of the machine's devices, also of those that this process does not see.
pub(crate) fn machine() -> Vec<[u8; 16]> {
    let config = config::get();
    (0..config.devices).map(|i| uuid(&config.seed_id, i)).collect()
}

/// The device of an ordinal.
pub(crate) fn get(ordinal: CUdevice) -> Res<&'static Arc<Device>> {
    usize::try_from(ordinal).ok().and_then(|i| all().get(i)).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
}

fn hash(text: &str, salt: u64) -> u64 {
    // FNV-1a, then the finaliser of splitmix64, so that neighbours differ in every byte.
    let mut h = text.bytes().fold(0xcbf2_9ce4_8422_2325 ^ salt, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

fn uuid(seed_id: &str, index: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&hash(seed_id, 2 * index as u64 + 1).to_le_bytes());
    bytes[8..].copy_from_slice(&hash(seed_id, 2 * index as u64 + 2).to_le_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// How UUIDs begin as tools print them.
const UUID_HEAD: &str = "GPU-";

/// `GPU-…` as tools print it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| uuid[range].iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("{UUID_HEAD}{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

/// The machine's devices that `CUDA_VISIBLE_DEVICES` selects: everything up to the first invalid word; `None` if a device is there twice
/// before that, which the driver refuses (docs/driver-facts.md 1.16).
fn visible(machine: &[[u8; 16]], setting: Option<&str>) -> Option<Vec<usize>> {
    let Some(setting) = setting else {
        return Some((0..machine.len()).collect());
    };
    let mut chosen = Vec::new();
    for word in setting.split(',') {
        let number = || word.trim().parse().ok().filter(|i| *i < machine.len());
        let found = if word.starts_with(UUID_HEAD) { with_uuid(machine, word.trim_end()) } else { number() };
        match found {
            Some(i) if chosen.contains(&i) => return None,
            Some(i) => chosen.push(i),
            None => break,
        }
    }
    Some(chosen)
}

/// The only device whose UUID begins with a word. As in the driver, at least one digit must follow `GPU-`.
fn with_uuid(machine: &[[u8; 16]], word: &str) -> Option<usize> {
    let begins = |uuid: &[u8; 16]| uuid_text(uuid).get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word));
    let mut found = (0..machine.len()).filter(|i| word.len() > UUID_HEAD.len() && begins(&machine[*i]));
    found.next().filter(|_| found.next().is_none())
}

/// Whether `CUDA_VISIBLE_DEVICES` is one that the driver refuses.
pub(crate) fn is_setting_refused() -> bool {
    visible(&machine(), config::get().visible.as_deref()).is_none()
}

impl Device {
    fn new(ordinal: usize, physical: usize) -> Device {
        let config = config::get();
        Device {
            ordinal: ordinal as CUdevice,
            physical,
            uuid: uuid(&config.seed_id, physical),
            pci_domain: if config.seed_id.is_empty() { 0 } else { (hash(&config.seed_id, 0) & 0xff) as i32 },
            pci_bus: 0x10 + physical as i32,
            total: config.memory,
            used: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            engines: Engines::default(),
        }
    }

    /// Takes `bytes` from the device's memory.
    pub fn take(&self, bytes: u64) -> Res {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| used.checked_add(bytes).filter(|n| *n <= self.total))
            .map(drop)
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Returns `bytes` to the device's memory.
    pub fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes not in use.
    pub fn free(&self) -> u64 {
        self.total.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// PCI address: domain, bus, device.
    pub fn pci(&self) -> [i32; 3] {
        [self.pci_domain, self.pci_bus, 0]
    }

    /// An attribute by its number in cuda.h; unknown numbers are `INVALID_VALUE`. Figures are an H200's; what this driver
    /// cannot do is 0.
    pub fn attribute(&self, id: u32) -> Res<i32> {
        let (major, minor) = config::get().compute;
        if let Some((_, value)) = config::get().attributes.iter().find(|(other, _)| *other == id) {
            return Ok(*value);
        }
        Ok(match id {
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65_535,
            8 => SHARED_PER_BLOCK as i32,
            9 => 65_536,
            10 => 32,
            11 => i32::MAX,
            12 | 82 => REGISTERS as i32,
            13 => 1_980_000,
            14 | 30 => 512,
            16 => MULTIPROCESSORS as i32,
            // Sizes of textures and surfaces, which are never made here but asked for at start-up.
            21 | 22 | 56 | 70 => 131_072,
            23 | 57 => 65_536,
            24..=26 | 58..=60 => 16_384,
            27 | 28 | 42 | 45 | 46 | 49 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => 32_768,
            29 | 43 | 62 | 65 => 2048,
            47 | 48 => 8192,
            51 => 32,
            54 | 68 => 2046,
            69 => 268_435_456,
            71 => 65_000,
            72 => 2_097_120,
            33 => self.pci_bus,
            34 => 0,
            50 => self.pci_domain,
            36 => 3_201_000,
            37 => 6016,
            38 => 62_914_560,
            39 => THREADS_PER_SM as i32,
            40 => 3,
            75 => major as i32,
            76 => minor as i32,
            81 => SHARED_PER_SM as i32,
            87 => 2,
            97 => SHARED_OPTIN as i32,
            106 => BLOCKS_PER_SM as i32,
            108 => 39_321_600,
            109 => 134_217_728,
            111 => SHARED_RESERVED as i32,
            126 => 4,
            131 => -1,
            139 => 0x2335_10de,
            140 => 0x18bf_10de,
            // Host mapping, concurrent kernels, ECC, unified addressing, priorities, caches, preemption, registered host
            // pointers, cooperative launches, registering host memory, virtual memory, pools, descriptors of both, sparse
            // arrays and those that are mapped later.
            15 | 19 | 31 | 32 | 41 | 44 | 78..=80 | 83 | 89..=91 | 95 | 99 | 102 | 103 | 112 | 113 | 115 | 119 | 121..=123 => 1,
            17 | 18 | 20 | 35 | 84..=86 | 88 | 92..=94 | 96 | 98 | 100 | 101 | 104 | 105 | 107 | 110 => 0,
            114 | 116..=118 | 120 | 124 | 125 | 127..=130 | 132..=138 | 141..=147 => 0,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ_by_index_and_machine() {
        assert_ne!(uuid("", 0), uuid("", 1));
        assert_ne!(uuid("", 0), uuid("a", 0));
        assert_eq!(uuid("a", 3), uuid("a", 3));
    }

    #[test]
    fn visible_devices_follow_the_setting() {
        let machine: Vec<_> = (0..4).map(|i| uuid("", i)).collect();
        let chosen = |setting: Option<&str>| visible(&machine, setting);
        assert_eq!(chosen(None), Some(vec![0, 1, 2, 3]));
        assert_eq!(chosen(Some("2,0")), Some(vec![2, 0]));
        assert_eq!(chosen(Some("1,9,0")), Some(vec![1]));
        assert_eq!((chosen(Some("")), chosen(Some("1,1"))), (Some(vec![]), None));
        let name = uuid_text(&machine[3]);
        assert_eq!(chosen(Some(&name[..12])), Some(vec![3]));
        assert_eq!(chosen(Some(&format!("0,{name},{name}"))), None);
        assert_eq!(chosen(Some(&format!("{name},x,{name}"))), Some(vec![3]));
        assert_eq!((chosen(Some(&format!("{name} , 0"))), chosen(Some(&format!(" {name}")))), (Some(vec![3, 0]), Some(vec![])));
        assert_eq!(chosen(Some(&name.to_uppercase())), Some(vec![3]));
        assert_eq!((chosen(Some("GPU-")), chosen(Some("GPU-x"))), (Some(vec![]), Some(vec![])));
        // Of two that begin alike none is meant.
        assert_eq!(with_uuid(&[[1; 16], [1; 16]], "GPU-01"), None);
    }
}
