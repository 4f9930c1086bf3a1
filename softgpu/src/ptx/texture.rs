//! The resources of texture and surface objects, and how they are sampled (CUDA C++ Programming Guide, "Texture
//! Fetching").
//!
//! Weights of linear filtering have 8 fractional bits along each dimension, as the hardware's. Products of them are exact here, while
//! an H200 rounds the weight of each texel to 8 bits too, in an order that is not known: results are equal where the products
//! have no more bits.

use std::collections::HashMap;
use std::sync::Arc;

use super::float::{Half, Small};

/// What happens outside of a texture: `CUaddress_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// The texture repeats.
    Wrap,
    /// The nearest texel.
    Clamp,
    /// The texture repeats, every second time mirrored.
    Mirror,
    /// A colour.
    Border,
}

/// How a texture object samples.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    /// For each dimension.
    pub outside: [Outside; 3],
    /// Whether neighbours are weighed.
    pub linear: bool,
    /// Whether coordinates go from 0 to 1.
    pub normalized: bool,
    /// Whether integers of 8 and 16 bits are read as numbers from 0 or -1 to 1.
    pub to_float: bool,
    /// Whether levels are weighed.
    pub between_levels: bool,
    /// Added to the level.
    pub bias: f32,
    /// Lowest and highest level.
    pub clamp: [f32; 2],
    /// The colour outside.
    pub border: [f32; 4],
}

/// What a channel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// An unsigned integer.
    Unsigned,
    /// A signed integer.
    Signed,
    /// A floating-point number of 2 or 4 bytes.
    Float,
}

/// Where a byte of a level is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// At an address.
    At(u64),
    /// Nowhere: it reads zero and takes nothing.
    Nothing,
    /// Nowhere, and it must not be touched.
    Missing,
}

/// A level without memory of its own, made of tiles that are mapped to memory or not.
pub trait Tiled: std::fmt::Debug + Send + Sync {
    /// Where a byte of a row is, and how many bytes follow it there.
    fn at(&self, x: u64, y: u64, z: u64) -> (Spot, u64);
}

/// One level: where its texels are, in bytes.
#[derive(Clone, Debug)]
pub struct Level {
    /// Address of the first one.
    pub base: u64,
    /// Texels of a row, rows, slices or layers; at least 1 each.
    pub size: [u64; 3],
    /// From row to row.
    pub pitch: u64,
    /// From slice to slice.
    pub slice: u64,
    /// Where else its texels are.
    pub tiles: Option<Arc<dyn Tiled>>,
}

impl Level {
    /// Where a byte of a row is.
    pub fn spot(&self, x: u64, y: u64, z: u64) -> Spot {
        match &self.tiles {
            None => Spot::At(self.base + z * self.slice + y * self.pitch + x),
            Some(tiles) => tiles.at(x, y, z).0,
        }
    }
}

/// The object of a number that was passed to a kernel.
#[derive(Clone)]
pub struct Object {
    /// Levels, the largest first; none of what a reference sees that sees nothing.
    pub levels: Vec<Level>,
    /// What a channel holds.
    pub channel: Channel,
    /// Bytes of a channel.
    pub bytes: u64,
    /// Channels of a texel.
    pub channels: u64,
    /// Whether it lies in memory that has to be checked, and not in an array of its own.
    pub in_memory: bool,
    /// Whether slices are layers.
    pub layered: bool,
    /// Whether each six slices are the faces of a cube.
    pub cube: bool,
    /// How it samples; a surface does not.
    pub sampler: Option<Sampler>,
    /// Keeps the array.
    pub owner: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

/// Objects by number.
#[derive(Clone, Default)]
pub struct Objects {
    /// Textures.
    pub textures: HashMap<u64, Arc<Object>>,
    /// Surfaces.
    pub surfaces: HashMap<u64, Arc<Object>>,
}

/// A texel as the sums see it: floating point, or integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Texel {
    Float([f32; 4]),
    Bits([u32; 4]),
}

impl Texel {
    /// As registers hold it.
    pub(crate) fn bits(self) -> [u32; 4] {
        match self {
            Texel::Float(f) => f.map(f32::to_bits),
            Texel::Bits(b) => b,
        }
    }
}

/// Reads `n` bytes (1, 2 or 4) at an address that is one of the object's.
pub(crate) trait Fetch {
    type Error;
    fn fetch(&mut self, address: u64, bytes: u64) -> Result<u32, Self::Error>;
    /// What follows from touching what must not be touched.
    fn missing(&self) -> Self::Error;
}

/// One dimension of a sample: one or two indices with the weight of the second, `None` outside of a texture with a border.
type Along = ([Option<u64>; 2], f32);

