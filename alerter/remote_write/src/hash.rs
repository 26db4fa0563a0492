//! The identity of a series as it was sent: 128 bits that no sender can steer.

use std::fmt;

use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::{SecretInput, xxh3_64_with_secret_input, xxh3_128_with_secret_input};

/// Identifies the labels of one series as one sender writes them. The same bytes give the same key
/// in each request of a version until the process ends. Another order of the labels gives another
/// key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u64; 2]);

impl From<u128> for Key {
    #[inline]
    fn from(hash: u128) -> Self {
        Self([hash as u64, (hash >> 64) as u64])
    }
}

type Secret = SecretInput<[u8; 192]>;

/// The secrets of the hashes. Each hash has its own, so that equal bytes of the labels of a
/// 1.0 series and the symbols of a 2.0 one give two keys.
pub(crate) struct Secrets {
    labels: Secret,
    symbol: Secret,
    references: Secret,
}

impl Secrets {
    pub(crate) fn new(seed: u64) -> Self {
        // Three unrelated seeds from one (splitmix64). The secrets are sums with the seed, so two
        // seeds that differ little would give two secrets that differ little.
        let secret = |nth: u64| {
            let mut mixed = seed.wrapping_add(nth.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            SecretInput::new(const_custom_default_secret(mixed ^ (mixed >> 31)))
        };
        Self { labels: secret(1), symbol: secret(2), references: secret(3) }
    }

    /// Hashes the label fields of a 1.0 series, which are contiguous.
    #[inline]
    pub(crate) fn labels(&self, fields: &[u8]) -> Key {
        xxh3_128_with_secret_input(fields, &self.labels).into()
    }

    /// Hashes one symbol of a 2.0 request, independently of its place in the table.
    #[inline]
    pub(crate) fn symbol(&self, symbol: &[u8]) -> u64 {
        xxh3_64_with_secret_input(symbol, &self.symbol)
    }

    /// Hashes the symbol hashes to which a 2.0 series refers, in its order.
    #[inline]
    pub(crate) fn references(&self, symbols: &[[u8; 8]]) -> Key {
        xxh3_128_with_secret_input(symbols.as_flattened(), &self.references).into()
    }
}

/// The secrets are in no log, because a sender who knows them can make series collide.
impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Secrets").finish_non_exhaustive()
    }
}
