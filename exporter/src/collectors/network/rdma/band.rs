//! The usual traffic of a busy port as a band, and the detection of a port that moves much less
//! while the others stay within theirs.
//!
//! No fixed limit separates good from bad bandwidth: a port of 400 Gb/s that peaks at 360 is fine,
//! and one that peaks at 100 is fine too if the job sends no more. So a port is compared with its
//! own earlier peaks, and only while most other ports of the node reach theirs: then the port has
//! changed, not the job.
//!
//! A configured band needs no comparison with other ports: it gives what a port of a busy node
//! reaches. Below its lower edge a port is slow even if all others are too, as long as the node is
//! busy at all.

use serde::{Deserialize, Serialize};

/// Seconds over which a peak is taken: several steps of any job.
pub(super) const WINDOW_SECONDS: f64 = 300.0;
/// The number of windows with traffic before a band is used.
const LEARN_WINDOWS: u32 = 12;
/// The number of consecutive windows below the band that are a fault.
const BAD_WINDOWS: u32 = 2;
/// The share of its rate below which a port's peak counts as idle.
const BUSY: f64 = 0.05;
/// The share of the lower edge below which a peak is far below the band.
const FAR: f64 = 0.5;
/// The weight with which an edge follows peaks inside the band.
const FORGET: f64 = 0.02;

/// The rates in bytes per second that a busy port reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Band {
    pub(super) low: f64,
    pub(super) high: f64,
    windows: u32,
    /// Whether the value is configured, rather than learned and saved.
    #[serde(skip)]
    pub(super) given: bool,
}

/// The traffic of one port in one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Peak {
    pub(super) peak: f64,
    /// The negotiated rate in bytes per second.
    pub(super) rate: f64,
    /// The band for the comparison, if it is known yet.
    pub(super) band: Option<Band>,
}

impl Band {
    pub(super) fn given(low: f64, high: f64) -> Self {
        Self { low, high, windows: LEARN_WINDOWS, given: true }
    }

    /// The band; `None` until enough windows were seen.
    pub(super) fn known(self) -> Option<Self> {
        (self.windows >= LEARN_WINDOWS).then_some(self)
    }

    /// Learns from a window that was not bad. Peaks outside widen the band at once; those inside
    /// narrow it slowly.
    pub(super) fn learn(&mut self, peak: f64, rate: f64) {
        if peak < rate * BUSY {
            return;
        }
        if self.windows == 0 {
            (self.low, self.high) = (peak, peak);
        }
        let follow = |edge: f64| edge + (peak - edge) * FORGET;
        self.low = peak.min(follow(self.low));
        self.high = peak.max(follow(self.high));
        self.windows = self.windows.saturating_add(1);
    }
}

impl Peak {
    fn keeps(&self) -> bool {
        self.band.is_some_and(|band| self.peak >= band.low)
    }

    fn falls_short(&self) -> bool {
        self.band.is_some_and(|band| self.peak < band.low * FAR)
    }

    /// Whether the port is busy. If it does not report its rate, the band is used.
    fn is_busy(&self) -> bool {
        self.peak >= BUSY * self.rate.max(self.band.map_or(0.0, |band| band.low))
    }

    /// Whether the port is busy and below a configured band.
    fn is_below_given(&self) -> bool {
        self.is_busy() && self.band.is_some_and(|band| band.given && self.peak < band.low)
    }
}

/// Which ports fall short: those far below their bands while most others keep to theirs, and those
/// below a configured band at all while most ports are busy. A node with a single busy port is not
/// busy.
pub(super) fn short(ports: &[Peak]) -> Vec<bool> {
    let at_work = ports.iter().filter(|p| p.is_busy()).count();
    let busy = at_work * 2 > ports.len();
    let compared = ports.iter().filter(|p| p.band.is_some()).count();
    let keep = ports.iter().filter(|p| p.keeps()).count();
    let steady = keep >= 2 && keep * 3 >= compared * 2;
    ports.iter().map(|p| (steady && p.falls_short()) || (busy && p.is_below_given())).collect()
}

/// The traffic of a port over time.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    last: Option<(f64, f64, f64)>,
    peak: f64,
    bad: u32,
}

impl Meter {
    /// Records the counters of a port in bytes. A lower counter has restarted: the rate of that
    /// interval is unknown.
    pub(super) fn take(&mut self, now: f64, received: f64, sent: f64) {
        if let Some((at, r, s)) = self.last.replace((now, received, sent)) {
            let (seconds, more) = (now - at, (received - r).max(sent - s));
            if seconds > 0.0 && received >= r && sent >= s {
                self.peak = self.peak.max(more / seconds);
            }
        }
    }

