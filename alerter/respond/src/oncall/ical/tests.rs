use proptest::prelude::*;

use super::*;
use crate::Responder;
use crate::config::ResponderConfig;
use crate::effect::Input;
use crate::oncall::{OnCall, OnCallConfig, Schedule, User};
use crate::responder::NoDirectory;

/// An event of a calendar with the given further lines.
fn event(lines: &str) -> String {
    format!("BEGIN:VEVENT\r\nUID:1\r\n{}\r\nEND:VEVENT\r\n", lines.replace('|', "\r\n"))
}

fn calendar(events: &[&str]) -> String {
    let events: String = events.iter().map(|e| event(e)).collect();
    format!("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nX-WR-TIMEZONE:Europe/Berlin\r\n{events}END:VCALENDAR\r\n")
}

fn at(text: &str) -> Ts {
    Ts(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

/// Begin and end of every occurrence in a stretch of time, in Berlin.
fn occurrences(text: &str, from: &str, to: &str) -> Vec<String> {
    let berlin = Zone::named("Europe/Berlin").unwrap();
    let parsed = Calendar::parse(text, &Zone::default()).unwrap();
    assert_eq!(parsed.warnings, Vec::<String>::new());
    let all = parsed.events().iter().flat_map(|e| e.occurrences(at(from), at(to)));
    let mut all: Vec<(Ts, Ts)> = all.collect();
    all.sort_unstable();
    all.iter().map(|(a, b)| format!("{} - {}", berlin.show(*a), berlin.show(*b))).collect()
}

#[test]
fn a_week_has_no_hole_when_the_clock_is_set() {
    let text = calendar(&[
        "DTSTART;TZID=Europe/Berlin:20261019T090000|DTEND;TZID=Europe/Berlin:20261026T090000|RRULE:FREQ=WEEKLY;INTERVAL=2|SUMMARY:alice",
    ]);
    let want =
        ["2026-10-19 09:00 CEST - 2026-10-26 09:00 CET", "2026-11-02 09:00 CET - 2026-11-09 09:00 CET"];
    assert_eq!(occurrences(&text, "2026-10-20T00:00:00Z", "2026-11-10T00:00:00Z"), want);
}

#[test]
fn an_hour_that_is_left_out_or_repeated() {
    // RFC 5545, 3.3.5: 02:30 that is not is 03:30; 02:30 that is twice is the first.
    let text = calendar(&["DTSTART:20260328T023000|DURATION:PT1H|RRULE:FREQ=DAILY;COUNT=3|SUMMARY:x"]);
    let want = [
        "2026-03-28 02:30 CET - 2026-03-28 03:30 CET",
        "2026-03-29 03:30 CEST - 2026-03-29 04:30 CEST",
        "2026-03-30 02:30 CEST - 2026-03-30 03:30 CEST",
    ];
    assert_eq!(occurrences(&text, "2026-03-01T00:00:00Z", "2026-04-10T00:00:00Z"), want);
    let text = calendar(&["DTSTART:20261024T023000|DURATION:PT1H|RRULE:FREQ=DAILY;COUNT=2|SUMMARY:x"]);
    let want =
        ["2026-10-24 02:30 CEST - 2026-10-24 03:30 CEST", "2026-10-25 02:30 CEST - 2026-10-25 02:30 CET"];
    assert_eq!(occurrences(&text, "2026-10-01T00:00:00Z", "2026-11-10T00:00:00Z"), want);
}

#[test]
fn exceptions_and_replacements() {
    let text = calendar(&[
        "DTSTART:20261201T090000|DTEND:20261201T170000|RRULE:FREQ=DAILY;COUNT=5|EXDATE:20261202T090000|EXDATE;VALUE=DATE:20261205|RDATE:20261220T090000|SUMMARY:a",
        "RECURRENCE-ID:20261203T090000|DTSTART:20261203T120000|DTEND:20261203T200000|SUMMARY:b",
        "RECURRENCE-ID:20261204T080000Z|DTSTART:20261204T090000|DTEND:20261204T100000|STATUS:CANCELLED",
    ]);
    let want = [
        "2026-12-01 09:00 CET - 2026-12-01 17:00 CET",
        "2026-12-03 12:00 CET - 2026-12-03 20:00 CET",
        "2026-12-20 09:00 CET - 2026-12-20 17:00 CET",
    ];
    assert_eq!(occurrences(&text, "2026-11-01T00:00:00Z", "2027-01-01T00:00:00Z"), want);
}

#[test]
fn whole_days_are_those_of_the_place() {
    let text = calendar(&[
        "DTSTART;VALUE=DATE:20261024|DTEND;VALUE=DATE:20261026|SUMMARY:a",
        "DTSTART;VALUE=DATE:20261031|SUMMARY:b",
    ]);
    let want =
        ["2026-10-24 00:00 CEST - 2026-10-26 00:00 CET", "2026-10-31 00:00 CET - 2026-11-01 00:00 CET"];
    assert_eq!(occurrences(&text, "2026-10-01T00:00:00Z", "2026-11-10T00:00:00Z"), want);
}

#[test]
fn what_is_not_understood_is_left_out_and_reported() {
    let text = calendar(&[
        "DTSTART:20261201T090000|DTEND:20261201T170000|SUMMARY:good|BEGIN:VALARM|DTSTART:nonsense|END:VALARM",
        "DTSTART;TZID=Mars/Olympus:20261201T090000|DTEND:20261201T170000|SUMMARY:zone",
        "DTSTART:20261201T090000|DTEND:20261201T170000|RRULE:FREQ=SECONDLY|SUMMARY:rule",
        "DTEND:20261201T170000|SUMMARY:begin",
        "DTSTART:20261201T090000|SUMMARY:end",
        "DTSTART:20261201T090000|DTEND:20261201T080000|SUMMARY:back",
    ]);
    let parsed = Calendar::parse(&text, &Zone::default()).unwrap();
    assert_eq!((parsed.events().len(), parsed.skipped), (1, 5));
    insta::assert_snapshot!(parsed.warnings.join("\n"), @r#"
    event "zone" is left out: DTSTART: "Mars/Olympus" is not a time zone that is known
    event "rule" is left out: FREQ=SECONDLY is not understood, expected DAILY, WEEKLY, MONTHLY or YEARLY
    event "begin" is left out: it has no DTSTART
    event "end" is left out: it has no end
    event "back" is left out: it ends before it begins
    "#);
    for (text, part) in [
        ("", "no BEGIN:VCALENDAR"),
        ("<html>: sign in</html>", "does not begin with"),
        ("BEGIN:VCARD\nEND:VCARD", "is not a calendar"),
        (&text[..text.len() - 20], "ends early"),
    ] {
        let got = Calendar::parse(text, &Zone::default());
        assert!(got.as_ref().is_err_and(|e| e.contains(part)), "{part}: {got:?}");
    }
}

fn oncall() -> OnCall {
    let user = |name: &str, email: &str, alias: &str| User {
        name: name.into(),
        notify: vec![format!("{name}-phone")],
        email: Some(email.into()),
        aliases: vec![alias.into()],
        ..User::default()
    };
    let users =
        vec![user("alice", "Alice@example.com", "Alice Smith"), user("bob", "bob@example.com", "Robert")];
    let schedule = Schedule {
        name: "primary".into(),
        calendar: Some(Span::secs(3600)),
        fallback: vec!["chat".into()],
        ..Schedule::default()
    };
    OnCall::new(OnCallConfig { users, schedules: vec![schedule], ..OnCallConfig::default() })
}

#[test]
fn events_are_those_of_users() {
    for (lines, want) in [
        ("SUMMARY:alice", "alice"),
        ("SUMMARY:[L1] ALICE", "alice"),
        ("SUMMARY:On Call - Alice Smith - Primary", "alice"),
        ("SUMMARY:Alice Smith & Robert", "alice bob"),
        ("SUMMARY:bob@example.com", "bob"),
        ("SUMMARY:alice|ATTENDEE;CN=Bob:mailto:BOB@example.com", "bob"),
        ("SUMMARY:alice|ATTENDEE:mailto:nobody@example.com", "alice"),
        ("SUMMARY:malice", ""),
        ("SUMMARY:bobby", ""),
    ] {
        let mut o = oncall();
        let text = calendar(&[&format!("DTSTART:20261201T090000|DTEND:20261201T170000|{lines}")]);
        o.read_calendar("primary", &text, at("2026-12-01T00:00:00Z")).unwrap();
        assert_eq!(o.duty("primary", at("2026-12-01T12:00:00Z")).unwrap().users.join(" "), want, "{lines}");
        assert_eq!(o.calendar("primary").unwrap().strangers.is_empty(), !want.is_empty(), "{lines}");
    }
}

#[test]
fn whoever_is_left_out_of_an_event_is_said() {
    for (lines, want, warning) in [
        ("SUMMARY:shift|ATTENDEE;PARTSTAT=DECLINED:mailto:alice@example.com", "", "alice has declined"),
        ("SUMMARY:alice|ATTENDEE;PARTSTAT=declined:mailto:Alice@example.com", "", "alice has declined"),
        (
            "SUMMARY:alice, bob|ATTENDEE;PARTSTAT=DECLINED:mailto:alice@example.com|ATTENDEE;PARTSTAT=ACCEPTED:mailto:bob@example.com",
            "bob",
            "event \"alice, bob\": alice has declined, and is not on call by it",
        ),
        (
            "SUMMARY:alice and bob swap",
            "alice",
            "event \"alice and bob swap\": names bob too, and only alice is on call by it",
        ),
        ("SUMMARY:bob (for alice until noon)", "bob", "names alice too"),
        ("SUMMARY:alice and bob", "alice bob", ""),
        ("SUMMARY:alice swaps|ATTENDEE:mailto:bob@example.com", "bob", ""),
    ] {
        let mut o = oncall();
        let text = calendar(&[&format!("DTSTART:20261201T090000|DTEND:20261201T170000|{lines}")]);
        o.read_calendar("primary", &text, at("2026-12-01T00:00:00Z")).unwrap();
        assert_eq!(o.duty("primary", at("2026-12-01T12:00:00Z")).unwrap().users.join(" "), want, "{lines}");
        let said = o.calendar("primary").unwrap().warnings.join("; ");
        assert!(said.contains(warning) && said.is_empty() == warning.is_empty(), "{lines}: {said}");
    }
}

#[test]
fn a_calendar_that_cannot_be_read_leaves_the_copy_and_its_age_is_reported() {
    let mut o = oncall();
    let why = |o: &OnCall, when: &str| o.resolve("schedule:primary", at(when)).why.unwrap();
    assert_eq!(
        why(&o, "2026-12-01T12:00:00Z"),
        "schedule primary: nobody is on call; its calendar was never read, so its fallback is notified"
    );
    let text = calendar(&["DTSTART:20261201T090000|DTEND:20261203T090000|SUMMARY:alice"]);
    o.read_calendar("primary", &text, at("2026-12-01T11:30:00Z")).unwrap();
    assert!(o.read_calendar("primary", "<html>", at("2026-12-01T12:00:00Z")).is_err());
    assert!(o.read_calendar("secondary", &text, at("2026-12-01T12:00:00Z")).is_err());
    assert_eq!(why(&o, "2026-12-01T12:00:00Z"), "schedule primary: alice (calendar)");
    assert_eq!(
        why(&o, "2026-12-01T15:00:00Z"),
        "schedule primary: alice (calendar); its calendar was last read 3h 30m ago"
    );
    // A reload keeps it, and what users are called may change.
    let mut config = o.config().clone();
    config.users.remove(0);
    o.configure(config);
    assert_eq!(o.calendar("primary").unwrap().strangers, ["alice"]);
}

#[test]
fn the_copy_outlives_a_restart_but_not_its_schedule() {
    let config = ResponderConfig { oncall: oncall().config().clone(), ..ResponderConfig::default() };
    let mut engine = Responder::new(config.clone());
    let text = calendar(&["DTSTART:20261201T090000|DTEND:20261203T090000|SUMMARY:alice"]);
    let said = |text| Input::Calendar { schedule: "primary", text };
    // A calendar that was never read cannot be unchanged.
    engine.handle(Ts(1), said(None), &NoDirectory, &mut Vec::new());
    assert!(engine.take_dirty().is_empty());
    engine.handle(Ts(2), said(Some(&text)), &NoDirectory, &mut Vec::new());
    engine.handle(Ts(3), said(Some("<html>")), &NoDirectory, &mut Vec::new());
    engine.handle(Ts(4), said(None), &NoDirectory, &mut Vec::new());
    let parts: Vec<(String, Vec<u8>)> =
        engine.take_dirty().into_iter().filter_map(|(key, part)| Some((key, part?))).collect();
    let (restored, unusable) = Responder::restore(config.clone(), parts.clone());
    assert_eq!(unusable, Vec::<String>::new());
    let duty = restored.oncall().duty("primary", at("2026-12-02T12:00:00Z")).unwrap();
    assert_eq!(
        (duty.users[0].as_str(), restored.oncall().calendar("primary").unwrap().read_at),
        ("alice", Ts(4))
    );
    let gone = vec![("calendar/primary".to_owned(), None)];
    engine.reconfigure(ResponderConfig::default());
    assert_eq!(engine.take_dirty(), gone);
    let (mut other, _) = Responder::restore(ResponderConfig::default(), parts);
    assert_eq!(other.take_dirty(), gone);
}

/// `n` attendees and `dates` further dates of an event.
fn crowd(n: usize, dates: usize) -> String {
    let attendees: Vec<_> = (0..n).map(|i| format!("ATTENDEE:a{i}@example.com|")).collect();
    let attendees = attendees.concat();
    let dates: Vec<String> =
        (0..dates).map(|i| format!("2027{:02}{:02}T000000Z", 1 + i / 28 % 12, 1 + i % 28)).collect();
    let dates = if dates.is_empty() { String::new() } else { format!("RDATE:{}|", dates.join(",")) };
    format!("DTSTART:20261201T090000|DTEND:20261202T090000|SUMMARY:alice|{attendees}{dates}")
}

#[test]
fn dates_times_people_have_a_limit_and_the_copy_before_stays() {
    let mut o = oncall();
    let good = calendar(&["DTSTART:20261201T090000|DTEND:20261203T090000|SUMMARY:alice"]);
    o.read_calendar("primary", &good, at("2026-12-01T11:30:00Z")).unwrap();
    let dear = calendar(&[&crowd(999, 300)]);
    let why = o.read_calendar("primary", &dear, at("2026-12-01T12:00:00Z")).unwrap_err();
    assert_eq!(
        why,
        "its events have 300699 invitations (dates times people) and exceptions, the limit is 100000"
    );
    assert_eq!(o.duty("primary", at("2026-12-01T12:00:00Z")).unwrap().users, ["alice"]);
    // Also of many events together.
    let one = crowd(999, 20);
    let why = Calendar::parse(&calendar(&[one.as_str(); 6]), &Zone::default()).unwrap_err();
    assert!(why.contains("125874 invitations"), "{why}");
    let parsed = Calendar::parse(&calendar(&[one.as_str(); 4]), &Zone::default()).unwrap();
    // A date is not an event of its own, which would have all people once more.
    assert_eq!(parsed.events().len(), 4);
    let year = (at("2026-12-01T00:00:00Z"), at("2027-12-01T00:00:00Z"));
    assert_eq!(parsed.events()[0].occurrences(year.0, year.1).count(), 21);
}

#[test]
fn exceptions_have_a_limit_together() {
    let dates: Vec<String> =
        (0..1000).map(|i| format!("2027{:02}{:02}", 1 + i / 28 % 12, 1 + i % 28)).collect();
    let event = format!("DTSTART:20261201T090000|DTEND:20261202T090000|EXDATE:{}", dates.join(","));
    let why = Calendar::parse(&calendar(&vec![event.as_str(); 101]), &Zone::default()).unwrap_err();
    assert!(why.contains("101101 invitations"), "{why}");
}

#[test]
fn series_of_one_name_share_what_replaces_their_dates() {
    let series = "DTSTART:20261201T090000|DTEND:20261201T170000|RRULE:FREQ=DAILY|SUMMARY:a";
    let instance = "RECURRENCE-ID:20261203T090000|DTSTART:20261203T120000|DTEND:20261203T200000|SUMMARY:b";
    let parsed = Calendar::parse(&calendar(&[series, series, instance]), &Zone::default()).unwrap();
    let [a, b, _] = parsed.events() else { panic!("{parsed:?}") };
    assert!(Arc::ptr_eq(&a.replaced, &b.replaced) && a.replaced.len() == 1);
}

#[test]
fn counted_recurrences_that_never_hold_have_a_limit() {
    let never = "DTSTART:20260130T090000|DTEND:20260130T170000|RRULE:FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30;COUNT=5|SUMMARY:a";
    assert_eq!(Calendar::parse(&calendar(&[never]), &Zone::default()).unwrap().events().len(), 1);
    let why = Calendar::parse(&calendar(&vec![never; 20_000]), &Zone::default()).unwrap_err();
    assert!(why.contains("more than 4000000 days looked at"), "{why}");
}

#[test]
fn an_event_with_too_much_of_anything_is_left_out_and_reported() {
    let event = |line: &str| format!("DTSTART:20261201T090000|DTEND:20261202T090000|{line}");
    for (line, want) in [
        (format!("SUMMARY:{}", "x,".repeat(600)), "SUMMARY: 1200 characters, the limit is 1000"),
        (format!("SUMMARY:{}", "x".repeat(40_000)), "SUMMARY: more than 32768 bytes"),
        (format!("RDATE{}:20261201", ";=".repeat(33)), "RDATE: more than 32768 bytes or 32 parameters"),
        (format!("RDATE;X={}:20261201", "x".repeat(40_000)), "RDATE: more than 32768 bytes"),
        ("ATTENDEE:a|".repeat(1001), "ATTENDEE: more than 1000 of them"),
    ] {
        let parsed = Calendar::parse(&calendar(&[&event(&line)]), &Zone::default()).unwrap();
        let said = parsed.warnings.join("");
        assert_eq!((parsed.events().len(), parsed.skipped), (0, 1), "{want}");
        assert!(said.chars().count() <= MAX_WARNING && said.contains(want), "{want}: {said}");
    }
    // A property that is not read may have any length.
    let text = calendar(&[&event(&format!("DESCRIPTION:{}", "x".repeat(40_000)))]);
    assert_eq!(Calendar::parse(&text, &Zone::default()).unwrap().events().len(), 1);
    let why = Calendar::parse(&"BEGIN:VCALENDAR\n".repeat(17), &Zone::default()).unwrap_err();
    assert!(why.contains("more than 16 components within one another"), "{why}");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(lines in proptest::collection::vec("(DTSTART|DTEND|RRULE|EXDATE|RDATE|DURATION|ATTENDEE|BEGIN|END|RECURRENCE-ID|SUMMARY|UID)(;TZID=(Europe/Berlin|x|\"))?:?(FREQ=(DAILY|WEEKLY|MONTHLY);COUNT=[0-9]{1,3}|VEVENT|VALARM|VCALENDAR|P[0-9]{1,3}D|20[0-9]{6}(T[0-9]{6}Z?)?|.{0,12})", 0..12), at in -100_000_000i64..5_000_000_000) {
        let text = calendar(&[&lines.join("\n")]);
        if let Ok(parsed) = Calendar::parse(&text, &Zone::default()) {
            let at = Ts(at * 1000);
            for event in parsed.events() {
                let soon: Vec<(Ts, Ts)> = event.occurrences(at, at + Span::secs(86_400 * 40)).take(1000).collect();
                prop_assert!(soon.iter().all(|(a, b)| a < b));
                let on = soon.iter().any(|(a, b)| *a <= at && at < *b);
                prop_assert_eq!(event.holds(at), on);
            }
        }
        let _ = Calendar::parse(&lines.join("\r\n"), &Zone::default());
    }
}
