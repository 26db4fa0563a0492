//! Compares thirty days of random events with a small model of who must be notified, when and why.
//! Each message that the model expects must come, and no other.

mod truth;

use proptest::prelude::*;

use super::*;
use Severity::{Page, Ticket};
use truth::{Open, Setting, Subject, Truth, Word};

const DAY: i64 = 86_400;
const RUNS: u8 = 3;
/// The faults of a run: a hang, which is a page and suppresses the slowness; a slow run; a loss
/// spike.
const KINDS: [Kind; 3] = [Kind::Hang, Kind::Straggler, Kind::LossSpike];
const RECEIVERS: [&str; 2] = ["chat", "phone"];
const HOLD: Span = Span::secs(60);
/// How long after a person resolved it an incident that still fires reopens.
const REOPEN_AFTER: Span = Span::millis(600_007);
/// The least time between two updates.
const INTERVAL: Span = Span::secs(200);

#[derive(Debug, Clone)]
enum Op {
    Wait(i64),
    Raise(Subject, Severity),
    Clear(Subject),
    Ack(Subject),
    Unack(Subject),
    Resolve(Subject),
    Escalate(Subject),
    Failed(Subject, Action),
    Unreached(Subject),
    Silence(u8, Part, i64),
    /// Ends one of the active silences.
    Expire(usize),
    Reload,
    Restore,
}

/// The incidents of a run that a silence matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Tickets,
    Hangs,
}

fn op() -> impl Strategy<Value = Op> {
    let part = || proptest::sample::select(&[Part::All, Part::Tickets, Part::Hangs][..]);
    let of = || (0..RUNS, proptest::sample::select(&KINDS[..]));
    let action = proptest::sample::select(&[Action::Trigger, Action::Update, Action::Ack][..]);
    prop_oneof![
        // Often to a time at which something else happens.
        4 => proptest::sample::select(&[45, 60, 100, 200, 300, 600][..]).prop_map(Op::Wait),
        4 => (1i64..600).prop_map(Op::Wait),
        2 => (600i64..40_000).prop_map(Op::Wait),
        7 => (of(), any::<bool>()).prop_map(|(of, page)| {
            Op::Raise(of, if page || of.1 == Kind::Hang { Page } else { Ticket })
        }),
        5 => of().prop_map(Op::Clear),
        3 => of().prop_map(Op::Ack),
        1 => of().prop_map(Op::Unack),
        1 => of().prop_map(Op::Resolve),
        1 => of().prop_map(Op::Escalate),
        1 => (of(), action).prop_map(|(of, action)| Op::Failed(of, action)),
        1 => of().prop_map(Op::Unreached),
        1 => (0..RUNS, part(), proptest::sample::select(&[300, 600, 1800][..]))
            .prop_map(|(r, p, s)| Op::Silence(r, p, s)),
        1 => (0..RUNS, part(), 1i64..20_000).prop_map(|(r, p, s)| Op::Silence(r, p, s)),
        1 => any::<usize>().prop_map(Op::Expire),
        1 => Just(Op::Reload),
        1 => Just(Op::Restore),
    ]
}

fn setting() -> impl Strategy<Value = Setting> {
    let ack_timeout = proptest::option::of(Just(Span::secs(7200)));
    (any::<bool>(), ack_timeout).prop_map(|(batch, ack_timeout)| Setting {
        batch_window: if batch { Span::secs(45) } else { Span::ZERO },
        ack_timeout,
    })
}

/// A silence in the model.
#[derive(Debug)]
struct SilencedBy {
    id: String,
    run: u8,
    part: Part,
    ends: Ts,
}

impl SilencedBy {
    fn is_about(&self, (run, kind): Subject, severity: Severity) -> bool {
        let part = match self.part {
            Part::All => true,
            Part::Tickets => severity == Ticket,
            Part::Hangs => kind == Kind::Hang,
        };
        self.run == run && part
    }
}

