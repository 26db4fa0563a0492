//! Follows the files that trainers write, and publishes the steps in them: logs and JSON lines as
//! they grow, records of TensorBoard and W&B, and small files that are rewritten.
//!
//! One thread for each configured entry polls its files. Nothing else works on every file system,
//! and a thread that hangs in a dead NFS mount must not delay the others. `stepwatch-formats`
//! parses the files. This module decides which files to read, where to begin, the run of each file,
//! the time of each event and how the run ended, and resumes after a crash.

mod again;
mod config;
mod content;
mod file;
mod find;
mod follow;
mod framing;
mod interleaved;
mod labels;
mod lines;
mod name;
mod open;
mod owner;
mod pattern;
mod pending;
mod rewritten_file;
mod state;
mod sweep;
#[cfg(test)]
mod tests;
mod watch;
mod words;
mod writers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::Event;

use super::poll::{self, Poll, Polling};
use super::sink::{Sink, Surroundings};
use crate::fair_share;
use crate::family::Family;
use crate::reach::{Reach, Refusal};
use crate::roots::Roots;
use crate::source::{NOT_OWNER, SourceHandle};
use file::TailedFile;
use owner::Asked;
use watch::LOOK_EVERY;
use writers::Processes;

pub use config::{From, TailConfig};
pub(super) use find::{Candidate, MAX_NAMES_SHARED, search};
pub(super) use owner::{is_of_job, names_a_job};
pub(super) use sweep::start as sweep;

/// The most files that one entry follows.
const MAX_FILES: usize = 256;
/// The interval of searches for files: directory listings are slow on parallel file systems.
const SCAN_EVERY: Duration = Duration::from_secs(5);
/// A search is repeated only after this many times its duration, if that is longer.
const SCAN_PAUSE: u32 = 50;
/// Seconds by which another file of the same user must have been written later to displace a
/// followed one.
const STAYS_SECONDS: f64 = 60.0;
/// The most runs of one entry whose `hello` is remembered. Above it, one may be missing or
/// repeated.
const MAX_GREETED: usize = 1024;

/// A tail has only the families of every source.
pub(super) static FAMILIES: &[&Family] = &[];

/// Every file of one configured entry.
pub(super) struct Tail {
    config: TailConfig,
    reach: Reach,
    sink: Box<dyn Sink>,
    state_dir: PathBuf,
    health: SourceHandle,
    files: BTreeMap<PathBuf, TailedFile>,
    next_scan: Option<Instant>,
    scan_pause: u32,
    /// Files over the limit that were already counted.
    refused: BTreeSet<PathBuf>,
    /// Whether the last search skipped directories.
    cut: bool,
    /// The reason why the last search could not read a directory.
    kept_out: Option<Refusal>,
    processes: Processes,
    roots: Roots,
    next_look: Option<Instant>,
    /// When the writers of logs that had ended are next looked up.
    next_return: Option<Instant>,
    /// Whether there were too many processes to inspect all of them.
    blind: bool,
    greeted: BTreeSet<String>,
    scratch: Vec<Event>,
}

/// A file that is followed or could be, if there is not room for all.
struct Wants {
    uid: u32,
    /// The Unix time when it was last written.
    worth: f64,
    /// The new file, or the path of a followed one.
    what: Result<Candidate, PathBuf>,
}

/// The state that the files of an entry share.
pub(super) struct Context<'a> {
    sink: &'a dyn Sink,
    health: &'a SourceHandle,
    processes: &'a Processes,
    config: &'a TailConfig,
    roots: &'a Roots,
    greeted: &'a mut BTreeSet<String>,
    /// A buffer for events that is reused.
    scratch: &'a mut Vec<Event>,
}

impl Context<'_> {
    /// Whether a run must be introduced: it never was by this entry, or has been forgotten since.
    fn greet(&mut self, run: &str) -> bool {
        if self.greeted.contains(run) {
            return !self.sink.follows(run);
        }
        if self.greeted.len() >= MAX_GREETED {
            self.greeted.clear();
        }
        self.greeted.insert(run.to_owned())
    }
}

impl Tail {
    pub(super) fn new(mut config: TailConfig, sink: Box<dyn Sink>, state_dir: &Path, procfs: &Path) -> Self {
        // The working directory may change between starts, so a saved position has the absolute
        // path.
        if let Some(path) =
            std::path::absolute(&config.path).ok().and_then(|p| p.into_os_string().into_string().ok())
        {
            config.path = path;
        }
        let health = sink.source(&config.path, "tail");
        Self {
            reach: config.reach(),
            config,
            sink,
            state_dir: state_dir.to_owned(),
            health,
            files: BTreeMap::new(),
            next_scan: None,
            scan_pause: SCAN_PAUSE,
            refused: BTreeSet::new(),
            cut: false,
            kept_out: None,
            processes: Processes::new(procfs),
            roots: Roots { procfs: procfs.to_owned(), ..Roots::default() },
            next_look: None,
            next_return: None,
            blind: false,
            greeted: BTreeSet::new(),
            scratch: Vec::new(),
        }
    }

