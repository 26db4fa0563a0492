//! Detects work at risk: no checkpoint for more work than this run usually does between two, or a
//! checkpoint that failed.
//!
//! Work is the run's own time while it moves (`run::Checkpoints`): a queue, a pause or a clock that
//! differs from ours adds none. What is usual is the median of the last 8 intervals, once two are
//! known. A ticket at 1.5 times that (plus the usual duration), a page at 3 times. No ticket before
//! `floor`, no page before twice of it: losing a few minutes of work costs little.
//!
//! A run that never saved has no usual interval, nor has one that saved once or twice. It is a
//! ticket once it would lose `never_saved_gpu_hours`, and no less than `never_saved_floor` of work,
//! and a page at `never_saved_page_gpu_hours`, and no less than twice that time, so that no short
//! run pages. A save that failed or does not end needs no more than the floor, and while one is
//! being written nobody is paged. Nor is anybody for a run that saves rarely on purpose before its
//! next save is late: by the steps before its last one or, before there is one, by the interval
//! among its arguments, but for a day of work at most. One that never saved and goes on from a
//! later step has a checkpoint somewhere, or was found under way, so it counts only if it was seen
//! from its beginning.
//!
//! A page needs a reason to expect that a save would be seen: one that was seen, the client, which
//! reports saves, or a log that prints all of them (Megatron, torchtitan). A run whose log prints
//! most sorts of saves (Hugging Face), or whose arguments say where and how often it saves, and
//! that has no such source, is a ticket that says so: it may well save. Of other runs nothing is
//! known, most logs, tables and trackers report no saves, and a ticket of each large run would say
//! nothing: they are not judged. A phase that saves counts as a save if no event ever says more of
//! a checkpoint.

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::{Declared, RunState, declared};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Change, Clause, Fact, Finding, Kind, Sentence, Severity, clause};
use stepwatch_wire::names::hello;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    pub floor: Span,
    /// Multiples of the usual interval: engineering limits.
    pub ticket_at: f64,
    pub page_at: f64,
    /// Unsaved work of a run that never saved, of a ticket and of a page: GPU hours, and the least
    /// time of a ticket. Where the number of GPUs is unknown, the time alone. Engineering limits.
    pub never_saved_gpu_hours: f64,
    pub never_saved_page_gpu_hours: f64,
    pub never_saved_floor: Span,
    pub never_saved_unsized: Span,
    pub never_saved_page_unsized: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            floor: Span::secs(300),
            ticket_at: 1.5,
            page_at: 3.0,
            never_saved_gpu_hours: 200.0,
            never_saved_page_gpu_hours: 1000.0,
            never_saved_floor: Span::secs(2 * 3600),
            never_saved_unsized: Span::secs(24 * 3600),
            never_saved_page_unsized: Span::secs(72 * 3600),
        }
    }
}

/// A first save that has been running for so long does not end. An engineering limit.
const FIRST_SAVE: Span = Span::secs(1800);
/// No run saves more rarely on purpose. An engineering limit.
const RAREST: Span = Span::secs(24 * 3600);
/// The label of the client's `hello` that names the client.
const CLIENT: &str = "client";
/// Arguments that say where a trainer saves, and how often; and values that say that it does not.
const SAVES_TO: &[&str] = &[
    "save",
    "save-dir",
    "save-folder",
    "save-path",
    "output-dir",
    "checkpoint-dir",
    "checkpoint.folder",
    "ckpt-dir",
];
const SAVES_EVERY: &[&str] = &[
    "save-interval",
    "save-steps",
    "save-every",
    "save-freq",
    "checkpoint-interval",
    "checkpoint-every",
    "checkpoint.interval",
    "ckpt-interval",
];
const NOTHING: &[&str] = &["", "None", "none", "null", "False", "false", "0", "-1"];

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CkptStale {
    raised: Option<Severity>,
    /// Time of the failed checkpoint that was reported last.
    failure_reported: Option<Ts>,
}

impl CkptStale {
    /// Seconds of work without a checkpoint that make a ticket, and a page.
    fn due(&self, c: &Config, view: RunAt<'_>) -> Option<(f64, f64)> {
        let k = &view.run.checkpoints;
        if k.last_at.is_none() {
            return self.due_unless_saved(c, view);
        }
        let Some(interval) = k.usual_interval() else { return Some(due_by_size(c, view)) };
        let takes = k.usual_duration().unwrap_or(0.0) + k.usual_lag();
        let floor = c.floor.as_secs_f64();
        let at = |times: f64, floor: f64| (times * interval + takes).max(floor);
        Some((at(c.ticket_at, floor), at(c.page_at, 2.0 * floor)))
    }

