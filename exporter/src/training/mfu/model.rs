//! What a trainer tells of its model, as far as FLOPs depend on it, and the FLOPs per token that follow by each convention.
//!
//! `N` parameters that work on a token, `L` layers, `H·Q` width of the attention heads, `T` sequence length, forward and backward together,
//! without recomputation:
//!
//! | convention | FLOPs per token | who |
//! |---|---|---|
//! | `6n` | `6N` | Kaplan et al. 2020, Hoffmann et al. 2022 |
//! | `full` | `6N + 12·L·H·Q·T` | PaLM (Chowdhery et al. 2022, appendix B), nanoGPT, torchtitan |
//! | `causal` | `6N + 6·L·H·Q·T` | verl, llm.c, Megatron since core 0.12 but for its way of counting `N` |
//! | `exact` | the matrix products of every layer and of the logits, and the causal half of attention | Megatron's `num_floating_point_operations` |
//!
//! A frozen weight costs `4` instead of `6` (LoRA: no gradient of the weight), an expert that the router did not choose nothing, and of packed
//! sequences `T` is `Σ L² / Σ L` over the documents. What is not told is not guessed: without it the convention has no figure.

use std::borrow::Cow;
use std::collections::BTreeMap;

use stepwatch_wire::Value;

use super::Convention;

/// The model of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Model {
    pub name: Option<String>,
    shape: Shape,
    /// FLOPs per token as the trainer counts them, and by which convention.
    given: Option<(f64, String)>,
}

/// Dimensions of a transformer; each is absent unless it was told.
#[derive(Debug, Clone, PartialEq, Default)]
struct Shape {
    params: Option<f64>,
    /// Parameters that work on each token: fewer than `params` in a mixture of experts.
    active: Option<f64>,
    /// Parameters with a gradient: fewer than `params` with adapters.
    trainable: Option<f64>,
    layers: Option<f64>,
    hidden: Option<f64>,
    heads: Option<f64>,
    kv_heads: Option<f64>,
    head_dim: Option<f64>,
    ffn: Option<f64>,
    /// The feed-forward part has a gate, so three matrices instead of two.
    gated: Option<bool>,
    vocab: Option<f64>,
    /// What attention sees of a token's sequence, `Σ L² / Σ L` when it is packed.
    attended: Option<f64>,
    experts: Option<Experts>,
    latent: Option<Latent>,
    /// Extra layers that predict further tokens.
    mtp_layers: f64,
}

/// The feed-forward part of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Experts {
    count: f64,
    chosen: f64,
    ffn: Option<f64>,
    /// Width of the experts that every token passes.
    shared_ffn: f64,
    /// First layers that are dense.
    dense_layers: f64,
    /// Every how many layers one has experts.
    every: f64,
}

/// Multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Latent {
    q_rank: Option<f64>,
    kv_rank: f64,
    nope_dim: f64,
    rope_dim: f64,
    v_dim: f64,
}

/// The object that dimensions are read from.
struct Fields<'a>(&'a BTreeMap<String, Value>);

