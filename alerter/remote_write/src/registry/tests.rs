mod xids;

use prost::Message as _;
use stepwatch_wire::{CkptPhase, Event, Kind, Value};

use super::*;
use crate::config::RunRule;
use crate::decode::{Decoder, Version};
use crate::report::Report;
use crate::schema::{Label, Sample as Point, TimeSeries, WriteRequest};

const NOW: Ts = Ts(1_795_600_000_000);
const STALE: u64 = 0x7ff0_0000_0000_0002;

/// A registry and its output.
struct Door {
    registry: Registry,
    decoder: Decoder,
    now: Ts,
}

/// `name{a="b",c="d"}`, as a sender writes it.
fn series(text: &str, samples: &[(i64, f64)]) -> TimeSeries {
    let (name, rest) = text.split_once('{').unwrap_or((text, "}"));
    let pairs = rest.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty());
    let label = |(name, value): (&str, &str)| Label {
        name: name.to_owned(),
        value: value.trim_matches('"').to_owned(),
    };
    let labels = [("__name__", name)].into_iter().chain(pairs.map(|pair| pair.split_once('=').unwrap()));
    TimeSeries {
        labels: labels.map(label).collect(),
        samples: samples.iter().map(|(ts, value)| Point { timestamp: *ts, value: *value }).collect(),
        ..TimeSeries::default()
    }
}

impl Door {
    fn new(config: Config) -> Self {
        Self { registry: Registry::new(config, 7), decoder: Decoder::new(7), now: NOW }
    }

    fn write_as(&mut self, tenant: &str, timeseries: Vec<TimeSeries>) -> Batch {
        let body = WriteRequest { timeseries, ..WriteRequest::default() }.encode_to_vec();
        let (mut batch, now) = (Batch::default(), self.now);
        let tenant = self.registry.tenant(tenant).unwrap();
        let registry = &mut self.registry;
        let each = |series: Series<'_, '_>| registry.take(&series, tenant, now, &mut batch);
        self.decoder.decode(Version::V1, &body, each).unwrap();
        self.registry.finish_request(&mut batch);
        batch
    }

    fn write(&mut self, timeseries: Vec<TimeSeries>) -> Batch {
        self.write_as("", timeseries)
    }

    /// One scrape of an exporter at `second`, as one request.
    fn scrape(&mut self, second: i64, values: &[(&str, f64)]) -> Vec<Report> {
        self.now = Ts(NOW.0 + second * 1000);
        let at = |(text, value): &(&str, f64)| series(text, &[(self.now.0, *value)]);
        let timeseries = values.iter().map(at).collect();
        reports(self.write(timeseries))
    }

    fn tick(&mut self, second: i64) -> Vec<Report> {
        let mut batch = Batch::default();
        self.now = Ts(NOW.0 + second * 1000);
        self.registry.tick(self.now, &mut batch);
        reports(batch)
    }
}

fn reports(batch: Batch) -> Vec<Report> {
    batch.reports.into_iter().map(|(_, report)| report).collect()
}

fn events(reports: Vec<Report>) -> Vec<Event> {
    let event = |report| if let Report::Event(event) = report { Some(*event) } else { None };
    reports.into_iter().filter_map(event).collect()
}

const STEP: &str = r#"train_step{run="llama",instance="node001:9765"}"#;
const LOSS: &str = r#"train_loss{run="llama",instance="node001:9765"}"#;
const UP: &str = r#"up{instance="node001:9765",job="stepwatch"}"#;

fn generic(selector: &str) -> Config {
    Config { generic: vec![selector.parse().unwrap()], ..Config::default() }
}

