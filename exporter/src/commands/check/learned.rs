//! The state that the serving exporter of this node has saved: which ports were ever up, what the
//! kernel log contained before it was overwritten. A copy is used, because collectors save their
//! state and a check must change nothing.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::persisted_state;

/// The most files of one exporter: one for each collector with state, and one more.
const MAX_FILES: usize = 64;
/// The most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;
/// The most attempts to remove the copy, because a collector may still be writing.
const TRIES: usize = 3;

/// The copy, which is removed on drop.
#[derive(Debug)]
pub(super) struct Learned(Option<PathBuf>);

impl Learned {
    /// Copies the state; empty if there is none, or no place for the copy.
    pub(super) fn copy(state: &Path) -> Self {
        Self::new(state).unwrap_or(Self(None))
    }

    fn new(state: &Path) -> io::Result<Self> {
        let entries: Vec<_> = fs::read_dir(state)?.flatten().filter(|e| is_memory(&e.path())).collect();
        if entries.is_empty() {
            return Ok(Self(None));
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let dir = std::env::temp_dir().join(name(std::process::id()) + &hex::encode(random));
        // The directory must be new, and accessible to this user alone.
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        let learned = Self(Some(dir.clone()));
        for entry in entries.iter().take(MAX_FILES) {
            if entry.metadata()?.len() <= MAX_BYTES {
                fs::copy(entry.path(), dir.join(entry.file_name()))?;
            }
        }
        Ok(learned)
    }

    pub(super) fn dir(&self) -> Option<PathBuf> {
        self.0.clone()
    }
}

/// Removes the copy of a process that was killed.
pub(super) fn remove_of(process: u32) {
    let name = name(process);
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|n| n.starts_with(&name)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The prefix of a copy's name.
fn name(process: u32) -> String {
    format!("stepwatch-check-{process}-")
}

fn is_memory(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.strip_prefix(persisted_state::PREFIX).is_some_and(|rest| rest.strip_suffix(".json").is_some())
}

impl Drop for Learned {
    fn drop(&mut self) {
        let Some(dir) = &self.0 else { return };
        let _ = (0..TRIES).find(|_| fs::remove_dir_all(dir).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_leaves_nothing_behind() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(Learned::copy(&state.path().join("none")).dir(), None);
        fs::write(state.path().join("training.json"), "{}").unwrap();
        assert_eq!(Learned::copy(state.path()).dir(), None);
        fs::write(state.path().join("learned-rdma.json"), "[1]").unwrap();
        let learned = Learned::copy(state.path());
        let dir = learned.dir().unwrap();
        assert_eq!(fs::read_to_string(dir.join("learned-rdma.json")).unwrap(), "[1]");
        assert!(!dir.join("training.json").exists());
        fs::write(dir.join("learned-rdma.json"), "[2]").unwrap();
        drop(learned);
        assert!(!dir.exists());
        let killed = std::mem::ManuallyDrop::new(Learned::copy(state.path())).dir().unwrap();
        assert!(killed.exists());
        remove_of(std::process::id());
        assert!(!killed.exists());
        assert_eq!(fs::read_to_string(state.path().join("learned-rdma.json")).unwrap(), "[1]");
    }
}
