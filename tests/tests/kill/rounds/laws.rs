//! What must hold after every round, whatever happened in it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use stepwatch_fakes::{Alert, AlertState};
use stepwatch_tests::{exposition, http};

use super::World;
use super::case::{Acked, Case};
use super::people::message;

/// How long the alerter may take to do what it owes: receivers ask for pauses, and a send that
/// hangs is given up late.
const PATIENCE: Duration = Duration::from_secs(90);
/// No deadline of an unanswered page is further off.
const LONGEST: f64 = 60.0;
/// Deadlines are kept when the loop comes round.
const LATE: f64 = 5.0;

impl World {
    pub(super) async fn check(&mut self) {
        self.each_key_once();
        self.silences_exist().await;
        for i in 0..self.cases.len() {
            self.learn(i).await;
            let Some(detail) = self.detail(i).await else { continue };
            self.timeline_grew(i, &detail);
            self.answer_stands(i, &detail);
            self.quiet_is_kept(i);
            self.deadline_is_ahead(i).await;
        }
    }

    /// Exactly one PagerDuty incident a key; each call is a key of its own, and so many of an
    /// incident are open at most.
    fn each_key_once(&self) {
        self.stack.pagerduty.with(|pd| {
            let mut seen = BTreeSet::new();
            for id in self.cases.iter().filter_map(|case| case.id.as_deref()) {
                let open = pd.alerts_about(id).filter(|a| a.state != AlertState::Resolved).count();
                assert!(open <= 10, "{open} open PagerDuty incidents of {id}");
            }
            for alert in &pd.alerts {
                assert!(seen.insert(&alert.dedup_key), "two PagerDuty incidents of {}", alert.dedup_key);
            }
        });
    }

