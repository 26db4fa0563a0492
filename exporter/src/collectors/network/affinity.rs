//! The distance between NICs and GPUs, and the rail of each NIC, so that an alert can say "rail 3"
//! and a join finds a throttled pair of GPU and NIC.
//!
//! The distance comes from the tree of `/sys/devices`, whose directories are the PCI bridges above
//! a device, and from NUMA nodes. Rails are numbered over the fabric's NICs in the order of the
//! bus; a lost NIC keeps its number (`rails`), so that those of the others stay. `rdma` decides
//! which ports belong to the fabric rather than being excluded, for management or never cabled.
//! Nothing is measured here: use `nccl-tests` for the bandwidth of a path.

mod rails;

use std::collections::BTreeMap;
use std::time::Duration;

use self::rails::Rails;
use super::rdma::{self, Role};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::gpus::inventory;
use crate::persisted_state;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::topology::Place;

pub const ABOUT: &str = "which NIC is near which GPU, and the rails of the fabric";
pub const NEEDS: &str = "/sys; any user";
pub const COST: &str = "a few links read, seldom";

pub static AFFINITY: Family = Family::gauge(
    "gpu_nic_affinity_info",
    "",
    &["gpu", "device", "numa_node", "path", "rail"],
    "How a GPU reaches a NIC of the fabric: pix through one PCIe switch, pxb through several, node within a NUMA node, sys across; numa_node is the NIC's; always 1",
);
pub static RAIL: Family = Family::gauge(
    "rdma_rail_info",
    "",
    &["device", "rail", "pci", "numa_node"],
    "NIC of the fabric with its rail; always 1",
);

pub static FAMILIES: &[&Family] = &[&AFFINITY, &RAIL];

/// The name of the saved state.
const STATE_NAME: &str = "affinity";
/// Seconds between saves if only times have changed.
const SAVE_SECONDS: f64 = 3600.0;
/// The most NICs of a node.
const MAX_NICS: usize = 64;
/// The directory of RDMA devices in sysfs.
const RDMA: &str = "class/infiniband";

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    /// NICs of the fabric in the order of their rails; detected if empty.
    pub rails: Vec<String>,
    /// Patterns with `*` of NICs that are not part of the fabric, such as storage and management.
    pub exclude: Vec<String>,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().patterns("exclude", &self.exclude)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, metrics: Metrics::default(), rails: Vec::new(), exclude: Vec::new() }
    }
}

