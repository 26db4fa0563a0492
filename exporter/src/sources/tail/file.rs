//! One followed file. Its content becomes events with a run, which are published together with the
//! position up to which it was read.

mod writers_change;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use stepwatch_formats::{FileReader, Resolution};
use stepwatch_kit::crash;
use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind, Value};

use super::again::Again;
use super::content::Content;
use super::find::Candidate;
use super::framing::Counts;
use super::interleaved::Interleaved;
use super::labels::Labels;
use super::lines::{Lines, Turn};
use super::open::{Begin, modified};
use super::owner::{Asked, Owner};
use super::pending::Pending;
use super::state::{self, Position, Saved, Store};
use super::watch::Watch;
use super::words::last_words;
use super::writers::Writer;
use super::{Context, From, TailConfig};
use crate::origin::Priority;
use crate::origin::{Origin, Via};
use crate::principal::Principal;
use crate::reach::{Reach, Refusal};
use crate::source::{NOT_OWNER, SourceHandle};
use crate::sources::sink::Sink;
use crate::stream::Mark;

/// A file that was not written to for this long when first seen belongs to a finished job.
const OVER_AFTER_SECONDS: f64 = 86_400.0;
/// Bytes that a parser reads again as context, and that are searched for the last words.
const CONTEXT_BYTES: usize = 64 * 1024;
/// How often the position is saved if the stream keeps it, or while nothing is published.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// How often a file that waits for room among the runs retries.
pub(super) const RETRY_EVERY: Duration = Duration::from_secs(5);

pub(super) struct TailedFile {
    /// The owner of the file, whose share it uses.
    pub(super) uid: u32,
    /// The principal who named the file: the user of a process, or the configuration.
    finder: Principal,
    content: Content,
    lines: Lines,
    store: Store,
    labels: Labels,
    pending: Pending,
    last_step: Option<i64>,
    again: Again,
    /// Separates the steps of several trainers that write the file.
    interleaved: Interleaved,
    /// Events that were refused because there are too many runs. They wait, and so does the rest of
    /// the file.
    waiting: Vec<Event>,
    /// When they are offered again.
    retry: Option<Instant>,
    /// When the file is tried again, if it may not be read.
    refused: Option<Instant>,
    /// When the position was last saved; `None` if it never was.
    saved: Option<Instant>,
    unsaved: bool,
    generation: u64,
    /// Whether the stream keeps the position.
    kept: bool,
    /// The processes that write to it. They are no longer looked up once the end was published.
    pub(super) watch: Watch,
    pub(super) owner: Owner,
    /// Whether the file had events since this exporter started.
    spoke: bool,
    ended: bool,
    /// Whether all processes that wrote to it until its end have exited, and all their text was
    /// read. Later text is from another writer.
    over: bool,
    /// Whether the file waits until its new writer is looked up.
    returned: bool,
    /// Whether the events gathered from incomplete records were published when the file came to
    /// rest.
    rested: bool,
    /// The counts that were already reported.
    counts: Counts,
    unmatched: u64,
    complained: bool,
    save_failed: bool,
}

impl TailedFile {
    /// Creates the state. The caller must call [`Self::resume`] first.
    pub(super) fn new(
        config: &TailConfig,
        candidate: &Candidate,
        reach: &Reach,
        state_dir: &Path,
        sink: &dyn Sink,
        unix: f64,
    ) -> Self {
        let path = candidate.path.as_path();
        let begin = match config.from {
            From::Start => Begin::Start,
            From::End => Begin::End,
            From::Auto if is_over(path, reach, unix) => Begin::End,
            From::Auto => Begin::Start,
        };
        Self {
            uid: candidate.owner,
            finder: reach.finder(),
            content: Content::new(config, path, reach, begin),
            lines: Lines::new(config.reader(), unix),
            store: Store::new(state_dir, path),
            labels: Labels::new(config, path),
            pending: Pending::new(&sink.room()),
            last_step: None,
            again: Again::default(),
            interleaved: Interleaved::default(),
            waiting: Vec::new(),
            retry: None,
            refused: None,
            saved: None,
            unsaved: true,
            generation: 0,
            kept: false,
            watch: Watch::default(),
            owner: Owner::default(),
            spoke: false,
            ended: false,
            over: false,
            returned: false,
            rested: true,
            counts: Counts::default(),
            unmatched: 0,
            complained: false,
            save_failed: false,
        }
    }

