//! Which NIC is near which GPU, and which rail a NIC is: so that an alert says "rail 3" and a throttled pair of GPU and NIC is found by a join.
//!
//! From the tree of `/sys/devices`, whose folders are the PCI bridges that a device hangs below, and from NUMA nodes. Rails are counted over the
//! fabric's NICs in the order of the bus; a NIC that falls off the bus keeps its number while this exporter runs, so that the others do not move up.
//! It is no measurement: what a path can carry is for `nccl-tests` to say.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::collector::{CollectError, Collector, Context, Rhythm, Support};
use crate::family::Family;
use crate::gpus::inventory;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::topology::Place;

pub const ABOUT: &str = "which NIC is near which GPU, and the rails of the fabric";

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

/// More NICs than any node has.
const MAX_NICS: usize = 64;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// NICs of the fabric, in the order of their rails; found when empty.
    pub rails: Vec<String>,
    /// NICs that are not of the fabric: storage, management. `*` stands for anything.
    pub exclude: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, rails: Vec::new(), exclude: Vec::new() }
    }
}

pub fn rhythm(_: &Config) -> Rhythm {
    Rhythm { interval: Duration::from_mins(1), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct Reader {
    rails: Vec<String>,
    exclude: Vec<glob::Pattern>,
    /// Names by address of the NICs that were ever seen.
    known: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Nic {
    name: String,
    place: Place,
    /// Make and model, by which the fabric's NICs are told from the others.
    model: String,
}

impl Reader {
    pub fn new(config: &Config) -> Self {
        let exclude = config.exclude.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        Self { rails: config.rails.clone(), exclude, known: BTreeMap::new() }
    }

    /// NICs of the fabric. A node with GPUs and without RDMA devices has its Ethernet for one.
    fn fabric(&self, roots: &Roots) -> Vec<Nic> {
        let rdma = self.nics(roots, "class/infiniband");
        let nics = if rdma.is_empty() && !inventory(roots).is_empty() {
            self.nics(roots, "class/net")
        } else {
            rdma
        };
        if !self.rails.is_empty() {
            return nics.into_iter().filter(|nic| self.rails.contains(&nic.name)).collect();
        }
        let count = |model: &str| nics.iter().filter(|n| n.model == model).count();
        // The fabric has one NIC for each GPU or two, storage and management have fewer of another model.
        let most = nics.iter().map(|n| count(&n.model)).max().unwrap_or(0);
        nics.iter().filter(|n| count(&n.model) == most).cloned().collect()
    }

    fn nics(&self, roots: &Roots, class: &str) -> Vec<Nic> {
        let dir = roots.sys(class);
        let names = roots::list(&dir).unwrap_or_default();
        let wanted = |name: &String| {
            let device = dir.join(name).join("device");
            // No virtual function: it shares the cable of its physical one.
            device.exists()
                && !device.join("physfn").exists()
                && !self.exclude.iter().any(|p| p.matches(name))
        };
        let nic = |name: String| {
            let place = Place::behind(&dir.join(&name))?;
            let told =
                ["board_id", "hca_type"].map(|f| roots::read(&dir.join(&name).join(f)).unwrap_or_default());
            let pci = ["vendor", "device"]
                .map(|f| roots::read(&dir.join(&name).join("device").join(f)).unwrap_or_default());
            Some(Nic { model: [told, pci].concat().join(" "), name, place })
        };
        names.into_iter().filter(wanted).filter_map(nic).take(MAX_NICS).collect()
    }

    /// The rails by name.
    fn number(&mut self, nics: &[Nic]) -> BTreeMap<String, usize> {
        if !self.rails.is_empty() {
            return self.rails.iter().enumerate().map(|(rail, name)| (name.clone(), rail)).collect();
        }
        for nic in nics {
            if self.known.len() < MAX_NICS {
                self.known.insert(nic.place.address.clone(), nic.name.clone());
            }
        }
        self.known.values().enumerate().map(|(rail, name)| (name.clone(), rail)).collect()
    }
}

impl Collector for Reader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let nics = self.fabric(cx.roots);
        if nics.is_empty() {
            return Ok(Support::Unsupported("no RDMA device, and no GPU that would use Ethernet".into()));
        }
        let rails = self.number(&nics);
        Ok(Support::Supported(format!("{} rails", rails.len())))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let nics = self.fabric(cx.roots);
        let rails = self.number(&nics);
        let rail = |nic: &Nic| rails.get(&nic.name).map(usize::to_string).unwrap_or_default();
        for nic in &nics {
            out.set(&RAIL, &[&nic.name, &rail(nic), &nic.place.address, &nic.numa()], true);
        }
        for gpu in inventory(cx.roots) {
            let Some(place) = Place::of(cx.roots, &gpu.pci) else { continue };
            for nic in &nics {
                let path = place.path_to(&nic.place);
                out.set(&AFFINITY, &[&gpu.uuid, &nic.name, &nic.numa(), path, &rail(nic)], true);
            }
        }
        Ok(())
    }
}

impl Nic {
    /// Empty where the firmware does not say.
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

        fn gpu(&self, n: u32, below: &str, pci: &str, numa: i32) -> String {
            let uuid = format!("GPU-0000000{n}-0000-0000-0000-000000000000");
            self.write(
                &format!("proc/driver/nvidia/gpus/{pci}/information"),
                &format!("Model: H100\nGPU UUID: {uuid}\nBus Location: {pci}\nDevice Minor: {n}\n"),
            );
            self.write(&format!("sys/devices/{below}/{pci}/numa_node"), &numa.to_string());
            self.link(&format!("sys/bus/pci/devices/{pci}"), &format!("sys/devices/{below}/{pci}"));
            uuid
        }

        fn nic(&self, name: &str, below: &str, pci: &str, numa: i32, board: &str) {
            let device = format!("sys/devices/{below}/{pci}");
            self.write(&format!("{device}/numa_node"), &numa.to_string());
            self.write(&format!("{device}/infiniband/{name}/board_id"), board);
            self.link(&format!("{device}/infiniband/{name}/device"), &device);
            self.link(&format!("sys/class/infiniband/{name}"), &format!("{device}/infiniband/{name}"));
        }

        fn bench(&self) -> Bench {
            let dir = self.0.path();
            Bench::new(Roots { sysfs: dir.join("sys"), procfs: dir.join("proc"), ..Roots::default() })
        }
    }

    const SWITCH: &str = "pci0000:15/0000:15:01.0/0000:16:00.0";

    /// Two sockets; a switch with a GPU and a NIC, one below another switch, and a NIC for storage.
    fn node() -> (Node, [String; 2]) {
        let node = Node(tempfile::tempdir().unwrap());
        let near = node.gpu(0, &format!("{SWITCH}/0000:17:00.0"), "0000:18:00.0", 0);
        let far = node.gpu(1, "pci0000:97/0000:97:01.0", "0000:98:00.0", 1);
        node.nic("mlx5_0", &format!("{SWITCH}/0000:17:01.0"), "0000:1a:00.0", 0, "MT_CX7");
        node.nic(
            "mlx5_1",
            &format!("{SWITCH}/0000:17:02.0/0000:1c:00.0/0000:1d:00.0"),
            "0000:1e:00.0",
            0,
            "MT_CX7",
        );
        node.nic("mlx5_9", "pci0000:50/0000:50:01.0", "0000:51:00.0", 0, "MT_CX7");
        node.nic("mlx5_3", "pci0000:60/0000:60:01.0", "0000:61:00.0", 0, "MT_STORAGE");
        (node, [near, far])
    }

    #[test]
    fn paths_and_rails() {
        let (node, [near, far]) = node();
        let (bench, mut reader) = (node.bench(), Reader::new(&Config::default()));
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
        let (bench, mut reader) = (node.bench(), Reader::new(&Config::default()));
        bench.collect(&mut reader);
        std::fs::remove_file(node.0.path().join("sys/class/infiniband/mlx5_1")).unwrap();
        let page = bench.collect(&mut reader);
        assert_eq!(page.get(&RAIL, &["mlx5_9", "2", "0000:51:00.0", "0"]), Some(1.0));
        assert_eq!(page.iter().filter(|s| s.family.name == RAIL.name).count(), 2);
    }

    #[test]
    fn rails_may_be_told() {
        let (node, _) = node();
        let config = Config { rails: vec!["mlx5_9".into(), "mlx5_0".into()], ..Config::default() };
        let page = node.bench().collect(&mut Reader::new(&config));
        assert_eq!(page.get(&RAIL, &["mlx5_9", "0", "0000:51:00.0", "0"]), Some(1.0));
        assert_eq!(page.get(&RAIL, &["mlx5_0", "1", "0000:1a:00.0", "0"]), Some(1.0));
        let config = Config { exclude: vec!["mlx5_*".into()], ..Config::default() };
        let mut reader = Reader::new(&config);
        assert!(matches!(reader.probe(&node.bench().context()), Ok(Support::Unsupported(_))));
    }

    #[test]
    fn a_virtual_machine_tells_little() {
        let node = Node(tempfile::tempdir().unwrap());
        let gpu = node.gpu(0, "pci0000:00", "0000:00:1e.0", -1);
        node.nic("rdmap0s6", "pci0000:00", "0000:00:06.0", -1, "");
        node.nic("rdmap16s6", "pci0000:10", "0000:10:06.0", -1, "");
        let page = node.bench().collect(&mut Reader::new(&Config::default()));
        assert_eq!(page.get(&AFFINITY, &[&gpu, "rdmap0s6", "", "node", "0"]), Some(1.0));
        assert_eq!(page.get(&AFFINITY, &[&gpu, "rdmap16s6", "", "sys", "1"]), Some(1.0));
    }

    #[test]
    fn ethernet_is_a_fabric_where_there_are_gpus() {
        let node = Node(tempfile::tempdir().unwrap());
        let device = "sys/devices/pci0000:00/0000:00:05.0";
        node.write(&format!("{device}/net/eth0/mtu"), "9000");
        node.link(&format!("{device}/net/eth0/device"), device);
        node.link("sys/class/net/eth0", &format!("{device}/net/eth0"));
        let mut reader = Reader::new(&Config::default());
        assert!(matches!(reader.probe(&node.bench().context()), Ok(Support::Unsupported(_))));
        node.gpu(0, "pci0000:00", "0000:00:06.0", 0);
        assert_eq!(reader.probe(&node.bench().context()).unwrap(), Support::Supported("1 rails".into()));
    }
}
