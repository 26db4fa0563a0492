//! The collectors, in the order of the page. Adding one takes its file in the room of what it reads,
//! and its line here.

pub mod gpu;
pub mod host;
pub mod job;
pub mod kernel;
pub mod network;
pub mod storage;

use crate::collector::{Collector, Rhythm};
use crate::family::Family;

/// What the scheduler and the reference know of a collector.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub about: &'static str,
    pub families: &'static [&'static Family],
    /// `None` when the configuration disables it.
    pub build: fn(&CollectorsConfig) -> Option<Built>,
}

/// A collector, and how often to run it.
pub type Built = (Box<dyn Collector>, Rhythm);

/// One line a collector: the key of its settings, its module, and in brackets the other collector
/// whose settings it must know. The module must offer `Config` (with `enabled` and `check`),
/// `Reader::new(&Config)`, `ABOUT`, `FAMILIES` and `rhythm(&Config)`.
macro_rules! collectors {
    ($($name:ident = $($module:ident)::+ $(($other:ident))?;)*) => {
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
                $(wrong.extend(self.$name.check().under(concat!("collectors.", stringify!($name))));)*
                wrong
            }
        }

        pub static COLLECTORS: &[Entry] = &[$(Entry {
            name: stringify!($name),
            about: $($module::)+ABOUT,
            families: $($module::)+FAMILIES,
            build: |config| {
                let own = &config.$name;
                let build = || -> Built {
                    let reader = $($module::)+Reader::new(own $(, &config.$other)?);
                    (Box::new(reader), $($module::)+rhythm(own))
                };
                own.enabled.then(build)
            },
        },)*];
    };
}

collectors! {
    affinity = network::affinity(rdma);
    clock = host::clock;
    config_drift = host::config_drift;
    disk = storage::disk;
    edac = host::edac;
    gpu = gpu(kernel);
    heartbeat = job::heartbeat;
    job = job::allocation;
    kernel = kernel;
    mounts = storage::mounts;
    nic = network::nic;
    pci = host::pci;
    process = host::process;
    ras = job::ras;
    rdma = network::rdma;
    textfile = host::textfile;
}
