//! The locations of system files: `/sys`, `/proc` and others. Each can be changed, for tests with a
//! directory tree and for a container that reads its host's.

use std::fs::File;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

/// The most bytes of a kernel file; real ones are smaller.
const MAX_BYTES: u64 = 16 << 20;
/// The most bytes of the value in a watched file, which is a number or a word.
const MAX_WORD: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    pub sysfs: PathBuf,
    pub procfs: PathBuf,
    /// The shared memory of processes on this node.
    pub shm: PathBuf,
    /// The device files, of which only those of GPUs are used.
    pub dev: PathBuf,
    /// The character device of the kernel log.
    pub kmsg: PathBuf,
    /// The path of NVML; by default the loader searches for it.
    pub nvml_library: Option<PathBuf>,
    /// The directory for state that must survive a restart ([`crate::persisted_state`]); `None`
    /// keeps none.
    pub state: Option<PathBuf>,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
            shm: "/dev/shm".into(),
            dev: "/dev".into(),
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

/// The text of a small file without surrounding space; `None` if it cannot be read.
///
/// Each kernel file may fail: an attribute of a device may be missing, be invalid in its state or
/// return any error, and that must cost only this value.
pub fn read(path: &Path) -> Option<String> {
    let mut text = String::from_utf8(read_bytes(path).ok()?).ok()?;
    text.truncate(text.trim_end().len());
    Some(text)
}

/// The contents of a small file. Hundreds are read a second, so the size, which the kernel does not
/// give, is not queried.
pub fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(256);
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// As [`read`], for a file with one number.
pub fn read_number<T: FromStr>(path: &Path) -> Option<T> {
    read(path)?.trim().parse().ok()
}

/// A directory of sysfs whose files are read repeatedly. The kernel then looks up one name, rather
/// than a path of a dozen with links in between.
///
/// After a driver was reloaded, there is another directory of the same name. A caller that misses a
/// file which every such directory has, or that seldom reads, calls [`Dir::reopen`].
#[derive(Debug, Default)]
pub struct Dir {
    path: PathBuf,
    open: Option<File>,
    /// The names of its entries, sorted.
    names: Vec<String>,
    /// Files that are read every second.
    watched: Vec<(&'static str, File)>,
    /// The names in the kernel's order, each followed by a zero: they are usually unchanged, and
    /// then need no sorting.
    listed: Vec<u8>,
}

impl Dir {
    pub fn new(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Closes all of its files. Afterwards it is the directory that then has the path.
    pub fn reopen(&mut self) {
        self.open = None;
        self.watched.clear();
    }

    fn open(&mut self) -> io::Result<&File> {
        const HOW: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        if self.open.is_none() {
            self.open = Some(rustix::fs::open(&self.path, HOW, Mode::empty())?.into());
        }
        self.open.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The names of its entries, sorted. An empty directory may have been removed and recreated, so
    /// it is reopened.
    pub fn names(&mut self) -> io::Result<&[String]> {
        let old = self.open.is_some();
        let mut now = self.entries();
        if old && now.as_ref().map_or(true, Vec::is_empty) {
            self.reopen();
            now = self.entries();
        }
        let now = now?;
        if now != self.listed {
            let names = now.split(|byte| *byte == 0).filter(|name| !name.is_empty());
            self.names = names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect();
            self.names.sort();
            self.listed = now;
        }
        Ok(&self.names)
    }

    fn entries(&mut self) -> io::Result<Vec<u8>> {
        let size = self.listed.len();
        let dir = self.open()?;
        rustix::fs::seek(dir, SeekFrom::Start(0))?;
        let (mut buffer, mut entries) = ([MaybeUninit::uninit(); 4096], Vec::with_capacity(size));
        let mut read = RawDir::new(dir, &mut buffer);
        while let Some(entry) = read.next() {
            let entry = entry?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                entries.extend_from_slice(name.to_bytes_with_nul());
            }
        }
        Ok(entries)
    }

    /// The contents of an attribute. The kernel returns all of it, a page at most, in the first
    /// `read`.
    pub fn read_bytes(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let file = self.openat(name)?;
        let mut page = [0; 4096];
        loop {
            match rustix::io::read(&file, &mut page) {
                Err(Errno::INTR) => {}
                read => return Ok(page[..read?].to_vec()),
            }
        }
    }

    /// As [`Dir::read`], for a word that is read every second. The file stays open, because opening
    /// and closing cost more than reading. The kernel generates the contents anew for each read
    /// from the start.
    pub fn watch(&mut self, name: &'static str) -> Option<String> {
        self.watched(name, |word| Some(word.to_owned()))
    }

    /// As [`Dir::read_number`], for a file that stays open.
    pub fn watch_number<T: FromStr>(&mut self, name: &'static str) -> Option<T> {
        self.watched(name, |word| word.parse().ok())
    }

    fn watched<T>(&mut self, name: &'static str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let mut text = [0; MAX_WORD];
        let at = self.watched.iter().position(|(watched, _)| *watched == name);
        let watched = at.and_then(|at| self.watched.get(at));
        let length = if let Some(Ok(length)) = watched.map(|(_, file)| look(file, &mut text)) {
            length
        } else {
            // The file returns an error, or belongs to a device that is gone.
            self.watched.retain(|(watched, _)| *watched != name);
            let file = self.openat(name).ok()?;
            let length = look(&file, &mut text).ok()?;
            self.watched.push((name, file));
            length
        };
        parse(std::str::from_utf8(text.get(..length)?).ok()?.trim())
    }

    fn openat(&mut self, name: &str) -> io::Result<File> {
        const FILE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);
        Ok(rustix::fs::openat(self.open()?, name, FILE, Mode::empty())?.into())
    }

