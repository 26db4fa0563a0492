//! Round after round of what people, programs and machines do to an alerter, each with a blow at a
//! random moment; and after each, what must hold whatever happened.
//!
//! A round is a few acts (troubles begin and end, people answer, ask for quiet, change the
//! configuration) and one blow: `kill -9` at any moment or at a crash point, a process that stands
//! still, a disk that is full for a moment, a wall clock that jumps by an hour. Slack and PagerDuty
//! are unwell in some of them. The seed is printed; `STEPWATCH_SEED` repeats a sequence of acts and
//! blows, though not the moments at which the machine does them. `STEPWATCH_LONG=1` makes it 500
//! rounds, `STEPWATCH_ROUNDS` any number; many rounds are shared out among worlds that know nothing
//! of each other, because most of a round is waiting.

mod acts;
mod blows;
mod case;
mod laws;
mod people;

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use stepwatch_tests::{FakeLibc, Inbound, Random, Stack, StackOptions, say};
use tempfile::TempDir;

use self::blows::Blow;
use self::case::Case;
use self::people::People;

const ROUNDS: usize = 30;
const ROUNDS_LONG: usize = 500;
/// Rounds that are worth a world of their own, and worlds at once.
const ROUNDS_WORLD: usize = 10;
const WORLDS: usize = 4;
/// Troubles at once.
const CASES: usize = 6;
/// Lines of the story that are shown when something is wrong.
const SHOWN: usize = 80;
/// How long a start, or what everybody repeats until it is taken, may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Deadlines within seconds, and each trouble notified by itself. What a machine under load looks
/// like is not what is tested.
const ALERTER: &str = "resolve_after: 200ms\nremind_every: 1m\nstorm: {enabled: false}\nupdate_min_interval: 1s\n\
     detectors: {node_fault: {enabled: false}, link_fault: {enabled: false}, hang: {enabled: false}, stall: {enabled: false}, \
     rank_dead: {enabled: false}, source_lost: {enabled: false}, ckpt_stale: {enabled: false}}\n";
const LEVELS: &str =
    "      - {after: 0s, notify: [chat, primary]}\n      - {after: 1s, notify: [primary], repeat: 2}\n";

pub(super) struct World {
    stack: Stack,
    people: People,
    machine: FakeLibc,
    _dir: TempDir,
    random: Random,
    cases: Vec<Case>,
    born: usize,
    /// Of the alerter, from 0; and how many requests PagerDuty had seen when each began.
    life: AtomicU32,
    lives: Vec<usize>,
    tally: Tally,
    story: Vec<String>,
}

/// What was done to it.
#[derive(Debug, Default)]
struct Tally {
    kills: usize,
    points: usize,
    freezes: usize,
    full: usize,
    jumps: usize,
    faults: usize,
    reloads: usize,
    answers: usize,
    silences: usize,
    incidents: usize,
    pages: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.kills += other.kills;
        self.points += other.points;
        self.freezes += other.freezes;
        self.full += other.full;
        self.jumps += other.jumps;
        self.faults += other.faults;
        self.reloads += other.reloads;
        self.answers += other.answers;
        self.silences += other.silences;
        self.incidents += other.incidents;
        self.pages += other.pages;
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens() {
    let long = std::env::var_os("STEPWATCH_LONG").is_some();
    let rounds = number("STEPWATCH_ROUNDS").map_or(if long { ROUNDS_LONG } else { ROUNDS }, |n| n as usize);
    let seed = number("STEPWATCH_SEED").unwrap_or_else(|| jiff::Timestamp::now().as_microsecond() as u64);
    let worlds = (rounds / ROUNDS_WORLD).clamp(1, WORLDS);
    say::line(&format!("STEPWATCH_SEED={seed}"));
    let started = Instant::now();
    let share = |n: usize| rounds / worlds + usize::from(n < rounds % worlds);
    let lives = (0..worlds).map(|n| World::live(seed.wrapping_add(n as u64), share(n)));
    let mut t = Tally::default();
    for lived in futures_util::future::join_all(lives).await {
        t += lived;
    }
    let took = started.elapsed().as_secs();
    say::figure(&format!(
        "{rounds} rounds in {took} s (seed {seed}): killed {} times at random and {} at crash points, stopped {}, disk full {}, clock set {}, \
         {} faults of receivers, {} reloads, {} answers, {} silences; {} incidents, {} pages: none lost, none doubled",
        t.kills,
        t.points,
        t.freezes,
        t.full,
        t.jumps,
        t.faults,
        t.reloads,
        t.answers,
        t.silences,
        t.incidents,
        t.pages
    ));
}

impl World {
    /// So many rounds, and what was done in them.
    async fn live(seed: u64, rounds: usize) -> Tally {
        let mut world = Self::start(seed).await;
        for n in 1..=rounds {
            world.round(n).await;
            if n % ROUNDS_WORLD == 0 {
                say::line(&format!("seed {seed}, round {n}: {:?}", world.tally));
            }
        }
        world.make_well();
        while !world.cases.is_empty() {
            world.retire().await;
        }
        world.tally.incidents = world.born;
        world.tally.pages = world.stack.pagerduty.with(|pd| pd.pages.len());
        core::mem::take(&mut world.tally)
    }

