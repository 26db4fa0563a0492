//! What nodes show of a start that hangs, and who is not accused.

use super::*;

const MASTER: &str = r#""master":"10.0.0.1:29500""#;

/// What a node tells of the run `r`, whose processes belong to user 1001.
fn shows(s: &mut Scene, at: i64, node: &str, name: &str, more: &str) {
    s.wait(at);
    let json = format!(
        r#"{{"k":"health","name":"{name}","node":"{node}","code":1,"uid":1001,"key":"k","runs":["r"],{more}}}"#
    );
    let mut e = Event::parse(json.as_bytes()).unwrap();
    e.ts = Some((T + at) as f64);
    let source = format!("{node}:9765");
    s.monitor.handle(Ts((T + at) * 1000), Input::Event { source: &source, event: &e }, &mut s.out);
}

fn meets(s: &mut Scene, at: i64, node: &str, more: &str) {
    shows(s, at, node, "rendezvous", &format!("{MASTER},{more}"));
}

/// A start in which all ranks wait in the process group, and what its nodes tell before the ticket.
fn waiting(told: &[(&str, &str)]) -> (Vec<String>, String) {
    let mut s = Scene::default();
    s.hello(0, 0..WORLD, 0);
    s.init(5, 0..WORLD, "begin");
    told.iter().for_each(|(node, more)| meets(&mut s, 1700, node, more));
    s.wait(1805);
    assert_eq!(s.times(), [(1805, Severity::Ticket)]);
    let v = s.hangs()[0].2;
    (suspects(v), v.why.to_string())
}

