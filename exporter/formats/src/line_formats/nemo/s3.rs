//! Uploads of NeMo 1's `S3CheckpointIO`: `Uploading checkpoint to s3://b/x-step=24-last.ckpt in
//! asynchronous mode, rank 0`, and then `Time elapsed uploading file /dev/shm/tmpx of size 1.5GB to
//! s3://b/x-step=24-last.ckpt with chunk_size=64MB and max_concurrency=10: 12.34 seconds`, or `with
//! chunk size=64MB and max_threads=10` by AWS's CRT. One step may have several files, and is
//! uploaded when all of them are. NeMo 1 draws the bar of Lightning, whose format reads them too.

use std::collections::VecDeque;

use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event, MAX_TEXT};

use crate::format::{self, Line};
use crate::number;

/// The most files that are uploaded at the same time.
const MAX_OPEN: usize = 16;

/// The files that are being uploaded, and the steps of their checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Uploads(VecDeque<(String, i64)>);

impl Uploads {
    /// Reads a line. `counted` is how the run counts a step that a path names.
    pub(crate) fn read(&mut self, line: &Line<'_>, counted: impl Fn(i64) -> i64) -> Option<Event> {
        let behind = |words: &str| line.text.split_once(words).map(|(_, rest)| rest);
        if let Some(rest) = behind("] Uploading checkpoint to ") {
            return self.begin(rest, line, counted);
        }
        let failed = behind("] Failed to upload ");
        let (_, rest) = failed.or_else(|| behind("] Time elapsed uploading "))?.split_once(" to ")?;
        let (path, rest) = match failed {
            Some(_) => rest.split_once(", exception: ")?,
            None => rest.split_once(" with chunk")?,
        };
        let at = self.0.iter().position(|(open, _)| open == path)?;
        let (_, step) = self.0.remove(at)?;
        if failed.is_none() && self.0.iter().any(|(_, open)| *open == step) {
            return None;
        }
        let phase = if failed.is_some() { CkptPhase::Fail } else { CkptPhase::End };
        let mut e = line.stage(ckpt::UPLOAD, phase, Some(step));
        format::at(&mut e, path);
        if failed.is_none() {
            let seconds = rest.rsplit_once(": ").map(|(_, seconds)| seconds);
            seconds.into_iter().for_each(|seconds| format::took(&mut e, seconds));
        }
        Some(e)
    }

    fn begin(&mut self, rest: &str, line: &Line<'_>, counted: impl Fn(i64) -> i64) -> Option<Event> {
        let (path, mode) = rest.split_once(" in ")?;
        let step = counted(number::integer(path.rsplit_once("step=")?.1)?.0);
        let is_first = mode.ends_with("synchronous mode, rank 0") && path.len() <= MAX_TEXT;
        if !is_first || self.0.iter().any(|(open, _)| open == path) {
            return None;
        }
        if self.0.len() >= MAX_OPEN {
            self.0.pop_front();
        }
        let mut e = line.stage(ckpt::UPLOAD, CkptPhase::Start, Some(step));
        format::at(&mut e, path);
        self.0.push_back((path.to_owned(), step));
        Some(e)
    }

    /// The process that uploads is gone.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[test]
    fn only_so_many_are_open() {
        let (inner, mut uploads) = (Cell::new(None), Uploads::default());
        let mut read = |text: &str| {
            let line = Line { text, raw: text, ts: None, utc_offset: 0.0, inner: &inner };
            uploads.read(&line, |step| step).is_some()
        };
        for n in 0..=MAX_OPEN {
            assert!(read(&format!(
                "] Uploading checkpoint to s3://b/step={n}.ckpt in synchronous mode, rank 0"
            )));
        }
        let mut ends = |n: usize| {
            read(&format!("] Time elapsed uploading file x of size 1.5GB to s3://b/step={n}.ckpt with chunk"))
        };
        assert!(!ends(0) && ends(1) && ends(MAX_OPEN), "the oldest is forgotten");
    }
}