struct Twin {
    world: World,
    setting: Setting,
    truth: BTreeMap<Subject, Truth>,
    silences: Vec<SilencedBy>,
    /// The last sequence number of each lane.
    seqs: BTreeMap<(String, String), u32>,
    said: Vec<String>,
}

fn name(run: u8) -> String {
    format!("r{run}")
}

impl Twin {
    fn new(setting: Setting) -> Self {
        let Setting { batch_window, ack_timeout } = setting;
        let mut config =
            ResponderConfig { batch_window, ack_timeout, update_min_interval: INTERVAL, ..two_levels() };
        // Everything else happens at whole seconds.
        config.reopen_after = REOPEN_AFTER;
        config.storm.enabled = false;
        let subjects = (0..RUNS).flat_map(|run| KINDS.map(|kind| (run, kind)));
        Self {
            world: World::new(config),
            setting,
            truth: subjects.map(|of| (of, Truth::default())).collect(),
            silences: Vec::new(),
            seqs: BTreeMap::new(),
            said: Vec::new(),
        }
    }

    fn open(&mut self, of: Subject) -> Option<&mut Open> {
        self.truth.get_mut(&of)?.open.as_mut()
    }

    /// Whether the incident of `of`, open or opened now with this severity, is suppressed.
    fn is_suppressed(&self, of: Subject, severity: Severity) -> bool {
        let hang = self.truth[&(of.0, Kind::Hang)].open.as_ref();
        // A hang explains slowness if people are notified of the hang or have acknowledged it.
        let explains = |hang: &Open| hang.acked.is_some() || !self.is_silenced(hang.of, hang.severity);
        self.is_silenced(of, severity) || of.1 == Kind::Straggler && hang.is_some_and(explains)
    }

    fn is_silenced(&self, of: Subject, severity: Severity) -> bool {
        let now = self.world.now;
        self.silences.iter().any(|h| h.ends > now && h.is_about(of, severity))
    }

    fn suppressed(&self, of: Subject) -> bool {
        let open = self.truth[&of].open.as_ref();
        open.is_some_and(|open| self.is_suppressed(of, open.severity))
    }

    /// Waits, with a stop at each deadline of the engine and of the model.
    fn wait(&mut self, seconds: i64) {
        let until = self.world.now + Span::secs(seconds);
        while self.world.now < until {
            let now = self.world.now;
            let open = self.truth.values().filter_map(|t| t.open.as_ref());
            let times =
                open.flat_map(|open| open.times(&self.setting)).chain(self.silences.iter().map(|h| h.ends));
            let back = self.truth.values().filter_map(|t| t.closed.as_ref()).map(|closed| closed.back);
            let times = times.chain(back);
            let ours = times.filter(|at| *at > now).min();
            let next = self.world.engine.next_deadline().map(|(at, _)| at).into_iter().chain(ours).min();
            self.world.forward(next.map_or(until, |at| at.min(until)) - now);
            self.look(Vec::new());
        }
    }

    /// Advances the model to the current time.
    fn advance(&mut self) -> Vec<Word> {
        let now = self.world.now;
        self.silences.retain(|h| h.ends > now);
        let mut words = Vec::new();
        for truth in self.truth.values_mut() {
            if truth.open.as_ref().is_some_and(|open| open.ends.is_some_and(|at| at <= now)) {
                words.extend(truth.end(now, false));
            }
        }
        // In order of their opening, if several reopen at once.
        let closed = self.truth.iter().filter(|(_, truth)| truth.closed.is_some());
        let mut closed: Vec<Subject> = closed.map(|(of, _)| *of).collect();
        // A name is looked up among all incidents of thirty days.
        closed.sort_by_cached_key(|of| self.world.id(&name(of.0), of.1));
        for of in closed {
            let setting = self.setting;
            if self.truth.get_mut(&of).and_then(|t| t.come_back(&setting, now)).is_some() {
                let suppressed = self.suppressed(of);
                words.extend(self.open(of).and_then(|open| open.reopened(now, suppressed)));
            }
        }
        // Hangs are handled before what they explain.
        let (hangs, others): (Vec<Subject>, Vec<_>) = self.truth.keys().partition(|of| of.1 == Kind::Hang);
        for of in hangs.into_iter().chain(others) {
            let (suppressed, setting) = (self.suppressed(of), self.setting);
            if let Some(open) = self.open(of) {
                words.extend(open.advance(&setting, now, suppressed));
            }
        }
        words
    }

