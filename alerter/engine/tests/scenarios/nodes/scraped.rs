//! Nodes of which only a Prometheus tells, by remote write.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stepwatch_engine::SourceInput;
use stepwatch_model::time::Span;
use stepwatch_model::{Kind, Severity};
use stepwatch_remote_write::decode::{Decoder, Version};
use stepwatch_remote_write::{Batch, Config, Registry, Report};
use stepwatch_respond::incident::State;

use super::bench::Bench;

const EVERY: i64 = 15;
const UUID: &str = "GPU-2f3c9a51";

/// A field of bytes of a protobuf message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    field.extend(varint(bytes.len() as u64));
    field.extend(bytes);
    field
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

/// A series with one sample: `name{a="b"}` without the quotes.
fn series(text: &str, ts_ms: i64, value: f64) -> Vec<u8> {
    let (name, labels) = text.trim_end_matches('}').split_once('{').unwrap();
    let labels = labels.split(',').map(|label| label.split_once('=').unwrap());
    let label = |(name, value): (&str, &str)| {
        field(1, &[field(1, name.as_bytes()), field(2, value.as_bytes())].concat())
    };
    let mut body: Vec<u8> = [("__name__", name)].into_iter().chain(labels).flat_map(label).collect();
    let value = [&[1 << 3 | 1][..], &value.to_le_bytes()].concat();
    body.extend(field(2, &[value, vec![2 << 3], varint(ts_ms.unsigned_abs())].concat()));
    field(1, &body)
}

/// What a Prometheus scrapes and sends on.
struct Prometheus {
    registry: Registry,
    decoder: Decoder,
}

impl Prometheus {
    fn new() -> Self {
        Self { registry: Registry::new(Config::default(), 7), decoder: Decoder::new(7) }
    }

    fn scrape(&mut self, b: &mut Bench, values: &[(&str, f64)]) {
        b.wait(EVERY);
        let body = values.iter().flat_map(|(text, value)| series(text, b.now.0, *value));
        let (body, mut batch): (Vec<u8>, _) = (body.collect(), Batch::default());
        let tenant = self.registry.tenant("").unwrap();
        let take = |series: stepwatch_remote_write::decode::Series<'_, '_>| {
            self.registry.take(&series, tenant, b.now, &mut batch);
        };
        self.decoder.decode(Version::V1, &body, take).unwrap();
        self.registry.finish_request(&mut batch);
        self.registry.tick(b.now + Span::secs(3), &mut batch);
        for (source, report) in batch.reports {
            let source = source.as_ref();
            match report {
                Report::Event(event) => b.answer(SourceInput::Event { source, event: &event }),
                Report::Up => b.answer(SourceInput::SourceUp { source, many_nodes: false }),
                Report::Down { reason } => b.answer(SourceInput::SourceDown { source, reason }),
            }
        }
    }
}

#[test]
fn an_xid_that_was_scraped_under_a_run_pages_as_if_the_exporter_had_told() {
    let (mut b, mut prometheus) = (Bench::new(), Prometheus::new());
    let (step, read) = (
        "train_rank_step{run=llama,rank=0,instance=gpu-7:9765}",
        "kernel_log_records_total{instance=gpu-7:9765}",
    );
    let xid = |code: u32| format!("gpu_xid_errors_total{{gpu={UUID},xid={code},instance=gpu-7:9765}}");
    let (before, fell_off) = (xid(48), xid(79));
    for n in 0..40 {
        prometheus.scrape(&mut b, &[(step, 100.0 + f64::from(n)), (read, 900.0), (&before, 1.0)]);
    }
    assert_eq!(b.summary(), [], "an error of before the run");
    prometheus.scrape(&mut b, &[(step, 140.0), (read, 901.0), (&before, 1.0), (&fell_off, 1.0)]);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Open)]);
    assert_eq!(
        (b.pages(), b.last().run.as_str(), &b.last().nodes[..]),
        (1, "llama", &["gpu-7".to_owned()][..])
    );
    let m = &b.notifications[0].message;
    for part in ["XID 79 on", UUID, "GPU has fallen off the bus", "drain gpu-7 and reboot it"] {
        assert!(m.summary.contains(part), "{part:?} not in {:?}", m.summary);
    }
}

#[test]
fn several_instances_tell_of_one_node() {
    let (mut b, mut prometheus) = (Bench::new(), Prometheus::new());
    let dcgm = |code: f64| {
        (format!("DCGM_FI_DEV_XID_ERRORS{{UUID={UUID},Hostname=gpu-7,instance=10.0.0.7:9400}}"), code)
    };
    // The trainer names no rank, and DCGM's exporter has another address than ours.
    let (step, (xid, none)) = ("train_step{run=llama,instance=gpu-7:9765}", dcgm(0.0));
    for n in 0..40 {
        prometheus.scrape(&mut b, &[(step, 100.0 + f64::from(n)), (&xid, none)]);
    }
    prometheus.scrape(&mut b, &[(step, 140.0), (&xid, 79.0)]);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Open)]);
    assert_eq!((b.last().run.as_str(), &b.last().nodes[..]), ("llama", &["gpu-7".to_owned()][..]));
}

#[test]
fn what_an_exporter_streams_goes_before_what_was_scraped_of_it() {
    let (mut b, mut prometheus) = (Bench::new(), Prometheus::new());
    let step = "train_rank_step{run=llama,rank=0,instance=gpu-7:9765}";
    for n in 0..20 {
        prometheus.scrape(&mut b, &[(step, 100.0 + f64::from(n))]);
    }
    let judged =
        |b: &Bench| b.engine.run("llama").map(|run| (run.state.last_step, run.counters.steps)).unwrap();
    // Its latest step waits for what else a scrape may bring.
    let before = judged(&b);
    assert_eq!(before, (Some(118), 19));
    // The exporter is read from now on: it need not wait until the copy falls silent.
    let streamed = |b: &mut Bench, n: i64| {
        let mut event = stepwatch_wire::Event::step("llama", n);
        (event.rank, event.node) = (Some(0), Some("gpu-7".into()));
        event.m.set("loss", 2.0);
        b.answer(SourceInput::Event { source: "gpu-7:9765", event: &event });
    };
    b.answer(SourceInput::SourceUp { source: "gpu-7:9765", many_nodes: false });
    for n in 120..140 {
        streamed(&mut b, n);
        prometheus.scrape(&mut b, &[(step, n as f64)]);
    }
    assert_eq!(judged(&b), (Some(139), before.1 + 21), "each step once");
    let refused: Vec<_> = b.engine.refused().map(|(source, _)| source.to_owned()).collect();
    assert_eq!(refused, ["remote_write/gpu-7:9765"]);
    // It takes over again where the exporter is silent.
    b.answer(SourceInput::SourceDown { source: "gpu-7:9765", reason: "gone" });
    b.wait(700);
    for n in 140..150 {
        prometheus.scrape(&mut b, &[(step, n as f64)]);
    }
    assert_eq!(judged(&b).0, Some(148));
}
