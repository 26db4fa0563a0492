//! The layouts of frameworks: which entries of a directory are checkpoints, their steps, and the
//! signs that one is complete.

use std::collections::BTreeSet;

use serde::Deserialize;

/// Files that a framework writes last, so that a checkpoint with one of them is complete.
const MARKERS: &[&str] = &[
    DCP_MARKER,           // torch.distributed.checkpoint: torchtitan, Megatron's torch_dist
    "trainer_state.json", // transformers
    "commit_success.txt", // Orbax in an object store
];

/// Files of that kind in a directory of the checkpoint. OLMo-core writes its own `.metadata.json`
/// also after a save that failed.
const MARKERS_WITHIN: &[(&str, &str)] = &[("model_and_optim", ".metadata")];

/// What torchtitan writes last where it saves in the format of Hugging Face. The Trainer has a file
/// of that name too, and writes others after it.
const TITAN_MARKER: &str = "model.safetensors.index.json";
const TITAN_PREFIX: &str = "step-";

/// Lightning saves a sharded checkpoint with `torch.distributed.checkpoint` into a directory that
/// is named like a file, and writes the rest of it after that.
const LIGHTNING_MARKER: &str = "meta.pt";
const LIGHTNING_SUFFIX: &str = ".ckpt";
const DCP_MARKER: &str = ".metadata";

/// Orbax writes this file first, and adds the time of the commit last.
const ORBAX_METADATA: &str = "_CHECKPOINT_METADATA";

/// Files beside the checkpoints that name the last one, and whether that proves it complete.
pub(super) const TRACKERS: &[(&str, bool)] = &[
    ("latest_checkpointed_iteration.txt", true), // Megatron
    // DeepSpeed: `global_step1000`. The first rank writes it when its own files are written. It
    // waits for the other ranks only then.
    ("latest", false),
    ("latest.txt", true),             // nanotron
    ("latest_train_state.txt", true), // Megatron-Bridge
];

/// The state of Ray Train's checkpoint manager, which it writes once all ranks have reported a
/// checkpoint. It names those that it keeps.
pub(super) const RAY_TRACKER: &str = "checkpoint_manager_snapshot.json";

/// What the trackers in a directory say of its checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tracked {
    /// The step of the last one, and whether that proves it complete.
    Step(i64, bool),
    /// The names of the complete ones.
    Names(BTreeSet<String>),
}

/// What a file says of the checkpoint that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// It is written last.
    Last,
    /// Its content says it: [`is_committed`].
    Content,
}

/// Prefixes of names that end in the step.
const PREFIXES: &[&str] = &[
    "iter_",
    "iter-",
    "checkpoint-",
    "checkpoint_",
    "ckpt-",
    "ckpt_",
    "global_step",
    "global_step_",
    "global-step",
    "step-",
    "step_",
    "step",
    "model_",
    "model-",
    "state_",
    "state_step",
    "batch",
    "ba",
];

/// Prefixes of names that end in the epoch, which is not a step.
const EPOCH_PREFIXES: &[&str] = &["epoch_", "epoch-", "epoch="];

/// Names of files that each checkpoint overwrites.
const REWRITTEN: &[&str] = &["ckpt.pt", "checkpoint.pt", "checkpoint.pth"];

/// The parts of an entry's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    /// The number in units of `unit`; 0 if there is none.
    pub(super) number: i64,
    pub(super) unit: Unit,
    /// Whether the framework renames it when it is complete.
    pub(super) temporary: bool,
}

/// The unit of the number in a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Step,
    Epoch,
    /// The second in which it was begun, in an order of its own.
    Time,
    /// No unit: the same file is overwritten.
    Rewritten,
}

impl Name {
    pub(super) fn step(self) -> Option<i64> {
        (self.unit == Unit::Step).then_some(self.number)
    }
}

/// Parses a name; `None` if it is not a checkpoint, or has neither step nor epoch.
pub(super) fn name(name: &str) -> Option<Name> {
    let lower = name.to_ascii_lowercase();
    let (bare, temporary) = temporary(&lower);
    if REWRITTEN.contains(&bare) {
        return Some(Name { number: 0, unit: Unit::Rewritten, temporary });
    }
    let bare = without_extension(bare);
    let step = prefixed(bare).or_else(|| lightning(bare)).or_else(|| composer(bare));
    let epoch = || EPOCH_PREFIXES.iter().find_map(|p| number(bare.strip_prefix(p)?));
    let dated = || ray(bare).map(|second| (second, Unit::Time));
    let (number, unit) =
        step.map(|s| (s, Unit::Step)).or_else(|| Some((epoch()?, Unit::Epoch))).or_else(dated)?;
    Some(Name { number, unit, temporary })
}

