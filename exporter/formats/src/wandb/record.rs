//! What is in the records: the run, its history, alerts, the end.

use std::collections::BTreeMap;

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, MAX_TEXT, Value, num};

use super::{Out, Pushed};
use crate::absent::Absent;
use crate::number::{self, Resolution};
use crate::protobuf::{Malformed, Message};
use crate::scalars::{Gathered, Printed, Scalars};

/// Keys under which trainers log their own step; W&B's `_step` only counts calls of `log`.
const STEP_KEYS: &[&str] = &["train/global_step", "trainer/global_step", "global_step"];
/// Levels of a nested object that are joined to one key.
const MAX_NESTING: u32 = 4;
/// Numbers of one row that are kept.
const MAX_ROW: usize = 4096;

/// Entries of the configuration that describe the model and its data, by the names that frameworks
/// give them. Nothing else of it leaves: people keep secrets in it.
const MODEL_KEYS: &[&str] = &[
    "n_params",
    "num_params",
    "num_parameters",
    "trainable_params",
    "n_active",
    "active_params",
    "layers",
    "n_layers",
    "n_layer",
    "num_layers",
    "num_hidden_layers",
    "hidden_size",
    "d_model",
    "n_embd",
    "dim",
    "heads",
    "n_heads",
    "n_head",
    "num_heads",
    "num_attention_heads",
    "n_kv_heads",
    "num_kv_heads",
    "num_key_value_heads",
    "num_query_groups",
    "head_dim",
    "kv_channels",
    "ffn_hidden_size",
    "intermediate_size",
    "hidden_act",
    "activation_function",
    "model_type",
    "vocab_size",
    "padded_vocab_size",
    "seq_len",
    "seq_length",
    "sequence_length",
    "block_size",
    "max_seq_len",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_moe_experts",
    "num_experts_per_tok",
    "moe_router_topk",
    "moe_intermediate_size",
    "moe_ffn_hidden_size",
    "n_shared_experts",
    "first_k_dense_replace",
    "flops_per_token",
];
/// Keys that describe which layers there are, which may be a list or a flag: a model that is not
/// recognised by them must be refused.
const LAYER_KEYS: &[&str] = &[
    "layer_types",
    "layers_block_type",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "attention_chunk_size",
    "no_rope_layers",
    "no_rope_layer_interval",
    "full_attention_interval",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "hybrid_override_pattern",
    "mamba_num_heads",
    "mamba_n_heads",
    "mamba_head_dim",
    "mamba_d_head",
    "mamba_d_state",
    "mamba_n_groups",
    "ssm_state_size",
    "attn_layer_indices",
    "is_encoder_decoder",
    "moe_layer_freq",
    "decoder_sparse_step",
    "mlp_only_layers",
    "interleave_moe_layer_step",
    "intermediate_size_mlp",
    "shared_expert_intermediate_size",
    "hidden_activation",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "index_topk",
];
/// The longest list that is kept: one entry a layer.
const MAX_LIST: usize = 512;
const MODEL_NAME_KEYS: &[&str] = &["_name_or_path", "model_name_or_path", "model_name", "model_id", "model"];
const WORLD_KEYS: &[&str] = &["world_size", "num_gpus", "n_gpus"];
const DTYPE_KEYS: &[&str] = &["torch_dtype", "dtype", "precision", "mixed_precision"];
const DTYPE_FLAGS: &[&str] = &["bf16", "fp16", "fp8"];

/// Turns records into events.
#[derive(Debug)]
pub(super) struct Records {
    /// Name of the run: as people gave it, or else its id.
    run: Option<String>,
    scalars: Scalars,
    /// The run was published, or is read on in the middle: a further record of it changes it and
    /// does not begin it.
    begun: bool,
    /// Rows carry a step of the trainer's own.
    own_step: bool,
    last_step: Option<i64>,
    last_ts: Option<f64>,
    absent: Absent,
}

