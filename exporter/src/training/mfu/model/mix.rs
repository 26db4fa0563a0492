//! Finds the layers of a model from its `config.json` or a trainer's arguments: full or partial
//! attention, linear attention, Mamba, dense and sparse feed-forward parts. An unknown mix is
//! refused with a reason, because a wrong mix gives a wrong MFU.
//!
//! The Python client does the same in `_mix.py`; both are tested with the same cases.

use stepwatch_wire::Value;

use super::fields::{EXPERTS, Fields};

/// More layers than any model has.
const MAX_LAYERS: usize = 4096;

/// Models with two stacks, each with a length of its own.
const TWO_LENGTHS: &[&str] = &[
    "t5",
    "mt5",
    "umt5",
    "longt5",
    "bart",
    "mbart",
    "pegasus",
    "marian",
    "m2m_100",
    "whisper",
    "encoder-decoder",
    "t5gemma",
    "led",
    "nllb-moe",
    "switch_transformers",
    "speech_to_text",
    "seamless_m4t",
];
/// Not language models: attention is bidirectional.
const BOTH_WAYS: &[&str] = &[
    "bert",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "electra",
    "deberta",
    "deberta-v2",
    "modernbert",
    "albert",
    "mpnet",
    "esm",
    "nomic_bert",
    "eurobert",
    "vit",
    "clip",
    "siglip",
    "dinov2",
];
const NO_FORMULA: &[&str] = &[
    "mamba",
    "falcon_mamba",
    "jamba",
    "rwkv",
    "rwkv5",
    "rwkv6",
    "rwkv7",
    "recurrent_gemma",
    "zamba",
    "zamba2",
    "falcon_h1",
    "minimax",
    "minimax_m1",
    "minimax_text_01",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "xlstm",
    "gemma3n",
    "gemma3n_text",
    "gemma4",
    "gemma4_text",
    "deepseek_v32",
    "glm_moe_dsa",
    "retnet",
    "openelm",
    "deci",
    "nemotron-nas",
    "longformer",
    "big_bird",
    "mllama",
    "dbrx",
];
/// Substrings of keys that indicate layers other than full attention.
const SIGNS: &[&str] = &[
    "mamba",
    "ssm",
    "rwkv",
    "lightning",
    "recurrent",
    "linear_attn",
    "linear_num",
    "linear_attention",
    "conv_l",
    "attn_type",
    "block_type",
    "layer_pattern",
    "hybrid",
    "index_topk",
    "lru_width",
    "retention",
    "moe_latent",
    "moe_layer_start",
    "compress_ratio",
    "sliding_window_size",
    "sliding_window_indices",
    "zero_expert",
    "parallel_attn_mlp",
    "use_cla",
    "layers_enum",
    "layer_group",
    "share_expert",
    "attention_groups",
];
/// Keys of dimensions that some models give for each layer.
const A_LAYER: &[&str] = &[
    "num_attention_heads",
    "num_key_value_heads",
    "num_kv_heads",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "ffn_hidden_size",
    "moe_intermediate_size",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_topk",
    "num_shared_expert",
];
/// Keys of the number of first layers without experts.
const FIRST_DENSE: &[&str] =
    &["dense_layers", "first_k_dense_replace", "n_dense_layers", "num_dense_layers", "moe_layer_num_skipped"];
/// The keys among the indicators that this module reads.
const READ: &[&str] = &[
    "layers_block_type",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "hybrid_attention_ratio",
    "hybrid_mlp_ratio",
    "linear_attention_freq",
];

/// The number of layers of each kind.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Mix {
    /// Layers with attention, by the range that a token attends to.
    pub(super) attention: Vec<(Span, f64)>,
    /// Layers of linear attention by the gated delta rule.
    pub(super) delta: f64,
    /// Layers of Mamba 2.
    pub(super) mamba: f64,
    /// Layers with feed-forward parts, without and with experts.
    pub(super) dense: f64,
    pub(super) sparse: f64,
}

/// The range that a token attends to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Span {
    All,
    /// This many previous tokens, including itself.
    Window(f64),
    /// The previous tokens in its chunk of the sequence.
    Chunk(f64),
}

/// Which parts have known dimensions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    pub(super) experts: bool,
    pub(super) latent: bool,
    pub(super) delta: bool,
    pub(super) mamba: bool,
}

/// The way in which a layer mixes tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Layer {
    Full,
    Window,
    Chunk,
    Linear,
    Mamba,
    /// Only a feed-forward part.
    FeedForward,
}

type Refused = String;

impl Span {
    /// How many tokens of a sequence a token attends to: its whole span, or the mean that the
    /// causal mask leaves.
    pub(super) fn seen(self, length: f64, causal: bool) -> f64 {
        let span = match self {
            Self::All => length,
            Self::Window(size) | Self::Chunk(size) => size.min(length),
        };
        match self {
            _ if !causal => span,
            Self::Window(_) => span - span * span / (2.0 * length),
            Self::All | Self::Chunk(_) => span / 2.0,
        }
    }
}

