//! Reads files that processes were started with: by the processes' own paths, and only if the
//! processes could read them themselves.
//!
//! The names come from a command line, which may contain anything, so [`crate::reach`] opens them.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::value::{hash, shown};
use crate::reach::{self, Reach, View};
use crate::roots::Roots;

/// The most bytes of a file that are compared.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// A process that was started with files.
#[derive(Debug)]
pub(super) struct Starter {
    view: View,
    cwd: Option<PathBuf>,
}

/// A file with its name for people and its path in the process's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    /// The path from the root of the process.
    path: PathBuf,
    view: View,
}

impl Starter {
    /// `None` if the process may not be inspected, or has exited.
    pub(super) fn of_process(roots: &Roots, pid: u32) -> Option<Self> {
        let cwd = fs::read_link(roots.proc(pid.to_string()).join("cwd")).ok();
        Some(Self { view: View::of_process(roots, pid)?, cwd })
    }

    /// The file that the process means by this argument, if it exists.
    pub(super) fn file(&self, argument: &str) -> Option<Named> {
        let path = match (Path::new(argument), &self.cwd) {
            (path, _) if path.is_absolute() => path.to_owned(),
            (path, Some(cwd)) => cwd.join(path),
            _ => return None,
        };
        let name = shown(&path.file_name()?.to_string_lossy());
        let found = self.view.find(&path).ok()?;
        found.metadata.is_file().then(|| Named { name, path, view: self.view.clone() })
    }
}

impl Named {
    pub(super) fn contents(&self) -> Option<String> {
        contents(self.view.find(&self.path).ok()?.open().ok()?)
    }
}

/// The contents of a configured file, as a hash.
pub(super) fn contents_of(path: &Path) -> Option<String> {
    contents(Reach::Below(path.to_owned()).open(path).ok()?)
}

/// A hash and the size, because the contents stay private.
fn contents(file: File) -> Option<String> {
    let length = file.metadata().ok()?.len();
    if reach::is_of_the_kernel(&file).ok()? {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(format!("{} {length} bytes", hash(&bytes)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::Mode;

    use super::*;

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "x").unwrap();
        let view = View::of_process(&Roots::default(), std::process::id()).unwrap();
        let starter = Starter { view, cwd: Some(dir.path().to_owned()) };
        let named = starter.file("a.yaml").unwrap();
        assert_eq!(named.name, "a.yaml");
        assert!(named.contents().unwrap().ends_with(" 1 bytes"));
        // The file is replaced before it is read.
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("a.yaml"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        assert_eq!((named.contents(), contents_of(&dir.path().join("a.yaml"))), (None, None));
        assert!(
            starter.file("a.yaml").is_none() && starter.file(".").is_none() && starter.file("none").is_none()
        );
        assert!(starter.file("/dev/null").is_none() && contents_of(Path::new("/dev/null")).is_none());
        for (link, to) in
            [("there.yaml", "b.yaml"), ("round.yaml", "round.yaml"), ("sub/up.yaml", "../b.yaml")]
        {
            fs::create_dir_all(dir.path().join("sub")).unwrap();
            symlink(to, dir.path().join(link)).unwrap();
        }
        fs::write(dir.path().join("b.yaml"), "xy").unwrap();
        for name in ["there.yaml", "sub/up.yaml", "./sub/../sub/up.yaml"] {
            assert!(starter.file(name).unwrap().contents().unwrap().ends_with(" 2 bytes"), "{name}");
        }
        assert!(starter.file("round.yaml").is_none() && starter.file("b.yaml/x").is_none());
        assert_eq!(starter.file("/proc/self/status").unwrap().contents(), None, "it is the kernel's");
    }
}
