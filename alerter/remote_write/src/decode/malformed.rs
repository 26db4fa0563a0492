//! The reasons for which a body is refused.

use std::fmt;

/// A body that does not match its declared format. The answer is 400, so that the sender does not
/// retry.
///
/// Stricter than protobuf are the limits ([`Malformed::TooMany`], [`Malformed::TooLarge`],
/// [`Malformed::Bomb`]), groups, which neither schema has ([`Malformed::WireType`]), and the symbol
/// table of 2.0 ([`Malformed::FirstSymbol`], [`Malformed::OddReferences`],
/// [`Malformed::Reference`]). Laxer: exemplars, histograms and metadata are counted, not read, and
/// what is in a label is checked when it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("not a snappy block")]
    Snappy(#[from] snap::Error),
    #[error("{declared} bytes decompressed; at most {limit} are accepted")]
    TooLarge { declared: usize, limit: usize },
    #[error("{body} bytes that say they decompress to {declared}; snappy grows at most {growth} times")]
    Bomb { declared: usize, body: usize, growth: usize },
    #[error("{message} ends within a field")]
    Truncated { message: &'static str },
    #[error("{message} has a varint of more than 64 bits")]
    Varint { message: &'static str },
    #[error("{message} has a field with the key {key}; field numbers are 1 to 536870911")]
    FieldNumber { message: &'static str, key: u64 },
    #[error("{message} has field {field} with wire type {found}; {accepted}")]
    WireType { message: &'static str, field: u32, found: u8, accepted: Accepted },
    #[error("{message} has field {field} that is not UTF-8")]
    Utf8 { message: &'static str, field: u32 },
    #[error("symbol 0 has {bytes} bytes; it must be empty")]
    FirstSymbol { bytes: usize },
    #[error("a series refers to symbol {index} of {symbols}")]
    Reference { index: u32, symbols: usize },
    #[error("a series has {references} references to symbols; names and values come in pairs")]
    OddReferences { references: usize },
    #[error("more than {limit} {what}")]
    TooMany { what: &'static str, limit: u64 },
}

/// The expected type of a field. It ends the sentence of [`Malformed::WireType`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    Varint,
    Double,
    Bytes,
    VarintOrBytes,
    /// Any type but a group, for an unknown field.
    NoGroup,
}

impl fmt::Display for Accepted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Varint => "a varint is accepted (0)",
            Self::Double => "a double is accepted (1)",
            Self::Bytes => "bytes are accepted (2)",
            Self::VarintOrBytes => "varints are accepted, packed (2) or not (0)",
            Self::NoGroup => "0, 1, 2 and 5 are accepted",
        })
    }
}
