//! What must hold at a target, whose driver and GPU may differ from those with which the job started.
//!
//! A move demands that they are equal, unless the request allows differences. Then each thing on which the job relies is compared by itself:
//! what the program was told must be true, the target must have code for what is loaded, and what a driver or an architecture decides for
//! itself (addresses of functions, the inside of the device heap, tensor maps) must not be in the job's memory. After the replay the target
//! says what its functions can do, and a comparison of addresses shows whether the memory is where it was.

use crate::job::{Device, Job};
use crate::move_error::MoveError;
use cuda_api::ops::{self, FunctionInfo, ImagePut};
use cuda_api::sys::CUdevice_attribute_enum as A;
use cuda_api::wire::Wire;
use cuda_image::{Image, Kind};
use executor::DeviceInfo;
use journal::Record;
use std::sync::atomic::Ordering;

/// In what a target differs from another place of the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Different {
    /// The driver is another version or build.
    driver: bool,
    /// The compute capability is another one.
    architecture: bool,
    /// The compute capability of the target: 10 × major + minor.
    capability: u32,
    /// The compute capability of the other place.
    from: u32,
    /// It differs in any way.
    any: bool,
}

impl Different {
    /// In what a target differs from the place where a device executed last. What a driver or an architecture has decided is in memory as
    /// that place decided, or as earlier places did that decide the same: otherwise the device could not have come there.
    pub(super) fn since(device: &Device, target: &DeviceInfo) -> Different {
        Different::of(target, &device.executed_at())
    }

    /// What differs at a target. Of a driver whose build is not known, only the version counts.
    pub(super) fn of(have: &DeviceInfo, want: &DeviceInfo) -> Different {
        let known = !have.driver_build.is_empty() && !want.driver_build.is_empty();
        let driver = have.driver_version != want.driver_version || (known && have.driver_build != want.driver_build);
        let number = |n: i32| u32::try_from(n).unwrap_or_default();
        let capability = |info: &DeviceInfo| number(info.capability[0]) * 10 + number(info.capability[1]);
        Different {
            driver,
            architecture: have.capability != want.capability,
            capability: capability(have),
            from: capability(want),
            any: have.driver_version != want.driver_version
                || have.capability != want.capability
                || !differences(have, want).is_empty(),
        }
    }

    /// Whether there is anything beyond the usual comparisons to check.
    pub(super) fn any(self) -> bool {
        self.any
    }

    /// What a plan says about a move that is possible.
    pub(super) fn notes(self) -> Vec<String> {
        let architecture = "the compute capability differs: results of floating-point arithmetic may differ in their last bits, and code that the program loads \
                            later must run on the target";
        let other = "the program was told the properties of its first GPU: what it does later may need more than the target has";
        let mut notes: Vec<String> = Vec::new();
        notes.extend(self.architecture.then(|| architecture.to_owned()));
        notes.extend(self.any.then(|| other.to_owned()));
        notes
    }

    /// Why the target cannot hold what a record makes.
    pub(super) fn blocker(self, record: &Record<'_>) -> Option<MoveError> {
        let code = self.driver || self.architecture;
        match record.id {
            ops::id::HEAP_MAKE if self.any => Some(MoveError::NotShown(
                "the job's code uses the device heap, which each driver organizes in its own way for its GPU",
            )),
            ops::id::TILE_POOL_MAKE if code => {
                Some(MoveError::NotShown("the job has sparse arrays, whose tiles each driver and GPU stores in its own way"))
            }
            ops::id::IMAGE_PUT if code => self.image_blocker(record.body),
            _ => None,
        }
    }

    fn image_blocker(self, mut body: &[u8]) -> Option<MoveError> {
        let image = ImagePut::get(&mut body).ok().and_then(|put| Image::from_bytes(Kind::from_code(put.kind)?, body.into()).ok());
        let Some(image) = image else {
            return Some(MoveError::NotShown("the job has loaded code that cannot be read"));
        };
        if self.architecture && !image.has_code_for(self.capability) {
            return Some(MoveError::NoCode { capability: self.capability });
        }
        if self.architecture && !image.is_same_code(self.from, self.capability) {
            let other = "the job has loaded code of which the target would execute a variant that was made for another compute capability";
            return Some(MoveError::NotShown(other));
        }
        let functions = "the job's code takes addresses of functions, which may differ there and may be in the job's memory";
        image.takes_addresses_of_functions().then_some(MoveError::NotShown(functions))
    }
}

/// Why a device cannot be at a target that differs, whatever is loaded.
pub(super) fn state_blockers(job: &Job, device: &Device, different: Different) -> Option<MoveError> {
    if different.architecture && job.made_tensor_maps.load(Ordering::Relaxed) {
        return Some(MoveError::NotShown("the job has made tensor maps, whose form depends on the compute capability"));
    }
    let clusters = "the job has launched clusters of blocks, and each GPU holds other numbers of them";
    (different.any && device.resident.has_clusters()).then_some(MoveError::NotShown(clusters))
}

/// How an attribute of a target may differ from what the program was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// It must be the same.
    Equal,
    /// It must not be less.
    AtLeast,
    /// It must not be more.
    AtMost,
    /// What is aligned as the program was told must be aligned at the target.
    Divides,
    /// It must have all bits that the program was told.
    Bits,
    /// It may be anything.
    Free,
}

