//! One rank of a run.

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_wire::names::{hello, metric};
use stepwatch_wire::{Event, Metrics, Value};

use super::epoch::RankEpoch;
use super::histogram::Durations;
use super::metric_dedup::MetricDedup;
use super::phases::Phases;
use super::stale::Stale;
use crate::origin::Origin;
use crate::origin::Priority;

#[derive(Debug, Clone)]
pub(super) struct Rank {
    pub(super) label: Box<str>,
    pub(super) epoch: RankEpoch,
    pub(super) dedup: MetricDedup,
    pub(super) stale: Stale,
    pub(super) durations: Durations,
    pub(super) phases: Phases,
    pub(super) step_time: Option<f64>,
    /// The Unix time when the last event arrived.
    pub(super) heard: f64,
    /// The pid that the kernel names, or that the sender says.
    pub(super) pid: Option<u32>,
    /// The pid and the user of the process that connected last, from the kernel.
    pub(super) process: Option<(u32, u32)>,
    /// How many restarts the launcher declares, if that is more than this exporter counted and the
    /// rank has not stepped since.
    pub(super) restarts: Option<u32>,
    /// The open connections that have reported this rank.
    pub(super) connections: BTreeSet<u64>,
    /// The open connections of its launchers, with the pid of each.
    pub(super) launchers: BTreeMap<u64, Option<u32>>,
    /// Whether the rank ever had a connection, so that the closing of one is significant.
    pub(super) connected_once: bool,
    pub(super) said_bye: bool,
    /// Whether its `bye` had a good end, so that it is not restarted.
    pub(super) completed: bool,
    /// The number of drops that its client reports.
    pub(super) client_dropped: Option<f64>,
    /// The last step and its Unix time, if the source gives one.
    pub(super) stepped: Option<(i64, f64)>,
}

impl Rank {
    pub(super) fn new(rank: u32, epoch: RankEpoch, now: f64) -> Self {
        Self {
            label: rank.to_string().into(),
            epoch,
            dedup: MetricDedup::default(),
            stale: Stale::default(),
            durations: Durations::default(),
            phases: Phases::default(),
            step_time: None,
            heard: now,
            pid: None,
            process: None,
            restarts: None,
            connections: BTreeSet::new(),
            launchers: BTreeMap::new(),
            connected_once: false,
            said_bye: false,
            completed: false,
            client_dropped: None,
            stepped: None,
        }
    }

    /// Derives the duration of a step from the time since an earlier step of the same attempt, if
    /// no source measures it. Only the source's own times are used, because lines of a log that is
    /// read late arrive at once.
    pub(super) fn derive_step_time(&mut self, event: &mut Event, advanced: i64, fresh: bool) {
        let Some((step, ts)) = event.step.zip(event.ts) else { return };
        let before = if fresh { None } else { self.stepped };
        if advanced > 0 {
            self.stepped = Some((step, ts));
        }
        if self.dedup.measures_time() || advanced <= 0 {
            return;
        }
        // The previous step may have had no time, so the last one with a time is used.
        if let Some((from, before)) = before.filter(|(from, _)| *from < step) {
            let steps = step.saturating_sub(from) as f64;
            let seconds = (ts - before) / steps;
            if seconds > 0.0 && seconds.is_finite() {
                event.m.set(metric::STEP_TIME, seconds);
                if ts.fract() == 0.0 && before.fract() == 0.0 {
                    // Times in whole seconds limit the resolution.
                    event.q.set(metric::STEP_TIME, 1.0 / steps);
                }
            }
        }
    }

    /// Records a step. `corrects` means that its duration was already reported and counted.
    pub(super) fn record_step(&mut self, m: &Metrics, parts: &Metrics, corrects: bool) {
        let seconds = m.get(metric::STEP_TIME).filter(|s| s.is_finite() && *s >= 0.0);
        if let Some(seconds) = seconds {
            if !corrects {
                self.durations.record(seconds);
            }
            self.step_time = Some(seconds);
        }
        self.phases.step(parts, seconds);
    }

    /// Whether a `bye` counts. While the process itself can report its end, one from a file counts
    /// only with a bad exit code.
    pub(super) fn is_goodbye(&self, origin: &Origin, event: &mut Event) -> bool {
        if origin.priority() == Priority::Client {
            return true;
        }
        let via = || Value::Text(origin.via().as_str().into());
        event.extra.entry(hello::SOURCE.into()).or_insert_with(via);
        self.connections.is_empty() || event.code.is_some_and(|code| code != 0)
    }

    /// Whether the process is connected; `None` if no connection was ever seen, or it sent `bye`.
    pub(super) fn is_up(&self) -> Option<bool> {
        (self.connected_once && !self.said_bye).then_some(!self.connections.is_empty())
    }
}
