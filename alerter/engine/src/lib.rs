//! Joins the two halves of the core: every finding is responded to at once.
//!
//! `stepwatch-detect` follows runs and nodes, `stepwatch-respond` handles incidents and people;
//! neither depends on the other. This crate passes findings ([`stepwatch_model::Detected`]) to the
//! responder, and the state of the incidents ([`stepwatch_model::RunIncidents`]) back to the
//! monitor. The same engine runs live, in `backtest` and in tests. Pure, as both halves are: no
//! clock, socket, thread, file or randomness.

use std::sync::Arc;

use stepwatch_detect::JudgedSample;
use stepwatch_detect::Monitor;
use stepwatch_detect::Node;
use stepwatch_detect::Run;
use stepwatch_detect::changes::RunChange;
use stepwatch_detect::detectors::DetectorsConfig;
use stepwatch_detect::run::{KnownSetup, RunHour};
use stepwatch_model::{Detected, Elsewhere, SaveInterval};
use stepwatch_respond::Responder;
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Effect, Notification};
use stepwatch_respond::external::{External, Firing};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_respond::incident::audit::Flaw;
use stepwatch_respond::message::Message;
use stepwatch_respond::oncall::{OnCall, OverrideRecord};
use stepwatch_respond::silence::{Plan, Refusal as SilenceRefusal, Silence, Silences, Wanted};

pub use stepwatch_detect::{Input as SourceInput, Refusal, Refused};
pub use stepwatch_model::stored::StatePart;
pub use stepwatch_model::time::{self, Ts};
pub use stepwatch_respond::DryRun;
pub use stepwatch_respond::effect::{IncidentAction, Input};

/// The settings of both halves.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineConfig {
    pub detectors: Arc<DetectorsConfig>,
    pub responder: ResponderConfig,
}

impl From<ResponderConfig> for EngineConfig {
    fn from(responder: ResponderConfig) -> Self {
        Self { responder, ..Self::default() }
    }
}

/// An input of the engine: from the sources, or for the responder.
#[derive(Debug, Clone, Copy)]
pub enum AnyInput<'a> {
    Source(SourceInput<'a>),
    Responder(Input<'a>),
}

impl<'a> From<SourceInput<'a>> for AnyInput<'a> {
    fn from(input: SourceInput<'a>) -> Self {
        Self::Source(input)
    }
}

impl<'a> From<Input<'a>> for AnyInput<'a> {
    fn from(input: Input<'a>) -> Self {
        Self::Responder(input)
    }
}

#[derive(Debug, Default)]
pub struct Engine {
    monitor: Monitor,
    responder: Responder,
    scratch: Vec<Detected>,
}

impl Engine {
    pub fn new(config: impl Into<EngineConfig>) -> Self {
        let EngineConfig { detectors, responder } = config.into();
        Self { monitor: Monitor::new(detectors), responder: Responder::new(responder), scratch: Vec::new() }
    }

