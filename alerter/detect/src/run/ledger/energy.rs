//! The energy that the GPUs of a run use, and the carbon that is emitted for it.

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Span;

const JOULES_PER_KWH: f64 = 3.6e6;

/// What the energy of GPUs means for their nodes, the data centre and the climate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnergyConfig {
    /// The energy of a node for each joule of its GPUs.
    pub node_ratio: f64,
    /// The energy of the data centre for each joule of its nodes.
    pub pue: f64,
    /// Grams of CO2 equivalent that are emitted for a kilowatt-hour.
    pub carbon_g_per_kwh: Option<f64>,
}

impl Default for EnergyConfig {
    fn default() -> Self {
        Self { node_ratio: 1.0, pue: 1.0, carbon_g_per_kwh: None }
    }
}

impl EnergyConfig {
    /// What is wrong with it, each with its key.
    pub fn mistakes(&self) -> impl Iterator<Item = String> {
        let least = [("node_ratio", Some(self.node_ratio), 1.0), ("pue", Some(self.pue), 1.0)];
        let carbon = ("carbon_g_per_kwh", self.carbon_g_per_kwh, 0.0);
        least.into_iter().chain([carbon]).filter_map(|(key, value, least)| {
            let wrong = value.filter(|value| !(value.is_finite() && *value >= least))?;
            Some(format!("{key}: must be a number of at least {least}, got {wrong}"))
        })
    }

    /// The energy of a node whose GPU used so many joules in a time.
    pub(crate) fn of_gpu(&self, joules: f64, lasted: Span) -> Energy {
        let joules = joules * self.node_ratio;
        let carbon_per_joule = self.carbon_g_per_kwh.unwrap_or_default() / JOULES_PER_KWH;
        Energy { joules, carbon_grams: joules * self.pue * carbon_per_joule, gpu_ms: lasted.0 }
    }
}

/// Energy, and the time of GPUs of which it was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Energy {
    /// Of the nodes, without what the data centre adds.
    pub joules: f64,
    /// CO2 equivalent, with what the data centre adds; 0 unless an intensity is configured.
    pub carbon_grams: f64,
    /// Milliseconds, times the GPUs that were measured.
    pub gpu_ms: i64,
}

impl Energy {
    pub(super) fn join(&mut self, other: &Self) {
        self.joules += other.joules;
        self.carbon_grams += other.carbon_grams;
        self.gpu_ms = self.gpu_ms.saturating_add(other.gpu_ms);
    }

    pub(super) fn take_part(&mut self, share: f64) -> Self {
        let part = |of: f64| of * share;
        let taken = Self {
            joules: part(self.joules),
            carbon_grams: part(self.carbon_grams),
            gpu_ms: part(self.gpu_ms as f64).round() as i64,
        };
        self.joules -= taken.joules;
        self.carbon_grams -= taken.carbon_grams;
        self.gpu_ms -= taken.gpu_ms;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carbon_is_that_of_the_data_centre_and_energy_that_of_the_node() {
        let config = EnergyConfig { node_ratio: 1.5, pue: 1.2, carbon_g_per_kwh: Some(400.0) };
        let used = config.of_gpu(3.6e6, Span::secs(7200));
        assert!((used.joules - 5.4e6).abs() < 1e-6, "1.5 kWh: {used:?}");
        assert!((used.carbon_grams - 720.0).abs() < 1e-9, "1.5 kWh x 1.2 x 400 g: {used:?}");
        assert_eq!(used.gpu_ms, 7_200_000);
        assert_eq!(EnergyConfig::default().of_gpu(7.0, Span::secs(1)).carbon_grams, 0.0);
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_by_key() {
        let wrong = EnergyConfig { node_ratio: 0.5, pue: f64::NAN, carbon_g_per_kwh: Some(-1.0) };
        let said: Vec<_> = wrong.mistakes().collect();
        assert_eq!(
            said,
            [
                "node_ratio: must be a number of at least 1, got 0.5",
                "pue: must be a number of at least 1, got NaN",
                "carbon_g_per_kwh: must be a number of at least 0, got -1",
            ]
        );
        assert_eq!(EnergyConfig::default().mistakes().count(), 0);
    }
}
