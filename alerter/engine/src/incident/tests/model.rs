//! Thirty days of random events beside a small model that knows nothing of ladders, lanes or timers: only what a person would say is so.

use proptest::prelude::*;

use super::*;
use Severity::{Page, Ticket};

const DAY: i64 = 86_400;
const RUNS: u8 = 4;
/// A page may wait this long between two words: the level with the longest pause, or the reminder.
const LONGEST: Span = Span::secs(1800);
const HOLD: Span = Span::secs(60);

#[derive(Debug, Clone)]
enum Op {
    Wait(i64),
    Raise(u8, bool),
    Clear(u8),
    Ack(u8),
    Unack(u8),
    Resolve(u8),
    Escalate(u8),
    Fail(u8),
    Silence(u8, i64),
    Reload,
    Restore,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1i64..600).prop_map(Op::Wait),
        2 => (600i64..40_000).prop_map(Op::Wait),
        5 => (0..RUNS, any::<bool>()).prop_map(|(r, page)| Op::Raise(r, page)),
        3 => (0..RUNS).prop_map(Op::Clear),
        2 => (0..RUNS).prop_map(Op::Ack),
        1 => (0..RUNS).prop_map(Op::Unack),
        1 => (0..RUNS).prop_map(Op::Resolve),
        1 => (0..RUNS).prop_map(Op::Escalate),
        1 => (0..RUNS).prop_map(Op::Fail),
        1 => (0..RUNS, 1i64..20_000).prop_map(|(r, s)| Op::Silence(r, s)),
        1 => Just(Op::Reload),
        1 => Just(Op::Restore),
    ]
}

/// What is so of one run.
#[derive(Debug, Clone, Default)]
struct Truth {
    open: Option<Open>,
    /// When the last incident ended, and how often it had come back.
    last: Option<(Ts, u32)>,
    /// Closed by hand while it held: nothing new until it clears or gets worse.
    closed: Option<Severity>,
    silent_until: Ts,
}

#[derive(Debug, Clone)]
struct Open {
    severity: Severity,
    /// What was said of it last.
    last: Severity,
    holds: bool,
    acked: bool,
    flaps: u32,
    ends: Option<Ts>,
    /// Since when somebody should be hearing of it.
    due_since: Ts,
}

struct Twin {
    world: World,
    truth: Vec<Truth>,
    /// The lanes: how far they are, by key.
    seqs: BTreeMap<(String, String), u32>,
    said: Vec<String>,
}

fn name(run: u8) -> String {
    format!("r{run}")
}

fn severity(page: bool) -> Severity {
    if page { Page } else { Ticket }
}

impl Truth {
    fn raise(&mut self, now: Ts, severity: Severity) {
        match &mut self.open {
            Some(open) => {
                open.flaps += u32::from(open.ends.take().is_some());
                (open.holds, open.last) = (true, severity);
                if severity > open.severity {
                    (open.severity, open.acked, open.due_since) = (severity, false, now);
                }
            }
            None if self.closed.is_some_and(|closed| severity <= closed) => {}
            None => {
                let fresh = self.last.filter(|(at, _)| now - *at < Span::secs(3600));
                let flaps = fresh.map_or(0, |(_, flaps)| flaps + 1);
                let (holds, acked, ends) = (true, false, None);
                self.open =
                    Some(Open { severity, last: severity, holds, acked, flaps, ends, due_since: now });
            }
        }
    }

    fn clear(&mut self, now: Ts) {
        self.closed = None;
        if let Some(open) = self.open.as_mut().filter(|open| open.holds) {
            open.holds = false;
            open.ends = Some(now + Span(HOLD.0 << open.flaps.min(5)));
        }
    }

    fn pass(&mut self, until: Ts) {
        if let Some((at, flaps)) =
            self.open.as_ref().and_then(|o| Some((o.ends.filter(|at| *at <= until)?, o.flaps)))
        {
            self.open = None;
            self.last = Some((at, flaps));
        }
    }
}

impl Twin {
    fn new() -> Self {
        let mut config = two_levels();
        config.storm.enabled = false;
        let truth = vec![Truth::default(); usize::from(RUNS)];
        Self { world: World::new(config), truth, seqs: BTreeMap::new(), said: Vec::new() }
    }

    /// In steps, so that what is sent is seen near the moment it is sent.
    fn wait(&mut self, seconds: i64) {
        let until = self.world.now + Span::secs(seconds);
        while self.world.now < until {
            let next = self.world.engine.next_deadline().map_or(until, |(at, _)| at.min(until));
            self.world.forward(next - self.world.now);
            let now = self.world.now;
            let ended = self.truth.iter().map(|t| t.open.as_ref().and_then(|o| o.ends)).collect::<Vec<_>>();
            self.truth.iter_mut().for_each(|t| t.pass(now));
            self.look(&ended);
        }
    }

