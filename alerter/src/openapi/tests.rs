//! Checks that the committed document matches the handlers.

use std::collections::BTreeSet;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::*;
use crate::api::Scope;
use crate::api::attempts::HistoryView;
use crate::api::doc::{BEARER, PAGERDUTY, SLACK, examples, operations};
use crate::api::incident_actions::Note;
use crate::api::nodes::NodeView;
use crate::api::oncall::ScheduleView;
use crate::api::ranks::RanksView;
use crate::api::series::SeriesView;
use crate::api::view::{
    By, DeliveryView, IncidentView, OverrideView, OverrideWish, ReplicaList, RunView, SilenceView,
    SourceView, Status, SwapWish, TimelineView, WishView,
};

#[test]
fn openapi_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    if std::env::var_os("STEPWATCH_BLESS").is_some() {
        std::fs::write(&path, text().unwrap()).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == text().unwrap(),
        "docs/openapi.json is not what the handlers say: STEPWATCH_BLESS=1 cargo test -p stepwatch-alerter openapi_is_current"
    );
}

#[test]
fn every_operation_says_what_it_is_and_who_may() {
    let mut document = document();
    let mut ids = BTreeSet::new();
    let scopes = Scope::ALL.map(Scope::as_str);
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            let id = operation.operation_id.clone().unwrap();
            assert!(ids.insert(id.clone()), "{id} twice");
            assert!(
                operation.summary.as_deref().is_some_and(|s| s.ends_with(['.', '!'])),
                "{path}: {:?}",
                operation.summary
            );
            assert_eq!(operation.tags.as_ref().map(Vec::len), Some(1), "{path}");
            let security = serde_json::to_value(&operation.security).unwrap();
            match security[0][BEARER][0].as_str() {
                Some(scope) => assert!(scopes.contains(&scope), "{path}: {security}"),
                None => assert!(
                    security[0][SLACK].is_array() || security[0][PAGERDUTY].is_array(),
                    "{path}: {security}"
                ),
            }
        }
    }
    assert!(ids.len() > 20, "{ids:?}");
}

/// Every schema that is referenced is defined, and every defined one is referenced.
#[test]
fn every_schema_is_defined_and_used() {
    let document = serde_json::to_value(document()).unwrap();
    let mut referred = BTreeSet::new();
    refs(&document, &mut referred);
    let defined = document["components"]["schemas"].as_object().unwrap().keys().map(String::as_str);
    let defined: BTreeSet<_> = defined.collect();
    let referred: BTreeSet<_> =
        referred.iter().map(|r| r.strip_prefix("#/components/schemas/").unwrap()).collect();
    assert_eq!(referred, defined);
}

fn refs(value: &serde_json::Value, into: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => {
            into.extend(map.get("$ref").and_then(|r| r.as_str()).map(str::to_owned));
            map.values().for_each(|v| refs(v, into));
        }
        serde_json::Value::Array(list) => list.iter().for_each(|v| refs(v, into)),
        _ => {}
    }
}

#[test]
fn examples_read_as_what_they_are_examples_of() {
    fn read<T: DeserializeOwned>(example: serde_json::Value) {
        serde_json::from_value::<T>(example).unwrap();
    }
    read::<By>(examples::by());
    read::<Note>(examples::note());
    read::<IncidentView>(examples::incident());
    read::<TimelineView>(examples::timeline());
    read::<DeliveryView>(examples::delivery());
    read::<WishView>(examples::wish());
    read::<SilenceView>(examples::silence());
    read::<RunView>(examples::run());
    read::<SeriesView>(examples::series());
    read::<RanksView>(examples::ranks());
    read::<HistoryView>(examples::attempts());
    read::<NodeView>(examples::node());
    read::<SourceView>(examples::source());
    read::<Status>(examples::status());
    read::<ReplicaList>(examples::replicas());
    read::<ScheduleView>(examples::schedule());
    read::<OverrideView>(examples::oncall_override());
    read::<OverrideWish>(examples::override_wish());
    read::<SwapWish>(examples::swap_wish());
}
