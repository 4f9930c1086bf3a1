//! Single instructions at the edges of their domains.

use super::*;

/// Runs `body` with the bits of a, b and c in registers of each width; the result is left in %rd9.
///
/// %ra, %rb, %rc are 32-bit, %da, %db, %dc 64-bit, %d 32-bit (taken as the result if `narrow`), %p0 to %p3 predicates.
fn eval(body: &str, narrow: bool, args: [u64; 3]) -> u64 {
    let tail = if narrow { "cvt.u64.u32 %rd9, %d;" } else { "" };
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 o, .param .u64 a, .param .u64 b, .param .u64 c)\n{{\n.reg .b64 %rd<10>;\n.reg .b64 %da, %db, %dc;\n.reg .b32 %ra, %rb, %rc, %d, %e;\n.reg .b16 %h<4>;\n.reg .pred %p<4>;\nld.param.u64 %rd0, [o];\nld.param.b64 %da, [a];\nld.param.b64 %db, [b];\nld.param.b64 %dc, [c];\nld.param.b32 %ra, [a];\nld.param.b32 %rb, [b];\nld.param.b32 %rc, [c];\n{body}\n{tail}\nst.global.u64 [%rd0], %rd9;\nret;\n}}\n"
    );
    let m = Machine::new(&text);
    let o = m.buffer(&[0u64]);
    m.launch("k", 1, 1, &[&o.bytes(), &args[0].bytes(), &args[1].bytes(), &args[2].bytes()]).expect(body);
    m.read::<u64>(o, 1)[0]
}

/// A 32-bit instruction on up to three sources.
fn op32(op: &str, args: &[u32]) -> u32 {
    let names = ["%ra", "%rb", "%rc"][..args.len()].join(", ");
    let mut all = [0; 3];
    for (to, from) in all.iter_mut().zip(args) {
        *to = u64::from(*from);
    }
    eval(&format!("{op} %d, {names};"), true, all) as u32
}

/// A 64-bit instruction on up to three sources.
fn op64(op: &str, args: &[u64]) -> u64 {
    let names = ["%da", "%db", "%dc"][..args.len()].join(", ");
    let mut all = [0; 3];
    all[..args.len()].copy_from_slice(args);
    eval(&format!("{op} %rd9, {names};"), false, all)
}

fn f32s(op: &str, args: &[f32]) -> f32 {
    f32::from_bits(op32(op, &args.iter().map(|x| x.to_bits()).collect::<Vec<_>>()))
}

fn f64s(op: &str, args: &[f64]) -> f64 {
    f64::from_bits(op64(op, &args.iter().map(|x| x.to_bits()).collect::<Vec<_>>()))
}

#[test]
fn shifts_clamp() {
    for (op, a, n, want) in [
        ("shl.b32", 1, 31, 1 << 31),
        ("shl.b32", 1, 32, 0),
        ("shr.u32", !0, 32, 0),
        ("shr.u32", !0, 255, 0),
        ("shr.s32", 1 << 31, 99, !0),
        ("shr.s32", 1 << 31, 31, !0),
    ] {
        assert_eq!(op32(op, &[a, n]), want, "{op} {n}");
    }
    assert_eq!(eval("shl.b64 %rd9, %da, %rb;", false, [1, 64, 0]), 0);
    assert_eq!(eval("shr.s64 %rd9, %da, %rb;", false, [1 << 63, 200, 0]), u64::MAX);
}

