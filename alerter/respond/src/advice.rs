//! What to do about an incident, with the arithmetic that speaks for it.
//!
//! Only from what is known: the checkpoints that the run wrote, how long its steps take, how long
//! it took to start, what a GPU costs. An advice whose figures are not known is given without them,
//! and none is given where there is nothing to choose.

use std::fmt::Write as _;

use crate::incident::{IncidentRecord, State};
use stepwatch_model::{
    Advice, Cause, FirstFailure, Kind, Remedies, Remedy, RunSummary, SHARED_NODES, Severity, Span, Target,
    number,
    remedy::{self, DRAIN_RESET, RESET_GPU},
};

/// Batches after the onset that are skipped too: what PaLM skipped at the least.
const SKIP: i64 = 200;
/// A restart that pays back later than this is not worth the risk, and what a slope reaches later
/// than this is no forecast.
const WORTHWHILE: f64 = 7.0 * 86_400.0;
/// Shares of its speed that a run has lost when somebody asks, and steps that show a slope.
const LEVELS: [f64; 5] = [0.1, 0.2, 0.3, 0.4, 0.5];
const SLOPE_STEPS: i64 = 100;

/// One sentence, or none.
pub(crate) fn advise(r: &IncidentRecord, run: &RunSummary, rate: Option<f64>) -> Option<String> {
    if r.severity == Severity::Info || r.run.is_empty() {
        return None;
    }
    let money = Money { gpus: f64::from(run.gpus), rate };
    match r.kind.advice() {
        Advice::RollBack => known_batch(r).or_else(|| roll_back(r, run, &money)),
        Advice::Restart => match (shared(r), node(r)) {
            (Some(what), _) => Some(slowed(r, what, &money)),
            (None, Some(node)) => Some(drain_later(r, run, node, &money)),
            (None, None) => restart(r, run, &money),
        },
        Advice::DrainNode => node(r).map(|node| drain_later(r, run, node, &money)),
        Advice::DrainAtCheckpoint => match shared(r) {
            Some(what) => Some(format!("look at the {what}")),
            None => Some(format!("drain {} at the next checkpoint{}", node(r)?, resume(run))),
        },
        Advice::ByCause => match r.cause {
            // What is over needs no restart.
            Cause::Progress | Cause::Hardware
                if r.severity == Severity::Page && r.state != State::Resolved =>
            {
                stopped(r, run, &money)
            }
            _ => None,
        },
    }
}

struct Money {
    gpus: f64,
    rate: Option<f64>,
}

/// Cents where they count.
fn dollars(amount: f64) -> String {
    if amount < 10.0 { format!("${amount:.2}") } else { format!("${amount:.0}") }
}

impl Money {
    /// `2h 5m of 512 GPUs ($2666)`
    fn of(&self, secs: f64) -> String {
        let mut s = format!(
            "{} of {} GPU{}",
            Span::from_secs_f64(secs),
            self.gpus,
            if self.gpus == 1.0 { "" } else { "s" }
        );
        if let Some(rate) = self.rate {
            let _ = write!(s, " ({})", dollars(rate * self.gpus * secs / 3600.0));
        }
        s
    }

    fn hourly(&self, share: f64) -> String {
        let rate = self.rate.map(|rate| format!(", {} an hour", dollars(rate * self.gpus * share)));
        format!(
            "{} % of {} GPUs{}",
            number((100.0 * share * 10.0).round() / 10.0),
            self.gpus,
            rate.unwrap_or_default()
        )
    }
}

/// The node of the first suspect, if it is one; where nobody is suspected, the first that is sick.
fn node(r: &IncidentRecord) -> Option<&str> {
    let Some(first) = r.suspects.first() else { return r.nodes.first().map(String::as_str) };
    first.target.on_node()
}

