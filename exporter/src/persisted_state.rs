//! State that a collector, or the stream, keeps over a restart of this exporter: one small JSON
//! file each, in the state directory.
//!
//! Replaced as a whole by rename: after a crash it is the old one or the new one. A file that
//! cannot be read is set aside and forgotten; that costs what was learned, never a start. `--once`
//! and `check` keep no state, so that they change nothing.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Only this exporter opens the state: it names the runs and users of the node, and any process
/// that can open a file can lock it.
const MODE: u32 = 0o600;
/// How the names of its files begin.
pub const PREFIX: &str = "learned-";
/// Larger than anything a collector has to remember.
const MAX_BYTES: u64 = 1 << 20;

/// What was remembered under `name`; the default when there is nothing, or nothing that can be
/// read.
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

/// Remembers. Without a state directory it does nothing, which is no error.
pub fn save<T: Serialize>(dir: Option<&Path>, name: &str, value: &T) -> io::Result<()> {
    let Some(dir) = dir else { return Ok(()) };
    replace(&file(dir, name), &serde_json::to_vec(value)?)
}

/// Puts a new file in the place of the one at `path`.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut options = OpenOptions::new();
    let mut file = open_private(Path::new(&new), options.write(true).create(true).truncate(true))?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&new, path)
}

/// Opens a file that no other user may read, also where an earlier version or a crash left it open
/// to others.
pub(crate) fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(MODE).open(path)?;
    if file.metadata()?.permissions().mode() & 0o7777 != MODE {
        // A file of another user, in a directory that the operator made, keeps its mode.
        let _ = file.set_permissions(Permissions::from_mode(MODE));
    }
    Ok(file)
}

/// What stands in a file of ours, of at most `max` bytes.
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
        // What a crash left is written over.
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
