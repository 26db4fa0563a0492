//! The alerter's own metrics on `/metrics`. Each family is declared once, here or in the modules
//! below; the outbox declares its own.

mod callbacks;
mod gate;
mod remote_write;

use core::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::audit::AuditMetrics;

pub use callbacks::CallbackMetrics;
pub use gate::GateMetrics;
pub use remote_write::WriteMetrics;

pub const PROGRAM: &str = "stepwatch_alerter";

pub type FloatGauge = Gauge<f64, AtomicU64>;

/// A label value of a fixed set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Word(pub &'static str);

impl EncodeLabelValue for Word {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.0)
    }
}

/// A label value of external origin, shared with the owner of the name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name(pub Arc<str>);

impl EncodeLabelValue for Name {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SourceLabel {
    pub source: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReceiverLabel {
    pub receiver: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabel {
    pub kind: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    pub reason: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MechanismLabel {
    pub mechanism: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StateLabel {
    pub state: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct IncidentLabels {
    pub state: Word,
    pub severity: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SeverityLabel {
    pub severity: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OpenedLabels {
    pub kind: Word,
    pub severity: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusedLabels {
    pub source: Name,
    pub reason: Word,
}

/// Metrics of the exporters' streams.
#[derive(Debug, Clone, Default)]
pub struct IngestMetrics {
    pub sources: Gauge,
    pub source_up: Family<SourceLabel, Gauge>,
    pub connects: Counter,
    pub disconnects: Counter,
    pub malformed: Family<ReasonLabel, Counter>,
    pub gaps: Counter,
    pub lost: Counter,
    pub backpressure: Counter,
    pub discovery_failures: Family<MechanismLabel, Counter>,
}

/// Metrics of the loop around the engine.
#[derive(Debug, Clone)]
pub struct RuntimeMetrics {
    pub events: Family<KindLabel, Counter>,
    pub steps: Counter,
    pub runs: Gauge,
    pub over_limit: Counter,
    pub source_refused: Family<RefusedLabels, Counter>,
    pub signals_over_limit: Counter,
    pub batches_forgotten: Counter,
    pub planned_restarts_dropped: Counter,
    pub silences_forgotten: Counter,
    pub oncall_overrides_forgotten: Counter,
    pub incidents: Family<IncidentLabels, Gauge>,
    pub incidents_still_firing: Family<SeverityLabel, Gauge>,
    pub opened: Family<OpenedLabels, Counter>,
    pub alerts_received: Counter,
    pub alerts_invalid: Counter,
    pub alerts_cut: Counter,
    pub alerts_refused: Counter,
    pub alerts: Gauge,
    pub silences: Family<StateLabel, Gauge>,
    pub oncall_overrides: Family<StateLabel, Gauge>,
    pub incidents_silenced: Gauge,
    pub engine_seconds: Histogram,
    pub commit_seconds: Histogram,
    pub commit_failures: Counter,
    pub pending_effects: Gauge,
    pub history_dropped: Counter,
    pub flawed_incidents: Gauge,
    pub state_discarded: Counter,
    pub clock_behind: FloatGauge,
    pub changes_dropped: Counter,
    pub ledger_rows_dropped: Counter,
    pub audit: AuditMetrics,
    pub template_failures: Family<ReceiverLabel, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ScheduleLabel {
    pub schedule: Name,
}

/// Metrics of the calendars of schedules.
#[derive(Debug, Clone, Default)]
pub struct CalendarMetrics {
    pub read_timestamp: Family<ScheduleLabel, FloatGauge>,
    pub failures: Family<ScheduleLabel, Counter>,
    pub skipped: Family<ScheduleLabel, Gauge>,
}

/// Metrics of the configuration.
#[derive(Debug, Clone, Default)]
pub struct ConfigMetrics {
    pub reload_successful: Gauge,
    pub reload_timestamp: FloatGauge,
}

#[derive(Debug, Clone)]
pub struct Metrics {
    pub ingest: IngestMetrics,
    pub runtime: RuntimeMetrics,
    pub calendars: CalendarMetrics,
    pub config: ConfigMetrics,
    pub callbacks: CallbackMetrics,
    pub gate: GateMetrics,
    pub remote_write: WriteMetrics,
}

impl Default for RuntimeMetrics {
    fn default() -> Self {
        Self {
            events: Family::default(),
            steps: Counter::default(),
            runs: Gauge::default(),
            over_limit: Counter::default(),
            source_refused: Family::default(),
            signals_over_limit: Counter::default(),
            batches_forgotten: Counter::default(),
            planned_restarts_dropped: Counter::default(),
            silences_forgotten: Counter::default(),
            oncall_overrides_forgotten: Counter::default(),
            incidents: Family::default(),
            incidents_still_firing: Family::default(),
            opened: Family::default(),
            // From 1 us, an idle pass, to 1 s, a backlog after an outage.
            alerts_received: Counter::default(),
            alerts_invalid: Counter::default(),
            alerts_cut: Counter::default(),
            alerts_refused: Counter::default(),
            alerts: Gauge::default(),
            silences: Family::default(),
            oncall_overrides: Family::default(),
            incidents_silenced: Gauge::default(),
            engine_seconds: Histogram::new(exponential_buckets(1e-6, 4.0, 11)),
            // From 0.2 ms, an fsync on NVMe, to 7 s, a failing disk.
            commit_seconds: Histogram::new(exponential_buckets(2e-4, 2.0, 16)),
            commit_failures: Counter::default(),
            pending_effects: Gauge::default(),
            history_dropped: Counter::default(),
            flawed_incidents: Gauge::default(),
            state_discarded: Counter::default(),
            clock_behind: FloatGauge::default(),
            changes_dropped: Counter::default(),
            ledger_rows_dropped: Counter::default(),
            audit: AuditMetrics::default(),
            template_failures: Family::default(),
        }
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        stepwatch_kit::build_info::register(registry, PROGRAM);
        let callbacks = CallbackMetrics::default();
        let registry = registry.sub_registry_with_prefix(PROGRAM);
        callbacks.register(registry);
        let gate = GateMetrics::default();
        gate.register(registry);
        let remote_write = WriteMetrics::default();
        remote_write.register(registry);
        Self {
            ingest: IngestMetrics::register(registry),
            runtime: RuntimeMetrics::register(registry),
            calendars: CalendarMetrics::register(registry),
            config: ConfigMetrics::register(registry),
            callbacks,
            gate,
            remote_write,
        }
    }
}

impl IngestMetrics {
    pub(crate) fn register(r: &mut Registry) -> Self {
        let m = Self::default();
        r.register("sources", "Exporters that the configuration and discovery name", m.sources.clone());
        r.register("source_up", "Whether the stream of the exporter is being read", m.source_up.clone());
        r.register("connects", "Streams opened", m.connects.clone());
        r.register("disconnects", "Streams that ended or fell silent", m.disconnects.clone());
        r.register("malformed_records", "Stream records that did not parse", m.malformed.clone());
        r.register("gaps", "Gaps in streams: the exporter no longer had what came next", m.gaps.clone());
        r.register("lost_records", "Stream records that fell into gaps", m.lost.clone());
        r.register(
            "ingest_backpressure",
            "Times that reading a stream waited for the engine; the exporter keeps what is not read",
            m.backpressure.clone(),
        );
        r.register(
            "discovery_failures",
            "Target files and lists that did not read; the last good ones stay in force",
            m.discovery_failures.clone(),
        );
        m
    }
}

impl RuntimeMetrics {
    fn register(r: &mut Registry) -> Self {
        let m = Self::default();
        r.register("events", "Stream records fed to the engine", m.events.clone());
        r.register("steps", "Step records fed to the engine", m.steps.clone());
        r.register("runs", "Runs seen and not yet forgotten", m.runs.clone());
        m.register_limits(r);
        r.register("incidents", "Incidents that are not resolved", m.incidents.clone());
        r.register(
            "incidents_resolved_still_firing",
            "Incidents that a person resolved and that still fire; they come back after incidents.reopen_after",
            m.incidents_still_firing.clone(),
        );
        let opened = "Incidents, by the severity they had when they opened";
        r.register("incidents_opened", opened, m.opened.clone());
        m.register_outside(r);
        m.audit.register(r);
        r.register("engine_seconds", "Time to judge one batch of inputs", m.engine_seconds.clone());
        r.register("commit_seconds", "Time to make a batch durable", m.commit_seconds.clone());
        r.register("commit_failures", "Commits that failed and are retried", m.commit_failures.clone());
        r.register(
            "pending_effects",
            "Effects not yet durable; more than a batch means that the store refuses to take them",
            m.pending_effects.clone(),
        );
        r.register(
            "history_dropped",
            "Lines of the history of incidents given up because the store refused for too long",
            m.history_dropped.clone(),
        );
        r.register(
            "flawed_incidents",
            "Open incidents that nobody would have been notified of again, at the last audit; anything but 0 is a bug of the program",
            m.flawed_incidents.clone(),
        );
        r.register(
            "state_parts_discarded",
            "Parts of the stored detector state that this version could not read at start",
            m.state_discarded.clone(),
        );
        r.register(
            "clock_behind_seconds",
            "How far the wall clock is ahead of the clock that judges; it is approached slowly, never jumped to",
            m.clock_behind.clone(),
        );
        r.register(
            "run_changes_dropped",
            "Starts, restarts and configurations of runs that no receiver was shown",
            m.changes_dropped.clone(),
        );
        r.register(
            "ledger_rows_dropped",
            "Hours of runs of which nothing was kept for reports: the clock of the trainer is far from ours, or the log was old",
            m.ledger_rows_dropped.clone(),
        );
        r.register(
            "template_failures",
            "Templates that could not be rendered; the built-in text was sent",
            m.template_failures.clone(),
        );
        m
    }

    /// Registers the counters of events that were received and not evaluated.
    fn register_limits(&self, r: &mut Registry) {
        r.register(
            "events_over_limit",
            "Stream records of runs and nodes beyond the most that are watched at once; they are not evaluated",
            self.over_limit.clone(),
        );
        r.register(
            "source_refused",
            "Stream records that an exporter is not let to send: of nodes, ranks and runs that are not its own, and too many",
            self.source_refused.clone(),
        );
        r.register(
            "signals_over_limit",
            "Numbers of series beyond the most that are known of one run; they are not evaluated",
            self.signals_over_limit.clone(),
        );
        r.register(
            "planned_restarts_dropped",
            "Planned restarts that runs announced too often, or too many runs at once",
            self.planned_restarts_dropped.clone(),
        );
        r.register(
            "silences_forgotten",
            "Ended silences that were forgotten before their five days were over, because there were too many",
            self.silences_forgotten.clone(),
        );
        r.register(
            "oncall_overrides_forgotten",
            "Ended overrides of schedules that were forgotten before thirty days, because there were too many",
            self.oncall_overrides_forgotten.clone(),
        );
        r.register(
            "batches_forgotten",
            "Spikes whose place in the data was forgotten for want of room",
            self.batches_forgotten.clone(),
        );
    }

    /// Registers the counters of requests by people and other programs to the engine.
    fn register_outside(&self, r: &mut Registry) {
        r.register("alerts_received", "Alerts received from other programs", self.alerts_received.clone());
        r.register(
            "alerts_invalid",
            "Alerts that were refused because of their contents",
            self.alerts_invalid.clone(),
        );
        r.register(
            "alerts_cut",
            "Alerts taken with a label or an annotation that was too long, or one too many, and is not kept whole",
            self.alerts_cut.clone(),
        );
        r.register(
            "alerts_refused",
            "Alerts that were refused because alerts.max_alerts, or alerts.max_bytes of them, fire already",
            self.alerts_refused.clone(),
        );
        r.register("alerts", "Alerts of other programs that fire", self.alerts.clone());
        r.register("silences", "Silences, by state", self.silences.clone());
        r.register(
            "oncall_overrides",
            "Overrides of on-call schedules that people made at run time and that are not over, by state; \
             void ones have no effect in this configuration",
            self.oncall_overrides.clone(),
        );
        r.register(
            "incidents_silenced",
            "Open incidents of which nobody is notified because of a silence",
            self.incidents_silenced.clone(),
        );
    }
}

impl CalendarMetrics {
    pub(crate) fn register(r: &mut Registry) -> Self {
        let m = Self::default();
        r.register(
            "calendar_read_timestamp_seconds",
            "When the calendar of a schedule was read last; shifts after that may be out of date",
            m.read_timestamp.clone(),
        );
        r.register(
            "calendar_failures",
            "Calendars that did not read; the last good copy stays in force",
            m.failures.clone(),
        );
        r.register(
            "calendar_events_skipped",
            "Events of the calendar of a schedule that are not understood and left out",
            m.skipped.clone(),
        );
        m
    }
}

impl ConfigMetrics {
    fn register(r: &mut Registry) -> Self {
        let m = Self::default();
        r.register(
            "config_last_reload_successful",
            "Whether the last reload of the configuration was taken",
            m.reload_successful.clone(),
        );
        r.register(
            "config_last_reload_success_timestamp_seconds",
            "When the configuration in force was taken",
            m.reload_timestamp.clone(),
        );
        m
    }
}
