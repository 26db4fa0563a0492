//! `--replay FILE`: writes a real log line by line at its original pace, through the exporter's
//! tail.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use stepwatch_tests::Stack;
use tempfile::NamedTempFile;

use crate::feed::{Feed, delivered};
use crate::screen::{Colour, Screen};
use crate::steps::Steps;

/// The time limit for the end of the log to be evaluated and notified.
const SETTLE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Replay {
    lines: Vec<Vec<u8>>,
    run: String,
    /// The file that the exporter tails.
    log: NamedTempFile,
}

impl Replay {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = bytes.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
        let run = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // The suffix is kept, because tools may detect the format by it.
        let suffix = path.extension().map_or_else(String::new, |e| format!(".{}", e.to_string_lossy()));
        let log = tempfile::Builder::new().prefix("replay-").suffix(&suffix).tempfile()?;
        Ok(Self { lines, run, log })
    }

    /// The exporter's configuration.
    pub(crate) fn source(&self) -> String {
        let path = self.log.path().display();
        format!("sources:\n  - tail: {{path: \"{path}\", format: auto, run: \"{}\"}}\n", self.run)
    }

    pub(crate) async fn play(
        mut self,
        screen: &mut Screen,
        stack: &Stack,
        steps: &Steps,
        lines_per_second: f64,
    ) -> anyhow::Result<()> {
        screen.progress(&format!("replaying {} lines of {}\n", self.lines.len(), self.run));
        screen.start_clock();
        let mut feed = Feed::default();
        let started = tokio::time::Instant::now();
        let mut written = 0;
        while written < self.lines.len() {
            let due = (started.elapsed().as_secs_f64() * lines_per_second.max(0.1)) as usize + 1;
            for line in self.lines.iter().take(due).skip(written) {
                self.log.write_all(line)?;
            }
            written = due.min(self.lines.len());
            feed.until(screen, (stack, steps), LOOK_EVERY, |_| false).await;
        }
        let arrived = |t: &Feed| delivered(t, stack, None);
        let delivered = feed.until(screen, (stack, steps), SETTLE, arrived).await;
        let count = |severity: &str| feed.known.iter().filter(|i| i["severity"] == severity).count();
        let (pages, tickets, notes) = (count("page"), count("ticket"), count("info"));
        let summary =
            format!("{} steps read: {pages} pages, {tickets} tickets, {notes} notes", steps.count());
        screen.event(Colour::Green, "END", &summary);
        ensure!(steps.count() > 0, "no line of it is a step in a format that the exporter knows");
        ensure!(pages == 0 || delivered, "an incident was not delivered");
        Ok(())
    }
}
