//! Opens files of other users: resolved step by step, and only with the rights of the user for whom
//! they are read.
//!
//! The exporter may often read everything, and its metrics and stream are public. So a path from a
//! process, or from a directory that others write to, is not given to the kernel as a whole. Each
//! part of it is located without following links and without opening it (`O_PATH`), the result is
//! checked, and only then is it opened: nothing can replace it in between. A pipe is never waited
//! for, and a device never opened.

mod rights;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::principal::Principal;
use crate::roots::{self, Roots};
use rights::{ENTERS, READS, Rights};

/// File systems whose content the kernel generates; reading may consume it: `statfs(2)`.
const OF_THE_KERNEL: &[u64] = &[0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163];
/// The most links on the way to a file; the kernel has the same limit.
const MAX_LINKS: usize = 40;
/// The greatest depth of directories, each of which is held open on the way.
const MAX_DEPTH: usize = 128;
/// Locates a name without opening it.
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// The mode bits of a directory in which all users may create names, and remove only their own.
const SHARED: u32 = 0o1002;

/// The limits on where a path may lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Paths that the operator named, through any links, and paths below them that a pattern or a
    /// search finds.
    Below(PathBuf),
    /// Paths that a process sees and may read itself.
    Of(Arc<View>),
}

/// The view of a process on the file system, and its rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    rights: Rights,
    place: Option<Place>,
}

/// The mounts of a process, if they differ from this program's.
#[derive(Debug, Clone)]
struct Place {
    mounts: PathBuf,
    /// The directory of the process in `/proc`. Any process with these mounts serves as well.
    process: PathBuf,
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.mounts == other.mounts
    }
}

impl Eq for Place {}

/// The reason why a file is not read. It names users, but nothing of the file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("uid {0} may not read it")]
    NotReadable(u32),
    #[error("uid {0} may not enter a directory on the way to it")]
    NotEnterable(u32),
    #[error("a link of uid {link} leads to what uid {target} owns")]
    ForeignLink { link: u32, target: u32 },
    #[error("a link of uid {0} lies in a directory that everybody may write to")]
    SharedLink(u32),
    #[error("it is an interface of the kernel, and no file")]
    OfTheKernel,
    #[error("the way to it has too many links or directories")]
    TooFar,
}

impl Refusal {
    /// The refusal in an error, if there is one.
    pub(crate) fn from_error(err: &io::Error) -> Option<Self> {
        err.get_ref()?.downcast_ref().copied()
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, refusal)
    }
}

/// A located file that is not opened yet.
#[derive(Debug)]
pub(crate) struct Located {
    found: File,
    pub(crate) metadata: Metadata,
    /// Whether files that the kernel generates are refused.
    checked: bool,
}

impl Located {
    fn new(found: File, checked: bool) -> io::Result<Self> {
        Ok(Self { metadata: found.metadata()?, found, checked })
    }

    /// Opens it for reading, if it is a regular file.
    pub(crate) fn open(&self) -> io::Result<File> {
        if !self.metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if self.checked && is_of_the_kernel(&self.found)? {
            return Err(Refusal::OfTheKernel.into());
        }
        Ok(rustix::fs::open(self.again(), READ, Mode::empty())?.into())
    }

    /// A path that stays valid for this file as long as `self` exists.
    pub(crate) fn again(&self) -> PathBuf {
        again(self.found.as_raw_fd()).into()
    }
}

fn again(found: RawFd) -> String {
    format!("/proc/self/fd/{found}")
}

impl Reach {
    /// The reach of a pattern: the operator chose the directories before its first wildcard.
    pub(crate) fn of_pattern(pattern: &str) -> Self {
        let fixed = pattern.split(['*', '?', '[']).next().unwrap_or_default();
        let fixed = fixed.rsplit_once('/').map_or("", |(directory, _)| directory);
        Self::Below(PathBuf::from(format!("{fixed}/")))
    }

    /// The principal who named the path.
    pub(crate) fn finder(&self) -> Principal {
        match self {
            Self::Below(_) => Principal::Exporter,
            Self::Of(view) => Principal::User(view.user()),
        }
    }