#[test]
fn integer_arithmetic_at_the_edges() {
    assert_eq!(op32("div.u32", &[7, 0]), u32::MAX);
    assert_eq!(op32("div.s32", &[1 << 31, u32::MAX]), 1 << 31);
    assert_eq!(op32("rem.s32", &[-7i32 as u32, 3]), -1i32 as u32);
    assert_eq!(op32("abs.s32", &[1 << 31]), 1 << 31);
    assert_eq!(op32("mul.hi.s32", &[-1i32 as u32, 5]), u32::MAX);
    assert_eq!(op32("mul.hi.u32", &[u32::MAX, u32::MAX]), u32::MAX - 1);
    assert_eq!(op64("mul.hi.u64", &[u64::MAX, u64::MAX]), u64::MAX - 1);
    assert_eq!(op64("mul.hi.s64", &[u64::MAX, 2]), u64::MAX);
    assert_eq!(eval("mul.wide.s32 %rd9, %ra, %rb;", false, [u64::from(u32::MAX), 3, 0]) as i64, -3);
    assert_eq!(eval("mad.wide.u32 %rd9, %ra, %rb, %dc;", false, [u64::from(u32::MAX), 2, 5]), 0x2_0000_0003);
    assert_eq!(op32("add.sat.s32", &[i32::MAX as u32, 1]), i32::MAX as u32);
    assert_eq!(op32("mad.lo.s32", &[3, 4, 5]), 17);
    assert_eq!(op32("sad.s32", &[-5i32 as u32, 5, 1]), 11);
    assert_eq!(op32("mul24.lo.u32", &[0xff00_0003, 5]), 15);
}

#[test]
fn carries_chain() {
    let sum = "add.cc.u32 %d, %ra, %rb;\naddc.u32 %e, %rc, %rc;\nmov.b64 %rd9, {%d, %e};";
    assert_eq!(eval(sum, false, [u64::from(u32::MAX), 2, 1]), 3 << 32 | 1);
    let difference = "sub.cc.u64 %rd1, %da, %db;\nsubc.u64 %rd9, %dc, 0;";
    assert_eq!(eval(difference, false, [1, 2, 10]), 9);
    assert_eq!(eval(difference, false, [2, 2, 10]), 10);
    let product = "mad.lo.cc.u32 %d, %ra, %rb, %rc;\nmadc.hi.u32 %e, %ra, %rb, 0;\nmov.b64 %rd9, {%d, %e};";
    let (a, b, c) = (0xdead_beef, 0xcafe_f00d, 0xffff_ffff);
    assert_eq!(eval(product, false, [a, b, c]), a * b + c);
}

#[test]
fn bit_fields() {
    assert_eq!(op32("bfe.u32", &[0xabcd_1234, 8, 8]), 0x12);
    assert_eq!(op32("bfe.s32", &[0x0000_8000, 8, 8]), 0xffff_ff80);
    assert_eq!(op32("bfe.s32", &[0x8000_0000, 28, 16]), 0xffff_fff8);
    assert_eq!(op32("bfe.u32", &[0xffff_ffff, 40, 8]), 0);
    assert_eq!(op32("bfe.u32", &[5, 0, 0]), 0);
    assert_eq!(eval("bfi.b32 %d, %ra, %rb, 8, 8;", true, [0x5ff, 0x1111_1111, 0]), 0x1111_ff11);
    assert_eq!(eval("bfi.b64 %rd9, %da, %db, 32, 32;", false, [7, 9, 0]), 7 << 32 | 9);
    assert_eq!([0, 1, 0x8000_0000].map(|a| op32("bfind.u32", &[a])), [u32::MAX, 0, 31]);
    assert_eq!(op32("bfind.s32", &[u32::MAX]), u32::MAX);
    assert_eq!(op32("bfind.shiftamt.u32", &[1]), 31);
    assert_eq!(op32("clz.b32", &[0]), 32);
    assert_eq!(op32("popc.b32", &[0xf0f0]), 8);
    assert_eq!(op32("brev.b32", &[1]), 1 << 31);
    assert_eq!(op32("prmt.b32", &[0x0403_0281, 0x0807_0605, 0x7098]), 0x0881_00ff);
    assert_eq!(eval("lop3.b32 %d, %ra, %rb, %rc, 0x96;", true, [0b1100, 0b1010, 0b0110]), 0b1100 ^ 0b1010 ^ 0b0110);
    assert_eq!(eval("lop3.b32 %d, %ra, %rb, %rc, 0xca;", true, [0b1100, 0b1010, 0b0110]), (0b1100 & 0b1010) | (0b0011 & 0b0110));
    assert_eq!(eval("shf.l.wrap.b32 %d, %ra, %rb, %rc;", true, [0x8000_0001, 2, 33]), 5);
    assert_eq!(eval("shf.r.clamp.b32 %d, %ra, %rb, %rc;", true, [1, 2, 99]), 2);
    assert_eq!(op32("dp4a.s32.u32", &[0x01ff_0203, 0x0101_01ff, 10]), (10 + 3 * 255 + 2 - 1 + 1) as u32);
}

