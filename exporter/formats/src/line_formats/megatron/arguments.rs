//! The block of arguments that the first rank prints when it begins, a line each: `hidden_size
//! ..................... 4096`. What it contains of the model is published before the first step
//! that follows.
//!
//! Megatron prints the dimensions of every kind of model that it can train with their defaults.
//! Only those that are used are passed on.

use std::collections::BTreeMap;

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value};

use crate::format::Line;
use crate::number;

/// Arguments that are kept of one block.
const MAX_KEPT: usize = 128;
/// The longest value that is kept: a pattern of layers.
const MAX_CHARS: usize = 2048;
/// The longest list: one entry a layer.
const MAX_LIST: usize = 512;

/// What every model has.
const DIMENSIONS: &[&str] = &[
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "kv_channels",
    "ffn_hidden_size",
    "seq_length",
    "padded_vocab_size",
    "vocab_size",
    "swiglu",
    "num_experts",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "moe_layer_freq",
    "moe_latent_size",
    "mtp_num_layers",
    "window_size",
    "window_attn_skip_freq",
    "attention_output_gate",
    "experimental_attention_variant",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "hybrid_attention_ratio",
    "hybrid_mlp_ratio",
];
const GROUPS: &[&str] = &["num_query_groups"];
const LATENT: &[&str] = &["q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"];
const MAMBA: &[&str] = &["mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads"];
const LINEAR: &[&str] = &[
    "linear_attention_freq",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
];
/// What is looked at besides.
const OTHERS: &[&str] = &[
    "group_query_attention",
    "multi_latent_attention",
    "is_hybrid_model",
    "linear_attention_type",
    "decoder_seq_length",
    "quick_geglu",
    "glu_activation",
    "bf16",
    "fp16",
    "fp8",
    "fp8_format",
    "fp4",
    "fp4_format",
    "world_size",
];

#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// The block has begun and not ended.
    open: bool,
    values: BTreeMap<&'static str, Value>,
    /// Published since they were read.
    published: bool,
}

impl Arguments {
    /// Takes a line if it is of a block, or has the vocabulary that follows one.
    pub(super) fn take(&mut self, text: &str) -> bool {
        if text.starts_with("-----") && text.contains(" arguments -----") {
            self.open = !text.contains(" end of ");
            if self.open {
                (self.values, self.published) = (BTreeMap::new(), false);
            }
            return true;
        }
        if let Some(rest) = padded(text) {
            let size = rest.split_once("(new size:").and_then(|(_, size)| number::integer(size));
            if let Some((size, _)) = size {
                self.values.insert("padded_vocab_size", Value::Number(size as f64));
            }
            return size.is_some();
        }
        self.open && self.argument(text)
    }

