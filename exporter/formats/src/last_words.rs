//! Lines that report a value that is not finite, in place of the step that would have shown it: one
//! table for every framework.
//!
//! Many trainers check the loss before they log it, and stop: torchtitan by an assertion on the
//! device, Megatron in its backward pass, MaxText and the recipes of vision by an exit. The log
//! then ends with a finite loss and a sentence, some only with a progress bar. Such a line becomes
//! a step of its own: the one it names, or the one after the last.
//!
//! A sentence that could be in any text counts only behind a step of training, and not where it is
//! about what may be, or about a batch that was skipped: the run goes on with the next one. Nor
//! does it count where a model may have written it, which `speaker.rs` decides for all of them.

mod passage;
mod raised;
mod record;
mod speaker;
#[cfg(test)]
mod tests;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use crate::format::Line;
use crate::line_formats::generic;
use crate::own_loss::own_loss;
use crate::{number, tags, tqdm};
pub use passage::written_by_models;
use speaker::{Speaker, Speech, mentions_exception};

/// What every sentence has in it, if not `inf`.
const MARKS: &[&str] =
    &["nan", "NaN", "Nan", "NAN", "finit", "nvalid loss", "inimum", "too small", "a number"];

/// What is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Loss,
    /// Or its scale, which shows it: the step has no loss that counts.
    Gradient,
    /// The loss of an evaluation.
    Evaluation,
}

/// A sentence in lower case.
struct Words {
    text: &'static str,
    /// `None`: the name in it decides.
    what: Option<What>,
    /// No other program prints it: it counts without a step before it.
    certain: bool,
    /// It may be a remark: it counts where the line says that the run ends.
    remark: bool,
}

const fn loss(text: &'static str) -> Words {
    Words { text, what: Some(What::Loss), certain: false, remark: false }
}

const fn gradient(text: &'static str) -> Words {
    Words { text, what: Some(What::Gradient), certain: false, remark: false }
}

const fn monitored(text: &'static str) -> Words {
    Words { text, what: None, certain: false, remark: false }
}

const fn certain(words: Words) -> Words {
    Words { certain: true, ..words }
}

const fn remark(words: Words) -> Words {
    Words { remark: true, ..words }
}

