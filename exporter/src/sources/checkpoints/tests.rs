//! Tests with real directories, virtual time, and a list in place of the hub.

mod whole;

use std::fs;
use std::sync::Mutex;

use rustix::fs::{FileType, Mode};

use super::*;
use crate::origin::Outcome;
use crate::source::{DROPPED, NOT_OWNER, Sources};

/// The `config.json` of a model.
const CONFIG: &str = r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"architectures":["LlamaForCausalLM"]}"#;

#[derive(Clone, Default)]
struct List {
    events: Arc<Mutex<Vec<Event>>>,
    sources: Arc<Sources>,
}

impl Sink for List {
    fn publish(&self, _: Origin, event: Event) -> Outcome {
        self.events.lock().unwrap().push(event);
        Outcome::Accepted
    }

    fn last_step(&self, _: &str, _: u32) -> Option<i64> {
        None
    }

    fn source(&self, name: &str, kind: &str) -> SourceHandle {
        self.sources.register(name, kind)
    }
}

struct Bench {
    dir: tempfile::TempDir,
    list: List,
    watched: Watched,
    begun: Instant,
    unix: f64,
    elapsed: Duration,
}

impl Bench {
    fn new() -> Self {
        Self::over(|_| {})
    }

    fn over(lay: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        lay(dir.path());
        let config = CheckpointsConfig {
            path: dir.path().to_owned(),
            run: Some("r".into()),
            interval: interval(),
            settle: settle(),
        };
        let list = List::default();
        let watched = Watched::new(config, Box::new(list.clone()));
        let mut bench =
            Self { dir, list, watched, begun: Instant::now(), unix: now_unix(), elapsed: Duration::ZERO };
        bench.poll();
        bench
    }

    fn write(&self, path: &str, bytes: usize) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![0; bytes]).unwrap();
    }

    fn poll(&mut self) {
        let unix = self.unix + self.elapsed.as_secs_f64();
        assert!(!Poll::poll(&mut self.watched, self.begun + self.elapsed, unix));
    }

    /// Advances the clock and polls meanwhile.
    fn pass(&mut self, time: Duration) {
        let end = self.elapsed + time;
        while self.elapsed < end {
            self.elapsed += interval().as_duration();
            self.poll();
        }
    }

    /// The phases and steps that were published since the last call.
    fn published(&self) -> Vec<(CkptPhase, i64)> {
        let events = std::mem::take(&mut *self.list.events.lock().unwrap());
        events.iter().map(|e| (e.ckpt.unwrap(), e.step.unwrap())).collect()
    }

    fn page(&self) -> Samples {
        let mut out = Samples::default();
        self.list.sources.write(&mut out);
        out
    }
}

fn now_unix() -> f64 {
    crate::clock::unix_now()
}

/// Sets the modification time of a file and its directory.
fn age(path: &Path, seconds: u64) {
    let at = std::time::SystemTime::now() - Duration::from_secs(seconds);
    for path in [path, path.parent().unwrap()] {
        fs::File::open(path).unwrap().set_modified(at).unwrap();
    }
}

const MINUTE: Duration = Duration::from_mins(1);

use CkptPhase::{End, Fail, Start};

#[test]
fn a_checkpoint_of_torch_distributed_is_whole_with_its_metadata() {
    let mut b = Bench::new();
    b.write("step-100/__0_0.distcp", 1000);
    b.poll();
    b.write("step-100/__1_0.distcp", 500);
    b.poll();
    assert_eq!(b.published(), [(Start, 100)]);
    assert_eq!(b.page().get(&WRITTEN, &["r"]), Some(1500.0));
    b.write("step-100/.metadata", 24);
    b.poll();
    let end = b.list.events.lock().unwrap().last().unwrap().clone();
    assert_eq!(end.extra["bytes"].as_f64(), Some(1524.0));
    assert!(end.extra["path"].as_str().unwrap().ends_with("/step-100"));
    assert_eq!((end.extra["stage"].as_str(), &end.extra["seen"]), (Some("durable"), &Value::Bool(true)));
    assert!(end.extra["free_bytes"].as_f64().is_some_and(|free| free > 0.0));
    assert!((end.ts.unwrap() - now_unix()).abs() < 60.0, "when it was written");
    assert_eq!(b.published(), [(End, 100)]);
    b.poll();
    assert!(b.published().is_empty(), "once");
    assert_eq!(b.page().get(&CHECKPOINTS, &["r", "whole"]), Some(1.0));
    assert_eq!(b.page().get(&TOTAL_BYTES, &["r"]), Some(1524.0));
    assert_eq!(b.page().get(&WRITTEN, &["r"]), None);
}

