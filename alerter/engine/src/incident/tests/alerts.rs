//! Incidents of alerts that other programs tell of.

use super::*;
use crate::external::{Alert, Limits, Told};

/// An alert that fires for a day.
fn alert(w: &World, labels: &[(&str, &str)]) -> Told {
    let labels = labels.iter().map(|(n, v)| (Box::from(*n), Box::from(*v))).collect();
    let alert = Alert::new(labels, [].into_iter().collect(), w.now, "", &Limits::default()).unwrap();
    Told { alert, ends_at: Some(w.now + Span::secs(86_400)) }
}

fn fires(w: &mut World, labels: &[(&str, &str)]) {
    let told = [alert(w, labels)];
    w.input(Input::Alerts { told: &told });
}

/// The titles of what was sent, and whether a fact or a title speaks of steps.
fn titles(w: &mut World) -> Vec<(String, bool)> {
    let of = |n: Notification| {
        let steps = n.message.facts.iter().any(|f| f.label.contains("step"))
            || n.message.details.evidence.step.is_some()
            || n.message.title.contains("step");
        (n.message.title, steps)
    };
    core::mem::take(&mut w.sent).into_iter().map(of).collect()
}

#[test]
fn an_alert_is_called_by_its_name_and_has_no_step() {
    for (labels, title) in [
        (&[("alertname", "DiskFull")] as &[_], "PAGE: DiskFull"),
        (&[("alertname", "DiskFull"), ("node", "n1")], "PAGE n1: DiskFull"),
        (&[("alertname", "Disk\n\tfull"), ("run", "r")], "PAGE r: Disk full"),
        (&[("node", "n1")], "PAGE n1: Prometheus alert"),
        (&[("cluster", "a")], "PAGE: Prometheus alert"),
        (&[("alertname", "NoStep"), ("kind", "hang"), ("run", "r")], "PAGE r: hang"),
    ] {
        let mut w = World::new(two_levels());
        fires(&mut w, &[labels, &[("severity", "critical")]].concat());
        assert_eq!(titles(&mut w), [(title.to_owned(), false)], "{labels:?}");
    }
}
