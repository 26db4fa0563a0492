//! Named numbers of one step, as loggers of scalars keep them, made into events.
//!
//! TensorBoard, W&B and Lightning all write `(tag, step, value)`; what differs is only the file. A
//! tag is a metric of ours, a part of the step's time, a number of an evaluation, or a number with
//! the framework's own name, and is looked up once.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use crate::absent::Nothing;
use crate::axis::{Axis, Evidence};
use crate::format::Out;
use crate::own_loss::own_loss;
use crate::tags;
use crate::tokens::Tokens;

/// Tags that are known at once; numbers under further ones are not kept.
const MAX_TAGS: usize = 4096;
/// Those of them, beyond the room for tags, that are kept: metrics that every trainer has.
const MAX_USUAL_TAGS: usize = 256;
/// Bytes that all tags of a file may take, and of one that is read as a whole. Where there is room
/// for fewer, the reader says so ([`Scalars::give_up`]).
const MAX_BYTES: usize = 1 << 20;
const MAX_BYTES_OF_WHOLE: usize = 128 * 1024;
/// About what a tag takes beside the copies of its name.
const TAG_BYTES: usize = 160;
/// Bytes of a tag that is kept.
const MAX_TAG_BYTES: usize = 200;
/// What numbers under the framework's own names may take of an event's JSON.
const MAX_CUSTOM_BYTES: usize = 5 * 1024;
/// What a number takes of it beside its name, at most.
const NUMBER_BYTES: usize = 28;

/// Beginnings of tags that distinguish an evaluation from training, and what it is called.
const EVAL_PREFIXES: &[(&str, &str)] = &[
    ("validation_metrics/", "validation"),
    ("metrics/eval/", "eval"),
    ("eval/", "eval"),
    ("eval_", "eval"),
    ("val/", "val"),
    ("val_", "val"),
    ("valid/", "validation"),
    ("validation/", "validation"),
    ("validation_", "validation"),
    ("test/", "test"),
    ("test_", "test"),
];
/// Megatron puts it behind, and so do the tutorials of PyTorch.
const EVAL_SUFFIXES: &[(&str, &str)] = &[
    ("/val", "val"),
    ("/valid", "validation"),
    ("/validation", "validation"),
    ("/test", "test"),
    ("/eval", "eval"),
    (" validation", "validation"),
    (" validation ppl", "validation"),
    (" test", "test"),
    (" test ppl", "test"),
];
/// What an evaluation calls its loss, where training does not.
const EVAL_LOSSES: &[&str] = &["avg_loss", "loss_epoch", "languagecrossentropy"];

/// DeepSpeed's timers: tag and part of the step.
const TIMERS_MS: &[(&str, &str)] = &[
    ("elapsed_time_ms_forward", "forward"),
    ("elapsed_time_ms_backward", "backward"),
    ("elapsed_time_ms_step", "optim"),
];

/// Names that are plain words, and a metric of ours only beside Megatron's loss.
const MEGATRON: &[(&str, &str)] = &[("throughput", metric::TFLOPS_REPORTED), ("batch-size", metric::SAMPLES)];

/// Ends of tags that give the unit, our ends, and the divisor to base units.
const UNITS: &[(&str, &str, f64)] =
    &[("(%)", "_ratio", 100.0), ("(GiB)", "_bytes", 1.0 / 1_073_741_824.0), ("(s)", "_seconds", 1.0)];

/// The tags that Hugging Face ends with: seconds of the run, its speed, and a mean that is no
/// step's loss. Where it is no number, a loss was none. With `include_num_input_tokens_seen` every
/// step has the seconds too, so they end a run only beside one of the others.
const ENDS: &[&str] = &["train/train_runtime", "train_runtime"];
const SPEEDS: &[&str] = &["train/train_samples_per_second", "train_samples_per_second"];
const MEANS: &[&str] = &["train/train_loss", "train_loss"];

/// What a tag means.
#[derive(Debug, Clone, PartialEq)]
enum Class {
    Metric(&'static str, f64),
    Part(String, f64),
    /// The framework's own name, with its unit made a base unit.
    Custom(String, f64),
    Eval {
        set: &'static str,
        rest: String,
    },
    /// Hugging Face logs it at the end, with means over the whole run, and may log it at each step.
    End,
}

/// The tags of one file.
#[derive(Debug, Default)]
pub(crate) struct Scalars {
    ids: BTreeMap<Box<str>, Option<Id>>,
    tags: Vec<Tag>,
    /// Memory that the tags take.
    bytes: usize,
    /// There is no room for further ones.
    full: bool,
    /// The file is read as a whole.
    of_whole: bool,
    /// Numbers under tags for which there is no room that were not reported yet.
    lost: u64,
    pub(crate) axis: Axis,
    tokens: Tokens,
    /// A name that every trainer uses is among them.
    has_loss: bool,
    /// The tag that is taken for the loss where there is none.
    own_loss: Option<usize>,
}

#[derive(Debug)]
struct Tag {
    name: Box<str>,
    class: Class,
    last_step: i64,
}

/// What was logged at a step.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) step: i64,
    pub(crate) ts: Option<f64>,
    pub(crate) values: Vec<(Id, f64)>,
}

