//! Saves that begin before the last one is written, as trainers say themselves.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Behind {
    /// The number of saves in a row that began so.
    saves: u32,
    /// The save that ends next does.
    is_next: bool,
}

impl Behind {
    /// The trainer says it of the save that it begins.
    pub(super) fn said(&mut self) {
        self.is_next = true;
    }

    pub(super) fn saved(&mut self) {
        let is_behind = core::mem::take(&mut self.is_next);
        self.saves = if is_behind { self.saves.saturating_add(1) } else { 0 };
    }

    pub(super) fn saves(self) -> u32 {
        self.saves
    }
}
