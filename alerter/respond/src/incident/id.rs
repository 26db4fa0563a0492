//! Incident ids: sortable by time, short enough to read aloud, unique without randomness.

use stepwatch_model::{Cause, Ts};

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"; // Crockford's base 32

/// Ten characters of milliseconds, as a ULID begins, and six of a hash over what makes it unique.
pub(super) fn new(at: Ts, run: &str, cause: Cause, counter: u64) -> String {
    // FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for b in run.bytes().chain(cause.as_str().bytes()).chain(counter.to_le_bytes()) {
        hash = (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    }
    hash ^= hash >> 32;
    let digits =
        |v: u64, n: u32| (0..n).rev().map(move |i| char::from(ALPHABET[(v >> (5 * i)) as usize & 31]));
    digits(at.0.max(0) as u64, 10).chain(digits(hash, 6)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_by_time_and_differs_by_counter() {
        let a = new(Ts(1_795_227_416_980), "llama", Cause::Numerics, 1);
        let b = new(Ts(1_795_227_416_980), "llama", Cause::Numerics, 2);
        let c = new(Ts(1_795_227_416_981), "llama", Cause::Numerics, 3);
        assert_eq!(a.len(), 16);
        assert!(a != b && a[..10] == b[..10] && b < c, "{a} {b} {c}");
    }
}
