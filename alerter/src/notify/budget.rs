//! The limit of messages to one receiver that wake nobody. Beyond it, one message reports the
//! number of omitted messages.
//!
//! Many tickets hide the important one, and make people ignore the channel. Pages, answers and
//! resolutions are never omitted.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepwatch_detect::changes::RunChange;
use stepwatch_kit::config::Secret;
use stepwatch_model::Severity;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::message::{Fact, Status};

use super::attempt::{Attempt, Failure, Receipt};
use super::mistake::Mistake;
use super::notifier::{CallbackConfig, Gallery, Notifier, Pace};
use super::sample::test_notification;

const PER_MIN: Span = Span::secs(60);
const PER_MAX: Span = Span::secs(7 * 86_400);

/// The `budget` of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    pub messages: u32,
    pub per: Span,
}

impl Default for Budget {
    fn default() -> Self {
        Self { messages: 60, per: Span::secs(3600) }
    }
}

impl Budget {
    pub(super) fn check(self) -> Result<(), Mistake> {
        if self.messages == 0 {
            return Err(Mistake::at("messages", "must be at least 1"));
        }
        if self.per < PER_MIN || self.per > PER_MAX {
            return Err(Mistake::at("per", format!("must be from {PER_MIN} to {PER_MAX}")));
        }
        Ok(())
    }

    pub(crate) fn window(self) -> Duration {
        Duration::from_millis(self.per.0.unsigned_abs())
    }

    /// The message about the messages that the budget omitted.
    pub(crate) fn summary(self, receiver: &str, left_out: u64, now: Ts) -> Notification {
        let mut n = test_notification(receiver, &format!("left-out-{}", now.0), now);
        (n.action, n.page) = (Action::Trigger, false);
        let m = &mut n.message;
        let messages =
            if left_out == 1 { "1 message was".to_owned() } else { format!("{left_out} messages were") };
        m.title = format!("{messages} left out here");
        m.summary = format!(
            "This receiver gets at most {} messages in {} that wake nobody; {messages} suppressed. All incidents are in the \
             list of the alerter.",
            self.messages, self.per
        );
        "the budget of this receiver".clone_into(&mut m.reason);
        m.facts = vec![Fact { label: "Suppressed".into(), text: left_out.to_string() }];
        (m.run, m.links) = (String::new(), Vec::new());
        (m.severity, m.status) = (Severity::Info, Status::Firing);
        n
    }
}

/// A receiver with a budget.
#[derive(Debug)]
struct Within {
    inner: Arc<dyn Notifier>,
    budget: Budget,
}

/// `notifier` with a budget, if there is one.
pub(super) fn within(
    budget: Option<Budget>,
    notifier: Arc<dyn Notifier>,
) -> Result<Arc<dyn Notifier>, Mistake> {
    let Some(budget) = budget else { return Ok(notifier) };
    budget.check().map_err(|mistake| mistake.under("budget"))?;
    Ok(Arc::new(Within { inner: notifier, budget }))
}

impl Notifier for Within {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        self.inner.send(attempt)
    }

    fn wakes(&self) -> bool {
        self.inner.wakes()
    }

    fn rings(&self) -> bool {
        self.inner.rings()
    }

    fn confirms(&self) -> Option<&'static str> {
        self.inner.confirms()
    }

    fn unproven(&self) -> Option<&'static str> {
        self.inner.unproven()
    }

    fn account(&self) -> Vec<Secret> {
        self.inner.account()
    }

    fn remind_every(&self) -> Option<Duration> {
        self.inner.remind_every()
    }

    fn remind<'a>(&'a self, standing: &'a [Notification]) -> BoxFuture<'a, Result<(), Failure>> {
        self.inner.remind(standing)
    }

    fn wants_changes(&self) -> bool {
        self.inner.wants_changes()
    }

    fn change<'a>(&'a self, change: &'a RunChange) -> BoxFuture<'a, Result<(), Failure>> {
        self.inner.change(change)
    }

    fn callback_config(&self) -> Option<CallbackConfig> {
        self.inner.callback_config()
    }

    fn budget(&self) -> Option<Budget> {
        Some(self.budget)
    }

    fn pace(&self) -> Option<Pace> {
        self.inner.pace()
    }

    fn embeds_chart(&self) -> bool {
        self.inner.embeds_chart()
    }

    fn gallery(&self) -> Option<&dyn Gallery> {
        self.inner.gallery()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_how_many() {
        let budget = Budget { messages: 3, per: Span::secs(3600) };
        let n = budget.summary("chat", 17, Ts(1_795_227_416_000));
        assert_eq!(n.message.title, "17 messages were left out here");
        assert!(n.message.summary.contains("at most 3 messages in 1h"), "{}", n.message.summary);
        assert!(!n.page);
        assert!(Budget { messages: 0, ..budget }.check().is_err());
        assert!(Budget { per: Span::secs(1), ..budget }.check().is_err());
    }
}