    /// Continues at the position of an earlier process of the exporter, or begins. In both cases
    /// the parser gets the context that it needs.
    pub(super) fn resume(&mut self, sink: &dyn Sink, now: Instant) {
        let path = self.content.path().to_owned();
        let kept = sink.mark(self.store.key()).and_then(|text| state::parse(text.as_bytes(), &path));
        let filed = self.store.load(&path);
        let said = filed.as_ref().and_then(|f| f.hello.clone());
        let filed = filed.filter(|f| kept.as_ref().is_none_or(|k| k.generation < f.generation));
        if kept.is_none() {
            // Text that was published after the position was saved is read again.
            self.again = Again::resumed(filed.as_ref().and_then(|f| f.last_step));
        }
        let saved = filed.or(kept);
        if let Some(saved) = &saved {
            (self.last_step, self.generation) = (saved.last_step, saved.generation);
            (self.ended, self.rested) = (saved.ended, saved.rested);
            self.over = saved.ended && matches!(self.content, Content::Grows(_));
            self.watch = Watch::resumed(&saved.writers);
            self.labels.last.clone_from(&saved.of);
            self.owner.before = saved.of.clone().filter(|_| saved.ruled).map(|(run, _)| run);
            self.labels.repeat(said.as_deref());
            tracing::info!(path = %path.display(), step = saved.last_step, "going on with a tail");
        }
        let files = saved.map(|s| s.files);
        match &mut self.content {
            Content::Grows(follower) => {
                match files {
                    Some(files) => follower.resume(files, self.last_step, now),
                    None => follower.open(now),
                }
                self.lines.remember(&follower.context(CONTEXT_BYTES), self.last_step, self.rested);
                self.lines.find_zone(&follower.ending(CONTEXT_BYTES), follower.modified());
            }
            Content::Rewritten(whole) => {
                // The file repeats the whole run. Steps that another file or the trainer reported
                // are not published again.
                let (run, rank) = self.labels.default_run();
                let known = sink.last_step(run, rank);
                whole.resume(files.as_ref().and_then(|f| f.last()), self.last_step.max(known));
            }
        }
        if let (Content::Grows(follower), Some(reader)) = (&self.content, self.content.reader()) {
            let rows = follower.ending_rows(CONTEXT_BYTES);
            self.lines.find_table_zone(reader, &rows, follower.modified());
        }
        self.unmatched = self.lines.reader.counters().unmatched;
    }

    pub(super) fn is_there(&self) -> bool {
        match &self.content {
            Content::Grows(follower) => follower.is_open(),
            Content::Rewritten(whole) => whole.is_there(),
        }
    }

    /// Whether nothing of the file is left, under this name or another.
    pub(super) fn is_over(&self) -> bool {
        let gone = match &self.content {
            Content::Grows(follower) => follower.is_gone(),
            Content::Rewritten(whole) => !whole.is_there(),
        };
        gone && self.saved.is_some() && self.waiting.is_empty()
    }

    /// The Unix time in seconds when it was last written.
    pub(super) fn modified(&self) -> Option<f64> {
        self.content.modified()
    }

    /// Whether the file was not written for so long that its job must be over.
    pub(super) fn is_idle(&self, unix: f64) -> bool {
        self.waiting.is_empty() && self.content.modified().is_none_or(|at| is_idle_since(at, unix))
    }

    pub(super) fn forget(&self, sink: &dyn Sink) {
        self.store.forget();
        self.forget_mark(sink);
    }

    fn forget_mark(&self, sink: &dyn Sink) {
        if self.kept {
            let mark = Mark { key: self.store.key(), value: "" };
            sink.publish_all(&self.origin(), &mut Vec::new(), mark);
        }
    }

    /// Stops following a file that still exists. Its position stays only in its state file, because
    /// the stream keeps the positions of followed files alone.
    pub(super) fn give_way(&mut self, sink: &dyn Sink) {
        if !self.kept || !self.waiting.is_empty() {
            return;
        }
        self.generation += 1;
        let state = Saved { hello: self.labels.said(), ..self.state(self.content.positions()) };
        if self.store.save(&state).is_ok() {
            self.forget_mark(sink);
        }
    }

    /// Logs an error once, until reading succeeds again.
    pub(super) fn complain(&mut self, err: &io::Error, now: Instant, health: &SourceHandle) {
        let refusal = Refusal::from_error(err);
        if refusal.is_some() {
            self.refused = Some(now + RETRY_EVERY);
        }
        if std::mem::replace(&mut self.complained, true) {
            return;
        }
        if refusal.is_some() {
            health.dropped(NOT_OWNER, 1);
        }
        tracing::warn!(path = %self.labels.path.display(), %err, "cannot read a tailed file");
    }