impl Fields<'_> {
    /// A positive number, under the first of the names that has one.
    fn number(&self, names: &[&str]) -> Option<f64> {
        let mut numbers = names.iter().filter_map(|n| self.0.get(*n)?.as_f64());
        numbers.find(|v| v.is_finite() && *v > 0.0)
    }

    fn text(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|n| self.0.get(*n)?.as_str()).map(str::to_ascii_lowercase)
    }

    fn gated(&self) -> Option<bool> {
        for name in ["gated", "swiglu", "gated_linear_unit"] {
            if let Some(Value::Bool(gated)) = self.0.get(name) {
                return Some(*gated);
            }
        }
        let names =
            ["hidden_act", "hidden_activation", "activation_function", "activation", "activation_func"];
        let activation = self.text(&names)?;
        let gemma = self.text(&["model_type"]).is_some_and(|t| t.starts_with("gemma"));
        Some(gemma || ["silu", "swish", "glu"].iter().any(|a| activation.contains(a)))
    }

    fn experts(&self) -> Option<Experts> {
        let count = self.number(&[
            "experts",
            "num_experts",
            "n_experts",
            "num_local_experts",
            "n_routed_experts",
            "num_moe_experts",
        ])?;
        let chosen = self.number(&[
            "top_k",
            "num_experts_per_tok",
            "num_experts_per_token",
            "moe_router_topk",
            "moe_top_k",
        ])?;
        let ffn = self.number(&["expert_ffn", "moe_intermediate_size", "moe_ffn_hidden_size"]);
        let shared = || Some(self.number(&["n_shared_experts", "num_shared_experts"])? * ffn?);
        let shared_ffn = self.number(&[
            "shared_ffn",
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ]);
        Some(Experts {
            count,
            chosen: chosen.min(count),
            ffn,
            shared_ffn: shared_ffn.or_else(shared).unwrap_or(0.0),
            dense_layers: self.number(&["dense_layers", "first_k_dense_replace"]).unwrap_or(0.0),
            every: self.number(&["moe_layer_freq", "decoder_sparse_step"]).unwrap_or(1.0).max(1.0),
        })
    }

    fn latent(&self) -> Option<Latent> {
        Some(Latent {
            q_rank: self.number(&["q_lora_rank"]),
            kv_rank: self.number(&["kv_lora_rank"])?,
            nope_dim: self.number(&["qk_nope_head_dim", "qk_head_dim"])?,
            rope_dim: self.number(&["qk_rope_head_dim", "qk_pos_emb_head_dim"])?,
            v_dim: self.number(&["v_head_dim"])?,
        })
    }

    /// GPT-2 and its kin say by `"n_inner": null` that it is the usual width.
    fn ffn(&self, hidden: Option<f64>) -> Option<f64> {
        let names = ["ffn", "ffn_dim", "ffn_hidden_size", "intermediate_size", "d_ff", "n_inner"];
        let usual = || (self.0.get("n_inner") == Some(&Value::Null)).then_some(4.0 * hidden?);
        self.number(&names).or_else(usual)
    }

    fn shape(&self) -> Shape {
        let length = self.number(&["seq_len", "seq_length", "sequence_length", "block_size", "max_seq_len"]);
        let hidden = self.number(&["hidden", "hidden_size", "d_model", "n_embd", "dim"]);
        Shape {
            params: self.number(&["n_params", "params", "num_params", "num_parameters", "parameters"]),
            active: self.number(&["n_active", "active_params", "n_active_params", "num_active_params"]),
            trainable: self.number(&["trainable_params", "n_trainable", "lora_params"]),
            layers: self.number(&["layers", "n_layers", "n_layer", "num_layers", "num_hidden_layers"]),
            hidden,
            heads: self.number(&["heads", "n_heads", "n_head", "num_heads", "num_attention_heads"]),
            kv_heads: self.number(&[
                "kv_heads",
                "n_kv_heads",
                "num_kv_heads",
                "num_key_value_heads",
                "num_query_groups",
            ]),
            head_dim: self.number(&["head_dim", "d_head", "kv_channels"]),
            ffn: self.ffn(hidden),
            gated: self.gated(),
            vocab: self.number(&["vocab", "vocab_size", "padded_vocab_size", "n_vocab"]),
            attended: self.number(&["packed_seq_len"]).or(length),
            experts: self.experts(),
            latent: self.latent(),
            mtp_layers: self
                .number(&["mtp_layers", "mtp_num_layers", "num_nextn_predict_layers"])
                .unwrap_or(0.0),
        }
    }
}

