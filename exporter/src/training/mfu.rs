//! Throughput and model FLOP/s utilisation, computed here so that every run on the cluster is measured alike.
//!
//! `mfu = tokens per second per GPU x FLOPs per token / peak`. FLOPs per token follow one of the published
//! conventions, which differ by a quarter on long sequences, so the convention is part of the number's name. Nothing is
//! derived from a printed MFU: its peak is unknown.

use std::borrow::Cow;
use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Metrics, Value};

/// How FLOPs per token are counted, forward and backward together, without recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Convention {
    /// `6N + 12 L H Q T`: PaLM, nanoGPT, torchtitan.
    #[default]
    Full,
    /// `6N + 6 L H Q T`, the causal half of attention: Megatron since core 0.12, verl, llm.c.
    Causal,
    /// `6N`, no attention.
    #[serde(rename = "6n")]
    SixN,
}

impl Convention {
    pub const ALL: [Self; 3] = [Self::Full, Self::Causal, Self::SixN];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Causal => "causal",
            Self::SixN => "6n",
        }
    }
}

/// What a trainer tells of its model in `hello`, as far as FLOPs depend on it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Model {
    pub name: Option<String>,
    /// Parameters that work on each token: the active ones of a mixture of experts.
    params: Option<f64>,
    /// `L H Q T`: layers x width of the attention heads x sequence length.
    attention: Option<f64>,
    /// FLOPs per token as the trainer counts them, and by which convention.
    given: Option<(f64, String)>,
}

impl Model {
    /// Reads `model` of a hello event: an object under the names that frameworks use for the same thing, or just a name.
    pub fn from_hello(extra: &BTreeMap<String, Value>) -> Self {
        let fields = match extra.get("model") {
            Some(Value::Map(fields)) => Cow::Borrowed(fields),
            Some(Value::Text(name)) => {
                return Self { name: Some(name.clone()), given: given(extra), ..Self::default() };
            }
            _ => Cow::Owned(BTreeMap::new()),
        };
        let number = |names: &[&str]| {
            let value = names.iter().find_map(|n| fields.get(*n)).and_then(Value::as_f64);
            value.filter(|v| v.is_finite() && *v > 0.0)
        };
        let layers = number(&["layers", "n_layers", "n_layer", "num_layers", "num_hidden_layers"]);
        let heads = number(&["heads", "n_heads", "n_head", "num_heads", "num_attention_heads"]);
        let width = heads
            .zip(number(&["head_dim", "d_head", "kv_channels"]))
            .map(|(h, q)| h * q)
            .or_else(|| number(&["hidden", "hidden_size", "d_model", "n_embd", "dim"]));
        let length = number(&["seq_len", "seq_length", "sequence_length", "block_size", "max_seq_len"]);
        let attention = layers.zip(width).zip(length).map(|((l, w), t)| l * w * t);
        Self {
            name: fields.get("name").and_then(Value::as_str).map(str::to_owned),
            params: number(&["n_active", "active_params"])
                .or_else(|| number(&["n_params", "params", "num_params", "num_parameters", "parameters"])),
            attention,
            given: given(&fields).or_else(|| given(extra)),
        }
    }