impl Mix {
    /// The mix of a model; an error gives the reason why there is no formula.
    pub(super) fn from_fields(f: &Fields, layers: f64, parts: Parts) -> Result<Self, Refused> {
        refuse(f, parts)?;
        let layers = layers as usize;
        if layers > MAX_LAYERS {
            return Err(format!("{layers} layers are more than any model has"));
        }
        let pattern = f.text(&["hybrid_layer_pattern", "hybrid_override_pattern"]).filter(|p| !p.is_empty());
        let found = match pattern {
            Some(pattern) => of_pattern(pattern)?,
            None => of_layers(f, layers, parts)?,
        };
        let lacks = |count: f64, known: bool| count > 0.0 && !known;
        if lacks(found.delta, parts.delta) {
            let what = "layers of linear attention whose dimensions (linear_num_value_heads and so on) are not given";
            return Err(what.into());
        }
        if lacks(found.mamba, parts.mamba) {
            return Err("layers of Mamba that are not Mamba 2, or whose dimensions are not given".into());
        }
        if lacks(found.sparse, parts.experts) {
            return Err("layers with experts whose number is not given".into());
        }
        Ok(found)
    }

    pub(super) fn attending(&self) -> f64 {
        self.attention.iter().map(|(_, count)| count).sum()
    }
}

fn refuse(f: &Fields, parts: Parts) -> Result<(), Refused> {
    let kind = f.kind();
    if f.flag("is_encoder_decoder") == Some(true) || TWO_LENGTHS.contains(&kind) {
        return Err("an encoder and a decoder: their FLOPs depend on two lengths, and one is given".into());
    }
    if BOTH_WAYS.contains(&kind) {
        return Err(format!("{kind} is no decoder: the formulas are those of language models"));
    }
    if NO_FORMULA.contains(&kind) {
        return Err(format!("{kind} has layers that there is no agreed way of counting for"));
    }
    if let Some(variant) = f.text(&["experimental_attention_variant"]).filter(|v| *v != "gated_delta_net") {
        return Err(format!("attention of the variant {} is not known", clip(variant)));
    }
    for (key, value) in f.iter() {
        let lower = key.to_ascii_lowercase();
        let Some(sign) = SIGNS.iter().find(|s| lower.contains(**s)) else { continue };
        let counted =
            parts.mamba && matches!(*sign, "mamba" | "ssm") || parts.delta && sign.starts_with("linear");
        if says_something(value) && !READ.contains(&key.as_str()) && !counted {
            return Err(format!("{} names layers that are not known", clip(key)));
        }
    }
    if let Some(key) = A_LAYER.iter().find(|key| f.is_uneven(key)) {
        return Err(format!("{key} differs from layer to layer"));
    }
    if let Some(experts) = f.number(EXPERTS).filter(|n| *n > 1.0 && !parts.experts) {
        return Err(format!("{experts} experts, and not how many of them a token passes"));
    }
    let unread = |key: &str| {
        let counts = key.starts_with("num_") || key.starts_with("n_") || key.contains("_num_");
        counts && key.contains("experts") && f.number(&[key]).is_some_and(|n| n > 1.0)
    };
    if let Some((key, _)) = f.iter().find(|(key, _)| !parts.experts && unread(key)) {
        return Err(format!("{} names experts that are not known", clip(key)));
    }
    if f.number(&["kv_lora_rank"]).is_some() && !parts.latent {
        return Err("latent attention whose dimensions (v_head_dim and so on) are not given".into());
    }
    Ok(())
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) | Value::Map(_) => true,
        Value::Number(n) => *n != 0.0,
        Value::Text(text) => !text.is_empty(),
        Value::List(items) => !items.is_empty(),
    }
}

fn clip(text: &str) -> String {
    text.chars().take(32).collect()
}

/// Reads a pattern such as `M-M*-`, in which each layer is one block: Mamba, a feed-forward part,
/// attention, experts or linear attention.
fn of_pattern(pattern: &str) -> Result<Mix, Refused> {
    if pattern.contains('/') {
        return Err(format!("a pattern of layers with further predictions ({})", clip(pattern)));
    }
    if let Some(odd) = pattern.chars().find(|c| !"M-*EG|".contains(*c)) {
        return Err(format!("a layer of the kind {odd:?} in its pattern is not known"));
    }
    let count = |wanted: char| pattern.chars().filter(|c| *c == wanted).count() as f64;
    Ok(Mix {
        attention: vec![(Span::All, count('*'))],
        delta: count('G'),
        mamba: count('M'),
        dense: count('-'),
        sparse: count('E'),
    })
}