    /// The same of a run that never saved. What was raised stays, although a later `hello` may not
    /// name the client.
    fn due_unless_saved(&self, c: &Config, view: RunAt<'_>) -> Option<(f64, f64)> {
        let f = view.run;
        let is_judged = || {
            self.raised.is_some() || would_be_seen(f) || is_told_to_save(f) || prints(f) == Some(hello::MOST)
        };
        if !has_never_saved(f) || !is_judged() {
            return None;
        }
        Some(due_by_size(c, view))
    }

    fn clear(&mut self, view: RunAt<'_>, why: Clause, out: &mut Vec<Finding>) {
        if self.raised.take().is_some() {
            out.push(finding(view, Change::Clear, Severity::Info, why));
        }
    }

    fn failure(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        let Some((at, text)) = f.checkpoints.failure.as_ref().filter(|_| c.enabled) else { return };
        if self.failure_reported != Some(*at) {
            self.failure_reported = Some(*at);
            self.raised = self.raised.max(Some(Severity::Ticket));
            let why = Sentence::from(clause!("a checkpoint failed: {text}", text = text.clone()))
                .and_perhaps(at_risk(f));
            out.push(finding(view, Change::Raise, Severity::Ticket, why));
        }
    }
}

impl ClockDetector for CkptStale {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        let f = view.run;
        if f.ended.is_some() {
            self.clear(view, clause!("the run ended"), out);
            return;
        }
        self.failure(c, view, out);
        let work = f.checkpoints.work;
        let due = self.due(c, view);
        let severity = match due {
            Some((_, page)) if work >= page => Some(Severity::Page),
            Some((ticket, _)) if work >= ticket => Some(Severity::Ticket),
            _ => None,
        };
        match severity {
            Some(s) if self.raised.is_none_or(|had| had < s) => {
                self.raised = Some(s);
                let mut v = finding(view, Change::Raise, s, sentence(view));
                if let (Some((ticket, _)), None) = (due, f.checkpoints.last_at) {
                    (v.expected, v.score) = (ticket, work / ticket);
                    v.start_step = f.attempts.first_step.unwrap_or(v.start_step);
                }
                out.push(v);
            }
            None if f.checkpoints.failure.is_none() => self.clear(view, relief(f), out),
            _ => {}
        }
    }

    fn deadline(&self, _: &Config, _: &RunState) -> Option<Ts> {
        None // work passes with the steps, which make it look
    }
}

/// Seconds of unsaved work that make a ticket, and a page, as long as no interval is usual.
fn due_by_size(c: &Config, view: RunAt<'_>) -> (f64, f64) {
    let f = view.run;
    let fails = cannot_save(view);
    let (ticket, page) = match f.gpus() {
        Some(gpus) => {
            let floor = c.never_saved_floor.as_secs_f64();
            let at = |gpu_hours: f64, least: f64| (3600.0 * gpu_hours / f64::from(gpus)).max(least);
            let least = if fails { floor } else { 2.0 * floor };
            (at(c.never_saved_gpu_hours, floor), at(c.never_saved_page_gpu_hours, least))
        }
        None => (c.never_saved_unsized.as_secs_f64(), c.never_saved_page_unsized.as_secs_f64()),
    };
    let pages = fails || would_be_seen(f) && saving_since(f).next().is_none();
    let late = late_after(c, f).filter(|_| !fails).unwrap_or(0.0);
    (ticket, if pages { page.max(late) } else { f64::INFINITY })
}

/// Seconds of unsaved work after which the next save is late, by what the run did before its last
/// one, or is told to do.
fn late_after(c: &Config, f: &RunState) -> Option<f64> {
    let (k, first) = (&f.checkpoints, f.attempts.first_step);
    let made = f.last_step?.saturating_sub(k.last_step.or(first)?);
    let before = k.steps.iter().rev().nth(1).copied().or(first);
    let saved = k.last_step.zip(before).map(|(last, before)| last.saturating_sub(before));
    let every = saved.filter(|steps| *steps > 0).or_else(|| told_interval(f))?;
    let late = c.ticket_at * every as f64 * k.work / made as f64;
    (made > 0).then(|| late.min(RAREST.as_secs_f64()))
}

/// Whether the run is seen from its beginning, and has saved nothing.
fn has_never_saved(f: &RunState) -> bool {
    f.checkpoints.last_at.is_none() && f.is_first_step(f.attempts.first_step) && !has_declared_a_save(f)
}

