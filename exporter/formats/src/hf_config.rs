//! `config.json` of Hugging Face, which lies in every checkpoint: the dimensions of the model, and
//! not what it is trained on.
//!
//! The number format that it names is that of the weights on disk, which need not be that of the
//! matrix products.

use std::collections::BTreeMap;
use std::path::Path;

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value};

use crate::file_format::{Chunk, FileFormat, Pushed};
use crate::format::Out;

/// Entries that are kept of one object.
const MAX_KEPT: usize = 128;
/// Characters that are kept of a text.
const MAX_CHARS: usize = 256;
/// The longest list: one entry a layer.
const MAX_LIST: usize = 512;
/// Objects of which the contents count.
const LANGUAGE: &[&str] = &["text_config", "llm_config", "language_config"];

#[derive(Debug, Default)]
pub(crate) struct HfConfig {
    published: Option<BTreeMap<String, Value>>,
}

/// Whether the file of this name is one, by its first bytes, or where it was not read yet by its
/// directory.
pub(crate) fn is_one(path: &Path, head: &[u8]) -> bool {
    let key = b"\"model_type\"";
    let dir = path.parent().and_then(Path::file_name).and_then(|n| n.to_str()).unwrap_or("");
    let step = dir.strip_prefix("checkpoint-").unwrap_or("");
    let in_checkpoint = !step.is_empty() && step.bytes().all(|b| b.is_ascii_digit());
    if head.is_empty() { in_checkpoint } else { head.windows(key.len()).any(|w| w == key) }
}

impl FileFormat for HfConfig {
    fn name(&self) -> &'static str {
        "hf-config"
    }

    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed {
        let done = Pushed { consumed: chunk.bytes.len(), ..Pushed::default() };
        let Ok(Value::Map(config)) = Value::parse(chunk.bytes) else {
            // It may be being written.
            return if chunk.at_rest { Pushed { bad_records: 1, ..done } } else { Pushed::default() };
        };
        let model = describe(&config);
        if config.get("model_type").and_then(Value::as_str).is_none()
            || self.published.as_ref() == Some(&model)
        {
            return done;
        }
        let mut e = Event::new(Kind::Hello);
        let text = |text: &str| Value::Text(text.into());
        e.extra.insert(hello::SOURCE.into(), text(hello::MODEL_CONFIG));
        e.extra.insert("framework".into(), text("transformers"));
        if let Some(version) = config.get("transformers_version").and_then(Value::as_str) {
            e.extra.insert("version".into(), text(&clip(version)));
        }
        e.extra.insert("model".into(), Value::Map(model.clone()));
        self.published = Some(model);
        out.push(e);
        done
    }

    /// It is read again by who starts again.
    fn position(&self) -> u64 {
        0
    }

    fn resume(&mut self, _position: u64, _last_step: Option<i64>) {}
}

fn describe(config: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let mut model = BTreeMap::new();
    for (key, value) in config.iter().take(MAX_KEPT) {
        match value {
            Value::Map(inner) if LANGUAGE.contains(&key.as_str()) => {
                model.insert(key.clone(), Value::Map(describe(inner)));
            }
            // All that counts is that there is such a part.
            Value::Map(_) if key.starts_with("vision") || key.starts_with("audio") => {
                model.insert(key.clone(), Value::Map(BTreeMap::new()));
            }
            Value::Map(_) => {}
            Value::List(items) => {
                let small = |v: &Value| {
                    matches!(v, Value::Number(_) | Value::Bool(_))
                        || v.as_str().is_some_and(|t| t.len() <= 64)
                };
                let kept = items.len() <= MAX_LIST && items.iter().all(small);
                model.extend(kept.then(|| (clip(key), value.clone())));
            }
            // A pattern of layers is cut nowhere.
            Value::Text(text) if key.contains("pattern") => {
                model.extend((text.len() <= MAX_LIST).then(|| (clip(key), value.clone())));
            }
            Value::Text(text) => {
                model.insert(clip(key), Value::Text(clip(text)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                model.insert(clip(key), value.clone());
            }
        }
    }
    let architecture = match config.get("architectures") {
        Some(Value::List(names)) => names.first().and_then(Value::as_str),
        _ => None,
    };
    let path = config.get("_name_or_path").and_then(Value::as_str);
    let own = path.and_then(|p| p.trim_end_matches('/').rsplit('/').next()).filter(|n| !n.is_empty());
    if let Some(name) = own.or(architecture) {
        model.insert("name".into(), Value::Text(clip(name)));
    }
    model
}

fn clip(text: &str) -> String {
    text.chars().take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileKind, FileReader, kind_of, known_name};

    const CONFIG: &[u8] = br#"{"_name_or_path": "/models/Qwen3-8B", "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        "hidden_size": 4096, "sliding_window": null, "layer_types": ["full_attention", "full_attention"], "id2label": {"0": "x"},
        "torch_dtype": "float32", "transformers_version": "4.57.0", "vision_config": {"hidden_size": 7}}"#;

    fn read(bytes: &[u8], at_rest: bool) -> (Vec<Event>, Pushed) {
        let mut out = Vec::new();
        let mut reader = FileReader::new(Path::new("/out/checkpoint-500/config.json"), bytes).unwrap();
        let pushed = reader.push(bytes, at_rest, &mut out);
        reader.push(bytes, at_rest, &mut out);
        (out, pushed)
    }

    #[test]
    fn the_model_is_published_once() {
        let (events, _) = read(CONFIG, false);
        assert_eq!(events.len(), 1);
        let model = &events[0].extra["model"];
        assert_eq!(model.get("name").and_then(Value::as_str), Some("Qwen3-8B"));
        assert_eq!(model.get("hidden_size"), Some(&Value::Number(4096.0)));
        assert_eq!(model.get("vision_config"), Some(&Value::Map(BTreeMap::new())));
        assert_eq!(model.get("id2label"), None);
        assert_eq!(events[0].extra.get("dtype"), None, "of the weights on disk");
        assert_eq!(events[0].extra["version"].as_str(), Some("4.57.0"));
    }

    #[test]
    fn one_that_is_being_written_waits() {
        let half = &CONFIG[..CONFIG.len() - 9];
        assert_eq!(read(half, false), (Vec::new(), Pushed::default()));
        assert_eq!(read(half, true).1.bad_records, 1);
    }

    #[test]
    fn a_search_finds_those_of_checkpoints() {
        for (path, found) in [
            ("/out/checkpoint-500/config.json", true),
            ("/out/checkpoint-best/config.json", false),
            ("/app/config.json", false),
        ] {
            assert_eq!(known_name(Path::new(path)), found, "{path}");
        }
        assert_eq!(kind_of(Path::new("/out/config.json"), CONFIG), FileKind::Whole);
        assert_eq!(kind_of(Path::new("/app/config.json"), b"{\"port\": 8080}"), FileKind::Lines);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), at_rest: bool) {
            let mut out = Vec::new();
            let mut resolution = crate::number::Resolution::default();
            HfConfig::default().push(Chunk { bytes: &bytes, at_rest }, &mut Out::new(&mut out, &mut resolution, None));
        }
    }
}
