use proptest::prelude::*;

use stepwatch_model::Kind;

use super::*;

const T0: Ts = Ts(1_795_227_416_000);

fn at(seconds: i64) -> Ts {
    T0 + Span::secs(seconds)
}

fn set(pairs: &[(&str, &str)]) -> LabelSet {
    pairs.iter().map(|(k, v)| (Box::from(*k), Box::from(*v))).collect()
}

fn alert(labels: &[(&str, &str)], summary: &str) -> Alert {
    Alert::new(set(labels), set(&[("summary", summary)]), T0, "", &Limits::default()).unwrap()
}

fn posted(labels: &[(&str, &str)], ends_at: Option<i64>) -> PostedAlert {
    PostedAlert { alert: alert(labels, "s").into(), ends_at: ends_at.map(at) }
}

fn external() -> External {
    let mut e = External::default();
    e.configure(AlertsConfig::default());
    e
}

fn about(_: &AlertsConfig, labels: &LabelSet) -> About {
    About {
        run: labels.get("run").unwrap_or_default().into(),
        node: labels.get("node").unwrap_or_default().into(),
        team: String::new(),
    }
}

/// Posts an alert. Returns the result, and the groups that changed.
fn take(e: &mut External, now: i64, posted: PostedAlert) -> (Taken, Vec<String>) {
    let mut touched = BTreeSet::new();
    let taken = e.take(at(now), &posted, about, &mut touched);
    (taken, touched.iter().map(ToString::to_string).collect())
}

#[test]
fn fingerprints_are_those_of_prometheus() {
    // github.com/prometheus/common/model/labelset_test.go and signature_test.go
    assert_eq!(fingerprint(set(&[]).iter()), 14695981039346656037);
    let labels = set(&[("name", "garland, briggs"), ("fear", "love is not enough")]);
    assert_eq!(fingerprint(labels.iter()), 5799056148416392346);
}

proptest! {
    #[test]
    fn a_set_is_what_a_map_of_the_same_would_be(
        pairs in prop::collection::vec(("[a-c\u{e4}\"\\\\]{0,2}", "[x-z\n\u{1f525}]{0,2}"), 0..8),
        asked in "[a-c\u{e4}]{0,2}"
    ) {
        let mut map: BTreeMap<&str, &str> = pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        map.retain(|_, value| !value.is_empty());
        let object = pairs.iter().map(|(n, v)| format!("{}:{}", serde_json::json!(n), serde_json::json!(v)));
        let object = format!("{{{}}}", object.collect::<Vec<_>>().join(","));
        let read: LabelSet = serde_json::from_str(&object).unwrap();
        let made: LabelSet = pairs.iter().map(|(n, v)| (Box::from(n.as_str()), Box::from(v.as_str()))).collect();
        prop_assert_eq!(&read, &made);
        prop_assert!(read.iter().eq(map.iter().map(|(n, v)| (*n, *v))));
        prop_assert_eq!((read.len(), read.is_empty()), (map.len(), map.is_empty()));
        for name in map.keys().copied().chain([asked.as_str()]) {
            prop_assert_eq!(read.get(name), map.get(name).copied());
        }
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(&map).unwrap());
    }
}

