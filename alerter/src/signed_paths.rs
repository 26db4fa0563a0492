//! Paths that need no token: requests that services sign, and files that pages load.

pub(crate) const SLACK: &str = "/slack/interactions";
pub(crate) const PAGERDUTY: &str = "/pagerduty/webhook";

pub(crate) const ALL: &[&str] = &[SLACK, PAGERDUTY];

/// What begins so is the same for everybody: style sheets, scripts and pictures of our own.
pub(crate) const ASSETS: &str = "/assets/";
