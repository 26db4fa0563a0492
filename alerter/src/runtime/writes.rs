//! Handles remote write batches: reports of instances, and values of series that are watched under
//! their own names.

use std::sync::Arc;

use stepwatch_detect::series::SeriesReading;
use stepwatch_engine::SourceInput;
use stepwatch_remote_write::{Report, Reported};
use stepwatch_wire::Kind;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{PORTION, Runtime};

/// The most batches of one portion.
const WRITES_A_PASS: usize = 16;

/// The result of one request. It is answered when it is evaluated and its effects are durable.
#[derive(Debug)]
pub struct WriteBatch {
    pub reports: Vec<Reported>,
    pub readings: Vec<SeriesReading>,
    pub reply: oneshot::Sender<()>,
}

impl Runtime {
    /// Applies one portion of the waiting requests, which begins with `batch`.
    pub(super) fn take_writes(&mut self, batch: WriteBatch) {
        let (started, known) = (Instant::now(), self.pending.effects.len());
        let mut replies = vec![self.apply_write(batch)];
        while replies.len() < WRITES_A_PASS && started.elapsed() < PORTION {
            let Ok(batch) = self.writes.try_recv() else { break };
            replies.push(self.apply_write(batch));
        }
        self.pending.whole |= self.pending.effects.len() > known;
        self.record_series(self.clock.now());
        self.metrics.engine_seconds.observe(started.elapsed().as_secs_f64());
        self.schedule.changed();
        for reply in replies {
            if self.pending.is_urgent() {
                self.pending.hold(reply, ());
            } else {
                let _ = reply.send(());
            }
        }
    }

    fn apply_write(&mut self, batch: WriteBatch) -> oneshot::Sender<()> {
        let WriteBatch { reports, readings, reply } = batch;
        let now = self.clock.now();
        for (source, report) in reports {
            self.report(&source, report);
        }
        if !readings.is_empty() {
            let input = SourceInput::Readings { readings: &readings };
            self.engine.handle(now, input, &mut self.pending.effects);
        }
        reply
    }

    fn report(&mut self, source: &Arc<str>, report: Report) {
        let source = source.as_ref();
        let event;
        let input = match report {
            Report::Event(reported) => {
                event = reported;
                self.events[event.kind as usize].inc();
                if event.kind == Kind::Step {
                    self.metrics.steps.inc();
                }
                SourceInput::Event { source, event: &event }
            }
            Report::Up => SourceInput::SourceUp { source, many_nodes: false },
            Report::Down { reason } => SourceInput::SourceDown { source, reason },
        };
        self.engine.handle(self.clock.now(), input, &mut self.pending.effects);
    }
}
