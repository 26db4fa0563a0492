//! Drives the engine and its clock, as sockets and timers do in the live alerter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use stepwatch_engine::{Engine, EngineConfig, SourceInput};
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::Effect;
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use super::signals::Signals;
use super::story::{Story, id_of};

/// The source name of the file for the engine.
const SOURCE: &str = "backtest";
/// The seconds per step while no step time is known.
const UNKNOWN_STEP: f64 = 1.0;
/// The number of step times whose median is the usual one: pauses are fewer than half of them.
const STEP_TIMES: usize = 9;
/// The factor of its usual pace up to which a run counts as active during skipped steps.
const THINNED: f64 = 2.0;
/// The longest time between two steps that is estimated, in seconds.
const MAX_STEP: f64 = 86_400.0 * 365.0;
/// The most deadlines that run between two events, which limits the work for a gap of days.
const MAX_TICKS: u32 = 10_000;
/// The signals that a summary names, in this order.
const SIGNALS: &[&str] = &[
    metric::LOSS,
    metric::GRAD_NORM,
    metric::LR,
    metric::LOSS_SCALE,
    metric::STEP_TIME,
    metric::TOKENS_PER_SECOND,
    metric::TOKENS_PER_SECOND_PER_GPU,
    metric::MFU,
    metric::MFU_REPORTED,
    metric::TFLOPS_REPORTED,
];

#[derive(Debug)]
pub(super) struct Replay {
    engine: Engine,
    /// The configuration in use from the first event with a time; `None` after that.
    once_timed: Option<EngineConfig>,
    now: Ts,
    began: Ts,
    /// Whether some events had their own time.
    timed: bool,
    /// The last step times in seconds, for steps that were not logged.
    step_times: VecDeque<f64>,
    /// The seconds per step between the last rows, the time of the last row, and the most steps
    /// between two rows.
    paces: VecDeque<f64>,
    stepped_at: Ts,
    longest_stride: i64,
    effects: Vec<Effect>,
    /// The incidents in the order in which they opened.
    stories: Vec<Story>,
    by_id: BTreeMap<String, usize>,
    samples: u64,
    first_step: i64,
    last_step: i64,
    signals: BTreeSet<usize>,
    /// The signals to draw, if the HTML report is wanted.
    drawn: Option<Signals>,
}

impl Replay {
    pub(super) fn new(config: EngineConfig) -> Self {
        let mut engine = Engine::new(without_silence(&config));
        engine.speaks_for_many(SOURCE);
        Self {
            engine,
            once_timed: Some(config),
            now: Ts(0),
            began: Ts(0),
            timed: false,
            step_times: VecDeque::new(),
            paces: VecDeque::new(),
            stepped_at: Ts(0),
            longest_stride: 0,
            effects: Vec::new(),
            stories: Vec::new(),
            by_id: BTreeMap::new(),
            samples: 0,
            first_step: 0,
            last_step: 0,
            signals: BTreeSet::new(),
            drawn: None,
        }
    }

    /// Also keeps the signals, to draw them.
    pub(super) fn drawing(self) -> Self {
        Self { drawn: Some(Signals::default()), ..self }
    }

    /// Feeds an event to the engine. It must name its run.
    pub(super) fn feed(&mut self, event: &Event) {
        let at = event.ts.map_or_else(|| self.now + self.took(event), Ts::from_secs_f64);
        if self.samples == 0 {
            (self.now, self.began, self.stepped_at) = (at, at, at);
        }
        self.timed |= event.ts.is_some();
        if !is_untimed(event)
            && let Some(config) = self.once_timed.take()
        {
            self.engine.reconfigure(config);
        }
        let moved = self.moved(event, at);
        if !moved {
            self.deadlines(at);
        }
        self.now = self.now.max(at);
        self.count(event);
        self.engine.handle(self.now, SourceInput::Event { source: SOURCE, event }, &mut self.effects);
        if let Some(drawn) = &mut self.drawn {
            drawn.record(event);
        }
        self.absorb();
        if moved {
            self.deadlines(at);
        }
    }

    pub(super) fn stories(&self) -> &[Story] {
        &self.stories
    }

    pub(super) fn incidents(&self) -> impl Iterator<Item = &IncidentRecord> {
        self.stories.iter().map(|s| &s.record)
    }

    pub(super) fn drawn(&self) -> Option<&Signals> {
        self.drawn.as_ref()
    }

    /// The duration of the recording.
    pub(super) fn lasted(&self) -> Span {
        self.now - self.began
    }

    /// Whether the times are from the recording, and not estimated from step times.
    pub(super) fn is_timed(&self) -> bool {
        self.timed
    }

    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// The first and last step.
    pub(super) fn steps(&self) -> (i64, i64) {
        (self.first_step, self.last_step)
    }

