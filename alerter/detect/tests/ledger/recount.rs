//! The ledger beside a recount that paints every second of a log by itself, by the words of
//! `docs/api.md`. It is told when steps begin and how long they usually take. The ledger is not.

use proptest::prelude::*;
use stepwatch_detect::run::TimeState;

use super::log::{Record, play};

/// Seconds of a usual step.
const STEP: usize = 10;
/// Seconds from which on a step stands still.
const STALL: usize = 60;

#[derive(Debug, Clone)]
enum Act {
    Steps(u8),
    /// A step that takes so much longer.
    Slow(u16),
    Save(u16),
    Evaluate(u16),
    /// A checkpoint is written while steps go on.
    Write,
    /// A step is not over when the attempt ends, and the next one begins.
    Fail {
        after: u16,
        told: Told,
        start: Start,
    },
    /// The same right after the last step, or the save behind it.
    FailBetween {
        told: Told,
        start: Start,
    },
    /// An attempt comes to its end, and another job goes on.
    End {
        after: u16,
        start: Start,
    },
    /// An attempt that dies before its first step, after so many seconds.
    Stillborn {
        lives: u16,
        start: Start,
    },
}

/// How an attempt begins.
#[derive(Debug, Clone)]
struct Start {
    /// Seconds since the one before.
    gap: u16,
    same_job: bool,
    /// Steps that are made again.
    lost: u8,
    load: u16,
    set_up: u16,
}

/// What is said when an attempt dies.
#[derive(Debug, Clone, Copy)]
enum Told {
    Death,
    Code,
    Nothing,
}

#[derive(Default)]
struct Life {
    records: Vec<Record>,
    now: u32,
    step: i64,
    job: u32,
    attempt: u32,
}

impl Life {
    fn note(&mut self, what: &str) -> &mut Record {
        self.records.push(Record {
            at: f64::from(self.now),
            what: what.to_owned(),
            job: Some(self.job.to_string()),
            step: Some(self.step),
            attempt: Some(self.attempt),
            code: None,
        });
        self.records.last_mut().unwrap()
    }

    fn span(&mut self, what: &str, secs: u16) {
        self.note(&format!("{what}_start"));
        self.now += u32::from(secs);
        self.note(&format!("{what}_end"));
    }

    /// No two of a kind before one step: to the ledger they are what two ranks say of one.
    fn once(&mut self, what: &str, secs: u16) {
        let word = format!("{what}_end");
        if self.records.iter().rev().take_while(|r| r.what != "step_end").any(|r| r.what == word) {
            self.step(0);
        }
        self.span(what, secs);
    }

    fn step(&mut self, more: u16) {
        self.step += 1;
        self.span("step", STEP as u16 + more);
    }

    fn die(&mut self, told: Told) {
        match told {
            Told::Death => self.note("died").code = None,
            Told::Code => self.note("died").code = Some(1),
            Told::Nothing => {}
        }
    }

    fn begin(&mut self, start: &Start) {
        self.now += u32::from(start.gap);
        self.job += u32::from(!start.same_job);
        self.attempt += 1;
        self.step = (self.step - i64::from(start.lost)).max(0);
        self.note("job_start");
        self.span("load", start.load);
        self.step(start.set_up);
    }

    fn apply(&mut self, act: &Act) {
        match act {
            Act::Steps(n) => (0..*n).for_each(|_| self.step(0)),
            Act::Slow(more) => self.step(*more),
            Act::Save(secs) => self.once("save", *secs),
            Act::Evaluate(secs) => self.once("eval", *secs),
            Act::Write => drop(self.note("write_end")),
            Act::Fail { after, told, start } => {
                self.now += u32::from(*after);
                self.die(*told);
                self.begin(start);
            }
            Act::FailBetween { told, start } => {
                self.die(*told);
                self.begin(start);
            }
            Act::End { after, start } => {
                self.now += u32::from(*after);
                self.note("job_end");
                self.begin(&Start { same_job: false, ..start.clone() });
            }
            Act::Stillborn { lives, start } => {
                self.die(Told::Code);
                self.now += u32::from(start.gap);
                self.job += u32::from(!start.same_job);
                self.attempt += 1;
                self.note("job_start");
                self.span("load", *lives);
                self.die(Told::Death);
                self.begin(&Start { same_job: true, ..start.clone() });
            }
        }
    }

    fn of(acts: &[Act]) -> Vec<Record> {
        let mut life = Self::default();
        life.begin(&Start { gap: 0, same_job: true, lost: 0, load: 30, set_up: 60 });
        // By then it is known how long a step usually takes.
        life.apply(&Act::Steps(17));
        acts.iter().for_each(|act| life.apply(act));
        life.note("job_end");
        life.records
    }
}

/// The seconds of a log, each with its state; none between two jobs.
struct Paint {
    seconds: Vec<Option<TimeState>>,
    furthest: i64,
}

impl Paint {
    fn fill(&mut self, from: usize, to: usize, state: TimeState) {
        self.seconds[from..to].fill(Some(state));
    }

    /// The seconds that have no state yet.
    fn free(&self, from: usize, to: usize) -> Vec<usize> {
        (from..to).filter(|second| self.seconds[*second].is_none()).collect()
    }