/// How the numbers are written in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Printed {
    /// As their bits: finer than any noise of training.
    Binary,
    /// As text, which may round them.
    AsText,
}

/// A tag that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id(usize);

impl Scalars {
    /// `None` for a tag that is not wanted: another axis of a number that is there anyway, or one
    /// too many.
    pub(crate) fn id(&mut self, tag: &str) -> Option<Id> {
        if let Some(id) = self.ids.get(tag) {
            return *id;
        }
        let wanted = !tags::other_axis(tag)
            && !tag.is_empty()
            && tag.len() <= MAX_TAG_BYTES
            && !tag.contains(char::is_control);
        let class = wanted.then(|| class(tag));
        let usual = match &class {
            Some(Class::Metric(..)) => true,
            Some(Class::Eval { rest, .. }) => rest == metric::LOSS,
            _ => false,
        };
        let max = if self.full { MAX_USUAL_TAGS } else { MAX_TAGS };
        if self.ids.len() >= max || self.full && !usual {
            self.lost += 1;
            return None;
        }
        let id = class.map(|class| {
            if matches!(class, Class::Metric(metric::LOSS, _)) {
                self.has_loss = true;
                self.leave_own_loss();
            }
            self.tags.push(Tag { name: tag.into(), class, last_step: i64::MIN });
            Id(self.tags.len() - 1)
        });
        if tag.len() <= MAX_TAG_BYTES {
            self.ids.insert(tag.into(), id);
            self.bytes += 3 * tag.len() + TAG_BYTES;
            self.full |= self.bytes > if self.of_whole { MAX_BYTES_OF_WHOLE } else { MAX_BYTES };
        }
        id
    }

    /// Those of a file that is read as a whole.
    pub(crate) fn of_whole() -> Self {
        Self { of_whole: true, ..Self::default() }
    }

    /// Memory that the tags take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the tags, because there is no room for them. From now on those are read that every
    /// trainer has. What was gathered by their [`Id`]s is void.
    pub(crate) fn give_up(&mut self) {
        self.ids = BTreeMap::new();
        self.tags = Vec::new();
        (self.bytes, self.full, self.has_loss, self.own_loss) = (0, true, false, None);
    }

