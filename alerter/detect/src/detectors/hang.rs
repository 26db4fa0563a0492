//! No step for much longer than this run's steps take.
//!
//! Deadline: `max(floor, k·p99(step interval), min(3·p, p + 10 min))` with p the longest pause
//! survived and k = 5 for every-step logs (the safety factor of NVIDIA's resiliency extension, docs
//! "heartbeats") falling to 1.5 where a line covers many steps. A declared checkpoint or evaluation
//! gets 3 times its longest run. Half an hour is allowed until the pace is known; a start is judged
//! in `starting`, and what has only a launcher is no page. Runs whose trainers declare their phases
//! page at the deadline. Others may be in an undeclared evaluation: they get a ticket after
//! `undeclared_ticket` and the page after `undeclared_floor`. In the first hour that such a run is
//! watched it may not have shown its evaluations yet: the page waits as long as the run has
//! trained, because an evaluation does not usually take longer than the training between two of
//! them, and three times `undeclared_floor` at most. It waits for 2,000 steps, too: many trainers
//! log their first steps one by one, and then one in hundreds. Until the pace is known, it waits
//! three times as long. As long as most of its GPUs are seen to compute, such a run is in the steps
//! that its log leaves out: then the page waits for all of those steps, six hours at most, and
//! comes `undeclared_floor` after the GPUs stop.
//!
//! A run that pauses at round steps pauses for its evaluations, and now and then for much longer:
//! for a full disk, a slow upload, a machine that was taken away. There the page waits for
//! `round_floor`.
//!
//! Timestamps of a resolution r, which many lines share, show each pause up to r too short or too
//! long: the deadline is 2r later.
//!
//! Evidence of a hang shortens the wait: a report of NCCL that ranks wait, a dump of its flight
//! recorder, or GPUs that all wait in a collective while none computes. An evaluation computes; a
//! rank that saves or scores alone while the others wait for it is done within `waiting`. So a
//! declared evaluation that has lasted longer than any before, or is the first, pages when such
//! evidence has lasted for `waiting`. Without it the first evaluation keeps its half hour: about
//! one in a hundred is longer than that, one in ten is longer than ten minutes, and less than one
//! in a hundred hangs.
//!
//! A node that fell silent as the run stopped, while the others stand, is such evidence too: its
//! host is gone, and the page comes with the ticket. An exporter that is only started anew is back
//! before that.
//!
//! Silence of the telemetry is not silence of the run: nothing is judged without a live source, nor
//! where all ranks whose sources answer have sent a `bye`.

mod meeting;
mod starting;

pub(crate) use meeting::Shown;
pub(crate) use starting::suspects as start_suspects;

use serde::{Deserialize, Serialize};
use stepwatch_model::Unit;

use crate::detector::{ClockDetector, RunAt};
use crate::run::{Rank, RunState, Topic, phase_class};
use crate::sample::StepClass;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Shortest deadline.
    pub floor: Span,
    /// Shortest silence that makes a ticket, and a page, when the trainer has never declared a
    /// phase, a checkpoint or an evaluation: it may be in one.
    pub undeclared_ticket: Span,
    pub undeclared_floor: Span,
    /// The same for the page at a round step, where trainers evaluate and save, of a run that has
    /// paused before.
    pub round_floor: Span,
    /// Before the pace of an attempt is known: loading, compilation, the first checkpoint read.
    pub start: Span,
    /// The shortest start that is too long, where it is known how long they take, and the time that
    /// missing ranks get once most are there.
    pub start_floor: Span,
    /// For a declared checkpoint or evaluation that was never seen to end before.
    pub first_phase: Span,
    /// For an evaluation while all GPUs wait and none computes.
    pub waiting: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            floor: Span::secs(60),
            undeclared_ticket: Span::secs(180),
            undeclared_floor: Span::secs(600),
            round_floor: Span::secs(3600),
            start: Span::secs(1800),
            start_floor: Span::secs(600),
            first_phase: Span::secs(1800),
            waiting: Span::secs(300),
        }
    }
}

