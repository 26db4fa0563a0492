//! The stages of checkpoints: which checkpoints count, and what the stages say of the steps.

use super::*;
use crate::run::{Stage, TimeState, summary};
use stepwatch_model::Saves;
use stepwatch_model::time::Span;

/// A trainer whose events arrive as they happen.
struct Trainer {
    run: Run,
    now: i64,
    out: Vec<Finding>,
}

impl Trainer {
    fn new() -> Self {
        Self { run: Run::new("r", Ts(START), &Arc::default()), now: START, out: Vec::new() }
    }

    fn pass(&mut self, secs: i64) -> &mut Self {
        self.now += 1000 * secs;
        self
    }

    fn say(&mut self, event: &str) -> &mut Self {
        let mut e = Event::parse(event.as_bytes()).unwrap();
        e.ts = Some(self.now as f64 / 1000.0);
        e.rank = e.rank.or(Some(0));
        self.run.event(Ts(self.now), "n:1", &e, &mut self.out);
        self
    }

    /// A step every ten seconds.
    fn steps(&mut self, steps: core::ops::RangeInclusive<i64>) -> &mut Self {
        for step in steps {
            self.pass(10).say(&format!(r#"{{"k":"step","run":"r","step":{step},"m":{{"loss":2.0}}}}"#));
        }
        self
    }

    fn ckpt(&mut self, stage: &str, phase: &str, step: i64) -> &mut Self {
        self.ckpt_of(0, stage, phase, step)
    }

    fn ckpt_of(&mut self, rank: u32, stage: &str, phase: &str, step: i64) -> &mut Self {
        let what = format!(r#""k":"ckpt","phase":"{phase}","stage":"{stage}""#);
        self.say(&format!(r#"{{{what},"run":"r","rank":{rank},"step":{step}}}"#))
    }

    /// What a watched directory says of the checkpoint of a step.
    fn disk(&mut self, phase: &str, step: i64) -> &mut Self {
        let what = format!(r#""k":"ckpt","stage":"durable","seen":true,"phase":"{phase}""#);
        self.say(&format!(r#"{{{what},"run":"r","step":{step},"bytes":70,"seconds":8}}"#))
    }

    /// The checkpoints to which the run can go back.
    fn saved(&self) -> Vec<i64> {
        summary(&self.run.state).saved
    }

    fn waiting(&self) -> usize {
        self.run.state.checkpoints.stages().map_or(0, |stages| stages.waiting().count())
    }

    /// What the detector of uploads said.
    fn uploads(&self) -> Vec<(Change, String)> {
        let of_uploads = self.out.iter().filter(|v| v.kind == Kind::CkptUpload);
        of_uploads.map(|v| (v.change, v.why.to_string())).collect()
    }
}

#[test]
fn a_staged_checkpoint_is_none_to_go_back_to_until_it_is_durable() {
    let mut t = Trainer::new();
    t.steps(1..=40).ckpt("save", "start", 40).pass(5).ckpt("save", "end", 40);
    assert_eq!(t.saved(), [40], "so far the run shows saves only");
    t.ckpt("write", "start", 40);
    let c = &t.run.state.checkpoints;
    assert_eq!((t.saved(), c.last_step, c.list.len()), (vec![], None, 0));
    t.steps(41..=50).ckpt("write", "end", 40);
    let c = &t.run.state.checkpoints;
    assert_eq!((t.saved(), c.last_step, c.list.len()), (vec![40], Some(40), 1));
    assert!((c.work - 105.0).abs() < 1e-6, "the work since the save: {}", c.work);
    t.steps(51..=60).ckpt("save", "end", 60).ckpt("write", "start", 60).ckpt("write", "fail", 60);
    assert!(t.run.state.checkpoints.failure.is_some());
    t.ckpt("write", "end", 60).steps(61..=80);
    assert_eq!((t.saved(), t.waiting()), (vec![40], 0), "a failed one never counts");
    t.ckpt("save", "end", 80).ckpt("write", "start", 80);
    assert_eq!((t.saved(), t.waiting()), (vec![40], 1));
    t.pass(3).ckpt("write", "end", 80);
    let c = &t.run.state.checkpoints;
    assert_eq!((t.saved(), t.waiting(), &c.failure), (vec![40, 80], 0, &None));
    assert!((c.intervals[0] - 405.0).abs() < 1e-6 && c.work.abs() < 1e-6, "{:?} {}", c.intervals, c.work);
}

#[test]
fn the_last_stage_that_the_run_reaches_counts() {
    let mut t = Trainer::new();
    t.steps(1..=20).ckpt("save", "end", 20).ckpt("durable", "end", 20);
    t.steps(21..=40).ckpt("save", "end", 40).ckpt("write", "end", 40).ckpt("upload", "end", 40);
    assert_eq!(t.saved(), [20]);
    t.steps(41..=60).ckpt("save", "end", 60).ckpt("durable", "end", 60);
    assert_eq!((t.saved(), t.waiting()), (vec![20, 60], 0));
    let work = t.run.state.checkpoints.work;
    t.ckpt("durable", "end", 40);
    let c = &t.run.state.checkpoints;
    assert_eq!((t.saved(), c.last_step, c.work), (vec![20, 40, 60], Some(60), work), "an earlier one, late");
}

#[test]
fn a_checkpoint_is_durable_once_every_rank_has_written() {
    let mut t = Trainer::new();
    t.steps(1..=20).ckpt("save", "end", 20);
    for rank in 0..3 {
        t.ckpt_of(rank, "write", "start", 20);
    }
    t.ckpt_of(2, "write", "end", 20).ckpt_of(0, "write", "end", 20);
    assert_eq!((t.saved(), t.waiting()), (vec![], 1));
    t.ckpt_of(1, "write", "end", 20);
    assert_eq!((t.saved(), t.waiting()), (vec![20], 0));
}

#[test]
fn a_trainer_that_says_that_it_saves_before_it_has_written_is_a_ticket() {
    let mut t = Trainer::new();
    for n in 1..=4 {
        t.steps(10 * n - 9..=10 * n).say(r#"{"k":"event","run":"r","name":"checkpoint_backlog"}"#);
        t.ckpt("save", "start", 10 * n).pass(4).ckpt("save", "end", 10 * n);
        t.pass(5).ckpt("durable", "end", 10 * n);
    }
    let said = t.uploads();
    assert!(said.len() == 1 && said[0].1.starts_with("the trainer began each of the last "), "{said:?}");
}

#[test]
fn a_run_with_saves_only_has_a_checkpoint_when_a_save_ends() {
    let mut t = Trainer::new();
    for n in 1..=10 {
        t.steps(20 * n - 19..=20 * n).ckpt("save", "start", 20 * n).pass(4).ckpt("save", "end", 20 * n);
        let c = &t.run.state.checkpoints;
        assert_eq!((c.last_step, c.work, c.saves.len()), (Some(20 * n), 0.0, n.min(8) as usize));
    }
    t.steps(201..=400);
    assert_eq!((t.saved().len(), t.waiting(), t.uploads()), (8, 0, vec![]));
    assert_eq!(t.run.state.checkpoints.usual_interval(), Some(204.0));
}

#[test]
fn only_a_blocking_save_explains_a_slow_step() {
    let mut t = Trainer::new();
    t.steps(1..=20).ckpt("save", "start", 20).ckpt("save", "end", 20).steps(21..=30);
    assert_eq!(t.run.classes.back(), Some(&(21, StepClass::Checkpoint)));
    for stage in ["write", "upload", "durable"] {
        t.ckpt(stage, "start", 20).steps(31..=31).ckpt(stage, "end", 20);
        t.ckpt(stage, "fail", 10);
    }
    t.steps(32..=35);
    assert_eq!(t.run.classes.back(), Some(&(21, StepClass::Checkpoint)));
    assert_eq!(t.run.state.checkpoints.in_progress, None);
}

#[test]
fn what_a_restart_left_behind_waits_no_longer() {
    let mut t = Trainer::new();
    t.steps(1..=40).ckpt("save", "end", 40).ckpt("write", "start", 40).ckpt("write", "end", 40);
    t.steps(41..=50).ckpt("save", "end", 50);
    assert_eq!((t.saved(), t.waiting()), (vec![40], 1));
    t.steps(21..=30);
    assert_eq!((t.run.state.attempt, t.saved(), t.waiting()), (1, vec![], 0));
    t.ckpt("write", "end", 10);
    assert_eq!((t.saved(), t.run.state.checkpoints.last_step), (vec![10], Some(10)));
    t.ckpt("save", "end", 30);
    assert_eq!((t.saved(), t.waiting()), (vec![10], 1));
    t.ckpt("write", "end", 30);
    assert_eq!((t.saved(), t.waiting()), (vec![10, 30], 0));
}

#[test]
fn a_checkpoint_that_does_not_become_durable_is_a_ticket_until_it_does() {
    let mut t = Trainer::new();
    for n in [60, 120, 180] {
        t.steps(n - 59..=n).ckpt("save", "end", n).pass(5).ckpt("durable", "end", n);
    }
    t.steps(181..=240).ckpt("save", "end", 240).steps(241..=300);
    assert!(t.uploads().is_empty(), "ten minutes and five seconds are usual");
    t.steps(301..=305);
    let said = t.uploads();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].1.starts_with("the checkpoint of step 240 is not durable"), "{said:?}");
    assert!(said[0].1.contains("; step 180 is the last durable one, and a crash now goes back"), "{said:?}");
    t.ckpt("save", "end", 305).ckpt("durable", "end", 240).ckpt("durable", "end", 305);
    let said = t.uploads();
    assert_eq!((said.len(), said[1].0), (2, Change::Clear), "{said:?}");
    assert_eq!(t.saved(), [60, 120, 180, 240, 305]);
}

#[test]
fn the_start_and_the_end_of_a_load_say_how_long_it_took() {
    const HELLO: &str = r#"{"k":"hello","run":"r","world":8,"job":"77"}"#;
    let accounted = |load: &dyn Fn(&mut Trainer)| {
        let mut t = Trainer::new();
        t.say(HELLO).pass(20);
        load(&mut t);
        t.pass(30).steps(1..=40);
        [TimeState::Loading, TimeState::Starting].map(|state| t.run.state.ledger.totals().seconds(state))
    };
    let told = accounted(&|t| {
        t.pass(60).say(r#"{"k":"ckpt","phase":"end","stage":"load","seconds":60,"run":"r","step":0}"#);
    });
    let paired = accounted(&|t| {
        t.ckpt("load", "start", 0).pass(60).ckpt("load", "end", 0);
    });
    let by_ranks = accounted(&|t| {
        t.ckpt("load", "start", 0).ckpt_of(1, "load", "start", 0);
        t.pass(40).ckpt("load", "end", 0).pass(20).ckpt_of(1, "load", "end", 0);
    });
    let lasts = |seconds: f64| [seconds, 20.0 + 30.0 + 10.0 + 60.0 - seconds];
    assert_eq!((told, paired, by_ranks), (lasts(60.0), lasts(60.0), lasts(60.0)));
    let unpaired = accounted(&|t| {
        t.pass(60).ckpt("load", "end", 0);
    });
    assert_eq!(unpaired, lasts(0.0));
}

#[test]
fn a_save_that_is_seen_on_disk_too_waits_for_nobody_who_looks_there() {
    let mut t = Trainer::new();
    for n in [60, 120, 180] {
        t.steps(n - 59..=n).ckpt("save", "start", n).pass(2).disk("start", n);
        t.pass(3).ckpt("save", "end", n);
        assert_eq!(t.run.state.checkpoints.last_step, Some(n), "before it is seen");
        t.pass(10).disk("end", n);
    }
    let c = &t.run.state.checkpoints;
    assert_eq!((t.saved(), c.in_progress, c.saves.len()), (vec![60, 120, 180], None, 3));
    assert!(c.saves.iter().all(|save| save.secs == 5.0), "{:?}", c.saves);
    for n in [240, 300, 360] {
        t.steps(n - 59..=n).ckpt("save", "start", n).pass(5).ckpt("save", "end", n);
    }
    assert_eq!((t.saved().last(), t.waiting(), t.uploads()), (Some(&360), 0, vec![]));
    t.pass(300).disk("fail", 360);
    assert_eq!((t.saved().last(), t.run.state.checkpoints.last_step), (Some(&300), Some(300)));
}

#[test]
fn what_is_seen_whole_on_disk_is_written() {
    let mut t = Trainer::new();
    t.steps(1..=40).ckpt("save", "end", 40).ckpt("write", "start", 40);
    assert_eq!((t.saved(), t.waiting()), (vec![], 1));
    t.disk("start", 40);
    assert_eq!(t.run.state.checkpoints.in_progress, None, "no step waits");
    t.steps(41..=45).disk("end", 40);
    assert_eq!((t.saved(), t.waiting()), (vec![40], 0));
    t.steps(46..=60).ckpt("save", "end", 60).ckpt("upload", "start", 60).disk("end", 60);
    assert_eq!((t.saved(), t.waiting()), (vec![40], 1), "it is not uploaded");
    t.ckpt("upload", "end", 60);
    assert_eq!((t.saved(), t.waiting()), (vec![40, 60], 0));
}

#[test]
fn where_only_the_disk_is_seen_its_checkpoints_are_saves() {
    let mut t = Trainer::new();
    for n in [60, 120, 180] {
        t.steps(n - 59..=n).disk("start", n).pass(8).disk("end", n);
    }
    let c = &t.run.state.checkpoints;
    assert_eq!((t.saved(), c.in_progress, c.saves.len()), (vec![60, 120, 180], None, 3));
    assert!(c.usual_interval().is_some() && !c.is_asynchronous());
    t.steps(181..=240).disk("start", 240);
    assert!(t.run.state.checkpoints.in_progress.is_some(), "the steps may wait");
    t.disk("fail", 240);
    let c = &t.run.state.checkpoints;
    assert_eq!((c.last_step, c.in_progress, c.failure.is_some()), (Some(180), None, true));
    t.disk("end", 240);
    let c = &t.run.state.checkpoints;
    assert_eq!((c.last_step, c.failure.is_some()), (Some(240), false), "it went on after all");
}

#[test]
fn a_checkpoint_that_was_removed_is_none_to_go_back_to_and_no_failure() {
    let mut t = Trainer::new();
    let seen = |t: &mut Trainer, what: &str, step: i64, dir: &str| {
        let of = format!(r#""k":"ckpt","run":"r","stage":"durable","seen":true,"step":{step}"#);
        t.say(&format!(r#"{{{of},{what},"path":"{dir}/{step}"}}"#));
    };
    let (whole, gone) = (r#""phase":"end","free_bytes":9e15"#, r#""gone":true"#);
    for n in [60, 120, 180] {
        t.steps(n - 59..=n).ckpt("save", "end", n);
        seen(&mut t, whole, n, "/a");
        if n == 120 {
            seen(&mut t, whole, n, "/b");
        }
    }
    let on_disk = |t: &Trainer| summary(&t.run.state).on_disk;
    assert_eq!(on_disk(&t), [60, 120, 180]);
    seen(&mut t, gone, 60, "/a");
    let c = &t.run.state.checkpoints;
    assert_eq!((t.saved(), c.last_step, c.failure.is_some()), (vec![120, 180], Some(180), false));
    assert!(c.flawed().is_empty(), "{:?}", c.flawed());
    seen(&mut t, gone, 120, "/a");
    assert_eq!((t.saved(), on_disk(&t)), (vec![120, 180], vec![120, 180]), "it is in another directory");
    let work = t.run.state.checkpoints.work;
    seen(&mut t, gone, 180, "/a");
    let c = &t.run.state.checkpoints;
    assert_eq!((t.saved(), c.last_step, c.last_at.is_some()), (vec![120], Some(120), true));
    assert!((c.work - work - 600.0).abs() < 11.0, "a crash would lose more: {}", c.work);
    assert!(c.failure.is_none());
    t.steps(181..=200).ckpt("save", "end", 200).ckpt("upload", "start", 200).ckpt("upload", "end", 200);
    seen(&mut t, gone, 200, "/a");
    assert_eq!(t.saved().last(), Some(&200), "it was uploaded");
}

#[test]
fn an_attempt_from_scratch_leaves_all_checkpoints_behind() {
    let mut t = Trainer::new();
    t.steps(1..=80).ckpt("save", "end", 40).ckpt("save", "end", 80).steps(1..=20);
    let c = &t.run.state.checkpoints;
    assert_eq!((t.run.state.attempt, t.saved(), c.last_step, c.last_at), (1, vec![], None, None));
    t.ckpt("save", "end", 20).steps(21..=30);
    assert_eq!((t.saved(), summary(&t.run.state).checkpoint_step), (vec![20], Some(20)));
    // The watcher of the directory was restarted, and shows what the first attempt left there.
    let old = START as f64 / 1000.0 - 3600.0;
    let found = format!(r#"{{"k":"ckpt","phase":"end","run":"r","step":9000,"ts":{old}}}"#);
    let mut e = Event::parse(found.as_bytes()).unwrap();
    e.rank = Some(0);
    t.run.state.checkpoints.last_at = None;
    t.run.event(Ts(t.now), "n:1", &e, &mut t.out);
    assert_eq!(t.run.state.checkpoints.last_step, Some(9000));
    assert_eq!((t.saved(), summary(&t.run.state).checkpoint_step), (vec![20], Some(20)), "it is ahead");
}

#[test]
fn what_an_earlier_attempt_left_behind_is_no_failure() {
    let mut t = Trainer::new();
    t.steps(1..=50).ckpt("save", "end", 40).steps(21..=30).disk("fail", 10);
    assert_eq!((t.run.state.attempt, t.run.state.checkpoints.failure.is_some()), (1, false));
    t.disk("fail", 30);
    assert!(t.run.state.checkpoints.failure.is_some());
}

#[test]
fn what_a_crashed_attempt_wrote_last_is_no_failure_of_the_next() {
    let mut t = Trainer::new();
    t.steps(1..=50).ckpt("save", "end", 20);
    let crashed = t.now;
    t.pass(600).steps(21..=60);
    let says = |t: &mut Trainer, phase: &str, at: i64| {
        let what = r#""k":"ckpt","stage":"durable","seen":true,"run":"r","rank":0,"step":50"#;
        let mut e = Event::parse(format!(r#"{{{what},"phase":"{phase}"}}"#).as_bytes()).unwrap();
        e.ts = Some(at as f64 / 1000.0);
        t.run.event(Ts(t.now), "n:1", &e, &mut t.out);
        let c = &t.run.state.checkpoints;
        (c.in_progress.is_some(), c.failure.is_some())
    };
    // Whoever looks at the disk began anew.
    assert_eq!(says(&mut t, "start", crashed), (false, false));
    assert_eq!(says(&mut t, "fail", crashed), (false, false), "the attempt is from 20, and passed step 50");
    let now = t.now;
    assert_eq!(says(&mut t, "start", now), (true, false));
    assert_eq!(says(&mut t, "fail", now), (false, true), "one of its own");
}

#[test]
fn people_see_every_stage_with_its_times_size_and_place() {
    let mut t = Trainer::new();
    t.steps(1..=20);
    let said = |stage: &str, phase: &str, more: &str| {
        format!(r#"{{"k":"ckpt","run":"r","stage":"{stage}","phase":"{phase}","step":20{more}}}"#)
    };
    t.say(&said("save", "start", r#","path":"/c/20""#)).pass(2).say(&said("save", "end", ""));
    t.say(&said("write", "start", r#","rank":0"#)).say(&said("write", "start", r#","rank":1"#));
    t.pass(30).say(&said("write", "end", r#","rank":0"#));
    let writes = |t: &Trainer| t.run.state.checkpoints.stage_table()[0].stages[1];
    assert_eq!((writes(&t).end, writes(&t).secs), (None, None), "rank 1 still writes");
    t.pass(10).say(&said("write", "end", r#","rank":1"#)).say(&said("durable", "end", r#","bytes":5000"#));
    let begun = Ts(t.now - 42_000);
    let table = t.run.state.checkpoints.stage_table();
    let [one] = table.as_slice() else { panic!("{table:?}") };
    assert_eq!(
        (one.step, one.path.as_deref(), one.bytes, one.counts),
        (Some(20), Some("/c/20"), Some(5000.0), true)
    );
    let stages: Vec<_> = one.stages.iter().map(|s| (s.stage, s.start, s.end, s.secs, s.bytes)).collect();
    let at = |secs| Some(begun + Span::secs(secs));
    assert_eq!(
        stages,
        [
            (Stage::Save, at(0), at(2), Some(2.0), None),
            (Stage::Write, at(2), at(42), Some(40.0), None),
            (Stage::Durable, None, at(42), None, Some(5000.0)),
        ]
    );
    let long = format!(r#","path":"/{}""#, "c".repeat(1024));
    t.say(&said("upload", "fail", &long));
    let one = t.run.state.checkpoints.stage_table().remove(0);
    assert_eq!((one.counts, one.path.as_deref()), (false, Some("/c/20")), "a part of a path leads nowhere");
    assert!(one.stages.iter().any(|s| s.stage == Stage::Upload && s.failed && s.end.is_none()));
    t.say(r#"{"k":"ckpt","run":"r","stage":"load","phase":"start","path":"/c/10"}"#).pass(60);
    t.say(r#"{"k":"ckpt","run":"r","stage":"load","phase":"end","step":10}"#);
    let load = t.run.state.checkpoints.last_load().unwrap();
    assert_eq!((load.step, load.path.as_deref(), load.stages[0].secs), (Some(10), Some("/c/10"), Some(60.0)));
    let listed: Vec<_> = t.run.state.checkpoints.stage_table().iter().map(|one| one.step).collect();
    assert_eq!(listed, [Some(20)], "what is loaded is not saved");
}

#[test]
fn saves_that_only_the_disk_shows_are_followed() {
    let mut t = Trainer::new();
    let on_node = r#"{"k":"hello","run":"r","rank":0,"node":"n1"}"#;
    t.say(on_node).steps(1..=10).disk("start", 10).pass(40).disk("end", 10);
    let stages = t.run.state.checkpoints.stages().unwrap();
    let spell = stages.saving_nodes().find_map(|nodes| nodes.spells().next()).unwrap();
    assert_eq!((spell.since, spell.until, spell.nodes), (Ts(START + 100_000), Some(Ts(START + 140_000)), 1));
}

#[test]
fn what_was_saved_is_not_saved_again_while_it_is_being_written() {
    let mut t = Trainer::new();
    t.steps(1..=60).ckpt("save", "start", 60).ckpt("save", "end", 60);
    t.ckpt("write", "start", 60).ckpt("write", "end", 60).steps(61..=120);
    let saves = |t: &Trainer| summary(&t.run.state).saves;
    assert_eq!(saves(&t), Saves::Idle);
    t.ckpt("save", "start", 120);
    assert_eq!(saves(&t), Saves::Running);
    t.ckpt("save", "end", 120).ckpt("write", "start", 120).steps(121..=125);
    assert_eq!(saves(&t), Saves::Running, "and ten minutes of work are not safe yet");
    t.ckpt("write", "end", 120);
    assert_eq!(saves(&t), Saves::Idle);
}
