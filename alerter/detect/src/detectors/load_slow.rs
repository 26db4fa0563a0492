//! Detects nodes that load the checkpoint far longer than the others: all GPUs of the run wait for
//! them.
//!
//! The ranks report the stage `load` of a checkpoint. Those of a node are taken together: it loads
//! until its last rank has ended, and what its ranks read adds up. A rank whose node is unknown
//! stands for itself. Three places at least are compared, and a node is slow when it takes `times`
//! the median, holds the run by `ticket_lost`, and reads fewer bytes a second than the others by
//! the same factor, where sizes are reported: one that only reads more is not slow. If more than
//! half are slow, the work is uneven, and nobody is.
//!
//! A load may be one that all ranks take part in: those that begin early wait for the last one, and
//! all end together. So a node counts from its own start and from the last start of all, and must
//! be slow by both. The run is held from the last end of the other nodes to that of the slow ones,
//! so that nobody is named if all end together. Who holds a collective load from within is not
//! known.
//!
//! A node that still loads counts with the time so far, once at least half of the places have
//! ended, unless the run goes on or a source of it does not answer. What it has read is not known,
//! but where the others report sizes, it reads no faster than the largest of these in its time. A
//! ticket at `ticket_lost`, and a page at `page_lost`. It is over when the run makes steps. Where
//! ranks load several times in one start, only those in the last of these loads are compared. Ranks
//! of an earlier start, and those beyond the size of the run, are left out.
//!
//! Where that names nobody, the load is compared with earlier loads of the run (`earlier.rs`): two
//! at least after which it made steps, and in which a place read about as much or, where sizes are
//! not reported, as many places took part. A place is slow by the same factor and limits, in time
//! and in rate. If all are slow, none of them is a suspect.

mod earlier;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::earlier::History;
use crate::detector::{ClockDetector, RunAt};
use crate::run::{Loads, Moment, RunState, median};
use crate::stats::latch::Latch;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Clause, Fact, Finding, Kind, Num, Observation, Sentence, Severity, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Multiple of the median: an engineering limit.
    pub times: f64,
    /// Time that the whole run must wait for a ticket, and for a page: engineering limits.
    pub ticket_lost: Span,
    pub page_lost: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, times: 2.0, ticket_lost: Span::secs(120), page_lost: Span::secs(600) }
    }
}

