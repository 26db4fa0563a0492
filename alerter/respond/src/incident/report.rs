//! The arguments of the manager's parts: a report, and the state that they may read.

use super::open::Open;
use crate::config::ResponderConfig;
use crate::external::External;
use stepwatch_model::{Context, Finding, Subject, Ts};

/// A finding, and what it is about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report<'a> {
    pub(super) subject: &'a Subject,
    pub(super) context: &'a Context,
    pub(super) finding: &'a Finding,
}

/// The state that a part may read besides its own, at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) now: Ts,
    pub(super) config: &'a ResponderConfig,
    pub(super) open: &'a Open,
    pub(super) external: &'a External,
}
