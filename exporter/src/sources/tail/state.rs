//! Keeps the read position of a file across restarts of the exporter.
//!
//! The stream keeps the position with the events that it covers, so a crash neither repeats nor
//! skips any. There is also one small file for each followed path, replaced as a whole: for a
//! stream without a journal, and after a reboot. It is written after its events were published, so
//! a crash in between reads a line again but never skips one. It is not synced to disk: after a
//! power cut steps are read again, but the power cut ended the job too.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::open::modified;
use super::writers::Process;

/// The most bytes of a state file; a larger one is not ours.
const MAX_BYTES: u64 = 64 * 1024;

/// A file, and the position where reading continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    pub(super) ino: u64,
    /// The device of the file system.
    pub(super) dev: u64,
    pub(super) head: Fingerprint,
    pub(super) offset: u64,
    /// Whether `offset` is inside a line that was too long.
    #[serde(default)]
    pub(super) skipping: bool,
}

/// A hash of the first bytes of a file when it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fingerprint {
    pub(super) len: usize,
    hash: u64,
}

impl Fingerprint {
    /// FNV-1a, which is stable across versions of the compiler, unlike the standard hasher.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let hash = bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        Self { len: bytes.len(), hash }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Saved {
    /// The path, for people and to detect a collision of hashes.
    pub(super) path: PathBuf,
    /// Old files first, the named one last.
    pub(super) files: Vec<Position>,
    pub(super) last_step: Option<i64>,
    /// The number of saves: of two copies, the one with more is newer.
    #[serde(default)]
    pub(super) generation: u64,
    /// The writers that had not exited at the last check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) writers: Vec<Process>,
    /// Whether the end of its run was published, without a step since.
    #[serde(default)]
    pub(super) ended: bool,
    /// Whether events gathered from the previous lines were published.
    #[serde(default)]
    pub(super) rested: bool,
    /// The run and rank of its last event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) of: Option<(String, Option<u32>)>,
    /// Whether the rule of run identity gave the run, rather than only the path.
    #[serde(default)]
    pub(super) ruled: bool,
    /// The model that the file described at its beginning. It is needed if the run is followed
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hello: Option<String>,
}

#[cfg(test)]
impl Saved {
    fn new(path: &Path) -> Self {
        let path = path.to_owned();
        Self {
            path,
            files: Vec::new(),
            last_step: None,
            generation: 0,
            writers: Vec::new(),
            ended: false,
            rested: true,
            of: None,
            ruled: false,
            hello: None,
        }
    }
}

/// The state file of one path.
#[derive(Debug)]
pub(super) struct Store {
    key: String,
    file: PathBuf,
}

impl Store {
    pub(super) fn new(state_dir: &Path, path: &Path) -> Self {
        let key = format!("{:016x}", Fingerprint::from_bytes(path.as_os_str().as_encoded_bytes()).hash);
        Self { file: state_dir.join("tails").join(format!("{key}.json")), key }
    }

    /// The store of a state file; `None` if the name is not that of one.
    pub(super) fn of(file: PathBuf) -> Option<Self> {
        let json = file.extension().is_some_and(|extension| extension == "json");
        let key = file.file_stem().filter(|_| json)?.to_str()?.to_owned();
        Some(Self { key, file })
    }

    /// The key of the state in the stream.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The saved state of `path`; `None` if there is none, or it cannot be read.
    pub(super) fn load(&self, path: &Path) -> Option<Saved> {
        parse(&self.read()?, path)
    }

    /// The saved state of any path.
    pub(super) fn load_any(&self) -> Option<Saved> {
        serde_json::from_slice(&self.read()?).ok()
    }

    /// The Unix time in seconds when it was last saved.
    pub(super) fn saved_at(&self) -> Option<f64> {
        modified(&fs::metadata(&self.file).ok()?)
    }

    fn read(&self) -> Option<Vec<u8>> {
        let len = fs::metadata(&self.file).ok()?.len();
        (len <= MAX_BYTES).then(|| fs::read(&self.file).ok())?
    }

    pub(super) fn save(&self, saved: &Saved) -> io::Result<()> {
        if let Some(dir) = self.file.parent() {
            fs::create_dir_all(dir)?;
        }
        let fresh = self.file.with_extension("tmp");
        let mut file = fs::File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(saved)?)?;
        drop(file);
        fs::rename(&fresh, &self.file)
    }

    pub(super) fn forget(&self) {
        // If the file stays, it is only read again, and its inode will not match.
        let _ = fs::remove_file(&self.file);
    }
}

/// The state of `path` as text.
pub(super) fn parse(bytes: &[u8], path: &Path) -> Option<Saved> {
    match serde_json::from_slice::<Saved>(bytes) {
        Ok(saved) => (saved.path == path).then_some(saved),
        Err(err) => {
            tracing::warn!(path = %path.display(), %err, "the saved position of a tail cannot be read");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(path: &Path) -> Saved {
        let position =
            Position { ino: 7, dev: 3, head: Fingerprint::from_bytes(b"abc"), offset: 42, skipping: true };
        let of = Some(("r".to_owned(), None));
        Saved {
            files: vec![position],
            last_step: Some(-3),
            generation: 4,
            ended: true,
            of,
            ..Saved::new(path)
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = Path::new("/logs/run.log");
        let store = Store::new(dir.path(), path);
        assert_eq!(store.load(path), None);
        store.save(&saved(path)).unwrap();
        store.save(&saved(path)).unwrap();
        assert_eq!(store.load(path), Some(saved(path)));
        assert_eq!(store.load(Path::new("/logs/other.log")), None);
        store.forget();
        assert_eq!(store.load(path), None);
    }

    #[test]
    fn a_torn_state_is_no_state() {
        let dir = tempfile::tempdir().unwrap();
        let path = Path::new("/logs/run.log");
        let store = Store::new(dir.path(), path);
        store.save(&saved(path)).unwrap();
        for text in ["", "{", "[]", "{\"path\":\"/logs/run.log\"}"] {
            fs::write(&store.file, text).unwrap();
            assert_eq!(store.load(path), None, "{text}");
        }
        fs::write(&store.file, vec![b' '; MAX_BYTES as usize + 1]).unwrap();
        assert_eq!(store.load(path), None);
    }

    #[test]
    fn fingerprints_distinguish_files() {
        assert_ne!(Fingerprint::from_bytes(b"abc"), Fingerprint::from_bytes(b"abd"));
        assert_ne!(Fingerprint::from_bytes(b""), Fingerprint::from_bytes(b"\0"));
    }
}
