//! Functions of the device runtime, recognised by name, and clocks.

use std::sync::LazyLock;
use std::time::Instant;

use super::error::Fault;
use super::lanes::{Exec, Word, store};
use super::machine::{Cta, Flow, Instr, Warp};
use super::mem::{read_bytes, read_text};
use super::operand::{LANES, lanes};
use super::printf;
use super::spec::CallSite;
use super::window::MemError;

/// Maximum length of a format or text of device code (bytes).
const MAX_TEXT: usize = 1 << 16;

/// A function of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builtin {
    Vprintf = 0,
    AssertFail = 1,
    Malloc = 2,
    Free = 3,
    SetCondition = 4,
}

/// The function of the runtime called `name`.
pub(crate) fn named(name: &str) -> Option<Builtin> {
    Some(match name {
        "vprintf" => Builtin::Vprintf,
        "__assertfail" => Builtin::AssertFail,
        "malloc" => Builtin::Malloc,
        "free" => Builtin::Free,
        "cudaGraphSetConditional" => Builtin::SetCondition,
        _ => return None,
    })
}

/// Whether the arguments of a call match the function.
pub(crate) fn check(kind: Builtin, site: &CallSite) -> Result<(), String> {
    let sizes: Vec<u32> = site.args.iter().map(|s| s.size).collect();
    let fits = match kind {
        Builtin::Vprintf => sizes == [8, 8],
        Builtin::AssertFail => sizes == [8, 8, 4, 8, 8],
        Builtin::Malloc => sizes == [8] && site.rets.len() == 1,
        Builtin::Free => sizes == [8],
        Builtin::SetCondition => sizes == [8, 4],
    };
    if fits { Ok(()) } else { Err("call of a runtime function with other parameters than it has".into()) }
}

/// Call of the runtime function `imm`; `x` indexes `Function::calls`.
pub(crate) struct CallBuiltin;
impl Exec for CallBuiltin {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let site = &w.frame.func.calls[i.x as usize];
        let mask = w.mask;
        if i.imm == Builtin::AssertFail as i64 {
            return match assertions(w, c, site, mask) {
                Ok(text) => w.fail(Fault::Assert(text)),
                Err(error) => w.fail(error.into()),
            };
        }
        for lane in lanes(mask) {
            let arg = |w: &Warp<'_>, n: usize| w.frame_word(lane, site.args[n].offset, site.args[n].size);
            let result = match i.imm {
                0 => {
                    let (format, args) = (arg(w, 0), arg(w, 1));
                    match print(w, c, lane, format, args) {
                        Ok(count) => u64::from(count),
                        Err(error) => return w.fail(error.into()),
                    }
                }
                2 => c.env.heap.malloc(arg(w, 0)),
                4 => {
                    let handle = arg(w, 0);
                    if !(c.env.set_condition)(handle, arg(w, 1) as u32) {
                        return w.fail(Fault::IllegalAddress(handle));
                    }
                    0
                }
                _ => {
                    let address = arg(w, 0);
                    if address != 0 && !c.env.heap.free(address) {
                        return w.fail(Fault::IllegalAddress(address));
                    }
                    0
                }
            };
            if let Some(ret) = site.rets.first() {
                w.set_frame_word(lane, ret.offset, ret.size, result);
            }
        }
        Flow::Next
    }
}

fn print(w: &mut Warp<'_>, c: &Cta<'_>, lane: usize, format: u64, args: u64) -> Result<u32, MemError> {
    if format == 0 {
        // -1 for the program (CUDA C++ Programming Guide, "Formatted Output").
        return Ok(u32::MAX);
    }
    let format = read_text(w, c, lane, format, MAX_TEXT)?;
    let mut text = Vec::new();
    let mut source = Arguments { w, c, lane, args };
    let count = printf::format(&format, &mut source, &mut text)?;
    (c.env.output)(&text);
    Ok(count)
}

/// Arguments of a device `printf`, packed in memory at their natural alignment.
struct Arguments<'w, 'a, 'b> {
    w: &'w mut Warp<'a>,
    c: &'w Cta<'b>,
    lane: usize,
    args: u64,
}

impl printf::Source for Arguments<'_, '_, '_> {
    type Error = MemError;

    fn word(&mut self, size: u64) -> Result<u64, MemError> {
        let address = self.args.wrapping_add(size - 1) & !(size - 1);
        self.args = address.wrapping_add(size);
        let bytes = read_bytes(self.w, self.c, self.lane, address, size)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn text(&mut self, address: u64) -> Result<Vec<u8>, MemError> {
        read_text(self.w, self.c, self.lane, address, MAX_TEXT)
    }
}

/// The text of a failed assertion for every lane, as CUDA prints it.
fn assertions(w: &mut Warp<'_>, c: &Cta<'_>, site: &CallSite, mask: u32) -> Result<String, MemError> {
    let mut lines = Vec::new();
    for lane in lanes(mask) {
        let arg = |w: &Warp<'_>, n: usize| w.frame_word(lane, site.args[n].offset, site.args[n].size);
        let (message, file, line, function) = (arg(w, 0), arg(w, 1), arg(w, 2), arg(w, 3));
        let mut text = |address: u64| -> Result<String, MemError> {
            Ok(String::from_utf8_lossy(&read_text(w, c, lane, address, MAX_TEXT)?).into_owned())
        };
        let (message, file, function) = (text(message)?, text(file)?, text(function)?);
        let [bx, by, bz] = c.number;
        let [tx, ty, tz] = ["%tid.x", "%tid.y", "%tid.z"].map(|name| w.special(name, lane));
        lines.push(format!(
            "{file}:{line}: {function}: block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `{message}` failed."
        ));
    }
    Ok(lines.join("\n"))
}

/// A clock register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Ticks of `Env::clock_hz`.
    Ticks = 0,
    TicksHigh = 1,
    /// Nanoseconds.
    Global = 2,
    GlobalHigh = 3,
}

impl Clock {
    /// The clock that a special register reads.
    pub(crate) fn named(name: &str) -> Option<Clock> {
        Some(match name {
            "%clock" | "%clock64" => Clock::Ticks,
            "%clock_hi" => Clock::TicksHigh,
            "%globaltimer" | "%globaltimer_lo" => Clock::Global,
            "%globaltimer_hi" => Clock::GlobalHigh,
            _ => return None,
        })
    }
}

/// `mov` from the clock `imm`; `x` is 1 for a 64-bit destination.
pub(crate) struct ReadClock;
impl Exec for ReadClock {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let nanoseconds = START.elapsed().as_nanos();
        let ticks = nanoseconds * u128::from(c.env.clock_hz) / 1_000_000_000;
        let value = match i.imm {
            0 => ticks,
            1 => ticks >> 32,
            2 => nanoseconds,
            _ => nanoseconds >> 32,
        };
        if i.x == 1 {
            store(w, i.d, &[value as u64; LANES], w.mask);
        } else {
            store(w, i.d, &[u32::from_u64(value as u64); LANES], w.mask);
        }
        Flow::Next
    }
}
