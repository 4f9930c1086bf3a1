//! Texture and surface instructions: decoding and execution.

use std::sync::Arc;

use super::ast::{Operand, Ty};
use super::decoder::{Decoder, Op, Problem};
use super::error::Fault;
use super::lanes::{Exec, handler, store};
use super::machine::{Cta, Flow, Instr, Warp};
use super::mem::{Elem, check_global};
use super::operand::{LANES, NONE, Src, lanes};
use super::spec::{Beyond, Query, SurfSpec, TexKind, TexSpec};
use super::texture::{Fetch, Object, Spot, face};
use super::window::MemError;

/// Dimensions of a geometry, and whether it has layers.
fn geometry(o: &Op<'_>) -> Result<(usize, bool), Problem> {
    let known = [
        ("1d", (1, false)),
        ("2d", (2, false)),
        ("3d", (3, false)),
        ("a1d", (1, true)),
        ("a2d", (2, true)),
        ("cube", (3, false)),
        ("acube", (3, true)),
    ];
    let found = o.mods.iter().find_map(|m| known.iter().find(|(name, _)| name == m));
    found.map(|(_, g)| *g).ok_or_else(|| "textures of this geometry".into())
}

/// Decodes texture and surface instructions; false if it is none.
pub(crate) fn texture(decoder: &mut Decoder<'_>, o: &Op<'_>) -> Result<bool, Problem> {
    match o.name {
        "tex" => decoder.tex(o)?,
        "tld4" => decoder.tld4(o)?,
        "txq" | "suq" => decoder.query(o)?,
        "suld" | "sust" => decoder.surface(o)?,
        _ => return Ok(false),
    }
    Ok(true)
}