/// Fewer places are not compared.
const PLACES: usize = 3;
/// Seconds above the median within which nobody is slow, whatever the settings.
const LEAST: f64 = 1.0;
/// Ends within this time are one end.
const TOGETHER: Span = Span::secs(10);
/// The most nodes named.
const NAMED: usize = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LoadSlow {
    /// None until a load was reported.
    reported: Option<Box<Reported>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Reported {
    /// Of the load that is looked at.
    watch: Option<Watch>,
    history: History,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Watch {
    latch: Latch,
    /// What was last looked at, and when to look again if it does not change.
    seen: Option<Seen>,
    due: Option<Ts>,
}

/// What the judgement depends on, besides the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    reports: u64,
    live_since: Ts,
    is_lost: bool,
    start: Option<Ts>,
}

impl Seen {
    fn of(f: &RunState, loads: &Loads) -> Self {
        let (reports, live_since) = (loads.reports(), f.live_since);
        Self { reports, live_since, is_lost: !f.lost.is_empty(), start: start(f, loads) }
    }
}

/// What one node loads, or one rank of an unknown node.
#[derive(Debug)]
struct Load {
    target: Target,
    /// The longest time of a rank that has ended: from its own start, and from the last one of all.
    secs: f64,
    shared_secs: f64,
    ended: Moment,
    /// Since when a rank loads that has not ended.
    since: Option<Ts>,
    bytes: f64,
    /// Every rank reported how much it read.
    is_sized: bool,
}

impl Load {
    fn took(&self, now: Ts) -> f64 {
        self.since.map_or(self.secs, |since| (now - since).as_secs_f64().max(self.secs))
    }

    /// The same, counted from the last start of all.
    fn took_shared(&self, now: Ts, last_start: Ts) -> f64 {
        let open = self.since.map(|since| (now - since.max(last_start)).as_secs_f64());
        open.map_or(self.shared_secs, |open| open.max(self.shared_secs))
    }

    /// Bytes a second, once it has ended.
    fn rate(&self) -> Option<f64> {
        let is_known = self.is_sized && self.since.is_none() && self.secs > 0.0;
        is_known.then(|| self.bytes / self.secs)
    }
}

/// What is to be said of a load, and for how many seconds it holds the run.
#[derive(Debug)]
struct Found {
    held: f64,
    why: Sentence,
    value: f64,
    expected: f64,
    suspects: Vec<Suspect>,
}

/// All places of a load, compared.
#[derive(Debug)]
struct Compared {
    all: Vec<Load>,
    /// The last start of all, by our clock.
    last_start: Ts,
    /// Since when all ends are heard.
    live_since: Ts,
    /// Seconds and bytes a second of the median.
    usual: f64,
    usual_rate: Option<f64>,
    /// The most bytes that a place loaded which has ended.
    most_bytes: f64,
    /// From how many seconds on a place is slow: since its own start, and since the last one.
    limit: f64,
    shared_limit: f64,
}

impl Compared {
    /// None if too few places have ended.
    fn of(c: &Config, f: &RunState) -> Option<Self> {
        let loads = f.checkpoints.loads()?;
        let (all, last_start) = places(f, loads)?;
        if all.len() < PLACES {
            return None;
        }
        let usual_of = |secs: fn(&Load) -> f64| {
            let mut ended: Vec<f64> = all.iter().filter(|one| one.since.is_none()).map(secs).collect();
            ended.sort_by(f64::total_cmp);
            // Those that still load take longer than all that have ended.
            ended.get((all.len() - 1) / 2).copied()
        };
        let (usual, shared) = (usual_of(|one| one.secs)?, usual_of(|one| one.shared_secs)?);
        let rates: Vec<f64> = all.iter().filter_map(Load::rate).collect();
        let usual_rate = (rates.len() >= all.len() / 2).then(|| median(rates.into_iter()));
        let is_sized = |one: &&Load| one.rate().is_some();
        let most_bytes = all.iter().filter(is_sized).map(|one| one.bytes).fold(0.0, f64::max);
        let beyond = |usual: f64| (c.times * usual).max(usual + c.ticket_lost.as_secs_f64().max(LEAST));
        let (limit, shared_limit) = (beyond(usual), beyond(shared));
        let live_since = f.live_since;
        Some(Self { all, last_start, live_since, usual, usual_rate, most_bytes, limit, shared_limit })
    }

    /// The rate of a place, and the usual one. Of one that still loads it is the highest that it
    /// may have: as much as a place that has ended, in its time so far.
    fn rates(&self, one: &Load, now: Ts) -> Option<[f64; 2]> {
        let took = one.took(now);
        let highest = one.since.filter(|_| took > 0.0).map(|_| self.most_bytes / took);
        Some([one.rate().or(highest)?, self.usual_rate?])
    }

    fn is_slow(&self, c: &Config, one: &Load, now: Ts) -> bool {
        let rates = one.rate().zip(self.usual_rate);
        one.took(now) >= self.limit
            && one.took_shared(now, self.last_start) >= self.shared_limit
            && rates.is_none_or(|(rate, usual)| rate * c.times <= usual)
    }

    /// The slow ones, the slowest first, and for how many seconds the run waits for them alone.
    fn slow(&self, c: &Config, now: Ts) -> Option<(Vec<&Load>, f64)> {
        let mut slow: Vec<&Load> = self.all.iter().filter(|one| self.is_slow(c, one, now)).collect();
        slow.sort_by(|a, b| b.took(now).total_cmp(&a.took(now)));
        let others = self.others(c)?;
        // Of those that still load nothing is known by their own clock.
        let held = |one: &&Load| match one.since {
            Some(_) => now - others.now.max(self.live_since),
            None => one.ended.at - others.at,
        };
        let held = slow.iter().map(held).max()?;
        let is_few = slow.len() <= self.all.len() / 2;
        (is_few && held >= c.ticket_lost.max(TOGETHER)).then(|| (slow, held.as_secs_f64()))
    }

    /// The last end of the others.
    fn others(&self, c: &Config) -> Option<Moment> {
        let is_other = |one: &&Load| one.since.is_none() && !self.is_slow(c, one, Ts(0));
        self.all.iter().filter(is_other).map(|one| one.ended).reduce(Moment::later)
    }

    /// What is wrong with the load, if anything is.
    fn found(&self, c: &Config, view: RunAt<'_>) -> Option<Found> {
        let (slow, held) = self.slow(c, view.now)?;
        let value = slow.first().map_or(0.0, |one| one.took(view.now));
        let suspects = slow.iter().take(NAMED).map(|one| suspect(self, one, view.now)).collect();
        let why = sentence(self, &slow, held, view);
        Some(Found { held, why, value, expected: self.usual, suspects })
    }

    /// When those that still load hold the run for so long.
    fn due(&self, c: &Config, held: Span) -> Option<Ts> {
        let since = self.all.iter().filter_map(|one| one.since).min()?;
        let slow = since + Span::from_secs_f64(self.limit);
        let shared = since.max(self.last_start) + Span::from_secs_f64(self.shared_limit);
        let holds = self.others(c)?.now.max(self.live_since) + held.max(TOGETHER);
        // Milliseconds are rounded, and it must not come too early.
        Some(slow.max(shared).max(holds) + Span::millis(1))
    }
}

/// When the start of the run began, by our clock: what began before it is no load of it.
fn start(f: &RunState, loads: &Loads) -> Option<Ts> {
    f.starting.as_ref().map(|starting| starting.since).max(loads.start())
}

/// The places that load, and the last start of all by our clock.
fn places(f: &RunState, loads: &Loads) -> Option<(Vec<Load>, Ts)> {
    let begins = start(f, loads);
    let is_member = |rank: u32| f.world.is_none_or(|world| rank < world);
    let is_of_start = |began: Ts| begins.is_none_or(|begins| began >= begins);
    let of_run = loads.ranks().filter(|(rank, load)| is_member(*rank) && is_of_start(load.began.now));
    let mut ranks: Vec<_> = of_run.collect();
    let ordinal = ranks.iter().map(|(_, load)| load.ordinal).max()?;
    ranks.retain(|(_, load)| load.ordinal == ordinal);
    let last_start = ranks.iter().map(|(_, load)| load.began).reduce(Moment::later)?;
    let mut places: BTreeMap<(&str, u32), Load> = BTreeMap::new();
    for (rank, load) in ranks {
        let node = f.ranks.get(&rank).and_then(|rank| rank.node.as_deref());
        let place = places.entry(node.map_or(("", rank), |node| (node, 0))).or_insert_with(|| Load {
            target: node.map_or_else(|| f.rank_target(rank), Target::node),
            secs: 0.0,
            shared_secs: 0.0,
            ended: Moment::default(),
            since: None,
            bytes: 0.0,
            is_sized: true,
        });
        if let Some(ended) = load.ended {
            let secs = |since: Ts| (ended.at - since).as_secs_f64();
            let own = secs(load.began.at);
            // One that ended before the last start waited for nobody.
            let shared =
                Some(secs(last_start.at)).filter(|secs| *secs > 0.0).map_or(own, |secs| secs.min(own));
            place.secs = place.secs.max(own);
            place.shared_secs = place.shared_secs.max(shared);
            place.ended = place.ended.later(ended);
        } else {
            let since = load.began.now.max(f.live_since);
            place.since = Some(place.since.map_or(since, |had| had.min(since)));
        }
        place.bytes += load.bytes.unwrap_or(0.0);
        place.is_sized &= load.bytes.is_some();
    }
    Some((places.into_values().collect(), last_start.now))
}

/// Whether the run went on after the load, or has ended.
fn is_over(f: &RunState) -> bool {
    f.ended.is_some() || f.checkpoints.loads().is_none_or(|loads| loads.last() < f.last_progress)
}

/// Whether the end of a load would be known.
fn is_watched(f: &RunState, all: &[Load]) -> bool {
    f.lost.is_empty() || all.iter().all(|one| one.since.is_none())
}

impl Watch {
    fn look(&mut self, c: &Config, history: &History, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        let Some(loads) = f.checkpoints.loads() else { return };
        let seen = Seen::of(f, loads);
        if self.seen == Some(seen) && self.due.is_none_or(|due| now < due) {
            return;
        }
        self.seen = Some(seen);
        // All ranks are gone through only if one of them may be late.
        let earliest = loads.first_end().map(|end| end + c.ticket_lost);
        let may_be_late = earliest.is_some_and(|earliest| now >= earliest);
        let compared = may_be_late.then(|| Compared::of(c, f)).flatten();
        let compared = compared.filter(|compared| is_watched(f, &compared.all));
        let late_at = history.late_at(c, loads);
        let may_be_late = late_at.is_some_and(|late_at| now >= late_at);
        let earlier = may_be_late.then(|| history.compare(c, f, loads)).flatten();
        let earlier = earlier.filter(|earlier| is_watched(f, &earlier.all));
        let by_others = compared.as_ref().and_then(|compared| compared.found(c, view));
        let found = by_others.or_else(|| earlier.as_ref()?.found(c, view));
        if let Some(found) = found {
            self.raise(c, view, found, out);
        }
        let held = if self.latch.is_raised() { c.page_lost } else { c.ticket_lost };
        let next = compared.map_or(earliest, |compared| compared.due(c, held));
        let due = [next, earlier.map_or(late_at, |earlier| earlier.due(held))];
        let is_open = self.latch.severity() != Some(Severity::Page);
        self.due = due.into_iter().flatten().filter(|due| is_open && *due > now).min();
    }

    fn raise(&mut self, c: &Config, view: RunAt<'_>, found: Found, out: &mut Vec<Finding>) {
        let is_long = found.held >= c.page_lost.as_secs_f64();
        let severity = if is_long { Severity::Page } else { Severity::Ticket };
        if !self.latch.raise(severity) {
            return;
        }
        let mut v = finding(view, Change::Raise, severity, found.why);
        (v.value, v.expected, v.suspects) = (found.value, found.expected, found.suspects);
        v.score = if v.expected > 0.0 { v.value / v.expected } else { 0.0 };
        out.push(v);
    }
}

impl ClockDetector for LoadSlow {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        let Some(loads) = f.checkpoints.loads().filter(|_| c.enabled) else { return };
        if is_over(f) {
            let Some(reported) = &mut self.reported else { return };
            let Some(mut watch) = reported.watch.take() else { return };
            if f.ended.is_none() {
                reported.history.add(f, loads);
            }
            if watch.latch.clear() {
                out.push(over(c, view));
            }
            return;
        }
        let Reported { watch, history } = &mut **self.reported.get_or_insert_default();
        watch.get_or_insert_default().look(c, history, view, out);
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        let loads = f.checkpoints.loads().filter(|_| c.enabled && !is_over(f))?;
        // A source that comes or goes is no event of the run.
        let watch = self.reported.as_ref()?.watch.as_ref()?;
        if watch.seen == Some(Seen::of(f, loads)) { watch.due } else { Some(f.live_since) }
    }
}

