//! How often runs save, how often they should, and how often runs fail.
//!
//! The failures of all runs are kept in a part of the stored state of their own, so that what was
//! learned outlives the runs and restarts of the alerter.

use stepwatch_model::{FailureRate, FailuresSeen, SaveInterval};

use super::run::Run;
use super::{Key, Monitor};

impl Monitor {
    /// How often a run saves, and how often it should. `None` until what its saves cost is known,
    /// and while neither its own failures nor its nodes are.
    pub fn save_interval(&self, run: &Run) -> Option<SaveInterval> {
        SaveInterval::of(run.save_cost()?, self.failure_rate(run)?)
    }

    /// The same of a run that fails now.
    pub(super) fn failing_interval(&self, run: &Run) -> Option<SaveInterval> {
        let rate = FailureRate::of_failing(run.state.all_failures(), self.failure_rate(run));
        SaveInterval::of(run.save_cost()?, rate?)
    }

    fn failure_rate(&self, run: &Run) -> Option<FailureRate> {
        let own = run.state.checkpoints.exposure.seen();
        FailureRate::of(own, self.fleet.seen(), run.state.node_count())
    }

    /// The failures of all runs, and the seconds of their nodes, after the first hour of each
    /// attempt.
    pub fn fleet_failures(&self) -> FailuresSeen {
        self.fleet.seen()
    }