/// The checkpoint that is unfinished while this marker of NeMo exists beside it:
/// `x-step=100-last-unfinished` is for `x-step=100-last` or `x-step=100-last.ckpt`.
pub(super) fn unfinished(marker: &str) -> Option<&str> {
    marker.strip_suffix("-unfinished")
}

/// Whether `name` is the checkpoint that [`unfinished`] returned.
pub(super) fn is_named_by(bare: &str, name: &str) -> bool {
    name.strip_prefix(bare).is_some_and(|rest| matches!(rest, "" | ".ckpt" | "-EMA.ckpt" | ".nemo"))
}

/// What `file` says of the checkpoint `name` that it is in.
pub(super) fn sign(file: &str, name: &str) -> Option<Sign> {
    if name.ends_with(LIGHTNING_SUFFIX) && matches!(file, DCP_MARKER | LIGHTNING_MARKER) {
        return (file == LIGHTNING_MARKER).then_some(Sign::Last);
    }
    let is_last = MARKERS.contains(&file) || file == TITAN_MARKER && name.starts_with(TITAN_PREFIX);
    let content = (file == ORBAX_METADATA).then_some(Sign::Content);
    is_last.then_some(Sign::Last).or(content)
}

/// Whether `file` in the directory `within` of a checkpoint is written last.
pub(super) fn is_last_within(within: &str, file: &str) -> bool {
    MARKERS_WITHIN.contains(&(within, file))
}

/// The sort of a checkpoint: those that are written in the same way have the same.
pub(super) fn sort(name: &str) -> String {
    name.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Whether the metadata of Orbax has the time of the commit. Where it lacks one, the checkpoint may
/// be complete: some of its versions only rename what they have committed.
pub(super) fn is_committed(metadata: &[u8]) -> bool {
    let metadata = serde_json::from_slice::<serde_json::Value>(metadata).ok();
    let time = metadata.as_ref().and_then(|metadata| metadata.get("commit_timestamp_nsecs")?.as_f64());
    time.is_some_and(|nanoseconds| nanoseconds > 0.0)
}

/// The step in a tracker, which has a bare number or a name that ends in one.
pub(super) fn tracked(text: &str) -> Option<i64> {
    let word = text.split_whitespace().next()?;
    number(word).or_else(|| name(word).and_then(Name::step))
}

/// The checkpoints that Ray's tracker names.
pub(super) fn named_by_ray(tracker: &[u8]) -> Option<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Snapshot {
        checkpoint_results: Vec<Reported>,
        latest_checkpoint_result: Option<Reported>,
    }
    #[derive(Deserialize)]
    struct Reported {
        checkpoint_dir_name: String,
    }
    let snapshot: Snapshot = serde_json::from_slice(tracker).ok()?;
    let all = snapshot.checkpoint_results.into_iter().chain(snapshot.latest_checkpoint_result);
    Some(all.map(|one| one.checkpoint_dir_name).collect())
}

/// The final name, and whether `name` is a temporary one.
fn temporary(name: &str) -> (&str, bool) {
    for cut in
        [".orbax-checkpoint-tmp", ".tmp", "-tmp", "_tmp", ".partial", ".part", ".incomplete", ".inprogress"]
    {
        if let Some(at) = name.find(cut) {
            return (&name[..at], true);
        }
    }
    match name.strip_prefix("tmp-").or_else(|| name.strip_prefix("tmp_")) {
        Some(rest) => (rest, true),
        None => (name, false),
    }
}

fn without_extension(name: &str) -> &str {
    let known = [".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".tar"];
    known.iter().find_map(|e| name.strip_suffix(e)).unwrap_or(name)
}

/// Parses `iter_0001000`, `checkpoint-500`, `step1000-unsharded` and `1000`.
fn prefixed(name: &str) -> Option<i64> {
    let rest = PREFIXES
        .iter()
        .find_map(|p| name.strip_prefix(p).filter(|r| r.starts_with(|c: char| c.is_ascii_digit())));
    let rest = rest.unwrap_or(name);
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let after = &rest[digits..];
    (after.is_empty() || after == "-unsharded" || after == "-hf").then(|| number(&rest[..digits]))?
}

/// Parses `epoch=0-step=1000`, with or without a metric after it.
fn lightning(name: &str) -> Option<i64> {
    let at = name.find("step=")? + "step=".len();
    let digits = name[at..].find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len() - at);
    number(&name[at..at + digits])
}

