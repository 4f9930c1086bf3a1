//! The rows: every driver function, declared once, and the code that is derived from the rows.
//!
//! ```text
//! /// What it does.
//! 0x0401 state send fn cuStreamCreate(phStream: New<Stream>, Flags: Val<c_uint>) [start, context];
//! ^id    ^class ^how                  ^one argument kind per parameter          ^the driver's first checks, if their order matters;
//!                                                                                before them `older` if the header no longer has the
//!                                                                                function, and `ptsz` or `ptds` if it has such a form
//! ```
//!
//! To add a call: write its row in the file of its family. `send` and `wait` rows need nothing more. An `answer` row needs
//! a function of the same name in the recorder's file of its subject, without pointers ([`mod@crate::answer`]). Functions that
//! fit none of these are `irregular`: the row says why, and their function has the parameters that C has, with pointers as
//! types ([`mod@crate::pointer`]). Ids are only ever added, never reused: they are in journals.
//!
//! `for_each_call!` passes the rows of each family to another macro; the recorder exports its symbols that way. [`by_id`]
//! selects the generic functions of a row at run time: the executor, replay and printing are ordinary generic code over
//! [`Call`].

use crate::arg::Edges;
use crate::class::{Class, How};
use crate::code::{self, Code};
use crate::handle::Bindings;
use crate::precedence::{Check, is_same};
use crate::wire::{Short, Wire};

/// A row as data.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Number on the wire and in journals.
    pub id: u16,
    /// Exported symbol.
    pub name: &'static str,
    /// What it does to state.
    pub class: Class,
    /// How it is executed.
    pub how: How,
    /// Why it is irregular, if it is.
    pub reason: Option<&'static str>,
    /// Names and kinds of the parameters.
    pub params: &'static [(&'static str, &'static str)],
    /// Also exported with this suffix (`ptsz`, `ptds`); may contain the marker `older`.
    pub forms: &'static [&'static str],
    /// The driver's first checks, in order; empty if their order does not matter.
    pub checks: &'static [Check],
    /// What it does, or why it is not supported.
    pub doc: &'static str,
}

/// A call that is executed as its argument kinds define.
pub trait Call {
    /// Id of the row.
    const ID: u16;
    /// Symbol.
    const NAME: &'static str;
    /// Class.
    const CLASS: Class;
    /// Whether the caller must wait for the answer.
    const WAITS: bool;
    /// See [`crate::arg::Handle::IS_CODE`].
    const IS_CODE: bool;
    /// Whether it makes a setting, of the first object that it uses or of the context, which a later call replaces: a row of the class
    /// `state` that neither creates nor destroys a handle.
    const IS_SETTING: bool;
    /// The encoded arguments.
    type Sent: Wire + std::fmt::Debug + 'static;
    /// The encoded results of a successful call.
    type Reply: Wire + std::fmt::Debug;
    /// Calls the driver at a place.
    fn run(d: &Driver, sent: &Self::Sent, h: &Bindings) -> Result<Self::Reply, Code>;
    /// The handles that it creates, destroys and uses.
    fn edges(sent: &Self::Sent) -> Edges;
    /// Which of several settings it makes, if it is a setting: 0 if there is only one.
    fn key(sent: &Self::Sent) -> u32;
    /// Replaces the handle that the call would have created by `handle`.
    fn rename(sent: &mut Self::Sent, handle: u64);
}

/// A generic function over calls, selected by id at run time.
pub trait Visit {
    /// Its result.
    type Out;
    /// Runs the function for the call `C`.
    fn visit<C: Call>(self) -> Self::Out;
}