impl Sampler {
    fn index(&self, dimension: usize, i: i64, n: u64) -> Option<u64> {
        let n = n as i64;
        let outside = match self.outside[dimension] {
            // Without normalised coordinates a texture does not repeat.
            Outside::Wrap | Outside::Mirror if !self.normalized => Outside::Clamp,
            other => other,
        };
        let at = match outside {
            Outside::Wrap => i.rem_euclid(n),
            Outside::Clamp => i.clamp(0, n - 1),
            Outside::Mirror => {
                let twice = i.rem_euclid(2 * n);
                if twice < n { twice } else { 2 * n - 1 - twice }
            }
            Outside::Border => return (0..n).contains(&i).then_some(i as u64),
        };
        Some(at as u64)
    }

    /// Where a coordinate falls among `n` texels. `both` also gives the neighbour of a point.
    fn along(&self, dimension: usize, x: f32, n: u64, both: bool) -> Along {
        let mut x = if x.is_finite() { f64::from(x) } else { 0.0 };
        if self.normalized {
            x *= n as f64;
        }
        // Far beyond every texture; what follows stays in the range of integers.
        x = x.clamp(-1e12, 1e12);
        if !self.linear && !both {
            return ([self.index(dimension, x.floor() as i64, n), None], 0.0);
        }
        let fixed = ((x - 0.5) * 256.0 + 0.5).floor() as i64;
        let (i, weight) = (fixed.div_euclid(256), fixed.rem_euclid(256));
        ([self.index(dimension, i, n), self.index(dimension, i + 1, n)], weight as f32 / 256.0)
    }
}

/// The face of a cube that a direction goes through, and where, from 0 to 1 (CUDA C++ Programming Guide, "Cubemap Textures").
pub(crate) fn face(direction: [f32; 3]) -> (u64, [f32; 2]) {
    let [x, y, z] = direction;
    let (ax, ay, az) = (x.abs(), y.abs(), z.abs());
    let (face, length, s, t) = if ax >= ay && ax >= az {
        if x >= 0.0 { (0, ax, -z, -y) } else { (1, ax, z, -y) }
    } else if ay >= az {
        if y >= 0.0 { (2, ay, x, z) } else { (3, ay, x, -z) }
    } else if z >= 0.0 {
        (4, az, x, -y)
    } else {
        (5, az, -x, -y)
    };
    (face, [s, t].map(|c| (c / length + 1.0) / 2.0))
}

impl Object {
    fn normalised(&self) -> bool {
        self.sampler.is_some_and(|s| s.to_float) && self.channel != Channel::Float && self.bytes < 4
    }

    fn is_float(&self) -> bool {
        self.channel == Channel::Float || self.normalised()
    }

    /// The texel at indices of a level; the border's colour if one is outside.
    fn texel<F: Fetch>(&self, f: &mut F, level: &Level, at: [Option<u64>; 3]) -> Result<Texel, F::Error> {
        let [Some(x), Some(y), Some(z)] = at else {
            let border = self.sampler.map_or([0.0; 4], |s| s.border);
            return Ok(if self.is_float() { Texel::Float(border) } else { Texel::Bits(border.map(f32::to_bits)) });
        };
        let spot = level.spot(x * self.bytes * self.channels, y, z);
        let (mut floats, mut bits) = ([0.0, 0.0, 0.0, 1.0], [0, 0, 0, 1]);
        for c in 0..self.channels.min(4) {
            let raw = match spot {
                Spot::At(address) => f.fetch(address + c * self.bytes, self.bytes)?,
                Spot::Nothing => 0,
                Spot::Missing => return Err(f.missing()),
            };
            let signed = match self.bytes {
                1 => i32::from(raw as i8),
                2 => i32::from(raw as i16),
                _ => raw as i32,
            };
            bits[c as usize] = if self.channel == Channel::Signed { signed as u32 } else { raw };
            floats[c as usize] = match (self.channel, self.bytes) {
                (Channel::Float, 2) => Half(raw as u16).wide(),
                (Channel::Float, _) => f32::from_bits(raw),
                (Channel::Unsigned, 1) => raw as f32 / 255.0,
                (Channel::Unsigned, _) => raw as f32 / 65535.0,
                (Channel::Signed, 1) => (signed as f32 / 127.0).max(-1.0),
                (Channel::Signed, _) => (signed as f32 / 32767.0).max(-1.0),
            };
        }
        Ok(if self.is_float() { Texel::Float(floats) } else { Texel::Bits(bits) })
    }