impl Model {
    /// Reads `model` of a hello event: an object under the names that frameworks use for the same thing (a `config.json` of Hugging Face
    /// is one), or just a name.
    pub fn from_hello(extra: &BTreeMap<String, Value>) -> Self {
        let fields = match extra.get("model") {
            Some(Value::Map(fields)) => Cow::Borrowed(fields),
            Some(Value::Text(name)) => {
                return Self { name: Some(name.clone()), given: given(extra), ..Self::default() };
            }
            _ => Cow::Owned(BTreeMap::new()),
        };
        Self {
            name: fields.get("name").and_then(Value::as_str).map(str::to_owned),
            shape: Fields(&fields).shape(),
            given: given(&fields).or_else(|| given(extra)),
        }
    }

    /// FLOPs per token under each convention that can be computed; what the trainer gave comes first. `attended` is what attention saw
    /// in this step, where that is known better than from the model.
    pub fn flops_per_token(&self, attended: Option<f64>) -> Vec<(Cow<'_, str>, f64)> {
        let mut all: Vec<(Cow<'_, str>, f64)> = Vec::new();
        if let Some((flops, convention)) = &self.given {
            all.push((convention.into(), *flops));
        }
        for convention in Convention::ALL {
            let Some(flops) = self.shape.flops(convention, attended) else { continue };
            if all.iter().all(|(name, _)| name != convention.as_str()) {
                all.push((convention.as_str().into(), flops));
            }
        }
        all
    }

    pub fn is_known(&self) -> bool {
        self.given.is_some() || self.shape.weights().is_some()
    }
}

fn given(fields: &BTreeMap<String, Value>) -> Option<(f64, String)> {
    let flops = fields.get("flops_per_token").and_then(Value::as_f64)?;
    let convention = ["convention", "flops_convention"].iter().find_map(|k| fields.get(*k)?.as_str());
    let name = convention.unwrap_or("given").chars().take(32).collect();
    (flops.is_finite() && flops > 0.0).then_some((flops, name))
}

impl Shape {
    fn flops(&self, convention: Convention, attended: Option<f64>) -> Option<f64> {
        let attention = || Some(self.layers? * self.attention_width()? * attended.or(self.attended)?);
        let flops = match convention {
            Convention::SixN => self.cost(self.weights()?),
            Convention::Full => self.cost(self.weights()?) + 12.0 * attention()?,
            Convention::Causal => self.cost(self.weights()?) + 6.0 * attention()?,
            Convention::Exact => {
                let deeper = 1.0 + self.mtp_layers / self.layers?;
                self.cost(self.matrices()?) + 6.0 * attention()? * deeper
            }
        };
        Some(flops).filter(|f| f.is_finite() && *f > 0.0)
    }

    /// FLOPs of a token through so many weights: two forward, two for the gradient of what comes in, two for that of the weight itself if it
    /// has one.
    fn cost(&self, weights: f64) -> f64 {
        let trained = self.trainable.unwrap_or(weights).min(weights);
        4.0 * weights + 2.0 * trained
    }

    /// Parameters that work on a token.
    fn weights(&self) -> Option<f64> {
        self.active.or_else(|| Some(self.params? - self.idle_experts()?)).or_else(|| self.matrices())
    }

    /// Parameters of the experts that the router does not choose for a token; 0 without experts.
    fn idle_experts(&self) -> Option<f64> {
        let Some(experts) = &self.experts else { return Some(0.0) };
        let expert = self.feed_forward(experts.ffn.or(self.ffn)?)?;
        Some(self.expert_layers(experts)? * (experts.count - experts.chosen) * expert)
    }

    fn expert_layers(&self, experts: &Experts) -> Option<f64> {
        Some(((self.layers? - experts.dense_layers).max(0.0) / experts.every).floor())
    }

    /// Width that scores and their sums are computed over: that of the heads, or with latent attention the mean of keys and values.
    fn attention_width(&self) -> Option<f64> {
        match (&self.latent, self.heads, self.head_dim) {
            (Some(l), Some(heads), _) => Some(heads * (l.nope_dim + l.rope_dim + l.v_dim) / 2.0),
            (None, Some(heads), Some(dim)) => Some(heads * dim),
            _ => self.hidden,
        }
    }

