//! Which of several errors a call returns: the first that the driver checks, as the function's row lists it
//! ([`cuda_api::precedence`]). The list is used only when a call has failed, so it costs a successful call nothing.

use cuda_api::code::{self, Code};
use cuda_api::precedence::Check::{self, Above, Context, Nothing, Null, Start};
use cuda_api::precedence::VALUE;

/// The error that a failed call returns: that of the first check that fails, otherwise `found`. `args` are its
/// arguments as numbers; `error` converts a code of the table; `started` and `context` tell whether CUDA is initialized
/// and whether the thread has a current context.
pub fn choose<E>(
    checks: &[Check],
    args: &[u64],
    found: E,
    error: impl Fn(Code) -> E,
    started: impl Fn() -> Result<(), E>,
    context: impl Fn() -> Result<(), E>,
) -> E {
    let arg = |i: usize| args.get(i).copied().unwrap_or(u64::MAX);
    let refused = |check: &Check| match *check {
        Null(i, rc) => (arg(i) == 0).then(|| error(rc)),
        Above(i, most) => (arg(i) > most).then(|| error(VALUE)),
        Nothing(i, j) => (arg(i) == 0 && arg(j) == 0).then(|| error(code::SUCCESS)),
        Start => started().err(),
        Context => context().err(),
    };
    checks.iter().find_map(refused).unwrap_or(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_api::calls;

    #[test]
    fn steps_are_taken_in_order() {
        let (yes, no) = (|| Ok(()), || Err(code::ERROR_INVALID_CONTEXT));
        let checks = calls::checks("cuCtxGetDevice");
        assert_eq!(checks, [Null(0, VALUE), Start, Context]);
        assert_eq!(choose(checks, &[0], 201, |c| c, no, no), VALUE);
        assert_eq!(choose(checks, &[8], 999, |c| c, yes, no), code::ERROR_INVALID_CONTEXT);
        assert_eq!(choose(checks, &[8], 999, |c| c, yes, yes), 999);
        assert!(calls::checks("cuLaunchKernel").is_empty());
    }
}
