//! The model that torchtitan prints before the first step, and what follows from its step lines.
//!
//! * `Building llama3 8B with TransformerModelArgs(dim=4096, n_layers=32, …)`: the dimensions,
//!   until 2026.
//! * `Model llama3 8B size: 8,030,261,248 total parameters`: the name of dimensions that are
//!   public.
//! * `Trainer is initialized with …, sequence length 8192, …`: the length that attention sees.
//! * `tps: 5,615  tflops: 325.20`: what it counts for a token, of any model.

use std::collections::BTreeMap;

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value};

use crate::format::Line;
use crate::number;

/// Arguments that are kept of one line.
const MAX_KEPT: usize = 64;
/// How exact the FLOPs of a token must be that follow from two rounded numbers.
const EXACT: f64 = 0.002;
/// How far parameters may be from those of the model that the log names.
const SAME: f64 = 1e-3;

/// Dimensions by name and number of parameters: dim, layers, heads, groups, feed-forward width,
/// vocabulary.
const PUBLIC: &[(&str, &str, f64, [f64; 6])] = &[
    ("llama3", "debugmodel", 6_163_712.0, [256.0, 6.0, 16.0, 16.0, 768.0, 2048.0]),
    ("llama3", "debugmodel", 6_270_464.0, [256.0, 6.0, 16.0, 16.0, 768.0, 2256.0]),
    ("llama3", "1B", 1_235_814_400.0, [2048.0, 16.0, 32.0, 8.0, 8192.0, 128_256.0]),
    ("llama3", "3B", 3_212_749_824.0, [3072.0, 28.0, 24.0, 8.0, 8192.0, 128_256.0]),
    ("llama3", "8B", 8_030_261_248.0, [4096.0, 32.0, 32.0, 8.0, 14_336.0, 128_256.0]),
    ("llama3", "70B", 70_553_706_496.0, [8192.0, 80.0, 64.0, 8.0, 28_672.0, 128_256.0]),
    ("llama3", "405B", 405_853_388_800.0, [16_384.0, 126.0, 128.0, 8.0, 53_248.0, 128_256.0]),
];
const DIMENSIONS: [&str; 6] = ["hidden", "layers", "heads", "kv_heads", "ffn", "vocab"];
/// Models whose printed arguments are those of a transformer with a gated feed-forward part, and
/// experts only where the arguments have them.
const DENSE: &[&str] =
    &["llama3", "llama2", "llama3_ft", "llama3_simple_fsdp", "simple_fsdp.llama3", "qwen3"];

#[derive(Debug, Default)]
pub(super) struct Model {
    /// What it is called, and its variant.
    name: Option<(String, String)>,
    arguments: BTreeMap<String, Value>,
    params: Option<f64>,
    length: Option<f64>,
    /// FLOPs of a token as it counts them.
    per_token: Option<f64>,
    quantized: bool,
    /// There is something new to publish.
    news: bool,
}

impl Model {
    /// Reads a line before the first step.
    pub(super) fn take(&mut self, text: &str) -> bool {
        if let Some(rest) = text.strip_prefix("Building ") {
            return self.building(rest);
        }
        if let Some((name, size)) = text.strip_prefix("Model ").and_then(|t| t.split_once(" size: ")) {
            let size = number::lex(size).filter(|n| n.rest.trim_start().starts_with("total parameters"));
            if let (Some(size), Some((name, flavor))) = (size, name.rsplit_once(' ')) {
                self.call(name, flavor);
                (self.params, self.news) = (Some(size.value), true);
                return true;
            }
        }
        if text.starts_with("Trainer is initialized with") || text.starts_with("Training starts at step") {
            let found =
                ["sequence length ", "maximum context length "].iter().find_map(|w| text.split_once(w));
            let length = found.and_then(|(_, n)| number::integer(n)).filter(|(n, _)| *n > 0);
            if let Some((length, _)) = length {
                (self.length, self.news) = (Some(length as f64), true);
            }
            return length.is_some();
        }
        false
    }

    fn building(&mut self, rest: &str) -> bool {
        let (who, arguments) = rest.split_once(" with ").unwrap_or((rest, ""));
        let Some((name, flavor)) = who.trim_end().split_once(' ').filter(|(_, f)| !f.contains(' ')) else {
            return false;
        };
        if name.bytes().all(|b| b.is_ascii_digit() || b == b'-') || flavor == "mesh" {
            return false;
        }
        *self = Self::default();
        self.call(name, flavor);
        if let Some((_, inner)) = arguments.split_once('(') {
            self.arguments = arguments_of(inner);
        }
        self.news = true;
        true
    }

