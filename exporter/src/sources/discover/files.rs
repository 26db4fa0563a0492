//! Which files of trainers are followed: what they have open and what lies beside them, read with
//! their rights, each user by a share.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use stepwatch_kit::shutdown::{Shutdown, Trigger};

use super::beside::{Places, Whose};
use super::rank::Identity;
use super::trainer::Trainer;
use crate::clock::unix_now;
use crate::fair_share;
use crate::identity::{self, Claim};
use crate::pipes::{self, Readers};
use crate::principal::Principal;
use crate::processes::{self, OpenFile, Tree};
use crate::reach::{Reach, Refusal, View};
use crate::roots::Roots;
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
/// Refusals that are logged once.
const MAX_REFUSED: usize = 1024;
/// A file is of one of several runs, and no process has it open.
const UNKNOWN_WRITER: &str = "unknown_writer";

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
    /// A process has it open, or was started with it as a file to write.
    open: bool,
    written: SystemTime,
}

/// The running processes, and which process reads the output of another.
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
    /// Files of one of several runs, logged once.
    unknown: BTreeSet<PathBuf>,
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
            unknown: BTreeSet::new(),
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

    /// Follows what these processes write, and gives up files that were not written for long, or
    /// that give way to others.
    pub(super) fn follow(&mut self, tree: &Tree, trainers: &[Trainer], beside: bool, now: Instant) {
        let speaking: Vec<&Trainer> = trainers.iter().filter(|t| !t.identity.silent).collect();
        let mut wanted = self.open(tree, &speaking, now);
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
        let config =
            TailConfig { found: Some(run), rank, world, view: Some(view), ..TailConfig::for_path(&path) };
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
        let (kept, left) =
            fair_share::fair(held.chain(fresh).collect(), MAX_FILES, |o| o.0.user, |o| o.0.worth);
        if !left.is_empty() {
            self.health.dropped("too_many_files", left.len() as u64);
        }
        let crowd = fair_share::by_user(left.iter().map(|(worth, _)| worth.user));
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

    /// The files that the processes have open for writing, or were started to write, and that are
    /// not followed yet.
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
                // A file that several ranks write belongs to none of them alone.
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
        let (new, over) =
            fair_share::fair(found.into_values().collect(), 2 * MAX_FILES, |w| w.claim.user, |_| 0);
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
                self.refuse(&one.path, one.view.user(), Refusal::from_error(&err));
                None
            }
        }
    }

    /// Files in the working directories that were written since the process started. TensorBoard
    /// opens its file anew for every record, so it is not among those that are open.
    fn beside(&mut self, trainers: &[Trainer], now: Instant) -> Vec<Wanted> {
        let known = Places::from_trainers(&self.around.roots, trainers);
        let mut places: BTreeMap<(&PathBuf, u32), Vec<&Arc<View>>> = BTreeMap::new();
        for (at, trainer) in trainers.iter().enumerate().filter(|(_, t)| !t.identity.silent) {
            let (Some(cwd), Some(view)) = (known.cwd(at), &trainer.view) else { continue };
            let views = places.entry((cwd, view.user())).or_default();
            if !views.contains(&view) {
                views.push(view);
            }
        }
        let mut took: BTreeMap<u32, Duration> = BTreeMap::new();
        let mut found: BTreeMap<PathBuf, Candidate> = BTreeMap::new();
        self.paused.retain(|_, until| now < *until);
        let searches = places.into_iter().flat_map(|(at, views)| views.into_iter().map(move |v| (at, v)));
        for ((cwd, user), view) in searches {
            if self.paused.contains_key(&user) {
                continue;
            }
            let began = Instant::now();
            let kept = self.search(cwd, view);
            *took.entry(user).or_default() += began.elapsed();
            found.extend(kept.into_iter().map(|c| (c.path.clone(), c)));
        }
        for (user, took) in took.into_iter().filter(|(_, took)| *took > SLOW) {
            self.paused.insert(user, now + (took * PAUSE).min(LINGER / 2));
        }
        let (mut wanted, mut unknown) = (Vec::new(), Vec::new());
        for file in found.into_values() {
            match known.whose(&file) {
                Some(Whose::Of(at)) => wanted.extend(beside_of(trainers, at, &file)),
                Some(whose) => unknown.push((file, whose)),
                None => {}
            }
        }
        wanted.extend(self.of_writers(trainers, unknown, now));
        wanted
    }

    /// Files whose owner is known only from the processes that have them open.
    fn of_writers(
        &mut self,
        trainers: &[Trainer],
        mut unknown: Vec<(Candidate, Whose)>,
        now: Instant,
    ) -> Vec<Wanted> {
        unknown.retain(|(file, _)| match self.followed.get_mut(&file.path) {
            // Whose it was found to be before, it stays.
            Some(followed) => {
                followed.seen = now;
                false
            }
            None => true,
        });
        if unknown.is_empty() {
            return Vec::new();
        }
        let identity = |file: &Candidate| {
            let meta = std::fs::metadata(&file.path).ok()?;
            Some((meta.dev(), meta.ino()))
        };
        let wanted: BTreeSet<_> = unknown.iter().filter_map(|(file, _)| identity(file)).collect();
        let writers = tail::writers_of(&self.around.roots, &wanted);
        let mut found = Vec::new();
        for (file, whose) in unknown {
            let writer = identity(&file).and_then(|id| writers.iter().find(|(at, _)| *at == id));
            let named = writer.and_then(|(_, pid)| identity::script_named(&self.around.roots, *pid));
            let beside = match &whose {
                Whose::Of(at) | Whose::OfAnotherJob(at) => Some(*at),
                Whose::OfOneOf(of) => of.first().copied(),
            };
            match (named, whose) {
                (Some(named), _) => {
                    let one = beside.and_then(|at| beside_of(trainers, at, &file));
                    found.extend(one.map(|one| Wanted { run: named.run, world: None, ..one }));
                }
                (None, Whose::OfOneOf(of)) => {
                    let of: Vec<&Trainer> = of.into_iter().filter_map(|at| trainers.get(at)).collect();
                    self.leave(&file.path, &of);
                }
                (None, _) => {}
            }
        }
        found
    }

    /// What lies in a directory, by the shares of those who own it.
    fn search(&mut self, cwd: &Path, view: &Arc<View>) -> Vec<Candidate> {
        let found = tail::search(cwd, &Reach::Of(Arc::clone(view)));
        if found.cut {
            self.health.dropped("directory_too_large", 1);
        }
        if let Some(refusal) = found.refused {
            self.refuse(cwd, view.user(), Some(refusal));
        }
        let (kept, over) = fair_share::fair(found.files, MAX_FILES, |c| c.owner, |c| c.written);
        if !over.is_empty() {
            self.health.dropped("too_many_files", over.len() as u64);
        }
        kept
    }

    /// Logs once that a file is not followed, and to which runs it may belong.
    fn leave(&mut self, path: &Path, of: &[&Trainer]) {
        if self.unknown.len() >= MAX_REFUSED {
            self.unknown.clear();
        }
        if !self.unknown.insert(path.to_owned()) {
            return;
        }
        self.health.dropped(UNKNOWN_WRITER, 1);
        let runs: BTreeMap<&str, Principal> = of.iter().map(|t| (t.run.as_str(), t.principal)).collect();
        let names = runs.keys().copied().collect::<Vec<_>>().join(", ");
        tracing::warn!(
            path = %path.display(), runs = names,
            "a file is not followed: several runs may have written it, and none has it open"
        );
        for (run, principal) in runs {
            let claim = Claim {
                kind: "left".into(),
                source: path.display().to_string(),
                pid: None,
                job: None,
                run: run.to_owned(),
                by: None,
                why: "not followed: several runs may have written it, and none has it open".into(),
                unnamed: None,
                principal,
            };
            self.around.hub.claim(unix_now(), claim);
        }
    }

    /// Records a file that is not read, and logs why; once, as long as it can be remembered.
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