pub fn rhythm(_: &Config) -> Rhythm {
    Rhythm { interval: Duration::from_mins(1), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct AffinityReader {
    rails: Vec<String>,
    exclude: Vec<glob::Pattern>,
    rdma: rdma::RdmaReader,
    /// The known rails; `None` before the first pass.
    known: Option<Rails>,
    saved_at: f64,
    failing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Nic {
    name: String,
    place: Place,
    /// Make and model, which distinguish the fabric's NICs from others.
    model: String,
    /// The GUID; empty if there is none.
    guid: String,
    /// Whether the device is an RDMA device rather than an Ethernet interface.
    rdma: bool,
}

/// A NIC of the fabric, and its rail.
type Railed = (Nic, usize);

impl AffinityReader {
    pub fn new(config: &Config, rdma: &rdma::Config) -> Self {
        let exclude = config.exclude.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        Self {
            rails: config.rails.clone(),
            exclude,
            rdma: rdma::RdmaReader::new(rdma),
            known: None,
            saved_at: unix_now(),
            failing: false,
        }
    }

    /// The NICs of the fabric. If a node with GPUs has no RDMA devices, its Ethernet is the fabric.
    fn fabric(&mut self, cx: &Context<'_>) -> Result<Vec<Railed>, CollectError> {
        let mut nics = self.nics(cx.roots, RDMA);
        let mut roles = None;
        if nics.is_empty() && !inventory(cx.roots).is_empty() {
            // While drivers of RDMA devices are reloaded there are none, and the remaining
            // interfaces are for management.
            if !self.remembers_rdma(cx) {
                nics = self.nics(cx.roots, "class/net");
            }
        } else if self.rails.is_empty() {
            roles = Some(self.rdma.roles(cx)?);
        }
        if !self.rails.is_empty() {
            let rail = |nic: &Nic| self.rails.iter().position(|name| *name == nic.name);
            return Ok(nics.into_iter().filter_map(|nic| rail(&nic).map(|rail| (nic, rail))).collect());
        }
        let state = cx.roots.state.as_deref();
        let mut known = self.known.take().unwrap_or_else(|| persisted_state::load(state, STATE_NAME));
        let before = known.clone();
        // A NIC of the fabric stays in it, even if no saved state shows that it was ever up.
        let (nics, apart): (Vec<Nic>, Vec<Nic>) =
            nics.into_iter().partition(|nic| match roles.as_ref().map(|roles| roles.get(&nic.name)) {
                None | Some(Some(Role::Fabric)) => true,
                Some(Some(Role::Unprovisioned)) => known.knows(nic),
                Some(Some(Role::Management | Role::Auxiliary) | None) => false,
            });
        let (nics, others) = of_most(nics, &known);
        apart.iter().chain(&others).for_each(|nic| known.retire(nic));
        let now = unix_now();
        let rails = known.number(now, &nics);
        if known.differ(&before) || !(0.0..SAVE_SECONDS).contains(&(now - self.saved_at)) {
            self.saved_at = now;
            let saved = persisted_state::save(state, STATE_NAME, &known);
            if let Some(error) = saved.as_ref().err().filter(|_| !self.failing) {
                tracing::warn!(%error, "cannot save which NIC has which rail; a restart may count them anew");
            }
            self.failing = saved.is_err();
        }
        self.known = Some(known);
        Ok(nics.into_iter().zip(rails).collect())
    }

    fn remembers_rdma(&mut self, cx: &Context<'_>) -> bool {
        let load = || persisted_state::load(cx.roots.state.as_deref(), STATE_NAME);
        self.rails.is_empty() && self.known.get_or_insert_with(load).has_rdma()
    }

    fn nics(&self, roots: &Roots, class: &str) -> Vec<Nic> {
        let dir = roots.sys(class);
        let names = roots::list(&dir).unwrap_or_default();
        let wanted = |name: &String| {
            let device = dir.join(name).join("device");
            // Virtual functions are left out, because they share the cable of the physical one.
            device.exists()
                && !device.join("physfn").exists()
                && !self.exclude.iter().any(|p| p.matches(name))
        };
        let nic = |name: String| {
            let place = Place::behind(&dir.join(&name))?;
            let board =
                ["board_id", "hca_type"].map(|f| roots::read(&dir.join(&name).join(f)).unwrap_or_default());
            let pci = ["vendor", "device"]
                .map(|f| roots::read(&dir.join(&name).join("device").join(f)).unwrap_or_default());
            let guid = roots::read(&dir.join(&name).join("node_guid")).unwrap_or_default();
            let guid = if guid.bytes().all(|b| matches!(b, b'0' | b':')) { String::new() } else { guid };
            Some(Nic { model: [board, pci].concat().join(" "), name, place, guid, rdma: class == RDMA })
        };
        names.into_iter().filter(wanted).filter_map(nic).take(MAX_NICS).collect()
    }
}

/// Separates the NICs of the most frequent model, missing ones included, from the others: the
/// fabric has one NIC for each GPU or two, storage and management have fewer of another model.
fn of_most(nics: Vec<Nic>, known: &Rails) -> (Vec<Nic>, Vec<Nic>) {
    let mut count = BTreeMap::<String, usize>::new();
    for model in nics.iter().map(|nic| nic.model.as_str()).chain(known.gone(&nics)) {
        *count.entry(model.to_owned()).or_default() += 1;
    }
    let count = |nic: &Nic| count.get(&nic.model).copied().unwrap_or_default();
    let most = nics.iter().map(count).max().unwrap_or(0);
    nics.into_iter().partition(|nic| count(nic) == most)
}

impl Collector for AffinityReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let fabric = self.fabric(cx)?;
        if fabric.is_empty() {
            let why = "no RDMA device of the fabric, and no GPU that would use Ethernet";
            return Ok(Support::Unsupported(why.into()));
        }
        Ok(Support::Supported(format!("{} rails", fabric.len())))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let fabric = self.fabric(cx)?;
        for (nic, rail) in &fabric {
            out.set(&RAIL, &[&nic.name, &rail.to_string(), &nic.place.address, &nic.numa()], true);
        }
        for gpu in inventory(cx.roots) {
            let Some(place) = Place::of_device(cx.roots, &gpu.pci) else { continue };
            for (nic, rail) in &fabric {
                let path = place.path_to(&nic.place);
                out.set(&AFFINITY, &[&gpu.uuid, &nic.name, &nic.numa(), path, &rail.to_string()], true);
            }
        }
        Ok(())
    }
}

impl Nic {
    /// The NUMA node; empty if the firmware does not give it.
    fn numa(&self) -> String {
        self.place.numa_node.map(|n| n.to_string()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::Bench;

    struct Node(tempfile::TempDir);

    impl Node {
        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn link(&self, at: &str, to: &str) {
            let at = self.0.path().join(at);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            symlink(self.0.path().join(to), at).unwrap();
        }

        /// Adds a GPU. Its PCI address is the last part of its path.
        fn gpu(&self, n: u32, path: &str, numa: i32) -> String {
            let pci = path.rsplit('/').next().unwrap();
            let uuid = format!("GPU-0000000{n}-0000-0000-0000-000000000000");
            self.write(
                &format!("proc/driver/nvidia/gpus/{pci}/information"),
                &format!("Model: H100\nGPU UUID: {uuid}\nBus Location: {pci}\nDevice Minor: {n}\n"),
            );
            self.write(&format!("sys/devices/{path}/numa_node"), &numa.to_string());
            self.link(&format!("sys/bus/pci/devices/{pci}"), &format!("sys/devices/{path}"));
            uuid
        }

        fn nic(&self, name: &str, path: &str, numa: i32, board: &str) {
            let device = format!("sys/devices/{path}");
            let pci = path.rsplit('/').next().unwrap();
            self.write(&format!("{device}/numa_node"), &numa.to_string());
            self.write(&format!("{device}/infiniband/{name}/board_id"), board);
            self.write(
                &format!("{device}/infiniband/{name}/node_guid"),
                &format!("a088:c203:0000:{}", &pci[5..7]),
            );
            self.port(name, path, ["4: ACTIVE", "5: LinkUp"]);
            self.link(&format!("{device}/infiniband/{name}/device"), &device);
            self.link(&format!("sys/class/infiniband/{name}"), &format!("{device}/infiniband/{name}"));
        }

        fn port(&self, name: &str, path: &str, [state, physical]: [&str; 2]) {
            let port = format!("sys/devices/{path}/infiniband/{name}/ports/1");
            for (file, text) in [("state", state), ("phys_state", physical), ("link_layer", "InfiniBand")] {
                self.write(&format!("{port}/{file}"), text);
            }
        }

        fn bench(&self) -> Bench {
            let dir = self.0.path();
            let state = dir.join("state");
            std::fs::create_dir_all(&state).unwrap();
            Bench::new(Roots {
                sysfs: dir.join("sys"),
                procfs: dir.join("proc"),
                state: Some(state),
                ..Roots::default()
            })
        }
    }

    fn reader(config: &Config) -> AffinityReader {
        AffinityReader::new(config, &rdma::Config::default())
    }

    /// The NICs with their rails, in order.
    fn rails(page: &Samples) -> Vec<String> {
        let rows = page.iter().filter(|s| s.family.name == RAIL.name);
        let mut rails: Vec<String> =
            rows.map(|s| format!("{} {}", s.labels.get(1), s.labels.get(0))).collect();
        rails.sort();
        rails
    }

    const SWITCH: &str = "pci0000:15/0000:15:01.0/0000:16:00.0";

    /// A node with two sockets: a switch with a GPU and a NIC, a nested switch, and a NIC for
    /// storage.
    fn node() -> (Node, [String; 2]) {
        let node = Node(tempfile::tempdir().unwrap());
        let near = node.gpu(0, &format!("{SWITCH}/0000:17:00.0/0000:18:00.0"), 0);
        let far = node.gpu(1, "pci0000:97/0000:97:01.0/0000:98:00.0", 1);
        node.nic("mlx5_0", &format!("{SWITCH}/0000:17:01.0/0000:1a:00.0"), 0, "MT_CX7");
        node.nic(
            "mlx5_1",
            &format!("{SWITCH}/0000:17:02.0/0000:1c:00.0/0000:1d:00.0/0000:1e:00.0"),
            0,
            "MT_CX7",
        );
        node.nic("mlx5_9", "pci0000:50/0000:50:01.0/0000:51:00.0", 0, "MT_CX7");
        node.nic("mlx5_3", "pci0000:60/0000:60:01.0/0000:61:00.0", 0, "MT_STORAGE");
        (node, [near, far])
    }

    #[test]
    fn paths_and_rails() {
        let (node, [near, far]) = node();
        let (bench, mut reader) = (node.bench(), reader(&Config::default()));
        assert_eq!(reader.probe(&bench.context()).unwrap(), Support::Supported("3 rails".into()));
        let page = bench.collect(&mut reader);
        for (gpu, device, path, rail) in [
            (&near, "mlx5_0", "pix", "0"),
            (&near, "mlx5_1", "pxb", "1"),
            (&near, "mlx5_9", "node", "2"),
            (&far, "mlx5_0", "sys", "0"),
            (&far, "mlx5_9", "sys", "2"),
        ] {
            let labels = [gpu.as_str(), device, "0", path, rail];
            assert_eq!(page.get(&AFFINITY, &labels), Some(1.0), "{labels:?} {page:?}");
        }
        assert_eq!(page.get(&RAIL, &["mlx5_9", "2", "0000:51:00.0", "0"]), Some(1.0));
        assert!(page.iter().all(|s| s.labels.iter().all(|l| l != "mlx5_3")), "storage is no rail");
    }

    #[test]
    fn a_nic_that_is_lost_moves_no_other() {
        let (node, _) = node();
        let (bench, mut reader) = (node.bench(), reader(&Config::default()));
        bench.collect(&mut reader);
        std::fs::remove_file(node.0.path().join("sys/class/infiniband/mlx5_1")).unwrap();
        assert_eq!(rails(&bench.collect(&mut reader)), ["0 mlx5_0", "2 mlx5_9"]);
        // After the reboot, the kernel has renumbered the others too.
        std::fs::remove_file(node.0.path().join("sys/class/infiniband/mlx5_9")).unwrap();
        node.nic("mlx5_1", "pci0000:50/0000:50:01.0/0000:51:00.0", 0, "MT_CX7");
        let mut reader = self::reader(&Config::default());
        assert_eq!(rails(&bench.collect(&mut reader)), ["0 mlx5_0", "2 mlx5_1"]);
        // A NIC that is down afterwards keeps its rail as well, even if no saved state shows that
        // it was ever up.
        node.port("mlx5_1", "pci0000:50/0000:50:01.0/0000:51:00.0", ["1: DOWN", "2: Polling"]);
        let mut reader = self::reader(&Config::default());
        assert_eq!(rails(&bench.collect(&mut reader)), ["0 mlx5_0", "2 mlx5_1"]);
    }

    #[test]
    fn a_port_that_is_not_of_the_fabric_has_no_rail() {
        let (node, _) = node();
        node.port(
            "mlx5_1",
            &format!("{SWITCH}/0000:17:02.0/0000:1c:00.0/0000:1d:00.0/0000:1e:00.0"),
            ["1: DOWN", "3: Disabled"],
        );
        std::fs::remove_file(node.0.path().join("sys/class/infiniband/mlx5_3")).unwrap();
        let bench = node.bench();
        assert_eq!(rails(&bench.collect(&mut reader(&Config::default()))), ["0 mlx5_0", "1 mlx5_9"]);
        for (exclude, management) in [("mlx5_0", "x"), ("x", "mlx5_0")] {
            let (exclude, management) = (vec![exclude.into()], vec![management.into()]);
            let rdma = rdma::Config { exclude, management, ..rdma::Config::default() };
            let mut reader = AffinityReader::new(&Config::default(), &rdma);
            assert_eq!(rails(&bench.collect(&mut reader)), ["0 mlx5_9"], "not even in memory");
        }
    }

    #[test]
    fn rails_may_be_configured() {
        let (node, _) = node();
        let config = Config { rails: vec!["mlx5_9".into(), "mlx5_0".into()], ..Config::default() };
        let page = node.bench().collect(&mut reader(&config));
        assert_eq!(page.get(&RAIL, &["mlx5_9", "0", "0000:51:00.0", "0"]), Some(1.0));
        assert_eq!(page.get(&RAIL, &["mlx5_0", "1", "0000:1a:00.0", "0"]), Some(1.0));
        let config = Config { exclude: vec!["mlx5_*".into()], ..Config::default() };
        let mut reader = reader(&config);
        assert!(matches!(reader.probe(&node.bench().context()), Ok(Support::Unsupported(_))));
    }

    #[test]
    fn a_virtual_machine_with_little_topology() {
        let node = Node(tempfile::tempdir().unwrap());
        let gpu = node.gpu(0, "pci0000:00/0000:00:1e.0", -1);
        node.nic("rdmap0s6", "pci0000:00/0000:00:06.0", -1, "");
        node.nic("rdmap16s6", "pci0000:10/0000:10:06.0", -1, "");
        let page = node.bench().collect(&mut reader(&Config::default()));
        assert_eq!(page.get(&AFFINITY, &[&gpu, "rdmap0s6", "", "node", "0"]), Some(1.0));
        assert_eq!(page.get(&AFFINITY, &[&gpu, "rdmap16s6", "", "sys", "1"]), Some(1.0));
    }

    #[test]
    fn ethernet_is_no_fabric_while_the_drivers_of_rdma_devices_are_loaded_anew() {
        let (node, _) = node();
        let bench = node.bench();
        for (name, pci) in [("eno1", "0000:01:00.0"), ("eno2", "0000:02:00.0"), ("eno3", "0000:03:00.0")] {
            let device = format!("sys/devices/pci0000:00/{pci}");
            node.write(&format!("{device}/vendor"), "0x8086");
            node.write(&format!("{device}/net/{name}/mtu"), "1500");
            node.link(&format!("{device}/net/{name}/device"), &device);
            node.link(&format!("sys/class/net/{name}"), &format!("{device}/net/{name}"));
        }
        let mut reader = reader(&Config::default());
        let before = rails(&bench.collect(&mut reader));
        assert_eq!(before, ["0 mlx5_0", "1 mlx5_1", "2 mlx5_9"]);
        let class = node.0.path().join("sys/class/infiniband");
        let apart = node.0.path().join("apart");
        std::fs::rename(&class, &apart).unwrap();
        assert!(rails(&bench.collect(&mut reader)).is_empty());
        let mut started = self::reader(&Config::default());
        assert!(matches!(started.probe(&bench.context()), Ok(Support::Unsupported(_))));
        std::fs::rename(&apart, &class).unwrap();
        for mut reader in [reader, started, self::reader(&Config::default())] {
            assert_eq!(rails(&bench.collect(&mut reader)), before);
        }
    }

    #[test]
    fn ethernet_is_a_fabric_where_there_are_gpus() {
        let node = Node(tempfile::tempdir().unwrap());
        let device = "sys/devices/pci0000:00/0000:00:05.0";
        node.write(&format!("{device}/net/eth0/mtu"), "9000");
        node.link(&format!("{device}/net/eth0/device"), device);
        node.link("sys/class/net/eth0", &format!("{device}/net/eth0"));
        let mut reader = reader(&Config::default());
        assert!(matches!(reader.probe(&node.bench().context()), Ok(Support::Unsupported(_))));
        node.gpu(0, "pci0000:00/0000:00:06.0", 0);
        assert_eq!(reader.probe(&node.bench().context()).unwrap(), Support::Supported("1 rails".into()));
    }
}