    /// Reads, publishes, and then saves the position, in this order so that nothing is lost.
    /// Returns true if there is more.
    pub(super) fn poll(&mut self, now: Instant, unix: f64, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.returned || self.retry.max(self.refused).is_some_and(|at| now < at) {
            return Ok(false);
        }
        if !self.waiting.is_empty() {
            return Ok(self.publish(now, unix, cx));
        }
        self.waiting = std::mem::take(cx.scratch);
        let more = self.read(now, unix, cx);
        if self.waiting.is_empty() {
            *cx.scratch = std::mem::take(&mut self.waiting);
        }
        more
    }

    fn read(&mut self, now: Instant, unix: f64, cx: &mut Context<'_>) -> io::Result<bool> {
        // This is checked before the read, so that the text of exited writers is in the file by
        // then.
        let left = self.owner.is_found_left(now, self.content.has_grown(), cx.processes);
        let unwritten = self.ended && !self.owner.is_written(cx.processes);
        let before = (!self.kept && self.last_step.is_none()).then(|| self.content.positions());
        let written = self.content.modified();
        let mut turn = Turn { lines: &mut self.lines, events: &mut self.waiting, unix, written };
        let (more, moved) = match &mut self.content {
            Content::Grows(follower) => {
                let more = follower.poll(now, &mut turn);
                let moved = follower.has_moved();
                self.rested &= !moved;
                if !self.rested && follower.is_at_rest(now) {
                    self.rested = true;
                    turn.rest();
                }
                self.pending.check(follower, &mut self.lines.reader, cx.health, &self.labels);
                (more, moved)
            }
            Content::Rewritten(whole) => (whole.poll(now, &mut turn), false),
        };
        self.unsaved |= moved;
        if !self.waiting.is_empty() {
            if self.over || left {
                self.returned = true;
                return Ok(true);
            }
            self.before_first_step(before, now, cx);
            if !self.publish(now, unix, cx) {
                return Ok(false);
            }
        }
        let grows = matches!(self.content, Content::Grows(_));
        self.over |= (left || unwritten && self.ended) && grows && matches!(more, Ok(false));
        self.save_if_due(now, cx);
        self.report(cx);
        if more.is_ok() {
            self.complained = false;
        }
        more
    }

    /// Saves a position before the first step, because steps read again are recognised by rising
    /// from it.
    fn before_first_step(&mut self, before: Option<Vec<Position>>, now: Instant, cx: &Context<'_>) {
        let first = self.waiting.iter().filter(|e| e.kind == Kind::Step).find_map(|e| e.step);
        if let (Some(files), Some(first)) = (before, first) {
            self.last_step = Some(first.saturating_sub(1));
            self.save(files, now, cx);
        }
    }

    /// Publishes the events that were read. Returns false if some must wait for room. The position
    /// is not saved until then, so a restart loses nothing either.
    fn publish(&mut self, now: Instant, unix: f64, cx: &mut Context<'_>) -> bool {
        if self.retry.is_none() {
            self.find_owner(now, unix, cx);
            self.prepare(cx);
        }
        if let Some(ts) = self.waiting.last().and_then(|e| e.ts) {
            cx.health.lag_seconds(unix - ts);
        }
        self.generation += 1;
        let value = serde_json::to_string(&self.state(self.content.positions())).unwrap_or_default();
        let mark = Mark { key: self.store.key(), value: &value };
        let kept = cx.sink.publish_all(&self.origin(), &mut self.waiting, mark);
        if !self.waiting.is_empty() {
            if self.retry.is_none() {
                tracing::warn!(path = %self.labels.path.display(), "a tailed file waits: there are too many runs (runs.max_runs)");
            }
            self.retry = Some(now + RETRY_EVERY);
            return false;
        }
        self.retry = None;
        crash::point("tail.published");
        self.kept = kept;
        self.unsaved = true;
        if !kept {
            self.save(self.content.positions(), now, cx);
        }
        true
    }

