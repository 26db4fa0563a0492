//! Streaming statistics that the detectors share: O(1) state, plain serde structs, no clock.

pub mod attempt;
pub mod baseline_share;
pub mod block;
pub mod cadence;
pub mod calendar;
pub mod cusum;
pub mod drift;
pub mod hit_window;
pub mod latch;
pub mod level;
pub mod lower;
pub mod median;
pub mod plateau;
pub mod robust;
pub mod rotation;
pub mod season;
pub mod series;
pub mod trend;
