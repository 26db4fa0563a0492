//! What people and programs do in a round.

use std::sync::atomic::{AtomicU32, Ordering};

use stepwatch_fakes::{AlertState, FakePagerDuty, FakeSlack};
use stepwatch_tests::trainer::Rank;
use stepwatch_tests::{Random, Stack};

use super::World;
use super::blows::{Blow, begin_life};
use super::case::{Acked, Case, Silence, Source};
use super::people::{ANN, JANE, People, Said};

/// Seconds of a silence that outlasts everything here, whatever is done to the clocks; and of one
/// that lapses.
const LONG: u32 = 6 * 3600;
const SHORT: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Fire,
    /// What is going to be wrong is silenced; for long or not.
    FireSilenced(bool),
    AckByApi,
    AckInSlack,
    AckInPagerDuty,
    Escalate,
    CloseByApi,
    CloseInSlack,
    Recover,
    Silence(bool),
    SilenceInSlack,
    Lift,
    Reload,
}

impl Act {
    pub(super) fn pick(random: &mut Random) -> Self {
        let long = random.unit() < 0.6;
        match random.range(0, 100) {
            0..34 => Self::Fire,
            34..44 => Self::FireSilenced(long),
            44..52 => Self::AckByApi,
            52..60 => Self::AckInSlack,
            60..66 => Self::AckInPagerDuty,
            66..69 => Self::Escalate,
            69..73 => Self::CloseByApi,
            73..76 => Self::CloseInSlack,
            76..82 => Self::Recover,
            82..87 => Self::Silence(long),
            87..89 => Self::SilenceInSlack,
            89..95 => Self::Lift,
            _ => Self::Reload,
        }
    }
}

/// Everybody's hands, while the blow falls.
struct Hands<'a> {
    people: &'a People,
    slack: &'a FakeSlack,
    pagerduty: &'a FakePagerDuty,
    ingest: std::path::PathBuf,
    config: std::path::PathBuf,
    cases: &'a mut Vec<Case>,
    born: &'a mut usize,
    random: &'a mut Random,
    life: &'a AtomicU32,
    story: &'a mut Vec<String>,
    tally: &'a mut super::Tally,
}

impl World {
    /// Does everything in turn while the blow falls.
    pub(super) async fn do_all(&mut self, acts: Vec<Act>, blow: &Blow) {
        let Stack { alerter, exporter, slack, pagerduty, .. } = &mut self.stack;
        let (life, lives) = (&self.life, &mut self.lives);
        let (people, ahead) = (&self.people, &self.people.ahead);
        let mut hands = Hands {
            people,
            slack,
            pagerduty,
            ingest: exporter.ingest(),
            config: alerter.config_file(),
            cases: &mut self.cases,
            born: &mut self.born,
            random: &mut self.random,
            life,
            story: &mut self.story,
            tally: &mut self.tally,
        };
        let act = async {
            for act in acts {
                hands.act(act).await;
            }
        };
        let strike = async {
            if blow.strike(alerter, &self.machine, |to| ahead.store(to, Ordering::SeqCst)).await {
                begin_life(life, lives, pagerduty);
            }
        };
        tokio::join!(act, strike);
    }

    /// Nothing is wrong with it any more.
    pub(super) async fn end(&mut self, i: usize) {
        let started = std::time::Instant::now();
        let case = &mut self.cases[i];
        (case.holds, case.ended) = (false, true);
        case.recover();
        while self.cases[i].is_alert() {
            self.revive().await;
            if matches!(self.people.alert(&self.cases[i].run, false).await, Some((200, _))) {
                return;
            }
            assert!(started.elapsed() < super::PATIENCE, "nobody hears that an alert is over");
        }
    }
}