/// What the nodes have in common that is suspected first.
fn shared(r: &IncidentRecord) -> Option<&Target> {
    let first = &r.suspects.first()?.target;
    // Tickets of single nodes, which nobody weighed together.
    let of_power = || r.suspects.iter().all(|s| s.observations().any(|o| o.slowed().is_some()));
    let many = r.kind == Kind::Throttle && r.nodes.len() >= SHARED_NODES && of_power();
    if first.is_shared() { Some(first) } else { many.then_some(&Target::Power) }
}

fn slowed(r: &IncidentRecord, what: &Target, money: &Money) -> String {
    let costs = lost(r).map(|lost| format!(": it costs {}", money.hourly(lost)));
    format!("look at the {what}{}", costs.unwrap_or_default())
}

/// The same data did it before, and training went on.
fn known_batch(r: &IncidentRecord) -> Option<String> {
    let batch = r.suspects.iter().find(|s| matches!(s.target, Target::Batch { .. }))?;
    (r.severity < Severity::Page).then(|| format!("leave it: {}, {}", batch.what(), batch.why()))
}

fn roll_back(r: &IncidentRecord, run: &RunSummary, money: &Money) -> Option<String> {
    let last = run.last_step?;
    let good = run.saved.iter().rev().find(|step| **step < r.start_step);
    let Some(good) = good else {
        let none = if run.saved.is_empty() {
            "no checkpoint was reported"
        } else {
            "no checkpoint from before the onset is known"
        };
        return (r.severity == Severity::Page).then(|| format!("stop and look: {none}"));
    };
    let to = (r.detected_step + SKIP).min(r.start_step + 2 * SKIP).max(r.start_step);
    let wait = if r.kind == Kind::LossSpike { "if it does not come back by itself, " } else { "" };
    let steps = last - good;
    let mut s = format!(
        "{wait}roll back to checkpoint {good} and skip the batches of steps {} to {to}",
        r.start_step
    );
    let _ = write!(s, ": {steps} steps are done again");
    if let Some(secs) = run.step_secs {
        let _ = write!(s, ", {}", money.of(steps as f64 * secs));
    }
    let after = run.saved.iter().filter(|step| **step >= r.start_step).count();
    if after > 0 {
        let _ = write!(
            s,
            "; {after} later checkpoint{} from after the onset",
            if after == 1 { " is" } else { "s are" }
        );
    }
    Some(s)
}

/// The share of its speed that the run has lost.
fn lost(r: &IncidentRecord) -> Option<f64> {
    let slower = match r.signal.as_str() {
        "step_time" | "compute_time" => r.value / r.expected,
        _ => r.expected / r.value,
    };
    (slower.is_finite() && slower > 1.0).then(|| 1.0 - 1.0 / slower)
}

/// Seconds that a restart costs now, and right after a checkpoint.
fn restart_costs(run: &RunSummary) -> Option<(f64, f64)> {
    let done = (run.last_step? - run.checkpoint_step?).max(0) as f64;
    let start = run.start_secs;
    Some((done * run.step_secs? + start, start))
}

fn restart(r: &IncidentRecord, run: &RunSummary, money: &Money) -> Option<String> {
    let lost = lost(r)?;
    let (now, after) = restart_costs(run)?;
    let back = now / lost;
    if back > WORTHWHILE {
        return None;
    }
    let mut s = format!("it costs {}", money.hourly(lost));
    if let Some(forecast) = forecast(r, run, lost) {
        let _ = write!(s, "; {forecast}");
    }
    let _ = write!(s, "; if a restart cures it, one now costs {}", money.of(now));
    let _ = write!(s, " and pays back in {}", Span::from_secs_f64(back));
    if after > 0.0 && after < 0.5 * now {
        let _ = write!(s, "; right after the next checkpoint it costs {}", Span::from_secs_f64(after));
    }
    Some(s)
}

