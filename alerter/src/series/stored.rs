//! The series as they are kept over a restart: a part a signal, and one a run for what its signals
//! share.
//!
//! Parts are written one by one, beside what the engine decides: pictures may miss the last seconds
//! before a crash. What is read again from the streams is recognised by its step.

use serde::Serialize;
use serde::de::DeserializeOwned;
use stepwatch_model::time::{Span, Ts};

use super::pyramid::Pyramid;
use super::run::{Frame, RunSeries};
use crate::store::SeriesPart;

/// Begins each part. Of another version nothing is read, and the series begins anew.
const VERSION: u8 = 1;
/// The name of the part that the signals of a run share; no signal has it.
pub(super) const FRAME: &str = "";

/// Whether something changed since it was written, and when that was.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kept {
    changed: bool,
    written: Ts,
}

impl Kept {
    pub(super) fn change(&mut self) {
        self.changed = true;
    }

    /// When it was written last, if it changed since and that is `every` ago.
    fn due(self, now: Ts, every: Span) -> Option<Ts> {
        (self.changed && now - self.written >= every).then_some(self.written)
    }

    fn write(&mut self, now: Ts) {
        *self = Self { changed: false, written: now };
    }
}

impl RunSeries {
    /// The names of the parts that are due, and when each was written last.
    pub(super) fn due(&self, now: Ts, every: Span) -> impl Iterator<Item = (Ts, &str)> {
        let signals = self.signals.iter().map(|(name, signal)| (signal.kept, name.as_str()));
        let all = signals.chain([(self.kept, FRAME)]);
        all.filter_map(move |(kept, name)| kept.due(now, every).map(|written| (written, name)))
    }

    /// A part as it is to be written; it counts as written.
    pub(super) fn take_part(&mut self, run: &str, signal: &str, now: Ts) -> Option<SeriesPart> {
        let (kept, data) = if signal == FRAME {
            (&mut self.kept, encode(&self.frame))
        } else {
            let signal = self.signals.get_mut(signal)?;
            (&mut signal.kept, encode(&signal.pyramid))
        };
        kept.write(now);
        Some(SeriesPart { run: run.to_owned(), signal: signal.to_owned(), at: self.last_at, data })
    }

    /// Puts a stored part in its place. False if it cannot be read.
    pub(super) fn restore(&mut self, part: &SeriesPart) -> bool {
        self.last_at = self.last_at.max(part.at);
        if part.signal == FRAME {
            let frame = decode::<Frame>(&part.data).filter(Frame::is_sound);
            return frame.map(|frame| self.frame = frame).is_some();
        }
        let Some(mut pyramid) = decode::<Pyramid>(&part.data).filter(Pyramid::is_sound) else { return false };
        pyramid.shrink();
        self.signals.entry(part.signal.clone()).or_default().pyramid = pyramid;
        true
    }

    /// It was not written after all.
    pub(super) fn unwritten(&mut self, signal: &str) {
        if signal == FRAME {
            self.kept.change();
        } else if let Some(signal) = self.signals.get_mut(signal) {
            signal.kept.change();
        }
    }
}

fn encode(what: &impl Serialize) -> Vec<u8> {
    // Serialising plain data into memory cannot fail; an empty part would not be read.
    postcard::to_extend(what, vec![VERSION]).unwrap_or_default()
}

fn decode<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    let (version, data) = data.split_first()?;
    (*version == VERSION).then(|| postcard::from_bytes(data).ok()).flatten()
}
