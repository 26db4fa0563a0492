//! Files that processes were started with: found as they find them, and read only where they could read them themselves.
//!
//! Their names come from a command line, which may say anything. A pipe under the name of a file must not hold us up, a device must not
//! be opened (a watchdog resets the machine once it was), a file of the kernel must not be emptied by us, and nobody is told of a file that
//! its reader may not see, or not reach.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::value::{hash, shown};
use crate::roots::{self, Roots};

/// As much of a file as is compared.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// File systems that are made of what the kernel says, and what it says there may be gone with the reading: `statfs(2)`.
const OF_THE_KERNEL: &[u64] = &[0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163];
/// Links on the way to a file, as the kernel has it.
const MAX_LINKS: usize = 40;
/// Finds what has a name, and does nothing to it.
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// A process that was started with files.
#[derive(Debug)]
pub(super) struct Starter {
    who: Who,
    cwd: Option<PathBuf>,
    place: Option<Place>,
}

/// A file by the name that people know, and where it is for the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    /// From the root of the process.
    path: PathBuf,
    place: Option<Place>,
    who: Who,
}

/// The mounts that a process sees, where they are others than ours.
#[derive(Debug, Clone)]
struct Place {
    mounts: PathBuf,
    /// Where they are found. One of those processes will do as well as another.
    root: PathBuf,
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.mounts == other.mounts
    }
}

impl Eq for Place {}

/// For whom files are opened or refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Who {
    user: u32,
    groups: Vec<u32>,
}

impl Starter {
    /// `None` when the process may not be looked at, or is gone.
    pub(super) fn of(roots: &Roots, pid: u32) -> Option<Self> {
        let dir = roots.proc(pid.to_string());
        let mounts = |dir: &Path| fs::read_link(dir.join("ns/mnt")).ok();
        let theirs = mounts(&dir).filter(|theirs| mounts(&roots.proc("self")).as_ref() != Some(theirs));
        Some(Self {
            who: Who::parse(&roots::read(&dir.join("status"))?)?,
            cwd: fs::read_link(dir.join("cwd")).ok(),
            place: theirs.map(|mounts| Place { mounts, root: dir.join("root") }),
        })
    }

    /// The file that it calls so, if there is one.
    pub(super) fn file(&self, argument: &str) -> Option<Named> {
        let path = match (Path::new(argument), &self.cwd) {
            (path, _) if path.is_absolute() => path.to_owned(),
            (path, Some(cwd)) => cwd.join(path),
            _ => return None,
        };
        let name = shown(&path.file_name()?.to_string_lossy());
        let named = Named { name, path, place: self.place.clone(), who: self.who.clone() };
        named.open().is_ok().then_some(named)
    }
}

impl Named {
    pub(super) fn contents(&self) -> Option<String> {
        contents(self.open().ok()?)
    }

    fn open(&self) -> io::Result<File> {
        let root = self.place.as_ref().map_or(Path::new("/"), |place| &place.root);
        let root = rustix::fs::open(root, LOOK | OFlags::DIRECTORY, Mode::empty())?;
        let (found, metadata) = self.who.find(root.into(), &self.path)?;
        if !self.who.may(READS, &metadata) {
            return Err(refused());
        }
        open(&found)
    }
}

/// A part of a path that is still to be walked.
enum Part {
    Root,
    Up,
    Name(OsString),
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = Part> {
    path.components().filter_map(|component| match component {
        Component::RootDir => Some(Part::Root),
        Component::ParentDir => Some(Part::Up),
        Component::Normal(name) => Some(Part::Name(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    })
}

fn refused() -> io::Error {
    io::ErrorKind::PermissionDenied.into()
}

impl Who {
    /// What is called so below this root, by links that lead nowhere above it and directories that they may enter.
    fn find(&self, root: File, path: &Path) -> io::Result<(File, Metadata)> {
        let mut way: VecDeque<Part> = parts(path).collect();
        let mut links = 0;
        let mut above = vec![root];
        while let Some(part) = way.pop_front() {
            let name = match part {
                Part::Root => {
                    above.truncate(1);
                    continue;
                }
                Part::Up => {
                    above.truncate(above.len().saturating_sub(1).max(1));
                    continue;
                }
                Part::Name(name) => name,
            };
            let dir = above.last().ok_or_else(refused)?;
            if !self.may(ENTERS, &dir.metadata()?) {
                return Err(refused());
            }
            let found: File = rustix::fs::openat(dir, &name, LOOK | OFlags::NOFOLLOW, Mode::empty())?.into();
            let metadata = found.metadata()?;
            if metadata.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(refused());
                }
                let target = rustix::fs::readlinkat(&found, "", Vec::new())?.into_bytes();
                for part in parts(Path::new(&OsString::from_vec(target))).rev() {
                    way.push_front(part);
                }
            } else if metadata.is_dir() {
                above.push(found);
            } else {
                return if way.is_empty() { Ok((found, metadata)) } else { Err(refused()) };
            }
        }
        Err(refused())
    }
}

impl Who {
    /// From `/proc/PID/status`.
    fn parse(status: &str) -> Option<Self> {
        let numbers = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>())
        };
        let effective = |ids: Vec<u32>| ids.get(1).copied();
        let mut groups = numbers("Groups:").unwrap_or_default();
        groups.extend(numbers("Gid:").and_then(effective));
        Some(Self { user: numbers("Uid:").and_then(effective)?, groups })
    }

    /// As the bits of the file say; a list of access that says more is not looked at.
    fn may(&self, what: u32, file: &Metadata) -> bool {
        let shift = match () {
            () if self.user == 0 => return true,
            () if self.user == file.uid() => 6,
            () if self.groups.contains(&file.gid()) => 3,
            () => 0,
        };
        file.mode() & (what << shift) != 0
    }
}

