use super::*;

fn value(value: f64) -> Value<'static> {
    Value { signal: "loss", value, expectation: None }
}

fn sample<'a>(run: &'a str, now: Ts, step: i64, values: &'a [Value<'a>]) -> Recorded<'a> {
    Recorded { run, now, attempt: 0, step, at: now, mark: None, values }
}

#[test]
fn a_run_has_its_signals_and_its_marks() {
    let table = SeriesTable::default();
    let record = |attempt, step, mark| {
        let (now, values) = (Ts(step * 1000 + i64::from(attempt)), [value(step as f64)]);
        table.record(&Recorded { attempt, mark, ..sample("a", now, step, &values) });
    };
    (0..100).for_each(|step| record(0, step, (step % 30 == 20).then_some(MarkKind::Checkpoint)));
    (40..60).for_each(|step| record(1, step, None));
    let window = table.window("a", "loss", Some(10), None, 1000).unwrap();
    assert_eq!((window.points.len(), window.sequence), (50, 120));
    assert_eq!(window.points[0].step, 10);
    assert_eq!(window.points[40].at, Some(Ts(50_001)));
    let marks: Vec<_> = window.marks.iter().map(|m| (m.step, m.kind)).collect();
    assert_eq!(marks, [(20, MarkKind::Checkpoint), (40, MarkKind::Restart)]);
    assert_eq!(table.signals("a"), ["loss"]);
    assert!(table.window("a", "los", None, None, 10).is_none());
    assert!(table.window("b", "loss", None, None, 10).is_none());
    assert_eq!(table.latest("a")[0].value, Some(59.0));
}

#[test]
fn a_run_has_so_many_signals_and_no_more() {
    let table = SeriesTable::default();
    let names: Vec<String> = (0..MAX_SIGNALS + 3).map(|i| format!("signal {i}")).collect();
    let values: Vec<Value<'_>> =
        names.iter().map(|signal| Value { signal, value: 1.0, expectation: None }).collect();
    (0..2).for_each(|step| table.record(&sample("a", Ts(0), step, &values)));
    assert_eq!((table.len(), table.signals("a").len()), (MAX_SIGNALS, MAX_SIGNALS));
    assert_eq!(table.dropped(), Dropped { values: 6, ..Dropped::default() });
}

#[test]
fn the_longest_idle_run_makes_room_and_a_busy_one_does_not() {
    let table = SeriesTable::default();
    let values = [value(1.0)];
    for i in 0..MAX_RUNS {
        table.record(&sample(&format!("run {i}"), Ts(i as i64), 0, &values));
    }
    table.record(&sample("new", Ts(1000), 0, &values));
    assert!(table.signals("new").is_empty());
    assert_eq!(table.dropped(), Dropped { samples: 1, ..Dropped::default() });
    let later = Ts(1000) + BUSY;
    table.record(&sample("new", later, 0, &values));
    assert!(table.signals("run 0").is_empty() && !table.signals("run 1").is_empty());
    assert_eq!((table.len(), table.dropped().runs), (MAX_RUNS, 1));
}

#[test]
fn a_run_is_forgotten_a_week_after_its_last_step() {
    let table = SeriesTable::default();
    table.record(&sample("old", Ts(0), 0, &[value(1.0)]));
    table.record(&sample("new", Ts(1), 0, &[value(1.0)]));
    assert!(table.forget_idle(Ts(0) + KEEP).is_empty());
    assert_eq!(table.forget_idle(Ts(1) + KEEP), ["old"]);
    assert_eq!((table.len(), table.runs()), (1, vec!["new".to_owned()]));
}

#[test]
fn a_restart_goes_on_where_the_series_were() {
    let table = SeriesTable::default();
    let record = |table: &SeriesTable, steps: core::ops::Range<i64>| {
        for step in steps {
            let e = Expectation { expected: 2.0, low: 1.0, high: 4.0 };
            let loss = Value { expectation: Some(e), ..value(2.0) };
            table.record(&sample("a", Ts(step * 1000), step, &[loss]));
        }
    };
    record(&table, 0..50_000);
    let every = Span::secs(10);
    let parts = table.take_parts(Ts(50_000_000), every, 9);
    assert_eq!(parts.iter().map(|p| p.signal.as_str()).collect::<Vec<_>>(), ["", "loss"]);
    assert!(table.take_parts(Ts(90_000_000), every, 9).is_empty(), "nothing changed");
    let again = SeriesTable::default();
    assert_eq!(again.restore(&parts), 0);
    let whole = |table: &SeriesTable| table.window("a", "loss", None, None, 1024).unwrap();
    assert_eq!(whole(&again), whole(&table));
    assert!(again.bytes() <= MAX_BYTES && again.len() == 1);
    // Records that are read again from the stream change nothing.
    record(&again, 49_000..50_000);
    assert_eq!(whole(&again).points, whole(&table).points);
    // Parts that were refused are due again at once.
    table.record(&sample("a", Ts(50_001_000), 50_000, &[value(2.0)]));
    assert!(table.take_parts(Ts(50_005_000), every, 9).is_empty(), "written 5 s ago");
    let due = table.take_parts(Ts(50_010_000), every, 1);
    table.unwritten(&due);
    assert_eq!(table.take_parts(Ts(50_020_000), every, 9).len(), 2);
}

#[test]
fn damaged_parts_are_left_out() {
    let table = SeriesTable::default();
    (0..100).for_each(|step| table.record(&sample("a", Ts(0), step, &[value(2.0)])));
    let parts = table.take_parts(Ts(0) + KEEP, Span::secs(1), 9);
    let damaged = |part: &SeriesPart, i: usize| {
        let mut part = part.clone();
        part.data[i] ^= 0xff;
        part
    };
    for i in 0..parts[1].data.len().min(60) {
        let fresh = SeriesTable::default();
        fresh.restore(&[damaged(&parts[1], i)]);
        // A restored run accepts new samples.
        fresh.record(&sample("a", Ts(1), 1_000_000, &[value(2.0)]));
        assert!(fresh.window("a", "loss", None, None, 64).is_some_and(|w| !w.points.is_empty()));
    }
    let fresh = SeriesTable::default();
    assert_eq!(fresh.restore(&[damaged(&parts[0], 0), damaged(&parts[1], 0)]), 2);
}

#[test]
fn a_month_of_a_signal_is_read_in_less_than_50_ms() {
    let table = SeriesTable::default();
    let month = 2_592_000;
    let began = std::time::Instant::now();
    for step in 0..month {
        let expectation = (step % 8 == 0).then_some(Expectation { expected: 2.0, low: 1.0, high: 4.0 });
        let loss = Value { expectation, ..value(2.0 + (step % 13) as f64 / 10.0) };
        table.record(&sample("a", Ts(step * 1000), step, &[loss]));
    }
    let recorded = began.elapsed().as_nanos() / month as u128;
    let read = || {
        let began = std::time::Instant::now();
        let window = table.window("a", "loss", None, None, 1024).unwrap();
        (began.elapsed(), window)
    };
    let (fastest, window) = (0..5).map(|_| read()).min_by_key(|(time, _)| *time).unwrap();
    assert_eq!(window.points.iter().map(|p| i64::from(p.count)).sum::<i64>(), month);
    println!("{recorded} ns to record a value, {fastest:?} to read a month of {} bytes", table.bytes());
    assert!(fastest.as_millis() < 50 && table.bytes() <= MAX_BYTES, "{fastest:?}, {} B", table.bytes());
}
