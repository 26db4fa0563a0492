//! Tests in documentation. Looking for them takes some seconds for each package, so those that have
//! none say so in their manifests, and may have no Rust in their documentation then.

use std::path::Path;

use crate::house::files_of;

const UNTESTED: &str = "doctest = false";
/// Languages of blocks that are not compiled.
const OTHERS: &[&str] = &["json", "sh", "text", "toml", "yaml"];

/// Blocks of Rust that nothing would compile.
pub(crate) fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    files_of(root, &["rs"], &mut files);
    let mut wrong = Vec::new();
    for path in &files {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let lines = rust_blocks(&text);
        if !lines.is_empty() && is_untested(path) {
            let shown = path.strip_prefix(root).unwrap_or(path).display();
            wrong.extend(lines.iter().map(|at| {
                format!("{shown}:{at}: a block without a language is Rust, and its package has `{UNTESTED}`")
            }));
        }
    }
    Ok(wrong)
}

/// Whether the package of a file says that its documentation has no tests.
fn is_untested(path: &Path) -> bool {
    let mut manifests = path.ancestors().skip(1).map(|dir| dir.join("Cargo.toml"));
    let manifest = manifests.find_map(|manifest| std::fs::read_to_string(manifest).ok());
    manifest.is_some_and(|manifest| manifest.lines().any(|line| line.trim() == UNTESTED))
}

/// The lines in which blocks of Rust begin, from 1.
fn rust_blocks(text: &str) -> Vec<usize> {
    let (mut found, mut inside) = (Vec::new(), false);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(language) = comment.and_then(|comment| comment.trim_start().strip_prefix("```")) {
            inside = !inside;
            if inside && !OTHERS.contains(&language.trim()) {
                found.push(at + 1);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_without_a_language_is_rust() {
        let text = "//! ```text\n//! a\n//! ```\n\n/// ```\n/// b();\n/// ```\nfn c() {}\n    /// ```no_run\n    /// ```\n";
        assert_eq!(rust_blocks(text), [5, 9]);
    }

    #[test]
    fn ours_are_compiled() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        assert_eq!(check(root).unwrap(), Vec::<String>::new());
        assert!(is_untested(&root.join("wire/src/lib.rs")));
        assert!(!is_untested(&root.join("alerter/model/src/clause.rs")));
    }
}
