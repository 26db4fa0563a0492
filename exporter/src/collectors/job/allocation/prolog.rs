//! Finds jobs by the files that a prolog creates and an epilog removes: one for each GPU, named by
//! its index, or its index and GPU instance (`3`, `3.1`), with one job a line. This is the
//! convention of NVIDIA's own exporter, so existing scripts work. The index is that of NVML and
//! `nvidia-smi`, which may differ from the number of the device file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::devices::{Device, Known};
use crate::roots;

const MAX_FILES: usize = 512;
/// The most jobs that share a GPU.
const MAX_JOBS: usize = 64;
const MAX_BYTES: u64 = 64 * 1024;
const MAX_ID: usize = 64;

/// The GPUs by job. A file that is not named after a GPU of this node is ignored.
pub(super) fn read(dir: &Path, known: &Known) -> io::Result<BTreeMap<String, BTreeSet<Device>>> {
    let mut found: BTreeMap<String, BTreeSet<Device>> = BTreeMap::new();
    for name in roots::list(dir)?.into_iter().take(MAX_FILES) {
        let path = dir.join(&name);
        let Some(device) = known.find(&name) else { continue };
        if std::fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= MAX_BYTES) {
            for job in jobs(&roots::read(&path).unwrap_or_default()) {
                found.entry(job.to_owned()).or_default().insert(device.clone());
            }
        }
    }
    Ok(found)
}

fn jobs(text: &str) -> impl Iterator<Item = &str> {
    let ids = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    ids.filter(|id| id.len() <= MAX_ID && !id.chars().any(char::is_control)).take(MAX_JOBS)
}

#[cfg(test)]
mod tests {
    use super::super::devices::tests::{eight, uuid};
    use super::*;

    #[test]
    fn files_of_a_prolog() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("0", "1207\n");
        write("1", "1207\n\n1300\n");
        write("2.7", "1400");
        write("README", "1\n");
        write("3", &"x".repeat(MAX_ID + 1));
        std::fs::create_dir(dir.path().join("4")).unwrap();
        let found = read(dir.path(), &eight()).unwrap();
        let whole = |n| Device { gpu: uuid(n), gi: None };
        // The names are indices, whose order is the reverse of the device files' numbers.
        assert_eq!(found["1207"], [whole(7), whole(6)].into());
        assert_eq!(found["1300"], [whole(6)].into());
        assert_eq!(found["1400"], [Device { gpu: uuid(5), gi: Some(7) }].into());
        assert_eq!(found.len(), 3);
        assert!(read(&dir.path().join("gone"), &eight()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String) {
            proptest::prop_assert!(jobs(&text).all(|id| id.len() <= MAX_ID));
        }
    }
}
