//! Which files an entry of the configuration means: one that is named, those that fit a pattern, or those in a directory that
//! look like something we read.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::name;

/// Directories inside one another that are searched.
const MAX_DEPTH: usize = 6;
/// Entries of directories that are looked at in one search: a directory of checkpoints has thousands.
const MAX_ENTRIES: usize = 20_000;

/// What a search found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::sources) struct Found {
    /// Those written to last come first where there is a choice.
    pub(in crate::sources) files: Vec<PathBuf>,
    /// Directories were left out: too deep, or too many entries.
    pub(in crate::sources) cut: bool,
}

/// Files that `path` means now. One that is named need not exist.
pub(super) fn find(path: &str) -> Found {
    if is_pattern(path) {
        let Ok(paths) = glob::glob(path) else { return Found::default() };
        let files = paths.flatten().filter(|p| p.is_file() && !name::is_rotated(p));
        return Found { files: each_once(files), cut: false };
    }
    let path = PathBuf::from(path);
    if path.is_dir() {
        return search(&path);
    }
    Found { files: vec![path], cut: false }
}

/// Of several paths to one file the one that says where it really is: W&B links its latest run beside the runs.
fn each_once(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let alike = |a: &Path, b: &Path| a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut files: Vec<PathBuf> = Vec::new();
    let mut places: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for path in paths {
        let real = real(&path);
        match places.get(&real) {
            Some(at) if alike(&path, &real) > alike(&files[*at], &real) => files[*at] = path,
            Some(_) => {}
            None => {
                places.insert(real, files.len());
                files.push(path);
            }
        }
    }
    files
}

/// The path without links, as far as that can be told.
pub(super) fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

pub(super) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// Files under a directory that have a name of something we read. Hidden directories and links are left alone: what a link
/// points to is found at its own place, or belongs to somebody else.
pub(in crate::sources) fn search(root: &Path) -> Found {
    let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
    let mut cut = false;
    let mut entries = 0;
    let mut directories = VecDeque::from([(root.to_owned(), 0)]);
    while let Some((directory, depth)) = directories.pop_front() {
        let Ok(listing) = fs::read_dir(&directory) else { continue };
        for entry in listing.flatten() {
            entries += 1;
            if entries > MAX_ENTRIES {
                cut = true;
                break;
            }
            let (Ok(kind), name) = (entry.file_type(), entry.file_name()) else { continue };
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            if kind.is_dir() {
                if depth < MAX_DEPTH {
                    directories.push_back((path, depth + 1));
                } else {
                    cut = true;
                }
            } else if kind.is_file() && stepwatch_formats::known_name(&path) && !is_noise(&path) {
                let written = entry.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
                found.push((written, path));
            }
        }
    }
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    Found { files: found.into_iter().map(|(_, path)| path).collect(), cut }
}

/// Logs of tools that are no logs of training, and copies that a rotation left.
fn is_noise(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let wandb = name.starts_with("debug") && path.parent().is_some_and(|p| p.ends_with("logs"));
    wandb || name::is_rotated(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        dir
    }

    fn names(dir: &Path, found: &Found) -> Vec<String> {
        let name = |p: &PathBuf| p.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
        let mut names: Vec<_> = found.files.iter().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_is_searched_for_what_is_known() {
        let dir = tree(&[
            "runs/a/events.out.tfevents.1780026765.n1.7.0",
            "runs/b/train.jsonl",
            "slurm-7.out",
            "model.safetensors",
            "notes.md",
            ".git/x.log",
            "wandb/run-1/logs/debug-internal.log",
            "old/run.log.1",
            "old/run.log",
        ]);
        std::os::unix::fs::symlink(dir.path(), dir.path().join("runs/loop")).unwrap();
        let found = find(dir.path().to_str().unwrap());
        assert!(!found.cut);
        assert_eq!(
            names(dir.path(), &found),
            [
                "old/run.log",
                "runs/a/events.out.tfevents.1780026765.n1.7.0",
                "runs/b/train.jsonl",
                "slurm-7.out"
            ]
        );
    }

    #[test]
    fn deep_and_huge_trees_are_cut() {
        let deep = tree(&["1/2/3/4/5/6/run.log", "1/2/3/4/5/6/7/run.log"]);
        let found = find(deep.path().to_str().unwrap());
        assert_eq!((names(deep.path(), &found), found.cut), (vec!["1/2/3/4/5/6/run.log".to_owned()], true));
        let huge = tree(&["run.log"]);
        let many = huge.path().join("many");
        fs::create_dir(&many).unwrap();
        for i in 0..=MAX_ENTRIES {
            fs::hard_link(huge.path().join("run.log"), many.join(i.to_string())).unwrap_or_else(|_| {
                fs::write(many.join(i.to_string()), "").unwrap();
            });
        }
        let found = find(huge.path().to_str().unwrap());
        assert_eq!((names(huge.path(), &found), found.cut), (vec!["run.log".to_owned()], true));
    }

    #[test]
    fn one_that_is_named_need_not_exist() {
        assert_eq!(find("/nowhere/run.log").files, [PathBuf::from("/nowhere/run.log")]);
        assert_eq!(find("/nowhere/*.log"), Found::default());
        assert_eq!(find("/a/***"), Found::default());
    }

    #[test]
    fn what_was_written_last_comes_first() {
        let dir = tree(&["a.log", "b.log", "c.log"]);
        for (name, age) in [("a.log", 300), ("b.log", 100), ("c.log", 200)] {
            let at = SystemTime::now() - std::time::Duration::from_secs(age);
            fs::OpenOptions::new()
                .append(true)
                .open(dir.path().join(name))
                .unwrap()
                .set_modified(at)
                .unwrap();
        }
        let names: Vec<_> = find(dir.path().to_str().unwrap()).files;
        let names: Vec<_> = names.iter().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["b.log", "c.log", "a.log"]);
    }
}