    fn fill_spans(&mut self, of: &[Record], what: &str, state: TimeState) {
        let times = |edge: &str| {
            let word = format!("{what}_{edge}");
            of.iter().filter(|r| r.what == word).map(second).collect::<Vec<_>>()
        };
        for (from, to) in times("start").into_iter().zip(times("end")) {
            self.fill(from, to, state);
        }
    }

    /// Paints an attempt, up to the first record of the next one.
    fn attempt(&mut self, of: &[Record], is_first_of_job: bool, next: Option<&Record>) {
        let from = second(&of[0]);
        let ended = of.iter().find(|r| matches!(r.what.as_str(), "died" | "job_end"));
        let until = next.map_or_else(|| second(&of[of.len() - 1]), second);
        let is_job_over = next.is_none_or(|next| next.job != of[0].job);
        let steps: Vec<_> = of.iter().filter(|r| r.what == "step_end").collect();
        let Some((first, rest)) = steps.split_first() else {
            if is_first_of_job {
                let died = ended.map_or(until, second);
                self.fill(died, until, TimeState::Down);
                self.fill(from, died, TimeState::Starting);
                self.fill_spans(of, "load", TimeState::Loading);
            } else {
                // It is between two attempts that make steps.
                self.fill(from, until, TimeState::Down);
            }
            return;
        };
        self.fill(from, second(first), TimeState::Starting);
        self.fill_spans(of, "load", TimeState::Loading);
        self.fill_spans(of, "save", TimeState::Saving);
        self.fill_spans(of, "eval", TimeState::Evaluating);
        self.furthest = self.furthest.max(first.step.unwrap());
        let mut last = second(first);
        for step in rest {
            self.step(step, &self.free(last, second(step)));
            last = second(step);
        }
        let gone = ended.map_or(last, second);
        self.end(&self.free(last, gone), ended.is_some_and(|r| r.what == "job_end"));
        if !is_job_over {
            self.free(gone, until).into_iter().for_each(|s| self.seconds[s] = Some(TimeState::Down));
        }
    }

    fn step(&mut self, step: &Record, seconds: &[usize]) {
        let number = step.step.unwrap();
        let made = number <= self.furthest;
        self.furthest = self.furthest.max(number);
        let beyond = if seconds.len() >= STALL { TimeState::Stalled } else { TimeState::Slowed };
        let usual = if made { TimeState::Recomputing } else { TimeState::Productive };
        for (n, second) in seconds.iter().enumerate() {
            self.seconds[*second] = Some(if n < STEP { usual } else { beyond });
        }
    }

    /// What is after the last step of an attempt.
    fn end(&mut self, seconds: &[usize], is_well: bool) {
        for (n, second) in seconds.iter().enumerate() {
            self.seconds[*second] = Some(match is_well {
                true => TimeState::Idle,
                false if seconds.len() >= STALL && n >= STEP => TimeState::Stalled,
                false => TimeState::Down,
            });
        }
    }
}

fn second(r: &Record) -> usize {
    r.at as usize
}

/// The seconds of each state.
fn recount(records: &[Record]) -> Vec<(&'static str, i64)> {
    let all = second(&records[records.len() - 1]);
    let mut paint = Paint { seconds: vec![None; all], furthest: 0 };
    let starts: Vec<_> = (0..records.len()).filter(|n| records[*n].what == "job_start").collect();
    for (n, from) in starts.iter().enumerate() {
        let next = starts.get(n + 1);
        let of = &records[*from..next.copied().unwrap_or(records.len())];
        let is_first_of_job = n == 0 || records[starts[n - 1]].job != of[0].job;
        paint.attempt(of, is_first_of_job, next.map(|next| &records[*next]));
    }
    let count = |state| paint.seconds.iter().filter(|s| **s == Some(state)).count();
    TimeState::ALL.map(|state| (state.as_str(), 1000 * count(state) as i64)).into()
}

fn start() -> impl Strategy<Value = Start> {
    let lost = prop_oneof![Just(0), 1..30_u8];
    (1..3000_u16, any::<bool>(), lost, 0..300_u16, 1..600_u16)
        .prop_map(|(gap, same_job, lost, load, set_up)| Start { gap, same_job, lost, load, set_up })
}

fn act() -> impl Strategy<Value = Act> {
    let told = || prop_oneof![Just(Told::Death), Just(Told::Code), Just(Told::Nothing)];
    prop_oneof![
        4 => (1..40_u8).prop_map(Act::Steps),
        1 => (1..600_u16).prop_map(Act::Slow),
        2 => (1..600_u16).prop_map(Act::Save),
        1 => (1..900_u16).prop_map(Act::Evaluate),
        1 => Just(Act::Write),
        1 => (0..900_u16, told(), start()).prop_map(|(after, told, start)| Act::Fail { after, told, start }),
        1 => (told(), start()).prop_map(|(told, start)| Act::FailBetween { told, start }),
        1 => (0..60_u16, start()).prop_map(|(after, start)| Act::End { after, start }),
        1 => (1..300_u16, start()).prop_map(|(lives, start)| Act::Stillborn { lives, start }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Of all states to the millisecond, so their sum is that of all seconds of the run.
    #[test]
    fn every_second_of_a_log_is_counted_once_and_as_what_it_was(acts in prop::collection::vec(act(), 0..40)) {
        let records = Life::of(&acts);
        let totals = play(&records);
        let ours: Vec<_> = TimeState::ALL.map(|state| (state.as_str(), totals.millis(state))).into();
        prop_assert_eq!(ours, recount(&records));
    }
}
