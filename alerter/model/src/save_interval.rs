//! How often a run saves, and the interval that costs least.
//!
//! A save costs `w` seconds, and a failure each `M` seconds loses half of an interval `I` on
//! average, so saves and lost work cost `w/I + I/2M` for each second of work. Young ("A first order
//! approximation to the optimum checkpoint interval", 1974) finds the least of it at `sqrt(2wM)`;
//! Daly ("A higher order estimate of the optimum checkpoint interval for restart dumps", 2006)
//! counts failures within saves too. `I` is the work between two saves, without what these cost.
//!
//! Where only each `k`th save makes a checkpoint that counts, a failure loses `k` times as much,
//! and in any case the time until the last one was durable. Of all time, saves and lost work then
//! take the share `1 - (1 - (kI/2 + lag)/M) / (1 + w/I)`. Without restarts, this is what is missing
//! to 1 in the expected ETTR of "Revisiting Reliability in Large-Scale Machine Learning Research
//! Clusters" (arXiv 2410.21680).

use serde::{Deserialize, Serialize};

/// Failures of a node and day while nothing better is known: 419 unexpected interruptions of 2,048
/// nodes in 54 days, of the pre-training of Llama 3 (arXiv 2407.21783, section 3.3.4).
pub const ASSUMED_FAILURES_A_NODE_DAY: f64 = 419.0 / (2048.0 * 54.0);
/// Failures from which a rate is taken from what was seen.
const FAILURES_KNOWN: u64 = 3;
/// How much more or less often than assumed the nodes of a fleet are believed to fail, so that runs
/// that fail by their own bugs do not set the interval of others: an engineering limit.
pub const FLEET_RATE_BAND: f64 = 20.0;
/// An interval that is off by less is as good as the best: it costs at most a quarter more.
const FAR_OFF: f64 = 2.0;
/// The share of the time that a better interval must save to be advised: an engineering limit.
const WORTH: f64 = 0.005;
/// The shortest interval that is advised, and how many times as long as a checkpoint needs to
/// become durable it must be: storage has costs that the formula does not count. Both are
/// engineering limits.
const SHORTEST: f64 = 300.0;
const DURABLE_TIMES: f64 = 2.0;
/// The longest interval that is advised on failures that are not the run's own: an engineering
/// limit.
const LONGEST: f64 = 4.0 * 3600.0;
const DAY: f64 = 86_400.0;

/// The interval of a run's saves, and the best one, with all that they follow from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SaveInterval {
    /// Seconds that a save costs: those for which it blocks the steps and, if that is sure, those
    /// that steps take longer while it is written.
    pub save_seconds: f64,
    /// How many saves were measured.
    pub saves_measured: u32,
    /// Seconds of work between two saves, and the steps in them.
    pub interval_seconds: f64,
    pub interval_steps: Option<i64>,
    pub failures: FailureRate,
    pub best_seconds: f64,
    pub best_steps: Option<i64>,
    /// Why the best interval is not that of the formula.
    pub bound: Option<IntervalBound>,
    /// The shares of the time that saves and lost work cost, with either interval.
    pub cost: f64,
    pub best_cost: f64,
}

/// How often a run fails.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FailureRate {
    /// The mean seconds between two failures.
    pub seconds_between: f64,
    pub source: FailureSource,
}

/// Where a rate of failures is from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureSource {
    /// So many failures of the run itself.
    Own { failures: u64 },
    /// So many failures of all runs, and the nodes of this one. `bounded`: their rate is too far
    /// from the assumed one to be believed, and [`FLEET_RATE_BAND`] stands for it.
    Fleet { failures: u64, nodes: u32, bounded: bool },
    /// [`ASSUMED_FAILURES_A_NODE_DAY`], and the nodes of the run.
    Assumed { nodes: u32 },
}

/// A bound of what is advised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntervalBound {
    /// The shortest that storage is expected to bear.
    Shortest,
    /// The longest while the run's own failures are not known.
    Longest,
}

/// The failures that were seen in some time: of a run in seconds of its work, of a fleet in those
/// of its nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FailuresSeen {
    pub failures: u64,
    pub seconds: f64,
}

/// The measured saves of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SaveCost {
    /// Seconds that a save costs, and how many saves that is the mean of.
    pub seconds: f64,
    pub measured: u32,
    /// Seconds of work between two saves, without what these cost.
    pub interval: f64,
    /// Seconds from the end of a save until its checkpoint is durable.
    pub lag: f64,
    /// How many saves there are for each checkpoint that counts.
    pub saves_counted: f64,
    pub step_seconds: Option<f64>,
}

