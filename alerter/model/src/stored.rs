//! The stored form of the state of both halves, and of what one half sends to the other.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Version of the stored form of every part; a part of another version is not read. postcard keeps
/// no names: a field that is added, also by a new detector, makes a new version.
pub const STATE_VERSION: u8 = 37;

/// A part of the state that changed: its name, and its bytes or nothing if it is gone.
pub type StatePart = (String, Option<Vec<u8>>);

pub fn encode<T: Serialize>(part: &T) -> Option<Vec<u8>> {
    let mut bytes = vec![STATE_VERSION];
    bytes.extend(postcard::to_stdvec(part).ok()?);
    Some(bytes)
}

/// `None` of another version, and of bytes that are damaged.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (version, rest) = bytes.split_first()?;
    (*version == STATE_VERSION).then(|| postcard::from_bytes(rest).ok())?
}
