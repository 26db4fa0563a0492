//! The steps of the run, read from the exporter's stream as the alerter reads them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use stepwatch_tests::http;
use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};
use tokio::io::AsyncBufReadExt as _;
use tokio::sync::watch;
use tokio_util::io::StreamReader;

/// The most steps whose times are kept.
const REMEMBERED: usize = 5000;
const RECONNECT: Duration = Duration::from_millis(200);

#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) step: i64,
    pub(crate) loss: Option<f64>,
    pub(crate) grad_norm: Option<f64>,
    pub(crate) tokens_per_second: Option<f64>,
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) last: Option<Step>,
    pub(crate) count: usize,
    /// The Unix seconds of each step.
    times: BTreeMap<i64, f64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Steps(Arc<watch::Sender<Seen>>);

impl Steps {
    /// Follows the exporter at `url` until the process ends.
    pub(crate) fn follow(url: &str) -> Self {
        let steps = Self(Arc::new(watch::Sender::new(Seen::default())));
        let (sink, url) = (steps.clone(), format!("{url}/v1/stream"));
        tokio::spawn(async move {
            loop {
                let _ = sink.read(&url).await;
                tokio::time::sleep(RECONNECT).await;
            }
        });
        steps
    }

    async fn read(&self, url: &str) -> anyhow::Result<()> {
        let body = http::client().get(url).send().await?.error_for_status()?.bytes_stream();
        let mut lines = StreamReader::new(body.map_err(std::io::Error::other)).lines();
        while let Some(line) = lines.next_line().await? {
            let Ok(event) = Event::parse(line.as_bytes()) else { continue };
            if let (Kind::Step, Some(step)) = (event.kind, event.step) {
                self.0.send_modify(|seen| seen.take(step, &event));
            }
        }
        Ok(())
    }

    pub(crate) fn last(&self) -> Option<Step> {
        self.0.borrow().last.clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.borrow().count
    }

    /// When a step was sent, in Unix seconds.
    pub(crate) fn sent_at(&self, step: i64) -> Option<f64> {
        self.0.borrow().times.get(&step).copied()
    }
}

impl Seen {
    fn take(&mut self, step: i64, event: &Event) {
        self.count += 1;
        self.times.insert(step, event.ts.unwrap_or_default());
        if self.times.len() > REMEMBERED {
            self.times.pop_first();
        }
        self.last = Some(Step {
            step,
            loss: event.m.get(metric::LOSS),
            grad_norm: event.m.get(metric::GRAD_NORM),
            tokens_per_second: event.m.get(metric::TOKENS_PER_SECOND),
        });
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {:>6}", self.step)?;
        for (name, value) in
            [("loss", self.loss), ("grad norm", self.grad_norm), ("tokens/s", self.tokens_per_second)]
        {
            match value {
                Some(v) if v.abs() >= 1e4 => write!(f, "   {name} {v:.3e}")?,
                Some(v) => write!(f, "   {name} {v:.3}")?,
                None => {}
            }
        }
        Ok(())
    }
}