    /// Locates a path, if it may be read.
    pub(crate) fn find(&self, path: &Path) -> io::Result<Located> {
        match self {
            Self::Below(named) => {
                let (base, rest) = match path.strip_prefix(named) {
                    Ok(rest) => (named.as_path(), rest),
                    Err(_) => (Path::new("/"), path),
                };
                let base = rustix::fs::open(base, LOOK, Mode::empty())?.into();
                let base = Located::new(base, !rest.as_os_str().is_empty())?;
                let reader = rustix::process::geteuid().as_raw();
                Walk { rights: None, reader, root: 0, links: 0 }.go(base, parts(rest).collect())
            }
            Self::Of(view) => view.find(path),
        }
    }

    /// Opens the file at this path for reading.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        self.find(path)?.open()
    }

    /// Locates a directory below another one, without any link on the way.
    pub(crate) fn directory(&self, base: &Located, path: &Path) -> io::Result<Located> {
        let rights = if let Self::Of(view) = self { Some(&view.rights) } else { None };
        let how = LOOK | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let mut at: Option<Located> = None;
        for name in path.components() {
            let above = at.as_ref().unwrap_or(base);
            enter(rights, above)?;
            let found = rustix::fs::openat(&above.found, name.as_os_str(), how, Mode::empty())?;
            at = Some(Located::new(found.into(), true)?);
        }
        let found = match at {
            Some(found) => found,
            None => Located::new(base.found.try_clone()?, true)?,
        };
        enter(rights, &found)?;
        read(rights, found)
    }
}

impl View {
    /// `None` if the process may not be inspected, has exited, or runs with the rights of two
    /// users.
    pub(crate) fn of_process(roots: &Roots, pid: u32) -> Option<Self> {
        let process = roots.proc(pid.to_string());
        let theirs = mounts(&process).filter(|theirs| mounts(&roots.proc("self")).as_ref() != Some(theirs));
        let rights = Rights::parse(&roots::read(&process.join("status"))?)?;
        // Not every process lets this be read. Then the paths that it names are not read either.
        let notes = roots::read_bytes(&process.join("auxv")).unwrap_or_default();
        (!rights.are_borrowed(&notes))
            .then(|| Self { rights, place: theirs.map(|mounts| Place { mounts, process }) })
    }

    /// The view of a user without a known process, and so without groups: public files and the
    /// user's own. An unknown user owns nothing.
    pub(crate) fn of_user(uid: Option<u32>) -> Self {
        Self { rights: Rights { user: uid.unwrap_or(u32::MAX), ..Rights::default() }, place: None }
    }

    pub(crate) fn user(&self) -> u32 {
        self.rights.user
    }

