//! One trouble from its beginning to its end, and all that is known of it from outside.

use serde_json::{Value, json};
use stepwatch_fakes::{PagerDuty, is_about};
use stepwatch_tests::trainer::{Rank, healthy};

use super::people::Said;

/// Which program reports it.
#[derive(Debug)]
pub(super) enum Source {
    /// A rank whose loss is no number.
    Rank(Rank),
    /// A Prometheus, which sends it again and again.
    Alert,
}

/// An answer that was given and confirmed: from then on nobody is to be woken.
#[derive(Debug, Clone)]
pub(super) struct Acked {
    pub(super) by: String,
    /// The life of the alerter in which it was confirmed.
    pub(super) life: u32,
    /// Requests that PagerDuty had seen then.
    pub(super) requests: usize,
    /// Slack is answered the same whether there was anything left to take.
    pub(super) in_slack: bool,
}

/// A silence that was confirmed.
#[derive(Debug, Clone)]
pub(super) struct Silence {
    pub(super) id: String,
    /// It ends by itself within seconds.
    pub(super) short: bool,
    /// PagerDuty and Slack had received nothing, and nothing was wrong yet.
    pub(super) first: bool,
    /// The life of the alerter in which it was confirmed.
    pub(super) life: u32,
    /// Requests that PagerDuty had seen then.
    pub(super) requests: usize,
}

#[derive(Debug)]
pub(super) struct Case {
    pub(super) run: String,
    pub(super) source: Source,
    /// What is wrong is wrong still.
    pub(super) holds: bool,
    /// A person closed it, or nothing is wrong any more: it may be over before anybody was
    /// notified.
    pub(super) closed: bool,
    pub(super) ended: bool,
    pub(super) id: Option<String>,
    pub(super) acked: Option<Acked>,
    /// Somebody answered, and it is unknown whether that was taken.
    pub(super) unsure: bool,
    /// Somebody answered in PagerDuty, which has yet to be delivered here.
    pub(super) by_phone: bool,
    /// That was delivered: it must be taken.
    pub(super) delivered: bool,
    /// Somebody once answered, or may have.
    pub(super) ever_answered: bool,
    /// The person who had it passed it on, and it may have been called for again.
    pub(super) passed_on: bool,
    pub(super) silences: Vec<Silence>,
    /// Somebody once asked for quiet.
    pub(super) ever_silenced: bool,
    /// It is unknown whether a silence is in force.
    pub(super) maybe_silenced: bool,
    /// The history as it was last seen.
    pub(super) timeline: Vec<Value>,
}

impl Case {
    pub(super) fn new(run: String, source: Source) -> Self {
        Self {
            run,
            source,
            holds: false,
            closed: false,
            ended: false,
            id: None,
            acked: None,
            unsure: false,
            by_phone: false,
            delivered: false,
            ever_answered: false,
            passed_on: false,
            silences: Vec::new(),
            ever_silenced: false,
            maybe_silenced: false,
            timeline: Vec::new(),
        }
    }

    pub(super) fn is_alert(&self) -> bool {
        matches!(self.source, Source::Alert)
    }

    /// The trainer goes on as if nothing had been.
    pub(super) fn recover(&self) {
        if let Source::Rank(rank) = &self.source {
            for step in 3..40 {
                let (loss, grad_norm) = healthy(step);
                rank.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
            }
        }
    }

    /// Takes note of what came of an answer, which is `acked` if it was taken.
    pub(super) fn answered(&mut self, said: &Said, acked: Acked) {
        self.ever_answered = true;
        match said {
            Some((200, _)) => self.acked = Some(acked),
            // Closed meanwhile, or there is no button any more.
            Some((404 | 409, _)) => {}
            Some(_) | None => self.unsure = true,
        }
    }

    /// A silence that nobody ended is in force, however its end is reckoned.
    pub(super) fn is_silenced(&self) -> bool {
        self.silences.iter().any(|s| !s.short)
    }

    /// Nothing holds the notification back.
    pub(super) fn must_be_notified(&self) -> bool {
        let quiet = self.is_silenced() || self.maybe_silenced || self.ever_answered;
        self.holds && !self.closed && !quiet
    }

    /// Calls for a person among the requests that PagerDuty saw from `from` on.
    pub(super) fn calls(&self, pd: &PagerDuty, from: usize) -> Vec<usize> {
        let Some(id) = &self.id else { return Vec::new() };
        let is_call = |body: &Value| {
            body["event_action"] == "trigger"
                && body["dedup_key"].as_str().is_some_and(|key| is_about(key, id))
        };
        (from..pd.requests.len()).filter(|n| is_call(&pd.requests[*n].json())).collect()
    }

    pub(super) fn wish(&self, seconds: u32, by: &str) -> Value {
        json!({"matchers": [format!("run=\"{}\"", self.run)], "duration": format!("{seconds}s"), "created_by": by,
               "comment": "as a test"})
    }
}