    /// Rebuilds an engine from stored parts, exactly as it was. A part that is damaged or of
    /// another version is left out, and named in the second value. Incidents that depended on it
    /// end after [`Self::resume`], unless they are reported again.
    pub fn restore(
        config: impl Into<EngineConfig>,
        parts: impl IntoIterator<Item = StoredPart>,
    ) -> (Self, Vec<String>) {
        let EngineConfig { detectors, responder } = config.into();
        let (of_monitor, of_responder): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|(name, _)| Monitor::is_part(name));
        let (monitor, mut unusable) = Monitor::restore(detectors, of_monitor);
        let (responder, more) = Responder::restore(responder, of_responder);
        unusable.extend(more);
        let mut engine = Self { monitor, responder, scratch: Vec::new() };
        engine.feed_back();
        (engine, unusable)
    }

    /// Takes one input that happened at `now`.
    pub fn handle<'a>(&mut self, now: Ts, input: impl Into<AnyInput<'a>>, out: &mut Vec<Effect>) {
        match input.into() {
            AnyInput::Source(input) => {
                self.detect(now, out, |monitor, found| monitor.handle(now, input, found))
            }
            AnyInput::Responder(input) => self.responder.handle(now, input, &self.monitor, out),
        }
        self.feed_back();
    }

    /// Runs `act` on the monitor, and passes its findings to the responder.
    fn detect(&mut self, now: Ts, out: &mut Vec<Effect>, act: impl FnOnce(&mut Monitor, &mut Vec<Detected>)) {
        act(&mut self.monitor, &mut self.scratch);
        #[cfg(debug_assertions)]
        self.scratch.iter_mut().for_each(send);
        self.responder.detected(now, &self.scratch, out);
        self.scratch.clear();
    }

    fn feed_back(&mut self) {
        if self.responder.has_run_incidents() {
            self.responder.take_run_incidents().for_each(|incidents| self.monitor.learn(incidents));
        }
    }

    /// Runs what is due at `now`.
    pub fn tick(&mut self, now: Ts, out: &mut Vec<Effect>) {
        while self.tick_one(now, out) {}
    }

    /// Runs the first action that is due at `now`; false if none is. Thousands of incidents may be
    /// due at once, so a caller with other work need not wait for all of them.
    pub fn tick_one(&mut self, now: Ts, out: &mut Vec<Effect>) -> bool {
        let (monitor, responder) = (self.monitor.next_deadline(), self.responder.next_deadline());
        let monitor_first = match (monitor, responder) {
            (Some((monitor, _)), Some((responder, _))) => monitor < responder,
            (monitor, None) => monitor.is_some(),
            (None, _) => false,
        };
        let mut ran = true;
        if monitor_first {
            self.detect(now, out, |monitor, found| ran = monitor.tick_one(now, found));
        } else {
            ran = self.responder.tick_one(now, &self.monitor, out);
        }
        self.feed_back();
        ran
    }

    /// When `tick` must be called next, and why.
    pub fn next_deadline(&self) -> Option<(Ts, &'static str)> {
        let all = [self.responder.next_deadline(), self.monitor.next_deadline()];
        all.into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// The parts of the state that changed, as key and opaque bytes, to be stored with the effects
    /// in one transaction.
    pub fn take_dirty(&mut self) -> Vec<StatePart> {
        let mut parts = self.monitor.take_dirty();
        parts.extend(self.responder.take_dirty());
        parts
    }

    /// What was accounted of hours that are over, to be stored in the same transaction as the parts
    /// that [`Self::take_dirty`] gave just before.
    pub fn take_hours(&mut self) -> Vec<RunHour> {
        self.monitor.take_hours()
    }

    /// The changed parts that do not follow from the event streams. They suffice to store the
    /// answer of a person or another program, as long as events have had no effect since the whole
    /// state was stored. The other parts wait for [`Self::take_dirty`].
    pub fn take_dirty_answers(&mut self) -> Vec<StatePart> {
        self.responder.take_dirty()
    }

    /// Replaces the configuration; open incidents keep their level.
    pub fn reconfigure(&mut self, config: impl Into<EngineConfig>) {
        let EngineConfig { detectors, responder } = config.into();
        self.monitor.reconfigure(detectors);
        self.responder.reconfigure(responder);
        self.feed_back();
    }

    /// Resumes a restored engine that received nothing until `now`: silence before `now` does not
    /// count as silence of a run or source.
    pub fn resume(&mut self, now: Ts, out: &mut Vec<Effect>) {
        let unread = self.monitor.take_unread();
        self.responder.unread(now, &unread, out);
        self.monitor.resume(now, self.responder.standstills());
        self.feed_back();
    }

    /// Schedules the missing notification of each incident in `flaws`.
    pub fn mend(&mut self, now: Ts, flaws: &[Flaw]) {
        self.responder.mend(now, flaws);
        self.feed_back();
    }

    /// Judges again, after a change of silences or configuration, whether each open incident is
    /// suppressed.
    pub fn reconsider(&mut self, now: Ts, out: &mut Vec<Effect>) {
        self.responder.reconsider(now, out);
        self.feed_back();
    }

    /// Takes over who is on call from another engine, calendars and all.
    pub fn adopt_oncall(&mut self, oncall: &OnCall) {
        self.responder.adopt_oncall(oncall);
    }

    /// Opens the incident that the finding of a detector would open.
    pub fn dry_run(&mut self, now: Ts, what: &DryRun<'_>, out: &mut Vec<Effect>) {
        self.responder.dry_run(now, what, out);
        self.feed_back();
    }

    /// Restores stored alerts. Call it before the first input.
    pub fn restore_alerts(&mut self, now: Ts, stored: impl IntoIterator<Item = Firing>) {
        self.responder.restore_alerts(now, stored, &self.monitor);
    }

    /// Restores stored silences. Call it before the first input.
    pub fn restore_silences(&mut self, now: Ts, stored: impl IntoIterator<Item = Silence>) {
        self.responder.restore_silences(now, stored);
    }

    /// Restores stored overrides of on-call schedules. Call it before the first input.
    pub fn restore_overrides(&mut self, now: Ts, stored: impl IntoIterator<Item = OverrideRecord>) {
        self.responder.restore_overrides(now, stored);
    }

    /// The silence that a request makes, or the reason why it is refused. `fresh` is an id that no
    /// silence has.
    pub fn plan_silence(&self, now: Ts, wanted: Wanted, fresh: &str) -> Result<Plan, SilenceRefusal> {
        self.responder.plan_silence(now, wanted, fresh)
    }

    /// Marks a source as a recording of many exporters, so that it may report any node and run.
    pub fn speaks_for_many(&mut self, source: &str) {
        self.monitor.speaks_for_many(source);
    }

    /// Keeps the samples of all runs, as they are judged, until [`Self::take_judged`].
    pub fn record_judged(&mut self) {
        self.monitor.record_judged();
    }

    /// The samples that were judged since the last call, in order.
    pub fn take_judged(&mut self) -> impl Iterator<Item = JudgedSample> + '_ {
        self.monitor.take_judged()
    }

    /// The changes of the runs since the last call.
    pub fn take_changes(&mut self) -> Vec<RunChange> {
        self.monitor.take_changes()
    }
}

