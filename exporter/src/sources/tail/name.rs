//! What a file's name says: which run it is the log of, and whether it is a rotated copy.

use std::path::Path;

/// Names that every job gives its log: the directory tells them apart.
const GENERIC: &[&str] = &[
    "log",
    "logs",
    "logging",
    "main",
    "metrics",
    "out",
    "output",
    "progress",
    "stderr",
    "stdout",
    "train",
    "trainer_log",
    "training",
    "run",
    "0",
    "1",
];

/// Longest name of a run.
const MAX_CHARS: usize = 128;

/// The run that a log belongs to when nobody says: its name without extension, or the directory's where that says nothing.
pub(super) fn run_of(path: &Path) -> String {
    let stem = path.file_stem().map(|s| s.to_string_lossy());
    let stem = stem.as_deref().unwrap_or("");
    let bare = stem.strip_suffix(".log").unwrap_or(stem);
    let directory = || path.parent()?.file_name().map(|s| s.to_string_lossy().into_owned());
    let generic = bare.is_empty() || GENERIC.iter().any(|g| bare.eq_ignore_ascii_case(g));
    let name = if generic { directory().unwrap_or_else(|| bare.to_owned()) } else { bare.to_owned() };
    name.chars().take(MAX_CHARS).collect()
}

/// True of `run.log.1`, `run.log-20261121` beside a `run.log`, and of compressed files: their content was read under the other name.
pub(super) fn is_rotated(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else { return false };
    if [".gz", ".zst", ".xz", ".bz2", ".lz4"].iter().any(|end| name.ends_with(end)) {
        return true;
    }
    let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let Some(base) = base.strip_suffix(['.', '-']).filter(|b| b.len() + 1 < name.len()) else { return false };
    !base.is_empty() && path.with_file_name(base).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_named_after_files_or_their_directory() {
        for (path, run) in [
            ("/logs/llama-70b.log", "llama-70b"),
            ("/logs/slurm-123456.out", "slurm-123456"),
            ("/out/qwen-sft/trainer_log.jsonl", "qwen-sft"),
            ("/out/qwen-sft/stdout.log", "qwen-sft"),
            ("/logs/a.log.1", "a"),
            ("/run.log", "run"),
        ] {
            assert_eq!(run_of(Path::new(path)), run, "{path}");
        }
    }

    #[test]
    fn rotated_copies_are_known_by_their_sibling() {
        let dir = tempfile::tempdir().unwrap();
        let rotated = |name: &str| is_rotated(&dir.path().join(name));
        assert!(!rotated("run.log.1"));
        std::fs::write(dir.path().join("run.log"), "").unwrap();
        assert!(rotated("run.log.1") && rotated("run.log-20261121") && rotated("x.log.gz"));
        assert!(!rotated("run.log") && !rotated("other.log.1") && !rotated("run"));
    }
}
