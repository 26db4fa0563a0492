//! What a trainer declares in `hello`: labels, by which routes and silences select, and settings,
//! by which attempts are compared. What may be a secret is left out of both.

use std::collections::BTreeMap;

use stepwatch_wire::names::hello;
use stepwatch_wire::names::setting::SET;
use stepwatch_wire::secrets::{Shown, shown};
use stepwatch_wire::setting::{Topic, topic};
use stepwatch_wire::{Event, Value};

use crate::run::gpus::visible;

/// The most labels that a run may declare, and the most characters of their names and values.
const MAX_LABELS: usize = 32;
const MAX_LABEL: usize = 128;
/// The most settings beside the labels.
const MAX_SETTINGS: usize = 64;
/// The setting with the number of GPUs that the process of the first rank sees.
const VISIBLE_GPUS: &str = "visible_gpus";

/// Takes the labels of a `hello`. One that only describes the model adds to those that are known.
/// What a log prints is true whoever says hello next.
pub(in crate::run) fn take_labels(known: &mut BTreeMap<String, String>, e: &Event) {
    let said_by = e.extra.get(hello::SOURCE).and_then(Value::as_str);
    let mut had = core::mem::replace(known, labels(e));
    if !matches!(said_by, Some(hello::MODEL_CONFIG | hello::PRINTED)) {
        had.retain(|name, _| name == hello::SAVES);
    }
    for (name, value) in had {
        if known.len() < MAX_LABELS {
            known.entry(name).or_insert(value);
        }
    }
}

/// The labels of a `hello`.
fn labels(e: &Event) -> BTreeMap<String, String> {
    let short = |text: &str| text.chars().count() <= MAX_LABEL;
    let words = e.extra.iter().filter_map(|(key, value)| Some((key, value.as_str()?)));
    let labels = words.filter(|(key, value)| {
        !value.is_empty() && short(key) && short(value) && shown(key, value) == Shown::Value
    });
    labels.take(MAX_LABELS).map(|(k, v)| (k.clone(), v.to_owned())).collect()
}

/// Adds the settings that are no labels: numbers and switches, and those of the model and the
/// configuration, by `model.n_layers`. What only says where the run lives is left out.
pub(super) fn add(settings: &mut BTreeMap<String, String>, e: &Event) {
    let mut put = |name: String, value: &Value| {
        let text = match value {
            Value::Bool(_) | Value::Number(_) => {
                let mut text = String::new();
                value.write(&mut text);
                text
            }
            Value::Text(text) => text.clone(),
            Value::Null | Value::List(_) | Value::Map(_) => return,
        };
        let text = match shown(&name, &text) {
            Shown::Value => text,
            Shown::Hash => {
                format!("{:016x}", stepwatch_model::fingerprint(core::iter::once((&*name, &*text))))
            }
            Shown::Name => SET.to_owned(),
            Shown::Nothing => return,
        };
        let has_room = settings.len() < MAX_SETTINGS || settings.contains_key(&name);
        let is_short = name.len() <= MAX_LABEL && text.chars().count() <= MAX_LABEL;
        if has_room && is_short && topic(&name) != Topic::Place {
            settings.insert(name, text);
        }
    };
    for (key, value) in &e.extra {
        match value {
            Value::Map(inner) => inner.iter().for_each(|(name, value)| put(format!("{key}.{name}"), value)),
            Value::Text(list) if key == hello::VISIBLE_GPUS => {
                put(VISIBLE_GPUS.to_owned(), &Value::Number(f64::from(visible(list))));
            }
            // A label.
            Value::Text(_) => {}
            other => put(key.clone(), other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(line: &str) -> Event {
        Event::parse(format!(r#"{{"k":"hello","run":"r","rank":0,{line}}}"#).as_bytes()).unwrap()
    }

    #[test]
    fn settings_are_numbers_and_what_the_model_and_the_configuration_have() {
        let e = hello(
            r#""lr":0.0003,"pid":42,"bf16":true,"team":"nlp","cuda_visible_devices":"0,1,2,3",
            "model":{"n_layers":32,"attn_implementation":"sdpa"},
            "config":{"seed":7,"output_dir":"/out","hub_token":"canary","url":"https://ada:canary@h/x"}"#,
        );
        let mut settings = BTreeMap::new();
        add(&mut settings, &e);
        let all: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let want = [
            ("bf16", "true"),
            ("config.seed", "7"),
            ("lr", "0.0003"),
            ("model.attn_implementation", "sdpa"),
            ("model.n_layers", "32"),
            ("visible_gpus", "4"),
        ];
        assert_eq!(all, want);
    }

    #[test]
    fn labels_are_words_without_secrets() {
        let e = hello(
            r#""team":"nlp","author":"ada","email":"ada@example.org","api_key":"canary","hf_login":"canary",
            "where":"https://h/?sig=canary","comet":"3f2b8c1d9a7e6f5b4c3d2e1f0a9b8c7d","db":"a:canary""#,
        );
        let labels = labels(&e);
        assert_eq!(labels.keys().collect::<Vec<_>>(), ["author", "email", "team"]);
        let mut settings = BTreeMap::new();
        add(&mut settings, &hello(r#""model":{"db":"{a:canary}","passcode":"canary","lr":"3e-4"}"#));
        let settings: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(settings, [("model.db", "set"), ("model.lr", "3e-4")]);
    }

    #[test]
    fn what_a_log_says_adds_to_the_labels_and_stays() {
        let mut known = BTreeMap::new();
        let mut take = |more: &str| {
            take_labels(&mut known, &hello(more));
            known.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(take(r#""team":"nlp""#), "team=nlp");
        let printed = r#""source":"printed","saves_printed":"most""#;
        assert_eq!(take(printed), "saves_printed=most source=printed team=nlp");
        assert_eq!(take(r#""team":"cv""#), "saves_printed=most team=cv");
    }

    #[test]
    fn a_long_path_is_known_by_its_hash() {
        let of = |folder: &str| {
            let mut settings = BTreeMap::new();
            let path = format!("/{}/{folder}", "datasets/".repeat(8));
            add(&mut settings, &hello(&format!(r#""config":{{"data_path":"{path}"}}"#)));
            settings["config.data_path"].clone()
        };
        assert!(of("c4").len() == 16 && of("c4") == of("c4") && of("c4") != of("pile"), "{}", of("c4"));
    }

    #[test]
    fn settings_are_bounded() {
        let mut settings = BTreeMap::new();
        for n in 0..20 {
            let parts: Vec<String> = (0..20).map(|i| format!(r#""lr{n}_{i}":1"#)).collect();
            add(&mut settings, &hello(&format!(r#""optim":{{{}}}"#, parts.join(","))));
        }
        assert_eq!(settings.len(), MAX_SETTINGS);
        add(&mut settings, &hello(&format!(r#""lr":1,"dataset":{{"name":"{}"}}"#, "x".repeat(200))));
        assert_eq!(settings.len(), MAX_SETTINGS);
    }
}
