//! What loggers put before a message: Python's `logging` in its usual layouts, loguru, Hydra, vLLM.
//!
//! Grammars of frameworks read the prefixes of their own loggers, and some are recognised by them;
//! so this is taken off only of a line that no format read as it is. There must be a level (`INFO`)
//! or a rank: a name alone is no logger.

use super::{Cleaned, MAX_PREFIXES, Origin, role, small, stamped, tagged};
use crate::time;
use crate::word_meaning::has_meaning;

const LEVELS: &[&str] =
    &["TRACE", "DEBUG", "INFO", "SUCCESS", "NOTICE", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"];
/// And of those, the ones of errors.
const ERRORS: &[&str] = &["ERROR", "CRITICAL", "FATAL"];
/// Characters between the parts.
const SEPARATORS: [char; 6] = [' ', '\t', '-', '|', ':', '>'];
/// Names that people give to the logger of a trainer.
const NAMES: &[&str] = &["root", "main", "train", "trainer", "training", "logger", "console", "log"];
/// Longer parts are of a message.
const MAX_PART: usize = 80;

/// The message behind what a logger put before it; `None` where no logger did.
pub(crate) fn behind_logger(text: &str) -> Option<Cleaned<'_>> {
    let mut c = Cleaned { text, stamp: None, origin: Origin::default() };
    let mut level = false;
    let mut ranked = false;
    for _ in 0..MAX_PREFIXES {
        let text = c.text;
        let rest = if let Some(rest) = a_level(text).filter(|_| !level) {
            level = true;
            rest
        } else if let Some((origin, rest)) = a_rank(text) {
            (c.origin, ranked) = (origin.within(c.origin), true);
            rest
        } else if let Some((stamp, rest)) = stamped(text) {
            c.stamp = Some(stamp);
            rest
        } else if let Some(rest) = a_place(text, level) {
            rest
        } else {
            break;
        };
        c.text = rest.trim_start_matches(SEPARATORS);
    }
    ((level || ranked) && !c.text.is_empty()).then_some(c)
}

/// The name of a module that a logger put behind the level, and the message: `text_trainer |
/// Loss is nan`. For a line of which [`behind_logger`] took off the level.
pub(crate) fn behind_module(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')))?;
    let (name, rest) = text.split_at(end);
    let message =
        ["|", "- ", ": "].iter().find_map(|parted| rest.trim_start_matches(' ').strip_prefix(parted));
    let is_module = name.contains('_') || name.contains('.') && name.starts_with(|c: char| c.is_lowercase());
    (is_module && is_name(name)).then_some((name, message?.trim_start()))
}

/// What a logger said at a level of errors, without what it put before it.
pub(crate) fn behind_error(text: &str) -> Option<&str> {
    let message = behind_logger(text)?.text;
    let prefix = text.strip_suffix(message)?;
    let mut words = prefix.split(|c: char| !c.is_alphabetic());
    let severe = words.any(|word| ERRORS.iter().any(|level| level.eq_ignore_ascii_case(word)));
    severe.then(|| behind_module(message).map_or(message, |(_, message)| message))
}

/// `INFO`, `[INFO]`, `[info     ]`, `[INFO|trainer.py:4307]`, `INFO:root`, and `[2026-05-29
/// 03:52:45 INFO]`.
fn a_level(text: &str) -> Option<&str> {
    let Some(inner) = text.strip_prefix('[') else {
        let len = text.find(|c: char| !c.is_ascii_uppercase())?;
        let rest = &text[len..];
        let ends = rest.starts_with([' ', '\t', ':', '|']) && LEVELS.contains(&&text[..len]);
        return ends.then(|| behind_name(rest));
    };
    let (inner, rest) = inner.split_once(']').filter(|(inner, _)| inner.len() <= MAX_PART)?;
    let inner = time::lead(inner).map_or(inner, |(_, behind)| behind);
    let level = inner.split('|').next().unwrap_or(inner).trim();
    LEVELS.iter().any(|l| l.eq_ignore_ascii_case(level)).then_some(rest)
}

/// What follows `:root:`, the name that `logging` writes behind the level by default.
fn behind_name(rest: &str) -> &str {
    let named = || {
        let (name, message) = rest.strip_prefix(':')?.split_once(':')?;
        is_name(name).then_some(message)
    };
    named().unwrap_or(rest)
}

/// `[rank0]: `, `[Rank 0] `, `[rank:0] `, `[1,3]<stdout>: `.
fn a_rank(text: &str) -> Option<(Origin, &str)> {
    if let Some(found) = role(text).or_else(|| tagged(text)) {
        return Some(found);
    }
    let (inner, rest) = text.strip_prefix('[')?.split_once(']')?;
    let word = inner.get(..4).filter(|w| w.eq_ignore_ascii_case("rank"))?;
    let number = small(inner[word.len()..].trim_start_matches([' ', ':', '=']))?;
    // `[Rank 1] (after 1 iterations)` heads a report of Megatron.
    let is_prefix = rest.starts_with([' ', ':', '[']) && !rest.trim_start().starts_with('(');
    is_prefix.then_some((Origin::rank(number), rest))
}