impl Hands<'_> {
    async fn act(&mut self, act: Act) {
        let open = |c: &Case| c.id.is_some() && !c.ended;
        let target = match act {
            Act::Fire | Act::FireSilenced(_) | Act::Reload => None,
            Act::AckByApi | Act::AckInSlack => self.any(|c| open(c) && c.acked.is_none()),
            // A closed alert there, and our next call would be another one: only of what is
            // answered here.
            Act::AckInPagerDuty => self.any(|c| open(c) && c.acked.is_none() && !c.by_phone),
            Act::Lift => self.any(|c| c.is_silenced()),
            Act::Recover => self.any(|c| open(c) && c.holds),
            _ => self.any(open),
        };
        match (act, target) {
            (Act::Fire, _) => self.fire(None).await,
            (Act::FireSilenced(long), _) => self.fire(Some(long)).await,
            (Act::Reload, _) => self.reload().await,
            (_, None) => {}
            (act, Some(i)) => self.on(act, i).await,
        }
    }

    fn any(&mut self, of: impl Fn(&Case) -> bool) -> Option<usize> {
        let some: Vec<usize> = (0..self.cases.len()).filter(|i| of(&self.cases[*i])).collect();
        let n = self.random.range(0, some.len() as u64) as usize;
        some.get(n).copied()
    }

    fn note(&mut self, what: &str, said: &Said) {
        let said = said.as_ref().map_or("no answer".to_owned(), |(status, _)| status.to_string());
        let life = self.life.load(Ordering::SeqCst);
        self.story.push(format!("   {what}: {said} (life {life}, {})", self.requests()));
    }

    fn requests(&self) -> usize {
        self.pagerduty.with(|pd| pd.requests.len())
    }

    async fn fire(&mut self, silenced: Option<bool>) {
        *self.born += 1;
        let run = format!("case-{:05}", self.born);
        let source = if self.random.unit() < 0.6 {
            Source::Rank(Rank::join(&self.ingest, &run, 0, 1).unwrap())
        } else {
            Source::Alert
        };
        let mut case = Case::new(run.clone(), source);
        if let Some(long) = silenced {
            let said = self.silence(&mut case, long, true).await;
            self.note(&format!("{run} silenced before it begins (long: {long})"), &said);
        }
        case.holds = true;
        let said = if let Source::Rank(rank) = &case.source {
            rank.step(1, &[("loss", 2.0)]).unwrap();
            rank.step(2, &[("loss", f64::NAN)]).unwrap();
            Some((200, serde_json::Value::Null))
        } else {
            self.people.alert(&run, true).await
        };
        self.note(&format!("{run} begins (alert: {})", case.is_alert()), &said);
        self.cases.push(case);
    }

    async fn silence(&mut self, case: &mut Case, long: bool, first: bool) -> Said {
        self.tally.silences += 1;
        case.ever_silenced = true;
        let said =
            self.people.post("/api/v1/silences", &case.wish(if long { LONG } else { SHORT }, ANN)).await;
        match &said {
            Some((200, view)) => {
                let id = view["id"].as_str().unwrap().to_owned();
                let (life, requests) = (self.life.load(Ordering::SeqCst), self.requests());
                case.silences.push(Silence { id, short: !long, first, life, requests });
            }
            Some((503, _)) | None => case.maybe_silenced = true,
            Some((status, why)) => panic!("{}: a silence is refused with {status}: {why}", case.run),
        }
        said
    }

    async fn on(&mut self, act: Act, i: usize) {
        let (run, id) = (self.cases[i].run.clone(), self.cases[i].id.clone().unwrap_or_default());
        let by = serde_json::json!({ "by": ANN });
        let said = match act {
            Act::AckByApi | Act::AckInSlack => {
                let said = if act == Act::AckByApi {
                    self.people.post(&format!("/api/v1/incidents/{id}/ack"), &by).await
                } else {
                    self.people.click(self.slack, &run, "stepwatch_ack").await
                };
                let (life, requests) = (self.life.load(Ordering::SeqCst), self.requests());
                self.tally.answers += 1;
                let acked = Acked { by: ANN.into(), life, requests, in_slack: act == Act::AckInSlack };
                self.cases[i].answered(&said, acked);
                said
            }
            Act::AckInPagerDuty => {
                let done = self.pagerduty.change(|pd| {
                    let shown = pd.alerts_about(&id).find(|a| a.state != AlertState::Resolved);
                    let key = shown.ok_or("nothing to answer")?.dedup_key.clone();
                    pd.by_person(&key, "acknowledged", JANE)
                });
                if done.is_ok() {
                    self.tally.answers += 1;
                    (self.cases[i].by_phone, self.cases[i].ever_answered) = (true, true);
                }
                Some((if done.is_ok() { 200 } else { 404 }, serde_json::Value::Null))
            }
            Act::Escalate => {
                let said = self.people.click(self.slack, &run, "stepwatch_escalate").await;
                (self.cases[i].acked, self.cases[i].unsure) = (None, true);
                self.cases[i].passed_on = true;
                said
            }
            Act::CloseByApi | Act::CloseInSlack => {
                let said = if act == Act::CloseByApi {
                    self.people.post(&format!("/api/v1/incidents/{id}/resolve"), &by).await
                } else {
                    self.people.click(self.slack, &run, "stepwatch_resolve").await
                };
                self.cases[i].closed = true;
                said
            }
            Act::Recover => {
                let case = &mut self.cases[i];
                (case.holds, case.ended) = (false, true);
                case.recover();
                if case.is_alert() { self.people.alert(&run, false).await } else { None }
            }
            Act::Silence(long) => {
                let mut case = self.cases.remove(i);
                let said = self.silence(&mut case, long, false).await;
                self.cases.insert(i, case);
                said
            }
            Act::SilenceInSlack => {
                let said = self.people.click(self.slack, &run, "stepwatch_silence").await;
                (self.cases[i].ever_silenced, self.cases[i].maybe_silenced) = (true, true);
                said
            }
            Act::Lift => self.lift(i).await,
            Act::Fire | Act::FireSilenced(_) | Act::Reload => None,
        };
        self.note(&format!("{act:?} {run}"), &said);
    }

    /// Ends one of its silences.
    async fn lift(&mut self, i: usize) -> Said {
        let at = self.cases[i].silences.iter().position(|s| !s.short)?;
        let silence = self.cases[i].silences.remove(at);
        // Delivered or not, it is not relied on any more.
        self.cases[i].maybe_silenced = true;
        let said = self.people.delete(&format!("/api/v1/silences/{}", silence.id)).await;
        if matches!(said, Some((200, _))) && !self.cases[i].silences.iter().any(|s| !s.short) {
            self.cases[i].maybe_silenced = false;
        }
        said
    }

    /// The configuration changes a little, and is read again.
    async fn reload(&mut self) {
        self.tally.reloads += 1;
        let text = std::fs::read_to_string(&self.config).unwrap();
        let (had, has) = ("update_min_interval: 1s", "update_min_interval: 2s");
        let text = if text.contains(had) { text.replace(had, has) } else { text.replace(has, had) };
        let new = self.config.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &self.config).unwrap();
        let said = self.people.post("/-/reload", &serde_json::Value::Null).await;
        assert!(said.as_ref().is_none_or(|(status, _)| *status == 200), "a reload is refused: {said:?}");
        self.note("reload", &said);
    }
}
