//! Watches checkpoints on disk: their age, size and growth, and whether they are complete. It reads
//! any framework that writes one entry a checkpoint into a directory. It opens only tracker files
//! and the `config.json` of a model, which MFU needs, and writes nothing there.
//!
//! A checkpoint is complete if the tracker beside it names it or a later one, and with Ray's, which
//! has all names, only if it names it. Where the framework may write that too early, its size must
//! not have changed for [`CheckpointsConfig::settle`] either. Without a tracker it is complete when
//! the file that its framework writes last exists, or its mark as unfinished is gone. In layouts
//! with none of these, it is complete when its size and name have not changed for that long. Only
//! entries that are named alike need the same sign, and a further entry of a step that has a
//! complete one is no news: it is a copy.
//!
//! Nobody sees on disk whether the steps wait for a checkpoint. So the events say that it was seen
//! ([`ckpt::SEEN`]), and whoever knows the trainer's own reports decides what that means.
//!
//! A whole checkpoint that is removed is reported too ([`ckpt::GONE`]), because nobody can go back
//! to it. Where nothing is left, or another directory is at the path, the file system may have been
//! unmounted, which says nothing of the checkpoints.

mod gone;
mod layout;
mod look;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Period;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event, Kind, Value};

use self::layout::Tracked;
use self::look::Look;
use super::poll::{self, Poll, Polling};
use super::sink::{Sink, Surroundings};
use super::tail::MAX_NAMES_SHARED;
use crate::fair_share;
use crate::family::Family;
use crate::hub::Hub;
use crate::origin::Priority;
use crate::origin::{Origin, Via};
use crate::reach::{Reach, Refusal};
use crate::samples::Samples;
use crate::source::{NOT_OWNER, SourceHandle};

/// The most checkpoints of one directory that are watched, the latest ones.
const MAX_CHECKPOINTS: usize = 256;
/// The most marks of unfinished checkpoints in a directory.
const MAX_UNFINISHED: usize = 10_000;
/// The most bytes of a tracker, which is a number or a name.
const MAX_TRACKER_BYTES: u64 = 4096;
/// The same of Ray's, which has the metrics of each checkpoint that is kept.
const MAX_RAY_TRACKER_BYTES: u64 = 1024 * 1024;
/// The longest that writing one takes. Its times are those that its files claim.
const MAX_SECONDS: f64 = 7.0 * 86400.0;
/// A checkpoint that is not complete and has not grown for this long is reported as failed.
const GIVEN_UP_AFTER: Duration = Duration::from_mins(30);

static CHECKPOINTS: Family =
    Family::gauge("train_checkpoints", "", &["run", "state"], "Checkpoints on disk, whole or incomplete");
static TOTAL_BYTES: Family = Family::gauge(
    "train_checkpoints_bytes",
    "bytes",
    &["run"],
    "Size of all checkpoints of the run that are on disk",
);
static WRITTEN: Family = Family::gauge(
    "train_checkpoint_written_bytes",
    "bytes",
    &["run"],
    "What is on disk of the checkpoint being written; absent when none is",
);

pub(super) static FAMILIES: &[&Family] = &[&CHECKPOINTS, &TOTAL_BYTES, &WRITTEN];

/// `checkpoints: {path: /ckpt/llama-70b, run: llama-70b}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointsConfig {
    /// The directory that holds one entry a checkpoint.
    pub path: PathBuf,
    /// The run it belongs to; otherwise the name of the directory, or of its parent if that name is
    /// generic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(default = "interval")]
    pub interval: Period,
    /// How long a checkpoint must not change to count as complete, if its framework gives no other
    /// sign.
    #[serde(default = "settle")]
    pub settle: Period,
}

fn interval() -> Period {
    Period::secs(10)
}

fn settle() -> Period {
    Period::secs(60)
}

impl CheckpointsConfig {
    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.path.as_os_str().is_empty() {
            wrong.push("path: must not be empty".into());
        }
        if self.interval < Period::millis(100) {
            wrong.push("interval: must be at least 100ms".into());
        }
        if self.settle < self.interval {
            wrong.push("settle: must be at least one interval".into());
        }
        wrong
    }

    fn run(&self) -> String {
        let named = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
        let own = named(&self.path).unwrap_or_default();
        let generic = ["checkpoints", "checkpoint", "ckpts", "ckpt", "save", "weights", "output", "outputs"];
        let above = || self.path.parent().and_then(named);
        let found =
            if generic.contains(&own.to_ascii_lowercase().as_str()) { above().unwrap_or(own) } else { own };
        self.run.clone().unwrap_or(found)
    }
}

