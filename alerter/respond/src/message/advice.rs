//! Writes the sentence of a message for a plan.

use core::fmt::Write as _;

use stepwatch_model::{
    ASSUMED_FAILURES_A_NODE_DAY, FLEET_RATE_BAND, FailureSource, Forecast, IntervalBound, PassedOver, Plan,
    PlanCost, Remedy, SaveInterval, Span, Spoilt, number,
};

use super::gpus;

/// The sentence: what to do, and what it costs.
pub(crate) fn advice(plan: &Plan) -> String {
    let Plan { remedies, cost } = plan;
    let mut s = String::new();
    for remedy in remedies {
        if *remedy == Remedy::TryRestart {
            try_restart(&mut s, cost);
            continue;
        }
        let then = if s.is_empty() { "" } else { ", then " };
        let _ = write!(s, "{then}{remedy}");
        match remedy {
            Remedy::Inspect { .. } => speed_lost(&mut s, cost),
            Remedy::DrainNode { .. } => {
                speed_lost(&mut s, cost);
                if let (Some(now), Some(back)) = (cost.restart_seconds, cost.pays_back_seconds) {
                    let (now, back) = (run_time(cost, now), Span::from_secs_f64(back));
                    let _ = write!(s, "; a restart now costs {now} and pays back in {back}");
                }
            }
            Remedy::RollBack { later_checkpoints, spoilt, passed_over, .. }
            | Remedy::Restart { checkpoint: Some(_), later_checkpoints, spoilt, passed_over, .. } => {
                redone(&mut s, cost);
                not_taken(&mut s, *later_checkpoints, *spoilt, passed_over);
            }
            Remedy::Restart { checkpoint: None, later_checkpoints: 0, passed_over, .. }
                if passed_over.is_empty() =>
            {
                s.push_str("; no checkpoint was reported");
            }
            Remedy::Restart { checkpoint: None, later_checkpoints, spoilt, passed_over, .. } => {
                s.push_str("; no good checkpoint is known");
                not_taken(&mut s, *later_checkpoints, *spoilt, passed_over);
            }
            Remedy::SaveNow { unsaved_seconds, save_seconds } => {
                save_now(&mut s, cost, *unsaved_seconds, *save_seconds);
            }
            Remedy::SaveEvery(interval) => save_every(&mut s, cost, interval),
            _ => {}
        }
    }
    if matches!(remedies.last(), Some(Remedy::LimitSaves | Remedy::StaggerSaves)) {
        lost_a_day(&mut s, cost);
    }
    if let Some(hourly) = cost.dollars(3600.0).filter(|_| cost.stands) {
        let _ = write!(s, "; standing still costs {} an hour", dollars(hourly));
    }
    s
}

/// Dollars, with cents below 10 dollars.
fn dollars(amount: f64) -> String {
    if amount < 10.0 { format!("${amount:.2}") } else { format!("${amount:.0}") }
}

/// `512 GPUs`, or `the run` if nobody knows how many it has.
fn whole(cost: &PlanCost) -> String {
    cost.gpus.map_or_else(|| "the run".to_owned(), gpus)
}

/// `2h 5m of 512 GPUs ($2666)`
fn run_time(cost: &PlanCost, secs: f64) -> String {
    let mut s = format!("{} of {}", Span::from_secs_f64(secs), whole(cost));
    if let Some(amount) = cost.dollars(secs) {
        let _ = write!(s, " ({})", dollars(amount));
    }
    s
}

/// `9.1 % of 512 GPUs, $116 an hour`
fn share(cost: &PlanCost, lost: f64) -> String {
    let mut s = format!("{} % of {}", percent(lost), whole(cost));
    if let Some(hourly) = cost.dollars(3600.0) {
        let _ = write!(s, ", {} an hour", dollars(lost * hourly));
    }
    s
}

fn percent(share: f64) -> String {
    number((1000.0 * share).round() / 10.0)
}