/// Samples of an attempt, and of the pace, that make the pace known.
const PACE_SAMPLES: u64 = 20;
const STARTED_SAMPLES: u64 = 3;
/// What a pause may last longer than the longest one survived, in seconds: an engineering limit.
const PAUSE_MARGIN: f64 = 600.0;
/// Time after which a run has made its usual pauses at least once.
const WATCHED: Span = Span::secs(3600);
/// Steps that hardly any trainer leaves between two lines.
const SPARSEST: i64 = 2000;
/// The longest that GPUs which compute put the page off.
const COMPUTING: Span = Span::secs(6 * 3600);
/// Factor of the silence that pages, while the pace is not known: an engineering limit.
const PATIENCE: f64 = 3.0;
/// How long a node must be out of reach to be taken for gone.
const GONE: Span = Span::secs(120);
/// Suspects named one by one; more than that is a group.
const NAMED: usize = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Hang {
    raised: Option<(Severity, Ts)>,
}

/// When each severity is due. What may be no training, or no hang, is no page.
struct Due {
    ticket: Limit,
    page: Option<Limit>,
}

/// A deadline, and what the run was allowed until then.
#[derive(Clone, Copy)]
struct Limit {
    at: Ts,
    allowed: Span,
    why: &'static str,
}

/// What a run that does not move is allowed.
struct Silence {
    since: Ts,
    allowed: Span,
    why: &'static str,
    /// The run would declare what takes it long.
    declared: bool,
}

impl Silence {
    fn of(c: &Config, f: &RunState) -> Option<Self> {
        // A run that never took a step hangs too, in its very first collective. Launchers show that
        // it starts by their logs as well.
        let begun = f.total_steps > 0 || f.greeted || f.starting.is_some();
        if !c.enabled || f.ended.is_some() || f.live.is_empty() || !begun || f.is_over_elsewhere() {
            return None;
        }
        let since = f.last_progress.max(f.last_sign).max(f.live_since);
        let (allowed, why) = Hang::allowed(c, f);
        let declared = f.declares || f.open_phase().is_some() || f.total_steps == 0;
        Some(Self { since, allowed, why, declared })
    }
}

impl Hang {
    fn due(c: &Config, f: &RunState) -> Option<Due> {
        let Silence { since, allowed, why, declared } = Silence::of(c, f)?;
        if let Some(s) = f.run_starts() {
            return starting::due(c, f, s);
        }
        let ticket = Self::ticket(c, f)?;
        if Self::waited(c, f).is_some() {
            let limit = Limit { at: ticket, allowed: ticket - since, why: "while all GPUs wait" };
            return Some(Due { ticket: limit, page: Some(limit) });
        }
        let page = if declared { allowed } else { allowed.max(Self::undeclared_page(c, f, since)) };
        let mut page = since + page;
        if let Some(at) = f.dark().into_iter().map(|(_, at)| at).min() {
            page = page.min(ticket.max(at + GONE));
        }
        // Of a launcher whose process has not spoken, nobody knows what it starts.
        let page = (f.total_steps > 0).then_some(Limit { at: page, allowed, why });
        Some(Due { ticket: Limit { at: ticket, allowed, why }, page })
    }

    /// The first of what is due: asked for at every step.
    fn ticket(c: &Config, f: &RunState) -> Option<Ts> {
        let Silence { since, allowed, declared, .. } = Silence::of(c, f)?;
        if let Some(s) = f.run_starts() {
            return starting::due(c, f, s).map(|due| due.ticket.at);
        }
        if let Some(at) = Self::waited(c, f) {
            return Some(at.min(since + allowed));
        }
        Some(since + if declared { allowed } else { allowed.max(c.undeclared_ticket) })
    }

    /// When a declared evaluation in which no GPU computes has lasted too long.
    fn waited(c: &Config, f: &RunState) -> Option<Ts> {
        let (name, phase, began) = f.open_phase()?;
        let since = f.waiting_since.filter(|at| *at >= f.last_progress)?;
        let longer = began + Span::from_secs_f64(phase.longest);
        (phase_class(name) == Some(StepClass::Eval)).then(|| longer.max(since + c.waiting))
    }

