//! What the tests of all formats need of each: logs of its own, and how it writes a step. It stands
//! among the format's own tests, and the list of formats does not compile without it.

mod logs;
mod vanished;

pub(crate) trait Sampled {
    /// Logs that must be found to be of this format. What was not captured is composed from the
    /// trainer's own format strings.
    const LOGS: &'static [&'static str];
    /// The other formats that may read these logs, besides the last resort.
    const READ_BY: &'static [&'static str] = &[];
    /// Each way in which it writes a step with its loss.
    const WRITTEN: &'static [Written];
    /// If it writes its values by name: a step with a value of its own, `reward`, which `¤` stands
    /// for and which can be written as nothing.
    const OWN: &'static [Written] = &[];
}

/// The same as a part of the list of formats.
#[derive(Debug)]
pub(crate) struct Samples {
    logs: &'static [&'static str],
    read_by: &'static [&'static str],
    written: &'static [Written],
    own: &'static [Written],
}

impl Samples {
    pub(crate) const fn of<F: Sampled>() -> Self {
        Self { logs: F::LOGS, read_by: F::READ_BY, written: F::WRITTEN, own: F::OWN }
    }
}

/// How a format writes a step: `§` stands for the number of the step, `¤` for the loss. What is in
/// `⟨⟩` is left out with the loss.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) line: &'static str,
    /// Ends a record of several lines.
    pub(crate) end: Option<&'static str>,
    /// It writes a loss that is none as a word.
    pub(crate) word: Option<&'static str>,
    /// It writes a loss that is not a number like this.
    pub(crate) nan: &'static str,
    /// Nothing but the step is left, so that the next line must prove it.
    pub(crate) bare: bool,
    /// The line always has its loss, unless that is not a number.
    pub(crate) always: bool,
}

pub(crate) const PLAIN: Written =
    Written { line: "", end: None, word: Some("None"), nan: "nan", bare: false, always: false };
