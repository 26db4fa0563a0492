//! The kernel's log, read by the real exporter: what is published, counted and remembered when it
//! is killed.

use std::fs::File;
use std::io::Write as _;
use std::time::SystemTime;

use serde_json::Value;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, Machine, exposition, http, poll_until};
use tempfile::TempDir;

const UUID: &str = "GPU-6f0c8a52-7b1d-4e39-a4c6-0d2e9b8f7a61";
const PCI: &str = "0000:9b:00.0";
/// How long the machine has been up, and how far back the first record lies.
const UPTIME: f64 = 5000.0;
/// XIDs from zero on, so that a test sees that the log is read.
const CONFIG: &str = "collectors: {kernel: {interval: 20ms, metrics: {include: [gpu_xid_errors_total]}}}\n";

struct Node {
    exporter: Exporter,
    log: Log,
    dir: TempDir,
}

/// The log of a kernel that counts its records.
struct Log {
    file: File,
    sequence: u64,
}

impl Log {
    fn write(&mut self, line: &str) {
        self.sequence += 1;
        let micros = self.sequence * 1_000_000;
        writeln!(self.file, "4,{},{micros},-;{line}\n SUBSYSTEM=pci\n DEVICE=+pci:{PCI}", self.sequence)
            .unwrap();
    }

    fn xid(&mut self, rest: &str) {
        self.write(&format!("NVRM: Xid (PCI:{}{rest}", PCI.trim_end_matches(".0")));
    }
}

impl Node {
    async fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
        let gpu = format!("proc/driver/nvidia/gpus/{PCI}");
        for made in [&*gpu, "proc/sys/kernel/random", "sys"] {
            std::fs::create_dir_all(dir.path().join(made)).unwrap();
        }
        let write = |path: &str, text: &str| std::fs::write(dir.path().join(path), text).unwrap();
        let information = format!("Model: \t\t NVIDIA H200\nGPU UUID: \t {UUID}\nBus Location: \t {PCI}\n");
        write(&format!("{gpu}/information"), &information);
        write("proc/sys/kernel/random/boot_id", "0b9f6a1c-4f4e-4b7e-8f3b-1d2c3b4a5f60\n");
        write("proc/uptime", &format!("{UPTIME} 1.0\n"));
        let mut log = Log { file: File::create(dir.path().join("kmsg")).unwrap(), sequence: 0 };
        log.xid("): 31, pid=7, name=python3, of yesterday");
        let paths = [("--path.sysfs", "sys"), ("--path.procfs", "proc"), ("--path.kmsg", "kmsg")];
        let args = paths.iter().flat_map(|(option, name)| [(*option).into(), dir.path().join(name).into()]);
        let machine = Machine { args: args.collect(), env: Vec::new() };
        let exporter = Exporter::start_on(machine, &dir.path().join("exporter"), "", CONFIG).await.unwrap();
        Self { exporter, log, dir }
    }

    /// Waits until the page has this value.
    async fn value(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        let is = async || {
            let page = self.exporter.metrics().await.ok()?;
            (exposition::value(&page, name, labels) == Some(value)).then_some(())
        };
        let found = poll_until(&format!("{name} {labels:?} {value}"), PATIENCE, is).await;
        if let Err(error) = found {
            panic!("{error}\n{}", self.exporter.metrics().await.unwrap());
        }
    }

    async fn xids(&self, code: &str, count: f64) {
        self.value("gpu_xid_errors_total", &[("gpu", UUID), ("xid", code)], count).await;
    }

    /// All that the stream contains of the kernel's log, up to an event that is the last.
    async fn events(&self, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let url = format!("{}/v1/stream", self.exporter.url());
        let mut answer = http::client().get(url).send().await.unwrap().error_for_status().unwrap();
        let (mut text, mut events) = (Vec::new(), Vec::new());
        let read = async {
            while let Some(chunk) = answer.chunk().await.unwrap() {
                text.extend_from_slice(&chunk);
                while let Some(end) = text.iter().position(|b| *b == b'\n') {
                    let event: Value = serde_json::from_slice(&text[..end]).unwrap();
                    text.drain(..=end);
                    let is_last = last(&event);
                    if ["xid", "hw", "link"].iter().any(|kind| event["k"] == *kind) {
                        events.push(event);
                    }
                    if is_last {
                        return;
                    }
                }
            }
        };
        let done = tokio::time::timeout(PATIENCE, read).await;
        assert!(done.is_ok(), "{events:#?}");
        events
    }
}

fn codes(events: &[Value]) -> Vec<i64> {
    events.iter().filter(|e| e["k"] == "xid").map(|e| e["code"].as_i64().unwrap()).collect()
}

