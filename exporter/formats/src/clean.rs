//! What launchers, container runtimes and terminals put round a line, taken off.
//!
//! The order in which prefixes are stacked depends on who started whom, so they are taken off in
//! any order until none is left. Nothing here reads a metric.

mod logger;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use stepwatch_wire::Value;

use crate::number::split_once;
use crate::time::{self, Stamp};

pub(crate) use logger::{behind_error, behind_logger, behind_module};

/// Bytes of a line that a container runtime cut into pieces, put together again at most.
pub const MAX_JOINED_BYTES: usize = 256 * 1024;
/// What is kept of an unfinished line that is given up for want of room: its beginning may be
/// enough to read it.
pub const KEPT_BYTES: usize = 2048;
/// Prefixes on one line: more is not a launcher but a log of numbers.
const MAX_PREFIXES: usize = 6;
/// Docker cuts lines at 16 KiB, and a piece has no line ending; a shorter record without one is a
/// whole line of an odd shipper.
const DOCKER_PIECE: usize = 16_000;
/// What `step10: ` counts is no host.
const COUNTERS: &[&str] = &["step", "iter", "iteration", "it", "epoch"];

/// A line without its prefixes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cleaned<'a> {
    pub(crate) text: &'a str,
    /// The stamp nearest to the text: the trainer's own where there are several.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) origin: Origin,
}

/// Which process wrote a line, as far as the launcher marks it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Of all processes of the job: `srun --label`, `mpirun --tag-output`, PyTorch's own
    /// `[rank3]:`.
    pub(crate) rank: Option<u32>,
    /// The node, if it is given, and the process on it: torchrun's `[default3]:`.
    pub(crate) process: Option<(u32, u32)>,
}

impl Origin {
    const NOBODY: Self = Self { rank: None, process: None };

    fn rank(rank: u32) -> Self {
        Self { rank: Some(rank), process: None }
    }

    /// Puts an inner prefix together with the outer ones. Where srun started one torchrun a node,
    /// its number is the node's.
    pub(crate) fn within(self, outer: Self) -> Self {
        match (self.process, outer.rank) {
            (Some((_, process)), Some(node)) => Self { rank: None, process: Some((node, process)) },
            _ if self == Self::NOBODY => outer,
            _ => self,
        }
    }
}

/// The drawings of a progress bar, each as a line of its own.
pub(crate) fn segments(line: &str) -> impl Iterator<Item = &str> {
    line.split(['\r', '\n']).filter(|s| !s.trim().is_empty())
}

/// Takes off prefixes of every kind.
pub(crate) fn strip(text: &str) -> Cleaned<'_> {
    let mut c = Cleaned { text: text.trim(), stamp: None, origin: Origin::default() };
    for _ in 0..MAX_PREFIXES {
        if let Some((stamp, rest, _)) = container(c.text) {
            (c.stamp, c.text) = (Some(stamp), rest.trim());
        } else if let Some((stamp, rest)) = stamped(c.text) {
            (c.stamp, c.text) = (Some(stamp), rest.trim());
        } else if let Some((origin, rest)) = launcher(c.text) {
            (c.origin, c.text) = (origin.within(c.origin), rest.trim());
        } else {
            break;
        }
    }
    c
}

/// Kubernetes CRI: `2026-05-29T03:52:45.118201123Z stdout F text`. True where a `P` marks a piece
/// of a line whose rest comes next.
pub(crate) fn container(text: &str) -> Option<(Stamp, &str, bool)> {
    let (stamp @ Stamp::Exact(_), rest) = time::lead(text)? else { return None };
    let rest = rest.strip_prefix(" stdout ").or_else(|| rest.strip_prefix(" stderr "))?;
    let partial = rest.starts_with('P');
    let rest = rest.strip_prefix(['P', 'F'])?;
    // A space and then the text as it is: where a line was cut, its blanks matter.
    Some((stamp, if rest.is_empty() { rest } else { rest.strip_prefix(' ')? }, partial))
}

/// A stamp in brackets, or bare with a separator behind it.
fn stamped(text: &str) -> Option<(Stamp, &str)> {
    if let Some(inner) = text.strip_prefix('[') {
        let (stamp, rest) = time::lead(inner)?;
        return Some((stamp, rest.trim_start().strip_prefix(']')?));
    }
    let (stamp, rest) = time::lead(text)?;
    let rest = rest.strip_prefix([' ', '\t', ':', '|'])?;
    Some((stamp, rest.trim_start_matches([' ', '-', '|', ':'])))
}

fn launcher(text: &str) -> Option<(Origin, &str)> {
    match text.as_bytes().first()? {
        b'[' => role(text).or_else(|| tagged(text)).or_else(|| pod(text)),
        b'(' => ray(text),
        _ => label(text),
    }
}

/// torchrun: `[default7]:`, `[<role><n>]:`, where the number counts the processes of the node.
/// PyTorch itself writes `[rank7]:` before its warnings and tracebacks and means the rank in the
/// job.
fn role(text: &str) -> Option<(Origin, &str)> {
    let (name, rest) = split_once(text.strip_prefix('[')?, "]:")?;
    let word = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = small(&name[word.len()..])?;
    let fits = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    let process = Origin { rank: None, process: Some((0, number)) };
    fits.then_some((if word == "rank" { Origin::rank(number) } else { process }, rest))
}

