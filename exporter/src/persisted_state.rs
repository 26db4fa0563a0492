//! What a collector remembers over a restart of this exporter: one small JSON file each, in the
//! state directory.
//!
//! Replaced as a whole by rename: after a crash it is the old one or the new one. A file that
//! cannot be read is set aside and forgotten; that costs what was learned, never a start. `--once`
//! and `check` have no place to remember in, so that looking changes nothing.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Larger than anything a collector has to remember.
const MAX_BYTES: u64 = 1 << 20;

/// What the collector `name` remembered; the default when there is nothing, or nothing that can be
/// read.
pub fn load<T: DeserializeOwned + Default>(dir: Option<&Path>, name: &str) -> T {
    let Some(path) = dir.map(|dir| file(dir, name)) else { return T::default() };
    let text = match read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return T::default(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read what a collector remembers; it begins anew");
            return T::default();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        let aside = path.with_extension("json.bad");
        tracing::warn!(path = %path.display(), aside = %aside.display(), %error, "what a collector remembers is damaged; set aside, it begins anew");
        let _ = std::fs::rename(&path, &aside);
        T::default()
    })
}

/// Remembers. Without a state directory it does nothing, which is no error.
pub fn save<T: Serialize>(dir: Option<&Path>, name: &str, value: &T) -> io::Result<()> {
    let Some(dir) = dir else { return Ok(()) };
    let path = file(dir, name);
    let new = path.with_extension("json.new");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_data()?;
    std::fs::rename(&new, &path)
}

fn file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("collector-{name}.json"))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(std::fs::File::open(path)?, MAX_BYTES), &mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_there_after_a_restart_and_damage_costs_only_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let place = Some(dir.path());
        let loaded = |place, name| load::<Vec<u32>>(place, name);
        assert!(loaded(place, "x").is_empty());
        save(place, "x", &[1, 2]).unwrap();
        assert_eq!(loaded(place, "x"), vec![1, 2]);
        assert!(loaded(place, "y").is_empty());
        std::fs::write(dir.path().join("collector-x.json"), "[1,").unwrap();
        assert!(loaded(place, "x").is_empty());
        assert!(dir.path().join("collector-x.json.bad").exists());
        save(place, "x", &[3]).unwrap();
        assert_eq!(loaded(place, "x"), vec![3]);
        save(None, "x", &[4]).unwrap();
        assert!(loaded(None, "x").is_empty());
    }
}
