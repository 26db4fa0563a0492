//! A rank that computes longer than its peers, and the other reasons for which a step waits for its slowest rank.
//!
//! [`crate::run::sections`] compares ranks of one pipeline stage by the time that they compute. Three pictures are told apart, as in
//! "Understanding stragglers in large model training" (OSDI 2025):
//! * *persistent*: one rank is slow in 5 of its last 8 steps, by more than 10 % and 6 sigmas in each and on average: its host or GPU. 5 %
//!   are enough where it lasts for 32 steps. A few ranks only: where a quarter are slow, the work is uneven.
//! * *rotating*: each step loses time to its slowest rank, and that is another one each time (normalised entropy of who was slowest above
//!   0.6, the same one twice running in less than a fifth). Pauses of about one length on ranks that are otherwise alike are
//!   garbage collection; times that are spread over all ranks are sequences of uneven length.
//! * *stage*: the ranks of one stage agree with each other and take longer than those of the other stages: the partitioning.
//!
//! One slow rank is a ticket, and a page when it has held for `page_after`: every GPU of the job waits for it in every step. The others
//! are the researcher's to change, and tickets at most.

use core::fmt::Write as _;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::hang::place;
use crate::detector::ClockDetector;
use crate::message::number;
use crate::run::Facts;
use crate::run::sections::{Group, Member, SEEN, Sections};
use crate::time::{Span, Ts};
use crate::verdict::{Change, Kind, Severity, Suspect, Verdict};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Compute time of a rank against its peers that is told within 8 steps.
    pub ratio: f64,
    /// The same over 32 steps.
    pub ticket_ratio: f64,
    /// How long one rank may hold back the others before it pages.
    pub page_after: Span,
    /// Share of the compute time that is lost to whichever rank is slowest.
    pub rotating: f64,
    /// Compute time of a stage against the others.
    pub stage: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            ratio: 1.10,
            ticket_ratio: 1.05,
            page_after: Span::secs(600),
            rotating: 0.10,
            stage: 1.25,
        }
    }
}

