//! Finds files that match a pattern. Directories are read name by name within the limits of each
//! user, so that no user makes a search expensive for the others.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use glob::Pattern;

use super::find::{Candidate, Found, Shares, each_once, is_pattern};
use super::name;
use crate::principal::Principal;
use crate::reach::{Located, Reach, Refusal};

/// The number of found files above which a walk drops the oldest, and how many of a user it keeps
/// then: four times as many as are followed of all users.
const REMEMBERED: usize = 4_096;
const REMEMBERED_OF_USER: usize = 1_024;

/// A component of a pattern.
enum Part {
    /// `**`: directories at any depth, but not through links, which could form a cycle.
    Any,
    Name(String),
    Fits(Pattern),
}

/// A directory that matches the parts before `next`.
struct Place {
    path: PathBuf,
    next: usize,
    /// The user whose link led here, and whose share is used behind it.
    payer: Option<u32>,
}

struct Walk<'a> {
    reach: &'a Reach,
    parts: Vec<Part>,
    queue: VecDeque<Place>,
    shares: Shares,
    found: Vec<((u64, u64), Candidate)>,
    /// The number of files above which the oldest are dropped.
    most: usize,
    refused: Option<Refusal>,
}

/// The files that match a pattern now.
pub(super) fn find(pattern: &str, reach: &Reach) -> Found {
    let Some((path, parts)) = parse(pattern) else { return Found::default() };
    let queue = VecDeque::from([Place { path, next: 0, payer: None }]);
    let mut walk = Walk {
        reach,
        parts,
        queue,
        shares: Shares::default(),
        found: Vec::new(),
        most: REMEMBERED,
        refused: None,
    };
    while let Some(place) = walk.queue.pop_front() {
        walk.visit(&place);
    }
    walk.found.sort_unstable_by(|(_, a), (_, b)| a.path.cmp(&b.path));
    Found { files: each_once(walk.found), cut: walk.shares.cut, refused: walk.refused }
}

/// The directory before the first wildcard, and the parts after it; `None` for an invalid pattern.
fn parse(pattern: &str) -> Option<(PathBuf, Vec<Part>)> {
    Pattern::new(pattern).ok()?;
    let wild = pattern.split('/').take_while(|name| !is_pattern(name)).count();
    let (fixed, names): (Vec<&str>, Vec<&str>) =
        (pattern.split('/').take(wild).collect(), pattern.split('/').skip(wild).collect());
    let base = if fixed == [""] { "/".into() } else { fixed.join("/") };
    let mut parts = Vec::new();
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        parts.push(match name {
            "**" if matches!(parts.last(), Some(Part::Any)) => continue,
            "**" => Part::Any,
            name if is_pattern(name) => Part::Fits(Pattern::new(name).ok()?),
            name => Part::Name(name.to_owned()),
        });
    }
    Some((base.into(), parts))
}

/// Keeps the last written files, up to a limit for each user.
fn forget_oldest(found: &mut Vec<((u64, u64), Candidate)>) {
    found.sort_unstable_by_key(|(_, file)| std::cmp::Reverse(file.written));
    let mut of_user = BTreeMap::<u32, usize>::new();
    found.retain(|(_, file)| {
        let kept = of_user.entry(file.owner).or_default();
        *kept += 1;
        *kept <= REMEMBERED_OF_USER
    });
}

impl Part {
    fn fits(&self, name: &OsStr) -> bool {
        match self {
            Self::Any => false,
            Self::Name(own) => name == own.as_str(),
            Self::Fits(pattern) => name.to_str().is_some_and(|name| pattern.matches(name)),
        }
    }
}

impl Walk<'_> {
    fn visit(&mut self, place: &Place) {
        let directory = match self.reach.find(&place.path) {
            Ok(found) if found.metadata.is_dir() => found,
            Ok(_) => return,
            Err(err) => {
                let refusal = Refusal::from_error(&err);
                self.shares.cut |= refusal == Some(Refusal::TooFar);
                self.refused = self.refused.or(refusal);
                return;
            }
        };
        match self.parts.get(place.next) {
            Some(Part::Name(name)) => {
                let name = name.clone();
                if let Ok(meta) = fs::symlink_metadata(directory.again().join(&name)) {
                    self.take(place, place.next + 1, name.as_ref(), &meta);
                }
            }
            Some(_) => self.list(place, &directory),
            None => {}
        }
    }

    fn list(&mut self, place: &Place, directory: &Located) {
        let deep = matches!(self.parts.get(place.next), Some(Part::Any));
        let at = place.next + usize::from(deep);
        let user = place.payer.unwrap_or(directory.metadata.uid());
        let Ok(listing) = fs::read_dir(directory.again()) else { return };
        for entry in listing.flatten() {
            if !self.shares.has_name(user, &directory.metadata) {
                break;
            }
            let (Ok(kind), name) = (entry.file_type(), entry.file_name()) else { continue };
            let fits = self.parts.get(at).is_some_and(|part| part.fits(&name));
            let deeper = deep && kind.is_dir();
            if !fits && !deeper {
                continue;
            }
            let Ok(meta) = entry.metadata() else { continue };
            if deeper && self.shares.has_room(place.payer.unwrap_or(meta.uid())) {
                let path = place.path.join(&name);
                self.queue.push_back(Place { path, next: place.next, payer: place.payer });
            }
            if fits {
                self.take(place, at + 1, &name, &meta);
            }
        }
    }

    /// Handles an entry that matches the parts before `next`. `meta` is not that of a link's
    /// target.
    fn take(&mut self, place: &Place, next: usize, name: &OsStr, meta: &Metadata) {
        let path = place.path.join(name);
        let is_last = next == self.parts.len();
        if is_last && (meta.is_dir() || name::is_rotated(&path)) {
            return;
        }
        // Links of root and of the exporter's user count as configured by the operator.
        let foreign = meta.is_symlink() && !Principal::from_uid(Some(meta.uid())).is_trusted();
        let payer = place.payer.or(foreign.then_some(meta.uid()));
        if !self.shares.has_room(payer.unwrap_or(meta.uid())) {
            return;
        }
        if is_last {
            if self.found.len() >= self.most {
                forget_oldest(&mut self.found);
                // With many users it keeps many files, so the limit rises to avoid sorting for each
                // one.
                self.most = REMEMBERED.max(2 * self.found.len());
            }
            self.found.extend(self.file(&path, meta).map(|file| {
                let candidate = Candidate::new(path, &file);
                let owner = payer.unwrap_or(candidate.owner);
                ((file.dev(), file.ino()), Candidate { owner, ..candidate })
            }));
        } else if meta.is_dir() || meta.is_symlink() {
            self.queue.push_back(Place { path, next, payer });
        }
    }

    /// The file at the end of a path. A refused link is returned as well, so that the caller counts
    /// and logs it.
    fn file(&self, path: &Path, meta: &Metadata) -> Option<Metadata> {
        if !meta.is_symlink() {
            return meta.is_file().then(|| meta.clone());
        }
        match self.reach.find(path) {
            Ok(found) => found.metadata.is_file().then_some(found.metadata),
            Err(err) => Refusal::from_error(&err).map(|_| meta.clone()),
        }
    }
}
