//! Queries of a variable of loaded code by its name: answered in the job if the variable is managed, or the place has said where it is.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::enter::CallContext;
use crate::host_memory::managed_variables;
use crate::job::Device;
use cuda_api::calls::Call;
use cuda_api::calls::module::{cuLibraryGetGlobal, cuModuleGetGlobal_v2};
use cuda_api::code::{self, Code};
use cuda_api::wire::Wire;

/// Rows that query a variable by its name.
pub(super) const ANSWERED: [u16; 2] = [cuModuleGetGlobal_v2::Fn::ID, cuLibraryGetGlobal::Fn::ID];

/// The answer to such a call, if the variable is managed, or the place has said where it is.
pub(super) fn answer(cx: &CallContext, call: u16, mut body: &[u8]) -> Option<Result<Vec<u8>, Code>> {
    let find = |owner: u64, name: &[u8]| {
        let said = || lock(&cx.device().ok()?.ledger).code.variable(owner, name);
        managed_variables::find(cx, owner, name).or_else(said)
    };
    let (reply, is_asked) = if call == cuModuleGetGlobal_v2::Fn::ID {
        let asked = cuModuleGetGlobal_v2::Sent::get(&mut body).ok()?;
        let (at, bytes) = find(asked.hmod, &asked.name)?;
        let (dptr, bytes) = (asked.dptr.then_some(at), asked.bytes.then_some(bytes as usize));
        (encode(&cuModuleGetGlobal_v2::Reply { dptr, bytes, hmod: (), name: () }), asked.dptr || asked.bytes)
    } else {
        let asked = cuLibraryGetGlobal::Sent::get(&mut body).ok()?;
        let (at, bytes) = find(asked.library, &asked.name)?;
        let (dptr, bytes) = (asked.dptr.then_some(at), asked.bytes.then_some(bytes as usize));
        (encode(&cuLibraryGetGlobal::Reply { dptr, bytes, library: (), name: () }), asked.dptr || asked.bytes)
    };
    if !is_asked {
        return Some(Err(code::ERROR_INVALID_VALUE));
    }
    // A failed context returns its error.
    Some(cx.device().and_then(Device::check).map(|()| reply))
}
