//! What the numbers of a line mean, of which some depend on the others.

use stepwatch_wire::names::metric;

use super::line_values::LineValues;
use crate::own_loss::OwnLoss;
use crate::tokens::Tokens;

impl LineValues {
    /// A norm is that of the gradients where none is called so.
    pub(super) fn settle(&mut self) {
        self.settle_batch();
        self.settle_rate();
        let Some((name, value, quantum)) = self.norm.take() else { return };
        let known = self.train.iter().any(|(name, ..)| name == metric::GRAD_NORM);
        let name = if known { name } else { metric::GRAD_NORM.to_owned() };
        if self.train.iter().all(|(n, ..)| *n != name) {
            self.train.push((name, value, quantum));
        }
    }

    /// A batch that is counted in thousands beside all tokens so far is counted in tokens: `Global
    /// batch size: 1.05M | … | Tokens: 31.5M` of picotron.
    fn settle_batch(&mut self) {
        let of = |name: &str| self.train.iter().position(|(n, ..)| n == name);
        let (Some(batch), Some(tokens)) = (of(metric::SAMPLES), of(metric::TOKENS)) else { return };
        // Both are rounded.
        if self.scaled_batch && self.train[tokens].1 > 0.99 * self.train[batch].1 {
            self.has_tokens_of_step = true;
            metric::TOKENS.clone_into(&mut self.train[batch].0);
            self.train.remove(tokens);
        }
    }

    /// Words per second are those of a GPU in lingua and torchtitan, and of the whole job where
    /// fairseq gives the words of a batch or the updates per second beside them.
    fn settle_rate(&mut self) {
        let of_job = ["wpb", "ups"].iter().any(|name| self.has(name)) && !self.has(metric::TOKENS_PER_SECOND);
        let rate = |(name, ..): &&mut (String, f64, Option<f64>)| name == metric::TOKENS_PER_SECOND_PER_GPU;
        if let Some((name, ..)) = self.train.iter_mut().find(rate).filter(|_| self.has_words && of_job) {
            metric::TOKENS_PER_SECOND.clone_into(name);
        }
    }

    /// Makes the tokens those of the step, or takes them away.
    pub(super) fn settle_tokens(&mut self, step: i64, tokens: &mut Tokens) {
        let at = self.train.iter().position(|(name, ..)| name == metric::TOKENS);
        let Some(at) = at.filter(|_| !self.has_tokens_of_step) else { return };
        let (_, printed, quantum) = self.train[at];
        match tokens.of_step(step, printed, quantum) {
            Some(n) if n == printed => {}
            Some(n) => self.train[at] = (metric::TOKENS.to_owned(), n, None),
            None => drop(self.train.remove(at)),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.train.iter().any(|(n, ..)| n == name)
    }

    /// Gives a loss with a name of its own the name of the loss.
    pub(super) fn own_loss_stands(&mut self, own: &mut OwnLoss) {
        let names = self.train.iter().map(|(name, ..)| name.as_str());
        let Some(found) = own.find(names).map(str::to_owned) else { return };
        if let Some((name, ..)) = self.train.iter_mut().find(|(name, ..)| *name == found) {
            metric::LOSS.clone_into(name);
        }
    }
}
