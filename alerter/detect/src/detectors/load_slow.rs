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
//! The run is held from the end of the slowest other node to that of the last. A node that still
//! loads counts with the time so far, once at least half of the places have ended, unless the run
//! goes on or a source of it does not answer. A ticket at `ticket_lost`, and a page at `page_lost`.
//! It is over when the run makes steps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::{Loads, RunState, median};
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
/// The most nodes named.
const NAMED: usize = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LoadSlow {
    latch: Latch,
}

/// What one node loads, or one rank of an unknown node.
#[derive(Debug)]
struct Load {
    target: Target,
    /// The longest time of a rank that has ended.
    secs: f64,
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

    /// Bytes a second, once it has ended.
    fn rate(&self) -> Option<f64> {
        let is_known = self.is_sized && self.since.is_none() && self.secs > 0.0;
        is_known.then(|| self.bytes / self.secs)
    }
}

/// All places of a load, compared.
#[derive(Debug)]
struct Compared {
    all: Vec<Load>,
    /// Seconds and bytes a second of the median.
    usual: f64,
    usual_rate: Option<f64>,
    /// From how many seconds on a place is slow.
    limit: f64,
}

impl Compared {
    /// None if too few places have ended.
    fn of(c: &Config, f: &RunState) -> Option<Self> {
        let loads = f.checkpoints.loads()?;
        let all = places(f, loads);
        let mut ended: Vec<f64> = all.iter().filter(|one| one.since.is_none()).map(|one| one.secs).collect();
        ended.sort_by(f64::total_cmp);
        if all.len() < PLACES {
            return None;
        }
        // Those that still load take longer than all that have ended.
        let usual = *ended.get((all.len() - 1) / 2)?;
        let rates: Vec<f64> = all.iter().filter_map(Load::rate).collect();
        let usual_rate = (rates.len() >= all.len() / 2).then(|| median(rates.into_iter()));
        let limit = (c.times * usual).max(usual + c.ticket_lost.as_secs_f64().max(LEAST));
        Some(Self { all, usual, usual_rate, limit })
    }

    fn is_slow(&self, c: &Config, one: &Load, now: Ts) -> bool {
        let rates = one.rate().zip(self.usual_rate);
        one.took(now) >= self.limit && rates.is_none_or(|(rate, usual)| rate * c.times <= usual)
    }

    /// The slow ones, the slowest first, and for how many seconds the run waits for them alone.
    fn slow(&self, c: &Config, now: Ts) -> Option<(Vec<&Load>, f64)> {
        let mut slow: Vec<&Load> = self.all.iter().filter(|one| self.is_slow(c, one, now)).collect();
        slow.sort_by(|a, b| b.took(now).total_cmp(&a.took(now)));
        let held = slow.first()?.took(now) - self.others(c);
        (slow.len() <= self.all.len() / 2 && held >= c.ticket_lost.as_secs_f64()).then_some((slow, held))
    }

    /// The longest time of the others that have ended.
    fn others(&self, c: &Config) -> f64 {
        let is_other = |one: &&Load| one.since.is_none() && !self.is_slow(c, one, Ts(0));
        self.all.iter().filter(is_other).map(|one| one.secs).fold(0.0, f64::max)
    }

    /// When those that still load hold the run for so long.
    fn due(&self, c: &Config, held: Span) -> Option<Ts> {
        let since = self.all.iter().filter_map(|one| one.since).min()?;
        let secs = (self.others(c) + held.as_secs_f64()).max(self.limit);
        // Milliseconds are rounded, and it must not come too early.
        Some(since + Span::from_secs_f64(secs) + Span::millis(1))
    }
}

fn places(f: &RunState, loads: &Loads) -> Vec<Load> {
    let mut places: BTreeMap<(&str, u32), Load> = BTreeMap::new();
    for (rank, load) in loads.ranks() {
        let since = load.since().map(|since| since.max(f.live_since));
        if load.secs.is_none() && since.is_none() {
            continue;
        }
        let node = f.ranks.get(&rank).and_then(|rank| rank.node.as_deref());
        let place = places.entry(node.map_or(("", rank), |node| (node, 0))).or_insert_with(|| Load {
            target: node.map_or_else(|| f.rank_target(rank), Target::node),
            secs: 0.0,
            since: None,
            bytes: 0.0,
            is_sized: true,
        });
        place.secs = place.secs.max(load.secs.unwrap_or(0.0));
        place.since = place.since.into_iter().chain(since).min();
        place.bytes += load.bytes.unwrap_or(0.0);
        place.is_sized &= load.bytes.is_some();
    }
    places.into_values().collect()
}

/// Whether the run went on after the load, or has ended.
fn is_over(f: &RunState) -> bool {
    f.ended.is_some() || f.checkpoints.loads().is_none_or(|loads| loads.last() < f.last_progress)
}

/// Whether the end of a load would be known.
fn is_watched(f: &RunState, compared: &Compared) -> bool {
    f.lost.is_empty() || compared.all.iter().all(|one| one.since.is_none())
}