#[test]
fn fused_and_directed() {
    // The product's low bits survive only in a fused operation.
    let x = 1.0 + f32::EPSILON;
    assert_eq!(f32s("fma.rn.f32", &[x, x, -(x * x)]), f32::EPSILON * f32::EPSILON);
    assert_eq!(f32s("add.rp.f32", &[1.0, 1e-20]), 1f32.next_up());
    assert_eq!(f32s("mul.rz.f32", &[f32::MAX, 2.0]), f32::MAX);
    assert_eq!(
        f32s("rcp.rm.f32", &[3.0]),
        (1f64 / 3.0) as f32 - if (1f64 / 3.0) as f32 as f64 > 1f64 / 3.0 { f32::EPSILON / 4.0 } else { 0.0 }
    );
    assert_eq!(f64s("add.rz.f64", &[1.0, -1e-300]), 1f64.next_down());
    assert_eq!(f64s("fma.rn.f64", &[1e16, 1.0, 1.0]), 1e16);
    assert_eq!(f64s("div.rp.f64", &[1.0, 3.0]), f64s("div.rm.f64", &[1.0, 3.0]).next_up());
    assert_eq!(f64s("sqrt.rn.f64", &[2.0]), 2f64.sqrt());
}

#[test]
fn subnormals_flush_on_request() {
    let tiny = f32::from_bits(5);
    assert_eq!(f32s("add.f32", &[tiny, 0.0]), tiny);
    assert_eq!(f32s("add.ftz.f32", &[-tiny, 0.0]).to_bits(), 0);
    assert_eq!(f32s("mul.ftz.f32", &[-1e-30, 1e-10]).to_bits(), 1 << 31);
    assert_eq!(f32s("abs.ftz.f32", &[-tiny]).to_bits(), 0);
    assert_eq!(eval("setp.gt.ftz.f32 %p0, %ra, 0f00000000;\nselp.u32 %d, 1, 0, %p0;", true, [5, 0, 0]), 0);
}

#[test]
fn not_a_number() {
    let nan = f32::NAN;
    assert_eq!(f32s("min.f32", &[nan, 2.0]), 2.0);
    assert_eq!(f32s("max.f32", &[1.0, nan]), 1.0);
    assert!(f32s("min.NaN.f32", &[nan, 2.0]).is_nan());
    assert_eq!(f32s("min.f32", &[0.0, -0.0]).to_bits(), 1 << 31);
    assert_eq!(f32s("max.f32", &[-0.0, 0.0]).to_bits(), 0);
    assert_eq!(f32s("sub.f32", &[f32::INFINITY, f32::INFINITY]).to_bits(), 0x7fff_ffff);
    assert_eq!(f32s("add.sat.f32", &[nan, 1.0]), 0.0);
    assert_eq!(f32s("fma.rn.sat.f32", &[2.0, 3.0, 1.0]), 1.0);
    for (op, want) in [("lt", 0), ("ltu", 1), ("eq", 0), ("neu", 1), ("ne", 0), ("num", 0), ("nan", 1), ("geu", 1)] {
        let body = format!("setp.{op}.f32 %p0, %ra, %rb;\nselp.u32 %d, 1, 0, %p0;");
        assert_eq!(eval(&body, true, [u64::from(nan.to_bits()), 0, 0]), want, "{op}");
    }
}