/// Of several users for whom one file could be read, its owner; otherwise the first that names it.
fn prefer_own(one: Wanted, among: &mut BTreeMap<PathBuf, Wanted>) {
    if among.get(&one.path).is_none_or(|known| one.own && !known.own) {
        among.insert(one.path.clone(), one);
    }
}

/// What a trainer, its children and the readers of its output write, and what it leaves when it
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
    for reader in readers.as_ref().map(|r| r.of_output(roots, trainer.pid)).unwrap_or_default() {
        let copied = processes::written(roots, reader, left).into_iter();
        files.extend(copied.map(|f| trainer.wants(f.path, None, view)));
    }
    let error_file = id.error_file.iter().map(|path| processes::seen_from_here(roots, trainer.pid, path));
    files.extend(error_file.map(|path| trainer.wants(path, id.rank, view)));
    files
}

/// A file beside a trainer, unless that trainer was configured not to report.
fn beside_of(trainers: &[Trainer], at: usize, file: &Candidate) -> Option<Wanted> {
    let trainer = trainers.get(at).filter(|t| !t.identity.silent)?;
    Some(trainer.finds(file, trainer.view.as_ref()?))
}

impl Trainer {
    fn wants(&self, path: PathBuf, rank: Option<u32>, view: &Arc<View>) -> Wanted {
        let claim = Share { user: view.user(), open: true, written: SystemTime::UNIX_EPOCH };
        let (run, world) = (self.run.clone(), self.identity.world);
        Wanted { path, run, rank, world, view: Arc::clone(view), own: false, claim }
    }

    /// A file beside it.
    fn finds(&self, found: &Candidate, view: &Arc<View>) -> Wanted {
        let claim = Share { user: found.owner, open: false, written: found.written };
        let own = found.owner == view.user();
        Wanted { own, claim, ..self.wants(found.path.clone(), None, view) }
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

/// Standard output whatever its name is, and otherwise files with a known name.
fn is_ours(file: &OpenFile) -> bool {
    file.standard || stepwatch_formats::known_name(&file.path)
}

/// A log may be everybody's, a file of metrics is its writer's.
fn own_rank(file: &OpenFile, identity: &Identity) -> Option<u32> {
    identity.rank.filter(|_| !file.standard)
}