/// The program that prints it is named before each; `upstream.toml` has repository, file, commit
/// and text.
const TABLE: &[Words] = &[
    // torchtitan, trainer.py: an assertion on the device, and the exception that follows from it on
    // a CPU.
    certain(loss("loss or gradient norm is not finite on at least one rank at step")),
    // MaxText, metric_logger.py.
    loss("aborting training due to nan loss"),
    loss("aborting training due to inf loss"),
    // Megatron-LM, param_and_grad_buffer.py and pretrain_gpt.py, by way of rerun_state_machine.py;
    // its FSDP.
    gradient("found nan in local grad norm"),
    gradient("found inf in local grad norm"),
    loss("found nan in local forward loss"),
    loss("found inf in local forward loss"),
    // Megatron-Bridge, dgpt_step.py, by the same way.
    loss("message='found nan in*loss'"),
    loss("message='found inf in*loss'"),
    gradient("detected nan or inf in wgrad"),
    // Megatron-LM, nemo_transformer_encoder.py, of what a layer of audio gives.
    loss("nan/inf detected at '*'. stopping training"),
    // DeepSpeed, loss_scaler.py; fairseq, dynamic_loss_scaler.py.
    certain(gradient("current loss scale already at minimum - cannot decrease scale anymore")),
    gradient("minimum loss scale reached"),
    // fairseq, trainer.py; nanotron, sanity_checks.py.
    gradient("floatingpointerror: gradients are nan/inf"),
    // fairseq2, trainer.py, and what it raised before; icefall, err.py.
    certain(gradient("loss scale is already at minimum")),
    gradient("gradients are scaled down to minimum"),
    gradient("grad_scale is too small, exiting"),
    gradient("valueerror: gradient is nan or inf for"),
    // NeMo, megatron_parallel.py.
    loss("got nan loss with non-empty input"),
    // OLMo-core, trainer.py: `nan loss encountered at step 12`; Keras, terminate_on_nan.py.
    loss("nan loss encountered"),
    loss("inf loss encountered"),
    // levanter, trainer.py; MAE, engine_pretrain.py, and what was made of it; many more.
    loss("loss is nan"),
    loss("loss is inf"),
    loss("loss is -inf"),
    // Composer, nan_monitor.py.
    loss("train loss*contains a nan"),
    // detectron2, train_loop.py; MMDetection, checkloss_hook.py.
    loss("loss became infinite or nan"),
    loss("loss become infinite or nan"),
    // PaddleNLP and PaddleFormers, trainer.py.
    loss("loss contains inf or nan values"),
    // Keras, terminate_on_nan.py; MindSpore, _loss_monitor.py.
    certain(loss("invalid loss, terminating training")),
    // TensorFlow, basic_session_run_hooks.py.
    loss("model diverged with loss = nan"),
    loss("nan loss during training"),
    // Lightning: its detection of anomalies; until 2023 its look at the parameters; its early
    // stopping.
    loss("the loss returned in `training_step` is nan"),
    loss("the loss returned in `training_step` is inf"),
    loss("the loss returned in `training_step` is -inf"),
    gradient("detected nan and/or inf values in"),
    monitored("monitored metric*is not finite"),
    // PyTorch, clip_grad.py; engine.cpp, the detection of anomalies of autograd.
    gradient("for gradients from `parameters` is non-finite"),
    gradient("returned nan values in its"),
    // And Distributions.cpp: a model that is to be trained on what it generates, and gives no
    // number.
    loss("probability tensor contains either"),
    // JAX with jax_debug_nans or jax_debug_infs, api.py; api_util.py and pjit.py, of a function as
    // a whole.
    loss("floatingpointerror: invalid value (nan) encountered in"),
    loss("floatingpointerror: invalid value (inf) encountered in"),
    loss("floatingpointerror: (*'nan')"),
    loss("floatingpointerror: (*'inf')"),
    loss("invalid nan value encountered in the output of a"),
    gradient("invalid nan value encountered in the backward pass of a"),
    // Exceptions of loops that people write. As a warning it means that an update was skipped,
    // which is no end.
    gradient("valueerror: gradient norm is not finite"),
    gradient("runtimeerror: gradient norm is not finite"),
    gradient("valueerror: non-finite gradient norm"),
    gradient("runtimeerror: non-finite gradient norm"),
    // Loops that people write; YOLOv3 until 2020, NeMo's speech models, Keras.
    loss("loss is not finite"),
    loss("loss is non-finite"),
    loss("non-finite loss"),
    loss("nan loss detected"),
    loss("nan detected in loss"),
    loss("loss became nan"),
    loss("loss went nan"),
    loss("loss diverged to nan"),
    loss("nan or inf loss"),
    loss("nan/inf loss"),
    loss("non finite loss"),
    loss("losses are nan"),
    loss("loss has become nan"),
    loss("loss exploded to nan"),
    loss("training diverged: loss=nan"),
    loss("loss value is nan"),
    loss("invalid loss detected: nan"),
    loss("encountered nan loss"),
    loss("nan encountered in loss"),
    // SlowFast, misc.py, and what was made of it; Coqui TTS, losses.py.
    loss("got nan losses"),
    loss("[!] nan loss with"),
    // And what they say in passing, too.
    remark(loss("nan loss")),
    remark(loss("inf loss")),
    remark(loss("nan in loss")),
    remark(loss("nan in the loss")),
    remark(loss("loss=nan")),
    remark(loss("loss = nan")),
    remark(loss("loss: nan")),
    remark(loss("loss nan")),
    remark(loss("loss=inf")),
    remark(loss("loss is tensor(nan")),
    remark(loss("loss is tensor(inf")),
    remark(loss("loss is tensor(-inf")),
    remark(loss("loss: tensor(nan")),
    remark(loss("loss = tensor(nan")),
    remark(loss("loss=tensor(nan")),
    remark(loss("loss: inf")),
    remark(gradient("gradient norm is nan")),
    remark(gradient("gradient norm is inf")),
    remark(gradient("grad norm is nan")),
    remark(gradient("grad norm is inf")),
    remark(gradient("grad_norm is nan")),
    remark(gradient("gradients are nan")),
    remark(gradient("nan in gradients")),
    remark(gradient("nan in the gradients")),
    remark(gradient("nan in grad norm")),
    remark(gradient("nan gradients")),
    remark(gradient("nan gradient norm")),
    remark(gradient("nan grad norm")),
];

/// DINOv2, train.py, and what was made of it: a line of its own, and then an exception without
/// words. Loops that print the same go on with the next batch.
const BEFORE_EXCEPTION: &str = "nan detected";
/// Lines in which the exception must follow.
const SOON: u8 = 16;

