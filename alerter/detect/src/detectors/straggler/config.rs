//! The limits for slow ranks and stages.

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Span;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Compute time of a rank, relative to its peers, that is reported within 8 steps. This and the
    /// other shares are engineering limits: what a rank costs the whole job. The sigmas, which are
    /// quantiles, are in `picture.rs`.
    pub ratio: f64,
    /// The same over 32 steps.
    pub ticket_ratio: f64,
    /// Share of the time by which a rank, or what is lost to whichever is slowest, rises above the
    /// usual.
    pub rise: f64,
    /// How long one rank may hold back the others before it pages, and by how much more than they
    /// waited before, if it was no straggler then.
    pub page_after: Span,
    pub page_rise: f64,
    /// Share of the compute time that is lost to whichever rank is slowest.
    pub rotating: f64,
    /// Compute time of a stage against the others.
    pub stage: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            ratio: 1.10,
            ticket_ratio: 1.05,
            rise: 0.02,
            page_after: Span::secs(600),
            page_rise: 0.04,
            rotating: 0.10,
            stage: 1.25,
        }
    }
}
