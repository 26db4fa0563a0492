//! Dimensions of a model, and the FLOPs per token that follow.

use super::fields::{EXPERTS, Fields, HIDDEN};
use super::mix::{Mix, Parts, Span};
use crate::training::mfu::Convention;

/// The dimensions of a transformer; each is `None` unless it was given.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Shape {
    params: Option<f64>,
    /// The counted parameters that are looked up rather than multiplied.
    embedding: f64,
    /// The parameters that work on each token: fewer than `params` in a mixture of experts.
    active: Option<f64>,
    /// The parameters with a gradient: fewer than `params` with adapters.
    trainable: Option<f64>,
    /// The layers, if their number was given.
    mix: Option<Mix>,
    hidden: Option<f64>,
    heads: Option<f64>,
    kv_heads: Option<f64>,
    head_dim: Option<f64>,
    /// Whether the output of attention has a gate, as wide as the queries.
    output_gate: bool,
    ffn: Option<f64>,
    /// Whether the feed-forward part has a gate, and so three matrices instead of two.
    gated: Option<bool>,
    vocab: Option<f64>,
    /// The width of the embedding if it differs from the model's: one projection leads from it to
    /// the layers, and another from the layers to the logits.
    embedding_width: Option<f64>,
    pub(super) seq_len: Option<f64>,
    /// The mean length that attention covers for a token, `Σ L² / Σ L` for packed sequences.
    attended: Option<f64>,
    experts: Option<Experts>,
    latent: Option<Latent>,
    delta: Option<Delta>,
    mamba: Option<Mamba>,
    /// Extra layers that predict further tokens.
    mtp_layers: f64,
}

/// The feed-forward part of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Experts {
    count: f64,
    chosen: f64,
    ffn: Option<f64>,
    /// The width of the experts that every token passes.
    shared_ffn: f64,
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

/// Linear attention by the gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Delta {
    key_heads: f64,
    value_heads: f64,
    key_dim: f64,
    value_dim: f64,
    conv: f64,
}

/// Mamba 2.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mamba {
    heads: f64,
    head_dim: f64,
    state: f64,
    groups: f64,
    conv: f64,
}

impl Experts {
    fn from_fields(f: &Fields) -> Option<Self> {
        let count = f.number(EXPERTS)?;
        let chosen = f.number(&[
            "top_k",
            "num_experts_per_tok",
            "num_experts_per_token",
            "experts_per_token",
            "moe_router_topk",
            "moe_top_k",
            "moe_topk",
            "moe_k",
            "n_expert_per_token",
        ])?;
        let ffn = f.number(&["expert_ffn", "moe_intermediate_size", "moe_ffn_hidden_size", "moe_inter_dim"]);
        let shared = || Some(f.number(&["n_shared_experts", "num_shared_experts"])? * ffn?);
        let shared_ffn = f.number(&[
            "shared_ffn",
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "shared_intermediate_size",
        ]);
        let shared_ffn = shared_ffn.or_else(shared).unwrap_or(0.0);
        Some(Self { count, chosen: chosen.min(count), ffn, shared_ffn })
    }
}

impl Latent {
    fn from_fields(f: &Fields) -> Option<Self> {
        Some(Self {
            q_rank: f.number(&["q_lora_rank"]),
            kv_rank: f.number(&["kv_lora_rank"])?,
            nope_dim: f.number(&["qk_nope_head_dim", "qk_head_dim"])?,
            rope_dim: f.number(&["qk_rope_head_dim", "qk_pos_emb_head_dim"])?,
            v_dim: f.number(&["v_head_dim"])?,
        })
    }
}

impl Delta {
    fn from_fields(f: &Fields) -> Option<Self> {
        Some(Self {
            key_heads: f.number(&["linear_num_key_heads"])?,
            value_heads: f.number(&["linear_num_value_heads"])?,
            key_dim: f.number(&["linear_key_head_dim"])?,
            value_dim: f.number(&["linear_value_head_dim"])?,
            conv: f.number(&["linear_conv_kernel_dim"]).unwrap_or(4.0),
        })
    }

