//! What tests of incidents do to an engine besides feeding it.

use super::Engine;
use crate::effect::Effect;
use crate::incident::book::{Book, Party};
use crate::time::Ts;
use crate::verdict::Verdict;

impl Engine {
    /// As if a detector had said so.
    pub(crate) fn judge(&mut self, now: Ts, party: &Party, v: &Verdict, out: &mut Vec<Effect>) {
        self.book.verdict(now, party, v, out);
        self.settle();
    }

    pub(crate) fn book(&mut self) -> &mut Book {
        &mut self.book
    }
}
