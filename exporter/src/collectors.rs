//! The collectors, in the order of the page. To add one, put its file into the module of what it
//! reads, and add its line here.

pub mod gpu;
pub mod host;
pub mod job;
pub mod kernel;
pub mod network;
pub mod storage;

use crate::collector::{Collector, Rhythm};
use crate::family::Family;
use crate::family_filter::Metrics;

/// What the scheduler and the reference need of a collector.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub about: &'static str,
    pub families: &'static [&'static Family],
    /// `None` when the configuration disables it.
    pub build: fn(&CollectorsConfig) -> Option<Built>,
    /// Which of the families are on the page.
    pub metrics: fn(&CollectorsConfig) -> &Metrics,
}

/// A collector, and how often to run it.
pub type Built = (Box<dyn Collector>, Rhythm);

/// One line for each collector: the key of its settings, its reader, its module, and in brackets
/// the other collector whose settings it needs. The module must have `Config` (with `enabled` and
/// `check`), `ABOUT`, `FAMILIES` and `rhythm(&Config)`, and the reader `new(&Config)`.
macro_rules! collectors {
    ($($name:ident = $reader:ident in $($module:ident)::+ $(($other:ident))?;)*) => {
        /// `collectors:` of the configuration, one key each.
        #[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct CollectorsConfig {
            $(pub $name: $($module::)+Config,)*
        }

        impl CollectorsConfig {
            /// What is wrong with it, each behind the path of its value.
            pub(crate) fn check(&self) -> Vec<String> {
                let mut wrong = Vec::new();
                $(
                    let path = concat!("collectors.", stringify!($name));
                    wrong.extend(self.$name.check().under(path));
                    wrong.extend(self.$name.metrics.check(names(stringify!($name), $($module::)+FAMILIES)).under(path));
                )*
                wrong
            }

            /// The same with all that is read, for who reads no page.
            pub(crate) fn with_everything(mut self) -> Self {
                $(self.$name.metrics = Metrics::everything();)*
                self
            }
        }

        pub static COLLECTORS: &[Entry] = &[$(Entry {
            name: stringify!($name),
            about: $($module::)+ABOUT,
            families: $($module::)+FAMILIES,
            build: |config| {
                let own = &config.$name;
                let build = || -> Built {
                    let reader = $($module::)+$reader::new(own $(, &config.$other)?);
                    (Box::new(reader), $($module::)+rhythm(own))
                };
                own.enabled.then(build)
            },
            metrics: |config| &config.$name.metrics,
        },)*];
    };
}

collectors! {
    affinity = AffinityReader in network::affinity(rdma);
    amdgpu = AmdgpuReader in gpu::amd;
    bonds = BondsReader in network::bonds;
    clock = ClockReader in host::clock;
    config_drift = ConfigDriftReader in host::config_drift;
    disk = DiskReader in storage::disk;
    edac = EdacReader in host::edac;
    fabric_manager = FabricManagerReader in host::fabric_manager;
    gpu = GpuReader in gpu(kernel);
    heartbeat = HeartbeatReader in job::heartbeat;
    job = AllocationReader in job::allocation;
    kernel = KernelLogReader in kernel;
    memory = MemoryReader in host::memory;
    mounts = MountsReader in storage::mounts;
    nic = NicReader in network::nic;
    nvme = NvmeReader in storage::nvme;
    optics = OpticsReader in network::optics;
    pci = PciReader in host::pci;
    process = ProcessReader in host::process;
    ras = RasReader in job::ras;
    rdma = RdmaReader in network::rdma;
    services = ServicesReader in host::services;
    textfile = TextfileReader in host::textfile;
}

/// Families whose names can be mistaken. Those of `textfile` are not known before its files are
/// read.
fn names(collector: &str, families: &'static [&'static Family]) -> &'static [&'static Family] {
    if collector == "textfile" { &[] } else { families }
}
