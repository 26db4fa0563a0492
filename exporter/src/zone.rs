//! The time zone of a log's timestamps.
//!
//! Loggers print local time without a zone, and the trainer's container often has another zone than
//! this host. A new line shows the zone: its timestamp and the current time differ by the offset,
//! which is a multiple of a quarter of an hour.

/// Seconds of which every offset is a multiple.
const STEP: f64 = 900.0;
/// The most seconds between writing and reading a line that still shows the zone.
const SLACK: f64 = 60.0;
/// The largest offset in use, UTC+14, in seconds.
const MAX_OFFSET: f64 = 14.0 * 3600.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Zone {
    offset: f64,
}

impl Zone {
    pub(crate) const UTC: Self = Self { offset: 0.0 };

    /// This host's zone, which holds until a line shows another.
    pub(crate) fn of_host(unix: f64) -> Self {
        let at = jiff::Timestamp::from_second(unix as i64).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        Self { offset: f64::from(jiff::tz::TimeZone::system().to_offset(at).seconds()) }
    }

    /// Seconds by which local time is ahead of UTC.
    pub(crate) fn offset(self) -> f64 {
        self.offset
    }

    /// Takes the zone from the timestamp, read as if it were UTC, of a line written at `unix`.
    /// Returns the change of the offset in seconds.
    pub(crate) fn observe(&mut self, stamp: f64, unix: f64) -> f64 {
        let ahead = stamp - unix;
        let offset = (ahead / STEP).round() * STEP;
        if (ahead - offset).abs() > SLACK || offset.abs() > MAX_OFFSET {
            return 0.0; // an old line, or a wrong clock: it shows no zone
        }
        let change = offset - self.offset;
        self.offset = offset;
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: f64 = 1_780_026_765.0;

    #[test]
    fn a_fresh_line_shows_its_zone() {
        for offset in [0.0, 7200.0, -9.5 * 3600.0, 5.75 * 3600.0] {
            let mut zone = Zone { offset: 3600.0 };
            assert_eq!(zone.observe(NOW + offset - 1.5, NOW), offset - 3600.0);
            assert_eq!(zone.offset(), offset);
            assert_eq!(zone.observe(NOW + offset - 30.0, NOW), 0.0);
        }
    }

    #[test]
    fn an_old_line_shows_no_zone() {
        let mut zone = Zone { offset: 3600.0 };
        for stamp in [NOW - 300.0, NOW + 3600.0 - 200.0, NOW - 86_400.0, 0.0, f64::MAX] {
            assert_eq!(zone.observe(stamp, NOW), 0.0, "{stamp}");
        }
        assert_eq!(zone.offset(), 3600.0);
    }
}
