//! The labels of an incident, by which routes, teams, inhibition, silences and the Alertmanager API
//! select.
//!
//! One function computes them, so that a matcher means the same everywhere. The labels that a run
//! declares, and those of an external alert, never replace Stepwatch's own labels.

use crate::config::Team;
use crate::incident_record::IncidentRecord;
use crate::labels::{ALERTNAME, alertname};
use crate::matcher::{Labels, Matcher, all_hold};
use stepwatch_model::RunSummary;

/// Computes the labels. The first of `teams` whose matchers hold gives the label `team`, unless the
/// run declared one.
pub(super) fn of(r: &IncidentRecord, run: &RunSummary, teams: &[(Vec<Matcher>, Team)]) -> Labels {
    let mut labels = run.labels.clone();
    let run = if r.run == stepwatch_model::NO_RUN { "" } else { &r.run };
    let own = [
        ("severity", r.severity.as_str()),
        ("kind", r.kind.as_str()),
        ("cause", r.cause.as_str()),
        ("run", run),
        ("node", r.nodes.first().map_or("", String::as_str)),
        ("signal", &r.signal),
    ];
    for (name, value) in own {
        // A label with an empty value is the same as no label.
        if value.is_empty() {
            labels.remove(name);
        } else {
            labels.insert(name.to_owned(), value.to_owned());
        }
    }
    labels.entry(ALERTNAME.to_owned()).or_insert_with(|| alertname(r.kind));
    if !labels.contains_key("team")
        && let Some((_, team)) = teams.iter().find(|(matchers, _)| all_hold(matchers, &labels))
    {
        labels.insert("team".to_owned(), team.name.clone());
    }
    labels
}
