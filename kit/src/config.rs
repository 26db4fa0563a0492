//! Configuration files: strict YAML. Every error is shown at its place in the file.
//!
//! Unknown keys, duplicate keys and wrong types are errors. Every error names the file, line and
//! column, shows the line with a caret under the mistake, and lists what is accepted. Programs
//! check the whole file before they bind a port, and exit with [`EXIT_CONFIG`] if it is invalid.

mod error;
pub mod keys;
mod period;
mod places;
mod secret;

use std::path::Path;

use serde::de::DeserializeOwned;

pub use error::{ConfigError, Mistake};
pub use period::Period;
pub use secret::Secret;

/// The exit status of a program whose configuration is invalid (`EX_USAGE`).
pub const EXIT_CONFIG: u8 = 64;

/// The most bytes of a configuration file.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Reads and parses a YAML file. The error names the place of the mistake.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let name = path.display().to_string();
    let text = read_text(path).map_err(|why| ConfigError::new(&name, why))?;
    parse(&name, &text)
}

/// Parses YAML text; errors show `name` as the file name. An empty document is an empty mapping, so
/// a configuration of defaults may be an empty file.
pub fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, ConfigError> {
    let options = serde_saphyr::options! {
        // Accepts only `true` and `false` as booleans, so that `no` and `on` have to be written
        // explicitly.
        strict_booleans: true,
        with_snippet: false,
    };
    let source = if is_blank(text) { "{}" } else { text };
    serde_saphyr::from_str_with_options(source, options)
        .map_err(|err| ConfigError::at_caret(name, text, &err))
}

/// Reads a file whose text is kept for [`ConfigError::at_paths`], which shows places in it.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    read_text(path).map_err(|why| ConfigError::new(path.display().to_string(), why))
}

fn read_text(path: &Path) -> Result<String, String> {
    let cannot = |why: std::io::Error| format!("cannot read the file: {why}");
    let size = std::fs::metadata(path).map_err(cannot)?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("the file has {size} bytes; a configuration has at most {MAX_FILE_BYTES}"));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

fn is_blank(text: &str) -> bool {
    text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---"
    })
}

#[cfg(test)]
mod tests;