/// Bits of what may be done to a file, and to a directory.
const READS: u32 = 0o4;
const ENTERS: u32 = 0o1;

/// What a file that the configuration names says.
pub(super) fn contents_of(path: &Path) -> Option<String> {
    let found = rustix::fs::open(path, LOOK, Mode::empty()).ok()?;
    contents(open(&found.into()).ok()?)
}

/// Opens what was found, if it is a file: only to open some devices does something.
fn open(found: &File) -> io::Result<File> {
    if !found.metadata()?.is_file() {
        return Err(refused());
    }
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(rustix::fs::open(again, READ, Mode::empty())?.into())
}

/// A hash and the size: what a file says is nobody's business.
fn contents(file: File) -> Option<String> {
    let length = file.metadata().ok()?.len();
    let kind = rustix::fs::fstatfs(&file).ok()?.f_type;
    if OF_THE_KERNEL.contains(&(kind as u64)) {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(format!("{} {length} bytes", hash(&bytes)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn starter(user: u32, cwd: &Path, place: Option<Place>) -> Starter {
        Starter { who: Who { user, groups: vec![7] }, cwd: Some(cwd.to_owned()), place }
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "x").unwrap();
        let starter = starter(0, dir.path(), None);
        let named = starter.file("a.yaml").unwrap();
        assert_eq!(named.name, "a.yaml");
        assert!(named.contents().unwrap().ends_with(" 1 bytes"));
        // It is another thing by the time that it is read.
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

    #[test]
    fn only_what_the_process_may_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, "x").unwrap();
        let owner = fs::metadata(&path).unwrap();
        let may = |user: u32, groups: &[u32], mode: u32| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Who { user, groups: groups.to_vec() }.may(READS, &fs::metadata(&path).unwrap())
        };
        let stranger = owner.uid() + 4711;
        assert!(may(stranger, &[], 0o644) && !may(stranger, &[], 0o640));
        assert!(may(stranger, &[owner.gid()], 0o640) && !may(stranger, &[owner.gid()], 0o604));
        assert!(may(0, &[], 0o600));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(starter(stranger, dir.path(), None).file("a.yaml").is_none());

        // Of a file that all may read, in a directory that nobody may enter.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let enters = |mode: u32| {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            starter(stranger, dir.path(), None).file("a.yaml").is_some()
        };
        assert_eq!([0o755, 0o700, 0o711, 0o744].map(enters), [true, false, true, false]);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(starter(owner.uid(), dir.path(), None).file("a.yaml").is_some());

        let status = "Name:\tpython\nUid:\t1000\t1001\t1000\t1000\nGid:\t5\t6\t5\t5\nGroups:\t20 30 \n";
        assert_eq!(Who::parse(status), Some(Who { user: 1001, groups: vec![20, 30, 6] }));
        assert_eq!(Who::parse("Name:\tpython\n"), None);
    }

    #[test]
    fn a_link_of_a_container_leads_into_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/own.yaml"), "own").unwrap();
        fs::write(dir.path().join("host.yaml"), "the host's").unwrap();
        symlink("/etc/own.yaml", root.join("in.yaml")).unwrap();
        symlink(dir.path().join("host.yaml"), root.join("out.yaml")).unwrap();
        let place = |pid: &str| Place { mounts: "mnt:[1]".into(), root: dir.path().join(pid) };
        let of = |pid| starter(0, Path::new("/"), Some(place(pid)));
        let own = of("root").file("in.yaml").unwrap();
        assert!(own.contents().unwrap().ends_with(" 3 bytes"));
        assert!(of("root").file("out.yaml").is_none() && of("root").file("../../host.yaml").is_none());
        symlink("root", dir.path().join("again")).unwrap();
        assert_eq!(of("again").file("in.yaml"), Some(own), "two processes of a container have the same file");
    }

    proptest::proptest! {
        #[test]
        fn any_status(text: String) {
            let _ = Who::parse(&text);
        }
    }
}