/// Steps of the short and the long look, and how many of them must be slow.
const SHORT: u32 = 8;
const SHORT_SLOW: u32 = 5;
const LONG: u32 = 32;
const LONG_SLOW: u32 = 24;
/// Standard deviations of the ranks' mean excess.
const FAR: f32 = 6.0;
/// Steps that show who is slowest.
const PICTURE: usize = 16;
const EVENLY: f64 = 0.6;
const REPEATS: f64 = 0.2;
/// It is over at this share of what began it.
const HYSTERESIS: f64 = 0.4;
/// Of the pauses of a collector: spread of their lengths, distance from ranks without one, share that the trainer itself calls so.
const ALIKE: f64 = 0.35;
const APART: f64 = 8.0;
const CALLED_GC: f64 = 0.5;
/// Correlation from which the time of a rank is that of its work.
const FOLLOWS: f64 = 0.6;
/// Ranks named one by one.
const NAMED: usize = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Straggler {
    /// Steps that were judged.
    judged: u64,
    named: BTreeSet<u32>,
    told: Option<Told>,
    /// A stage was told of; it will not change.
    staged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    picture: Picture,
    severity: Severity,
    since: Ts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Picture {
    Stage,
    Rotating,
    Uneven,
    Persistent,
}

impl Straggler {
    fn is_slow(c: &Config, m: &Member, g: &Group) -> bool {
        let far = m.excess > FAR * g.spread;
        let over = |ratio: f64| f64::from(m.excess) > ratio.ln();
        let soon = m.steps >= SHORT && m.slow.of(SHORT) >= SHORT_SLOW && over(c.ratio);
        let later = m.steps >= LONG && m.slower.of(LONG) >= LONG_SLOW && over(c.ticket_ratio);
        far && (soon || later)
    }

    /// The ranks that are slow now, and were found so.
    fn persistent(&self, c: &Config, s: &Sections) -> BTreeSet<u32> {
        let slow = s.members.iter().filter(|(rank, m)| {
            let held = self.named.contains(rank) && m.slower.of(SHORT) > 0;
            held || s.groups.get(&m.stage).is_some_and(|g| Self::is_slow(c, m, g))
        });
        slow.map(|(rank, _)| *rank).collect()
    }

    /// The stage that loses most to whichever rank is slowest, and what share of its time that is.
    fn rotating<'a>(&self, c: &Config, s: &'a Sections) -> Option<(u32, &'a Group, f64)> {
        let known = self.told.is_some_and(|t| t.picture == Picture::Rotating);
        let bound = c.rotating * if known { HYSTERESIS } else { 1.0 };
        let loses = |(stage, g): (&u32, &'a Group)| {
            let n = g.peak.len();
            let lost = g.peak.iter().sum::<f64>() / n.max(1) as f64;
            let (evenness, repeats) = g.rotation();
            let rotates = n >= PICTURE && evenness > EVENLY && repeats < REPEATS;
            (rotates && lost > bound).then_some((*stage, g, lost))
        };
        s.groups.iter().filter_map(loses).max_by(|a, b| a.2.total_cmp(&b.2))
    }

    fn judge(&mut self, c: &Config, now: Ts, f: &Facts, out: &mut Vec<Verdict>) {
        let s = &f.sections;
        let slow = self.persistent(c, s);
        let few = slow.len() <= (s.members.len() / 4).max(1);
        if !slow.is_empty() {
            let picture = if few { Picture::Persistent } else { Picture::Uneven };
            let news = slow.iter().any(|rank| !self.named.contains(rank));
            self.named = slow;
            if news || self.told.is_none_or(|t| t.picture < picture) {
                let why = if few { who(f, &self.named) } else { split(s, &self.named) };
                self.tell(c, now, f, picture, why, out);
            }
            return;
        }
        self.named.clear();
        if let Some((stage, group, lost)) = self.rotating(c, s) {
            if self.told.is_none_or(|t| t.picture != Picture::Rotating) {
                self.tell(c, now, f, Picture::Rotating, rotation(stage, s, group, lost), out);
            }
            return;
        }
        let still = 1.0 + HYSTERESIS * (c.stage - 1.0);
        let staged = self.told.is_some_and(|t| t.picture == Picture::Stage);
        if staged && s.longest_stage().is_some_and(|(_, ratio)| ratio > still) {
            return;
        }
        if self.told.take().is_some() {
            let mut v = verdict(now, f, Change::Clear, Severity::Info);
            v.why = "the ranks compute equally long again".into();
            out.push(v);
        }
        self.stage(c, now, f, out);
    }

    fn stage(&mut self, c: &Config, now: Ts, f: &Facts, out: &mut Vec<Verdict>) {
        let full = f.sections.groups.values().all(|g| g.peak.len() >= SEEN);
        let longest = f.sections.longest_stage().filter(|_| full && !self.staged);
        let Some((stage, ratio)) = longest.filter(|(_, ratio)| *ratio > 1.10) else { return };
        self.staged = true;
        let severity = if ratio > c.stage { Severity::Ticket } else { Severity::Info };
        let change = if severity == Severity::Info { Change::Note } else { Change::Raise };
        let mut v = verdict(now, f, change, severity);
        (v.value, v.score) = (ratio, ratio);
        let why = format!(
            "the ranks of stage {stage} compute {} times as long as those of the other stages, and agree with each other: the layers are \
             not evenly partitioned",
            number(ratio)
        );
        v.suspects = vec![Suspect { what: format!("stage {stage}"), why: why.clone() }];
        v.why = why;
        out.push(v);
        if change == Change::Raise {
            self.told = Some(Told { picture: Picture::Stage, severity, since: now });
        }
    }

    fn tell(
        &mut self,
        c: &Config,
        now: Ts,
        f: &Facts,
        picture: Picture,
        why: String,
        out: &mut Vec<Verdict>,
    ) {
        let had = self.told.filter(|t| t.picture == picture);
        let since = had.map_or(now, |t| t.since);
        let page = picture == Picture::Persistent && now >= since + c.page_after && self.is_costly(c, f);
        let severity = if page { Severity::Page } else { Severity::Ticket };
        self.told =
            Some(Told { picture, severity: had.map_or(severity, |t| t.severity.max(severity)), since });
        let mut v = verdict(now, f, Change::Raise, severity);
        v.why = why;
        v.suspects = self.suspects(f, picture);
        if let Some((_, worst)) = worst(f, &self.named) {
            v.value = f64::from(worst.excess).exp();
            v.score = worst.drift.level();
            v.start_step = worst.drift.onset().min(v.step);
        } else if let Some((_, _, lost)) = self.rotating(c, &f.sections) {
            (v.value, v.score) = (1.0 + lost, lost / c.rotating);
        }
        out.push(v);
    }

    fn is_costly(&self, c: &Config, f: &Facts) -> bool {
        worst(f, &self.named).is_some_and(|(_, m)| f64::from(m.excess) > c.ratio.ln())
    }

    fn suspects(&self, f: &Facts, picture: Picture) -> Vec<Suspect> {
        match picture {
            Picture::Persistent => {
                ranked(f, &self.named).take(NAMED).map(|(rank, m)| suspect(f, rank, m)).collect()
            }
            Picture::Uneven => vec![no_host("many ranks are slow alike: look at how the work is split")],
            Picture::Rotating => {
                vec![no_host("the slowest rank changes from step to step: look at the work, not at a host")]
            }
            Picture::Stage => Vec::new(),
        }
    }
}

