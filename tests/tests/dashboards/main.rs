//! What people are given to look at, answered by a real Prometheus: every query of a dashboard and
//! of a runbook gives something, where two jobs scrape each node and two clusters have nodes of one
//! name; and every family is on a panel or left out for a reason.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod coverage;
mod page;
mod runbooks;
mod scene;
