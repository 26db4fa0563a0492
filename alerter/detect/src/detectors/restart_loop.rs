//! Detects a restart loop: one attempt after another ends, and none gets further than the run was.
//!
//! An attempt makes progress if it makes a step beyond the newest checkpoint that existed when it
//! began, and beyond the last step of the attempts before it: the steps in between are lost with
//! each restart. It also makes progress if it saves a newer checkpoint. Three attempts in a row
//! without progress are a page: a launcher restarts the run as often as it is told to, and each
//! time the GPUs work for nothing. An attempt counts as soon as it has ended, also one that died
//! before its first step. Where neither a step nor a checkpoint of the run is known, attempts that
//! made no step at all count.
//!
//! These ends do not count, and do not interrupt the row either:
//!
//! * that of an attempt which announced it (`maintenance`), whose processes ended well or were
//!   stopped, or whose log ended without a word;
//! * one that nobody reported, if the next attempt has another number of processes: an elastic job
//!   was resized;
//! * one that nobody reported, if no process began after it: the trainer counts its steps anew, as
//!   some do in each epoch.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::failures::{course, failures};
use crate::run::{Attempt, AttemptEnd, Ended, RunState, Topic};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Clause, Course, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Attempts in a row without progress that page: an engineering limit, 2 at least.
    pub attempts: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, attempts: 3 }
    }
}

/// The fewest attempts that are a row, and the fewest that have a failure in common.
const ROW: u32 = 2;
const COMMON: usize = 2;
/// How long after a death without a step the attempt counts as over, though no process has begun
/// since: as long as a launcher gets to restart the run before a dead rank pages.
const SETTLED: Span = Span::secs(30);
/// The last failures that are kept, and the most characters of each.
const KEPT: usize = 8;
const MAX_TEXT: usize = 200;
/// Words of so many characters with a digit in them differ from failure to failure: process ids,
/// addresses, sizes and steps. Shorter ones are mostly exit codes and ranks.
const VARIES: usize = 4;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RestartLoop {
    /// The attempt that is watched, and its ends that were judged: after its own, those of attempts
    /// that made no step.
    attempt: u32,
    ends: u32,
    /// When an end was judged last.
    judged_at: Ts,
    /// The processes of the attempt when it began.
    world: Option<u32>,
    /// The last step of the last attempt that made progress.
    reached: Option<i64>,
    /// The newest checkpoint that existed when the attempt began.
    checkpoint: Option<i64>,
    futile: Option<Box<Futile>>,
}

/// Attempts in a row that made no progress.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Futile {
    attempts: u32,
    /// When the first of them began.
    since: Ts,
    /// The first failures of the last ones, as far as they are known.
    failures: VecDeque<Failed>,
    raised: bool,
}

/// The first failure of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Failed {
    place: Target,
    at: Ts,
    text: String,
    course: Course,
}

/// An attempt that is over.
#[derive(Debug)]
struct Over {
    began: Ts,
    last_step: Option<i64>,
    how: How,
    failure: Option<Failed>,
}

/// What the end of an attempt says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Failed,
    /// It was stopped on purpose.
    Excused,
    /// It did what it was for. The next one may begin from scratch.
    Completed,
}

impl How {
    fn of(ended: &Ended) -> Self {
        match ended.code {
            0 => Self::Completed,
            _ if ended.well() => Self::Excused,
            _ => Self::Failed,
        }
    }
}

impl Failed {
    fn new(place: Target, at: Ts, text: &str, course: Course) -> Self {
        Self { place, at, text: text.chars().take(MAX_TEXT).collect(), course }
    }

    /// The first failure of the current attempt.
    fn first(f: &RunState) -> Option<Self> {
        let first = failures(f).into_iter().next()?;
        Some(Self::new(first.place, first.at, &first.text, first.course))
    }

    /// That of an attempt without a step, by reports since the end of the one before.
    fn without_step(f: &RunState, since: Ts) -> Option<Self> {
        let words = f.attempts.ends.first_failure();
        let died = words.map(|w| Self::new(f.rank_target(w.rank), w.at, &w.text, w.course));
        let reports = f.reports.about(Topic::TorchelasticError).filter(|r| r.at > since);
        let reported = reports.map(|r| {
            let place = r.rank.map_or_else(|| r.place(), |rank| f.rank_target(rank));
            Self::new(place, r.when, &r.text, r.course())
        });
        // The exception is more informative than the exit code.
        reported.chain(died).min_by_key(|one| one.course)
    }

    fn is_like(&self, other: &Self) -> bool {
        self.text == other.text || words(&self.text).eq(words(&other.text))
    }
}