    /// Reads new content of every file. Returns true if there is more to read at once.
    pub(super) fn poll(&mut self, now: Instant, unix: f64) -> bool {
        if self.next_scan.is_none_or(|at| now >= at) {
            let took = self.scan(now, unix);
            self.next_scan = Some(now + SCAN_EVERY.max(took * self.scan_pause));
        }
        self.find_owners(now, unix);
        let several = self.config.is_pattern() || self.files.len() != 1;
        let mut cx = Context {
            sink: &*self.sink,
            health: &self.health,
            processes: &self.processes,
            config: &self.config,
            roots: &self.roots,
            greeted: &mut self.greeted,
            scratch: &mut self.scratch,
        };
        let mut more = false;
        let mut up = !self.files.is_empty();
        for file in self.files.values_mut() {
            match file.poll(now, unix, &mut cx) {
                Ok(unfinished) => {
                    more |= unfinished;
                    up &= file.is_there() || several;
                }
                Err(err) => {
                    up = false;
                    file.complain(&err, now, &self.health);
                }
            }
        }
        self.health.up(up);
        if !more && self.next_look.is_none_or(|at| now >= at) {
            self.next_look = Some(now + LOOK_EVERY);
            self.look_for_writers(now, unix);
        }
        self.files.retain(|_, file| {
            let over = several && file.is_over();
            if over {
                file.forget(&*self.sink);
            }
            !over
        });
        more
    }

    /// Searches for new files. Returns how long that took.
    fn scan(&mut self, now: Instant, unix: f64) -> Duration {
        let began = Instant::now();
        let found = find::find(&self.config.path, &self.reach);
        let took = began.elapsed();
        if found.cut && !self.cut {
            self.health.dropped("search_limit", 1);
            tracing::warn!(
                path = self.config.path,
                "a directory is too deep or too large to be searched as a whole"
            );
        }
        self.cut = found.cut;
        if let Some(why) = found.refused.filter(|why| self.kept_out != Some(*why)) {
            self.health.dropped(NOT_OWNER, 1);
            tracing::warn!(path = self.config.path, %why, "a directory is not searched");
        }
        self.kept_out = found.refused;
        let directory = Path::new(&self.config.path);
        if found.files.iter().all(|f| f.path != directory) {
            // A directory has replaced a missing file.
            self.files.remove(directory);
        }
        let fresh: Vec<_> = found.files.into_iter().filter(|f| !self.files.contains_key(&f.path)).collect();
        if fresh.is_empty() {
            return took;
        }
        // A file may be found by a link first and by its own path later.
        let mut followed: BTreeSet<PathBuf> = self.files.keys().map(|p| find::real(p)).collect();
        for candidate in self.make_room(fresh, unix) {
            if !followed.insert(find::real(&candidate.path)) {
                continue;
            }
            let mut file =
                TailedFile::new(&self.config, &candidate, &self.reach, &self.state_dir, &*self.sink, unix);
            file.resume(&*self.sink, now);
            self.files.insert(candidate.path, file);
        }
        took
    }

    /// The new files that find room, by the shares of their owners. Displaced files are closed;
    /// their positions are kept in case they grow again.
    fn make_room(&mut self, fresh: Vec<Candidate>, unix: f64) -> Vec<Candidate> {
        if self.files.len() + fresh.len() <= MAX_FILES {
            return fresh;
        }
        // Files whose job must be over yield to newly written ones of any owner.
        let written = |candidate: &Candidate| open::since_epoch(candidate.written).unwrap_or(0.0);
        let alive = fresh.iter().filter(|candidate| !file::is_idle_since(written(candidate), unix)).count();
        let mut over = (self.files.len() + alive).saturating_sub(MAX_FILES);
        self.files.retain(|_, file| {
            let gives_way = over > 0 && file.is_idle(unix);
            over -= usize::from(gives_way);
            if gives_way {
                file.give_way(&*self.sink);
            }
            !gives_way
        });
        let held = self.files.iter().map(|(path, file)| Wants {
            uid: file.uid,
            worth: file.modified().unwrap_or(0.0) + STAYS_SECONDS,
            what: Err(path.clone()),
        });
        let fresh = fresh.into_iter().map(|candidate| Wants {
            uid: candidate.owner,
            worth: written(&candidate),
            what: Ok(candidate),
        });
        let wanted: Vec<Wants> = held.chain(fresh).collect();
        let (kept, left) = fair_share::fair(wanted, MAX_FILES, |w| w.uid, |w| w.worth.to_bits());
        let mut refused = Vec::new();
        for one in left {
            let path = match one.what {
                Ok(candidate) => candidate.path,
                Err(path) => {
                    if let Some(mut file) = self.files.remove(&path) {
                        file.give_way(&*self.sink);
                    }
                    path
                }
            };
            if self.refused.len() < MAX_FILES && self.refused.insert(path) {
                refused.push(one.uid);
            }
        }
        if !refused.is_empty() {
            self.health.dropped("too_many_files", refused.len() as u64);
            let whose = fair_share::by_user(refused.into_iter());
            tracing::warn!(path = self.config.path, whose, "more files than are followed at once");
        }
        kept.into_iter().filter_map(|one| one.what.ok()).collect()
    }

