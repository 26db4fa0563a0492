use super::*;

fn who() -> Who {
    Who { run: "r".into(), rank: 3, certain: true, world: Some(8), ..Who::default() }
}

/// Readings, the last step known from any source, and a clock that advances by ten seconds a
/// report.
struct Bench {
    readings: Readings,
    known: Option<i64>,
    now: f64,
}

impl Bench {
    fn new() -> Self {
        Self { readings: Readings::new(1000.0), known: None, now: 1000.0 }
    }

    /// Reports named values. Returns the events without `hello`.
    fn report(&mut self, values: &[(&'static str, Value)]) -> Vec<Event> {
        self.report_of(None, values)
    }

    fn report_of(&mut self, step: Option<i64>, values: &[(&'static str, Value)]) -> Vec<Event> {
        self.now += 10.0;
        let names = Names::default();
        let readings = values.iter().map(|(n, v)| names.reading(n, "", *v)).collect();
        let report = Report { time: Some(self.now), step, readings, only_with_steps: false };
        let mut events = self.readings.take(&who(), report, self.known, self.now).events;
        events.retain(|e| e.kind != Kind::Hello);
        // The training state would keep this step.
        self.known = events.iter().filter_map(|e| e.step).max().max(self.known);
        events
    }
}

fn gauge(v: f64) -> Value {
    Value::Gauge(v)
}

fn durations(count: f64, sum: f64) -> Value {
    Value::Durations { count, sum, cumulative: true, start: Some(1001.0) }
}

fn step_and(events: &[Event], name: &str) -> (Option<i64>, Option<f64>) {
    assert_eq!(events.len(), 1, "{events:?}");
    (events[0].step, events[0].m.get(name))
}

#[test]
fn steps_that_are_given() {
    let mut b = Bench::new();
    let first = b.report(&[("step", gauge(7.0)), ("loss", gauge(2.5)), ("lr", gauge(0.1))]);
    assert_eq!(step_and(&first, "loss"), (Some(7), Some(2.5)));
    assert_eq!((first[0].ts, first[0].rank, first[0].world), (Some(1010.0), Some(3), Some(8)));
    assert!(!first[0].extra.contains_key(STEP_FROM));
    assert!(b.report(&[("step", gauge(7.0)), ("loss", gauge(2.5)), ("lr", gauge(0.1))]).is_empty());
    let moved = b.report(&[("step", gauge(9.0)), ("loss", gauge(2.5)), ("lr", gauge(0.1))]);
    assert_eq!(step_and(&moved, "lr"), (Some(9), None), "nobody set it again");
    assert_eq!(moved[0].m.get("loss"), Some(2.5), "a loss that stays is looked into");
    let late = b.report(&[("step", gauge(9.0)), ("loss", gauge(2.25))]);
    assert_eq!(step_and(&late, "loss"), (Some(9), Some(2.25)));
    let back = b.report(&[("step", gauge(1.0)), ("loss", gauge(2.0))]);
    assert_eq!(step_and(&back, "loss"), (Some(1), Some(2.0)), "a restart is published as it is");
    let by_attribute = b.report_of(Some(4), &[("loss", gauge(1.0))]);
    assert_eq!(step_and(&by_attribute, "loss"), (Some(4), Some(1.0)));
}

#[test]
fn what_nobody_has_set_is_not_zero() {
    let mut b = Bench::new();
    let events = b.report(&[("step", gauge(0.0)), ("loss", gauge(0.0)), ("memory", gauge(5.0))]);
    assert_eq!((step_and(&events, "loss"), events[0].m.get("memory")), ((Some(0), None), Some(5.0)));
    assert_eq!(
        step_and(&b.report(&[("step", gauge(1.0)), ("loss", gauge(0.0))]), "loss"),
        (Some(1), Some(0.0))
    );
}

#[test]
fn a_counter_of_steps_is_a_step() {
    let mut b = Bench::new();
    let total = |total| Value::Total { total, start: None };
    assert_eq!(step_and(&b.report(&[("axolotl_global_steps_total", total(5.0))]), "loss").0, Some(5));
    assert_eq!(step_and(&b.report(&[("axolotl_global_steps_total", total(6.0))]), "loss").0, Some(6));
    assert!(b.report(&[("axolotl_global_steps_total", total(6.0))]).is_empty());
}

#[test]
fn steps_that_are_counted_say_so() {
    let mut b = Bench::new();
    let report = [("step_duration_ms", durations(5.0, 20_000.0)), ("loss", gauge(2.5))];
    let first = b.report(&report);
    assert_eq!(step_and(&first, "step_time"), (Some(5), Some(4.0)));
    assert_eq!(first[0].extra[STEP_FROM].as_str(), Some("durations"));
    assert_eq!(first[0].ts, None, "no step time may be derived from it");
    assert!(b.report(&report).is_empty(), "nothing happened");
    let next = b.report(&[("step_duration_ms", durations(7.0, 30_000.0)), ("loss", gauge(2.5))]);
    assert_eq!(step_and(&next, "step_time"), (Some(7), Some(5.0)));
    let reborn = Value::Durations { count: 1.0, sum: 3000.0, cumulative: true, start: Some(1500.0) };
    assert_eq!(step_and(&b.report(&[("step_duration_ms", reborn)]), "step_time"), (Some(1), Some(3.0)));
}

#[test]
fn without_anything_to_count_reports_that_bring_something_are_steps() {
    let mut b = Bench::new();
    let first = b.report(&[("loss", gauge(3.0))]);
    assert_eq!(step_and(&first, "loss"), (Some(1), Some(3.0)));
    assert_eq!(first[0].extra[STEP_FROM].as_str(), Some("reports"));
    for _ in 0..3 {
        assert!(b.report(&[("loss", gauge(3.0))]).is_empty(), "a trainer that hangs makes no steps");
    }
    assert_eq!(step_and(&b.report(&[("loss", gauge(2.0))]), "loss"), (Some(2), Some(2.0)));
    let nan = b.report(&[("loss", gauge(f64::NAN))]);
    assert!(nan[0].m.get("loss").unwrap().is_nan());
}

#[test]
fn memory_makes_no_steps() {
    let mut b = Bench::new();
    b.report(&[("loss", gauge(3.0)), ("memory", gauge(1.0))]);
    assert!(b.report(&[("loss", gauge(3.0)), ("memory", gauge(2.0))]).is_empty());
    let events = b.report(&[("loss", gauge(2.0)), ("memory", gauge(3.0))]);
    assert_eq!(step_and(&events, "memory"), (Some(2), Some(3.0)));
    let mut b = Bench::new();
    b.report(&[("my own", gauge(1.0))]);
    assert_eq!(step_and(&b.report(&[("my own", gauge(2.0))]), "my own"), (Some(2), Some(2.0)));
}

#[test]
fn what_was_measured_is_news_although_it_is_the_same() {
    let mut b = Bench::new();
    for step in 1..3 {
        let events = b.report_of(Some(step), &[("loss", Value::Measured(2.0))]);
        assert_eq!(step_and(&events, "loss"), (Some(step), Some(2.0)));
    }
    let rest = b.report(&[("memory", gauge(2.0))]);
    assert_eq!(step_and(&rest, "memory"), (Some(2), Some(2.0)), "to the last step that was reported");
}

#[test]
fn nan_that_stays_is_nan_again() {
    let mut b = Bench::new();
    for step in 1..4 {
        let events = b.report(&[("step", gauge(f64::from(step))), ("loss", gauge(f64::NAN))]);
        assert!(events[0].m.get("loss").unwrap().is_nan(), "{step}");
    }
}

#[test]
fn counting_goes_on_after_a_restart_of_ours() {
    let mut b = Bench::new();
    b.known = Some(41);
    let first = b.report(&[("loss", gauge(3.0))]);
    assert_eq!(step_and(&first, "loss"), (Some(42), Some(3.0)));
}

#[test]
fn a_step_that_is_seen_again_after_a_restart_of_ours_is_not_published_again() {
    let mut b = Bench::new();
    b.known = Some(41);
    assert!(b.report(&[("step", gauge(41.0)), ("loss", gauge(2.5))]).is_empty());
    assert_eq!(
        step_and(&b.report(&[("step", gauge(42.0)), ("loss", gauge(2.25))]), "loss"),
        (Some(42), Some(2.25))
    );
}

#[test]
fn readings_without_a_step_go_to_the_last_that_another_source_reported() {
    let mut b = Bench::new();
    b.known = Some(100);
    b.report(&[("loss", gauge(3.0))]);
    b.known = Some(120);
    let events = b.report(&[("loss", gauge(2.0))]);
    assert_eq!(step_and(&events, "loss"), (Some(120), Some(2.0)));
    assert!(!events[0].extra.contains_key(STEP_FROM));
    assert_eq!(step_and(&b.report(&[("loss", gauge(1.5))]), "loss"), (Some(120), Some(1.5)));
}

#[test]
fn counters_are_what_they_grew_by() {
    let mut b = Bench::new();
    let total = |total| Value::Total { total, start: Some(500.0) };
    let report = |step, skipped, tokens| {
        [
            ("step", gauge(step)),
            ("skipped_iters", total(skipped)),
            ("tokens.processed", total(tokens)),
            ("mine", total(tokens)),
        ]
    };
    b.report(&report(10.0, 3.0, 1000.0));
    let events = b.report(&report(20.0, 5.0, 3000.0));
    let m = &events[0].m;
    assert_eq!(
        (m.get("skipped"), m.get("tokens"), m.get("tokens_per_second")),
        (Some(2.0), None, Some(200.0))
    );
    assert_eq!(m.get("mine"), Some(3000.0), "a total of the trainer's own stays one");
}

#[test]
fn evaluations_are_events_of_their_own() {
    let mut b = Bench::new();
    let events = b.report(&[("step", gauge(5.0)), ("eval_loss", gauge(3.0)), ("eval_acc", gauge(0.5))]);
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Step, Kind::Eval]);
    assert_eq!((events[1].m.get("loss"), events[1].m.get("acc")), (Some(3.0), Some(0.5)));
    let events = b.report(&[("step", gauge(6.0)), ("eval_loss", gauge(3.0))]);
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Step], "it is the same one");
}