    fn apply(&mut self, op: &Op) {
        let now = self.world.now;
        let id = |w: &World, run: u8| w.id(&name(run), Kind::Hang);
        match *op {
            Op::Wait(seconds) => return self.wait(seconds),
            Op::Raise(run, page) => {
                self.truth[usize::from(run)].raise(now, severity(page));
                self.world.said(&name(run), Change::Raise, Kind::Hang, severity(page));
            }
            Op::Clear(run) => {
                self.truth[usize::from(run)].clear(now);
                self.world.said(&name(run), Change::Clear, Kind::Hang, Ticket);
            }
            Op::Ack(run) => {
                if let Some(open) = &mut self.truth[usize::from(run)].open {
                    open.acked = true;
                }
                let id = id(&self.world, run);
                self.world.input(Input::Ack { incident: &id, by: "alice" });
            }
            Op::Unack(run) | Op::Escalate(run) => {
                let id = id(&self.world, run);
                let escalate = matches!(op, Op::Escalate(_));
                if let Some(open) = &mut self.truth[usize::from(run)].open {
                    if open.acked {
                        open.due_since = now;
                    }
                    open.acked = false;
                }
                self.world.input(if escalate {
                    Input::Escalate { incident: &id, by: "bob" }
                } else {
                    Input::Unack { incident: &id, by: "alice" }
                });
            }
            Op::Resolve(run) => self.resolve(run),
            Op::Fail(run) => {
                let id = id(&self.world, run);
                let action = Action::Trigger;
                self.world.input(Input::Failed { incident: &id, receiver: "chat", action, error: "gone" });
            }
            Op::Silence(run, seconds) => {
                let truth = &mut self.truth[usize::from(run)];
                truth.silent_until = truth.silent_until.max(now + Span::secs(seconds));
                self.world.silence(&format!("run=\"{}\"", name(run)), Span::secs(seconds));
            }
            Op::Reload => self.world.reload(),
            Op::Restore => self.world.restore(),
        }
        self.look(&vec![None; usize::from(RUNS)]);
    }

    fn resolve(&mut self, run: u8) {
        let now = self.world.now;
        let truth = &mut self.truth[usize::from(run)];
        if let Some(open) = truth.open.take() {
            truth.last = Some((now, open.flaps));
            truth.closed = open.holds.then_some(open.last);
        }
        let id = self.world.id(&name(run), Kind::Hang);
        self.world.input(Input::Resolve { incident: &id, by: "alice" });
    }

    /// Compares what is so with what the engine says, and what was sent with what may be.
    fn look(&mut self, ended: &[Option<Ts>]) {
        let now = self.world.now;
        for n in core::mem::take(&mut self.world.sent) {
            let run: usize = n.message.run[1..].parse().unwrap();
            let truth = &self.truth[run];
            let seq = self.seqs.entry((n.incident.clone(), n.receiver.clone())).or_default();
            *seq += 1;
            assert_eq!(n.seq, *seq, "in order, and none left out");
            assert!(n.seq > 1 || n.action == Action::Trigger, "the first word is a trigger: {n:?}");
            self.said.push(format!("{now} {} {:?} {}", n.receiver, n.action, n.message.reason));
            if n.action != Action::Trigger {
                continue;
            }
            let open = truth.open.as_ref();
            let open = open.unwrap_or_else(|| panic!("told of what is not open ({ended:?}): {n:?}"));
            assert!(!open.acked, "somebody was told after the answer: {n:?}");
            let asked = n.message.because == Reason::Escalated && n.message.reason.contains("by bob");
            assert!(now >= truth.silent_until || asked, "somebody was told in a silence: {n:?}");
            if let Some(open) = &mut self.truth[run].open {
                open.due_since = now;
            }
        }
        for (run, truth) in self.truth.iter().enumerate() {
            let run = name(run as u8);
            let mut found = self.world.engine.open_incidents().filter(|r| r.run == run);
            match (&truth.open, found.next()) {
                (None, None) => {}
                (Some(open), Some(r)) => {
                    let want = (open.severity, open.acked, open.flaps);
                    assert_eq!((r.severity, r.state == State::Acknowledged, r.flaps), want, "{run} at {now}");
                    let since = open.due_since.max(truth.silent_until);
                    let quiet = open.acked || open.severity < Page || !open.holds;
                    assert!(
                        quiet || now - since <= LONGEST,
                        "{run} is not told of since {since}, now {now}: {:#?}",
                        self.world.history
                    );
                    assert!(r.next_at.is_none_or(|at| at >= now), "{:?} lies behind {now}", r.next_at);
                }
                (want, is) => panic!("{run} at {now}: {want:?} but {is:?}"),
            }
            assert!(found.next().is_none(), "{run} has two incidents");
        }
    }
}

fn play(ops: &[Op], restores: bool) -> Vec<String> {
    let mut twin = Twin::new();
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

    /// The same in every life of the process, however often it was killed.
    #[test]
    fn thirty_days_as_the_model_has_them(mut ops in proptest::collection::vec(op(), 20..160)) {
        // Time passes in every round.
        ops.push(Op::Wait(7200));
        prop_assert_eq!(play(&ops, true), play(&ops, false));
    }
}
