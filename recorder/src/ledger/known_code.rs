//! What a place has said ahead about loaded code, so that the calls that usually follow a load need no round trip.

use cuda_api::ops::CodeFacts;
use cuda_api::wire::Wire;
use std::collections::HashMap;

/// A module or library.
#[derive(Debug, Default)]
struct Unit {
    /// Address and size by name.
    variables: HashMap<String, (u64, u64)>,
    /// The encoded `FunctionInfo` of each function that the driver finds by its name; `None` if it may have changed since.
    functions: HashMap<String, Option<Vec<u8>>>,
}

/// Loaded code by the handle of its module or library. What is not here must be asked for.
#[derive(Debug, Default)]
pub(crate) struct KnownCode(HashMap<u64, Unit>);

impl KnownCode {
    pub(crate) fn learn(&mut self, handle: u64, facts: &CodeFacts) {
        // A place that says more than was agreed is not believed beyond that.
        let variables = facts.variables.iter().take(CodeFacts::VARIABLES);
        let variables = variables.map(|v| (v.name.clone(), (v.address, v.bytes))).collect();
        let sound = facts.functions.iter().take(CodeFacts::FUNCTIONS).filter(|info| info.is_sound());
        let functions = sound.map(|info| {
            let mut bytes = Vec::new();
            info.put(&mut bytes);
            (info.name.clone(), Some(bytes))
        });
        self.0.insert(handle, Unit { variables, functions: functions.collect() });
    }

    pub(crate) fn forget(&mut self, handle: u64) {
        self.0.remove(&handle);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// An attribute of a function was set. A function has several handles, so what is known of all of them is forgotten; their names
    /// are kept.
    pub(crate) fn attribute_set(&mut self) {
        self.0.values_mut().flat_map(|unit| unit.functions.values_mut()).for_each(|info| *info = None);
    }

    /// Address and size of a variable.
    pub(crate) fn variable(&self, handle: u64, name: &[u8]) -> Option<(u64, u64)> {
        self.0.get(&handle)?.variables.get(std::str::from_utf8(name).ok()?).copied()
    }

    /// Returns whether the driver finds a function of this name.
    pub(crate) fn has_function(&self, handle: u64, name: &[u8]) -> bool {
        let find = || self.0.get(&handle)?.functions.get(std::str::from_utf8(name).ok()?);
        find().is_some()
    }

    /// The encoded `FunctionInfo` of a function.
    pub(crate) fn function(&self, handle: u64, name: &[u8]) -> Option<&[u8]> {
        self.0.get(&handle)?.functions.get(std::str::from_utf8(name).ok()?)?.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_api::ops::{FunctionInfo, PlacedVariable};

    #[test]
    fn what_was_said_holds_until_it_may_have_changed() {
        let info = |name: &str| FunctionInfo { name: name.into(), params: vec![(0, 8)], ..FunctionInfo::default() };
        let unsound = FunctionInfo { params: vec![(8, 8), (0, 8)], ..info("unsound") };
        let variable = PlacedVariable { name: "v".into(), address: 0x300, bytes: 8 };
        let mut known = KnownCode::default();
        known.learn(7, &CodeFacts { variables: vec![variable], functions: vec![info("f"), unsound] });
        assert_eq!(known.variable(7, b"v"), Some((0x300, 8)));
        assert_eq!((known.variable(7, b"w"), known.variable(8, b"v"), known.variable(7, b"\xff")), (None, None, None));
        let said = FunctionInfo::get(&mut known.function(7, b"f").unwrap()).unwrap();
        assert_eq!(said, info("f"));
        assert!(!known.has_function(7, b"unsound") && !known.has_function(7, b"g") && !known.has_function(8, b"f"));
        known.attribute_set();
        assert!(known.has_function(7, b"f") && known.function(7, b"f").is_none());
        assert_eq!(known.variable(7, b"v"), Some((0x300, 8)));
        known.forget(7);
        assert!(!known.has_function(7, b"f") && known.variable(7, b"v").is_none());
    }
}