    /// Shortest silence that is a page of a run that declares nothing.
    fn undeclared_page(c: &Config, f: &RunState, since: Ts) -> Span {
        let patient = |span: Span| Span::from_secs_f64(PATIENCE * span.as_secs_f64());
        let dumped = f.reports.about(Topic::FlightRecorderDump).map(|r| r.at);
        let signs = dumped.chain(f.stuck_at).chain(f.waiting_since);
        let has_paused = f.longest_pause.max(f.first_gap) >= PAUSE_MARGIN;
        if signs.max().is_some_and(|at| at >= f.last_progress) {
            c.undeclared_floor
        } else if f.longest_pause >= PAUSE && at_round_step(f) {
            c.round_floor.max(c.undeclared_floor)
        } else if !paced(f) {
            patient(c.start)
        } else if f.last_progress - f.first_seen < WATCHED && !has_paused {
            // By its own count of steps, also of those before the run was watched.
            let trained = Span::from_secs_f64(f.takes(f.last_step.unwrap_or(0).max(SPARSEST)));
            let usual = trained.clamp(c.undeclared_floor, patient(c.undeclared_floor));
            let computed = f.computed_at.filter(|at| *at > since).map(|at| (at + c.undeclared_floor) - since);
            computed.map_or(usual, |computed| usual.max(computed.min(trained).min(COMPUTING)))
        } else {
            c.undeclared_floor
        }
    }

    fn allowed(c: &Config, f: &RunState) -> (Span, &'static str) {
        if let Some((_, phase, _)) = f.open_phase() {
            return (Self::phase(c, phase.longest), "for this phase");
        }
        let paced = Self::paced(c, f);
        if f.checkpoints.in_progress.is_none() {
            return paced;
        }
        // Steps may go on during a save, at their own pace.
        let longest = f.checkpoints.saves.iter().map(|s| s.secs).fold(0.0, f64::max);
        let save = (Self::phase(c, longest), "for a checkpoint");
        if save.0 > paced.0 { save } else { paced }
    }

    /// The time that a phase gets which took so many seconds at most so far, or is new.
    fn phase(c: &Config, longest: f64) -> Span {
        let known = Span::from_secs_f64(3.0 * longest);
        if longest > 0.0 { known.max(c.floor) } else { c.first_phase }
    }

    fn paced(c: &Config, f: &RunState) -> (Span, &'static str) {
        let p99 = f.pace.quantile(0.99).unwrap_or(0.0);
        if !paced(f) {
            // A log that prints every 500th step may take hours to show its pace, above all one
            // that printed every step before.
            let seen = Span::from_secs_f64(3.0 * f.first_gap.max(f.longest_pause).max(p99));
            return (seen.max(c.start), "to start");
        }
        // A line that covers many steps varies less than a step.
        let factor = (1.0 + 4.0 / f.interval as f64).max(1.5);
        // A log does not show why its first two lines were far apart. It may have been an
        // evaluation, and the next one will be as long.
        let seen = if f.heartbeats { f.longest_pause } else { f.longest_pause.max(f.first_gap) };
        // Timestamps of a resolution r show a pause as up to r shorter, and the silence since the
        // last line as up to r longer.
        let coarse = f.time_resolution.secs();
        let seen = seen + coarse;
        let pause = coarse + (3.0 * seen).min(seen + PAUSE_MARGIN);
        let secs = (factor * p99).max(pause);
        (Span::from_secs_f64(secs).max(c.floor), "by its own pace")
    }
}

impl ClockDetector for Hang {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        if let Some((_, at)) = self.raised {
            if f.last_progress > at || f.ended.as_ref().is_some_and(|e| !e.silent) {
                self.raised = None;
                out.push(finding(view, Change::Clear, Severity::Info, clause!("the run moves again")));
                return;
            }
        }
        let Some(due) = Self::due(c, f) else { return };
        let (severity, limit) = match due.page {
            Some(page) if now >= page.at => (Severity::Page, page),
            _ if now >= due.ticket.at => (Severity::Ticket, due.ticket),
            _ => return,
        };
        if self.raised.is_some_and(|(had, _)| had >= severity) {
            return;
        }
        self.raised = Some((severity, self.raised.map_or(now, |(_, at)| at)));
        let starts = f.run_starts();
        let idle = now - starts.map_or(f.last_progress, |s| s.since);
        let why = match starts {
            Some(s) => starting::sentence(f, s, now, &limit),
            None => sentence(f, idle, &limit),
        };
        let mut v = finding(view, Change::Raise, severity, why);
        (v.value, v.expected) = (idle.as_secs_f64(), limit.allowed.as_secs_f64());
        v.score = idle.as_secs_f64() / limit.allowed.as_secs_f64().max(1e-3);
        // Those of a start depend on the nodes of its job: see `start_suspects`.
        v.suspects = if starts.is_none() { suspects(now, f) } else { Vec::new() };
        out.push(v);
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        match self.raised {
            None => Self::ticket(c, f),
            Some((Severity::Page, _)) => None,
            Some(_) => Self::due(c, f)?.page.map(|page| page.at),
        }
    }
}