    /// Takes note of the tags whose value is nothing, beside those that have one. A row of an
    /// evaluation has none of training.
    pub(crate) fn nulls<'t>(
        &mut self,
        tags: impl Iterator<Item = &'t str>,
        values: &[(Id, f64)],
        out: &mut Out<'_>,
    ) {
        let class = |tags: &[Tag], id: &Id| tags.get(id.0).map(|t| t.class.clone());
        if values.iter().any(|(id, _)| matches!(class(&self.tags, id), Some(Class::Eval { .. }))) {
            return;
        }
        for tag in tags {
            match self.id(tag).and_then(|id| class(&self.tags, &id)) {
                Some(Class::Metric(name, _)) => out.nothing(name, Nothing::Null),
                Some(Class::Custom(name, _)) => out.nothing(&name, Nothing::Null),
                _ => {}
            }
        }
    }

    /// Another run writes to the file: nothing of the one before says what it logs.
    pub(crate) fn begin_anew(&mut self) {
        self.axis.restart();
        self.tokens = Tokens::default();
        self.leave_own_loss();
        self.has_loss = false;
    }

    /// The tag that was taken for the loss has its own name again.
    fn leave_own_loss(&mut self) {
        if let Some(own) = self.own_loss.take().and_then(|own| self.tags.get_mut(own)) {
            own.class = Class::Custom(own.name.replace(' ', "_"), 1.0);
        }
    }

    /// Where no tag has a known name of the loss, the one that looks most like it is taken for it.
    fn find_loss(&mut self, values: &[(Id, f64)]) {
        let is_usual = |id: &Id| {
            let class = self.tags.get(id.0).map(|t| &t.class);
            self.own_loss != Some(id.0) && matches!(class, Some(Class::Metric(metric::LOSS, _)))
        };
        if values.iter().any(|(id, _)| is_usual(id)) {
            self.has_loss = true;
            self.leave_own_loss();
        }
        if self.has_loss || self.own_loss.is_some() {
            return;
        }
        let looks = |id: &Id| {
            let tag = self.tags.get(id.0).filter(|t| matches!(t.class, Class::Custom(..)))?;
            Some((own_loss(&tag.name)?, id.0))
        };
        self.own_loss = values.iter().filter_map(|(id, _)| looks(id)).max().map(|(_, at)| at);
        if let Some(tag) = self.own_loss.and_then(|at| self.tags.get_mut(at)) {
            tag.class = Class::Metric(metric::LOSS, 1.0);
        }
    }

    /// Whether there is a metric of training among them.
    pub(crate) fn any_main(&self, values: &[(Id, f64)]) -> bool {
        let class = |id: &Id| self.tags.get(id.0).map(|t| &t.class);
        values.iter().any(|(id, _)| matches!(class(id), Some(Class::Metric(name, _)) if is_main(name)))
    }

    /// Whether the numbers of the whole run are among them.
    fn ends(&self, values: &[(Id, f64)]) -> bool {
        let mut tags = values.iter().filter_map(|(id, _)| self.tags.get(id.0));
        let of_the_run = |t: &Tag| SPEEDS.contains(&&*t.name) || MEANS.contains(&&*t.name);
        tags.clone().any(|t| t.class == Class::End) && tags.any(of_the_run)
    }

    /// Publishes what was gathered. Returns how many numbers were not published, because their step
    /// is no training step or there are too many tags.
    pub(crate) fn give(&mut self, gathered: &Gathered, printed: Printed, out: &mut Out<'_>) -> u64 {
        let Gathered { step, ts, values } = gathered;
        let (step, ts) = (*step, *ts);
        self.find_loss(values);
        let mut e = Event { step: Some(step), ts, ..Event::new(Kind::Step) };
        let mut evals: Vec<(&str, &str, f64)> = Vec::new();
        let mut customs: Vec<(&str, f64)> = Vec::new();
        let mut evidence = Evidence { main: false, went_back: false };
        let mut counts = false;
        let ended = self.ends(values);
        let megatron =
            values.iter().any(|(id, _)| self.tags.get(id.0).is_some_and(|t| &*t.name == "lm loss"));
        for (id, value) in values {
            let Some(tag) = self.tags.get(id.0) else { continue };
            match &tag.class {
                Class::Eval { set, rest } => evals.push((set, rest, *value)),
                Class::Part(name, divisor) => drop(e.t.set(name, value / divisor)),
                Class::End => customs.push((&tag.name, *value)),
                Class::Metric(..) if ended && value.is_finite() && MEANS.contains(&&*tag.name) => {
                    customs.push((&tag.name, *value))
                }
                Class::Metric(name, divisor) if e.m.get(name).is_none() => {
                    evidence.main |= is_main(name);
                    counts |= *name == metric::TOKENS && tags::may_count_all(&tag.name);
                    evidence.went_back |= tag.last_step > step;
                    e.m.set(name, value / divisor);
                    if printed == Printed::AsText {
                        out.resolution(name, value / divisor);
                    }
                }
                // Where two tags mean the same, the first counts.
                Class::Metric(..) => customs.push((&tag.name, *value)),
                Class::Custom(name, divisor) => match MEGATRON.iter().find(|(n, _)| megatron && n == name) {
                    Some((_, ours)) => drop(e.m.set(ours, *value)),
                    None => customs.push((name, value / divisor)),
                },
            }
        }
        add_customs(&customs, &mut e);
        if counts {
            self.tokens.settle(&mut e);
        }
        // What every record carries means nothing beside an evaluation.
        if e.m.len() == 1 && !evals.is_empty() {
            e.m.remove(metric::EPOCH);
        }
        let numbers = (e.m.len() + e.t.len()) as u64 + u64::from(e.dropped);
        evaluations(step, ts, &evals, out);
        for (id, _) in values {
            if let Some(tag) = self.tags.get_mut(id.0) {
                tag.last_step = step;
            }
        }
        let mut lost = core::mem::take(&mut self.lost);
        if numbers > 0 && step >= 0 && self.axis.admits(step, evidence) {
            out.push(e);
        } else {
            lost += numbers;
        }
        if ended {
            out.push(Event { step: Some(step), ts, code: Some(0), ..Event::new(Kind::Bye) });
        }
        lost
    }
}

