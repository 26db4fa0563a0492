//! Round after round of alerts and answers, with a blow at a random moment: `kill -9`, a process
//! that stands still, a network that fails between a replica and the database, a database that is
//! restarted or killed, a handover. After each, every alert that was taken has one page, and every
//! answer that was accepted holds.
//!
//! The seed is printed. `STEPWATCH_SEED` repeats a sequence of blows, though not the moments at
//! which the machine does them. `STEPWATCH_LONG=1` makes it 500 rounds, `STEPWATCH_ROUNDS` any
//! number. Many rounds are shared out among worlds that know nothing of each other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use stepwatch_tests::{Postgres, Random, poll_until, say};

use crate::stage::{AT_ONCE, REPLICAS, Replica, Stage, ack, fire, pages, post};

const ROUNDS: usize = 4;
const ROUNDS_LONG: usize = 500;
/// Rounds that are worth a world of their own, and worlds at once.
const ROUNDS_WORLD: usize = 10;
const WORLDS: usize = 4;
/// Lines of the story that are shown when something is wrong.
const SHOWN: usize = 60;
/// How long it may take until an alert is taken, or until all replicas run again.
const PATIENCE: Duration = Duration::from_mins(1);
const GLANCE: Duration = Duration::from_millis(500);
/// Shorter than a lease, and longer.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_millis(7500)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    Kill,
    Terminate,
    HandOver,
    Freeze(Duration),
    /// The network between the replica and the database hangs, and comes back.
    Hang(Duration),
    /// It hangs, all connections break, and it comes back.
    Cut(Duration),
    RestartDatabase,
    KillDatabase,
}

impl Blow {
    fn pick(random: &mut Random) -> Self {
        let pause = PAUSES[random.range(0, PAUSES.len() as u64) as usize];
        match random.range(0, 100) {
            0..25 => Self::Kill,
            25..35 => Self::Terminate,
            35..45 => Self::HandOver,
            45..60 => Self::Freeze(pause),
            60..70 => Self::Hang(pause),
            70..80 => Self::Cut(pause),
            80..90 => Self::RestartDatabase,
            _ => Self::KillDatabase,
        }
    }

    async fn strike(self, victim: &mut Replica, postgres: &mut Postgres) {
        // Not a synchronisation: how long it lasts is what is being varied.
        let last = async |pause: Duration| tokio::time::sleep(pause).await;
        let daemon = &mut victim.alerter.daemon;
        match self {
            // One that has ended by itself needs no blow.
            Self::Kill | Self::Terminate | Self::Freeze(_) if daemon.ended().is_some() => {}
            Self::Kill => daemon.kill().await.unwrap(),
            Self::Terminate => _ = daemon.terminate().await.unwrap(),
            // A replica that knows of no other does not accept it.
            Self::HandOver => _ = post(&victim.alerter.url(), "/-/handover", &Value::Null).await,
            Self::Freeze(pause) => {
                daemon.freeze().unwrap();
                last(pause).await;
                daemon.thaw().unwrap();
            }
            Self::Hang(pause) => {
                victim.database.hang();
                last(pause).await;
                victim.database.resume();
            }
            Self::Cut(pause) => {
                victim.database.hang();
                last(pause).await;
                victim.database.cut();
                last(PAUSES[0]).await;
                victim.database.resume();
            }
            Self::RestartDatabase => postgres.restart().await.unwrap(),
            Self::KillDatabase => {
                postgres.kill().await.unwrap();
                postgres.run_again().await.unwrap();
            }
        }
    }
}

struct World {
    stage: Stage,
    random: Random,
    /// All runs, each of which has one page.
    runs: BTreeSet<String>,
    /// Runs and their incidents that nobody has tried to answer.
    unanswered: Vec<(String, String)>,
    answers: usize,
    story: Vec<String>,
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// As Prometheus does: posts to all replicas, until one of them has taken it.
async fn fire_anywhere(urls: &[String], run: &str) {
    let taken = async || {
        let mut all: FuturesUnordered<_> = urls.iter().map(|url| fire(url, run)).collect();
        while let Some(said) = all.next().await {
            if matches!(said, Some((200, _))) {
                return Some(());
            }
        }
        None
    };
    poll_until("an alert to be taken", PATIENCE, taken).await.unwrap();
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
    let (mut alerts, mut answers) = (0, 0);
    for lived in futures_util::future::join_all(lives).await {
        let Some(lived) = lived else { return };
        (alerts, answers) = (alerts + lived.0, answers + lived.1);
    }
    say::figure(&format!(
        "replicas: {rounds} rounds of blows in {} s (seed {seed}): {alerts} alerts, {alerts} pages: none lost, none \
         doubled; {answers} answers held",
        started.elapsed().as_secs()
    ));
}

impl World {
    /// So many rounds; the number of alerts, and of answers that were accepted.
    async fn live(seed: u64, rounds: usize) -> Option<(usize, usize)> {
        let stage = Stage::start(AT_ONCE).await?;
        let mut world = Self {
            stage,
            random: Random::new(seed),
            runs: BTreeSet::new(),
            unanswered: Vec::new(),
            answers: 0,
            story: vec![format!("STEPWATCH_SEED={seed}")],
        };
        for n in 1..=rounds {
            world.round(n).await;
            if n % ROUNDS_WORLD == 0 {
                say::line(&format!("seed {seed}, round {n}: {} alerts", world.runs.len()));
            }
        }
        Some((world.runs.len(), world.answers))
    }

