//! What the words before a number mean.

use stepwatch_wire::names::metric;

use crate::own_loss::own_loss;
use crate::tags;

/// Names of a step, the better ones last: of several on one line, the step of the optimizer counts.
const STEPS: &[&[&str]] = &[
    &["batch", "minibatch", "mini_batch", "microbatch"],
    &["it", "itr", "iter", "iters", "iteration", "iterations", "n_iter", "train_iter", "i"],
    &["step", "steps", "current_step", "update", "updates", "num_updates"],
    &[
        "global_step",
        "globalstep",
        "global_steps",
        "optimizer_step",
        "opt_step",
        "train_step",
        "training_step",
    ],
];
/// Words that mark an average or a group of metrics, and that change nothing about what it is of.
const QUALIFIERS: &[&str] = &[
    "train",
    "training",
    "avg",
    "average",
    "mean",
    "avr",
    "running",
    "smoothed",
    "current",
    "cur",
    "batch",
    "total",
    "global",
    "overall",
    "step",
    "perf",
    "performance",
    "metrics",
    "optim",
    "optimizer",
];
/// Words of a logger before the first name of a line.
const LOGGERS: &[&str] = &[
    "info", "debug", "warning", "warn", "notice", "root", "main", "trainer", "train", "training", "with",
    "and",
];
/// Words that make a step of something else: `total steps`, `warmup step`.
const OTHER_STEPS: &[&str] =
    &["total", "max", "num", "warmup", "save", "eval", "log", "logging", "per", "every", "of", "remaining"];
const EVALUATIONS: &[&str] = &[
    "val",
    "valid",
    "validation",
    "validating",
    "eval",
    "evaluation",
    "evaluating",
    "test",
    "testing",
    "dev",
];
/// What people print for the norm of the gradients.
const NORMS: &[&str] = &[
    "norm",
    "grad",
    "grdn",
    "grads",
    "gradient",
    "gradients",
    "g_norm",
    "gn",
    "|g|",
    "grad_l2",
    "grad_norm_l2",
    "l2_grad_norm",
    "total_norm",
    "global_norm",
    "clip_norm",
    "grad_norm_clip",
    "grad_norm_before_clip",
    "grad_norm_pre_clip",
    "unclipped_grad_norm",
    "raw_grad_norm",
    "gradient_l2",
];
/// Values of another step than this one.
const RECORDS: &[&str] = &["best", "min", "max", "prev", "previous", "last", "target"];
/// Numbers that are printed beside steps and are no metrics.
const NOISE: &[&str] = &[
    "pid",
    "tid",
    "port",
    "line",
    "seed",
    "world",
    "world_size",
    "local_rank",
    "device",
    "cuda",
    "gpu",
    "gpus",
    "node",
    "worker",
    "thread",
    "year",
    "eta",
    "at",
    "in",
    "of",
    "on",
    "to",
    "for",
    "from",
    "after",
    "with",
    "and",
    "took",
    "version",
    "job",
    "id",
    "v_num",
    // The stamp of syslog.
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
];
/// Words of a name; more are a text.
const MAX_WORDS: usize = 3;
const MAX_NAME: usize = 40;
/// Words at the start of a line that may say what it is of.
const MAX_HEAD: usize = 16;

