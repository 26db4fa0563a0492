//! What the alerter stands: alerts of other programs by the ten thousand, and people's answers
//! meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod acks;
mod bulkhead;
mod client;
mod incidents;
mod ingest;
mod memory;
mod pages;
mod remote_write;

use tokio::sync::{Mutex, MutexGuard};

/// How much is measured. A debug build proves that it works, a release build what it costs;
/// `STEPWATCH_LONG=1` measures in full, whatever is built (the programs may be other builds:
/// `STEPWATCH_BIN_DIR`).
fn in_full() -> bool {
    !cfg!(debug_assertions) || std::env::var_os("STEPWATCH_LONG").is_some_and(|v| v == "1")
}

/// What is measured here would measure the others.
async fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}