    async fn start(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let machine = FakeLibc::new(dir.path()).unwrap();
        let options = StackOptions {
            alerter: ALERTER.into(),
            levels: Some(LEVELS.into()),
            libc: Some(machine.clone()),
            inbound: vec![Inbound::Slack, Inbound::PagerDuty],
            ..StackOptions::default()
        };
        let stack = Stack::start_with(options).await.unwrap();
        let people = People::new(stack.alerter.url());
        Self {
            stack,
            people,
            machine,
            _dir: dir,
            random: Random::new(seed),
            cases: Vec::new(),
            born: 0,
            life: AtomicU32::new(0),
            lives: vec![0],
            tally: Tally::default(),
            story: vec![format!("STEPWATCH_SEED={seed}")],
        }
    }

    async fn round(&mut self, n: usize) {
        // What is seldom asked for would have failures in store for every round there was.
        self.make_well();
        while self.cases.len() >= CASES {
            self.retire().await;
        }
        let blow = Blow::pick(&mut self.random);
        let faults = self.make_unwell();
        let acts: Vec<_> = (0..self.random.range(1, 4)).map(|_| acts::Act::pick(&mut self.random)).collect();
        self.story.push(format!("round {n}: {acts:?}, {blow:?}{faults}"));
        self.arm(&blow).await;
        self.do_all(acts, &blow).await;
        self.revive().await;
        self.repeat().await;
        self.check().await;
    }

    async fn retire(&mut self) {
        self.story.push(format!("{}: to its end", self.cases[0].run));
        self.settle(0).await;
        self.cases.remove(0);
    }

    fn requests(&self) -> usize {
        self.stack.pagerduty.with(|pd| pd.requests.len())
    }

    fn life(&self) -> u32 {
        self.life.load(Ordering::SeqCst)
    }

    /// What the alerter answers, in whichever life.
    async fn get(&mut self, path: &str) -> Value {
        let started = Instant::now();
        loop {
            self.revive().await;
            if let Some(answer) = self.people.get(path).await {
                return answer;
            }
            assert!(started.elapsed() < PATIENCE, "no answer to GET {path}");
        }
    }

    /// Sends again what services and programs send until it is taken.
    async fn repeat(&mut self) {
        let started = Instant::now();
        loop {
            self.revive().await;
            let mut delivered = self.people.pump(&self.stack.pagerduty).await;
            let firing = self.cases.iter().filter(|c| c.is_alert() && c.holds);
            for run in firing.map(|c| &c.run) {
                delivered &= matches!(self.people.alert(run, true).await, Some((200, _)));
            }
            if delivered {
                return self.confirm_pagerduty();
            }
            assert!(started.elapsed() < PATIENCE, "nobody hears what is said");
        }
    }

    /// What was done in PagerDuty has been delivered by now.
    fn confirm_pagerduty(&mut self) {
        for case in &mut self.cases {
            if core::mem::take(&mut case.by_phone) {
                // Who passed it on may have been taken into account before or after.
                (case.unsure, case.delivered) = (case.acked.is_none(), !case.passed_on);
                self.story.push(format!("   {}: PagerDuty was heard", case.run));
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        static REPORTED: AtomicBool = AtomicBool::new(false);
        // Of several worlds, the one that something is wrong with falls first.
        if std::thread::panicking() && !REPORTED.swap(true, Ordering::SeqCst) {
            let from = self.story.len().saturating_sub(SHOWN);
            say::line(&format!("---- the story ----\n{}\n{}", self.story[0], self.story[from..].join("\n")));
            say::line(&format!("---- what is wrong ----\n{:#?}", self.cases));
        }
    }
}