#[test]
fn comparisons_combine() {
    let body = "setp.ne.s32 %p1, %rc, 0;\nsetp.lt.and.s32 %p2|%p3, %ra, %rb, !%p1;\nselp.u32 %d, 1, 0, %p2;\nselp.u32 %e, 2, 0, %p3;\nor.b32 %d, %d, %e;";
    let minus = u64::from(u32::MAX);
    assert_eq!(eval(body, true, [minus, 1, 0]), 1);
    assert_eq!(eval(body, true, [1, minus, 0]), 2);
    assert_eq!(eval(body, true, [minus, 1, 1]), 0);
    assert_eq!(eval("setp.lo.u32 %p0, %ra, %rb;\nselp.u32 %d, 1, 0, %p0;", true, [minus, 1, 0]), 0);
    assert_eq!(eval("set.lt.u32.s32 %d, %ra, %rb;", true, [minus, 1, 0]), minus);
    assert_eq!(eval("set.lt.f32.s32 %d, %ra, %rb;", true, [minus, 1, 0]), u64::from(1f32.to_bits()));
    assert_eq!(eval("testp.subnormal.f32 %p0, %ra;\nselp.u32 %d, 1, 0, %p0;", true, [5, 0, 0]), 1);
    assert_eq!(eval("testp.normal.f32 %p0, %ra;\nselp.u32 %d, 1, 0, %p0;", true, [0x7f80_0000, 0, 0]), 0);
}

#[test]
fn conversions() {
    let bits = |x: f32| u64::from(x.to_bits());
    assert_eq!(eval("cvt.rzi.s32.f32 %d, %ra;", true, [bits(-2.9), 0, 0]) as i32, -2);
    assert_eq!(eval("cvt.rni.s32.f32 %d, %ra;", true, [bits(2.5), 0, 0]), 2);
    assert_eq!(eval("cvt.rmi.s32.f32 %d, %ra;", true, [bits(-2.1), 0, 0]) as i32, -3);
    assert_eq!(eval("cvt.rzi.u32.f32 %d, %ra;", true, [bits(-5.0), 0, 0]), 0);
    assert_eq!(eval("cvt.rzi.s32.f32 %d, %ra;", true, [bits(f32::NAN), 0, 0]), 0);
    assert_eq!(eval("cvt.rzi.s64.f64 %rd9, %da;", false, [f64::NAN.to_bits(), 0, 0]), 1 << 63);
    assert_eq!(eval("cvt.sat.u8.s32 %d, %ra;", true, [300, 0, 0]), 255);
    assert_eq!(eval("cvt.s32.s8 %d, %ra;", true, [0x180, 0, 0]), 0xffff_ff80);
    assert_eq!(eval("cvt.s64.s16 %rd9, %ra;", false, [0x1_8000, 0, 0]) as i64, -32768);
    assert_eq!(eval("cvt.u16.u64 %h0, %da;\ncvt.u32.u16 %d, %h0;", true, [0x12_3456, 0, 0]), 0x3456);
    assert_eq!(eval("cvt.rp.f32.s32 %d, %ra;", true, [0x0100_0001, 0, 0]), bits(16777218.0));
    assert_eq!(eval("cvt.rz.f32.f64 %d, %da;", true, [1.9999999999f64.to_bits(), 0, 0]), bits(2f32.next_down()));
    assert_eq!(eval("cvt.rn.f16.f32 %h0, %ra;\ncvt.u32.u16 %d, %h0;", true, [bits(1.5), 0, 0]), 0x3e00);
    assert_eq!(eval("mov.b32 {%h0, %h1}, %ra;\ncvt.f32.f16 %d, %h1;", true, [0xc000_3c00, 0, 0]), bits(-2.0));
    assert_eq!(eval("cvt.rn.bf16x2.f32 %d, %ra, %rb;", true, [bits(1.0), bits(-2.0), 0]), 0x3f80_c000);
    assert_eq!(eval("cvt.rni.f32.f32 %d, %ra;", true, [bits(3.5), 0, 0]), bits(4.0));
    assert_eq!(eval("cvt.sat.f32.f32 %d, %ra;", true, [bits(-3.5), 0, 0]), 0);
}

#[test]
fn halves() {
    // 1.5, 2 | 0.5, 3
    assert_eq!(op32("add.f16x2", &[0x4000_3e00, 0x4200_3800]), 0x4500_4000);
    assert_eq!(op32("fma.rn.f16x2", &[0x3c00_3c00, 0x4000_4200, 0x3c00_3c00]), 0x4200_4400);
    assert_eq!(op32("neg.f16x2", &[0x0000_3c00]), 0x8000_bc00);
    assert_eq!(op32("max.f16x2", &[0x7e00_3c00, 0x4000_4000]), 0x4000_4000);
    assert_eq!(op32("mul.bf16x2", &[0x4000_4000, 0x4040_3f80]), 0x40c0_4000);
    assert_eq!(op32("set.gt.f16x2.f16x2", &[0x4000_3c00, 0x3c00_4000]), 0x3c00_0000);
}

