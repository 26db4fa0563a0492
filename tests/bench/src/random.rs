//! Reproducible randomness: the same seed makes the same series on every machine.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator of its own for a named purpose, so that one more draw here changes nothing
    /// there.
    pub fn for_name(name: &str, seed: u64) -> Self {
        // FNV-1a.
        let hash = name
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
        Self(hash ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// Uniform in 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    /// Uniform in `0..n`; 0 of none.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.unit() * n as f64) as usize).min(n.saturating_sub(1))
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// First-order autoregressive noise of unit variance: what is left of a training signal once its
/// trend is gone has memory.
#[derive(Debug, Clone)]
pub struct Ar1 {
    phi: f64,
    last: f64,
}

impl Ar1 {
    pub fn new(phi: f64, random: &mut Random) -> Self {
        Self { phi, last: random.normal() }
    }

    pub fn next(&mut self, random: &mut Random) -> f64 {
        self.last = self.phi * self.last + (1.0 - self.phi * self.phi).sqrt() * random.normal();
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_unit_variance_and_memory() {
        let mut random = Random::for_name("noise", 1);
        let mut ar = Ar1::new(0.6, &mut random);
        let x: Vec<f64> = (0..20_000).map(|_| ar.next(&mut random)).collect();
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let var = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        let cov = x.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum::<f64>() / n;
        assert!(mean.abs() < 0.05 && (var - 1.0).abs() < 0.05 && (cov / var - 0.6).abs() < 0.03);
    }

    #[test]
    fn names_and_seeds_part_streams() {
        let first = |name, seed| Random::for_name(name, seed).unit();
        assert_ne!(first("a", 1), first("b", 1));
        assert_ne!(first("a", 1), first("a", 2));
        assert_eq!(first("a", 1), first("a", 1));
    }
}
