//! Many ranks and sources report the same step. The detectors need one sample for each step, as
//! early as possible, with every signal once.
//!
//! The leader is the lowest rank that reports a loss or gradient norm. Its report becomes the
//! sample at once, so that a spike is detected without waiting for other ranks. While no rank has
//! reported a loss, a step is evaluated when the next one begins. Later reports add to the step: a
//! signal that it has not had yet becomes a sample of its own, in order of the steps, from the rank
//! that usually reports it. A non-finite value of any rank is passed on whenever it arrives.

use serde::{Deserialize, Serialize};
use stepwatch_wire::Event;

use crate::sample::StepSample;
use stepwatch_model::time::Ts;

use super::values::{LOSS, SIGNALS, Units, Values};
use super::{Derived, derived_step_time};

/// The relation of a step report to the earlier reports of its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    Next,
    /// The first rank to come back after a restart.
    Restarted,
    /// A further report of a step that the rank reported before: another source of it, or a resend.
    Again,
    Duplicate,
    Stale,
}

/// Steps that the leader, or the rank that reports a signal, may miss before another rank takes
/// its place.
const PATIENCE: i64 = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Align {
    leader: Option<u32>,
    leader_missed: i64,
    /// The last step that became a sample, and its time if the report had one.
    last: Option<(i64, Option<Ts>)>,
    /// If the clock is too coarse for a single step: the step and its time from which the speed is
    /// derived.
    since: Option<(i64, Ts)>,
    /// A step that waits for the leader's report, or for its end.
    pending: Option<StepReport>,
    signals: [Signal; SIGNALS],
    units: Units,
    /// Some source reports how fast the run is, so the step time is not derived from the times of
    /// the reports.
    measured: bool,
}

/// The report of a rank about a step.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StepReport {
    pub(crate) step: i64,
    pub(crate) ts: Ts,
    /// `ts` is from the report; otherwise it is when the report arrived.
    pub(crate) has_time: bool,
    pub(crate) rank: u32,
    pub(crate) values: Values,
}

/// The samples that a report makes. Nearly always there is one, so that nothing is allocated.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    first: Option<StepSample>,
    more: Vec<StepSample>,
}

impl Samples {
    fn push(&mut self, sample: StepSample) {
        match &self.first {
            None => self.first = Some(sample),
            Some(_) => self.more.push(sample),
        }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StepSample> {
        self.first.iter_mut().chain(&mut self.more)
    }
}

/// The progress of a signal.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Signal {
    /// The last step at which it was evaluated.
    last: Option<i64>,
    /// The number of steps between two values.
    every: i64,
    /// The rank that reports it.
    rank: u32,
}

impl Signal {
    pub(crate) fn takes(&self, rank: u32, step: i64) -> bool {
        let Some(last) = self.last else { return true };
        let ahead = step.saturating_sub(last);
        ahead > 0 && (rank <= self.rank || ahead > PATIENCE.saturating_mul(self.every.max(1)))
    }

    /// Steps since the last value.
    pub(crate) fn moved(&mut self, rank: u32, step: i64) -> Option<i64> {
        let interval = self.last.map(|last| step.saturating_sub(last).max(1));
        *self = Self { last: Some(step), every: interval.unwrap_or(1), rank };
        interval
    }

    /// Resets the last step, because the run restarted.
    pub(crate) fn restart(&mut self) {
        self.last = None;
    }
}

impl Align {
    /// The signals of a report.
    pub(crate) fn read(&mut self, e: &Event) -> Values {
        Values::from_event(e, &mut self.units)
    }

    /// Handles a report and pushes the samples that it makes. False if it had nothing new.
    pub(crate) fn take(&mut self, mut report: StepReport, out: &mut Samples) -> bool {
        let StepReport { step, ts, rank, .. } = report;
        self.measured |= report.values.has_speed();
        let judged = self.last.is_some_and(|(last, _)| step <= last);
        if judged || self.pending.as_ref().is_some_and(|p| step < p.step) {
            return self.add(&report, out);
        }
        let leads = self.accepts_leader(rank);
        if report.values.nonfinite() && !leads {
            out.push(report.values.alarm().sample(step, ts, 0));
        }
        if let Some(p) = self.pending.take_if(|p| p.step < step) {
            self.leader_missed += i64::from(self.leader.is_some());
            self.emit(p, out);
        }
        if report.values.leads() && leads {
            let waited = self.pending.take();
            if let Some(p) = waited.as_ref().filter(|p| p.rank == rank) {
                report.values.fill(&p.values);
            }
            self.leader = Some(rank);
            self.leader_missed = 0;
            self.emit(report, out);
            if let Some(p) = waited.filter(|p| p.rank != rank) {
                self.add(&p, out);
            }
            return true;
        }
        // Without a leader any rank may report the loss: wait for the step to end.
        match &mut self.pending {
            Some(p) if p.rank == rank => return p.values.fill(&report.values),
            Some(p) => {
                if report.values.leads() && !p.values.leads() || rank < p.rank && !p.values.leads() {
                    (p.rank, p.values) = (rank, report.values);
                }
            }
            None => self.pending = Some(report),
        }
        true
    }