#[derive(Debug, PartialEq)]
pub(crate) enum Meaning {
    /// The higher the better.
    Step(u8),
    Epoch,
    Rank,
    /// One of ours, and what its number must be divided by.
    Metric(&'static str, f64),
    /// The norm of the gradients, unless the line has it under a better name.
    Norm(String),
    Custom(String),
    Eval {
        set: String,
        name: String,
        divisor: f64,
    },
    Unnamed,
    Nothing,
}

/// What `name`, the words before a number, means. Of `INFO train loss`, the end counts.
pub(crate) fn meaning(name: &str, assigned: bool) -> Meaning {
    if name.is_empty() {
        return Meaning::Unnamed;
    }
    let words: Vec<String> = name.split(' ').filter(|w| !w.is_empty()).map(str::to_ascii_lowercase).collect();
    let parts = || words.iter().flat_map(|w| w.split(['_', '/', '.', '-']));
    if parts().any(|p| RECORDS.contains(&p)) {
        return Meaning::Nothing;
    }
    if let Some(set) = parts().find(|p| EVALUATIONS.contains(p)) {
        return evaluation(set, &words, assigned);
    }
    for from in 0..words.len() {
        let (before, end) = (&words[..from], words[from..].join("_"));
        let drops = |list: &[&str]| before.iter().any(|w| list.contains(&w.as_str()));
        if let Some(counter) = counter(&end).filter(|_| !drops(OTHER_STEPS)) {
            return counter;
        }
        // `policy loss` is another loss, but `INFO loss` is not.
        let logger = before.iter().all(|w| LOGGERS.contains(&w.as_str()));
        if let Some((name, divisor)) = tags::canonical(&end).or_else(|| qualified(&end)).filter(|_| logger) {
            // `Train Epoch: 2` counts epochs as `Epoch: 2` does.
            return if name == metric::EPOCH { Meaning::Epoch } else { Meaning::Metric(name, divisor) };
        }
        if logger && NORMS.contains(&end.as_str()) {
            return Meaning::Norm(end);
        }
    }
    custom(&words, assigned).map_or(Meaning::Nothing, Meaning::Custom)
}

fn counter(key: &str) -> Option<Meaning> {
    let key = key.trim_start_matches("train/").replace('-', "_");
    let quality = STEPS.iter().position(|names| names.contains(&key.as_str()));
    match key.as_str() {
        _ if quality.is_some() => quality.map(|q| Meaning::Step(q as u8)),
        "epoch" | "ep" => Some(Meaning::Epoch),
        "rank" | "global_rank" => Some(Meaning::Rank),
        _ => None,
    }
}

/// `avg_train_loss` without what changes nothing.
fn qualified(key: &str) -> Option<tags::Tag> {
    if let Some(tag) = key.strip_prefix("current_").and_then(tags::canonical) {
        return Some(tag);
    }
    let mut parts: Vec<_> = key.split(['_', '/']).collect();
    let before = parts.len();
    parts.retain(|p| !QUALIFIERS.contains(p));
    (parts.len() < before).then(|| tags::canonical(&parts.join("_")))?
}

fn evaluation(set: &str, words: &[String], assigned: bool) -> Meaning {
    let rest: Vec<String> = words
        .iter()
        .map(|w| w.split(['_', '/', '.']).filter(|p| *p != set).collect::<Vec<_>>().join("_"))
        .filter(|w| !w.is_empty())
        .collect();
    let key = rest.join("_");
    let ours = tags::canonical(&key).or_else(|| qualified(&key));
    let Some((name, divisor)) = ours
        .map(|(name, divisor)| (name.to_owned(), divisor))
        .or_else(|| Some((custom(&rest, assigned)?, 1.0)))
    else {
        return Meaning::Nothing;
    };
    Meaning::Eval { set: set.to_owned(), name, divisor }
}

/// A name of its own: one word, or a few that a `:` or `=` puts together, or that end in `loss`.
fn custom(words: &[String], assigned: bool) -> Option<String> {
    let name = words.join("_");
    let file = [".py", ".cc", ".cpp", ".cu", ".rs", ".c", ".h"].iter().any(|e| name.ends_with(e));
    let fits = (1..=MAX_WORDS).contains(&words.len())
        && (words.len() == 1 || assigned || name.ends_with("_loss"))
        && name.len() <= MAX_NAME;
    let named = name.starts_with(|c: char| c.is_alphabetic());
    (fits && named && !file && !NOISE.contains(&name.as_str())).then_some(name)
}

/// Whether a metric shows that a line is of training: a download has steps of its own, and so has a
/// schedule of learning rates.
pub(crate) fn is_of_training(name: &str) -> bool {
    matches!(
        name,
        metric::LOSS
            | metric::GRAD_NORM
            | metric::MFU_REPORTED
            | metric::TOKENS_PER_SECOND
            | metric::TOKENS_PER_SECOND_PER_GPU
            | "perplexity"
            | "ppl"
    ) || (name.ends_with("loss") && !name.ends_with("packet_loss"))
        || own_loss(name).is_some()
}

/// The numbers of training that are none on a line: `loss None`, `grad_norm: null`. `own` knows the
/// name that stands for the loss.
pub(crate) fn nothings(text: &str, own: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut found = Vec::new();
    for word in crate::absent::WORDS.iter().filter(|w| crate::number::find(text, w).is_some()) {
        for (at, _) in text.match_indices(word) {
            let before = text[..at].trim_end_matches([' ', ':', '=', '\'', '"']);
            let ends = |c: char| c.is_ascii_digit() || ",|;:=()[]{}\'\"".contains(c);
            let name = before.rsplit(ends).next().unwrap_or(before).trim();
            match meaning(name, true) {
                Meaning::Metric(name @ (metric::LOSS | metric::GRAD_NORM), _) => found.push(name),
                Meaning::Norm(_) => found.push(metric::GRAD_NORM),
                Meaning::Custom(name) if own(&name) => found.push(metric::LOSS),
                _ => {}
            }
        }
    }
    found
}

/// Whether a line as a whole is of an evaluation, by its first words: `Validation | step 5 | loss
/// 2.5`, `[eval] …`, `Epoch(val) [1][60]` of MMCV, and `… - Validation Metrics (step 5) - …` of
/// fairseq2.
pub(crate) fn evaluates(text: &str) -> bool {
    let head = text.trim_start_matches(|c: char| !c.is_alphanumeric());
    let mut words = head.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty());
    let level = |w: &&str| ["INFO", "DEBUG", "I", "root", "main", "__main__"].contains(w);
    let is = |w: &str, list: &[&str]| list.iter().any(|e| e.eq_ignore_ascii_case(w));
    let mut heads = words.clone().take(MAX_HEAD).take_while(|w| !is(w, &["step", "loss", "epoch"]));
    let mut metrics =
        || heads.any(|w| is(w, EVALUATIONS)) && heads.next().is_some_and(|w| is(w, &["metrics"]));
    let counted = ["Epoch(val)", "Iter(val)"].iter().any(|by| crate::number::find(text, by).is_some());
    counted || metrics() || words.find(|w| !level(w)).is_some_and(|w| is(w, EVALUATIONS))
}

