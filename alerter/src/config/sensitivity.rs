//! The settings that make each detector more or less sensitive, which `backtest --tune` varies.
//!
//! The settings of a knob mean the same in several tiers and change together, so that a page never
//! precedes its ticket. All of them are bounds: a factor below 1 makes the detector report sooner
//! and more often.

use serde_json::Value;
use stepwatch_detect::detectors::DetectorsConfig;
use stepwatch_model::time::Span;

/// A detector and its knobs, the main one first.
#[derive(Debug)]
pub struct Sensitivity {
    pub detector: &'static str,
    pub knobs: &'static [&'static [&'static str]],
}

pub const SENSITIVITY: &[Sensitivity] = &[
    Sensitivity {
        detector: "grad_spike",
        knobs: &[&["hit_z", "spike_z"], &["hit_ratio", "spike_ratio", "large_ratio", "extreme_ratio"]],
    },
    Sensitivity { detector: "grad_level_shift", knobs: &[&["ratio", "clear_ratio"], &["sigmas"]] },
    Sensitivity { detector: "loss_spike", knobs: &[&["h"], &["ticket_rise", "page_rise", "single_rise"]] },
    Sensitivity { detector: "loss_shift", knobs: &[&["h"], &["ticket_rise", "page_rise"]] },
    Sensitivity { detector: "learning", knobs: &[&["steps"]] },
    Sensitivity {
        detector: "nonfinite",
        knobs: &[&["halvings_ticket", "halvings_page"], &["constant_samples"]],
    },
    Sensitivity { detector: "mfu_droop", knobs: &[&["ticket_sigmas", "page_sigmas"], &["ticket", "page"]] },
    Sensitivity { detector: "stall", knobs: &[&["ratio"], &["lost_seconds"]] },
    Sensitivity { detector: "gc_tail", knobs: &[&["cost"], &["growth"]] },
    Sensitivity { detector: "step_time_jitter", knobs: &[&["cost"], &["ratio"]] },
    Sensitivity { detector: "hang", knobs: &[&["floor", "undeclared_ticket", "undeclared_floor"]] },
    Sensitivity { detector: "peer", knobs: &[&["h"]] },
    Sensitivity { detector: "rank_loss", knobs: &[&["repeats"]] },
    Sensitivity { detector: "straggler", knobs: &[&["page_after"]] },
    Sensitivity { detector: "ckpt_stale", knobs: &[&["ticket_at", "page_at"]] },
];

impl Sensitivity {
    pub fn for_detector(detector: &str) -> Option<&'static Self> {
        SENSITIVITY.iter().find(|s| s.detector == detector)
    }

    /// The settings with each knob multiplied by its factor, and the resulting values.
    pub fn turned(
        &self,
        base: &DetectorsConfig,
        factors: &[f64],
    ) -> Option<(DetectorsConfig, Vec<(String, String)>)> {
        let mut all = serde_json::to_value(base).ok()?;
        let detector = all.get_mut(self.detector)?.as_object_mut()?;
        let mut keys = Vec::new();
        for (knob, factor) in self.knobs.iter().zip(factors) {
            for key in *knob {
                let value = detector.get_mut(*key)?;
                *value = times(value, *factor)?;
                keys.push(((*key).to_owned(), shown(value)));
            }
        }
        Some((serde_json::from_value(all).ok()?, keys))
    }

    /// The settings with the detector disabled.
    pub fn off(&self, base: &DetectorsConfig) -> Option<DetectorsConfig> {
        let mut all = serde_json::to_value(base).ok()?;
        *all.get_mut(self.detector)?.get_mut("enabled")? = Value::Bool(false);
        serde_json::from_value(all).ok()
    }
}

/// Multiplies a setting. An integer stays an integer, and a duration a duration.
fn times(value: &Value, factor: f64) -> Option<Value> {
    match value {
        Value::Number(n) if n.is_f64() => Some(round(n.as_f64()? * factor).into()),
        Value::Number(n) => Some(((n.as_f64()? * factor).round().max(1.0) as u64).into()),
        Value::String(text) => {
            let span = Span::from_secs_f64(Span::parse(text).ok()?.as_secs_f64() * factor);
            serde_json::to_value(span).ok()
        }
        _ => None,
    }
}

/// Rounds to three digits, because a person writes the setting into a file.
fn round(v: f64) -> f64 {
    if v == 0.0 || !v.is_finite() {
        return v;
    }
    let scale = 10f64.powi(2 - v.abs().log10().floor() as i32);
    (v * scale).round() / scale
}

fn shown(value: &Value) -> String {
    match value.as_str().map(Span::parse) {
        Some(Ok(span)) => span.to_string().replace(' ', ""),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_is_a_setting_that_can_be_turned() {
        let base = DetectorsConfig::default();
        for s in SENSITIVITY {
            let off = s.off(&base).unwrap_or_else(|| panic!("{} cannot be disabled", s.detector));
            assert_ne!(off, base);
            for turned in 0..s.knobs.len() {
                let factors: Vec<f64> =
                    (0..s.knobs.len()).map(|i| if i == turned { 2.0 } else { 1.0 }).collect();
                let (config, keys) =
                    s.turned(&base, &factors).unwrap_or_else(|| panic!("{} {:?}", s.detector, s.knobs));
                assert_ne!(config, base, "{} {:?}", s.detector, s.knobs[turned]);
                assert!(!keys.is_empty());
                let mut errors = Vec::new();
                super::super::thresholds::check(&config, &mut errors);
                assert_eq!(errors, [""; 0]);
            }
            let (same, _) = s.turned(&base, &[1.0, 1.0]).unwrap();
            assert_eq!(same, base, "{}", s.detector);
        }
    }
}
