//! A training process that discovery found.

use std::sync::Arc;
use std::time::SystemTime;

use stepwatch_wire::run_name::Named;

use super::rank::Identity;
use crate::principal::Principal;
use crate::reach::View;

/// A training process.
#[derive(Debug)]
pub(super) struct Trainer {
    pub(super) pid: u32,
    pub(super) started: u64,
    /// The start by the wall clock.
    pub(super) begun: Option<SystemTime>,
    /// The files that it may read; `None` for a program that runs with the rights of two users.
    pub(super) view: Option<Arc<View>>,
    pub(super) identity: Identity,
    pub(super) named: Named,
    /// The name of its run.
    pub(super) run: String,
    /// The user of the process.
    pub(super) principal: Principal,
}
