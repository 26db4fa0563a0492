//! The reference: a file of facts from a known-good node of the same kind, and the facts in which
//! this node differs.
//!
//! The file contains only what all nodes of a kind have in common: counts, speeds and versions, but
//! no serial numbers. A fact that is deleted from the file is not compared, so one file serves
//! nodes that may differ in it.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::item::Check;
use super::node::Node;
use super::report::{Facts, Findings, Report, Verdict};
use crate::collectors::gpu;
use crate::collectors::host::{config_drift, pci};
use crate::collectors::network::{nic, rdma};
use crate::collectors::storage::mounts;
use crate::family::Family;

pub(super) const CHECK: Check = Check {
    name: "reference",
    about: "the node is like the one that --reference was made from",
    needs: &["config_drift", "gpu", "mounts", "nic", "pci", "rdma"],
    run,
};

/// The fact with the mounted network file systems.
const MOUNTS: &str = "mounts";

const SCHEMA: u32 = 1;
/// The most bytes of a reference.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub struct Reference {
    schema: u32,
    /// The node that it was made from; the next field is the time.
    node: String,
    ts: f64,
    facts: Facts,
}

/// The devices that a fact counts: those with the same label, the same value, or a true value.
enum Count {
    /// Devices by a label: `8 x NVIDIA H100`.
    Label(&'static Family, &'static str),
    /// Devices by value: `8 x 50000000000`.
    Value(&'static Family),
    /// Devices by the number of their rows that are true: `8 x 18`.
    Up(&'static Family, &'static str),
}

/// The facts that are counted over devices.
static COUNTED: &[(&str, Count)] = &[
    ("gpu.cuda", Count::Label(&gpu::INFO, "cuda")),
    ("gpu.driver", Count::Label(&gpu::DRIVER, "version")),
    ("gpu.ecc_enabled", Count::Value(&gpu::ECC_ENABLED)),
    ("gpu.gsp_firmware", Count::Label(&gpu::MODE_INFO, "gsp_firmware")),
    ("gpu.memory_bytes", Count::Value(&gpu::MEMORY_TOTAL)),
    ("gpu.name", Count::Label(&gpu::INFO, "name")),
    ("gpu.nvlinks_up", Count::Up(&gpu::NVLINK_UP, "gpu")),
    ("gpu.pcie_lanes", Count::Value(&gpu::PCIE_WIDTH)),
    ("gpu.power_limit_watts", Count::Value(&gpu::POWER_LIMIT)),
    ("gpu.vbios", Count::Label(&gpu::INFO, "vbios")),
    ("nic.driver", Count::Label(&nic::INFO, "driver")),
    ("nic.speed_bytes_per_second", Count::Value(&nic::SPEED)),
    ("pci.devices", Count::Label(&pci::INFO, "kind")),
    ("pci.lanes", Count::Value(&pci::WIDTH)),
    ("rdma.board", Count::Label(&rdma::INFO, "board_id")),
    ("rdma.firmware", Count::Label(&rdma::INFO, "firmware")),
    ("rdma.link_layer", Count::Label(&rdma::PORT_INFO, "link_layer")),
    ("rdma.port_rate_bytes_per_second", Count::Value(&rdma::RATE)),
];

pub(super) fn facts(node: &Node<'_>) -> Facts {
    let mut facts = Facts::new();
    for (name, count) in COUNTED {
        let words: Vec<String> = match count {
            Count::Label(family, label) => node
                .rows(family)
                .map(|row| row.label(label).to_owned())
                .filter(|word| !word.is_empty())
                .collect(),
            Count::Value(family) => node.rows(family).map(|row| row.value.to_string()).collect(),
            Count::Up(family, label) => {
                let mut up = BTreeMap::<&str, u32>::new();
                for row in node.rows(family) {
                    *up.entry(row.label(label)).or_default() += u32::from(row.value != 0.0);
                }
                up.values().map(u32::to_string).collect()
            }
        };
        if !words.is_empty() {
            facts.insert((*name).to_owned(), tally(words));
        }
    }
    // The mounts of an automounter show who used the node, not what it is like.
    let mounts = node.rows(&mounts::INFO).map(|row| row.label("mount")).filter(|m| !node.automounts(m));
    let mounts: Vec<String> = mounts.map(str::to_owned).collect();
    if !mounts.is_empty() {
        facts.insert(MOUNTS.to_owned(), tally(mounts));
    }
    // These are the settings of the node itself; the alerter compares those of runs.
    for row in node.rows(&config_drift::VALUE).filter(|row| row.label("run").is_empty()) {
        facts.insert(format!("config.{}", row.label("key")), row.label("value").to_owned());
    }
    facts
}

/// Counts words as `7 x a, 1 x b`; a single one is just `a`.
fn tally(words: Vec<String>) -> String {
    if let [only] = &words[..] {
        return only.clone();
    }
    let mut counts = BTreeMap::<String, usize>::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts.iter().map(|(word, n)| format!("{n} x {word}")).collect::<Vec<_>>().join(", ")
}

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let Some(path) = node.reference else { return found };
    let reference = match Reference::load(path) {
        Ok(reference) => reference,
        Err(error) => {
            found.unknown(format!("cannot read {}: {error}", path.display())).action(
                "make one with `stepwatch-exporter check --write-reference FILE` on a node that is right",
            );
            return found;
        }
    };
    let ours = facts(node);
    for (name, wanted) in &reference.facts {
        match ours.get(name) {
            Some(value) if value == wanted => {}
            ours if name == MOUNTS && (ours.is_some() || node.all_answered()) => {
                let missing = missing(node, ours.map_or("", String::as_str), wanted);
                if !missing.is_empty() {
                    let text = format!(
                        "of the network file systems of {} these are not mounted: {}",
                        reference.node,
                        missing.join(", ")
                    );
                    found.unhealthy(text).device(name).action("mount it, or make a new reference");
                }
            }
            Some(value) => {
                let text = format!("{name} is {value}; on {} it was {wanted}", reference.node);
                found.unhealthy(text).device(name).action("bring the node in line, or make a new reference");
            }
            None if node.all_answered() => {
                let text = format!("{name} is not to be seen; on {} it was {wanted}", reference.node);
                found.unhealthy(text).device(name).action("bring the node in line, or make a new reference");
            }
            None => {
                found.unknown(format!("{name} could not be read")).device(name);
            }
        }
    }
    found.or_ok(|| format!("{} facts are as on {}", reference.facts.len(), reference.node))
}

