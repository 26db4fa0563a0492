//! Decides whose clicks in Slack are applied.
//!
//! If the bot's home workspace is unknown, only users whose click itself shows that they are
//! external are refused. A person who is called at night must not be refused because a service
//! fails.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Callbacks;
use super::slack::Click;
use crate::backoff;
use crate::notify::slack::{Answers, App};

/// How long a click waits for the bot's home workspace. Slack needs its own answer within three
/// seconds.
const HOME_WITHIN: Duration = Duration::from_secs(1);

/// The reason why a click is refused; `None` if it is accepted. `apps` are the receivers that share
/// its endpoint.
pub(super) async fn refusal(callbacks: &Callbacks, apps: &[Arc<App>], click: &Click) -> Option<String> {
    let answers = apps.iter().map(|app| app.answers()).max().unwrap_or_default();
    let id = &click.user;
    if answers == Answers::Anyone || callbacks.user_of_slack(id).is_some() {
        return None;
    }
    if answers == Answers::KnownUsers {
        return Some(format!(
            "only people whom the alerter's configuration names can answer here, and {id} is not among its `users`"
        ));
    }
    let foreign =
        join_all(apps.iter().map(|app| is_foreign(app, click))).await.into_iter().all(|foreign| foreign);
    foreign.then(|| {
        format!(
            "you are of another workspace than the alerter, whose own people answer here: ask one of them, or have its operator \
             add the `slack_id` {id} to its `users`"
        )
    })
}

/// Asks Slack for the app's home workspace until it answers, so that a click need not wait.
pub(super) async fn learn(app: Arc<App>) {
    let mut failures: u32 = 0;
    while let Err(error) = app.home().await {
        failures = failures.saturating_add(1);
        if failures == 1 {
            tracing::warn!(error, "Slack does not say which workspace is ours; asking again");
        }
        tokio::time::sleep(backoff::DELIVERY.after(failures, backoff::random())).await;
    }
}

async fn is_foreign(app: &App, click: &Click) -> bool {
    let why = match tokio::time::timeout(HOME_WITHIN, app.home()).await {
        Ok(Ok(home)) => return !click.origin.is_of(home),
        Ok(Err(why)) => why,
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::warn!(
        why,
        user = click.user,
        "Slack does not say which workspace is ours: the click's own word is taken"
    );
    click.origin.is_plainly_foreign()
}
