//! A mistake in a part of the configuration, and its key.

/// A mistake for the reader of the configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The key with the wrong value, `key.inner` for an inner one. `None` if several keys are
    /// involved or one is missing.
    pub key: Option<String>,
    pub text: String,
}

impl Mistake {
    pub(crate) fn at(key: impl Into<String>, text: impl Into<String>) -> Self {
        Self { key: Some(key.into()), text: text.into() }
    }

    /// Puts the mistake under `key`.
    pub(crate) fn under(self, key: &str) -> Self {
        let inner = self.key.map(|inner| format!(".{inner}")).unwrap_or_default();
        Self { key: Some(format!("{key}{inner}")), ..self }
    }
}

impl<T: Into<String>> From<T> for Mistake {
    fn from(text: T) -> Self {
        Self { key: None, text: text.into() }
    }
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{key}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}
