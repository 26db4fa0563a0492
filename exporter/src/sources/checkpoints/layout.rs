//! How frameworks lay checkpoints out: which entries of a directory are some, of which step, and by what one sees that one is whole.

/// A file that is written last of all, so that a checkpoint which has it is whole.
const MARKERS: &[&str] = &[
    ".metadata",          // torch.distributed.checkpoint: torchtitan, OLMo-core, Megatron's torch_dist
    ".metadata.json",     // OLMo-core
    "trainer_state.json", // transformers
    "commit_success.txt", // orbax: MaxText
    "_CHECKPOINT_METADATA", // orbax
    "checkpoint_metadata.json", // nanotron
];

/// Files beside the checkpoints that name the last whole one.
pub(super) const TRACKERS: &[&str] = &[
    "latest_checkpointed_iteration.txt", // Megatron
    "latest",                            // DeepSpeed: global_step1000
    "latest.txt",                        // nanotron
    "latest_train_state.txt",            // Megatron-Bridge
];

/// What names begin with that end in the step.
const PREFIXES: &[&str] = &[
    "iter_",
    "iter-",
    "checkpoint-",
    "checkpoint_",
    "ckpt-",
    "ckpt_",
    "global_step",
    "global-step",
    "step-",
    "step_",
    "step",
    "model_",
    "model-",
    "state_",
    "batch",
];

/// An entry of a directory by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) step: i64,
    /// It will be renamed when it is whole.
    pub(super) temporary: bool,
}

/// Reads a name; `None` for what is no checkpoint, or does not tell its step.
pub(super) fn name(name: &str) -> Option<Name> {
    let lower = name.to_ascii_lowercase();
    let (bare, temporary) = temporary(&lower);
    let bare = without_extension(bare);
    let step = prefixed(bare).or_else(|| lightning(bare)).or_else(|| composer(bare))?;
    Some(Name { step, temporary })
}

pub(super) fn is_marker(file: &str) -> bool {
    MARKERS.contains(&file)
}

/// The step in a tracker: a bare number, or a name that ends in it.
pub(super) fn tracked(text: &str) -> Option<i64> {
    let word = text.split_whitespace().next()?;
    number(word).or_else(|| name(word).map(|n| n.step))
}

/// The name that a temporary one will become.
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

/// `iter_0001000`, `checkpoint-500`, `step1000-unsharded`, `1000`.
fn prefixed(name: &str) -> Option<i64> {
    let rest = PREFIXES
        .iter()
        .find_map(|p| name.strip_prefix(p).filter(|r| r.starts_with(|c: char| c.is_ascii_digit())));
    let rest = rest.unwrap_or(name);
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let after = &rest[digits..];
    (after.is_empty() || after == "-unsharded" || after == "-hf").then(|| number(&rest[..digits]))?
}

/// `epoch=0-step=1000`, with a metric behind it or not.
fn lightning(name: &str) -> Option<i64> {
    let at = name.find("step=")? + "step=".len();
    let digits = name[at..].find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len() - at);
    number(&name[at..at + digits])
}

/// `ep0-ba1000-rank0`.
fn composer(name: &str) -> Option<i64> {
    let rest = name.strip_prefix("ep")?;
    let batch = rest.split('-').find_map(|part| part.strip_prefix("ba"))?;
    number(batch)
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
            ("epoch=0-step=1000.ckpt", Some(1000)),
            ("epoch=3-val_loss=1.25-step=77.ckpt", Some(77)),
            ("latest", None),
            ("runs", None),
            ("checkpoint-best", None),
            ("step", None),
            ("tokenizer.json", None),
            ("2024-01-01", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(name(text).map(|n| n.step), step, "{text}");
        }
        for text in [
            "1000.orbax-checkpoint-tmp-17",
            "tmp-checkpoint-1000",
            "checkpoint-1000.tmp",
            "step-1000.partial",
        ] {
            assert_eq!(name(text), Some(Name { step: 1000, temporary: true }), "{text}");
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
            let _ = (name(&text), tracked(&text));
        }

        #[test]
        fn a_step_is_read_back(step in 0i64..1 << 50, prefix in proptest::sample::select(PREFIXES), width in 0usize..9) {
            let text = format!("{prefix}{step:0width$}");
            proptest::prop_assert_eq!(name(&text), Some(Name { step, temporary: false }));
        }
    }
}
