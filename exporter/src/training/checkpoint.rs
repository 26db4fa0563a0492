//! The state of a run's checkpoints, for the bound on lost work: only the work since the last one
//! can be lost.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event, Value};

use crate::principal::Principal;

/// Two checkpoints within this time are parts of one, if their step is not known.
const APART_SECONDS: f64 = 10.0;

/// The place of a run's checkpoints, for the collectors of this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckpointPlace {
    pub run: String,
    /// The path of the last checkpoint, as its writer gave it. The directory may be gone by now, or
    /// the path may be one inside a container.
    pub path: Option<PathBuf>,
    pub bytes: Option<f64>,
    /// Seconds from one checkpoint to the next.
    pub every: Option<f64>,
    pub writing: bool,
    /// The principal who reported it.
    pub principal: Principal,
}

/// The most checkpoints whose saves wait to become durable.
const MAX_BEGUN: usize = 16;

/// The stages in their order. The load is that of a checkpoint that is read again.
pub(super) const STAGES: [&str; 5] = [ckpt::SAVE, ckpt::WRITE, ckpt::UPLOAD, ckpt::DURABLE, ckpt::LOAD];
const SAVE: usize = 0;
const UPLOAD: usize = 2;
const DURABLE: usize = 3;
const LOAD: usize = 4;

/// One stage of the checkpoints.
#[derive(Debug, Clone, Default)]
pub(super) struct Stage {
    /// The ranks that are in it, and the Unix times when they began.
    open: BTreeMap<u32, f64>,
    /// Of the last one that ended: the seconds that it took, and the bytes.
    pub(super) seconds: Option<f64>,
    pub(super) bytes: Option<f64>,
}

/// The checkpoints of a run. One that a restart would take is one whose last stage has ended: the
/// last that the run is known to reach since it restarted, or any once it was seen whole on disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Checkpoints {
    /// By [`STAGES`].
    pub(super) stages: [Stage; STAGES.len()],
    /// The last stage that the run reaches.
    reaches: usize,
    /// It uploads what it wrote, so that being whole on disk is not the end.
    uploads: bool,
    /// When the saves of the last steps began.
    begun: BTreeMap<i64, f64>,
    /// A checkpoint appears on disk, of a run that reports none itself.
    appears: bool,
    pub(super) last_success: Option<f64>,
    pub(super) last_step: Option<i64>,
    /// The two before the last one.
    before: (Option<f64>, Option<i64>),
    /// The run restarted since: its steps may be before the last one.
    restarted: bool,
    pub(super) failures: u64,
    failed_step: Option<i64>,
    bytes: Option<f64>,
    path: Option<PathBuf>,
    every: Option<f64>,
}

/// What an event says of a stage.
#[derive(Debug, Clone, Copy)]
struct Report {
    stage: usize,
    /// The checkpoint itself was seen on disk.
    seen: bool,
    step: Option<i64>,
    rank: u32,
    ts: f64,
}

impl Report {
    fn new(event: &Event, rank: u32, ts: f64) -> Self {
        let named = event.extra.get(ckpt::STAGE).and_then(Value::as_str);
        let seen = event.extra.get(ckpt::SEEN) == Some(&Value::Bool(true));
        // Words that are not known stand for the save, as no word does.
        let stage = named.and_then(|name| STAGES.iter().position(|stage| *stage == name)).unwrap_or(SAVE);
        Self { stage, seen, step: event.step, rank, ts }
    }
}

impl Checkpoints {
    pub(super) fn apply(&mut self, event: &Event, rank: u32, ts: f64) {
        let r = Report::new(event, rank, ts);
        if event.extra.get(ckpt::GONE) == Some(&Value::Bool(true)) {
            return self.gone(r.step);
        }
        let path = event.extra.get("path").and_then(Value::as_str);
        if let Some(path) = path.filter(|_| r.stage != LOAD) {
            self.path = Some(PathBuf::from(path));
        }
        if !r.seen && r.stage != LOAD {
            self.reach(r);
        }
        match event.ckpt {
            Some(CkptPhase::Start) => self.started(r),
            // If a trainer reports only "saved", that is the end of the checkpoint.
            Some(CkptPhase::End) | None => self.ended(event, r),
            Some(CkptPhase::Fail) => self.failed(r),
        }
    }

    /// The run reaches this stage. Until now, what had only reached the one before counted.
    fn reach(&mut self, r: Report) {
        self.uploads |= r.stage == UPLOAD;
        if self.reaches == SAVE && r.stage > SAVE {
            self.withdraw(r.step);
        }
        self.reaches = self.reaches.max(r.stage);
    }