    pub(super) fn signals(&self) -> Vec<&'static str> {
        self.signals.iter().map(|i| SIGNALS[*i]).collect()
    }

    /// Whether the run was active during the whole time before an event: more steps lie before it
    /// than before any other, at the usual pace. A recording may omit most of its steps, as a
    /// thinned export does; then its gaps are not silence. Neither is the first gap, which defines
    /// the step time, nor an estimated time.
    fn moved(&mut self, event: &Event, at: Ts) -> bool {
        let Some(step) = event.step.filter(|_| event.kind == Kind::Step && self.samples > 0) else {
            return false;
        };
        let steps = step.saturating_sub(self.last_step);
        let took = at - core::mem::replace(&mut self.stepped_at, at);
        if steps <= 0 {
            return false;
        }
        let pace = took.as_secs_f64().max(0.0) / steps as f64;
        let usual = median(&self.paces);
        let thinned = steps > self.longest_stride && self.longest_stride > 0;
        self.longest_stride = self.longest_stride.max(steps);
        let takes_its_time = usual.map_or(steps > 1, |usual| thinned && pace <= THINNED * usual);
        let moved = is_untimed(event) || takes_its_time;
        if self.paces.len() == STEP_TIMES {
            self.paces.pop_front();
        }
        self.paces.push_back(pace);
        moved
    }

    /// Runs every deadline up to `at`.
    fn deadlines(&mut self, at: Ts) {
        for _ in 0..MAX_TICKS {
            let Some((due, _)) = self.engine.next_deadline().filter(|(due, _)| *due <= at) else { break };
            self.now = self.now.max(due);
            self.engine.tick(self.now, &mut self.effects);
            self.absorb();
        }
    }

    /// The estimated duration of the event, if the recording has no times.
    fn took(&mut self, event: &Event) -> Span {
        let Some(step) = event.step.filter(|_| event.kind == Kind::Step && self.samples > 0) else {
            return Span::ZERO;
        };
        // Another rank's report of the same step takes no time; a restart takes at least a step.
        let steps = if step < self.last_step { 1 } else { step.saturating_sub(self.last_step) };
        if steps == 0 {
            return Span::ZERO;
        }
        // This step may be a pause, which does not apply to the steps that were not logged.
        let recorded = event.m.get(metric::STEP_TIME).filter(|v| v.is_finite() && *v > 0.0);
        if let Some(secs) = recorded {
            if self.step_times.len() == STEP_TIMES {
                self.step_times.pop_front();
            }
            self.step_times.push_back(secs);
        }
        let usual = self.usual_step();
        Span::from_secs_f64((usual * (steps - 1) as f64 + recorded.unwrap_or(usual)).min(MAX_STEP))
    }

    fn usual_step(&self) -> f64 {
        median(&self.step_times).unwrap_or(UNKNOWN_STEP)
    }

    fn count(&mut self, event: &Event) {
        let Some(step) = event.step.filter(|_| event.kind == Kind::Step) else { return };
        if self.samples == 0 {
            self.first_step = step;
        }
        self.samples += 1;
        self.last_step = step;
        for (name, _) in event.m.iter() {
            if let Some(i) = SIGNALS.iter().position(|s| *s == name) {
                self.signals.insert(i);
            }
        }
    }

    /// Collects the effects. Incidents are added first, because an effect may precede its incident.
    fn absorb(&mut self) {
        for effect in &self.effects {
            let Effect::Incident(record) = effect else { continue };
            if !self.by_id.contains_key(&record.id) {
                self.by_id.insert(record.id.clone(), self.stories.len());
                self.stories.push(Story::new((**record).clone()));
            }
        }
        for effect in self.effects.drain(..) {
            if let Some(at) = self.by_id.get(id_of(&effect)) {
                self.stories[*at].add(self.last_step, effect);
            }
        }
    }
}

fn is_untimed(event: &Event) -> bool {
    event.ts.is_none() && event.m.get(metric::STEP_TIME).is_none()
}

/// The configuration without the detectors that wait. If a recording has no times, the time between
/// two steps is an estimate, and the shorter of several runs in a table would count as silent.
fn without_silence(config: &EngineConfig) -> EngineConfig {
    let mut detectors = (*config.detectors).clone();
    detectors.hang.enabled = false;
    detectors.ckpt_stale.enabled = false;
    detectors.ckpt_cost.enabled = false;
    detectors.ckpt_upload.enabled = false;
    detectors.load_slow.enabled = false;
    EngineConfig { detectors: detectors.into(), responder: config.responder.clone() }
}

fn median(of: &VecDeque<f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = of.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    // Of two, the shorter one: the first step of a run includes compilation.
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}