impl Decoder<'_> {
    /// Object and coordinates of `[object, {x, y, …}]`.
    fn sampled(&mut self, operand: &Operand, o: &Op<'_>, ty: Ty) -> Result<(Src, Option<Src>, Vec<Src>), Problem> {
        let Operand::Sample { object, at } = operand else { return Err("no coordinates".into()) };
        let object = self.object(object)?;
        let (dimensions, layered) = geometry(o)?;
        let skip = usize::from(layered);
        if at.len() < dimensions + skip {
            return Err("too few coordinates".into());
        }
        let layer = if layered { Some(self.src(&at[0], Ty::U32)?) } else { None };
        let at = at[skip..][..dimensions].iter().map(|a| self.src(a, ty)).collect::<Result<_, _>>()?;
        Ok((object, layer, at))
    }

    /// The number of an object in a register, or of a reference by its name.
    fn object(&mut self, name: &str) -> Result<Src, Problem> {
        self.src(&Operand::Name { name: name.to_owned(), offset: 0 }, Ty::B64)
    }

    /// Four 32-bit destinations, and a predicate for whether the texel is there, which it always is.
    fn texel(&mut self, operand: &Operand) -> Result<[u32; 4], Problem> {
        let (registers, resident) = match operand {
            Operand::Pair(registers, predicate) => (&**registers, Some(&**predicate)),
            other => (other, None),
        };
        let Operand::Vector(parts) = registers else { return Err("destinations of this form".into()) };
        if parts.len() != 4 {
            return Err("number of destinations does not fit".into());
        }
        let mut to = [NONE; 4];
        for (to, part) in to.iter_mut().zip(parts) {
            if self.name_of(part) != Some("_") {
                *to = self.dst32(part)?;
            }
        }
        if let Some(predicate) = resident {
            let d = self.pred_dst(predicate)?;
            let mut instr = self.instr(handler::<Resident>());
            instr.d = d;
            self.emit(instr);
        }
        Ok(to)
    }

    fn emit_tex(&mut self, object: Src, spec: TexSpec) {
        self.out.texs.push(spec);
        let mut instr = self.instr(handler::<Tex>());
        instr.s[0] = object;
        instr.x = (self.out.texs.len() - 1) as u32;
        self.emit(instr);
    }

    fn tex(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        if o.has("grad") || o.has("v2") {
            return Err("textures with derivatives or packed results".into());
        }
        let types = o.types();
        let [to_type, at_type] = types[..] else { return Err("types of this form".into()) };
        if to_type.size() != 4 || at_type.size() != 4 || o.args.len() > if o.has("level") { 3 } else { 2 } {
            return Err("softgpu does not support this form of the instruction".into());
        }
        let (object, layer, at) = self.sampled(o.arg(1)?, o, at_type)?;
        let lod = if o.has("level") { Some(self.src(o.arg(2)?, at_type)?) } else { None };
        let kind = if at_type == Ty::F32 { TexKind::Sample { lod } } else { TexKind::Fetch };
        if at_type != Ty::F32 && lod.is_some() {
            return Err("levels by number with integer coordinates".into());
        }
        let cube = o.has("cube") || o.has("acube");
        if cube && at_type != Ty::F32 {
            return Err("softgpu does not support this form of the instruction".into());
        }
        let to = self.texel(o.arg(0)?)?;
        self.emit_tex(object, TexSpec { kind, cube, at, layer, to });
        Ok(())
    }

    fn tld4(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let channel =
            ["r", "g", "b", "a"].iter().position(|c| o.has(c)).ok_or("softgpu does not support this form of the instruction")?;
        if o.args.len() != 2 || geometry(o)?.0 != 2 {
            return Err("softgpu does not support this form of the instruction".into());
        }
        let (object, layer, at) = self.sampled(o.arg(1)?, o, Ty::F32)?;
        let to = self.texel(o.arg(0)?)?;
        self.emit_tex(object, TexSpec { kind: TexKind::Gather(channel), cube: false, at, layer, to });
        Ok(())
    }

    fn query(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let known = [
            ("width", Query::Width),
            ("height", Query::Height),
            ("depth", Query::Depth),
            ("array_size", Query::Layers),
            ("num_mipmap_levels", Query::Levels),
        ];
        let what = known.iter().find(|(name, _)| o.has(name)).ok_or("a query of this kind")?.1;
        let Operand::Address { name, offset: 0 } = o.arg(1)? else { return Err("a query of this form".into()) };
        let object = self.object(name)?;
        let to = self.dst32(o.arg(0)?)?;
        let spec = TexSpec { kind: TexKind::Query(what), cube: false, at: Vec::new(), layer: None, to: [to, NONE, NONE, NONE] };
        self.emit_tex(object, spec);
        Ok(())
    }

    fn surface(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        if !o.has("b") {
            return Err("surfaces with conversion".into());
        }
        let stores = o.name == "sust";
        let ty = o.ty()?;
        let outside = match () {
            () if o.has("clamp") => Beyond::Clamp,
            () if o.has("zero") => Beyond::Zero,
            () => Beyond::Trap,
        };
        let (operand, values) = if stores { (o.arg(0)?, o.arg(1)?) } else { (o.arg(1)?, o.arg(0)?) };
        let (object, layer, at) = self.sampled(operand, o, Ty::U32)?;
        let single = [values.clone()];
        let parts = if let Operand::Vector(parts) = values { &parts[..] } else { &single[..] };
        let mut registers = Vec::new();
        for part in parts {
            registers.push(match (stores, ty.size()) {
                (true, _) => self.src(part, ty)?.0,
                (false, 8) => self.dst64(part)?,
                (false, _) => self.dst32(part)?,
            });
        }
        self.out.surfs.push(SurfSpec { at, layer, outside, bytes: u64::from(ty.size()), registers, stores });
        let mut instr = self.instr(handler::<Surf>());
        instr.s[0] = object;
        instr.x = (self.out.surfs.len() - 1) as u32;
        self.emit(instr);
        Ok(())
    }
}

/// All texels are there.
struct Resident;
impl Exec for Resident {
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        w.set_pred(i.d, u32::MAX);
        Flow::Next
    }
}

/// Texels of a kernel's objects: in memory that is checked, or in arrays.
struct Texels<'w, 'a> {
    w: &'w mut Warp<'a>,
    c: &'w Cta<'a>,
    in_memory: bool,
}