    /// Sets the run of the events, removes those that were published before, and adds `hello` for a
    /// new run.
    fn prepare(&mut self, cx: &mut Context<'_>) {
        let records = self.content.reader().is_some();
        for event in &mut self.waiting {
            if self.labels.put_on(event, records) {
                cx.health.dropped("foreign_node", 1);
            }
            match event.kind {
                Kind::Step => {
                    self.last_step = event.step;
                    self.owner.trains();
                    if std::mem::take(&mut self.ended) {
                        self.watch.begin_anew();
                    }
                }
                Kind::Bye => self.ended = true,
                _ => {}
            }
            self.labels.remember(event);
        }
        if self.labels.has_news() {
            self.saved = None; // saved at once, for nobody reads it again
        } else if let Some(said) = self.labels.said_before(self.waiting.first(), |run| cx.sink.follows(run)) {
            self.waiting.insert(0, said);
        }
        if self.again.is_watching() {
            let again = &mut self.again;
            self.waiting.retain(|event| {
                let again = again.is(event, |rank| cx.sink.last_step(event.run.as_deref()?, rank));
                if again {
                    cx.health.dropped("read_again", 1);
                }
                !again
            });
        }
        self.leave_out(cx);
        if self.labels.introduces() {
            // None of these events is published yet, so a new run stays unknown for the next event
            // too.
            let mut greeted = BTreeSet::new();
            let events = std::mem::take(&mut self.waiting).into_iter();
            let introduced = events.flat_map(|event| {
                let hello = self.labels.hello(&event, |run| greeted.insert(run.to_owned()) && cx.greet(run));
                hello.into_iter().chain([event])
            });
            self.waiting = introduced.collect();
        }
    }

    /// Removes the steps of all trainers but one if several write the log.
    fn leave_out(&mut self, cx: &Context<'_>) {
        let (before, was_mixed, several) =
            (self.waiting.len(), self.interleaved.is_mixed(), self.owner.several);
        let interleaved = &mut self.interleaved;
        self.waiting.retain_mut(|e| e.kind != Kind::Step || !interleaved.leaves_out(e, several));
        if interleaved.is_mixed() && !was_mixed {
            let path = self.labels.path.display();
            tracing::warn!(%path, "several trainers write this log: the steps of one of them are followed");
        }
        let left_out = before - self.waiting.len();
        if left_out > 0 {
            cx.health.dropped("interleaved", left_out as u64);
        }
    }

    fn origin(&self) -> Origin {
        let exact = self.content.reader().is_some() || is_exact(self.lines.reader.name());
        let priority = if exact { Priority::File } else { Priority::Log };
        Origin::said_by(Via::Tail, &self.labels.source, priority, self.principal())
    }

    /// The user who reports the events: the owner of the file, unless the configuration names the
    /// run. A process may show a file of another user by a link while the run has the name of the
    /// process.
    pub(super) fn principal(&self) -> Principal {
        if self.labels.is_configured() {
            return Principal::Exporter;
        }
        Principal::from_uid(self.content.uid()).shown_by(self.finder)
    }

    /// The run and rank of the file. A run's `bye` is published when all its files have no writer.
    pub(super) fn run_and_rank(&self) -> Option<&(String, Option<u32>)> {
        self.labels.last.as_ref()
    }

    /// The device and inode of each file behind the name.
    pub(super) fn identities(&self) -> BTreeSet<(u64, u64)> {
        match &self.content {
            Content::Grows(follower) => follower.identities().collect(),
            Content::Rewritten(_) => BTreeSet::new(),
        }
    }

    /// Looks up the writers if they may have changed: for a file that was read as soon as it
    /// appeared, for one without a known writer at its first line, and before the first step,
    /// because a launcher may have started a trainer since.
    fn find_owner(&mut self, now: Instant, unix: f64, cx: &Context<'_>) {
        let first = !std::mem::replace(&mut self.spoke, true);
        let begins = self.owner.may_launch() && self.waiting.iter().any(|e| e.kind == Kind::Step);
        if self.owner.run.is_some() && !begins && (self.owner.ruled || !first) {
            return;
        }
        let identities = self.identities();
        let writers = if identities.is_empty() { None } else { cx.processes.writers(&identities) };
        let writers = writers.unwrap_or_default().into_iter().map(|w| w.process).collect();
        let (principal, roots, processes, sink) = (self.principal(), cx.roots, cx.processes, cx.sink);
        self.settle(cx.config, writers, Asked { roots, processes, sink, now, unix, principal });
    }

    /// Whether text was read after all writers had exited, and its writer is unknown.
    pub(super) fn has_returned(&self) -> bool {
        self.returned
    }

    /// The files whose writers have to be looked up; empty if there is no reason to.
    pub(super) fn unwatched(&mut self, now: Instant, unix: f64, cx: &Context<'_>) -> Vec<(u64, u64)> {
        let idle = self.is_idle(unix);
        let Content::Grows(follower) = &self.content else { return Vec::new() };
        if self.ended || idle || !self.watch.wants_look(now, follower.grew(), cx.processes) {
            return Vec::new();
        }
        follower.identities().collect()
    }

