//! Snapshots of the loop's state, so that readers never delay it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use stepwatch_detect::Run;
use stepwatch_detect::run::KnownSetup;
use stepwatch_engine::{Engine, Refusal};
use stepwatch_model::Severity;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Effect;
use stepwatch_respond::incident::{State, SuppressionReason};
use stepwatch_respond::oncall::OnCall;

use super::Runtime;
use super::pending::Pending;
use crate::metrics::{IncidentLabels, Name, OpenedLabels, RefusedLabels, SeverityLabel, Word};
use crate::node_snapshot::NodeSnapshot;
use crate::rank_table::RankTable;
use crate::run_snapshot::RunSnapshot;

/// The most runs that are shown; the others are counted.
const MAX_RUNS_SHOWN: usize = 10_000;

/// The current snapshot, which the runtime replaces and anybody can read.
#[derive(Debug, Default)]
pub struct Views(ArcSwap<RuntimeSnapshot>);

#[derive(Debug, Clone, Default)]
pub struct RuntimeSnapshot {
    pub runs: Vec<RunSnapshot>,
    /// The number of runs beyond those shown.
    pub runs_hidden: usize,
    pub open_incidents: usize,
    pub pending_effects: usize,
    pub store_refuses: bool,
    /// When the engine wakes next, and why.
    pub next_deadline: Option<(Ts, &'static str)>,
    /// The number of refused records by source, and the last reason.
    pub refused: BTreeMap<String, (u64, &'static str)>,
    pub oncall: Arc<OnCall>,
    /// The nodes by name.
    pub nodes: Arc<[Arc<NodeSnapshot>]>,
    /// The number of nodes beyond those shown.
    pub nodes_hidden: usize,
    /// The ranks of each run.
    pub ranks: Arc<BTreeMap<String, Arc<RankTable>>>,
    /// How runs were set up that are forgotten.
    pub kept_setups: Arc<BTreeMap<String, Arc<KnownSetup>>>,
}

impl Runtime {
    /// Counts each incident when it is first seen.
    pub(super) fn count_incidents(&mut self) {
        for effect in &self.pending.effects[self.pending.counted..] {
            let Effect::Incident(record) = effect else { continue };
            if !self.open.contains(&record.id) {
                let labels = OpenedLabels {
                    kind: Word(record.kind.as_str()),
                    severity: Word(record.severity.as_str()),
                };
                self.metrics.opened.get_or_create(&labels).inc();
                self.open.insert(record.id.clone());
            }
            // An incident that reopens is not new.
            if record.state == State::Resolved && record.reopens_at().is_none() {
                self.open.remove(&record.id);
            }
        }
        self.pending.counted = self.pending.effects.len();
    }

    /// Publishes a snapshot of the current state.
    pub(super) fn publish(&mut self) {
        self.schedule.publish_due = None;
        let mut view = RuntimeSnapshot::capture(&self.engine, &self.pending, self.schedule.retry.is_some());
        let now = self.clock.now();
        view.nodes = self.nodes.renew(now, &self.engine);
        view.nodes_hidden = self.engine.nodes().count().saturating_sub(view.nodes.len());
        view.ranks = self.ranks.renew(now, &self.engine);
        let kept = self.engine.kept_setups().map(|kept| (kept.run.clone(), Arc::clone(kept)));
        view.kept_setups = Arc::new(kept.collect());
        self.metrics.runs.set((view.runs.len() + view.runs_hidden) as i64);
        let over_limit = &self.metrics.over_limit;
        over_limit.inc_by(
            (self.engine.dropped_runs() + self.engine.dropped_nodes()).saturating_sub(over_limit.get()),
        );
        for (counter, now) in [
            (&self.metrics.signals_over_limit, self.engine.dropped_signals()),
            (&self.metrics.batches_forgotten, self.engine.forgotten_batches()),
            (&self.metrics.planned_restarts_dropped, self.engine.silences().planned_dropped()),
            (&self.metrics.silences_forgotten, self.engine.silences().forgotten_early()),
            (&self.metrics.oncall_overrides_forgotten, self.engine.oncall().overrides().forgotten_early()),
        ] {
            counter.inc_by(now.saturating_sub(counter.get()));
        }
        self.count_refused();
        self.count_outside();
        self.count_open();
        self.publish_events(now, &view);
        self.views.set(view);
    }

    fn count_refused(&self) {
        for (source, refused) in self.engine.refused() {
            for why in Refusal::ALL.into_iter().filter(|why| refused.count_of(*why) > 0) {
                let labels = RefusedLabels { source: Name(source.into()), reason: Word(why.as_str()) };
                let counter = self.metrics.source_refused.get_or_create_owned(&labels);
                counter.inc_by(refused.count_of(why).saturating_sub(counter.get()));
            }
        }
    }

    /// Counts the open incidents in one pass, because there may be tens of thousands.
    fn count_open(&self) {
        let severities = [Severity::Info, Severity::Ticket, Severity::Page];
        let (mut open, mut answered, mut silenced) = ([0; 3], [0; 3], 0);
        for r in self.engine.open_incidents() {
            let counts = if r.state == State::Acknowledged { &mut answered } else { &mut open };
            counts[r.severity as usize] += 1;
            silenced += i64::from(r.suppressed_as(SuppressionReason::Silenced).is_some());
        }
        self.metrics.incidents_silenced.set(silenced);
        let mut closed = [0; 3];
        for r in self.engine.resolved_still_firing() {
            closed[r.severity as usize] += 1;
        }
        for (severity, count) in severities.into_iter().zip(closed) {
            let labels = SeverityLabel { severity: Word(severity.as_str()) };
            self.metrics.incidents_still_firing.get_or_create(&labels).set(count);
        }
        for (state, counts) in [("open", open), ("acknowledged", answered)] {
            for (severity, count) in severities.into_iter().zip(counts) {
                let labels = IncidentLabels { state: Word(state), severity: Word(severity.as_str()) };
                self.metrics.incidents.get_or_create(&labels).set(count);
            }
        }
    }
}

impl Views {
    pub fn get(&self) -> Arc<RuntimeSnapshot> {
        self.0.load_full()
    }

    fn set(&self, view: RuntimeSnapshot) {
        self.0.store(Arc::new(view));
    }
}

impl RuntimeSnapshot {
    fn capture(engine: &Engine, pending: &Pending, store_refuses: bool) -> Self {
        let all = engine.runs().count();
        let snapshot = |run: &Run| RunSnapshot {
            stored_totals: pending.stored_totals(&run.state.name),
            ..RunSnapshot::from_run(run, engine.save_interval(run))
        };
        Self {
            runs: engine.runs().take(MAX_RUNS_SHOWN).map(snapshot).collect(),
            runs_hidden: all.saturating_sub(MAX_RUNS_SHOWN),
            open_incidents: engine.open_count(),
            pending_effects: pending.effects.len(),
            store_refuses,
            next_deadline: engine.next_deadline(),
            refused: engine
                .refused()
                .map(|(source, r)| (source.to_owned(), (r.total(), r.last().map_or("", Refusal::words))))
                .collect(),
            oncall: Arc::clone(engine.oncall()),
            ..Self::default()
        }
    }
}