    fn argument(&mut self, text: &str) -> bool {
        let Some((key, rest)) = text.split_once(' ') else { return false };
        let value = rest.trim_start_matches('.');
        let dotted = rest.len() - value.len() >= 3 && value.starts_with(' ');
        if !dotted || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return false;
        }
        let known =
            [DIMENSIONS, GROUPS, LATENT, MAMBA, LINEAR, OTHERS].into_iter().flatten().find(|k| **k == key);
        if let (Some(key), true) = (known, self.values.len() < MAX_KEPT) {
            match python(value.trim()) {
                Value::Null => self.values.remove(key),
                value => self.values.insert(key, value),
            };
        }
        true
    }

    /// The same at the line of the vocabulary, which follows the block.
    pub(super) fn described(&mut self, line: &Line<'_>) -> Option<Event> {
        padded(line.text)?;
        self.hello(line)
    }

    /// The hello of this training, once.
    pub(super) fn hello(&mut self, line: &Line<'_>) -> Option<Event> {
        let complete = self.values.contains_key("num_layers") && self.values.contains_key("hidden_size");
        if !complete || core::mem::replace(&mut self.published, true) {
            return None;
        }
        self.open = false;
        let mut e = line.event(Kind::Hello, None);
        e.world = self.number("world_size").filter(|n| *n >= 1.0).map(|n| n as u32);
        e.extra.insert(hello::SOURCE.into(), Value::Text(hello::PRINTED.into()));
        e.extra.insert(hello::SAVES.into(), Value::Text(hello::ALL.into()));
        e.extra.insert("framework".into(), Value::Text("megatron".into()));
        if let Some(dtype) = self.dtype() {
            e.extra.insert("dtype".into(), Value::Text(dtype.into()));
        }
        e.extra.insert("model".into(), Value::Map(self.model()));
        Some(e)
    }

    fn model(&self) -> BTreeMap<String, Value> {
        let hybrid = self.is("is_hybrid_model")
            || self.number("hybrid_attention_ratio").is_some_and(|n| n > 0.0)
            || ["hybrid_layer_pattern", "hybrid_override_pattern"].iter().any(|k| self.has_text(k));
        let linear =
            self.has_text("experimental_attention_variant") || self.has_text("linear_attention_type");
        let mut model = BTreeMap::new();
        for (keys, used) in [
            (DIMENSIONS, true),
            (GROUPS, self.is("group_query_attention")),
            (LATENT, self.is("multi_latent_attention")),
            (MAMBA, hybrid),
            (LINEAR, linear || hybrid),
        ] {
            let used = keys.iter().filter(|_| used).filter_map(|k| Some((*k, self.values.get(k)?)));
            model.extend(used.map(|(k, v)| (k.to_owned(), v.clone())));
        }
        if let Some(variant) = self.values.get("linear_attention_type") {
            model.entry("experimental_attention_variant".into()).or_insert_with(|| variant.clone());
        }
        // Without a number of heads Mamba is twice as wide as the model.
        if let (true, None, Some(width)) =
            (hybrid, self.number("mamba_num_heads"), self.number("mamba_head_dim"))
        {
            let heads = 2.0 * self.number("hidden_size").unwrap_or(0.0) / width;
            model.insert("mamba_num_heads".into(), Value::Number(heads));
        }
        let pattern =
            model.contains_key("hybrid_layer_pattern") || model.contains_key("hybrid_override_pattern");
        let shares = self.number("hybrid_attention_ratio").is_some_and(|n| n > 0.0);
        if let (true, false, false, Some(layers)) = (hybrid, pattern, shares, self.number("num_layers")) {
            let all = "M".repeat((layers as usize).min(MAX_LIST));
            model.insert("hybrid_layer_pattern".into(), Value::Text(all));
        }
        if self.values.contains_key("decoder_seq_length") {
            model.insert("is_encoder_decoder".into(), Value::Bool(true));
        }
        // Versions without the argument had no gates.
        let gated = self.is("swiglu") || self.is("quick_geglu") || self.has_text("glu_activation");
        model.insert("swiglu".into(), Value::Bool(gated));
        model
    }

    fn dtype(&self) -> Option<&'static str> {
        let of = |keys: [&str; 2]| keys.iter().any(|k| self.is(k) || self.has_text(k));
        if of(["fp4", "fp4_format"]) {
            return Some("fp4");
        }
        match (of(["fp8", "fp8_format"]), self.is("bf16"), self.is("fp16"), self.values.contains_key("bf16"))
        {
            (true, ..) => Some("fp8"),
            (_, true, ..) => Some("bf16"),
            (_, _, true, _) => Some("fp16"),
            (.., true) => Some("fp32"),
            _ => None,
        }
    }

    fn is(&self, key: &str) -> bool {
        self.values.get(key) == Some(&Value::Bool(true))
    }

    fn has_text(&self, key: &str) -> bool {
        self.values.get(key).and_then(Value::as_str).is_some_and(|t| !t.is_empty())
    }

    fn number(&self, key: &str) -> Option<f64> {
        if let Some(Value::Number(n)) = self.values.get(key) { Some(*n) } else { None }
    }
}

/// The text after `> padded vocab (size:`, which since 2026 follows a logger's prefix:
/// `INFO:megatron.core.tokenizers.utils.build_tokenizer: > padded vocab (size: 50257) with …`.
fn padded(text: &str) -> Option<&str> {
    let (prefix, rest) = number::split_once(text, "> padded vocab (size:")?;
    let prefix = prefix.trim_end();
    (prefix.is_empty() || prefix.ends_with([':', '-', ']', '|'])).then_some(rest)
}

