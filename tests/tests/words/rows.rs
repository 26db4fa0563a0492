//! Every way in and out has a row here: a new source, ingest, answer or receiver fails this test
//! until the hostile text goes through it.

use std::collections::BTreeMap;
use std::path::Path;

use stepwatch_tests::bins;

/// What takes text in or gives it out, by its module, and where this test uses it.
const ROWS: &[(&str, &str)] = &[
    ("exporter/src/sources/checkpoints", "the directory `saved`"),
    ("exporter/src/sources/discover", "`trains`, its error file and its environment"),
    ("exporter/src/sources/scrape", "`scraped`"),
    ("exporter/src/sources/statsd", "Way::Statsd"),
    ("exporter/src/sources/tail", "Way::Tail, `plain.log`, and the files beside it in found.rs"),
    ("exporter/src/ingest/datagram", "Way::Datagram"),
    ("exporter/src/ingest/http", "Way::Http"),
    ("exporter/src/ingest/kubeflow", "Way::Kubeflow"),
    ("exporter/src/ingest/launcher", "`line` by Way::Packet"),
    ("exporter/src/ingest/otlp", "Way::Otlp and Way::Spans"),
    ("exporter/src/ingest/seqpacket", "Way::Packet"),
    (
        "exporter/src/collectors/amdgpu",
        "names that the kernel's driver writes into sysfs, where no user writes",
    ),
    ("exporter/src/collectors/gpu", "the name `board`"),
    ("exporter/src/collectors/host", "the file `textfile`"),
    (
        "exporter/src/collectors/job",
        "the page `beat`, the job of `trains`, and ras.rs; names of kubelet, Slurm and Kubernetes in their own tests",
    ),
    ("exporter/src/collectors/kernel", "the process of `kernel` in an XID"),
    ("exporter/src/collectors/network", "names of interfaces, in which the kernel allows few characters"),
    ("exporter/src/collectors/storage", "the checkpoints of `saved`"),
    ("alerter/src/callbacks/pagerduty", "the hooks `agent`, `assignee` and `merged`"),
    ("alerter/src/callbacks/slack", "the click of `clicker`"),
    ("alerter/src/callbacks/socket", "what comes by it is taken as by callbacks/slack"),
    ("alerter/src/ingest/discovery", "the targets of files.name_target and `listed`"),
    (
        "alerter/src/ingest/exporters",
        "the exporter of the stack, and one that cleans nothing in its own tests",
    ),
    ("alerter/remote_write/src/decode/v1", "the labels and the tenant of written.rs"),
    ("alerter/remote_write/src/decode/v2", "the run `tabled` and the series `measured` of written.rs"),
    ("alerter/src/notify/alertmanager", "the receiver `other`"),
    ("alerter/src/notify/email", "the receiver `mail`"),
    ("alerter/src/notify/pagerduty", "the receiver `primary`"),
    ("alerter/src/notify/slack", "the receiver `chat`"),
    ("alerter/src/notify/stdout", "the receivers `terminal` and `lines`"),
    ("alerter/src/notify/webhook", "the receiver `hook`"),
];

/// Modules beside them that neither take text in nor give it out by themselves.
const HELPERS: &[(&str, &[&str])] = &[
    ("exporter/src/collectors", &[]),
    ("exporter/src/sources", &["poll", "sink"]),
    ("exporter/src/ingest", &["bind", "connection_limit", "event_rate"]),
    (
        "alerter/src/ingest",
        &["groups", "guard", "kept", "lines", "loss", "name", "status", "stream", "target", "tests"],
    ),
    ("alerter/remote_write/src/decode", &["fields", "malformed", "request", "series", "tests"]),
    ("alerter/src/callbacks", &["endpoints", "people", "proxy", "signature", "silencing", "tests"]),
    (
        "alerter/src/notify",
        &[
            "attempt",
            "budget",
            "http",
            "kind",
            "mistake",
            "notifier",
            "report",
            "sample",
            "secret",
            "templates",
            "text",
            "trial",
            "tests",
        ],
    ),
];

fn modules(dir: &Path) -> Vec<String> {
    let is_rust = |path: &Path| path.extension().is_some_and(|end| end == "rs");
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            // A directory of modules need not have a file of its own.
            let is_module = is_rust(&path)
                || path.read_dir().is_ok_and(|inner| inner.flatten().any(|e| is_rust(&e.path())));
            is_module.then(|| path.file_stem().unwrap().to_str().unwrap().to_owned())
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Pages that are no text of ours or are asked for by a form.
const OTHER_PAGES: &[&str] = &["/incidents/{id}/chart.png", "/assets/{hash}/{name}", "/silences/preview"];

#[test]
fn every_page_of_the_web_interface_is_read() {
    let whole = std::fs::read_to_string(bins::root().join("alerter/src/web.rs")).unwrap();
    let routes = whole.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")?.split_once('"'));
    let pages: Vec<_> = routes.filter(|(_, answer)| answer.contains("get(")).map(|(path, _)| path).collect();
    assert!(pages.len() > 10, "{pages:?}");
    for page in pages.iter().filter(|page| !OTHER_PAGES.contains(page)) {
        assert!(crate::outputs::PAGES.contains(page), "{page} is not read by this test");
    }
}

/// What takes text in by a request, beside `ALERTER` in main.rs, and where this test uses it.
const OTHER_REQUESTS: &[(&str, &str)] = &[
    ("/api/v1/incidents/{id}/resolve", "RESOLVE"),
    ("/api/v1/write", "written.rs"),
    ("/pagerduty/webhook", "into_alerter"),
    ("/slack/interactions", "click"),
];

#[test]
fn every_request_that_changes_something_has_a_row() {
    let document = std::fs::read_to_string(bins::root().join("docs/openapi.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let sent = crate::ALERTER.iter().map(|(_, path, _)| path.replace("ID", "{id}"));
    let sent: Vec<_> = sent.chain(OTHER_REQUESTS.iter().map(|(path, _)| (*path).to_owned())).collect();
    let takes_text = |of: &serde_json::Value| ["post", "put", "patch"].iter().any(|m| of.get(m).is_some());
    let paths = document["paths"].as_object().unwrap().iter().filter(|(_, of)| takes_text(of));
    let paths: Vec<_> = paths.map(|(path, _)| path.clone()).collect();
    assert!(paths.len() > 10, "{paths:?}");
    for path in paths {
        assert!(sent.contains(&path), "{path} is not sent by this test");
    }
}

#[test]
fn every_source_and_receiver_has_a_row() {
    let rows: BTreeMap<_, _> = ROWS.iter().copied().collect();
    assert_eq!(rows.len(), ROWS.len());
    for (dir, helpers) in HELPERS {
        let names = modules(&bins::root().join(dir));
        for name in names.iter().filter(|name| !helpers.contains(&name.as_str())) {
            let path = format!("{dir}/{name}");
            assert!(rows.contains_key(&*path), "{path}: send the hostile text through it, and add a row");
        }
        let of = rows.keys().filter_map(|path| path.strip_prefix(&format!("{dir}/")[..]));
        let gone = of.chain(helpers.iter().copied()).find(|name| !names.iter().any(|there| there == name));
        assert_eq!(gone, None, "{dir} has no such module any more");
    }
}
