//! What the parts of the manager are asked with: what is reported, and what they may look at.

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

/// What a part may read beside what it owns, at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) now: Ts,
    pub(super) config: &'a ResponderConfig,
    pub(super) open: &'a Open,
    pub(super) external: &'a External,
}