/// Words of what may be, and of what is done about it in general.
const MAYBE: &[&str] = &[
    "if", "when", "whenever", "may", "might", "could", "would", "should", "unless", "avoid", "prevent",
    "check", "checks", "checking", "whether", "no", "until", "never", "without",
];
/// Words before a remark of what is done about it.
const ABOUT: &[&str] = &["on", "for", "against", "about", "handle", "handling", "allow", "max"];
/// Words that may follow a remark before the sentence ends.
const CLOSING: &[&str] = &["at", "in", "on", "after", "during", "detected", "found", "encountered"];
/// Words between a remark and the step that it is of.
const AT: &[&str] = &["at ", "in ", "on ", "during ", "the ", "global ", "training ", "train "];
/// And of those, the ones that may follow.
const CONDITIONS: &[&str] = &["if", "when", "whenever", "unless"];
/// Words of a batch that the run goes on without.
const SKIPS: &[&str] = &["skip", "skips", "skipped", "skipping", "ignore", "ignores", "ignored", "ignoring"];
/// And of those, the ones that mean it even of an exception: it was caught.
const SKIPPING: &[&str] = &["skipping", "ignoring"];
/// Words of a run that stops, whatever it skipped before.
const STOPS: &[&str] = &["stopping", "aborting", "exiting", "ending", "terminating", "halting"];
/// What the name of a metric of an evaluation has in it.
const EVALUATIONS: &[&str] = &["val", "valid", "validation", "eval", "evaluation", "test", "dev"];
/// Words before the step that a sentence names.
const STEPS: &[&str] = &["step", "iteration", "iter", "update"];
/// Longer lines are none of these.
const MAX_LINE: usize = 4096;

/// What was reported of the steps of a log so far.
#[derive(Debug, Default)]
pub(crate) struct LastWords {
    last_step: Option<i64>,
    /// When it was, if the log says so.
    last_time: Option<f64>,
    /// The last step was reported to be lost: further lines add nothing.
    lost: bool,
    /// The step whose evaluation was reported to be lost.
    evaluation: Option<i64>,
    /// In so many lines an exception would mean that the loss is none.
    soon: u8,
    speaker: Speaker,
}

impl LastWords {
    /// Notes the events that formats read from a line.
    pub(crate) fn seen(&mut self, events: &[Event]) {
        for e in events.iter().filter(|e| e.kind == Kind::Step) {
            // A step of that number may be another run's.
            self.evaluation = self.evaluation.filter(|_| e.step == self.last_step);
            (self.last_step, self.soon) = (e.step.or(self.last_step), 0);
            self.last_time = e.ts;
            self.speaker.trains();
            let of = |name: &str| {
                e.m.get(name).is_some_and(|v| !v.is_finite()) || e.missing.iter().any(|m| m == name)
            };
            // Beside the loss there are parts of a step in events of their own.
            if e.m.get(metric::LOSS).is_some() || !e.missing.is_empty() {
                self.lost = of(metric::LOSS);
            }
        }
    }

    /// The step that is lost by this line, which no format read.
    pub(crate) fn read(&mut self, line: &Line<'_>) -> Option<Event> {
        let speech = self.speaker.hears(line.text);
        if self.lost || line.text.len() > MAX_LINE || is_row(line.text) {
            return None;
        }
        let said = words(&speech, self.last_step.is_some()).or_else(|| bar(&speech));
        let (what, named) = said.or_else(|| self.exception(&speech))?;
        // Tracebacks have no time. In a log that has, it was soon after the last step, whenever the
        // file is read or was copied.
        let line = &Line { ts: line.ts.or(self.last_time), ..*line };
        if what == What::Evaluation {
            return self.evaluation(line);
        }
        let next = self.last_step.map(|last| last.saturating_add(1));
        let step = named.filter(|n| next.is_none_or(|next| *n >= next)).or(next).unwrap_or(0);
        let mut e = line.step(step);
        match what {
            What::Gradient => {
                e.m.set(metric::GRAD_NORM, f64::NAN);
                e.missing.push(metric::LOSS.to_owned());
            }
            What::Loss | What::Evaluation => drop(e.m.set(metric::LOSS, f64::NAN)),
        }
        (self.last_step, self.lost) = (Some(step), true);
        Some(e)
    }

    /// The loss, if a line before was about NaN and this one is an exception.
    fn exception(&mut self, speech: &Speech<'_>) -> Option<(What, Option<i64>)> {
        self.soon = self.soon.saturating_sub(1);
        let text = speech.text;
        let about = self.last_step.is_some() && says_only(text, BEFORE_EXCEPTION);
        if about && speech.is_trainers(text.len().saturating_sub(1)) {
            self.soon = SOON;
        }
        let raised = || text.starts_with("Traceback (most recent call last)") || is_exception(text);
        (self.soon > 0 && raised()).then_some((What::Loss, None))
    }