#[test]
fn a_checkpoint_describes_its_model() {
    let mut b = Bench::new();
    let checkpoint = b.dir.path().join("checkpoint-100");
    fs::create_dir_all(&checkpoint).unwrap();
    fs::write(checkpoint.join("config.json"), CONFIG).unwrap();
    b.write("checkpoint-100/trainer_state.json", 100);
    b.poll();
    b.poll();
    let events = b.list.events.lock().unwrap();
    let hello = events.iter().find(|e| e.kind == Kind::Hello).unwrap();
    assert_eq!(hello.run.as_deref(), Some("r"));
    assert_eq!(hello.extra["model"].get("hidden_size").and_then(Value::as_f64), Some(4096.0));
    assert_eq!(events.last().unwrap().kind, Kind::Ckpt);
}

#[test]
fn megatrons_tracker_has_the_last_word() {
    let mut b = Bench::new();
    b.write("latest_checkpointed_iteration.txt", 0);
    fs::write(b.dir.path().join("latest_checkpointed_iteration.txt"), "1000").unwrap();
    b.write("iter_0001000/.metadata", 10);
    b.poll();
    assert_eq!(b.published(), [(End, 1000)]);
    b.write("iter_0002000/mp_rank_00/model.pt", 10);
    b.write("iter_0002000/.metadata", 10);
    b.pass(5 * MINUTE);
    assert_eq!(b.published(), [(Start, 2000)], "the tracker does not name it yet");
    fs::write(b.dir.path().join("latest_checkpointed_iteration.txt"), "2000\n").unwrap();
    b.poll();
    assert_eq!(b.published(), [(End, 2000)]);
}

#[test]
fn deepspeeds_tracker_alone_is_no_proof() {
    let mut b = Bench::new();
    b.write("global_step100/zero_pp_rank_0_mp_rank_00_optim_states.pt", 10);
    fs::write(b.dir.path().join("latest"), "global_step100").unwrap();
    b.poll();
    b.write("global_step100/zero_pp_rank_1_mp_rank_00_optim_states.pt", 10);
    b.poll();
    assert_eq!(b.published(), [(Start, 100)], "another rank still writes");
    b.pass(settle().as_duration());
    assert_eq!(b.published(), [(End, 100)]);
}

