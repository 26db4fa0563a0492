//! Saves as the cause of slowness: steps that take longer while a checkpoint is written or
//! uploaded, steps that take longer after each save, and nodes that hinder each other because they
//! save at once.
//!
//! What explains at least half of the loss that a finding is about comes before all other suspects.
//! What explains less is reported, and does not explain the finding. A window that is open explains
//! nothing that began before it, and saves that slow the steps as they always did explain no change
//! within the attempt. A few windows that are far slower than the steps around them are a hint,
//! which weighs less than many.

use super::evidence::{Piece, phase};
use crate::node::NodeState;
use crate::run::{RunState, SaveWindows, SavingNodes, Slowing, Spell};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Cause, Finding, Kind, Observation, SavePart, Storage, Suspect, Target, slow_down};

/// Share of the loss that saves must explain: an engineering limit.
const EXPLAINED: f64 = 0.5;
/// Priors: above the weight of an incident's own detector, of a hint, and of what explains no more
/// than a part.
const SURE: f64 = 4.0;
const HINT: f64 = 1.5;
const PART: f64 = 0.9;
/// Share of its speed at which an interface is full, and of the time at which a disk is, and how
/// many times the usual share that is at least: engineering limits. The traffic of training alone
/// may fill a port.
const FULL: f64 = 0.8;
const RISES: f64 = 1.25;
/// The fewest nodes that are full at once.
const NODES: usize = 2;
/// How much earlier than a window an onset may seem to be that lies in it: it is worked out from
/// the usual time of a step.
const SLACK: Span = Span::secs(60);
const SLACK_LINES: i64 = 3;
/// Saves that were over for longer than this are not what slows the run.
const LATELY: Span = Span::secs(900);

/// The evidence against saves, for a finding about speed or a standstill.
pub(super) fn pieces(v: &Finding, f: &RunState, nodes: &[&NodeState], onset: Ts) -> Vec<Piece> {
    let mut pieces = Vec::new();
    match v.kind.cause() {
        Cause::Speed => {}
        Cause::Progress => return while_it_stands(f, onset).into_iter().collect(),
        _ => return pieces,
    }
    let Some(windows) = f.checkpoints.windows() else { return pieces };
    let storage = Target::Storage(Storage::OfCheckpoints);
    // What began before a window is not of that window.
    let is_within = |stage| windows.open_since(stage).is_some_and(|since| began_since(f, since, onset));
    let hint = || windows.hint().filter(|hint| is_within(hint.stage) || !windows.is_open(hint.stage));
    if let Some(slowing) = windows.slowing().or_else(hint) {
        let longer = if is_within(slowing.stage) { slowing.rise() } else { news(v, windows, &slowing) };
        let prior = match (explains(v, longer), slowing.is_sure()) {
            (true, true) => SURE,
            (true, false) => HINT,
            (false, _) => PART,
        };
        let strength = slowing.z.max(0.0).ln_1p();
        pieces.push(Piece { strength, ..phase(storage.clone(), onset, prior, slowing.observation()) });
        // Where the windows slow the run, it matters why.
        let why = together(f, nodes).into_iter().filter(|_| prior > PART);
        let why = why.flat_map(|suspect| suspect.evidence).map(|evidence| evidence.observation);
        pieces.extend(why.map(|why| phase(storage.clone(), onset, 1.0, why)));
    }
    if let Some(rises) = windows.stairs().rises() {
        let (value, expected) = (rises.now.into(), rises.before.into());
        let why = Observation::EachSaveSlower { saves: rises.saves, value, expected };
        let prior = if explains(v, rises.now / rises.before - 1.0) { SURE } else { PART };
        pieces.push(phase(Target::Saving, onset, prior, why));
    }
    pieces
}

/// Whether what a finding is about began in a window that is open since then, by the clock of the
/// events.
fn began_since(f: &RunState, since: Ts, onset: Ts) -> bool {
    let ahead = f.last_step_at.map_or(Span::ZERO, |at| f.last_progress - at);
    let slack = SLACK.max(Span::from_secs_f64(f.takes(SLACK_LINES * f.interval)));
    onset + slack >= since + ahead
}

