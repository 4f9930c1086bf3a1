//! What must hold at a target, whose driver and GPU may differ from those with which the job started.
//!
//! A move demands that they are equal, unless the request allows differences. Then each thing on which the job relies is compared by itself:
//! what the program was told must be true, the target must have code for what is loaded, and what a driver or an architecture decides for
//! itself (addresses of functions, the inside of the device heap, tensor maps) must not be in the job's memory. The replay shows whether the
//! answers are as good, and a comparison of addresses whether the memory is where it was.

use crate::base::log::lock;
use crate::device_memory::regions;
use crate::job::Device;
use crate::move_error::{MoveError, Unshown};
use crate::objects::resident::Resident;
use crate::place::Place;
use cuda_api::calls::module::cuOccupancyMaxActiveBlocksPerMultiprocessor;
use cuda_api::code;
use cuda_api::ops::{self, CodeFacts, FunctionInfo, ImageLoaded, ImagePut};
use cuda_api::sys::CUdevice_attribute_enum as A;
use cuda_api::wire::Wire;
use cuda_image::{Image, Kind};
use executor::DeviceInfo;
use journal::Record;
use std::sync::Arc;