    fn apply(&mut self, op: &Op) {
        let words = match *op {
            Op::Wait(seconds) => return self.wait(seconds),
            Op::Raise(of, severity) => {
                let (now, setting) = (self.world.now, self.setting);
                let had = self.open(of).map_or(severity, |open| open.severity);
                let suppressed = self.is_suppressed(of, severity.max(had));
                let words = self.truth.get_mut(&of).map(|t| t.raise(&setting, of, now, severity, suppressed));
                self.world.said(&name(of.0), Change::Raise, of.1, severity);
                words.unwrap_or_default()
            }
            Op::Clear(of) => {
                let now = self.world.now;
                self.truth.entry(of).or_default().clear(now);
                self.world.said(&name(of.0), Change::Clear, of.1, Ticket);
                Vec::new()
            }
            Op::Silence(run, part, seconds) => {
                let only = match part {
                    Part::All => "",
                    Part::Tickets => ", severity=\"ticket\"",
                    Part::Hangs => ", kind=\"hang\"",
                };
                let ends = self.world.now + Span::secs(seconds);
                let id = self.world.silence(&format!("run=\"r{run}\"{only}"), Span::secs(seconds));
                self.silences.push(SilencedBy { id, run, part, ends });
                Vec::new()
            }
            Op::Expire(n) => {
                if let Some(n) = n.checked_rem(self.silences.len()) {
                    let gone = self.silences.remove(n);
                    self.world.input(Input::ExpireSilence { id: &gone.id });
                }
                Vec::new()
            }
            Op::Reload => {
                self.world.reload();
                Vec::new()
            }
            Op::Restore => {
                self.world.restore();
                Vec::new()
            }
            _ => self.answer(op),
        };
        self.world.forward(Span::ZERO);
        self.look(words);
    }

    /// Applies an action to one incident.
    fn answer(&mut self, op: &Op) -> Vec<Word> {
        let (Op::Ack(of)
        | Op::Unack(of)
        | Op::Resolve(of)
        | Op::Escalate(of)
        | Op::Failed(of, _)
        | Op::Unreached(of)) = *op
        else {
            return Vec::new();
        };
        let (now, suppressed, id) = (self.world.now, self.suppressed(of), self.world.id(&name(of.0), of.1));
        let incident = id.as_str();
        let Some(open) = self.open(of) else { return Vec::new() };
        if open.knows.is_empty() && matches!(op, Op::Failed(..) | Op::Unreached(_)) {
            return Vec::new();
        }
        let (input, words) = match *op {
            Op::Ack(_) => (Input::Act { incident, by: "alice", action: &IncidentAction::Ack }, open.ack(now)),
            Op::Unack(_) => {
                (Input::Act { incident, by: "alice", action: &IncidentAction::Unack }, open.unack(now))
            }
            Op::Escalate(_) => (
                Input::Act { incident, by: "bob", action: &IncidentAction::Escalate },
                open.escalate(now).into_iter().collect(),
            ),
            Op::Failed(_, action) => {
                let call = action == Action::Trigger;
                let words = if call { open.failed(now, suppressed) } else { Vec::new() };
                (Input::Failed { incident, receiver: "chat", action, error: "gone" }, words)
            }
            Op::Unreached(_) => {
                let words = open.unreached(now, suppressed);
                (Input::Unreached { incident, receiver: "chat", waited: HOLD, error: "503" }, words)
            }
            _ => {
                let words = self.truth.get_mut(&of).map(|t| t.end(now, true)).unwrap_or_default();
                (Input::Act { incident, by: "alice", action: &IncidentAction::Resolve }, words)
            }
        };
        self.world.input(input);
        if matches!(op, Op::Unreached(_)) {
            // The receiver works again, and its fault is over.
            self.world.input(Input::Delivered { incident, receiver: "chat", action: Action::Trigger });
        }
        words
    }

