//! The progress of a replay on a terminal: bytes read, bytes per second, and the remaining time.

use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::files::Found;

const TEMPLATE: &str = "{bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left  {wide_msg}";

/// A progress bar for all files. It is drawn on standard error if that is a terminal.
pub(super) fn of(files: &[Found]) -> ProgressBar {
    let sizes = files.iter().filter_map(|file| std::fs::metadata(&file.path).ok());
    let total = sizes.filter(std::fs::Metadata::is_file).map(|file| file.len()).sum();
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
}

/// The name of a file without control characters, which would steer the terminal.
pub(super) fn name(path: &Path) -> String {
    stepwatch_wire::words::line(&path.to_string_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_is_that_of_all_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: usize| {
            let path = dir.path().join(name);
            std::fs::write(&path, vec![b'x'; bytes]).unwrap();
            Found { path, named: true }
        };
        let mut files = vec![file("a", 10), file("b", 5)];
        files.push(Found { path: dir.path().join("gone"), named: true });
        assert_eq!(of(&files).length(), Some(15));
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
        assert_eq!(name(Path::new("a\u{1b}[2Jb")), "a[2Jb");
    }
}
