//! A node with GPUs, an Ethernet interface and an InfiniBand port that are not there, and the real
//! exporter on it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use stepwatch_fake_nvml::{Calls, SCRIPT, Script, Stage, calls, library};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, Machine, exposition, http, poll_until};
use tempfile::TempDir;

/// All families of the GPUs, with the series that are zero too.
pub(crate) const EVERYTHING: &str = "collectors:\n  gpu: {metrics: {include: ['*']}}\n";
/// In which time the stream has given what it had.
const BACKLOG: Duration = Duration::from_millis(300);

pub(crate) struct Node {
    pub(crate) exporter: Exporter,
    pub(crate) stage: Stage,
    pub(crate) dir: TempDir,
}

impl Node {
    pub(crate) async fn start(script: &Script) -> Self {
        Self::start_with(script, &library().unwrap(), EVERYTHING).await
    }

    /// With a library of its own; `extra` is appended to the exporter's configuration.
    pub(crate) async fn start_with(script: &Script, library: &Path, extra: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
        std::fs::write(dir.path().join("kmsg"), "").unwrap();
        Self::start_in(dir, script, library, extra).await
    }

    /// As a container without the device of the kernel log.
    pub(crate) async fn start_without_log(script: &Script, library: &Path, extra: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
        Self::start_in(dir, script, library, extra).await
    }

    async fn start_in(dir: TempDir, script: &Script, library: &Path, extra: &str) -> Self {
        let stage = Stage::new(dir.path(), script).unwrap();
        tree(&dir.path().join("sys"));
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        let path = |name: &str| dir.path().join(name).into_os_string();
        let machine = Machine {
            args: vec![
                "--nvml-library".into(),
                library.into(),
                "--path.sysfs".into(),
                path("sys"),
                "--path.procfs".into(),
                path("proc"),
                "--path.kmsg".into(),
                path("kmsg"),
            ],
            env: vec![(SCRIPT.to_owned(), stage.path().into())],
        };
        let exporter = Exporter::start_on(machine, &dir.path().join("exporter"), "", extra).await.unwrap();
        Self { exporter, stage, dir }
    }

    pub(crate) async fn page(&self) -> String {
        self.exporter.metrics().await.unwrap()
    }

    pub(crate) async fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        exposition::value(&self.page().await, name, labels)
    }

    /// Waits until the page is as it should be, and gives it.
    pub(crate) async fn page_where(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        self.page_within(PATIENCE, what, so).await
    }

    pub(crate) async fn page_within(&self, wait: Duration, what: &str, so: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = poll_until(what, wait, async || {
            last = self.exporter.metrics().await.ok()?;
            so(&last).then_some(())
        });
        let found = found.await;
        assert!(found.is_ok(), "{what}; the page has\n{}", of_gpus(&last));
        last
    }

    /// The state of a collector.
    pub(crate) async fn state(&self, collector: &str, state: &str) {
        let labels = [("collector", collector), ("state", state)];
        let so =
            |page: &str| exposition::value(page, "stepwatch_exporter_collector_state", &labels) == Some(1.0);
        self.page_where(&format!("{collector} is {state}"), so).await;
    }

    pub(crate) async fn post(&self, path: &str) -> (u16, String) {
        let answer =
            http::client().post(format!("{}{path}", self.exporter.url())).timeout(PATIENCE).send().await;
        let answer = answer.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Every event that the stream still has.
    pub(crate) async fn events(&self) -> Vec<Value> {
        let url = format!("{}/v1/stream", self.exporter.url());
        let mut answer = http::client().get(url).send().await.unwrap().error_for_status().unwrap();
        let mut text = Vec::new();
        // The stream never ends; what it has comes at once.
        let read = async {
            while let Ok(Some(chunk)) = answer.chunk().await {
                text.extend_from_slice(&chunk);
            }
        };
        let _ = tokio::time::timeout(BACKLOG, read).await;
        let lines = text.split(|b| *b == b'\n').filter(|l| !l.is_empty());
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// Waits for an event of the node.
    pub(crate) async fn event(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let found =
            poll_until(what, PATIENCE, async || self.events().await.into_iter().find(|e| is(e))).await;
        match found {
            Ok(event) => event,
            Err(error) => panic!("{error}: {:#?}", self.events().await),
        }
    }

    pub(crate) fn calls(&self) -> Calls {
        self.stage.calls().unwrap()
    }

    /// Nothing was done to NVML that no program should do.
    pub(crate) fn decent(&self) {
        assert_eq!(self.calls().count(calls::MISUSE), 0);
    }
}

/// Families of GPUs that others collect: the kernel log, jobs, the tree of the bus.
const OTHERS: &[&str] = &["gpu_xid_", "gpu_mig_xid_", "gpu_nvswitch_", "gpu_job_", "gpu_pod_", "gpu_nic_"];

/// The lines of a page that come from NVML.
pub(crate) fn of_gpus(page: &str) -> String {
    let line = |l: &&str| l.starts_with("gpu_") && !OTHERS.iter().any(|o| l.starts_with(o));
    page.split_inclusive('\n').filter(line).collect()
}

/// The names of the families of GPUs that a page has.
pub(crate) fn gpu_families(page: &str) -> BTreeSet<String> {
    exposition::families(page).into_iter().filter(|f| f.starts_with("gpu_")).collect()
}

/// `/sys` with one interface and one port.
fn tree(sys: &Path) {
    let write = |dir: &Path, files: &[(&str, &str)]| {
        for (name, text) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
    };
    let eth = sys.join("class/net/eth0");
    std::fs::create_dir_all(eth.join("device")).unwrap();
    let files = [("type", "1"), ("flags", "0x1003"), ("operstate", "up"), ("speed", "100000")];
    write(&eth, &files);
    write(&eth, &[("statistics/rx_bytes", "1000"), ("statistics/tx_bytes", "2000")]);
    let ib = sys.join("class/infiniband/mlx5_0");
    std::fs::create_dir_all(ib.join("device")).unwrap();
    write(
        &ib,
        &[
            ("fw_ver", "28.39.1002"),
            ("board_id", "MT_0000000838"),
            ("hca_type", "MT4129"),
            ("node_guid", "1:2:3:4"),
        ],
    );
    let port = ib.join("ports/1");
    let files = [("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "400 Gb/sec (4X NDR)")];
    write(&port, &files);
    write(
        &port,
        &[("link_layer", "InfiniBand"), ("counters/port_xmit_data", "10"), ("counters/port_rcv_data", "20")],
    );
    write(&port, &[("counters/symbol_error", "0"), ("counters/link_downed", "0")]);
}
