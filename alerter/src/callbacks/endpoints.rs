//! The endpoints of all services: the routes of their webhooks, and the outgoing sockets.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use stepwatch_kit::shutdown::Shutdown;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

#[cfg(any(test, feature = "fuzz"))]
use super::signature;
use super::{Callbacks, pagerduty, slack, socket};

/// The most bytes of a callback; Slack sends the whole message with every click.
const BODY_MAX: usize = 1 << 20;

/// The endpoints.
pub(crate) fn routes() -> OpenApiRouter<Callbacks> {
    OpenApiRouter::default()
        .routes(routes!(slack::interactions))
        .routes(routes!(pagerduty::webhook))
        .layer(DefaultBodyLimit::max(BODY_MAX))
}

impl Callbacks {
    pub fn router(&self) -> Router {
        Router::from(routes()).with_state(self.clone())
    }

    /// Keeps a socket to every Slack app that has a token for one, until `shutdown`.
    pub async fn listen(self, shutdown: Shutdown) {
        socket::listen(self, shutdown).await;
    }
}

/// A callback from Slack or PagerDuty. The first byte chooses the service and the form; the rest is
/// body and, for signatures, header.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    match first % 4 {
        0 => slack::fuzz(body, false),
        1 => slack::fuzz(body, true),
        2 => pagerduty::fuzz(body),
        _ => signature::fuzz(&String::from_utf8_lossy(body)),
    }
}
