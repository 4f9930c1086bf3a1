//! The rows: every driver function, declared once, and the code that is derived from the rows.
//!
//! ```text
//! /// What it does.
//! 0x0401 state send fn cuStreamCreate(phStream: New<Stream>, Flags: Val<c_uint>);
//! ^id    ^class ^how                  ^one argument kind per parameter      ^`ptsz`/`ptds` if it has such a form, after `older` if the header no longer has it
//! ```
//!
//! To add a call: write its row in the file of its family. `send` and `wait` rows need nothing more. A `custom` row needs a
//! function of the same name in the recorder's file of its subject. Ids are only ever added, never reused: they are in journals.
//!
//! Each family's macro (`for_each_memory_call!` and so on) passes its rows to another macro; the recorder exports its
//! symbols that way. [`by_id`] selects the generic functions of a row at run time: the executor, replay and printing
//! are ordinary generic code over [`Call`].

use crate::arg::Edges;
use crate::class::{Class, How};
use crate::code::{self, Code};
use crate::handle::Bindings;
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
    /// Names and kinds of the parameters.
    pub params: &'static [(&'static str, &'static str)],
    /// Also exported with this suffix (`ptsz`, `ptds`); may contain the marker `older`.
    pub forms: &'static [&'static str],
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
    /// The encoded arguments.
    type Sent: Wire + std::fmt::Debug;
    /// The encoded results of a successful call.
    type Reply: Wire + std::fmt::Debug;
    /// Calls the driver at a place.
    fn run(d: &Driver, sent: &Self::Sent, h: &Bindings) -> Result<Self::Reply, Code>;
    /// The handles that it creates, destroys and uses.
    fn edges(sent: &Self::Sent) -> Edges;
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
    (custom $($rest:tt)*) => {};
    (bare $($rest:tt)*) => {};
    (refused $($rest:tt)*) => {};
    ($how:ident $id:literal $class:ident $family:ident $name:ident ($($p:ident : $kind:ty),*)) => {
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
    (custom) => {
        How::Custom
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
    (custom $name:ident $v:ident) => {{
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

/// Compares a row with the bindings; `older` marks symbols that these do not have, because the 13.0 header hides them
/// behind newer ones or the bindings omit them.
macro_rules! check {
    ([older $($form:ident)*] $($rest:tt)*) => {};
    ([$($form:ident)*] $name:ident ($($kind:ty),*)) => {
        const _: unsafe fn($(<$kind as Arg>::Check),*) -> sys::CUresult = sys::$name;
    };
}

macro_rules! define {
    ($family:ident $table:ident; $(
        $(#[doc = $doc:literal])+
        $id:literal $class:ident $how:ident fn $name:ident ($($p:ident : $kind:ty),* $(,)?) $($form:ident)*;
    )*) => {
        $(carried_out! { $how $id $class $family $name ($($p : $kind),*) })*

        /// Entry points of this family in a loaded driver; a missing symbol is `None`.
        #[derive(Debug, Clone)]
        #[allow(non_snake_case)]
        pub struct $table { $($(#[doc = $doc])+ pub $name: Option<unsafe extern "C" fn($(<$kind as Arg>::C),*) -> Code>),* }
        impl $table {
            /// Fills the table from a symbol look-up that returns null for missing symbols.
            ///
            /// # Safety
            /// `find` must return the function of a CUDA driver with the given name.
            pub unsafe fn load(find: &dyn Fn(&str) -> *const c_void) -> Self {
                // SAFETY: a non-null symbol of that name has this prototype (contract; the prototype is checked below).
                unsafe { Self { $($name: std::mem::transmute::<*const c_void, Option<unsafe extern "C" fn($(<$kind as Arg>::C),*) -> Code>>(find(stringify!($name)))),* } }
            }
        }

        // The rows against the bindings of CUDA's header: a wrong type does not compile.
        $(check! { [$($form)*] $name ($($kind),*) })*

        /// The rows of this family.
        pub const ROWS: &[Row] = &[$(Row {
            id: $id, name: stringify!($name), class: class!($class), how: how!($how),
            params: &[$((stringify!($p), stringify!($kind))),*], forms: &[$(stringify!($form)),*], doc: concat!($($doc),+),
        }),*];

        /// See [`super::by_id`].
        pub fn by_id<V: Visit>(id: u16, v: V) -> Option<V::Out> {
            match id { $($id => arm!($how $name v),)* _ => { let _ = v; None } }
        }
    };
}

/// Takes the rows; defines the call types here and a macro that passes on the same rows.
macro_rules! calls {
    ($d:tt $each:ident $family:ident $table:ident; $($rows:tt)*) => {
        #[allow(unused_imports)]
        use crate::{arg::*, calls::*, class::*, code::{self, Code}, handle::Bindings, sys, wire::*, wire_struct};
        #[allow(unused_imports)]
        use std::ffi::{c_char, c_int, c_uint, c_ushort, c_uchar, c_ulonglong, c_void};
        define! { $family $table; $($rows)* }
        /// Passes the rows of this family to the named macro.
        #[macro_export]
        macro_rules! $each { ($d each:ident) => { $d each! { $($rows)* } } }
    };
}

macro_rules! families {
    ($($family:ident $table:ident $high:literal;)*) => {
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
    };
}
families! {
    device DeviceCalls 0x01;
    context ContextCalls 0x02;
    memory MemoryCalls 0x03;
    stream StreamCalls 0x04;
    module ModuleCalls 0x05;
    launch LaunchCalls 0x06;
    vmm VmmCalls 0x07;
    graph GraphCalls 0x08;
    array ArrayCalls 0x09;
    refused RefusedCalls 0x0d;
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
        for (id, name) in rows().map(|r| (r.id, r.name)).chain(ops::ALL.iter().copied()) {
            if let Some(other) = seen.insert(id, name) {
                panic!("{other} and {name} are both {id:#06x}");
            }
        }
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
}
