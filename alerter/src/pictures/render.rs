//! Renders drawings to pixels on blocking threads, one at a time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::metrics::PictureMetrics;
use crate::chart::png::{PngError, png};

/// The most drawings at once, so that they use at most one processor.
const AT_ONCE: usize = 1;
/// The time limit for a drawing, including its wait.
const RENDER_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    #[error("too many pictures are being drawn; try again")]
    Busy,
    #[error(transparent)]
    Png(#[from] PngError),
    #[error("the renderer ended unexpectedly")]
    Panicked,
}

/// The renderer. Clones share its limit.
#[derive(Debug, Clone)]
pub struct Renderer {
    turns: Arc<Semaphore>,
    metrics: PictureMetrics,
}

impl Renderer {
    pub fn new(metrics: PictureMetrics) -> Self {
        Self { turns: Arc::new(Semaphore::new(AT_ONCE)), metrics }
    }

    /// Renders the drawing as PNG.
    pub async fn png(&self, svg: String) -> Result<Bytes, RenderError> {
        let drawn = timeout(RENDER_MAX, self.in_turn(svg)).await.unwrap_or(Err(RenderError::Busy));
        self.metrics.rendered(drawn.is_ok());
        drawn
    }

    async fn in_turn(&self, svg: String) -> Result<Bytes, RenderError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| RenderError::Busy)?;
        let began = Instant::now();
        // The permit is held until the drawing ends, even if its caller no longer waits.
        let drawing = tokio::task::spawn_blocking(move || {
            let drawn = png(&svg);
            drop(turn);
            drawn
        });
        let drawn = drawing.await.map_err(|_| RenderError::Panicked)?;
        self.metrics.took(began.elapsed());
        Ok(Bytes::from(drawn?))
    }
}