/// Where a creeping slow-down leads: a step that became `g` times longer within n steps becomes so
/// again within as many, and has lost a share L when it takes `1/(1 − L)` times as long as it did.
fn forecast(r: &IncidentRecord, run: &RunSummary, lost: f64) -> Option<String> {
    let steps = r.detected_step.saturating_sub(r.start_step);
    if r.kind != Kind::MfuDroop || steps < SLOPE_STEPS {
        return None;
    }
    let longer = |share: f64| 1.0 / (1.0 - share) - 1.0;
    let slope = longer(lost) / steps as f64;
    let next = LEVELS.into_iter().find(|level| *level > 1.25 * lost)?;
    let secs = (longer(next) - longer(lost)) / slope * run.step_secs?;
    (secs < WORTHWHILE).then(|| {
        format!(
            "it took {steps} steps to lose {} %, and at this slope {} % is lost in {}",
            number((1000.0 * lost).round() / 10.0),
            number(100.0 * next),
            Span::from_secs_f64(secs)
        )
    })
}

fn drain_later(r: &IncidentRecord, run: &RunSummary, node: &str, money: &Money) -> String {
    let mut s = format!("drain {node} at the next checkpoint{}", resume(run));
    if let Some(lost) = lost(r) {
        let _ = write!(s, ": it costs {}", money.hourly(lost));
        if let Some((now, _)) = restart_costs(run) {
            let _ = write!(
                s,
                "; a restart now costs {} and pays back in {}",
                money.of(now),
                Span::from_secs_f64(now / lost)
            );
        }
    }
    s
}

fn resume(run: &RunSummary) -> String {
    run.checkpoint_step.map_or_else(String::new, |step| format!(" (the last is {step})"))
}

/// Of a run that stands, or hardware under it that will stop it.
fn stopped(r: &IncidentRecord, run: &RunSummary, money: &Money) -> Option<String> {
    let known = &run.remedies;
    let stands = known.stands || r.cause == Cause::Progress;
    let mut s = if let Some(what) = shared(r) {
        format!("look at the {what}")
    } else if let Some((node, remedy)) = needed(r, known) {
        match remedy {
            Remedy::Memory { .. } if !stands => return None,
            Remedy::Memory { cgroup } => {
                let of = if cgroup.is_empty() { String::new() } else { format!(" of {cgroup}") };
                format!("let the job use less memory on {node} or raise the limit{of}")
            }
            Remedy::Repair { action, gpu, .. } if action == DRAIN_RESET && stands => {
                remedy::advice(RESET_GPU, node, gpu)?
            }
            // It goes on until then.
            Remedy::Repair { action, gpu, .. } if action == DRAIN_RESET => {
                return Some(remedy::drain_and_reset(node, gpu, &resume(run)));
            }
            Remedy::Repair { action, gpu, .. } => remedy::advice(action, node, gpu)?,
            Remedy::Link { name } => format!("drain {node} and have its link {name} looked at"),
            Remedy::Gone => format!("see whether the host {node} is up, and drain it if it is not"),
        }
    } else if let Some(FirstFailure { place, words }) = known.ended.as_ref().filter(|_| stands) {
        match words {
            Some(words) => format!("look at what ended {place} ({words})"),
            None => format!("look at the log of {place}"),
        }
    } else if r.kind == Kind::Hang {
        "take the stacks of all ranks".to_owned()
    } else {
        String::new()
    };
    if !stands && (s.is_empty() || shared(r).is_some()) {
        return (!s.is_empty()).then_some(s);
    }
    s.push_str(if s.is_empty() { "restart" } else { ", then restart" });
    from(&mut s, run, money);
    if let Some(rate) = money.rate.filter(|_| stands) {
        let _ = write!(s, "; standing still costs {} an hour", dollars(rate * money.gpus));
    }
    Some(s)
}