    /// Weights of the matrix products that a token passes, logits with them and the look-up of its embedding without.
    fn matrices(&self) -> Option<f64> {
        let (layers, hidden) = (self.layers?, self.hidden?);
        let attention = self.attention_weights()?;
        let logits = hidden * self.vocab?;
        let (sparse, sparse_ffn) = match &self.experts {
            None => (0.0, 0.0),
            Some(e) => {
                let chosen = e.chosen * self.feed_forward(e.ffn.or(self.ffn)?)?;
                let shared = if e.shared_ffn > 0.0 { self.feed_forward(e.shared_ffn)? } else { 0.0 };
                (self.expert_layers(e)?, chosen + shared + hidden * e.count)
            }
        };
        let dense = layers - sparse;
        let dense_ffn = if dense > 0.0 { dense * self.feed_forward(self.ffn?)? } else { 0.0 };
        // A layer that predicts further is like the last one, and has a projection and logits of its own.
        let last_ffn = if sparse > 0.0 { sparse_ffn } else { self.feed_forward(self.ffn?)? };
        let further = self.mtp_layers * (attention + last_ffn + 2.0 * hidden * hidden + logits);
        Some(layers * attention + sparse * sparse_ffn + dense_ffn + logits + further)
    }

    fn attention_weights(&self) -> Option<f64> {
        let (hidden, heads) = (self.hidden?, self.heads?);
        let Some(l) = &self.latent else {
            let dim = self.head_dim.unwrap_or(hidden / heads);
            let groups = self.kv_heads.unwrap_or(heads);
            return Some(2.0 * hidden * dim * (heads + groups));
        };
        let q = heads * (l.nope_dim + l.rope_dim);
        let queries = l.q_rank.map_or(hidden * q, |rank| rank * (hidden + q));
        let keys_and_values = hidden * (l.kv_rank + l.rope_dim) + l.kv_rank * heads * (l.nope_dim + l.v_dim);
        Some(queries + keys_and_values + heads * l.v_dim * hidden)
    }

