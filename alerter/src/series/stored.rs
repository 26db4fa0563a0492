//! The stored form of the series: one part per signal, and one per run for the shared state.
//!
//! Parts are written one by one, independently of the engine's commits, so charts may lack the last
//! seconds before a crash. Records that are read again are recognised by their step.

use serde::Serialize;
use serde::de::DeserializeOwned;
use stepwatch_model::time::{Span, Ts};

use super::pyramid::Pyramid;
use super::run::{Frame, RunSeries};
use crate::store::SeriesPart;

/// The version at the beginning of each part. A part of another version is not read, and its series
/// begins anew.
const VERSION: u8 = 1;
/// The name of a run's shared part, which no signal has.
pub(super) const FRAME: &str = "";

/// Whether a part changed since it was written, and when it was written.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kept {
    changed: bool,
    written: Ts,
}

impl Kept {
    pub(super) fn change(&mut self) {
        self.changed = true;
    }

    /// When the part was last written, if it changed since and `every` has passed.
    fn due(self, now: Ts, every: Span) -> Option<Ts> {
        (self.changed && now - self.written >= every).then_some(self.written)
    }

    fn write(&mut self, now: Ts) {
        *self = Self { changed: false, written: now };
    }
}

impl RunSeries {
    /// The names of the due parts, and when each was last written.
    pub(super) fn due(&self, now: Ts, every: Span) -> impl Iterator<Item = (Ts, &str)> {
        let signals = self.signals.iter().map(|(name, signal)| (signal.kept, name.as_str()));
        let all = signals.chain([(self.kept, FRAME)]);
        all.filter_map(move |(kept, name)| kept.due(now, every).map(|written| (written, name)))
    }

    /// A part to be written; it then counts as written.
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

    /// Restores a stored part. False if it is unreadable.
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

    /// Marks a part as changed, because it was not written.
    pub(super) fn unwritten(&mut self, signal: &str) {
        if signal == FRAME {
            self.kept.change();
        } else if let Some(signal) = self.signals.get_mut(signal) {
            signal.kept.change();
        }
    }
}

fn encode(what: &impl Serialize) -> Vec<u8> {
    // Serialising plain data into memory cannot fail; an empty part would be ignored.
    postcard::to_extend(what, vec![VERSION]).unwrap_or_default()
}

fn decode<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    let (version, data) = data.split_first()?;
    (*version == VERSION).then(|| postcard::from_bytes(data).ok()).flatten()
}
