//! The collectors, in the order of the page. Adding one takes its file and its line here.

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

/// One line a collector: its module must offer `Config` (with `enabled` and `check`),
/// `Collector::new(&Config)`, `ABOUT`, `FAMILIES` and `rhythm(&Config)`. One that must know what
/// another is told has that one in brackets, and is given its configuration too.
macro_rules! collectors {
    ($($name:ident $(($other:ident))?)*) => {
        $(pub mod $name;)*

        /// `collectors:` of the configuration, one key each.
        #[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct CollectorsConfig {
            $(pub $name: $name::Config,)*
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
            about: $name::ABOUT,
            families: $name::FAMILIES,
            build: |config| {
                let own = &config.$name;
                let build = || -> Built {
                    (Box::new($name::Reader::new(own $(, &config.$other)?)), $name::rhythm(own))
                };
                own.enabled.then(build)
            },
        },)*];
    };
}

collectors! {
    affinity(rdma)
    clock
    config_drift
    disk
    edac
    gpu(kernel)
    heartbeat
    job
    kernel
    mounts
    nic
    pci
    process
    ras
    rdma
    textfile
}