struct Watched {
    config: CheckpointsConfig,
    reach: Reach,
    /// Entries that are not read because of a link of another user.
    refused: BTreeSet<PathBuf>,
    run: String,
    sink: Box<dyn Sink>,
    health: SourceHandle,
    /// The key is the step (or what else the name counts) and the name.
    known: BTreeMap<(i64, String), Checkpoint>,
    /// Whether the directory was read once, so that later entries are new.
    seen: bool,
    /// The sorts of which a complete checkpoint had its framework's last file, so that every other
    /// one of the sort needs it too.
    marked: BTreeSet<String>,
    /// The device and inode of the directory when it was read last.
    place: Option<(u64, u64)>,
    complained: bool,
}

/// An entry of the directory.
#[derive(Debug, Clone)]
struct Checkpoint {
    path: PathBuf,
    state: State,
    look: Look,
    /// Whether its name or a mark beside it says that it is unfinished.
    temporary: bool,
    /// Its size when it was complete, for a file that is overwritten.
    size: Option<u64>,
    /// The Unix time when it was first seen, and the moment when it last changed.
    since: f64,
    changed: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Writing,
    Whole,
    /// An unfinished checkpoint that is no longer written.
    GivenUp,
}

/// An entry of the directory whose name is that of a checkpoint.
#[derive(Debug)]
struct Listed {
    key: (i64, String),
    owner: u32,
    path: PathBuf,
    name: layout::Name,
}

/// The checkpoints that are watched. Above the limit users alternate, so that in a shared directory
/// no user's names displace another's.
fn latest(found: Vec<Listed>) -> Vec<Listed> {
    fair_share::fair(found, MAX_CHECKPOINTS, |listed| listed.owner, |listed| listed.key.clone()).0
}

impl Watched {
    fn new(config: CheckpointsConfig, sink: Box<dyn Sink>) -> Self {
        let health = sink.source(&config.path.to_string_lossy(), "checkpoints");
        let run = config.run();
        Self {
            reach: Reach::Below(config.path.clone()),
            refused: BTreeSet::new(),
            config,
            run,
            sink,
            health,
            known: BTreeMap::new(),
            seen: false,
            marked: BTreeSet::new(),
            place: None,
            complained: false,
        }
    }

    fn look(&mut self, now: Instant, unix: f64) -> std::io::Result<()> {
        let directory = std::fs::metadata(&self.config.path)?;
        let found = self.list()?;
        let tracked = self.tracked();
        for listed in &found {
            self.entry(listed, tracked.as_ref(), now, unix);
        }
        let is_listed = |key: &(i64, String)| found.iter().any(|listed| listed.key == *key);
        let place = Some((directory.dev(), directory.ino()));
        let is_same = core::mem::replace(&mut self.place, place) == place;
        if is_same && self.known.keys().any(is_listed) {
            self.tell_gone(is_listed, unix);
        }
        self.known.retain(|key, _| is_listed(key));
        if self.seen {
            self.pass_over(now);
        } else {
            self.seen = true;
            self.begin();
        }
        Ok(())
    }

    /// Gives up the checkpoints that are not complete while one that began later is, and that have
    /// stopped changing.
    fn pass_over(&mut self, now: Instant) {
        let settle = self.config.settle.as_duration();
        let mut left = Vec::new();
        for (key, c) in &self.known {
            let rests = c.state == State::Writing && now.duration_since(c.changed) >= settle;
            if !rests || !is_of_step(&key.1) {
                continue;
            }
            let mut later = self.known.range((Bound::Excluded(key.clone()), Bound::Unbounded));
            let whole = later.find(|(k, l)| {
                k.0 > key.0 && is_of_step(&k.1) && l.state == State::Whole && l.since >= c.since
            });
            left.extend(whole.map(|(whole, _)| (key.clone(), whole.1.clone())));
        }
        for (key, whole) in left {
            let why = format!("{} is not whole, and {whole}, which is later, is", key.1);
            self.give_up(&key, why);
        }
    }

