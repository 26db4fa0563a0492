//! Decides who may report which run, and which runs are followed when there are too many.

use std::sync::Arc;

use stepwatch_wire::Kind;

use super::Training;
use super::archive::PastRun;
use super::run::{Gpu, Run};
use super::user_limits::Newcomer;
use crate::drops::Reason;
use crate::origin::{Outcome, Peer};
use crate::principal::Principal;

/// The most ranks of all runs: a node has a few dozen, a machine that follows the logs of others
/// some thousand.
pub(super) const MAX_RANKS: usize = 6144;
/// The most ranks of all runs of one user.
pub(super) const MAX_RANKS_OF_USER: usize = 2048;
/// The ranks that a user may have even if [`MAX_RANKS`] is reached: somewhat more than a node has.
pub(super) const RANKS_KEPT: usize = 32;
/// The most ranks beyond [`MAX_RANKS`], which all users share.
pub(super) const MAX_RANKS_KEPT: usize = 1024;

/// The owner of a run of `owner` after `speaker` has sent an event of this kind; `None` if it may
/// not.
///
/// A run that root opened becomes that of the first other user who reports a step: a launcher of
/// root starts it for somebody, and a user who only sends other events does not train it. A run in
/// which root itself reported a step (`settled`) stays root's.
pub(super) fn owner_after(
    owner: Principal,
    settled: bool,
    speaker: Principal,
    kind: Kind,
) -> Option<Principal> {
    let then = owner.joined_by(speaker)?;
    let is_roots = owner.uid().is_some() && owner.is_trusted();
    let passes_on = is_roots && !then.is_trusted();
    (!passes_on || !settled && kind == Kind::Step).then_some(then)
}

impl Training {
    /// The owner of the run, if `principal` may not send an event of this kind for it.
    pub fn not_theirs(&self, run: &str, principal: Principal, kind: Kind, now: f64) -> Option<Principal> {
        let is_silent = |heard: f64| now - heard > self.options.forget_after;
        let (owner, settled) = match self.runs.get(run) {
            Some(run) if run.is_completed() && !run.is_connected() => return None,
            Some(run) if run.is_over() && !run.is_connected() && is_silent(run.heard) => return None,
            Some(run) => (run.owner, run.settled),
            // The run found no room, or was reported before a restart of this exporter.
            None => {
                let past = self.archive.runs.get(run)?;
                (!past.completed && !is_silent(past.heard)).then_some((past.owner, past.settled))?
            }
        };
        let shared = || self.options.shared.iter().any(|pattern| pattern.matches(run));
        (owner_after(owner, settled, principal, kind).is_none() && !shared()).then_some(owner)
    }

    /// Whether root opened the run, and only a step makes it that of `principal`.
    pub fn waits_for_step(&self, run: &str, principal: Principal, now: f64) -> bool {
        let refuses = |kind| self.not_theirs(run, principal, kind, now).is_some();
        refuses(Kind::Hello) && !refuses(Kind::Step)
    }

    /// Follows a run if `principal` may report it and there is room, or room can be made.
    pub fn admit(&mut self, run: &str, kind: Kind, principal: Principal, now: f64) -> Result<(), Reason> {
        if let Some(known) = self.runs.get(run) {
            if known.owner == principal {
                return Ok(());
            }
            if self.not_theirs(run, principal, kind, now).is_some() {
                return Err(Reason::NotOwner);
            }
            // The run has sent its `bye`: the next reporter begins it anew.
            let joins = owner_after(known.owner, known.settled, principal, kind).is_some();
            if !known.is_over() || known.is_connected() || joins {
                return Ok(());
            }
            let name = Arc::clone(&known.name);
            self.forget(&name, now);
        } else if self.not_theirs(run, principal, kind, now).is_some() {
            return Err(Reason::NotOwner);
        }
        if !self.has_room(run, kind, principal, now) {
            return Err(Reason::Runs);
        }
        let known = self.archive.runs.get(run).is_some_and(|past| past.owner == principal);
        if !known && !self.newcomers.admit(principal, self.options.new_per_minute, now) {
            return Err(Reason::NewRuns);
        }
        self.make_room(run, kind, principal, now);
        self.open(run, kind, principal, now);
        Ok(())
    }

    /// Whether the rank is followed already, or there is room for one more. Each takes some
    /// kilobytes, and a user can name a thousand in each of many runs.
    pub(super) fn has_room_for_rank(&self, run: &str, rank: u32) -> bool {
        let Some(run) = self.runs.get(run) else { return true };
        if run.ranks.contains_key(&rank) {
            return true;
        }
        let (mut all, mut own) = (0, 0);
        for other in self.runs.values() {
            all += other.ranks.len();
            own += if other.owner == run.owner { other.ranks.len() } else { 0 };
        }
        if own < RANKS_KEPT {
            return all < MAX_RANKS + MAX_RANKS_KEPT;
        }
        all < MAX_RANKS && (own < MAX_RANKS_OF_USER || run.owner == Principal::Exporter)
    }

    /// Counts that `principal` reported a run of `owner`, and logs it at a limited rate.
    pub fn refuse(&mut self, run: &str, owner: Principal, principal: Principal, now: f64) {
        self.drops.refuse(Reason::NotOwner, principal, 1);
        if let Some(known) = self.runs.get_mut(run) {
            known.refuse(principal);
        }
        if self.logged_refusals.is_due(Reason::NotOwner, principal, now) {
            tracing::warn!(run, of = %owner, by = %principal, "refused: the run is another user's (runs.shared lists those that every user may report)");
        }
    }

