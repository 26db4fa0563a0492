//! The one list of the formats of lines. A format is one file below and one line here.

#[cfg(test)]
mod samples;

use crate::format::Format;

/// How much it takes to believe that a log is written in a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Belief {
    /// The grammar of a trainer, which no other lines look like: trusted at the first record.
    Trainer,
    /// Of what prints beside the trainer that uses it: trusted until a trainer's own record is
    /// read.
    Engine,
    /// Any line with a step in it: tried last and trusted least, see `generic.rs`.
    LastResort,
}

/// Name and constructor of a format.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) belief: Belief,
    pub(crate) new: fn() -> Box<dyn Format>,
    /// What the tests of all formats need of it.
    #[cfg(test)]
    samples: samples::Samples,
}

/// One line a format: its name, its module and type, and what it takes to believe in it.
macro_rules! formats {
    ($($name:literal: $module:ident::$ty:ident, $belief:ident;)*) => {
        $(pub(crate) mod $module;)*

        /// Every format. Where two could read a line the earlier wins, so the more particular come
        /// first.
        pub(crate) const FORMATS: &[Entry] = &[$(Entry {
            name: $name,
            belief: Belief::$belief,
            new: || Box::new($module::$ty::default()),
            #[cfg(test)]
            samples: samples::Samples::of::<$module::$ty>(),
        },)*];
    };
}

formats! {
    "megatron": megatron::Megatron, Trainer;
    "jsonl": jsonl::Jsonl, Trainer;
    "huggingface": huggingface::HuggingFace, Trainer;
    "torchtitan": torchtitan::Torchtitan, Trainer;
    "nemo": nemo::Nemo, Trainer;
    "nanotron": nanotron::Nanotron, Trainer;
    "olmo": olmo::Olmo, Trainer;
    "maxtext": maxtext::MaxText, Trainer;
    "verl": verl::Verl, Trainer;
    "nanochat": nanochat::Nanochat, Trainer;
    "nanogpt": nanogpt::NanoGpt, Trainer;
    "modded-nanogpt": modded_nanogpt::ModdedNanoGpt, Trainer;
    "llmc": llmc::Llmc, Trainer;
    "composer": composer::Composer, Trainer;
    "megatron-progress": progress::Progress, Trainer;
    "build-nanogpt": build_nanogpt::BuildNanoGpt, Trainer;
    "torchtune": torchtune::Torchtune, Trainer;
    "lingua": lingua::Lingua, Trainer;
    "openrlhf": openrlhf::OpenRlhf, Trainer;
    "litgpt": litgpt::LitGpt, Trainer;
    "lightning": lightning::Lightning, Trainer;
    "levanter": levanter::Levanter, Trainer;
    "nemo-rl": nemo_rl::NemoRl, Trainer;
    "deepspeed": deepspeed::DeepSpeed, Engine;
    "generic": generic::Generic, LastResort;
}

/// Names that a configuration may give, `auto` first.
pub fn names() -> Vec<&'static str> {
    core::iter::once("auto").chain(FORMATS.iter().map(|f| f.name)).collect()
}