fn no_host(why: &str) -> Suspect {
    Suspect { what: "no single rank".into(), why: why.into() }
}

/// Slowest first.
fn ranked<'a>(f: &'a Facts, named: &BTreeSet<u32>) -> impl Iterator<Item = (u32, &'a Member)> {
    let mut all: Vec<_> =
        named.iter().filter_map(|rank| Some((*rank, f.sections.members.get(rank)?))).collect();
    all.sort_by(|a, b| b.1.excess.total_cmp(&a.1.excess).then(a.0.cmp(&b.0)));
    all.into_iter()
}

fn worst<'a>(f: &'a Facts, named: &BTreeSet<u32>) -> Option<(u32, &'a Member)> {
    ranked(f, named).next()
}

fn peers(f: &Facts, m: &Member) -> String {
    let others = f.sections.groups.get(&m.stage).map_or(0, |g| g.ranks.saturating_sub(1));
    let stage = if f.sections.groups.len() > 1 { format!(" of stage {}", m.stage) } else { String::new() };
    match others {
        1 => format!("the other rank{stage}"),
        _ => format!("the other {others} ranks{stage}"),
    }
}

/// A rank and what sets it apart, for a list of suspects.
pub(crate) fn suspect(f: &Facts, rank: u32, m: &Member) -> Suspect {
    let why = format!(
        "computes {} times as long as {} since step {}",
        number(f64::from(m.excess).exp()),
        peers(f, m),
        m.drift.onset()
    );
    Suspect { what: at(f, rank), why }
}

pub(crate) fn at(f: &Facts, rank: u32) -> String {
    let r = f.ranks.get(&rank);
    let node = r.and_then(|r| r.node.as_deref());
    let gpu = r.filter(|_| node.is_some()).and_then(|r| r.local_rank);
    let gpu = gpu.map(|n| format!(" (local rank {n})")).unwrap_or_default();
    format!("{}{gpu}", place(rank, node))
}

fn who(f: &Facts, named: &BTreeSet<u32>) -> String {
    let Some((rank, m)) = worst(f, named) else { return String::new() };
    let ratio = f64::from(m.excess).exp();
    let secs = f.sections.groups.get(&m.stage).map_or(0.0, |g| g.secs);
    let mut why = format!(
        "{} computes {} times as long as {}: {} s a step against {} s, and every step waits for it",
        at(f, rank),
        number(ratio),
        peers(f, m),
        number(ratio * secs),
        number(secs)
    );
    if named.len() > 1 {
        let others: Vec<String> = ranked(f, named).skip(1).take(NAMED).map(|(rank, _)| at(f, rank)).collect();
        let _ = write!(why, "; {} more are slow: {}", named.len() - 1, others.join(", "));
    }
    why
}

fn split(s: &Sections, named: &BTreeSet<u32>) -> String {
    format!(
        "{} of {} ranks compute longer than the others in every step: the work is not evenly split, or they are of another kind",
        named.len(),
        s.members.len()
    )
}

fn rotation(stage: u32, s: &Sections, g: &Group, lost: f64) -> String {
    let of = if s.groups.len() > 1 { format!(" of stage {stage}") } else { String::new() };
    let mean = |w: &crate::stats::median::Window<SEEN>| w.iter().sum::<f64>() / w.len().max(1) as f64;
    format!(
        "each step waits {} s ({:.0} % of its compute time) for its slowest rank{of}, which is another one each time: {}",
        number(mean(&g.lost)),
        100.0 * lost,
        reason(g)
    )
}