fn of_layers(f: &Fields, layers: usize, parts: Parts) -> Result<Mix, Refused> {
    let kinds = kinds(f, layers)?;
    let count = |wanted: Layer| kinds.iter().filter(|k| **k == wanted).count();
    let mut attention = Vec::new();
    for kind in [Layer::Full, Layer::Window, Layer::Chunk] {
        if count(kind) > 0 {
            attention.push((span(f, kind)?, count(kind) as f64));
        }
    }
    let alone = f.kind() == "mamba2" || is_shared_out(f); // a layer is one block
    let sparse = if parts.experts && !alone { sparse(f, layers)? } else { 0 };
    let dense = if alone { count(Layer::FeedForward) } else { layers.saturating_sub(sparse) };
    Ok(Mix {
        attention,
        delta: count(Layer::Linear) as f64,
        mamba: count(Layer::Mamba) as f64,
        dense: dense as f64,
        sparse: sparse as f64,
    })
}

fn kinds(f: &Fields, layers: usize) -> Result<Vec<Layer>, Refused> {
    let kind = f.kind();
    if let Some(given) = f.list("layer_types").or_else(|| f.list("layers_block_type")) {
        return listed(given, layers);
    }
    if is_shared_out(f) {
        return of_ratios(f, layers);
    }
    if kind == "mamba2" {
        return Ok(vec![Layer::Mamba; layers]);
    }
    if let Some(indices) = f.list("attn_layer_indices") {
        let named = named(indices, layers);
        return Ok(named.into_iter().map(|is| if is { Layer::Full } else { Layer::Mamba }).collect());
    }
    if f.text(&["experimental_attention_variant"]).is_some() {
        return every(f, "linear_attention_freq", None, layers, Layer::Linear);
    }
    let hybrid = kind.starts_with("qwen3_next") || kind.starts_with("qwen3_5");
    if hybrid || f.number(&["full_attention_interval"]).is_some() {
        return every(f, "full_attention_interval", Some(4), layers, Layer::Linear);
    }
    if kind.starts_with("llama4") {
        let listed = f.list("no_rope_layers").is_some_and(|l| !l.is_empty());
        let key = if listed { "no_rope_layers" } else { "no_rope_layer_interval" };
        return every(f, key, Some(4), layers, Layer::Chunk);
    }
    windows(f, layers)
}

fn listed(given: &[Value], layers: usize) -> Result<Vec<Layer>, Refused> {
    if given.len() != layers {
        return Err(format!("{layers} layers, and types of {}", given.len()));
    }
    let known = |value: &Value| match value.as_str() {
        Some("full_attention" | "attention") => Ok(Layer::Full),
        Some("sliding_attention") => Ok(Layer::Window),
        Some("chunked_attention") => Ok(Layer::Chunk),
        Some("linear_attention") => Ok(Layer::Linear),
        Some("mamba" | "mamba2") => Ok(Layer::Mamba),
        odd => Err(format!("layers of the type {} are not known", clip(odd.unwrap_or("?")))),
    };
    given.iter().map(known).collect()
}

/// Whether layers are given as shares, as in Megatron before it had patterns.
fn is_shared_out(f: &Fields) -> bool {
    f.number(&["hybrid_attention_ratio"]).is_some()
}

fn of_ratios(f: &Fields, layers: usize) -> Result<Vec<Layer>, Refused> {
    // Python rounds a half to the even number.
    let share = |key| (layers as f64 * f.number(&[key]).unwrap_or(0.0)).round_ties_even() as usize;
    let (attention, mlps) = (share("hybrid_attention_ratio"), share("hybrid_mlp_ratio"));
    let Some(mamba) = layers.checked_sub(attention.saturating_add(mlps)) else {
        return Err("shares of attention and feed-forward layers of more than the whole".into());
    };
    Ok([vec![Layer::Full; attention], vec![Layer::FeedForward; mlps], vec![Layer::Mamba; mamba]].concat())
}

