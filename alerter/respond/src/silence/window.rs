//! Maintenance windows: silences that recur, from the configuration.
//!
//! A window is active while any of its time intervals is. Suppression is checked before each
//! notification and again when a window ends, so that windows need no timers of their own.

use serde::Deserialize;

use super::SilencedBy;
use crate::matcher::{Labels, Matcher, all_hold};
use crate::oncall::{Period, TimeInterval, Zone};
use stepwatch_model::{Span, Ts};

/// How far ahead the end of a window is searched.
const LOOK_AHEAD: Span = Span::secs(86_400);
/// The resolution of time intervals.
const MINUTE: Span = Span::secs(60);

/// One entry of `maintenance:`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maintenance {
    pub name: String,
    #[serde(rename = "match")]
    pub matchers: Vec<Matcher>,
    /// The reason for the window.
    pub reason: String,
    /// Names of `time_intervals`.
    #[serde(default)]
    pub during: Vec<String>,
    /// Periods of its own, in the same format.
    #[serde(default)]
    pub time_intervals: Vec<Period>,
}

#[derive(Debug, Clone)]
pub(super) struct Window {
    maintenance: Maintenance,
    named: Vec<TimeInterval>,
}

impl Window {
    /// Makes a window. An unknown name never holds: the alerter refuses such a configuration.
    pub(super) fn new(maintenance: Maintenance, known: &[TimeInterval]) -> Self {
        let named = known.iter().filter(|i| maintenance.during.contains(&i.name)).cloned().collect();
        Self { maintenance, named }
    }

    fn covers(&self, at: Ts) -> bool {
        let own = self.maintenance.time_intervals.iter().any(|p| p.contains(at, &Zone::default()));
        own || self.named.iter().any(|i| i.contains(at))
    }

    pub(super) fn silenced_by(&self, labels: &Labels, at: Ts) -> Option<SilencedBy> {
        let m = &self.maintenance;
        let matches = !m.matchers.is_empty() && all_hold(&m.matchers, labels);
        (matches && self.covers(at)).then(|| SilencedBy {
            id: format!("maintenance:{}", m.name),
            by: format!("maintenance window {}", m.name),
            comment: m.reason.clone(),
            until: self.end(at),
        })
    }

    /// The first minute after `at` that it does not cover. For one that lasts more than a day, the
    /// midnight after that day, so that the result stays the same until then.
    fn end(&self, at: Ts) -> Ts {
        let minute = at.0 - at.0.rem_euclid(MINUTE.0);
        let minutes = (1..=LOOK_AHEAD.0 / MINUTE.0).map(|n| Ts(minute + n * MINUTE.0));
        minutes.into_iter().find(|at| !self.covers(*at)).unwrap_or_else(|| {
            let tomorrow = at.0 + 2 * LOOK_AHEAD.0;
            Ts(tomorrow - tomorrow.rem_euclid(LOOK_AHEAD.0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(json: &str) -> Window {
        Window::new(serde_json::from_str(json).unwrap(), &[])
    }

    fn at(text: &str) -> Ts {
        Ts(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
    }

    fn until(w: &Window, when: &str) -> Option<String> {
        let labels = Labels::from([("node".to_owned(), "gpu-042".to_owned())]);
        w.silenced_by(&labels, at(when)).map(|h| h.until.to_string())
    }

    #[test]
    fn in_force_while_its_periods_hold() {
        let w = window(
            r#"{"name": "drain", "reason": "firmware", "match": ["node=~\"gpu-.*\""], "time_intervals":
               [{"weekdays": ["tuesday"], "times": [{"start_time": "02:00", "end_time": "04:30"}], "location": "Europe/Berlin"}]}"#,
        );
        // A Tuesday in winter, an hour ahead of UTC.
        assert_eq!(until(&w, "2026-11-24T00:59:59Z"), None);
        assert_eq!(until(&w, "2026-11-24T01:00:00Z"), Some("2026-11-24T03:30:00Z".into()));
        assert_eq!(until(&w, "2026-11-24T03:29:59.9Z"), Some("2026-11-24T03:30:00Z".into()));
        assert_eq!(until(&w, "2026-11-24T03:30:00Z"), None);
        assert_eq!(until(&w, "2026-11-25T02:00:00Z"), None);
        let other = Labels::from([("node".to_owned(), "cpu-1".to_owned())]);
        assert_eq!(w.silenced_by(&other, at("2026-11-24T02:00:00Z")), None);
    }

    #[test]
    fn one_without_an_end_says_the_same_all_day() {
        let w = window(r#"{"name": "x", "reason": "y", "match": ["node=~\".+\""], "time_intervals": [{}]}"#);
        let first = until(&w, "2026-11-24T00:00:00Z");
        assert_eq!(first, Some("2026-11-26T00:00:00Z".into()));
        assert_eq!(first, until(&w, "2026-11-24T23:59:59Z"));
    }
}