    /// The evaluation behind the last step, which each rank may report.
    fn evaluation(&mut self, line: &Line<'_>) -> Option<Event> {
        if self.evaluation == self.last_step {
            return None;
        }
        self.evaluation = self.last_step;
        let mut e = line.eval(self.last_step, "val");
        e.m.set(metric::LOSS, f64::NAN);
        Some(e)
    }
}

/// A sentence of the table or an exception, and the step that it names.
fn words(speech: &Speech<'_>, training: bool) -> Option<(What, Option<i64>)> {
    let text = speech.text;
    // Nearly every line ends here.
    if !MARKS.iter().any(|m| number::find(text, m).is_some()) && !says_inf(text) {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let counts = |w: &&Words| training || w.certain;
    let said = |w: &'static Words| Some((w, found(&lower, w.text)?));
    let ends = |(w, found): &(&Words, Found<'_>)| {
        speech.is_trainers(found.before.len()) && (!w.remark || found.says_end(&lower))
    };
    let Some((words, found)) = TABLE.iter().filter(counts).filter_map(said).find(ends) else {
        let raised = training.then(|| raised::lost(speech, &lower)).flatten()?;
        return Some((raised, named(&lower)));
    };
    if !words.certain && (found.may_be(speech.message) || found.is_skipped(&lower)) {
        return None;
    }
    let what = words.what.or_else(|| named_metric(found.name))?;
    let evaluates = what == What::Loss && found.last_word().is_some_and(|w| EVALUATIONS.contains(&w));
    Some((if evaluates { What::Evaluation } else { what }, named(&lower)))
}

/// Whether a text has the word `inf`, and not only `INFO`.
fn says_inf(text: &str) -> bool {
    let ends = |end: usize| !text[end..].starts_with(|c: char| c.is_ascii_alphabetic());
    ["inf", "Inf", "INF"].iter().any(|w| text.match_indices(w).any(|(at, _)| ends(at + w.len())))
}

/// Whether a line is a row of a table, as TRL prints what a model has generated.
fn is_row(text: &str) -> bool {
    text.starts_with(|c: char| c == '|' || ('\u{2500}'..='\u{257f}').contains(&c))
}

/// Whether a line says so, and nothing else behind what a logger put before it.
fn says_only(text: &str, words: &str) -> bool {
    let text = text.trim_end_matches(['.', '!']);
    let at = text.len().checked_sub(words.len());
    let (before, end) = at.and_then(|at| text.split_at_checked(at)).unwrap_or_default();
    let before = before.trim_end();
    let behind_logger = before.is_empty() || before.ends_with([']', ':', '-', '|', '>']);
    end.eq_ignore_ascii_case(words) && behind_logger
}

/// Whether a line begins with an exception: `AssertionError`, `torch.AcceleratorError: …`.
fn is_exception(text: &str) -> bool {
    let name = text.split([':', ' ']).next().unwrap_or("");
    let named =
        |kind: &str| name.strip_suffix(kind).is_some_and(|n| n.ends_with(|c: char| c.is_alphabetic()));
    named("Error") || named("Exception")
}

/// A sentence in a text.
struct Found<'a> {
    before: &'a str,
    /// The name in place of its `*`.
    name: &'a str,
    behind: &'a str,
}

impl Found<'_> {
    /// The message begins at `from`: the file of a logger may be called `checks.py`.
    fn may_be(&self, from: usize) -> bool {
        let behind = self.behind.split(['.', ',', ';', '!']).next().unwrap_or("");
        has(self.before.get(from..).unwrap_or(""), MAYBE) || has(behind, CONDITIONS)
    }

    /// The word before it.
    fn last_word(&self) -> Option<&str> {
        self.before.rsplit(|c: char| !c.is_alphanumeric()).find(|w| !w.is_empty())
    }

    /// Whether the line says that the run ends with it: by a word for that, as an exception, or by
    /// the step at which it happened.
    fn says_end(&self, lower: &str) -> bool {
        let behind = self.behind.trim_start();
        let word = behind.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
        let closes =
            !behind.starts_with(['_', '/', '-', '=']) && (word.is_empty() || CLOSING.contains(&word));
        let about = self.last_word().is_some_and(|w| ABOUT.contains(&w));
        closes && !about && (has(lower, STOPS) || mentions_exception(self.before) || is_at_step(behind))
    }

    /// Whether a batch was left out and the run goes on.
    fn is_skipped(&self, lower: &str) -> bool {
        let sentence = lower.get(self.before.len()..).unwrap_or("");
        let first = sentence.split_inclusive(' ').next().unwrap_or("");
        let words =
            if mentions_exception(self.before) || mentions_exception(first) { SKIPPING } else { SKIPS };
        has(lower, words) && !has(lower, STOPS)
    }
}

