//! Prints output for the person who runs the tests, past the capture of the test runner.

use std::io::Write as _;

/// Prints a measured figure; `cargo verify` repeats such lines.
pub fn figure(text: &str) {
    line(&format!("figure: {text}"));
}

/// Prints something that a person must not overlook.
pub fn loud(text: &str) {
    line(&format!("!!! {text}"));
}

pub fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