impl ClockDetector for LoadSlow {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        if !c.enabled {
            return;
        }
        if is_over(f) {
            if self.latch.clear() {
                out.push(over(c, view));
            }
            return;
        }
        let Some(compared) = Compared::of(c, f).filter(|compared| is_watched(f, compared)) else { return };
        let Some((slow, held)) = compared.slow(c, now) else { return };
        let severity = if held >= c.page_lost.as_secs_f64() { Severity::Page } else { Severity::Ticket };
        if self.latch.raise(severity) {
            let mut v = finding(view, Change::Raise, severity, sentence(&compared, &slow, held, view));
            (v.value, v.expected) = (slow.first().map_or(0.0, |one| one.took(now)), compared.usual);
            v.score = if v.expected > 0.0 { v.value / v.expected } else { 0.0 };
            v.suspects = slow.iter().take(NAMED).map(|one| suspect(&compared, one, now)).collect();
            out.push(v);
        }
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        if !c.enabled || is_over(f) || self.latch.severity() == Some(Severity::Page) {
            return None;
        }
        let compared = Compared::of(c, f).filter(|compared| is_watched(f, compared))?;
        compared.due(c, if self.latch.is_raised() { c.page_lost } else { c.ticket_lost })
    }
}

fn suspect(compared: &Compared, one: &Load, now: Ts) -> Suspect {
    let seen = Observation::LoadsLonger {
        value: Num(one.took(now)),
        expected: Num(compared.usual),
        runs: one.since.is_some(),
        rates: one.rate().zip(compared.usual_rate).map(|(rate, usual)| [Num(rate), Num(usual)]),
    };
    Suspect::new(one.target.clone(), seen)
}

