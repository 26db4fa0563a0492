//! Finds the files of an entry: one that is named, those that match a pattern, or those in a
//! directory that look like a supported format.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{name, open, pattern};
use crate::reach::{Reach, Refusal};

/// The greatest depth of directories that are searched.
const MAX_DEPTH: usize = 6;
/// The most files and directories of one user that are inspected in one search: a directory of
/// checkpoints has thousands.
const MAX_ENTRIES: usize = 32_768;
/// The most names that are read in one search; most are of other files.
const MAX_NAMES: usize = 4 * MAX_NAMES_SHARED;
/// The most names in directories of one user that nobody else may write to.
const MAX_NAMES_OF_USER: usize = 65_536;
/// The most names in directories of one user that others may write to, such as a shared log
/// directory. A user who fills it must not hide the files of others: names cost little, and
/// matching files use the share of their own owner.
pub(in crate::sources) const MAX_NAMES_SHARED: usize = 1 << 20;

/// The mode bits by which the group or all users may write.
const OTHERS_WRITE: u32 = 0o022;

/// A file that may be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sources) struct Candidate {
    pub(in crate::sources) path: PathBuf,
    pub(in crate::sources) written: SystemTime,
    pub(in crate::sources) owner: u32,
}

impl Candidate {
    pub(in crate::sources) fn new(path: PathBuf, metadata: &Metadata) -> Self {
        let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Self { path, written, owner: metadata.uid() }
    }
}

/// The result of a search.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::sources) struct Found {
    /// The files, the last written first if the limit requires a choice.
    pub(in crate::sources) files: Vec<Candidate>,
    /// Whether directories were skipped, because they are too deep or have too many entries.
    pub(in crate::sources) cut: bool,
    /// The reason if something could not be searched for lack of rights.
    pub(in crate::sources) refused: Option<Refusal>,
}

/// The files that `path` matches now. A path without a pattern need not exist.
pub(super) fn find(path: &str, reach: &Reach) -> Found {
    if is_pattern(path) {
        return pattern::find(path, reach);
    }
    let path = PathBuf::from(path);
    match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => search(&path, reach),
        Ok(meta) => Found { files: vec![Candidate::new(path, &meta)], ..Found::default() },
        Err(_) => {
            let nothing = Candidate { path, written: SystemTime::UNIX_EPOCH, owner: 0 };
            Found { files: vec![nothing], ..Found::default() }
        }
    }
}

/// The work of a search, by user.
#[derive(Default)]
pub(super) struct Shares {
    entries: BTreeMap<u32, usize>,
    names: usize,
    /// The names read in directories of a user, and whether others may write to these.
    names_of: BTreeMap<(u32, bool), usize>,
    pub(super) cut: bool,
}

impl Shares {
    /// Counts one more name in this directory, on the share of `user`; false at the limit.
    pub(super) fn has_name(&mut self, user: u32, directory: &Metadata) -> bool {
        let shared = directory.mode() & OTHERS_WRITE != 0;
        let of_user = self.names_of.entry((user, shared)).or_default();
        (self.names, *of_user) = (self.names + 1, *of_user + 1);
        let most = if shared { MAX_NAMES_SHARED } else { MAX_NAMES_OF_USER };
        let room = self.names <= MAX_NAMES && *of_user <= most;
        self.cut |= !room;
        room
    }

    /// Counts one more file or directory of `user`; false at the limit.
    pub(super) fn has_room(&mut self, user: u32) -> bool {
        let entries = self.entries.entry(user).or_default();
        *entries += 1;
        let room = *entries <= MAX_ENTRIES;
        self.cut |= !room;
        room
    }
}

