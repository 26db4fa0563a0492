//! The object that dimensions are read from: names of several frameworks for the same thing.

use std::collections::BTreeMap;

use stepwatch_wire::Value;

/// Keys under which multimodal models keep the dimensions of their language part.
const NESTED: &[&str] = &["text_config", "llm_config", "language_config"];
const OTHER_PARTS: &[&str] = &["vision_config", "audio_config", "vision_tower", "visual"];

/// Keys of the width between layers.
pub(super) const HIDDEN: &[&str] = &["hidden", "hidden_size", "d_model", "n_embd", "n_embed", "dim"];

/// Keys of the number of experts.
pub(super) const EXPERTS: &[&str] = &[
    "experts",
    "num_experts",
    "n_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_moe_experts",
    "moe_num_experts",
    "n_expert",
];

/// Defaults of the Gemma 3 class for keys that its `config.json` leaves out.
const GEMMA3: &[(&str, f64)] = &[
    ("num_attention_heads", 8.0),
    ("num_key_value_heads", 4.0),
    ("head_dim", 256.0),
    ("vocab_size", 262_208.0),
    ("sliding_window", 4096.0),
];

/// Kinds whose class has a feed-forward part of four times the width and without gates, unless a
/// key says otherwise (transformers: `BloomMLP`, `FalconMLP`).
const FOUR_TIMES: &[&str] = &["bloom", "falcon"];

/// Keys of the activation.
const ACTIVATIONS: &[&str] = &[
    "mlp_hidden_act",
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "activation_func",
];
/// Activations that square a ReLU. Some models use them with a gate, most do not.
const SQUARES: &[&str] = &["relu2", "relu_squared", "squared_relu"];
const SQUARES_WITH_GATES: &[&str] = &["bitnet"];
/// The kinds beside Nemotron that use them without a gate.
const SQUARES_ALONE: &[&str] = &["nanochat", "persimmon", "fuyu", "arcee", "jais2", "cosmos3_edge_text"];

#[derive(Debug)]
pub(super) struct Fields(BTreeMap<String, Value>);

