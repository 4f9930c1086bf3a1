//! A parsed and decoded module, not yet placed.

use std::collections::BTreeSet;

use super::ast::{InitItem, Local, Number, RawFunction, RawModule, Reference, VarDecl, VarSpace};
use super::decode::{self, Decoded};
use super::error::PtxError;
use super::machine::Function;
use super::parse::parse;
use super::symbol::{Symbol, Symbols, Target};

/// Alignment of dynamic shared memory (bytes).
const DYNAMIC_ALIGN: u32 = 16;

/// A module.
#[derive(Clone, Debug)]
pub struct Image {
    /// Variables in global and constant space, in the order of the text.
    pub globals: Vec<GlobalVar>,
    /// Functions with a body, in the order of the text.
    pub functions: Vec<FunctionInfo>,
    /// Whether some kernel may allocate: the text names `malloc`.
    pub uses_heap: bool,
    /// Whether it prints.
    pub prints: bool,
    /// Code of each function; none once the module is linked, when the program has it.
    pub(crate) code: Vec<Function>,
    shared: Vec<SharedVar>,
    /// For each function, the shared variables that it and what it calls may use.
    shared_use: Vec<Vec<usize>>,
}

/// State space of a module-scope variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// `.global`
    Global,
    /// `.const`
    Const,
}

/// Module-scope variable.
#[derive(Clone, Debug)]
pub struct GlobalVar {
    /// Name in the text.
    pub name: String,
    /// Where it lives.
    pub space: Space,
    /// Whether host and kernels use it at one address.
    pub managed: bool,
    /// Alignment (bytes), a power of two.
    pub align: u64,
    /// Size (bytes).
    pub size: u64,
    /// For a texture or surface reference, which has an identifying address but no bytes.
    pub reference: Option<Reference>,
    /// `size` bytes; addresses in it are 0.
    pub init: Vec<u8>,
    /// The addresses in it.
    pub relocs: Vec<Reloc>,
}

/// An address within the initial value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloc {
    /// Bytes from the start of the variable; eight bytes from there lie within it.
    pub offset: u64,
    /// What the address is of.
    pub target: Target,
    /// Added to the address.
    pub addend: i64,
}

/// A function.
#[derive(Clone, Debug)]
pub struct FunctionInfo {
    /// Name in the text.
    pub name: String,
    /// `.entry`
    pub is_kernel: bool,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
    /// The architecture that the text is for: 75 for `sm_75`.
    pub target: u32,
    /// Shared memory known before the launch (bytes).
    pub static_shared: u32,
    /// Local memory of a thread, without what the called functions need (bytes).
    pub local_bytes: u32,
    /// From `.maxntid` or `.reqntid`.
    pub max_threads: Option<u32>,
    /// Whether it uses texture or surface references, itself or in functions that it calls.
    pub references: bool,
    /// 32-bit registers, a plausible figure rather than one a compiler assigned.
    pub num_regs: u32,
}

/// Place of a parameter in the parameter buffer (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamInfo {
    /// From the start of the buffer.
    pub offset: u32,
    /// Size.
    pub size: u32,
    /// Alignment.
    pub align: u32,
}

impl FunctionInfo {
    /// Size of the parameter buffer (bytes).
    pub fn param_bytes(&self) -> u32 {
        self.params.last().map_or(0, |p| p.offset + p.size)
    }
}

/// A variable in shared space.
#[derive(Clone, Debug)]
struct SharedVar {
    size: u64,
    align: u32,
    /// It is the dynamic shared memory.
    dynamic: bool,
}

/// Addresses in the shared memory of a launch.
pub(crate) struct SharedLayout {
    /// Of each shared variable of the module; those the kernel cannot use get one that faults.
    pub(crate) offsets: Vec<u32>,
    /// Static and dynamic size; `None` if beyond 32 bits.
    pub(crate) bytes: Option<u32>,
}

