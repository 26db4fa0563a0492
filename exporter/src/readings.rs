//! Converts numbers that are reported at intervals into steps, for OTLP, statsd and scraped
//! endpoints.
//!
//! These protocols have gauges, counters and histograms, but no steps. Here the readings of one
//! rank at one moment become one step event. A counter gives its growth, and a histogram its mean
//! since the last report. A gauge gives its value if it changed, because every report repeats a
//! gauge that was not set again, and a loss repeated ten times is not ten losses.
//!
//! The number of the step is the first of these: the one in the report (an attribute, a gauge or a
//! counter of steps); the number of measured step durations; the number of reports with news. The
//! last two only keep the order of values, so such an event is marked (`step_from`), and has no
//! time from which step durations could be derived. If another source reports the real steps of the
//! same rank, readings without a step are assigned to its last one.

mod again;
mod names;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind, Value as Json};

pub(crate) use names::{Meaning, Names, check};
pub(crate) use value::Value;

use crate::principal::Principal;
use value::{Gained, Series};

/// The most ranks of one source, and the most bytes of their series. Above it, the rank without
/// reports for longest is dropped, of the largest run of the user with the most.
const MAX_RANKS: usize = 1024;
const MAX_BYTES: usize = 8 << 20;
/// The approximate further bytes of a rank.
const RANK_BYTES: usize = 512;
/// The largest step that a number represents exactly.
const MAX_STEP: f64 = (1u64 << 53) as f64;

/// The key in an event without a given step: what was counted instead.
const STEP_FROM: &str = "step_from";

/// The reporter.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Who {
    pub(crate) run: String,
    pub(crate) rank: u32,
    /// The sender.
    pub(crate) principal: Principal,
    /// Whether the reporter declares that it trains; otherwise its metrics must show it.
    pub(crate) certain: bool,
    pub(crate) world: Option<u32>,
    /// Further facts about the process, for its `hello`.
    pub(crate) about: BTreeMap<String, Json>,
    /// The place of the reporter, as it declares it.
    pub(crate) place: Place,
}

/// Attributes that identify the owner of a report without a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Place {
    /// The attribute in which a user gave the name, if any.
    pub(crate) given: Option<&'static str>,
    pub(crate) job: Option<String>,
    pub(crate) job_name: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) host: Option<String>,
}

/// The report of one rank at one moment.
#[derive(Debug, Default)]
pub(crate) struct Report<'a> {
    /// The Unix time in seconds.
    pub(crate) time: Option<f64>,
    pub(crate) step: Option<i64>,
    pub(crate) readings: Vec<Reading<'a>>,
    /// Whether readings without a step are ignored unless another source reports steps.
    pub(crate) only_with_steps: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Reading<'a> {
    pub(crate) meaning: Meaning<'a>,
    /// Whether the name is known to be about training: a training process may report its memory as
    /// well.
    pub(crate) known: bool,
    pub(crate) value: Value,
}

/// Converts the readings of many ranks into events.
#[derive(Debug)]
pub(crate) struct Readings {
    /// The Unix time in seconds when this began: a total that began later is counted from its
    /// start.
    since: f64,
    ranks: BTreeMap<(String, u32), Rank>,
    /// The bytes of the series of all ranks.
    bytes: usize,
}

#[derive(Debug, Default)]
struct Rank {
    heard: f64,
    /// The last sender.
    principal: Principal,
    /// Whether no report was evaluated yet.
    fresh: bool,
    series: Series,
    step: Option<i64>,
    /// Whether other sources report the steps of this rank.
    follows: bool,
    /// Whether its own reports have steps.
    gives_steps: bool,
    recent: again::Recent,
    /// Whether the sender ever reported a metric that is known to be about training.
    trains: bool,
    /// The number of measured step durations, if they are reported as differences.
    durations: f64,
}

/// The result of a report.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Taken {
    pub(crate) events: Vec<Event>,
    /// The number of readings over a limit.
    pub(crate) dropped: u64,
}

/// The origin of the number of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Given,
    Durations,
    Reports,
    Others,
}

/// The evaluation of one report.
#[derive(Debug, Default)]
struct Sum {
    step: Option<i64>,
    /// The number of measured step durations so far.
    measured: Option<f64>,
    time: Option<f64>,
    m: Vec<(String, f64)>,
    eval: Vec<(String, f64)>,
    /// Whether anything is new.
    changed: bool,
    /// Whether anything new is known to be about training.
    trained: bool,
    dropped: u64,
}

impl<'a> Names {
    /// The reading of a name, with its meaning.
    pub(crate) fn reading(&'a self, name: &'a str, unit: &str, value: Value) -> Reading<'a> {
        match self.known(name, unit) {
            Some(meaning) => Reading { meaning, known: true, value },
            None => Reading { meaning: self.meaning(name, unit), known: false, value },
        }
    }
}

