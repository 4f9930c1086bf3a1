//! Results compared with those of real hardware.
//!
//! `testdata/numerics.golden` has one line for each result of each kernel of `numerics.cu`: the kernel's name and the
//! values of threads 0 to 127 in hexadecimal, as an H200 computed them.

use super::*;

/// Distance of two floats in units in the last place; subnormals and zeros count as equal.
fn distance(a: f64, b: f64, least: f64, epsilon: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) || (a.abs() < least && b.abs() < least) {
        return 0.0;
    }
    if !a.is_finite() || !b.is_finite() {
        // One of them overflowed: fine if the other one is next to it.
        return if a.is_nan() || b.is_nan() { f64::INFINITY } else { 8.0 };
    }
    (a - b).abs() / (a.abs().max(b.abs()) * epsilon)
}

fn compare(kernel: &str, close: impl Fn(u64, u64) -> bool) {
    let m = Machine::new(include_str!("../testdata/numerics.ptx"));
    let o = m.buffer(&vec![0u64; 128 * 128]);
    m.launch(kernel, 1, 128, &[&o.bytes()]).expect("runs");
    let got = m.read::<u64>(o, 128 * 128);
    let lines = include_str!("../testdata/numerics.golden").lines().filter_map(|l| l.strip_prefix(kernel)?.strip_prefix(' '));
    let mut wrong = Vec::new();
    let mut results = 0;
    for (row, line) in lines.enumerate() {
        for (thread, word) in line.split(' ').enumerate() {
            let want = u64::from_str_radix(word, 16).expect("hexadecimal");
            let value = got[row * 128 + thread];
            results += 1;
            if !close(value, want) {
                wrong.push(format!("result {row} of thread {thread}: {value:x}, hardware has {want:x}"));
            }
        }
    }
    assert!(results > 128 * 10, "no golden results");
    assert!(wrong.is_empty(), "{} of {results} differ:\n{}", wrong.len(), wrong[..wrong.len().min(100)].join("\n"));
}

#[test]
fn f32_is_exact() {
    compare("exact_f32", |a, b| a == b);
}

#[test]
fn f64_is_exact() {
    compare("exact_f64", |a, b| a == b);
}

#[test]
fn conversions_are_exact() {
    compare("exact_convert", |a, b| a == b);
}

#[test]
fn integers_are_exact() {
    compare("exact_int", |a, b| a == b);
}

#[test]
fn halves_are_exact() {
    compare("exact_half", |a, b| a == b);
}

#[test]
fn f32_functions_are_close() {
    let float = |bits: u64| f64::from(f32::from_bits(bits as u32));
    compare("close_f32", |a, b| distance(float(a), float(b), f64::from(f32::MIN_POSITIVE), f64::from(f32::EPSILON)) < 64.0);
}

#[test]
fn f64_functions_are_close() {
    compare("close_f64", |a, b| distance(f64::from_bits(a), f64::from_bits(b), f64::MIN_POSITIVE, f64::EPSILON) < 8.5);
}