/// The words of a failure, without those that differ each time.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let varies = |word: &str| word.len() >= VARIES && word.bytes().any(|byte| byte.is_ascii_digit());
    text.split_whitespace().map(move |word| if varies(word) { "" } else { word })
}

impl Over {
    /// An attempt that was noticed to be over when another made a step.
    fn replaced(f: &RunState, a: &Attempt, resized: bool) -> Self {
        let begun_since = f.attempts.greeted_at.is_some_and(|at| at > a.ended);
        let (how, failure) = match &a.end {
            AttemptEnd::Failed { place, text } => {
                (How::Failed, Some(Failed::new(place.clone(), a.ended, text, course(text))))
            }
            AttemptEnd::Exited { code, .. } => {
                (How::of(&Ended { at: a.ended, code: *code, text: None, silent: false }), None)
            }
            AttemptEnd::Silent => (How::Completed, None),
            // The same process counts its steps anew, as in each epoch.
            AttemptEnd::Unreported if !begun_since => (How::Completed, None),
            AttemptEnd::Unreported => (if resized { How::Excused } else { How::Failed }, None),
        };
        Self { began: a.began, last_step: a.last_step, how, failure }
    }
}

impl Futile {
    fn new(since: Ts) -> Self {
        Self { attempts: 0, since, failures: VecDeque::new(), raised: false }
    }

    fn add(&mut self, failure: Option<Failed>) {
        self.attempts = self.attempts.saturating_add(1);
        if self.failures.len() == KEPT {
            self.failures.pop_front();
        }
        self.failures.extend(failure);
    }

    /// What is to be said of them: first that there are enough, and then that there are twice as
    /// many as when it was said last.
    fn news(&mut self, c: &Config) -> Option<Change> {
        let enough = c.attempts.max(ROW);
        if self.attempts < enough {
            return None;
        }
        if !self.raised {
            self.raised = true;
            return Some(Change::Raise);
        }
        let times = self.attempts / enough;
        (self.attempts.is_multiple_of(enough) && times.is_power_of_two()).then_some(Change::More)
    }

    /// The failure that most of them have in common, as the last of these put it, and how many do.
    fn common(&self) -> Option<(usize, &Failed)> {
        let alike = |one: &Failed| self.failures.iter().filter(|other| other.is_like(one)).count();
        let counted = self.failures.iter().map(|one| (alike(one), one));
        counted.filter(|(times, _)| *times >= COMMON).max_by_key(|(times, _)| *times)
    }

    /// Where all of these failed: a rank, or different ranks of a node.
    fn common_place(&self, common: &Failed) -> Option<Target> {
        let alike: Vec<&Failed> = self.failures.iter().filter(|one| one.is_like(common)).collect();
        // A rank that failed because of another says nothing of its place.
        if common.course == Course::Followed {
            return None;
        }
        if alike.iter().all(|one| one.place == common.place) {
            return Some(common.place.clone());
        }
        let node = common.place.on_node()?;
        alike.iter().all(|one| one.place.on_node() == Some(node)).then(|| Target::node(node))
    }

    fn finding(&self, view: RunAt<'_>, passed: Option<i64>, change: Change) -> Finding {
        let none = match passed {
            Some(step) => clause!("none got beyond step {step}", step = Fact::Step(step)),
            None => clause!("none made a step"),
        };
        let mut why = Sentence::from(clause!(
            "{attempts} attempts in a row ended without progress in {lasted}: {none}",
            attempts = self.attempts,
            lasted = view.now - self.since,
            none,
        ));
        why.add(match view.run.checkpoints.last_step {
            Some(step) => {
                clause!("the newest checkpoint is of step {checkpoint}", checkpoint = Fact::Step(step))
            }
            None => clause!("no checkpoint of it is known"),
        });
        let mut suspects = Vec::new();
        if let Some((times, first)) = self.common() {
            let (at, words, course) = (first.at, first.text.clone(), first.course);
            let place = self.common_place(first);
            let whose = place.clone().map(|place| clause!(", {place} first", place));
            why.add(clause!(
                "{times} of them failed alike{whose}: {text}",
                times,
                whose,
                text = words.clone()
            ));
            if let Some(place) = place {
                why.name(place.clone());
                suspects.push(Suspect::new(place, Observation::FailedFirst { at, words, course }));
            }
        }
        Finding {
            start_step: passed.unwrap_or(0),
            value: f64::from(self.attempts),
            score: f64::from(self.attempts),
            why,
            suspects,
            ..view.finding(Kind::RestartLoop, "process", change, Severity::Page)
        }
    }
}

