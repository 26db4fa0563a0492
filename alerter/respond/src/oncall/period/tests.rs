use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Ts {
    Ts(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

fn period(json: &str) -> Period {
    serde_json::from_str(json).unwrap()
}

#[test]
fn what_is_listed_must_hold() {
    // 2026-11-21 is a Saturday.
    for (json, moment, holds) in [
        ("{}", "2026-11-21T00:00:00Z", true),
        (r#"{"weekdays":["monday:friday"]}"#, "2026-11-21T12:00:00Z", false),
        (r#"{"weekdays":["monday:friday","saturday"]}"#, "2026-11-21T12:00:00Z", true),
        (r#"{"weekdays":["Sunday:thursday"]}"#, "2026-11-22T12:00:00Z", true),
        (r#"{"weekdays":["sunday:thursday"]}"#, "2026-11-21T12:00:00Z", false),
        (r#"{"times":[{"start_time":"09:00","end_time":"17:00"}]}"#, "2026-11-21T16:59:59Z", true),
        (r#"{"times":[{"start_time":"09:00","end_time":"17:00"}]}"#, "2026-11-21T17:00:00Z", false),
        (r#"{"times":[{"start_time":"22:00","end_time":"24:00"}]}"#, "2026-11-21T23:59:59.999Z", true),
        (r#"{"days_of_month":["1:5"]}"#, "2026-11-05T12:00:00Z", true),
        (r#"{"days_of_month":["-3:-1"]}"#, "2026-11-28T00:00:00Z", true),
        (r#"{"days_of_month":["-3:-1"]}"#, "2026-11-27T23:59:59Z", false),
        (r#"{"days_of_month":["-1"]}"#, "2028-02-29T12:00:00Z", true),
        (r#"{"days_of_month":["25:-1"]}"#, "2026-02-28T12:00:00Z", true),
        (r#"{"days_of_month":["31"]}"#, "2026-11-30T12:00:00Z", false),
        (r#"{"months":["january:march","12"]}"#, "2026-12-01T00:00:00Z", true),
        (r#"{"months":["4:november"]}"#, "2026-12-01T00:00:00Z", false),
        (r#"{"years":["2026:2028"]}"#, "2029-01-01T00:00:00Z", false),
        (r#"{"weekdays":["sunday"],"location":"Pacific/Auckland"}"#, "2026-11-21T12:00:00Z", true),
        (r#"{"weekdays":["saturday"],"months":["december"]}"#, "2026-11-21T12:00:00Z", false),
    ] {
        assert_eq!(period(json).contains(at(moment), &Zone::default()), holds, "{json} {moment}");
    }
}

#[test]
fn an_hour_that_is_repeated_counts_twice_and_one_that_is_left_out_not_at_all() {
    let night = period(r#"{"times":[{"start_time":"02:00","end_time":"03:00"}],"location":"Europe/Berlin"}"#);
    let minutes = |day: &str| {
        let midnight = at(day);
        (0..1440)
            .filter(|m| {
                night.contains(midnight + stepwatch_model::time::Span::secs(m * 60), &Zone::default())
            })
            .count()
    };
    assert_eq!(minutes("2026-03-29T00:00:00Z"), 0);
    assert_eq!(minutes("2026-10-25T00:00:00Z"), 120);
    assert_eq!(minutes("2026-11-21T00:00:00Z"), 60);
}

#[test]
fn a_night_belongs_to_the_day_on_which_it_begins() {
    // 2026-11-20 is a Friday.
    let friday = r#"{"times":[{"start_time":"22:00","end_time":"06:00"}],"weekdays":["friday"],"location":"Europe/Berlin"}"#;
    let last = r#"{"times":["22:00-06:00"],"days_of_month":["-1"]}"#;
    for (json, moment, holds) in [
        (friday, "2026-11-20T20:59:59Z", false),
        (friday, "2026-11-20T21:00:00Z", true),
        (friday, "2026-11-20T23:30:00Z", true),
        (friday, "2026-11-21T04:59:59Z", true),
        (friday, "2026-11-21T05:00:00Z", false),
        (friday, "2026-11-21T21:00:00Z", false),
        (friday, "2026-11-20T02:00:00Z", false),
        (last, "2026-11-30T22:00:00Z", true),
        (last, "2026-12-01T05:59:00Z", true),
        (last, "2026-11-30T05:59:00Z", false),
        (r#"{"times":["22:00-06:00"],"years":["2026"]}"#, "2027-01-01T03:00:00Z", true),
        (r#"{"times":["22:00-06:00"],"years":["2027"]}"#, "2027-01-01T03:00:00Z", false),
        (r#"{"times":["22:00-00:00"],"weekdays":["friday"]}"#, "2026-11-20T23:59:00Z", true),
        (r#"{"times":["22:00-00:00"],"weekdays":["friday"]}"#, "2026-11-21T00:00:00Z", false),
        (r#"{"times":["22:00 - 24:00", "08:00-09:00"]}"#, "2026-11-20T08:30:00Z", true),
    ] {
        assert_eq!(period(json).contains(at(moment), &Zone::default()), holds, "{json} {moment}");
    }
}

#[test]
fn a_range_of_hours_is_more_than_nothing() {
    let range = |start: &str, end: &str| {
        let json = format!(r#"{{"start_time":"{start}","end_time":"{end}"}}"#);
        let parsed = serde_json::from_str::<TimeRange>(&json).map_err(|e| e.to_string());
        let short =
            serde_json::from_str::<TimeRange>(&format!(r#""{start}-{end}""#)).map_err(|e| e.to_string());
        assert_eq!(parsed.is_ok(), short.is_ok(), "{parsed:?} {short:?}");
        parsed.map(drop)
    };
    for (start, end, cure) in [
        ("09:00", "09:00", "nothing or a whole day: write 00:00 to 24:00"),
        ("00:00", "00:00", "write 00:00 to 24:00"),
        ("24:00", "00:00", "write 00:00 to 24:00"),
        ("24:00", "06:00", "write 00:00 to 06:00 for the next day"),
    ] {
        let got = range(start, end);
        assert!(got.as_ref().is_err_and(|e| e.contains(cure)), "{start} {end}: {got:?}");
    }
    for (start, end) in
        [("00:00", "24:00"), ("23:59", "24:00"), ("09:00", "09:01"), ("22:00", "06:00"), ("22:00", "00:00")]
    {
        assert_eq!(range(start, end), Ok(()));
    }
    for (json, part) in [
        (r#""22:00""#, "expected one as in 22:00-06:00"),
        (r#""22-06""#, "not a time of day"),
        ("7", "expected a range of hours, as 22:00-06:00"),
        (r#"{"start_time":"22:00"}"#, "missing field `end_time`"),
        (r#"{"start_time":"22:00","end":"06:00"}"#, "unknown field"),
    ] {
        let got = serde_json::from_str::<TimeRange>(json).map_err(|e| e.to_string());
        assert!(got.as_ref().is_err_and(|e| e.contains(part)), "{json}: {got:?}");
    }
    assert!(Days::parse("25:-7").is_ok(), "the 25th of a month of 31 days is the seventh from its end");
}

#[test]
fn mistakes_are_named() {
    for (result, part) in [
        (Weekdays::parse("funday").map(drop), "expected one of monday tuesday"),
        (Days::parse("0").map(drop), "no day 0"),
        (Days::parse("5:1").map(drop), "ends before it begins"),
        (Days::parse("-1:-3").map(drop), "ends before it begins"),
        (Days::parse("-3:5").map(drop), "ends before it begins"),
        (Days::parse("25:-8").map(drop), "ends before it begins"),
        (Days::parse("32").map(drop), "from -31 to 31"),
        (Months::parse("13").map(drop), "from 1 to 12"),
        (Months::parse("december:january").map(drop), "write two ranges"),
        (Years::parse("26").map(drop), "a year"),
        (Minute::parse("24:01").map(drop), "00:00 to 24:00"),
        (Minute::parse("9:00").map(drop), "00:00 to 24:00"),
    ] {
        assert!(result.as_ref().is_err_and(|e| e.contains(part)), "{part}: {result:?}");
    }
}

proptest! {
    /// Between two neighbouring edges nothing changes: schedules look at edges only.
    #[test]
    fn edges_are_all_there_are(
        start in 0u16..1440, length in 1u16..1440, day in 0i64..40_000, weekday in 0usize..7, place in 0usize..4,
    ) {
        let zone = Zone::named(["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "UTC"][place]).unwrap();
        // Over midnight where it is longer than what is left of the day.
        let range = TimeRange::new(Minute(start), Minute((start + length) % 1440)).unwrap();
        let p = Period { times: vec![range], weekdays: vec![Weekdays::parse(WEEKDAYS[weekday]).unwrap()], ..Period::default() };
        let (from, to) = (Ts(day * 86_400_000), Ts((day + 9) * 86_400_000));
        let mut edges = vec![from];
        p.edges(from, to, &zone, &mut edges);
        edges.retain(|e| (from..to).contains(e));
        edges.sort_unstable();
        let mut moment = from;
        while moment < to {
            let edge = *edges[..edges.partition_point(|e| *e <= moment)].last().unwrap();
            prop_assert_eq!(p.contains(moment, &zone), p.contains(edge, &zone), "{} {}", moment, edge);
            moment = Ts(moment.0 + 15 * 60_000 - 7);
        }
    }
}
