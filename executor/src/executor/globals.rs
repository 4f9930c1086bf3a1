//! Variables of loaded code, and their addresses in two places.

use cuda_api::wire_struct;

wire_struct! {
    /// A variable of a loaded module or library: part of the job's memory.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Global {
        /// Handle of the module or library.
        pub module: u64,
        /// Its name in the code.
        pub name: String,
        /// Its device address.
        pub address: u64,
        /// Its size in bytes.
        pub bytes: u64,
    }
}

/// The first difference between the variables of two places.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// A variable differs in address or identity.
    #[error("variable {name} of module {module:#x} is at {one:#x} in one place and at {other:#x} in the other")]
    Address {
        /// Handle of its module.
        module: u64,
        /// Its name.
        name: String,
        /// Address in the first place.
        one: u64,
        /// Address in the second.
        other: u64,
    },
    /// The lists do not contain the same variables.
    #[error("variable {name} of module {module:#x} is not the same in both places")]
    Other {
        /// Handle of its module in the first place.
        module: u64,
        /// Its name in the first place.
        name: String,
    },
    /// One place has more variables.
    #[error("one place has {one} variables, the other {other}")]
    Count {
        /// Number of variables of the first place.
        one: u64,
        /// Number of variables of the second place.
        other: u64,
    },
}

/// Compares the addresses of the variables of two places.
///
/// # Errors
/// The first difference: memory of one place must then never be used in the other.
pub fn compare_globals(a: &[Global], b: &[Global]) -> Result<(), Difference> {
    for (x, y) in a.iter().zip(b) {
        let (module, name) = (x.module, x.name.clone());
        if (x.module, &x.name, x.bytes) != (y.module, &y.name, y.bytes) {
            return Err(Difference::Other { module, name });
        }
        if x.address != y.address {
            return Err(Difference::Address { module, name, one: x.address, other: y.address });
        }
    }
    if a.len() != b.len() {
        return Err(Difference::Count { one: a.len() as u64, other: b.len() as u64 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(name: &str, address: u64, bytes: u64) -> Global {
        Global { module: 7, name: name.into(), address, bytes }
    }

    #[test]
    fn differences_are_named() {
        let a = [global("x", 0x1000, 4), global("y", 0x2000, 8)];
        assert_eq!(compare_globals(&a, &a), Ok(()));
        let moved = [global("x", 0x1000, 4), global("y", 0x2100, 8)];
        let difference = Difference::Address { module: 7, name: "y".into(), one: 0x2000, other: 0x2100 };
        assert_eq!(compare_globals(&a, &moved), Err(difference));
        assert!(matches!(compare_globals(&a, &[global("x", 0x1000, 5)]), Err(Difference::Other { .. })));
        assert_eq!(compare_globals(&a, &a[..1]), Err(Difference::Count { one: 2, other: 1 }));
    }
}