impl Image {
    /// Parses a module. The text may end with zero bytes.
    ///
    /// Errors: text that is not PTX, or data that refers to names that do not exist. Unknown instructions are no error.
    pub fn parse(ptx: &str) -> Result<Image, PtxError> {
        let module = parse(ptx)?;
        let mut image = Image {
            globals: Vec::new(),
            functions: Vec::new(),
            uses_heap: ptx.contains("malloc"),
            prints: ptx.contains("vprintf"),
            code: Vec::new(),
            shared: Vec::new(),
            shared_use: Vec::new(),
        };
        let symbols = image.declare(&module)?;
        let mut decoded = Vec::new();
        for (number, raw) in module.functions.iter().enumerate().filter(|(_, f)| f.body.is_some()) {
            let mut function = decode::function(number, raw, &symbols);
            // What is declared in it takes room, used or not.
            let own = symbols.inner.iter().filter(|((f, _, _), _)| *f == number);
            let mut own: Vec<usize> = own.filter_map(|(_, s)| if let Symbol::Shared(i) = s { Some(*i) } else { None }).collect();
            own.retain(|i| !function.shared.contains(i));
            own.sort_unstable();
            function.shared.extend(own);
            decoded.push(function);
            image.functions.push(FunctionInfo { target: module.target, ..describe(raw)? });
        }
        for index in 0..decoded.len() {
            let reached = reachable(index, &decoded, &image.functions);
            let shared: BTreeSet<usize> = reached.iter().flat_map(|f| decoded[*f].shared.iter().copied()).collect();
            image.shared_use.push(shared.into_iter().collect());
            let mut used = reached.iter().flat_map(|f| &decoded[*f].function.relocs);
            let is_reference = |target: &Target| matches!(target, Target::Global(g) if image.globals[*g].reference.is_some());
            image.functions[index].references = used.any(|(_, target, _)| is_reference(target));
        }
        for (index, one) in decoded.into_iter().enumerate() {
            let layout = image.shared_layout(index, 0);
            let info = &mut image.functions[index];
            info.static_shared = layout.bytes.unwrap_or(u32::MAX);
            info.local_bytes = one.function.frame_bytes;
            info.num_regs = (one.function.n32.saturating_add(one.function.n64.saturating_mul(2))).clamp(8, 255);
            image.code.push(one.function);
        }
        Ok(image)
    }

    /// Collects all variables and functions, then fills in initial values, which may refer to any of them.
    fn declare(&mut self, module: &RawModule) -> Result<Symbols, PtxError> {
        let mut symbols = Symbols::default();
        let mut pending = Vec::new();
        for var in &module.vars {
            if let Some(symbol) = self.variable(var, &mut pending) {
                symbols.names.insert(var.name.clone(), symbol);
            }
        }
        let bodies = module.functions.iter().enumerate().filter(|(_, f)| f.body.is_some());
        for (index, (number, raw)) in bodies.enumerate() {
            symbols.names.insert(raw.name.clone(), Symbol::Address(Target::Function(index)));
            for (scope, names) in raw.scopes.iter().enumerate() {
                let mut vars: Vec<&VarDecl> =
                    names.names.values().filter_map(|l| if let Local::Var(v) = l { Some(v) } else { None }).collect();
                // Maps have no order; that of the text keeps placement the same from run to run.
                vars.sort_by(|a, b| (a.line, &a.name).cmp(&(b.line, &b.name)));
                for var in vars {
                    if let Some(symbol) = self.variable(var, &mut pending) {
                        symbols.inner.insert((number, scope, var.name.clone()), symbol);
                    }
                }
            }
        }
        for (new, old) in &module.aliases {
            if let Some(&symbol) = symbols.names.get(old) {
                symbols.names.insert(new.clone(), symbol);
            }
        }
        for (index, var) in pending {
            fill(&mut self.globals[index], var, &symbols)?;
        }
        Ok(symbols)
    }

    /// Adds a variable with static storage.
    fn variable<'m>(&mut self, var: &'m VarDecl, pending: &mut Vec<(usize, &'m VarDecl)>) -> Option<Symbol> {
        match var.space {
            VarSpace::Shared => {
                let dynamic = var.size == 0;
                self.shared.push(SharedVar { size: var.size, align: var.align, dynamic });
                Some(Symbol::Shared(self.shared.len() - 1))
            }
            VarSpace::Global | VarSpace::Const if !var.external => {
                self.globals.push(GlobalVar {
                    name: var.name.clone(),
                    space: if var.space == VarSpace::Const { Space::Const } else { Space::Global },
                    managed: var.managed,
                    align: u64::from(var.align),
                    size: var.size,
                    reference: var.reference,
                    init: Vec::new(),
                    relocs: Vec::new(),
                });
                pending.push((self.globals.len() - 1, var));
                Some(Symbol::Address(Target::Global(self.globals.len() - 1)))
            }
            VarSpace::Global | VarSpace::Const | VarSpace::Local | VarSpace::Param => None,
        }
    }