const LISTENS: (&str, &str) = ("n1", r#""ranks":[0,1,2,3],"listens":true,"peers":2"#);
const CONNECTED: [(&str, &str); 2] = [
    ("n2", r#""ranks":[4,5],"link":"established","seconds":480"#),
    ("n3", r#""ranks":[8,9],"link":"established","seconds":480"#),
];

#[test]
fn a_node_that_gets_no_answer_from_the_master_is_named_with_its_socket() {
    let [n2, n3] = CONNECTED;
    let n4 = ("n4", r#""ranks":[12,13],"link":"syn_sent","seconds":480"#);
    let (named, why) = waiting(&[LISTENS, n2, n3, n4]);
    let want = "node n4: SYN_SENT to the master 10.0.0.1:29500 for 9m 45s: it gets no answer";
    assert!(named.first().is_some_and(|first| first.starts_with(want)), "{named:?}");
    assert!(named.iter().all(|one| !one.starts_with("node n2") && !one.starts_with("node n3")), "{named:?}");
    assert!(why.contains("; n4: SYN_SENT to the master 10.0.0.1:29500 for 9m 45s; "), "{why}");
    assert!(why.contains("2 other hosts are connected to the master 10.0.0.1:29500 on n1"), "{why}");
    assert_eq!(why.matches("SYN_SENT").count(), 1, "{why}");
}

#[test]
fn where_no_node_gets_an_answer_it_is_the_master() {
    let tries = r#""link":"syn_sent","seconds":480"#;
    let (named, why) = waiting(&[
        ("n1", r#""ranks":[0],"listens":true,"peers":0"#),
        ("n2", tries),
        ("n3", tries),
        ("n4", tries),
    ]);
    let want = "node n1: ranks meet there at 10.0.0.1:29500, and none of 3 other nodes gets an answer";
    assert!(named.first().is_some_and(|first| first.starts_with(want)), "{named:?}");
    assert!(named.iter().all(|one| !one.contains("SYN_SENT")), "{named:?}");
    assert!(why.contains("none of 3 nodes gets an answer from the master 10.0.0.1:29500"), "{why}");
}

#[test]
fn where_one_node_tries_and_nobody_is_better_off_both_ends_are_named() {
    let n2 = ("n2", r#""ranks":[4,5],"link":"syn_sent","seconds":480"#);
    let (named, why) = waiting(&[("n1", r#""ranks":[0],"listens":true,"peers":0"#), n2]);
    let want = [
        "node n1: ranks meet there at 10.0.0.1:29500, and the one other node that tries gets no answer",
        "node n2: SYN_SENT to the master 10.0.0.1:29500 for 9m 45s",
    ];
    assert!(want.into_iter().all(|want| named.iter().any(|one| one.starts_with(want))), "{named:?}");
    assert!(why.contains("n2: SYN_SENT to the master 10.0.0.1:29500 for 9m 45s"), "{why}");
}

#[test]
fn who_listens_for_another_job_and_who_meets_elsewhere_is_not_named() {
    let other = r#""master":"10.0.0.9:4000","ranks":[8],"#;
    let told = |node: &str, more: &str| {
        let mut s = Scene::default();
        s.hello(0, 0..WORLD, 0);
        s.init(5, 0..WORLD, "begin");
        for (node, more) in [LISTENS, CONNECTED[0], (node, more)] {
            let master = if more.contains("master") { "" } else { r#""master":"n1:29500","# };
            shows(&mut s, 1700, node, "rendezvous", &format!("{master}{more}"));
        }
        s.wait(1805);
        let v = s.hangs()[0].2;
        (suspects(v), v.why.to_string())
    };
    // It is not connected to another place, at which nobody meets.
    let (named, why) = told("n3", &format!(r#"{other}"link":"none","seconds":480"#));
    assert!(named.iter().all(|one| !one.contains("no connection")), "{named:?} {why}");
    // The master is n1 by its name: who listens at that port on n4 is another job.
    let (named, why) = told("n4", r#""ranks":[12],"listens":true,"peers":9,"link":"syn_sent","seconds":480"#);
    assert!(named[0].starts_with("node n4: SYN_SENT to the master n1:29500"), "{named:?}");
    assert!(why.contains("2 other hosts are connected to the master n1:29500 on n1"), "{why}");
}

#[test]
fn a_node_without_a_connection_is_named_only_beside_others_that_have_one() {
    let [n2, n3] = CONNECTED;
    let none = |node: &'static str| (node, r#""link":"none","seconds":480"#);
    let (named, _) = waiting(&[LISTENS, n2, n3, none("n4")]);
    let want = "node n4: no connection to the master 10.0.0.1:29500 for 9m 45s, while other nodes have one";
    assert!(named.first().is_some_and(|first| first.starts_with(want)), "{named:?}");
    // Most have none, or nobody is connected: the ranks may meet elsewhere.
    let quiet = ("n1", r#""ranks":[0]"#);
    for told in [[LISTENS, n2, none("n3"), none("n4")], [quiet, none("n2"), none("n3"), none("n4")]] {
        let (named, why) = waiting(&told);
        assert!(named.iter().all(|one| !one.contains("no connection")), "{named:?}");
        assert!(!why.contains("no connection"), "{why}");
    }
    // It has just begun to try.
    let (named, _) = waiting(&[LISTENS, n2, n3, ("n4", r#""link":"none","seconds":0"#)]);
    assert!(named.iter().any(|one| one.starts_with("node n4: ")), "105 s ago");
}

#[test]
fn connections_say_nothing_once_the_ranks_have_met_or_a_rank_is_through() {
    for (rank, more) in [(0, r#","nranks":16"#), (12, "")] {
        let mut s = Scene::default();
        s.hello(0, 0..WORLD, 0);
        s.init(5, 0..WORLD, "begin");
        s.say(9, rank, &format!(r#""k":"phase","name":"init","phase":"end"{more}"#));
        let [n2, n3] = CONNECTED;
        let n4 = ("n4", r#""ranks":[12,13],"link":"none","seconds":480"#);
        [LISTENS, n2, n3, n4].iter().for_each(|(node, more)| meets(&mut s, 1700, node, more));
        s.wait(1809);
        let named = suspects(s.hangs()[0].2);
        assert!(named.iter().all(|one| !one.contains("master")), "{named:?}");
    }
}

#[test]
fn another_users_processes_and_old_news_say_nothing() {
    let n4 = r#""ranks":[12,13],"link":"syn_sent","seconds":480"#;
    for (uid, at, is_named) in [(1001, 1700, true), (4242, 1700, false), (1001, 1500, false)] {
        let mut s = Scene::default();
        for rank in 0..WORLD {
            s.say(0, rank, &format!(r#""k":"hello","world":16,"pid":{},"uid":{uid}"#, 100 + rank));
        }
        meets(&mut s, at, "n4", n4);
        s.wait(1800);
        let named = suspects(s.hangs()[0].2);
        assert_eq!(named.iter().any(|one| one.contains("SYN_SENT")), is_named, "{uid} {at}: {named:?}");
    }
}

/// All ranks but the last say hello and wait, and its node tells this.
fn without_the_last(name: &str, more: &str) -> (Vec<String>, String) {
    let mut s = Scene::default();
    s.hello(0, 0..15, 0);
    s.init(5, 0..15, "begin");
    shows(&mut s, 550, "n4", name, more);
    s.wait(600);
    assert_eq!(s.times(), [(600, Severity::Page)]);
    let v = s.hangs()[0].2;
    (suspects(v), v.why.to_string())
}

#[test]
fn a_rank_without_a_process_is_told_from_one_that_says_nothing() {
    for (more, want) in [
        (
            r#""ranks":[12,13,14],"absent":[15]"#,
            "rank 15 on n4: has no process on its node, where its launcher started 3 others",
        ),
        (
            r#""ranks":[12,13,14,15]"#,
            "rank 15 on n4: has a process that has not said hello, while 15 ranks have",
        ),
        // A launcher of launchers counts otherwise: its third one is no rank of the run.
        (r#""ranks":[3,15],"world_size":4"#, "rank 15: has not said hello, while 15 ranks have"),
        // It said hello, whatever the node tells.
        (r#""ranks":[12,13,15],"absent":[14]"#, "rank 15 on n4: has a process that has not said hello"),
    ] {
        let (named, _) = without_the_last("rendezvous", more);
        assert!(named.first().is_some_and(|first| first.starts_with(want)), "{named:?}");
        assert!(named.iter().all(|one| !one.starts_with("rank 14")), "{named:?}");
    }
}

#[test]
fn ranks_that_nccl_does_not_hear_are_named_where_its_numbers_are_those_of_the_run() {
    let of = |size: u32, count: u32| {
        let ras = format!(r#""comm_size":{size},"unanswered":{count},"ranks":[5],"hosts":["10.0.0.2"]"#);
        without_the_last("ras", &ras)
    };
    let (named, why) = of(16, 1);
    let want = "rank 5 on n2: NCCL's RAS gets no answer from it on 10.0.0.2, of 16 ranks";
    assert!(named.iter().any(|one| one.starts_with(want)), "{named:?}");
    assert!(why.contains("NCCL's RAS gets no answer from 1 of 16 ranks: 5"), "{why}");
    // A communicator of some ranks has numbers of its own. Who hears nobody is alone.
    for (named, why) in [of(8, 1), of(16, 15)] {
        assert!(!why.contains("RAS") && named.iter().all(|one| !one.contains("RAS")), "{named:?} {why}");
    }
}

#[test]
fn a_rank_that_others_tell_of_is_not_late_for_the_process_group() {
    let mut s = Scene::default();
    // Its run was found to be this one after it had begun its process group.
    s.say(0, 0, r#""k":"hello","world":16,"source":"identity""#);
    s.hello(0, 1..WORLD, 0);
    s.init(5, 1..WORLD, "begin");
    s.wait(1805);
    let v = s.hangs()[0].2;
    assert!(suspects(v).iter().all(|one| !one.starts_with("rank 0")), "{:?}", suspects(v));
    assert!(!v.why.to_string().contains("the process group waits for ranks 0"), "{}", v.why);
}

#[test]
fn ranks_that_live_on_beside_replaced_ones_are_not_missing() {
    let mut s = Scene::default();
    s.hello(0, 0..WORLD, 0);
    s.init(5, 0..WORLD, "begin");
    (0..9).for_each(|rank| s.say(100, rank, r#""k":"bye","code":1"#));
    s.hello(110, 0..9, 1);
    s.init(120, 0..WORLD, "begin");
    s.wait(1919);
    assert!(s.times().is_empty(), "{:?}", s.times());
    s.wait(1920);
    let why = s.hangs()[0].2.why.to_string();
    assert!(!why.contains("no hello came"), "{why}");
}

#[test]
fn a_node_of_the_job_that_is_silent_is_said_to_be_silent() {
    let mut s = Scene::default();
    ["n1", "n2", "n3", "n4"].iter().for_each(|node| job(&mut s, 0, node));
    s.hello(0, 0..12, 0);
    s.init(5, 0..12, "begin");
    ["n1", "n2", "n3"].iter().for_each(|node| job(&mut s, 590, node));
    s.wait(600);
    let named = suspects(s.hangs()[0].2);
    let want = "node n4: nothing was heard of the node for 10m";
    assert!(named.iter().any(|one| one.starts_with(want)), "{named:?}");
    assert!(named.iter().all(|one| !one.contains("no rank said hello there")), "{named:?}");
}

#[test]
fn a_run_that_meets_at_a_name_that_means_another_host_is_another_run() {
    let stuck = r#""ranks":[15],"link":"syn_sent","seconds":480"#;
    for (rank, is_named) in [(15, true), (3, false)] {
        let mut s = Scene::default();
        s.hello(0, 0..15, 0);
        s.init(5, 0..15, "begin");
        [LISTENS, CONNECTED[0]].iter().for_each(|(node, more)| meets(&mut s, 550, node, more));
        let json = format!(
            r#"{{"k":"health","name":"rendezvous","node":"n4","code":1,"uid":1001,"key":"x","runs":["x"],
            {MASTER},{}}}"#,
            stuck.replace("15", &rank.to_string())
        );
        let mut e = Event::parse(json.as_bytes()).unwrap();
        e.ts = Some((T + 550) as f64);
        let now = Ts((T + 550) * 1000);
        s.monitor.handle(now, Input::Event { source: "n4:9765", event: &e }, &mut s.out);
        s.wait(600);
        let named = suspects(s.hangs()[0].2);
        assert_eq!(named.iter().any(|one| one.contains("SYN_SENT")), is_named, "{rank}: {named:?}");
    }
}
