//! Commits the loop's decisions, and handles a commit that fails or hangs.

use core::time::Duration;

use stepwatch_detect::run::HOUR;
use stepwatch_model::time::Span;
use tokio::time::Instant;

use super::Runtime;
use crate::errors::chain;
use crate::store;

/// The first and the longest wait between two attempts while the store refuses writes.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);
/// The age from which an hour of a run is not stored, because reports cover only what was
/// monitored.
const HOURS_AGE_MAX: Span = Span::secs(31 * 86_400);
/// The time limit for the last commit at a stop.
const LAST_COMMIT_MAX: Duration = Duration::from_secs(5);

impl Runtime {
    /// Begins a commit, and waits for its end for at most `longest`, because a disk may hang.
    pub(super) async fn commit(&mut self, longest: Duration) {
        for change in self.engine.take_changes() {
            if self.changes.try_send(change).is_err() {
                self.metrics.changes_dropped.inc();
            }
        }
        let state =
            if self.pending.whole { self.engine.take_dirty() } else { self.engine.take_dirty_answers() };
        self.pending.absorb_state(state, &self.engine);
        if self.pending.whole {
            self.keep_hours();
        }
        self.pending.dress(&self.templates, &self.metrics);
        self.schedule.commit_began = Instant::now();
        self.pending.begin_commit(&self.store, self.clock.now());
        if let Ok(done) = tokio::time::timeout(longest, self.pending.written()).await {
            self.committed(done);
        } else {
            let waiting = self.pending.unkept().0.count();
            tracing::error!(
                waiting,
                "a commit does not end: until it does, only pages are sent, from memory"
            );
        }
    }

    /// Takes the accounted time of completed hours. Their times come from trainers, so invalid ones
    /// must not fill the disk.
    fn keep_hours(&mut self) {
        let now = self.clock.now();
        let kept = now.earlier(HOURS_AGE_MAX).0 / HOUR.0..=now.0 / HOUR.0;
        for hour in self.engine.take_hours() {
            if kept.contains(&hour.hour.hour) {
                self.pending.hours.push(hour);
            } else {
                self.metrics.ledger_rows_dropped.inc();
            }
        }
    }

    /// Handles the end of a commit.
    pub(super) fn committed(&mut self, done: store::Result<()>) {
        let whole = self.pending.end_commit(done.is_ok(), &self.read_model, &self.happened);
        match done {
            Ok(()) => {
                self.metrics.commit_seconds.observe(self.schedule.commit_began.elapsed().as_secs_f64());
                if self.schedule.retry.take().is_some() {
                    self.schedule.refused_for.clear();
                    tracing::warn!("the store takes commits again; nothing was lost");
                }
                if whole {
                    self.schedule.commit_due = None;
                    self.schedule.publishes();
                }
            }
            Err(err) => {
                // The rest is stored together.
                self.pending.whole = true;
                self.metrics.commit_failures.inc();
                let pause = self.schedule.retry.map_or(RETRY_FIRST, |(_, pause)| (2 * pause).min(RETRY_LAST));
                self.schedule.retry = Some((Instant::now() + pause, pause));
                let (why, waiting) = (chain(&err), self.pending.effects.len());
                if why != self.schedule.refused_for {
                    let until = self.store.sends_while_it_refuses();
                    tracing::error!(err = why, waiting, "the store refuses a commit: {until}; retrying");
                    self.schedule.refused_for = why;
                }
            }
        }
        self.metrics.pending_effects.set(self.pending.effects.len() as i64);
    }

    /// Makes the last commit. What is not stored is read again after the start, because state and
    /// cursors belong together.
    pub(super) async fn last_commit(&mut self) {
        let deadline = Instant::now() + LAST_COMMIT_MAX;
        if self.pending.is_under_way()
            && let Ok(done) = tokio::time::timeout_at(deadline, self.pending.written()).await
        {
            self.committed(done);
        }
        loop {
            if !self.pending.is_under_way() {
                self.pending.whole = true;
                self.commit(deadline - Instant::now()).await;
            }
            match self.schedule.retry {
                None if !self.pending.is_under_way() => break,
                Some((at, _)) if at < deadline && !self.pending.is_under_way() => {
                    tokio::time::sleep_until(at).await;
                }
                _ => {
                    let lost = self.pending.unkept().0.count();
                    tracing::error!(
                        lost,
                        "stopping although the store refuses; the records are read again at the next start"
                    );
                    break;
                }
            }
        }
    }
}