    /// Counts that a source or job of `whose` was dropped for one that `principal` named, and logs
    /// it at a limited rate.
    pub fn forgot_sources(&mut self, whose: Principal, principal: Principal, now: f64) {
        self.drops.refuse(Reason::Sources, whose, 1);
        if self.logged_refusals.is_due(Reason::Sources, whose, now) {
            tracing::warn!(of = %whose, by = %principal, "there are too many sources and jobs: what is known of the oldest of the user with the most is forgotten");
        }
    }

    /// Counts `n` parts of an event that a limit leaves out, and logs their user at a limited rate.
    /// Returns whether it was logged.
    pub(super) fn leave_out(
        &mut self,
        run: &str,
        principal: Principal,
        (reason, n): (Reason, u64),
        now: f64,
    ) -> bool {
        self.drops.refuse(reason, principal, n);
        let is_due = n > 0 && self.logged_refusals.is_due(reason, principal, now);
        if is_due {
            tracing::warn!(run, of = %principal, reason = reason.as_str(), "a run has more than is followed");
        }
        is_due
    }

    /// Counts a connection over a limit, and logs its user at a limited rate. Returns whether it
    /// was logged.
    pub fn refuse_connection(&mut self, peer: Peer, reason: Reason, now: f64) -> bool {
        let principal = Principal::from_uid(Some(peer.uid));
        self.drops.refuse(reason, principal, 1);
        let is_due = self.logged_refusals.is_due(reason, principal, now);
        if is_due {
            let Peer { uid, pid, .. } = peer;
            tracing::warn!(uid, pid, reason = reason.as_str(), "over a limit of the ingest socket");
        }
        is_due
    }

    pub(super) fn refused(
        &mut self,
        run: &str,
        principal: Principal,
        (kind, reason): (Kind, Reason),
        now: f64,
    ) -> Outcome {
        if reason == Reason::NotOwner {
            let owner = self.not_theirs(run, principal, kind, now).unwrap_or_default();
            self.refuse(run, owner, principal, now);
            return Outcome::Dropped(reason);
        }
        if self.logged_refusals.is_due(reason, principal, now) {
            tracing::warn!(run, of = %principal, reason = reason.as_str(), "a new run is not followed: no run gives way to it (runs.max_runs, runs.new_per_minute)");
        }
        self.drops.refuse(reason, principal, 1);
        Outcome::Dropped(reason)
    }

    /// Whether another run can be followed, if necessary in place of one that is dropped.
    fn has_room(&mut self, name: &str, kind: Kind, principal: Principal, now: f64) -> bool {
        if self.runs.len() < self.options.max_runs {
            return true;
        }
        if !std::mem::replace(&mut self.logged_full, true) {
            let limit = self.options.max_runs;
            tracing::warn!(
                run = name,
                limit,
                "runs.max_runs is reached: a new run takes the place of one that ended or fell silent, or of a user with more runs, or waits"
            );
        }
        self.victim(kind, principal, now).is_some()
    }

    /// The run to drop. Among one user's own runs, one reported within `linger` stays, or two would
    /// replace each other in turn. A run without a step is dropped for one that reports its first
    /// step, so that a user who sends `hello` for many runs keeps no training run off the metrics
    /// page.
    fn victim(&self, kind: Kind, principal: Principal, now: f64) -> Option<Arc<str>> {
        Newcomer { principal, kind, now, linger: self.options.linger }.victim(self.runs.values())
    }

    fn make_room(&mut self, name: &str, kind: Kind, principal: Principal, now: f64) {
        if self.runs.len() < self.options.max_runs {
            return;
        }
        let Some(victim) = self.victim(kind, principal, now) else { return };
        if let Some(owner) = self.runs.get(&victim).map(|run| run.owner).filter(|owner| *owner != principal) {
            self.drops.refuse(Reason::RunsShare, owner, 1);
            if self.logged_refusals.is_due(Reason::RunsShare, owner, now) {
                tracing::warn!(run = %victim, of = %owner, new = name, by = %principal, "runs.max_runs is reached: the user with the most runs gives one up");
            }
        }
        self.forget(&victim, now);
    }

    fn open(&mut self, name: &str, kind: Kind, principal: Principal, now: f64) {
        let name: Arc<str> = name.into();
        let past = self.archive.runs.get(&*name);
        let fresh = |past: &&PastRun| !past.completed && now - past.heard <= self.options.forget_after;
        let known = past.filter(fresh);
        let owner = known
            .and_then(|past| owner_after(past.owner, past.settled, principal, kind))
            .unwrap_or(principal);
        let settled = known.is_some_and(|past| past.settled && owner.is_trusted());
        let mut run = Run::new(Arc::clone(&name), owner, past, now);
        run.settled = settled;
        // After a crash the trainers reconnect in any order. The saved state shows which of the
        // trainings of one job had which run.
        self.urgent |= kind == Kind::Hello;
        if self.logged.has_room(now) {
            tracing::info!(run = %name, attempt = run.epoch.attempt, "following a run");
        }
        let gpu = Gpu { configured: self.options.gpu.as_deref(), detected: self.detected_gpu.as_deref() };
        self.runs.entry(name).or_insert(run).find_peak(gpu);
    }
}