/// Whether a phase of the trainer that saves has ended, if it reports its saves as phases alone. In
/// others, the ranks that do not write report the phase, and it ends whatever becomes of the save.
fn has_declared_a_save(f: &RunState) -> bool {
    let k = &f.checkpoints;
    let is_reported =
        k.in_progress.is_some() || k.failure.is_some() || k.stages().is_some_and(|stages| stages.has_any());
    let saves = |name: &str| declared(name) == Some(Declared::Saving);
    !is_reported && f.phases.iter().any(|(name, phase)| phase.longest > 0.0 && saves(name))
}

/// Which of its saves the log of the run prints, if that is known.
fn prints(f: &RunState) -> Option<&str> {
    f.labels.get(hello::SAVES).map(String::as_str)
}

/// Whether a save of this run would be reported.
fn would_be_seen(f: &RunState) -> bool {
    let label = |name: &str| f.labels.get(name).map(String::as_str);
    // A launcher is one with the client too, and sees no save.
    let client = label(CLIENT).is_some() && label(hello::ROLE).is_none();
    let printed = prints(f) == Some(hello::ALL);
    let k = &f.checkpoints;
    client || printed || k.last_at.is_some() || k.failure.is_some() || saving_since(f).next().is_some()
}

/// Whether the arguments of the run say where it saves, and how often.
fn is_told_to_save(f: &RunState) -> bool {
    let is_given = |names| arguments(f, names).any(|value| !NOTHING.contains(&value));
    is_given(SAVES_TO) && is_given(SAVES_EVERY)
}

/// The steps between two saves that the arguments of the run tell.
fn told_interval(f: &RunState) -> Option<i64> {
    arguments(f, SAVES_EVERY).filter_map(|value| value.parse::<i64>().ok()).filter(|steps| *steps > 0).min()
}

/// The values of the arguments with these names.
fn arguments<'a>(f: &'a RunState, names: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let is_one = move |name: &str| {
        let name = name.strip_prefix("arg.").unwrap_or(name).replace('_', "-");
        names.contains(&name.as_str())
    };
    let values = f.attempts.setup.values.iter();
    values.filter(move |((_, name), _)| is_one(name)).map(|(_, value)| value.as_str())
}

/// Since when saves are written, or wait to become durable.
fn saving_since(f: &RunState) -> impl Iterator<Item = Ts> {
    let k = &f.checkpoints;
    let waits_since = k.stages().and_then(|stages| stages.waiting().next()?.saved_at);
    k.in_progress.into_iter().chain(waits_since)
}

/// Whether a save of the run was seen to fail, or does not end, or its checkpoint does not become
/// durable.
fn cannot_save(view: RunAt<'_>) -> bool {
    let does_not_end = |since: Ts| view.now - since >= FIRST_SAVE;
    view.run.checkpoints.failure.is_some() || saving_since(view.run).any(does_not_end)
}

/// Why no work is at risk any more.
fn relief(f: &RunState) -> Clause {
    if f.checkpoints.last_at.is_some() || has_declared_a_save(f) {
        clause!("a checkpoint was written")
    } else {
        clause!("the run began anew, and what it had not saved is lost")
    }
}

fn sentence(view: RunAt<'_>) -> Sentence {
    let RunAt { now, run: f } = view;
    let c = &f.checkpoints;
    if c.last_at.is_none() {
        return sentence_without_any(view);
    }
    let what = match c.in_progress {
        Some(since) => clause!("a checkpoint has been running for {runs}", runs = now - since),
        None => clause!("no checkpoint"),
    };
    let usual =
        c.usual_interval().map(|s| clause!("one is usual every {every}", every = Span::from_secs_f64(s)));
    Sentence::from(what).and_perhaps(at_risk(f)).and_perhaps(usual)
}

