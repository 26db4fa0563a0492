//! Sends a test message and its resolution to one receiver, because only a delivered page proves
//! that pages arrive.

use core::time::Duration;

use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::message::Status;

use super::attempt::{Attempt, FailureClass};
use super::notifier::{Notifier, PictureError};
use super::sample::test_notification;

/// The time limit, far beyond the limits of the notifiers.
const PATIENCE: Duration = Duration::from_mins(1);

/// The test message for a receiver, with the built-in text.
pub(crate) fn test_message(receiver: &str, now: Ts) -> Notification {
    test_notification(receiver, &format!("test-{}", now.0), now)
}

/// Delivers the message and then its resolution, so that nothing stays open. Returns a warning if
/// the message would be sent twice after a lost answer.
///
/// # Errors
/// Why it was not delivered, or not resolved.
pub(crate) async fn try_out(notifier: &dyn Notifier, first: Notification) -> Result<Option<String>, String> {
    let memory = send(notifier, &first, None).await?;
    let looked = tokio::time::timeout(PATIENCE, notifier.look_back(&first)).await;
    let doubt = looked.unwrap_or_else(|_| Err("it cannot be looked for in time".into())).err();
    let last = resolution(first);
    send(notifier, &last, memory.as_deref())
        .await
        .map(drop)
        .map_err(|why| format!("delivered, but it could not be resolved and stays open there: {why}"))?;
    Ok(doubt)
}

/// The reason why a receiver with a place for charts would show none.
pub(crate) async fn no_chart(notifier: &dyn Notifier) -> Option<String> {
    let permitted = tokio::time::timeout(PATIENCE, notifier.gallery()?.permitted()).await;
    match permitted {
        Ok(Ok(())) => None,
        Ok(Err(PictureError::Forbidden(why))) => Some(why),
        Ok(Err(PictureError::Failed(failure))) => Some(failure.error),
        Err(_) => Some("no answer in time".into()),
    }
}

fn resolution(mut n: Notification) -> Notification {
    n.seq = 2;
    n.action = Action::Resolve;
    n.idem_key = format!("{}/{}/2", n.incident, n.receiver);
    n.message.status = Status::Resolved;
    n.message.reason = "the end of the test".into();
    n
}

async fn send(
    notifier: &dyn Notifier,
    n: &Notification,
    memory: Option<&str>,
) -> Result<Option<String>, String> {
    let attempt = Attempt { memory, ..Attempt::first(n) };
    match tokio::time::timeout(PATIENCE, notifier.send(attempt)).await {
        Err(_) => Err(format!("failed: no answer within {PATIENCE:?}")),
        Ok(Ok(receipt)) => Ok(receipt.memory.or_else(|| memory.map(str::to_owned))),
        Ok(Err(failure)) => Err(match failure.class {
            FailureClass::Permanent => format!("refused: {}", failure.error),
            FailureClass::Transient | FailureClass::Partly => format!("failed: {}", failure.error),
            FailureClass::RateLimited { .. } => format!("rate limited: {}", failure.error),
        }),
    }
}
