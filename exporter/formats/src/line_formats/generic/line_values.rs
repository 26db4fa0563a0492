//! What a line contains, before it is known which step it is of.

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

use super::fields::{Field, Unit};
use crate::format::{Line, Out};
use crate::number;
use crate::word_meaning::{self, Meaning};

/// The largest step that there may be.
pub(super) const MAX_STEP: i64 = 1 << 53;
/// A ratio above this was printed in percent.
const MAX_RATIO: f64 = 1.5;

/// Name, value and quantum.
pub(super) type Numbers = Vec<(String, f64, Option<f64>)>;

/// What a line contains, before it is known which step it is of.
#[derive(Debug, Default)]
pub(super) struct LineValues {
    /// How good the best name of a step is, and the step.
    pub(super) step: Option<(u8, i64, Option<i64>)>,
    /// It is rounded to thousands or more.
    pub(super) rounded: bool,
    pub(super) epoch: Option<f64>,
    pub(super) rank: Option<u32>,
    /// It is a drawing of a bar.
    pub(super) bar: bool,
    pub(super) train: Numbers,
    pub(super) eval: Numbers,
    pub(super) eval_name: Option<String>,
    /// The name of its tokens says that they are those of the step.
    pub(super) has_tokens_of_step: bool,
    /// Its rate is called `wps`.
    pub(super) has_words: bool,
    /// The size of the batch was printed in thousands or more.
    pub(super) scaled_batch: bool,
    /// What may be the norm of the gradients: its name on the line, value and quantum.
    pub(super) norm: Option<(String, f64, Option<f64>)>,
    /// Each value stands before its name.
    pub(super) values_first: bool,
    /// Names that have a word for nothing before them.
    pub(super) nothings: Vec<&'static str>,
}

impl LineValues {
    /// The epoch before a fraction that is the step: `Train: 0 [ 50/1251` of timm, `Epoch(train)
    /// [2][10/100]` of MMEngine.
    pub(super) fn epoch_before(&mut self, fields: &[Field<'_>], text: &str) {
        let Some(f) = fields.last().filter(|f| f.of.is_none() && f.unit == Unit::None) else { return };
        let timm = f.name == "Train" && f.assigned;
        let mmengine = f.name.is_empty() && f.leads && text.contains("Epoch(train)");
        if self.epoch.is_none() && (timm || mmengine) {
            self.epoch = Some(f.number.value).filter(|v| v.is_finite());
            self.train.retain(|(name, ..)| !timm || name != "train");
        }
    }

    /// Whether the line lacks what every line like it has, and has the rest: two numbers or more,
    /// as a schedule of its own has one.
    fn lacks(&self, line: &Line<'_>, out: &Out<'_>) -> bool {
        self.train.len() >= 2 && out.misses(&self.event(line))
    }

    /// The same, of a line that is a step only if it does.
    pub(super) fn has_lost(&self, line: &Line<'_>, out: &mut Out<'_>) -> bool {
        self.train.len() >= 2 && out.has_lost(&self.event(line))
    }

    /// What is read of a step, to be judged.
    pub(super) fn event(&self, line: &Line<'_>) -> Event {
        let mut e = line.step(0);
        for (name, value, _) in &self.train {
            e.m.set(name, *value);
        }
        if let Some(epoch) = self.epoch {
            e.m.set(metric::EPOCH, epoch);
        }
        e
    }

    /// Whether a number of training is none on the line.
    pub(super) fn is_lost(&self, line: &Line<'_>, out: &Out<'_>) -> bool {
        let watched = |name: &str| matches!(name, metric::LOSS | metric::GRAD_NORM);
        self.train.iter().any(|(name, value, _)| watched(name) && !value.is_finite()) || self.lacks(line, out)
    }

    pub(super) fn read<'a, 'f: 'a>(&mut self, fields: impl Iterator<Item = &'a Field<'f>>) {
        for f in fields {
            match word_meaning::meaning(f.name, f.assigned) {
                Meaning::Step(quality) => {
                    let better = self.step.is_none_or(|(before, ..)| quality > before);
                    if let Some((step, rounded)) = step_of(f, quality).filter(|_| better) {
                        (self.step, self.rounded) = (Some((quality, step, f.of)), rounded);
                    }
                }
                Meaning::Epoch => {
                    let by = if let Unit::Scale(by) = f.unit { by } else { 1.0 };
                    self.epoch = self.epoch.or(Some(f.number.value * by).filter(|v| v.is_finite()));
                }
                Meaning::Rank => {
                    self.rank = number::whole(f.number.value).and_then(|n| u32::try_from(n).ok())
                }
                Meaning::Metric(name, divisor) => self.number(false, name.to_owned(), divisor, f),
                Meaning::Norm(name) => {
                    if f.of.is_none() && scaled(metric::GRAD_NORM, 1.0, f).is_some() && self.norm.is_none() {
                        self.norm = Some((name, f.number.value, f.number.quantum));
                    }
                }
                // Seconds under this name are mostly those since the start.
                Meaning::Custom(name)
                    if name == "time" && matches!(f.unit, Unit::Time(1e3) | Unit::StepTime(_)) =>
                {
                    self.number(false, metric::STEP_TIME.to_owned(), 1.0, f);
                }
                Meaning::Custom(name)
                    if name == "throughput" && matches!(f.unit, Unit::TokensPerSecond(_)) =>
                {
                    self.number(false, metric::TOKENS_PER_SECOND.to_owned(), 1.0, f);
                }
                Meaning::Custom(name) => self.number(false, name, 1.0, f),
                Meaning::Eval { set, name, divisor } => {
                    self.eval_name.get_or_insert(set);
                    self.number(true, name, divisor, f);
                }
                Meaning::Unnamed => {
                    let name = match f.unit {
                        Unit::Time(1e3) | Unit::StepTime(_) => metric::STEP_TIME,
                        Unit::TokensPerSecond(_) => metric::TOKENS_PER_SECOND,
                        Unit::Mfu => metric::MFU_REPORTED,
                        _ => continue,
                    };
                    self.number(false, name.to_owned(), 1.0, f);
                }
                Meaning::Nothing => {}
            }
        }
    }

