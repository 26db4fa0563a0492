//! Expands the files of the arguments: a directory is replaced with the runs in it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use stepwatch_formats::known_name;

/// The most files taken from directories, and the depth to which those are searched.
const MAX_FILES: usize = 10_000;
const MAX_DEPTH: usize = 8;

/// A file to replay.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    /// Whether an argument named the file, so that it is an error if it contains no run.
    pub(super) named: bool,
}

/// The files in the order of the arguments; those of a directory by name.
pub(super) fn expand(arguments: &[PathBuf]) -> (Vec<Found>, Vec<(PathBuf, io::Error)>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for path in arguments {
        if path.is_dir() {
            let first = found.len();
            search(path, MAX_DEPTH, &mut found, &mut errors);
            found[first..].sort_by(|a: &Found, b: &Found| a.path.cmp(&b.path));
        } else {
            found.push(Found { path: path.clone(), named: true });
        }
    }
    (found, errors)
}

fn search(dir: &Path, depth: usize, found: &mut Vec<Found>, errors: &mut Vec<(PathBuf, io::Error)>) {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) => return errors.push((dir.to_owned(), e)),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // A link may form a cycle, and a pipe would never end.
        match entry.file_type() {
            _ if hidden => {}
            Ok(t) if t.is_dir() && depth > 0 => search(&path, depth - 1, found, errors),
            Ok(t) if t.is_file() && may_be_a_run(&path) => {
                if found.len() >= MAX_FILES {
                    return errors.push((path, io::Error::other(format!("more than {MAX_FILES} files"))));
                }
                found.push(Found { path, named: false });
            }
            _ => {}
        }
    }
}

/// Whether the file may contain a run: weights and checkpoints do not.
fn may_be_a_run(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    known_name(path)
        || matches!(
            extension,
            "csv" | "tsv" | "jsonl" | "ndjson" | "json" | "log" | "txt" | "out" | "err" | "wandb" | ""
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stands_for_the_runs_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        ["b/run.csv", "a.log", "b/model.safetensors", ".git/log", "b/events.out.tfevents.1.x"]
            .iter()
            .for_each(|name| put(name));
        let (found, errors) = expand(&[dir.path().to_owned(), "missing.csv".into()]);
        assert!(errors.is_empty());
        let names: Vec<_> =
            found.iter().map(|f| f.path.strip_prefix(dir.path()).unwrap_or(&f.path)).collect();
        assert_eq!(names, ["a.log", "b/events.out.tfevents.1.x", "b/run.csv", "missing.csv"].map(Path::new));
        assert_eq!(found.iter().map(|f| f.named).collect::<Vec<_>>(), [false, false, false, true]);
    }
}
