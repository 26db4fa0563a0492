//! Checks for detector settings that contradict each other or themselves.
//!
//! The rules follow from the names of the settings, so that they cover a new setting: the bound of
//! a page is not below that of a ticket, and no setting is negative, infinite or a floor of zero.

use serde_json::{Map, Value};
use stepwatch_detect::detectors::DetectorsConfig;
use stepwatch_model::time::Span;

pub(super) fn check(detectors: &DetectorsConfig, errors: &mut Vec<String>) {
    let Ok(Value::Object(all)) = serde_json::to_value(detectors) else { return };
    for (name, detector) in &all {
        if let Value::Object(settings) = detector {
            alone(name, settings, errors);
            pairs(name, settings, errors);
        }
    }
}

fn alone(detector: &str, settings: &Map<String, Value>, errors: &mut Vec<String>) {
    for (key, value) in settings {
        let wrong = match value {
            // NaN and infinity are not JSON.
            Value::Null => "must be a finite number".to_owned(),
            Value::Number(n) if n.as_f64().is_some_and(|n| n < 0.0) => format!("must be at least 0, got {n}"),
            Value::String(_) if key.ends_with("floor") && number(value) == Some(0.0) => {
                "must be above 0s".to_owned()
            }
            _ => continue,
        };
        errors.push(format!("detectors.{detector}.{key}: {wrong}"));
    }
}

/// Checks pairs such as `ticket_at` and `page_at`, `halvings_ticket` and `halvings_page`, or
/// `never_saved_unsized` and `never_saved_page_unsized`: a page at a lower value would make the
/// ticket pointless.
fn pairs(detector: &str, settings: &Map<String, Value>, errors: &mut Vec<String>) {
    for (other, page) in settings.iter().filter(|(other, _)| other.contains("page")) {
        let keys = [other.replace("page", "ticket"), other.replace("_page_", "_")];
        let Some((key, ticket)) =
            keys.iter().filter(|key| *key != other).find_map(|key| settings.get_key_value(key))
        else {
            continue;
        };
        if number(ticket).zip(number(page)).is_some_and(|(ticket, page)| page < ticket) {
            errors.push(format!(
                "detectors.{detector}.{other}: is below {key}, so that it would page before it makes a ticket"
            ));
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| Span::parse(value.as_str()?).ok().map(Span::as_secs_f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(yaml: &str) -> Vec<String> {
        let mut errors = Vec::new();
        check(&stepwatch_kit::config::parse("a.yml", yaml).unwrap(), &mut errors);
        errors
    }

    #[test]
    fn the_defaults_are_good() {
        assert_eq!(mistakes(""), [""; 0]);
    }

    #[test]
    fn contradictions_are_found() {
        for (yaml, want) in [
            ("ckpt_stale: {ticket_at: 5, page_at: 1}", "detectors.ckpt_stale.page_at: is below ticket_at"),
            ("source_lost: {page_after: 5s}", "detectors.source_lost.page_after: is below ticket_after"),
            (
                "ckpt_stale: {never_saved_page_gpu_hours: 100}",
                "detectors.ckpt_stale.never_saved_page_gpu_hours: is below never_saved_gpu_hours",
            ),
            ("nonfinite: {halvings_ticket: 9}", "detectors.nonfinite.halvings_page: is below"),
            ("hang: {floor: 0s}", "detectors.hang.floor: must be above 0s"),
            ("loss_spike: {h: -1}", "detectors.loss_spike.h: must be at least 0, got -1"),
            ("loss_spike: {h: .nan}", "detectors.loss_spike.h: must be a finite number"),
        ] {
            let found = mistakes(yaml);
            assert!(found.len() == 1 && found[0].starts_with(want), "{yaml}: {found:?}");
        }
        assert_eq!(mistakes("ckpt_stale: {ticket_at: 2, page_at: 2}"), [""; 0]);
    }
}