/// Keeps the real path if several lead to one file: W&B links its latest run beside the runs.
pub(super) fn each_once(found: Vec<((u64, u64), Candidate)>) -> Vec<Candidate> {
    let alike = |a: &Path, b: &Path| a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut several: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    found.iter().for_each(|(file, _)| *several.entry(*file).or_default() += 1);
    let mut files: Vec<Candidate> = Vec::new();
    let mut places: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for (file, candidate) in found {
        if several.get(&file) == Some(&1) {
            files.push(candidate);
            continue;
        }
        let real = real(&candidate.path);
        match places.get(&real) {
            Some(at) if alike(&candidate.path, &real) > alike(&files[*at].path, &real) => {
                files[*at] = candidate
            }
            Some(_) => {}
            None => {
                places.insert(real, files.len());
                files.push(candidate);
            }
        }
    }
    files
}

/// The path without links, as far as it can be resolved.
pub(super) fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

pub(super) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// Files under a directory whose names are those of supported formats. Hidden directories and links
/// are skipped: the target of a link is found by its own path, or belongs to another user.
pub(in crate::sources) fn search(root: &Path, reach: &Reach) -> Found {
    let base = match reach.find(root) {
        Ok(base) => base,
        Err(err) => return Found { refused: Refusal::from_error(&err), ..Found::default() },
    };
    let (mut found, mut shares) = (Vec::new(), Shares::default());
    let mut directories = VecDeque::from([(PathBuf::new(), 0)]);
    while let Some((below, depth)) = directories.pop_front() {
        let Ok(directory) = reach.directory(&base, &below) else { continue };
        let user = directory.metadata.uid();
        let Ok(listing) = fs::read_dir(directory.again()) else { continue };
        for entry in listing.flatten() {
            if !shares.has_name(user, &directory.metadata) {
                break;
            }
            let (Ok(kind), name) = (entry.file_type(), entry.file_name()) else { continue };
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = root.join(&below).join(&name);
            let is_known = kind.is_file() && stepwatch_formats::known_name(&path) && !is_noise(&path);
            if !is_known && !kind.is_dir() {
                continue;
            }
            let Ok(meta) = entry.metadata() else { continue };
            if !shares.has_room(meta.uid()) {
                continue;
            }
            if is_known && !is_followed(&path, reach) {
                continue;
            }
            if is_known {
                found.push(Candidate::new(path, &meta));
            } else if depth < MAX_DEPTH {
                directories.push_back((below.join(&name), depth + 1));
            } else {
                shares.cut = true;
            }
        }
    }
    found.sort_by(|a, b| b.written.cmp(&a.written).then_with(|| a.path.as_os_str().cmp(b.path.as_os_str())));
    Found { files: found, cut: shares.cut, refused: None }
}

/// Whether the contents of a file with a known name are about training, if the name alone does not
/// show it: a table may contain data, and be large.
fn is_followed(path: &Path, reach: &Reach) -> bool {
    stepwatch_formats::is_followed(path, &[])
        || stepwatch_formats::is_followed(path, &open::head(path, reach))
}