fn suspect(compared: &Compared, one: &Load, now: Ts) -> Suspect {
    let seen = Observation::LoadsLonger {
        value: Num(one.took(now)),
        expected: Num(compared.usual),
        runs: one.since.is_some(),
        rates: compared.rates(one, now).map(|rates| rates.map(Num)),
    };
    Suspect::new(one.target.clone(), seen)
}

/// ` (375 GB at 0.1 GB/s)`, or ` (at most 0.1 GB/s so far)`
fn pace(compared: &Compared, one: &Load, now: Ts) -> Option<Clause> {
    if one.since.is_some() {
        let [highest, _] = compared.rates(one, now)?;
        let gigabytes_per_second = highest / 1e9;
        return Some(clause!(" (at most {gigabytes_per_second} GB/s so far)", gigabytes_per_second));
    }
    read_at(one)
}

/// ` (375 GB at 0.1 GB/s)`, once it has ended.
fn read_at(one: &Load) -> Option<Clause> {
    let rate = one.rate()?;
    Some(clause!(
        " ({gigabytes} GB at {gigabytes_per_second} GB/s)",
        gigabytes = one.bytes / 1e9,
        gigabytes_per_second = rate / 1e9,
    ))
}

fn sentence(compared: &Compared, slow: &[&Load], held: f64, view: RunAt<'_>) -> Sentence {
    let RunAt { now, run: f } = view;
    let mut all = slow.iter();
    let Some(first) = all.next() else { return Sentence::default() };
    let verb = if first.since.is_some() {
        "has been loading the checkpoint for"
    } else {
        "loaded the checkpoint in"
    };
    let usual_rate = compared
        .usual_rate
        .map(|rate| clause!(" at {gigabytes_per_second} GB/s", gigabytes_per_second = rate / 1e9));
    let statement = clause!(
        "{place} {verb} {took}{pace}, {usual}{usual_rate} is usual among {places}",
        place = first.target.clone(),
        verb,
        took = Span::from_secs_f64(first.took(now)),
        pace = pace(compared, first, now),
        usual = Span::from_secs_f64(compared.usual),
        usual_rate,
        places = compared.all.len(),
    );
    let more = all.len();
    let others: Vec<Clause> = all
        .take(NAMED)
        .map(|one| {
            let (place, took) = (one.target.clone(), Span::from_secs_f64(one.took(now)));
            clause!("{place} {took}{pace}", place, took, pace = pace(compared, one, now))
        })
        .collect();
    let beyond = more.checked_sub(NAMED).filter(|beyond| *beyond > 0);
    let beyond = beyond.map(|beyond| clause!(" and {beyond} more", beyond));
    let others = (more > 0)
        .then(|| clause!("also slow: {others}{beyond}", others = Fact::joined(others, ", "), beyond));
    let why = Sentence::from(statement).and_perhaps(others).and(waits(f, held));
    slow.iter().take(NAMED).fold(why, |why, one| why.naming(one.target.clone()))
}

