//! Numbers that are stored exactly and shown rounded.

use serde::{Deserialize, Serialize};

/// A number that survives every format, including NaN and the infinities, and that equals itself.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Num(#[serde(with = "stepwatch_wire::num::any")] pub f64);

impl PartialEq for Num {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Num {}

impl From<f64> for Num {
    fn from(v: f64) -> Self {
        Self(v)
    }
}

/// Formats a number with four significant digits.
pub fn number(v: f64) -> String {
    if !v.is_finite() {
        return if v.is_nan() { "NaN".into() } else { format!("{}infinity", if v < 0.0 { "-" } else { "" }) };
    }
    let size = v.abs();
    if v == 0.0 {
        "0".into()
    } else if (1e-3..1e6).contains(&size) {
        let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
        let s = format!("{v:.digits$}");
        if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s }
    } else {
        format!("{v:.2e}")
    }
}