macro_rules! carried_out {
    (answer $($rest:tt)*) => {};
    (irregular $($rest:tt)*) => {};
    (bare $($rest:tt)*) => {};
    (refused $($rest:tt)*) => {};
    ($how:ident $id:literal $class:ident $family:ident $name:ident ($($p:ident : $kind:ty),* $(,)?)) => {
        #[doc = concat!("Kinds of `", stringify!($name), "` at work.")]
        pub mod $name {
            use super::*;
            /// Represents the call in generic code.
            #[derive(Debug)]
            pub struct Fn;
            wire_struct! {
                /// The encoded arguments.
                #[derive(Debug, Clone, PartialEq)]
                pub struct Sent { $(#[doc = "Parameter of the row."] pub $p: <$kind as Arg>::Sent),* }
            }
            wire_struct! {
                /// The encoded results.
                #[derive(Debug, Clone, PartialEq)]
                pub struct Reply { $(#[doc = "Parameter of the row."] pub $p: <$kind as Arg>::Returned),* }
            }
            const _: () = assert!(
                how!($how) as u8 != How::Send as u8 || !(false $(|| <$kind as Arg>::WRITES_BACK)*),
                concat!(stringify!($name), ": a call that writes back must be `wait`")
            );
            impl Call for Fn {
                const ID: u16 = $id;
                const NAME: &'static str = stringify!($name);
                const CLASS: Class = class!($class);
                const WAITS: bool = how!($how) as u8 == How::Wait as u8;
                const IS_CODE: bool = false $(|| <$kind as Arg>::IS_CODE)*;
                const IS_SETTING: bool = class!($class) as u8 == Class::State as u8 && !(false $(|| <$kind as Arg>::BINDS)*);
                type Sent = Sent;
                type Reply = Reply;
                fn run(d: &Driver, sent: &Sent, h: &Bindings) -> Result<Reply, Code> {
                    $(let mut $p = <$kind as Arg>::stage(&sent.$p, h)?;)*
                    let Some(f) = d.$family.$name else { return Err(code::ERROR_NOT_FOUND) };
                    // SAFETY: each argument was staged by the kind that the bindings agree with (checked below), and staged
                    // values live across the call.
                    let rc = unsafe { f($(<$kind as Arg>::c(&mut $p)),*) };
                    let reply = Reply { $($p: <$kind as Arg>::finish($p, &sent.$p, h, rc)),* };
                    let _ = (sent, h);
                    if rc == code::SUCCESS { Ok(reply) } else { Err(rc) }
                }
                fn edges(sent: &Sent) -> Edges {
                    let mut all = Edges::default();
                    let e = &mut all;
                    $(<$kind as Arg>::edges(&sent.$p, e);)*
                    let _ = (sent, e);
                    all
                }
                fn key(sent: &Sent) -> u32 {
                    let _ = sent;
                    None$(.or_else(|| <$kind as Arg>::key(&sent.$p)))*.unwrap_or(0)
                }
                fn rename(sent: &mut Sent, handle: u64) {
                    $(<$kind as Arg>::rename(&mut sent.$p, handle);)*
                    let _ = (sent, handle);
                }
            }
        }
    };
}

macro_rules! how {
    (send) => {
        How::Send
    };
    (wait) => {
        How::Wait
    };
    (answer) => {
        How::Answer
    };
    (irregular) => {
        How::Irregular
    };
    (bare) => {
        How::Bare
    };
    (refused) => {
        How::Refused
    };
}

macro_rules! class {
    (local) => {
        Class::Local
    };
    (query) => {
        Class::Query
    };
    (state) => {
        Class::State
    };
    (memory) => {
        Class::Memory
    };
    (work) => {
        Class::Work
    };
    (sync) => {
        Class::Sync
    };
    (refused) => {
        Class::Refused
    };
}

macro_rules! arm {
    (answer $name:ident $v:ident) => {{
        let _ = $v;
        None
    }};
    (irregular $name:ident $v:ident) => {{
        let _ = $v;
        None
    }};
    (bare $name:ident $v:ident) => {{
        let _ = $v;
        None
    }};
    (refused $name:ident $v:ident) => {{
        let _ = $v;
        None
    }};
    ($how:ident $name:ident $v:ident) => {
        Some($v.visit::<$name::Fn>())
    };
}

/// Why a row is irregular: exactly those rows say so.
macro_rules! reason {
    (irregular $reason:literal) => {
        Some($reason)
    };
    (irregular) => {
        compile_error!("an irregular row says why: irregular \"the reason\" fn …")
    };
    ($how:ident) => {
        None
    };
}

/// Compares a row with the bindings; `older` marks symbols that these do not have, because the 13.0 header hides them
/// behind newer ones or the bindings omit them.
macro_rules! check_type {
    ([older $($form:ident)*] $($rest:tt)*) => {};
    ([$($form:ident)*] $name:ident ($($p:ident : $kind:ty),* $(,)?)) => {
        const _: unsafe fn($(<$kind as Param>::Check),*) -> sys::CUresult = sys::$name;
    };
}

/// The type of a function in a driver.
macro_rules! entry_point {
    (($($p:ident : $kind:ty),* $(,)?)) => {
        Option<unsafe extern "C" fn($(<$kind as Param>::C),*) -> Code>
    };
}

/// Names and kinds of the parameters.
macro_rules! params {
    (($($p:ident : $kind:ty),* $(,)?)) => {
        &[$((stringify!($p), stringify!($kind))),*]
    };
}

macro_rules! define {
    ($family:ident $table:ident; $(
        $(#[doc = $doc:literal])+
        $id:literal $class:ident $how:ident $($reason:literal)? fn $name:ident $params:tt $($form:ident)* $([$($check:ident $(($($of:tt)*))?),*])?;
    )*) => {
        $(carried_out! { $how $id $class $family $name $params })*

        /// Entry points of this family in a loaded driver; a missing symbol is `None`.
        #[derive(Debug, Clone)]
        #[allow(non_snake_case)]
        pub struct $table { $($(#[doc = $doc])+ pub $name: entry_point!($params)),* }
        impl $table {
            /// Fills the table from a symbol look-up that returns null for missing symbols.
            ///
            /// # Safety
            /// `find` must return the function of a CUDA driver with the given name.
            pub unsafe fn load(find: &dyn Fn(&str) -> *const c_void) -> Self {
                // SAFETY: a non-null symbol of that name has this prototype (contract; the prototype is checked below).
                unsafe { Self { $($name: std::mem::transmute::<*const c_void, entry_point!($params)>(find(stringify!($name)))),* } }
            }
        }

        // The rows against the bindings of CUDA's header: a wrong type does not compile.
        $(check_type! { [$($form)*] $name $params })*

        /// The rows of this family.
        pub const ROWS: &[Row] = &[$(Row {
            id: $id, name: stringify!($name), class: class!($class), how: how!($how), reason: reason!($how $($reason)?),
            params: params!($params), forms: &[$(stringify!($form)),*],
            checks: &[$($(first_check!($params $check $(($($of)*))?)),*)?], doc: concat!($($doc),+),
        }),*];

        /// See [`super::by_id`].
        pub fn by_id<V: Visit>(id: u16, v: V) -> Option<V::Out> {
            match id { $($id => arm!($how $name v),)* _ => { let _ = v; None } }
        }
    };
}

/// Takes the rows; defines the call types here and a macro that passes on the same rows, after what else it is given.
macro_rules! calls {
    ($d:tt $each:ident $family:ident $table:ident; $($rows:tt)*) => {
        #[allow(unused_imports)]
        use crate::{answer::*, arg::*, calls::*, class::*, code::{self, Code}, handle::Bindings, precedence::{self, Check, position}, sys, wire::*, wire_struct};
        #[allow(unused_imports)]
        use std::ffi::{c_char, c_int, c_uint, c_ushort, c_uchar, c_ulonglong, c_void};
        define! { $family $table; $($rows)* }
        /// Passes the rows of this family to the named macro.
        #[macro_export]
        #[doc(hidden)]
        macro_rules! $each { ($d each:ident $d ($d with:tt)*) => { $d each! { $d ($d with)* $($rows)* } } }
    };
}

macro_rules! families {
    ($d:tt $($family:ident $table:ident $each:ident $high:literal;)*) => {
        $(#[allow(non_snake_case, missing_docs)] pub mod $family;)*
        /// A driver: the entry points of every family.
        #[derive(Debug, Clone)]
        #[allow(missing_docs)]
        pub struct Driver { $(pub $family: $family::$table),* }
        impl Driver {
            /// Fills the table from a symbol look-up that returns null for missing symbols.
            ///
            /// # Safety
            /// `find` must return the function of a CUDA driver with the given name.
            pub unsafe fn from_symbols(find: &dyn Fn(&str) -> *const std::ffi::c_void) -> Self {
                // SAFETY: passed on.
                unsafe { Driver { $($family: $family::$table::load(find)),* } }
            }
        }
        /// The families: the upper byte of their ids, and their rows.
        const FAMILIES: &[(u16, &[Row])] = &[$(($high, $family::ROWS)),*];
        /// All rows.
        pub fn rows() -> impl Iterator<Item = &'static Row> {
            FAMILIES.iter().flat_map(|(_, rows)| *rows)
        }
        /// Runs `v` for the `send` or `wait` row with this id.
        pub fn by_id<V: Visit>(id: u16, v: V) -> Option<V::Out> {
            match id >> 8 { $($high => $family::by_id(id, v),)* _ => None }
        }
        /// Passes the rows of each family to the named macro, after the family's name and its type of entry points:
        /// everything that is made of all rows is one macro and one use of this one.
        #[macro_export]
        macro_rules! for_each_call { ($d each:ident) => { $($crate::$each! { $d each $family $table })* } }
        /// Passes the names of the families to the named macro.
        #[macro_export]
        macro_rules! for_each_family { ($d each:ident) => { $d each! { $($family)* } } }
    };
}
families! { $
    device DeviceCalls for_each_device_call 0x01;
    context ContextCalls for_each_context_call 0x02;
    memory MemoryCalls for_each_memory_call 0x03;
    stream StreamCalls for_each_stream_call 0x04;
    module ModuleCalls for_each_module_call 0x05;
    launch LaunchCalls for_each_launch_call 0x06;
    vmm VmmCalls for_each_vmm_call 0x07;
    graph GraphCalls for_each_graph_call 0x08;
    array ArrayCalls for_each_array_call 0x09;
    refused RefusedCalls for_each_refused_call 0x0d;
}

/// The driver's first checks of a function; empty if their order does not matter.
pub const fn checks(function: &str) -> &'static [Check] {
    let mut family = 0;
    while family < FAMILIES.len() {
        let rows = FAMILIES[family].1;
        let mut i = 0;
        while i < rows.len() {
            if is_same(rows[i].name, function) {
                return rows[i].checks;
            }
            i += 1;
        }
        family += 1;
    }
    &[]
}

/// Name of a row or an operation.
pub fn name(id: u16) -> Option<&'static str> {
    crate::ops::name(id).or_else(|| rows().find(|r| r.id == id).map(|r| r.name))
}

/// Executes an encoded `send` or `wait` row on the driver of a place, and encodes the result.
#[derive(Debug)]
pub struct RunEncoded<'a> {
    /// Driver of the place.
    pub driver: &'a Driver,
    /// Its handles.
    pub bindings: &'a Bindings,
    /// Encoded [`Call::Sent`].
    pub body: &'a [u8],
    /// Receives the encoded [`Call::Reply`].
    pub reply: &'a mut Vec<u8>,
}

impl Visit for RunEncoded<'_> {
    type Out = Result<Code, Short>;
    fn visit<C: Call>(self) -> Self::Out {
        let sent = C::Sent::get(&mut { self.body })?;
        Ok(match C::run(self.driver, &sent, self.bindings) {
            Ok(reply) => {
                reply.put(self.reply);
                code::SUCCESS
            }
            Err(rc) => rc,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ops, versions};
    use std::collections::HashMap;

    #[test]
    fn ids_are_unique_and_in_their_family() {
        for (high, rows) in FAMILIES {
            for row in *rows {
                assert_eq!(row.id >> 8, *high, "{}", row.name);
            }
        }
        let mut seen = HashMap::new();
        for (id, name) in rows().map(|r| (r.id, r.name)).chain(ops::Op::ALL.iter().map(|op| (op.id(), op.name()))) {
            if let Some(other) = seen.insert(id, name) {
                panic!("{other} and {name} have the same id {id:#06x}");
            }
        }
    }

    /// The journal keeps only the last record of a setting, so no other row may count as one.
    #[test]
    fn settings_are_the_rows_that_later_ones_replace() {
        struct IsSetting;
        impl Visit for IsSetting {
            type Out = bool;
            fn visit<C: Call>(self) -> bool {
                C::IS_SETTING
            }
        }
        let settings: Vec<_> = rows().filter(|row| by_id(row.id, IsSetting) == Some(true)).map(|row| row.name).collect();
        let of_contexts = ["cuCtxSetLimit", "cuCtxSetCacheConfig", "cuCtxSetSharedMemConfig"];
        let of_code = [
            "cuKernelSetAttribute",
            "cuKernelSetCacheConfig",
            "cuFuncSetAttribute",
            "cuFuncSetCacheConfig",
            "cuFuncLoad",
            "cuFuncSetSharedMemConfig",
        ];
        assert_eq!(settings, [&of_contexts[..], &of_code].concat());
    }

    #[test]
    fn keys_tell_the_settings_of_an_object_apart() {
        let attribute = module::cuFuncSetAttribute::Sent { hfunc: 7, attrib: 8, value: 1 };
        assert_eq!(module::cuFuncSetAttribute::Fn::key(&attribute), 8);
        let preference = module::cuFuncSetCacheConfig::Sent { hfunc: 7, config: 2 };
        assert_eq!(module::cuFuncSetCacheConfig::Fn::key(&preference), 0);
    }

    #[test]
    fn rows_are_symbols_of_the_header_with_their_forms() {
        for row in rows() {
            assert!(versions::symbols().iter().any(|s| s.symbol == row.name), "{} is not in functions-13.0.txt", row.name);
            for suffix in ["ptsz", "ptds"] {
                let form = format!("{}_{suffix}", row.name);
                let listed = versions::symbols().iter().any(|s| s.symbol == form);
                let declared = row.forms.contains(&suffix);
                assert!(listed == declared, "{form}: listed {listed}, declared {declared}");
            }
        }
    }
    /// The code in CONTRIBUTING.md, with the file that the text before it names.
    fn shown() -> Vec<(String, Vec<String>)> {
        let text = include_str!("../../CONTRIBUTING.md");
        let (mut shown, mut before, mut file) = (Vec::new(), String::new(), None);
        for line in text.lines() {
            match line.strip_prefix("    ") {
                Some(code) => {
                    if !before.is_empty() {
                        // The last words in quotes, if they are a path.
                        let name =
                            before.rsplit('`').nth(1).filter(|name| name.contains('/') && before.trim_end().ends_with("`:"));
                        file = name.map(str::to_owned);
                        shown.extend(file.clone().map(|file| (file, Vec::new())));
                        before.clear();
                    }
                    if let (Some(_), Some((_, lines))) = (&file, shown.last_mut()) {
                        lines.push(code.trim().to_owned());
                    }
                }
                None => before.push_str(line),
            }
        }
        shown
    }

    #[test]
    fn the_worked_examples_are_what_the_files_have() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../");
        let shown = shown();
        for (file, lines) in &shown {
            let text = std::fs::read_to_string(format!("{root}{file}")).unwrap_or_else(|e| panic!("{file}: {e}"));
            let there: Vec<&str> = text.lines().map(str::trim).collect();
            assert!(
                there.windows(lines.len()).any(|part| part == lines),
                "CONTRIBUTING.md shows for {file}:\n{}",
                lines.join("\n")
            );
        }
        for file in [
            "cuda-api/src/calls/module.rs",
            "recorder/src/calls/stream.rs",
            "softgpu/src/abi/library.rs",
            "tests/programs/surface/modules.rs",
        ] {
            assert!(shown.iter().any(|(shown, _)| shown == file), "CONTRIBUTING.md shows nothing of {file}");
        }
    }

    #[test]
    fn lengths_of_arrays_are_lengths() {
        for row in rows() {
            for (name, kind) in row.params {
                let Some((_, end)) = kind.split_once("InSlice").and_then(|(_, rest)| rest.rsplit_once(',')) else { continue };
                let at: usize =
                    end.trim_end_matches('>').trim().parse().unwrap_or_else(|e| panic!("{} {name}: {kind}: {e}", row.name));
                assert!(
                    row.params.get(at).is_some_and(|(_, kind)| kind.starts_with("Len")),
                    "{} {name}: parameter {at} is not a length",
                    row.name
                );
            }
        }
    }
}