impl Report<'_> {
    /// Whether any name in it is known to be about training.
    pub(crate) fn is_training(&self) -> bool {
        self.readings.iter().any(|r| r.known && matches!(r.meaning, Meaning::Metric(..)))
    }
}

impl Readings {
    pub(crate) fn new(since: f64) -> Self {
        Self { since, ranks: BTreeMap::new(), bytes: 0 }
    }

    /// Evaluates a report. `known` is the last step of the rank from any source.
    pub(crate) fn take(&mut self, who: &Who, report: Report<'_>, known: Option<i64>, now: f64) -> Taken {
        let key = (who.run.clone(), who.rank);
        let mut taken = Taken::default();
        let is_new = !self.ranks.contains_key(&key);
        taken.dropped += self.make_room(usize::from(is_new));
        if !self.ranks.contains_key(&key) {
            taken.events.push(hello(who));
        }
        let since = self.since;
        let rank =
            self.ranks.entry(key).or_insert_with(|| Rank { step: known, fresh: true, ..Rank::default() });
        (rank.heard, rank.principal) = (now, who.principal);
        rank.recent.note(&report);
        let only_with_steps = report.only_with_steps;
        let before = rank.series.bytes();
        let sum = rank.sum(report, since, now);
        self.bytes += rank.series.bytes() - before;
        taken.dropped += sum.dropped;
        if let Some((step, from)) = rank.number(&sum, known, only_with_steps) {
            taken.events.extend(events(who, step, from, sum));
        } else if only_with_steps {
            taken.dropped += sum.m.len() as u64;
        }
        taken
    }

    /// Forgets a rank.
    pub(crate) fn forget(&mut self, who: &Who) {
        self.remove(&(who.run.clone(), who.rank));
    }

    /// Makes room for `more` ranks. Returns how many series were dropped.
    fn make_room(&mut self, more: usize) -> u64 {
        let mut forgotten = 0;
        while self.ranks.len() + more > MAX_RANKS || self.bytes > MAX_BYTES {
            let Some(key) = self.least_missed() else { break };
            forgotten += self.remove(&key);
        }
        forgotten
    }

    /// The rank without reports for longest, of the largest run of the user with the most: one user
    /// must not displace the ranks of others, with any number of runs.
    fn least_missed(&self) -> Option<(String, u32)> {
        let user = largest(self.ranks.values().map(|rank| (rank.principal, rank.size())))?;
        let of_user = || self.ranks.iter().filter(|(_, rank)| rank.principal == user);
        let run = largest(of_user().map(|((run, _), rank)| (run, rank.size())))?;
        let of_run = of_user().filter(|((name, _), _)| name == run);
        of_run.min_by(|(_, a), (_, b)| a.heard.total_cmp(&b.heard)).map(|(key, _)| key.clone())
    }

    fn remove(&mut self, key: &(String, u32)) -> u64 {
        let Some(rank) = self.ranks.remove(key) else { return 0 };
        self.bytes -= rank.series.bytes();
        rank.series.len() as u64
    }
}

/// The key with the largest sum.
fn largest<K: Ord>(sizes: impl Iterator<Item = (K, usize)>) -> Option<K> {
    let mut sums: BTreeMap<K, usize> = BTreeMap::new();
    for (key, size) in sizes {
        *sums.entry(key).or_default() += size;
    }
    sums.into_iter().max_by_key(|(_, sum)| *sum).map(|(key, _)| key)
}

impl Rank {
    fn size(&self) -> usize {
        RANK_BYTES + self.series.bytes()
    }

    fn sum(&mut self, report: Report<'_>, since: f64, now: f64) -> Sum {
        let mut sum = Sum { step: report.step, time: report.time, ..Sum::default() };
        let time = report.time.unwrap_or(now);
        // Before the first step, a gauge at zero was not set.
        let is_zero = |r: &Reading<'_>| r.meaning == Meaning::Step && r.value.number() == Some(0.0);
        let before_the_first = report.step == Some(0) || report.readings.iter().any(is_zero);
        for reading in report.readings {
            let Reading { meaning, known, value } = reading;
            if before_the_first && value == Value::Gauge(0.0) && meaning != Meaning::Step {
                continue;
            }
            match meaning {
                Meaning::Step => sum.step = sum.step.or_else(|| whole(value.number()?)),
                Meaning::Time => sum.time = value.number().filter(|t| *t > 0.0 && t.is_finite()).or(sum.time),
                Meaning::Drop => {}
                Meaning::Eval(name) => match self.series.gain(&format!("eval/{name}"), &value, time, since) {
                    Some(Gained { value, changed: true, .. }) => sum.eval.push((name.into_owned(), value)),
                    Some(_) => {}
                    None => sum.dropped += 1,
                },
                Meaning::Metric(name, divisor) => {
                    let Some(gained) = self.series.gain(&name, &value, time, since) else {
                        sum.dropped += 1;
                        continue;
                    };
                    if name == metric::STEP_TIME {
                        self.measure(&mut sum, &value, &gained);
                    }
                    self.trains |= known;
                    sum.trained |= known && gained.changed;
                    sum.metric(&name, divisor, &value, &gained);
                }
            }
        }
        sum
    }