/// Whether one of some words is in a text.
fn has(text: &str, list: &[&str]) -> bool {
    text.split(|c: char| !c.is_alphanumeric()).any(|w| list.contains(&w))
}

/// Where a sentence is in a text, if it ends with a word there. A `*` stands for a name.
fn found<'a>(lower: &'a str, words: &str) -> Option<Found<'a>> {
    let (words, then) = words.split_once('*').unwrap_or((words, ""));
    let (before, rest) = number::split_once(lower, words)?;
    let goes_on = |c: char| c.is_alphanumeric() || c == '_';
    if before.ends_with(|c: char| goes_on(c) || c == '.') {
        return None;
    }
    if !then.is_empty() {
        let (name, behind) = number::split_once(rest, then)?;
        return Some(Found { before, name, behind });
    }
    // `loss is inf` is also the beginning of `loss is infinite`.
    let behind = rest.trim_start_matches("inite").trim_start_matches("inity");
    (!behind.starts_with(goes_on)).then_some(Found { before, name: "", behind })
}

/// What is lost if a metric is, by its name: ` train_loss_epoch = nan `.
fn named_metric(said: &str) -> Option<What> {
    let name = said.split('=').next()?.trim();
    // Lightning keeps a metric of each step and of the epoch.
    let name = name.strip_suffix("_step").or_else(|| name.strip_suffix("_epoch")).unwrap_or(name);
    match tags::canonical(name) {
        Some((metric::LOSS, _)) => Some(What::Loss),
        Some((metric::GRAD_NORM, _)) => Some(What::Gradient),
        Some(_) => None,
        None if own_loss(name).is_some() => Some(What::Loss),
        None => {
            let has = |list: &[&str]| name.split(['/', '_', '-', '.', ' ']).any(|w| list.contains(&w));
            (has(EVALUATIONS) && has(&["loss"])).then_some(What::Evaluation)
        }
    }
}

/// `at step 12`, `iteration=12`, `iteration #12`.
fn named(lower: &str) -> Option<i64> {
    STEPS.iter().find_map(|word| {
        let at = number::find(lower, word)?;
        let rest = lower[at + word.len()..].trim_start_matches([' ', '=', ':', '#', '(', '[']);
        number::integer(rest).map(|(n, _)| n).filter(|n| *n >= 0)
    })
}

/// Whether a text begins with the step at which something happened.
fn is_at_step(behind: &str) -> bool {
    let mut rest = behind;
    while let Some(shorter) = AT.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = shorter.trim_start();
    }
    let counted = |word: &str| rest.strip_prefix(word).is_some_and(|r| r.starts_with([' ', '=', ':', '#']));
    rest.len() < behind.len() && STEPS.iter().any(|word| counted(word)) && named(rest).is_some()
}

/// Whether one of the columns before a bar is no number, as Ultralytics prints its losses:
/// `1/100  2.31G  nan  nan  nan  16  640:`.
fn has_lost_column(description: &str) -> bool {
    let mut columns = description.split_whitespace().map(|column| column.trim_end_matches(':'));
    let is_epoch = |column: &str| column.split_once('/').is_some_and(|(n, of)| is_count(n) && is_count(of));
    let is_number = |column: &str| column.starts_with(|c: char| c.is_ascii_digit()) || is_lost(column);
    columns.next().is_some_and(is_epoch)
        && columns.clone().all(is_number)
        && columns.filter(|column| is_lost(column)).count() > 0
}

fn is_count(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_lost(column: &str) -> bool {
    ["nan", "inf", "-inf"].contains(&column)
}

/// A bar of training whose loss is not finite, which no format reads beside the lines of its own.
fn bar(speech: &Speech<'_>) -> Option<(What, Option<i64>)> {
    let bar = tqdm::bar(speech.text).or_else(|| tqdm::endless(speech.text))?;
    // Its first value stands behind the bar, as the end of the line does.
    let at = number::find(speech.text, bar.postfix).unwrap_or(0);
    let lost = (generic::loss_is_lost(&bar) || has_lost_column(bar.description))
        && speech.is_bar_of_trainer(at, bar.description);
    lost.then_some((What::Loss, Some(bar.n)))
}