/// ` (375 GB at 0.1 GB/s)`
fn pace(one: &Load) -> Option<Clause> {
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
        pace = pace(first),
        usual = Span::from_secs_f64(compared.usual),
        usual_rate,
        places = compared.all.len(),
    );
    let more = all.len();
    let others: Vec<Clause> = all
        .take(NAMED)
        .map(|one| {
            let (place, took) = (one.target.clone(), Span::from_secs_f64(one.took(now)));
            clause!("{place} {took}{pace}", place, took, pace = pace(one))
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
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Run;
    use stepwatch_wire::Event;

    const START: i64 = 1_795_227_416_000;

    /// Four nodes of two ranks each, that load from second 0 on.
    struct Job {
        run: Run,
        secs: i64,
        out: Vec<Finding>,
    }

    impl Job {
        fn new() -> Self {
            let mut job = Self { run: Run::new("r", Ts(START), &Arc::default()), secs: 0, out: Vec::new() };
            for rank in 0..8 {
                job.say(rank, r#""k":"hello","world":8"#).load(rank, "start", "");
            }
            job
        }

        fn say(&mut self, rank: u32, what: &str) -> &mut Self {
            let node = rank / 2;
            let event = format!(r#"{{"run":"r","rank":{rank},"node":"n{node}",{what}}}"#);
            let mut e = Event::parse(event.as_bytes()).unwrap();
            let now = Ts(START + 1000 * self.secs);
            e.ts = Some(now.as_secs_f64());
            self.run.event(now, "n:1", &e, &mut self.out);
            self
        }

        fn load(&mut self, rank: u32, phase: &str, more: &str) -> &mut Self {
            self.say(rank, &format!(r#""k":"ckpt","stage":"load","phase":"{phase}"{more}"#))
        }

        /// These ranks end their loads of so many GB at this second.
        fn end(&mut self, ranks: core::ops::Range<u32>, secs: i64, gigabytes: f64) -> &mut Self {
            self.secs = secs;
            for rank in ranks {
                let bytes = gigabytes * 1e9;
                self.load(rank, "end", &format!(r#","bytes":{bytes}"#));
            }
            self
        }

        fn at(&mut self, secs: i64) -> &mut Self {
            self.secs = secs;
            self.run.look(Ts(START + 1000 * secs), &mut self.out);
            self
        }

        fn due(&self) -> Option<i64> {
            LoadSlow::default().deadline(&Config::default(), &self.run.state).map(|at| at.0 - START)
        }

        fn steps(&mut self) {
            for step in 1..=5 {
                self.secs += 10;
                (0..8).for_each(|rank| {
                    self.say(rank, &format!(r#""k":"step","step":{step},"m":{{"loss":2.0}}"#));
                });
            }
        }

        fn found(&self) -> Vec<&Finding> {
            self.out.iter().filter(|v| v.kind == Kind::LoadSlow).collect()
        }

        fn changes(&self) -> Vec<(Change, Severity)> {
            self.found().into_iter().map(|v| (v.change, v.severity)).collect()
        }
    }

    const TICKET: (Change, Severity) = (Change::Raise, Severity::Ticket);
    const PAGE: (Change, Severity) = (Change::Raise, Severity::Page);
    const CLEAR: (Change, Severity) = (Change::Clear, Severity::Info);

    #[test]
    fn a_node_that_still_loads_is_a_ticket_and_then_a_page() {
        let mut job = Job::new();
        assert_eq!(job.due(), None);
        job.end(0..6, 300, 45.0);
        assert_eq!(job.due(), Some(600_001));
        job.at(599);
        assert!(job.found().is_empty(), "{:?}", job.found());
        job.at(601);
        assert_eq!(job.changes(), [TICKET]);
        assert_eq!(
            job.found()[0].why,
            "node n3 has been loading the checkpoint for 10m 1s, 5m at 0.3 GB/s is usual among 4; all 8 GPUs wait \
             for it, 5m 1s so far: 0.7 GPU hours"
        );
        let suspect = &job.found()[0].suspects[0];
        assert_eq!(
            (suspect.what(), suspect.why()),
            ("node n3".to_owned(), "has been loading the checkpoint for 10m 1s, 5m is usual".to_owned())
        );
        job.at(899).at(900);
        assert_eq!(job.changes(), [TICKET, PAGE]);
        job.end(6..8, 3600, 45.0);
        assert_eq!(job.changes(), [TICKET, PAGE]);
        job.steps();
        assert_eq!(job.changes(), [TICKET, PAGE, CLEAR]);
        assert_eq!(
            job.found()[2].why,
            "the load of the checkpoint is over; all 8 GPUs waited 55m for it: 7.3 GPU hours"
        );
    }

    #[test]
    fn two_hosts_that_took_an_hour_are_named_with_their_rates() {
        let mut job = Job::new();
        job.end(0..4, 360, 360.0).end(4..8, 3600, 360.0);
        let page = job.found()[0];
        assert_eq!((page.severity, page.value, page.expected), (Severity::Page, 3600.0, 360.0));
        let mut job = Job::new();
        job.run.state.source_down(Ts(START), "n:2", None, "refused");
        job.end(0..4, 360, 360.0).end(4..8, 3600, 360.0);
        assert_eq!(job.changes(), [PAGE], "nobody knew before");
        assert_eq!(
            job.found()[0].why,
            "node n2 loaded the checkpoint in 1h (720 GB at 0.2 GB/s), 6m at 2 GB/s is usual among 4; also slow: \
             node n3 1h (720 GB at 0.2 GB/s); all 8 GPUs wait for it, 54m so far: 7.2 GPU hours"
        );
        let suspects: Vec<String> = job.found()[0].suspects.iter().map(|s| s.why()).collect();
        assert_eq!(suspects, ["loaded the checkpoint in 1h, 6m is usual: 0.2 GB/s, usually 2 GB/s"; 2]);
    }

    #[test]
    fn what_is_alike_or_reads_more_is_fine() {
        let mut job = Job::new();
        job.end(0..2, 100, 45.0).end(2..4, 150, 45.0).end(4..6, 190, 45.0).end(6..8, 219, 45.0);
        assert!(job.found().is_empty(), "{:?}", job.found());
        let mut job = Job::new();
        job.end(2..8, 100, 10.0).end(0..1, 110, 10.0).end(1..2, 200, 50.0);
        job.steps();
        assert!(job.found().is_empty(), "less than two minutes: {:?}", job.found());
        let mut job = Job::new();
        job.run.state.source_down(Ts(START), "n:2", None, "refused");
        job.end(2..8, 100, 10.0).end(0..2, 500, 50.0);
        assert!(job.found().is_empty(), "five times as much: {:?}", job.found());
        let mut job = Job::new();
        job.end(0..2, 60, 10.0).end(2..8, 3600, 10.0);
        assert!(job.found().is_empty(), "most are slow: {:?}", job.found());
    }

    #[test]
    fn nothing_is_known_of_a_load_while_the_run_goes_on_or_a_source_is_lost() {
        let mut job = Job::new();
        job.end(0..6, 60, 10.0).steps();
        job.at(2000);
        assert!(job.found().is_empty() && job.due().is_none(), "its end was lost: {:?}", job.found());
        let mut job = Job::new();
        job.end(0..6, 60, 10.0).run.state.source_down(Ts(START), "n:2", None, "refused");
        job.at(2000);
        assert!(job.found().is_empty() && job.due().is_none(), "{:?}", job.found());
        job.run.state.source_up(Ts(START + 2_000_000), "n:2");
        assert_eq!(job.due(), Some(2_180_001), "from then on");
    }

    #[test]
    fn fewer_than_three_places_are_not_compared() {
        let mut job = Job { run: Run::new("r", Ts(START), &Arc::default()), secs: 0, out: Vec::new() };
        (0..4).for_each(|rank| {
            job.load(rank, "start", "");
        });
        job.end(0..2, 60, 10.0).end(2..4, 3600, 10.0);
        assert!(job.found().is_empty(), "{:?}", job.found());
    }
}