    /// As [`read`], for a file in the directory.
    pub fn read(&mut self, name: &str) -> Option<String> {
        let mut text = String::from_utf8(self.read_bytes(name).ok()?).ok()?;
        text.truncate(text.trim_end().len());
        Some(text)
    }

    /// As [`read_number`], for a file in the directory.
    pub fn read_number<T: FromStr>(&mut self, name: &str) -> Option<T> {
        self.read(name)?.trim().parse().ok()
    }
}

/// Reads the present contents of an open file.
fn look(file: &File, text: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::pread(file, &mut *text, 0) {
            Err(Errno::INTR) => {}
            read => return Ok(read?),
        }
    }
}

/// The names of a directory's entries, sorted.
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

    #[test]
    fn a_directory_is_the_same_until_it_is_opened_anew() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("mlx5_0");
        let mut dir = Dir::new(path.clone());
        assert_eq!(dir.read("state"), None);
        std::fs::create_dir(&path).unwrap();
        for text in ["4: ACTIVE\n", "1: DOWN\n"] {
            std::fs::write(path.join("state"), text).unwrap();
            assert_eq!(dir.read("state").as_deref(), Some(text.trim_end()));
        }
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(dir.read_bytes("state").unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("state"), " 7 \n").unwrap();
        assert_eq!(dir.read("state"), None);
        dir.reopen();
        assert_eq!(dir.read_number("state"), Some(7));
    }

    #[test]
    fn what_is_watched_is_what_stands_there_now() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("statistics");
        std::fs::create_dir(&path).unwrap();
        let mut dir = Dir::new(path.clone());
        assert_eq!(dir.watch_number::<u64>("rx_bytes"), None);
        for count in [7_u64, 1_234_567, 8] {
            std::fs::write(path.join("rx_bytes"), format!("{count}\n")).unwrap();
            assert_eq!(dir.watch_number("rx_bytes"), Some(count));
        }
        std::fs::write(path.join("operstate"), "up\n").unwrap();
        assert_eq!(dir.watch("operstate").as_deref(), Some("up"));
        assert_eq!(dir.watch_number::<u64>("operstate"), None);
        // The unreadable file is a directory here; on a node it is that of a device that is down,
        // which may be readable later.
        std::fs::create_dir(path.join("speed")).unwrap();
        assert_eq!(dir.watch("speed"), None);
        std::fs::remove_dir(path.join("speed")).unwrap();
        std::fs::write(path.join("speed"), "400000\n").unwrap();
        assert_eq!(dir.watch_number("speed"), Some(400_000));
        std::fs::remove_dir_all(&path).unwrap();
        dir.reopen();
        assert_eq!(dir.watch("operstate"), None);
    }

    #[test]
    fn names_are_those_of_the_directory_that_has_the_path() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("infiniband");
        let mut dir = Dir::new(path.clone());
        assert_eq!(dir.names().unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::create_dir(&path).unwrap();
        assert!(dir.names().unwrap().is_empty());
        // There are more names than the kernel returns at once.
        let mut many: Vec<String> = (0..1000).map(|i| format!("mlx5_{i}")).collect();
        many.iter().for_each(|name| std::fs::write(path.join(name), "").unwrap());
        many.sort();
        for _ in 0..2 {
            assert_eq!(dir.names().unwrap(), many);
        }
        std::fs::remove_file(path.join("mlx5_0")).unwrap();
        assert_eq!(dir.names().unwrap(), &many[1..]);
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(dir.names().unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("mlx5_7"), "").unwrap();
        assert_eq!(dir.names().unwrap(), ["mlx5_7"]);
    }
}