fn reason(g: &Group) -> &'static str {
    let (lost, spread) = g.lost.location_scale();
    let alike = spread < ALIKE * lost && g.sigmas.median() > APART;
    if g.gc.median() > CALLED_GC {
        "garbage collection that the ranks do not do at the same time; collect on all of them at the same steps"
    } else if g.follows_load.median() > FOLLOWS || g.sigmas.median() < FAR.into() {
        "the work differs, as with sequences of uneven length; balance the lengths over the ranks"
    } else if alike {
        "pauses of about the same length on ranks that are otherwise alike, as garbage collection makes that the ranks do not do at the \
         same time; collect on all of them at the same steps"
    } else {
        "look at the work and at pauses of the process, not at a host"
    }
}

impl ClockDetector for Straggler {
    type Config = Config;

    fn look(&mut self, c: &Config, now: Ts, f: &Facts, out: &mut Vec<Verdict>) {
        if !c.enabled || f.ended.is_some() {
            return;
        }
        if self.judged != f.sections.judged {
            if f.sections.members.is_empty() && self.told.is_none() {
                return;
            }
            self.judged = f.sections.judged;
            self.judge(c, now, f, out);
        }
        let due = self.deadline(c, f).is_some_and(|at| at <= now);
        if due && self.is_costly(c, f) {
            self.tell(c, now, f, Picture::Persistent, who(f, &self.named), out);
        }
    }

    fn deadline(&self, c: &Config, f: &Facts) -> Option<Ts> {
        let told = self.told.filter(|t| t.picture == Picture::Persistent && t.severity < Severity::Page)?;
        (c.enabled && f.ended.is_none() && self.is_costly(c, f)).then(|| told.since + c.page_after)
    }
}

