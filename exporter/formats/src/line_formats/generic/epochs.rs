//! Steps that begin again with each epoch, counted on.

use super::line_values::MAX_STEP;
use super::{Generic, Position};
use crate::number;

/// The epoch of a heading that stands on a line of its own, before the lines of that epoch: `Epoch
/// 2/5` of Keras, `Epoch 2`.
pub(super) fn heading(text: &str) -> Option<f64> {
    let head = text.get(..5).filter(|word| word.eq_ignore_ascii_case("epoch"))?;
    let rest = text[head.len()..].trim_start_matches([':', '#']);
    let (epoch, rest) = number::integer(rest.strip_prefix([' ', '['])?)?;
    let total = rest.trim_start().strip_prefix('/').and_then(number::integer);
    let rest = total.map_or(rest, |(_, rest)| rest);
    let is_alone = rest.chars().all(|c| "]:.-= ".contains(c));
    (is_alone && epoch >= 0).then_some(epoch as f64)
}

impl Generic {
    /// The step of the run: behind the epochs before, where the printed one starts again with each.
    /// A rounded one stays the same over many epochs, and does not.
    pub(super) fn counted(&mut self, now: Position, rounded: bool) -> i64 {
        self.offset = self.offset_at(now, rounded);
        self.before = Some(now);
        self.from_zero |= now.step == 0;
        let step = self.offset.saturating_add(now.step).min(MAX_STEP);
        self.last_step = Some(step);
        step
    }

    pub(super) fn offset_at(&self, now: Position, rounded: bool) -> i64 {
        let Some(before) = self.before.filter(|_| !rounded) else { return self.offset };
        let epochs = now.epoch.zip(before.epoch).map_or(0.0, |(now, then)| now - then);
        let from_zero = self.from_zero || now.step == 0;
        let length = now.of.unwrap_or(before.step + i64::from(from_zero)).clamp(1, 1 << 40);
        if epochs >= 1.0 && now.step <= before.step {
            self.offset.saturating_add(length.saturating_mul(epochs.min(1e6) as i64))
        } else if epochs <= -1.0 {
            let back = length.saturating_mul((-epochs).min(1e6) as i64);
            self.offset.saturating_sub(back).max(0)
        } else {
            self.offset
        }
    }
}