    /// Ends the window and returns its peak.
    pub(super) fn close(&mut self) -> f64 {
        std::mem::take(&mut self.peak)
    }

    /// Whether the rate has fallen short in enough consecutive windows.
    pub(super) fn judge(&mut self, short: bool) -> bool {
        self.bad = if short { self.bad.saturating_add(1) } else { 0 };
        self.bad >= BAD_WINDOWS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: f64 = 50e9;

    fn learned(peaks: &[f64]) -> Band {
        let mut band = Band::default();
        peaks.iter().for_each(|peak| band.learn(*peak, RATE));
        band
    }

    #[test]
    fn a_band_is_used_after_an_hour_of_traffic() {
        assert_eq!(learned(&[40e9; 11]).known(), None);
        assert_eq!(learned(&[1e9; 100]).known(), None, "idle");
        let band = learned(&[&[40e9; 11][..], &[45e9]].concat()).known().unwrap();
        assert!(band.low > 40e9 && band.low < 40.2e9 && band.high == 45e9, "{band:?}");
    }

    #[test]
    fn fine_at_360_and_bad_at_100_but_only_while_the_others_keep_theirs() {
        let band = Some(learned(&[45e9; 20]));
        let peak = |gigabits: f64| Peak { peak: gigabits * 125e6, rate: RATE, band };
        let bad = |ports: &[f64]| short(&ports.iter().map(|g| peak(*g)).collect::<Vec<_>>());
        assert_eq!(bad(&[360.0, 360.0, 365.0, 100.0]), [false, false, false, true]);
        assert_eq!(bad(&[360.0, 360.0, 365.0, 350.0]), [false; 4], "a little less");
        assert_eq!(bad(&[100.0, 100.0, 100.0, 100.0]), [false; 4], "another job");
        assert_eq!(bad(&[360.0, 100.0]), [false; 2], "too few to determine which is right");
        let mut meter = Meter::default();
        assert_eq!([true, true, false, true].map(|short| meter.judge(short)), [false, true, false, false]);
    }

    #[test]
    fn a_band_that_is_given_stands_by_itself_while_the_node_is_busy() {
        let band = Some(Band::given(300.0 * 125e6, 390.0 * 125e6));
        let of = |rate: f64, ports: &[f64]| {
            short(&ports.iter().map(|g| Peak { peak: g * 125e6, rate, band }).collect::<Vec<_>>())
        };
        let bad = |ports: &[f64]| of(RATE, ports);
        assert_eq!(bad(&[360.0, 360.0, 365.0, 200.0]), [false, false, false, true]);
        assert_eq!(bad(&[100.0; 8]), [true; 8], "all of them");
        assert_eq!((bad(&[360.0, 200.0]), bad(&[200.0])), (vec![false, true], vec![true]), "one or two");
        assert_eq!(bad(&[310.0; 8]), [false; 8], "at the lower edge");
        assert_eq!((bad(&[0.0; 8]), bad(&[3.0; 8])), (vec![false; 8], vec![false; 8]), "idle");
        assert_eq!((of(0.0, &[0.0; 8]), of(0.0, &[200.0])), (vec![false; 8], vec![true]), "of unknown rate");
        assert_eq!(bad(&[100.0, 0.0, 0.0, 0.0]), [false; 4], "one port at work is no busy node");
        assert_eq!(bad(&[360.0, 360.0, 0.0, 0.0]), [false; 4], "half of the ports are not used");
        assert_eq!(
            bad(&[360.0, 360.0, 360.0, 1.0]),
            [false, false, false, true],
            "against all others, idle is slow"
        );
    }

    #[test]
    fn a_counter_that_began_anew_is_no_traffic() {
        let mut meter = Meter::default();
        for (now, bytes) in [(0.0, 5e12), (10.0, 5.1e12), (20.0, 1e12), (30.0, 1.2e12), (30.0, 9e12)] {
            meter.take(now, bytes, 0.0);
        }
        assert_eq!((meter.close(), meter.close()), (20e9, 0.0));
    }

    proptest! {
        #[test]
        fn peaks_are_never_negative_and_bands_never_upside_down(readings in prop::collection::vec((-10.0..60.0f64, 0u64..u64::MAX, 0u64..u64::MAX), 0..60)) {
            let (mut meter, mut band, mut now) = (Meter::default(), Band::default(), 0.0);
            for (pause, received, sent) in readings {
                now += pause;
                meter.take(now, received as f64, sent as f64);
                let peak = meter.close();
                prop_assert!(peak >= 0.0 && peak.is_finite());
                band.learn(peak, RATE);
                prop_assert!(band.low <= band.high);
            }
        }
    }
}