/// Whether a word has a known meaning: a counter, an evaluation, a metric.
pub(crate) fn has_meaning(word: &str) -> bool {
    let word = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let named = meaning(word, true);
    evaluates(word) || !matches!(named, Meaning::Custom(_) | Meaning::Unnamed | Meaning::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meanings() {
        for (name, want) in [
            ("step", Meaning::Step(2)),
            ("Global Step", Meaning::Step(3)),
            ("INFO train_step", Meaning::Step(3)),
            ("Iteration", Meaning::Step(1)),
            ("Epoch", Meaning::Epoch),
            ("Train Epoch", Meaning::Epoch),
            ("rank", Meaning::Rank),
            ("train loss", Meaning::Metric("loss", 1.0)),
            ("avg_train_loss", Meaning::Metric("loss", 1.0)),
            ("Running Loss", Meaning::Metric("loss", 1.0)),
            ("lm loss", Meaning::Metric("loss", 1.0)),
            ("INFO grad-norm", Meaning::Metric("grad_norm", 1.0)),
            ("Learning Rate", Meaning::Metric("lr", 1.0)),
            ("tokens/sec", Meaning::Metric("tokens_per_second", 1.0)),
            ("step time (ms)", Meaning::Metric("step_time", 1000.0)),
            ("mfu(%)", Meaning::Metric("mfu_reported", 100.0)),
            ("aux loss", Meaning::Custom("aux_loss".into())),
            ("norm", Meaning::Norm("norm".into())),
            ("INFO grad", Meaning::Norm("grad".into())),
            ("weight norm", Meaning::Custom("weight_norm".into())),
            ("perf/tokens_per_sec", Meaning::Metric("tokens_per_second", 1.0)),
            ("mytrainer step", Meaning::Step(2)),
            ("Train Steps", Meaning::Step(2)),
            ("total steps", Meaning::Custom("total_steps".into())),
            ("policy_loss", Meaning::Custom("policy_loss".into())),
            ("acc", Meaning::Custom("acc".into())),
            ("pid", Meaning::Nothing),
            ("train.py", Meaning::Nothing),
            ("best loss", Meaning::Nothing),
            ("some words of text", Meaning::Nothing),
            ("", Meaning::Unnamed),
        ] {
            assert_eq!(meaning(name, true), want, "{name}");
        }
        assert_eq!(meaning("took long", false), Meaning::Nothing);
        let eval = |set: &str, name: &str| Meaning::Eval { set: set.into(), name: name.into(), divisor: 1.0 };
        assert_eq!(meaning("val_loss", true), eval("val", "loss"));
        assert_eq!(meaning("Validation Loss", true), eval("validation", "loss"));
        assert_eq!(meaning("eval/acc", true), eval("eval", "acc"));
    }

    #[test]
    fn lines_of_evaluations() {
        for (text, want) in [
            ("Validation | step 5", true),
            ("[eval] step 5", true),
            ("INFO - Test: [10/50]", true),
            ("Epoch(val) [1][60]\tloss_cls: 0.96, loss: 1.93", true),
            ("mmdet - INFO - Epoch(val) [1][60]\tloss: 1.93", true),
            ("mmdet - INFO - Epoch(train) [1][60]\tloss: 1.93", false),
            ("Epoch(train) [1][60]\tloss: 1.93", false),
            ("step 5 val_loss 2", false),
            ("Training test_set step 5", false),
            ("[09/01/25] INFO fairseq2 - Validation Metrics (step 5) - NLL Loss: 2", true),
            ("fairseq2 - Train Metrics (step 5) - NLL Loss: 2", false),
            ("step 5 loss 2 | Validation Metrics: acc 1", false),
            ("", false),
        ] {
            assert_eq!(evaluates(text), want, "{text}");
        }
    }
}
