//! Which time zone a log's stamps are in.
//!
//! Loggers print local time without a zone, and the trainer's container often has another one than
//! this host. A line that was just written shows it: its stamp and now differ by the offset of its
//! zone, which is a multiple of a quarter of an hour.

/// Offsets are multiples of this.
const STEP: f64 = 900.0;
/// How old a line may be when it is read and still show the zone.
const SLACK: f64 = 60.0;
/// UTC+14 is the largest offset in use.
const MAX_OFFSET: f64 = 14.0 * 3600.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Zone {
    offset: f64,
}

impl Zone {
    pub(crate) const UTC: Self = Self { offset: 0.0 };

    /// This host's zone, until a line shows another.
    pub(crate) fn of_host(unix: f64) -> Self {
        let at = jiff::Timestamp::from_second(unix as i64).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        Self { offset: f64::from(jiff::tz::TimeZone::system().to_offset(at).seconds()) }
    }

    /// Seconds that local time is ahead of UTC.
    pub(crate) fn offset(self) -> f64 {
        self.offset
    }

    /// Learns from a stamp, read as if it were UTC, of a line that was written at `unix`. Returns
    /// by how much the offset changed.
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
