//! The one list of the formats of lines.

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

impl Belief {
    pub(crate) fn for_format(name: &str) -> Self {
        match name {
            "deepspeed" => Self::Engine,
            "generic" => Self::LastResort,
            _ => Self::Trainer,
        }
    }
}

/// Name and constructor of a format.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) new: fn() -> Box<dyn Format>,
}

macro_rules! formats {
    ($($name:literal: $ty:path,)*) => {
        /// Every format. Where two could read a line the earlier wins, so the more particular come
        /// first.
        pub(crate) const FORMATS: &[Entry] = &[$(Entry { name: $name, new: || Box::new(<$ty>::default()) },)*];
    };
}

formats! {
    "megatron": crate::megatron::Megatron,
    "jsonl": crate::jsonl::Jsonl,
    "huggingface": crate::huggingface::HuggingFace,
    "torchtitan": crate::torchtitan::Torchtitan,
    "nemo": crate::nemo::Nemo,
    "nanotron": crate::nanotron::Nanotron,
    "olmo": crate::olmo::Olmo,
    "maxtext": crate::maxtext::MaxText,
    "verl": crate::verl::Verl,
    "nanochat": crate::nanochat::Nanochat,
    "nanogpt": crate::nanogpt::NanoGpt,
    "modded-nanogpt": crate::modded_nanogpt::ModdedNanoGpt,
    "llmc": crate::llmc::Llmc,
    "composer": crate::composer::Composer,
    "megatron-progress": crate::progress::Progress,
    "build-nanogpt": crate::build_nanogpt::BuildNanoGpt,
    "torchtune": crate::torchtune::Torchtune,
    "lingua": crate::lingua::Lingua,
    "openrlhf": crate::openrlhf::OpenRlhf,
    "litgpt": crate::litgpt::LitGpt,
    "levanter": crate::levanter::Levanter,
    "nemo-rl": crate::nemo_rl::NemoRl,
    "deepspeed": crate::deepspeed::DeepSpeed,
    "generic": crate::generic::Generic,
}

/// Names that a configuration may give, `auto` first.
pub fn names() -> Vec<&'static str> {
    core::iter::once("auto").chain(FORMATS.iter().map(|f| f.name)).collect()
}
