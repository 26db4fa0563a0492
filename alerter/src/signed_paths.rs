//! Paths without authentication by token: requests that services sign, files that pages load, and
//! the login.

pub(crate) const SLACK: &str = "/slack/interactions";
pub(crate) const PAGERDUTY: &str = "/pagerduty/webhook";

pub(crate) const ALL: &[&str] = &[SLACK, PAGERDUTY];

/// The path prefix of our own style sheets, scripts and images, which are the same for everybody.
pub(crate) const ASSETS: &str = "/assets/";

/// The paths for logging in and out.
pub(crate) const LOGIN: &str = "/login";
pub(crate) const LOGOUT: &str = "/logout";

/// Whether a request needs neither a token nor a session.
pub(crate) fn is_open(path: &str) -> bool {
    path == LOGIN || path.starts_with(ASSETS)
}
