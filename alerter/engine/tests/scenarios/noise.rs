//! Noise of healthy runs, the same in every run of a test.

/// Between -1 and 1, and no pattern that returns within a test.
pub(crate) fn wobble(step: i64, salt: i64) -> f64 {
    let mut x = (step.wrapping_mul(0x9e37_79b9) ^ salt.wrapping_mul(0x85eb_ca6b)) as u64 | 1;
    for _ in 0..6 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}