    /// Finds the runs of files: of new ones before they are read, and of those that continue after
    /// their writers have exited before that text is published.
    fn find_owners(&mut self, now: Instant, unix: f64) {
        let mut open = BTreeMap::new();
        // Any user can write to an ended log repeatedly, so this has a limited rate.
        let again = self.next_return.is_none_or(|at| now >= at);
        for (path, file) in &mut self.files {
            let returned = file.has_returned();
            if returned && again || file.is_there() && file.owner.run.is_none() && !returned {
                open.insert(path.clone(), file.identities());
            }
            if returned && again {
                self.next_return = Some(now + owner::LOOK_EVERY);
            }
        }
        if open.is_empty() {
            return;
        }
        let wanted: BTreeSet<_> = open.values().flatten().copied().collect();
        let writers = if wanted.is_empty() { None } else { self.processes.writers(&wanted) };
        let writers = writers.unwrap_or_default();
        for (path, identities) in open {
            let Some(file) = self.files.get_mut(&path) else { continue };
            let theirs = writers.iter().filter(|w| identities.contains(&w.file)).map(|w| w.process);
            let principal = file.principal();
            let (roots, processes) = (&self.roots, &self.processes);
            let asked = Asked { roots, processes, sink: &*self.sink, now, unix, principal };
            file.settle(&self.config, theirs.collect(), asked);
        }
    }

    /// Publishes `bye` for runs that had a writer on this host and have none any more.
    fn look_for_writers(&mut self, now: Instant, unix: f64) {
        let mut cx = Context {
            sink: &*self.sink,
            health: &self.health,
            processes: &self.processes,
            config: &self.config,
            roots: &self.roots,
            greeted: &mut self.greeted,
            scratch: &mut self.scratch,
        };
        let mut wanted: BTreeMap<(u64, u64), &Path> = BTreeMap::new();
        let mut asked = BTreeSet::new();
        for (path, file) in &mut self.files {
            for identity in file.unwatched(now, unix, &cx) {
                wanted.insert(identity, path);
                asked.insert(path.clone());
            }
        }
        if !wanted.is_empty() {
            let identities = wanted.keys().copied().collect();
            let Some(writers) = self.processes.writers(&identities) else {
                if !std::mem::replace(&mut self.blind, true) {
                    self.health.dropped("processes_limit", 1);
                }
                return;
            };
            self.blind = false;
            let of: BTreeMap<_, PathBuf> =
                wanted.into_iter().map(|(id, path)| (id, path.to_owned())).collect();
            for path in asked {
                let Some(file) = self.files.get_mut(&path) else { continue };
                let theirs: Vec<_> =
                    writers.iter().filter(|w| of.get(&w.file) == Some(&path)).copied().collect();
                let principal = file.principal();
                let (roots, processes) = (&self.roots, &self.processes);
                let asked = Asked { roots, processes, sink: &*self.sink, now, unix, principal };
                file.settle(&self.config, theirs.iter().map(|w| w.process).collect(), asked);
                file.found(now, theirs.into_iter());
            }
        }
        let written = self.files.values().filter(|f| f.watch.is_written());
        let busy: BTreeSet<_> = written.filter_map(|f| f.run_and_rank().cloned()).collect();
        for file in self.files.values_mut().filter(|f| f.watch.is_orphaned()) {
            if file.run_and_rank().is_none_or(|of| !busy.contains(of)) {
                file.end(now, unix, &mut cx);
            }
        }
    }
}

/// Processes that have one of these files open for writing, with the file's device and inode; empty
/// if there are too many to inspect.
pub(super) fn writers_of(roots: &Roots, files: &BTreeSet<(u64, u64)>) -> Vec<((u64, u64), u32)> {
    let writers = if files.is_empty() { None } else { Processes::new(&roots.procfs).writers(files) };
    writers.unwrap_or_default().into_iter().map(|w| (w.file, w.process.pid)).collect()
}

/// Starts the thread of one entry.
pub(super) fn start(config: TailConfig, around: &Surroundings, shutdown: Shutdown) {
    let sink = Box::new(around.hub.clone());
    run(Tail::new(config, sink, &around.state_dir, &around.roots.procfs), shutdown);
}

fn run(tail: Tail, shutdown: Shutdown) {
    let (path, interval) = (tail.config.path.clone(), tail.config.poll_interval.as_duration());
    let health = tail.health.clone();
    poll::start(Polling { kind: "tail", name: path, health, interval }, tail, shutdown);
}

impl Poll for Tail {
    fn poll(&mut self, now: Instant, unix: f64) -> bool {
        Self::poll(self, now, unix)
    }
}
