//! Remote write: a request body, compressed or already decompressed.

use std::borrow::Cow;

use stepwatch_detect::SCRAPED;
use stepwatch_engine::SourceInput;
use stepwatch_model::time::Span;
use stepwatch_remote_write::decode::{Decoder, MAX_SERIES, Version, decompress};
use stepwatch_remote_write::{Batch, Config, Counts, MAX_AGE, MAX_AHEAD, Registry, Report, Tenant};
use stepwatch_wire::{Event, Kind, words};

use super::{NOW, Running};

/// Bits of the first byte.
const VERSION_2: u8 = 1;
const COMPRESSED: u8 = 2;
const OF_A_TENANT: u8 = 4;
/// A compressed body grows at most by this factor, plus a few bytes.
const MAX_GROWTH: usize = 22;
const GROWTH_SLACK: usize = 64;
/// A configuration with limits that a short input reaches, in which an unknown series is watched.
const CONFIG: &str = r#"{
    "runs": [{"series": "reward", "signal": "reward", "run": "job", "scale": 0.5}],
    "generic": ["{__name__=~\".+\",__name__!~\"up|(train|megatron|gpu|DCGM|rdma|node_infiniband)_.*\"}"],
    "drop": ["{__name__=~\"go_.*\"}"],
    "max_series": 64, "max_series_per_tenant": 32, "max_watched": 24
}"#;

/// The first byte selects the version, the compression and the tenant.
pub fn remote_write(data: &[u8]) {
    let Some((how, body)) = data.split_first() else { return };
    let version = if how & VERSION_2 == 0 { Version::V1 } else { Version::V2 };
    let mut buffer = Vec::new();
    let text = if how & COMPRESSED == 0 {
        body
    } else {
        let Ok(text) = decompress(body, &mut buffer) else { return };
        assert!(text.len() <= MAX_GROWTH * body.len() + GROWTH_SLACK, "{} of {}", text.len(), body.len());
        text
    };
    let tenant = if how & OF_A_TENANT == 0 { "" } else { "team" };
    let (Some(mut door), mut engine) = (Door::new(tenant), Running::new()) else { return };
    let batch = door.write(version, text);
    reported(&mut engine, &batch);
    // A sender repeats a request without a timely answer; the repetition must have no effect.
    let again = door.write(version, text);
    assert!(again.reports.is_empty() && again.readings.is_empty(), "{again:?}");
    for seconds in [1, 5, 60, 7200] {
        engine.pass(Span::secs(seconds));
        let mut late = Batch::default();
        door.registry.tick(engine.now, &mut late);
        reported(&mut engine, &late);
    }
    assert_eq!((door.registry.series(), door.registry.watched()), (0, 0), "all are forgotten");
    engine.check();
}

/// A registry and one tenant's requests to it.
struct Door {
    registry: Registry,
    decoder: Decoder,
    tenant: Tenant,
}

impl Door {
    fn new(tenant: &str) -> Option<Self> {
        let config: Result<Config, _> = serde_json::from_str(CONFIG);
        assert!(config.is_ok(), "{config:?}");
        let mut registry = Registry::new(config.unwrap_or_default(), 7);
        let tenant = registry.tenant(tenant)?;
        Some(Self { registry, decoder: Decoder::new(7), tenant })
    }

    fn write(&mut self, version: Version, text: &[u8]) -> Batch {
        let Self { registry, decoder, tenant } = self;
        let (mut batch, before, had) = (Batch::default(), registry.counts, registry.series() as u64);
        let (mut series, mut samples) = (0, 0);
        let read = decoder.decode(version, text, |one| {
            (series, samples) = (series + 1, samples + one.samples().len() as u64);
            registry.take(&one, *tenant, NOW, &mut batch);
        });
        registry.finish_request(&mut batch);
        if let Ok(totals) = read {
            assert_eq!((totals.series, totals.samples), (series, samples));
        }
        assert!(series <= MAX_SERIES && registry.series() as u64 <= had + series);
        assert!(registry.watched() <= registry.series());
        adds_up(before, registry.counts, samples, &batch);
        batch
    }
}

/// Checks that every sample is counted, and none in two exclusive counters.
fn adds_up(before: Counts, after: Counts, samples: u64, batch: &Batch) {
    let rose = |of: fn(Counts) -> u64| of(after) - of(before);
    let watched = rose(|c| c.watched_samples);
    assert_eq!(rose(|c| c.samples), samples);
    assert!(watched + rose(|c| c.over_series + c.over_watched + c.over_tenant + c.invalid) <= samples);
    assert!(rose(|c| c.out_of_order + c.too_far_ahead + c.too_old) <= watched);
    assert!(rose(|c| c.stale_markers) <= watched && batch.readings.len() as u64 <= watched);
    assert_eq!(batch.refused, rose(|c| c.invalid + c.too_far_ahead));
    // The sender gets the reason, in which its own text is cleaned.
    assert!(batch.refused == 0 || batch.why.is_some());
    assert!(batch.why.as_deref().is_none_or(is_plain), "{:?}", batch.why);
}

/// Passes the reports to the engine, as the runtime does.
fn reported(engine: &mut Running, batch: &Batch) {
    for (source, report) in &batch.reports {
        let source = source.as_ref();
        assert!(source.starts_with(SCRAPED) && is_plain(source), "{source:?}");
        engine.handle(match report {
            Report::Event(event) => {
                is_well_formed(event);
                SourceInput::Event { source, event }
            }
            Report::Up => SourceInput::SourceUp { source, many_nodes: false },
            Report::Down { reason } => SourceInput::SourceDown { source, reason },
        });
    }
    let window = NOW.0 - MAX_AGE.0..=NOW.0 + MAX_AHEAD.0;
    for reading in &batch.readings {
        let name = &reading.name;
        for text in [&*name.text, &name.metric, &name.job, &name.tenant, &name.run, &name.node] {
            assert!(is_plain(text), "{text:?}");
        }
        assert!(window.contains(&reading.ts.0), "{reading:?}");
    }
    engine.handle(SourceInput::Readings { readings: &batch.readings });
}

/// Checks that the event is already clean, because nothing cleans it before it is shown.
fn is_well_formed(event: &Event) {
    let mut clean = event.clone();
    clean.clean();
    assert_eq!(clean.to_json(), event.to_json());
    if event.kind == Kind::Health {
        assert!(event.m.iter().all(|(_, value)| value.is_finite()), "{event:?}");
    } else {
        assert!(event.run.is_some(), "{event:?}");
    }
}

fn is_plain(text: &str) -> bool {
    matches!(words::line(text), Cow::Borrowed(_))
}