fn sentence_without_any(view: RunAt<'_>) -> Sentence {
    let RunAt { now, run: f } = view;
    let work = f.checkpoints.work;
    let at_risk = Span::from_secs_f64(work);
    let lost = match f.gpus() {
        Some(gpus) => clause!(
            "{at_risk} of work would be lost, {gpu_hours} GPU hours",
            at_risk,
            gpu_hours = Fact::decimal(f64::from(gpus) * work / 3600.0, 0),
        ),
        None => clause!("{at_risk} of work would be lost", at_risk),
    };
    let runs = f.checkpoints.in_progress.map(|since| now - since);
    let why =
        Sentence::from(clause!("no checkpoint since the attempt began at {began}", began = f.attempt_at))
            .and_perhaps(runs.map(|runs| clause!("the first one has been running for {runs}", runs)))
            .and(lost);
    if would_be_seen(f) {
        let told =
            told_interval(f).map(|steps| clause!("its arguments tell it to save every {steps} steps", steps));
        return why
            .and_perhaps(told)
            .and(clause!("look at whether and where the trainer saves, and save now"));
    }
    if prints(f) == Some(hello::MOST) {
        return why
            .and(clause!("its log prints saves, but not of all sorts, and shows none"))
            .and(clause!("look at whether and where the trainer saves"));
    }
    why.and(clause!("its arguments tell it to save, but no source would show a save"))
        .and(clause!("look at whether it does, and let an exporter watch the directory of its checkpoints"))
}