    /// Weights: queries, keys, values, their gate, two numbers a head, a short convolution, the
    /// output.
    fn weights(&self, hidden: f64) -> f64 {
        let (keys, values) = (self.key_heads * self.key_dim, self.value_heads * self.value_dim);
        let into = hidden * (2.0 * keys + 2.0 * values + 2.0 * self.value_heads);
        into + self.conv * (2.0 * keys + values) + values * hidden
    }

    /// FLOPs of a token on the state, forward and backward, as Megatron counts them: four products
    /// of keys and values.
    fn flops(&self) -> f64 {
        24.0 * self.value_heads * self.key_dim * self.value_dim
    }
}

impl Mamba {
    fn from_fields(f: &Fields) -> Option<Self> {
        let alone = f.kind() == "mamba2";
        let names =
            |hybrid: &'static [&'static str], own: &'static [&'static str]| if alone { own } else { hybrid };
        Some(Self {
            heads: f.number(names(&["mamba_num_heads", "mamba_n_heads"], &["num_heads"]))?,
            head_dim: f.number(names(&["mamba_head_dim", "mamba_d_head"], &["head_dim"]))?,
            state: f
                .number(names(&["mamba_state_dim", "ssm_state_size", "mamba_d_state"], &["state_size"]))?,
            groups: f.number(&["mamba_num_groups", "mamba_n_groups", "n_groups"]).unwrap_or(1.0),
            conv: f.number(&["mamba_d_conv", "conv_kernel"]).unwrap_or(4.0),
        })
    }

    /// Weights: the input and its gate, two vectors a group, a number a head, a short convolution,
    /// the output.
    fn weights(&self, hidden: f64) -> f64 {
        let (inner, vectors) = (self.heads * self.head_dim, 2.0 * self.groups * self.state);
        hidden * (2.0 * inner + vectors + self.heads) + self.conv * (inner + vectors) + inner * hidden
    }

    /// FLOPs of the scan, forward and backward, as Megatron counts them.
    fn flops(&self) -> f64 {
        21.0 * self.heads * self.head_dim * self.state
    }
}

impl Shape {
    /// Reads the dimensions. The text gives the reason if there is no formula for the model.
    pub(super) fn from_fields(f: &Fields) -> (Self, Option<String>) {
        let length = f.number(&["seq_len", "seq_length", "sequence_length", "block_size", "max_seq_len"]);
        let hidden = f.number(HIDDEN);
        let layers = f.number(&["layers", "n_layers", "n_layer", "num_layers", "num_hidden_layers"]);
        let (experts, delta, mamba) = (Experts::from_fields(f), Delta::from_fields(f), Mamba::from_fields(f));
        let latent = Latent::from_fields(f);
        let parts = Parts {
            experts: experts.is_some(),
            latent: latent.is_some(),
            delta: delta.is_some(),
            mamba: mamba.is_some(),
        };
        let mix = Mix::from_fields(f, layers.unwrap_or(0.0), parts);
        let refused = mix.as_ref().err().cloned();
        let groups = [
            "kv_heads",
            "n_kv_heads",
            "num_kv_heads",
            "num_key_value_heads",
            "num_query_groups",
            "n_query_groups",
        ];
        // Falcon keeps a number of key heads beside it, which only its later architecture uses.
        let one = f.flag("multi_query") == Some(true) && f.flag("new_decoder_architecture") != Some(true);
        let gates = ["attn_output_gate", "attention_output_gate"].iter().any(|g| f.flag(g) == Some(true));
        let shape = Self {
            params: f.number(&["n_params", "params", "num_params", "num_parameters", "parameters"]),
            embedding: f.number(&["n_embedding", "embedding_params"]).unwrap_or(0.0),
            active: f.number(&["n_active", "active_params", "n_active_params", "num_active_params"]),
            trainable: f.number(&["trainable_params", "n_trainable", "lora_params"]),
            mix: mix.ok().filter(|_| layers.is_some()),
            hidden,
            heads: f.number(&["heads", "n_heads", "n_head", "num_heads", "num_attention_heads"]),
            kv_heads: if one { Some(1.0) } else { f.number(&groups) },
            head_dim: f.number(&["head_dim", "d_head", "kv_channels", "attention_head_dim", "head_size"]),
            output_gate: gates || ["qwen3_next", "qwen3_5"].iter().any(|k| f.kind().starts_with(k)),
            ffn: f.ffn(hidden),
            gated: f.gated(),
            vocab: f.number(&["vocab", "padded_vocab_size", "vocab_size", "n_vocab"]),
            embedding_width: f.number(&["word_embed_proj_dim"]).filter(|width| Some(*width) != hidden),
            seq_len: length,
            attended: f.number(&["packed_seq_len"]).or(length),
            experts,
            latent,
            delta,
            mamba,
            // `num_nextn_predict_layers` of a `config.json` counts layers that DeepSeek and GLM
            // publish; transformers neither builds nor trains them.
            mtp_layers: f.number(&["mtp_layers", "mtp_num_layers"]).unwrap_or(0.0),
        };
        (shape, refused)
    }

