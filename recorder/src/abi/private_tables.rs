//! What the driver's private tables need of the recorder.

use crate::job;
use crate::job::contexts::{current, primary};
use cuda_api::hex::hex;
use cuda_api::pointer::InPtr;

/// Functions that NVIDIA's libraries use through the private tables.
#[derive(Debug)]
pub(crate) struct PrivateTables;

impl cuda_model::cudart::Host for PrivateTables {
    fn driver_version(&self) -> i32 {
        crate::abi::start::driver_version()
    }

    fn devices(&self) -> Vec<cuda_model::cudart::DeviceIdentity> {
        let Some(job) = job::opened() else { return Vec::new() };
        job.devices
            .iter()
            .map(|d| cuda_model::cudart::DeviceIdentity {
                uuid: d.info.uuid,
                pci_domain: d.info.pci[0],
                pci_bus: d.info.pci[1],
                pci_device: d.info.pci[2],
            })
            .collect()
    }

    fn current_context(&self) -> usize {
        current() as usize
    }

    fn primary_context(&self, ordinal: i32) -> Result<usize, i32> {
        Ok(primary(job::get()?.device(ordinal)?.index) as usize)
    }

    fn load_fatbin(&self, image: InPtr<std::ffi::c_void>) -> Result<usize, i32> {
        crate::calls::module::load_for_runtime(image)
    }

    fn functions(&self, module: usize) -> Result<Vec<(usize, &'static std::ffi::CStr)>, i32> {
        crate::calls::module::functions(module)
    }

    fn unknown_table(&self, uuid: &[u8; 16]) {
        crate::base::log::missed(format!("private table {}", hex(uuid)));
    }

    fn unknown_slot(&self, uuid: &[u8; 16], slot: usize) {
        crate::base::log::missed(format!("slot {slot} of private table {}", hex(uuid)));
    }
}
