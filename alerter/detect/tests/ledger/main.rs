//! The run ledger beside three others: Google's `ml-goodput-measurement`, a recount by the second,
//! and the sum of the allocations.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocated;
mod goodput;
mod log;
mod recount;
mod shared;
