//! What comes back: a click in Slack, an answer in PagerDuty.
//!
//! Each service has an endpoint (a signed webhook; for Slack also a socket that is opened from
//! here), and all of them lead to the same few inputs of the engine. A callback is accepted only
//! with the service's signature, applied once however often it is repeated or replayed, and
//! answered when its effects are durable. Whoever clicked and changed nothing gets the reason.
//!
//! Nothing here decides who is notified of what; and a service whose callbacks do not arrive is
//! still sent everything.

mod endpoints;
mod pagerduty;
mod people;
mod proxy;
mod signature;
pub(crate) mod silencing;
mod slack;
mod socket;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use stepwatch_kit::log_throttle::LogThrottle;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::incident::{IncidentRecord, State};
use stepwatch_respond::matcher::{Matcher, Op};
use stepwatch_respond::silence::{Refusal, Silence, Wanted};
use tokio::sync::{Semaphore, watch};

use crate::api::auth::Caller;
use crate::audit::{self, AuditLog, Door};
use crate::metrics::CallbackMetrics;
use crate::notify::{Ear, Notifier};
use crate::outbox::Receivers;
use crate::runtime::{Command, IncidentAction, Outside, RuntimeHandle, Unanswered};
use crate::store::Store;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use endpoints::fuzz;
pub(crate) use endpoints::routes;

/// Callbacks applied at once; more are refused, and the services send them again.
const BUSY_MAX: usize = 64;
/// Why a problem without a name is not silenced.
const NAMELESS: &str = "neither a run, a node nor the name of an alert says what this is about, so that a silence would keep quiet more than this: acknowledge it, or make a silence with `stepwatch-alerter silences add`";
/// How long an applied callback is remembered: longer than any callback is accepted.
const REMEMBERED: Span = Span::secs(3 * 86_400);

/// What all endpoints share; clones share it.
#[derive(Debug, Clone)]
pub struct Callbacks {
    inner: Arc<Inner>,
    /// The endpoint of the callback, for the audit log.
    caller: Caller,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    runtime: RuntimeHandle,
    receivers: watch::Receiver<Receivers>,
    metrics: CallbackMetrics,
    audit: AuditLog,
    slots: Arc<Semaphore>,
    /// Callbacks that are being applied.
    hearing: Mutex<BTreeSet<String>>,
    /// Requests that no service signed. Anybody can send them, so each service logs one line a
    /// minute, which counts them.
    forged_slack: LogThrottle,
    forged_pagerduty: LogThrottle,
    clock: fn() -> Ts,
}

/// The wish of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wish {
    Act(IncidentAction),
    /// Of this problem in its place, for so long.
    Silence(Span),
}

/// The result of a wish.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// Durable.
    Done,
    /// Durable, too.
    Silenced(Box<Silence>),
    /// It was already in that state.
    Already(Box<IncidentRecord>),
    /// The incident is closed.
    Over(Box<IncidentRecord>),
    Unknown,
    /// It is not done, whoever asks.
    Refused(&'static str),
    /// The person may not answer, and why.
    Stranger(String),
    /// Not done, or it is unknown whether it was: it may be asked for again.
    Failed(String),
}

/// Whether a callback is new.
#[derive(Debug, PartialEq)]
enum Heard<T> {
    Now(T),
    /// It was applied.
    Before,
    /// It is being applied, or it is unknown whether it was.
    Unclear(String),
}

impl Wish {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Act(action) => action.as_str(),
            Self::Silence(_) => "silence",
        }
    }
}

impl From<Unanswered> for Outcome {
    fn from(why: Unanswered) -> Self {
        let words = match why {
            Unanswered::Stopping => "the alerter is stopping",
            Unanswered::NotDurable => "it is not durable yet: the store is slow or refuses",
        };
        Self::Failed(words.into())
    }
}

