//! The engine and its clock: the work that sockets and timers do in the live alerter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use stepwatch_engine::{Engine, EngineConfig, SourceInput};
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::Effect;
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use super::signals::Signals;
use super::story::{Story, id_of};

/// The engine's name for the file.
const SOURCE: &str = "backtest";
/// Seconds a step, while none is known.
const UNKNOWN_STEP: f64 = 1.0;
/// Step times whose median is the usual one: pauses are fewer than half of them.
const STEP_TIMES: usize = 9;
/// Times its usual pace that a run may take for steps that were left out.
const THINNED: f64 = 2.0;
/// Longest time between two steps that is made up.
const MAX_STEP: f64 = 86_400.0 * 365.0;
/// Deadlines run between two events: it limits the work of a gap of days.
const MAX_TICKS: u32 = 10_000;
/// Signals that a summary names, in the order it does.
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
    /// Until an event contains a time: what the recording is judged by from there on.
    once_timed: Option<EngineConfig>,
    now: Ts,
    began: Ts,
    /// Some events contained their time.
    timed: bool,
    /// The last ones, for the steps that were not logged.
    step_times: VecDeque<f64>,
    /// Seconds a step between the last rows, when the last one was, and the most steps from one to
    /// the next.
    paces: VecDeque<f64>,
    stepped_at: Ts,
    longest_stride: i64,
    effects: Vec<Effect>,
    /// In the order they were opened.
    stories: Vec<Story>,
    by_id: BTreeMap<String, usize>,
    samples: u64,
    first_step: i64,
    last_step: i64,
    signals: BTreeSet<usize>,
    /// The signals to draw, if a page is wanted.
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

    /// Keeps the signals too, for pictures of them.
    pub(super) fn drawing(self) -> Self {
        Self { drawn: Some(Signals::default()), ..self }
    }

    /// The event must name its run.
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

    /// How long the recording is.
    pub(super) fn lasted(&self) -> Span {
        self.now - self.began
    }

    /// Whether times are the recording's own, and not made of step times.
    pub(super) fn is_timed(&self) -> bool {
        self.timed
    }

    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// First and last step read.
    pub(super) fn steps(&self) -> (i64, i64) {
        (self.first_step, self.last_step)
    }

    pub(super) fn signals(&self) -> Vec<&'static str> {
        self.signals.iter().map(|i| SIGNALS[*i]).collect()
    }

    /// Whether the run went on during the whole time before an event: more steps lie before it than
    /// before any other, and they took that time. A recording may leave out most of its steps, as a
    /// thinned export does; then its gaps are not silence. Neither is the first gap, which defines
    /// how long a step takes, nor a time that is made up.
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

    /// Runs every deadline until then.
    fn deadlines(&mut self, at: Ts) {
        for _ in 0..MAX_TICKS {
            let Some((due, _)) = self.engine.next_deadline().filter(|(due, _)| *due <= at) else { break };
            self.now = self.now.max(due);
            self.engine.tick(self.now, &mut self.effects);
            self.absorb();
        }
    }

    /// How long the event took, where the recording contains no times.
    fn took(&mut self, event: &Event) -> Span {
        let Some(step) = event.step.filter(|_| event.kind == Kind::Step && self.samples > 0) else {
            return Span::ZERO;
        };
        // Another rank's report of the same step takes no time; a restart takes at least a step.
        let steps = if step < self.last_step { 1 } else { step.saturating_sub(self.last_step) };
        if steps == 0 {
            return Span::ZERO;
        }
        // This one may be a pause, which says nothing of the steps that were not logged.
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

    /// An effect may come before the incident that it is of.
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

/// Without the detectors that wait. The time between two steps is made up where a recording
/// contains none, and of several runs in a table the shorter one would be silent.
fn without_silence(config: &EngineConfig) -> EngineConfig {
    let mut detectors = (*config.detectors).clone();
    detectors.hang.enabled = false;
    detectors.ckpt_stale.enabled = false;
    EngineConfig { detectors: detectors.into(), responder: config.responder.clone() }
}

fn median(of: &VecDeque<f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = of.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    // Of two the shorter: a run begins with a step that compiles.
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}