    fn any(&mut self) -> usize {
        self.random.range(0, REPLICAS as u64) as usize
    }

    fn moment(&mut self) -> Duration {
        Duration::from_millis(self.random.range(0, 400))
    }

    async fn round(&mut self, n: usize) {
        let leader = self.stage.leader().await;
        let blow = Blow::pick(&mut self.random);
        let victim = if self.random.unit() < 0.75 { leader } else { self.any() };
        let fired: Vec<_> =
            (0..self.random.range(1, 4)).map(|i| (format!("round-{n:03}-{i}"), self.moment())).collect();
        let answered = self.unanswered.pop().map(|(run, id)| (run, id, self.any(), self.moment()));
        let asked = answered.as_ref().map(|(run, _, by, _)| format!("; {run} is answered at {by}"));
        self.story.push(format!(
            "round {n}: {leader} leads; {blow:?} of {victim}; {fired:?}{}",
            asked.unwrap_or_default()
        ));
        let (before, urls) = (self.moment(), self.stage.urls());
        // Not a synchronisation: the moments are what is being varied.
        let pause = async |length: Duration| tokio::time::sleep(length).await;
        let fire_all = async {
            for (run, wait) in &fired {
                pause(*wait).await;
                fire_anywhere(&urls, run).await;
            }
        };
        let answer = async {
            let (run, id, by, wait) = answered?;
            pause(wait).await;
            ack(&urls[by], &id).await.then_some(run)
        };
        let Stage { replicas, postgres, .. } = &mut self.stage;
        let struck = &mut replicas[victim];
        let strike = async {
            pause(before).await;
            blow.strike(struck, postgres).await;
        };
        let ((), accepted, ()) = tokio::join!(fire_all, answer, strike);
        self.recover().await;
        self.runs.extend(fired.iter().map(|(run, _)| run.clone()));
        for (run, _) in &fired {
            self.check(run).await;
        }
        if let Some(run) = accepted {
            self.answers += 1;
            self.story.push(format!("   {run} was answered"));
            let by = self.any();
            let incidents = self.stage.incidents(by, &run).await;
            assert_eq!(incidents[0]["state"], "acknowledged", "the answer to {run} is lost: {incidents:#?}");
        }
        let sent = self.stage.pagerduty.with(|pd| pd.pages.len());
        assert_eq!(sent, self.runs.len(), "pages and alerts");
    }

    /// Starts again what has ended, as its supervisor does, until all replicas run and one leads.
    async fn recover(&mut self) {
        let began = Instant::now();
        loop {
            for n in 0..REPLICAS {
                if let Some(status) = self.stage.replicas[n].alerter.daemon.ended() {
                    self.story.push(format!("   {n} had ended: {status}"));
                    self.stage.revive(n).await;
                }
            }
            let whole = async || self.stage.is_whole().await.then_some(());
            if poll_until("all replicas to run", GLANCE, whole).await.is_ok() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "no replica leads, or several do");
        }
    }

    /// There is one incident of a new run, and one page about it.
    async fn check(&mut self, run: &str) {
        let by = self.any();
        let id = self.stage.paged(by, run, 1).await;
        let incidents = self.stage.incidents(by, run).await;
        assert_eq!(incidents.len(), 1, "{run}: {incidents:#?}");
        self.stage.pagerduty.with(|pd| assert_eq!(pages(pd, &id), 1, "{run}: {:#?}", pd.pages));
        self.unanswered.push((run.to_owned(), id));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        static REPORTED: AtomicBool = AtomicBool::new(false);
        // Of several worlds, the one that something is wrong with falls first.
        if std::thread::panicking() && !REPORTED.swap(true, Ordering::SeqCst) {
            let from = self.story.len().saturating_sub(SHOWN);
            say::line(&format!("---- the story ----\n{}\n{}", self.story[0], self.story[from..].join("\n")));
        }
    }
}