impl Default for Records {
    fn default() -> Self {
        Self {
            run: None,
            scalars: Scalars::default(),
            begun: false,
            own_step: false,
            last_step: None,
            last_ts: None,
            absent: Absent::of_records(),
        }
    }
}

impl Records {
    /// What is known of the run, to go on somewhere in its log.
    pub(super) fn same_run(self) -> Self {
        Self { run: self.run, own_step: self.own_step, ..Self::default() }
    }

    /// Memory that the tags take.
    pub(super) fn tag_bytes(&self) -> usize {
        self.scalars.bytes()
    }

    /// There is no room for them.
    pub(super) fn give_up_tags(&mut self) {
        self.scalars.give_up();
    }

    /// Goes on in the middle of the log.
    pub(super) fn resume(&mut self, last_step: Option<i64>) {
        self.begun = true;
        self.last_step = last_step;
        if let Some(step) = last_step {
            self.scalars.axis.resume(step);
        }
    }

    pub(super) fn read(&mut self, data: &[u8], pushed: &mut Pushed, out: &mut Out<'_>) {
        let mut events = Vec::new();
        let mut resolution = Resolution::default();
        let mut absent = core::mem::take(&mut self.absent);
        let read = self.record(data, pushed, &mut Out::new(&mut events, &mut resolution, Some(&mut absent)));
        self.absent = absent;
        pushed.bad_records += u64::from(read.is_err());
        for mut e in events {
            e.run.clone_from(&self.run);
            out.push(e);
        }
    }