#[test]
fn orbax_has_committed_once_its_metadata_says_so() {
    let mut b = Bench::new();
    let metadata = |b: &Bench, step: u32, time: &str| {
        let text = format!(r#"{{"init_timestamp_nsecs":1,"commit_timestamp_nsecs":{time}}}"#);
        let dir = b.dir.path().join(step.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("_CHECKPOINT_METADATA"), text).unwrap();
    };
    metadata(&b, 100, "null");
    b.poll();
    assert_eq!(b.published(), [(Start, 100)], "it exists from the start");
    metadata(&b, 100, "1777186396158388000");
    b.poll();
    assert_eq!(b.published(), [(End, 100)]);
    metadata(&b, 200, "null");
    b.write("200/items/d/0", 1000);
    b.pass(5 * MINUTE);
    b.write("300/_CHECKPOINT_METADATA", 2 * 1024 * 1024);
    b.pass(5 * MINUTE);
    assert_eq!(b.published(), [(Start, 200), (Start, 300)], "however long they rest");
}

#[test]
fn one_that_a_later_one_overtook_has_failed() {
    let mut b = Bench::new();
    b.write("step-100/__0_0.distcp", 7);
    b.poll();
    b.write("step-200/.metadata", 10);
    b.poll();
    assert_eq!(b.published(), [(Start, 100), (End, 200)], "it may be written still");
    b.pass(settle().as_duration());
    let fail = b.list.events.lock().unwrap().last().unwrap().clone();
    assert_eq!(fail.text.as_deref(), Some("step-100 is not whole, and step-200, which is later, is"));
    assert_eq!(b.published(), [(Fail, 100)]);
    b.pass(2 * GIVEN_UP_AFTER);
    assert!(b.published().is_empty(), "once");
}

#[test]
fn what_was_left_behind_before_is_no_news() {
    let mut b = Bench::over(|dir| {
        for (name, file) in [("step-100", "__0_0.distcp"), ("step-200", ".metadata")] {
            fs::create_dir_all(dir.join(name)).unwrap();
            fs::write(dir.join(name).join(file), "x").unwrap();
        }
    });
    assert_eq!(b.published(), [(End, 200)]);
    b.pass(2 * GIVEN_UP_AFTER);
    assert!(b.published().is_empty());
    assert_eq!(b.page().get(&CHECKPOINTS, &["r", "incomplete"]), Some(1.0));
}

#[test]
fn without_any_sign_one_that_stopped_changing_is_whole() {
    let mut b = Bench::new();
    b.write("model_000500.pt", 10);
    b.poll();
    b.write("model_000500.pt", 20);
    b.poll();
    b.pass(settle().as_duration());
    assert_eq!(b.published(), [(Start, 500), (End, 500)]);
    // A temporary checkpoint is not complete.
    b.write("tmp-checkpoint-600/model.safetensors", 10);
    b.pass(5 * MINUTE);
    assert_eq!(b.published(), [(Start, 600)]);
    fs::rename(b.dir.path().join("tmp-checkpoint-600"), b.dir.path().join("checkpoint-600")).unwrap();
    b.poll();
    assert_eq!(b.published(), [(End, 600)]);
}

#[test]
fn where_the_framework_leaves_its_mark_one_without_it_never_is_whole() {
    let mut b = Bench::new();
    b.write("checkpoint-10/model.safetensors", 10);
    b.write("checkpoint-10/trainer_state.json", 10);
    b.poll();
    b.write("checkpoint-20/model.safetensors", 7);
    b.poll();
    b.pass(10 * MINUTE);
    assert_eq!(b.published(), [(End, 10), (Start, 20)]);
    b.pass(GIVEN_UP_AFTER);
    let fail = b.list.events.lock().unwrap().last().unwrap().clone();
    assert_eq!(fail.text.as_deref(), Some("checkpoint-20 stopped growing at 7 bytes and is not whole"));
    assert!((fail.ts.unwrap() - now_unix()).abs() < 60.0, "when it was last written, 40 minutes ago");
    assert_eq!(b.published(), [(Fail, 20)]);
    assert_eq!(b.page().get(&CHECKPOINTS, &["r", "incomplete"]), Some(1.0));
    // The checkpoint continues after all.
    b.write("checkpoint-20/trainer_state.json", 10);
    b.poll();
    assert_eq!(b.published(), [(End, 20)]);
}

#[test]
fn a_second_entry_of_a_step_takes_nothing_from_the_first() {
    let mut b = Bench::new();
    b.write("step-1000/.metadata", 10);
    b.poll();
    assert_eq!(b.published(), [(End, 1000)]);
    // A copy in another format, an archive, and a copy that breaks off.
    b.write("step-1000-hf/model.safetensors", 7);
    b.write("step-1000.tar", 7);
    b.write("step-1000.partial/__0_0.distcp", 7);
    b.poll();
    b.write("step-2000/.metadata", 10);
    b.pass(2 * GIVEN_UP_AFTER);
    assert_eq!(b.published(), [(End, 2000)]);
    assert_eq!(b.page().get(&CHECKPOINTS, &["r", "whole"]), Some(4.0));
    // Where only the other format is kept, it needs no file of the first.
    b.write("step-3000-hf/model.safetensors", 7);
    b.poll();
    b.pass(settle().as_duration());
    assert_eq!(b.published(), [(Start, 3000), (End, 3000)]);
    // One of the first sort still needs it.
    b.write("step-4000/__0_0.distcp", 7);
    b.pass(5 * MINUTE);
    assert_eq!(b.published(), [(Start, 4000)]);
}

#[test]
fn a_second_entry_that_was_there_before_is_no_news() {
    let b = Bench::over(|dir| {
        fs::create_dir_all(dir.join("step-1000")).unwrap();
        fs::write(dir.join("step-1000/.metadata"), "x").unwrap();
        fs::create_dir_all(dir.join("step-1000-hf")).unwrap();
        fs::write(dir.join("step-1000-hf/model.safetensors"), "x").unwrap();
    });
    assert_eq!(b.published(), [(End, 1000)]);
}

#[test]
fn olmo_core_has_saved_once_its_model_has_its_metadata() {
    let mut b = Bench::new();
    b.write("step100/model_and_optim/__0_0.distcp", 10);
    b.write("step100/.metadata.json", 10);
    b.poll();
    assert_eq!(b.published(), [(Start, 100)], "it is written after a save that failed, too");
    b.write("step100/model_and_optim/.metadata", 10);
    b.poll();
    assert_eq!(b.published(), [(End, 100)]);
    b.write("step200/model_and_optim/__0_0.distcp", 10);
    b.write("step200/.metadata.json", 10);
    b.pass(5 * MINUTE);
    assert_eq!(b.published(), [(Start, 200)]);
}

#[test]
fn nanotrons_tracker_alone_says_that_it_has_saved() {
    let mut b = Bench::new();
    b.write("latest.txt", 0);
    fs::write(b.dir.path().join("latest.txt"), "100").unwrap();
    b.write("100/checkpoint_metadata.json", 10);
    b.poll();
    assert_eq!(b.published(), [(End, 100)]);
    b.write("200/checkpoint_metadata.json", 10);
    b.pass(5 * MINUTE);
    assert_eq!(b.published(), [(Start, 200)]);
    fs::write(b.dir.path().join("latest.txt"), "200").unwrap();
    b.poll();
    assert_eq!(b.published(), [(End, 200)]);
}

#[test]
fn nemos_checkpoint_is_whole_when_its_mark_is_gone() {
    let mut b = Bench::new();
    let (name, mark) = ("gpt--val_loss=2.31-step=100-last", "gpt--val_loss=2.31-step=100-last-unfinished");
    b.write(mark, 0);
    b.poll();
    b.write(&format!("{name}/weights/__0_0.distcp"), 10);
    b.poll();
    b.pass(5 * MINUTE);
    assert_eq!(
        b.published(),
        [(Start, 100)],
        "the mark is no checkpoint, and the one that it names is not whole"
    );
    fs::remove_file(b.dir.path().join(mark)).unwrap();
    b.poll();
    assert_eq!(b.published(), [(End, 100)]);
    // NeMo sets the mark again while it deletes the checkpoint.
    b.write(mark, 0);
    b.pass(MINUTE);
    assert!(b.published().is_empty());
}

#[test]
fn an_epoch_is_no_step() {
    let mut b = Bench::new();
    b.write("epoch_0/model-00001-of-00002.safetensors", 10);
    b.poll();
    b.pass(settle().as_duration());
    let events = std::mem::take(&mut *b.list.events.lock().unwrap());
    let published: Vec<_> = events.iter().map(|e| (e.ckpt.unwrap(), e.step)).collect();
    assert_eq!(published, [(Start, None), (End, None)]);
}

#[test]
fn each_time_that_one_file_is_written_over_is_a_checkpoint() {
    let mut b = Bench::new();
    let published = |b: &Bench| {
        let events = std::mem::take(&mut *b.list.events.lock().unwrap());
        assert!(events.iter().all(|e| e.step.is_none()));
        events.iter().map(|e| e.ckpt.unwrap()).collect::<Vec<_>>()
    };
    let write = |b: &Bench, bytes: usize, at: f64| {
        b.write("ckpt.pt", bytes);
        let at = std::time::UNIX_EPOCH + Duration::from_secs_f64(at);
        fs::File::options().write(true).open(b.dir.path().join("ckpt.pt")).unwrap().set_modified(at).unwrap();
    };
    let begun = b.unix;
    write(&b, 500, begun);
    b.poll();
    assert_eq!(published(&b), [Start]);
    // The file is overwritten more often than it could settle.
    for i in 1..=6 {
        write(&b, 1000, begun + f64::from(i) * 10.0);
        b.pass(interval().as_duration());
    }
    b.pass(interval().as_duration());
    assert_eq!(published(&b), [End], "its size rests");
    b.pass(5 * MINUTE);
    assert!(published(&b).is_empty(), "once");
    write(&b, 1000, begun + 400.0);
    b.poll();
    let end = b.list.events.lock().unwrap()[0].clone();
    assert_eq!((end.ckpt, end.ts), (Some(End), Some(begun + 400.0)));
    assert_eq!(published(&b), [End], "all of it is there again");
    write(&b, 300, begun + 500.0);
    b.poll();
    assert_eq!((published(&b), b.page().get(&WRITTEN, &["r"])), (vec![Start], Some(300.0)));
    write(&b, 1000, begun + 501.0);
    b.poll();
    assert_eq!(published(&b), [End]);
    assert_eq!(b.page().get(&CHECKPOINTS, &["r", "whole"]), Some(1.0));
}

#[test]
fn of_what_was_there_before_only_the_last_is_published_with_its_age() {
    let b = Bench::over(|dir| {
        for step in [100, 200] {
            fs::create_dir_all(dir.join(format!("step-{step}"))).unwrap();
            fs::write(dir.join(format!("step-{step}/.metadata")), "x").unwrap();
            age(&dir.join(format!("step-{step}/.metadata")), 7200 - step);
        }
        fs::create_dir_all(dir.join("step-300")).unwrap();
        fs::write(dir.join("step-300/__0_0.distcp"), "x").unwrap();
    });
    let first = b.list.events.lock().unwrap()[0].clone();
    assert!((first.ts.unwrap() - (now_unix() - 7000.0)).abs() < 60.0, "{first:?}");
    assert_eq!(b.published(), [(End, 200), (Start, 300)]);
}

#[test]
fn a_checkpoint_that_is_rotated_away_is_gone() {
    let mut b = Bench::new();
    for step in [1, 2, 3] {
        b.write(&format!("step-{step}/.metadata"), 10);
    }
    b.write("step-4/__0_0.distcp", 10);
    b.poll();
    b.published();
    for step in ["step-1", "step-4"] {
        fs::remove_dir_all(b.dir.path().join(step)).unwrap();
    }
    b.poll();
    let events = std::mem::take(&mut *b.list.events.lock().unwrap());
    let [gone] = events.as_slice() else { panic!("one that was never whole is none: {events:?}") };
    assert_eq!((gone.kind, gone.step, gone.ckpt), (Kind::Ckpt, Some(1), None));
    assert_eq!(gone.extra["gone"], Value::Bool(true));
    assert_eq!((gone.extra["stage"].as_str(), &gone.extra["seen"]), (Some("durable"), &Value::Bool(true)));
    assert!(gone.extra["path"].as_str().unwrap().ends_with("/step-1"));
    b.poll();
    assert!(b.published().is_empty(), "once");
    assert_eq!(b.page().get(&TOTAL_BYTES, &["r"]), Some(20.0));
}

#[test]
fn checkpoints_that_vanish_with_their_directory_are_not_called_gone() {
    let mut b = Bench::new();
    b.write("step-1/.metadata", 10);
    b.write("step-2/.metadata", 10);
    b.poll();
    b.published();
    for step in ["step-1", "step-2"] {
        fs::remove_dir_all(b.dir.path().join(step)).unwrap();
    }
    b.poll();
    assert!(b.published().is_empty(), "as if unmounted");
    b.write("step-3/.metadata", 10);
    b.write("step-4/.metadata", 10);
    b.poll();
    b.published();
    let aside = tempfile::tempdir().unwrap();
    fs::rename(b.dir.path(), aside.path().join("old")).unwrap();
    b.write("step-4/.metadata", 10);
    b.poll();
    assert!(b.published().is_empty(), "another directory is in its place");
}

#[test]
fn a_missing_directory_is_down() {
    let mut b = Bench::new();
    b.write("step-1/.metadata", 10);
    b.poll();
    b.published();
    fs::remove_dir_all(b.dir.path().join("step-1")).unwrap();
    b.poll();
    assert!(b.published().is_empty());
    assert_eq!(b.page().get(&TOTAL_BYTES, &["r"]), Some(0.0));
    let name = b.dir.path().to_string_lossy().into_owned();
    assert_eq!(b.page().get(&crate::source::UP, &[&name, "checkpoints"]), Some(1.0));
    fs::remove_dir_all(b.dir.path()).unwrap();
    b.poll();
    assert_eq!(b.page().get(&crate::source::UP, &[&name, "checkpoints"]), Some(0.0));
}

#[test]
fn the_run_is_named_after_the_directory() {
    for (path, run) in
        [("/ckpt/llama-70b", "llama-70b"), ("/jobs/llama-70b/checkpoints", "llama-70b"), ("/ckpt", "ckpt")]
    {
        let config: CheckpointsConfig = serde_json::from_str(&format!(r#"{{"path":"{path}"}}"#)).unwrap();
        assert_eq!(config.run(), run, "{path}");
        assert!(config.check().is_empty());
    }
}

#[test]
fn mistakes_are_named() {
    let config: CheckpointsConfig =
        serde_json::from_str(r#"{"path":"","interval":"10ms","settle":"5ms"}"#).unwrap();
    let wrong = config.check().join("\n");
    for key in ["path:", "interval:", "settle:"] {
        assert!(wrong.contains(key), "{wrong}");
    }
}

/// Links of root and of the exporter's user are followed. Any other user's link may lead anywhere.
/// Only root can create one for the test.
#[test]
fn links_of_others_and_pipes_are_no_checkpoints() {
    let is_root = rustix::process::geteuid().is_root();
    let private = tempfile::tempdir().unwrap();
    fs::create_dir(private.path().join("data")).unwrap();
    fs::write(private.path().join("data/config.json"), CONFIG).unwrap();
    let mut b = Bench::new();
    let at = |name: &str| b.dir.path().join(name);
    std::os::unix::fs::symlink(private.path().join("data"), at("checkpoint-7")).unwrap();
    fs::create_dir(at("checkpoint-8")).unwrap();
    std::os::unix::fs::symlink(private.path().join("data/config.json"), at("checkpoint-8/config.json"))
        .unwrap();
    if is_root {
        for link in ["checkpoint-7", "checkpoint-8/config.json"] {
            std::os::unix::fs::lchown(at(link), Some(65_534), None).unwrap();
        }
    }
    rustix::fs::mknodat(rustix::fs::CWD, at("latest"), FileType::Fifo, Mode::from_raw_mode(0o644), 0)
        .unwrap();
    b.write("checkpoint-8/trainer_state.json", 100);
    b.pass(settle().as_duration() * 2);
    let hellos = b.list.events.lock().unwrap().iter().filter(|e| e.kind == Kind::Hello).count();
    assert_eq!(hellos == 0, is_root, "{hellos}");
    let refused = b.page().get(&DROPPED, &[b.dir.path().to_str().unwrap(), "checkpoints", NOT_OWNER]);
    assert_eq!(refused, is_root.then_some(1.0));
}

#[test]
fn names_of_others_hide_no_checkpoint() {
    let b = Bench::over(|dir| {
        for n in 0..12_000 {
            fs::write(dir.join(format!("note-{n}.txt")), "").unwrap();
        }
        for n in 0..40 {
            fs::create_dir(dir.join(format!("checkpoint-{n}"))).unwrap();
        }
        for n in 0..300 {
            let theirs = dir.join(format!("checkpoint-{}", 1_000_000 + n));
            fs::create_dir(&theirs).unwrap();
            // Without that right there is only one user, and the latest checkpoints are watched.
            let _ = std::os::unix::fs::chown(theirs, Some(65_534), None);
        }
    });
    let found = b.watched.list().unwrap();
    assert_eq!(found.len(), MAX_CHECKPOINTS);
    let ours = found.iter().filter(|listed| listed.key.0 < 1000).count();
    assert_eq!(ours, if crate::testing::is_root() { 40 } else { 0 });
    assert!(found.iter().any(|listed| listed.key.0 == 1_000_299) && found.is_sorted_by_key(|l| l.key.0));
}
