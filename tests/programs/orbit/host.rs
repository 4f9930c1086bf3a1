//! The same computation on the host, with the same single roundings in the same order as the kernels in orbit.cu.

/// Number of bodies; one half of them to each stream.
pub const BODIES: usize = 128;
/// Bodies of one stream.
pub const HALF: usize = BODIES / 2;
/// Words of the large memory.
pub const SKY_WORDS: usize = 1 << 20;
/// Threads that change words of the large memory.
pub const TWINKLES: u32 = 256;
/// One twinkle in this many steps.
pub const TWINKLE_EVERY: u32 = 16;
const SOFTENING: f32 = 0.0625;
const STEP: f32 = 0.000_976_562_5;

/// Four floats as the kernels lay them out: a position and a mass, or a velocity.
pub type Four = [f32; 4];

/// Everything that the program keeps on the GPU.
#[derive(Debug, Clone)]
pub struct World {
    /// Positions now and before; `tracks[step % 2]` is now.
    pub tracks: [Vec<Four>; 2],
    /// Velocities.
    pub velocity: Vec<Four>,
    /// The large memory.
    pub sky: Vec<u32>,
    /// Position of body 0 after every 16th step.
    pub trail: Vec<Four>,
    /// How often a body was seen in each octant.
    pub octants: [u32; 8],
    /// Steps that each half has made.
    pub steps_done: [u32; 2],
}

impl World {
    /// The world before the first step.
    pub fn new(steps: u32) -> World {
        let unit = |n: u64| (mix(n) % 2001) as f32 / 1000.0 - 1.0;
        let body = |i: usize| {
            let n = i as u64 * 4;
            [unit(n) * 4.0, unit(n + 1) * 4.0, unit(n + 2), 0.25 + (mix(n + 3) % 16) as f32 / 16.0]
        };
        let start: Vec<Four> = (0..BODIES).map(body).collect();
        // They turn about the third axis.
        let velocity = start.iter().map(|p| [-p[1] * 0.5, p[0] * 0.5, 0.0, 0.0]).collect();
        World {
            tracks: [start, vec![[0.0; 4]; BODIES]],
            velocity,
            sky: (0..SKY_WORDS as u64).map(|i| mix(i) as u32).collect(),
            trail: vec![[0.0; 4]; steps.div_ceil(TWINKLE_EVERY).max(1) as usize],
            octants: [0; 8],
            steps_done: [0; 2],
        }
    }

    /// Makes one step.
    pub fn advance(&mut self, step: u32) {
        let from = (step % 2) as usize;
        for i in 0..BODIES {
            let here = &self.tracks[from];
            let (mut p, mut v, mut a) = (here[i], self.velocity[i], [0f32; 3]);
            for q in here {
                let (dx, dy, dz) = (q[0] - p[0], q[1] - p[1], q[2] - p[2]);
                let d2 = dx.mul_add(dx, dy.mul_add(dy, dz.mul_add(dz, SOFTENING)));
                let pull = q[3] * (1.0 / d2);
                a = [pull.mul_add(dx, a[0]), pull.mul_add(dy, a[1]), pull.mul_add(dz, a[2])];
            }
            for k in 0..3 {
                v[k] = a[k].mul_add(STEP, v[k]);
                p[k] = v[k].mul_add(STEP, p[k]);
            }
            self.velocity[i] = v;
            self.tracks[1 - from][i] = p;
            let octant = usize::from(p[0] > 0.0) | usize::from(p[1] > 0.0) << 1 | usize::from(p[2] > 0.0) << 2;
            self.octants[octant] += 1;
        }
        self.steps_done = self.steps_done.map(|n| n + 1);
        if step.is_multiple_of(TWINKLE_EVERY) {
            self.trail[(step / TWINKLE_EVERY) as usize] = self.tracks[1 - from][0];
            for i in 0..TWINKLES {
                let at = i.wrapping_mul(40503).wrapping_add(step.wrapping_mul(2_654_435_761)) as usize % SKY_WORDS;
                self.sky[at] ^= (step + 1).wrapping_mul(2_246_822_519) ^ i;
            }
        }
    }
}

/// One step of splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// FNV-1a, 64 bits.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3))
}

/// Positions or velocities as the bytes that the GPU has.
pub fn floats(list: &[Four]) -> Vec<u8> {
    list.iter().flatten().flat_map(|f| f.to_le_bytes()).collect()
}

/// Numbers as the bytes that the GPU has.
pub fn words(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_stay_and_everything_changes() {
        let mut world = World::new(64);
        let before = world.clone();
        for step in 0..64 {
            world.advance(step);
        }
        assert_eq!(world.octants.iter().sum::<u32>(), 64 * BODIES as u32);
        assert!(world.tracks[0].iter().flatten().all(|x| x.is_finite() && x.abs() < 64.0));
        assert_ne!(digest(&floats(&before.tracks[0])), digest(&floats(&world.tracks[0])));
        assert_ne!(before.sky, world.sky);
        assert!(world.trail.iter().all(|p| p[3] > 0.0));
    }

    #[test]
    fn the_digest_is_fnv_1a() {
        assert_eq!(digest(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(digest(b"a"), 0xAF63_DC4C_8601_EC8C);
    }
}
