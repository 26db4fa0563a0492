//! The accounts of forgotten runs. A run that comes back continues them, so that its counters never
//! decrease.

use super::run::Run;
use super::{Key, Monitor};
use crate::run::{KeptAccounts, RunHour};
use stepwatch_model::time::Ts;

/// The most runs whose accounts are kept; above it, those that were forgotten first are dropped and
/// counted.
const MAX_KEPT: usize = 2000;

impl Monitor {
    /// Begins a run, with its kept accounts if it was known before.
    pub(super) fn begin_run(&mut self, now: Ts, name: &str) {
        let mut run = Run::new(name, now, &self.config);
        if let Some(kept) = self.kept_accounts.remove(name) {
            run.state.ledger.go_on_from(kept.accounts);
            self.dirty.insert(Key::KeptAccounts(name.to_owned()));
        }
        self.runs.insert(name.to_owned(), run);
    }

    /// Keeps the accounts of a run that is forgotten.
    pub(super) fn keep_accounts(&mut self, now: Ts, run: &mut Run) {
        self.count_last(run);
        let Some(mut accounts) = run.take_accounts() else { return };
        let hours = accounts.take_hours().map(|hour| RunHour { run: run.state.name.clone(), hour });
        self.hours.extend(hours);
        if self.kept_accounts.len() >= MAX_KEPT {
            let first = self.kept_accounts.iter().min_by_key(|(_, kept)| kept.since);
            if let Some(name) = first.map(|(name, _)| name.clone()) {
                self.kept_accounts.remove(&name);
                self.dirty.insert(Key::KeptAccounts(name));
                self.dropped_accounts += 1;
            }
        }
        self.kept_accounts.insert(run.state.name.clone(), KeptAccounts { accounts, since: now });
        self.dirty.insert(Key::KeptAccounts(run.state.name.clone()));
    }

