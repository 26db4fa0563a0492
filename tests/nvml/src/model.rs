//! A GPU as a table of quantities by name: what is not in the table is not supported.

use rustc_hash::FxHashMap;

use crate::script::{ALL, Quantity, Script};

/// Quantities by name; `None` where the script has it as not supported. What finding one takes is
/// counted as the program's that is measured, so it is to be little.
pub(crate) type Table = FxHashMap<String, Option<Quantity>>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Gpu {
    pub(crate) values: Table,
    /// Its MIG devices.
    pub(crate) instances: Vec<Instance>,
}

#[derive(Debug, Clone)]
pub(crate) struct Instance {
    /// Number of the GPU instance and, within it, of the compute instance.
    pub(crate) gi: u32,
    pub(crate) ci: u32,
    pub(crate) values: Table,
}

impl Gpu {
    pub(crate) fn set(&mut self, name: &str, quantity: impl Into<Quantity>) {
        self.values.insert(name.to_owned(), Some(quantity.into()));
    }

    /// Several whose names begin the same.
    pub(crate) fn set_all<const N: usize>(&mut self, beginning: &str, quantities: [(&str, u64); N]) {
        for (name, quantity) in quantities {
            self.set(&format!("{beginning}{name}"), quantity);
        }
    }

    /// What has never happened.
    pub(crate) fn zero(&mut self, beginning: &str, names: &[&str]) {
        for name in names {
            self.set(&format!("{beginning}{name}"), 0u64);
        }
    }

    pub(crate) fn growing(&mut self, name: &str, at: f64, per_second: f64) {
        self.set(name, Quantity::growing(at, per_second));
    }

    /// Takes away all that begins with one of these.
    pub(crate) fn without(&mut self, beginnings: &[&str]) {
        self.values.retain(|name, _| !beginnings.iter().any(|b| name.starts_with(b)));
    }
}

/// The GPUs of a script: those of its fleet, with the script's own values.
pub(crate) fn gpus(script: &Script) -> Vec<Gpu> {
    let count = script.count.unwrap_or(script.fleet.count());
    let mut gpus: Vec<Gpu> = (0..count).map(|index| script.fleet.gpu(index)).collect();
    for (index, gpu) in gpus.iter_mut().enumerate() {
        for key in [ALL.to_owned(), index.to_string()] {
            gpu.values.extend(
                script.gpus.get(&key).into_iter().flatten().map(|(name, q)| (name.clone(), q.clone())),
            );
        }
        // `0/1`: of the first GPU the second MIG device.
        for (mig, instance) in gpu.instances.iter_mut().enumerate() {
            let overrides = script.gpus.get(&format!("{index}/{mig}"));
            instance
                .values
                .extend(overrides.into_iter().flatten().map(|(name, q)| (name.clone(), q.clone())));
        }
    }
    gpus
}
