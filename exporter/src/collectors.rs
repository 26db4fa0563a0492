//! The collectors, in the order of the metrics page. To add one, put its file into the directory of
//! what it reads, and add its line to the list here, which also declares its module.

use crate::collector::{Collector, Rhythm};
use crate::family::Family;
use crate::family_filter::Metrics;

/// The facts about a collector for the scheduler and the reference.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub about: &'static str,
    /// The devices, files and privileges that it needs.
    pub needs: &'static str,
    /// The cost of a pass, and who bears it.
    pub cost: &'static str,
    pub families: &'static [&'static Family],
    /// Builds the collector; `None` if the configuration disables it.
    pub build: fn(&CollectorsConfig) -> Option<Built>,
    /// The configured choice of its families.
    pub metrics: fn(&CollectorsConfig) -> &Metrics,
}

/// A collector and its interval.
pub type Built = (Box<dyn Collector>, Rhythm);

/// Declares the modules of all collectors and builds their list. The first braces hold those with a
/// directory of their own, the others those in a common directory.
///
/// One line a collector: the key of its settings, its reader, its module, and in brackets the other
/// collector whose settings it needs. The module must have `Config` (with `enabled` and `check`),
/// `ABOUT`, `NEEDS`, `COST`, `FAMILIES` and `rhythm(&Config)`, and the reader `new(&Config)`.
macro_rules! collectors {
    (
        { $($key:ident = $reader:ident in $module:ident $(($other:ident))?;)* }
        $($(#[$doc:meta])* $directory:ident {
            $($inner_key:ident = $inner_reader:ident in $inner:ident $(($inner_other:ident))?;)*
        })*
    ) => {
        $(pub mod $module;)*
        $($(#[$doc])* pub mod $directory { $(pub mod $inner;)* })*

        entries! {
            $($key = $reader in $module $(($other))?;)*
            $($($inner_key = $inner_reader in $directory::$inner $(($inner_other))?;)*)*
        }
    };
}

macro_rules! entries {
    ($($name:ident = $reader:ident in $($module:ident)::+ $(($other:ident))?;)*) => {
        /// `collectors:` of the configuration, one key each.
        #[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct CollectorsConfig {
            $(pub $name: $($module::)+Config,)*
        }

        impl CollectorsConfig {
            /// The errors of the configuration, each after the path of its value.
            pub(crate) fn check(&self) -> Vec<String> {
                let mut wrong = Vec::new();
                $(
                    let path = concat!("collectors.", stringify!($name));
                    wrong.extend(self.$name.check().under(path));
                    wrong.extend(self.$name.metrics.check(names(stringify!($name), $($module::)+FAMILIES)).under(path));
                )*
                wrong
            }

            /// The configuration with all families, for callers that do not export them.
            pub(crate) fn with_everything(mut self) -> Self {
                $(self.$name.metrics = Metrics::everything();)*
                self
            }
        }

        pub static COLLECTORS: &[Entry] = &[$(Entry {
            name: stringify!($name),
            about: $($module::)+ABOUT,
            needs: $($module::)+NEEDS,
            cost: $($module::)+COST,
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
    {
        amdgpu = AmdgpuReader in amdgpu;
        gpu = GpuReader in gpu(kernel);
        kernel = KernelLogReader in kernel;
    }

    /// The node around its GPUs: processes and memory, PCIe, the clock, its setup, and the metrics
    /// of the site's scripts.
    host {
        clock = ClockReader in clock;
        config_drift = ConfigDriftReader in config_drift;
        edac = EdacReader in edac;
        fabric_manager = FabricManagerReader in fabric_manager;
        memory = MemoryReader in memory;
        node_tests = NodeTestsReader in node_tests;
        pci = PciReader in pci;
        process = ProcessReader in process;
        services = ServicesReader in services;
        textfile = TextfileReader in textfile;
    }

    /// What runs on the node: jobs and the GPUs that they hold, the heartbeats of their processes,
    /// and the status that NCCL reports of them. And what the scheduler says of all nodes and jobs,
    /// which one exporter of a cluster reads.
    job {
        heartbeat = HeartbeatReader in heartbeat;
        job = AllocationReader in allocation;
        kubernetes = KubernetesReader in kubernetes;
        ras = RasReader in ras;
        rendezvous = RendezvousReader in rendezvous;
        slurm = SlurmReader in slurm;
    }

    /// What carries a run between nodes: RDMA ports, Ethernet interfaces, and which of them is near
    /// which GPU.
    network {
        affinity = AffinityReader in affinity(rdma);
        bonds = BondsReader in bonds;
        nic = NicReader in nic;
        optics = OpticsReader in optics;
        rdma = RdmaReader in rdma;
    }

    /// Where data and checkpoints lie: local disks and network file systems.
    storage {
        disk = DiskReader in disk;
        mounts = MountsReader in mounts;
        nvme = NvmeReader in nvme;
    }
}

/// The families of which a configured name must be one. Those of `textfile` are unknown before its
/// files are read.
fn names(collector: &str, families: &'static [&'static Family]) -> &'static [&'static Family] {
    if collector == "textfile" { &[] } else { families }
}
