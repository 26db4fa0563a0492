//! One followed file: its lines become events that know their run, their time and their place.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwatch_formats::Reader;
use stepwatch_kit::crash;
use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use super::again::Again;
use super::follow::{Begin, Counts, Follower, RawLine, modified};
use super::state::{Position, Saved, Store};
use super::zone::Zone;
use super::{From, TailConfig, name};
use crate::drops::Reason;
use crate::hub::{Origin, Outcome, Via};
use crate::source::SourceHandle;
use crate::sources::Sink;
use crate::training::Priority;

/// A file that nobody wrote to for this long when it is first seen belongs to a job that is over.
const OVER_AFTER_SECONDS: f64 = 86_400.0;
/// What a parser reads again of a file to go on in it.
const CONTEXT_BYTES: usize = 64 * 1024;
/// Lines without a step move the saved position only this often: reading them again does no harm.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// How often a file that waits for room among the runs tries again.
pub(super) const RETRY_EVERY: Duration = Duration::from_secs(5);
/// A stamp further in the future than this is of another time zone, or of a wrong clock.
const FUTURE_SECONDS: f64 = 60.0;

pub(super) struct TailedFile {
    follower: Follower,
    reader: Reader,
    zone: Zone,
    store: Store,
    labels: Labels,
    last_step: Option<i64>,
    again: Again,
    /// Read, and refused because there are too many runs: it waits, and so does the rest of the file.
    waiting: VecDeque<Event>,
    /// When it is offered again.
    retry: Option<Instant>,
    /// When the position was last saved; `None` if it never was.
    saved: Option<Instant>,
    unsaved: bool,
    /// What was reported so far.
    counts: Counts,
    unmatched: u64,
    complained: bool,
    save_failed: bool,
}

/// What the configuration says about every event of the file.
struct Labels {
    path: Arc<Path>,
    /// The path as the name of a source.
    source: Arc<str>,
    run: Option<String>,
    fallback_run: String,
    rank: Option<u32>,
    node: Option<String>,
}

impl Labels {
    fn put_on(&self, mut event: Event) -> Event {
        event.run = self.run.clone().or(event.run).or_else(|| Some(self.fallback_run.clone()));
        event.rank = self.rank.or(event.rank);
        event.node = self.node.clone().or(event.node);
        event
    }
}

impl TailedFile {
    pub(super) fn new(config: &TailConfig, path: &Path, state_dir: &Path, now: Instant, unix: f64) -> Self {
        let begin = match config.from {
            From::Start => Begin::Start,
            From::End => Begin::End,
            From::Auto if is_over(path, unix) => Begin::End,
            From::Auto => Begin::Start,
        };
        let labels = Labels {
            path: path.into(),
            source: path.to_string_lossy().into(),
            run: config.run.clone(),
            fallback_run: name::run_of(path),
            rank: config.rank,
            node: config.node.clone(),
        };
        let mut file = Self {
            follower: Follower::new(path.to_owned(), begin),
            reader: config.reader(),
            zone: Zone::of_host(unix),
            store: Store::new(state_dir, path),
            labels,
            last_step: None,
            again: Again::default(),
            waiting: VecDeque::new(),
            retry: None,
            saved: None,
            unsaved: true,
            counts: Counts::default(),
            unmatched: 0,
            complained: false,
            save_failed: false,
        };
        file.resume(now);
        file
    }

    /// Goes on where an earlier life of the exporter stopped, or begins; either way knowing what the parser must know of before.
    fn resume(&mut self, now: Instant) {
        if let Some(saved) = self.store.load(self.follower.path()) {
            self.follower.resume(saved.files, now);
            self.last_step = saved.last_step;
            self.again = Again::resumed(saved.last_step);
            tracing::info!(path = %self.labels.path.display(), step = saved.last_step, "going on with a tail");
        } else {
            self.follower.open(now);
        }
        let mut known = Vec::new();
        for line in self.follower.context(CONTEXT_BYTES) {
            self.reader.line(&line, &mut known);
            known.clear();
        }
        if let Some(step) = self.last_step {
            self.reader.resume(step);
        }
        self.unmatched = self.reader.counters().unmatched;
        self.find_zone();
    }

    /// The last line of a file was written when the file was.
    fn find_zone(&mut self) {
        let (Ok(mut scratch), mut unused) = (Reader::new(None), Vec::new()) else { return };
        for line in self.follower.ending(CONTEXT_BYTES) {
            scratch.line(&line, &mut unused);
            unused.clear();
        }
        if let (Some(stamp), Some(written)) = (scratch.local_stamp(), self.follower.modified()) {
            self.zone.observe(stamp, written);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.follower.is_open()
    }

    /// Nothing of it is left, under this name or another.
    pub(super) fn is_over(&self) -> bool {
        self.follower.is_gone() && self.saved.is_some() && self.waiting.is_empty()
    }

    pub(super) fn forget(&self) {
        self.store.forget();
    }

    /// Logs what is wrong once, until it is right again.
    pub(super) fn complain(&mut self, err: &io::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(path = %self.labels.path.display(), %err, "cannot read a tailed file");
        }
    }