fn speed_lost(s: &mut String, cost: &PlanCost) {
    if let Some(lost) = cost.speed_lost {
        let _ = write!(s, ": it costs {}", share(cost, lost));
    }
}

/// What saves cost as they go on, day by day.
fn lost_a_day(s: &mut String, cost: &PlanCost) {
    let Some(lost) = cost.speed_lost else { return };
    let _ = write!(s, ": it costs {} % of {}", percent(lost), whole(cost));
    if let Some(daily) = cost.dollars(86_400.0) {
        let _ = write!(s, ", {} a day", dollars(lost * daily));
    }
}

fn redone(s: &mut String, cost: &PlanCost) {
    let Some(steps) = cost.steps_redone else { return };
    let _ = write!(s, ": {steps} steps are done again");
    if let Some(secs) = cost.redo_seconds {
        let _ = write!(s, ", {}", run_time(cost, secs));
    }
}

/// Why newer checkpoints are not the one to go back to.
fn not_taken(s: &mut String, later: usize, spoilt: Option<Spoilt>, passed_over: &[PassedOver]) {
    if later > 0 {
        let are = if later == 1 { "checkpoint is" } else { "checkpoints are" };
        let onset = spoilt.map_or_else(|| "the onset".to_owned(), |spoilt| spoilt.to_string());
        let _ = write!(s, "; {later} later {are} from after {onset}");
    }
    for one in passed_over {
        let _ = write!(s, "; {one}");
    }
}

/// `2h of 512 GPUs, 1024 GPU hours ($2560)`
fn gpu_time(cost: &PlanCost, secs: f64) -> String {
    let mut s = format!("{} of {}", Span::from_secs_f64(secs), whole(cost));
    if let Some(hours) = cost.gpu_hours(secs) {
        let _ = write!(s, ", {} GPU hours", number(hours));
    }
    if let Some(amount) = cost.dollars(secs) {
        let _ = write!(s, " ({})", dollars(amount));
    }
    s
}

fn save_now(s: &mut String, cost: &PlanCost, unsaved: f64, save: Option<f64>) {
    let _ = write!(s, ": {} are not saved", gpu_time(cost, unsaved));
    if let Some(secs) = save {
        let _ = write!(s, ", and a save costs {}", gpu_time(cost, secs));
    }
}

/// `4 nodes`
fn counted(nodes: u32) -> String {
    format!("{nodes} node{}", if nodes == 1 { "" } else { "s" })
}

fn save_every(s: &mut String, cost: &PlanCost, i: &SaveInterval) {
    let (save, between) =
        (Span::from_secs_f64(i.save_seconds), Span::from_secs_f64(i.failures.seconds_between));
    let few = match i.saves_measured {
        1 => " (from the only one that was measured)",
        2 => " (from the two that were measured)",
        _ => "",
    };
    let _ = write!(s, ": a save costs {save}{few}, and a failure is expected every {between} ");
    let _ = match i.failures.source {
        FailureSource::Own { failures } => write!(s, "(from {failures} of this run)"),
        FailureSource::Fleet { failures, nodes, bounded: false } => {
            write!(s, "(from {failures} of all runs, for {})", counted(nodes))
        }
        FailureSource::Fleet { failures, nodes, bounded: true } => {
            let least = format!("no less than a {FLEET_RATE_BAND}th of the rate of Llama 3");
            write!(
                s,
                "(all runs had {failures}; {least}, and no more than {FLEET_RATE_BAND} times that, is \
                 believed, for {})",
                counted(nodes)
            )
        }
        FailureSource::Assumed { nodes } => {
            let rate = number(1000.0 * ASSUMED_FAILURES_A_NODE_DAY);
            write!(s, "(assumed: {rate} in 1000 node-days, as with Llama 3, for {})", counted(nodes))
        }
    };
    let (had, best) = (percent(i.cost), percent(i.best_cost));
    let _ = write!(s, "; saves and lost work cost {best} % of the time instead of {had} %");
    if let Some(gpus) = cost.gpus {
        let _ = write!(s, ", which saves {} GPU hours a day", number(i.gpu_hours_a_day(gpus)));
    }
    if let Some(daily) = cost.dollars(86_400.0 * i.saved()) {
        let _ = write!(s, " ({})", dollars(daily));
    }
    match i.bound {
        Some(IntervalBound::Longest) => {
            s.push_str("; it is the longest that is advised until failures of this run are known")
        }
        Some(IntervalBound::Shortest) => s.push_str("; it is the shortest that is advised"),
        None => {}
    }
}

