//! What happens to the process, its machine and the services it talks to.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use stepwatch_fakes::{FakePagerDuty, Fault};
use stepwatch_tests::{Alerter, FakeLibc, Random};

use super::{PATIENCE, World};
use crate::crash_points;

const HOUR: i64 = 3600;
/// Longer than the wait for the next level.
const PAUSE: Duration = Duration::from_millis(1500);
/// Longer than the alerter attributes a silence of the runs to them.
const LONG_PAUSE: Duration = Duration::from_millis(10_500);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Blow {
    None,
    /// After so many milliseconds.
    Kill(u64),
    /// By itself, at the so-manieth pass of a place; killed before so that it can be configured.
    Point(String),
    Freeze(u64, Duration),
    /// The disk is full from then on, for so long.
    Full(u64, Duration),
    /// The same, and the process is killed before there is room.
    FullAndKill(u64, Duration),
    /// The wall clock is set to so many seconds ahead.
    Clock(u64, i64),
    /// The same, and the process is killed then.
    ClockAndKill(u64, i64),
}

impl Blow {
    pub(super) fn pick(random: &mut Random) -> Self {
        let after = random.range(0, 300);
        let hours = [-HOUR, 0, HOUR][random.range(0, 3) as usize];
        let full = Duration::from_millis(random.range(0, 600));
        match random.range(0, 100) {
            0..8 => Self::None,
            8..33 => Self::Kill(after),
            33..40 => Self::Full(after, full),
            40..45 => Self::FullAndKill(after, full),
            45..72 => {
                let points = crash_points();
                let n = random.range(0, points.len() as u64) as usize;
                let point = points.into_iter().nth(n).unwrap();
                Self::Point(format!("{point}:{}", random.range(1, 9)))
            }
            72..82 => Self::Freeze(after, PAUSE),
            82..84 => Self::Freeze(after, LONG_PAUSE),
            84..92 => Self::Clock(after, hours),
            _ => Self::ClockAndKill(after, hours),
        }
    }

    /// Strikes, and brings back to life what it killed.
    pub(super) async fn strike(&self, alerter: &mut Alerter, machine: &FakeLibc, set: impl Fn(i64)) -> bool {
        // Not a synchronisation: the moment is what is being varied.
        let wait = async |ms: &u64| tokio::time::sleep(Duration::from_millis(*ms)).await;
        match self {
            Self::None | Self::Point(_) => return false,
            Self::Kill(after) => wait(after).await,
            Self::Freeze(after, pause) => {
                wait(after).await;
                // It may have died of something before.
                if alerter.daemon.freeze().is_ok() {
                    tokio::time::sleep(*pause).await;
                    alerter.daemon.thaw().unwrap();
                }
                return false;
            }
            Self::Full(after, pause) | Self::FullAndKill(after, pause) => {
                wait(after).await;
                if alerter.daemon.fill_disk().is_ok() {
                    tokio::time::sleep(*pause).await;
                }
                if matches!(self, Self::Full(..)) {
                    // It may have died of something before.
                    let _ = alerter.daemon.empty_disk();
                    return false;
                }
            }
            Self::Clock(after, ahead) | Self::ClockAndKill(after, ahead) => {
                wait(after).await;
                machine.set_clock(*ahead).unwrap();
                set(*ahead);
                if matches!(self, Self::Clock(..)) {
                    return false;
                }
            }
        }
        let _ = alerter.daemon.kill().await;
        // Armed for nothing any more.
        alerter.restart(None).await.unwrap();
        true
    }
}

impl World {
    /// For a death at a crash point it is started anew, with that point set.
    pub(super) async fn arm(&mut self, blow: &Blow) {
        match blow {
            Blow::Point(point) => {
                let _ = self.stack.alerter.daemon.kill().await;
                // Armed, it may die before it listens.
                let _ = self.stack.alerter.restart(Some(point)).await;
                self.begin_life();
                self.tally.points += 1;
            }
            Blow::Kill(_) => self.tally.kills += 1,
            Blow::Freeze(..) => self.tally.freezes += 1,
            Blow::Full(..) => self.tally.full += 1,
            Blow::FullAndKill(..) => {
                (self.tally.full, self.tally.kills) = (self.tally.full + 1, self.tally.kills + 1)
            }
            Blow::Clock(..) => self.tally.jumps += 1,
            Blow::ClockAndKill(..) => {
                (self.tally.jumps, self.tally.kills) = (self.tally.jumps + 1, self.tally.kills + 1)
            }
            Blow::None => {}
        }
    }

    pub(super) fn begin_life(&mut self) {
        begin_life(&self.life, &mut self.lives, &self.stack.pagerduty);
    }

    /// Starts it again if it is found dead, and waits until it is ready.
    pub(super) async fn revive(&mut self) {
        let started = Instant::now();
        loop {
            if self.stack.alerter.daemon.ended().is_some() {
                self.stack.alerter.restart(None).await.unwrap();
                self.begin_life();
            }
            match self.stack.alerter.ready().await {
                Ok(()) => return,
                // Its crash point was further on.
                Err(_) if self.stack.alerter.daemon.ended().is_some() => {}
                Err(e) => panic!("{e:#}"),
            }
            assert!(started.elapsed() < PATIENCE, "it does not become ready");
        }
    }

    pub(super) fn make_well(&self) {
        self.stack.slack.script().clear();
        self.stack.pagerduty.script().clear();
    }

    /// Slack and PagerDuty fail in some rounds, also in the ways in which it is unknown whether a
    /// message arrived.
    pub(super) fn make_unwell(&mut self) -> String {
        if self.random.unit() > 0.3 {
            return String::new();
        }
        let mut said = String::new();
        for _ in 0..self.random.range(1, 4) {
            let fault = match self.random.range(0, 16) {
                0..3 => Fault::TooMany(Duration::from_secs(1)),
                3..6 => Fault::Status(500),
                6..9 => Fault::TakenThenStatus(502),
                9..11 => Fault::Reset,
                11..14 => Fault::TakenThenReset,
                14 => Fault::Hang,
                _ => Fault::TakenThenHang,
            };
            let endpoints =
                ["chat.postMessage", "chat.update", "conversations.history", "enqueue", "enqueue"];
            let endpoint = endpoints[self.random.range(0, endpoints.len() as u64) as usize];
            let _ = write!(said, ", {endpoint}: {fault:?}");
            self.tally.faults += 1;
            let fakes = [self.stack.slack.script(), self.stack.pagerduty.script()];
            fakes[usize::from(endpoint == "enqueue")].push(endpoint, fault);
        }
        said
    }
}

/// What PagerDuty has seen until now was of the lives before.
pub(super) fn begin_life(
    life: &std::sync::atomic::AtomicU32,
    lives: &mut Vec<usize>,
    pagerduty: &FakePagerDuty,
) {
    life.fetch_add(1, Ordering::SeqCst);
    lives.push(pagerduty.with(|pd| pd.requests.len()));
}