    /// Reads, publishes, and then saves the position: in this order nothing is lost. True if there is more.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        unix: f64,
        sink: &dyn Sink,
        health: &SourceHandle,
    ) -> io::Result<bool> {
        if self.retry.is_some_and(|at| now < at) {
            return Ok(false);
        }
        if !self.waiting.is_empty() {
            return Ok(self.publish_waiting(now, unix, sink, health));
        }
        let before = self.follower.positions();
        let mut lines = Vec::new();
        let more = self.follower.poll(now, &mut lines);
        let mut events = Vec::new();
        for line in &lines {
            self.line(line, unix, &mut events);
        }
        let published = !events.is_empty();
        if let Some(first) = events.iter().filter(|e| e.kind == Kind::Step).find_map(|e| e.step) {
            if self.last_step.is_none() {
                // The first step of all: what is read again after a crash must have something to rise from.
                self.last_step = Some(first.saturating_sub(1));
                self.save(before.clone(), now, health);
            }
        }
        self.waiting.extend(events.into_iter().map(|e| self.labels.put_on(e)));
        self.unsaved |= published || self.follower.positions() != before;
        if published && !self.publish_waiting(now, unix, sink, health) {
            return Ok(false);
        }
        let due = self.saved.is_none_or(|at| now.duration_since(at) >= SAVE_EVERY);
        if self.unsaved && due {
            self.save(self.follower.positions(), now, health);
        }
        self.report(health);
        if more.is_ok() {
            self.complained = false;
        }
        more
    }

    fn line(&mut self, line: &RawLine, unix: f64, events: &mut Vec<Event>) {
        let first = events.len();
        let stamp = self.reader.local_stamp();
        self.reader.set_utc_offset(self.zone.offset());
        self.reader.line(&line.text, events);
        // A line that was just written tells which zone its stamp is in.
        let fresh = self.reader.local_stamp().filter(|s| Some(*s) != stamp && !line.backlog);
        if let Some(stamp) = fresh {
            let wrong = stamp - self.zone.offset();
            if self.zone.observe(stamp, unix) != 0.0 {
                let right = stamp - self.zone.offset();
                events[first..].iter_mut().filter(|e| e.ts == Some(wrong)).for_each(|e| e.ts = Some(right));
            }
        }
        // Of a line that was there before us and has no stamp, only the last write to the file bounds the time.
        let arrival =
            if line.backlog { self.follower.modified().map_or(unix, |m| m.min(unix)) } else { unix };
        for e in &mut events[first..] {
            e.ts = Some(e.ts.filter(|ts| *ts <= unix + FUTURE_SECONDS).unwrap_or(arrival));
        }
    }

    /// Publishes what was read. False if some of it must wait for room; the position is not saved until then, so nothing is
    /// lost by a restart meanwhile either.
    fn publish_waiting(&mut self, now: Instant, unix: f64, sink: &dyn Sink, health: &SourceHandle) -> bool {
        while let Some(event) = self.waiting.pop_front() {
            let copy = event.clone();
            if self.publish(event, unix, sink, health) == Some(Outcome::Dropped(Reason::Runs)) {
                self.waiting.push_front(copy);
                if self.retry.is_none() {
                    tracing::warn!(path = %self.labels.path.display(), "a tailed file waits: there are too many runs (runs.max_runs)");
                }
                self.retry = Some(now + RETRY_EVERY);
                return false;
            }
        }
        self.retry = None;
        crash::point("tail.published");
        self.save(self.follower.positions(), now, health);
        true
    }

    /// `None` for what was published before.
    fn publish(
        &mut self,
        event: Event,
        unix: f64,
        sink: &dyn Sink,
        health: &SourceHandle,
    ) -> Option<Outcome> {
        if let Some(ts) = event.ts {
            health.lag_seconds(unix - ts);
        }
        if event.kind == Kind::Step {
            self.last_step = event.step;
        }
        if self.again.is(&event, |rank| sink.last_step(event.run.as_deref()?, rank)) {
            health.dropped("read_again", 1);
            return None;
        }
        let priority = if self.reader.name() == "jsonl" { Priority::File } else { Priority::Log };
        Some(sink.publish(Origin::source(Via::Tail, &self.labels.source, priority), event))
    }

    fn save(&mut self, files: Vec<Position>, now: Instant, health: &SourceHandle) {
        let path: PathBuf = self.follower.path().to_owned();
        let saved = Saved { path, files, last_step: self.last_step };
        self.unsaved = false;
        self.saved = Some(now);
        let failed = self.store.save(&saved).err();
        if let Some(err) = &failed {
            health.dropped("position_not_saved", 1);
            if !self.save_failed {
                tracing::warn!(path = %self.labels.path.display(), %err, "cannot save the position in a tailed file");
            }
        }
        self.save_failed = failed.is_some();
    }

    fn report(&mut self, health: &SourceHandle) {
        for metric in [metric::LOSS, metric::GRAD_NORM, metric::LR, metric::STEP_TIME] {
            if let Some(step) = self.reader.resolution().get(metric) {
                health.resolution(metric, step);
            }
        }
        let unmatched = self.reader.counters().unmatched;
        health.unmatched_lines(unmatched.saturating_sub(self.unmatched));
        self.unmatched = unmatched;
        let (now, then) = (self.follower.counts, std::mem::replace(&mut self.counts, self.follower.counts));
        for (reason, n) in [
            ("line_too_long", now.cut_lines - then.cut_lines),
            ("truncated", now.truncations - then.truncations),
            ("too_many_rotations", now.abandoned - then.abandoned),
        ] {
            if n > 0 {
                health.dropped(reason, n);
            }
        }
    }
}

fn is_over(path: &Path, unix: f64) -> bool {
    let written = std::fs::metadata(path).ok().as_ref().and_then(modified);
    written.is_some_and(|at| unix - at > OVER_AFTER_SECONDS)
}