fn try_restart(s: &mut String, cost: &PlanCost) {
    let (Some(lost), Some(now), Some(back)) = (cost.speed_lost, cost.restart_seconds, cost.pays_back_seconds)
    else {
        return;
    };
    let _ = write!(s, "it costs {}", share(cost, lost));
    if let Some(Forecast { steps, speed_lost, seconds }) = &cost.forecast {
        let (lost, then) = (percent(lost), percent(*speed_lost));
        let within = Span::from_secs_f64(*seconds);
        let _ = write!(
            s,
            "; it took {steps} steps to lose {lost} %, and at this slope {then} % is lost in {within}"
        );
    }
    let _ = write!(s, "; if a restart cures it, one now costs {}", run_time(cost, now));
    let _ = write!(s, " and pays back in {}", Span::from_secs_f64(back));
    if let Some(start) = cost.start_seconds.filter(|start| *start > 0.0 && *start < 0.5 * now) {
        let _ = write!(s, "; right after the next checkpoint it costs {}", Span::from_secs_f64(start));
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_model::{FailureRate, FailuresSeen, SaveCost};

    use super::*;

    #[test]
    fn time_of_the_run_is_said_in_money() {
        let cost = PlanCost { gpus: Some(512), dollars_per_gpu_hour: Some(2.5), ..PlanCost::default() };
        assert_eq!(run_time(&cost, 2120.0), "35m 20s of 512 GPUs ($754)");
        assert_eq!(share(&cost, 0.1), "10 % of 512 GPUs, $128 an hour");
        let free = PlanCost { gpus: Some(1), ..PlanCost::default() };
        assert_eq!(run_time(&free, 60.0), "1m of 1 GPU");
    }

    #[test]
    fn a_run_of_unknown_size_has_no_price() {
        let cost = PlanCost { dollars_per_gpu_hour: Some(2.5), stands: true, ..PlanCost::default() };
        assert_eq!(run_time(&cost, 2120.0), "35m 20s of the run");
        assert_eq!(share(&cost, 0.1), "10 % of the run");
        let plan = Plan { remedies: vec![Remedy::TakeStacks], cost };
        assert!(!advice(&plan).contains('$'), "{}", advice(&plan));
    }

    #[test]
    fn a_rate_that_is_not_the_one_that_was_seen_is_called_so() {
        let said = |seconds: f64| {
            let seen = FailuresSeen { failures: 4, seconds };
            let failures = FailureRate::of(FailuresSeen::default(), seen, Some(64)).unwrap();
            let saves = SaveCost {
                seconds: 30.0,
                measured: 8,
                interval: 60.0,
                lag: 0.0,
                saves_counted: 1.0,
                step_seconds: None,
            };
            let mut s = String::new();
            save_every(&mut s, &PlanCost::default(), &SaveInterval::of(saves, failures).unwrap());
            s
        };
        let seen = "a failure is expected every 1d 13h (from 4 of all runs, for 64 nodes); ";
        assert!(said(400.0 * 86_400.0).contains(seen), "{}", said(400.0 * 86_400.0));
        let bounded = "(all runs had 4; no less than a 20th of the rate of Llama 3, and no more than 20 times that, is believed, for 64 nodes); ";
        assert!(said(86_400.0).contains(bounded), "{}", said(86_400.0));
    }
}