/// The share by which all steps take longer for the windows of a stage. A change of speed within
/// the attempt is explained only by what has changed: saves that slowed the steps from the first on
/// are part of what is expected.
fn news(v: &Finding, windows: &SaveWindows, slowing: &Slowing) -> f64 {
    let longer = slowing.covers * slowing.rise();
    let is_of_attempt = matches!(v.kind, Kind::MfuDroop | Kind::ThroughputDrop);
    longer - windows.longer_at_first(slowing.stage).filter(|_| is_of_attempt).unwrap_or(0.0)
}

/// A stage that is known to slow the steps, and was at work when the run stopped: it may have kept
/// a collective from its end in time.
fn while_it_stands(f: &RunState, onset: Ts) -> Option<Piece> {
    let windows = f.checkpoints.windows()?;
    let slowing = windows.slowing().filter(|slowing| windows.is_open(slowing.stage))?;
    Some(phase(Target::Storage(Storage::OfCheckpoints), onset, HINT, slowing.observation()))
}

/// Whether steps that take longer by this share are at least half of the loss of a finding.
fn explains(v: &Finding, longer: f64) -> bool {
    // These are about how much step times differ, and not about a level.
    if matches!(v.kind, Kind::StepTimeJitter | Kind::GcTail) {
        return longer > 0.0;
    }
    let lost = slow_down(&v.signal, v.value, v.expected) - 1.0;
    lost > 0.0 && lost.is_finite() && longer >= EXPLAINED * lost
}

/// The storage of the checkpoints, if the nodes hinder each other on their way to it: their
/// interfaces are full while they save, or each is the slower the more save at once.
pub(crate) fn together(f: &RunState, nodes: &[&NodeState]) -> Option<Suspect> {
    let stages = f.checkpoints.stages()?;
    let parts = [SavePart::Interface, SavePart::Disk];
    let why = parts.into_iter().find_map(|part| {
        let mut spells = stages.saving_nodes().flat_map(SavingNodes::spells);
        spells.find_map(|spell| full(part, f.last_heard, &spell, nodes))
    });
    let why = why.or_else(|| stages.saving_nodes().find_map(slower_together))?;
    Some(Suspect::new(Target::Storage(Storage::OfCheckpoints), why))
}

/// Nodes with an interface or a disk that was full in a spell of saving, and is not outside.
fn full(part: SavePart, now: Ts, spell: &Spell, nodes: &[&NodeState]) -> Option<Observation> {
    let until = spell.until.unwrap_or(now);
    let read = |node: &&NodeState| node.throughput.busiest(part, spell.since, until);
    let shares: Vec<(f64, f64)> = nodes.iter().filter_map(read).collect();
    let is_full = |(share, usual): &(f64, f64)| *share >= FULL && *share >= RISES * usual;
    let full: Vec<(f64, f64)> = shares.iter().copied().filter(is_full).collect();
    let enough = now - until < LATELY && full.len() >= NODES && 2 * full.len() >= shares.len();
    let (value, expected) = *full.iter().min_by(|a, b| a.0.total_cmp(&b.0)).filter(|_| enough)?;
    Some(Observation::FullWhileSaving {
        part,
        nodes: full.len() as u64,
        known: shares.len() as u64,
        saving: spell.nodes,
        value: value.into(),
        expected: expected.into(),
    })
}