    /// Counts the steps whose durations were measured.
    fn measure(&mut self, sum: &mut Sum, value: &Value, gained: &Gained) {
        match value {
            Value::Durations { count, cumulative: true, .. } => sum.measured = Some(*count),
            Value::Durations { .. } => {
                self.durations += gained.count;
                sum.measured = Some(self.durations);
            }
            _ => {}
        }
    }

    /// The step of a report; `None` if it has nothing new.
    fn number(&mut self, sum: &Sum, known: Option<i64>, only_with_steps: bool) -> Option<(i64, From)> {
        let before = self.step;
        // The known step is from another source, which reports this rank.
        self.follows |= known.is_some() && known != before;
        // After a restart, the first report of a known step may be a repetition.
        let again = core::mem::take(&mut self.fresh) && known.is_some() && sum.step == known;
        let new = (sum.changed || !sum.eval.is_empty()) && !again;
        if let Some(step) = sum.step {
            (self.step, self.gives_steps) = (Some(step), true);
            return (new || before != Some(step)).then_some((step, From::Given));
        }
        let last = if self.gives_steps { before } else { known.filter(|_| self.follows || only_with_steps) };
        if let Some(last) = last {
            self.step = Some(last);
            return new.then_some((last, From::Others));
        }
        // Training has steps; memory and the like change without any.
        let trained = if self.trains { sum.trained || !sum.eval.is_empty() } else { new };
        if only_with_steps || !trained {
            return None;
        }
        let (step, from) = match sum.measured.and_then(whole) {
            Some(count) => (count, From::Durations),
            None => (before.map_or(1, |step| step.saturating_add(1)), From::Reports),
        };
        self.step = Some(step);
        Some((step, from))
    }
}

impl Sum {
    fn metric(&mut self, name: &str, divisor: f64, value: &Value, gained: &Gained) {
        // A gauge that stays NaN is reported again. The training state checks one that stays too
        // long.
        let watched = matches!(name, metric::LOSS | metric::GRAD_NORM);
        let again = matches!(value, Value::Gauge(v) if watched || v.is_nan());
        if !(gained.changed || again) {
            return;
        }
        let (name, number) = match (name, value) {
            // The rate is over the time between two reports, because the number of steps in it may
            // be unknown.
            (metric::TOKENS, Value::Total { .. } | Value::Increment(_)) => match gained.rate {
                Some(rate) => (metric::TOKENS_PER_SECOND, rate),
                None => return self.changed = true,
            },
            (metric::SKIPPED | metric::NAN_ITERATIONS, Value::Total { .. } | Value::Increment(_)) => {
                (name, gained.growth)
            }
            _ => (name, gained.value / divisor),
        };
        self.changed |= gained.changed;
        if !(gained.unknown || self.m.iter().any(|(n, _)| n == name)) {
            self.m.push((name.to_owned(), number));
        }
    }
}

fn events(who: &Who, step: i64, from: From, sum: Sum) -> Vec<Event> {
    let base = |kind| Event {
        run: Some(who.run.clone()),
        rank: Some(who.rank),
        world: who.world,
        step: Some(step),
        ts: sum.time.filter(|_| from == From::Given),
        ..Event::new(kind)
    };
    let mut all = Vec::with_capacity(2);
    let mut event = base(Kind::Step);
    for (name, value) in &sum.m {
        event.dropped += u32::from(!event.m.set(name, *value));
    }
    let counted = match from {
        From::Given | From::Others => None,
        From::Durations => Some("durations"),
        From::Reports => Some("reports"),
    };
    if let Some(counted) = counted {
        event.extra.insert(STEP_FROM.into(), Json::Text(counted.into()));
    }
    // For another source's step, only values are added.
    if from != From::Others || !event.m.is_empty() {
        all.push(event);
    }
    if !sum.eval.is_empty() {
        let mut event = base(Kind::Eval);
        for (name, value) in &sum.eval {
            event.dropped += u32::from(!event.m.set(name, *value));
        }
        all.push(event);
    }
    all
}

fn hello(who: &Who) -> Event {
    Event {
        run: Some(who.run.clone()),
        rank: Some(who.rank),
        world: who.world,
        extra: who.about.clone(),
        ..Event::new(Kind::Hello)
    }
}

/// Converts a number to a step, if it is one.
pub(crate) fn whole(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && (0.0..=MAX_STEP).contains(&value)).then_some(value as i64)
}
