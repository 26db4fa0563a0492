//! A process that trains, as discovery found it.

use std::sync::Arc;
use std::time::SystemTime;

use stepwatch_wire::run_name::Named;

use super::rank::Identity;
use crate::principal::Principal;
use crate::reach::View;

/// A process that trains.
#[derive(Debug)]
pub(super) struct Trainer {
    pub(super) pid: u32,
    pub(super) started: u64,
    /// The same by the clock.
    pub(super) begun: Option<SystemTime>,
    /// What it may read; `None` for a program that runs with the rights of two users.
    pub(super) view: Option<Arc<View>>,
    pub(super) identity: Identity,
    pub(super) named: Named,
    /// What its run is called.
    pub(super) run: String,
    /// Whose process it is.
    pub(super) principal: Principal,
}