    /// Adds the new signals of a report to a step that has already been evaluated.
    fn add(&mut self, report: &StepReport, out: &mut Samples) -> bool {
        let StepReport { step, ts, rank, .. } = *report;
        let mut fresh = report.values;
        for (i, signal) in self.signals.iter().enumerate() {
            if !signal.takes(rank, step) {
                fresh.forget(i);
            }
        }
        // A NaN is passed on from any rank, also if another rank had a number for this step.
        let mut alarm = report.values.without(&fresh).alarm();
        if self.signals[LOSS].rank == rank {
            alarm.has_its_loss();
        }
        if alarm.nonfinite() {
            out.push(alarm.sample(step, ts, 0));
        }
        if fresh.is_empty() {
            return alarm.nonfinite();
        }
        let interval = self.mark(rank, step, &fresh).unwrap_or(1);
        out.push(StepSample { adds: true, ..fresh.sample(step, ts, interval) });
        true
    }

    /// Records that signals are evaluated at `step`. Returns the fewest steps since one of them was
    /// evaluated before.
    fn mark(&mut self, rank: u32, step: i64, values: &Values) -> Option<i64> {
        values.signals().filter_map(|i| self.signals[i].moved(rank, step)).min()
    }

    pub(crate) fn restart(&mut self) {
        self.pending = None;
        (self.last, self.since) = (None, None);
        self.leader_missed = 0;
        self.signals.iter_mut().for_each(Signal::restart);
    }

    /// Derives the time of a step from the times of the reports. A clock of whole seconds is exact
    /// enough over a minute of steps, and for a pause of a minute, which must not be spread over
    /// other steps.
    fn worked_out(&mut self, before: Ts, step: i64, at: Ts, interval: i64) -> Option<Derived> {
        let (first, since) = *self.since.get_or_insert((step.saturating_sub(interval), before));
        let alone = derived_step_time(before, at, interval);
        let derived = alone.or_else(|| derived_step_time(since, at, step.saturating_sub(first)));
        if derived.is_some() || at < since {
            self.since = Some((step, at));
        }
        derived
    }

    fn accepts_leader(&self, rank: u32) -> bool {
        match self.leader {
            None => true,
            Some(leader) => rank <= leader || self.leader_missed >= PATIENCE,
        }
    }

