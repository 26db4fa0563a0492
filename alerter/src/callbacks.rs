//! Callbacks of notification services: clicks in Slack, answers in PagerDuty.
//!
//! Each service has an endpoint: a signed webhook, and for Slack also an outgoing socket. All of
//! them use the same inputs of the engine. A callback is accepted only with the service's
//! signature, applied once even if it is repeated or replayed, and answered when its effects are
//! durable. A person whose click changes nothing gets the reason.
//!
//! Callbacks do not decide who is notified. A service whose callbacks do not arrive still gets
//! every message.

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
use crate::notify::{CallbackConfig, Notifier};
use crate::outbox::Receivers;
use crate::runtime::{Command, IncidentAction, Outside, RuntimeHandle, Unanswered};
use crate::store::Store;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use endpoints::fuzz;
pub(crate) use endpoints::routes;

/// The most callbacks applied at once; further ones are refused, and the services send them again.
const BUSY_MAX: usize = 64;
/// The reason why an incident without an identifying label is not silenced.
const NAMELESS: &str = "neither a run, a node nor the name of an alert says what this is about, so that a silence would keep quiet more than this: acknowledge it, or make a silence with `stepwatch-alerter silences add`";
/// How long an applied callback is kept: longer than any callback is accepted.
const REMEMBERED: Span = Span::secs(3 * 86_400);

/// The state of all endpoints. Clones share it.
#[derive(Debug, Clone)]
pub struct Callbacks {
    inner: Arc<Inner>,
    /// The endpoint that received the callback, for the audit log.
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
    /// Throttles the log of requests with an invalid signature, which anybody can send: each
    /// service logs one line a minute with their number.
    forged_slack: LogThrottle,
    forged_pagerduty: LogThrottle,
    clock: fn() -> Ts,
}

/// A person's request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wish {
    Act(IncidentAction),
    /// Silence this problem where it occurs, for this duration.
    Silence(Span),
}

/// The result of a request.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The action is durable.
    Done,
    /// The silence is durable.
    Silenced(Box<Silence>),
    /// The incident was already in that state.
    Already(Box<IncidentRecord>),
    /// The incident is closed.
    Over(Box<IncidentRecord>),
    Unknown,
    /// The request is refused for everybody.
    Refused(&'static str),
    /// The person is not allowed to answer, for this reason.
    Stranger(String),
    /// The action failed, or its result is unknown; it may be repeated.
    Failed(String),
}

/// Whether a callback is new.
#[derive(Debug, PartialEq)]
enum Heard<T> {
    Now(T),
    /// The callback was already applied.
    Before,
    /// The callback is being applied, or it is unknown whether it was.
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

    /// Sets the caller, for the callbacks of this request.
    fn entered_by(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    /// The callback settings of the current receivers, each with the receiver's name.
    fn callback_configs(&self) -> Vec<(String, CallbackConfig)> {
        let receivers = self.inner.receivers.borrow();
        receivers
            .iter()
            .filter_map(|(name, n)| Some((name.clone(), Notifier::callback_config(n.as_ref())?)))
            .collect()
    }

    /// The configured name of a Slack user.
    fn user_of_slack(&self, id: &str) -> Option<String> {
        let routing = self.inner.runtime.read_model.routing();
        let users = &routing.config.oncall.users;
        users.iter().find(|user| user.slack_id.as_deref() == Some(id)).map(|user| user.name.clone())
    }

    /// Applies a callback unless it was applied before. `act` also returns whether the callback is
    /// done.
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
            // A repeated callback would be applied again, which for most changes nothing.
            tracing::error!(%err, service, "cannot remember a callback");
        }
        Heard::Now(out)
    }

    /// Applies a request to the incident with exactly this id.
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
            // A resolved incident can still get notes and be reopened.
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

    /// The reason why the store may lack an incident: while it refuses writes, pages are sent from
    /// memory.
    fn unrecorded(&self) -> Option<String> {
        let why = self.inner.store.refusal_in_public()?;
        Some(format!("the incident may not be recorded yet: {why}"))
    }

    /// Applies an action to an incident that the store lacks. If its page was sent from memory, the
    /// engine applies the action at once, so that nobody is called again. It counts as done when it
    /// is stored; until then the service must repeat it.
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

    /// Records the refused request of a person in the audit log.
    async fn refuse(&self, by: &str, wish: &Wish, incident: &str, why: &str) {
        tracing::warn!(incident, by, word = wish.as_str(), why, "a click is refused");
        let entry = self.caller.audit(by, wish.as_str(), incident).saying(why);
        self.inner.audit.write(entry.came_to(audit::Outcome::Refused)).await;
    }

    /// Silences the problem where it occurs; other problems of the same run still notify people.
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
