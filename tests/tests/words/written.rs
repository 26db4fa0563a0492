//! Series that a Prometheus sends: every label that anything is made of, and the tenant, are
//! hostile.

use serde_json::Value;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::remote_write::{Point, request, request_2};
use stepwatch_tests::{Stack, http, poll_until};

use crate::{Seen, hostile};

/// What is watched by its name; the name itself is hostile.
pub(crate) const CONFIG: &str = "remote_write: {generic: ['{watched=\"yes\"}']}\n";
/// Texts that come as far as somebody reads them.
pub(crate) const WRITTEN: &[&str] = &["written", "tabled", "measured", "worked", "whose"];

/// A version of the protocol: its content type, and what encodes it.
type Version = (&'static str, fn(&[Point<'_>]) -> Vec<u8>);

const V1: Version = ("application/x-protobuf", request);
const V2: Version = ("application/x-protobuf;proto=io.prometheus.write.v2.Request", request_2);

/// Values that are numbers, and then as many that are none as make a ticket.
const NUMBERS: i64 = 20;
const LOST: i64 = 8;

/// Sends what a Prometheus would, and returns the ids of all incidents.
pub(crate) async fn write(stack: &Stack, seen: &mut Seen) -> Vec<String> {
    let began = jiff::Timestamp::now().as_millisecond() - 60_000;
    for (version, name) in [(V1, "written"), (V2, "tabled")] {
        for step in 1..=4 {
            let body = run(name, began + 1000 * step, step as f64, version);
            assert_eq!(post(stack, version, &body, seen).await, 204);
        }
        assert_eq!(post(stack, version, &refused(began, version), seen).await, 400);
    }
    assert_eq!(post(stack, V1, &others(began), seen).await, 204);
    assert_eq!(post(stack, V2, &measured(began), seen).await, 204);
    let of = |incident: &Value, kind: &str| incident["kind"] == kind;
    let raised = async || {
        let all = stack.alerter.incidents().await.ok()?;
        let is_of = |i: &Value, name: &str| i["run"].as_str().is_some_and(|run| run.starts_with(name));
        let found = |name: &str| all.iter().any(|i| of(i, "nonfinite") && is_of(i, name));
        (found("written ") && found("tabled ") && all.iter().any(|i| of(i, "generic"))).then_some(all)
    };
    let all = poll_until("the incidents of what was written", PATIENCE, raised).await.unwrap();
    for name in ["written", "tabled"] {
        let told = |text: &str| text.contains(&format!("{name} *b* <!channel>"));
        stack
            .webhook
            .wait_for(|hook| hook.deliveries.iter().any(|d| told(&d.body.to_string())), PATIENCE)
            .await
            .unwrap();
    }
    all.iter().map(|incident| incident["id"].as_str().unwrap().to_owned()).collect()
}

/// A step of a run, whose loss is none at the fourth.
fn run(name: &str, ts_ms: i64, step: f64, (_, encode): Version) -> Vec<u8> {
    let names = ["run", "instance", "node", "name", "dataset", "convention", "what"];
    let texts = [name, "instance", "placed", "custom", "dataset", "convention", "what"].map(hostile);
    let labels = |name: &'static str| {
        let rest = names.into_iter().zip(texts.iter().map(String::as_str));
        [("__name__", name)].into_iter().chain(rest).collect::<Vec<_>>()
    };
    let loss = if step > 3.0 { f64::NAN } else { 2.5 };
    let values = [
        ("train_step", step),
        ("train_loss", loss),
        ("train_custom", 1.5),
        ("train_eval_loss", step),
        ("train_mfu_ratio", 0.4),
        ("train_nonfinite_total", step),
    ];
    let series: Vec<_> = values.iter().map(|(name, value)| (labels(name), *value)).collect();
    let points: Vec<Point<'_>> =
        series.iter().map(|(labels, value)| (labels.as_slice(), ts_ms, *value)).collect();
    encode(&points)
}

/// A run that an exporter reports, which the copy may not, and a device.
fn others(ts_ms: i64) -> Vec<u8> {
    let [copy, gpu, host] = ["copy", "GPU-", "host"].map(hostile);
    let step = [("__name__", "train_step"), ("run", "victim"), ("instance", &*copy)];
    let device = [
        ("__name__", "DCGM_FI_DEV_GPU_TEMP"),
        ("UUID", &*gpu),
        ("Hostname", &*host),
        ("instance", &*copy),
        ("job", &*host),
    ];
    let up = [("__name__", "up"), ("instance", &*copy), ("job", &*host)];
    request(&[(&step, ts_ms, 1.0), (&device, ts_ms, 60.0), (&up, ts_ms, 1.0), (&up, ts_ms + 1000, 0.0)])
}

/// A series that is watched by its name, and is no number any more.
fn measured(began: i64) -> Vec<u8> {
    let [name, job, node, label] = ["measured", "worked", "standing", "label"].map(hostile);
    let labels =
        [("__name__", &*name), ("job", &*job), ("node", &*node), (&*label, &*label), ("watched", "yes")];
    let value = |n: i64| if n < NUMBERS { 1.5 } else { f64::NAN };
    let points: Vec<Point<'_>> =
        (0..NUMBERS + LOST).map(|n| (&labels[..], began + 1000 * n, value(n))).collect();
    request_2(&points)
}

/// A label that is there twice, of which the sender is told.
fn refused(ts_ms: i64, (_, encode): Version) -> Vec<u8> {
    let label = hostile("twice");
    encode(&[(&[("__name__", "x"), (&*label, "1"), (&*label, "2")], ts_ms, 1.0)])
}

/// For a tenant whose name has as much of the hostile text as a header can hold.
async fn post(stack: &Stack, (content_type, _): Version, body: &[u8], seen: &mut Seen) -> u16 {
    let tenant: String = hostile("whose").chars().filter(|c| matches!(c, ' '..='~')).collect();
    let request = http::client()
        .post(format!("{}/api/v1/write", stack.alerter.url()))
        .header("content-type", content_type)
        .header("content-encoding", "snappy")
        .header("x-scope-orgid", tenant)
        .body(body.to_vec())
        .timeout(PATIENCE);
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let said = answer.text().await.unwrap();
    if let Ok(said) = serde_json::from_str(&said) {
        seen.json("answer", &said);
    } else {
        seen.text("answer", said);
    }
    status
}
