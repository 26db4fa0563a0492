use core::fmt;
use core::str::FromStr;

/// A position in an exporter's stream: the id of the ring, and the number of a record in it.
///
/// `boot` changes when the ring begins anew, for example after a reboot. A cursor of an earlier
/// ring can only be answered by a gap record. A restart of the exporter alone continues the ring
/// that it finds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Cursor {
    pub boot: String,
    pub seq: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub struct CursorError(String);

impl fmt::Display for CursorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cursor must be <boot>:<seq> with a letter-or-digit boot of at most 32 characters, got {:?}",
            self.0
        )
    }
}

impl core::error::Error for CursorError {}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.boot, self.seq)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(s: &str) -> Result<Self, CursorError> {
        let fail = || CursorError(s.chars().take(64).collect());
        let (boot, seq) = s.split_once(':').ok_or_else(fail)?;
        let ok = (1..=32).contains(&boot.len()) && boot.bytes().all(|b| b.is_ascii_alphanumeric());
        if !ok {
            return Err(fail());
        }
        Ok(Self { boot: boot.to_owned(), seq: seq.parse().map_err(|_| fail())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_refuses() {
        let c: Cursor = "a1b2:42".parse().unwrap();
        assert_eq!(c, Cursor { boot: "a1b2".into(), seq: 42 });
        assert_eq!(c.to_string().parse(), Ok(c));
        for bad in ["", ":", "a:", ":1", "a:-1", "a b:1", "a:1:2"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }
}
