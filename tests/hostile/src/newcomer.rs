//! A trainer of a third user that starts during the attack.

use std::time::Duration;

use stepwatch_tests::trainer::{Rank, healthy};

use crate::attack::Target;

pub(crate) const RUN: &str = "newcomer";
pub(crate) const USER: u32 = 65_533;
const STEP: Duration = Duration::from_millis(100);

/// Makes steps until killed. A closed connection is opened again, as the clients do.
pub(crate) fn train(target: &Target) {
    let mut rank = None;
    for step in 1.. {
        if rank.is_none() {
            rank = Rank::join(&target.ingest, RUN, 0, 1).ok();
        }
        let (loss, grad_norm) = healthy(step);
        if rank.as_ref().is_some_and(|r| r.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).is_err()) {
            rank = None;
        }
        // Nothing wakes the thread.
        std::thread::park_timeout(STEP);
    }
}
