//! Room for the alerts that fire, which their senders share.

use std::collections::BTreeMap;

use super::alert::Alert;
use super::config::AlertsConfig;
use stepwatch_model::Severity;

/// One part in this many of the room is reserved for pages.
const PAGES: usize = 8;
/// A limited token may have one part in this many; all limited tokens together may have half.
const TOKEN: usize = 4;
const TOKENS: usize = 2;

#[derive(Debug, Clone, Copy, Default)]
struct Share {
    alerts: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Capacity {
    all: Share,
    limited: Share,
    /// The share of each limited token.
    by_token: BTreeMap<Box<str>, Share>,
}

impl Share {
    /// Whether the share, with `more`, is at most one part in `parts` of the limits.
    fn fits(self, config: &AlertsConfig, more: Self, parts: usize) -> bool {
        self.alerts + more.alerts <= config.max_alerts / parts
            && (more.bytes == 0 || self.bytes + more.bytes <= config.max_bytes / parts)
    }

    fn change(&mut self, (alerts, bytes): (isize, isize)) {
        self.alerts = self.alerts.saturating_add_signed(alerts);
        self.bytes = self.bytes.saturating_add_signed(bytes);
    }
}

impl Capacity {
    /// Whether there is room for `alerts` more alerts, or for `bytes` more bytes of a firing one.
    pub(super) fn fits(&self, config: &AlertsConfig, alert: &Alert, alerts: usize, bytes: usize) -> bool {
        let more = Share { alerts, bytes };
        let page = config.severity(&alert.labels) == Severity::Page;
        let reserve = if page {
            more
        } else {
            Share { alerts: config.max_alerts / PAGES + alerts, bytes: config.max_bytes / PAGES + bytes }
        };
        let token = alert.sender.is_empty() || {
            let own = self.by_token.get(&alert.sender).copied().unwrap_or_default();
            own.fits(config, more, TOKEN) && self.limited.fits(config, more, TOKENS)
        };
        token && self.all.fits(config, reserve, 1)
    }

    /// Records one alert more or less, or a change of the bytes of a firing one.
    pub(super) fn change(&mut self, alert: &Alert, alerts: isize, bytes: isize) {
        let change = (alerts, bytes);
        self.all.change(change);
        if alert.sender.is_empty() {
            return;
        }
        self.limited.change(change);
        let own = self.by_token.entry(alert.sender.clone()).or_default();
        own.change(change);
        if own.alerts == 0 {
            self.by_token.remove(&alert.sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::external::Limits;
    use stepwatch_model::Ts;

    fn alert(severity: &str, token: &str) -> Alert {
        let labels = [("alertname", "A"), ("severity", severity)];
        let labels = labels.into_iter().map(|(n, v)| (Box::from(n), Box::from(v))).collect();
        Alert::new(labels, [].into_iter().collect(), Ts(0), "", &Limits::default()).unwrap().sent_by(token)
    }

    #[test]
    fn a_token_fills_its_share_and_pages_have_a_reserve() {
        let config = AlertsConfig { max_alerts: 80, max_bytes: 8000, ..AlertsConfig::default() };
        let mut room = Capacity::default();
        let mut fill = |severity, token: &str| {
            let alert = alert(severity, token);
            (0..100).find(|_| {
                let full = !room.fits(&config, &alert, 1, 100);
                if !full {
                    room.change(&alert, 1, 100);
                }
                full
            })
        };
        assert_eq!(fill("none", "llama"), Some(20), "a quarter");
        assert_eq!(fill("critical", "llama"), Some(0));
        assert_eq!(fill("none", "mistral"), Some(20));
        assert_eq!(fill("critical", "ops"), Some(0), "all limited tokens have half");
        assert_eq!(fill("none", ""), Some(30), "an eighth is for pages");
        assert_eq!(fill("critical", ""), Some(10));
        let gone = alert("none", "llama");
        (0..20).for_each(|_| room.change(&gone, -1, -100));
        assert!(
            room.fits(&config, &alert("critical", "ops"), 1, 100) && !room.by_token.contains_key("llama")
        );
    }
}
