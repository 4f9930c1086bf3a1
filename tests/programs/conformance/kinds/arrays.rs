//! Copies between arrays and memory of every kind.

use super::copies::operation;
use super::{BYTES, ROW, case, end, put, raw_2d, raw_3d, rows, world};
use crate::tell::Tell;
use cuda_api::array::{ARRAY, UNIFIED};
use cuda_api::sys::CUarray;
use cuda_api::work::CopyEnd;
use std::ffi::c_void;

/// What is in an array comes from the memory, and goes there by way of another array.
pub fn arrays(t: &Tell) {
    let w = world(t);
    let (s, a, b) = (w.stream, w.array, w.other);
    let array = |array: CUarray| CopyEnd { memory: ARRAY, array: array as u64, ..CopyEnd::default() };
    for (m, seed) in w.memory.iter().zip(1..) {
        let at = m.at;
        let through = |name: &str, into: &dyn Fn() -> i32, out: &dyn Fn() -> i32| {
            case(t, name, m, || {
                put(t, m, seed, BYTES);
                let whole = raw_3d(&rows(array(a), array(b)));
                let codes = [into(), call!(t, memory.cuMemcpy3D_v2(whole.as_ptr()))];
                call!(t, context.cuCtxSynchronize());
                put(t, m, 0x5a, BYTES);
                codes.into_iter().chain([out()]).find(|code| *code != 0).unwrap_or(0)
            });
        };
        t.about(m.name);
        through("cuMemcpyDtoA_v2, cuMemcpyAtoD_v2", &|| call!(t, array.cuMemcpyDtoA_v2(a, 0, at, ROW)), &|| {
            call!(t, array.cuMemcpyAtoD_v2(at, b, 0, ROW))
        });
        if m.host {
            let (from, to) = (at as *const c_void, at as *mut c_void);
            through("cuMemcpyHtoA_v2, cuMemcpyAtoH_v2", &|| call!(t, array.cuMemcpyHtoA_v2(a, 0, from, ROW)), &|| {
                call!(t, array.cuMemcpyAtoH_v2(to, b, 0, ROW))
            });
            let into = || call!(t, array.cuMemcpyHtoAAsync_v2(a, 0, from, ROW, s));
            through("cuMemcpyHtoAAsync_v2, cuMemcpyAtoHAsync_v2", &into, &|| {
                call!(t, array.cuMemcpyAtoHAsync_v2(to, b, 0, ROW, s))
            });
        }
        let (into, out) = (rows(end(UNIFIED, at), array(a)), rows(array(b), end(UNIFIED, at)));
        let (flat_in, flat_out, deep_in, deep_out) = (raw_2d(&into), raw_2d(&out), raw_3d(&into), raw_3d(&out));
        through("cuMemcpy2D_v2", &|| call!(t, memory.cuMemcpy2D_v2(flat_in.as_ptr())), &|| {
            call!(t, memory.cuMemcpy2D_v2(flat_out.as_ptr()))
        });
        through("cuMemcpy2DAsync_v2", &|| call!(t, memory.cuMemcpy2DAsync_v2(flat_in.as_ptr(), s)), &|| {
            call!(t, memory.cuMemcpy2DAsync_v2(flat_out.as_ptr(), s))
        });
        through("cuMemcpy3D_v2", &|| call!(t, memory.cuMemcpy3D_v2(deep_in.as_ptr())), &|| {
            call!(t, memory.cuMemcpy3D_v2(deep_out.as_ptr()))
        });
        through("cuMemcpy3DAsync_v2", &|| call!(t, memory.cuMemcpy3DAsync_v2(deep_in.as_ptr(), s)), &|| {
            call!(t, memory.cuMemcpy3DAsync_v2(deep_out.as_ptr(), s))
        });
        for order in 1..4 {
            let batch = |mut op: [u64; 14]| call!(t, memory.cuMemcpy3DBatchAsync_v2(1, op.as_mut_ptr().cast(), 0, s));
            let (of_a, of_b, memory) = ([2, a as u64, 0, 0, 0], [2, b as u64, 0, 0, 0], [1, at, 0, 0, 0]);
            through(&format!("cuMemcpy3DBatchAsync_v2, order {order}"), &|| batch(operation(&memory, &of_a, order)), &|| {
                batch(operation(&of_b, &memory, order))
            });
        }
        let node = |copy| super::graphs::copied(t, &w, copy);
        through("cuGraphAddMemcpyNode", &|| node(&into), &|| node(&out));
        let captured = |copy: &dyn Fn() -> i32| super::graphs::captured(t, &w, copy);
        through(
            "captured cuMemcpy2DAsync_v2",
            &|| captured(&|| call!(t, memory.cuMemcpy2DAsync_v2(flat_in.as_ptr(), s))),
            &|| captured(&|| call!(t, memory.cuMemcpy2DAsync_v2(flat_out.as_ptr(), s))),
        );
    }
}