fn slower_together(saving: &SavingNodes) -> Option<Observation> {
    let shared = saving.shared_rate()?;
    Some(Observation::SlowerTogether {
        nodes: shared.nodes,
        fewer: shared.fewer,
        value: shared.rate.into(),
        expected: shared.rate_of_fewer.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detector::RunAt;
    use crate::run::{AttemptBounds, Stage, StageReport};
    use CkptPhase::{End, Start};
    use stepwatch_model::{Change, Severity};
    use stepwatch_wire::{CkptPhase, Event, Value};

    /// A run that saves, and its clock.
    struct Bench {
        f: RunState,
        now: Ts,
        step: i64,
    }

    impl Bench {
        fn new() -> Self {
            Self { f: RunState::new("r", Ts(0)), now: Ts(1_000_000), step: 100 }
        }

        fn say(&mut self, stage: Stage, phase: CkptPhase, nodes: u32) {
            let (now, at, step) = (self.now, self.now, Some(self.step));
            let r =
                StageReport { stage, phase, step, rank: 0, now, at, secs: None, bytes: None, seen: false };
            let checkpoints = &mut self.f.checkpoints;
            match (stage, phase) {
                (Stage::Save, Start) => checkpoints.save_began(&r),
                (Stage::Save, _) => checkpoints.save_ended(&r),
                _ => {
                    let attempt = AttemptBounds { is_after: false, first_step: Some(1) };
                    checkpoints.later_stage(&r, attempt, "");
                }
            }
            checkpoints.stages_mut().expect("it was reported").follow(&r, nodes);
            self.f.last_heard = self.now;
        }

        fn steps(&mut self, n: usize, secs: f64) -> &mut Self {
            for _ in 0..n {
                self.now = self.now + Span::from_secs_f64(secs);
                self.f.checkpoints.stepped(self.now, secs, 1);
            }
            self.f.last_heard = self.now;
            self
        }

        fn uploads(&mut self, n: usize, secs: f64) {
            self.say(Stage::Upload, Start, 4);
            self.steps(n, secs).say(Stage::Upload, End, 0);
        }

        /// Five uploads in which a step takes 2.4 s, and 2 s outside. Steps are measured from the
        /// first report of an upload on.
        fn with_uploads() -> Self {
            let mut b = Self::new();
            b.uploads(0, 2.0);
            for _ in 0..5 {
                b.steps(40, 2.0).uploads(10, 2.4);
            }
            b.steps(20, 2.0);
            b
        }

        fn pieces(&self, kind: Kind, value: f64, expected: f64, nodes: &[&NodeState]) -> Vec<Piece> {
            self.pieces_from(self.now, self.found(kind, value, expected), nodes)
        }

        fn found(&self, kind: Kind, value: f64, expected: f64) -> Finding {
            let view = RunAt { now: self.now, run: &self.f };
            let v = view.finding(kind, "step_time", Change::Raise, Severity::Ticket);
            Finding { value, expected, ..v }
        }

        fn pieces_from(&self, onset: Ts, v: Finding, nodes: &[&NodeState]) -> Vec<Piece> {
            pieces(&v, &self.f, nodes, onset)
        }

        /// The priors of a drop by a quarter with this onset.
        fn priors_from(&self, onset: Ts) -> Vec<f64> {
            let v = self.found(Kind::ThroughputDrop, 2.5, 2.0);
            self.pieces_from(onset, v, &[]).iter().map(|piece| piece.prior).collect()
        }

        /// The targets with their priors.
        fn named(&self, kind: Kind, value: f64, expected: f64) -> Vec<(Target, f64)> {
            let pieces = self.pieces(kind, value, expected, &[]);
            pieces.into_iter().map(|piece| (piece.suspect.target, piece.prior)).collect()
        }
    }

    const STORAGE: Target = Target::Storage(Storage::OfCheckpoints);
    const NOBODY: [(Target, f64); 0] = [];

    #[test]
    fn uploads_are_named_first_where_they_explain_the_loss() {
        let mut b = Bench::with_uploads();
        let words = b.pieces(Kind::MfuDroop, 2.05, 2.0, &[])[0].suspect.why();
        assert_eq!(words, "steps take 2.4 s while a checkpoint is uploaded, otherwise 2 s, in 5 of 5 times");
        // Of 104 s, 24 lie in a window, in which steps take a fifth longer: 4.6 % of all.
        assert_eq!(b.named(Kind::MfuDroop, 2.1, 2.0), [(STORAGE, SURE)]);
        assert_eq!(b.named(Kind::MfuDroop, 2.5, 2.0), [(STORAGE, PART)], "25 % are lost");
        b.say(Stage::Upload, Start, 4);
        b.steps(10, 2.4);
        assert_eq!(b.named(Kind::MfuDroop, 2.5, 2.0), [(STORAGE, SURE)], "while it uploads");
        assert_eq!(b.named(Kind::StepTimeJitter, 0.3, 0.1), [(STORAGE, SURE)]);
        assert_eq!(b.named(Kind::Divergence, 5.0, 2.0), NOBODY);
    }

    #[test]
    fn one_upload_is_a_hint_and_none_is_nothing() {
        let mut b = Bench::new();
        b.uploads(0, 2.0);
        b.steps(40, 2.0).say(Stage::Upload, Start, 4);
        assert_eq!(b.named(Kind::ThroughputDrop, 2.4, 2.0), NOBODY);
        b.steps(40, 2.0).say(Stage::Upload, End, 0);
        b.steps(40, 2.0).say(Stage::Upload, Start, 4);
        b.steps(10, 2.6);
        assert_eq!(b.named(Kind::ThroughputDrop, 2.6, 2.0), NOBODY, "the one before was as fast");
        let mut b = Bench::new();
        b.uploads(0, 2.0);
        b.steps(40, 2.0).say(Stage::Upload, Start, 4);
        b.steps(10, 2.6);
        assert_eq!(b.named(Kind::ThroughputDrop, 2.6, 2.0), [(STORAGE, HINT)]);
    }

    #[test]
    fn a_slow_down_from_before_an_upload_is_not_of_the_upload() {
        let mut b = Bench::with_uploads();
        let before = b.now;
        b.steps(100, 2.5).say(Stage::Upload, Start, 4);
        let since = b.now;
        b.steps(10, 2.5);
        assert_eq!(b.priors_from(before), [PART]);
        assert_eq!(b.priors_from(since), [SURE]);
        let mut b = Bench::new();
        b.uploads(0, 2.0);
        let before = b.steps(40, 2.0).now;
        // Too few steps for the median before the window to follow.
        b.steps(1, 100.0).steps(9, 2.6).say(Stage::Upload, Start, 4);
        let since = b.now;
        b.steps(10, 2.6);
        assert!(b.priors_from(before).is_empty());
        assert_eq!(b.priors_from(since), [HINT]);
    }

    #[test]
    fn saves_that_slow_the_steps_as_they_always_did_explain_no_change() {
        let mut b = Bench::new();
        b.uploads(0, 2.0);
        for _ in 0..13 {
            b.steps(40, 2.0).uploads(10, 2.4);
        }
        b.steps(8, 2.0);
        assert_eq!(b.named(Kind::MfuDroop, 2.1, 2.0), [(STORAGE, PART)], "no upload takes more");
        assert_eq!(b.named(Kind::BelowExpectation, 2.1, 2.0), [(STORAGE, SURE)], "others need no uploads");
        for _ in 0..9 {
            b.steps(40, 2.0).uploads(20, 2.8);
        }
        b.steps(8, 2.0);
        // 56 s of 136 s are 40 % longer: 16.5 % of all, 4.6 % before.
        assert_eq!(b.named(Kind::MfuDroop, 2.2, 2.0), [(STORAGE, SURE)]);
    }

    #[test]
    fn a_run_that_stops_during_an_upload_may_have_been_kept_from_its_collective() {
        let mut b = Bench::with_uploads();
        assert_eq!(b.named(Kind::Hang, 0.0, 0.0), NOBODY);
        b.say(Stage::Upload, Start, 4);
        assert_eq!(b.named(Kind::Hang, 0.0, 0.0), [(STORAGE, HINT)]);
    }

    #[test]
    fn saves_after_each_of_which_steps_take_longer_are_named() {
        let mut b = Bench::new();
        for n in 0..7 {
            b.steps(60, 2.0 * 1.01_f64.powi(n)).say(Stage::Save, Start, 4);
            b.say(Stage::Save, End, 0);
            b.step += 60;
        }
        let named = b.named(Kind::MfuDroop, 2.12, 2.0);
        assert_eq!(named, [(Target::Saving, SURE)]);
        let words = b.pieces(Kind::MfuDroop, 2.12, 2.0, &[])[0].suspect.why();
        assert!(words.starts_with("steps took longer after each of the last "), "{words}");
    }

    #[test]
    fn a_run_that_only_says_when_a_checkpoint_is_durable_writes_it_from_its_save_on() {
        let mut b = Bench::new();
        for _ in 0..7 {
            b.step += 50;
            b.say(Stage::Save, Start, 0);
            b.say(Stage::Save, End, 0);
            b.steps(10, 2.4).say(Stage::Durable, End, 0);
            b.steps(40, 2.0);
        }
        assert_eq!(b.named(Kind::MfuDroop, 2.05, 2.0), [(STORAGE, SURE)]);
        let words = b.pieces(Kind::MfuDroop, 2.05, 2.0, &[])[0].suspect.why();
        assert_eq!(words, "steps take 2.4 s while a checkpoint is written, otherwise 2 s, in 6 of 6 times");
    }

    /// A node whose interface sends at this share of its speed until then, every half a minute.
    fn node(name: &str, until: Ts, share: impl Fn(Ts) -> f64) -> NodeState {
        let mut node = NodeState::new(name, Ts(0));
        let mut sent = 1e9;
        for now in (0..=until.0).step_by(30_000).map(Ts) {
            let mut e = Event { name: Some("nic".into()), ..Event::new(stepwatch_wire::Kind::Health) };
            e.extra.insert("device".into(), Value::Text("eth0".into()));
            e.m.set("rate_bytes_per_second", 12.5e9);
            sent += share(now) * 12.5e9 * 30.0;
            e.m.set("transmit_bytes", sent);
            node.throughput.take(now, &e);
        }
        node
    }

    #[test]
    fn nodes_whose_interfaces_are_full_while_they_save_hinder_each_other() {
        let mut b = Bench::with_uploads();
        b.say(Stage::Upload, Start, 4);
        let since = b.now;
        b.steps(60, 2.4);
        let full = |now: Ts| if now > since + Span::secs(30) { 0.95 } else { 0.2 };
        let (n1, n2, idle) = (node("n1", b.now, full), node("n2", b.now, full), node("n3", b.now, |_| 0.2));
        let told = |nodes: &[&NodeState]| together(&b.f, nodes).map(|suspect| suspect.why());
        let all = "an interface of 2 of 3 nodes sends at 95 % of its speed, usually 20 %, while 4 nodes save at once";
        assert_eq!(told(&[&n1, &n2, &idle]).as_deref(), Some(all));
        assert_eq!(told(&[&n1, &idle, &idle]), None, "one node is not all");
        let busy = node("n4", b.now, |_| 0.95);
        assert_eq!(told(&[&busy, &busy]), None, "training alone fills it");
        let pieces = b.pieces(Kind::MfuDroop, 2.4, 2.0, &[&n1, &n2]);
        assert_eq!(pieces.len(), 2);
        assert!(pieces[0].prior > pieces[1].prior && pieces.iter().all(|p| p.suspect.target == STORAGE));
        // Of the next one, which has just begun, nothing is read.
        b.say(Stage::Upload, End, 0);
        b.steps(40, 2.0).say(Stage::Upload, Start, 4);
        let told = together(&b.f, &[&n1, &n2, &idle]).map(|suspect| suspect.why());
        assert_eq!(told.as_deref(), Some(all));
        // One rank alone reports the saves of all.
        b.say(Stage::Upload, End, 0);
        b.say(Stage::Upload, Start, 1);
        let since = b.now;
        b.steps(60, 2.4);
        let full = |now: Ts| if now > since + Span::secs(30) { 0.95 } else { 0.2 };
        let (n1, n2) = (node("n1", b.now, full), node("n2", b.now, full));
        let told = |nodes: &[&NodeState]| together(&b.f, nodes).map(|suspect| suspect.why());
        let unknown = "an interface of 2 of 2 nodes sends at 95 % of its speed, usually 20 %, while a checkpoint is saved";
        assert_eq!(told(&[&n1, &n2]).as_deref(), Some(unknown));
    }
}