    /// Samples one level. `layer` is the last dimension of layered textures.
    fn sample_level<F: Fetch>(&self, f: &mut F, level: &Level, at: &[f32], layer: Option<u64>) -> Result<Texel, F::Error> {
        let Some(sampler) = self.sampler else { return Ok(Texel::Bits([0; 4])) };
        let one: Along = ([Some(0), None], 0.0);
        let mut along = [one; 3];
        for (dimension, x) in at.iter().enumerate() {
            along[dimension] = sampler.along(dimension, *x, level.size[dimension], false);
        }
        if let Some(layer) = layer {
            along[2] = ([Some(layer.min(level.size[2] - 1)), None], 0.0);
        }
        if !sampler.linear {
            return self.texel(f, level, along.map(|(index, _)| index[0]));
        }
        let mut sum = [0.0f32; 4];
        for corner in 0..8usize {
            let bit = |d: usize| corner >> d & 1;
            let filtered = |d: usize| d < at.len();
            if (0..3).any(|d| bit(d) == 1 && !filtered(d)) {
                continue;
            }
            let weight = |d: usize| {
                if !filtered(d) {
                    1.0
                } else if bit(d) == 1 {
                    along[d].1
                } else {
                    1.0 - along[d].1
                }
            };
            let w = weight(0) * weight(1) * weight(2);
            if w == 0.0 {
                continue;
            }
            let index = std::array::from_fn(|d| along[d].0[bit(d)]);
            if let Texel::Float(t) = self.texel(f, level, index)? {
                for (s, t) in sum.iter_mut().zip(t) {
                    *s += w * t;
                }
            }
        }
        Ok(Texel::Float(sum))
    }

    /// `tex` with floating-point coordinates: as many as the geometry has dimensions.
    pub(crate) fn sample<F: Fetch>(&self, f: &mut F, at: &[f32], layer: Option<u64>, lod: f32) -> Result<Texel, F::Error> {
        let Some(sampler) = self.sampler else { return Ok(Texel::Bits([0; 4])) };
        let last = self.levels.len() - 1;
        let lod = if lod.is_finite() { lod } else { 0.0 };
        let lod = (lod + sampler.bias).max(sampler.clamp[0]).min(sampler.clamp[1].max(sampler.clamp[0])).clamp(0.0, last as f32);
        if !sampler.between_levels {
            let nearest = ((lod + 0.5).floor() as usize).min(last);
            return self.sample_level(f, &self.levels[nearest], at, layer);
        }
        let fixed = (lod * 256.0 + 0.5).floor() as usize;
        let (below, weight) = (fixed / 256, (fixed % 256) as f32 / 256.0);
        let low = self.sample_level(f, &self.levels[below.min(last)], at, layer)?;
        if weight == 0.0 || below >= last {
            return Ok(low);
        }
        match (low, self.sample_level(f, &self.levels[below + 1], at, layer)?) {
            (Texel::Float(a), Texel::Float(b)) => {
                Ok(Texel::Float(std::array::from_fn(|c| a[c] * (1.0 - weight) + b[c] * weight)))
            }
            (low, _) => Ok(low),
        }
    }

    /// `tex` with integer coordinates: a texel of level 0, zero outside.
    pub(crate) fn fetch<F: Fetch>(&self, f: &mut F, at: &[i64], layer: Option<u64>) -> Result<Texel, F::Error> {
        let level = &self.levels[0];
        let mut index = [Some(0); 3];
        for (dimension, i) in at.iter().enumerate() {
            index[dimension] = u64::try_from(*i).ok().filter(|i| *i < level.size[dimension]);
        }
        if let Some(layer) = layer {
            index[2] = Some(layer.min(level.size[2] - 1));
        }
        if index.contains(&None) {
            return Ok(if self.is_float() { Texel::Float([0.0; 4]) } else { Texel::Bits([0; 4]) });
        }
        self.texel(f, level, index)
    }

