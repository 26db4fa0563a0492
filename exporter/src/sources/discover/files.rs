//! Chooses the files of trainers to follow: those that are open and those beside them. They are
//! read with the trainer's rights, and each user has a share of the limit.

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

/// The most files followed at once.
pub(super) const MAX_FILES: usize = 256;
/// The most descriptors inspected in one pass for one user.
const MAX_DESCRIPTORS: usize = 131_072;
/// How long a file is followed after its process has exited, because its end still has to be read.
pub(super) const LINGER: Duration = Duration::from_mins(10);
/// A file that was last written this long before the process started belongs to an earlier job.
pub(super) const SLACK: Duration = Duration::from_secs(5);
/// A followed file keeps its place although another of the same user was written up to this much
/// later.
const STAYS: Duration = Duration::from_mins(1);
/// A search of a user's directories that took longer than `SLOW` is repeated only after `PAUSE`
/// times its duration.
const SLOW: Duration = Duration::from_millis(50);
const PAUSE: u32 = 50;
/// The most refused files that are remembered, so that each is logged once.
const MAX_REFUSED: usize = 1024;
/// The reason for a file of one of several runs that no process has open.
const UNKNOWN_WRITER: &str = "unknown_writer";

/// A file to follow.
#[derive(Debug, Clone)]
struct Wanted {
    path: PathBuf,
    run: String,
    /// The rank, if only one process writes the file.
    rank: Option<u32>,
    world: Option<u32>,
    view: Arc<View>,
    /// Whether the user of these processes owns the file. Such a user is preferred.
    own: bool,
    claim: Share,
}

/// The claim of a file to a place among those followed.
#[derive(Debug, Clone, Copy)]
struct Share {
    /// The user whose share it uses: of the process that has it open, or else its owner.
    user: u32,
    /// Whether a process has it open, or was started with it as an output file.
    open: bool,
    written: SystemTime,
}

/// The running processes, and which of them read the output of others.
struct Running<'a> {
    roots: &'a Roots,
    tree: &'a Tree,
    readers: Option<Readers>,
}

/// A tail, which ends on drop.
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
    /// The runtime in which tails start.
    runtime: tokio::runtime::Handle,
    followed: BTreeMap<PathBuf, Followed>,
    refused: BTreeSet<(PathBuf, u32)>,
    /// Files of one of several runs that were logged.
    unknown: BTreeSet<PathBuf>,
    /// The users whose directories are not searched until the given moment.
    paused: BTreeMap<u32, Instant>,
    /// The users whose files found no room, as they were last logged.
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

    /// Follows the files that these processes write. Stops following files that are no longer
    /// found, or that others displace.
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

    /// The new files that find room beside those followed, by the shares of users. Displaced tails
    /// end.
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
                // A file that several ranks write has no rank of its own.
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
        // The work of inspecting them is shared fairly as well.
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

    /// Accepts a file that this user may read, or that does not exist yet.
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
    /// reopens its file for every record, so it is not among the open ones.
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
            // The file stays with the owner that was found first.
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

    /// The files in a directory, by the shares of their owners.
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

    /// Logs once that a file is not followed, with the runs that it may belong to.
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

    /// Counts a file that is not read, and logs the reason once.
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

/// Keeps the entry of the file's owner if several users could read it; otherwise the first one.
fn prefer_own(one: Wanted, among: &mut BTreeMap<PathBuf, Wanted>) {
    if among.get(&one.path).is_none_or(|known| one.own && !known.own) {
        among.insert(one.path.clone(), one);
    }
}

/// The files that a trainer, its children and the readers of its output write, and those that it
/// leaves when it fails.
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
        // Its output goes through a pipe to a launcher, which may write it to a file.
        for launcher in tree.ancestors(trainer.pid) {
            files.extend(known(&processes::written(roots, launcher, left), &|_| None));
        }
    }
    // With `| tee`, another process has the file open.
    for reader in readers.as_ref().map(|r| r.of_output(roots, trainer.pid)).unwrap_or_default() {
        let copied = processes::written(roots, reader, left).into_iter();
        files.extend(copied.map(|f| trainer.wants(f.path, None, view)));
    }
    let error_file = id.error_file.iter().map(|path| processes::seen_from_here(roots, trainer.pid, path));
    files.extend(error_file.map(|path| trainer.wants(path, id.rank, view)));
    files
}

/// A file beside a trainer, unless the trainer's client is configured not to report.
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

    /// A file beside this trainer, as one to follow.
    fn finds(&self, found: &Candidate, view: &Arc<View>) -> Wanted {
        let claim = Share { user: found.owner, open: false, written: found.written };
        let own = found.owner == view.user();
        Wanted { own, claim, ..self.wants(found.path.clone(), None, view) }
    }
}

/// The priority of a file if there is not room for all.
struct Worth {
    user: u32,
    worth: (bool, SystemTime),
}

impl Share {
    fn worth(&self, more: Duration) -> Worth {
        Worth { user: self.user, worth: (self.open, self.written + more) }
    }
}

/// Whether a file is followed: standard output with any name, and others with a known name.
fn is_ours(file: &OpenFile) -> bool {
    file.standard || stepwatch_formats::known_name(&file.path)
}

/// The rank of the writer, unless the file is a log, which several ranks may share.
fn own_rank(file: &OpenFile, identity: &Identity) -> Option<u32> {
    identity.rank.filter(|_| !file.standard)
}
