//! Reports whole checkpoints that were removed, as frameworks do that keep only the last ones.

use std::io::ErrorKind;
use std::path::Path;

use stepwatch_wire::Value;
use stepwatch_wire::names::ckpt;

use super::{Checkpoint, State, Watched, is_of_step};

impl Watched {
    /// Publishes that whole checkpoints were removed. One that is merely not watched any more, or
    /// cannot be looked at, is still there.
    pub(super) fn tell_gone(&self, is_listed: impl Fn(&(i64, String)) -> bool, unix: f64) {
        let is_absent =
            |path: &Path| std::fs::symlink_metadata(path).is_err_and(|err| err.kind() == ErrorKind::NotFound);
        for (key, c) in &self.known {
            let was_one = c.state == State::Whole && is_of_step(&key.1);
            let is_copy = |(other, c): (&(i64, String), &Checkpoint)| {
                other.0 == key.0 && other != key && c.state == State::Whole && is_listed(other)
            };
            let has_copy = || self.known.iter().any(is_copy);
            if was_one && !is_listed(key) && is_absent(&c.path) && !has_copy() {
                let mut event = self.event(key, c, unix);
                event.extra.insert(ckpt::GONE.into(), Value::Bool(true));
                self.sink.publish(self.origin(), event);
            }
        }
    }
}