    fn call(&mut self, name: &str, flavor: &str) {
        let clip = |t: &str| t.chars().take(64).collect::<String>();
        self.name = Some((clip(name), clip(flavor)));
    }

    /// Learns from a step line, and returns what is new.
    pub(super) fn step(
        &mut self,
        line: &Line<'_>,
        tps: Option<f64>,
        tflops: Option<f64>,
        na: bool,
    ) -> Option<Event> {
        let rates = tps.zip(tflops).filter(|(tps, tflops)| *tps > 0.0 && *tflops > 0.0);
        if let (None, Some((tps, tflops))) = (self.per_token, rates) {
            if 0.5 / tps + 0.005 / tflops <= EXACT {
                (self.per_token, self.news) = (Some(tflops * 1e12 / tps), true);
            }
        }
        self.news |= na && !core::mem::replace(&mut self.quantized, na);
        if !core::mem::take(&mut self.news) {
            return None;
        }
        let mut model = self.dimensions();
        if model.is_empty() && self.per_token.is_none() {
            return None;
        }
        if let Some((name, flavor)) = &self.name {
            model.insert("name".into(), Value::Text(format!("{name} {flavor}")));
        }
        if let Some(flops) = self.per_token {
            model.insert("flops_per_token".into(), Value::Number(flops));
            model.insert("convention".into(), Value::Text("torchtitan".into()));
        }
        let mut e = line.event(Kind::Hello, None);
        e.extra.insert(hello::SOURCE.into(), Value::Text(hello::PRINTED.into()));
        e.extra.insert(hello::SAVES.into(), Value::Text(hello::ALL.into()));
        e.extra.insert("framework".into(), Value::Text("torchtitan".into()));
        if self.quantized {
            e.extra.insert("dtype".into(), Value::Text("fp8".into()));
        }
        e.extra.insert("model".into(), Value::Map(model));
        Some(e)
    }

    fn dimensions(&self) -> BTreeMap<String, Value> {
        let Some((name, flavor)) = &self.name else { return BTreeMap::new() };
        let mut found = BTreeMap::new();
        if DENSE.contains(&name.as_str()) && self.arguments.contains_key("dim") {
            found = self.arguments.clone();
            if found.get("moe_enabled") != Some(&Value::Bool(true)) {
                found.retain(|key, _| {
                    !matches!(key.as_str(), "num_experts" | "top_k" | "moe_inter_dim" | "num_shared_experts")
                });
            }
            found.remove("moe_enabled");
        } else if let Some(params) = self.params {
            let is = |row: &&(&str, &str, f64, [f64; 6])| {
                row.0 == name && row.1 == flavor && (params / row.2 - 1.0).abs() < SAME
            };
            if let Some((.., sizes)) = PUBLIC.iter().find(is) {
                found =
                    DIMENSIONS.iter().zip(sizes).map(|(k, v)| ((*k).to_owned(), Value::Number(*v))).collect();
            }
        }
        if found.is_empty() {
            return found;
        }
        found.insert("gated".into(), Value::Bool(true));
        if let Some(length) = self.length {
            found.insert("seq_len".into(), Value::Number(length));
        }
        if let Some(params) = self.params {
            found.insert("total_params".into(), Value::Number(params));
        }
        found
    }
}

