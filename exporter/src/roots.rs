//! Where the system's own files are: `/sys`, `/proc` and the rest, each movable, so that a collector is tested on a
//! tree of files and a container looks at its host.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Of a file of the kernel's; none is as large.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    pub sysfs: PathBuf,
    pub procfs: PathBuf,
    /// Shared memory of the processes of this node.
    pub shm: PathBuf,
    /// Character device of the kernel log.
    pub kmsg: PathBuf,
    /// NVML to load; the loader's search path when absent.
    pub nvml_library: Option<PathBuf>,
    /// Where collectors remember what must survive a restart ([`crate::memory`]); nowhere when absent.
    pub state: Option<PathBuf>,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
            shm: "/dev/shm".into(),
            kmsg: "/dev/kmsg".into(),
            nvml_library: None,
            state: None,
        }
    }
}

impl Roots {
    pub fn sys(&self, path: impl AsRef<Path>) -> PathBuf {
        self.sysfs.join(path)
    }

    pub fn shm(&self, path: impl AsRef<Path>) -> PathBuf {
        self.shm.join(path)
    }

    pub fn proc(&self, path: impl AsRef<Path>) -> PathBuf {
        self.procfs.join(path)
    }
}

/// The text of a small file without the space around it; `None` when it cannot be read.
///
/// Kernel files are each their own risk: one attribute of one device may be missing, invalid for its state or refuse
/// with any error, and that must cost that one value only.
pub fn read(path: &Path) -> Option<String> {
    let mut text = String::from_utf8(read_bytes(path).ok()?).ok()?;
    text.truncate(text.trim_end().len());
    Some(text)
}

/// What stands in a small file. Hundreds of them are read a second, so none is asked for its size, which the kernel does not know.
pub fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(256);
    std::fs::File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// As [`read`], for a file that holds one number.
pub fn read_number<T: FromStr>(path: &Path) -> Option<T> {
    read(path)?.trim().parse().ok()
}

/// Names of the entries of a directory, sorted.
pub fn list(path: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<String> =
        std::fs::read_dir(path)?.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_any_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(read(&path), None);
        for size in [0, 1, 254, 255, 4096, 100_000] {
            let text: String = ('a'..='z').cycle().take(size).collect();
            std::fs::write(&path, format!("{text} \n")).unwrap();
            assert!(read(&path).as_deref() == Some(&text), "{size}");
        }
        assert_eq!(read(dir.path()), None);
    }
}