/// Seconds of a pause that may have been an evaluation.
const PAUSE: f64 = 30.0;
/// Round steps at which trainers evaluate and save, and the lines from one to the next at least:
/// with fewer, any pause would stand beside one.
const ROUND: [i64; 6] = [250, 500, 1000, 2500, 5000, 10_000];
const ROUND_LINES: i64 = 25;

/// The step that is missing, or the one before it or after it, is a round one.
fn at_round_step(f: &RunState) -> bool {
    let round = ROUND.into_iter().find(|r| *r >= f.interval.saturating_mul(ROUND_LINES));
    f.last_step.zip(round).is_some_and(|(last, round)| {
        let next = last.saturating_add(f.interval).saturating_add(1);
        next.div_euclid(round) > (last - 1).div_euclid(round)
    })
}

/// The pace of the run, and of this attempt, is known.
fn paced(f: &RunState) -> bool {
    f.attempt_steps >= STARTED_SAMPLES && f.pace.samples() >= PACE_SAMPLES
}

fn sentence(f: &RunState, idle: Span, limit: &Limit) -> Sentence {
    let coarse = f.time_resolution.secs();
    let usual = f.pace.quantile(0.5).map(|s| {
        let usual = Fact::Seconds(s.into());
        if coarse > 0.0 {
            clause!(
                "the timestamps of its log are {resolution} apart",
                resolution = Fact::Seconds(coarse.into())
            )
        } else if f.interval > 1 {
            clause!("{interval} steps usually take {usual}", interval = f.interval, usual)
        } else {
            clause!("a step usually takes {usual}", usual)
        }
    });
    let phase = f.open_phase().map(|(name, ..)| clause!(" in phase {phase}", phase = Fact::text(name)));
    let at = f.last_step.map(|step| clause!(" after step {step}", step = Fact::Step(step)));
    Sentence::from(clause!("no step for {idle}{at}{phase}", idle, at, phase)).and_perhaps(usual).and(clause!(
        "{allowed} was allowed {basis}",
        allowed = limit.allowed,
        basis = limit.why
    ))
}

/// Ranks that stopped earlier than the others, else ranks that went quiet, else the group as a
/// whole.
fn suspects(now: Ts, f: &RunState) -> Vec<Suspect> {
    let steps = || f.followed().filter(|(_, r)| !r.done).filter_map(|(n, r)| Some((n, r, r.last_step?)));
    let (Some(low), Some(high)) = (steps().map(|s| s.2).min(), steps().map(|s| s.2).max()) else {
        return Vec::new();
    };
    let total = steps().count();
    let named = |list: &[(u32, Option<&str>)], why: Observation| -> Vec<Suspect> {
        let first = list.iter().take(NAMED);
        first.map(|(rank, node)| Suspect::new(Target::rank(*rank, *node), why.clone())).collect()
    };
    if low < high {
        let behind: Vec<_> = steps().filter(|s| s.2 == low).map(|(n, r, _)| (n, r.node.as_deref())).collect();
        if behind.len() * 2 < total {
            return named(&behind, Observation::StoppedEarly { step: low, others: high });
        }
    }
    let silent = |r: &Rank| f.heartbeats && !r.done && (now - r.last_seen) > Span::secs(30);
    let quiet: Vec<_> =
        f.followed().filter(|(_, r)| silent(r)).map(|(n, r)| (n, r.node.as_deref())).collect();
    if !quiet.is_empty() && quiet.len() < total {
        return named(&quiet, Observation::NoHeartbeat { seconds: 30 });
    }
    if total > 1 {
        let why = Observation::AllStopped { ranks: total as u64, step: high };
        return vec![Suspect::new(Target::Fleet(Unit::Ranks), why)];
    }
    Vec::new()
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity, why: impl Into<Sentence>) -> Finding {
    Finding { why: why.into(), ..view.finding(Kind::Hang, "step", change, severity) }
}

#[cfg(test)]
mod tests;
