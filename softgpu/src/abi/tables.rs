//! The private tables that NVIDIA's runtime libraries require: [`cuda_model::cudart`] implements them, this module is
//! its host.

use super::{In, Out, Res, abi};
use crate::config;
use crate::gpu::{code, context, device, module, output, process};
use cuda_api::code::Code;
use cuda_api::hex::hex;
use cuda_api::pointer::InPtr;
use cuda_api::sys::{CUresult, CUuuid};
use cuda_model::cudart::{self, DeviceIdentity, Host};
use std::ffi::{CStr, c_void};
use std::sync::Once;

struct Driver;

impl Host for Driver {
    fn driver_version(&self) -> i32 {
        config::get().driver_version
    }

    fn devices(&self) -> Vec<DeviceIdentity> {
        let identity = |d: &std::sync::Arc<device::Device>| DeviceIdentity {
            uuid: d.uuid,
            pci_domain: d.pci_domain,
            pci_bus: d.pci_bus,
            pci_device: 0,
        };
        device::all().iter().map(identity).collect()
    }

    fn current_context(&self) -> usize {
        context::top().map_or(0, |context| context.handle)
    }

    fn primary_context(&self, ordinal: i32) -> Result<usize, Code> {
        process::ready().and_then(|()| Ok(context::primary(device::get(ordinal)?).handle)).map_err(number)
    }

    fn load_fatbin(&self, image: InPtr<c_void>) -> Result<usize, Code> {
        process::ready().and_then(|()| load(image.as_ptr())).map_err(number)
    }

    fn functions(&self, module: usize) -> Result<Vec<(usize, &'static CStr)>, Code> {
        let (module, _) = process::ready().and_then(|()| module::resolve(module)).map_err(number)?;
        let named = |i| {
            let function = module.function(i);
            // SAFETY: the string lives as long as the module, which whoever asks has loaded.
            (function.handle, unsafe { CStr::from_ptr(function.name.as_ptr()) })
        };
        Ok(module::kernels(&module.program.image).into_iter().map(named).collect())
    }

    fn unknown_table(&self, uuid: &[u8; 16]) {
        output::complain(&format!("softgpu: unknown private table {}\n", hex(uuid)));
    }

    fn unknown_slot(&self, uuid: &[u8; 16], slot: usize) {
        output::complain(&format!("softgpu: unknown slot {slot} of private table {}\n", hex(uuid)));
    }
}

fn number(error: CUresult) -> Code {
    error as Code
}

fn load(image: *const c_void) -> Res<usize> {
    let live = context::current()?;
    let image = module::parse(&code::from_pointer(image)?)?;
    Ok(module::load(&live, image, None)?.handle)
}

abi! {
    early fn cuGetExportTable(table: Out<*const c_void> as *mut *const c_void, id: In<[u8; 16]> as *const CUuuid) {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| cudart::install(&Driver));
        let found = cudart::table(&id.get()?);
        table.set(found.unwrap_or(std::ptr::null()))?;
        found.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}