/// What the wait costs.
fn waits(f: &RunState, held: f64) -> Clause {
    let held_for = Span::from_secs_f64(held);
    match f.gpus() {
        Some(gpus) => clause!(
            "all {gpus} GPUs wait for it, {held} so far: {gpu_hours} GPU hours",
            gpus,
            held = held_for,
            gpu_hours = Fact::decimal(f64::from(gpus) * held / 3600.0, 1),
        ),
        None => clause!("the whole run waits for it, {held} so far", held = held_for),
    }
}

/// The end, with what the run waited, if that is still known.
fn over(c: &Config, view: RunAt<'_>) -> Finding {
    let f = view.run;
    let last = f.checkpoints.loads().map_or(view.now, |loads| loads.last());
    let compared = Compared::of(c, f);
    let slow = compared.as_ref().and_then(|compared| compared.slow(c, last));
    let waited = slow.map(|(_, held)| {
        let held_for = Span::from_secs_f64(held);
        match f.gpus() {
            Some(gpus) => clause!(
                "all {gpus} GPUs waited {held} for it: {gpu_hours} GPU hours",
                gpus,
                held = held_for,
                gpu_hours = Fact::decimal(f64::from(gpus) * held / 3600.0, 1),
            ),
            None => clause!("the whole run waited {held} for it", held = held_for),
        }
    });
    let why = Sentence::from(clause!("the load of the checkpoint is over")).and_perhaps(waited);
    finding(view, Change::Clear, Severity::Info, why)
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity, why: Sentence) -> Finding {
    Finding { why, ..view.finding(Kind::LoadSlow, "load_time", change, severity) }
}

#[cfg(test)]
mod tests;
