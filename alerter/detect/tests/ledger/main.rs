//! The run ledger beside two others: Google's `ml-goodput-measurement` and a recount by the second.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod goodput;
mod log;
mod recount;
