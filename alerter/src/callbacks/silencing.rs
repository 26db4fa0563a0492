//! The matchers of a click on "Silence": this problem where it occurs, as far as labels can
//! identify it.
//!
//! Alerts of other programs are many problems of one kind; each is named by its `alertname` and by
//! its grouping labels. A problem with neither a place nor a name is not silenced by a click,
//! because that would suppress unrelated problems.

use std::iter;

use stepwatch_respond::incident::{IncidentRecord, labels};

/// The labels and values that identify the problem; `None` if no label does. `group_by` are the
/// grouping labels of alerts.
pub(crate) fn selector(r: &IncidentRecord, group_by: &[String]) -> Option<Vec<(String, String)>> {
    let pair = |name: &str| {
        let value = r.labels.get(name).filter(|value| !value.is_empty())?;
        Some((name.to_owned(), value.clone()))
    };
    let is_alert = r.kind.is_external();
    // An alert of several nodes is one problem; the label names the first of them.
    let node = || pair("node").filter(|_| !is_alert || r.nodes.len() == 1);
    let place = pair("run").or_else(node);
    let mut chosen = Vec::from_iter(place);
    if is_alert || chosen.is_empty() {
        chosen.extend(r.alert().map(|name| (labels::ALERTNAME.to_owned(), name.to_owned())));
        let others = group_by.iter().filter(|name| *name != labels::ALERTNAME);
        let others = others.filter(|name| !labels::OURS.contains(&name.as_str()));
        chosen.extend(others.filter_map(|name| pair(name)));
    }
    let kind = ("kind".to_owned(), r.kind.as_str().to_owned());
    (!chosen.is_empty()).then(|| iter::once(kind).chain(chosen).collect())
}

#[cfg(test)]
mod tests {
    use stepwatch_model::Kind;
    use stepwatch_respond::incident::State;

    use super::*;
    use crate::store::tests::incident;

    fn words(kind: Kind, nodes: &[&str], pairs: &[(&str, &str)]) -> Option<String> {
        let mut r = incident("i", State::Open);
        r.kind = kind;
        r.nodes = nodes.iter().map(|n| (*n).to_owned()).collect();
        r.labels = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        r.labels.entry(labels::ALERTNAME.into()).or_insert_with(|| labels::alertname(kind));
        let group_by = ["alertname".to_owned(), "cluster".to_owned()];
        let pairs = selector(&r, &group_by)?;
        Some(pairs.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn an_alert_is_named_and_what_is_ours_is_where_it_is() {
        let alert = |nodes: &[&str], pairs: &[(&str, &str)]| words(Kind::PrometheusAlert, nodes, pairs);
        let disk = ("alertname", "DiskFull");
        assert_eq!(alert(&[], &[disk]).as_deref(), Some("kind=prometheus_alert alertname=DiskFull"));
        assert_eq!(
            alert(&["n1"], &[disk, ("node", "n1"), ("cluster", "a")]).as_deref(),
            Some("kind=prometheus_alert node=n1 alertname=DiskFull cluster=a")
        );
        assert_eq!(
            alert(&["n1", "n2"], &[disk, ("node", "n1")]).as_deref(),
            Some("kind=prometheus_alert alertname=DiskFull"),
            "of both"
        );
        assert_eq!(
            alert(&["n1"], &[disk, ("run", "llama"), ("node", "n1")]).as_deref(),
            Some("kind=prometheus_alert run=llama alertname=DiskFull")
        );
        assert_eq!(
            words(Kind::GpuFault, &["n1", "n2"], &[("node", "n1")]).as_deref(),
            Some("kind=gpu_fault node=n1")
        );
        assert_eq!(
            words(Kind::Hang, &["n1"], &[("run", "llama"), ("node", "n1")]).as_deref(),
            Some("kind=hang run=llama")
        );
        assert_eq!(
            words(Kind::Nonfinite, &[], &[("alertname", "NaN")]).as_deref(),
            Some("kind=nonfinite alertname=NaN"),
            "of no run"
        );
    }

    #[test]
    fn what_nothing_names_is_not_silenced() {
        for kind in [Kind::PrometheusAlert, Kind::AlertStorm, Kind::AlerterFault] {
            assert_eq!(words(kind, &[], &[]), None, "{kind:?}");
        }
        assert_eq!(words(Kind::PrometheusAlert, &[], &[("run", ""), ("node", "")]), None);
    }
}
