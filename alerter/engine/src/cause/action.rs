//! What to do about an incident, with the arithmetic that speaks for it.
//!
//! Only from what is known: the checkpoints that the run wrote, how long its steps take, how long it took to start, what a GPU costs. An
//! advice whose figures are not known is given without them, and none is given where there is nothing to choose.

use std::fmt::Write as _;

use super::evidence::place;
use crate::incident::IncidentRecord;
use crate::message::{RunSummary, number};
use crate::time::Span;
use crate::verdict::{Cause, Kind, Severity, Suspect};

/// Batches after the onset that are skipped too: what PaLM skipped at the least.
const SKIP: i64 = 200;
/// A restart that pays back later than this is not worth the risk, and what a slope reaches later than this is no forecast.
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
    match r.kind {
        Kind::Nonfinite | Kind::Divergence | Kind::LossSpike | Kind::GradInstability | Kind::LossShift => {
            known_batch(r).or_else(|| roll_back(r, run, &money))
        }
        Kind::MfuDroop | Kind::ThroughputDrop | Kind::GcTail => match node(r) {
            Some(node) => Some(drain_later(r, run, node, &money)),
            None => restart(r, run, &money),
        },
        Kind::Straggler => node(r).map(|node| drain_later(r, run, node, &money)),
        Kind::EccTrend | Kind::Peer | Kind::Throttle => {
            Some(format!("drain {} at the next checkpoint{}", node(r)?, resume(run)))
        }
        _ => match r.cause {
            Cause::Progress | Cause::Hardware if r.severity == Severity::Page => Some(stands(r, run, &money)),
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

/// The node of the first suspect, if it is one.
fn node(r: &IncidentRecord) -> Option<&str> {
    let named = |s: &Suspect| s.what.starts_with("node ") || s.what.contains(" on ");
    let first = r.suspects.first().filter(|s| named(s)).map(|s| place(&s.what));
    first.or_else(|| r.nodes.first().map(String::as_str))
}

/// The same data did it before, and training went on.
fn known_batch(r: &IncidentRecord) -> Option<String> {
    let batch = r.suspects.iter().find(|s| s.what.starts_with("data batch"))?;
    (r.severity < Severity::Page).then(|| format!("leave it: {}, {}", batch.what, batch.why))
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

/// Where a creeping slow-down leads: a step that became `g` times longer within n steps becomes so again within as many, and has lost a
/// share L when it takes `1/(1 − L)` times as long as it did.
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

fn stands(r: &IncidentRecord, run: &RunSummary, money: &Money) -> String {
    let mut s = match node(r) {
        Some(node) => format!("drain {node} and restart"),
        None if r.kind == Kind::Hang => "take the stacks of all ranks, then restart".to_owned(),
        None => "restart".to_owned(),
    };
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
    if let Some(rate) = money.rate {
        let _ = write!(s, "; standing still costs {} an hour", dollars(rate * money.gpus));
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut r = record(Kind::MfuDroop, "step_time", 4.4, 4.0, "no single node");
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

    fn record(kind: Kind, signal: &str, value: f64, expected: f64, suspect: &str) -> IncidentRecord {
        IncidentRecord {
            id: "x".into(),
            run: "llama".into(),
            nodes: Vec::new(),
            cause: kind.cause(),
            kind,
            severity: Severity::Page,
            state: crate::incident::State::Open,
            signal: signal.into(),
            start_step: 9_800,
            opened_step: 9_810,
            detected_step: 9_820,
            end_step: None,
            value,
            expected,
            score: 1.0,
            summary: String::new(),
            suspects: vec![Suspect { what: suspect.into(), why: String::new() }],
            opened_at: crate::time::Ts(0),
            resolved_at: None,
            acked_by: None,
            acked_at: None,
            level: 0,
            next_at: None,
            flaps: 0,
            labels: crate::matcher::Labels::new(),
            quiet: None,
        }
    }

    #[test]
    fn each_says_what_it_costs() {
        for (record, want) in [
            (
                record(Kind::Divergence, "loss", 5.0, 2.0, "the recipe"),
                "roll back to checkpoint 9500 and skip the batches of steps 9800 to 10020: 1000 steps are done again, 1h 6m of 512 GPUs \
                 ($1422); 1 later checkpoint is from after the onset",
            ),
            (
                record(Kind::MfuDroop, "step_time", 4.4, 4.0, "no single node"),
                "it costs 9.1 % of 512 GPUs, $116 an hour; if a restart cures it, one now costs 35m 20s of 512 GPUs ($754) and pays back in \
                 6h 28m; right after the next checkpoint it costs 2m",
            ),
            (
                record(Kind::Hang, "step", 700.0, 60.0, "node gpu-7, GPU 3 (GPU-2f)"),
                "drain gpu-7 and restart from checkpoint 10000: 500 steps are done again, 33m 20s of 512 GPUs ($711); standing still costs \
                 $1280 an hour",
            ),
        ] {
            assert_eq!(advise(&record, &run(), Some(2.5)).unwrap_or_default(), want);
        }
    }
}