    fn number(&mut self, eval: bool, name: String, divisor: f64, f: &Field<'_>) {
        let Some(divisor) = scaled(&name, divisor, f) else { return };
        let numbers = if eval { &mut self.eval } else { &mut self.train };
        self.has_tokens_of_step |= name == metric::TOKENS && f.name.to_ascii_lowercase().contains("per");
        self.has_words |= f.name.eq_ignore_ascii_case("wps");
        self.scaled_batch |= name == metric::SAMPLES && matches!(f.unit, Unit::Scale(_));
        // Where two names mean the same, the first counts.
        if f.of.is_none() && numbers.iter().all(|(n, ..)| *n != name) {
            numbers.push((name, f.number.value / divisor, f.number.quantum.map(|q| q / divisor)));
        }
    }
}

/// The step that a counter gives, and whether it is rounded. Of a batch, thousands are its size.
fn step_of(f: &Field<'_>, quality: u8) -> Option<(i64, bool)> {
    match f.unit {
        Unit::None => number::whole(f.number.value).map(|step| (step, false)),
        Unit::Scale(by) if quality > 0 => {
            number::whole((f.number.value * by).round()).map(|step| (step, true))
        }
        _ => None,
    }
}

/// What a number must be divided by, for its unit and that of its name; `None` if it cannot be a
/// number of that name.
fn scaled(name: &str, divisor: f64, f: &Field<'_>) -> Option<f64> {
    let unitless = matches!(name, metric::LOSS | metric::GRAD_NORM | metric::LR);
    Some(match f.unit {
        Unit::None if name == metric::MFU_REPORTED && divisor == 1.0 && f.number.value.abs() > MAX_RATIO => {
            100.0
        }
        Unit::None => divisor,
        Unit::Scale(by) => divisor / by,
        Unit::Percent | Unit::Mfu if name == metric::MFU_REPORTED => 100.0,
        _ if unitless => return None,
        Unit::Time(by) | Unit::StepTime(by) => by,
        Unit::TokensPerSecond(by) | Unit::Teras(by) => 1.0 / by,
        Unit::Percent | Unit::Mfu | Unit::Other => divisor,
    })
}