    /// Where the shared variables lie when `function` is launched.
    pub(crate) fn shared_layout(&self, function: usize, dynamic: u32) -> SharedLayout {
        const UNUSED: u32 = u32::MAX - 255;
        let mut offsets = vec![UNUSED; self.shared.len()];
        let mut end = Some(0u32);
        let used = self.shared_use.get(function).map_or(&[][..], |u| u);
        for &index in used.iter().filter(|&&i| !self.shared[i].dynamic) {
            let var = &self.shared[index];
            let start = end.and_then(|e| e.checked_next_multiple_of(var.align));
            offsets[index] = start.unwrap_or(UNUSED);
            end = start.and_then(|s| s.checked_add(u32::try_from(var.size).ok()?));
        }
        let align = used.iter().filter(|&&i| self.shared[i].dynamic).map(|&i| self.shared[i].align).max();
        let start = end.and_then(|e| e.checked_next_multiple_of(align.unwrap_or(1).max(DYNAMIC_ALIGN)));
        for &index in used.iter().filter(|&&i| self.shared[i].dynamic) {
            offsets[index] = start.unwrap_or(UNUSED);
        }
        let bytes = if dynamic == 0 { end } else { start.and_then(|s| s.checked_add(dynamic)) };
        SharedLayout { offsets, bytes }
    }
}

fn describe(raw: &RawFunction) -> Result<FunctionInfo, PtxError> {
    let too_large = || PtxError::new(raw.line, format!("parameters of {} are too large", raw.name));
    let mut params = Vec::new();
    let mut end = 0u32;
    for var in &raw.params {
        let offset = end.checked_next_multiple_of(var.align).ok_or_else(too_large)?;
        let size = u32::try_from(var.size).map_err(|_| too_large())?;
        end = offset.checked_add(size).ok_or_else(too_large)?;
        params.push(ParamInfo { offset, size, align: var.align });
    }
    Ok(FunctionInfo {
        name: raw.name.clone(),
        is_kernel: raw.is_kernel,
        params,
        target: 0,
        static_shared: 0,
        local_bytes: 0,
        max_threads: raw.max_threads,
        references: false,
        num_regs: 0,
    })
}

/// The functions that a launch of `root` may run. A call through a pointer may reach every device function.
fn reachable(root: usize, decoded: &[Decoded], infos: &[FunctionInfo]) -> BTreeSet<usize> {
    let mut seen = BTreeSet::from([root]);
    let mut todo = vec![root];
    while let Some(function) = todo.pop() {
        let one = &decoded[function];
        let anything = (0..decoded.len()).filter(|&f| one.indirect && !infos[f].is_kernel);
        for next in one.callees.iter().copied().chain(anything) {
            if seen.insert(next) {
                todo.push(next);
            }
        }
    }
    seen
}

/// Computes the initial bytes of a variable.
fn fill(global: &mut GlobalVar, var: &VarDecl, symbols: &Symbols) -> Result<(), PtxError> {
    let error = |what: String| PtxError::new(var.line, format!("initial value of {}: {what}", var.name));
    let size = usize::try_from(var.size).map_err(|_| error("too large".into()))?;
    global.init = vec![0; size];
    let step = var.ty.size() as usize;
    for (n, item) in var.init.iter().enumerate() {
        let start = n * step;
        match item {
            InitItem::Number(number) => {
                let bits = match (*number, step) {
                    (Number::Int(n), _) => n as u64,
                    (Number::F32(x), 4) => u64::from(x.to_bits()),
                    (Number::F64(x), 4) => u64::from((x as f32).to_bits()),
                    (Number::F32(x), _) => f64::from(x).to_bits(),
                    (Number::F64(x), _) => x.to_bits(),
                };
                let slot = global
                    .init
                    .get_mut(start..start + step)
                    .ok_or_else(|| error("more elements than the variable has".into()))?;
                slot.copy_from_slice(&bits.to_le_bytes()[..step]);
            }
            // A byte-wise address: the element for its lowest byte stands for all eight.
            InitItem::Symbol { mask: Some(mask), .. } if *mask != 0xff => {}
            InitItem::Symbol { name, addend, mask } => {
                let Some(&Symbol::Address(target)) = symbols.names.get(name) else {
                    return Err(error(format!("'{name}' is not a variable or function of the module")));
                };
                if mask.is_none() && step != 8 || start + 8 > size {
                    return Err(error(format!("no room for the address of '{name}'")));
                }
                global.relocs.push(Reloc { offset: start as u64, target, addend: *addend });
            }
        }
    }
    Ok(())
}

/// Why a text made of several parts is not a complete program, if so: a function that is called is not defined, or two are defined under one name.
pub fn unlinkable(text: &str) -> Result<Option<String>, PtxError> {
    let module = parse(text)?;
    let mut defined = std::collections::HashSet::new();
    for function in module.functions.iter().filter(|f| f.body.is_some()) {
        if !defined.insert(function.name.as_str()) {
            return Ok(Some(format!("{} is defined twice", function.name)));
        }
    }
    let missing =
        module.functions.iter().find(|f| !defined.contains(f.name.as_str()) && super::builtin::named(&f.name).is_none());
    Ok(missing.map(|f| format!("no part defines {}", f.name)))
}
