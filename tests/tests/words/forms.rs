//! What people type into the web interface.

use reqwest::RequestBuilder;
use serde_json::json;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Stack, http};

use crate::outputs::encoded;
use crate::{Seen, hostile};

/// Every form that takes words: where it is sent, and its fields.
const FORMS: &[(&str, &[&str])] = &[
    ("/incidents/ID/notes", &["note", "by"]),
    ("/incidents/ID/ack", &["by"]),
    ("/incidents/ID/resolve", &["as"]),
    ("/silences", &["comment", "by", "duration"]),
    ("/silences", &["comment", "by", "matchers"]),
    ("/silences/preview", &["matchers"]),
    ("/oncall/overrides", &["schedule", "user", "from", "until", "note", "by"]),
    ("/login", &["name", "password", "next"]),
];
/// Every form that asks for a page.
const QUESTIONS: &[(&str, &[&str])] = &[
    ("/", &["node", "run", "back"]),
    ("/oncall", &["run", "node", "kind", "severity", "at"]),
    ("/runs", &["run"]),
    ("/report", &["run"]),
    ("/silences/new", &["incident", "matchers"]),
];

/// Fills in the forms as a browser does, and reads the page that answers. It does not matter here
/// whether that page refuses: it repeats what was typed.
pub(crate) async fn fill_in(stack: &Stack, id: &str, seen: &mut Seen) {
    let origin = stack.alerter.url();
    // What is not hostile is what makes the form complete.
    let complete =
        [("duration", "1h".to_owned()), ("matchers", format!("other={}", json!(hostile("asked"))))];
    let typed = |names: &[&'static str]| {
        let rest = complete.iter().filter(|(name, _)| !names.contains(name)).cloned();
        let all = names.iter().map(|name| (*name, hostile("typed"))).chain(rest);
        all.map(|(name, text)| format!("{name}={}", encoded(&text))).collect::<Vec<_>>().join("&")
    };
    for (path, names) in FORMS {
        let request = http::client().post(format!("{origin}{}", path.replace("ID", id)));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        answer(request.header("origin", &origin).body(typed(names)), seen).await;
    }
    for (path, names) in QUESTIONS {
        answer(http::client().get(format!("{origin}{path}?{}", typed(names))), seen).await;
    }
}

async fn answer(request: RequestBuilder, seen: &mut Seen) {
    let answer = request.timeout(PATIENCE).send().await.unwrap();
    assert!(!answer.status().is_server_error(), "{answer:?}");
    seen.text("ui", answer.text().await.unwrap());
}