/// Parses `ep0-ba1000-rank0`, `ep0-ba1000` and `ba1000-rank0`.
fn composer(name: &str) -> Option<i64> {
    let batch = |part: &str| number(part.strip_prefix("ba")?);
    let (first, rest) = name.split_once('-')?;
    batch(first).or_else(|| {
        number(first.strip_prefix("ep")?)?;
        rest.split('-').find_map(batch)
    })
}

/// Parses the names that Ray Train gives by the time, `checkpoint_2026-11-22_22-35-42.123456`:
/// returns a number that grows with the seconds. The names order those of one second.
fn ray(name: &str) -> Option<i64> {
    let (date, time) = name.strip_prefix("checkpoint_")?.split_once('_')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    number(fraction)?;
    let mut parts = date.splitn(3, '-').chain(time.splitn(3, '-')).map(number);
    let mut second = 0;
    for (least, below) in [(1970, 10_000), (1, 13), (1, 32), (0, 24), (0, 60), (0, 62)] {
        let part = parts.next()?.filter(|part| (least..below).contains(part))?;
        second = second * below + part;
    }
    parts.next().is_none().then_some(second)
}

fn number(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|n: &i64| *n < 1 << 53)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_frameworks() {
        for (text, step) in [
            ("iter_0001000", Some(1000)),
            ("checkpoint-500", Some(500)),
            ("global_step2500", Some(2500)),
            ("step-1000", Some(1000)),
            ("step1000", Some(1000)),
            ("step1000-unsharded", Some(1000)),
            ("state_001000.pt", Some(1000)),
            ("model_001000.pt", Some(1000)),
            ("1000", Some(1000)),
            ("ep0-ba1000-rank0.pt", Some(1000)),
            ("ep1-ba1000", Some(1000)),
            ("ba1000", Some(1000)),
            ("ba1000-rank0.pt", Some(1000)),
            ("global_step_20", Some(20)),
            ("state_step000100.pt", Some(100)),
            ("megatron_gpt--val_loss=2.31-step=100-consumed_samples=6400.0-last.ckpt", Some(100)),
            ("epsilon-ba5", None),
            ("epoch=0-step=1000.ckpt", Some(1000)),
            ("epoch=3-val_loss=1.25-step=77.ckpt", Some(77)),
            ("latest", None),
            ("runs", None),
            ("checkpoint-best", None),
            ("step", None),
            ("tokenizer.json", None),
            ("2024-01-01", None),
            ("checkpoint_manager_snapshot.json", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(name(text).and_then(Name::step), step, "{text}");
        }
        for text in [
            "1000.orbax-checkpoint-tmp-17",
            "tmp-checkpoint-1000",
            "checkpoint-1000.tmp",
            "step-1000.partial",
        ] {
            assert_eq!(name(text), Some(Name { number: 1000, unit: Unit::Step, temporary: true }), "{text}");
        }
    }

    #[test]
    fn names_without_a_step() {
        for (text, number, unit) in [
            ("epoch_0", 0, Unit::Epoch),
            ("epoch-12.pt", 12, Unit::Epoch),
            ("epoch=3.ckpt", 3, Unit::Epoch),
            ("ckpt.pt", 0, Unit::Rewritten),
        ] {
            let found = name(text).unwrap();
            assert_eq!((found.number, found.unit, found.step()), (number, unit, None), "{text}");
        }
        for text in ["ckpt", "checkpoint", "epoch_best", "last.ckpt"] {
            assert_eq!(name(text), None, "{text}");
        }
    }

    #[test]
    fn ray_names_by_the_time() {
        let second = |text: &str| {
            let found = name(text).unwrap();
            assert_eq!((found.unit, found.step(), found.temporary), (Unit::Time, None, false), "{text}");
            found.number
        };
        let times = [
            "checkpoint_2025-12-31_23-59-59.999999",
            "checkpoint_2026-01-01_00-00-00.000000",
            "checkpoint_2026-11-22_22-35-42.1",
            "checkpoint_2026-11-22_22-35-43",
            "checkpoint_2026-11-23_00-00-00.5",
        ];
        assert!(times.map(second).is_sorted_by(|a, b| a < b));
        assert_eq!(second("checkpoint_2026-11-22_22-35-42.1"), second("checkpoint_2026-11-22_22-35-42.2"));
        for text in [
            "checkpoint_2026-11-22",
            "checkpoint_2026-13-22_22-35-42.1",
            "checkpoint_2026-11-22_22-35",
            "checkpoint_2026-11-22_22-35-42-7",
            "checkpoint_2026-11-22_22-35-42.x",
            "2026-11-22_22-35-42.1",
        ] {
            assert_eq!(name(text), None, "{text}");
        }
    }

    /// The keys are those of `_CheckpointManagerState`.
    #[test]
    fn rays_tracker_names_what_is_complete() {
        let text = r#"{"version":0,"checkpoint_results":[{"version":0,"checkpoint_dir_name":"a","metrics":{"loss":2.5}}],"latest_checkpoint_result":null}"#;
        assert_eq!(named_by_ray(text.as_bytes()), Some(["a".to_owned()].into()));
        let last = text.replace("null", r#"{"checkpoint_dir_name":"b","metrics":{}}"#);
        assert_eq!(named_by_ray(last.as_bytes()), Some(["a", "b"].map(str::to_owned).into()));
        for text in [&last[..last.len() - 9], "", "[]", "{}", r#"{"checkpoint_results":7}"#] {
            assert_eq!(named_by_ray(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn nemos_mark_names_its_checkpoint() {
        let bare = unfinished("gpt-step=100-last-unfinished").unwrap();
        assert!(is_named_by(bare, "gpt-step=100-last") && is_named_by(bare, "gpt-step=100-last.ckpt"));
        for other in ["gpt-step=100-last-unfinished", "gpt-step=1000-last", "gpt-step=100"] {
            assert!(!is_named_by(bare, other), "{other}");
        }
        assert_eq!(unfinished("gpt-step=100-last.ckpt"), None);
    }

    #[test]
    fn what_is_written_last() {
        for (file, name, sign_) in [
            (".metadata", "step-100", Some(Sign::Last)),
            (".metadata", "epoch=0-step=100.ckpt", None),
            ("meta.pt", "epoch=0-step=100.ckpt", Some(Sign::Last)),
            ("meta.pt", "step-100", None),
            ("trainer_state.json", "checkpoint-100", Some(Sign::Last)),
            ("model.safetensors.index.json", "step-100", Some(Sign::Last)),
            ("model.safetensors.index.json", "checkpoint-100", None),
            ("_CHECKPOINT_METADATA", "100", Some(Sign::Content)),
            ("metadata.json", "iter_0000100", None),
            (".metadata.json", "step100", None),
            ("checkpoint_metadata.json", "100", None),
        ] {
            assert_eq!(sign(file, name), sign_, "{name}/{file}");
        }
        for (within, file, is_last) in [
            ("model_and_optim", ".metadata", true),
            ("train", ".metadata", false),
            ("model_and_optim", "__0_0.distcp", false),
        ] {
            assert_eq!(is_last_within(within, file), is_last, "{within}/{file}");
        }
    }

    #[test]
    fn sorts_of_checkpoints() {
        for (name, sort_) in [
            ("step1000", "step"),
            ("step2000", "step"),
            ("step1000-hf", "step-hf"),
            ("checkpoint-500.tar", "checkpoint-.tar"),
            ("epoch=0-val_loss=2.31-step=100.ckpt", "epoch=-val_loss=.-step=.ckpt"),
        ] {
            assert_eq!(sort(name), sort_, "{name}");
        }
    }

    /// The keys are those of Orbax's `step_metadata_serialization.py`.
    #[test]
    fn orbax_adds_the_time_of_the_commit_last() {
        let committed =
            r#"{"init_timestamp_nsecs":1777186394562197252,"commit_timestamp_nsecs":1777186396158388000}"#;
        assert!(is_committed(committed.as_bytes()));
        for text in [
            r#"{"init_timestamp_nsecs":1777186394562197252,"commit_timestamp_nsecs":null}"#,
            r#"{"commit_timestamp_nsecs":0}"#,
            r#"{"commit_timestamp_nsecs":"soon"}"#,
            r#"{"item_handlers":null}"#,
            r#"{"commit_timestamp_nsecs":17"#,
            "[]",
        ] {
            assert!(!is_committed(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn trackers() {
        for (text, step) in [
            ("1000\n", Some(1000)),
            ("global_step1000", Some(1000)),
            ("release", None),
            ("", None),
            ("-5", None),
        ] {
            assert_eq!(tracked(text), step, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_name_is_read_or_not(text in "\\PC{0,40}") {
            let _ = (name(&text), tracked(&text), named_by_ray(text.as_bytes()));
        }

        #[test]
        fn any_name_with_a_time_is_read_or_not(text in "checkpoint_[0-9]{1,20}-[0-9]{1,3}[-_0-9.]{0,20}") {
            let _ = name(&text);
        }

        #[test]
        fn a_step_is_read_back(step in 0i64..1 << 50, prefix in proptest::sample::select(PREFIXES), width in 0usize..9) {
            let text = format!("{prefix}{step:0width$}");
            let want = Name { number: step, unit: Unit::Step, temporary: false };
            proptest::prop_assert_eq!(name(&text), Some(want));
        }
    }
}
