//! Faults, errors in the text, and malicious texts.

use super::*;

/// A kernel with one pointer parameter in %rd0 and some registers.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n.reg .b64 %rd<8>;\n.reg .b32 %r<8>;\n.reg .pred %p<4>;\nld.param.u64 %rd0, [p];\n{body}\nret;\n}}\n"
    )
}

fn outcome(body: &str, pointer: impl Fn(&Machine) -> u64) -> Result<RunStats, Fault> {
    let m = Machine::new(&kernel(body));
    let p = pointer(&m);
    m.launch("k", 1, 32, &[&p.bytes()])
}

#[test]
fn global_accesses_stay_in_range() {
    let end = |m: &Machine| m.arena.range().1;
    let store = "st.global.u32 [%rd0], 1;";
    assert!(outcome(store, |m| end(m) - 4).is_ok());
    for (body, back) in
        [(store, 0), ("ld.u32 %r0, [%rd0];", 0), ("atom.global.add.u32 %r0, [%rd0], 1;", 0), ("st.u64 [%rd0+8], %rd0;", 8)]
    {
        let fault = outcome(body, |m| end(m) - back);
        assert!(matches!(fault, Err(Fault::IllegalAddress(_))), "{body}: {fault:?}");
    }
    assert_eq!(outcome(store, |_| 0), Err(Fault::IllegalAddress(0)));
    assert_eq!(outcome(store, |_| u64::MAX - 3), Err(Fault::IllegalAddress(u64::MAX - 3)));
    assert!(matches!(outcome(store, |m| m.arena.range().0 + 2), Err(Fault::MisalignedAddress(_))));
    assert!(matches!(outcome("red.global.add.u64 [%rd0], %rd0;", |m| m.arena.range().0 + 4), Err(Fault::MisalignedAddress(_))));
}

#[test]
fn shared_and_local_windows_end() {
    let shared = ".shared .align 4 .b8 s[64];\nmov.u32 %r1, s;\n";
    assert!(outcome(&format!("{shared}st.shared.u32 [%r1+60], 1;"), |_| 0).is_ok());
    for body in [
        "st.shared.u32 [%r1+64], 1;",
        "cvta.shared.u64 %rd1, %rd0;\nst.u32 [%rd1+64], 1;",
        "atom.shared.add.u32 %r2, [%r1+64], 1;",
    ] {
        let fault = outcome(&format!("{shared}{body}"), |_| 0);
        assert!(matches!(fault, Err(Fault::IllegalAddress(_))), "{body}: {fault:?}");
    }
    let local = ".local .align 8 .b8 d[32];\nmov.u64 %rd1, d;\n";
    assert!(outcome(&format!("{local}st.local.u64 [%rd1+24], %rd0;"), |_| 0).is_ok());
    let fault = outcome(&format!("{local}st.local.u64 [%rd1+32], %rd0;"), |_| 0);
    assert!(matches!(fault, Err(Fault::IllegalAddress(_))), "{fault:?}");
}

#[test]
fn calls_to_nowhere() {
    let call = "prototype : .callprototype ()_ ();\ncall %rd0, (), prototype;";
    assert_eq!(outcome(call, |_| 0x1234), Err(Fault::InvalidPc(0x1234)));
    // Kernels have no pointers; this would be the first function's.
    assert_eq!(outcome(call, |_| 8), Err(Fault::InvalidPc(8)));
    assert_eq!(outcome("trap;", |_| 0), Err(Fault::Trap));
}

#[test]
fn endless_recursion_overflows() {
    let text = format!(
        ".func f()\n{{\n.local .b8 a[1024];\ncall f;\nret;\n}}\n{}",
        kernel("call f;").split_once(".visible").map_or(String::new(), |t| format!(".visible{}", t.1))
    );
    let m = Machine::new(&text);
    assert!(matches!(m.launch("k", 1, 32, &[&0u64.bytes()]), Err(Fault::IllegalAddress(_))));
}