fn at_risk(f: &RunState) -> Option<Clause> {
    let c = &f.checkpoints;
    c.last_at.map(|_| clause!("{at_risk} of work would be lost", at_risk = Span::from_secs_f64(c.work)))
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity, why: impl Into<Sentence>) -> Finding {
    let (f, c) = (view.run, &view.run.checkpoints);
    let expected = c.usual_interval().unwrap_or(0.0);
    Finding {
        start_step: c.last_step.or(f.last_step).unwrap_or(0),
        value: c.work,
        expected,
        score: if expected > 0.0 { c.work / expected } else { 0.0 },
        why: why.into(),
        ..view.finding(Kind::CkptStale, "unsaved_work", change, severity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Aspect;

    /// A run with the client that has done so many hours of work and saved nothing.
    fn unsaved(world: Option<u32>, hours: f64) -> RunState {
        let mut f = RunState::new("r", Ts(0));
        f.world = world;
        f.attempts.first_step = Some(1);
        f.labels.insert(CLIENT.to_owned(), "stepwatch-python/0.1.0".to_owned());
        work(&mut f, hours);
        f
    }

    fn work(f: &mut RunState, hours: f64) {
        f.last_step = Some(1 + (hours * 360.0) as i64);
        f.checkpoints.work = 3600.0 * hours;
    }

    fn look(detector: &mut CkptStale, f: &RunState) -> Vec<Finding> {
        let (mut out, now) = (Vec::new(), Ts(0) + Span::from_secs_f64(f.checkpoints.work));
        detector.look(&Config::default(), RunAt { now, run: f }, &mut out);
        out
    }

    /// The worst severity that is raised by this run.
    fn worst(f: &RunState) -> Option<Severity> {
        look(&mut CkptStale::default(), f).into_iter().map(|v| v.severity).max()
    }

    const TICKET: Option<Severity> = Some(Severity::Ticket);
    const PAGE: Option<Severity> = Some(Severity::Page);

    #[test]
    fn a_run_that_never_saved_is_a_ticket_by_its_gpu_hours() {
        assert_eq!(worst(&unsaved(Some(64), 3.1)), None);
        assert_eq!(worst(&unsaved(Some(64), 3.2)), TICKET);
        assert_eq!(worst(&unsaved(Some(8), 24.9)), None);
        assert_eq!(worst(&unsaved(Some(8), 25.0)), TICKET);
        assert_eq!(worst(&unsaved(Some(16_384), 1.9)), None, "two hours at least");
        assert_eq!(worst(&unsaved(Some(16_384), 2.0)), TICKET);
        let found = look(&mut CkptStale::default(), &unsaved(Some(64), 3.2));
        assert_eq!(
            found[0].why,
            "no checkpoint since the attempt began at 1970-01-01T00:00:00Z; 3h 12m of work would be lost, 205 GPU hours; \
             look at whether and where the trainer saves, and save now"
        );
        assert_eq!((found[0].value, found[0].expected), (3.2 * 3600.0, 11_250.0));
        assert_eq!((found[0].kind, found[0].start_step), (Kind::CkptStale, 1));
    }

    #[test]
    fn a_run_that_never_tries_to_save_is_a_page_well_above_the_ticket() {
        for (gpus, ticket, page) in [(64, 15.6, 15.7), (8, 124.9, 125.0), (16_384, 3.9, 4.0)] {
            assert_eq!(worst(&unsaved(Some(gpus), ticket)), TICKET, "{gpus}");
            let mut f = unsaved(Some(gpus), page);
            assert_eq!(worst(&f), PAGE, "{gpus}");
            // It saved once, or twice, and has no rhythm yet.
            f.checkpoints.last_at = Some(Ts(0));
            assert_eq!(worst(&f), PAGE, "{gpus}");
            f.checkpoints.intervals.push_back(600.0);
            assert_eq!(worst(&f), PAGE, "{gpus}");
            work(&mut f, ticket);
            assert_eq!(worst(&f), TICKET, "{gpus}");
        }
        let mut f = unsaved(Some(16_384), 2.0);
        f.checkpoints.failure = Some((Ts(0), "disk full".to_owned()));
        assert_eq!(worst(&f), PAGE, "what failed needs no more time");
        let (mut detector, mut f) = (CkptStale::default(), unsaved(Some(64), 15.0));
        assert_eq!(look(&mut detector, &f)[0].severity, Severity::Ticket);
        work(&mut f, 16.0);
        let page = look(&mut detector, &f).remove(0);
        assert_eq!((page.change, page.severity), (Change::Raise, Severity::Page));
        assert_eq!(
            page.why,
            "no checkpoint since the attempt began at 1970-01-01T00:00:00Z; 16h of work would be lost, 1024 GPU \
             hours; look at whether and where the trainer saves, and save now"
        );
    }

    #[test]
    fn a_run_that_saves_rarely_on_purpose_is_no_page_before_it_is_late() {
        // It makes 360 steps an hour.
        let mut f = unsaved(Some(512), 0.0);
        let tell = |f: &mut RunState, steps: &str| {
            f.attempts.setup.values.insert((Aspect::Run, "arg.save_interval".to_owned()), steps.to_owned());
        };
        let check = |f: &mut RunState, saved: i64, told: &[(f64, Option<Severity>)]| {
            for (hours, want) in told {
                work(f, *hours);
                f.last_step = f.last_step.map(|step| step + saved);
                assert_eq!(worst(f), *want, "{hours} hours");
            }
        };
        check(&mut f, 0, &[(3.9, TICKET), (4.1, PAGE)]);
        tell(&mut f, "2880");
        check(&mut f, 0, &[(11.9, TICKET), (12.1, PAGE)]);
        let why = look(&mut CkptStale::default(), &f)[0].why.to_string();
        assert!(why.contains("; its arguments tell it to save every 2880 steps; look at"), "{why}");
        tell(&mut f, "100");
        check(&mut f, 0, &[(3.9, TICKET), (4.1, PAGE)]);
        tell(&mut f, "1000000");
        check(&mut f, 0, &[(23.9, TICKET), (24.1, PAGE)]);
        // It saved once, after six hours, whatever it is told.
        f.checkpoints.steps.push_back(2161);
        (f.checkpoints.last_at, f.checkpoints.last_step) = (Some(Ts(0)), Some(2161));
        check(&mut f, 2160, &[(8.9, TICKET), (9.1, PAGE)]);
        f.checkpoints.failure = Some((Ts(0), "disk full".to_owned()));
        check(&mut f, 2160, &[(1.9, TICKET), (2.1, PAGE)]);
    }

    #[test]
    fn without_a_number_of_gpus_the_time_counts() {
        assert_eq!(worst(&unsaved(None, 23.9)), None);
        let mut f = unsaved(None, 24.0);
        let why = look(&mut CkptStale::default(), &f)[0].why.to_string();
        assert!(why.contains("1d 0h of work would be lost; ") && !why.contains("GPU"), "{why}");
        for (hours, want) in [(71.9, TICKET), (72.0, PAGE)] {
            work(&mut f, hours);
            assert_eq!(worst(&f), want, "{hours}");
        }
        f.labels.clear();
        assert_eq!(worst(&f), None, "nobody would see a save");
    }

    #[test]
    fn a_first_save_that_fails_or_does_not_end_is_a_page() {
        let mut f = unsaved(Some(64), 15.0);
        f.checkpoints.failure = Some((Ts(0), "disk full".to_owned()));
        assert_eq!(worst(&f), TICKET, "960 GPU hours");
        work(&mut f, 16.0);
        assert_eq!(worst(&f), PAGE);
        let mut f = unsaved(Some(64), 16.0);
        f.labels.clear();
        for (minutes, want) in [(29, TICKET), (30, PAGE)] {
            f.checkpoints.in_progress = Some(Ts(1000 * 60 * (16 * 60 - minutes)));
            assert_eq!(worst(&f), want, "{minutes} minutes");
        }
        let why = look(&mut CkptStale::default(), &f)[0].why.to_string();
        assert!(why.contains("; the first one has been running for 30m; 16h of work"), "{why}");
    }

    #[test]
    fn a_run_whose_saves_nobody_would_see_is_not_judged() {
        let mut f = unsaved(Some(1024), 100.0);
        f.labels.clear();
        assert_eq!(worst(&f), None, "a log that prints no saves");
        f.labels.insert(hello::SAVES.to_owned(), hello::ALL.to_owned());
        assert_eq!(worst(&f), PAGE, "one that does");
        f.labels.insert(hello::SAVES.to_owned(), hello::MOST.to_owned());
        assert_eq!(worst(&f), TICKET, "one that prints most of them");
        let why = look(&mut CkptStale::default(), &f)[0].why.to_string();
        let end = "; its log prints saves, but not of all sorts, and shows none; look at whether and where the \
                   trainer saves";
        assert!(why.ends_with(end), "{why}");
        f.checkpoints.last_at = Some(Ts(0));
        assert_eq!(worst(&f), PAGE, "it showed one");
        f.checkpoints.last_at = None;
        f.labels = [(CLIENT, "stepwatch-python/0.1.0"), (hello::ROLE, hello::LAUNCHER)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert_eq!(worst(&f), None, "a launcher sees no saves");
    }

    #[test]
    fn a_run_that_is_told_to_save_is_no_page_where_nobody_would_see_it() {
        let mut f = unsaved(Some(1024), 100.0);
        f.labels.clear();
        let mut told = |name: &str, value: &str| {
            f.attempts.setup.values.insert((Aspect::Run, name.to_owned()), value.to_owned());
            worst(&f)
        };
        assert_eq!(told("arg.output_dir", "/ckpt"), None, "it does not say how often");
        assert_eq!(told("arg.save_steps", "0"), None);
        assert_eq!(told("arg.save_steps", "500"), TICKET);
        let why = look(&mut CkptStale::default(), &f)[0].why.to_string();
        let end = "; its arguments tell it to save, but no source would show a save; look at whether it does, and \
                   let an exporter watch the directory of its checkpoints";
        assert!(why.ends_with(end), "{why}");
        f.checkpoints.last_at = Some(Ts(0));
        assert_eq!(worst(&f), PAGE, "one was seen");
    }

    #[test]
    fn a_run_that_has_a_checkpoint_somewhere_has_saved() {
        let mut f = unsaved(Some(1024), 100.0);
        f.attempts.first_step = Some(5001);
        assert_eq!(worst(&f), None, "it goes on from a checkpoint, or was found under way");
        f.interval = 5001;
        assert_eq!(worst(&f), PAGE, "its first line");
        let mut f = unsaved(Some(1024), 100.0);
        f.checkpoints.last_at = Some(Ts(-1000));
        assert_eq!(worst(&f), PAGE, "one was found, and since then it saved none");
        let mut f = unsaved(Some(1024), 100.0);
        f.phase_begin(Ts(0), "ckpt", 1);
        assert_eq!(worst(&f), PAGE);
        f.phase_end(Ts(5000), "ckpt", 1);
        assert_eq!(worst(&f), None, "its saves are phases");
        f.checkpoints.failure = Some((Ts(0), "disk full".to_owned()));
        assert_eq!(worst(&f), PAGE, "of ranks that do not write");
        let mut f = unsaved(Some(1024), 100.0);
        f.phase_begin(Ts(0), "load_checkpoint", 1);
        f.phase_end(Ts(5000), "load_checkpoint", 1);
        assert_eq!(worst(&f), PAGE, "the weights that it began with are no save");
    }

    #[test]
    fn it_ends_with_the_first_save_and_with_a_restart() {
        let ends = |change: &dyn Fn(&mut RunState)| {
            let (mut detector, mut f) = (CkptStale::default(), unsaved(Some(64), 10.0));
            assert_eq!(look(&mut detector, &f).len(), 1);
            work(&mut f, 11.0);
            f.labels.clear();
            assert!(look(&mut detector, &f).is_empty(), "nothing is said twice");
            work(&mut f, 0.0);
            change(&mut f);
            let found = look(&mut detector, &f);
            assert!(look(&mut detector, &f).is_empty());
            found.iter().map(|v| (v.change, v.why.to_string())).collect::<Vec<_>>()
        };
        let clear = |why: &str| [(Change::Clear, why.to_owned())];
        let saved = ends(&|f| f.checkpoints.last_at = Some(Ts(36_000_000)));
        assert_eq!(saved, clear("a checkpoint was written"));
        assert_eq!(ends(&|_| {}), clear("the run began anew, and what it had not saved is lost"));
    }
}
