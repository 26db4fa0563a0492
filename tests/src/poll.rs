//! Waits for conditions.

use std::time::{Duration, Instant};

use anyhow::bail;

const INTERVAL: Duration = Duration::from_millis(10);

/// Long enough for a loaded machine; nothing should take this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Calls `probe` until it returns a value; fails after `deadline` with the name of the condition.
pub async fn poll_until<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(found) = probe().await {
            return Ok(found);
        }
        if started.elapsed() > deadline {
            bail!("waited {deadline:?} for {what}");
        }
    }
}
