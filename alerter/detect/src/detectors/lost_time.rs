//! Computes the cost of a slow-down, and whether that is worth a page.

use serde::{Deserialize, Serialize};

use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Clause, Fact, clause};

/// A block that takes longer than this many usual ones contained a pause, not slow steps.
const PAUSED: f64 = 2.0;
/// The share of the life of a young run that a slow-down must last instead of its time, and the
/// least time for that.
const OF_LIFE: f64 = 0.25;
const LEAST_OF_LIFE: Span = Span::secs(60);

/// What a slow-down must cost to be worth a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worth {
    /// How long it must be slow enough for a page.
    pub(super) after: Span,
    /// How much of the run's time must be lost instead.
    pub(super) lost: Span,
    /// Dollars that must be lost instead of both, where the price of the run is known.
    pub(super) dollars: Option<f64>,
}

/// The cost of a slow-down to the run since its onset.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Loss {
    /// When the first and the last block ended; `usual` is the seconds of a usual block.
    first: Ts,
    ended: Ts,
    usual: f32,
    /// Seconds of the run, and dollars; 0 dollars if its price is unknown.
    pub(super) seconds: f32,
    pub(super) dollars: f32,
    /// Since when it has been slow enough for a page; the end of the last block if it is not.
    paging_since: Ts,
}

impl Loss {
    /// Begins with the block that starts now; what was lost before stays.
    pub(super) fn begin(&mut self, now: Ts) {
        if self.ended == Ts::default() {
            self.first = now;
        }
        (self.ended, self.paging_since) = (now, now);
    }

    /// Adds a block that is slower than usual by `rise`, in logarithms, and ends now. `counts` if a
    /// slow-down is under way, `pages` if it is slow enough for a page.
    pub(super) fn block(&mut self, now: Ts, rise: f64, counts: bool, pages: bool, dollars_per_hour: f64) {
        if self.ended == Ts::default() {
            (self.first, self.ended) = (now, now);
        }
        let began = core::mem::replace(&mut self.ended, now);
        let took = (now - began).as_secs_f64().max(0.0);
        let usual = if self.usual > 0.0 { f64::from(self.usual) } else { took };
        let took = took.min(PAUSED * usual);
        self.usual = (usual + (took - usual) / 8.0) as f32;
        if !pages {
            self.paging_since = now;
        }
        if !counts {
            self.over();
            return;
        }
        let lost = took * (1.0 - (-rise).exp());
        self.seconds = (self.seconds + lost as f32).max(0.0);
        self.dollars = (self.dollars + (dollars_per_hour * lost / 3600.0) as f32).max(0.0);
    }

    /// Forgets what was lost: the slow-down is over.
    pub(super) fn over(&mut self) {
        (self.seconds, self.dollars) = (0.0, 0.0);
    }

    pub(super) fn is_ticket(&self, least: Span) -> bool {
        f64::from(self.seconds) >= least.as_secs_f64()
    }

    /// Whether the cost is worth a page. `priced`: the price of the run is known.
    pub(super) fn is_page(&self, worth: &Worth, now: Ts, priced: bool) -> bool {
        if let Some(limit) = worth.dollars.filter(|_| priced) {
            return f64::from(self.dollars) >= limit;
        }
        now - self.paging_since >= worth.after || f64::from(self.seconds) >= worth.lost.as_secs_f64()
    }

    /// How long a slow-down of a young run must last.
    pub(super) fn of_life(&self, now: Ts) -> Span {
        Span::from_secs_f64(OF_LIFE * (now - self.first).as_secs_f64()).max(LEAST_OF_LIFE)
    }

    pub(super) fn words(&self) -> Option<Clause> {
        let dollars = Fact::decimal(f64::from(self.dollars), 0);
        let price = (self.dollars > 0.0).then(|| clause!(" (${dollars})", dollars));
        let lost = Fact::Hours(f64::from(self.seconds).into());
        (self.seconds >= 1.0).then(|| clause!("{lost}{price} of the run lost so far", lost, price))
    }
}
