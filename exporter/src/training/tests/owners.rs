//! Tests of the ownership of runs and of the limits of one user, with invented users.

use super::*;

const ANN: Principal = Principal::User(4_000_001);
const BOB: Principal = Principal::User(4_000_002);
const ROOT: Principal = Principal::User(0);

impl Bench {
    fn by(&mut self, principal: Principal, line: &str) -> Outcome {
        self.from(&Origin::Http(principal), line)
    }

    fn step(&mut self, principal: Principal, run: &str, step: i64) -> Outcome {
        self.by(principal, &format!(r#"{{"k":"step","run":"{run}","step":{step},"m":{{"loss":2.5}}}}"#))
    }

    fn hello(&mut self, principal: Principal, run: &str) -> Outcome {
        self.by(principal, &format!(r#"{{"k":"hello","run":"{run}"}}"#))
    }

    fn dropped(&self, reason: Reason) -> u64 {
        self.drops.get(reason)
    }

    fn follows(&self, run: &str) -> bool {
        self.training.follows(run)
    }
}

const REFUSED: Outcome = Outcome::Dropped(Reason::NotOwner);

#[test]
fn nobody_speaks_for_the_run_of_another() {
    let mut b = Bench::new();
    b.hello(ANN, "r");
    assert_eq!(b.last().uid, Some(4_000_001), "the stream says whose it is");
    b.step(ANN, "r", 5);
    let published = b.out.len();
    for line in [
        r#"{"k":"step","run":"r","step":6,"m":{"loss":NaN}}"#,
        r#"{"k":"bye","run":"r","code":1}"#,
        r#"{"k":"event","run":"r","name":"rank_dead"}"#,
        r#"{"k":"hello","run":"r","uid":4000002}"#,
    ] {
        assert_eq!(b.by(BOB, line), REFUSED, "{line}");
        assert_eq!(b.by(Principal::Unknown, line), REFUSED, "{line}");
    }
    assert_eq!((b.out.len(), b.dropped(Reason::NotOwner)), (published, 8));
    assert_eq!(b.page().get(&f::STEP, &["r"]), Some(5.0));
    assert_eq!(b.training.lives()["r"].refused, BTreeMap::from([(BOB, 4), (Principal::Unknown, 4)]));
    assert_eq!(b.step(ROOT, "r", 6), Outcome::Accepted, "root speaks for any run");
    assert_eq!(b.step(ANN, "r", 7), Outcome::Accepted);
}

/// A reader that missed or refused `hello` learns the user from a later event.
#[test]
fn every_event_of_a_run_has_the_user_who_owns_it() {
    let mut b = Bench::new();
    let peer = |connection| Origin::Peer(Peer { connection, pid: Some(7), uid: 4_000_001 });
    for line in [
        r#"{"k":"hello","run":"r","rank":0}"#,
        r#"{"k":"step","run":"r","rank":0,"step":5,"uid":7,"m":{"loss":2.5}}"#,
        r#"{"k":"eval","run":"r","rank":0,"step":5,"m":{"loss":2.5}}"#,
        r#"{"k":"ckpt","run":"r","rank":0,"step":5,"phase":"start"}"#,
        r#"{"k":"step","run":"r","rank":0,"step":3,"m":{"loss":2.5}}"#,
    ] {
        b.from(&peer(1), line);
    }
    b.training.closed(b.now, 1, ProcessFate::Unknown, &mut b.out);
    b.step(ROOT, "r", 6);
    let kinds: Vec<_> = b.out.iter().map(|e| (e.kind.as_str(), e.uid)).collect();
    assert!(kinds.len() >= 8, "a restart and a death too: {kinds:?}");
    assert!(kinds.iter().all(|(_, uid)| *uid == Some(4_000_001)), "{kinds:?}");
}

#[test]
fn what_root_opened_is_that_of_the_first_other_user_who_makes_a_step() {
    let mut b = Bench::new();
    b.hello(ROOT, "r");
    for line in [
        r#"{"k":"hb","run":"r"}"#,
        r#"{"k":"hello","run":"r"}"#,
        r#"{"k":"phase","run":"r","name":"init","phase":"begin"}"#,
        r#"{"k":"bye","run":"r","code":0}"#,
        r#"{"k":"event","run":"r","name":"maintenance","seconds":3600}"#,
    ] {
        assert_eq!(b.by(BOB, line), REFUSED, "{line}");
    }
    assert_eq!(b.step(ANN, "r", 1), Outcome::Accepted);
    let hello = b.out.iter().rfind(|e| e.kind == Kind::Hello).unwrap();
    assert_eq!(hello.uid, Some(4_000_001), "said again");
    assert_eq!(b.step(BOB, "r", 2), REFUSED);
    assert_eq!(b.step(ROOT, "r", 2), Outcome::Accepted);
}

#[test]
fn a_run_in_which_root_makes_steps_stays_roots() {
    let mut b = Bench::new();
    b.step(ROOT, "r", 1);
    let archive = b.training.archive(b.now);
    let mut next = Bench::with(OPTIONS, archive);
    next.now = b.now + 5.0;
    for b in [&mut b, &mut next] {
        assert_eq!(b.step(BOB, "r", 2), REFUSED);
        assert_eq!(b.by(BOB, r#"{"k":"bye","run":"r","rank":0,"code":0}"#), REFUSED);
        assert_eq!(b.by(BOB, r#"{"k":"event","run":"r","name":"maintenance","seconds":3600}"#), REFUSED);
        assert_eq!(
            b.step(Principal::Exporter, "r", 2),
            Outcome::Accepted,
            "what the configuration names may"
        );
        assert_eq!(b.step(ROOT, "r", 3), Outcome::Accepted);
    }
}

#[test]
fn lines_that_roots_launcher_reads_of_a_command_are_no_steps_of_root() {
    let mut b = Bench::new();
    let lines = Origin::said_by(Via::Launcher, &Arc::from("r/0/out"), Priority::Log, ROOT);
    b.from(&lines, r#"{"k":"step","run":"r","step":1,"m":{"loss":2.5}}"#);
    assert_eq!(b.step(ANN, "r", 2), Outcome::Accepted);
    assert_eq!(b.training.lives()["r"].owner, ANN);
    b.from(&lines, r#"{"k":"step","run":"r","step":3,"m":{"loss":2.5}}"#);
    assert_eq!((b.page().get(&f::STEP, &["r"]), b.dropped(Reason::NotOwner)), (Some(3.0), 0));
}

#[test]
fn a_run_that_ended_or_fell_silent_may_be_opened_by_another() {
    let mut b = Bench::new();
    b.hello(ANN, "ended");
    b.by(ANN, r#"{"k":"bye","run":"ended","code":0}"#);
    b.step(ANN, "silent", 1);
    b.hello(ANN, "crashed");
    b.by(ANN, r#"{"k":"bye","run":"crashed","code":1}"#);
    assert_eq!(b.step(BOB, "ended", 1), Outcome::Accepted);
    assert_eq!(b.step(ANN, "ended", 2), REFUSED);
    assert_eq!(b.step(BOB, "crashed", 1), REFUSED, "it is started again");
    b.now += OPTIONS.linger + 1.0;
    b.training.expire(b.now);
    assert_eq!((b.follows("crashed"), b.step(BOB, "crashed", 1)), (false, REFUSED));
    b.now += OPTIONS.forget_after - OPTIONS.linger - 1.0;
    assert_eq!(b.step(BOB, "silent", 1), REFUSED);
    b.now += 1.0;
    b.training.expire(b.now);
    for run in ["silent", "crashed"] {
        assert_eq!(b.step(BOB, run, 1), Outcome::Accepted, "{run}");
    }
}

#[test]
fn users_take_turns_on_the_page() {
    let mut b = Bench::new();
    for rank in 0..10 {
        let step = format!(r#"{{"k":"step","run":"a","rank":{rank},"step":1,"m":{{"loss":2.5}}}}"#);
        b.by(BOB, &step);
    }
    b.step(ANN, "z", 1);
    let page = b.page();
    let rows: Vec<_> = page.rows(&f::HEARTBEAT).map(|row| row.label("run").to_owned()).collect();
    assert_eq!(rows.len(), 11);
    assert!(rows.iter().position(|run| run == "z") < Some(3), "{rows:?}");
}

#[test]
fn whose_it_is_outlives_this_exporter_and_the_want_of_room() {
    let mut b = Bench::new();
    b.step(ANN, "r", 1);
    let archive = b.training.archive(b.now);
    let mut next = Bench::with(OPTIONS, archive);
    next.now = b.now + 5.0;
    assert_eq!(next.step(BOB, "r", 2), REFUSED);
    assert_eq!(next.step(ROOT, "r", 2), Outcome::Accepted);
    assert_eq!(next.step(BOB, "r", 3), REFUSED, "that root came first changes nothing");
    assert_eq!(next.step(ANN, "r", 3), Outcome::Accepted);
}

#[test]
fn runs_that_the_configuration_shares_are_everybodys() {
    let shared = vec![glob::Pattern::new("eval-*").unwrap()];
    let mut b = Bench::with(Options { shared, ..OPTIONS }, Archive::default());
    b.step(ANN, "eval-1", 1);
    b.step(ANN, "r", 1);
    assert_eq!(b.step(BOB, "eval-1", 2), Outcome::Accepted);
    assert_eq!(b.step(Principal::Unknown, "eval-1", 3), Outcome::Accepted);
    assert_eq!(b.step(BOB, "r", 2), REFUSED);
}

#[test]
fn nobody_takes_a_run_into_his_own() {
    let mut b = Bench::new();
    b.step(ANN, "hers", 1);
    b.step(BOB, "his", 1);
    for (from, to) in [("hers", "his"), ("his", "hers")] {
        assert!(b.training.join(b.now, BOB, from, to).is_empty());
    }
    assert!(b.follows("hers") && b.follows("his"));
    assert_eq!(b.dropped(Reason::NotOwner), 2);
}

#[test]
fn what_only_the_exporter_says_is_refused_from_trainers() {
    let mut b = Bench::new();
    for kind in ["xid", "link", "hw", "health", "gap"] {
        let line = format!(r#"{{"k":"{kind}","name":"gpu","code":79}}"#);
        for principal in [ANN, ROOT, Principal::Unknown] {
            let Outcome::Rejected(error) = b.by(principal, &line) else { panic!("{kind} of {principal}") };
            assert_eq!(error.field, "k");
        }
    }
    assert!(b.out.is_empty());
}

#[test]
fn one_user_leaves_room_for_the_runs_of_another() {
    let options = Options { max_runs: 6, ..OPTIONS };
    let mut b = Bench::with(options, Archive::default());
    b.step(ANN, "hers", 1);
    b.step(BOB, "his-0", 1);
    for i in 1..50 {
        b.now += 0.01;
        b.hello(BOB, &format!("his-{i}"));
    }
    assert!(b.follows("hers") && b.follows("his-0"), "nobody is pushed off");
    // Although all of his places are taken, the runs with only a `hello` are dropped first, then
    // the newest one.
    for i in 0..2 {
        assert_eq!(b.hello(ANN, &format!("her-{i}")), Outcome::Accepted);
    }
    assert!(b.follows("his-0") && b.dropped(Reason::RunsShare) == 2);
    assert_eq!(b.hello(ANN, "her-2"), Outcome::Dropped(Reason::Runs), "each has half");
    assert_eq!(b.step(BOB, "his-new", 1), Outcome::Accepted, "in the place of a hello of his own");
    assert!(["hers", "her-0", "her-1"].iter().all(|run| b.follows(run)));
}

/// Their users are unknown, because they are pods with a network of their own.
#[test]
fn senders_elsewhere_have_shares_by_their_address() {
    let pods = [1, 2].map(|n| Principal::Address([10, 77, n, 2].into()));
    let mut b = Bench::with(Options { max_runs: 4, ..OPTIONS }, Archive::default());
    for i in 0..300 {
        b.step(pods[0], &format!("bad-{i}"), 1);
    }
    assert_eq!(b.step(pods[1], "genuine", 1), Outcome::Accepted);
    assert!(b.follows("genuine") && b.dropped(Reason::RunsShare) == 1);
    b.step(pods[0], "bad-0", 2);
    assert!(b.follows("genuine"));
    assert_eq!(b.step(pods[1], "bad-0", 3), Outcome::Accepted, "ranks of one run have many addresses");
    assert_eq!(b.step(ANN, "genuine", 2), Outcome::Accepted);
    assert_eq!(b.step(pods[1], "genuine", 3), REFUSED, "a known user has it");
}

#[test]
fn silent_runs_of_others_are_not_pushed_off_by_who_has_more() {
    let options = Options { max_runs: 4, ..OPTIONS };
    let mut b = Bench::with(options, Archive::default());
    b.step(ANN, "hers", 1);
    for i in 0..3 {
        b.step(BOB, &format!("his-{i}"), 1);
    }
    b.now += OPTIONS.linger + 1.0;
    for i in 0..3 {
        b.step(BOB, &format!("his-{i}"), 2);
    }
    assert_eq!(b.step(BOB, "his-4", 1), Outcome::Dropped(Reason::Runs));
    assert!(b.follows("hers"));
}

#[test]
fn a_run_of_each_of_many_users_that_never_steps_gives_way_to_one_that_does() {
    let mut b = Bench::with(Options { max_runs: 4, ..OPTIONS }, Archive::default());
    for user in 10..14 {
        b.hello(Principal::User(user), &format!("mute-{user}"));
        b.now += 1.0;
    }
    assert_eq!(b.hello(ANN, "hers"), Outcome::Dropped(Reason::Runs));
    assert_eq!(b.step(ANN, "hers", 1), Outcome::Accepted);
    assert!(b.follows("hers") && b.follows("mute-10"));
    for user in 10..13 {
        b.step(Principal::User(user), &format!("mute-{user}"), 1);
    }
    assert_eq!(b.step(BOB, "his", 1), Outcome::Dropped(Reason::Runs), "they all train");
}

#[test]
fn new_names_are_counted_by_user() {
    let mut b = Bench::with(Options { max_runs: 1000, ..OPTIONS }, Archive::default());
    for i in 0..300 {
        b.step(BOB, &format!("his-{i}"), 1);
    }
    assert_eq!((b.training.lives().len(), b.dropped(Reason::NewRuns)), (200, 100));
    assert_eq!(b.step(ANN, "hers", 1), Outcome::Accepted);
    assert_eq!(b.step(BOB, "his-0", 2), Outcome::Accepted, "a known name is not new");
    b.now += 1.0;
    assert_eq!(b.step(BOB, "his-201", 1), Outcome::Accepted, "one a second");
}

#[test]
fn ranks_without_end_are_shared_too() {
    let options = Options { max_runs: 64, max_ranks: 1024, ..OPTIONS };
    let mut b = Bench::with(options, Archive::default());
    let flood = |b: &mut Bench, principal, name: &str, runs: u32, step: i64| {
        let report = |b: &mut Bench, run: u32, rank: u32| {
            let line = format!(
                r#"{{"k":"step","run":"{name}{run}","rank":{rank},"step":{step},"m":{{"loss":2.5}}}}"#
            );
            b.by(principal, &line) == Outcome::Accepted
        };
        (0..runs)
            .flat_map(|run| (0..1024).map(move |rank| (run, rank)))
            .filter(|(r, k)| report(b, *r, *k))
            .count()
    };
    assert_eq!(flood(&mut b, BOB, "bob", 4, 1), admission::MAX_RANKS_OF_USER);
    assert_eq!(b.dropped(Reason::Ranks), 2048);
    assert_eq!(flood(&mut b, ANN, "ann", 1, 1), 1024, "one user's flood leaves room for another");
    assert_eq!(flood(&mut b, BOB, "bob", 2, 2), 2048, "those that are followed still are");
}

#[test]
fn whoever_is_over_a_limit_is_counted_each_time_and_named_once_a_minute() {
    let mut bench = Bench::new();
    let training = &mut bench.training;
    let (ann, bob) = (Principal::User(4_000_001), Principal::User(4_000_002));
    let mut custom = |principal, n, now| training.leave_out("r", principal, (Reason::Custom, n), now);
    assert!(!custom(ann, 0, NOW), "nothing was left out");
    assert_eq!([custom(ann, 2, NOW), custom(ann, 1, NOW + 59.0), custom(bob, 1, NOW)], [true, false, true]);
    let peer = |uid| Peer { connection: 1, pid: Some(7), uid };
    let mut refuse = |uid, reason, now| training.refuse_connection(peer(uid), reason, now);
    assert!(refuse(4_000_001, Reason::Identities, NOW) && refuse(4_000_001, Reason::Connections, NOW));
    assert!(!refuse(4_000_001, Reason::Identities, NOW + 59.0) && refuse(4_000_002, Reason::Identities, NOW));
    assert!(refuse(4_000_001, Reason::Identities, NOW + 60.0));
    let counted = [Reason::Custom, Reason::Identities, Reason::Connections].map(|r| bench.drops.get(r));
    assert_eq!(counted, [4, 4, 1]);
}