impl Fields {
    /// The dimensions of the language part under usual names, and a note on what is left out.
    pub(super) fn language(given: &BTreeMap<String, Value>) -> (Self, Option<&'static str>) {
        let mut found = given.clone();
        let is_part = |key: &&str| matches!(given.get(*key), Some(Value::Map(_)));
        if let Some(Value::Map(nested)) =
            NESTED.iter().find(|key| is_part(key)).and_then(|key| given.get(*key))
        {
            found.extend(nested.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
        let note = OTHER_PARTS.iter().any(is_part).then_some(
            "only the language part is counted: what a picture or a sound costs depends on its size",
        );
        let mut found = Self(found);
        found.complete();
        (found, note)
    }

    fn complete(&mut self) {
        if self.kind() == "gemma3_text" {
            for (key, value) in GEMMA3 {
                self.0.entry((*key).to_owned()).or_insert(Value::Number(*value));
            }
            let gate = || Value::Text("gelu_pytorch_tanh".into());
            self.0.entry("hidden_activation".into()).or_insert_with(gate);
        }
        if FOUR_TIMES.contains(&self.kind()) {
            self.0.entry("gated".into()).or_insert(Value::Bool(false));
            if let Some(hidden) = self.number(HIDDEN) {
                self.0.entry("ffn_hidden_size".into()).or_insert(Value::Number(4.0 * hidden));
            }
        }
        let dense = self.number(&["intermediate_size_mlp"]).filter(|_| self.kind().starts_with("llama4"));
        if let Some(dense) = dense {
            let expert = self.0.get("intermediate_size").cloned().unwrap_or(Value::Null);
            for key in ["moe_intermediate_size", "shared_expert_intermediate_size"] {
                self.0.entry(key.into()).or_insert_with(|| expert.clone());
            }
            self.0.insert("intermediate_size".into(), Value::Number(dense));
        }
        // Every token also passes a dense feed-forward part, which no key names.
        let beside = self.number(&["intermediate_size"]).filter(|_| {
            self.kind().starts_with("hunyuan") && self.number(EXPERTS).is_some_and(|experts| experts > 1.0)
        });
        if let Some(width) = beside {
            let parts = self.number(&["num_shared_expert"]).unwrap_or(1.0);
            let key = "shared_expert_intermediate_size";
            self.0.entry(key.into()).or_insert(Value::Number(parts * width));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter()
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// The positive number under the first of the names that has one. A list with one number for
    /// all layers counts as that number.
    pub(super) fn number(&self, names: &[&str]) -> Option<f64> {
        let mut numbers = names.iter().filter_map(|n| match self.0.get(*n)? {
            Value::List(items) if is_even(items) => items.first()?.as_f64(),
            value => value.as_f64(),
        });
        numbers.find(|v| v.is_finite() && *v > 0.0)
    }

    /// Whether the key has a list whose entries differ.
    pub(super) fn is_uneven(&self, key: &str) -> bool {
        self.list(key).is_some_and(|items| !is_even(items))
    }

    pub(super) fn count(&self, names: &[&str]) -> usize {
        self.number(names).map_or(0, |n| n as usize)
    }

    pub(super) fn text(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|n| self.0.get(*n)?.as_str())
    }

    pub(super) fn list(&self, key: &str) -> Option<&[Value]> {
        if let Some(Value::List(items)) = self.0.get(key) { Some(items) } else { None }
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        if let Some(Value::Bool(flag)) = self.0.get(key) { Some(*flag) } else { None }
    }

    /// The kind of model, as Hugging Face names it.
    pub(super) fn kind(&self) -> &str {
        self.text(&["model_type"]).unwrap_or("")
    }

    pub(super) fn gated(&self) -> Option<bool> {
        if let Some(gated) = ["gated", "swiglu", "gated_linear_unit"].iter().find_map(|key| self.flag(key)) {
            return Some(gated);
        }
        let activation = self.text(ACTIVATIONS)?.to_ascii_lowercase();
        if SQUARES.contains(&activation.as_str()) {
            let alone = SQUARES_ALONE.contains(&self.kind()) || self.kind().starts_with("nemotron");
            return SQUARES_WITH_GATES.contains(&self.kind()).then_some(true).or(alone.then_some(false));
        }
        let gemma = self.kind().starts_with("gemma");
        Some(gemma || ["silu", "swish", "glu"].iter().any(|a| activation.contains(a)))
    }

    /// The reason why gates are unknown although an activation is given.
    pub(super) fn gates_unknown(&self) -> Option<String> {
        let activation = self.text(ACTIVATIONS).filter(|_| self.gated().is_none())?;
        let kind: String = self.kind().chars().take(32).collect();
        let unknown = if kind.is_empty() {
            "no model type is given".to_owned()
        } else {
            format!("of the model type {kind} it is not known")
        };
        Some(format!("{activation} does not determine whether there are gates, and {unknown}"))
    }

    /// The width of the feed-forward part. For GPT-2 and its kin, `"n_inner": null` means the usual
    /// one.
    pub(super) fn ffn(&self, hidden: Option<f64>) -> Option<f64> {
        let names = [
            "ffn",
            "ffn_dim",
            "ffn_hidden_size",
            "intermediate_size",
            "d_ff",
            "n_inner",
            "inter_dim",
            "hidden_dim",
        ];
        let usual = || (self.get("n_inner") == Some(&Value::Null)).then_some(4.0 * hidden?);
        self.llama_ffn(hidden).or_else(|| self.number(&names)).or_else(usual)
    }

    /// The width by the formula of Llama's code: two thirds of four times, rounded up to a
    /// multiple.
    fn llama_ffn(&self, hidden: Option<f64>) -> Option<f64> {
        let (hidden, multiple) = (hidden?, self.number(&["multiple_of"])?);
        let factor = self.number(&["ffn_dim_multiplier"]).unwrap_or(1.0);
        let width = ((8.0 * hidden / 3.0).floor() * factor).floor();
        Some(multiple * ((width + multiple - 1.0) / multiple).floor())
    }
}

fn is_even(items: &[Value]) -> bool {
    items.windows(2).all(|pair| pair[0] == pair[1])
}
