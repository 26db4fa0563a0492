use super::super::watched_series::Slot;
use super::*;
use crate::detectors::DetectorsConfig;
use crate::detectors::testing::Noise;
use crate::monitor::Input;
use stepwatch_model::{Scope, Severity, Span};

const SECOND: i64 = 1000;

fn name(metric: &str, instance: &str) -> Arc<SeriesName> {
    Arc::new(SeriesName {
        text: format!("{metric}{{instance=\"{instance}\"}}").into(),
        metric: metric.into(),
        job: "storage".into(),
        tenant: "".into(),
        run: "".into(),
        node: "".into(),
    })
}

/// Feeds values of each series, a scrape every 15 s, and returns the findings.
fn feed(
    monitor: &mut Monitor,
    names: &[Arc<SeriesName>],
    scrapes: core::ops::Range<i64>,
    value: impl Fn(usize, i64) -> f64,
) -> Vec<(Context, Finding)> {
    let mut out = Vec::new();
    let mut noise = Noise::new(7);
    for scrape in scrapes {
        let ts = Ts(scrape * 15 * SECOND);
        let reading = |(id, name): (usize, &Arc<SeriesName>)| SeriesReading {
            id: id as u32,
            name: Arc::clone(name),
            ts,
            value: value(id, scrape) + 0.1 * noise.normal(),
        };
        let readings: Vec<_> = names.iter().enumerate().map(reading).collect();
        monitor.handle(ts, Input::Readings { readings: &readings }, &mut out);
        while monitor.tick_one(ts, &mut out) {}
    }
    let found = |detected| match detected {
        Detected::Finding { context, finding } => Some((*context, *finding)),
        _ => None,
    };
    out.into_iter().filter_map(found).collect()
}

fn step(from: i64, to: i64) -> impl Fn(usize, i64) -> f64 {
    move |_, scrape| if (from..to).contains(&scrape) { 30.0 } else { 10.0 }
}

#[test]
fn series_of_one_metric_that_shift_are_one_ticket_until_the_last_is_back() {
    let mut monitor = Monitor::new(Arc::default());
    let names = [name("nfs_read_seconds", "a"), name("nfs_read_seconds", "b"), name("queue_depth", "a")];
    let value = |id: usize, scrape: i64| match id {
        0 => step(1000, 1200)(0, scrape),
        1 => step(1000, 1100)(1, scrape),
        _ => 5.0,
    };
    let found = feed(&mut monitor, &names, 0..2000, value);
    let changes: Vec<_> = found.iter().map(|(c, v)| (c.scope.name(), v.change, v.severity)).collect();
    let ticket = ("nfs_read_seconds", Change::Raise, Severity::Ticket);
    assert_eq!(changes, [ticket, ticket, ("nfs_read_seconds", Change::Clear, Severity::Info)]);
    let (context, second) = &found[1];
    assert_eq!(second.suspects[0].what(), "nfs_read_seconds{instance=\"a\"}");
    assert_eq!(context.run.labels["job"], "storage");
    assert_eq!(second.signal, "nfs_read_seconds{instance=\"b\"}");
    assert!(found[2].1.ts > Ts(1200 * 15 * SECOND), "the first of them is still out");
}

#[test]
fn what_is_stored_and_read_back_goes_on_as_if_nothing_had_happened() {
    let names = [name("nfs_read_seconds", "a"), name("queue_depth", "b")];
    let mut whole = Monitor::new(Arc::default());
    feed(&mut whole, &names, 0..1010, step(1000, 1200));
    let keys: Vec<Key> = (0..1).map(Key::Series).collect();
    whole.dirty.extend(keys);
    let parts = whole.take_dirty().into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
    let (mut restored, unusable) = Monitor::restore(Arc::default(), parts);
    assert!(unusable.is_empty(), "{unusable:?}");
    assert_eq!(restored.watched_series(), 2);
    // The ids of series at the receiver are new after a start.
    let swapped = [Arc::clone(&names[1]), Arc::clone(&names[0])];
    let value = |_: usize, scrape: i64| step(1000, 1200)(0, scrape);
    let after = feed(&mut restored, &swapped, 1010..1400, value);
    let changes: Vec<_> = after.iter().map(|(c, v)| (c.scope.name().to_owned(), v.change)).collect();
    for metric in ["nfs_read_seconds", "queue_depth"] {
        assert!(changes.contains(&(metric.to_owned(), Change::Clear)), "{changes:?}");
    }
}

#[test]
fn a_series_that_is_not_sent_any_more_is_forgotten_with_its_incident() {
    let mut monitor = Monitor::new(Arc::default());
    let names = [name("nfs_read_seconds", "a")];
    let found = feed(&mut monitor, &names, 0..1060, step(1000, 2000));
    assert_eq!(found.len(), 1, "{found:?}");
    let mut out = Vec::new();
    let last = Ts(1059 * 15 * SECOND);
    for minute in 1..80 {
        let now = last + Span::secs(60 * minute);
        while monitor.tick_one(now, &mut out) {}
    }
    let scope = Scope::Series("nfs_read_seconds".to_owned());
    assert_eq!(out, [Detected::Forgotten { scope, heard_at: last }]);
    assert_eq!(monitor.watched_series(), 0);
    assert!(monitor.next_deadline().is_none(), "nothing is left to look at");
}

#[test]
fn a_number_that_was_given_to_another_series_is_that_of_the_other() {
    let mut monitor = Monitor::new(Arc::default());
    feed(&mut monitor, &[name("a", "x")], 0..1000, |_, _| 10.0);
    let found = feed(&mut monitor, &[name("b", "x")], 1000..1200, |_, _| 90.0);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(monitor.watched_series(), 2);
}

#[test]
fn the_settings_of_generic_say_how_loud_it_is() {
    let quiet: DetectorsConfig = serde_json::from_value(serde_json::json!({
        "generic": {"watch": [{"signals": ["nfs_*"], "severity": "info"}]}
    }))
    .unwrap();
    let mut monitor = Monitor::new(Arc::new(quiet));
    let found = feed(&mut monitor, &[name("nfs_read_seconds", "a")], 0..1300, step(1000, 1100));
    assert!(!found.is_empty() && found.iter().all(|(_, v)| v.severity == Severity::Info), "{found:?}");
    let off: DetectorsConfig =
        serde_json::from_value(serde_json::json!({"generic": {"enabled": false}})).unwrap();
    let mut monitor = Monitor::new(Arc::new(off));
    assert!(feed(&mut monitor, &[name("nfs_read_seconds", "a")], 0..1300, step(1000, 1100)).is_empty());
}

#[test]
fn the_state_of_a_series_takes_less_than_a_kibibyte() {
    let mut monitor = Monitor::new(Arc::default());
    let names: Vec<_> = (0..64).map(|i| name("nfs_read_seconds", &i.to_string())).collect();
    feed(&mut monitor, &names, 0..3000, |_, _| 10.0);
    let stored = monitor.series.part(0).as_ref().and_then(stepwatch_model::stored::encode).unwrap();
    assert!(stored.len() < 64 * 1024, "{} bytes of 64", stored.len());
}

#[test]
fn a_series_takes_less_than_a_kibibyte_in_memory() {
    // With one copy of its text, and a node in each of the two maps.
    let text = 400;
    let takes = size_of::<Slot>() + size_of::<SeriesName>() + text + 2 * 32;
    assert!(takes < 1024, "{takes}: slot {}, name {}", size_of::<Slot>(), size_of::<SeriesName>());
}
