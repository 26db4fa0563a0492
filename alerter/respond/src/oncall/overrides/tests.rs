use proptest::prelude::*;

use super::*;
use crate::oncall::{Layer, Moment, OnCall, OnCallConfig, Override, People, Rotation, Schedule, User, Zone};

const HOUR: i64 = 3_600_000;
/// 2026-01-05T09:00 in Berlin, a Monday on which alice's week begins.
const MONDAY: &str = "2026-01-05T08:00:00Z";

fn at(text: &str) -> Ts {
    Ts(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

fn people(names: &[&str]) -> Vec<People> {
    names.iter().map(|n| People(n.split('+').map(str::to_owned).collect())).collect()
}

fn weekly(users: &[&str]) -> Schedule {
    let layer = Layer {
        name: "weekly".into(),
        users: people(users),
        start: "2026-01-05T09:00".parse().unwrap(),
        until: None,
        rotation: Rotation::default(),
        restrictions: Vec::new(),
    };
    let zone = Zone::named("Europe/Berlin").unwrap();
    Schedule { name: "primary".into(), zone, layers: vec![layer], ..Schedule::default() }
}

/// The users alice, bob, carol, and dave whom no receiver reaches.
fn config(schedule: Schedule) -> OnCallConfig {
    let user = |name: &str, notify: Vec<String>| User { name: name.into(), notify, ..User::default() };
    let mut users: Vec<User> =
        ["alice", "bob", "carol"].map(|name| user(name, vec![format!("{name}-phone")])).into();
    users.push(user("dave", Vec::new()));
    OnCallConfig { users, schedules: vec![schedule], ..OnCallConfig::default() }
}

fn oncall(users: &[&str]) -> OnCall {
    OnCall::new(config(weekly(users)))
}

fn cover(user: &str, replaces: Option<&str>, from: Option<&str>, until: &str) -> WantedCover {
    WantedCover {
        user: user.into(),
        replaces: replaces.map(str::to_owned),
        from: from.map(|from| Moment::parse(from).unwrap()),
        until: Moment::parse(until).unwrap(),
    }
}

fn wanted(cover: WantedCover) -> OverrideWanted {
    OverrideWanted {
        schedule: "primary".into(),
        covers: vec![cover],
        created_by: "ann".into(),
        note: String::new(),
    }
}

fn turn(user: &str, from: &str, until: &str) -> Turn {
    Turn { user: user.into(), from: Some(Moment::parse(from).unwrap()), until: Moment::parse(until).unwrap() }
}

fn swap(first: Turn, second: Turn) -> OverrideWanted {
    OverrideWanted::swap("primary".into(), first, second, "ann".into(), "wedding".into())
}

fn plan(oncall: &OnCall, wanted: OverrideWanted, now: Ts) -> Result<OverrideRecord, OverrideRefusal> {
    let fresh = format!("o{}", oncall.overrides().all().count());
    oncall.plan_override(wanted, &fresh, now)
}

/// Makes an override at `now`, and returns its id.
fn make(oncall: &mut OnCall, wanted: OverrideWanted, now: Ts) -> String {
    let record = plan(oncall, wanted, now).unwrap();
    let id = record.id.clone();
    oncall.put_override(Arc::new(record), now);
    id
}

fn remove(oncall: &mut OnCall, id: &str, now: Ts) {
    let removed = oncall.overrides().get(id).unwrap().removed_by("bob", now);
    oncall.put_override(Arc::new(removed), now);
}

fn refused(oncall: &OnCall, cover: WantedCover) -> String {
    match plan(oncall, wanted(cover), at(MONDAY)) {
        Err(OverrideRefusal::Invalid(why) | OverrideRefusal::Full(why)) => why,
        Ok(record) => panic!("allowed: {record:?}"),
    }
}

/// The shifts: begin, hours, who, and by what.
fn table(oncall: &OnCall, from: &str, to: &str) -> Vec<(String, f64, String, String)> {
    let zone = Zone::named("Europe/Berlin").unwrap();
    let shifts = oncall.shifts("primary", at(from), at(to));
    let hours = |span: Span| span.as_secs_f64() / 3600.0;
    shifts.into_iter().map(|s| (zone.show(s.from), hours(s.to - s.from), s.users.join("+"), s.by)).collect()
}

fn rows(rows: &[(&str, f64, &str, &str)]) -> Vec<(String, f64, String, String)> {
    rows.iter().map(|(from, hours, who, by)| ((*from).into(), *hours, (*who).into(), (*by).into())).collect()
}

fn who(oncall: &OnCall, when: &str) -> String {
    oncall.duty("primary", at(when)).unwrap().users.join("+")
}

#[test]
fn it_decides_over_layers_and_the_overrides_of_the_configuration() {
    let mut schedule = weekly(&["alice", "bob"]);
    schedule.overrides = vec![Override {
        from: Moment::parse("2026-01-06T00:00").unwrap(),
        to: Moment::parse("2026-01-08T00:00").unwrap(),
        users: People(vec!["carol".into()]),
        replaces: None,
        reason: None,
    }];
    let mut o = OnCall::new(config(schedule));
    let mut w = wanted(cover("bob", None, Some("2026-01-07T12:00"), "2026-01-08T12:00"));
    w.note = "dentist".into();
    make(&mut o, w, at(MONDAY));
    let want = [
        ("2026-01-05 09:00 CET", 15.0, "alice", "layer weekly"),
        ("2026-01-06 00:00 CET", 36.0, "carol", "override"),
        ("2026-01-07 12:00 CET", 24.0, "bob", "override by ann: dentist"),
        ("2026-01-08 12:00 CET", 93.0, "alice", "layer weekly"),
    ];
    assert_eq!(table(&o, MONDAY, "2026-01-12T08:00:00Z"), rows(&want));
    // The first moment belongs to it, and the last one does not.
    assert_eq!(who(&o, "2026-01-07T10:59:59.999Z"), "carol");
    assert_eq!(who(&o, "2026-01-07T11:00:00Z"), "bob");
    assert_eq!(who(&o, "2026-01-08T10:59:59.999Z"), "bob");
    assert_eq!(who(&o, "2026-01-08T11:00:00Z"), "alice");
    let rung = o.resolve("schedule:primary", at("2026-01-07T12:00:00Z"));
    assert_eq!(rung.targets[0].receiver, "bob-phone");
    assert_eq!(rung.why.as_deref(), Some("schedule primary: bob (override by ann: dentist)"));
}

#[test]
fn it_decides_over_the_calendar() {
    let mut schedule = weekly(&["alice"]);
    schedule.calendar = Some(Span::secs(86_400));
    let mut o = OnCall::new(config(schedule));
    let text = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:1\nDTSTART:20260105T000000Z\nDTEND:20260110T000000Z\n\
                SUMMARY:bob\nEND:VEVENT\nEND:VCALENDAR\n";
    o.read_calendar("primary", text, at(MONDAY)).unwrap();
    make(&mut o, wanted(cover("carol", None, None, "2026-01-06T00:00:00Z")), at(MONDAY));
    assert_eq!(who(&o, "2026-01-05T20:00:00Z"), "carol");
    assert_eq!(who(&o, "2026-01-06T20:00:00Z"), "bob");
}

#[test]
fn where_two_overlap_the_later_one_decides_and_a_removed_one_does_not() {
    let mut o = oncall(&["alice"]);
    let now = at(MONDAY);
    let first = make(&mut o, wanted(cover("bob", None, Some("2026-01-06T00:00"), "2026-01-08T00:00")), now);
    let long = make(&mut o, wanted(cover("carol", None, Some("2026-01-07T00:00"), "2026-01-09T00:00")), now);
    let beneath: Vec<&str> =
        o.overrides().beneath(o.overrides().get(&long).unwrap(), now).map(|r| r.id.as_str()).collect();
    assert_eq!(beneath, [first.as_str()]);
    assert_eq!(o.overrides().beneath(o.overrides().get(&first).unwrap(), now).count(), 0);
    assert_eq!(who(&o, "2026-01-06T12:00:00Z"), "bob");
    assert_eq!(who(&o, "2026-01-07T12:00:00Z"), "carol");
    assert_eq!(who(&o, "2026-01-08T12:00:00Z"), "carol");
    // It ends in the middle: what it decided before stays.
    remove(&mut o, &long, at("2026-01-07T12:00:00Z"));
    assert_eq!(who(&o, "2026-01-07T11:59:59Z"), "carol");
    assert_eq!(who(&o, "2026-01-07T12:00:00Z"), "bob");
    assert_eq!(who(&o, "2026-01-08T12:00:00Z"), "alice");
    // One that never began.
    remove(&mut o, &first, at("2026-01-05T12:00:00Z"));
    assert_eq!(who(&o, "2026-01-06T12:00:00Z"), "alice");
    assert_eq!(who(&o, "2026-01-07T12:00:00Z"), "alice");
}

#[test]
fn one_person_of_several_is_replaced_and_the_later_one_acts_on_that() {
    let mut o = oncall(&["alice+bob"]);
    let day =
        |user, replaces| wanted(cover(user, Some(replaces), Some("2026-01-06T00:00"), "2026-01-07T00:00"));
    make(&mut o, day("carol", "bob"), at(MONDAY));
    assert_eq!(who(&o, "2026-01-06T12:00:00Z"), "alice+carol");
    let again = OverrideWanted { note: "again".into(), ..day("carol", "bob") };
    let gone = plan(&o, again, at(MONDAY)).unwrap_err();
    let why = "bob is not on call by schedule primary between 2026-01-06 00:00 CET and 2026-01-07 00:00 CET";
    assert_eq!(gone, OverrideRefusal::Invalid(why.into()));
    make(&mut o, day("bob", "carol"), at(MONDAY));
    assert_eq!(who(&o, "2026-01-06T12:00:00Z"), "alice+bob");
}

#[test]
fn a_swap_is_both_shifts_and_one_thing() {
    let mut o = oncall(&["alice", "bob"]);
    let of_alice = turn("alice", "2026-01-19T09:00", "2026-01-26T09:00");
    let of_bob = turn("bob", "2026-01-26T09:00", "2026-02-02T09:00");
    let id = make(&mut o, swap(of_alice.clone(), of_bob.clone()), at(MONDAY));
    let want = [
        ("2026-01-12 09:00 CET", 168.0, "bob", "layer weekly"),
        ("2026-01-19 09:00 CET", 168.0, "bob", "swap by ann: wedding"),
        ("2026-01-26 09:00 CET", 168.0, "alice", "swap by ann: wedding"),
        ("2026-02-02 09:00 CET", 168.0, "alice", "layer weekly"),
    ];
    assert_eq!(table(&o, "2026-01-12T08:00:00Z", "2026-02-09T08:00:00Z"), rows(&want));
    // To swap back, each names the shift that is now theirs.
    let back = OverrideWanted { note: "back".into(), ..swap(of_alice, of_bob) };
    let back = plan(&o, back, at(MONDAY)).unwrap_err();
    assert!(matches!(&back, OverrideRefusal::Invalid(why) if why.starts_with("alice is not on call")));
    remove(&mut o, &id, at("2026-01-20T12:00:00Z"));
    assert_eq!(who(&o, "2026-01-20T11:00:00Z"), "bob");
    assert_eq!(who(&o, "2026-01-20T12:00:00Z"), "alice");
    assert_eq!(who(&o, "2026-01-27T12:00:00Z"), "bob");
    let record = o.overrides().get(&id).unwrap();
    assert_eq!(record.phase(at("2026-01-20T12:00:00Z")), OverridePhase::Over);
}

#[test]
fn the_two_of_a_swap_do_not_undo_each_other_where_they_overlap() {
    let mut o = oncall(&["alice", "bob"]);
    // A day over the hand-off at which each has a part.
    let day = |user| turn(user, "2026-01-12T00:00", "2026-01-13T00:00");
    make(&mut o, swap(day("alice"), day("bob")), at(MONDAY));
    assert_eq!(who(&o, "2026-01-12T07:00:00Z"), "bob");
    assert_eq!(who(&o, "2026-01-12T09:00:00Z"), "alice");
}

#[test]
fn times_are_those_of_the_clock_of_the_schedule() {
    let mut o = oncall(&["alice"]);
    let day = |n: u32| {
        wanted(cover("bob", None, Some(&format!("2026-03-{n}T02:30")), &format!("2026-03-{}T02:30", n + 1)))
    };
    let now = at("2026-03-01T00:00:00Z");
    // On the 29th the clock is set from 02:00 to 03:00: the hand-off is at the jump.
    for (n, hours, from) in [(28, 23.5, "2026-03-28 02:30 CET"), (29, 23.5, "2026-03-29 03:00 CEST")] {
        make(&mut o, day(n), now);
        let shifts = table(&o, "2026-03-27T00:00:00Z", "2026-03-31T00:00:00Z");
        let mine: Vec<_> = shifts.into_iter().filter(|s| s.2 == "bob").collect();
        assert_eq!(mine.len(), 1, "{mine:?}");
        assert_eq!((mine[0].0.as_str(), mine[0].1), (from, hours));
        let id = o.overrides().all().last().unwrap().id.clone();
        remove(&mut o, &id, now);
    }
    // 02:30 is twice on 2026-10-25: the first one is meant. An offset says which.
    let now = at("2026-10-20T00:00:00Z");
    make(&mut o, wanted(cover("bob", None, Some("2026-10-25T02:30"), "2026-10-25T02:30:00+01:00")), now);
    assert_eq!(who(&o, "2026-10-25T00:29:59Z"), "alice");
    assert_eq!(who(&o, "2026-10-25T00:30:00Z"), "bob");
    assert_eq!(who(&o, "2026-10-25T01:30:00Z"), "alice");
}

#[test]
fn what_is_refused_names_what_is_accepted() {
    let o = oncall(&["alice", "bob"]);
    let day = ("2026-01-06T00:00", "2026-01-07T00:00");
    let of = |user: &str, replaces: Option<&str>| cover(user, replaces, Some(day.0), day.1);
    for (cover, why) in [
        (of("zoe", None), "there is no user \"zoe\"; those that exist: alice, bob, carol, dave"),
        (of("bob", Some("zoe")), "there is no user \"zoe\"; those that exist: alice, bob, carol, dave"),
        (
            of("dave", None),
            "no receiver reaches \"dave\", who would not be notified; those whom one reaches: alice, bob, carol",
        ),
        (of("bob", Some("bob")), "bob cannot take over from bob"),
        (
            cover("bob", None, Some(day.1), day.0),
            "the end must be after the start, which is 2026-01-07 00:00 CET",
        ),
        (
            cover("bob", None, Some(day.0), day.0),
            "the end must be after the start, which is 2026-01-06 00:00 CET",
        ),
        (
            cover("bob", None, Some("2026-01-01T00:00"), "2026-01-02T00:00"),
            "the end time can't be in the past: it is 2026-01-05 09:00 CET",
        ),
    ] {
        assert_eq!(refused(&o, cover), why);
    }
    assert!(refused(&o, cover("bob", None, None, "2026-02-05T09:01")).contains("at most 31 days"));
    assert!(plan(&o, wanted(cover("bob", None, None, "2026-02-05T09:00")), at(MONDAY)).is_ok());
    let far = cover("bob", None, Some("2027-01-06T09:00"), "2027-01-06T09:01");
    assert_eq!(refused(&o, far), "an override ends at most 366 days ahead");
    let unknown = OverrideWanted { schedule: "office".into(), ..wanted(of("bob", None)) };
    let why = "there is no schedule \"office\"; those that exist: primary";
    assert_eq!(plan(&o, unknown, at(MONDAY)), Err(OverrideRefusal::Invalid(why.into())));
    let nobody = OverrideWanted { created_by: " ".into(), ..wanted(of("bob", None)) };
    assert!(plan(&o, nobody, at(MONDAY)).is_err());
    let long = OverrideWanted { note: "x".repeat(201), ..wanted(of("bob", None)) };
    assert_eq!(
        plan(&o, long, at(MONDAY)),
        Err(OverrideRefusal::Invalid("note: at most 200 characters".into()))
    );
}

#[test]
fn one_that_changes_nothing_is_refused() {
    let mut o = oncall(&["alice", "bob"]);
    // Alice has the week until 2026-01-12T09:00, and then bob.
    let why = "alice is on call already by schedule primary between 2026-01-05 09:00 CET \
               and 2026-01-12 09:00 CET";
    assert_eq!(refused(&o, cover("alice", None, None, "2026-01-12T09:00")), why);
    let longer = wanted(cover("alice", None, None, "2026-01-12T09:01"));
    assert!(plan(&o, longer, at(MONDAY)).is_ok(), "it takes a minute from bob");
    // While somebody stands in, she takes it back.
    make(&mut o, wanted(cover("bob", None, None, "2026-01-06T09:00")), at(MONDAY));
    assert!(plan(&o, wanted(cover("alice", None, None, "2026-01-12T09:00")), at(MONDAY)).is_ok());
    // One of two leaves: that is a change.
    let both = oncall(&["alice+bob"]);
    assert!(plan(&both, wanted(cover("alice", None, None, "2026-01-06T09:00")), at(MONDAY)).is_ok());
}

#[test]
fn a_request_that_is_made_again_is_the_same_override() {
    let mut o = oncall(&["alice"]);
    let bob = || wanted(cover("bob", None, None, "2026-01-06T09:00"));
    let id = make(&mut o, bob(), at(MONDAY));
    let later = at("2026-01-05T08:00:30Z");
    let again = plan(&o, bob(), later).unwrap();
    assert_eq!((&again.id, again.created_at), (&id, at(MONDAY)));
    // Somebody else's request, or one for other reasons, is another one, which changes nothing.
    for other in [
        OverrideWanted { created_by: "cem".into(), ..bob() },
        OverrideWanted { note: "dentist".into(), ..bob() },
    ] {
        let refusal = plan(&o, other, later).unwrap_err();
        assert!(
            matches!(&refusal, OverrideRefusal::Invalid(why) if why.starts_with("bob is on call already"))
        );
    }
    // Carol stands in for a part, so that the same request puts bob on call again.
    make(&mut o, wanted(cover("carol", None, None, "2026-01-05T20:00")), later);
    let anew = make(&mut o, bob(), later);
    assert_ne!(anew, id);
    assert_eq!(plan(&o, bob(), later).unwrap().id, anew);
    // What was removed is made anew too.
    let mut o = oncall(&["alice"]);
    let id = make(&mut o, bob(), at(MONDAY));
    remove(&mut o, &id, later);
    assert_ne!(plan(&o, bob(), later).unwrap().id, id);
    // A swap is one request.
    let mut o = oncall(&["alice", "bob"]);
    let both = || {
        swap(
            turn("alice", "2026-01-19T09:00", "2026-01-26T09:00"),
            turn("bob", "2026-01-26T09:00", "2026-02-02T09:00"),
        )
    };
    let id = make(&mut o, both(), at(MONDAY));
    assert_eq!(plan(&o, both(), later).unwrap().id, id);
}

#[test]
fn what_has_begun_before_it_is_asked_for_begins_now() {
    let o = oncall(&["alice"]);
    let early = wanted(cover("bob", None, Some("2026-01-01T00:00"), "2026-01-06T00:00"));
    let record = plan(&o, early, at(MONDAY)).unwrap();
    assert_eq!(record.begins_at(), at(MONDAY));
    assert_eq!(record.phase(at(MONDAY)), OverridePhase::Active);
}

#[test]
fn there_are_only_so_many_and_past_ones_are_forgotten() {
    let mut o = oncall(&["alice"]);
    let now = at(MONDAY);
    for n in 0..100 {
        let who = if n % 2 == 0 { "bob" } else { "alice" };
        let day = wanted(cover(who, None, Some("2026-01-06T00:00"), "2026-01-07T00:00"));
        let record = o.plan_override(day, &format!("o{n:03}"), now).unwrap();
        assert_eq!(record.seq, n + 1);
        o.put_override(Arc::new(record), now);
    }
    let one = || wanted(cover("carol", None, None, "2026-01-10T00:00"));
    let full = plan(&o, one(), now).unwrap_err();
    assert!(
        matches!(&full, OverrideRefusal::Full(why) if why.contains("schedule primary has 100")),
        "{full:?}"
    );
    // What is over takes no room. It is kept for thirty days.
    let later = at("2026-01-07T00:00:00Z");
    let next = o.plan_override(one(), "next", later).unwrap();
    o.put_override(Arc::new(next.clone()), later);
    assert_eq!(o.overrides().all().count(), 101);
    o.put_override(Arc::new(next.clone()), at("2026-02-05T22:59:59Z"));
    assert_eq!(o.overrides().all().count(), 101);
    o.put_override(Arc::new(next), at("2026-02-05T23:00:00Z"));
    assert_eq!(o.overrides().all().count(), 1);
    assert_eq!(o.overrides().forgotten_early(), 0);
}

#[test]
fn ended_ones_above_the_limit_are_forgotten_early_and_counted() {
    let mut o = oncall(&["alice"]);
    let now = at("2026-01-10T00:00:00Z");
    let record = plan(&o, wanted(cover("bob", None, None, "2026-01-06T00:00")), at(MONDAY)).unwrap();
    for n in 0..1002 {
        let mut one = OverrideRecord { id: format!("o{n:04}"), ..record.clone() };
        one.covers[0].until = Ts(record.until().0 + n);
        o.put_override(Arc::new(one), now);
    }
    assert_eq!((o.overrides().all().count(), o.overrides().forgotten_early()), (1000, 2));
    assert!(o.overrides().get("o0001").is_none() && o.overrides().get("o0002").is_some());
}

#[test]
fn somebody_whom_a_new_configuration_does_not_reach_takes_nobodys_place() {
    let mut o = oncall(&["alice"]);
    make(&mut o, wanted(cover("bob", None, None, "2026-01-10T00:00")), at(MONDAY));
    let mut without = config(weekly(&["alice"]));
    without.users.retain(|user| user.name != "bob");
    let void = |o: &OnCall, when: &str| o.void_overrides(at(when)).count();
    assert_eq!(void(&o, MONDAY), 0);
    o.configure(without);
    assert_eq!(who(&o, "2026-01-06T00:00:00Z"), "alice");
    assert_eq!((void(&o, MONDAY), void(&o, "2026-01-09T23:00:00Z")), (1, 0));
    o.configure(config(weekly(&["alice"])));
    assert_eq!((who(&o, "2026-01-06T00:00:00Z"), void(&o, MONDAY)), ("bob".into(), 0));
    let renamed = Schedule { name: "office".into(), ..weekly(&["alice"]) };
    o.configure(config(renamed));
    assert_eq!(void(&o, MONDAY), 1);
}

#[test]
fn one_that_replaces_somebody_who_is_gone_has_no_effect() {
    let mut o = oncall(&["alice+bob"]);
    let id = make(&mut o, wanted(cover("carol", Some("bob"), None, "2026-01-10T00:00")), at(MONDAY));
    let effective = |o: &OnCall| o.is_effective(o.overrides().get(&id).unwrap());
    assert!(effective(&o) && who(&o, "2026-01-06T00:00:00Z") == "alice+carol");
    let mut without = config(weekly(&["alice"]));
    without.users.retain(|user| user.name != "bob");
    o.configure(without);
    assert!(!effective(&o) && who(&o, "2026-01-06T00:00:00Z") == "alice");
    assert_eq!(o.void_overrides(at(MONDAY)).count(), 1);
}

#[test]
fn a_record_is_what_it_was_after_it_is_stored() {
    let o = oncall(&["alice", "bob"]);
    let both = swap(
        turn("alice", "2026-01-19T09:00", "2026-01-26T09:00"),
        turn("bob", "2026-01-26T09:00", "2026-02-02T09:00"),
    );
    let record = plan(&o, both, at(MONDAY)).unwrap().removed_by("bob", at("2026-01-20T00:00:00Z"));
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<OverrideRecord>(&text).unwrap(), record);
}

fn any_record() -> impl Strategy<Value = OverrideRecord> {
    let one = (0i64..1500, 1i64..300, 0usize..4, 0usize..4);
    (proptest::collection::vec(one, 1..3), proptest::option::of(0i64..1800)).prop_map(|(covers, removed)| {
        let names = ["alice", "bob", "carol", "dave"];
        let cover = |(from, hours, user, replaces): (i64, i64, usize, usize)| Cover {
            user: names[user].into(),
            // The last one is nobody, so that everybody is replaced.
            replaces: names.get(replaces).filter(|name| **name != "dave").map(|name| (*name).into()),
            from: Ts(from * HOUR),
            until: Ts((from + hours) * HOUR),
        };
        OverrideRecord {
            id: String::new(),
            seq: 0,
            schedule: "primary".into(),
            covers: covers.into_iter().map(cover).collect(),
            created_by: "ann".into(),
            note: String::new(),
            created_at: Ts(0),
            removed: removed.map(|at| Removal { at: Ts(at * HOUR), by: "bob".into() }),
        }
    })
}

proptest! {
    /// Whatever was made and removed: every moment has one answer, the shifts agree with it, and
    /// whoever stands in can be reached.
    #[test]
    fn every_moment_has_one_answer(
        made in proptest::collection::vec(any_record(), 0..8),
        asked in proptest::collection::vec(0i64..2000 * HOUR, 40),
    ) {
        let mut schedule = weekly(&["alice+bob", "carol"]);
        schedule.layers[0].start = "1970-01-05T09:00".parse().unwrap();
        let mut o = OnCall::new(config(schedule));
        for (n, record) in made.into_iter().enumerate() {
            let record = OverrideRecord { id: format!("o{n}"), seq: n as u64 + 1, ..record };
            o.put_override(Arc::new(record), Ts(0));
        }
        let (from, to) = (Ts(0), Ts(2000 * HOUR));
        let shifts = o.shifts("primary", from, to);
        prop_assert_eq!((shifts[0].from, shifts.last().unwrap().to), (from, to));
        for pair in shifts.windows(2) {
            prop_assert_eq!(pair[0].to, pair[1].from);
        }
        for moment in asked {
            let moment = Ts(moment);
            let mut holding = shifts.iter().filter(|s| s.from <= moment && moment < s.to);
            let shift = holding.next().unwrap();
            prop_assert!(holding.next().is_none());
            let duty = o.duty("primary", moment).unwrap();
            prop_assert_eq!((&duty.users, &duty.by), (&shift.users, &shift.by), "{}", moment);
            prop_assert!(!duty.users.iter().any(|user| user == "dave"));
        }
    }

    /// Of those that replace everybody, the one made last decides.
    #[test]
    fn the_one_made_last_decides(
        spans in proptest::collection::vec((0i64..500, 1i64..300, 0usize..3), 1..8), asked in 0i64..800 * HOUR,
    ) {
        let names = ["alice", "bob", "carol"];
        let mut o = oncall(&["alice"]);
        let mut want = String::new();
        for (n, (from, hours, who)) in spans.into_iter().enumerate() {
            let (from, until) = (Ts(from * HOUR), Ts((from + hours) * HOUR));
            let cover = Cover { user: names[who].into(), replaces: None, from, until };
            let record = OverrideRecord {
                // The order of ids is not that in which they were made.
                id: format!("o{}", 9 - n),
                seq: n as u64 + 1,
                schedule: "primary".into(),
                covers: vec![cover],
                created_by: "ann".into(),
                note: String::new(),
                created_at: Ts(0),
                removed: None,
            };
            o.put_override(Arc::new(record), Ts(0));
            if (from..until).contains(&Ts(asked)) {
                want = names[who].into();
            }
        }
        prop_assert_eq!(o.duty("primary", Ts(asked)).unwrap().users.join("+"), want);
    }
}
