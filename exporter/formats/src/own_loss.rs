//! The loss of a run that has none under a usual name: `nll_loss`, `train/diffusion_loss`, `xent`.
//!
//! One rule for every source. Of the names on a record, the one that looks most like the loss
//! stands for it: first one that is called a total, then the loss of a policy, then one that is
//! called after training or likelihood, then any other. Of those alike the shorter counts, then the
//! first by alphabet. Losses of evaluations, and parts such as `aux_loss` and `kl_loss`, never do.
//!
//! The name stays until the log has a loss under a usual name, which ends this, or until the name
//! was not on many records in a row that had another. Where the steps begin again, another run may
//! have no usual one: the first of its own counts at once, unless the run before had such names
//! beside the usual one, of which many must come then.

#[cfg(test)]
mod tests;

use core::cmp::Reverse;

use crate::course::{Course, Move};

/// Words in the name of a loss that is only a part of it, or of another model, and of what is no
/// loss at all.
const NO_LOSS: &[&str] = &[
    "aux",
    "auxiliary",
    "z",
    "kl",
    "kld",
    "moe",
    "balance",
    "balancing",
    "load",
    "router",
    "reg",
    "regularization",
    "critic",
    "value",
    "vf",
    "entropy",
    "ent",
    "commit",
    "commitment",
    "disc",
    "discriminator",
    "gan",
    "adv",
    "mtp",
    "best",
    "min",
    "max",
    "std",
    "var",
    "prev",
    "last",
    "epoch",
    "scale",
    "scaler",
    "scaling",
    "weight",
    "weights",
    "coef",
    "coeff",
    "lambda",
    "packet",
    "count",
    "every",
    "steps",
    "interval",
    "window",
    "threshold",
    "type",
    "fn",
    "function",
    "mask",
    "name",
    "num",
    "ratio",
    "grad",
    "norm",
    "lr",
    "time",
    "val",
    "valid",
    "validation",
    "eval",
    "test",
    "dev",
];

/// Words that make a loss.
const LOSSES: &[&str] = &["loss", "losses", "xent", "nll"];
/// Words for the cross entropy of two models; `entropy` alone is none.
const CROSS_ENTROPIES: &[&str] = &["cross_entropy", "cross-entropy", "cross entropy", "crossentropy"];
/// Words of the policy of reinforcement learning.
const POLICIES: &[&str] = &["actor", "policy", "pg"];
/// Records in a row that have another loss of their own, after which it takes the place of the
/// first.
const REPLACED: u32 = 20;

/// How much a name looks like the loss; the greatest stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Likeness<'k> {
    rank: u8,
    shorter: Reverse<usize>,
    earlier: Reverse<&'k str>,
}

/// How much a framework's key looks like the loss of a run that has none under a usual name.
pub fn own_loss(key: &str) -> Option<Likeness<'_>> {
    let mut lower = key.to_ascii_lowercase();
    if !LOSSES.iter().chain(CROSS_ENTROPIES).any(|w| lower.contains(w)) {
        return None;
    }
    for name in CROSS_ENTROPIES {
        lower = lower.replace(name, "xent");
    }
    let words = || lower.split(['/', '_', '-', '.', ' ', ':']).filter(|w| !w.is_empty());
    let has = |list: &[&str]| words().any(|w| list.contains(&w));
    if !has(LOSSES) || has(NO_LOSS) {
        return None;
    }
    let rank = match () {
        () if has(&["total", "overall", "sum"]) => 4,
        () if has(POLICIES) => 3,
        () if has(&["train", "training", "lm", "ce", "nll", "xent", "main"]) => 2,
        () => 1,
    };
    Some(Likeness { rank, shorter: Reverse(key.len()), earlier: Reverse(key) })
}

/// Whether a key is the loss of a policy, of which a trainer may print no other: `actor_loss`.
pub(crate) fn is_policy_loss(key: &str) -> bool {
    let policy = |word: &str| POLICIES.iter().any(|w| w.eq_ignore_ascii_case(word));
    own_loss(key).is_some() && key.split(['/', '_', '-', '.', ' ']).any(policy)
}

/// What stands for the loss in one log.
#[derive(Debug, Default)]
pub(crate) struct OwnLoss {
    course: Course,
    /// The log had a loss under a usual name, since its steps began again.
    usual: bool,
    /// Records without the usual loss had a loss of another name.
    mixed: bool,
    name: Option<Box<str>>,
    /// Records in a row that had another one.
    without: u32,
}

impl OwnLoss {
    /// Notes the step of a record of training, before it is read.
    pub(crate) fn moves(&mut self, step: i64) {
        match self.course.moves(step) {
            Move::On => {}
            Move::Back => (self.usual, self.without) = (false, 0),
            Move::Start => (self.usual, self.without, self.name) = (false, 0, None),
        }
    }

    /// Notes a loss under a usual name: nothing stands for it until the steps begin again.
    pub(crate) fn saw_usual(&mut self) {
        (self.usual, self.name) = (true, None);
    }

    /// Whether the log had a loss, under whichever name.
    pub(crate) fn is_known(&self) -> bool {
        self.usual || self.name.is_some()
    }

    /// Whether a name stands for the loss.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name)
    }

    /// The name that stands for the loss among those of a record without a usual one.
    pub(crate) fn find<'n>(&mut self, names: impl Iterator<Item = &'n str> + Clone) -> Option<&'n str> {
        if self.usual {
            self.mixed |= names.clone().any(|name| own_loss(name).is_some());
            return None;
        }
        if let Some(name) = names.clone().find(|name| self.is(name)) {
            self.without = 0;
            return Some(name);
        }
        let (_, best) = names.filter_map(|name| Some((own_loss(name)?, name))).max()?;
        self.without = self.without.saturating_add(1);
        if (self.name.is_some() || self.mixed) && self.without < REPLACED {
            return None;
        }
        (self.name, self.without, self.mixed) = (Some(best.into()), 0, false);
        Some(best)
    }
}