/// What every trainer logs, and at its own steps.
fn is_main(name: &str) -> bool {
    matches!(name, metric::LOSS | metric::GRAD_NORM | metric::LR)
}

/// Adds numbers under the framework's own names, as many as an event holds.
fn add_customs(customs: &[(&str, f64)], e: &mut Event) {
    let mut room = MAX_CUSTOM_BYTES;
    for (name, value) in customs {
        let cost = name.len() + name.bytes().filter(|b| matches!(b, b'"' | b'\\')).count() + NUMBER_BYTES;
        let fits = cost <= room && e.m.set(name, *value);
        if fits {
            room -= cost;
        } else {
            e.dropped += 1;
        }
    }
}

/// One event for each set that was evaluated. A set of its own is known by its loss, and takes what
/// begins with its name.
fn evaluations(step: i64, ts: Option<f64>, values: &[(&str, &str, f64)], out: &mut Out<'_>) {
    let own: Vec<&str> = values.iter().filter_map(|(_, rest, _)| set_of_its_own(rest)).collect();
    let mut events: BTreeMap<&str, Event> = BTreeMap::new();
    for (set, rest, value) in values {
        let of_own = own.iter().find_map(|own| {
            let name = rest.strip_prefix(own)?.strip_prefix(['/', '_'])?;
            Some((*own, name))
        });
        let (set, name) = of_own.unwrap_or((set, rest));
        let name = if is_loss(name) { metric::LOSS } else { name };
        let e = events.entry(set).or_insert_with(|| Event {
            step: Some(step),
            ts,
            name: Some(set.to_owned()),
            ..Event::new(Kind::Eval)
        });
        if name == metric::LOSS {
            e.m.set(name, *value);
        } else {
            add_customs(&[(name, *value)], e);
        }
    }
    for e in events.into_values() {
        out.push(e);
    }
}

/// `c4` of `c4_loss` and of `c4/CE loss`.
fn set_of_its_own(rest: &str) -> Option<&str> {
    let by_path = rest.rsplit_once('/').filter(|(_, name)| is_loss(name)).map(|(set, _)| set);
    by_path.or_else(|| rest.strip_suffix("_loss").filter(|_| !is_loss(rest))).filter(|set| !set.is_empty())
}

fn is_loss(name: &str) -> bool {
    EVAL_LOSSES.iter().any(|l| l.eq_ignore_ascii_case(name))
        || tags::canonical(name).is_some_and(|(ours, _)| ours == metric::LOSS)
}

/// Whether a name is that of a metric of training or the loss of an evaluation.
pub(crate) fn is_of_training(tag: &str) -> bool {
    match class(tag) {
        Class::Metric(name, _) => name != metric::EPOCH,
        Class::Eval { rest, .. } => is_loss(&rest),
        Class::Custom(..) => own_loss(tag).is_some(),
        Class::Part(..) | Class::End => false,
    }
}

fn class(tag: &str) -> Class {
    if let Some(class) = evaluation(tag) {
        return class;
    }
    if ENDS.contains(&tag) {
        return Class::End;
    }
    if let Some((_, part)) = TIMERS_MS.iter().find(|(t, _)| *t == tag) {
        return Class::Part((*part).to_owned(), 1000.0);
    }
    if let Some(part) = tags::part(tag) {
        return Class::Part(part.to_owned(), 1.0);
    }
    if let Some((name, divisor)) = tags::canonical(tag) {
        return Class::Metric(name, divisor);
    }
    let unit = UNITS.iter().find_map(|(unit, ours, divisor)| Some((tag.strip_suffix(unit)?, ours, divisor)));
    match unit {
        Some((name, ours, divisor)) => {
            Class::Custom(format!("{}{ours}", name.trim_end()).replace(' ', "_"), *divisor)
        }
        None => Class::Custom(tag.replace(' ', "_"), 1.0),
    }
}

fn evaluation(tag: &str) -> Option<Class> {
    let before = EVAL_SUFFIXES.iter().find_map(|(suffix, set)| {
        let name = tag.strip_suffix(suffix)?;
        let perplexity = suffix.ends_with(" ppl");
        Some((*set, if perplexity { format!("{name}_ppl").replace(' ', "_") } else { name.to_owned() }))
    });
    let behind = || {
        EVAL_PREFIXES.iter().find_map(|(prefix, set)| {
            let start = tag.get(..prefix.len())?;
            start.eq_ignore_ascii_case(prefix).then(|| (*set, tag[prefix.len()..].to_owned()))
        })
    };
    before.or_else(behind).filter(|(_, rest)| !rest.is_empty()).map(|(set, rest)| Class::Eval { set, rest })
}