#[test]
fn sets_are_in_order_without_doubles_and_empty_values() {
    let s = set(&[("b", "1"), ("a", "2"), ("b", "3"), ("c", "x"), ("c", "")]);
    assert_eq!(s.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
    assert_eq!((s.get("b"), s.get("c"), s.get("bb")), (Some("3"), None, None));
    let text = serde_json::to_string(&s).unwrap();
    assert_eq!(text, r#"{"a":"2","b":"3"}"#);
    assert_eq!(serde_json::from_str::<LabelSet>(&text).unwrap(), s);
}

#[test]
fn what_is_not_taken() {
    let new = |labels: &[(&str, &str)]| {
        let alert = Alert::new(set(labels), LabelSet::default(), T0, "", &Limits::default());
        alert.map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(new(&[("a", "b")]), Ok(()));
    assert_eq!(new(&[("a", "")]), Err("at least one label pair required".into()));
    assert!(new(&[("a\n", "b")]).unwrap_err().contains("is not a name"));
    assert!(new(&[("", "b")]).unwrap_err().contains("is not a name"));
}

#[test]
fn an_alert_posted_again_changes_nothing_but_its_end() {
    let mut e = external();
    let disk = [("alertname", "DiskFull"), ("node", "n1")];
    assert_eq!(take(&mut e, 0, posted(&disk, None)), (Taken::Fires, vec!["DiskFull".into()]));
    assert_eq!(take(&mut e, 60, posted(&disk, None)), (Taken::Unchanged, vec![]));
    let mut touched = BTreeSet::new();
    assert_eq!((e.deadline(), e.expire(at(300), &mut touched)), (Some(at(300)), vec![]));
    assert_eq!(e.deadline(), Some(at(360)));
    let more = PostedAlert { alert: alert(&disk, "fuller").into(), ends_at: None };
    assert_eq!(take(&mut e, 90, more).0, Taken::Fires, "it says something else");
    assert_eq!(e.expire(at(390), &mut touched).len(), 1);
    assert_eq!((e.all().count(), e.deadline()), (0, None));
    assert_eq!(take(&mut e, 400, posted(&disk, Some(399))).0, Taken::Nothing);
}

#[test]
fn a_group_is_as_bad_as_its_worst() {
    let mut e = external();
    let warning = [("alertname", "Hot"), ("run", "a"), ("node", "n1"), ("severity", "warning")];
    let critical = [("alertname", "Hot"), ("run", "a"), ("node", "n2"), ("severity", "critical")];
    take(&mut e, 0, posted(&warning, None));
    assert_eq!(e.group("Hot of a").unwrap().severity, Severity::Ticket);
    take(&mut e, 1, posted(&critical, None));
    let group = e.group("Hot of a").unwrap();
    assert_eq!((group.severity, group.firing.len(), group.nodes.len()), (Severity::Page, 2, 2));
    let common = e.common_labels("Hot of a");
    assert_eq!(common.keys().map(String::as_str).collect::<Vec<_>>(), ["alertname", "run"]);
    assert_eq!(take(&mut e, 2, posted(&critical, Some(1))), (Taken::Over, vec!["Hot of a".into()]));
    assert_eq!(e.group("Hot of a").unwrap().severity, Severity::Ticket);
    e.judged("Hot of a");
    assert!(e.group("Hot of a").is_some());
    take(&mut e, 3, posted(&warning, Some(1)));
    e.judged("Hot of a");
    assert!(e.group("Hot of a").is_none());
}

#[test]
fn what_we_detect_ourselves_is_distinguished_by_kind() {
    let config =
        AlertsConfig { kinds: [("XidErrors".to_owned(), Kind::GpuFault)].into(), ..AlertsConfig::default() };
    let kind = |pairs: &[(&str, &str)]| config.kind(&set(pairs));
    assert_eq!(kind(&[("alertname", "XidErrors")]), Kind::GpuFault);
    assert_eq!(kind(&[("alertname", "x"), ("kind", "nonfinite")]), Kind::Nonfinite);
    assert_eq!(kind(&[("alertname", "x"), ("kind", "Deployment")]), Kind::PrometheusAlert);
    let mut e = external();
    let nan = [("alertname", "TrainNonFinite"), ("run", "a"), ("kind", "nonfinite")];
    assert_eq!(take(&mut e, 0, posted(&nan, None)).1, ["nonfinite of a"]);
}

#[test]
fn there_is_a_most() {
    let mut e = External::default();
    e.configure(AlertsConfig { max_alerts: 1, ..AlertsConfig::default() });
    take(&mut e, 0, posted(&[("alertname", "a")], None));
    assert_eq!(take(&mut e, 0, posted(&[("alertname", "b")], None)).0, Taken::Refused);
    assert_eq!(e.refused(), 1);
    assert_eq!(take(&mut e, 1, posted(&[("alertname", "a")], None)).0, Taken::Unchanged);
}

#[test]
fn there_is_a_most_of_their_bytes() {
    let said = |name: &str, letters: usize| {
        let alert = Arc::new(alert(&[("alertname", name)], &"x".repeat(letters)));
        PostedAlert { alert, ends_at: None }
    };
    let mut e = External::default();
    // An eighth of it is for pages.
    e.configure(AlertsConfig { max_bytes: 11_429, ..AlertsConfig::default() });
    assert_eq!(take(&mut e, 0, said("a", 4000)).0, Taken::Fires);
    assert_eq!(take(&mut e, 0, said("b", 4000)).0, Taken::Fires);
    assert_eq!(take(&mut e, 0, said("c", 4000)).0, Taken::Refused, "another one");
    let one = |e: &mut External, letters| take(e, 0, said("c", letters)).0;
    assert_eq!((one(&mut e, 1000), one(&mut e, 4000)), (Taken::Fires, Taken::Refused), "one that grows");
    assert_eq!(e.refused(), 2);
    assert_eq!(take(&mut e, 0, said("a", 100)).0, Taken::Fires);
    assert_eq!(one(&mut e, 4000), Taken::Fires, "there is room again");
    let over = PostedAlert { ends_at: Some(at(0)), ..said("b", 4000) };
    assert_eq!(take(&mut e, 1, over).0, Taken::Over);
    assert_eq!(take(&mut e, 1, said("d", 4000)).0, Taken::Fires, "and of one that is over");
}

/// Twenty thousand ordinary alerts.
#[test]
fn ordinary_alerts_are_far_from_the_most() {
    let text = "x".repeat(350);
    let labels = |instance: &str| alert(&[("alertname", "DiskFull"), ("instance", instance)], &text);
    let mut e = external();
    for n in 0..20_000 {
        let alert = Arc::new(labels(&format!("gpu-{n:05}.cluster.example:9100")));
        assert_eq!(take(&mut e, 0, PostedAlert { alert, ends_at: None }).0, Taken::Fires);
    }
}

#[test]
fn after_a_restart_senders_have_their_time() {
    let mut e = external();
    let firing =
        Firing { alert: Arc::new(alert(&[("alertname", "a")], "s")), ends_at: at(1), updated_at: T0 };
    e.restore(at(100), firing, About::default());
    assert_eq!(e.deadline(), Some(at(400)));
    assert_eq!(take(&mut e, 150, posted(&[("alertname", "a")], None)), (Taken::Unchanged, vec![]));
}

#[test]
fn hosts_of_addresses() {
    for (value, node) in [
        ("gpu-042:9100", "gpu-042"),
        ("gpu-042", "gpu-042"),
        ("[::1]:9100", "::1"),
        ("a:b", "a:b"),
        (":1", ":1"),
    ] {
        assert_eq!(group::node_of(value), node);
    }
}

proptest! {
    /// Compares with a reference that keeps only the end of each alert.
    #[test]
    fn what_fires_is_what_was_posted_and_has_not_ended(
        acts in proptest::collection::vec((0i64..100, 0u8..6, proptest::option::of(-20i64..200)), 1..60)
    ) {
        let (mut e, mut model, mut now) = (external(), BTreeMap::new(), 0);
        for (wait, which, ends) in acts {
            now += wait;
            let mut touched = BTreeSet::new();
            let over = e.expire(at(now), &mut touched);
            let due: Vec<u8> = model.iter().filter(|(_, end)| **end <= now).map(|(w, _)| *w).collect();
            prop_assert_eq!(over.len(), due.len());
            model.retain(|which, _| !due.contains(which));
            let (name, run) = (format!("a{}", which % 3), format!("r{}", which / 3));
            let labels = [("alertname", name.as_str()), ("run", run.as_str())];
            let end = ends.map(|s| now + s);
            let (taken, _) = take(&mut e, now, posted(&labels, end));
            let end = end.unwrap_or(now + 300);
            let had = model.contains_key(&which);
            let want = match (had, end > now) {
                (false, true) => Taken::Fires,
                (true, true) => Taken::Unchanged,
                (true, false) => Taken::Over,
                (false, false) => Taken::Nothing,
            };
            prop_assert_eq!(taken, want);
            if end > now { model.insert(which, end); } else { model.remove(&which); }
            prop_assert_eq!(e.all().count(), model.len());
            let in_groups: usize = e.groups.values().map(|g| g.firing.len()).sum();
            prop_assert_eq!(in_groups, model.len());
            if let Some(at_next) = e.deadline() {
                prop_assert!(model.values().any(|end| at(*end) >= at_next));
            } else {
                prop_assert!(model.is_empty());
            }
        }
    }
}