    /// FLOPs per token under each convention that can be computed; what the trainer gave comes first.
    pub fn flops_per_token(&self) -> Vec<(Cow<'_, str>, f64)> {
        let mut all: Vec<(Cow<'_, str>, f64)> = Vec::new();
        if let Some((flops, convention)) = &self.given {
            all.push((convention.into(), *flops));
        }
        for convention in Convention::ALL {
            let flops = match (convention, self.params, self.attention) {
                (Convention::SixN, Some(n), _) => 6.0 * n,
                (Convention::Causal, Some(n), Some(a)) => 6.0 * n + 6.0 * a,
                (Convention::Full, Some(n), Some(a)) => 6.0 * n + 12.0 * a,
                _ => continue,
            };
            if all.iter().all(|(name, _)| name != convention.as_str()) {
                all.push((convention.as_str().into(), flops));
            }
        }
        all
    }

    pub fn is_known(&self) -> bool {
        self.params.is_some() || self.given.is_some()
    }
}

fn given(fields: &BTreeMap<String, Value>) -> Option<(f64, String)> {
    let flops = fields.get("flops_per_token").and_then(Value::as_f64)?;
    let convention = ["convention", "flops_convention"].iter().find_map(|k| fields.get(*k)?.as_str());
    let name = convention.unwrap_or("given").chars().take(32).collect();
    (flops.is_finite() && flops > 0.0).then_some((flops, name))
}

/// What is known of the machine and the model when a step arrives.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    pub world: Option<u32>,
    pub model: &'a Model,
    /// Peak FLOP/s of one GPU.
    pub peak: Option<f64>,
    /// The convention whose figure becomes the step's own `mfu`.
    pub prefer: Convention,
}

/// Adds to a step's metrics what follows from them: tokens per second, the same per GPU, and MFU.
/// Returns the MFU under every convention.
///
/// The trainer's own `mfu` moves to `mfu_reported`: a figure by an unknown convention and peak is never ours.
pub fn enrich(m: &mut Metrics, setting: Setting<'_>) -> Vec<(String, f64)> {
    if let Some(reported) = m.remove(metric::MFU) {
        m.set(metric::MFU_REPORTED, reported);
    }
    let positive = |m: &Metrics, name| m.get(name).filter(|v| v.is_finite() && *v > 0.0);
    let gpus = setting.world.filter(|w| *w > 0).map(f64::from);
    let total = positive(m, metric::TOKENS_PER_SECOND)
        .or_else(|| Some(positive(m, metric::TOKENS)? / positive(m, metric::STEP_TIME)?))
        .or_else(|| Some(positive(m, metric::TOKENS_PER_SECOND_PER_GPU)? * gpus?));
    let Some(total) = total.filter(|t| t.is_finite() && *t > 0.0) else {
        return own_mfu(m, positive(m, metric::TOKENS_PER_SECOND_PER_GPU), setting);
    };
    m.set(metric::TOKENS_PER_SECOND, total);
    let per_gpu = positive(m, metric::TOKENS_PER_SECOND_PER_GPU).or_else(|| Some(total / gpus?));
    if let Some(per_gpu) = per_gpu {
        m.set(metric::TOKENS_PER_SECOND_PER_GPU, per_gpu);
    }
    own_mfu(m, per_gpu, setting)
}