#[test]
fn a_scrape_of_our_exporter_is_a_step_of_the_run() {
    let mut door = Door::new(Config::default());
    let first = door.scrape(
        0,
        &[
            (LOSS, 2.5),
            (STEP, 100.0),
            (r#"train_grad_norm{run="llama",instance="node001:9765"}"#, 0.7),
            (r#"train_mfu_ratio{run="llama",instance="node001:9765",convention="6n"}"#, 0.41),
            (r#"train_mfu_ratio{run="llama",instance="node001:9765",convention="causal"}"#, 0.45),
            (r#"train_custom{run="llama",instance="node001:9765",name="reward"}"#, 3.0),
            (r#"train_world_size{run="llama",instance="node001:9765"}"#, 16.0),
            (r#"train_attempt{run="llama",instance="node001:9765"}"#, 2.0),
            (r#"train_rank_step{run="llama",rank="8",instance="node001:9765"}"#, 100.0),
            (r#"train_rank_step{run="llama",rank="9",instance="node001:9765"}"#, 99.0),
            (r#"train_step_duration_seconds_sum{run="llama",rank="8",instance="node001:9765"}"#, 40.0),
            (r#"train_step_duration_seconds_count{run="llama",rank="8",instance="node001:9765"}"#, 10.0),
        ],
    );
    assert_eq!(first[0], Report::Up);
    let steps = events(first);
    let of: Vec<_> = steps.iter().map(|e| (e.rank, e.step, e.m.get("loss"), e.world, e.attempt)).collect();
    assert_eq!(
        of,
        [(Some(8), Some(100), Some(2.5), Some(16), Some(2)), (Some(9), Some(99), None, Some(16), Some(2))]
    );
    assert_eq!(steps[0].run.as_deref(), Some("llama"));
    assert_eq!(steps[0].node.as_deref(), Some("node001"));
    assert_eq!(steps[0].ts, Some(NOW.0 as f64 / 1e3));
    assert_eq!((steps[0].m.get("reward"), steps[0].m.get("mfu")), (Some(3.0), Some(0.41)));
    assert_eq!(steps[0].m.get("step_time"), None, "nothing to compare the counters with");
    let next = door.scrape(
        15,
        &[
            (STEP, 104.0),
            (r#"train_step_duration_seconds_sum{run="llama",rank="8",instance="node001:9765"}"#, 56.0),
            (r#"train_step_duration_seconds_count{run="llama",rank="8",instance="node001:9765"}"#, 14.0),
        ],
    );
    let next = events(next);
    assert_eq!(next[0].m.get("step_time"), Some(4.0), "{next:?}");
}

#[test]
fn the_step_may_come_in_a_later_request() {
    let mut door = Door::new(Config::default());
    assert_eq!(events(door.scrape(0, &[(LOSS, 2.5)])), [], "it waits for its step");
    let step = events(door.scrape(0, &[(STEP, 7.0)]));
    assert_eq!((step[0].step, step[0].m.get("loss")), (Some(7), Some(2.5)));
    let more = events(door.scrape(0, &[(r#"train_grad_norm{run="llama",instance="node001:9765"}"#, 1.5)]));
    assert_eq!((more[0].step, more[0].m.get("grad_norm"), more[0].m.get("loss")), (Some(7), Some(1.5), None));
}

#[test]
fn a_loss_that_is_no_number_waits_for_nothing() {
    let mut door = Door::new(Config::default());
    door.scrape(0, &[(LOSS, 2.5), (STEP, 7.0)]);
    let bad = events(door.scrape(15, &[(LOSS, f64::NAN)]));
    assert_eq!(bad.len(), 1);
    assert!(bad[0].m.get("loss").unwrap().is_nan() && bad[0].step == Some(7), "{bad:?}");
    // One between two scrapes shows in a counter.
    let counter = r#"train_nonfinite_total{run="llama",instance="node001:9765",what="loss",how="value"}"#;
    door.scrape(30, &[(LOSS, 2.5), (STEP, 9.0), (counter, 1.0)]);
    let between = events(door.scrape(45, &[(STEP, 11.0), (counter, 2.0)]));
    assert!(between.iter().any(|e| e.m.get("loss").is_some_and(f64::is_nan)), "{between:?}");
}

#[test]
fn a_run_that_stands_still_says_nothing_new() {
    let mut door = Door::new(Config::default());
    door.scrape(0, &[(LOSS, 2.5), (STEP, 7.0)]);
    for second in [15, 30, 45] {
        assert_eq!(events(door.scrape(second, &[(LOSS, 2.5), (STEP, 7.0)])), [], "{second}");
    }
    assert_eq!(events(door.scrape(60, &[(LOSS, 2.4), (STEP, 8.0)])).len(), 1);
}

#[test]
fn a_run_without_steps_is_counted_by_its_scrapes() {
    let mut door = Door::new(Config::default());
    let loss = r#"trainer_loss{job="mnist",instance="a:80"}"#;
    for second in 0..3 {
        assert_eq!(events(door.scrape(15 * second, &[(loss, 2.0)])).len(), usize::from(second > 0));
    }
    let last = events(door.tick(36));
    assert_eq!(
        (last[0].run.as_deref(), last[0].step, last[0].m.get("loss")),
        (Some("mnist"), Some(3), Some(2.0))
    );
}

#[test]
fn steps_that_fall_back_are_another_attempt() {
    let mut door = Door::new(Config::default());
    let attempt = |events: Vec<Event>| events[0].attempt;
    assert_eq!(attempt(events(door.scrape(0, &[(STEP, 900.0)]))), Some(0));
    assert_eq!(attempt(events(door.scrape(15, &[(STEP, 500.0)]))), Some(1));
}

#[test]
fn checkpoints_are_events() {
    let mut door = Door::new(Config::default());
    let saved = r#"train_checkpoint_last_step{run="llama",instance="node001:9765"}"#;
    let failed = r#"train_checkpoint_failures_total{run="llama",instance="node001:9765"}"#;
    let found = |events: Vec<Event>| -> Vec<_> {
        let of = events.into_iter().filter(|e| e.kind == Kind::Ckpt);
        of.map(|e| (e.ckpt.unwrap(), e.step.unwrap())).collect()
    };
    let first = found(events(door.scrape(0, &[(STEP, 900.0), (saved, 800.0), (failed, 3.0)])));
    assert_eq!(first, [(CkptPhase::End, 800)]);
    assert_eq!(found(events(door.scrape(15, &[(STEP, 990.0), (saved, 800.0), (failed, 3.0)]))), []);
    let then = found(events(door.scrape(30, &[(STEP, 1010.0), (saved, 1000.0), (failed, 4.0)])));
    assert_eq!(then, [(CkptPhase::End, 1000), (CkptPhase::Fail, 1010)]);
}

#[test]
fn an_instance_that_does_not_answer_is_down_and_a_run_whose_series_end_is_over() {
    let mut door = Door::new(Config::default());
    assert_eq!(door.scrape(0, &[(STEP, 1.0), (UP, 1.0)])[0], Report::Up);
    let down = door.scrape(15, &[(UP, 0.0), (STEP, f64::from_bits(STALE))]);
    assert!(matches!(down[..], [Report::Down { .. }]), "{down:?}");
    assert_eq!(door.tick(60), [], "the instance is lost, which says nothing of the run");
    assert_eq!(door.scrape(75, &[(UP, 1.0), (STEP, 2.0)])[0], Report::Up);
    // The exporter is up and no longer reports the run.
    assert_eq!(door.scrape(90, &[(UP, 1.0), (STEP, f64::from_bits(STALE))]), []);
    assert_eq!(door.scrape(105, &[(UP, 1.0)]), []);
    let over = events(door.tick(125));
    assert_eq!(over.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Bye]);
    assert_eq!(over[0].code, None, "nobody says how it ended");
}

#[test]
fn silence_of_the_sender_is_no_silence_of_the_run() {
    let mut door = Door::new(Config::default());
    for second in [0, 15, 30] {
        door.scrape(second, &[(STEP, second as f64), (UP, 1.0)]);
    }
    assert_eq!(door.tick(80), []);
    assert!(matches!(door.tick(91)[..], [Report::Down { .. }]), "four scrapes are missed");
    assert_eq!(door.tick(120), [], "said once");
    assert_eq!(door.scrape(150, &[(STEP, 90.0)])[0], Report::Up);
}

#[test]
fn a_run_has_the_name_that_it_has_on_every_other_way_in() {
    let mut door = Door::new(Config::default());
    let loss = |run: &str| format!(r#"train_loss{{run="{run}",instance="a:1"}}"#);
    let named = |run: &str| series(&loss(run), &[(NOW.0, 2.5)]);
    door.write(vec![named(" \u{202e}llama\t"), named("\u{200b}"), named(" ")]);
    let found = events(door.tick(9));
    assert_eq!(found.iter().map(|e| e.run.as_deref()).collect::<Vec<_>>(), [Some("llama")]);
}

#[test]
fn a_reading_that_its_unit_makes_infinite_is_none() {
    let mut door = Door::new(Config::default());
    let clock = r#"DCGM_FI_DEV_SM_CLOCK{UUID="GPU-1",Hostname="node001",instance="dcgm:9400"}"#;
    door.scrape(0, &[(clock, 1e305)]);
    assert_eq!(door.tick(3), []);
}

#[test]
fn devices_of_nodes_are_readings() {
    let mut door = Door::new(Config::default());
    let dcgm = |field: &str| {
        format!(r#"DCGM_FI_DEV_{field}{{gpu="0",UUID="GPU-1",Hostname="node001",instance="dcgm:9400"}}"#)
    };
    let (clock, util) = (dcgm("SM_CLOCK"), dcgm("GPU_UTIL"));
    let port = r#"node_infiniband_link_downed_total{device="mlx5_0",port="1",instance="node001:9100"}"#;
    door.scrape(0, &[(&clock, 1980.0), (&util, 97.0), (port, 3.0)]);
    let read = events(door.tick(3));
    let gpu = read.iter().find(|e| e.name.as_deref() == Some("gpu")).unwrap();
    assert_eq!((gpu.kind, gpu.node.as_deref()), (Kind::Health, Some("node001")));
    assert_eq!((gpu.m.get("sm_clock_hertz"), gpu.m.get("utilization_ratio")), (Some(1.98e9), Some(0.97)));
    assert_eq!(gpu.extra["gpu"], Value::Text("GPU-1".into()));
    let port = read.iter().find(|e| e.name.as_deref() == Some("rdma")).unwrap();
    assert_eq!((port.m.get("link_downed"), &port.extra["port"]), (Some(3.0), &Value::Text("1".into())));
}

#[test]
fn what_a_rule_names_is_watched_and_a_counter_by_its_rate() {
    let mut door = Door::new(generic(r#"{__name__=~"nfs_.*"}"#));
    let mut read = |second: i64, name: &str, value: f64| {
        door.now = Ts(NOW.0 + second * 1000);
        let text = format!("{name}{{instance=\"a:9100\",job=\"node\"}}");
        let batch = door.write(vec![series(&text, &[(door.now.0, value)])]);
        batch.readings.iter().map(|r| (r.name.text.to_string(), r.value)).collect::<Vec<_>>()
    };
    let gauge = r#"nfs_open_files{instance="a:9100",job="node"}"#.to_owned();
    assert_eq!(read(0, "nfs_open_files", 5.0), [(gauge, 5.0)]);
    assert_eq!(read(0, "nfs_reads_total", 100.0), []);
    assert_eq!(read(10, "nfs_reads_total", 150.0)[0].1, 5.0);
    assert_eq!(read(20, "nfs_reads_total", 10.0), [], "started anew");
    assert_eq!(read(30, "nfs_reads_total", 20.0)[0].1, 1.0);
    assert_eq!(read(30, "cpu_seconds", 20.0), []);
    assert_eq!((door.registry.series(), door.registry.watched()), (3, 2));
}

#[test]
fn rules_of_the_operator_go_first() {
    let rule = RunRule {
        series: r#"my_objective{team="a"}"#.parse().unwrap(),
        signal: "loss".into(),
        run: "exp".into(),
        rank: "worker".into(),
        scale: 0.5,
    };
    let config = Config {
        runs: vec![rule],
        drop: vec![r#"train_loss{run="scratch"}"#.parse().unwrap()],
        ..Config::default()
    };
    let mut door = Door::new(config);
    let mine = r#"my_objective{team="a",exp="e1",worker="3",instance="a:1"}"#;
    door.scrape(
        0,
        &[(mine, 8.0), (r#"train_loss{run="scratch"}"#, 1.0), (r#"my_objective{team="b",exp="e2"}"#, 1.0)],
    );
    let found = events(door.tick(9));
    assert_eq!(found.len(), 1, "{found:?}");
    let e = &found[0];
    assert_eq!((e.run.as_deref(), e.rank, e.m.get("loss")), (Some("e1"), Some(3), Some(4.0)));
}

#[test]
fn samples_that_cannot_be_judged_are_counted_with_the_reason() {
    let mut door = Door::new(generic("x"));
    let at = |seconds: i64| NOW.0 + 1000 * seconds;
    let batch = door.write(vec![series("x", &[(at(0), 1.0), (at(0), 2.0), (at(-5), 3.0), (at(1), 4.0)])]);
    assert_eq!(batch.readings.iter().map(|r| r.value).collect::<Vec<_>>(), [1.0, 4.0]);
    assert_eq!((door.registry.counts.out_of_order, batch.refused), (2, 0), "as if they were written");
    let batch = door.write(vec![series("x{a=\"old\"}", &[(at(-301), 1.0)])]);
    assert_eq!((batch.readings.len(), door.registry.counts.too_old), (0, 1));
    let batch = door.write(vec![series("x", &[(at(601), 1.0)])]);
    assert_eq!((batch.refused, door.registry.counts.too_far_ahead), (1, 1));
    assert!(batch.why.unwrap().contains("check the clocks"));
    assert_eq!(door.write(vec![series("x", &[(at(2), 9.0)])]).readings.len(), 1, "it spoils nothing");
}

#[test]
fn labels_that_are_none_are_refused_and_the_rest_is_taken() {
    let mut door = Door::new(generic("x"));
    let good = |a: &str| series(&format!("x{{a=\"{a}\"}}"), &[(NOW.0, 1.0)]);
    let mut twice = good("1");
    twice.labels.push(twice.labels[1].clone());
    let mut nameless = good("2");
    nameless.labels.remove(0);
    let mut long = good("3");
    long.labels[1].value = "v".repeat(MAX_VALUE + 1);
    let mut many = good("4");
    for i in 0..MAX_LABELS {
        many.labels.push(Label { name: format!("l{i:03}"), value: "v".to_owned() });
    }
    for (bad, word) in [(twice, "twice"), (nameless, "__name__"), (long, "2049 bytes"), (many, "66 labels")] {
        let batch = door.write(vec![bad, good(word)]);
        assert_eq!((batch.refused, batch.readings.len()), (1, 1), "{word}");
        assert!(batch.why.as_ref().unwrap().contains(word), "{:?}", batch.why);
    }
    assert_eq!(door.registry.counts.invalid, 4);
}

#[test]
fn beyond_the_limits_series_are_counted_and_dropped() {
    let config = Config { max_series: 4, max_series_per_tenant: 2, max_watched: 1, ..generic("x") };
    let mut door = Door::new(config);
    let of = |name: &str, n: usize| -> Vec<_> {
        (0..n).map(|i| series(&format!("{name}{{a=\"{i}\"}}"), &[(NOW.0, 1.0)])).collect()
    };
    assert_eq!(door.write(of("x", 3)).readings.len(), 1);
    assert_eq!(door.registry.counts.over_watched, 2);
    door.write_as("team-a", of("y", 3));
    assert_eq!((door.registry.series(), door.registry.counts.over_tenant), (3, 1));
    let batch = door.write(of("z", 3));
    assert_eq!((door.registry.counts.over_series, batch.refused), (2, 0), "nothing to repeat");
    // Series that are no longer sent make room.
    door.now = Ts(NOW.0 + 2 * 3_600_000);
    door.write(of("w", 2));
    assert_eq!(door.registry.series(), 2);
}

#[test]
fn tenants_have_series_of_their_own() {
    let mut door = Door::new(generic("x"));
    let one = || vec![series("x", &[(NOW.0, 1.0)])];
    let ids: Vec<_> = ["", "a", "b"].map(|tenant| door.write_as(tenant, one()).readings[0].id).to_vec();
    assert_eq!(ids, [0, 1, 2]);
    for i in 0..MAX_TENANTS {
        door.registry.tenant(&format!("t{i}"));
    }
    assert!(door.registry.tenant("one too many").is_none());
    assert!(door.registry.tenant("a").is_some());
}

#[test]
fn a_pair_of_replicas_is_one_series() {
    let mut door = Door::new(generic("x"));
    let from = |replica: &str, seconds: i64| {
        vec![series(&format!("x{{prometheus_replica=\"{replica}\"}}"), &[(NOW.0 + 1000 * seconds, 1.0)])]
    };
    let first = door.write(from("a", 0)).readings;
    let second = door.write(from("b", 1)).readings;
    assert_eq!((first[0].id, second.len()), (second[0].id, 1));
    assert!(door.write(from("a", 1)).readings.is_empty(), "the other has sent it");
}

#[test]
fn a_request_with_more_than_is_judged_at_once_is_repeated_until_it_is_through() {
    let mut door = Door::new(generic("x"));
    let samples: Vec<_> = (0..MAX_READINGS as i64 + 10).map(|i| (NOW.0 - 250_000 + i, i as f64)).collect();
    let first = door.write(vec![series("x", &samples)]);
    assert!(first.full && first.readings.len() == MAX_READINGS, "{}", first.readings.len());
    let again = door.write(vec![series("x", &samples)]);
    assert_eq!((again.full, again.readings.len()), (false, 10));
    assert_eq!(again.readings[0].value, MAX_READINGS as f64, "nothing is missing, nothing comes twice");
}

#[test]
fn labels_that_differ_late_are_of_two_series() {
    let mut door = Door::new(Config::default());
    let long = "c".repeat(1100);
    let of = |run: &str| {
        let text = |name: &str| format!("{name}{{cluster=\"{long}\",instance=\"a:1\",run=\"{run}\"}}");
        [series(&text("train_step"), &[(NOW.0, 7.0)]), series(&text("train_loss"), &[(NOW.0, 2.0)])]
    };
    let found = events(reports(door.write([of("one"), of("two")].concat())));
    let runs: Vec<_> = found.iter().map(|e| e.run.clone().unwrap()).collect();
    assert_eq!(runs, ["one", "two"]);
}

#[test]
fn runs_are_limited_and_what_one_scrape_says_too() {
    let mut door = Door::new(Config::default());
    let of = |n: usize| {
        (0..n).map(|i| series(&format!("train_step{{run=\"r{i}\",instance=\"a:1\"}}"), &[(NOW.0, 1.0)]))
    };
    door.write(of(1100).collect());
    assert_eq!(door.registry.over_groups(), 1100 - 512);
    let toggles: Vec<_> = (0..1000).map(|i| (NOW.0 + i, (i % 2) as f64)).collect();
    // Without a step, reports about the run wait for one.
    let of = |name: &str| format!("{name}{{run=\"r\",instance=\"a:1\"}}");
    let mut door = Door::new(Config::default());
    door.write(vec![series(&of("train_checkpoint_in_progress"), &toggles)]);
    let found = door.write(vec![series(&of("train_step"), &[(NOW.0 + 2000, 1.0)])]);
    assert!(found.reports.len() <= 66, "{}", found.reports.len());
}
