//! The state of a GPU: whether it is read at all, and the result of a pass over it.
//!
//! A GPU is no longer read for one of three reasons: the driver reports it as lost; it answers only
//! errors in several passes; or it answers too slowly, and is quarantined ([`super::quarantine`]).

use std::sync::Arc;
use std::time::Instant;

use stepwatch_sys::nvml::{Error, XidEvents};

use super::gpu::{Gpu, Identity};
use super::heartbeat::Spent;
use super::quarantine::Aside;

/// The number of passes without an answer after which a GPU that did answer is lost. Errors come
/// and go while a driver is busy.
const SILENT_PASSES: u32 = 3;

/// The results of passes over a GPU.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The number of answers in this pass. A lack of support counts as an answer.
    pub(super) answers: u32,
    pub(super) errors: u32,
    pub(super) last_error: Option<String>,
    /// The number of consecutive passes with errors and without an answer.
    silent: u32,
    /// Whether the GPU ever answered.
    answered: bool,
}

impl Gpu {
    /// Starts a new count of the time of its calls.
    pub(super) fn count_anew(&self) {
        self.beat.count_anew(Some(self.id.index));
    }

    /// Begins a pass. Returns true if the pass must be complete: it was quarantined and has
    /// answered a probe.
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

    /// Ends a pass.
    pub fn end(&mut self) {
        if self.tally.answers > 0 {
            (self.tally.silent, self.tally.answered) = (0, true);
        } else if self.tally.errors > 0 && !self.lost && !self.needs_reset {
            self.tally.silent += 1;
            // A GPU that never answered may never do so, but it gets a second query.
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

    /// The reason why it is not read now.
    pub fn aside(&self) -> Option<&Aside> {
        self.quarantine.aside()
    }

    pub(super) fn may_be_asked(&self) -> bool {
        !self.lost && !self.down && self.quarantine.may_ask()
    }

    fn spent(&self) -> Spent {
        self.beat.spent(Some(self.id.index))
    }

    /// Quarantines it if it took too long.
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

    /// Probes whether a GPU that was lost, or needs a reset, answers again.
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