    /// Compares the model's state with the engine's, and the sent messages with the expected ones.
    fn look(&mut self, mut words: Vec<Word>) {
        words.extend(self.advance());
        let now = self.world.now;
        for n in core::mem::take(&mut self.world.sent) {
            if n.message.kind == Kind::AlerterFault {
                // The incident is about the receiver, which has tests of its own.
                continue;
            }
            let seq = self.seqs.entry((n.incident.clone(), n.receiver.clone())).or_default();
            *seq += 1;
            assert_eq!(n.seq, *seq, "in order, and none left out");
            assert!(n.seq > 1 || n.action == Action::Trigger, "the first word is a trigger: {n:?}");
            let (to, why) = (n.receiver.as_str(), n.message.because);
            self.said.push(format!("{now} {} {to} {:?} {}", n.incident, n.action, n.message.reason));
            let run: u8 = n.message.run[1..].parse().unwrap();
            let is = |w: &Word| {
                w.of == (run, n.message.kind) && w.to == to && w.action == n.action && w.why.contains(&why)
            };
            let at = words.iter().position(is);
            let at = at.unwrap_or_else(|| {
                panic!("{now}: {to} {:?} {why:?} of {run}, expected {words:#?}: {}", n.action, self.story())
            });
            words.swap_remove(at);
        }
        assert!(words.is_empty(), "{now}: nobody sent {words:#?}: {}", self.story());
        for of in self.truth.keys().copied().collect::<Vec<_>>() {
            self.compare(of);
        }
    }

    fn compare(&self, of: Subject) {
        let (now, run) = (self.world.now, name(of.0));
        let mut found =
            self.world.engine.open_incidents().filter(|r| r.run == run && r.cause == of.1.cause());
        match (&self.truth[&of].open, found.next()) {
            (None, None) => {}
            (Some(open), Some(r)) => {
                let want = (open.severity, open.acked, open.flaps, open.level);
                let is = (r.severity, r.acked_at, r.flaps, r.level);
                assert_eq!(is, want, "{of:?} at {now}: {}", self.story());
                assert_eq!(r.state == State::Acknowledged, open.acked.is_some());
                if self.suppressed(of) {
                    assert!(r.suppression.is_some(), "{of:?} at {now}: {}", self.story());
                } else {
                    assert_eq!(
                        (r.suppression.as_ref(), r.next_at),
                        (None, open.due),
                        "{of:?}: {}",
                        self.story()
                    );
                }
            }
            (want, is) => panic!("{of:?} at {now}: {want:?} but {is:?}"),
        }
        assert!(found.next().is_none(), "{of:?} has two incidents");
    }

    /// The last operations.
    fn story(&self) -> String {
        let from = self.world.history.len().saturating_sub(40);
        self.world.history[from..].join("\n")
    }
}

fn play(ops: &[Op], setting: Setting, restores: bool) -> Vec<String> {
    let mut twin = Twin::new(setting);
    let until = twin.world.now + Span::secs(30 * DAY);
    for op in ops.iter().cycle() {
        if twin.world.now >= until {
            break;
        }
        if restores || !matches!(op, Op::Restore) {
            twin.apply(op);
        }
    }
    twin.said
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The result is the same however often the process is killed.
    #[test]
    fn thirty_days_as_the_model_has_them(
        setting in setting(),
        mut ops in proptest::collection::vec(op(), 20..160),
    ) {
        // Time passes in every round.
        ops.push(Op::Wait(7200));
        prop_assert_eq!(play(&ops, setting, true), play(&ops, setting, false));
    }
}