    /// `tld4`: a channel of the four texels around a point.
    pub(crate) fn gather<F: Fetch>(
        &self,
        f: &mut F,
        at: [f32; 2],
        layer: Option<u64>,
        channel: usize,
    ) -> Result<[u32; 4], F::Error> {
        let Some(sampler) = self.sampler else { return Ok([0; 4]) };
        let level = &self.levels[0];
        let ([x0, x1], _) = sampler.along(0, at[0], level.size[0], true);
        let ([y0, y1], _) = sampler.along(1, at[1], level.size[1], true);
        let layer = Some(layer.unwrap_or(0).min(level.size[2] - 1));
        let mut out = [0; 4];
        for (to, (x, y)) in out.iter_mut().zip([(x0, y1), (x1, y1), (x1, y0), (x0, y0)]) {
            *to = self.texel(f, level, [x, y, layer])?.bits()[channel];
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texels that are numbered by their address.
    struct Numbers;

    impl Fetch for Numbers {
        type Error = ();
        fn fetch(&mut self, address: u64, _: u64) -> Result<u32, ()> {
            Ok(((address / 4) as f32).to_bits())
        }
        fn missing(&self) {}
    }

    fn object(size: [u64; 3], outside: Outside, linear: bool, normalized: bool) -> Object {
        let (pitch, slice) = (size[0] * 4, size[0] * size[1] * 4);
        Object {
            levels: vec![Level { base: 0, size, pitch, slice, tiles: None }],
            channel: Channel::Float,
            bytes: 4,
            channels: 1,
            in_memory: false,
            layered: false,
            cube: false,
            sampler: Some(Sampler {
                outside: [outside; 3],
                linear,
                normalized,
                to_float: true,
                between_levels: false,
                bias: 0.0,
                clamp: [0.0, 0.0],
                border: [-1.0; 4],
            }),
            owner: None,
        }
    }

    fn at(o: &Object, at: &[f32]) -> f32 {
        match o.sample(&mut Numbers, at, None, 0.0) {
            Ok(Texel::Float(f)) => f[0],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn points_outside_follow_the_mode() {
        let clamp = object([8, 1, 1], Outside::Clamp, false, false);
        assert_eq!([-3.0, 0.0, 0.99, 7.5, 8.0, 1e30, f32::NAN].map(|x| at(&clamp, &[x])), [0.0, 0.0, 0.0, 7.0, 7.0, 7.0, 0.0]);
        let wrap = object([8, 1, 1], Outside::Wrap, false, true);
        assert_eq!([-0.125, 0.0, 1.0, 1.25].map(|x| at(&wrap, &[x])), [7.0, 0.0, 0.0, 2.0]);
        let mirror = object([8, 1, 1], Outside::Mirror, false, true);
        assert_eq!([-0.125, 0.0, 1.0, 1.25, 2.0].map(|x| at(&mirror, &[x])), [0.0, 0.0, 7.0, 5.0, 0.0]);
        let border = object([8, 1, 1], Outside::Border, false, false);
        assert_eq!([-0.5, 0.5, 8.0].map(|x| at(&border, &[x])), [-1.0, 0.0, -1.0]);
        // Without normalised coordinates nothing repeats.
        assert_eq!(at(&object([8, 1, 1], Outside::Wrap, false, false), &[9.0]), 7.0);
    }

    #[test]
    fn linear_filtering_weighs_in_steps_of_a_256th() {
        let o = object([8, 4, 1], Outside::Clamp, true, false);
        assert_eq!(at(&o, &[0.5, 0.5]), 0.0);
        assert_eq!(at(&o, &[3.0, 0.5]), 2.5);
        assert_eq!(at(&o, &[3.0, 2.0]), 2.5 + 1.5 * 8.0);
        assert_eq!(at(&o, &[0.5 + 0.001, 0.5]), 0.0);
        assert_eq!(at(&o, &[0.5 + 0.003, 0.5]), 1.0 / 256.0);
        assert_eq!(at(&o, &[0.0, 0.0]), 0.0);
        let volume = object([4, 4, 4], Outside::Clamp, true, true);
        assert_eq!(at(&volume, &[0.5, 0.5, 0.5]), 1.5 + 1.5 * 4.0 + 1.5 * 16.0);
    }

    #[test]
    fn directions_find_the_faces_of_a_cube() {
        assert_eq!(face([2.0, 0.0, 0.0]), (0, [0.5, 0.5]));
        assert_eq!(face([-1.0, -0.5, 0.5]), (1, [0.75, 0.75]));
        assert_eq!(face([0.5, 4.0, -1.0]), (2, [0.5625, 0.375]));
        assert_eq!(face([0.5, -1.0, -0.5]), (3, [0.75, 0.75]));
        assert_eq!(face([0.25, 0.5, 1.0]), (4, [0.625, 0.25]));
        assert_eq!(face([0.25, 0.5, -1.0]), (5, [0.375, 0.25]));
    }

    #[test]
    fn four_texels_are_gathered_around() {
        let o = object([8, 4, 1], Outside::Clamp, false, false);
        let got = o.gather(&mut Numbers, [3.0, 2.0], None, 0).unwrap().map(f32::from_bits);
        assert_eq!(got, [18.0, 19.0, 11.0, 10.0]);
    }

    #[test]
    fn integers_become_numbers_only_if_asked() {
        struct Raw;
        impl Fetch for Raw {
            type Error = ();
            fn fetch(&mut self, _: u64, _: u64) -> Result<u32, ()> {
                Ok(0x80)
            }
            fn missing(&self) {}
        }
        let mut o = object([8, 1, 1], Outside::Clamp, false, false);
        (o.bytes, o.channel) = (1, Channel::Signed);
        assert_eq!(o.sample(&mut Raw, &[0.0], None, 0.0), Ok(Texel::Float([-1.0, 0.0, 0.0, 1.0])));
        if let Some(s) = &mut o.sampler {
            s.to_float = false;
        }
        assert_eq!(o.sample(&mut Raw, &[0.0], None, 0.0), Ok(Texel::Bits([-128i32 as u32, 0, 0, 1])));
    }
}