    /// Whether the only missing fact is whether there are gates.
    pub(super) fn lacks_gates(&self) -> bool {
        let with_gates = || Self { gated: Some(true), ..self.clone() };
        self.weights().is_none() && with_gates().weights().is_some()
    }

    /// The reason why FLOPs cannot be counted although a configuration is given: what it lacks.
    pub(super) fn incomplete(&self) -> Option<String> {
        let dimensions = [
            ("width", self.hidden.is_some()),
            ("number of layers", self.mix.is_some()),
            ("number of heads", self.heads.is_some()),
            ("width of the feed-forward part", self.ffn.is_some() || self.experts.is_some()),
            ("activation", self.gated.is_some()),
        ];
        let missing: Vec<&str> =
            dimensions.into_iter().filter(|(_, given)| !given).map(|(name, _)| name).collect();
        (self.weights().is_none() && !missing.is_empty()).then(|| {
            format!("its configuration has, under a name that is known, no {}", missing.join(", no "))
        })
    }

    /// The reason if the given dimensions do not add up to the trainer's number of parameters: then
    /// they are not those of this model.
    pub(super) fn contradicts(&self, total: f64) -> Option<String> {
        /// The tolerance, because norms and biases are not added up.
        const CLOSE: f64 = 0.01;
        let mine = self.matrices()? + self.idle_experts()?;
        let look_up = self.embedding_width.or(self.hidden)? * self.vocab?;
        let is = |mine: f64| (mine / total - 1.0).abs() < CLOSE;
        // The embedding may be shared with the logits.
        let same = is(mine) || is(mine + look_up);
        (!same).then(|| format!("dimensions that add up to {mine:.0} parameters, of {total:.0}"))
    }

    pub(super) fn flops(&self, convention: Convention, attended: Option<f64>) -> Option<f64> {
        let length = attended.or(self.attended);
        let flops = match convention {
            Convention::SixN => self.cost(self.weights()?),
            Convention::Full => {
                self.cost(self.weights()?) + self.attention(length, false)? + self.states()?
            }
            Convention::Causal => {
                self.cost(self.weights()?) + self.attention(length, true)? + self.states()?
            }
            Convention::Exact => {
                self.cost(self.matrices()?) + self.attention(length, true)? + self.states()?
            }
        };
        Some(flops).filter(|f| f.is_finite() && *f > 0.0)
    }

    /// FLOPs of a token through these weights: two forward, two for the gradient of the input, and
    /// two for the gradient of each weight that is trained.
    fn cost(&self, weights: f64) -> f64 {
        let trained = self.trainable.unwrap_or(weights).min(weights);
        4.0 * weights + 2.0 * trained
    }

    /// The parameters that work on a token.
    pub(super) fn weights(&self) -> Option<f64> {
        let active = self.active.map(|active| active - self.embedding);
        active
            .or_else(|| Some(self.params? - self.embedding - self.idle_experts()?))
            .or_else(|| self.matrices())
    }