    /// Forgotten runs whose accounts were dropped to make room.
    pub fn dropped_accounts(&self) -> u64 {
        self.dropped_accounts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stepwatch_wire::Event;

    use super::*;
    use crate::Input;
    use crate::run::{HOUR, TimeState};
    use stepwatch_model::time::Span;

    const START: Ts = Ts(1_795_227_416_000);

    fn say(monitor: &mut Monitor, at: Ts, event: &str) {
        let mut event = Event::parse(event.as_bytes()).unwrap();
        (event.ts, event.rank, event.node) = (Some(at.as_secs_f64()), Some(0), Some("n1".into()));
        monitor.handle(at, Input::Event { source: "n1:9765", event: &event }, &mut Vec::new());
    }

    /// Feeds thirty steps in five minutes, and the end of the run. Returns when it is over.
    fn live(monitor: &mut Monitor, run: &str, from: Ts) -> Ts {
        live_on(monitor, run, from, r#""world":8"#)
    }

    fn live_on(monitor: &mut Monitor, run: &str, from: Ts, gpus: &str) -> Ts {
        say(monitor, from, &format!(r#"{{"k":"hello","run":"{run}",{gpus},"job":"{}"}}"#, from.0));
        let mut at = from;
        for step in 1..=30 {
            at = from + Span::secs(10 * step);
            say(monitor, at, &format!(r#"{{"k":"step","run":"{run}","step":{step},"m":{{"loss":2.0}}}}"#));
        }
        say(monitor, at, &format!(r#"{{"k":"bye","code":0,"run":"{run}"}}"#));
        at
    }

    fn pass(monitor: &mut Monitor, until: Ts) {
        while monitor.tick_one(until, &mut Vec::new()) {}
    }

    fn gpu_seconds(monitor: &Monitor, run: &str, state: TimeState) -> Option<f64> {
        monitor.run(run).and_then(|run| run.state.ledger.totals().gpu_seconds(state))
    }

    #[test]
    fn time_is_counted_by_the_devices_of_a_process_and_not_at_all_if_nobody_knows_them() {
        let counts = |gpus: &str| {
            let mut monitor = Monitor::default();
            live_on(&mut monitor, "r", START, gpus);
            [TimeState::Starting, TimeState::Productive].map(|state| gpu_seconds(&monitor, "r", state))
        };
        // 10 s until the first step, and 29 steps of 10 s, of 8 GPUs and of one.
        assert_eq!(counts(r#""world":1,"devices":8"#), [Some(80.0), Some(2320.0)]);
        assert_eq!(counts(r#""world":1,"cuda_visible_devices":"5""#), [Some(10.0), Some(290.0)]);
        assert_eq!(counts(r#""world":1,"cuda_visible_devices":"0,1""#), [None, None]);
        assert_eq!(counts(r#""world":1"#), [None, None]);
    }

    #[test]
    fn a_run_that_was_forgotten_goes_on_from_its_counts() {
        let mut monitor = Monitor::default();
        let over = live(&mut monitor, "r", START);
        let states = [TimeState::Starting, TimeState::Productive];
        let counts = |monitor: &Monitor| states.map(|state| gpu_seconds(monitor, "r", state));
        assert_eq!(counts(&monitor), [Some(80.0), Some(2320.0)]);
        let later = over + Span::secs(7200);
        pass(&mut monitor, later);
        assert!(monitor.run("r").is_none());
        let parts: Vec<_> = monitor.take_dirty().into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
        let (mut monitor, unusable) = Monitor::restore(Arc::default(), parts);
        assert!(unusable.is_empty(), "{unusable:?}");
        say(&mut monitor, later, r#"{"k":"hello","run":"r","world":8,"job":"2"}"#);
        assert_eq!(counts(&monitor), [Some(80.0), Some(2320.0)]);
        let over = live(&mut monitor, "r", later);
        assert_eq!(counts(&monitor), [Some(160.0), Some(4640.0)], "its steps are new ones");
        let all: f64 = TimeState::ALL.into_iter().filter_map(|s| gpu_seconds(&monitor, "r", s)).sum();
        assert_eq!(all, 4800.0, "and not the time in which nobody knew it");
        pass(&mut monitor, over + Span::secs(7200));
        live(&mut monitor, "r", over + Span::secs(7200));
        assert_eq!(counts(&monitor), [Some(240.0), Some(6960.0)]);
    }

    #[test]
    fn of_more_runs_than_are_kept_those_that_were_forgotten_first_are_dropped() {
        let mut monitor = Monitor::default();
        let forgotten = |n: usize| START + Span::secs(n as i64);
        for n in 0..MAX_KEPT + 3 {
            let mut run = Run::new(&format!("r{n}"), START, &Arc::default());
            monitor.keep_accounts(forgotten(n), &mut run);
            assert!(monitor.kept_accounts.len() <= n, "a run without time leaves nothing");
            run.state.ledger.go_on_from(Box::default());
            monitor.keep_accounts(forgotten(n), &mut run);
        }
        assert_eq!((monitor.kept_accounts.len(), monitor.dropped_accounts()), (MAX_KEPT, 3));
        assert!(!monitor.kept_accounts.contains_key("r2") && monitor.kept_accounts.contains_key("r3"));
    }

    #[test]
    fn hours_are_handed_out_once_they_are_over_and_of_a_run_that_is_forgotten_all() {
        let mut monitor = Monitor::default();
        // A minute before an hour is over.
        let from = Ts((START.0 / HOUR.0 + 1) * HOUR.0 - 60_000);
        let over = live(&mut monitor, "r", from);
        assert_eq!(monitor.take_hours(), [], "with the state that does not have them any more");
        monitor.take_dirty();
        let hours = monitor.take_hours();
        assert_eq!(hours.len(), 1);
        assert_eq!((hours[0].hour.hour, hours[0].hour.totals.total()), (START.0 / HOUR.0, 60.0));
        monitor.take_dirty();
        assert_eq!(monitor.take_hours(), []);
        pass(&mut monitor, over + Span::secs(7200));
        let rest = monitor.take_hours();
        assert_eq!((rest.len(), rest[0].hour.totals.total()), (1, 240.0));
        assert_eq!(rest[0].hour.totals.counts().starts, 0, "that was before");
        // The run is back within the hour: its accounts of this hour now replace the earlier ones.
        live(&mut monitor, "r", Ts(over.0 + 600_000));
        pass(&mut monitor, over + Span::secs(14_400));
        let again = monitor.take_hours();
        assert_eq!((again.len(), again[0].hour.totals.total()), (1, 540.0));
    }
}