    /// Locates a path in the process's view, or as this program sees it.
    pub(crate) fn find(&self, path: &Path) -> io::Result<Located> {
        let place = self.place.as_ref();
        let root = place.map_or_else(|| PathBuf::from("/"), |place| place.process.join("root"));
        let found = open_directory(&root)?;
        // Another process may have the pid by now.
        if place.is_some_and(|place| mounts(&place.process).as_ref() != Some(&place.mounts)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (reader, owner) = (self.rights.user, found.metadata.uid());
        let walk = Walk { rights: Some(&self.rights), reader, root: owner, links: 0 };
        walk.go(found, parts(path.strip_prefix(&root).unwrap_or(path)).collect())
    }
}

fn mounts(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/mnt")).ok()
}

fn open_directory(path: &Path) -> io::Result<Located> {
    Located::new(rustix::fs::open(path, LOOK | OFlags::DIRECTORY, Mode::empty())?.into(), true)
}

fn enter(rights: Option<&Rights>, directory: &Located) -> io::Result<()> {
    match rights.filter(|rights| !rights.may(ENTERS, &directory.found, &directory.metadata)) {
        Some(rights) => Err(Refusal::NotEnterable(rights.user).into()),
        None => Ok(()),
    }
}

fn read(rights: Option<&Rights>, found: Located) -> io::Result<Located> {
    match rights.filter(|rights| !rights.may(READS, &found.found, &found.metadata)) {
        Some(rights) => Err(Refusal::NotReadable(rights.user).into()),
        None => Ok(found),
    }
}

/// A remaining part of a path.
#[derive(Debug)]
enum Part {
    Root,
    Up,
    Name(OsString),
    /// The next part came from a link of this user, and may only lead to that user's files.
    Owned(u32),
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = Part> {
    path.components().filter_map(|component| match component {
        Component::RootDir => Some(Part::Root),
        Component::ParentDir => Some(Part::Up),
        Component::Normal(name) => Some(Part::Name(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    })
}

/// The walk to one file.
struct Walk<'a> {
    /// The rights that apply, within which nothing leads above the root. If `None`, they are this
    /// program's own, which the kernel checks.
    rights: Option<&'a Rights>,
    /// The reader; links of the reader and of the root's owner may lead anywhere.
    reader: u32,
    root: u32,
    links: usize,
}

impl Walk<'_> {
    /// Locates the file at the end of the way from here.
    fn go(mut self, base: Located, mut way: VecDeque<Part>) -> io::Result<Located> {
        let mut above = vec![base];
        while let Some(part) = way.pop_front() {
            let Some(dir) = above.last() else { return Err(Refusal::TooFar.into()) };
            let name = match part {
                Part::Root if self.rights.is_some() => {
                    above.truncate(1);
                    continue;
                }
                Part::Root => {
                    above = vec![open_directory(Path::new("/"))?];
                    continue;
                }
                Part::Up if above.len() > 1 => {
                    above.truncate(above.len() - 1);
                    continue;
                }
                Part::Up if self.rights.is_some() => continue,
                Part::Up => "..".into(),
                Part::Owned(owner) => {
                    owned(owner, &dir.metadata)?;
                    continue;
                }
                Part::Name(name) => name,
            };
            enter(self.rights, dir)?;
            let last = way.iter().all(|part| matches!(part, Part::Owned(_)));
            let found = Located::new(look(dir, &name, last)?, true)?;
            if found.metadata.is_symlink() {
                self.follow(&found, dir, &mut way)?;
            } else if found.metadata.is_dir() {
                if above.len() == MAX_DEPTH {
                    return Err(Refusal::TooFar.into());
                }
                if name == ".." {
                    above.clear();
                }
                above.push(found);
            } else if last {
                for part in way {
                    if let Part::Owned(owner) = part {
                        owned(owner, &found.metadata)?;
                    }
                }
                return read(self.rights, found);
            } else {
                return Err(io::ErrorKind::NotADirectory.into());
            }
        }
        read(self.rights, above.pop().ok_or(Refusal::TooFar)?)
    }

    /// Puts the target of a link before the remaining path. A link of the reader or of the owner of
    /// the root may lead anywhere. A link of another user may lead only to that user's files, and
    /// not even there from a directory that all users may write to (`fs.protected_symlinks`).
    fn follow(&mut self, link: &Located, dir: &Located, way: &mut VecDeque<Part>) -> io::Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Refusal::TooFar.into());
        }
        let owner = link.metadata.uid();
        if owner != self.reader && owner != self.root {
            if dir.metadata.mode() & SHARED == SHARED && owner != dir.metadata.uid() {
                return Err(Refusal::SharedLink(owner).into());
            }
            way.push_front(Part::Owned(owner));
        }
        let target = rustix::fs::readlinkat(&link.found, "", Vec::new())?.into_bytes();
        for part in parts(Path::new(&OsString::from_vec(target))).rev() {
            way.push_front(part);
        }
        Ok(())
    }
}

fn owned(link: u32, target: &Metadata) -> Result<(), Refusal> {
    let target = target.uid();
    if target == link { Ok(()) } else { Err(Refusal::ForeignLink { link, target }) }
}

/// Locates a name without following links. An automounter mounts it only if a directory is
/// requested.
fn look(dir: &Located, name: &OsString, last: bool) -> io::Result<File> {
    const HOW: OFlags = LOOK.union(OFlags::NOFOLLOW);
    if !last {
        match rustix::fs::openat(&dir.found, name, HOW | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {}
            found => return Ok(found?.into()),
        }
    }
    Ok(rustix::fs::openat(&dir.found, name, HOW, Mode::empty())?.into())
}

pub(crate) fn is_of_the_kernel(file: &File) -> io::Result<bool> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    Ok(OF_THE_KERNEL.contains(&(kind as u64)))
}

#[cfg(test)]
mod tests;