    async fn silences_exist(&mut self) {
        let known: BTreeSet<String> = self.get("/api/v1/silences").await["silences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|s| s["state"] == "active")
            .filter_map(|s| Some(s["id"].as_str()?.to_owned()))
            .collect();
        for case in &self.cases {
            for silence in case.silences.iter().filter(|s| !s.short) {
                assert!(
                    known.contains(&silence.id),
                    "{}: silence {} is lost: {known:?}",
                    case.run,
                    silence.id
                );
            }
        }
    }

    /// Which incident it became, and that it became no more than one.
    async fn learn(&mut self, i: usize) {
        let run = self.cases[i].run.clone();
        let all = self.get(&format!("/api/v1/incidents?run={run}")).await;
        let ids: Vec<&str> =
            all["incidents"].as_array().into_iter().flatten().filter_map(|r| r["id"].as_str()).collect();
        assert!(ids.len() <= 1, "{run} became more than one incident: {ids:?}");
        let case = &mut self.cases[i];
        match (ids.first(), &case.id) {
            (Some(id), None) => case.id = Some((*id).to_owned()),
            (found, Some(id)) => assert_eq!(found, Some(&id.as_str()), "{run}: its incident is lost"),
            (None, None) => {}
        }
    }

    async fn detail(&mut self, i: usize) -> Option<Value> {
        let path = format!("/api/v1/incidents/{}", self.cases[i].id.as_ref()?);
        Some(self.get(&path).await)
    }

    /// What was once in a history stays there, and in its place.
    fn timeline_grew(&mut self, i: usize, detail: &Value) {
        let case = &mut self.cases[i];
        let now = detail["timeline"].as_array().cloned().unwrap_or_default();
        assert!(now.starts_with(&case.timeline), "{}: had {:#?}\nhas {now:#?}", case.run, case.timeline);
        assert!(words(&now, 0).starts_with("opened as"), "{}: {now:#?}", case.run);
        let times: Vec<&str> = now.iter().filter_map(|e| e["at"].as_str()).collect();
        assert!(times.is_sorted(), "{}: time ran backwards: {now:#?}", case.run);
        for delivery in detail["deliveries"].as_array().into_iter().flatten() {
            let (to, key) = (&delivery["receiver"], &delivery["key"]);
            assert!(["chat", "primary"].contains(&to.as_str().unwrap_or_default()), "{key}: {to}");
        }
        if detail["state"] == "resolved" {
            let over = now.iter().any(|e| e["what"].as_str().is_some_and(|w| w.contains("resolved")));
            assert!(over || detail["resolved_at"].is_string(), "{}: {now:#?}", case.run);
        }
        case.timeline = now;
    }

    /// An answer that was confirmed is kept, in the history, and nobody is woken after it but by
    /// what was on its way.
    fn answer_stands(&mut self, i: usize, detail: &Value) {
        let (life, requests) = (self.life(), self.requests());
        let case = &mut self.cases[i];
        let state = detail["state"].as_str().unwrap_or_default();
        let taken = ["acknowledged", "resolved"].contains(&state);
        let delivered = core::mem::take(&mut case.delivered);
        assert!(taken || !delivered, "{}: PagerDuty's word is lost: {detail:#}", case.run);
        if core::mem::take(&mut case.unsure) && case.acked.is_none() && state == "acknowledged" {
            let by = detail["acked_by"].as_str().unwrap_or_default().to_owned();
            case.acked = Some(Acked { by, life, requests, in_slack: false });
        }
        // A clock that jumps ends the time for which what was closed by hand and still fires stays
        // closed.
        let back = (0..case.timeline.len()).any(|n| words(&case.timeline, n).starts_with("reopened: "));
        if case.closed && back {
            case.acked = None;
        }
        let Some(acked) = case.acked.clone() else { return };
        assert!(taken, "{}: acknowledged, now {state}", case.run);
        let answer = case.timeline.iter().rposition(|e| {
            let by = e["actor"].as_str().is_some_and(|a| a.contains(&acked.by));
            by && e["what"].as_str().is_some_and(|w| w.starts_with("acknowledged"))
        });
        let Some(answer) = answer else {
            let late = acked.in_slack && state == "resolved";
            assert!(late, "{}: no trace of {}'s answer: {:#?}", case.run, acked.by, case.timeline);
            case.acked = None;
            return;
        };
        let notified =
            (answer..case.timeline.len()).find(|n| words(&case.timeline, *n).contains(" notified ("));
        assert_eq!(
            notified, None,
            "{}: somebody was notified after the answer: {:#?}",
            case.run, case.timeline
        );
        let calls = self.stack.pagerduty.with(|pd| case.calls(pd, acked.requests));
        let (on_the_way, after) = since(&self.lives, acked.life, calls);
        let calm = on_the_way.len() <= 1 && after.is_empty();
        assert!(calm, "{}: called after the answer {acked:?}: {on_the_way:?}, {after:?}", case.run);
    }

    /// A silenced incident notifies nobody: if it was silenced before it began, never; later, only
    /// by what was on its way, or because a person asked for more.
    fn quiet_is_kept(&self, i: usize) {
        let case = &self.cases[i];
        for silence in case.silences.iter().filter(|s| !s.short && !case.passed_on) {
            let calls = self.stack.pagerduty.with(|pd| case.calls(pd, silence.requests));
            let (on_the_way, after) = since(&self.lives, silence.life, calls);
            let calm = on_the_way.len() <= 1 && after.is_empty();
            assert!(
                calm,
                "{}: called in {silence:?}: {on_the_way:?}, {after:?}: {:#?}",
                case.run, case.timeline
            );
            let hidden = (0..case.timeline.len()).rfind(|n| {
                let said = words(&case.timeline, *n);
                said.starts_with("nobody is notified") && said.contains(&silence.id)
            });
            let mut later = hidden.unwrap_or(case.timeline.len())..case.timeline.len();
            let notified = later.find(|n| words(&case.timeline, *n).contains(" notified ("));
            assert_eq!(notified, None, "{}: notified in {silence:?}: {:#?}", case.run, case.timeline);
        }
        if !(case.silences.iter().any(|s| s.first && !s.short)) {
            return;
        }
        assert!(!notified(&case.timeline), "{}: notified in a silence: {:#?}", case.run, case.timeline);
        let calls = self.stack.pagerduty.with(|pd| case.calls(pd, 0));
        assert_eq!(calls, Vec::<usize>::new(), "{}: PagerDuty was called in a silence", case.run);
        let shown = self.stack.slack.with(|s| message(s, &case.run).is_some());
        assert!(!shown, "{}: Slack was notified in a silence", case.run);
    }

    /// An open page that nobody answered has a deadline ahead of it, and not an hour.
    async fn deadline_is_ahead(&mut self, i: usize) {
        if !self.cases[i].holds {
            return;
        }
        let run = self.cases[i].run.clone();
        self.until(&format!("{run} to have a deadline ahead"), i, async |w, seen| {
            if seen["state"] != "open" || seen["severity"] != "page" || seen["suppression"].is_object() {
                return Some(());
            }
            let now = w.engine_now().await?;
            let at: jiff::Timestamp = seen["next_escalation_at"].as_str()?.parse().ok()?;
            let left = at.as_millisecond() as f64 / 1000.0 - now;
            // Neither long past nor an hour away. A jump of the clock shows in its metric a moment
            // later than in the clock.
            (-LATE..LONGEST + LATE).contains(&left).then_some(())
        })
        .await;
    }

    /// What the alerter's loop takes for the time, in Unix seconds.
    async fn engine_now(&self) -> Option<f64> {
        let page = http::get(&format!("{}/metrics", self.people.url)).await.ok()?;
        let behind = exposition::value(&page, "stepwatch_alerter_clock_behind_seconds", &[])?;
        Some(self.people.now().as_millisecond() as f64 / 1000.0 - behind)
    }

    /// Nothing is wrong any more: it ends everywhere, and everybody who had to be notified has
    /// been, once.
    pub(super) async fn settle(&mut self, i: usize) {
        let run = self.cases[i].run.clone();
        if self.cases[i].must_be_notified() {
            self.until(&format!("{run} to be announced"), i, async |_, detail| notified_in(detail)).await;
        }
        self.end(i).await;
        self.until(&format!("{run} to be over everywhere"), i, async |w, detail| {
            let case = &w.cases[i];
            let id = case.id.as_deref().unwrap_or_default();
            let is_open = |a: &Alert| a.state != AlertState::Resolved;
            let open = w.stack.pagerduty.with(|pd| pd.alerts_about(id).any(is_open));
            let shown = w.stack.slack.with(|s| message(s, &case.run).map(|p| p.visible_text()));
            let late = detail["deliveries"].as_array()?.iter();
            let late =
                late.filter(|d| !["delivered", "superseded"].contains(&d["state"].as_str().unwrap_or("")));
            // A clock that jumps takes what Prometheus sends past its end, which is shown as stale.
            let over =
                shown.is_none_or(|text| text.to_lowercase().contains("resolved") || text.contains("STALE"));
            (detail["state"] == "resolved" && !open && over && late.count() == 0).then_some(())
        })
        .await;
        self.check().await;
        let detail = self.detail(i).await.unwrap_or_default();
        let late = |d: &Value| d["error"] == "over before it could be sent";
        let late = detail["deliveries"].as_array().is_some_and(|all| all.iter().any(late));
        self.notified_once(&self.cases[i], late);
    }

    /// `late`: a call was not made because it was over before.
    fn notified_once(&self, case: &Case, late: bool) {
        let id = case.id.as_deref().unwrap_or_default();
        let paged = self.stack.pagerduty.with(|pd| {
            let closed = pd.alerts_about(id).all(|a| a.state == AlertState::Resolved);
            assert!(closed, "{}: open in PagerDuty", case.run);
            pd.alerts_about(id).count()
        });
        let shown =
            self.stack.slack.with(|s| s.top().filter(|p| p.visible_text().contains(&case.run)).count());
        let notified = notified(&case.timeline);
        // What was decided may have waited in vain for the end of a silence.
        let fewest = usize::from(notified && !case.ever_silenced);
        let once = (fewest..=usize::from(notified)).contains(&shown);
        assert!(once, "{}: {shown} messages in Slack: {:#?}", case.run, case.timeline);
        // Somebody who answered in time need not be called, and nobody is called for what is over.
        let fewest = if case.ever_answered || late { 0 } else { fewest };
        // Each level, each repeat and each time that somebody passes it on notifies anew.
        let calls = (0..case.timeline.len()).map(|n| words(&case.timeline, n));
        let calls = calls.filter(|said| said.contains(" notified (") && said.contains("primary")).count();
        let most = calls.max(1);
        assert!((fewest..=most).contains(&paged), "{}: {paged} pages: {:#?}", case.run, case.timeline);
        let excused = case.ever_silenced || case.closed || case.ended || case.ever_answered;
        assert!(notified || excused, "{}: notified to nobody: {:#?}", case.run, case.timeline);
    }

    /// Waits until something holds of a case, reviving the alerter as often as it dies.
    async fn until(&mut self, what: &str, i: usize, mut done: impl AsyncFnMut(&Self, &Value) -> Option<()>) {
        let started = std::time::Instant::now();
        loop {
            self.revive().await;
            self.learn(i).await;
            let detail = self.detail(i).await.unwrap_or_default();
            if done(self, &detail).await.is_some() {
                return;
            }
            let now = self.engine_now().await;
            assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}, now {now:?}: {detail:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// One may have been on its way when something was asked for, and no more once the process that
/// sent it is dead: which of the calls came in that life, and which later.
fn since(lives: &[usize], life: u32, calls: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
    let died = lives.get(life as usize + 1).copied().unwrap_or(usize::MAX);
    calls.into_iter().partition(|n| *n < died)
}

fn words(timeline: &[Value], n: usize) -> &str {
    timeline.get(n).and_then(|e| e["what"].as_str()).unwrap_or_default()
}

fn notified(timeline: &[Value]) -> bool {
    (0..timeline.len()).any(|n| words(timeline, n).contains(" notified ("))
}

fn notified_in(detail: &Value) -> Option<()> {
    notified(detail["timeline"].as_array()?).then_some(())
}
