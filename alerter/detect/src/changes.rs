//! Changes of the runs: context for people who look at an incident. They raise no alarm.

use crate::run::RunState;
use stepwatch_model::time::Ts;

/// The most changes kept until they are taken; the oldest are dropped first.
const MAX_CHANGES: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunChange {
    pub run: String,
    pub at: Ts,
    pub what: Change,
    /// The step of the run then.
    pub step: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Its first step was seen.
    Started,
    /// Another attempt, from `1`; with the step that the one before had reached.
    Restarted { attempt: u32, reached: Option<i64> },
    /// The configuration of the run changed.
    Configured,
}

impl RunChange {
    /// One line for a person.
    pub fn text(&self) -> String {
        let at = self.step.map(|s| format!(" at step {s}")).unwrap_or_default();
        match &self.what {
            Change::Started => format!("{} started{at}", self.run),
            Change::Restarted { attempt, reached } => {
                let back = reached.zip(self.step).filter(|(reached, step)| step < reached);
                let back = back.map(|(reached, step)| format!(", back from step {reached} to {step}"));
                format!("{} restarted (attempt {attempt}){}", self.run, back.unwrap_or(at))
            }
            Change::Configured => format!("{} has another configuration{at}", self.run),
        }
    }
}

/// A run as it was before something happened to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Before {
    attempt: u32,
    steps: u64,
    step: Option<i64>,
}

/// The changes that have not been taken yet.
#[derive(Debug, Default)]
pub(crate) struct Changes(Vec<RunChange>);

impl Before {
    pub(crate) fn from_run(f: &RunState) -> Self {
        Self { attempt: f.attempt, steps: f.total_steps, step: f.last_step }
    }
}

impl Changes {
    pub(crate) fn note(&mut self, now: Ts, before: &Before, f: &RunState) {
        let what = if f.attempt != before.attempt {
            Change::Restarted { attempt: f.attempt, reached: before.step }
        } else if before.steps == 0 && f.total_steps > 0 {
            Change::Started
        } else {
            return;
        };
        self.push(RunChange { run: f.name.clone(), at: now, what, step: f.last_step });
    }

    pub(crate) fn push(&mut self, change: RunChange) {
        if self.0.len() >= MAX_CHANGES {
            self.0.remove(0);
        }
        self.0.push(change);
    }

    pub(crate) fn take(&mut self) -> Vec<RunChange> {
        core::mem::take(&mut self.0)
    }
}

/// The configurations of the run that its nodes report.
pub(crate) fn configuration(f: &RunState) -> Vec<String> {
    f.config_groups.variants(true).into_iter().map(|v| v.setup.fingerprint).collect()
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::Event;

    use super::*;
    use crate::{Input, Monitor};

    #[test]
    fn starts_and_steps_back_are_reported_once() {
        let mut monitor = Monitor::default();
        let mut feed = |attempt: u32, step: i64| {
            let line = format!(
                r#"{{"k":"step","run":"r","rank":0,"world":1,"attempt":{attempt},"step":{step},"m":{{"loss":2.5}}}}"#
            );
            let event = Event::parse(line.as_bytes()).unwrap();
            monitor.handle(Ts(1000), Input::Event { source: "n:1", event: &event }, &mut Vec::new());
            monitor.take_changes().iter().map(RunChange::text).collect::<Vec<_>>()
        };
        assert_eq!(feed(0, 100), ["r started at step 100"]);
        assert!(feed(0, 101).is_empty());
        assert!(feed(0, 102).is_empty());
        assert_eq!(feed(1, 90), ["r restarted (attempt 1), back from step 102 to 90"]);
        assert!(feed(1, 91).is_empty());
    }

    #[test]
    fn another_configuration_of_the_run_is_reported_once_and_the_first_is_none() {
        let mut monitor = Monitor::default();
        let mut feed = |line: &str| {
            let event = Event::parse(line.as_bytes()).unwrap();
            monitor.handle(Ts(1000), Input::Event { source: "n:1", event: &event }, &mut Vec::new());
            monitor.take_changes().iter().map(RunChange::text).collect::<Vec<_>>()
        };
        let setup = |fingerprint: &str, lr: &str| {
            format!(
                r#"{{"k":"health","name":"config","run":"r","node":"n1","fingerprint":"{fingerprint}","part":1,"parts":1,"lr":"{lr}"}}"#
            )
        };
        let step = r#"{"k":"step","run":"r","rank":0,"node":"n1","step":100,"m":{"loss":2.5}}"#;
        assert_eq!(feed(step), ["r started at step 100"]);
        assert!(feed(&setup("a", "1e-4")).is_empty(), "what is learned first is no change");
        assert!(feed(&setup("a", "1e-4")).is_empty(), "it is published every ten minutes");
        assert_eq!(feed(&setup("b", "3e-4")), ["r has another configuration at step 100"]);
        assert!(feed(&setup("b", "3e-4")).is_empty());
    }

    #[test]
    fn what_nobody_takes_does_not_grow() {
        let mut changes = Changes::default();
        for i in 0..1000 {
            changes.push(RunChange { run: i.to_string(), at: Ts(0), what: Change::Started, step: None });
        }
        let left = changes.take();
        assert_eq!((left.len(), left[0].run.as_str()), (MAX_CHANGES, "744"));
    }
}
