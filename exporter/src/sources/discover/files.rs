//! Which files of trainers are followed: what they have open and what lies beside them, read with
//! their rights, each user by a share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use stepwatch_kit::shutdown::{Shutdown, Trigger};

use super::rank::Identity;
use super::trainer::Trainer;
use crate::pipes::{self, Readers};
use crate::processes::{self, OpenFile, Tree};
use crate::reach::{Reach, Refusal, View};
use crate::roots::Roots;
use crate::shares;
use crate::source::{NOT_OWNER, SourceHandle};
use crate::sources::sink::Surroundings;
use crate::sources::tail::{self, Candidate, TailConfig};

/// Files followed at once.
pub(super) const MAX_FILES: usize = 256;
/// Descriptors that are looked at in one pass on account of one user.
const MAX_DESCRIPTORS: usize = 131_072;
/// How long a file is followed after the process that it was found by has gone: its end is still to
/// be read.
pub(super) const LINGER: Duration = Duration::from_mins(10);
/// A file that was last written this long before the process started is of an earlier job.
pub(super) const SLACK: Duration = Duration::from_secs(5);
/// How much longer ago a file may have been written than another of the same user and keep its
/// place.
const STAYS: Duration = Duration::from_mins(1);
/// Searches of a user's directories that take this long in one pass are repeated after so many
/// times as long.
const SLOW: Duration = Duration::from_millis(50);
const PAUSE: u32 = 50;
/// Refusals that are told once.
const MAX_REFUSED: usize = 1024;

/// A file to follow, and what is known of it.
#[derive(Debug, Clone)]
struct Wanted {
    path: PathBuf,
    run: String,
    /// Only of what one process alone writes.
    rank: Option<u32>,
    world: Option<u32>,
    view: Arc<View>,
    /// Whose processes these are owns the file: such an account comes first.
    own: bool,
    claim: Share,
}

/// What a file has for a claim to be followed.
#[derive(Debug, Clone, Copy)]
struct Share {
    /// On whose account: of whose process it was found open, or who owns what lies beside one.
    user: u32,
    /// A process has it open, or was told to write it.
    open: bool,
    written: SystemTime,
}

/// The processes that run, and who reads what others print, where somebody does.
struct Running<'a> {
    roots: &'a Roots,
    tree: &'a Tree,
    readers: Option<Readers>,
}

/// A tail; it ends when this is dropped.
struct Followed {
    seen: Instant,
    user: u32,
    own: bool,
    claim: Share,
    stop: Trigger,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.stop.fire();
    }
}

/// The files that are followed.
pub(super) struct Files {
    around: Surroundings,
    health: SourceHandle,
    /// Tails start within it.
    runtime: tokio::runtime::Handle,
    followed: BTreeMap<PathBuf, Followed>,
    refused: BTreeSet<(PathBuf, u32)>,
    /// Users whose directories are searched again only then.
    paused: BTreeMap<u32, Instant>,
    /// Whose files there is no room for, as it was last logged.
    crowd: String,
}

impl Files {
    pub(super) fn new(around: Surroundings, health: SourceHandle) -> Self {
        Self {
            around,
            health,
            runtime: tokio::runtime::Handle::current(),
            followed: BTreeMap::new(),
            refused: BTreeSet::new(),
            paused: BTreeMap::new(),
            crowd: String::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.followed.len()
    }

    #[cfg(test)]
    pub(super) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.followed.keys()
    }

    /// Follows what these processes write, and lets go what nobody has written for long, or what
    /// gives way.
    pub(super) fn follow(&mut self, tree: &Tree, trainers: &[&Trainer], beside: bool, now: Instant) {
        let mut wanted = self.open(tree, trainers, now);
        if beside {
            for one in self.beside(trainers, now) {
                prefer_own(one, &mut wanted);
            }
        }
        wanted.retain(|path, one| match self.followed.get_mut(path) {
            Some(followed) if followed.own || !one.own => {
                followed.seen = now;
                false
            }
            _ => true,
        });
        self.followed.retain(|path, f| now.duration_since(f.seen) < LINGER && !wanted.contains_key(path));
        for one in self.make_room(wanted.into_values().collect()) {
            self.start(one, now);
        }
    }

    fn start(&mut self, wanted: Wanted, now: Instant) {
        let Wanted { path, run, rank, world, view, own, claim } = wanted;
        tracing::info!(path = %path.display(), run, rank, "following a file that was found");
        let (stop, shutdown) = Shutdown::manual();
        let user = view.user();
        let config = TailConfig { found: Some(run), rank, world, view: Some(view), ..TailConfig::of(&path) };
        let _within = self.runtime.enter();
        tail::start(config, &self.around, shutdown);
        self.followed.insert(path, Followed { seen: now, user, own, claim, stop });
    }