/// What Python printed.
fn python(text: &str) -> Value {
    // GPT-NeoX prints behind a value whether it is the default.
    let said = |text| -> Option<&str> {
        let text: &str = text;
        let bare = text.strip_suffix("updated").or_else(|| text.strip_suffix("default"))?;
        bare.ends_with("...").then(|| bare.trim_end_matches('.'))
    };
    let text = said(text).unwrap_or(text);
    match text {
        "None" | "" => Value::Null,
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        _ => list(text).or_else(|| whole_number(text)).unwrap_or_else(|| {
            // Half of a pattern would be another model.
            let fits = text.len() <= MAX_CHARS;
            Value::Text(if fits { text.to_owned() } else { "too long".into() })
        }),
    }
}

fn whole_number(text: &str) -> Option<Value> {
    number::lex(text).filter(|n| n.rest.trim().is_empty()).map(|n| Value::Number(n.value))
}

/// `[0, 1, 1]`, `(128, 0)`.
fn list(text: &str) -> Option<Value> {
    let inner = text.strip_prefix(['[', '('])?.strip_suffix([']', ')'])?;
    let items: Vec<&str> = inner.split(',').map(str::trim).filter(|t| !t.is_empty()).collect();
    if items.len() > MAX_LIST {
        return None;
    }
    items.into_iter().map(whole_number).collect::<Option<Vec<_>>>().map(Value::List)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;

    /// The block of a run, with its arguments in place of those that Megatron has by default.
    fn hello(arguments: &[(&str, &str)]) -> Event {
        let defaults = [
            ("bf16", "True"),
            ("decoder_seq_length", "None"),
            ("ffn_hidden_size", "14336"),
            ("fp8", "None"),
            ("group_query_attention", "True"),
            ("hidden_size", "4096"),
            ("hybrid_attention_ratio", "0.0"),
            ("kv_channels", "128"),
            ("kv_lora_rank", "32"),
            ("linear_key_head_dim", "128"),
            ("mamba_state_dim", "128"),
            ("moe_layer_freq", "1"),
            ("moe_router_topk", "2"),
            ("multi_latent_attention", "False"),
            ("num_attention_heads", "32"),
            ("num_experts", "None"),
            ("num_layers", "32"),
            ("num_query_groups", "8"),
            ("padded_vocab_size", "128256"),
            ("qk_head_dim", "128"),
            ("seq_length", "8192"),
            ("swiglu", "True"),
            ("world_size", "16"),
        ];
        let mut all = BTreeMap::from(defaults);
        all.extend(arguments.iter().copied());
        let mut text = String::from("------------------------ arguments ------------------------\n");
        for (key, value) in all {
            text = format!("{text}  {key} {} {value}\n", ".".repeat(48 - key.len()));
        }
        text += "-------------------- end of arguments ---------------------\n";
        text += " > padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)\n";
        text += " iteration       10/     100 | elapsed time per iteration (ms): 1000.0 | global batch size:    16 | lm loss: 2.5E+00 |\n";
        let mut reader = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        text.lines().for_each(|l| {
            reader.line(l, &mut out);
        });
        assert_eq!(out.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Hello, Kind::Step]);
        assert_eq!(reader.counters().unmatched, 0);
        out.remove(0)
    }

    /// With a file for each rank, the first has the arguments and the last has the steps.
    #[test]
    fn arguments_in_a_file_without_steps_are_published() {
        let mut reader = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        for line in [
            "------------------------ arguments ------------------------",
            "  hidden_size ..................................... 4096",
            "  num_layers ...................................... 32",
            "-------------------- end of arguments ---------------------",
            " > padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)",
        ] {
            assert!(out.is_empty(), "before {line}");
            reader.line(line, &mut out);
        }
        assert_eq!(out.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Hello]);
        assert_eq!(model(&out[0]).get("padded_vocab_size"), Some(&Value::Number(50688.0)));
    }

    #[test]
    fn the_vocabulary_behind_a_loggers_prefix() {
        let logger = "megatron.core.tokenizers.utils.build_tokenizer";
        let text = "> padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)";
        for line in [
            text.to_owned(),
            format!("INFO:{logger}: {text}"),
            format!("INFO:{logger}:{text}"),
            format!("2026-08-22 10:00:00,123 - {logger} - INFO -  {text}"),
            format!("[INFO     | {logger}]:  {text}"),
        ] {
            let mut arguments = Arguments::default();
            assert!(arguments.take(&line), "{line}");
            assert_eq!(arguments.values.get("padded_vocab_size"), Some(&Value::Number(50688.0)), "{line}");
        }
        for line in [format!("it printed {text}"), "INFO:x: > padded vocab (size: 5)".to_owned()] {
            assert!(!Arguments::default().take(&line), "{line}");
        }
    }

    fn model(e: &Event) -> BTreeMap<String, Value> {
        let Some(Value::Map(model)) = e.extra.get("model") else { panic!("{e:?}") };
        model.clone()
    }

    #[test]
    fn the_dimensions_that_are_used_are_published_before_the_first_step() {
        let e = hello(&[]);
        assert_eq!((e.world, e.extra["dtype"].as_str()), (Some(16), Some("bf16")));
        let keys: Vec<_> = model(&e).into_iter().map(|(k, v)| (k, v.as_f64())).collect();
        let number = |k: &str, n: f64| (k.to_owned(), Some(n));
        assert_eq!(
            keys,
            [
                number("ffn_hidden_size", 14336.0),
                number("hidden_size", 4096.0),
                number("hybrid_attention_ratio", 0.0),
                number("kv_channels", 128.0),
                number("moe_layer_freq", 1.0),
                number("moe_router_topk", 2.0),
                number("num_attention_heads", 32.0),
                number("num_layers", 32.0),
                number("num_query_groups", 8.0),
                number("padded_vocab_size", 50688.0),
                number("seq_length", 8192.0),
                ("swiglu".to_owned(), None),
            ]
        );
    }

    #[test]
    fn what_other_models_would_have_is_left_out_unless_they_are_trained() {
        // One group is the default where queries are not grouped.
        let m = model(&hello(&[("group_query_attention", "False"), ("num_query_groups", "1")]));
        assert!(!m.contains_key("num_query_groups") && !m.contains_key("kv_lora_rank"));
        let m = model(&hello(&[("multi_latent_attention", "True")]));
        assert_eq!(m["kv_lora_rank"], Value::Number(32.0));
        let m = model(&hello(&[("hybrid_override_pattern", "M-M*-"), ("mamba_head_dim", "64")]));
        assert_eq!(m["mamba_num_heads"], Value::Number(128.0));
        assert_eq!(m["hybrid_override_pattern"].as_str(), Some("M-M*-"));
        let m = model(&hello(&[("decoder_seq_length", "128")]));
        assert_eq!(m["is_encoder_decoder"], Value::Bool(true));
        let m = model(&hello(&[("moe_layer_freq", "[0, 1, 1]"), ("window_size", "(127, 0)")]));
        assert_eq!(m["moe_layer_freq"], Value::List([0.0, 1.0, 1.0].map(Value::Number).to_vec()));
        assert_eq!(m["window_size"], Value::List([127.0, 0.0].map(Value::Number).to_vec()));
    }

    #[test]
    fn the_format_of_the_matrix_products() {
        let dtype = |a: &[(&str, &str)]| hello(a).extra["dtype"].as_str().map(str::to_owned).unwrap();
        assert_eq!(dtype(&[("fp8", "hybrid")]), "fp8");
        // Beside bf16, which the rest is in.
        assert_eq!(dtype(&[("fp4", "e2m1"), ("fp4_param", "False"), ("fp4_recipe", "nvfp4")]), "fp4");
        assert_eq!(dtype(&[("fp4", "None"), ("fp4_recipe", "nvfp4")]), "bf16");
        assert_eq!(dtype(&[("bf16", "False"), ("fp16", "True")]), "fp16");
        assert_eq!(dtype(&[("bf16", "False")]), "fp32");
    }

    #[test]
    fn values_as_python_prints_them() {
        assert_eq!(python("4......................updated"), Value::Number(4.0));
        assert_eq!(python("1e-05"), Value::Number(1e-5));
        assert_eq!(python("['a', 'b']").as_str(), Some("['a', 'b']"));
        assert_eq!(python(&"M".repeat(9999)).as_str(), Some("too long"));
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_taken_or_left(lines in proptest::collection::vec("[ -~]{0,60}", 0..20)) {
            let mut arguments = Arguments { open: true, ..Arguments::default() };
            for line in &lines {
                arguments.take(line.trim());
            }
            proptest::prop_assert!(arguments.values.len() <= MAX_KEPT);
        }
    }
}