/// Whether the file is a log of another tool, or a rotated copy.
fn is_noise(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let wandb = name.starts_with("debug") && path.parent().is_some_and(|p| p.ends_with("logs"));
    wandb || name::is_rotated(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn find(path: &str) -> Found {
        super::find(path, &Reach::Below(path.into()))
    }

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
        let name = |c: &Candidate| c.path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
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
        fs::set_permissions(&many, fs::Permissions::from_mode(0o755)).unwrap();
        for i in 0..=MAX_NAMES_OF_USER {
            fs::hard_link(huge.path().join("run.log"), many.join(i.to_string())).unwrap_or_else(|_| {
                fs::write(many.join(i.to_string()), "").unwrap();
            });
        }
        let found = find(huge.path().to_str().unwrap());
        assert_eq!((names(huge.path(), &found), found.cut), (vec!["run.log".to_owned()], true));
    }

    #[test]
    fn a_pattern_means_what_it_means_in_a_shell() {
        let dir = tree(&["a/x.log", "b/x.log", "b/c/d/y.log", "b/x.log.1", "z.log", "[q].log"]);
        std::os::unix::fs::symlink(dir.path().join("b"), dir.path().join("latest")).unwrap();
        let of = |pattern: &str| {
            let path = dir.path().join(pattern);
            let path = path.to_str().unwrap();
            names(dir.path(), &super::find(path, &Reach::of_pattern(path)))
        };
        assert_eq!(of("*.log"), ["[q].log", "z.log"]);
        assert_eq!(of("[[]q].log"), ["[q].log"]);
        assert_eq!(of("[ab]/x.log"), ["a/x.log", "b/x.log"]);
        assert_eq!(of("*/x.log*"), ["a/x.log", "b/x.log"], "of two ways to a file the real one");
        assert_eq!(of("late*/?.log"), ["latest/x.log"]);
        assert_eq!(of("**/*.log"), ["[q].log", "a/x.log", "b/c/d/y.log", "b/x.log", "z.log"]);
        assert_eq!(of("b/**/y.log"), ["b/c/d/y.log"]);
        assert_eq!(of("?/../z.log"), ["a/../z.log"]);
        assert_eq!((of("**").len(), of("?").len()), (0, 0), "only files");
    }

    #[test]
    fn a_link_is_charged_to_who_made_it() {
        use std::os::unix::fs::{lchown, symlink};
        if !crate::testing::is_root() {
            return;
        }
        let dir = tree(&["logs/own.log", "elsewhere/of-root.log"]);
        let logs = dir.path().join("logs");
        symlink(dir.path().join("elsewhere/of-root.log"), logs.join("link.log")).unwrap();
        lchown(logs.join("link.log"), Some(65_534), None).unwrap();
        let pattern = format!("{}/*.log", logs.display());
        let owner = |name: &str| {
            let found = super::find(&pattern, &Reach::of_pattern(&pattern));
            found.files.iter().find(|c| c.path.ends_with(name)).map(|c| c.owner)
        };
        assert_eq!((owner("link.log"), owner("own.log")), (Some(65_534), Some(0)));
        // Links of root count as configured by the operator.
        lchown(logs.join("link.log"), Some(0), None).unwrap();
        lchown(dir.path().join("elsewhere/of-root.log"), Some(65_534), None).unwrap();
        assert_eq!(owner("link.log"), Some(65_534));
    }

    #[test]
    fn names_in_a_huge_directory_of_one_user_leave_room_for_another_in_a_pattern() {
        let dir = tree(&["a/first", "b/run.log"]);
        let many = dir.path().join("a");
        if std::os::unix::fs::lchown(&many, Some(65_534), None).is_err() {
            return;
        }
        fs::set_permissions(&many, fs::Permissions::from_mode(0o755)).unwrap();
        for i in 0..=MAX_NAMES_OF_USER {
            fs::hard_link(many.join("first"), many.join(i.to_string()))
                .unwrap_or_else(|_| fs::write(many.join(i.to_string()), "").unwrap());
        }
        let pattern = format!("{}/*/*.log", dir.path().display());
        let found = super::find(&pattern, &Reach::of_pattern(&pattern));
        assert_eq!((names(dir.path(), &found), found.cut), (vec!["b/run.log".to_owned()], true));
    }

    /// The directory belongs to root, and every user may write to it.
    #[test]
    fn names_in_a_shared_directory_hide_no_log_of_another() {
        let dir = tree(&["first"]);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        for i in 0..40 {
            fs::write(dir.path().join(format!("genuine{i}.log")), "x").unwrap();
        }
        for i in 0..MAX_NAMES_OF_USER + 16_384 {
            fs::hard_link(dir.path().join("first"), dir.path().join(i.to_string()))
                .unwrap_or_else(|_| fs::write(dir.path().join(i.to_string()), "").unwrap());
        }
        for path in [dir.path().display().to_string(), format!("{}/*.log", dir.path().display())] {
            let found = super::find(&path, &Reach::of_pattern(&path));
            assert_eq!((found.files.len(), found.cut), (40, false), "{path}");
        }
    }

    #[test]
    fn one_that_is_named_need_not_exist() {
        assert_eq!(find("/nowhere/run.log").files[0].path, Path::new("/nowhere/run.log"));
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
        let names: Vec<_> = names.iter().map(|c| c.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["b.log", "c.log", "a.log"]);
    }
}
