//! Text that must not appear in a log, an error or a page.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Deserializer};

/// A token, password or key. It prints as `<secret>`, and cannot be serialised.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

const SHOWN: &str = "<secret>";
/// The most bytes of a secret file; tokens are short.
const MAX_FILE_BYTES: u64 = 64 << 10;

impl Secret {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the text itself. Use it only to build a request.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Reads a secret file, without the newline that editors add at its end.
    pub fn read(path: &Path) -> Result<Self, String> {
        let cannot = |why: &dyn fmt::Display| format!("cannot read the secret in {}: {why}", path.display());
        let size = std::fs::metadata(path).map_err(|err| cannot(&err))?.len();
        if size > MAX_FILE_BYTES {
            return Err(cannot(&format_args!("{size} bytes, expected at most {MAX_FILE_BYTES}")));
        }
        let text = std::fs::read_to_string(path).map_err(|err| cannot(&err))?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() {
            return Err(cannot(&"the file is empty"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHOWN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHOWN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_nothing() {
        let secret = Secret::new("hunter2".into());
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "<secret> <secret> Some(<secret>)");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn a_file_gives_its_text_without_the_final_newline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        for (content, want) in [("a b\n", "a b"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a", " a")] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(Secret::read(&path).unwrap().expose(), want, "{content:?}");
        }
    }

    #[test]
    fn an_unreadable_or_empty_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        for content in [None, Some("\n")] {
            if let Some(text) = content {
                std::fs::write(&path, text).unwrap();
            }
            let err = Secret::read(&path).unwrap_err();
            assert!(err.contains(path.to_str().unwrap()), "{err}");
        }
    }
}
