use proptest::prelude::*;

use super::*;

const HOUR: i64 = 3_600_000;
const PLACES: &[&str] = &[
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "America/Santiago",
    "Pacific/Apia",
];

fn at(text: &str) -> Ts {
    Ts(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

fn people(names: &[&str]) -> Vec<People> {
    names.iter().map(|n| People(n.split('+').map(str::to_owned).collect())).collect()
}

fn layer(start: &str, rotation: &str, users: &[&str]) -> Layer {
    Layer {
        name: String::new(),
        users: people(users),
        start: start.parse().unwrap(),
        until: None,
        rotation: Rotation::parse(rotation).unwrap(),
        restrictions: Vec::new(),
    }
}

fn schedule(zone: &str, layers: Vec<Layer>) -> Schedule {
    Schedule { name: "primary".into(), zone: Zone::named(zone).unwrap(), layers, ..Schedule::default() }
}

fn oncall(schedule: Schedule) -> OnCall {
    let user =
        |name: &str| User { name: name.into(), notify: vec![format!("{name}-phone")], ..User::default() };
    let users = ["alice", "bob", "carol"].map(user).into();
    OnCall::new(OnCallConfig { users, schedules: vec![schedule], ..OnCallConfig::default() })
}

fn replace(from: &str, to: &str, user: &str, replaces: Option<&str>) -> Override {
    Override {
        from: Moment::parse(from).unwrap(),
        to: Moment::parse(to).unwrap(),
        users: People(vec![user.into()]),
        replaces: replaces.map(str::to_owned),
        reason: None,
    }
}

/// The shifts in a readable form: begin, hours, and who.
fn table(oncall: &OnCall, from: &str, to: &str) -> Vec<(String, f64, String)> {
    let zone = &oncall.schedule("primary").unwrap().zone;
    let shifts = oncall.shifts("primary", at(from), at(to));
    let row = |s: &Shift| (zone.show(s.from), (s.to - s.from).as_secs_f64() / 3600.0, s.users.join("+"));
    shifts.iter().map(row).collect()
}

fn rows(rows: &[(&str, f64, &str)]) -> Vec<(String, f64, String)> {
    rows.iter().map(|(from, hours, who)| ((*from).into(), *hours, (*who).into())).collect()
}

#[test]
fn a_day_is_as_long_as_the_clock_makes_it() {
    for (zone, from, to, want) in [
        (
            "Europe/Berlin",
            "2026-03-27T08:00:00Z",
            "2026-03-30T07:00:00Z",
            [
                ("2026-03-27 09:00 CET", 24.0, "alice"),
                ("2026-03-28 09:00 CET", 23.0, "bob"),
                ("2026-03-29 09:00 CEST", 24.0, "carol"),
            ],
        ),
        (
            "Europe/Berlin",
            "2026-10-23T07:00:00Z",
            "2026-10-26T08:00:00Z",
            [
                ("2026-10-23 09:00 CEST", 24.0, "alice"),
                ("2026-10-24 09:00 CEST", 25.0, "bob"),
                ("2026-10-25 09:00 CET", 24.0, "carol"),
            ],
        ),
        (
            "America/New_York",
            "2026-03-07T14:00:00Z",
            "2026-03-10T13:00:00Z",
            [
                ("2026-03-07 09:00 EST", 23.0, "alice"),
                ("2026-03-08 09:00 EDT", 24.0, "bob"),
                ("2026-03-09 09:00 EDT", 24.0, "carol"),
            ],
        ),
        (
            "Australia/Lord_Howe",
            "2026-10-01T22:30:00Z",
            "2026-10-04T22:00:00Z",
            [
                ("2026-10-02 09:00 +1030", 24.0, "alice"),
                ("2026-10-03 09:00 +1030", 23.5, "bob"),
                ("2026-10-04 09:00 +11", 24.0, "carol"),
            ],
        ),
        (
            "Asia/Kolkata",
            "2026-03-28T03:30:00Z",
            "2026-03-31T03:30:00Z",
            [
                ("2026-03-28 09:00 IST", 24.0, "alice"),
                ("2026-03-29 09:00 IST", 24.0, "bob"),
                ("2026-03-30 09:00 IST", 24.0, "carol"),
            ],
        ),
    ] {
        let first = Zone::named(zone).unwrap().civil(at(from)).to_string();
        let o = oncall(schedule(zone, vec![layer(&first, "daily", &["alice", "bob", "carol"])]));
        assert_eq!(table(&o, from, to), rows(&want), "{zone}");
    }
}

#[test]
fn a_hand_off_that_the_clock_jumps_over_is_at_the_jump() {
    let o = oncall(schedule(
        "Europe/Berlin",
        vec![layer("2026-03-27T02:30", "daily", &["alice", "bob", "carol"])],
    ));
    let want = [
        ("2026-03-28 02:30 CET", 23.5, "bob"),
        ("2026-03-29 03:00 CEST", 23.5, "carol"),
        ("2026-03-30 02:30 CEST", 24.0, "alice"),
    ];
    assert_eq!(table(&o, "2026-03-28T01:30:00Z", "2026-03-31T00:30:00Z"), rows(&want));
}

#[test]
fn a_hand_off_in_an_hour_that_is_repeated_is_at_the_first() {
    let o = oncall(schedule(
        "Europe/Berlin",
        vec![layer("2026-10-23T02:30", "daily", &["alice", "bob", "carol"])],
    ));
    let want = [
        ("2026-10-24 02:30 CEST", 24.0, "bob"),
        ("2026-10-25 02:30 CEST", 25.0, "carol"),
        ("2026-10-26 02:30 CET", 24.0, "alice"),
    ];
    assert_eq!(table(&o, "2026-10-24T00:30:00Z", "2026-10-27T01:30:00Z"), rows(&want));
    // The clock shows 02:15 again, and the turn does not go back.
    assert_eq!(o.duty("primary", at("2026-10-25T01:15:00Z")).unwrap().users, ["carol"]);
}

#[test]
fn shifts_of_hours_follow_the_clock() {
    let o = oncall(schedule("America/New_York", vec![layer("2026-10-31T09:00", "12h", &["alice", "bob"])]));
    let want = [
        ("2026-10-31 09:00 EDT", 12.0, "alice"),
        ("2026-10-31 21:00 EDT", 13.0, "bob"),
        ("2026-11-01 09:00 EST", 12.0, "alice"),
    ];
    assert_eq!(table(&o, "2026-10-31T13:00:00Z", "2026-11-02T02:00:00Z"), rows(&want));
}

#[test]
fn the_last_layer_with_somebody_decides() {
    let mut day = layer("2026-01-05T00:00", "weekly", &["bob", "carol"]);
    day.name = "day".into();
    day.restrictions = vec![
        serde_json::from_str(
            r#"{"weekdays":["monday:friday"],"times":[{"start_time":"09:00","end_time":"17:00"}]}"#,
        )
        .unwrap(),
    ];
    let o = oncall(schedule("Europe/Berlin", vec![layer("2026-01-05T00:00", "weekly", &["alice"]), day]));
    let want = [
        ("2026-01-09 08:00 CET", 1.0, "alice"),
        ("2026-01-09 09:00 CET", 8.0, "bob"),
        ("2026-01-09 17:00 CET", 64.0, "alice"),
        ("2026-01-12 09:00 CET", 1.0, "carol"),
    ];
    assert_eq!(table(&o, "2026-01-09T07:00:00Z", "2026-01-12T09:00:00Z"), rows(&want));
    assert_eq!(o.duty("primary", at("2026-01-09T09:00:00Z")).unwrap().by, "layer day");
    assert_eq!(o.duty("primary", at("2026-01-09T20:00:00Z")).unwrap().by, "layer 1");
}

#[test]
fn an_override_lies_upon_everything() {
    let mut s = schedule("Europe/Berlin", vec![layer("2026-01-05T09:00", "weekly", &["alice+bob", "carol"])]);
    s.overrides = vec![
        replace("2026-01-06T00:00", "2026-01-07T00:00", "carol", Some("bob")),
        replace("2026-01-08T00:00:00+01:00", "2026-01-09T00:00", "carol", None),
        // The user is not on call then, so that there is nothing to replace.
        replace("2026-01-13T00:00", "2026-01-14T00:00", "bob", Some("alice")),
    ];
    s.overrides[1].reason = Some("holiday".into());
    let o = oncall(s);
    let want = [
        ("2026-01-05 09:00 CET", 15.0, "alice+bob"),
        ("2026-01-06 00:00 CET", 24.0, "carol+alice"),
        ("2026-01-07 00:00 CET", 24.0, "alice+bob"),
        ("2026-01-08 00:00 CET", 24.0, "carol"),
        ("2026-01-09 00:00 CET", 81.0, "alice+bob"),
        ("2026-01-12 09:00 CET", 168.0, "carol"),
    ];
    assert_eq!(table(&o, "2026-01-05T08:00:00Z", "2026-01-19T08:00:00Z"), rows(&want));
    assert_eq!(o.duty("primary", at("2026-01-08T12:00:00Z")).unwrap().by, "override: holiday");
}

#[test]
fn items_mean_receivers_users_and_schedules() {
    let mut s = schedule("UTC", vec![layer("2026-01-05T09:00", "daily", &["alice", "bob+carol"])]);
    s.layers[0].until = Some("2026-01-07T09:00".parse().unwrap());
    s.fallback = vec!["chat".into(), "user:bob".into(), "schedule:primary".into()];
    let o = oncall(s);
    let notified = |item: &str, when: &str| {
        let r = o.resolve(item, at(when));
        let who: Vec<String> = r
            .targets
            .iter()
            .map(|t| format!("{}/{}", t.receiver, t.user.as_deref().unwrap_or("-")))
            .collect();
        (who.join(" "), r.why)
    };
    let pair = |who: &str, why: &str| (who.to_owned(), Some(why.to_owned()));
    let day = "2026-01-05T12:00:00Z";
    assert_eq!(notified("chat", day), ("chat/-".to_owned(), None));
    assert_eq!(notified("user:alice", day), pair("alice-phone/alice", "user alice"));
    assert_eq!(notified("user:mallory", day), pair("", "user mallory has no receiver"));
    assert_eq!(notified("schedule:none", day), pair("", "there is no schedule none"));
    assert_eq!(
        notified("schedule:primary", day),
        pair("alice-phone/alice", "schedule primary: alice (layer 1)")
    );
    assert_eq!(
        notified("schedule:primary", "2026-01-06T12:00:00Z"),
        pair("bob-phone/bob carol-phone/carol", "schedule primary: bob, carol (layer 1)")
    );
    assert_eq!(
        notified("schedule:primary", "2026-01-07T12:00:00Z"),
        pair("chat/- bob-phone/bob", "schedule primary: nobody is on call, so its fallback is notified")
    );
}

#[test]
fn a_plan_has_an_end() {
    let o = oncall(schedule("UTC", vec![layer("1970-01-01T00:00", "1h", &["alice", "bob"])]));
    let shifts = o.shifts("primary", at("2026-01-01T00:00:00Z"), Ts(i64::MAX));
    assert_eq!(shifts.len(), 366 * 24);
    assert!(o.shifts("none", Ts(0), Ts(HOUR)).is_empty());
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let turns = (0usize..3, 1i64..400, -20_000i64..400_000, proptest::bool::ANY, 0u16..1438);
    let layers = proptest::collection::vec(turns, 1..4);
    let overrides = proptest::collection::vec((0i64..2000, 1i64..300, 0usize..3), 0..3);
    (0..PLACES.len(), layers, overrides).prop_map(|(place, layers, overrides)| {
        let names = [vec!["alice"], vec!["alice", "bob", "carol"], vec!["alice+bob", "carol"]];
        let clock = |minutes: i64| Zone::default().civil(Ts(minutes * 60_000)).to_string();
        let restricted = |minute: u16| {
            let json = format!(
                r#"{{"times":[{{"start_time":"{:02}:{:02}","end_time":"24:00"}}],"weekdays":["tuesday:saturday"]}}"#,
                minute / 60,
                minute % 60
            );
            serde_json::from_str(&json).unwrap()
        };
        let layer = |(who, hours, start, limited, minute): (usize, i64, i64, bool, u16)| Layer {
            restrictions: if limited { vec![restricted(minute)] } else { Vec::new() },
            ..layer(&clock(start), &format!("{hours}h"), &names[who])
        };
        let mut s = schedule(PLACES[place], layers.into_iter().map(layer).collect());
        let over = |(from, hours, who): (i64, i64, usize)| Override {
            from: Moment::At(Ts((400_000 / 60 + from) * HOUR)),
            to: Moment::At(Ts((400_000 / 60 + from + hours) * HOUR)),
            users: People(vec![["alice", "bob", "carol"][who].into()]),
            replaces: None,
            reason: None,
        };
        s.overrides = overrides.into_iter().map(over).collect();
        s
    })
}

proptest! {
    #[test]
    fn shifts_tile_the_time_and_agree_with_every_moment(s in any_schedule(), start in 0i64..9000, asked in proptest::collection::vec(0i64..60 * 86_400_000, 40)) {
        let o = oncall(s);
        let (from, to) = (Ts(start * HOUR), Ts(start * HOUR + 60 * 86_400_000));
        let shifts = o.shifts("primary", from, to);
        prop_assert_eq!((shifts[0].from, shifts.last().unwrap().to), (from, to));
        for pair in shifts.windows(2) {
            prop_assert_eq!(pair[0].to, pair[1].from);
            prop_assert!((&pair[0].users, &pair[0].by) != (&pair[1].users, &pair[1].by));
        }
        prop_assert!(shifts.iter().all(|s| s.from < s.to));
        // The order of the calls does not matter.
        for after in asked {
            let moment = Ts(from.0 + after);
            let shift = shifts.iter().find(|s| s.from <= moment && moment < s.to).unwrap();
            let duty = o.duty("primary", moment).unwrap();
            prop_assert_eq!((&duty.users, &duty.by), (&shift.users, &shift.by), "{}", moment);
        }
    }

    #[test]
    fn one_person_has_the_turn_from_the_start_on(
        place in 0..PLACES.len(), start in 0i64..500_000, hours in 1i64..400, later in 0i64..4_000_000,
    ) {
        let zone = Zone::named(PLACES[place]).unwrap();
        let begins = Zone::default().civil(Ts(start * 60_000));
        let o = oncall(schedule(PLACES[place], vec![layer(&begins.to_string(), &format!("{hours}h"), &["alice", "bob", "carol"])]));
        let first = zone.first(begins);
        prop_assert_eq!(o.duty("primary", Ts(first.0 - 1)).unwrap().users.len(), 0);
        let duty = o.duty("primary", Ts(first.0 + later * 60_000)).unwrap();
        prop_assert_eq!(duty.users.len(), 1);
    }

    #[test]
    fn an_override_always_wins(s in any_schedule(), from in 0i64..9000, hours in 1i64..500, into in 0.0f64..1.0) {
        let mut s = s;
        s.overrides = vec![replace("2026-01-01T00:00", "2026-01-02T00:00", "zoe", None)];
        (s.overrides[0].from, s.overrides[0].to) = (Moment::At(Ts(from * HOUR)), Moment::At(Ts((from + hours) * HOUR)));
        let o = oncall(s);
        let moment = Ts(from * HOUR + (into * (hours * HOUR) as f64) as i64);
        prop_assert_eq!(o.duty("primary", moment).unwrap().users, ["zoe"]);
    }

    #[test]
    fn nothing_in_a_configuration_makes_it_panic(text in "[-0-9:a-zT+. ]{0,24}") {
        let _ = (Moment::parse(&text), Rotation::parse(&text), Zone::named(&text));
    }
}

#[test]
fn anybody_may_take_over_a_schedule() {
    let o = oncall(schedule("UTC", vec![layer("2026-01-05T09:00", "weekly", &["alice"])]));
    assert_eq!(o.config().planned("schedule:primary"), ["alice-phone"]);
    let mut all = o.config().reachable("schedule:primary");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, ["alice-phone", "bob-phone", "carol-phone"]);
    assert_eq!(o.config().reachable("user:bob"), ["bob-phone"]);
}