impl Callbacks {
    pub fn new(
        store: Store,
        runtime: RuntimeHandle,
        receivers: watch::Receiver<Receivers>,
        metrics: CallbackMetrics,
        audit: AuditLog,
    ) -> Self {
        let inner = Inner {
            store,
            runtime,
            receivers,
            metrics,
            audit,
            slots: Arc::new(Semaphore::new(BUSY_MAX)),
            hearing: Mutex::default(),
            forged_slack: LogThrottle::default(),
            forged_pagerduty: LogThrottle::default(),
            clock: crate::clock::wall,
        };
        Self { inner: Arc::new(inner), caller: Caller::service(Door::Slack) }
    }

    /// For what comes with this request.
    fn entered_by(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    /// The ears of the receivers in force, each with the name of its receiver.
    fn ears(&self) -> Vec<(String, Ear)> {
        let receivers = self.inner.receivers.borrow();
        receivers.iter().filter_map(|(name, n)| Some((name.clone(), Notifier::ear(n.as_ref())?))).collect()
    }

    /// The configured name of a Slack user.
    fn user_of_slack(&self, id: &str) -> Option<String> {
        let routing = self.inner.runtime.read_model.routing();
        let users = &routing.config.oncall.users;
        users.iter().find(|user| user.slack_id.as_deref() == Some(id)).map(|user| user.name.clone())
    }

    /// Applies a callback unless that was done before. `act` returns whether it may be remembered
    /// as done.
    async fn once<T>(&self, service: &str, id: &str, act: impl Future<Output = (T, bool)>) -> Heard<T> {
        let key = format!("{service} {id}");
        let Some(_hearing) = Hearing::begin(&self.inner.hearing, &key) else {
            return Heard::Unclear("it is being acted upon".into());
        };
        match self.inner.store.was_heard(service, id).await {
            Ok(false) => {}
            Ok(true) => return Heard::Before,
            Err(err) => {
                tracing::error!(%err, service, "cannot determine whether a callback was acted upon before");
                return Heard::Unclear("the store does not answer".into());
            }
        }
        let (out, done) = act.await;
        let now = (self.inner.clock)();
        if done
            && let Err(err) = self.inner.store.mark_heard(service, id, now, Ts(now.0 - REMEMBERED.0)).await
        {
            // A repetition would be applied again, which for most callbacks changes nothing.
            tracing::error!(%err, service, "cannot remember a callback");
        }
        Heard::Now(out)
    }

    /// Applies a wish to the incident with exactly this id.
    async fn act(&self, id: &str, by: &str, wish: Wish) -> Outcome {
        let found = match self.inner.store.incident(id).await {
            Ok(found) => found.filter(|record| record.id == id),
            Err(err) => {
                tracing::error!(%err, "the store did not answer a callback");
                return Outcome::Failed("the store does not answer".into());
            }
        };
        let Some(record) = found.map(Box::new) else {
            return match wish {
                Wish::Act(action) => self.not_found(id, by, action).await,
                Wish::Silence(_) => self.unrecorded().map_or(Outcome::Unknown, Outcome::Failed),
            };
        };
        match (record.state, &wish) {
            // What is over may be remarked on, and may come back.
            (State::Resolved, Wish::Act(IncidentAction::Note(_) | IncidentAction::Reopen)) => {}
            (State::Resolved, _) => return Outcome::Over(record),
            (State::Acknowledged, Wish::Act(IncidentAction::Ack))
            | (State::Open, Wish::Act(IncidentAction::Unack)) => return Outcome::Already(record),
            _ => {}
        }
        let (incident, by) = (record.id.clone(), by.to_owned());
        tracing::info!(incident, by, word = wish.as_str(), "a person's word");
        let action = match wish {
            Wish::Act(action) => action,
            Wish::Silence(length) => return self.silence(&record, by, length).await,
        };
        let mut entry = self.caller.audit(&by, action.as_str(), &incident);
        let noted = matches!(action, IncidentAction::Note(_));
        if let IncidentAction::Note(what) = &action {
            entry = entry.saying(what);
        }
        let runtime = &self.inner.runtime;
        match runtime.ask(entry, |reply| Command::Act { incident, by, action, reply }).await {
            Ok(Some(_)) => Outcome::Done,
            // A note needs no open incident.
            Ok(None) if noted => Outcome::Done,
            // It resolved between the lookup and the action.
            Ok(None) => Outcome::Over(record),
            Err(why) => why.into(),
        }
    }

    /// Why the store may lack an incident: while it refuses writes, pages go out from memory.
    fn unrecorded(&self) -> Option<String> {
        let why = self.inner.store.refusal_in_public()?;
        Some(format!("the incident may not be recorded yet: {why}"))
    }

    /// A person's word on an incident that the store does not have. If its page went out from
    /// memory, the engine does at once what that person says, so that nobody is called again. That
    /// counts as done when it is recorded: until then it must come again.
    async fn not_found(&self, id: &str, by: &str, action: IncidentAction) -> Outcome {
        let Some(why) = self.unrecorded() else { return Outcome::Unknown };
        if matches!(action, IncidentAction::Note(_)) {
            return Outcome::Failed(why);
        }
        let entry = self.caller.audit(by, action.as_str(), id);
        let (incident, by) = (id.to_owned(), by.to_owned());
        match self.inner.runtime.ask(entry, |reply| Command::Act { incident, by, action, reply }).await {
            Ok(Some(_)) => Outcome::Done,
            Ok(None) => Outcome::Failed(why),
            Err(unanswered) => unanswered.into(),
        }
    }

    /// Records the request of a person who may not make it.
    async fn refuse(&self, by: &str, wish: &Wish, incident: &str, why: &str) {
        tracing::warn!(incident, by, word = wish.as_str(), why, "a click is refused");
        let entry = self.caller.audit(by, wish.as_str(), incident).saying(why);
        self.inner.audit.write(entry.came_to(audit::Outcome::Refused)).await;
    }

    /// Suppresses the problem where it occurs; another problem of the same run is notified as
    /// usual.
    async fn silence(&self, record: &IncidentRecord, by: String, length: Span) -> Outcome {
        let routing = self.inner.runtime.read_model.routing();
        let Some(pairs) = silencing::selector(record, &routing.config.alerts.group_by) else {
            return Outcome::Refused(NAMELESS);
        };
        let matchers: Result<Vec<_>, _> =
            pairs.into_iter().map(|(label, value)| Matcher::new(label, Op::Equal, value)).collect();
        let (Ok(matchers), Ok(fresh)) = (matchers, crate::runtime::fresh_id()) else {
            return Outcome::Failed("no silence could be made of it".into());
        };
        let wanted = Box::new(Wanted {
            id: None,
            matchers,
            starts_at: None,
            ends_at: (self.inner.clock)() + length,
            created_by: by,
            comment: format!("asked for at incident {}", record.id),
            expire_on_resolve: false,
        });
        let selector = wanted.matchers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let entry = self.caller.audit(&wanted.created_by, "silence", &fresh).saying(&selector);
        let runtime = &self.inner.runtime;
        match runtime.ask(entry, |reply| Command::Outside(Outside::Silence { wanted, fresh, reply })).await {
            Ok(Ok(silence)) => Outcome::Silenced(silence),
            Ok(Err(Refusal::Unknown(why) | Refusal::Invalid(why) | Refusal::Full(why))) => {
                Outcome::Failed(why)
            }
            Err(why) => why.into(),
        }
    }
}

/// Ensures that one task at a time applies a callback.
struct Hearing<'a> {
    all: &'a Mutex<BTreeSet<String>>,
    key: String,
}

impl<'a> Hearing<'a> {
    fn begin(all: &'a Mutex<BTreeSet<String>>, key: &str) -> Option<Self> {
        let new = all.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned());
        new.then(|| Self { all, key: key.to_owned() })
    }
}

impl Drop for Hearing<'_> {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests;