/// Young's interval: `save` and `between` are seconds of a save and between two failures.
fn young(save: f64, between: f64) -> f64 {
    (2.0 * save * between).sqrt()
}

/// Daly's interval of the same.
fn daly(save: f64, between: f64) -> f64 {
    if save >= 2.0 * between {
        return between;
    }
    let part = save / (2.0 * between);
    young(save, between) * (1.0 + part.sqrt() / 3.0 + part / 9.0) - save
}

/// The share of all time that saves take, and the work that is done again: `lost` seconds for each
/// failure.
fn share_lost(save: f64, interval: f64, lost: f64, between: f64) -> f64 {
    1.0 - (1.0 - lost / between).max(0.0) / (1.0 + save / interval)
}

impl FailuresSeen {
    /// Adds what was seen elsewhere.
    pub fn join(&mut self, other: Self) {
        self.failures = self.failures.saturating_add(other.failures);
        self.seconds += other.seconds;
    }
}

impl FailureRate {
    /// The rate of a run on so many nodes: its own if enough failures were seen, or that of the
    /// fleet, or the assumed one. `None` while neither its own failures nor its nodes are known.
    pub fn of(own: FailuresSeen, fleet: FailuresSeen, nodes: Option<u32>) -> Option<Self> {
        let is_known = |seen: FailuresSeen| seen.failures >= FAILURES_KNOWN && seen.seconds > 0.0;
        if is_known(own) {
            let source = FailureSource::Own { failures: own.failures };
            return Some(Self { seconds_between: own.seconds / own.failures as f64, source });
        }
        let nodes = nodes.filter(|nodes| *nodes > 0)?;
        let (a_node_day, source) = if is_known(fleet) {
            let rate = DAY * fleet.failures as f64 / fleet.seconds;
            let assumed = ASSUMED_FAILURES_A_NODE_DAY;
            let believed = rate.clamp(assumed / FLEET_RATE_BAND, assumed * FLEET_RATE_BAND);
            let bounded = believed != rate;
            (believed, FailureSource::Fleet { failures: fleet.failures, nodes, bounded })
        } else {
            (ASSUMED_FAILURES_A_NODE_DAY, FailureSource::Assumed { nodes })
        };
        Some(Self { seconds_between: DAY / (a_node_day * f64::from(nodes)), source })
    }

    /// The rate of a run that fails now: at least that of all failures that it had, also of those
    /// that came back at the same step.
    pub fn of_failing(own: FailuresSeen, other: Option<Self>) -> Option<Self> {
        let is_known = own.failures > 0 && own.seconds > 0.0;
        let so_far = is_known.then(|| Self {
            seconds_between: own.seconds / own.failures as f64,
            source: FailureSource::Own { failures: own.failures },
        });
        so_far.into_iter().chain(other).min_by(|a, b| a.seconds_between.total_cmp(&b.seconds_between))
    }
}

impl SaveInterval {
    /// `None` if the measured saves give no interval.
    pub fn of(saves: SaveCost, failures: FailureRate) -> Option<Self> {
        let SaveCost { seconds: save, measured, interval, lag, saves_counted, step_seconds } = saves;
        let between = failures.seconds_between;
        let is_usable = |v: f64| v.is_finite() && v > 0.0;
        if !(is_usable(interval) && is_usable(between) && save.is_finite() && save >= 0.0) {
            return None;
        }
        // Losing several intervals at once costs as much as failing so much more often.
        let lost_between = between / saves_counted.max(1.0);
        let cost_of = |interval: f64| {
            let lost = saves_counted.max(1.0) * interval / 2.0 + lag.max(0.0);
            share_lost(save, interval, lost, between)
        };
        let shortest = SHORTEST.max(DURABLE_TIMES * (save + lag));
        let is_own = matches!(failures.source, FailureSource::Own { .. });
        let longest = if is_own { f64::INFINITY } else { LONGEST };
        let (best, bound) = match daly(save, lost_between) {
            best if best < shortest => (shortest, Some(IntervalBound::Shortest)),
            best if best > longest.max(shortest) => (longest.max(shortest), Some(IntervalBound::Longest)),
            best => (best, None),
        };
        let steps = |seconds: f64| {
            let secs = step_seconds.filter(|secs| is_usable(*secs))?;
            Some((seconds / secs).round().max(1.0) as i64)
        };
        Some(Self {
            save_seconds: save,
            saves_measured: measured,
            interval_seconds: interval,
            interval_steps: steps(interval),
            failures,
            best_seconds: best,
            best_steps: steps(best),
            bound,
            cost: cost_of(interval),
            best_cost: cost_of(best),
        })
    }