#[test]
fn only_with_steps_waits_for_steps() {
    let mut readings = Readings::new(0.0);
    let mut take = |value: f64, known| {
        let meaning = Meaning::Metric("blocked".into(), 1.0);
        let readings_of = vec![Reading { meaning, known: true, value: gauge(value) }];
        let report = Report { readings: readings_of, only_with_steps: true, ..Report::default() };
        readings.take(&who(), report, known, 1.0)
    };
    let taken = take(1.0, None);
    assert_eq!((taken.events.len(), taken.dropped), (1, 1), "only the hello");
    let taken = take(2.0, Some(9));
    assert_eq!(step_and(&taken.events, "blocked"), (Some(9), Some(2.0)));
}

#[test]
fn ranks_are_bounded() {
    let mut readings = Readings::new(0.0);
    for rank in 0..MAX_RANKS as u32 + 10 {
        let who = Who { rank, ..who() };
        readings.take(&who, Report::default(), None, f64::from(rank));
    }
    assert_eq!(readings.ranks.len(), MAX_RANKS);
    assert!(!readings.ranks.contains_key(&("r".into(), 0)));
}

/// A report with many series with long names.
fn wide(readings: &mut Readings, run: &str, rank: u32, now: f64) -> u64 {
    let reading = |n: usize| Reading {
        meaning: Meaning::Metric(format!("{n:0120}").into(), 1.0),
        known: false,
        value: Value::Gauge(1.0),
    };
    let all = (0..value::MAX_SERIES).map(reading).collect();
    let report = Report { step: Some(1), readings: all, ..Report::default() };
    readings.take(&Who { run: run.into(), rank, ..who() }, report, None, now).dropped
}