    /// The checkpoint of this step is none to go back to, if it was the last one.
    fn withdraw(&mut self, step: Option<i64>) {
        if step.is_some() && step == self.last_step {
            (self.last_success, self.last_step) = self.before;
        }
    }

    /// The checkpoint of this step was removed from this disk. It may have been uploaded before.
    fn gone(&mut self, step: Option<i64>) {
        if self.uploads || step.is_none() {
            return;
        }
        if step == self.before.1 {
            self.before = (None, None);
        }
        self.withdraw(step);
    }

    fn started(&mut self, r: Report) {
        if r.seen {
            let is_reported =
                self.reaches > SAVE || r.step.is_some_and(|step| self.begun.contains_key(&step));
            self.appears = !is_reported && (r.step.is_none() || r.step != self.last_step);
            return;
        }
        if let Some(stage) = self.stages.get_mut(r.stage) {
            stage.open.insert(r.rank, r.ts);
        }
        if r.stage == SAVE {
            self.appears = false;
            if let Some(step) = r.step {
                self.begun.entry(step).or_insert(r.ts);
            }
            if self.begun.len() > MAX_BEGUN {
                self.begun.pop_first();
            }
        }
    }

    fn ended(&mut self, event: &Event, r: Report) {
        let number = |names: &[&str]| {
            let given = names.iter().find_map(|n| event.extra.get(*n).and_then(Value::as_f64));
            given.filter(|v| v.is_finite() && *v >= 0.0)
        };
        let begun = r.step.and_then(|step| self.begun.get(&step)).filter(|_| r.stage == DURABLE);
        let Some(stage) = self.stages.get_mut(r.stage) else { return };
        // Whoever looks at the disk is no rank.
        let since = if r.seen { None } else { stage.open.remove(&r.rank) };
        let measured = begun.copied().or(since).map(|since| (r.ts - since).max(0.0));
        stage.seconds = number(&["seconds", "duration"]).or(measured).or(stage.seconds);
        let bytes = number(&["bytes", "size"]);
        stage.bytes = bytes.or(stage.bytes);
        let is_open = r.stage > SAVE && !stage.open.is_empty() && !r.seen;
        if r.stage == LOAD {
            return;
        }
        self.bytes = bytes.or(self.bytes);
        if r.seen {
            self.appears = false;
        }
        let is_whole = if r.seen { !self.uploads } else { r.stage == self.reaches && !is_open };
        // Of a step that counts, the first word is that it does.
        let is_known = r.stage > SAVE && r.step.is_some() && !self.restarted && r.step <= self.last_step;
        if is_whole && !is_known {
            self.saved(r);
        }
    }

    /// A restart would take the checkpoint.
    fn saved(&mut self, r: Report) {
        self.paced(r);
        if r.step.is_none() || r.step != self.last_step {
            self.before = (self.last_success, self.last_step);
        }
        self.last_success = Some(self.last_success.map_or(r.ts, |t| t.max(r.ts)));
        self.last_step = r.step.or(self.last_step);
        self.restarted = false;
    }

    fn failed(&mut self, r: Report) {
        if let Some(stage) = self.stages.get_mut(r.stage).filter(|_| !r.seen) {
            stage.open.remove(&r.rank);
        }
        if r.stage == LOAD {
            return;
        }
        self.appears = false;
        self.withdraw(r.step);
        // Every rank of a sharded checkpoint may report the same failure.
        if r.step.is_none() || r.step != self.failed_step {
            self.failures += 1;
            self.failed_step = r.step;
        }
    }

    /// Measures the interval of checkpoints. Each rank of a sharded one may report it.
    fn paced(&mut self, r: Report) {
        let same = r.step.is_some() && r.step == self.last_step;
        let gap = self.last_success.map(|last| r.ts - last).filter(|gap| *gap > APART_SECONDS && !same);
        self.every = gap.or(self.every);
    }

    pub(super) fn place(&self, run: &str, principal: Principal) -> CheckpointPlace {
        CheckpointPlace {
            principal,
            run: run.to_owned(),
            path: self.path.clone(),
            bytes: self.bytes,
            every: self.every,
            writing: self.in_progress(),
        }
    }

    /// Records that a rank that died or restarted no longer writes.
    pub(super) fn abandon(&mut self, rank: u32) {
        self.stages.iter_mut().for_each(|stage| {
            stage.open.remove(&rank);
        });
    }