fn own_mfu(m: &mut Metrics, per_gpu: Option<f64>, setting: Setting<'_>) -> Vec<(String, f64)> {
    let Some((per_gpu, peak)) = per_gpu.zip(setting.peak) else { return Vec::new() };
    let all: Vec<(String, f64)> = setting
        .model
        .flops_per_token()
        .into_iter()
        .map(|(convention, flops)| (convention.into_owned(), per_gpu * flops / peak))
        .collect();
    let preferred = all.iter().find(|(c, _)| c == setting.prefer.as_str()).or(all.first());
    if let Some((_, mfu)) = preferred {
        m.set(metric::MFU, *mfu);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::peaks::{Dtype, peak};
    use stepwatch_wire::Event;

    /// Llama-3-8B without its input embedding, as torchtitan counts parameters.
    fn llama_8b() -> Model {
        let hello = Event::parse(
            br#"{"k":"hello","run":"r","model":{"name":"llama-3-8b","n_params":7504924672,"layers":32,"heads":32,
                 "head_dim":128,"seq_len":8192}}"#,
        )
        .unwrap();
        Model::from_hello(&hello.extra)
    }

    fn setting(model: &Model, peak: Option<f64>) -> Setting<'_> {
        Setting { world: Some(8), model, peak, prefer: Convention::Full }
    }

    #[test]
    fn the_worked_example() {
        let model = llama_8b();
        // 9,500 tokens a second on each of 8 H100, two seconds a step.
        let mut m = Metrics::from_iter([("tokens", 9_500.0 * 8.0 * 2.0), ("step_time", 2.0)]);
        let mfu = enrich(&mut m, setting(&model, peak("NVIDIA H100 80GB HBM3", Dtype::Bf16)));
        assert_eq!(m.get("tokens_per_second"), Some(76_000.0));
        assert_eq!(m.get("tokens_per_second_per_gpu"), Some(9_500.0));
        for (convention, percent) in [("6n", 43.3), ("causal", 49.4), ("full", 55.6)] {
            let ours = mfu.iter().find(|(n, _)| n == convention).unwrap().1 * 100.0;
            // The published figures divide by 989, the datasheet says 989.4.
            assert!((ours - percent).abs() < 0.07, "{convention} {ours} {percent}");
        }
        assert_eq!(m.get("mfu"), mfu.iter().find(|(c, _)| c == "full").map(|(_, v)| *v));
    }

    #[test]
    fn an_unknown_gpu_or_model_has_no_mfu() {
        let model = llama_8b();
        let step = || Metrics::from_iter([("tokens", 1e6), ("step_time", 1.0)]);
        let mut m = step();
        assert!(enrich(&mut m, setting(&model, None)).is_empty());
        assert!(enrich(&mut m, setting(&Model::default(), Some(1e15))).is_empty());
        assert_eq!(m.get("mfu"), None);
        assert_eq!(m.get("tokens_per_second_per_gpu"), Some(125_000.0));
    }

    #[test]
    fn the_frameworks_own_figure_is_kept_apart() {
        let model = llama_8b();
        let mut m = Metrics::from_iter([("mfu", 0.41), ("tokens", 152_000.0), ("step_time", 2.0)]);
        enrich(&mut m, setting(&model, Some(989.4e12)));
        assert_eq!(m.get("mfu_reported"), Some(0.41));
        assert!(m.get("mfu").is_some_and(|v| (v - 0.556).abs() < 0.001));
        let mut m = Metrics::from_iter([("mfu", 0.41)]);
        assert!(enrich(&mut m, setting(&model, None)).is_empty());
        assert_eq!((m.get("mfu"), m.get("mfu_reported")), (None, Some(0.41)));
    }

    #[test]
    fn what_the_trainer_counts_itself_is_used_under_its_name() {
        let hello =
            br#"{"k":"hello","run":"r","model":"mystery","flops_per_token":6e10,"convention":"megatron"}"#;
        let model = Model::from_hello(&Event::parse(hello).unwrap().extra);
        assert_eq!(model.flops_per_token(), [("megatron".into(), 6e10)]);
        let mut m = Metrics::from_iter([("tokens_per_second_per_gpu", 5_000.0)]);
        let mfu = enrich(&mut m, Setting { world: None, ..setting(&model, Some(1e15)) });
        assert_eq!(mfu, [("megatron".to_owned(), 0.3)]);
        assert_eq!(m.get("mfu"), Some(0.3));
    }

    proptest::proptest! {
        #[test]
        fn no_input_makes_a_number_out_of_nothing(
            tokens: f64, seconds: f64, per_gpu: f64, world: Option<u32>, peak in proptest::option::of(1e12f64..1e16),
        ) {
            let model = llama_8b();
            let mut m = Metrics::from_iter([
                ("tokens", tokens), ("step_time", seconds), ("tokens_per_second_per_gpu", per_gpu),
            ]);
            let setting = Setting { world, model: &model, peak, prefer: Convention::Causal };
            for (_, ratio) in enrich(&mut m, setting) {
                proptest::prop_assert!(ratio >= 0.0);
            }
            proptest::prop_assert!(m.get("tokens_per_second").is_none_or(|v| v > 0.0));
        }
    }
}