/// The logger's name, or the place in the code: `[__main__]`, `__main__:train:41 - `, `train.py:41]
/// `. Before the level it may be any name, behind it one that looks like a logger's.
fn a_place(text: &str, level: bool) -> Option<&str> {
    if let Some((name, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        return is_name(name).then_some(rest);
    }
    let end = text.find(|c: char| c.is_whitespace() || c == ']')?;
    let (name, rest) = text.split_at(end);
    if name.contains(".py:") && is_name(name.trim_end_matches(':')) {
        return Some(rest.strip_prefix(']').unwrap_or(rest));
    }
    let apart = rest.trim_start();
    let parted = ["- ", "| ", ":: "].iter().any(|s| apart.starts_with(s)) || level && name.ends_with(':');
    let name = name.trim_end_matches(':');
    let looks = name.contains(['.', ':']) || name.contains("__") || NAMES.contains(&name);
    (parted && is_name(name) && (looks || !level)).then_some(rest)
}

/// Whether a logger may be called so. What is called after an evaluation or a counter is a part of
/// the message, and so is an exception.
fn is_name(name: &str) -> bool {
    let fits = name.len() <= MAX_PART
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '<' | '/'))
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-/<>".contains(&b));
    let raised = ["Error", "Exception"].iter().any(|kind| name.trim_end_matches(':').ends_with(kind));
    fits && !raised && !name.split([':', '.']).any(has_meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Option<&str> {
        behind_logger(super::super::strip(text).text).map(|c| c.text)
    }

    #[test]
    fn every_usual_layout() {
        for prefix in [
            "2025-01-01 10:00:03,123 - INFO - ",
            "2025-01-01 10:00:03,123 - root - INFO - ",
            "2025-01-01 10:00:03,123 - my.trainer - INFO - ",
            "2025-01-01 10:00:03,123 - INFO - __main__ - ",
            "2025-01-01 10:00:03,123 - train.py:41 - INFO - ",
            "2025-01-01 10:00:03 INFO ",
            "2025-01-01 10:00:03,123 INFO root: ",
            "2025-01-01 10:00:03 [INFO] ",
            "2025-01-01 10:00:03 [INFO] [train.py:41] ",
            "2025-01-01 10:00:03.123 | INFO     | __main__:train:41 - ",
            "2025-01-01 10:00:03.123 | SUCCESS  | __main__:<module>:7 - ",
            "[2025-01-01 10:00:03,123][INFO] - ",
            "[2025-01-01 10:00:03,123][__main__][INFO] - ",
            "[2025-01-01 10:00:03,123] [INFO] [logging.py:60:log_dist] [Rank 0] ",
            "[2025-01-01 10:00:03 INFO] ",
            "[INFO|trainer.py:4307] 2025-01-01 10:00:03,123 >> ",
            "[INFO] 2025-01-01 10:00:03,123 - ",
            "2025-01-01T10:00:03Z [info     ] ",
            "INFO:root:",
            "INFO:__main__:",
            "INFO:my.trainer:",
            "INFO: ",
            "INFO ",
            "INFO 2025-01-01 10:00:03 train.py:232 ",
            "INFO 2025-01-01 10:00:03 [train.py:232] ",
            "[rank0]: INFO:root:",
            "[rank0] INFO:root:",
            "[rank0]: 2025-01-01 10:00:03,123 - root - INFO - ",
            "2025-01-01 10:00:03,123 - INFO - [rank0] ",
            "0: INFO:root:",
            "[default0]:2025-01-01 10:00:03 INFO ",
            "[Rank 0] ",
            "[rank:0] ",
            "[rank 3] 2025-01-01 10:00:03 - ",
        ] {
            let line = format!("{prefix}3: Loss 10.94 | LR 8.4e-07");
            assert_eq!(message(&line), Some("3: Loss 10.94 | LR 8.4e-07"), "{line}");
        }
    }

    #[test]
    fn what_is_said_at_a_level_of_errors() {
        for prefix in [
            "2026-01-01 10:00:00 | ERROR | sample_trainer | ",
            "2026-01-01 10:00:00.123 | ERROR    | __main__:main:12 - ",
            "2026-01-01 10:00:00,123 - my.trainer - CRITICAL - ",
            "[2026-01-01 10:00:00,123][text_trainer][ERROR] - ",
            "2026-01-01 10:00:00 ERROR nan_check: ",
            "ERROR:root:",
        ] {
            for said in [
                "RuntimeError: CUDA error",
                "Traceback (most recent call last):",
                "torch.cuda.OutOfMemoryError: x",
            ] {
                let line = format!("{prefix}{said}");
                assert_eq!(behind_error(super::super::strip(&line).text), Some(said), "{line}");
            }
        }
        for text in ["2026-01-01 10:00:00 | INFO | x_y | RuntimeError: x", "RuntimeError: x", "ERROR", ""] {
            assert_eq!(behind_error(super::super::strip(text).text), None, "{text}");
        }
    }

    #[test]
    fn what_no_logger_wrote_stays() {
        for text in [
            "3: Loss 10.94",
            "step - 5",
            "loss - 2.5",
            "[12/100] loss 2.5",
            "[train] step 5 loss 2.5",
            "[Rank 1] (after 1 iterations) memory (MB)",
            "INFORMATION about step 5",
            "INFO",
            "",
        ] {
            assert_eq!(message(text), None, "{text}");
        }
        assert_eq!(message("INFO:eval:3: Loss 2.5"), Some("eval:3: Loss 2.5"), "it says what the loss is of");
        assert_eq!(message("INFO | valid | 3: Loss 2.5"), Some("valid | 3: Loss 2.5"));
        assert_eq!(message("INFO - loss - 2.5"), Some("loss - 2.5"));
        assert_eq!(message("[INFO] [epoch1] 3: Loss 2.5"), Some("[epoch1] 3: Loss 2.5"));
        assert_eq!(message("INFO:step:5"), Some("step:5"));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(s in "\\PC{0,60}", t in "[\\[\\]|: a-zA-Z0-9.-]{0,60}") {
            let _ = (behind_logger(&s), behind_logger(&t));
            let _ = (behind_logger(&format!("INFO:{s}")), behind_logger(&format!("[INFO|{s}")));
            let _ = (behind_logger(&format!("INFO - {t}")), behind_logger(&format!("[rank{t}")));
        }
    }
}
