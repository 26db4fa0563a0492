use proptest::prelude::*;

use super::*;
use crate::matcher::Op;

const T0: Ts = Ts(1_795_227_416_000);

fn at(seconds: i64) -> Ts {
    T0 + Span::secs(seconds)
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn wanted(matchers: &[&str], from: Option<i64>, to: i64) -> Wanted {
    Wanted {
        id: None,
        matchers: matchers.iter().map(|m| Matcher::parse(m).unwrap()).collect(),
        starts_at: from.map(at),
        ends_at: at(to),
        created_by: "alice".into(),
        comment: "new switch".into(),
        expire_on_resolve: false,
    }
}

/// Plans and applies a silence as the engine does.
fn add(s: &mut Silences, w: Wanted, fresh: &str, now: i64) -> Result<String, Refusal> {
    let plan = s.plan(w, fresh, at(now))?;
    if let Some(old) = &plan.replaces {
        s.expire(old, at(now));
    }
    let id = plan.silence.id.clone();
    s.put(plan.silence);
    Ok(id)
}

#[test]
fn one_that_is_ended_before_it_begins_was_never_in_force() {
    let mut s = Silences::default();
    let id = add(&mut s, wanted(&["run=a"], Some(100), 200), "x", 0).unwrap();
    let ended = s.expire(&id, at(10)).unwrap();
    assert_eq!((ended.starts_at, ended.ends_at), (at(10), at(10)));
    assert!((0..300).all(|t| s.silenced(&labels(&[("run", "a")]), at(t)).is_none()));
}

#[test]
fn what_is_refused_and_why() {
    let mut s = Silences::default();
    s.configure(
        SilenceConfig { min_matchers: 2, max_duration: Span::secs(100), ..SilenceConfig::default() },
        &[],
        &[],
    );
    let two = ["run=a", "kind=hang"];
    for (w, part) in [
        (wanted(&[], None, 10), "matchers: 1 to 32"),
        (wanted(&["run=~\".*\""], None, 10), "must not match the empty string"),
        (wanted(&["run=a", "node!=b"], None, 10), "silences.min_matchers asks for 2"),
        (wanted(&two, None, 101), "longer than silences.max_duration, 1m 40s"),
        // As it was asked for, a second before it came here.
        (wanted(&two, None, 7199), "2h is longer than"),
        (wanted(&two, Some(20), 20), "after the start"),
        (wanted(&two, Some(-20), -10), "in the past"),
        (Wanted { comment: "  ".into(), ..wanted(&two, None, 10) }, "comment: must say"),
        (Wanted { created_by: String::new(), ..wanted(&two, None, 10) }, "author: must say"),
    ] {
        let refusal = s.plan(w, "x", T0).unwrap_err();
        assert!(matches!(&refusal, Refusal::Invalid(why) if why.contains(part)), "{part}: {refusal:?}");
    }
    let unknown = Wanted { id: Some("no".into()), ..wanted(&two, None, 10) };
    assert!(matches!(s.plan(unknown, "x", T0), Err(Refusal::Unknown(_))));
    assert!(s.plan(wanted(&two, Some(-1000), 100), "x", T0).is_ok(), "what is past of it does not count");
}

/// A silence with this many matchers of `length` characters each.
fn large(matchers: usize, length: usize) -> Wanted {
    let matcher = |i: usize| Matcher::new(format!("l{i}"), Op::Equal, "x".repeat(length)).unwrap();
    Wanted { matchers: (0..matchers).map(matcher).collect(), ..wanted(&["run=a"], None, 1000) }
}

#[test]
fn the_text_of_all_has_a_limit() {
    let mut s = Silences::default();
    // A script makes silences of the largest allowed size.
    let mut refusal = None;
    let mut count = 0;
    while count < 1000 && refusal.is_none() {
        refusal = add(&mut s, large(32, 2048), &format!("x{count:03}"), 0).err();
        count += 1;
    }
    let Some(Refusal::Full(why)) = refusal else { panic!("{count}: {refusal:?}") };
    assert!(why.contains("all silences may take 8192 KiB"), "{why}");
    assert!(s.all().map(Silence::size).sum::<usize>() <= rules::MAX_BYTES);
    // There is room for one in place of another, and for others after one has ended.
    let changed = Wanted { id: Some("x000".into()), comment: "other".into(), ..large(32, 2048) };
    add(&mut s, Wanted { starts_at: Some(T0), ..changed }, "x", 0).unwrap();
    s.expire("x001", at(1)).unwrap();
    add(&mut s, large(30, 2048), "more", 1).unwrap();
    add(&mut s, wanted(&["run=a"], None, 1000), "small", 1).unwrap();
    // Ten thousand usual silences have room.
    let mut usual = Silences::default();
    for i in 0..200 {
        add(
            &mut usual,
            wanted(&["run=llama-70b-pretrain", "kind=hang"], None, 1000),
            &format!("x{i:035}"),
            0,
        )
        .unwrap();
    }
    assert!(usual.all().map(Silence::size).sum::<usize>() * 50 < rules::MAX_BYTES);
}

#[test]
fn of_ended_ones_the_newest_are_remembered() {
    let mut s = Silences::default();
    let ended = |id: String, matchers: &Wanted, ends: i64| Silence {
        id,
        matchers: matchers.matchers.clone(),
        starts_at: T0,
        ends_at: at(ends),
        created_by: "alice".into(),
        comment: "x".into(),
        updated_at: T0,
        expire_on_resolve: false,
        planned_by: None,
        reminded: false,
    };
    let small = wanted(&["run=a"], None, 10);
    for i in 0..MAX_ENDED + 5 {
        s.put(ended(format!("x{i}"), &small, 1 + i as i64));
    }
    s.put(ended("open".into(), &small, 1_000_000));
    let gone = s.forget_crowded_out(at(100_000));
    assert_eq!(
        gone.iter().collect::<BTreeSet<_>>(),
        ["x0", "x1", "x2", "x3", "x4"].map(str::to_owned).iter().collect()
    );
    assert_eq!((s.all().count(), s.forgotten_early()), (MAX_ENDED + 1, 5));
    // The byte limit keeps fewer large ones.
    for i in 0..100 {
        s.put(ended(format!("y{i}"), &large(32, 2048), 50_000 + i));
    }
    s.forget_crowded_out(at(100_000));
    let left: Vec<_> = s.all().filter(|s| s.phase(at(100_000)) == Phase::Expired).collect();
    assert!(left.iter().map(|s| s.size()).sum::<usize>() <= MAX_ENDED_BYTES && left.len() < 100);
    assert!(s.get("y99").is_some() && s.get("y0").is_none() && s.get("open").is_some());
}

#[test]
fn there_is_a_most() {
    let mut s = Silences::default();
    s.configure(SilenceConfig { max: 1, ..SilenceConfig::default() }, &[], &[]);
    add(&mut s, wanted(&["run=a"], None, 10), "1", 0).unwrap();
    assert!(matches!(add(&mut s, wanted(&["run=b"], None, 10), "2", 5), Err(Refusal::Full(_))));
    let change = Wanted { id: Some("1".into()), ..wanted(&["run=b"], None, 20) };
    assert_eq!(add(&mut s, change, "2", 5), Ok("2".into()), "one for one");
    add(&mut s, wanted(&["run=c"], None, 30), "3", 20).unwrap();
}

#[test]
fn a_change_in_place_or_a_follower() {
    let mut s = Silences::default();
    add(&mut s, wanted(&["run=a"], None, 100), "1", 0).unwrap();
    let same = |to, from| Wanted { id: Some("1".into()), ..wanted(&["run=a"], Some(from), to) };
    assert_eq!(add(&mut s, same(200, 0), "2", 50), Ok("1".into()), "longer");
    let other = Wanted { id: Some("1".into()), ..wanted(&["run=b"], Some(0), 200) };
    assert_eq!(add(&mut s, other, "2", 60), Ok("2".into()), "about something else");
    assert_eq!((s.get("1").unwrap().ends_at, s.get("2").unwrap().starts_at), (at(60), at(60)));
    assert_eq!(add(&mut s, same(300, 0), "3", 70), Ok("3".into()), "what is over stays over");
    add(&mut s, wanted(&["run=c"], Some(500), 600), "4", 70).unwrap();
    let later = Wanted { id: Some("4".into()), ..wanted(&["run=d"], Some(550), 600) };
    assert_eq!(add(&mut s, later, "5", 80), Ok("4".into()), "nothing has come of it yet");
}

#[test]
fn the_longest_of_those_that_match() {
    let mut s = Silences::default();
    add(&mut s, wanted(&["run=a"], None, 100), "1", 0).unwrap();
    add(&mut s, wanted(&["run=~\"a|b\""], None, 200), "2", 0).unwrap();
    add(&mut s, wanted(&["run=a"], Some(50), 300), "3", 0).unwrap();
    let who = |seconds, run| s.silenced(&labels(&[("run", run)]), at(seconds)).map(|h| h.id);
    assert_eq!(who(0, "a"), Some("2".into()));
    assert_eq!(who(50, "a"), Some("3".into()));
    assert_eq!(who(50, "b"), Some("2".into()));
    assert_eq!(who(299, "a"), Some("3".into()));
    assert_eq!((who(300, "a"), who(0, "c")), (None, None));
    let silence = s.silenced(&labels(&[("run", "b")]), at(1)).unwrap();
    assert_eq!(silence.words(), "silenced by alice until 2026-11-21T02:20:16Z: new switch");
}

#[test]
fn what_is_to_be_done_about_one() {
    let mut s = Silences::default();
    add(&mut s, wanted(&["run=a"], Some(100), 7300), "1", 0).unwrap();
    let mut seen = Vec::new();
    let mut now = at(0);
    while let Some((due_at, due)) = s.next("1", now) {
        assert!(due_at > now, "a deadline that is never over");
        now = due_at;
        seen.push(((due_at - T0).0 / 1000, due));
        match due {
            Due::Remind => drop(s.mark_reminded("1", now)),
            Due::Forget => s.forget("1"),
            Due::Begins | Due::Ends => {}
        }
    }
    let want = [(100, Due::Begins), (6400, Due::Remind), (7300, Due::Ends), (7300 + 432_000, Due::Forget)];
    assert_eq!(seen, want);
    add(&mut s, wanted(&["run=a"], None, 1799), "2", 0).unwrap();
    assert_eq!(s.next("2", T0), Some((at(1799), Due::Ends)), "too short to be reminded of");
}

#[test]
fn a_planned_restart_covers_what_a_restart_causes_and_no_more() {
    let mut s = Silences::default();
    let silence = s.planned("llama", Span::secs(1800), "new kernel", at(-5), T0).unwrap();
    assert_eq!(silence.selector(), "run=\"llama\", kind=~\"hang|rank_dead|source_lost|stall\"");
    assert_eq!((silence.created_by.as_str(), silence.comment.as_str()), ("run llama", "new kernel"));
    assert!(silence.id.len() == 36 && silence.id.as_bytes()[14] == b'8', "{}", silence.id);
    s.put(silence);
    let silenced = |run, kind| s.silenced(&labels(&[("run", run), ("kind", kind)]), at(60)).is_some();
    assert!(silenced("llama", "hang") && silenced("llama", "rank_dead") && silenced("llama", "stall"));
    assert!(!silenced("llama", "nonfinite") && !silenced("llama", "gpu_fault") && !silenced("other", "hang"));
}

#[test]
fn a_script_that_asks_in_a_loop_hides_a_hang_no_longer() {
    let mut s = Silences::default();
    let last_step = at(-1);
    for second in 0..20_000 {
        if let Some(silence) = s.planned("llama", Span::secs(1800), "", last_step, at(second)) {
            s.put(silence);
        }
    }
    let hang = labels(&[("run", "llama"), ("kind", "hang")]);
    let silenced = (0..20_000).filter(|second| s.silenced(&hang, at(*second)).is_some()).count();
    assert_eq!(silenced, 3600, "silences.max_planned_restart, once");
    let again = s.planned("llama", Span::secs(60), "", at(20_000), at(20_001)).unwrap();
    assert_eq!((again.starts_at, again.ends_at), (at(20_001), at(20_061)), "it has made steps since");
}

/// How often the requests of a run change its silence.
fn asked(s: &mut Silences, run: &str, seconds: std::ops::Range<i64>, length: impl Fn(i64) -> i64) -> usize {
    let ask = |second: i64| {
        s.planned(run, Span::secs(length(second)), "", at(-1), at(second)).map(|new| s.put(new))
    };
    seconds.filter_map(ask).count()
}

#[test]
fn a_run_that_asks_all_the_time_changes_one_silence_now_and_then() {
    let mut s = Silences::default();
    let written = asked(&mut s, "llama", 0..600, |second| (second * 7919) % 3600);
    assert!((2..=20).contains(&written), "{written}");
    assert_eq!(s.all().count(), 1, "changed in place");
    assert!(s.planned_dropped() > 400, "{}", s.planned_dropped());
    // A request without a change does not count as dropped.
    let (dropped, mut s) = (s.planned_dropped(), Silences::default());
    assert!(dropped > 0 && asked(&mut s, "other", 0..50, |_| 1800) == 1 && s.planned_dropped() == 0);
    // A request to end it must be handled at once.
    let ends = s.planned("other", Span::ZERO, "", at(-1), at(51)).unwrap();
    assert_eq!(ends.ends_at, at(51));
}

#[test]
fn silences_of_many_runs_are_bounded_and_take_no_room_from_people() {
    let mut s = Silences::default();
    for run in 0..planned::MAX_PLANNED + 9 {
        asked(&mut s, &run.to_string(), 0..1, |_| 1800);
    }
    assert_eq!((s.all().count(), s.planned_dropped()), (planned::MAX_PLANNED, 9));
    add(&mut s, wanted(&["run=a"], None, 60), "1", 0).unwrap();
    // A silence that is over is replaced.
    assert_eq!(asked(&mut s, "late", 4000..4001, |_| 1800), 1);
    assert_eq!(s.all().count(), planned::MAX_PLANNED + 1);
}

/// An operation on silences. The reference keeps only time intervals.
#[derive(Debug, Clone)]
enum Act {
    Add { run: u8, from: i64, length: i64 },
    Expire(usize),
    Prolong(usize, i64),
}

fn acts() -> impl Strategy<Value = Vec<(i64, Act)>> {
    let act = prop_oneof![
        (0u8..3, -50i64..200, 1i64..400).prop_map(|(run, from, length)| Act::Add { run, from, length }),
        (0usize..8).prop_map(Act::Expire),
        (0usize..8, 1i64..500).prop_map(|(which, to)| Act::Prolong(which, to)),
    ];
    proptest::collection::vec((0i64..60, act), 1..25)
}

proptest! {
    #[test]
    fn something_is_silenced_exactly_while_a_silence_of_it_lasts(acts in acts()) {
        let mut s = Silences::default();
        // By id: the run, and the time that it covers.
        let mut model: Vec<(u8, i64, i64)> = Vec::new();
        let mut now = 0;
        for (wait, act) in acts {
            now += wait;
            match act {
                Act::Add { run, from, length } => {
                    let (from, to) = (now + from, now + from + length);
                    let w = wanted(&[&format!("run=r{run}")], Some(from), to);
                    if add(&mut s, w, &model.len().to_string(), now).is_ok() {
                        model.push((run, from.max(now), to));
                    } else {
                        prop_assert!(to <= now);
                    }
                }
                Act::Expire(which) => {
                    let gone = s.expire(&which.to_string(), at(now)).is_some();
                    let lasts = model.get(which).is_some_and(|m| m.2 > now);
                    prop_assert_eq!(gone, lasts);
                    if let Some(m) = model.get_mut(which).filter(|_| gone) {
                        (m.1, m.2) = (m.1.min(now), now);
                    }
                }
                Act::Prolong(which, to) => {
                    let Some(m) = model.get(which).copied() else { continue };
                    let w = wanted(&[&format!("run=r{}", m.0)], Some(m.1), now + to);
                    let w = Wanted { id: Some(which.to_string()), ..w };
                    match add(&mut s, w, &model.len().to_string(), now) {
                        Ok(id) if id == which.to_string() => model[which].2 = now + to,
                        Ok(_) => model.push((m.0, m.1.max(now), now + to)),
                        Err(_) => {}
                    }
                }
            }
            for run in 0..3u8 {
                for t in [now, now + 30, now + 150, now + 400] {
                    let silenced = s.silenced(&labels(&[("run", &format!("r{run}"))]), at(t));
                    let until = model.iter().filter(|m| m.0 == run && m.1 <= t && t < m.2).map(|m| at(m.2)).max();
                    prop_assert_eq!(silenced.map(|h| h.until), until);
                }
            }
        }
    }

    /// Every silence ends at its end and not before, and until then always has a next deadline.
    #[test]
    fn deadlines_lead_to_the_end(from in 0i64..5000, length in 1i64..500_000, remind in 0i64..5000) {
        let mut s = Silences::default();
        s.configure(SilenceConfig { remind_before: Span::secs(remind), ..SilenceConfig::default() }, &[], &[]);
        add(&mut s, wanted(&["run=a"], Some(from), from + length), "1", 0).unwrap();
        let (mut now, mut seen) = (T0, Vec::new());
        while let Some((due_at, due)) = s.next("1", now) {
            prop_assert!(due_at > now && seen.len() < 5);
            now = due_at;
            seen.push(due);
            match due {
                Due::Ends => prop_assert_eq!(due_at, at(from + length)),
                Due::Remind => drop(s.mark_reminded("1", now)),
                Due::Forget => s.forget("1"),
                Due::Begins => {}
            }
        }
        prop_assert_eq!(&seen[seen.len() - 2..], [Due::Ends, Due::Forget]);
    }
}

#[test]
fn the_stored_form_is_the_same() {
    let mut w = wanted(&["run=a", "node=~\"gpu-\\d+\"", "team!=\"\""], None, 10);
    w.matchers.push(Matcher::new("odd name", Op::NotRegex, "a\"b\\\\c\n").unwrap());
    let silence = Silences::default().plan(w, "1", T0).unwrap().silence;
    let text = serde_json::to_string(&silence).unwrap();
    assert_eq!(serde_json::from_str::<Silence>(&text).unwrap(), silence, "{text}");
}

/// A token with few rights asks for many silences with large regular expressions.
#[test]
fn regular_expressions_of_all_silences_have_a_most() {
    let mut s = Silences::default();
    let large: Vec<String> = (0..31).map(|n| format!("alertname=~\"([a-zA-Z]?){{300}}z{n}\"")).collect();
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    let refused = (0..40).map(|n| add(&mut s, wanted(&large, None, 10), &format!("l{n}"), 5));
    let refused = refused.filter_map(Result::err).last().unwrap();
    assert!(matches!(&refused, Refusal::Full(why) if why.contains("4096 KiB")), "{refused:?}");
    let cost: usize = s.all().map(Silence::cost).sum();
    assert!(cost <= rules::MAX_COMPILED, "{cost}");
    for n in 0..5000 {
        let runs = format!("run=~\"llama-{n}|llama-{n}-.*|other\"");
        add(&mut s, wanted(&[&runs, "kind=~\"hang|stall\""], None, 10), &format!("s{n}"), 5).unwrap();
    }
    // Silences that are over take nothing, so that there is room again.
    s.expire("l0", at(6));
    assert_eq!(s.get("l0").map(Silence::cost), Some(0));
    add(&mut s, wanted(&large, None, 10), "again", 6).unwrap();
}