/// The mounts that are required and missing. Further mounts are no difference, and an automounter
/// mounts its own on demand.
fn missing<'a>(node: &Node<'_>, ours: &str, wanted: &'a str) -> Vec<&'a str> {
    let ours: Vec<&str> = tallied(ours).collect();
    tallied(wanted).filter(|mount| !ours.contains(mount) && !node.automounts(mount)).collect()
}

/// The words of a tally in which each occurs once.
fn tallied(tally: &str) -> impl Iterator<Item = &str> {
    tally.split(", ").map(|word| word.strip_prefix("1 x ").unwrap_or(word))
}

impl Reference {
    fn load(path: &Path) -> io::Result<Self> {
        let mut text = Vec::new();
        std::fs::File::open(path)?.take(MAX_BYTES).read_to_end(&mut text)?;
        let reference: Self = serde_json::from_slice(&text)?;
        if reference.schema > SCHEMA {
            let schema = reference.schema;
            return Err(io::Error::other(format!("it is of schema {schema}; this program knows {SCHEMA}")));
        }
        Ok(reference)
    }

    /// Writes the facts of `report`, unless the node is unhealthy or unknown.
    pub fn write(report: &Report, path: &Path) -> io::Result<()> {
        if report.verdict > Verdict::Warning {
            return Err(io::Error::other("this node is not right, so it is no reference"));
        }
        let reference =
            Self { schema: SCHEMA, node: report.node.clone(), ts: report.ts, facts: report.facts.clone() };
        let text = serde_json::to_string_pretty(&reference)? + "\n";
        // Other nodes may be reading the old file over the network.
        let new = path.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;

    const LINKS: &[(&str, &str)] = &[
        ("sys/class/net/eth0/device/x", ""),
        ("sys/class/net/eth0/speed", "100000"),
        ("sys/class/net/eth1/type", "1"),
        ("sys/class/net/eth1/device/x", ""),
        ("sys/class/net/eth1/speed", "100000"),
    ];

    #[test]
    fn what_differs_is_named() {
        let mut tree = Tree::new(LINKS).only(&["reference"]);
        // Without NVML the facts are incomplete.
        tree.config.collectors.gpu.enabled = false;
        let file = tree.roots.procfs.parent().unwrap().join("node.json");
        let report = tree.check();
        Reference::write(&report, &file).unwrap();
        tree.options.reference = Some(file.clone());
        let says = tree.says();
        assert!(says.contains("facts are as on"), "{says}");
        tree.write("sys/class/net/eth0/speed", "25000");
        std::fs::remove_dir_all(tree.roots.sys("class/net/eth1")).unwrap();
        let says = tree.says();
        assert!(
            says.contains("nic.speed_bytes_per_second is 3125000000; on n1 it was 2 x 12500000000"),
            "{says}"
        );
        assert_eq!(tree.check().exit, 1);
        assert!(Reference::write(&tree.check(), &file).is_err(), "a node that differs is no reference");
        // A fact that is not in the file is not compared.
        let mut read = Reference::load(&file).unwrap();
        read.facts.retain(|name, _| name.starts_with("config."));
        std::fs::write(&file, serde_json::to_string(&read).unwrap()).unwrap();
        assert_eq!(tree.check().exit, 0, "{}", tree.says());
        for text in ["{}", "", r#"{"schema":2,"node":"x","ts":0,"facts":{}}"#] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(tree.check().exit, 2, "{text}");
        }
    }

    #[test]
    fn mounts_that_have_to_be_there() {
        const TABLE: &str = "22 1 0:21 / / rw - ext4 /dev/sda1 rw
            23 22 0:30 / /not/there/home rw - autofs auto.home rw,timeout=300,indirect
            24 22 0:31 / /not/there/fsx rw - autofs systemd-1 rw,timeout=0,direct
            25 22 0:32 / /not/there/data rw - nfs4 srv:/data rw
            26 22 0:33 / /not/there/scratch rw - nfs4 srv:/scratch rw";
        const USED: &str = "
            27 23 0:34 / /not/there/home/al rw - nfs4 srv:/home/al rw
            28 24 0:35 / /not/there/fsx rw - lustre 10.0.0.1@tcp:/fsx rw";
        let mut tree = Tree::new(LINKS).only(&["reference"]);
        tree.config.collectors.gpu.enabled = false;
        // Each mount has enough time to be queried.
        tree.options.timeout = stepwatch_kit::config::Period::secs(30);
        let table = |tree: &Tree, text: &str| tree.write("proc/self/mountinfo", text);
        table(&tree, &(TABLE.to_owned() + USED));
        let file = tree.roots.procfs.parent().unwrap().join("node.json");
        let report = tree.check();
        assert_eq!(report.facts[MOUNTS], "1 x /not/there/data, 1 x /not/there/scratch");
        Reference::write(&report, &file).unwrap();
        tree.options.reference = Some(file.clone());
        let more = "\n29 22 0:36 / /not/there/more rw - nfs4 srv:/more rw";
        for same in [TABLE.to_owned(), TABLE.to_owned() + USED + more] {
            table(&tree, &same);
            assert_eq!(tree.check().exit, 0, "{}", tree.says());
        }
        let scratch = "26 22 0:33 / /not/there/scratch rw - nfs4 srv:/scratch rw";
        table(&tree, &TABLE.replace(scratch, ""));
        let says = tree.says();
        assert!(
            says.contains(
                "of the network file systems of n1 these are not mounted: /not/there/scratch; mount it"
            ),
            "{says}"
        );
        // Here an automounter would mount it.
        let lazily = "26 22 0:37 / /not/there/scratch rw - autofs systemd-1 rw,timeout=600,direct";
        table(&tree, &TABLE.replace(scratch, lazily));
        assert_eq!(tree.check().exit, 0, "{}", tree.says());
        table(&tree, "22 1 0:21 / / rw - ext4 /dev/sda1 rw");
        assert_eq!(tree.check().exit, 1, "none at all: {}", tree.says());
    }

    #[test]
    fn tallies_read_well() {
        let tally = |words: &[&str]| tally(words.iter().map(|w| (*w).to_owned()).collect());
        assert_eq!(tally(&["a"]), "a");
        assert_eq!(tally(&["b", "a", "b", "c"]), "2 x b, 1 x a, 1 x c");
    }
}