    fn emit(&mut self, mut report: StepReport, out: &mut Samples) {
        let StepReport { step, ts, has_time, rank, .. } = report;
        let values = &mut report.values;
        let interval = self.last.map_or(1, |(last, _)| step.saturating_sub(last)).max(1);
        if !self.measured {
            let before = self.last.and_then(|(_, before)| before).filter(|_| has_time);
            values.set_step_time(before.and_then(|before| self.worked_out(before, step, ts, interval)));
        }
        self.last = Some((step, has_time.then_some(ts)));
        self.mark(rank, step, values);
        out.push(values.sample(step, ts, interval));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(step: i64, m: &[(&str, f64)]) -> Event {
        let mut e = Event::step("r", step);
        for (name, v) in m {
            e.m.set(name, *v);
        }
        e
    }

    /// Rank, step, metrics.
    type Report<'a> = (u32, i64, &'a [(&'a str, f64)]);

    /// The samples of reports: step, interval, whether it adds, and what it has.
    fn samples(reports: &[Report<'_>]) -> Vec<(i64, i64, bool, &'static str)> {
        let (mut align, mut out) = (Align::default(), Samples::default());
        for (rank, step, m) in reports {
            let values = align.read(&event(*step, m));
            let (rank, step) = (*rank, *step);
            align.take(StepReport { step, ts: Ts(step), has_time: false, rank, values }, &mut out);
        }
        let has = |s: &mut StepSample| match (s.loss.is_some(), s.grad_norm.is_some()) {
            (true, true) => "both",
            (true, false) => "loss",
            (false, true) => "grad",
            (false, false) => "neither",
        };
        out.iter_mut().map(|s| (s.step, s.interval, s.adds, has(s))).collect()
    }

    /// Strict JSON writes NaN as `null`.
    #[test]
    fn a_loss_that_one_rank_lacks_is_passed_on_although_another_has_it() {
        let lacks = |rank: u32, order: &[u32]| {
            let (mut align, mut out) = (Align::default(), Samples::default());
            for step in 1..4 {
                for at in order {
                    let mut e = event(step, if *at == rank && step > 1 { &[] } else { &[L] });
                    if e.m.get("loss").is_none() {
                        e.missing.push("loss".into());
                    }
                    let values = align.read(&e);
                    align.take(
                        StepReport { step, ts: Ts(step), has_time: false, rank: *at, values },
                        &mut out,
                    );
                }
            }
            out.iter_mut().filter(|s| s.loss_missing).map(|s| s.step).collect::<Vec<_>>()
        };
        assert_eq!(lacks(3, &[0, 3]), [2, 3]);
        assert_eq!(lacks(3, &[3, 0]), [2, 3]);
        assert_eq!(lacks(0, &[0, 3]), [2, 3]);
        assert_eq!(lacks(7, &[0, 3]), [0; 0]);
        // A client and a log of one rank: the log lacks what the client has.
        let (mut align, mut out) = (Align::default(), Samples::default());
        let values = align.read(&event(1, &[L]));
        align.take(StepReport { step: 1, ts: Ts(1), has_time: false, rank: 0, values }, &mut out);
        let values = align.read(&Event { missing: vec!["loss".into()], ..event(1, &[G]) });
        align.take(StepReport { step: 1, ts: Ts(1), has_time: false, rank: 0, values }, &mut out);
        assert!(!out.iter_mut().any(|s| s.loss_missing));
    }

    const L: (&str, f64) = ("loss", 2.0);
    const G: (&str, f64) = ("grad_norm", 0.5);

    #[test]
    fn a_late_signal_is_judged_once_and_in_its_own_order() {
        let got = samples(&[
            (0, 1, &[L]),
            (0, 2, &[L]),
            (0, 1, &[G]),
            (0, 1, &[G, L]),
            (0, 3, &[L]),
            (0, 3, &[G]),
            (0, 2, &[G]),
        ]);
        let want = [
            (1, 1, false, "loss"),
            (2, 1, false, "loss"),
            (1, 1, true, "grad"),
            (3, 1, false, "loss"),
            (3, 2, true, "grad"),
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn a_signal_comes_from_one_rank_while_that_one_reports_it() {
        let got =
            samples(&[(0, 1, &[L]), (7, 1, &[G]), (3, 1, &[G]), (3, 2, &[G]), (0, 2, &[L]), (7, 2, &[G])]);
        // Rank 3 reports it at the step after, and is the lower one.
        let want = [(1, 1, false, "loss"), (1, 1, true, "grad"), (2, 1, false, "loss"), (2, 1, true, "grad")];
        assert_eq!(got, want);
    }

    #[test]
    fn a_log_every_ten_steps_beside_a_client_every_step() {
        let mut reports: Vec<Report<'_>> = Vec::new();
        for step in 1..=40 {
            reports.push((0, step, &[L]));
            if step % 10 == 0 {
                reports.push((0, step, &[G, L]));
            }
        }
        let got = samples(&reports);
        assert!(got.iter().filter(|s| !s.2).all(|s| s.1 == 1));
        let added: Vec<_> = got.iter().filter(|s| s.2).map(|s| (s.0, s.1, s.3)).collect();
        assert_eq!(added, [(10, 1, "grad"), (20, 10, "grad"), (30, 10, "grad"), (40, 10, "grad")]);
    }

    /// The step times worked out of the times of the reports of steps 1, 2, ...: the step, seconds
    /// a step, and how finely.
    fn timed(times: impl IntoIterator<Item = f64>) -> Vec<(i64, f64, f64)> {
        let (mut align, mut out) = (Align::default(), Samples::default());
        for (step, at) in (1..).zip(times) {
            let values = align.read(&event(step, &[L]));
            let ts = Ts::from_secs_f64(at);
            align.take(StepReport { step, ts, has_time: true, rank: 0, values }, &mut out);
        }
        let timed = out.iter_mut().filter_map(|s| Some((s.step, s.step_time?, s.q.step_time)));
        let three = |v: f64| (v * 1000.0).round() / 1000.0;
        timed.map(|(step, secs, q)| (step, three(secs), three(q))).collect()
    }

    #[test]
    fn a_clock_of_whole_seconds_gives_the_speed_of_many_steps_together() {
        let got = timed((0..25).map(|i| (f64::from(i) * 6.4 + 0.1).floor()));
        assert_eq!(got, [(9, 6.375, 0.125), (17, 6.375, 0.125), (25, 6.375, 0.125)]);
        let exact = timed((0..4).map(|i| f64::from(i) * 6.4 + 0.1));
        assert_eq!(exact.iter().map(|t| (t.0, t.1)).collect::<Vec<_>>(), [(2, 6.4), (3, 6.4), (4, 6.4)]);
    }

    #[test]
    fn a_pause_stands_out_by_itself() {
        let times = (1..30).map(|i| 6.0 * f64::from(i) + if i > 15 { 180.0 } else { 0.0 });
        let got: Vec<_> = timed(times).iter().map(|t| (t.0, t.1)).collect();
        assert_eq!(got, [(10, 6.0), (16, 186.0), (25, 6.0)]);
    }

    #[test]
    fn a_number_that_turns_out_to_be_none_is_an_alarm() {
        let got =
            samples(&[(0, 1, &[L]), (0, 1, &[("loss", f64::NAN)]), (4, 1, &[("grad_norm", f64::INFINITY)])]);
        assert_eq!(got, [(1, 1, false, "loss"), (1, 0, false, "loss"), (1, 1, true, "grad")]);
    }
}