/// A part of the state as it was stored.
pub type StoredPart = (String, Vec<u8>);

/// Views of the state of both halves.
impl Engine {
    /// The current text of a message that waited. `None` if it is to be sent as it is: an answer to
    /// a person, or a message about an incident that is over.
    pub fn reword(&self, now: Ts, n: &Notification) -> Option<Message> {
        self.responder.reword(now, n)
    }

    /// Open incidents without a scheduled notification. There are none, unless this program has a
    /// bug.
    pub fn audit(&self, now: Ts) -> Vec<Flaw> {
        self.responder.audit(now)
    }

    /// Open pages of teams without receivers, where nobody else may be notified of them either.
    pub fn homeless(&self) -> Vec<String> {
        self.responder.homeless()
    }

    /// Incidents that are not resolved.
    pub fn open_incidents(&self) -> impl Iterator<Item = &IncidentRecord> {
        self.responder.open_incidents()
    }

    /// Incidents that a person resolved and that still fire: they come back unless they are over
    /// before.
    pub fn resolved_still_firing(&self) -> impl Iterator<Item = &IncidentRecord> {
        self.responder.resolved_still_firing()
    }

    /// Whether an incident is open, or comes back unless it is over before.
    pub fn holds(&self, id: &str) -> bool {
        self.responder.holds(id)
    }

    pub fn open_count(&self) -> usize {
        self.responder.open_count()
    }

    pub fn incident(&self, id: &str) -> Option<&IncidentRecord> {
        self.responder.incident(id)
    }

    pub fn silences(&self) -> &Silences {
        self.responder.silences()
    }

    /// The alerts from outside that fire.
    pub fn alerts(&self) -> &External {
        self.responder.alerts()
    }

    /// Who is on call when.
    pub fn oncall(&self) -> &Arc<OnCall> {
        self.responder.oncall()
    }

    /// The runs that are watched.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.monitor.runs()
    }

    /// Every node that an exporter reported.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.monitor.nodes()
    }

    pub fn run(&self, name: &str) -> Option<&Run> {
        self.monitor.run(name)
    }

    /// How often a run saves, and how often it should, once both are known.
    pub fn save_interval(&self, run: &Run) -> Option<SaveInterval> {
        self.monitor.save_interval(run)
    }

    /// The runs that have ranks on a node.
    pub fn runs_on(&self, node: &str) -> impl Iterator<Item = &str> {
        self.monitor.runs_on(node)
    }

    /// The refusals of each source that had any.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &Refused)> {
        self.monitor.refused()
    }

    /// Which other runs, or attempts of this one, spiked at the data of `step`.
    pub fn spiked_elsewhere(&self, run: &str, step: i64) -> Elsewhere {
        self.monitor.spiked_elsewhere(run, step)
    }

    /// Events of runs beyond the limit.
    pub fn dropped_runs(&self) -> u64 {
        self.monitor.dropped_runs()
    }

    /// Events of nodes beyond the limit.
    pub fn dropped_nodes(&self) -> u64 {
        self.monitor.dropped_nodes()
    }

    /// Numbers of series beyond the limit of their run, of the runs that are watched.
    pub fn dropped_signals(&self) -> u64 {
        self.monitor.dropped_signals()
    }

    /// Spikes whose place in the data was forgotten for want of room.
    pub fn forgotten_batches(&self) -> u64 {
        self.monitor.forgotten_batches()
    }

    /// Judged samples that nobody took in time.
    pub fn dropped_judged(&self) -> u64 {
        self.monitor.dropped_judged()
    }

    /// Series of other programs that are watched by their names.
    pub fn watched_series(&self) -> usize {
        self.monitor.watched_series()
    }

    /// Readings of such series beyond the limit.
    pub fn dropped_series(&self) -> u64 {
        self.monitor.dropped_series()
    }

    /// How runs were set up that are forgotten.
    pub fn kept_setups(&self) -> impl Iterator<Item = &Arc<KnownSetup>> {
        self.monitor.kept_setups()
    }

    /// Setups that were dropped to make room.
    pub fn dropped_setups(&self) -> u64 {
        self.monitor.dropped_setups()
    }

    /// Configurations whose usual speed was forgotten to make room.
    pub fn dropped_baselines(&self) -> u64 {
        self.monitor.dropped_baselines()
    }
}

/// Replaces it by what another process would read of it: each test of a debug build shows that the
/// two halves need not be one process.
#[cfg(debug_assertions)]
fn send(detected: &mut Detected) {
    use stepwatch_model::stored;
    let read = stored::encode(detected).and_then(|bytes| stored::decode(&bytes));
    *detected = read.expect("what is detected can be stored and read back");
}