    /// The run restarted, and may save in another way.
    pub(super) fn restarted(&mut self, rank: u32) {
        self.abandon(rank);
        self.begun.clear();
        (self.reaches, self.uploads, self.restarted) = (SAVE, false, true);
    }

    /// Whether the steps wait for a checkpoint, as far as that is known.
    pub(super) fn in_progress(&self) -> bool {
        self.appears || self.stages.first().is_some_and(|save| !save.open.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> Event {
        Event::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn start_end_fail() {
        let mut c = Checkpoints::default();
        c.apply(&event(r#"{"k":"ckpt","phase":"start","step":100}"#), 0, 10.0);
        assert!(c.in_progress());
        c.apply(&event(r#"{"k":"ckpt","phase":"end","step":100,"bytes":5000}"#), 0, 16.0);
        assert!(!c.in_progress());
        let save = &c.stages[SAVE];
        assert_eq!(
            (c.last_success, c.last_step, save.seconds, save.bytes),
            (Some(16.0), Some(100), Some(6.0), Some(5000.0))
        );
        for rank in 0..8 {
            c.apply(&event(r#"{"k":"ckpt","phase":"start","step":200}"#), rank, 20.0);
            c.apply(&event(r#"{"k":"ckpt","phase":"fail","step":200}"#), rank, 21.0);
        }
        assert_eq!((c.failures, c.last_success, c.in_progress()), (1, Some(16.0), false));
    }

    fn say(c: &mut Checkpoints, stage: &str, phase: &str, step: i64, ts: f64) {
        say_of(c, 0, &format!(r#""phase":"{phase}","stage":"{stage}","step":{step}"#), ts);
    }

    fn say_of(c: &mut Checkpoints, rank: u32, what: &str, ts: f64) {
        c.apply(&event(&format!(r#"{{"k":"ckpt",{what}}}"#)), rank, ts);
    }

    #[test]
    fn the_last_stage_makes_the_checkpoint() {
        let mut c = Checkpoints::default();
        say(&mut c, "save", "start", 100, 10.0);
        say(&mut c, "save", "end", 100, 15.0);
        assert_eq!((c.last_success, c.last_step), (Some(15.0), Some(100)), "so far there are saves only");
        say(&mut c, "write", "start", 100, 15.0);
        assert_eq!((c.last_success, c.last_step, c.in_progress()), (None, None, false));
        say(&mut c, "write", "end", 100, 45.0);
        say(&mut c, "durable", "end", 100, 50.0);
        assert_eq!((c.last_success, c.last_step), (Some(45.0), Some(100)), "the run had shown no more");
        for (stage, phase, ts) in [
            ("save", "start", 110.0),
            ("save", "end", 117.0),
            ("write", "start", 117.0),
            ("write", "end", 137.0),
        ] {
            say(&mut c, stage, phase, 200, ts);
        }
        assert_eq!((c.last_success, c.last_step), (Some(45.0), Some(100)), "it is not durable");
        say(&mut c, "durable", "end", 200, 140.0);
        assert_eq!((c.last_success, c.last_step), (Some(140.0), Some(200)));
        let seconds: Vec<_> = c.stages.iter().map(|stage| stage.seconds).collect();
        assert_eq!(seconds, [Some(7.0), Some(20.0), None, Some(30.0), None]);
        say(&mut c, "durable", "fail", 200, 150.0);
        assert_eq!((c.failures, c.last_step), (1, Some(100)), "it is none after all");
    }

    #[test]
    fn a_checkpoint_that_was_removed_is_none_to_go_back_to() {
        let mut c = Checkpoints::default();
        let gone = |step: i64| format!(r#""stage":"durable","seen":true,"gone":true,"step":{step}"#);
        for (step, ts) in [(100, 10.0), (200, 20.0), (300, 30.0)] {
            say(&mut c, "save", "end", step, ts);
        }
        say_of(&mut c, 0, &gone(100), 40.0);
        assert_eq!((c.last_success, c.last_step, c.failures), (Some(30.0), Some(300), 0));
        say_of(&mut c, 0, &gone(300), 41.0);
        assert_eq!((c.last_success, c.last_step), (Some(20.0), Some(200)));
        let mut uploaded = Checkpoints::default();
        say(&mut uploaded, "upload", "end", 100, 10.0);
        say_of(&mut uploaded, 0, &gone(100), 20.0);
        assert_eq!(uploaded.last_step, Some(100), "it is elsewhere");
    }

    #[test]
    fn a_restart_may_save_in_another_way() {
        let mut c = Checkpoints::default();
        say(&mut c, "durable", "end", 200, 140.0);
        c.restarted(0);
        say(&mut c, "save", "end", 150, 190.0);
        assert_eq!((c.last_success, c.last_step), (Some(190.0), Some(150)));
    }

    #[test]
    fn a_load_is_no_checkpoint() {
        let mut c = Checkpoints::default();
        say_of(&mut c, 0, r#""phase":"start","stage":"load","step":100,"path":"/base""#, 10.0);
        assert!(!c.in_progress());
        say(&mut c, "load", "end", 100, 40.0);
        say(&mut c, "load", "fail", 100, 41.0);
        assert_eq!((c.last_success, c.failures, c.path.as_ref()), (None, 0, None));
        assert_eq!(c.stages[LOAD].seconds, Some(30.0));
        say_of(&mut c, 0, r#""phase":"end","stage":"load","seconds":NaN"#, 50.0);
        assert_eq!(c.stages[LOAD].seconds, Some(30.0), "no number");
    }

    #[test]
    fn what_is_seen_on_disk_counts_whatever_else_is_reported() {
        let seen = |phase: &str, step: i64| {
            format!(
                r#""phase":"{phase}","stage":"durable","seen":true,"step":{step},"bytes":70,"seconds":20"#
            )
        };
        let mut alone = Checkpoints::default();
        say_of(&mut alone, 0, &seen("start", 100), 10.0);
        assert!(alone.in_progress(), "nobody else says when it saves");
        say_of(&mut alone, 0, &seen("end", 100), 30.0);
        assert_eq!((alone.last_success, alone.last_step), (Some(30.0), Some(100)));
        assert_eq!((alone.in_progress(), alone.stages[DURABLE].bytes), (false, Some(70.0)));
        let mut both = Checkpoints::default();
        for (step, at) in [(100, 0.0), (200, 100.0)] {
            say(&mut both, "save", "start", step, at + 10.0);
            say_of(&mut both, 0, &seen("start", step), at + 11.0);
            say(&mut both, "save", "end", step, at + 15.0);
            assert_eq!((both.last_success, both.in_progress()), (Some(at + 15.0), false));
            say_of(&mut both, 0, &seen("end", step), at + 30.0);
            assert_eq!(both.last_success, Some(at + 15.0), "the save is all that the run shows");
        }
        say(&mut both, "save", "end", 300, 215.0);
        say(&mut both, "write", "start", 300, 215.0);
        assert_eq!(both.last_step, Some(200));
        say_of(&mut both, 0, &seen("end", 300), 230.0);
        assert_eq!(
            (both.last_success, both.last_step),
            (Some(230.0), Some(300)),
            "nobody said it is written"
        );
        say(&mut both, "upload", "start", 400, 300.0);
        say_of(&mut both, 0, &seen("end", 400), 310.0);
        assert_eq!(both.last_step, Some(300), "on this disk, and not uploaded");
        say_of(&mut both, 0, &seen("fail", 300), 320.0);
        assert_eq!((both.failures, both.last_step), (1, Some(200)));
    }

    #[test]
    fn every_rank_must_have_written() {
        let mut c = Checkpoints::default();
        let write = |phase: &str| format!(r#""phase":"{phase}","stage":"write","step":100"#);
        say_of(&mut c, 0, &write("start"), 1.0);
        say_of(&mut c, 1, &write("start"), 1.0);
        say_of(&mut c, 0, &write("end"), 5.0);
        assert_eq!(c.last_success, None);
        say_of(&mut c, 1, &write("end"), 9.0);
        assert_eq!(c.last_success, Some(9.0));
    }

    #[test]
    fn where_they_go_and_how_often() {
        let mut c = Checkpoints::default();
        for (step, ts) in [(100, 1000.0), (200, 1600.0)] {
            for rank in 0..2 {
                let text = format!(
                    r#"{{"k":"ckpt","phase":"end","step":{step},"path":"/ckpt/a/{step}","bytes":50}}"#
                );
                c.apply(&event(&text), rank, ts + 15.0 * f64::from(rank));
            }
        }
        let place = c.place("a", Principal::Unknown);
        assert_eq!(
            (place.path, place.bytes, place.every),
            (Some("/ckpt/a/200".into()), Some(50.0), Some(585.0))
        );
    }
}
