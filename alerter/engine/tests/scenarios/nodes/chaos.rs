//! Whatever an exporter sends: nothing panics, no timer spins, and what is remembered has a limit.

use proptest::prelude::*;

use stepwatch_wire::{CkptPhase, Event, Kind, Value};

use super::bench::Bench;

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[A-Za-z0-9:./-]{0,12}".prop_map(Value::Text),
        any::<f64>().prop_map(Value::Number),
        any::<bool>().prop_map(Value::Bool),
        Just(Value::Null),
        Just(Value::Text("GPU-1".into())),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![Just(Kind::Xid), Just(Kind::Link), Just(Kind::Hw), Just(Kind::Health)];
    let name = prop_oneof![
        Just("xid".to_owned()),
        Just("gpu".to_owned()),
        Just("config".to_owned()),
        Just("job".to_owned()),
        Just("gpu_lost".to_owned()),
        Just("gpu_throttled".to_owned()),
        "[a-z_/0-9]{0,8}",
    ];
    let key = prop_oneof![
        Just("gpu"),
        Just("pci"),
        Just("state"),
        Just("medium"),
        Just("again"),
        Just("once"),
        Just("action"),
        Just("index"),
        Just("fingerprint"),
        Just("part"),
        Just("parts"),
        Just("job"),
        Just("caused_by"),
        Just("other"),
    ];
    let metric = prop_oneof![
        Just("sm_clock_hertz"),
        Just("sm_clock_max_hertz"),
        Just("utilization_ratio"),
        Just("ecc_corrected"),
        Just("remapped_rows_correctable"),
        Just("throttle_hw_slowdown"),
        Just("throttled_x_seconds"),
        Just("power_watts"),
    ];
    (
        kind,
        proptest::option::of(name),
        proptest::option::of(any::<i32>()),
        proptest::option::of("(error|warn|info|odd)"),
        proptest::option::of("\\PC{0,20}"),
        proptest::collection::btree_map(key.prop_map(str::to_owned), value(), 0..8),
        proptest::collection::vec((metric, any::<f64>()), 0..6),
    )
        .prop_map(|(kind, name, code, level, text, extra, metrics)| {
            let mut e = Event { name, level, text, extra, code: code.map(i64::from), ..Event::new(kind) };
            for (name, v) in metrics {
                e.m.set(name, v);
            }
            e
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn anything_may_be_said(events in proptest::collection::vec((event(), 0u8..3, 0i64..900), 1..120)) {
        let mut b = Bench::with_run("llama", &["n0", "n1"]);
        for (mut e, node, pause) in events {
            e.node = Some(format!("n{node}"));
            b.feed(e);
            b.wait(pause);
        }
        b.restart();
        b.wait(10 * 86_400);
        prop_assert!(b.engine.nodes().count() == 0, "all forgotten");
        prop_assert!(b.engine.open_incidents().count() == 0, "{:?}", b.engine.open_incidents().collect::<Vec<_>>());
    }
}

#[test]
fn a_node_that_never_stops_talking_costs_no_more_and_more() {
    let mut b = Bench::new();
    let size = |b: &mut Bench, rounds: u32| {
        for i in 0..rounds {
            let mut e = super::bench::xid("n1", i64::from(i % 500), "warn", "reset_gpu", "again");
            e.extra.insert("gpu".into(), Value::Text(format!("GPU-{}", i % 300)));
            b.feed(e);
            b.feed(super::bench::reading(
                "n1",
                i % 200,
                &[("ecc_corrected", f64::from(i)), ("utilization_ratio", 1.0)],
            ));
            b.wait(61);
        }
        b.parts["node/n1"].len()
    };
    let first = size(&mut b, 1500);
    let second = size(&mut b, 1500);
    assert!(second < first + first / 10 && second < 300_000, "{first} then {second}");
}

#[test]
fn the_ends_of_the_numbers_are_steps_like_others() {
    let far = 1 << 53;
    for order in [[i64::MIN, i64::MAX, 0], [-far, far, -1], [far, -far - 1, 1], [0, i64::MIN, i64::MAX]] {
        let mut b = Bench::new();
        for (i, step) in (0..).zip(order.into_iter().cycle().take(60)) {
            b.wait(1);
            let mut e = Event::step("llama", step);
            (e.rank, e.attempt, e.node) = (Some(i % 2), Some(i / 20), Some("n1".into()));
            let mut late = e.clone();
            e.m.set("loss", 2.0);
            b.feed(e);
            late.m.set("loss", f64::NAN);
            late.m.set("grad_norm", f64::NAN);
            b.feed(late);
            let saved = Event { ckpt: Some(CkptPhase::End), ..Event::new(Kind::Ckpt) };
            b.feed(Event { run: Some("llama".into()), step: Some(step), ..saved });
        }
        assert!(b.incidents.iter().any(|i| i.kind == stepwatch_model::Kind::Nonfinite), "{:?}", b.incidents);
    }
}