/// The layers of a model with sliding windows that does not list them.
fn windows(f: &Fields, layers: usize) -> Result<Vec<Layer>, Refused> {
    let kind = f.kind();
    let full = || Ok(vec![Layer::Full; layers]);
    if f.list("window_size").is_some_and(|w| !w.is_empty()) {
        let some =
            f.number(&["window_attn_skip_freq"]).is_some() || f.list("window_attn_skip_freq").is_some();
        return if some {
            every(f, "window_attn_skip_freq", None, layers, Layer::Window)
        } else {
            Ok(vec![Layer::Window; layers])
        };
    }
    let usual = match kind {
        "gemma3" | "gemma3_text" => Some(6),
        "cohere2" => Some(4),
        "gemma2" | "gpt_oss" => Some(2),
        _ => None,
    };
    let window = f.number(&["sliding_window"]);
    let keys = ["sliding_window_pattern", "_sliding_window_pattern"];
    let pattern = keys.into_iter().find(|key| f.number(&[key]).is_some());
    if usual.is_some() || pattern.is_some() && window.is_some() {
        return every(f, pattern.unwrap_or(keys[0]), usual, layers, Layer::Window);
    }
    if f.number(&["attention_chunk_size"]).is_some() {
        return Err("attention in chunks, and not which layers have it".into());
    }
    if window.is_none() || f.flag("use_sliding_window") == Some(false) {
        return full();
    }
    match kind {
        "mistral" | "mixtral" | "phi3" | "phimoe" | "starcoder2" | "ministral" => {
            Ok(vec![Layer::Window; layers])
        }
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" | "qwen2_vl_text" | "qwen2_5_vl_text" | "qwen2_vl"
        | "qwen2_5_vl" => {
            if f.flag("use_sliding_window") != Some(true) {
                return full();
            }
            let first = f.count(&["max_window_layers"]);
            Ok((0..layers).map(|i| if i < first { Layer::Full } else { Layer::Window }).collect())
        }
        _ => Err("a sliding window, and not which layers have it".into()),
    }
}

/// Reads which layers are full attention. A number means one every so many layers; a list has a 1
/// for each of the others.
fn every(
    f: &Fields,
    key: &str,
    usual: Option<usize>,
    layers: usize,
    other: Layer,
) -> Result<Vec<Layer>, Refused> {
    if let Some(list) = f.list(key) {
        if list.len() != layers {
            return Err(format!("{key} is of {} layers and there are {layers}", list.len()));
        }
        return Ok(list.iter().map(|v| if says_something(v) { other } else { Layer::Full }).collect());
    }
    let given = f.number(&[key]).map(|n| n as usize).or(usual);
    let Some(n) = given.filter(|n| *n > 0) else {
        return Err(format!("{key} is neither a number nor a list"));
    };
    Ok((0..layers).map(|i| if (i + 1) % n == 0 { Layer::Full } else { other }).collect())
}

fn span(f: &Fields, kind: Layer) -> Result<Span, Refused> {
    let sized = |size: Option<f64>, what: &str| {
        size.filter(|s| *s >= 1.0).ok_or_else(|| format!("attention over a {what} whose size is not given"))
    };
    match kind {
        Layer::Window => Ok(Span::Window(sized(window(f), "window")?)),
        Layer::Chunk => Ok(Span::Chunk(sized(f.number(&["attention_chunk_size"]), "chunk")?)),
        _ => Ok(Span::All),
    }
}

fn window(f: &Fields) -> Option<f64> {
    if let Some(before) = f.list("window_size").and_then(|pair| pair.first()) {
        return Some(before.as_f64().filter(|n| n.is_finite() && *n > 0.0).unwrap_or(0.0) + 1.0);
    }
    let usual = match f.kind() {
        "gemma2" | "cohere2" => Some(4096.0),
        "gpt_oss" => Some(128.0),
        _ => None,
    };
    f.number(&["sliding_window"]).or(usual)
}

/// Marks the layers whose indices are listed.
fn named(numbers: &[Value], layers: usize) -> Vec<bool> {
    let mut named = vec![false; layers];
    for number in numbers.iter().filter_map(Value::as_f64).filter(|n| n.fract() == 0.0 && *n >= 0.0) {
        if let Some(layer) = named.get_mut(number as usize) {
            *layer = true;
        }
    }
    named
}

/// The number of layers with experts.
fn sparse(f: &Fields, layers: usize) -> Result<usize, Refused> {
    if let Some(list) = f.list("moe_layer_freq") {
        if list.len() != layers {
            return Err(format!("moe_layer_freq is of {} layers and there are {layers}", list.len()));
        }
        return Ok(list.iter().filter(|v| says_something(v)).count());
    }
    if let Some(types) = f.list("mlp_layer_types") {
        return Ok(types.iter().filter(|t| t.as_str() == Some("sparse")).count());
    }
    if let Some(listed) = f.list("moe_layers").filter(|l| !l.is_empty()) {
        return Ok(listed.len());
    }
    let first = FIRST_DENSE.iter().map(|key| f.count(&[key])).max().unwrap_or(0);
    let dense = named(f.list("mlp_only_layers").unwrap_or_default(), layers);
    let every = f.count(&["moe_layer_freq"]).max(1);
    let step = f.count(&["decoder_sparse_step", "interleave_moe_layer_step"]).max(1);
    let is_sparse =
        |i: usize| i >= first && !dense[i] && i.is_multiple_of(every) && (i + 1).is_multiple_of(step);
    Ok((0..layers).filter(|i| is_sparse(*i)).count())
}