    /// Parameters of the experts that the router does not choose for a token; 0 without experts.
    fn idle_experts(&self) -> Option<f64> {
        let Some(experts) = &self.experts else { return Some(0.0) };
        let expert = self.feed_forward(experts.ffn.or(self.ffn)?)?;
        Some(self.mix.as_ref()?.sparse * (experts.count - experts.chosen) * expert)
    }

    /// FLOPs of the scores and their sums, in all layers and in those that predict further tokens;
    /// the latter use full attention.
    fn attention(&self, length: Option<f64>, causal: bool) -> Option<f64> {
        let own = self.mix.as_ref()?.attention.iter().copied();
        let spans: Vec<_> =
            own.chain([(Span::All, self.mtp_layers)]).filter(|(_, count)| *count > 0.0).collect();
        if spans.is_empty() {
            return Some(0.0);
        }
        let (width, length) = (self.attention_width()?, length?);
        let seen: f64 = spans.iter().map(|(span, count)| count * span.seen(length, causal)).sum();
        Some(12.0 * width * seen)
    }

    /// FLOPs of linear attention and Mamba on their states.
    fn states(&self) -> Option<f64> {
        let mix = self.mix.as_ref()?;
        let delta = self.delta.map_or(0.0, |d| mix.delta * d.flops());
        Some(delta + self.mamba.map_or(0.0, |m| mix.mamba * m.flops()))
    }

    /// The width over which scores and their sums are computed: that of the heads, or with latent
    /// attention the mean of keys and values.
    fn attention_width(&self) -> Option<f64> {
        match (&self.latent, self.heads, self.head_dim) {
            (Some(l), Some(heads), _) => Some(heads * (l.nope_dim + l.rope_dim + l.v_dim) / 2.0),
            (None, Some(heads), Some(dim)) => Some(heads * dim),
            _ => self.hidden,
        }
    }

    /// The weights of the matrix products for a token, with the logits and without the look-up of
    /// its embedding.
    fn matrices(&self) -> Option<f64> {
        let (mix, hidden) = (self.mix.as_ref()?, self.hidden?);
        let projections = self.embedding_width.map_or(0.0, |width| 2.0 * hidden * width);
        let logits = self.embedding_width.unwrap_or(hidden) * self.vocab?;
        let attending = mix.attending();
        let attention = if attending + self.mtp_layers > 0.0 { self.attention_weights()? } else { 0.0 };
        let sparse = if mix.sparse > 0.0 { self.sparse_weights(hidden)? } else { 0.0 };
        let dense = if mix.dense > 0.0 { self.feed_forward(self.ffn?)? } else { 0.0 };
        let delta = self.delta.map_or(0.0, |d| mix.delta * d.weights(hidden));
        let mamba = self.mamba.map_or(0.0, |m| mix.mamba * m.weights(hidden));
        // A layer that predicts further tokens is like the last one, and has a projection and
        // logits of its own.
        let last = if mix.sparse > 0.0 { sparse } else { dense };
        let further = self.mtp_layers * (attention + last + 2.0 * hidden * hidden + logits);
        let layers = attending * attention + mix.sparse * sparse + mix.dense * dense + delta + mamba;
        Some(layers + projections + logits + further)
    }

    /// The weights of the experts for a token, and of the router.
    fn sparse_weights(&self, hidden: f64) -> Option<f64> {
        let e = self.experts.as_ref()?;
        let chosen = e.chosen * self.feed_forward(e.ffn.or(self.ffn)?)?;
        let shared = if e.shared_ffn > 0.0 { self.feed_forward(e.shared_ffn)? } else { 0.0 };
        Some(chosen + shared + hidden * e.count)
    }

    fn attention_weights(&self) -> Option<f64> {
        let (hidden, heads) = (self.hidden?, self.heads?);
        let Some(l) = &self.latent else {
            let dim = self.head_dim.unwrap_or(hidden / heads);
            let groups = self.kv_heads.unwrap_or(heads);
            let gate = if self.output_gate { heads } else { 0.0 };
            return Some(hidden * dim * (2.0 * (heads + groups) + gate));
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
