use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::collector::Context;
use crate::collectors::Built;
use crate::nvml::Nvml;
use crate::samples::Value;
use crate::testing;

static VALUE: Family = Family::gauge("test_value", "", &[], "A value");

const DEADLINE: Duration = Duration::from_millis(20);

/// A collector whose pass the test defines.
struct Fake(fn(&mut Samples) -> Result<(), CollectError>);

impl Collector for Fake {
    fn probe(&mut self, _: &Context<'_>) -> Result<Support, CollectError> {
        Ok(Support::Supported("a fake".into()))
    }

    fn collect(&mut self, _: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        self.0(out)
    }
}

struct Absent;

impl Collector for Absent {
    fn probe(&mut self, _: &Context<'_>) -> Result<Support, CollectError> {
        Ok(Support::Unsupported("no such device".into()))
    }

    fn collect(&mut self, _: &Context<'_>, _: &mut Samples) -> Result<(), CollectError> {
        panic!("must not be asked")
    }
}

fn built(collector: impl Collector + 'static) -> Built {
    (Box::new(collector), Rhythm { interval: Duration::from_millis(1), deadline: DEADLINE })
}

/// Waits for ever.
fn hang() {
    let (_sender, never): (_, Receiver<()>) = channel();
    let _ = never.recv();
}

macro_rules! entry {
    ($name:literal, $build:expr) => {
        Entry {
            name: $name,
            about: "",
            needs: "nothing",
            cost: "nothing",
            families: &[],
            build: $build,
            metrics: |config| &config.clock.metrics,
        }
    };
}

static ENTRIES: &[Entry] = &[
    entry!("good", |_| Some(built(Fake(|out| {
        out.set(&VALUE, &[], 7.0);
        Ok(())
    })))),
    entry!("bad", |_| Some(built(Fake(|_| Err(CollectError::Other("no luck".into())))))),
    entry!("wild", |_| Some(built(Fake(|_| panic!("at the disco"))))),
    entry!("hung", |_| Some(built(Fake(|_| {
        hang();
        Ok(())
    })))),
    entry!("part", |_| Some(built(Fake(|out| {
        out.set(&VALUE, &[], 8.0);
        Err(CollectError::Stuck { what: "nvmlInit_v2 for 61 s".into(), over: Duration::from_secs(1) })
    })))),
    entry!("absent", |_| Some(built(Absent))),
    entry!("off", |_| None),
];

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn each_collector_shows_its_own_fate_and_harms_no_other() {
    let schedule = Schedule::start(
        ENTRIES,
        &CollectorsConfig::default(),
        &Access { roots: Arc::default(), hub: testing::hub(), nvml: Nvml::default(), families: Vec::new },
    );
    schedule.wait_first_pass();
    let states = || schedule.status().iter().map(|s| (s.name, s.state)).collect::<Vec<_>>();
    let want = [
        ("good", State::Healthy),
        ("bad", State::Failed),
        ("wild", State::Failed),
        ("hung", State::Stuck),
        ("part", State::Stuck),
        ("absent", State::Unsupported),
        ("off", State::Disabled),
    ];
    eventually("states", || states() == want);
    let details: Vec<_> = schedule.status().into_iter().map(|s| s.detail).collect();
    assert_eq!(
        details,
        [
            "a fake",
            "no luck",
            "panicked: at the disco",
            "a fake",
            "nvmlInit_v2 for 61 s",
            "no such device",
            ""
        ]
    );
    let (mut out, mut own) = (Samples::default(), Samples::default());
    schedule.write(&mut out, &mut own);
    let values: Vec<_> =
        out.iter().filter(|s| s.family.name == VALUE.name).map(|s| s.value.clone()).collect();
    assert_eq!(values, [7.0, 8.0].map(Value::Number), "and what could be read beside what is stuck");
    assert_eq!(own.get(&STUCK, &["part"]), Some(1.0));
    assert_eq!(own.get(&FAILURES, &["part", "error"]), Some(0.0), "stuck is not failed");
    assert_eq!(own.get(&STATE, &["hung", "stuck"]), Some(1.0));
    assert_eq!(own.get(&STATE, &["hung", "healthy"]), None);
    assert_eq!(own.get(&SUCCESS, &["good"]), Some(1.0));
    assert_eq!(own.get(&SUCCESS, &["absent"]), None);
    assert!(own.get(&STUCK, &["hung"]).is_some_and(|s| s > 0.0));
    assert!(own.get(&FAILURES, &["wild", "panic"]).is_some_and(|n| n >= 1.0));
    eventually("a panic is not the end", || {
        let mut own = Samples::default();
        schedule.write(&mut Samples::default(), &mut own);
        own.get(&FAILURES, &["wild", "panic"]).is_some_and(|n| n >= 3.0)
    });
}
