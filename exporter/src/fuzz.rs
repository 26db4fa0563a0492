//! The bodies of the fuzz targets, one function for each parser of outside bytes;
//! `stepwatch-formats` has its own for logs and files.
//!
//! They are here because the parsers are private, and because an ordinary test runs the same
//! functions over the corpora, so that a fixed bug stays fixed without a fuzzer. The module exists
//! only in tests and with the feature `fuzz`.

use stepwatch_kit::exposition::read::{self, Dialect, MAX_LABELS};
use stepwatch_wire::{Event, MAX_RECORD_BYTES};

use crate::collectors::{self, kernel};
use crate::config::Config;
use crate::hub::{Hub, Parts};
use crate::ingest::otlp::{self, Encoding, Signal};
use crate::ingest::{Intake, kubeflow};
use crate::origin::Origin;
use crate::principal::Principal;
use crate::sources;
use crate::stream::{self, Read};
use crate::training::Archive;

/// The most packets of one input.
const MAX_PACKETS: usize = 64;

/// Packets of trainers, one a line: parsed, taken in, and published with the derived events.
pub fn event(data: &[u8]) {
    let hub = Hub::new(Parts {
        node: "n1".into(),
        boot: "b00t".into(),
        ring: stream::Limits::default(),
        training: Config::default().training(),
        archive: Archive::default(),
        keep: None,
    });
    let intake = Intake::new(hub.clone());
    let origin = Origin::Datagram(Principal::User(1000));
    for (n, packet) in data.split(|byte| *byte == b'\n').take(MAX_PACKETS).enumerate() {
        if let Ok(event) = Event::parse(packet) {
            intake.publish_at(1.7e9 + n as f64, &origin, event);
        }
    }
    let mut after = 0;
    while let Read::Records { chunk, last } = hub.ring().read(after) {
        for record in chunk.split(|byte| *byte == b'\n').filter(|record| !record.is_empty()) {
            assert!(Event::parse_record(record).is_ok(), "{}", String::from_utf8_lossy(record));
        }
        after = last;
    }
}

/// Requests of OpenTelemetry. The first byte selects signal and encoding.
pub fn otlp(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    let signal = if first & 1 == 0 { Signal::Metrics } else { Signal::Traces };
    let encoding = if first & 2 == 0 { Encoding::Protobuf } else { Encoding::Json };
    check(&otlp::events(signal, encoding, body).unwrap_or_default());
}

/// Expositions as text.
pub fn exposition(data: &[u8]) {
    let page = String::from_utf8_lossy(data);
    for dialect in [Dialect::Text, Dialect::OpenMetrics] {
        for sample in read::read(&page, dialect).flatten() {
            assert!(sample.labels.iter().count() <= MAX_LABELS);
        }
    }
    check(&sources::fuzz_scrape(&page));
}

/// Datagrams of statsd: one for each line, and a single one.
pub fn statsd(data: &[u8]) {
    sources::fuzz_statsd(data);
}

/// Reports of a trainer to Kubeflow.
pub fn kubeflow(data: &[u8]) {
    check(&kubeflow::fuzz(data));
}

/// Descriptions of jobs: an answer of a kubelet, an environment, the control group of a process.
pub fn job(data: &[u8]) {
    collectors::job::allocation::fuzz(data);
    collectors::job::rendezvous::fuzz(data);
}

/// The setup of a run: an environment, a command line, a list of mappings.
pub fn config_drift(data: &[u8]) {
    collectors::host::config_drift::fuzz(data);
}

/// The kernel's log.
pub fn kmsg(data: &[u8]) {
    check(&kernel::fuzz(data));
}

/// Files of `/sys` and `/proc` about links: states, rates, routes, PCIe errors.
pub fn links(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    collectors::network::rdma::fuzz(&text);
    collectors::host::pci::fuzz(&text);
}

/// Answers of NCCL's RAS in both formats.
pub fn ras(data: &[u8]) {
    check(&collectors::job::ras::fuzz(data));
}

/// Heartbeat pages, which any user may write.
pub fn heartbeat(data: &[u8]) {
    check(&collectors::job::heartbeat::fuzz(data));
}

/// Files of the kernel about mounts, processes and control groups, and files of metrics.
pub fn node(data: &[u8]) {
    collectors::storage::mounts::fuzz(data);
    collectors::host::process::fuzz(data);
    collectors::host::textfile::fuzz(data);
}

/// Checks that the events can be published: each reads back, unless it exceeds one record.
fn check(events: &[Event]) {
    for event in events {
        let text = event.to_json();
        assert!(Event::parse_record(text.as_bytes()).is_ok() || text.len() > MAX_RECORD_BYTES, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora() {
        type Target = fn(&[u8]);
        let targets: &[(&str, Target)] = &[
            ("event", event),
            ("otlp", otlp),
            ("exposition", exposition),
            ("statsd", statsd),
            ("kubeflow", kubeflow),
            ("job", job),
            ("config_drift", config_drift),
            ("kmsg", kmsg),
            ("links", links),
            ("ras", ras),
            ("heartbeat", heartbeat),
            ("node", node),
        ];
        for (name, target) in targets {
            let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
            let files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
            assert!(files.len() > 2, "the corpus of {name} is there");
            files.iter().for_each(|file| target(&std::fs::read(file).unwrap()));
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>) {
            event(&bytes);
            otlp(&bytes);
            exposition(&bytes);
            statsd(&bytes);
            links(&bytes);
            kubeflow(&bytes);
            job(&bytes);
            config_drift(&bytes);
            kmsg(&bytes);
            ras(&bytes);
            heartbeat(&bytes);
            node(&bytes);
        }
    }
}