/// `mpirun --tag-output`: `[1,3]<stdout>:`, since Open MPI 5 `[prterun-host-1@1,3]<stdout>: `; the
/// second number is the rank.
fn tagged(text: &str) -> Option<(Origin, &str)> {
    let (who, rest) = split_once(text.strip_prefix('[')?, "]<")?;
    let rest = rest.strip_prefix("stdout>:").or_else(|| rest.strip_prefix("stderr>:"))?;
    Some((Origin::rank(small(who.rsplit_once(',')?.1)?), rest))
}

/// `kubectl logs --prefix`: `[pod/trainer-0/main] `.
fn pod(text: &str) -> Option<(Origin, &str)> {
    let (_, rest) = split_once(text.strip_prefix("[pod/")?, "] ")?;
    Some((Origin::NOBODY, rest))
}

/// `srun --label` (`3: `), and launchers that prefix the host (`worker-0: `, `node017: `).
fn label(text: &str) -> Option<(Origin, &str)> {
    let (name, rest) = split_once(text, ": ")?;
    if let Some(rank) = small(name) {
        return (!is_step_of(rest)).then(|| (Origin::rank(rank), rest));
    }
    if let Some(logged) = python_logger(text) {
        return Some(logged);
    }
    let host = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().any(|b| b.is_ascii_alphabetic())
        && name.ends_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    let word = name.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
    let counter = COUNTERS.iter().any(|c| c.eq_ignore_ascii_case(word));
    (host && name.len() <= 64 && !counter).then_some((Origin::NOBODY, rest))
}

/// Whether the number before a text is a step and no rank: `12: Loss 10.94 | LR 8.4e-07`, where
/// nothing else gives a step. If the loss is left out, the norm of the gradients or the learning
/// rate may come first.
fn is_step_of(rest: &str) -> bool {
    // `Train loss/train/total: 7.9` is a line of Composer's record, which has its step elsewhere.
    let starts = |word: &str| {
        let (head, behind) = rest.trim_start().split_at_checked(word.len()).unwrap_or_default();
        head.eq_ignore_ascii_case(word) && !behind.starts_with('/')
    };
    let counts =
        |word: &&str| rest.as_bytes().windows(word.len()).any(|w| w.eq_ignore_ascii_case(word.as_bytes()));
    let losses = ["loss", "train loss", "train_loss", "training loss"];
    let others =
        ["grad norm", "grad_norm", "grad-norm", "gnorm", "lr ", "lr:", "learning rate", "learning_rate"];
    losses.iter().chain(&others).any(|w| starts(w)) && !["step", "iter", "epoch", "batch"].iter().any(counts)
}

/// levanter, behind the time: `0 - levanter.json_logger - json_logger.py:82 - INFO :: text`. The
/// number is that of the process.
fn python_logger(text: &str) -> Option<(Origin, &str)> {
    let (head, rest) = split_once(text, " :: ")?;
    let mut parts = head.split(" - ");
    let process = small(parts.next()?)?;
    let (_, place, level) = (parts.next()?, parts.next()?, parts.next()?);
    let levels = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
    let fits = place.contains(".py:") && levels.contains(&level) && parts.next().is_none();
    fits.then_some((Origin::rank(process), rest))
}

/// Ray: `(TaskRunner pid=123, ip=10.0.0.1) `.
fn ray(text: &str) -> Option<(Origin, &str)> {
    let (who, rest) = split_once(text.strip_prefix('(')?, ") ")?;
    who.contains(" pid=").then_some((Origin::NOBODY, rest))
}

/// A number of at most six digits and nothing else: there is no job with more ranks.
fn small(digits: &str) -> Option<u32> {
    let fits = (1..=6).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    fits.then(|| digits.parse().ok())?
}

/// What Docker's json-file driver wrote: `{"log":"text\n","stream":"stdout","time":"2026-…Z"}`.
#[derive(Debug)]
pub(crate) struct Docker {
    pub(crate) text: String,
    pub(crate) stamp: Option<Stamp>,
    /// Docker cut the line here; the rest comes next.
    pub(crate) partial: bool,
}

pub(crate) fn docker(segment: &str) -> Option<Docker> {
    let trimmed = segment.trim();
    if !trimmed.starts_with("{\"log\":") {
        return None;
    }
    let v = Value::parse(trimmed.as_bytes()).ok()?;
    let log = v.get("log")?.as_str()?;
    let stamp = v.get("time").and_then(Value::as_str).and_then(time::lead).map(|(s, _)| s);
    let partial = !log.ends_with('\n') && log.len() >= DOCKER_PIECE;
    Some(Docker { text: strip_ansi(log).into_owned(), stamp, partial })
}

/// Takes out ANSI escape sequences: colours, cursor movements, titles.
pub(crate) fn strip_ansi(text: &str) -> Cow<'_, str> {
    if memchr::memchr(0x1b, text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
            continue;
        }
        match chars.next() {
            // CSI: ends at the first byte in @..~
            Some('[') => while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
            // OSC: ends at BEL or at ESC \
            Some(']') => while chars.next().is_some_and(|c| c != '\u{7}' && c != '\\') {},
            _ => {}
        }
    }
    Cow::Owned(out)
}
