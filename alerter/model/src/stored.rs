//! The stored form of the state of both halves, and of the messages between them.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version of the stored form of every part. A part of another version is not read. postcard
/// keeps no names, so an added field, also of a new detector, needs a new version.
pub const STATE_VERSION: u8 = 43;

/// A changed part of the state: its name, and its bytes or `None` if it was removed.
pub type StatePart = (String, Option<Vec<u8>>);

pub fn encode<T: Serialize>(part: &T) -> Option<Vec<u8>> {
    let mut bytes = vec![STATE_VERSION];
    bytes.extend(postcard::to_stdvec(part).ok()?);
    Some(bytes)
}

/// Decodes a part. `None` if it has another version or is damaged.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (version, rest) = bytes.split_first()?;
    (*version == STATE_VERSION).then(|| postcard::from_bytes(rest).ok())?
}