    fn feed_forward(&self, width: f64) -> Option<f64> {
        let matrices = if self.gated? { 3.0 } else { 2.0 };
        Some(matrices * self.hidden? * width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepwatch_wire::Event;

    fn model(fields: &str) -> Model {
        let hello = format!(r#"{{"k":"hello","run":"r","model":{fields}}}"#);
        Model::from_hello(&Event::parse(hello.as_bytes()).unwrap().extra)
    }

    fn flops(model: &Model, convention: &str) -> Option<f64> {
        model.flops_per_token(None).into_iter().find(|(c, _)| c == convention).map(|(_, f)| f)
    }

    /// Cases that the calculator of the Python client is held to as well.
    #[test]
    fn the_published_cases() {
        let Value::List(cases) = Value::parse(include_bytes!("cases.json")).unwrap() else {
            panic!("a list")
        };
        for case in &cases {
            let name = case.get("name").and_then(Value::as_str).unwrap();
            let Some(Value::Map(extra)) = Some(case) else { panic!("{name}") };
            let model = Model::from_hello(extra);
            let Some(Value::Map(want)) = case.get("flops_per_token_want") else { panic!("{name}") };
            for convention in Convention::ALL {
                let (ours, want) = (flops(&model, convention.as_str()), want.get(convention.as_str()));
                match want.and_then(Value::as_f64) {
                    Some(want) => {
                        let ours = ours.unwrap_or_else(|| panic!("{name} {convention:?}: none"));
                        assert!((ours / want - 1.0).abs() < 1e-6, "{name} {convention:?}: {ours} {want}");
                    }
                    None => assert_eq!(ours, None, "{name} {convention:?}"),
                }
            }
        }
        assert!(cases.len() >= 8);
    }

    #[test]
    fn megatrons_own_formula_for_a_dense_model() {
        // 12·l·h²·[(1 + g/a) + f/h·3/2 + s/2h + V/2lh], its terms one by one.
        let (layers, hidden, seq) = (32.0, 4096.0, 8192.0);
        let terms = (1.0 + 8.0 / 32.0)
            + 14336.0 / hidden * 1.5
            + seq / hidden / 2.0
            + 128_256.0 / (2.0 * layers * hidden);
        let want = 12.0 * layers * hidden * hidden * terms;
        let ours = model(
            r#"{"num_layers":32,"hidden_size":4096,"num_attention_heads":32,"num_query_groups":8,"ffn_hidden_size":14336,
                "swiglu":true,"padded_vocab_size":128256,"seq_length":8192}"#,
        );
        let exact = flops(&ours, "exact").unwrap();
        assert!((exact / want - 1.0).abs() < 1e-12, "{exact} {want}");
    }

    #[test]
    fn packing_shortens_attention_only() {
        let whole = model(r#"{"n_params":1e9,"layers":10,"hidden":1000,"seq_len":8000}"#);
        let packed =
            model(r#"{"n_params":1e9,"layers":10,"hidden":1000,"seq_len":8000,"packed_seq_len":2000}"#);
        assert_eq!(flops(&whole, "6n"), flops(&packed, "6n"));
        let attention = |m: &Model| flops(m, "full").unwrap() - 6e9;
        assert!((attention(&whole) / attention(&packed) - 4.0).abs() < 1e-9);
        let told = whole.flops_per_token(Some(2000.0));
        assert_eq!(told, packed.flops_per_token(None));
    }

    #[test]
    fn what_is_not_told_is_not_guessed() {
        assert!(!model(r#""llama""#).is_known() && !model(r#"{"hidden":4096}"#).is_known());
        let names =
            |m: &Model| m.flops_per_token(None).iter().map(|(c, _)| c.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&model(r#"{"n_params":1e9}"#)), ["6n"]);
        // Whether the feed-forward part has a gate makes half of it.
        let shape = r#"{"layers":2,"hidden":64,"heads":4,"ffn":256,"vocab":1000,"seq_len":128"#;
        assert!(names(&model(&format!("{shape}}}"))).is_empty());
        assert_eq!(names(&model(&format!("{shape},\"gated\":false}}"))), ["full", "causal", "6n", "exact"]);
        // Null means a width only where that is how the framework says it.
        let shape = shape.replace(",\"ffn\":256", ",\"gated\":false");
        let null = |key: &str| names(&model(&format!("{shape},\"{key}\":null}}")));
        assert_eq!(null("n_inner"), ["full", "causal", "6n", "exact"]);
        assert!(null("ffn").is_empty());
        // Experts of unknown width hide how many parameters are idle.
        assert!(names(&model(r#"{"n_params":1e9,"experts":8,"top_k":2,"layers":2,"hidden":64}"#)).is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_dimensions_give_positive_finite_figures_or_none(
            n in proptest::collection::vec(proptest::option::of(-1e3f64..1e13), 12), gated: bool,
        ) {
            let names = ["n_params", "trainable_params", "layers", "hidden", "heads", "ffn", "vocab", "seq_len", "experts", "top_k",
                "dense_layers", "mtp_layers"];
            let told = names.iter().zip(n).filter_map(|(name, v)| Some(format!(",\"{name}\":{}", v?)));
            let fields = format!("{{\"gated\":{gated}{}", told.collect::<String>());
            for (_, flops) in model(&(fields + "}")).flops_per_token(None) {
                proptest::prop_assert!(flops > 0.0 && flops.is_finite());
            }
        }

        #[test]
        fn training_fewer_weights_costs_less(trained in 0.0f64..1e9) {
            let m = model(&format!(r#"{{"n_params":1e9,"trainable_params":{}}}"#, trained.max(1.0)));
            let flops = flops(&m, "6n").unwrap();
            proptest::prop_assert!((4e9..=6e9).contains(&flops));
        }
    }
}
