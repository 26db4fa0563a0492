//! State that a collector or the stream keeps across a restart of this exporter: one small JSON
//! file each, in the state directory.
//!
//! A file is replaced as a whole by rename: after a crash it is the old one or the new one. A file
//! that cannot be read is renamed and ignored, which costs the state but never the start. `--once`
//! and `check` save nothing.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Only this exporter may open the state: it names the runs and users of the node, and any process
/// that can open a file can lock it.
const MODE: u32 = 0o600;
/// The prefix of the names of its files.
pub const PREFIX: &str = "learned-";
/// The most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;

/// The state saved under `name`; the default if there is none, or it cannot be read.
pub fn load<T: DeserializeOwned + Default>(dir: Option<&Path>, name: &str) -> T {
    let Some(path) = dir.map(|dir| file(dir, name)) else { return T::default() };
    let text = match read(&path, MAX_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return T::default(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read what was remembered; it is learned anew");
            return T::default();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        let aside = path.with_extension("json.bad");
        tracing::warn!(path = %path.display(), aside = %aside.display(), %error, "what was remembered is damaged; it is set aside and learned anew");
        let _ = std::fs::rename(&path, &aside);
        T::default()
    })
}

/// Saves state. Without a state directory it does nothing, which is no error.
pub fn save<T: Serialize>(dir: Option<&Path>, name: &str, value: &T) -> io::Result<()> {
    let Some(dir) = dir else { return Ok(()) };
    replace(&file(dir, name), &serde_json::to_vec(value)?)
}

/// Replaces the file at `path` with a new one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut options = OpenOptions::new();
    let mut file = open_private(Path::new(&new), options.write(true).create(true).truncate(true))?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&new, path)
}

/// Opens a file that no other user may read, even if an earlier version or a crash left it
/// readable.
pub(crate) fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(MODE).open(path)?;
    if file.metadata()?.permissions().mode() & 0o7777 != MODE {
        // If another user owns the file, in a directory that the operator made, it keeps its mode.
        let _ = file.set_permissions(Permissions::from_mode(MODE));
    }
    Ok(file)
}

/// The contents of a file of ours, which may have at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = open_private(path, OpenOptions::new().read(true))?;
    io::Read::read_to_end(&mut io::Read::take(file, max), &mut text)?;
    Ok(text)
}

fn file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{PREFIX}{name}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_may_read_it_whatever_was_there_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("learned-x.json");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let widen = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, "[1]").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        };
        // The remains of a crash are overwritten.
        widen("learned-x.json.new");
        save(Some(dir.path()), "x", &[1]).unwrap();
        assert_eq!(mode(), 0o600);
        widen("learned-x.json");
        assert_eq!(load::<Vec<u32>>(Some(dir.path()), "x"), [1]);
        assert_eq!(mode(), 0o600, "of an earlier version");
    }

    #[test]
    fn what_was_saved_is_there_after_a_restart_and_damage_costs_only_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let place = Some(dir.path());
        let loaded = |place, name| load::<Vec<u32>>(place, name);
        assert!(loaded(place, "x").is_empty());
        save(place, "x", &[1, 2]).unwrap();
        assert_eq!(loaded(place, "x"), vec![1, 2]);
        assert!(loaded(place, "y").is_empty());
        std::fs::write(dir.path().join("learned-x.json"), "[1,").unwrap();
        assert!(loaded(place, "x").is_empty());
        assert!(dir.path().join("learned-x.json.bad").exists());
        save(place, "x", &[3]).unwrap();
        assert_eq!(loaded(place, "x"), vec![3]);
        save(None, "x", &[4]).unwrap();
        assert!(loaded(None, "x").is_empty());
    }
}