    /// Which of these there is room for beside what is followed, by the shares of users.
    fn make_room(&mut self, fresh: Vec<Wanted>) -> Vec<Wanted> {
        if self.followed.len() + fresh.len() > MAX_FILES {
            for (path, followed) in &mut self.followed {
                let written = std::fs::metadata(path).and_then(|meta| meta.modified());
                followed.claim.written = written.unwrap_or(followed.claim.written);
            }
        }
        let held = self.followed.iter().map(|(path, f)| (f.claim.worth(STAYS), Err(path.clone())));
        let fresh = fresh.into_iter().map(|one| (one.claim.worth(Duration::ZERO), Ok(one)));
        let (kept, left) = shares::fair(held.chain(fresh).collect(), MAX_FILES, |o| o.0.user, |o| o.0.worth);
        if !left.is_empty() {
            self.health.dropped("too_many_files", left.len() as u64);
        }
        let crowd = shares::by_user(left.iter().map(|(worth, _)| worth.user));
        if !left.is_empty() && crowd != self.crowd {
            tracing::warn!(whose = crowd, "more files were found than are followed at once");
        }
        self.crowd = crowd;
        for (_, one) in left {
            if let Err(path) = one {
                self.followed.remove(&path);
            }
        }
        kept.into_iter().filter_map(|(_, one)| one.ok()).collect()
    }

    /// What the processes have open for writing, or were told to write, and is not followed yet.
    fn open(&mut self, tree: &Tree, trainers: &[&Trainer], now: Instant) -> BTreeMap<PathBuf, Wanted> {
        let mut left: BTreeMap<u32, usize> = BTreeMap::new();
        let mut found: BTreeMap<(PathBuf, u32), Wanted> = BTreeMap::new();
        let roots = &self.around.roots;
        let piped = trainers.iter().any(|trainer| pipes::has_output(roots, trainer.pid));
        let running = Running { roots, tree, readers: piped.then(|| Readers::among(roots, tree.pids())) };
        for (trainer, view) in trainers.iter().filter_map(|t| Some((t, t.view.as_ref()?))) {
            let left = left.entry(view.user()).or_insert(MAX_DESCRIPTORS);
            let had_room = *left > 0;
            for file in files(&running, trainer, view, left) {
                let rank = file.rank;
                // What several ranks write is nobody's alone.
                found
                    .entry((file.path.clone(), file.claim.user))
                    .and_modify(|w| w.rank = w.rank.filter(|r| Some(*r) == rank))
                    .or_insert(file);
            }
            if had_room && *left == 0 {
                self.health.dropped("too_many_descriptors", 1);
                tracing::warn!(
                    uid = view.user(),
                    "processes of a user have more files open than are looked at"
                );
            }
        }
        found.retain(|(path, user), _| match self.followed.get_mut(path) {
            Some(followed) => {
                followed.seen = now;
                !followed.own && followed.user != *user
            }
            None => true,
        });
        // What it takes to look at them is shared as well.
        let (new, over) = shares::fair(found.into_values().collect(), 2 * MAX_FILES, |w| w.claim.user, |_| 0);
        if !over.is_empty() {
            self.health.dropped("too_many_files", over.len() as u64);
        }
        let mut readable = BTreeMap::new();
        for one in new.into_iter().filter_map(|one| self.admit(one)) {
            prefer_own(one, &mut readable);
        }
        readable
    }

    /// What may be read on this account, or may be written yet.
    fn admit(&mut self, one: Wanted) -> Option<Wanted> {
        match one.view.find(&one.path) {
            Ok(found) if !found.metadata.is_file() => None,
            Ok(found) => {
                let Candidate { path, written, owner } = Candidate::new(one.path.clone(), &found.metadata);
                let claim = Share { written, ..one.claim };
                Some(Wanted { path, own: owner == one.view.user(), claim, ..one })
            }
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Some(one),
            Err(err) => {
                self.refuse(&one.path, one.view.user(), Refusal::of(&err));
                None
            }
        }
    }

    /// Files in the working directories that were written since the process started. TensorBoard
    /// opens its file anew for every record, so it is not among those that are open.
    fn beside(&mut self, trainers: &[&Trainer], now: Instant) -> Vec<Wanted> {
        let mut places: Vec<(PathBuf, &Arc<View>, Vec<&Trainer>)> = Vec::new();
        for trainer in trainers {
            let cwd = processes::cwd(&self.around.roots, trainer.pid).filter(|d| d.parent().is_some());
            let (Some(cwd), Some(view)) = (cwd, &trainer.view) else { continue };
            match places.iter_mut().find(|(path, of, _)| *path == cwd && *of == view) {
                Some((_, _, there)) => there.push(trainer),
                None => places.push((cwd, view, vec![trainer])),
            }
        }
        let mut took: BTreeMap<u32, Duration> = BTreeMap::new();
        let mut wanted = Vec::new();
        self.paused.retain(|_, until| now < *until);
        for (cwd, view, there) in places {
            let user = view.user();
            if self.paused.contains_key(&user) {
                continue;
            }
            let began = Instant::now();
            let found = tail::search(&cwd, &Reach::Of(Arc::clone(view)));
            *took.entry(user).or_default() += began.elapsed();
            if found.cut {
                self.health.dropped("directory_too_large", 1);
            }
            if let Some(refusal) = found.refused {
                self.refuse(&cwd, user, Some(refusal));
            }
            let (kept, over) = shares::fair(found.files, MAX_FILES, |c| c.owner, |c| c.written);
            if !over.is_empty() {
                self.health.dropped("too_many_files", over.len() as u64);
            }
            wanted.extend(kept.into_iter().filter_map(|c| there.iter().find_map(|t| t.finds(&c, view))));
        }
        for (user, took) in took.into_iter().filter(|(_, took)| *took > SLOW) {
            self.paused.insert(user, now + (took * PAUSE).min(LINGER / 2));
        }
        wanted
    }