    /// Reads a `Record`: one of its fields determines what it is.
    fn record(&mut self, data: &[u8], pushed: &mut Pushed, out: &mut Out<'_>) -> Result<(), Malformed> {
        for field in Message::new(data) {
            let (number, v) = field?;
            match (number, v.bytes()) {
                (2, Some(history)) => self.history(history, pushed, out)?,
                (10, Some(alert)) => out.push(self.alert(alert)?),
                (17, Some(run)) => {
                    let hello = self.run(run)?;
                    out.push(hello);
                }
                (18, Some(exit)) => out.push(self.exit(exit)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn history(&mut self, data: &[u8], pushed: &mut Pushed, out: &mut Out<'_>) -> Result<(), Malformed> {
        let (mut row, mut nulls) = (Vec::new(), Vec::new());
        let mut counted = None;
        for field in Message::new(data) {
            match field? {
                (1, v) => {
                    let item = item(v.bytes().ok_or(Malformed)?)?;
                    nulls.extend(item.iter().filter(|i| i.json == "null").map(|i| i.keys.join("/")));
                    item.into_iter().for_each(|i| i.flatten(&mut row));
                }
                (2, v) => counted = step_number(v.bytes().ok_or(Malformed)?)?,
                _ => {}
            }
        }
        // The items come in any order.
        row.sort_by(|(a, _), (b, _)| a.cmp(b));
        row.truncate(MAX_ROW);
        let at = |key: &str| row.iter().find(|(k, _)| k == key).map(|(_, v)| *v);
        let own = STEP_KEYS.iter().find_map(|k| at(k)).and_then(number::whole);
        let step = own.or_else(|| at("_step").and_then(number::whole)).or(counted);
        let ts = at("_timestamp").filter(|t| t.is_finite() && *t > 0.0);
        let values: Vec<_> = row
            .iter()
            .filter(|(k, _)| !k.starts_with('_') && !STEP_KEYS.contains(&k.as_str()))
            .filter_map(|(k, v)| Some((self.scalars.id(k)?, *v)))
            .collect();
        let Some(step) = step.filter(|_| own.is_some() || !self.own_step) else {
            pushed.unmatched += values.len() as u64;
            return Ok(());
        };
        self.own_step |= own.is_some();
        (self.last_step, self.last_ts) = (Some(step), ts.or(self.last_ts));
        self.scalars.nulls(nulls.iter().map(String::as_str), &values, out);
        pushed.unmatched += self.scalars.give(&Gathered { step, ts, values }, Printed::Binary, out);
        Ok(())
    }

    fn run(&mut self, data: &[u8]) -> Result<Event, Malformed> {
        let (mut id, mut shown, mut resumed) = (None, None, false);
        let mut config = BTreeMap::new();
        for field in Message::new(data) {
            match field? {
                (1, v) => id = v.text(),
                (4, v) => read_config(v.bytes().ok_or(Malformed)?, &mut config)?,
                (8, v) => shown = v.text(),
                (18, v) => resumed = v.integer() == Some(1),
                _ => {}
            }
        }
        let is_there = |text: &&str| !text.is_empty();
        let (id, shown) = (id.filter(is_there), shown.filter(is_there));
        // Any number of runs are shown under one name.
        self.run = id.or(shown).map(clip).or(self.run.take());
        let mut e = Event { run: self.run.clone(), ..Event::new(Kind::Hello) };
        if let Some(title) = shown {
            e.extra.insert("title".into(), Value::Text(clip(title)));
        }
        describe(&config, &mut e);
        if resumed && !core::mem::replace(&mut self.begun, true) {
            e.extra.insert(hello::RESUMED.into(), Value::Bool(true));
        }
        Ok(e)
    }

    fn alert(&self, data: &[u8]) -> Result<Event, Malformed> {
        let (mut title, mut text, mut level) = ("", "", "");
        for field in Message::new(data) {
            match field? {
                (1, v) => title = v.text().unwrap_or(title),
                (2, v) => text = v.text().unwrap_or(text),
                (3, v) => level = v.text().unwrap_or(level),
                _ => {}
            }
        }
        let parts: Vec<&str> = [title, text].into_iter().filter(|t| !t.is_empty()).collect();
        Ok(Event {
            name: Some("wandb_alert".into()),
            text: Some(clip(&parts.join(": "))),
            level: Some(if level.is_empty() { "info".into() } else { clip(&level.to_lowercase()) }),
            step: self.last_step.filter(|s| *s >= 0),
            ts: self.last_ts,
            ..Event::new(Kind::Event)
        })
    }

    fn exit(&self, data: &[u8]) -> Result<Event, Malformed> {
        let mut code = 0;
        for field in Message::new(data) {
            if let (1, v) = field? {
                code = v.integer().ok_or(Malformed)?;
            }
        }
        // An int32: what is outside of it was never written by W&B.
        let code = i32::try_from(code).map_err(|_| Malformed)?;
        let step = self.last_step.filter(|s| *s >= 0);
        Ok(Event { code: Some(code.into()), step, ..Event::new(Kind::Bye) })
    }
}

/// A key and its value as JSON.
struct Item<'a> {
    keys: Vec<&'a str>,
    json: &'a str,
    /// What newer clients may write instead.
    number: Option<f64>,
}

/// `HistoryItem`, `ConfigItem`.
fn item(data: &[u8]) -> Result<Option<Item<'_>>, Malformed> {
    let mut item = Item { keys: Vec::new(), json: "", number: None };
    for field in Message::new(data) {
        match field? {
            (1 | 2, v) => item.keys.extend(v.text().filter(|k| !k.is_empty())),
            (5, v) => item.number = v.zigzag().map(|n| n as f64),
            (6, v) => item.number = v.double(),
            (8 | 16, v) => item.json = v.text().unwrap_or(""),
            _ => {}
        }
    }
    Ok((!item.keys.is_empty()).then_some(item))
}

impl Item<'_> {
    fn flatten(self, row: &mut Vec<(String, f64)>) {
        // Numbers are all that most rows have.
        if let Some(n) = self.number.or_else(|| num::parse(self.json)) {
            row.push((self.keys.join("/"), n));
        } else if self.json.starts_with(['{', '"']) {
            if let Ok(v) = Value::parse(self.json.as_bytes()) {
                flatten(self.keys.join("/"), &v, MAX_NESTING, row);
            }
        }
    }
}

fn flatten(key: String, v: &Value, depth: u32, row: &mut Vec<(String, f64)>) {
    match v {
        Value::Number(n) => row.push((key, *n)),
        // Only what is no number is written as text.
        Value::Text(t) => row.extend(num::parse(t).filter(|n| !n.is_finite()).map(|n| (key, n))),
        // With a type it is a picture or a table.
        Value::Map(m) if depth > 0 && !m.contains_key("_type") => {
            for (k, v) in m {
                flatten(format!("{key}/{k}"), v, depth - 1, row);
            }
        }
        _ => {}
    }
}

fn step_number(data: &[u8]) -> Result<Option<i64>, Malformed> {
    let mut step = Some(0);
    for field in Message::new(data) {
        if let (1, v) = field? {
            step = v.integer();
        }
    }
    Ok(step)
}

/// `ConfigRecord`: what was set, by key.
fn read_config(data: &[u8], into: &mut BTreeMap<String, Value>) -> Result<(), Malformed> {
    for field in Message::new(data) {
        if let (1, v) = field? {
            let Some(item) = item(v.bytes().ok_or(Malformed)?)? else { continue };
            if let Ok(v) = Value::parse(item.json.as_bytes()) {
                into.insert(item.keys.join("/"), v);
            }
        }
    }
    Ok(())
}

/// Puts on a hello what the configuration contains of the model.
fn describe(config: &BTreeMap<String, Value>, e: &mut Event) {
    let nested: Vec<_> =
        config.values().filter_map(|v| if let Value::Map(m) = v { Some(m) } else { None }).collect();
    let at = |key: &str| config.get(key).or_else(|| nested.iter().find_map(|m| m.get(key)));
    let positive = |key: &&str| at(key).and_then(Value::as_f64).filter(|n| n.is_finite() && *n > 0.0);
    let text = |key: &&str| at(key).and_then(Value::as_str).filter(|t| !t.is_empty()).map(clip);
    let mut model = BTreeMap::new();
    for key in MODEL_KEYS {
        let value = positive(key).map(Value::Number).or_else(|| text(key).map(Value::Text));
        model.extend(value.map(|v| ((*key).to_owned(), v)));
    }
    for key in LAYER_KEYS {
        let kept =
            |v: &&Value| !matches!(v, Value::Map(_)) && !matches!(v, Value::List(l) if l.len() > MAX_LIST);
        model.extend(at(key).filter(kept).map(|v| ((*key).to_owned(), v.clone())));
    }
    if let Some(n) = positive(&"model/num_parameters") {
        model.entry("n_params".into()).or_insert(Value::Number(n)); // the Hugging Face callback
    }
    if let Some(name) = MODEL_NAME_KEYS.iter().find_map(text) {
        model.insert("name".into(), Value::Text(name));
    }
    if !model.is_empty() {
        e.extra.insert("model".into(), Value::Map(model));
    }
    let flag = || DTYPE_FLAGS.iter().find(|f| at(f) == Some(&Value::Bool(true))).map(|f| (*f).to_owned());
    if let Some(dtype) = flag().or_else(|| DTYPE_KEYS.iter().find_map(text)) {
        let dtype = dtype.trim_start_matches("torch.").replace("bfloat16", "bf16").replace("float16", "fp16");
        e.extra.insert("dtype".into(), Value::Text(dtype));
    }
    if let Some(version) = text(&"transformers_version") {
        e.extra.insert("framework".into(), Value::Text("transformers".into()));
        e.extra.insert("version".into(), Value::Text(version));
    }
    e.world = WORLD_KEYS.iter().find_map(positive).and_then(number::whole).and_then(|n| n.try_into().ok());
}

fn clip(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}