impl Fetch for Texels<'_, '_> {
    type Error = MemError;
    fn fetch(&mut self, address: u64, bytes: u64) -> Result<u32, MemError> {
        if self.in_memory {
            check_global(self.w, self.c, address, bytes)?;
        }
        // SAFETY: inside memory that the driver keeps mapped during the launch, or inside the array, which the object keeps;
        // aligned, since rows begin at multiples of 32 and elements at multiples of their channels.
        Ok(unsafe {
            match bytes {
                1 => u32::from(u8::load(address)),
                2 => u32::from(u16::load(address)),
                _ => u32::load(address),
            }
        })
    }

    fn missing(&self) -> MemError {
        MemError::Illegal(0)
    }
}

/// A number that identifies no object.
fn nothing(number: u64) -> Fault {
    Fault::IllegalInstruction(format!("{number:#x} is no texture or surface object, and no reference"))
}

/// `tex`, `tld4`, `txq`: `x` indexes `Function::texs`, the object is `s[0]`.
struct Tex;
impl Exec for Tex {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let spec = &w.frame.func.texs[i.x as usize];
        let numbers = *w.row64(i.s[0]);
        let row = |w: &Warp<'a>, s: Src| *w.row32(s);
        let at: Vec<[u32; LANES]> = spec.at.iter().map(|s| row(w, *s)).collect();
        let layers = spec.layer.map(|s| row(w, s));
        let lods = if let TexKind::Sample { lod: Some(s) } = spec.kind { Some(row(w, s)) } else { None };
        let mut out = [[0u32; LANES]; 4];
        let mut last: Option<(u64, Arc<Object>)> = None;
        for l in lanes(w.mask) {
            let number = numbers[l];
            if last.as_ref().is_none_or(|(n, _)| *n != number) {
                let surface = matches!(spec.kind, TexKind::Query(_)).then(|| c.env.surface(number)).flatten();
                let Some(object) = c.env.texture(number).or(surface) else { return w.fail(nothing(number)) };
                last = Some((number, object.clone()));
            }
            let Some((_, object)) = &last else { return w.fail(nothing(number)) };
            if object.levels.is_empty() {
                continue;
            }
            let layer = layers.map(|row| u64::try_from(row[l] as i32).unwrap_or(0));
            if layer.is_some() != object.layered && !matches!(spec.kind, TexKind::Query(_)) {
                return w.fail(Fault::IllegalInstruction("layers of a texture that has none, or none of one that has".into()));
            }
            if spec.cube != object.cube && !matches!(spec.kind, TexKind::Query(_)) {
                return w.fail(Fault::IllegalInstruction(
                    "a direction in a texture that is no cube, or something else in a cube".into(),
                ));
            }
            let mut texels = Texels { w, c, in_memory: object.in_memory };
            let float = |n: usize| f32::from_bits(at[n][l]);
            let got = match spec.kind {
                TexKind::Sample { .. } => {
                    let at: [f32; 3] = std::array::from_fn(|n| if n < spec.at.len() { float(n) } else { 0.0 });
                    let lod = lods.map_or(0.0, |row| f32::from_bits(row[l]));
                    let (at, layer) = if spec.cube {
                        let (face, [s, t]) = face(at);
                        let last = object.levels[0].size[2] / 6 - 1;
                        ([s, t, 0.0], Some(layer.unwrap_or(0).min(last) * 6 + face))
                    } else {
                        (at, layer)
                    };
                    let dimensions = if spec.cube { 2 } else { spec.at.len() };
                    object.sample(&mut texels, &at[..dimensions], layer, lod).map(super::texture::Texel::bits)
                }
                TexKind::Fetch => {
                    let at: [i64; 3] = std::array::from_fn(|n| at.get(n).map_or(0, |row| i64::from(row[l] as i32)));
                    object.fetch(&mut texels, &at[..spec.at.len()], layer).map(super::texture::Texel::bits)
                }
                TexKind::Gather(channel) => object.gather(&mut texels, [float(0), float(1)], layer, channel),
                TexKind::Query(what) => {
                    let size = object.levels[0].size;
                    let value = match what {
                        Query::Width => size[0],
                        Query::Height => size[1],
                        Query::Depth | Query::Layers => size[2],
                        Query::Levels => object.levels.len() as u64,
                    };
                    Ok([value as u32, 0, 0, 0])
                }
            };
            match got {
                Ok(texel) => texel.iter().zip(&mut out).for_each(|(value, row)| row[l] = *value),
                Err(error) => return w.fail(error.into()),
            }
        }
        let mask = w.mask;
        for (row, d) in out.iter().zip(spec.to) {
            if d != NONE {
                store(w, d, row, mask);
            }
        }
        Flow::Next
    }
}