    /// Takes down what is not read, and says why; once, as long as it can be remembered.
    fn refuse(&mut self, path: &Path, uid: u32, why: Option<Refusal>) {
        let Some(why) = why else { return };
        if self.refused.len() >= MAX_REFUSED {
            self.refused.clear();
        }
        if self.refused.insert((path.to_owned(), uid)) {
            self.health.dropped(NOT_OWNER, 1);
            tracing::warn!(path = %path.display(), uid, %why, "a file that a process names is not read on its account");
        }
    }
}

/// Of several accounts of one file that of who owns it, whoever names it first.
fn prefer_own(one: Wanted, among: &mut BTreeMap<PathBuf, Wanted>) {
    if among.get(&one.path).is_none_or(|known| one.own && !known.own) {
        among.insert(one.path.clone(), one);
    }
}

/// What a trainer, its children and whoever reads its output write, and what it leaves when it
/// fails.
fn files(running: &Running<'_>, trainer: &Trainer, view: &Arc<View>, left: &mut usize) -> Vec<Wanted> {
    let Running { roots, tree, readers } = running;
    let id = &trainer.identity;
    let own = processes::written(roots, trainer.pid, left);
    let known = |files: &[OpenFile], rank: &dyn Fn(&OpenFile) -> Option<u32>| {
        let ours = files.iter().filter(|f| is_ours(f));
        ours.map(|f| trainer.wants(f.path.clone(), rank(f), view)).collect::<Vec<_>>()
    };
    let mut files = known(&own, &|f| own_rank(f, id));
    for child in tree.descendants(trainer.pid) {
        files.extend(known(&processes::written(roots, child, left), &|f| own_rank(f, id)));
    }
    if !own.iter().any(|f| f.standard) {
        // Its output goes through a pipe to a launcher, which may write it down.
        for launcher in tree.ancestors(trainer.pid) {
            files.extend(known(&processes::written(roots, launcher, left), &|_| None));
        }
    }
    // `| tee` gives the file a descriptor of its own.
    for reader in readers.as_ref().map(|r| r.of(roots, trainer.pid)).unwrap_or_default() {
        let copied = processes::written(roots, reader, left).into_iter();
        files.extend(copied.map(|f| trainer.wants(f.path, None, view)));
    }
    let error_file = id.error_file.iter().map(|path| processes::seen_from_here(roots, trainer.pid, path));
    files.extend(error_file.map(|path| trainer.wants(path, id.rank, view)));
    files
}

impl Trainer {
    fn wants(&self, path: PathBuf, rank: Option<u32>, view: &Arc<View>) -> Wanted {
        let claim = Share { user: view.user(), open: true, written: SystemTime::UNIX_EPOCH };
        let (run, world) = (self.run.clone(), self.identity.world);
        Wanted { path, run, rank, world, view: Arc::clone(view), own: false, claim }
    }

    /// A file beside it, if it was written in its time.
    fn finds(&self, found: &Candidate, view: &Arc<View>) -> Option<Wanted> {
        self.begun.filter(|begun| found.written + SLACK >= *begun)?;
        let claim = Share { user: found.owner, open: false, written: found.written };
        let own = found.owner == view.user();
        Some(Wanted { own, claim, ..self.wants(found.path.clone(), None, view) })
    }
}

/// What counts where there is not room for all.
struct Worth {
    user: u32,
    worth: (bool, SystemTime),
}

impl Share {
    fn worth(&self, more: Duration) -> Worth {
        Worth { user: self.user, worth: (self.open, self.written + more) }
    }
}

/// Standard output whatever its name is, and otherwise what has a name that we know.
fn is_ours(file: &OpenFile) -> bool {
    file.standard || stepwatch_formats::known_name(&file.path)
}

/// A log may be everybody's, a file of metrics is its writer's.
fn own_rank(file: &OpenFile, identity: &Identity) -> Option<u32> {
    identity.rank.filter(|_| !file.standard)
}