    /// Records the writers of this file that an inspection of all processes found.
    pub(super) fn found(&mut self, now: Instant, writers: impl Iterator<Item = Writer>) {
        self.watch.found(now, writers);
        self.unsaved = true;
    }

    /// Publishes the end of the run, because no process is left that could continue it.
    pub(super) fn end(&mut self, now: Instant, unix: f64, cx: &mut Context<'_>) {
        let Content::Grows(follower) = &mut self.content else { return };
        if !self.waiting.is_empty() || self.ended {
            return;
        }
        let written = follower.modified();
        let mut turn = Turn { lines: &mut self.lines, events: &mut self.waiting, unix, written };
        follower.flush(&mut turn);
        self.watch.begin_anew();
        let said = self.waiting.iter().any(|e| e.kind == Kind::Bye);
        if let (Some((run, rank)), false) = (self.labels.last.clone(), said) {
            let words = last_words(&follower.last_lines(CONTEXT_BYTES));
            let mut bye = Event { ts: Some(unix), run: Some(run), rank, ..Event::new(Kind::Bye) };
            bye.code = words.as_ref().map(|w| w.code);
            bye.text = words.map(|w| w.text);
            bye.extra.insert("source".into(), Value::Text("tail".into()));
            tracing::info!(path = %self.labels.path.display(), code = bye.code, "a tailed file has no writer any more");
            self.waiting.push(bye);
        }
        if !self.waiting.is_empty() {
            self.publish(now, unix, cx);
        }
        self.unsaved = true;
    }

    fn state(&self, files: Vec<Position>) -> Saved {
        Saved {
            path: self.content.path().to_owned(),
            files,
            last_step: self.last_step,
            generation: self.generation,
            writers: self.watch.writers(),
            ended: self.ended,
            rested: self.rested,
            of: self.labels.last.clone(),
            ruled: self.owner.ruled,
            hello: None,
        }
    }

    fn save_if_due(&mut self, now: Instant, cx: &Context<'_>) {
        let due = self.saved.is_none_or(|at| now.duration_since(at) >= SAVE_EVERY);
        if self.unsaved && due {
            self.generation += 1;
            self.save(self.content.positions(), now, cx);
        }
    }

    fn save(&mut self, files: Vec<Position>, now: Instant, cx: &Context<'_>) {
        self.unsaved = false;
        self.saved = Some(now);
        let state = Saved { hello: self.labels.said(), ..self.state(files) };
        let failed = self.store.save(&state).err();
        if let Some(err) = &failed {
            cx.health.dropped("position_not_saved", 1);
            if !self.save_failed {
                tracing::warn!(path = %self.labels.path.display(), %err, "cannot save the position in a tailed file");
            }
        }
        self.save_failed = failed.is_some();
    }

    fn report(&mut self, cx: &Context<'_>) {
        let resolution: &Resolution =
            self.content.reader().map_or(self.lines.reader.resolution(), FileReader::resolution);
        for metric in [metric::LOSS, metric::GRAD_NORM, metric::LR, metric::STEP_TIME] {
            if let Some(step) = resolution.get(metric) {
                cx.health.resolution(metric, step);
            }
        }
        let (now, then) = (self.content.counts(), std::mem::replace(&mut self.counts, self.content.counts()));
        let lines = self.lines.reader.counters().unmatched;
        let unmatched = lines.saturating_sub(self.unmatched) + (now.unmatched - then.unmatched);
        self.unmatched = lines;
        cx.health.unmatched_lines(unmatched);
        cx.health.skipped_bytes(now.skipped_bytes - then.skipped_bytes);
        for (reason, n) in [
            ("line_too_long", now.cut_lines - then.cut_lines),
            ("truncated", now.truncations - then.truncations),
            ("too_many_rotations", now.abandoned - then.abandoned),
            ("bad_record", now.bad_records - then.bad_records),
            ("too_large", now.oversized - then.oversized),
            ("damaged", now.damaged - then.damaged),
        ] {
            if n > 0 {
                cx.health.dropped(reason, n);
            }
        }
    }
}

/// Whether a format of lines keeps every digit; logs for people do not.
fn is_exact(format: &str) -> bool {
    matches!(format, "jsonl" | "csv")
}

pub(super) fn is_idle_since(written: f64, unix: f64) -> bool {
    unix - written > OVER_AFTER_SECONDS
}

fn is_over(path: &Path, reach: &Reach, unix: f64) -> bool {
    let written = reach.find(path).ok().and_then(|found| modified(&found.metadata));
    written.is_some_and(|at| is_idle_since(at, unix))
}
