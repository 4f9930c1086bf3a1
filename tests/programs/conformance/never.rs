//! What is never run, and why.

use crate::tell::Tell;

/// The beginning of a function's name, and why it is not called, with whatever arguments.
pub const NEVER: [(&str, &str); 3] = [
    ("cuMulticast", "a machine with GPUs must stay as it is: multicast objects configure the switches between them"),
    ("cuCheckpointProcess", "a checkpoint stops the process itself, and a driver that cannot end it leaves the GPU occupied"),
    ("cuCoredumpSetAttribute", "changes what happens at the next failure of any program's GPU; asking is harmless"),
];

/// The same for calls with arguments that nobody chose: sections of their own call these rightly.
pub const NOT_AT_RANDOM: [(&str, &str); 8] = [
    ("cuInit", "would start what a section is to do without"),
    ("cuDevicePrimaryCtxReset", "ends the context of the other cases"),
    ("cuDevicePrimaryCtxRelease", "ends the context of the other cases"),
    ("cuCtxDetach", "ends the context of the other cases"),
    ("cuMemAllocManaged", "must not ask for more than is free"),
    ("cuCtxSetLimit", "a stack of another size takes memory of the device for good"),
    ("cuLogsRegisterCallback", "a callback that is no function would be called later"),
    ("cuThreadExchangeStreamCaptureMode", "changes the mode for the cases after it"),
];

/// Tells both lists.
pub fn list(t: &Tell) {
    for (what, why) in NEVER {
        t.begin(what);
        t.end(&format!("never called: {why}"));
    }
    for (what, why) in NOT_AT_RANDOM {
        t.begin(what);
        t.end(&format!("not called at random: {why}"));
    }
}