#[test]
fn a_run_that_has_most_makes_room() {
    let mut readings = Readings::new(0.0);
    wide(&mut readings, "small", 0, 0.0);
    let forgotten: u64 = (0..200).map(|rank| wide(&mut readings, "large", rank, f64::from(rank + 1))).sum();
    assert!(forgotten > 0, "and it is counted");
    assert!(readings.bytes <= MAX_BYTES + (128 + 96) * value::MAX_SERIES, "{}", readings.bytes);
    assert!(readings.ranks.contains_key(&("small".into(), 0)), "although it was not heard of for longest");
    assert!(readings.ranks.contains_key(&("large".into(), 199)));
    let bytes: usize = readings.ranks.values().map(|rank| rank.series.bytes()).sum();
    assert_eq!(readings.bytes, bytes);
    for rank in 0..200 {
        readings.forget(&Who { run: "large".into(), rank, ..who() });
    }
    assert_eq!(readings.ranks.len(), 1);
}

#[test]
fn a_user_with_most_makes_room_in_however_many_runs() {
    let mut readings = Readings::new(0.0);
    for rank in 0..8 {
        readings.take(&Who { rank, principal: Principal::User(1000), ..who() }, Report::default(), None, 0.0);
    }
    for n in 0..MAX_RANKS * 2 {
        let who = Who { run: format!("invented-{n}"), principal: Principal::User(1001), ..who() };
        readings.take(&who, Report::default(), None, 1.0);
    }
    assert_eq!(readings.ranks.len(), MAX_RANKS);
    assert_eq!(readings.ranks.keys().filter(|(run, _)| run == "r").count(), 8);
}

proptest::proptest! {
    /// For any reports, a given step is never changed, and values are those that were reported.
    #[test]
    fn given_steps_and_values_are_kept(reports in proptest::collection::vec((0i64..50, 0u8..4), 1..40)) {
        let mut b = Bench::new();
        for (step, loss) in reports {
            for event in b.report(&[("step", gauge(step as f64)), ("loss", gauge(f64::from(loss)))]) {
                proptest::prop_assert_eq!(event.step, Some(step));
                proptest::prop_assert!(event.m.get("loss").is_none_or(|l| l == f64::from(loss)));
            }
        }
    }
}
