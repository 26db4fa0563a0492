//! Output for the person who runs the tests, past the capture of the test runner.

use std::io::Write as _;

/// A measured figure: `cargo verify` repeats lines that start like this.
pub fn figure(text: &str) {
    line(&format!("figure: {text}"));
}

/// Something a person must not overlook.
pub fn loud(text: &str) {
    line(&format!("!!! {text}"));
}

pub fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
