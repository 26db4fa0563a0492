//! A quantity that a GPU does not support costs the families that come of it, on that GPU, and
//! nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use futures_util::stream::{self, StreamExt as _};
use stepwatch_fake_nvml::{Fleet, Script, library};

use crate::node::{Node, of_gpus};

/// Both rhythms within a moment.
const QUICK: &str =
    "collectors:\n  gpu: {metrics: {include: ['*']}, interval: 100ms, slow_interval: 200ms}\n";
/// A second at which every counter is known.
const NOW: f64 = 100.0;
/// On one node: as many as the stand-in has different numbers for. The last lacks nothing.
const GPUS: usize = 20;
/// At a time.
const NODES: usize = 3;
/// What calls cost differs from run to run.
const COSTS: &str = "gpu_nvml_call_";

/// Series and their values, of each GPU and, by the name of none, of the node.
type Page = BTreeMap<String, BTreeMap<String, String>>;

fn page(text: &str) -> Page {
    let mut page = Page::new();
    for line in of_gpus(text).lines().filter(|line| !line.starts_with(COSTS)) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let gpu = series.split_once("gpu=\"").map_or("", |(_, rest)| rest.split('"').next().unwrap());
        page.entry(gpu.to_owned()).or_default().insert(series.replace(gpu, "-"), value.to_owned());
    }
    page
}

/// GPUs of which each lacks the quantity of its number.
async fn node(fleet: Fleet, lacking: &[String]) -> Node {
    // A share beyond the whole is none, and the stand-in's grow with the number of the GPU.
    let mut script = Script { count: Some(GPUS), ..Script::for_fleet(fleet).at(NOW) };
    script = script.all("utilization.gpu", 90u64).all("gpm.2", 88.25).all("nvlink.links", 2u64);
    for (gpu, name) in lacking.iter().enumerate() {
        script = script.absent(gpu, name);
    }
    Node::start_with(&script, &library().unwrap(), QUICK).await
}

/// Waits until all GPUs have published what they have to: slow things, and of each at its own time
/// what it is profiled for.
async fn read(node: &Node, fleet: Fleet, lacking: &[String]) -> Page {
    let lacks = |gpu: usize, name: &str| lacking.get(gpu).is_some_and(|lacks| lacks == name);
    let whole = |page: &Page| {
        (0..GPUS).all(|gpu| {
            let series = page.get(&fleet.uuid(gpu));
            let has = |family: &str| series.is_some_and(|all| all.keys().any(|s| s.starts_with(family)));
            (has("gpu_power_limit_watts") || lacks(gpu, "power.limit"))
                && (has("gpu_dram_active_ratio") || has("gpu_sm_occupancy_ratio") || lacks(gpu, "gpm"))
        })
    };
    page(&node.page_where("all GPUs are read", |text| whole(&page(text))).await)
}

fn families(series: &BTreeSet<&String>) -> String {
    let names: BTreeSet<&str> = series.iter().filter_map(|s| s.split('{').next()).collect();
    names.into_iter().collect::<Vec<_>>().join(" ")
}

/// What is not the same of a GPU: families that are gone, `+` that are new, `~` that have another
/// value.
fn cost(was: &BTreeMap<String, String>, is: &BTreeMap<String, String>) -> String {
    let (before, after): (BTreeSet<_>, BTreeSet<_>) = (was.keys().collect(), is.keys().collect());
    let changed = before.intersection(&after).filter(|s| was[**s] != is[**s]).copied().collect();
    let mut cost = families(&before.difference(&after).copied().collect());
    for (sign, series) in [('+', after.difference(&before).copied().collect()), ('~', changed)] {
        let names = families(&series);
        names.split_whitespace().for_each(|name| write!(cost, " {sign}{name}").unwrap());
    }
    if cost.is_empty() { "nothing".into() } else { cost.trim_start().to_owned() }
}

/// What each of these costs, a line each; and that it costs nobody else.
async fn costs(fleet: Fleet, names: &[String]) -> String {
    let healthy = read(&node(fleet, &[]).await, fleet, &[]).await;
    let cost = async |lacking: &[String]| {
        let node = node(fleet, lacking).await;
        let page = read(&node, fleet, lacking).await;
        let mut lines = String::new();
        for (gpu, uuid) in (0..GPUS).map(|gpu| (gpu, fleet.uuid(gpu))) {
            let (was, is) = (&healthy[&uuid], page.get(&uuid).unwrap_or_else(|| panic!("{uuid} is gone")));
            match lacking.get(gpu) {
                Some(name) => writeln!(lines, "{name}: {}", cost(was, is)).unwrap(),
                None => assert_eq!(is, was, "{uuid} lacks nothing"),
            }
        }
        assert_eq!(page.get(""), healthy.get(""), "of the node, when GPUs lack {lacking:?}");
        node.decent();
        lines
    };
    stream::iter(names.chunks(GPUS - 1)).map(cost).buffered(NODES).collect::<Vec<_>>().await.concat()
}

/// The calls that identify the others: without it a GPU is another one, or none.
const IDENTITY: &[&str] = &["pci", "uuid"];

#[tokio::test(flavor = "multi_thread")]
async fn a_quantity_costs_what_comes_of_it() {
    let h100: Vec<String> =
        Fleet::H100.quantities().into_iter().filter(|name| !IDENTITY.contains(&name.as_str())).collect();
    let b200: Vec<String> = Fleet::B200
        .quantities()
        .into_iter()
        .filter(|name| !Fleet::H100.quantities().contains(name))
        .collect();
    let (h100, b200) = tokio::join!(costs(Fleet::H100, &h100), costs(Fleet::B200, &b200));
    insta::assert_snapshot!("costs_h100", h100);
    insta::assert_snapshot!("costs_b200", b200);
}