    /// The checkpoints in the directory, the latest ones.
    fn list(&self) -> std::io::Result<Vec<Listed>> {
        let (mut found, mut unfinished) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(&self.config.path)?.take(MAX_NAMES_SHARED).flatten() {
            let text = entry.file_name().to_string_lossy().into_owned();
            if let Some(bare) = layout::unfinished(&text) {
                if unfinished.len() < MAX_UNFINISHED {
                    unfinished.push(bare.to_owned());
                }
            } else if let Some(name) = layout::name(&text) {
                let owner = entry.metadata().map_or(0, |meta| meta.uid());
                found.push(Listed { key: (name.number, text), owner, path: entry.path(), name });
            }
            if found.len() >= 4 * MAX_CHECKPOINTS {
                found = latest(found);
            }
        }
        for listed in &mut found {
            listed.name.temporary |= unfinished.iter().any(|bare| layout::is_named_by(bare, &listed.key.1));
        }
        found = latest(found);
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    /// What the framework records of its checkpoints, if it does.
    fn tracked(&self) -> Option<Tracked> {
        let read = |name: &str, most: u64| {
            let found = self.reach.find(&self.config.path.join(name)).ok()?;
            let file = found.open().ok().filter(|_| found.metadata.len() <= most)?;
            let mut bytes = Vec::new();
            file.take(most).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        };
        let names = || layout::named_by_ray(&read(layout::RAY_TRACKER, MAX_RAY_TRACKER_BYTES)?);
        let step = |(name, proves): &(&str, bool)| {
            let text = String::from_utf8(read(name, MAX_TRACKER_BYTES)?).ok()?;
            Some((layout::tracked(&text)?, *proves))
        };
        let last = layout::TRACKERS.iter().filter_map(step).max();
        last.map(|(step, proves)| Tracked::Step(step, proves)).or_else(|| names().map(Tracked::Names))
    }

    fn entry(&mut self, listed: &Listed, tracked: Option<&Tracked>, now: Instant, unix: f64) {
        let Listed { key, path, name: layout::Name { unit, temporary, .. }, .. } = listed;
        let rewritten = *unit == layout::Unit::Rewritten;
        // The size of a complete checkpoint is known already.
        let before = self.known.get(key).filter(|c| c.state == State::Whole).map(|c| c.look);
        if before.is_some() && !rewritten {
            return;
        }
        let look = match self.reach.find(path) {
            Ok(found) => Look::at(&found, &key.1),
            Err(err) => return self.refuse(path, &err),
        };
        if look.cut {
            self.health.dropped("files_not_counted", 1);
        }
        if before == Some(look) {
            return;
        }
        let unknown = !self.known.contains_key(key);
        let news = unknown || before.is_some();
        // Frameworks with temporary names rename a complete checkpoint; others remove their mark.
        let was_temporary = |((number, name), c): (&(i64, String), &Checkpoint)| {
            *number == key.0 && c.temporary && (unknown || *name == key.1)
        };
        let finished = !temporary && self.known.iter().any(was_temporary);
        let since = if self.seen { unix } else { look.modified };
        let checkpoint = self.known.entry(key.clone()).or_insert_with(|| Checkpoint {
            path: path.clone(),
            state: State::Writing,
            look,
            temporary: *temporary,
            size: None,
            since,
            changed: now,
        });
        checkpoint.temporary = *temporary;
        if before.is_some() {
            (checkpoint.since, checkpoint.changed) = (since, now);
        }
        if checkpoint.look != look {
            // A file that is overwritten may change all the time, but it has the same size when
            // complete.
            if !rewritten || checkpoint.look.bytes != look.bytes {
                checkpoint.changed = now;
            }
            (checkpoint.look, checkpoint.state) = (look, State::Writing);
        }
        let still = now.duration_since(checkpoint.changed);
        let settled = still >= self.config.settle.as_duration()
            || !self.seen && unix - look.modified >= self.config.settle.as_duration().as_secs_f64();
        let sort = layout::sort(&key.1);
        let whole = !temporary
            && look.files > 0
            && match tracked {
                _ if rewritten => settled || checkpoint.size == Some(look.bytes),
                Some(Tracked::Names(names)) => names.contains(&key.1),
                Some(Tracked::Step(last, proves)) if *unit == layout::Unit::Step => {
                    key.0 <= *last && (*proves || settled)
                }
                _ => look.marked || finished || settled && !self.marked.contains(&sort),
            };
        if whole && look.marked && tracked.is_none() && self.marked.len() < MAX_CHECKPOINTS {
            self.marked.insert(sort);
        }
        if whole {
            self.whole(key);
        } else if news && self.seen && !self.is_second(key) {
            self.publish(CkptPhase::Start, key, unix, None);
        } else if still >= GIVEN_UP_AFTER {
            let why = format!("{} stopped growing at {} bytes and is not whole", key.1, look.bytes);
            self.give_up(key, why);
        }
    }

    /// Whether another entry of the step is complete: whatever becomes of this one, which may be a
    /// copy in another format, the checkpoint is there.
    fn is_second(&self, key: &(i64, String)) -> bool {
        let mut of_step = self.known.range((key.0, String::new())..).take_while(|(k, _)| k.0 == key.0);
        let is_whole = |name: &str, c: &Checkpoint| c.state == State::Whole && is_of_step(name);
        is_of_step(&key.1) && of_step.any(|(k, c)| k.1 != key.1 && is_whole(&k.1, c))
    }

    /// Records and logs once an entry that leads through a link of another user.
    fn refuse(&mut self, path: &Path, err: &std::io::Error) {
        let Some(why) = Refusal::from_error(err).filter(|_| self.refused.len() < MAX_CHECKPOINTS) else {
            return;
        };
        if self.refused.insert(path.to_owned()) {
            self.health.dropped(NOT_OWNER, 1);
            tracing::warn!(path = %path.display(), %why, "a checkpoint is not looked at");
        }
    }

    fn whole(&mut self, key: &(i64, String)) {
        let Some(checkpoint) = self.known.get_mut(key) else { return };
        (checkpoint.state, checkpoint.size) = (State::Whole, Some(checkpoint.look.bytes));
        let ts = checkpoint.look.modified;
        if self.seen && !self.is_second(key) {
            self.publish(CkptPhase::End, key, ts, None);
        }
    }

    /// Reports a failure as of when the entry was last written: an attempt that began later did not
    /// leave it behind.
    fn give_up(&mut self, key: &(i64, String), why: String) {
        let Some(checkpoint) = self.known.get_mut(key).filter(|c| c.state == State::Writing) else { return };
        checkpoint.state = State::GivenUp;
        let ts = checkpoint.look.modified;
        if !self.is_second(key) {
            self.publish(CkptPhase::Fail, key, ts, Some(why));
        }
    }

    /// Publishes what existed before the exporter started: only the last complete checkpoint,
    /// because its age counts, and one that is being written.
    fn begin(&mut self) {
        // What was left behind before the last complete one is no news.
        let last = self.known.iter().rev().find(|(_, c)| c.state == State::Whole).map(|(key, _)| key.clone());
        for (key, c) in &mut self.known {
            if c.state == State::Writing && last.as_ref().is_some_and(|last| key < last) {
                c.state = State::GivenUp;
            }
        }
        let whole = self.known.iter().rev().find(|(_, c)| c.state == State::Whole);
        let writing = self.known.iter().rev().take_while(|(_, c)| c.state != State::Whole).last();
        if let Some((key, c)) = whole {
            self.publish(CkptPhase::End, key, c.look.modified, None);
        }
        let is_new = |key: &(i64, String), c: &Checkpoint| c.state == State::Writing && !self.is_second(key);
        if let Some((key, c)) = writing.filter(|(key, c)| is_new(key, c)) {
            self.publish(CkptPhase::Start, key, c.since, None);
        }
    }

    /// An event about a checkpoint that is seen on disk.
    fn event(&self, key: &(i64, String), c: &Checkpoint, ts: f64) -> Event {
        let mut event = Event {
            run: Some(self.run.clone()),
            step: layout::name(&key.1).and_then(layout::Name::step),
            ts: Some(ts),
            ..Event::new(Kind::Ckpt)
        };
        event.extra.insert("path".into(), Value::Text(c.path.to_string_lossy().into_owned()));
        event.extra.insert(ckpt::STAGE.into(), Value::Text(ckpt::DURABLE.into()));
        event.extra.insert(ckpt::SEEN.into(), Value::Bool(true));
        event
    }

    fn origin(&self) -> Origin {
        let name: Arc<str> = Arc::from(self.config.path.to_string_lossy());
        Origin::source(Via::Checkpoints, &name, Priority::Log)
    }

    fn publish(&self, phase: CkptPhase, key: &(i64, String), ts: f64, text: Option<String>) {
        let Some(c) = self.known.get(key) else { return };
        let mut event = Event { ckpt: Some(phase), text, ..self.event(key, c, ts) };
        if let Ok(room) = rustix::fs::statvfs(&self.config.path) {
            let free = room.f_bavail.saturating_mul(room.f_frsize);
            event.extra.insert(ckpt::FREE_BYTES.into(), Value::Number(free as f64));
        }
        if phase == CkptPhase::End {
            event.extra.insert("bytes".into(), Value::Number(c.look.bytes as f64));
            let seconds = c.look.modified - c.since;
            if seconds > 0.0 && seconds < MAX_SECONDS {
                event.extra.insert("seconds".into(), Value::Number(seconds));
            }
        }
        let origin = self.origin();
        let model = (phase == CkptPhase::End).then(|| model::hello(&c.path, &self.reach)).flatten();
        if let Some(hello) = model {
            self.sink.publish(origin.clone(), Event { run: event.run.clone(), ts: event.ts, ..hello });
        }
        self.sink.publish(origin, event);
    }

    fn report(&self) {
        let mut out = Samples::default();
        let count =
            |whole: bool| self.known.values().filter(|c| (c.state == State::Whole) == whole).count() as u64;
        out.set(&CHECKPOINTS, &[&self.run, "whole"], count(true));
        out.set(&CHECKPOINTS, &[&self.run, "incomplete"], count(false));
        out.set(&TOTAL_BYTES, &[&self.run], self.known.values().map(|c| c.look.bytes).sum::<u64>());
        let writing: Vec<u64> =
            self.known.values().filter(|c| c.state == State::Writing).map(|c| c.look.bytes).collect();
        out.maybe(&WRITTEN, &[&self.run], (!writing.is_empty()).then(|| writing.iter().sum::<u64>()));
        self.health.samples(out);
    }
}

impl Poll for Watched {
    fn poll(&mut self, now: Instant, unix: f64) -> bool {
        let looked = self.look(now, unix);
        self.health.up(looked.is_ok());
        let complained = looked.is_err();
        if let (Err(err), false) = (looked, self.complained) {
            tracing::warn!(path = %self.config.path.display(), %err, "cannot read a directory of checkpoints");
        }
        self.complained = complained;
        self.report();
        false
    }
}

pub(super) fn start(config: CheckpointsConfig, around: &Surroundings, shutdown: Shutdown) {
    let (name, interval) = (config.path.to_string_lossy().into_owned(), config.interval.as_duration());
    let watched = Watched::new(config, Box::new(around.hub.clone()));
    let health = watched.health.clone();
    poll::start(Polling { kind: "checkpoints", name, health, interval }, watched, shutdown);
}

/// Reports the last complete checkpoint in the directory. The command `check` needs it to estimate
/// the size of the next one.
pub(crate) fn report_last(config: CheckpointsConfig, hub: &Hub) -> std::io::Result<()> {
    let mut watched = Watched::new(config, Box::new(hub.clone()));
    if let Some(listed) = watched.list()?.into_iter().rfind(|listed| !listed.name.temporary) {
        let look = Look::at(&watched.reach.find(&listed.path)?, &listed.key.1);
        let checkpoint = Checkpoint {
            path: listed.path,
            state: State::Whole,
            look,
            temporary: false,
            size: None,
            since: look.modified,
            changed: Instant::now(),
        };
        watched.known.insert(listed.key, checkpoint);
        watched.begin();
    }
    Ok(())
}

/// Whether the number in the name of a checkpoint is its step.
fn is_of_step(name: &str) -> bool {
    layout::name(name).is_some_and(|name| name.unit == layout::Unit::Step)
}

#[cfg(test)]
mod tests;
