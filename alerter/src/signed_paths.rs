//! Paths of the requests that services sign. They need no token.

pub(crate) const SLACK: &str = "/slack/interactions";
pub(crate) const PAGERDUTY: &str = "/pagerduty/webhook";

pub(crate) const ALL: &[&str] = &[SLACK, PAGERDUTY];