/// `dim=4096, n_layers=32, moe_args=MoEArgs(num_experts=8, …)`: numbers and flags by their name,
/// the outermost of those that are the same.
fn arguments_of(text: &str) -> BTreeMap<String, Value> {
    const READ: &[&str] = &[
        "dim",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "vocab_size",
        "multiple_of",
        "ffn_dim_multiplier",
        "hidden_dim",
        "head_dim",
        "max_seq_len",
        "moe_enabled",
        "moe_inter_dim",
        "num_experts",
        "top_k",
        "num_shared_experts",
    ];
    let mut found = BTreeMap::new();
    for pair in text.split([',', '(', ')']) {
        let Some((key, value)) = pair.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        let read = match value {
            "True" => Some(Value::Bool(true)),
            "False" => Some(Value::Bool(false)),
            _ => number::lex(value).filter(|n| n.rest.is_empty()).map(|n| Value::Number(n.value)),
        };
        if let (Some(value), true) = (read, READ.contains(&key) && found.len() < MAX_KEPT) {
            found.entry(key.to_owned()).or_insert(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;

    const P: &str = "[rank0]:[titan] 2026-08-21 10:00:00,000 - root - INFO - ";

    fn hellos(lines: &[&str]) -> Vec<Event> {
        let mut reader = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        for l in lines {
            reader.line(&format!("{P}{l}"), &mut out);
        }
        out.retain(|e| e.kind == Kind::Hello);
        out
    }

    fn number(e: &Event, key: &str) -> Option<f64> {
        e.extra["model"].get(key).and_then(Value::as_f64)
    }

    const STEP: &str = "step:  1  loss: 12.2465  grad_norm:  4.5253  memory: 33.21GiB(34.95%)  tps: 86  tflops: 4.98  mfu: 0.50%";
    const TENTH: &str = "step: 10  loss: 10.2391  grad_norm: 16.1413  memory: 44.84GiB(47.19%)  tps: 5,615  tflops: 325.20  mfu: 32.88%";

    #[test]
    fn the_size_line_names_dimensions_that_are_public() {
        let e = hellos(&[
            "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1",
            "Building llama3 8B",
            "\u{1b}[34mModel llama3 8B \u{1b}[31msize: 8,030,261,248 total parameters\u{1b}[39m",
            "Trainer is initialized with 65536 tokens per DP rank, 524288 tokens per train step, gradient accumulation steps 1, \
             maximum context length 8192, total steps 1000 (warmup 200)",
            STEP,
            TENTH,
        ]);
        assert_eq!(e.len(), 2, "with the dimensions, and with what it counts for a token");
        assert_eq!((number(&e[0], "hidden"), number(&e[0], "ffn")), (Some(4096.0), Some(14336.0)));
        assert_eq!((number(&e[0], "seq_len"), number(&e[0], "flops_per_token")), (Some(8192.0), None));
        assert_eq!(e[0].extra["model"].get("name").and_then(Value::as_str), Some("llama3 8B"));
        // 6 x 7,504,924,672 + 12 x 32 x 4096 x 8192, as torchtitan counts; from two rounded
        // numbers.
        assert!((number(&e[1], "flops_per_token").unwrap() / 57_914_449_920.0 - 1.0).abs() < 2e-3);
    }

    #[test]
    fn dimensions_as_they_were_printed_until_2026() {
        let e = hellos(&[
            "Building llama3 8B with TransformerModelArgs(_enforced='This field is used to enforce all fields have defaults.', dim=4096, \
             n_layers=32, n_heads=32, n_kv_heads=8, vocab_size=128256, multiple_of=1024, ffn_dim_multiplier=1.3, norm_eps=1e-05, \
             rope_theta=500000, rope_scaling_args=RoPEScalingArgs(scaling_factor=8.0, dim=7), max_seq_len=2048, depth_init=True)",
            "Training starts at step 1, with local batch size 1, global batch size 8, sequence length 8192, total steps 10 (warmup 2)",
            STEP,
        ]);
        let seen =
            ["dim", "n_layers", "n_kv_heads", "multiple_of", "seq_len"].map(|k| number(&e[0], k).unwrap());
        assert_eq!(seen, [4096.0, 32.0, 8.0, 1024.0, 8192.0]);
    }

    #[test]
    fn a_model_that_nobody_knows_has_what_torchtitan_counts() {
        let e = hellos(&[
            "Building mine 7B",
            "Model mine 7B size: 7,000,000,000 total parameters",
            STEP,
            TENTH,
            TENTH,
        ]);
        assert_eq!(e.len(), 1, "not from 4.98 and 86, which are not exact enough");
        assert_eq!(number(&e[0], "hidden"), None);
        // Parameters that are not those of the public model of that name.
        let e = hellos(&["Model llama3 8B size: 9,000,000,000 total parameters", STEP]);
        assert_eq!(e, []);
    }

    #[test]
    fn without_an_mfu_of_its_own_the_products_are_of_8_bits() {
        let e = hellos(&[&TENTH.replace("32.88%", "N/A")]);
        assert_eq!(e[0].extra["dtype"].as_str(), Some("fp8"));
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_taken_or_left(line in "(Building |Model |Trainer is initialized with )[ -~]{0,80}") {
            let mut model = Model::default();
            model.take(&line);
            proptest::prop_assert!(model.arguments.len() <= MAX_KEPT);
        }
    }
}
