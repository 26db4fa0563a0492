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
/// The path that leads to the OpenID Connect provider, and the one to which the provider leads
/// back.
pub(crate) const OIDC: &str = "/login/oidc";
pub(crate) const OIDC_BACK: &str = "/login/oidc/callback";

/// Whether a request needs neither a token nor a session.
pub(crate) fn is_open(path: &str) -> bool {
    [LOGIN, OIDC, OIDC_BACK].contains(&path) || path.starts_with(ASSETS)
}