fn verdict(now: Ts, f: &Facts, change: Change, severity: Severity) -> Verdict {
    let step = f.sections.last.or(f.last_step).unwrap_or(0);
    Verdict {
        change,
        kind: Kind::Straggler,
        severity,
        signal: "compute_time".into(),
        step,
        ts: now,
        start_step: step,
        value: 1.0,
        expected: 1.0,
        score: 0.0,
        why: String::new(),
        suspects: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Noise;
    use crate::run::Run;
    use proptest::prelude::*;
    use std::sync::Arc;
    use stepwatch_wire::{Event, Value};

    /// What a rank does in a step: its stage, its seconds, and how much of them it collects garbage; `None`: it does not report.
    type Plan<'a> = &'a dyn Fn(i64, u32, &mut Noise) -> Option<(u32, f64, f64)>;

    fn judge(ranks: u32, steps: i64, name: &dyn Fn(u32) -> u32, plan: Plan<'_>) -> Vec<Verdict> {
        let mut run = Run::new("r", Ts(0), &Arc::default());
        let mut noise = Noise::new(7);
        let mut out = Vec::new();
        for step in 1..=steps {
            for rank in 0..ranks {
                let Some((stage, secs, gc)) = plan(step, rank, &mut noise) else { continue };
                let mut e = Event::step("r", step);
                (e.rank, e.attempt, e.ts) = (Some(name(rank)), Some(0), Some(2.0 * step as f64));
                e.extra.insert("stage".into(), Value::Number(stage.into()));
                e.t.set("fwd_bwd", secs);
                e.t.set("gc", gc);
                run.event(Ts(2000 * step), "n:1", &e, &mut out);
            }
        }
        out.retain(|v| v.kind == Kind::Straggler);
        out
    }

    fn first(verdicts: &[Verdict]) -> (i64, &str, &str) {
        let v =
            verdicts.iter().find(|v| v.change != Change::Clear).unwrap_or_else(|| panic!("nothing was said"));
        (v.step, v.suspects.first().map_or("", |s| s.what.as_str()), v.why.as_str())
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is a plan, of which others leave ranks out")]
    fn even(_: i64, _: u32, noise: &mut Noise) -> Option<(u32, f64, f64)> {
        Some((0, 1.0 + 0.01 * noise.normal(), 0.0))
    }

    #[test]
    fn even_ranks_are_silent() {
        assert!(judge(64, 400, &|r| r, &even).is_empty());
    }

    #[test]
    fn one_slow_rank_is_named_in_eight_steps_and_pages_when_it_lasts() {
        let slow = |step, rank, noise: &mut Noise| {
            let (stage, secs, gc) = even(step, rank, noise)?;
            Some((stage, if rank == 3 && step > 100 { 1.2 * secs } else { secs }, gc))
        };
        let found = judge(16, 500, &|r| r, &slow);
        let (step, what, why) = first(&found);
        assert!(step <= 116 && what == "rank 3", "{found:#?}");
        assert!(why.contains("every step waits for it"), "{why}");
        assert!(found[0].start_step.abs_diff(100) <= 2, "{found:#?}");
        let severities: Vec<Severity> = found.iter().map(|v| v.severity).collect();
        assert_eq!(severities, [Severity::Ticket, Severity::Page]);
    }

    #[test]
    fn ranks_that_are_missing_or_report_now_and_then_hide_nobody() {
        let slow = |step: i64, rank, noise: &mut Noise| {
            let reports = rank != 7 && (rank != 5 || step % 4 == 0) && (rank != 6 || step < 50);
            let (stage, secs, gc) = even(step, rank, noise)?;
            reports.then_some((stage, if rank == 3 { 1.3 * secs } else { secs }, gc))
        };
        let found = judge(16, 100, &|r| r, &slow);
        assert!(first(&found).0 <= 12 && first(&found).1 == "rank 3", "{found:#?}");
    }

    #[test]
    fn garbage_collection_and_uneven_work_are_told_apart_and_blame_nobody() {
        let pauses = |step: i64, rank, noise: &mut Noise| {
            let (stage, secs, _) = even(step, rank, noise)?;
            Some(if (step * 5 + i64::from(rank) * 11) % 16 == 0 {
                (stage, secs + 0.3, 0.0)
            } else {
                (stage, secs, 0.0)
            })
        };
        let found = judge(16, 64, &|r| r, &pauses);
        let (_, what, why) = first(&found);
        assert!(what == "no single rank" && why.contains("garbage collection"), "{why}");
        let uneven = |_: i64, _: u32, noise: &mut Noise| Some((0, (0.15 * noise.normal()).exp(), 0.0));
        let found = judge(32, 64, &|r| r, &uneven);
        let (_, what, why) = first(&found);
        assert!(what == "no single rank" && why.contains("sequences of uneven length"), "{why}");
    }

    #[test]
    fn a_stage_that_computes_longer_is_no_rank() {
        let stages = |step, rank: u32, noise: &mut Noise| {
            let (_, secs, gc) = even(step, rank, noise)?;
            let stage = rank / 4;
            Some((stage, if stage == 3 { 1.6 * secs } else { secs }, gc))
        };
        let found = judge(16, 100, &|r| r, &stages);
        assert_eq!((found.len(), first(&found).1), (1, "stage 3"), "{found:#?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn permuting_ranks_changes_nothing_but_names(by in 1u32..8, slow in 0u32..8) {
            let plan = move |step, rank, noise: &mut Noise| {
                let (stage, secs, gc) = even(step, rank, noise)?;
                Some((stage, if rank == slow { 1.4 * secs } else { secs }, gc))
            };
            let name = move |rank: u32| (rank + by) % 8;
            let (straight, turned) = (judge(8, 60, &|r| r, &plan), judge(8, 60, &name, &plan));
            prop_assert_eq!(straight.len(), turned.len());
            for (a, b) in straight.iter().zip(&turned) {
                prop_assert_eq!((a.step, a.severity, a.value, a.start_step), (b.step, b.severity, b.value, b.start_step));
                prop_assert_eq!(&a.suspects[0].what, &format!("rank {slow}"));
                prop_assert_eq!(&b.suspects[0].what, &format!("rank {}", name(slow)));
            }
        }

        #[test]
        fn the_unit_of_time_says_nothing(scale in 1e-3f64..1e3) {
            let plan = move |step, rank, noise: &mut Noise| {
                let (stage, secs, gc) = even(step, rank, noise)?;
                Some((stage, scale * if rank == 2 { 1.4 * secs } else { secs }, gc))
            };
            let found = judge(8, 30, &|r| r, &plan);
            prop_assert_eq!(first(&found).1, "rank 2");
        }
    }
}
