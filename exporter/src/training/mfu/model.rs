//! The model as the trainer describes it, as far as FLOPs depend on it, and the FLOPs per token
//! that follow by each convention.
//!
//! `N` parameters that work on a token, `L` layers, `H·Q` width of the attention heads, `T`
//! sequence length, forward and backward together, without recomputation:
//!
//! | convention | FLOPs per token | who |
//! |---|---|---|
//! | `6n` | `6N` | Kaplan et al. 2020, Hoffmann et al. 2022 |
//! | `full` | `6N + 12·L·H·Q·T` | PaLM (Chowdhery et al. 2022, appendix B), nanoGPT, torchtitan |
//! | `causal` | `6N + 6·L·H·Q·T` | verl, llm.c, Megatron since core 0.12 but for its way of counting `N` |
//! | `exact` | the matrix products of every layer and of the logits, and the causal half of attention | Megatron's `num_floating_point_operations` |
//!
//! A layer with a sliding window of `w` attends to `min(w, T)` tokens in `full`; of these the
//! causal mask leaves `w - w²/2T` on average. A layer that attends within chunks of `c` takes `c`
//! in place of `T`. Linear attention by the gated delta rule and Mamba 2 cost their weights, and
//! what a token does to their state as Megatron counts it: `24·heads·keys·values`, and
//! `21·heads·width·state`.
//!
//! A frozen weight costs `4` instead of `6` (LoRA: no gradient of the weight), an expert that the
//! router did not choose nothing, the look-up of an embedding nothing, and of packed sequences `T`
//! is `Σ L² / Σ L` over the documents. What is not given is not guessed: without it the convention
//! has no figure. A model whose layers are not known has none at all, and a reason.

mod fields;
mod mix;
mod shape;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use stepwatch_wire::Value;

use super::Convention;
use fields::Fields;
use shape::Shape;

/// The model of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Model {
    pub name: Option<String>,
    shape: Shape,
    /// FLOPs per token that the trainer gave, and their convention.
    given: Option<(f64, String)>,
    /// The reason why there is no formula for the model.
    refused: Option<String>,
    /// The parts of the model that its figures leave out.
    note: Option<&'static str>,
}

impl Model {
    /// Reads `model` of a hello event: an object under the names that frameworks use for the same
    /// thing (a `config.json` of Hugging Face is one), or just a name.
    pub fn from_hello(extra: &BTreeMap<String, Value>) -> Self {
        let fields = match extra.get("model") {
            Some(Value::Map(fields)) => Cow::Borrowed(fields),
            Some(Value::Text(name)) => {
                return Self { name: Some(name.clone()), given: given(extra), ..Self::default() };
            }
            _ => Cow::Owned(BTreeMap::new()),
        };
        let (read, note) = Fields::language(&fields);
        let (shape, refused) = Shape::from_fields(&read);
        let refused = refused
            .or_else(|| shape.contradicts(read.number(&["total_params"])?))
            .or_else(|| read.gates_unknown().filter(|_| shape.lacks_gates()))
            // A trainer that gives only a few numbers has not described a model.
            .or_else(|| shape.incomplete().filter(|_| !read.kind().is_empty()));
        Self {
            name: fields.get("name").and_then(Value::as_str).map(str::to_owned),
            shape,
            given: given(&fields).or_else(|| given(extra)),
            refused,
            note,
        }
    }

    /// FLOPs per token under each convention that can be computed; the trainer's own figure is
    /// first. `attended` is the mean length that attention covered in this step, if it was
    /// measured.
    pub fn flops_per_token(&self, attended: Option<f64>) -> Vec<(Cow<'_, str>, f64)> {
        let mut all: Vec<(Cow<'_, str>, f64)> = Vec::new();
        if let Some((flops, convention)) = &self.given {
            all.push((convention.into(), *flops));
        }
        if self.refused.is_some() {
            return all;
        }
        for convention in Convention::ALL {
            let Some(flops) = self.shape.flops(convention, attended) else { continue };
            if all.iter().all(|(name, _)| name != convention.as_str()) {
                all.push((convention.as_str().into(), flops));
            }
        }
        all
    }

    /// The length of the sequences in training.
    pub fn seq_len(&self) -> Option<f64> {
        self.shape.seq_len
    }

    pub fn is_known(&self) -> bool {
        self.given.is_some() || self.refused.is_some() || self.shape.weights().is_some()
    }

    /// The reason why there is no formula for the model.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Returns what is missing for the MFU of a run with this model, whose tokens/s may be known.
    pub fn lacks(&self, has_tokens: bool) -> &'static str {
        match (has_tokens, self.seq_len()) {
            (true, _) => "how many GPUs the run has is not known",
            (false, None) => "neither the tokens of a step nor the length of a sequence are known",
            (false, Some(_)) => {
                "neither the tokens nor the sequences of a step are known, or not its duration"
            }
        }
    }

    /// The reason why it has no MFU, or what its MFU leaves out.
    pub fn remark(&self) -> Option<&str> {
        self.refused.as_deref().filter(|_| self.given.is_none()).or(self.note)
    }
}

fn given(fields: &BTreeMap<String, Value>) -> Option<(f64, String)> {
    let flops = fields.get("flops_per_token").and_then(Value::as_f64)?;
    let convention = ["convention", "flops_convention"].iter().find_map(|k| fields.get(*k)?.as_str());
    let name = convention.unwrap_or("given").chars().take(32).collect();
    (flops.is_finite() && flops > 0.0).then_some((flops, name))
}