#[test]
fn deadlock_is_a_fault() {
    // Half of the threads wait at another barrier.
    let body = "mov.u32 %r0, %tid.x;\nsetp.lt.u32 %p0, %r0, 16;\n@%p0 bar.sync 1;\n@!%p0 bar.sync 2;";
    assert_eq!(outcome(body, |_| 0), Err(Fault::Timeout));
}

#[test]
fn unknown_instructions_fail_only_when_run() {
    let text = format!("{}\n.visible .entry other()\n{{\n.reg .b32 %r<2>;\nwgmma.fence.sync.aligned;\nret;\n}}\n", kernel(""));
    let m = Machine::new(&text);
    assert!(m.launch("k", 1, 1, &[&0u64.bytes()]).is_ok());
    match m.launch("other", 1, 1, &[]) {
        Err(Fault::IllegalInstruction(text)) => {
            assert!(text.contains("wgmma.fence") && text.contains("line"), "{text}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_of_undefined_functions_fail_when_made() {
    let text = format!(".extern .func missing();\n{}", kernel("setp.eq.u64 %p0, %rd0, 1;\n@%p0 call missing;"));
    let m = Machine::new(&text);
    assert!(m.launch("k", 1, 1, &[&0u64.bytes()]).is_ok());
    match m.launch("k", 1, 1, &[&1u64.bytes()]) {
        Err(Fault::IllegalInstruction(text)) => assert!(text.contains("missing"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_name_line_and_token() {
    for (text, line, word) in [
        (".version 8.0\nnonsense", 2, "nonsense"),
        (".visible .entry k(.param .u64 p)\n{\nadd.u32 %r0 %r1;\n}", 3, "%r1"),
        (".global .u32 x = {1, 2};", 1, "more elements"),
        (".global .u64 x = y;", 1, "'y'"),
        (".visible .entry k()\n{\nret;\n", 3, "end of the text"),
        (".global .b8 x[99999999999999];", 1, "too large"),
        (".global .q32 x;", 1, "q32"),
    ] {
        let error = Image::parse(text).expect_err(text);
        assert_eq!(error.line, line, "{error}");
        assert!(error.message.contains(word), "{error}");
    }
}

#[test]
fn damaged_texts_never_panic() {
    let text = include_str!("../testdata/kernels.ptx");
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..60 {
        let mut bytes = text.as_bytes()[..8000].to_vec();
        for _ in 0..4 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % bytes.len();
            match seed & 3 {
                0 => bytes[at] = b"{}()[];,.%0<\"@"[(seed >> 8) as usize % 14],
                1 => bytes.truncate(at.max(1)),
                2 => drop(bytes.drain(at..(at + 9).min(bytes.len()))),
                _ => bytes.insert(at, (seed >> 16) as u8 & 0x7f),
            }
        }
        let damaged = String::from_utf8_lossy(&bytes);
        // Either way is fine; what loads must also link.
        if let Ok(image) = Image::parse(&damaged) {
            let globals = vec![0; image.globals.len()];
            Program::link(image, Placement { globals });
        }
    }
    assert!(Image::parse(&"{".repeat(100_000)).is_err());
    assert!(Image::parse(&format!(".entry k() {}", "{".repeat(100_000))).is_err());
}

#[test]
fn impossible_launches() {
    let m = Machine::kernels();
    let o = m.buffer(&[0i32; 4]);
    for (grid, block) in [(0, 32), (1, 0), (1, 1025)] {
        assert!(matches!(m.launch("recursion", grid, block, &[&o.bytes()]), Err(Fault::IllegalInstruction(_))));
    }
    let mut m = Machine::kernels();
    m.dynamic_shared = 1 << 20;
    assert!(matches!(m.launch("recursion", 1, 1, &[&0u64.bytes()]), Err(Fault::IllegalInstruction(_))));
}

#[test]
fn benchmark_counts() {
    let (instructions, seconds) = crate::ptx::bench_tiled_matmul(64);
    assert!(instructions > 64 * 64 * 64 * 3 && seconds > 0.0);
}