#[test]
fn atomics_on_shared_memory_and_halves() {
    let body = ".shared .align 8 .b8 s[16];\nst.shared.u32 [s+4], 7;\natom.shared.add.u32 %d, [s+4], %ra;\natom.shared.cas.b32 %e, [s+4], 10, 77;\nld.shared.u32 %rc, [s+4];\nmov.b64 %rd9, {%d, %rc};";
    assert_eq!(eval(body, false, [3, 0, 0]), 77 << 32 | 7);
    let half = "st.global.u32 [%rd0], %ra;\natom.global.add.noftz.f16x2 %d, [%rd0], %rb;\nld.global.u32 %d, [%rd0];";
    assert_eq!(eval(half, true, [0x3c00_3c00, 0x4000_3c00, 0]), 0x4200_4000);
    let small = "st.global.u32 [%rd0], %ra;\nmov.u16 %h0, 2;\nmov.u16 %h1, 9;\natom.global.cas.b16 %h2, [%rd0+2], %h0, %h1;\nld.global.u32 %d, [%rd0];";
    assert_eq!(eval(small, true, [0x0002_0001, 0, 0]), 0x0009_0001);
}

#[test]
fn address_windows() {
    let body = ".shared .align 4 .b8 s[4];\n.local .align 4 .b8 l[4];\nmov.u64 %rd1, s;\ncvta.shared.u64 %rd1, %rd1;\nmov.u64 %rd2, l;\ncvta.local.u64 %rd2, %rd2;\nisspacep.shared %p0, %rd1;\nisspacep.local %p1, %rd2;\nisspacep.global %p2, %rd0;\nisspacep.global %p3, %rd1;\nselp.u32 %d, 1, 0, %p0;\n@%p1 add.u32 %d, %d, 2;\n@%p2 add.u32 %d, %d, 4;\n@%p3 add.u32 %d, %d, 8;\nst.u32 [%rd1], 16;\nst.u32 [%rd2], 32;\nld.shared.u32 %e, [s];\nadd.u32 %d, %d, %e;\nld.local.u32 %e, [l];\nadd.u32 %d, %d, %e;";
    assert_eq!(eval(body, true, [0; 3]), 1 + 2 + 4 + 16 + 32);
}

#[test]
fn branches_through_a_list() {
    let body = "ts: .branchtargets A, B, C;\nmov.u32 %d, 1;\nbrx.idx %ra, ts;\nA: add.u32 %d, %d, 10;\nB: add.u32 %d, %d, 100;\nC: add.u32 %d, %d, 1000;";
    assert_eq!([0, 1, 2].map(|n| eval(body, true, [n, 0, 0])), [1111, 1101, 1001]);
}

#[test]
fn inner_scopes_hide_names() {
    let body = "mov.u32 %d, 1;\n{ .reg .b32 %d; mov.u32 %d, 5; L: add.u32 %d, %d, 1; }\n{ .reg .b32 t; L: mov.u32 t, %d; add.u32 %d, t, 1; }";
    assert_eq!(eval(body, true, [0; 3]), 2);
}

#[test]
fn negated_guards_and_predicate_logic() {
    let body = "setp.eq.u32 %p0, %ra, 1;\nsetp.eq.u32 %p1, %rb, 1;\nxor.pred %p2, %p0, %p1;\nnot.pred %p3, %p2;\nmov.u32 %d, 0;\n@%p2 add.u32 %d, %d, 1;\n@!%p3 add.u32 %d, %d, 2;\n@%p3 add.u32 %d, %d, 4;";
    assert_eq!(eval(body, true, [1, 0, 0]), 3);
    assert_eq!(eval(body, true, [1, 1, 0]), 4);
}
