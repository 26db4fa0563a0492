use proptest::prelude::*;

use super::*;
use crate::oncall::Zone;

fn start(civil: &str) -> When {
    When { civil: civil.parse().unwrap(), zone: Zone::named("Europe/Berlin").unwrap(), day: false }
}

fn dates(rule: &str, begin: &str, n: usize) -> Vec<String> {
    let (begin, end) = (start(begin), "2100-01-01T00:00".parse().unwrap());
    let rule = Rule::parse(rule, &begin, &mut 0).unwrap();
    rule.dates(begin.civil, begin.civil, end).take(n).map(|d| d.date().to_string()).collect()
}

#[test]
fn the_rules_that_shifts_are_made_of() {
    for (rule, begin, want) in [
        ("FREQ=DAILY;COUNT=3", "2026-11-30T09:00", "2026-11-30 2026-12-01 2026-12-02"),
        ("FREQ=DAILY;INTERVAL=3;UNTIL=20261208", "2026-12-01T09:00", "2026-12-01 2026-12-04 2026-12-07"),
        ("FREQ=DAILY;BYDAY=MO,FR;COUNT=3", "2026-12-01T09:00", "2026-12-04 2026-12-07 2026-12-11"),
        ("FREQ=WEEKLY;COUNT=2", "2026-12-02T09:00", "2026-12-02 2026-12-09"),
        (
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,TH;COUNT=4",
            "2026-12-03T09:00",
            "2026-12-03 2026-12-15 2026-12-17 2026-12-29",
        ),
        // Sunday belongs to another week when the week begins with it.
        (
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,SU;WKST=MO;COUNT=4",
            "1997-08-05T09:00",
            "1997-08-05 1997-08-10 1997-08-19 1997-08-24",
        ),
        (
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,SU;WKST=SU;COUNT=4",
            "1997-08-05T09:00",
            "1997-08-05 1997-08-17 1997-08-19 1997-08-31",
        ),
        ("FREQ=MONTHLY;COUNT=3", "2026-01-31T09:00", "2026-01-31 2026-03-31 2026-05-31"),
        ("FREQ=MONTHLY;BYDAY=1MO;COUNT=2", "2026-12-01T09:00", "2026-12-07 2027-01-04"),
        ("FREQ=MONTHLY;BYDAY=-1FR;COUNT=2", "2026-12-01T09:00", "2026-12-25 2027-01-29"),
        ("FREQ=MONTHLY;BYMONTHDAY=-1,15;COUNT=3", "2027-02-01T09:00", "2027-02-15 2027-02-28 2027-03-15"),
        (
            "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;COUNT=2",
            "2026-11-01T09:00",
            "2026-11-30 2026-12-31",
        ),
        ("FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR;COUNT=2", "2026-01-01T09:00", "2026-02-13 2026-03-13"),
        ("FREQ=YEARLY;COUNT=2", "2026-12-24T09:00", "2026-12-24 2027-12-24"),
        ("FREQ=YEARLY;BYMONTH=3;BYDAY=-1SU;COUNT=2", "2026-03-01T02:00", "2026-03-29 2027-03-28"),
        ("FREQ=YEARLY;BYMONTHDAY=2;COUNT=3", "2026-01-02T09:00", "2026-01-02 2026-02-02 2026-03-02"),
        (
            "FREQ=YEARLY;BYMONTH=1;BYMONTHDAY=2,9;COUNT=3",
            "2026-01-02T09:00",
            "2026-01-02 2026-01-09 2027-01-02",
        ),
        ("FREQ=YEARLY;BYMONTH=1,6;COUNT=3", "2026-01-02T09:00", "2026-01-02 2026-06-02 2027-01-02"),
        ("FREQ=YEARLY;BYMONTH=6,1;BYDAY=1MO;COUNT=3", "2026-01-05T09:00", "2026-01-05 2026-06-01 2027-01-04"),
        ("FREQ=YEARLY;BYMONTHDAY=13;BYDAY=FR;COUNT=2", "2026-01-01T09:00", "2026-02-13 2026-03-13"),
        // The clock of the event decides, not that of UNTIL.
        ("FREQ=DAILY;UNTIL=20261202T080000Z", "2026-12-01T09:00", "2026-12-01 2026-12-02"),
        ("FREQ=DAILY;UNTIL=20261202T075959Z", "2026-12-01T09:00", "2026-12-01"),
    ] {
        assert_eq!(dates(rule, begin, 20).join(" "), want, "{rule}");
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    for (rule, part) in [
        ("", "without FREQ"),
        ("FREQ=HOURLY", "FREQ=HOURLY"),
        ("FREQ=DAILY;BYHOUR=9", "BYHOUR is not understood"),
        ("FREQ=WEEKLY;BYDAY=1MO", "numbered day"),
        ("FREQ=YEARLY;BYDAY=20MO", "yearly"),
        ("FREQ=YEARLY;BYDAY=MO", "yearly"),
        ("FREQ=YEARLY;BYMONTHDAY=2;BYDAY=1MO", "yearly"),
        ("FREQ=YEARLY;BYMONTHDAY=2;INTERVAL=2", "yearly"),
        ("FREQ=YEARLY;BYMONTH=1,6;INTERVAL=2", "yearly"),
        ("FREQ=YEARLY;BYMONTH=1,6;BYDAY=MO;BYSETPOS=1", "yearly"),
        ("FREQ=DAILY;INTERVAL=0", "from 1 to 1000"),
        ("FREQ=DAILY;COUNT=x", "from 1"),
        ("FREQ=WEEKLY;BYDAY=XX", "day of the week"),
        ("FREQ", "KEY=VALUE"),
    ] {
        let got = Rule::parse(rule, &start("2026-12-01T09:00"), &mut 0);
        assert!(got.as_ref().is_err_and(|e| e.contains(part)), "{rule}: {got:?}");
    }
}

#[test]
fn a_rule_that_never_holds_ends() {
    assert!(dates("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "2026-02-01T09:00", 5).is_empty());
    assert!(dates("FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30;COUNT=5", "2026-02-01T09:00", 5).is_empty());
}

proptest! {
    /// Looking far ahead finds what counting from the beginning finds.
    #[test]
    fn a_look_from_anywhere_finds_the_same(
        freq in 0usize..4, interval in 1i64..6, days in proptest::sample::subsequence(vec!["MO", "TU", "WE", "SA", "SU"], 0..4),
        week_start in proptest::sample::select(vec!["MO", "SU", "TH"]), begin in 0i64..20_000, ahead in 0i64..2000,
    ) {
        let freq = ["DAILY", "WEEKLY", "MONTHLY", "YEARLY"][freq];
        let by_day = if days.is_empty() || freq == "YEARLY" { String::new() } else { format!(";BYDAY={}", days.join(",")) };
        let text = format!("FREQ={freq};INTERVAL={interval};WKST={week_start}{by_day}");
        let begin = When { civil: Zone::default().civil(stepwatch_model::time::Ts(begin * 86_400_000 + 9 * 3_600_000)), zone: Zone::default(), day: false };
        let rule = Rule::parse(&text, &begin, &mut 0).unwrap();
        let from = begin.civil.saturating_add(SignedDuration::from_hours(24 * ahead));
        let to = from.saturating_add(SignedDuration::from_hours(24 * 100));
        let all: Vec<DateTime> = rule.dates(begin.civil, begin.civil, to).filter(|d| *d >= from).collect();
        let near: Vec<DateTime> = rule.dates(begin.civil, from, to).collect();
        prop_assert_eq!(&near, &all, "{}", text);
        prop_assert!(near.is_sorted());
    }

    #[test]
    fn no_text_makes_it_panic(text in "(FREQ=(DAILY|WEEKLY|MONTHLY|YEARLY)|INTERVAL=[0-9]{1,6}|COUNT=[0-9]{1,12}|UNTIL=[0-9TZ]{0,16}|BYDAY=[-0-9MOTUXFR,]{0,9}|BYMONTHDAY=[-0-9,]{0,9}|BYSETPOS=[-0-9,]{0,9}|BYMONTH=[0-9,]{0,5}|;|=|.){0,8}") {
        if let Ok(rule) = Rule::parse(&text, &start("2026-12-01T09:00"), &mut 0) {
            let begin = start("2026-12-01T09:00").civil;
            prop_assert!(rule.dates(begin, begin, DateTime::MAX).take(50).count() <= 50);
        }
    }
}

#[test]
fn what_a_list_repeats_is_kept_once() {
    let begin = start("2026-12-01T09:00");
    let days = vec!["1,-1"; 5000].join(",");
    let rule = Rule::parse(&format!("FREQ=MONTHLY;BYMONTHDAY={days}"), &begin, &mut 0).unwrap();
    assert_eq!(rule, Rule::parse("FREQ=MONTHLY;BYMONTHDAY=1,-1", &begin, &mut 0).unwrap());
}