impl RestartLoop {
    /// The step that an attempt must pass; `None` if any step is progress.
    fn furthest(&self) -> Option<i64> {
        self.reached.max(self.checkpoint)
    }

    fn is_progress(&self, f: &RunState, last_step: Option<i64>) -> bool {
        let passed = last_step.is_some() && last_step > self.furthest();
        passed || f.checkpoints.last_step > self.checkpoint
    }

    /// The row of attempts without progress is over.
    fn end(&mut self, view: RunAt<'_>, why: Clause, out: &mut Vec<Finding>) {
        if self.futile.take().is_some_and(|had| had.raised) {
            let cleared = view.finding(Kind::RestartLoop, "process", Change::Clear, Severity::Info);
            out.push(Finding { why: why.into(), ..cleared });
        }
    }

    fn judge(&mut self, c: &Config, view: RunAt<'_>, one: Over, out: &mut Vec<Finding>) {
        let f = view.run;
        // An announcement excuses the one end that comes after it.
        let planned = f.attempts.planned_at > Some(self.judged_at);
        if one.how == How::Completed {
            self.reached = None;
            self.end(view, clause!("an attempt ended well"), out);
        } else if self.is_progress(f, one.last_step) {
            self.reached = one.last_step.max(f.checkpoints.last_step);
            self.end(view, clause!("an attempt made progress"), out);
        } else if one.how == How::Failed && !planned {
            let passed = self.furthest();
            let futile = self.futile.get_or_insert_with(|| Box::new(Futile::new(one.began)));
            futile.add(one.failure);
            if let Some(change) = futile.news(c) {
                out.push(futile.finding(view, passed, change));
            }
        }
        // An attempt that began anew left all behind: its first checkpoint is no progress.
        self.checkpoint = f.checkpoints.last_step.or(self.checkpoint);
        self.judged_at = view.now;
    }

    /// Judges the attempts that a later one has replaced.
    fn replaced(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        if f.attempt == self.attempt {
            return;
        }
        let resized = self.world.zip(f.world).is_some_and(|(had, has)| had != has);
        let (watched, is_judged) = (self.attempt, self.ends > 0);
        for a in f.attempts.past.iter().filter(|a| a.number >= watched) {
            if a.number > watched || !is_judged {
                self.judge(c, view, Over::replaced(f, a, resized), out);
            }
        }
        (self.attempt, self.ends, self.world) = (f.attempt, 0, None);
    }

    /// Judges the attempts that have ended since the last step.
    fn ended(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        let ends = &f.attempts.ends;
        let is_over = f.ended.is_some() || ends.began_again() || now >= settled_at(f);
        let over = ends.count().saturating_sub(u32::from(!is_over));
        while self.ends < over {
            let own = self.ends == 0 && f.attempt_steps > 0;
            self.ends += 1;
            let one = Over {
                began: if own { f.attempt_at } else { ends.at() },
                last_step: f.last_step.filter(|_| own),
                how: match (ends.first_failure(), &f.ended) {
                    (Some(_), _) => How::Failed,
                    (None, Some(ended)) if own => How::of(ended),
                    (None, _) => How::Excused,
                },
                failure: if own { Failed::first(f) } else { Failed::without_step(f, self.judged_at) },
            };
            if one.how != How::Failed && self.futile.as_ref().is_some_and(|futile| futile.raised) {
                self.end(view, clause!("the run was ended"), out);
            }
            self.judge(c, view, one, out);
        }
    }
}

/// When the last attempt that ended counts as over, if none begins before.
fn settled_at(f: &RunState) -> Ts {
    f.attempts.ends.at().max(f.last_progress).max(f.live_since) + SETTLED
}

impl ClockDetector for RestartLoop {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        if !c.enabled {
            (self.attempt, self.ends) = (f.attempt, f.attempts.ends.count());
            return;
        }
        self.replaced(c, view, out);
        self.world = self.world.or(f.world);
        let saved = &f.checkpoints;
        if saved.last_at.is_some_and(|at| at < f.attempt_at) {
            self.checkpoint = saved.last_step;
        }
        // A step shows that the attempt goes on.
        self.ends = self.ends.min(f.attempts.ends.count());
        if self.ends == 0 && self.is_progress(f, f.last_step) {
            self.end(view, clause!("the run makes progress"), out);
        }
        self.ended(c, view, out);
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        let waits = c.enabled && f.ended.is_none() && f.attempts.ends.count() > self.ends;
        waits.then(|| settled_at(f))
    }
}

#[cfg(test)]
mod tests;