    /// Counts what was seen of a run that is forgotten.
    pub(super) fn count_last(&mut self, run: &mut Run) {
        let seen = run.state.take_last_exposure();
        if seen != FailuresSeen::default() {
            self.fleet.add(run.reporters.uid, seen);
            self.dirty.insert(Key::Fleet);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stepwatch_model::time::Ts;
    use stepwatch_model::{Directory as _, FailureSource, IntervalBound, Spoiler, Spoilt};
    use stepwatch_wire::Event;

    use super::*;
    use crate::Input;

    const HELLO: &str = r#"{"k":"hello","run":"r","world":1,"job":"77"}"#;

    struct Scene {
        monitor: Monitor,
        now: i64,
        step: i64,
    }

    impl Scene {
        fn new() -> Self {
            let mut scene = Self { monitor: Monitor::default(), now: 1_795_227_416_000, step: 0 };
            scene.say(HELLO);
            scene
        }

        fn say(&mut self, event: &str) {
            let mut event = Event::parse(event.as_bytes()).unwrap();
            let at = Ts(self.now);
            (event.ts, event.rank, event.node) = (Some(at.as_secs_f64()), Some(0), Some("n1".into()));
            self.monitor.handle(at, Input::Event { source: "n1:9765", event: &event }, &mut Vec::new());
        }

        fn steps(&mut self, attempt: u32, n: i64, secs: i64) {
            for _ in 0..n {
                self.now += 1000 * secs;
                self.step += 1;
                let step = self.step;
                self.say(&format!(
                    r#"{{"k":"step","run":"r","attempt":{attempt},"step":{step},"m":{{"loss":2.0}}}}"#
                ));
            }
        }

        fn restart_alerter(&mut self) {
            let parts = self.monitor.take_dirty().into_iter().filter_map(|(key, part)| Some((key, part?)));
            let (monitor, unusable) = Monitor::restore(Arc::default(), parts);
            assert!(unusable.is_empty(), "{unusable:?}");
            self.monitor = monitor;
        }
    }

    #[test]
    fn the_failures_of_all_runs_outlive_the_runs_and_a_restart_of_the_alerter() {
        let mut s = Scene::new();
        s.steps(0, 121, 60);
        s.say(r#"{"k":"bye","run":"r","code":1,"text":"CUDA error"}"#);
        s.say(HELLO);
        s.step = 100;
        s.steps(1, 1, 60);
        // Two hours of work, of which the second counts.
        assert_eq!(s.monitor.fleet_failures(), FailuresSeen { failures: 1, seconds: 3600.0 });
        let own = s.monitor.run("r").unwrap().state.checkpoints.exposure.seen();
        assert_eq!((own.failures, own.seconds), (1, 7200.0));
        s.restart_alerter();
        assert_eq!(s.monitor.fleet_failures(), FailuresSeen { failures: 1, seconds: 3600.0 });
        // The second attempt fails after two hours, and nobody restarts the run.
        s.steps(1, 120, 60);
        s.say(r#"{"k":"bye","run":"r","code":1,"text":"CUDA error"}"#);
        let later = Ts(s.now) + crate::run::FORGET_AFTER;
        while s.monitor.tick_one(later, &mut Vec::new()) {}
        assert!(s.monitor.run("r").is_none());
        assert_eq!(s.monitor.fleet_failures(), FailuresSeen { failures: 2, seconds: 7200.0 });
    }

    #[test]
    fn an_interval_follows_from_the_saves_of_the_run_and_the_failures_that_are_known() {
        let mut s = Scene::new();
        for _ in 0..3 {
            s.steps(0, 50, 10);
            s.say(&format!(r#"{{"k":"ckpt","phase":"start","run":"r","step":{}}}"#, s.step));
            s.now += 30_000;
            s.say(&format!(r#"{{"k":"ckpt","phase":"end","run":"r","step":{},"seconds":30}}"#, s.step));
        }
        s.steps(0, 5, 10);
        let of = |s: &Scene| s.monitor.save_interval(s.monitor.run("r").unwrap()).unwrap();
        let assumed = of(&s);
        assert!((29.0..=30.0).contains(&assumed.save_seconds), "{assumed:?}");
        assert!((480.0..530.0).contains(&assumed.interval_seconds), "{assumed:?}");
        assert!(assumed.interval_steps.is_some_and(|steps| (50..=51).contains(&steps)), "{assumed:?}");
        assert_eq!(assumed.failures.source, FailureSource::Assumed { nodes: 1 });
        assert_eq!((assumed.best_seconds, assumed.bound), (14_400.0, Some(IntervalBound::Longest)));
        assert!(assumed.best_steps.is_some_and(|steps| (1350..1500).contains(&steps)), "{assumed:?}");
        assert!(assumed.is_far_off());
        // One failure in ten node-days.
        s.monitor.fleet.add(None, FailuresSeen { failures: 4, seconds: 40.0 * 86_400.0 });
        let fleet = of(&s);
        assert_eq!(fleet.failures.source, FailureSource::Fleet { failures: 4, nodes: 1, bounded: true });
        // No more than twenty times the assumed rate is believed.
        assert!((fleet.failures.seconds_between - 1_140_232.5).abs() < 1.0, "{fleet:?}");
        let summary = s.monitor.summary(Ts(s.now), "r").unwrap();
        assert_eq!(summary.save_interval.as_deref(), Some(&fleet));
        assert_eq!(summary.failing_interval.as_deref(), Some(&fleet), "it has not failed");
        s.say(r#"{"k":"bye","run":"r","code":1,"text":"CUDA error"}"#);
        let failing = s.monitor.summary(Ts(s.now), "r").unwrap().failing_interval.unwrap();
        assert_eq!(failing.failures.source, FailureSource::Own { failures: 1 });
        assert!((1400.0..1700.0).contains(&failing.failures.seconds_between), "{failing:?}");
        assert!(failing.best_seconds < failing.interval_seconds, "{failing:?}");
    }

    #[test]
    fn what_is_saved_after_a_loss_that_is_not_finite_is_spoilt_until_the_run_goes_back() {
        let mut s = Scene::new();
        s.steps(0, 40, 10);
        s.say(r#"{"k":"ckpt","phase":"end","run":"r","step":40}"#);
        for _ in 0..5 {
            s.now += 10_000;
            s.step += 1;
            let step = s.step;
            s.say(&format!(r#"{{"k":"step","run":"r","attempt":0,"step":{step},"m":{{"loss":NaN}}}}"#));
        }
        s.say(r#"{"k":"ckpt","phase":"end","run":"r","step":45}"#);
        let nan = Spoilt { by: Spoiler::Nonfinite, onset: 41 };
        let summary = s.monitor.summary(Ts(s.now), "r").unwrap();
        assert_eq!((summary.saved, summary.spoilt), (vec![40, 45], Some(nan)));
        s.restart_alerter();
        let summary = s.monitor.summary(Ts(s.now), "r").unwrap();
        assert_eq!(summary.spoilt, Some(nan));
        s.say(HELLO);
        s.say(r#"{"k":"step","run":"r","attempt":1,"step":46,"m":{"loss":NaN}}"#);
        let summary = s.monitor.summary(Ts(s.now), "r").unwrap();
        assert_eq!((summary.attempt, summary.spoilt), (1, Some(nan)), "it went on from 45");
        s.say(HELLO);
        s.step = 40;
        s.steps(2, 3, 10);
        let summary = s.monitor.summary(Ts(s.now), "r").unwrap();
        assert_eq!((summary.saved, summary.spoilt), (vec![40], None));
    }
}
