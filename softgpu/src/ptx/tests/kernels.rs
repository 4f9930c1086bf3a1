//! Compiled kernels.

use std::sync::atomic::Ordering;

use super::*;

fn fib(n: i32) -> i32 {
    if n < 2 { n } else { fib(n - 1) + fib(n - 2) }
}

#[test]
fn vector_add_over_several_blocks() {
    let m = Machine::kernels();
    let n = 1000;
    let a: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
    let (pa, pb, pc) = (m.buffer(&a), m.buffer(&a), m.buffer(&vec![-1f32; 1024]));
    let stats = m.launch("vadd", 8, 128, &[&pa.bytes(), &pb.bytes(), &pc.bytes(), &n.bytes()]).expect("runs");
    let c: Vec<f32> = m.read(pc, 1024);
    assert!((0..1000).all(|i| c[i] == i as f32));
    assert!(c[1000..].iter().all(|&x| x == -1.0));
    assert!(stats.thread_instructions > 1000 * 10 && stats.warp_instructions * 32 >= stats.thread_instructions);
}

#[test]
fn tiled_matmul() {
    let m = Machine::new(include_str!("../testdata/matmul.ptx"));
    let n = 32;
    let a: Vec<f32> = (0..n * n).map(|i| (i % 7) as f32).collect();
    let b: Vec<f32> = (0..n * n).map(|i| (i % 5) as f32).collect();
    let (pa, pb, pc) = (m.buffer(&a), m.buffer(&b), m.buffer(&vec![0f32; n * n]));
    let mut params: Vec<u8> = [pa, pb, pc].iter().flat_map(|p| p.bytes()).collect();
    params.extend((n as i32).bytes());
    let launch = Launch {
        program: &m.program,
        function: 0,
        grid: [2, 2, 1],
        block: [16, 16, 1],
        dynamic_shared: 0,
        params: &params,
        cooperative: false,
    };
    run(&launch, &m.env()).expect("runs");
    let c: Vec<f32> = m.read(pc, n * n);
    for (i, &x) in c.iter().enumerate() {
        let want: f32 = (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum();
        assert_eq!(x, want, "cell {i}");
    }
    assert_eq!(m.program.image.functions[0].static_shared, 2048);
}

#[test]
fn recursion_with_different_depths_per_lane() {
    let m = Machine::kernels();
    let o = m.buffer(&[0i32; 64]);
    m.launch("recursion", 1, 64, &[&o.bytes()]).expect("runs");
    assert_eq!(m.read::<i32>(o, 64), (0..64).map(|t| fib(t % 12)).collect::<Vec<_>>());
}

#[test]
fn calls_through_pointers_and_virtual_tables() {
    let m = Machine::kernels();
    let o = m.buffer(&[0i32; 40]);
    m.launch("pointers", 1, 40, &[&o.bytes()]).expect("runs");
    let odd = |t: i32, yes: i32, no: i32| if t & 1 == 1 { yes } else { no };
    assert_eq!(m.read::<i32>(o, 40), (0..40).map(|t| odd(t, t * 10, t + 10)).collect::<Vec<_>>());
    m.launch("virtuals", 1, 40, &[&o.bytes()]).expect("runs");
    assert_eq!(m.read::<i32>(o, 40), (0..40).map(|t| odd(t, 8, 7 * t)).collect::<Vec<_>>());
    m.launch("virtuals_on_heap", 1, 40, &[&o.bytes()]).expect("runs");
    assert_eq!(m.read::<i32>(o, 40), (0..40).map(|t| odd(t, 8, 21)).collect::<Vec<_>>());
    assert_eq!(m.arena.freed.lock().expect("unpoisoned").len(), 40);
}

#[test]
fn printf_and_assert() {
    let m = Machine::kernels();
    m.launch("print", 1, 1, &[&(-3i32).bytes(), &2.5f64.bytes(), &(1u64 << 40).bytes(), &u64::MAX.bytes()]).expect("runs");
    assert_eq!(m.printed(), "hi -3 2.500000 1099511627776 2.5 hello x 0x10  2.50% 18446744073709551615\n");
    assert!(m.launch("check", 1, 1, &[&3i32.bytes()]).is_ok());
    match m.launch("check", 2, 2, &[&4i32.bytes()]) {
        Err(Fault::Assert(text)) => {
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 2, "{text}");
            assert!(lines[1].contains("thread: [1,0,0] Assertion `n == 3` failed."), "{text}");
            assert!(lines[0].contains(": void check(int): block: ["), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn dynamic_shared_memory_and_reduction() {
    let mut m = Machine::kernels();
    m.dynamic_shared = 32;
    let (input, o) = (m.buffer(&vec![1f32; 5000]), m.buffer(&[0f32]));
    m.launch("reduce", 3, 256, &[&input.bytes(), &o.bytes(), &5000i32.bytes()]).expect("runs");
    assert_eq!(m.read::<f32>(o, 1), [15000.0]);
    m.dynamic_shared = 0;
    let fault = m.launch("reduce", 1, 256, &[&input.bytes(), &o.bytes(), &5000i32.bytes()]);
    assert!(matches!(fault, Err(Fault::IllegalAddress(_))), "{fault:?}");
}

#[test]
fn atomics_from_many_threads() {
    let m = Machine::kernels();
    let a = m.buffer(&[0u32, i32::MIN as u32, 99, u32::MAX, 0, 0, 0, 0, 0, 0]);
    let (f, d, l) = (m.buffer(&[0f32]), m.buffer(&[0f64]), m.buffer(&[0u64, 0]));
    m.launch("atomics", 7, 64, &[&a.bytes(), &f.bytes(), &d.bytes(), &l.bytes()]).expect("runs");
    let got = m.read::<u32>(a, 10);
    let n = 7 * 64;
    assert_eq!(got[..6], [n, -37i32 as u32, 0, 0, u32::MAX, 0]);
    // Counters modulo 7, up from 0 and down from 0.
    assert_eq!(got[6..8], [n % 7, (7 - n % 7) % 7]);
    assert!(got[8] == got[9] && got[8] != 0);
    assert_eq!(m.read::<f32>(f, 1), [n as f32 * 0.5]);
    assert_eq!(m.read::<f64>(d, 1), [f64::from(n) * 0.25]);
    assert_eq!(m.read::<u64>(l, 2), [u64::from(n) << 33, 63 << 40]);
}

#[test]
fn operations_across_a_warp() {
    let m = Machine::kernels();
    let o = m.buffer(&[0u32; 256]);
    m.launch("warp_ops", 1, 32, &[&o.bytes()]).expect("runs");
    let got = m.read::<u32>(o, 256);
    for t in 0..32u32 {
        let at = |row: u32| got[(row * 32 + t) as usize];
        assert_eq!(at(0), 0xaaaa_aaaa);
        assert_eq!(at(1), 1);
        assert_eq!(at(2), 5 + 100 * t.saturating_sub(1));
        assert_eq!(at(3), t ^ 1);
        assert_eq!(at(4), (0..32).filter(|k| k / 3 == t / 3).fold(0, |m, k| m | 1 << k));
        assert_eq!(at(5), 496 + 31);
        assert_eq!(at(6), if t < 16 { (t + 16) * 1000 } else { (t - 16) * 10 });
        assert_eq!(at(7), if t & 1 == 1 { 0xaaaa_aaaa } else { 0 });
    }
}

#[test]
fn barriers_that_reduce_and_an_early_exit() {
    let m = Machine::kernels();
    let o = m.buffer(&[-1i32; 300]);
    m.launch("block_ops", 1, 100, &[&o.bytes()]).expect("runs");
    let got = m.read::<i32>(o, 300);
    for (t, values) in got.chunks(3).enumerate() {
        // Thread 77, an odd one, has left.
        assert_eq!(values, if t == 77 { [-1; 3] } else { [49, 1, 1] }, "thread {t}");
    }
}

#[test]
fn grid_wide_synchronisation_needs_a_cooperative_launch() {
    let mut m = Machine::kernels();
    let o = m.buffer(&[0u32; 50]);
    assert_eq!(m.launch("grid_sync", 40, 64, &[&o.bytes()]), Err(Fault::Trap));
    m.arena.put(o, &[0; 200]);
    m.cooperative = true;
    for threads in [1, 3] {
        m.threads = threads;
        m.launch("grid_sync", 40, 64, &[&o.bytes()]).expect("runs");
        let got = m.read::<u32>(o, 41);
        assert_eq!(got[0], 0);
        assert!(got[1..].iter().all(|&n| n == 40 * 64), "{got:?}");
    }
}

#[test]
fn diverged_lanes_progress() {
    let m = Machine::kernels();
    let (mutex, sum) = (m.buffer(&[0i32]), m.buffer(&[0i32]));
    m.launch("lock", 2, 48, &[&mutex.bytes(), &sum.bytes()]).expect("runs");
    assert_eq!(m.read::<i32>(sum, 1), [96]);
    let flag = m.buffer(&[0i32; 32]);
    m.launch("handshake", 1, 32, &[&flag.bytes()]).expect("runs");
    assert_eq!(m.read::<i32>(flag, 32), [[1; 16], [2; 16]].concat());
}

#[test]
fn loops_that_diverge() {
    let m = Machine::kernels();
    let o = m.buffer(&[0i32; 64]);
    m.launch("diverge", 1, 64, &[&o.bytes(), &40i32.bytes()]).expect("runs");
    let want = |t: i32| {
        (0..t)
            .take_while(|&i| i % 3 == 0 || i <= 40)
            .filter(|i| i % 3 != 0)
            .map(|i| if i & 1 == 1 { i * t } else { -i })
            .sum::<i32>()
    };
    assert_eq!(m.read::<i32>(o, 64), (0..64).map(want).collect::<Vec<_>>());
}

#[test]
fn branches_by_table() {
    let m = Machine::kernels();
    let a = m.buffer(&(0..32).map(|t| t % 7).collect::<Vec<i32>>());
    m.launch("jumps", 1, 32, &[&a.bytes()]).expect("runs");
    let want = |t: i32| [5, t * 3, t + 10, 3 ^ 64, 11, t * 10, 3][(t % 7) as usize];
    assert_eq!(m.read::<i32>(a, 32), (0..32).map(want).collect::<Vec<_>>());
    let bad = m.buffer(&[77i32]);
    assert_eq!(m.launch("jumps", 1, 1, &[&bad.bytes()]), Err(Fault::Trap));
}

#[test]
fn structures_by_value() {
    let m = Machine::kernels();
    let mut record = vec![0u8; 32];
    record[0] = 5;
    record[8..16].copy_from_slice(&1.5f64.to_le_bytes());
    record[16..29].copy_from_slice(&[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    let o = m.buffer(&[0u8; 32]);
    m.launch("records", 1, 1, &[&record, &o.bytes()]).expect("runs");
    let got = m.read::<u8>(o, 29);
    assert_eq!(got[0], 10);
    assert_eq!(got[8..16], 3f64.to_le_bytes());
    assert_eq!(got[16..29], [2, 3, 4, 5, 6, 1, 8, 9, 10, 11, 12, 13, 14]);
    let o = m.buffer(&[0i32; 13]);
    m.launch("indexed", 1, 13, &[&record, &o.bytes()]).expect("runs");
    assert_eq!(m.read::<i32>(o, 13), (0..13).map(|t| t + 2 + t % 4 + 1).collect::<Vec<_>>());
}

#[test]
fn local_arrays() {
    let m = Machine::kernels();
    let a = m.buffer(&(0..64).collect::<Vec<i32>>());
    m.launch("locals", 1, 32, &[&a.bytes(), &5i32.bytes()]).expect("runs");
    let mut t: Vec<i32> = (0..32).collect();
    for i in 0..32 {
        t[(i * 5) & 31] += t[i];
    }
    assert_eq!(m.read::<i32>(a + 128, 32), (0..32).map(|n| t[(5 + n) & 31]).collect::<Vec<_>>());
}

#[test]
fn initialised_globals() {
    let m = Machine::kernels();
    let o = m.buffer(&[0i32; 2]);
    m.launch("globals", 1, 1, &[&o.bytes()]).expect("runs");
    assert_eq!(m.read::<i32>(o, 2), [5, i32::from(b'e')]);
    let counter = m.program.image.globals.iter().position(|g| g.name == "counter").expect("exists");
    assert_eq!(m.read::<i32>(m.program.placement.globals[counter], 1), [9]);
}

#[test]
fn wide_integers() {
    let m = Machine::kernels();
    let (a, b) = (0xfedc_ba98_7654_3210u64, 0x0123_4567_89ab_cdf1u64);
    let o = m.buffer(&[0u64; 6]);
    m.launch("wide", 1, 1, &[&a.bytes(), &b.bytes(), &o.bytes()]).expect("runs");
    let q = u128::from(a) * u128::from(b) + u128::from(a);
    let r = q - u128::from(b);
    let want = [(q >> 64) as u64, q as u64, (r >> 64) as u64, (r << (b & 127)) as u64, a / (b | 1), a % (b | 1)];
    assert_eq!(m.read::<u64>(o, 6), want);
}

#[test]
fn vectors() {
    let m = Machine::kernels();
    let a: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let c: Vec<u8> = (0..128).collect();
    let (pa, pb, pc, pd) = (m.buffer(&a), m.buffer(&[0f32; 128]), m.buffer(&c), m.buffer(&[9u8; 128]));
    m.launch("copy4", 1, 32, &[&pa.bytes(), &pb.bytes(), &pc.bytes(), &pd.bytes()]).expect("runs");
    assert_eq!(m.read::<f32>(pb, 128), a);
    for (n, quad) in m.read::<u8>(pd, 128).chunks(4).enumerate() {
        assert_eq!(quad, [c[4 * n + 3], c[4 * n + 2], 0, 7]);
    }
    let fault = m.launch("copy4", 1, 1, &[&(pa + 4).bytes(), &pb.bytes(), &pc.bytes(), &pd.bytes()]);
    assert_eq!(fault, Err(Fault::MisalignedAddress(pa + 4)));
}

#[test]
fn cancelling_a_kernel_that_never_ends() {
    let m = Machine::kernels();
    let flag = m.buffer(&[0i32]);
    let cancel = m.cancel.clone();
    let timer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        cancel.store(true, Ordering::Relaxed);
    });
    assert_eq!(m.launch("spin", 2, 64, &[&flag.bytes()]), Err(Fault::Cancelled));
    timer.join().expect("timer");
}
