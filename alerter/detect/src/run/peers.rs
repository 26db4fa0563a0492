//! The usual readings among the devices of a run at one moment. [`crate::node::peer_metrics`]
//! decides which readings are compared, and how.

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;

use crate::stats::median::MAD_TO_SIGMA;

/// Fewer devices are not compared.
const PEERS: u32 = 4;

/// The median and the spread of one `peer_metric`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usual {
    pub median: f64,
    pub sigma: f64,
    pub n: u32,
}

/// The usual readings among the devices of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Peers {
    pub at: Option<Ts>,
    usual: Vec<Usual>,
}

impl Peers {
    pub(crate) fn new(now: Ts, usual: Vec<Usual>) -> Self {
        Self { at: Some(now), usual }
    }

    pub(crate) fn get(&self, i: usize) -> Option<Usual> {
        self.usual.get(i).copied().filter(|u| u.n >= PEERS)
    }

    /// The number of devices that were compared.
    pub fn compared(&self) -> u32 {
        self.usual.iter().map(|u| u.n).max().unwrap_or(0)
    }
}

impl Usual {
    pub(crate) fn from_values(values: &mut [f64], floor: f64) -> Self {
        let n = values.len() as u32;
        if n == 0 {
            return Self::default();
        }
        let at = (values.len() - 1) / 2;
        let median = *values.select_nth_unstable_by(at, f64::total_cmp).1;
        values.iter_mut().for_each(|v| *v = (*v - median).abs());
        let mad = *values.select_nth_unstable_by(at, f64::total_cmp).1;
        Self { median, sigma: (MAD_TO_SIGMA * mad).max(floor), n }
    }
}