fn is_xid(code: i64) -> impl Fn(&Value) -> bool {
    move |event| event["k"] == "xid" && event["code"] == code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_becomes_a_count_and_an_event_that_names_the_gpu() {
    let mut node = Node::start().await;
    node.xids("31", 1.0).await;
    node.xids("79", 0.0).await;
    node.log.xid("): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.");
    node.log.xid(" GPU-I:05 GPU-CI:00): 45, pid=42, name=python3, Ch 00000010 caused by previous Xid 79");
    node.xids("79", 1.0).await;
    let mig = [("gpu", UUID), ("gi", "5"), ("ci", "0"), ("xid", "45")];
    node.value("gpu_mig_xid_errors_total", &mig, 1.0).await;
    let events = node.events(is_xid(45)).await;
    assert_eq!(codes(&events), [79, 45], "what was there before the first start is no news");
    let (off, echo) = (&events[0], &events[1]);
    for event in [off, echo] {
        assert_eq!((&event["gpu"], &event["pci"]), (&UUID.into(), &PCI.into()), "{event}");
    }
    assert_eq!((&off["level"], &off["action"]), (&"error".into(), &"reboot_node".into()));
    assert_eq!((&echo["caused_by"], &echo["pid"], &echo["gi"]), (&79.into(), &42.into(), &5.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_neither_loses_nor_doubles() {
    let mut node = Node::start().await;
    node.xids("31", 1.0).await;
    node.log.xid("): 13, pid=7, name=python3, first");
    node.log.write("nfs: server 10.0.0.9 not responding, still trying");
    node.xids("13", 1.0).await;
    for (life, code) in [(1.0, 43), (2.0, 94), (3.0, 95)] {
        node.exporter.daemon.kill().await.unwrap();
        // While no exporter runs.
        node.log.xid(&format!("): {code}, pid=7, name=python3, unheard"));
        node.log.xid("): 13, pid=7, name=python3, again");
        node.exporter.restart().await.unwrap();
        node.xids("13", 1.0 + life).await;
        node.xids(&code.to_string(), 1.0).await;
    }
    node.exporter.daemon.terminate().await.unwrap();
    node.log.write("nfs: server 10.0.0.9 OK");
    node.log.xid("): 48, pid=7, name=python3, last");
    node.exporter.restart().await.unwrap();
    node.xids("48", 1.0).await;
    node.xids("31", 1.0).await;
    node.xids("13", 4.0).await;
    node.value("kernel_log_lost_records_total", &[], 0.0).await;
    node.value("kernel_log_records_total", &[], node.log.sequence as f64).await;
    let events = node.events(is_xid(48)).await;
    assert_eq!(codes(&events), [13, 43, 13, 94, 13, 95, 13, 48]);
    // It holds, by a reader that read of it anew.
    let change = |e: &&Value| e["name"] == "nfs_stall" && e["again"].is_null();
    let stall: Vec<_> = events.iter().filter(change).map(|e| &e["code"]).collect();
    assert_eq!(stall, [1, 0]);
    // With the time at which the kernel logged it, not that at which it was read.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let unheard = events.iter().find(|e| e["code"] == 94).unwrap();
    let age = now - unheard["ts"].as_f64().unwrap();
    let written = UPTIME - 6.0;
    assert!((written - 1.0..written + 2.0 * PATIENCE.as_secs_f64()).contains(&age), "{age}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_overwritten_before_it_is_read_is_counted_as_lost() {
    let mut node = Node::start().await;
    node.xids("31", 1.0).await;
    node.exporter.daemon.kill().await.unwrap();
    node.log.sequence += 40;
    node.log.xid("): 48, after a gap");
    node.exporter.restart().await.unwrap();
    node.xids("48", 1.0).await;
    node.value("kernel_log_lost_records_total", &[], 40.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_serves_as_well() {
    let node = Node::start().await;
    let pipe = node.dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut machine = Machine::default();
    for (option, name) in [("--path.sysfs", "sys"), ("--path.procfs", "proc"), ("--path.kmsg", "pipe")] {
        machine.args.extend([option.into(), node.dir.path().join(name).into()]);
    }
    let file = File::options().read(true).write(true).open(&pipe).unwrap();
    let exporter = Exporter::start_on(machine, &node.dir.path().join("other"), "", CONFIG).await.unwrap();
    let node = Node { exporter, log: Log { file, sequence: 0 }, ..node };
    node.xids("79", 0.0).await;
    let mut log = node.log.file.try_clone().unwrap();
    writeln!(log, "4,1,1,-;NVRM: Xid (PCI:{}): 79, x", PCI.trim_end_matches(".0")).unwrap();
    let events = node.events(is_xid(79)).await;
    assert_eq!(codes(&events), [79]);
}
