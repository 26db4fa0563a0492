//! Charts of incidents: the observations of a run are stored while the run is known, drawn on
//! request, and shown in the conversations of receivers that support it.
//!
//! This happens in separate tasks after the commit of an incident and after its messages: no page
//! waits for a chart, and a failed chart is not a failed message.

mod gallery;
mod keeper;
mod metrics;
mod render;
mod seen;
mod series;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use stepwatch_respond::incident::{IncidentRecord, State};

use crate::chart::curve::{Curve, Deed};
use crate::chart::{Look, incident, svg};
use crate::errors::chain;
use crate::notify::Picture;
use crate::store::{Result, Store, StoreError};

pub use gallery::show;
pub use keeper::keep;
pub use metrics::PictureMetrics;
pub use render::{RenderError, Renderer};

/// A source of the signals of runs.
pub trait Curves: fmt::Debug + Send + Sync {
    /// A signal from one step to another (`None` for the first and the last step), in at most
    /// `points` points, and the run's own events in that range.
    fn window(
        &self,
        run: &str,
        signal: &str,
        from: Option<i64>,
        to: Option<i64>,
        points: usize,
    ) -> Option<(Curve, Vec<Deed>)>;
}

/// Draws the charts of incidents.
#[derive(Debug, Clone)]
pub struct Charts {
    store: Store,
    curves: Arc<dyn Curves>,
    pub renderer: Renderer,
    metrics: PictureMetrics,
}

impl Charts {
    pub fn new(store: Store, curves: Arc<dyn Curves>, metrics: PictureMetrics) -> Self {
        Self { store, curves, renderer: Renderer::new(metrics.clone()), metrics }
    }

    /// The present chart of an incident as SVG; if the incident is over, the chart at its end.
    /// `None` if nothing was observed of it.
    pub async fn svg(&self, record: &IncidentRecord, look: Look) -> Result<Option<String>> {
        if record.run.is_empty() {
            return Ok(None);
        }
        let kept = self.store.chart(&record.id).await?;
        let over = record.state == State::Resolved;
        let seen = match kept {
            Some((seen, true)) if over => seen,
            kept => {
                let live = seen::of_incident(record, &*self.curves);
                if live.is_empty() { kept.map(|(seen, _)| seen).unwrap_or_default() } else { live }
            }
        };
        Ok(incident::of_seen(record, &seen).map(|chart| svg(&chart, look)))
    }

    /// The chart of an incident for its message, if it can be drawn.
    pub async fn picture(&self, incident: &str) -> Option<Picture> {
        match self.drawn(incident).await {
            Ok(drawn) => drawn.map(|(picture, _)| picture),
            Err(err) => {
                tracing::warn!(incident, err = chain(&err), "no chart for a message");
                None
            }
        }
    }

    /// The chart of an incident for a small screen, and its title; `None` if there is nothing to
    /// draw.
    async fn drawn(&self, incident: &str) -> core::result::Result<Option<(Picture, String)>, DrawError> {
        let Some(record) = self.store.incident(incident).await? else { return Ok(None) };
        let Some(svg) = self.svg(&record, Look::CARD).await? else { return Ok(None) };
        let png = self.renderer.png(svg).await?;
        let alt = format!("Chart of {} of {}: {}", record.signal, record.run, record.summary.what());
        let title = format!("{} of {}", record.title(), record.run);
        Ok(Some((Picture { name: format!("{incident}.png"), alt, png }, title)))
    }
}

#[derive(Debug, thiserror::Error)]
enum DrawError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Render(#[from] RenderError),
}