    /// Whether another interval is advised: the present one is far from the best, and costs more.
    pub fn is_far_off(&self) -> bool {
        let off = self.interval_seconds / self.best_seconds;
        (off >= FAR_OFF || off <= 1.0 / FAR_OFF) && self.saved() >= WORTH
    }

    /// The share of the time that the best interval saves.
    pub fn saved(&self) -> f64 {
        (self.cost - self.best_cost).max(0.0)
    }

    /// The GPU hours of a day that the best interval saves.
    pub fn gpu_hours_a_day(&self, gpus: u32) -> f64 {
        24.0 * self.saved() * f64::from(gpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: FailureSource = FailureSource::Own { failures: 3 };

    fn minutes(seconds: f64) -> f64 {
        (seconds / 6.0).round() / 10.0
    }

    /// Eight saves of so many seconds each, without steps whose time is known.
    fn saves(seconds: f64, interval: f64) -> SaveCost {
        SaveCost { seconds, measured: 8, interval, lag: 0.0, saves_counted: 1.0, step_seconds: None }
    }

    fn interval(save: f64, interval: f64, between: f64, source: FailureSource) -> SaveInterval {
        let saves = SaveCost { step_seconds: Some(4.0), ..saves(save, interval) };
        SaveInterval::of(saves, FailureRate { seconds_between: between, source }).unwrap()
    }

    /// Of a save of 5 minutes, with a failure each 24 hours, 6 hours and 15 minutes.
    #[test]
    fn the_formula_gives_the_figures_that_daly_published() {
        let best = |between: f64| minutes(daly(300.0, between));
        assert_eq!([86_400.0, 21_600.0, 900.0].map(best), [116.7, 56.7, 9.1]);
        assert_eq!(daly(300.0, 150.0), 150.0, "a save as long as two times between failures");
        assert_eq!(daly(300.0, 100.0), 100.0);
    }

    /// At a failure each 186 minutes, as in the pre-training of Llama 3.
    #[test]
    fn what_saves_and_lost_work_cost_at_the_rate_of_llama_3() {
        let of = |save: f64| {
            let best = young(save, 11_160.0);
            // With ten minutes for a restart, the rest is the published ETTR.
            let [own, all] = [0.0, 600.0].map(|start| share_lost(save, best, best / 2.0 + start, 11_160.0));
            (minutes(best), (1000.0 * own).round() / 10.0, (1000.0 * (1.0 - all)).round() / 1000.0)
        };
        let all = [5.0, 10.0, 60.0, 300.0].map(of);
        assert_eq!(all, [(5.6, 2.9, 0.918), (7.9, 4.1, 0.906), (19.3, 9.9, 0.85), (43.1, 20.8, 0.744)]);
    }

    #[test]
    fn a_share_is_of_all_time() {
        // 30 s of 90 s, while nothing fails.
        assert!((share_lost(30.0, 60.0, 30.0, 1e12) - 1.0 / 3.0).abs() < 1e-9);
        // Half of the work of an hour is lost each hour.
        assert_eq!(share_lost(0.0, 600.0, 1800.0, 3600.0), 0.5);
        assert_eq!(share_lost(300.0, 30.0, 90.0, 60.0), 1.0, "no more than all of the time");
    }

    #[test]
    fn a_rate_is_the_runs_own_after_three_failures_and_assumed_while_nothing_is_known() {
        let seen = |failures, seconds| FailuresSeen { failures, seconds };
        let rate = |own, fleet, nodes| FailureRate::of(own, fleet, nodes);
        let own = rate(seen(3, 27_000.0), seen(90, 1e9), Some(64)).unwrap();
        assert_eq!(own, FailureRate { seconds_between: 9000.0, source: FailureSource::Own { failures: 3 } });
        // One failure each hundred node-days.
        let fleet = rate(seen(2, 9000.0), seen(10, 86_400_000.0), Some(50)).unwrap();
        assert_eq!(fleet.source, FailureSource::Fleet { failures: 10, nodes: 50, bounded: false });
        assert!((fleet.seconds_between - 172_800.0).abs() < 1e-6, "{fleet:?}");
        let assumed = rate(seen(0, 0.0), seen(2, 86_400_000.0), Some(2048)).unwrap();
        assert_eq!(assumed.source, FailureSource::Assumed { nodes: 2048 });
        assert!((assumed.seconds_between - 11_135.1).abs() < 0.1, "{assumed:?}");
        assert_eq!(rate(seen(2, 9000.0), seen(90, 1e9), None), None, "nobody knows its nodes");
    }

    #[test]
    fn a_fleet_that_fails_by_its_own_bugs_is_not_believed() {
        let none = FailuresSeen::default();
        let bugs = FailuresSeen { failures: 1000, seconds: 3_600_000.0 };
        let rate = FailureRate::of(none, bugs, Some(2048)).unwrap();
        assert!((rate.seconds_between - 556.76).abs() < 0.01, "{rate:?}");
        assert_eq!(rate.source, FailureSource::Fleet { failures: 1000, nodes: 2048, bounded: true });
    }

    #[test]
    fn a_run_that_fails_now_fails_at_least_as_often_as_it_did() {
        let seen = |failures, seconds| FailuresSeen { failures, seconds };
        let assumed = FailureRate::of(seen(0, 0.0), seen(0, 0.0), Some(1));
        assert_eq!(FailureRate::of_failing(seen(0, 9000.0), assumed), assumed);
        let own = FailureRate::of_failing(seen(4, 36_000.0), assumed);
        let source = FailureSource::Own { failures: 4 };
        assert_eq!(own, Some(FailureRate { seconds_between: 9000.0, source }));
        let often = FailureRate { seconds_between: 600.0, source: OWN };
        assert_eq!(FailureRate::of_failing(seen(1, 36_000.0), Some(often)), Some(often));
    }

    /// Saves every 500 s of which each third becomes durable, 200 s later.
    #[test]
    fn where_only_some_saves_count_a_failure_loses_more() {
        let saves = SaveCost { lag: 200.0, saves_counted: 3.0, ..saves(5.0, 500.0) };
        let rate = FailureRate { seconds_between: 21_600.0, source: OWN };
        let some = SaveInterval::of(saves, rate).unwrap();
        // 950 s of work are lost each 21600 s, and each 500 s of work take 505 s.
        assert!((some.cost - (1.0 - (1.0 - 950.0 / 21_600.0) * 500.0 / 505.0)).abs() < 1e-9, "{some:?}");
        // As if it failed each 7200 s, but no more often than twice the time to become durable.
        assert_eq!((some.best_seconds, some.bound), (410.0, Some(IntervalBound::Shortest)));
    }

    #[test]
    fn another_interval_is_advised_if_it_is_far_off_and_worth_it() {
        let often = interval(30.0, 500.0, 21_600.0, OWN);
        assert_eq!((often.interval_steps, often.best_steps), (Some(125), Some(280)));
        assert!((often.best_seconds - 1118.5).abs() < 0.1, "{often:?}");
        assert!((often.cost - 0.067_52).abs() < 1e-4 && (often.best_cost - 0.051_34).abs() < 1e-4);
        assert!(often.is_far_off() && (often.gpu_hours_a_day(512) - 198.9).abs() < 0.5);
        assert!(interval(30.0, 3000.0, 21_600.0, OWN).is_far_off());
        assert!(!interval(30.0, 700.0, 21_600.0, OWN).is_far_off(), "less than twice as often");
        let cheap = interval(1.0, 300.0, 864_000.0, OWN);
        assert!(
            cheap.best_seconds > 1200.0 && !cheap.is_far_off(),
            "it saves a fifth of a percent: {cheap:?}"
        );
    }

    #[test]
    fn what_is_advised_has_bounds() {
        let assumed = FailureSource::Assumed { nodes: 1 };
        let small = interval(60.0, 1200.0, 22_800_000.0, assumed);
        assert_eq!((small.best_seconds, small.bound), (14_400.0, Some(IntervalBound::Longest)));
        let own = interval(60.0, 1200.0, 22_800_000.0, OWN);
        assert!(own.best_seconds > 50_000.0 && own.bound.is_none(), "{own:?}");
        let fast = interval(0.01, 1800.0, 11_160.0, assumed);
        assert_eq!((fast.best_seconds, fast.bound), (300.0, Some(IntervalBound::Shortest)));
        let slow = SaveCost { lag: 399.5, ..saves(0.5, 1800.0) };
        let rate = FailureRate { seconds_between: 11_160.0, source: OWN };
        let slow = SaveInterval::of(slow, rate).unwrap();
        assert_eq!((slow.best_seconds, slow.best_steps), (800.0, None), "saves must not pile up");
    }

    #[test]
    fn numbers_that_are_none_give_no_advice() {
        let rate = FailureRate { seconds_between: 9000.0, source: OWN };
        let of = |seconds: f64, interval: f64| SaveInterval::of(saves(seconds, interval), rate);
        assert!(of(30.0, 600.0).is_some());
        for (seconds, interval) in [(f64::NAN, 600.0), (30.0, 0.0), (30.0, f64::INFINITY), (-1.0, 600.0)] {
            assert_eq!(of(seconds, interval), None);
        }
    }
}
