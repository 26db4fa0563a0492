//! The state of a GPU: whether it is read at all, and what a pass over it shows.
//!
//! A GPU is no longer read for one of three reasons: the driver reports it as lost; it answers only
//! errors, pass after pass; or it answers too slowly, and is set aside ([`super::quarantine`]).

use std::sync::Arc;
use std::time::Instant;

use stepwatch_sys::nvml::{Error, XidEvents};

use super::gpu::{Gpu, Identity};
use super::heartbeat::Spent;
use super::quarantine::Aside;

/// Passes without one answer before a GPU that did answer is given up. Errors come and go while a
/// driver is busy.
const SILENT_PASSES: u32 = 3;

/// What came of a pass over a GPU.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// In this pass. That a GPU does not support something is an answer.
    pub(super) answers: u32,
    pub(super) errors: u32,
    pub(super) last_error: Option<String>,
    /// Passes, one after the other, with errors and without an answer.
    silent: u32,
    /// Ever.
    answered: bool,
}

impl Gpu {
    /// What it is asked from here on is judged by itself.
    pub(super) fn count_anew(&self) {
        self.beat.count_anew(Some(self.id.index));
    }

    /// Begins a pass over it. True where the pass must be a whole one: it was set aside, and has
    /// given a sign of life.
    pub fn begin(&mut self, now: Instant) -> bool {
        self.count_anew();
        (self.tally.answers, self.tally.errors) = (0, 0);
        if !self.quarantine.is_due(now) {
            return false;
        }
        let answer = self.device.temperature();
        let alive = answer.as_ref().map_or_else(Error::unsupported, |_| true);
        let spent = self.spent();
        if let Err(error) = answer.as_ref()
            && !alive
        {
            self.failed(error);
        }
        if self.lost && !alive && spent.total <= self.quarantine.most() {
            self.quarantine.forget();
        } else {
            self.quarantine.sign(alive, spent, Instant::now());
        }
        if self.half_known && self.quarantine.may_ask() {
            let late = || self.spent().total > self.quarantine.most();
            if let Ok((id, half_known)) = Identity::read(&self.device, late) {
                (self.id, self.half_known) = (Arc::new(id), half_known);
            }
        }
        self.quarantine.may_ask()
    }

    /// Ends a pass over it.
    pub fn end(&mut self) {
        if self.tally.answers > 0 {
            (self.tally.silent, self.tally.answered) = (0, true);
        } else if self.tally.errors > 0 && !self.lost && !self.needs_reset {
            self.tally.silent += 1;
            // A GPU that never answered may never answer; a second question is asked all the same.
            let given_up = self.tally.silent >= SILENT_PASSES || !self.tally.answered && !self.is_alive();
            if given_up && !self.lost {
                let why = self.tally.last_error.take();
                tracing::error!(
                    gpu = self.id.uuid,
                    pci = self.id.pci,
                    error = why,
                    "GPU answers nothing but errors"
                );
                self.lose(why);
            }
        }
        if self.may_be_asked() && self.quarantine.passed(Instant::now()) {
            tracing::info!(gpu = self.id.uuid, pci = self.id.pci, "GPU answers quickly again");
        }
    }

    /// Why nothing is asked of it for now.
    pub fn aside(&self) -> Option<&Aside> {
        self.quarantine.aside()
    }

    pub(super) fn may_be_asked(&self) -> bool {
        !self.lost && !self.down && self.quarantine.may_ask()
    }

    fn spent(&self) -> Spent {
        self.beat.spent(Some(self.id.index))
    }

    /// Sets it aside if it took too long.
    pub(super) fn judge(&mut self) {
        let spent = self.spent();
        if self.quarantine.judge(spent, Instant::now()) {
            let (call, seconds) = (spent.function, spent.total.as_secs_f64());
            tracing::warn!(
                gpu = self.id.uuid,
                pci = self.id.pci,
                call,
                seconds,
                "GPU answers too slowly: set aside"
            );
        }
    }

    /// Whether a GPU that was lost, or needs a reset, answers again.
    pub fn sign_of_life(&mut self) {
        if (self.lost || self.needs_reset) && self.quarantine.may_ask() && self.is_alive() {
            (self.lost, self.needs_reset, self.lost_with) = (false, false, None);
            self.tally = Tally::default();
        }
    }

    fn is_alive(&mut self) -> bool {
        let answer = self.device.temperature();
        self.judge();
        match answer {
            Ok(_) => true,
            Err(error) if error.unsupported() => true,
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// Registers the GPU's XID errors with a set of events.
    pub(super) fn listen(&mut self, set: &mut XidEvents) -> Result<(), Error> {
        let heard = set.watch(&self.device);
        self.judge();
        if let Err(error) = heard.as_ref()
            && !error.unsupported()
        {
            self.failed(error);
        }
        heard
    }

    pub(super) fn lose(&mut self, with: Option<String>) {
        (self.lost, self.lost_with) = (true, with);
        if self.quarantine.may_ask() {
            self.quarantine.forget();
        }
        self.samples.clear();
    }
}