/// Attributes by which programs choose what they launch and create, and which determine the layout of memory. They are the same at a target,
/// or as the rule demands if the request allows differences.
const RELIED_ON: [(A, &str, Rule); 22] = [
    // Cooperative launches are compared by themselves.
    (A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessors", Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, "threads of a multiprocessor", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, "blocks of a multiprocessor", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, "registers of a multiprocessor", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, "bytes of shared memory of a multiprocessor", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, "threads of a block", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, "registers of a block", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, "bytes of shared memory of a block", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, "bytes of shared memory that a block can ask for", Rule::AtLeast),
    (
        A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
        "bytes of shared memory of a block that are the driver's",
        Rule::AtMost,
    ),
    (A::CU_DEVICE_ATTRIBUTE_WARP_SIZE, "threads of a warp", Rule::Equal),
    (A::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, "launches of clusters (1: possible)", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, "cooperative launches (1: possible)", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, "bytes of constant memory", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "bytes of L2 cache", Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, "bytes of L2 cache that can be set aside", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, "bytes of an access policy window", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, "bytes of the alignment of textures", Rule::Divides),
    (A::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, "bytes of the alignment of rows of textures", Rule::Divides),
    (A::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, "bytes of the alignment of surfaces", Rule::Divides),
    (A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "unified addressing (1: yes)", Rule::AtLeast),
    (A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management (1: yes)", Rule::AtLeast),
];

/// How other attributes may differ if the request allows differences. Those in neither list are limits, or say whether something is
/// possible: they must not be less.
const OTHER: [(A, Rule); 29] = [
    (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_INTEGRATED, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_ECC_ENABLED, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_TCC_DRIVER, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_NUMA_ID, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_MPS_ENABLED, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, Rule::Bits),
    (A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, Rule::Bits),
    (A::CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, Rule::Bits),
    // Jobs have host memory of their own at every place.
    (A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, Rule::Free),
    (A::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, Rule::Free),
];

impl Rule {
    fn holds(self, target: i32, known: i32) -> bool {
        match self {
            Rule::Equal => target == known,
            Rule::AtLeast => target >= known,
            Rule::AtMost => target <= known,
            Rule::Divides => target > 0 && known % target == 0,
            Rule::Bits => target & known == known,
            Rule::Free => true,
        }
    }
}

/// In which attributes the target's GPU or driver differs from the one with which the job started. The job's code, launch sizes and
/// addresses of variables were chosen for that one.
pub(super) fn differences(have: &DeviceInfo, want: &DeviceInfo) -> Vec<MoveError> {
    let mut all = Vec::new();
    let known = !have.driver_build.is_empty() && !want.driver_build.is_empty();
    if known && have.driver_build != want.driver_build {
        all.push(MoveError::DriverBuild { target: have.driver_build.clone(), job: want.driver_build.clone() });
    }
    let value = |info: &DeviceInfo, id: A| info.attribute(id as i32);
    for (id, what, _) in RELIED_ON {
        let (target, job) = (value(have, id), value(want, id));
        if target != job {
            all.push(MoveError::GpuAttribute { what: what.to_owned(), target, job });
        }
    }
    // Without any other difference it may still be another board.
    if all.is_empty() && have.capability == want.capability && have.name != want.name {
        all.push(MoveError::GpuModel { target: have.name.clone(), job: want.name.clone() });
    }
    all
}

/// What the program was told and does not hold at the target.
fn broken(have: &DeviceInfo, want: &DeviceInfo) -> Vec<MoveError> {
    let mut all = Vec::new();
    for (id, value) in &want.attributes {
        let known = RELIED_ON.iter().find(|(other, ..)| *other as i32 == *id).map(|(_, what, rule)| ((*what).to_owned(), *rule));
        let other = || {
            let rule = OTHER.iter().find(|(other, _)| *other as i32 == *id).map_or(Rule::AtLeast, |(_, rule)| *rule);
            (format!("device attribute {id}"), rule)
        };
        let (what, rule) = known.unwrap_or_else(other);
        let target = have.attribute(*id);
        if rule != Rule::Free && !target.is_some_and(|target| rule.holds(target, *value)) {
            all.push(MoveError::GpuAttribute { what, target, job: Some(*value) });
        }
    }
    // Least and greatest; the greatest priority is the lowest number.
    if have.priorities[0] < want.priorities[0] || have.priorities[1] > want.priorities[1] {
        let (what, range) = ("greatest priority of streams".to_owned(), |info: &DeviceInfo| Some(info.priorities[1]));
        all.push(MoveError::GpuAttribute { what, target: range(have), job: range(want) });
    }
    all
}

/// Why a target's driver and GPU do not fit, with the figures. With `allow_different` it is enough that everything holds that the program
/// was told.
pub(super) fn blockers(have: &DeviceInfo, want: &DeviceInfo, allow_different: bool) -> Vec<MoveError> {
    let mut all = Vec::new();
    // Answers of drivers of another major version have other forms; an older one lacks functions that the program has.
    let (newer, major) = (have.driver_version >= want.driver_version, |info: &DeviceInfo| info.driver_version / 1000);
    let version_fits =
        if allow_different { newer && major(have) == major(want) } else { have.driver_version == want.driver_version };
    if !version_fits {
        all.push(MoveError::DriverVersion { target: have.driver_version, job: want.driver_version });
    }
    let capable = if allow_different { have.capability >= want.capability } else { have.capability == want.capability };
    if !capable {
        let (name, target, job) = (have.name.clone(), have.capability, want.capability);
        all.push(MoveError::ComputeCapability { name, target, job });
    }
    all.extend(if allow_different { broken(have, want) } else { differences(have, want) });
    all
}

/// Whether every launch of a function is possible that was possible before.
pub(super) fn function_is_as_good(known: &FunctionInfo, got: &FunctionInfo) -> bool {
    let same = (&got.params, &got.name, got.references) == (&known.params, &known.name, known.references);
    same && got.max_threads >= known.max_threads
        && got.static_shared <= known.static_shared
        && got.max_dynamic_shared >= known.max_dynamic_shared
        && got.system_atomics <= known.system_atomics
}

#[cfg(test)]
mod tests;
