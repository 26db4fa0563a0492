//! The time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Unix seconds, to the microsecond: finer digits carry no information and take space.
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_micros() as f64 / 1e6
}