impl SurfSpec {
    /// Address of the element of a lane; none if it is not to be touched.
    fn address(&self, object: &Object, at: [i64; 3], layer: Option<i64>, whole: u64) -> Result<Option<u64>, Fault> {
        let level = &object.levels[0];
        let element = object.bytes * object.channels;
        if layer.is_some() != object.layered {
            return Err(Fault::IllegalInstruction("layers of a surface that has none, or none of one that has".into()));
        }
        // The first coordinate counts bytes.
        if !(at[0] as u64).is_multiple_of(whole) || whole != element {
            return Err(Fault::IllegalInstruction("access of a surface that is not one whole element".into()));
        }
        let wanted = [at[0].div_euclid(element as i64), at[1], layer.unwrap_or(at[2])];
        let mut index = [0u64; 3];
        for d in 0..3 {
            let n = level.size[d] as i64;
            index[d] = match self.outside {
                _ if (0..n).contains(&wanted[d]) => wanted[d] as u64,
                Beyond::Clamp => wanted[d].clamp(0, n - 1) as u64,
                Beyond::Zero => return Ok(None),
                Beyond::Trap => return Err(Fault::Trap),
            };
        }
        match level.spot(index[0] * element, index[1], index[2]) {
            Spot::At(address) => Ok(Some(address)),
            Spot::Nothing => Ok(None),
            Spot::Missing => Err(Fault::IllegalAddress(0)),
        }
    }
}

/// `suld.b`, `sust.b`: `x` indexes `Function::surfs`, the object is `s[0]`.
struct Surf;
impl Exec for Surf {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let spec = &w.frame.func.surfs[i.x as usize];
        let (numbers, mask) = (*w.row64(i.s[0]), w.mask);
        let at: Vec<[u32; LANES]> = spec.at.iter().map(|s| *w.row32(*s)).collect();
        let layers = spec.layer.map(|s| *w.row32(s));
        let whole = spec.bytes * spec.registers.len() as u64;
        let mut places = [None; LANES];
        for l in lanes(mask) {
            let Some(object) = c.env.surface(numbers[l]) else { return w.fail(nothing(numbers[l])) };
            if object.levels.is_empty() {
                continue;
            }
            let at = std::array::from_fn(|n| at.get(n).map_or(0, |row| i64::from(row[l] as i32)));
            let layer = layers.map(|row| i64::from(row[l] as i32));
            match spec.address(object, at, layer, whole) {
                Ok(address) => places[l] = address,
                Err(fault) => return w.fail(fault),
            }
        }
        for (n, register) in (0..).zip(&spec.registers) {
            let offset = n * spec.bytes;
            if spec.bytes == 8 {
                let mut row = if spec.stores { *w.row64(Src(*register)) } else { [0; LANES] };
                for l in lanes(mask) {
                    let Some(address) = places[l] else { continue };
                    // SAFETY: an element of the array, which the object keeps for the launch; aligned like its channels' sum.
                    unsafe { if spec.stores { row[l].store(address + offset) } else { row[l] = u64::load(address + offset) } }
                }
                if !spec.stores {
                    store(w, *register, &row, mask);
                }
                continue;
            }
            let mut row = if spec.stores { *w.row32(Src(*register)) } else { [0; LANES] };
            for l in lanes(mask) {
                let Some(address) = places[l] else { continue };
                // SAFETY: as above.
                unsafe {
                    match (spec.bytes, spec.stores) {
                        (1, true) => (row[l] as u8).store(address + offset),
                        (1, false) => row[l] = u8::load(address + offset).into(),
                        (2, true) => (row[l] as u16).store(address + offset),
                        (2, false) => row[l] = u16::load(address + offset).into(),
                        (_, true) => row[l].store(address + offset),
                        (_, false) => row[l] = u32::load(address + offset),
                    }
                }
            }
            if !spec.stores {
                store(w, *register, &row, mask);
            }
        }
        Flow::Next
    }
}