/// What the first suspect needs, or, if one of the others has what is surely broken, that one.
fn needed<'a>(r: &'a IncidentRecord, known: &'a Remedies) -> Option<(&'a str, &'a Remedy)> {
    let own = r.suspects.is_empty().then(|| r.nodes.first()).flatten().map(String::as_str);
    // A place that is no node needs nothing that is known, and is the first all the same.
    let suspected = r.suspects.iter().map(|s| s.target.on_node().unwrap_or_default());
    let places: Vec<&str> = suspected.chain(own).collect();
    let of = |node: &&'a str| Some((*node, known.nodes.get(*node)?));
    let broken = |(_, remedy): &(&str, &Remedy)| matches!(remedy, Remedy::Repair { sure: true, .. });
    let sure = places.iter().filter_map(of).find(broken);
    let first = places.first().and_then(of).filter(|(_, remedy)| {
        // What can wait for the next drain ended no rank that says itself what did.
        let waits = matches!(remedy, Remedy::Repair { sure: false, .. });
        !(waits && known.ended.as_ref().is_some_and(|e| e.words.is_some()))
    });
    sure.or(first)
}

/// Where a restart begins, and what it does again.
fn from(s: &mut String, run: &RunSummary, money: &Money) {
    match (run.checkpoint_step, run.last_step) {
        (Some(saved), Some(last)) => {
            let steps = (last - saved).max(0);
            let _ = write!(s, " from checkpoint {saved}: {steps} steps are done again");
            if let Some(secs) = run.step_secs {
                let _ = write!(s, ", {}", money.of(steps as f64 * secs));
            }
        }
        _ => s.push_str("; no checkpoint was reported"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use stepwatch_model::{Observation, Slowed, Suspect, Target, Unit};

    const NOBODY: Target = Target::Fleet(Unit::Nodes);

    fn gpu(node: &str, index: u32) -> Target {
        Target::Gpu { node: node.into(), index: Some(index), uuid: "GPU-2f".into(), pci: String::new() }
    }

    fn slow(slowed: Option<Slowed>) -> Observation {
        Observation::SlowClock {
            value: 8e8.into(),
            expected: 1.6e9.into(),
            reasons: Vec::new(),
            temperature: None,
            power: None,
            slowed,
        }
    }

    const MONEY: Money = Money { gpus: 512.0, rate: Some(2.5) };

    fn run() -> RunSummary {
        RunSummary {
            name: "llama".into(),
            gpus: 512,
            last_step: Some(10_500),
            checkpoint_step: Some(10_000),
            saved: vec![9_000, 9_500, 10_000],
            step_secs: Some(4.0),
            start_secs: 120.0,
            ..RunSummary::default()
        }
    }

    #[test]
    fn a_restart_is_weighed_against_what_it_cures() {
        let costs = restart_costs(&run()).unwrap_or_default();
        assert_eq!(costs, (2120.0, 120.0));
        assert_eq!(MONEY.of(2120.0), "35m 20s of 512 GPUs ($754)");
        assert_eq!(MONEY.hourly(0.1), "10 % of 512 GPUs, $128 an hour");
    }

    #[test]
    fn a_slope_says_where_it_leads_and_a_jump_does_not() {
        let mut r = record(Kind::MfuDroop, "step_time", 4.4, 4.0, NOBODY);
        (r.start_step, r.detected_step) = (9_000, 10_000);
        // 10 % longer in 1000 steps; 20 % lost is 25 % longer: 1500 steps of 4 s from here.
        let said = advise(&r, &run(), Some(2.5)).unwrap_or_default();
        assert!(
            said.contains("it took 1000 steps to lose 9.1 %, and at this slope 20 % is lost in 1h 40m;"),
            "{said}"
        );
        r.start_step = 9_950;
        assert!(!advise(&r, &run(), Some(2.5)).unwrap_or_default().contains("slope"), "50 steps are none");
        (r.start_step, r.kind) = (9_000, Kind::ThroughputDrop);
        assert!(!advise(&r, &run(), Some(2.5)).unwrap_or_default().contains("slope"));
    }

    fn record(kind: Kind, signal: &str, value: f64, expected: f64, suspect: Target) -> IncidentRecord {
        IncidentRecord {
            id: "x".into(),
            run: "llama".into(),
            nodes: Vec::new(),
            cause: kind.cause(),
            kind,
            severity: Severity::Page,
            state: State::Open,
            signal: signal.into(),
            start_step: 9_800,
            opened_step: 9_810,
            detected_step: 9_820,
            end_step: None,
            value,
            expected,
            score: 1.0,
            summary: "".into(),
            suspects: vec![Suspect::new(suspect, Observation::OutOfPlace)],
            opened_at: stepwatch_model::time::Ts(0),
            resolved_at: None,
            acked_by: None,
            acked_at: None,
            level: 0,
            next_at: None,
            flaps: 0,
            labels: crate::matcher::Labels::new(),
            quiet: None,
            end: None,
            named: None,
            asked_anew_at: None,
        }
    }

    #[test]
    fn each_says_what_it_costs() {
        for (record, want) in [
            (
                record(Kind::Divergence, "loss", 5.0, 2.0, Target::Recipe { step: 9_800 }),
                "roll back to checkpoint 9500 and skip the batches of steps 9800 to 10020: 1000 steps are done again, 1h 6m of 512 GPUs \
                 ($1422); 1 later checkpoint is from after the onset",
            ),
            (
                record(Kind::MfuDroop, "step_time", 4.4, 4.0, NOBODY),
                "it costs 9.1 % of 512 GPUs, $116 an hour; if a restart cures it, one now costs 35m 20s of 512 GPUs ($754) and pays back in \
                 6h 28m; right after the next checkpoint it costs 2m",
            ),
            (
                record(Kind::Hang, "step", 700.0, 60.0, gpu("gpu-7", 3)),
                "take the stacks of all ranks, then restart from checkpoint 10000: 500 steps are done again, 33m 20s of 512 GPUs ($711); \
                 standing still costs $1280 an hour",
            ),
        ] {
            assert_eq!(advise(&record, &run(), Some(2.5)).unwrap_or_default(), want);
        }
    }

    const FROM: &str = "restart from checkpoint 10000: 500 steps are done again, 33m 20s of 512 GPUs ($711)";
    const STANDS: &str = "; standing still costs $1280 an hour";

    fn repair(action: &str, sure: bool) -> Remedy {
        let effort = remedy::effort(action);
        Remedy::Repair { sure, effort, action: action.into(), gpu: "GPU 3 (GPU-2f)".into() }
    }

    fn ended(words: Option<&str>) -> FirstFailure {
        FirstFailure { place: Target::rank(1, Some("n1")), words: words.map(Into::into) }
    }

    /// What is said of `suspects` on `n1` that needs this.
    fn said(
        kind: Kind,
        suspects: &[Target],
        need: Option<Remedy>,
        ended: Option<FirstFailure>,
        stands: bool,
    ) -> String {
        let mut r = record(kind, "process", 1.0, 0.0, NOBODY);
        let suspect = |what: &Target| Suspect::new(what.clone(), Observation::OutOfPlace);
        r.suspects = suspects.iter().map(suspect).collect();
        r.nodes = vec!["n1".into()];
        let nodes: BTreeMap<_, _> = need.map(|need| ("n1".to_owned(), need)).into_iter().collect();
        let run = RunSummary { remedies: Remedies { stands, nodes, ended }, ..run() };
        advise(&r, &run, Some(2.5)).unwrap_or_default()
    }

    #[test]
    fn a_node_is_drained_for_what_is_its_own() {
        let dead = |need, words| {
            said(Kind::RankDead, &[Target::rank(1, Some("n1"))], need, Some(ended(words)), true)
        };
        let bug = Some("exited with code 1: ValueError: x");
        let look = format!(
            "look at what ended rank 1 on n1 (exited with code 1: ValueError: x), then {FROM}{STANDS}"
        );
        assert_eq!(dead(None, bug), look);
        assert_eq!(dead(Some(repair("drain_reset", false)), bug), look, "there is no hurry");
        assert_eq!(dead(None, None), format!("look at the log of rank 1 on n1, then {FROM}{STANDS}"));
        let reset = format!("drain n1 and reset GPU 3 (GPU-2f), then {FROM}{STANDS}");
        for need in [repair("reset_gpu", true), repair("drain_reset", true)] {
            assert_eq!(dead(Some(need), bug), reset);
        }
        assert_eq!(dead(Some(repair("drain_reset", false)), None), reset);
        let killed = Remedy::Memory { cgroup: "/slurm/job_77".into() };
        let less = "let the job use less memory on n1 or raise the limit of /slurm/job_77, then ";
        assert_eq!(dead(Some(killed), None), format!("{less}{FROM}{STANDS}"));
        let gone = format!("see whether the host n1 is up, and drain it if it is not, then {FROM}{STANDS}");
        assert_eq!(dead(Some(Remedy::Gone), None), gone);
        let elsewhere = said(
            Kind::Hang,
            &[Target::rank(1, Some("n2")), Target::node("n1")],
            Some(Remedy::Gone),
            None,
            true,
        );
        assert_eq!(elsewhere, format!("take the stacks of all ranks, then {FROM}{STANDS}"));
        let broken = said(
            Kind::Hang,
            &[Target::rank(1, Some("n2")), Target::node("n1")],
            Some(repair("reboot_node", true)),
            None,
            true,
        );
        assert_eq!(broken, format!("drain n1 and reboot it, then {FROM}{STANDS}"));
    }

    #[test]
    fn a_run_that_moves_does_not_stand_still() {
        let fault = |need| said(Kind::GpuFault, &[gpu("n1", 3)], need, None, false);
        let later = "drain n1 at the next checkpoint (the last is 10000), then reset GPU 3 (GPU-2f)";
        assert_eq!(fault(Some(repair("drain_reset", true))), later);
        assert_eq!(fault(Some(repair("reboot_node", true))), format!("drain n1 and reboot it, then {FROM}"));
        assert_eq!(fault(None), "", "the fault says it itself");
        assert_eq!(
            said(Kind::LinkFault, &[Target::Switch, Target::node("n1")], None, None, false),
            format!("look at the {}", Target::Switch)
        );
    }

    #[test]
    fn what_nodes_share_is_looked_at_and_none_is_drained() {
        let mut r = record(Kind::ThroughputDrop, "step_time", 8.0, 4.0, Target::Power);
        r.nodes = vec!["n1".into(), "n2".into()];
        let look = format!("look at the {}: it costs 50 % of 512 GPUs, $640 an hour", Target::Power);
        assert_eq!(advise(&r, &run(), Some(2.5)).unwrap_or_default(), look);
        r.suspects[0].target = NOBODY;
        assert!(!advise(&r, &run(), Some(2.5)).unwrap_or_default().contains("drain"));
        let mut r = record(Kind::Throttle, "sm_clock", f64::NAN, f64::NAN, gpu("n1", 0));
        r.nodes = vec!["n1".into(), "n2".into(), "n3".into()];
        r.suspects[0].evidence = vec![slow(Some(Slowed::Power)).into()];
        assert_eq!(
            advise(&r, &run(), Some(2.5)).unwrap_or_default(),
            format!("look at the {}", Target::Power)
        );
        r.suspects[0].evidence = vec![slow(None).into()];
        assert!(
            advise(&r, &run(), Some(2.5)).unwrap_or_default().starts_with("drain n1 at the next checkpoint")
        );
        let port = Target::Link { node: "n1".into(), name: "mlx5_0/1".into(), medium: String::new() };
        let link = said(Kind::Hang, &[Target::Switch, port], None, None, true);
        assert_eq!(link, format!("look at the {}, then {FROM}{STANDS}", Target::Switch));
    }
}
