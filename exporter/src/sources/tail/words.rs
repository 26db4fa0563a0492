//! Reads the last lines of a log whose writer has exited: whether they show a crash, and the error.
//!
//! Only lines after the last step count, so that an old warning is not taken for the end. What is
//! not a known failure counts as none, because frameworks log much while they shut down.

use stepwatch_formats::{LogReader, plain, written_by_models};

/// The most lines read from the end.
const MAX_LINES: usize = 400;
/// The most characters of the last words.
const MAX_CHARS: usize = 240;

/// How the writer ended, as far as its log shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LastWords {
    /// The exit code, as shells count: 1 for a crash, 130 and 143 for a stopped run.
    pub(super) code: i64,
    pub(super) text: String,
}

/// Words that occur only in the last line of a failed process, each with its exit code.
const FATAL: &[(&str, i64)] = &[
    ("CANCELLED AT", 143),
    ("DUE TO TIME LIMIT", 143),
    ("CUDA error", 1),
    ("CUDA out of memory", 1),
    ("HIP error", 1),
    ("ncclSystemError", 1),
    ("ncclInternalError", 1),
    ("ncclUnhandledCudaError", 1),
    ("ncclRemoteError", 1),
    ("NCCL error", 1),
    ("Watchdog caught collective operation timeout", 1),
    ("ChildFailedError", 1),
    ("Segmentation fault", 1),
    ("segfault", 1),
    ("Bus error", 1),
    ("core dumped", 1),
    ("Fatal Python error", 1),
    ("terminate called", 1),
    ("Out Of Memory", 1),
    ("oom-kill", 1),
    ("oom_kill", 1),
    ("Signal 9 (SIGKILL)", 1),
    ("exitcode: -", 1),
    ("srun: error:", 1),
    ("slurmstepd: error:", 1),
    ("panicked at", 1),
];

/// `None` if the lines do not show a failure.
pub(super) fn last_words(lines: &[String]) -> Option<LastWords> {
    let plain: Vec<String> = lines.iter().map(|l| plain(l)).filter(|l| !l.is_empty()).collect();
    let lines: Vec<&str> = plain.iter().map(String::as_str).collect();
    let written = written_by_models(&lines);
    let after = after_last_step(&lines);
    let own = lines.iter().zip(written).skip(after).filter(|(_, written)| !written);
    let said: Vec<&str> = own.map(|(line, _)| *line).collect();
    let lines = &said[said.len().saturating_sub(MAX_LINES)..];
    stopped(lines).or_else(|| raised(lines)).or_else(|| fatal(lines)).or_else(|| killed(lines))
}

/// A person or a scheduler stopped the run; all later errors follow from that.
fn stopped(lines: &[&str]) -> Option<LastWords> {
    let by_hand = |line: &&&str| FATAL.iter().any(|(word, code)| *code == 143 && line.contains(word));
    let line = lines.iter().find(by_hand)?;
    Some(LastWords { code: 143, text: clip(line) })
}

/// The first exception that ended a process. Later ones are of ranks that missed the first, and of
/// the launcher.
fn raised(lines: &[&str]) -> Option<LastWords> {
    let begin = lines.iter().position(|l| l.contains("Traceback (most recent call last)"))?;
    let line = lines[begin + 1..].iter().find(|l| is_exception(l))?;
    let code = if line.starts_with("KeyboardInterrupt") { 130 } else { 1 };
    Some(LastWords { code, text: clip(line) })
}

fn fatal(lines: &[&str]) -> Option<LastWords> {
    let line = lines.iter().find(|l| FATAL.iter().any(|(word, _)| l.contains(word)))?;
    Some(LastWords { code: 1, text: clip(line) })
}

/// A shell's message about the command that it waited for, or a line that is only an error.
fn killed(lines: &[&str]) -> Option<LastWords> {
    let last = &lines[lines.len().saturating_sub(8)..];
    let word = |line: &str, word: &str| line.split_whitespace().any(|w| w == word);
    let line = last.iter().find(|l| word(l, "Killed") || word(l, "Terminated") || is_exception(l))?;
    let code = if word(line, "Terminated") { 143 } else { 1 };
    Some(LastWords { code, text: clip(line) })
}

/// Whether a line is the dotted name of an error class with its message, such as
/// `torch.OutOfMemoryError: CUDA out of memory. …`.
fn is_exception(line: &str) -> bool {
    let name = line.split_once(':').map_or(line, |(name, _)| name);
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let class = name.rsplit('.').next().unwrap_or(name);
    let is_class = class.starts_with(|c: char| c.is_ascii_uppercase());
    let error = ["Error", "Exception", "Interrupt", "Exit", "Timeout", "Failure"];
    is_class && name.chars().all(word) && error.iter().any(|e| class.ends_with(e)) && !is_success(line)
}

/// Whether a program ended by itself without a failure: `SystemExit: 0`, or nothing behind it. A
/// source line of a traceback, `sys.exit(1)`, says nothing of the code.
fn is_success(line: &str) -> bool {
    let code = line.strip_prefix("SystemExit").map(|rest| rest.trim_start_matches(':').trim());
    matches!(code, Some("" | "0" | "None" | "False"))
}

/// The index of the line after the last one with a step.
fn after_last_step(lines: &[&str]) -> usize {
    let Ok(mut reader) = LogReader::new(None) else { return 0 };
    let (mut after, mut events) = (0, Vec::new());
    for (i, line) in lines.iter().enumerate() {
        reader.line(line, &mut events);
        if events.drain(..).any(|e| e.step.is_some()) {
            after = i + 1;
        }
    }
    after
}

fn clip(line: &str) -> String {
    redact(line).chars().take(MAX_CHARS).collect()
}

/// Removes possible secrets, because last words are sent to chats and pagers.
fn redact(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for (i, word) in line.split(' ').enumerate() {
        if i > 0 {
            out.push(' ');
        }
        match word.split_once('=') {
            Some((key, value)) if is_secret_name(key) && !value.is_empty() => {
                out.push_str(key);
                out.push_str("=…");
            }
            _ => match (word.find("://"), word.find('@')) {
                (Some(scheme), Some(at)) if scheme < at => {
                    out.push_str(&word[..scheme + 3]);
                    out.push('…');
                    out.push_str(&word[at..]);
                }
                _ if is_secret(word) => out.push('…'),
                _ => out.push_str(word),
            },
        }
    }
    out
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["token", "secret", "password", "passwd", "api_key", "apikey", "access_key"]
        .iter()
        .any(|s| name.ends_with(s))
}

/// Whether a word is a secret: a token with a known prefix, or W&B's key of forty hexadecimal
/// digits.
fn is_secret(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let known = ["hf_", "sk-", "ghp_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA"];
    (bare.len() >= 16 && known.iter().any(|k| bare.starts_with(k)))
        || (bare.len() == 40 && bare.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(text: &str) -> Option<(i64, String)> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        last_words(&lines).map(|w| (w.code, w.text))
    }

    const STEP: &str = " iteration 7/ 100 | elapsed time per iteration (ms): 10.0 | lm loss: 2.5E+00 |\n";

    #[test]
    fn a_traceback_says_what_was_raised_first() {
        let text = format!(
            "{STEP}[rank3]: Traceback (most recent call last):\n[rank3]:   File \"train.py\", line 7, in step\n\
             [rank3]:     loss = Error.of(x)\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n\
             Traceback (most recent call last):\n  File \"x\", line 1\n\
             torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        );
        let words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB";
        assert_eq!(words_of(&text), Some((1, words.to_owned())));
    }

    #[test]
    fn what_a_model_wrote_is_no_crash() {
        let sample = "<think>\nIt says\nRuntimeError: CUDA out of memory\nand ends.\n</think>\n";
        assert_eq!(words_of(&format!("{STEP}{sample}done\n")), None);
        assert_eq!(words_of(&format!("{STEP}{sample}Killed\n")), Some((1, "Killed".to_owned())));
    }

    #[test]
    fn what_shells_schedulers_and_libraries_say() {
        for (line, code) in [
            ("Killed", 1),
            ("run.sh: line 3:  4711 Killed                  python train.py", 1),
            ("[1]    4711 segmentation fault (core dumped)  python train.py", 1),
            ("KeyboardInterrupt", 1),
            ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:2006, unhandled system error", 1),
            ("n1:52:99 [0] transport/net_ib.cc:94 NCCL WARN ncclSystemError: System call failed", 1),
            (
                "[rank7]:[E1121 06:00:00.1 ProcessGroupNCCL.cpp:629] [Rank 7] Watchdog caught collective operation timeout: WorkNCCL",
                1,
            ),
            ("slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-11-21T06:00:00 ***", 143),
            (
                "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-11-21T06:00:00 DUE TO TIME LIMIT ***",
                143,
            ),
            ("slurmstepd: error: Detected 1 oom_kill event in StepId=17.0", 1),
            ("Terminated", 143),
            ("SystemExit: 1", 1),
        ] {
            assert_eq!(words_of(&format!("{STEP}{line}\n")).map(|w| w.0), Some(code), "{line}");
        }
        let interrupted =
            "Traceback (most recent call last):\n  File \"train.py\", line 3\nKeyboardInterrupt\n";
        assert_eq!(words_of(&format!("{STEP}{interrupted}")), Some((130, "KeyboardInterrupt".into())));
    }

    #[test]
    fn an_ordinary_end_is_no_crash() {
        for text in [
            "",
            STEP,
            "saving checkpoint\ndone\n",
            "[rank0]:[W ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called before exit\n",
            "wandb: Run summary: Error 0.3\n",
            "    sys.exit(1)\n",
            "Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    sys.exit(1 if lost else 0)\nSystemExit: 0\n",
            "SystemExit\n",
        ] {
            assert_eq!(words_of(&format!("{STEP}{text}")), None, "{text}");
        }
        let recovered = format!(
            "RuntimeError: lost a node\nTraceback (most recent call last):\nValueError: x\n{STEP}bye\n"
        );
        assert_eq!(words_of(&recovered), None, "it trained on after that");
    }

    #[test]
    fn secrets_are_left_out() {
        let line = "HTTPError: https://me:hunter2@host/x HF_TOKEN=hf_abc (hf_abcdefghijklmnopq) \
                    key 0123456789abcdef0123456789abcdef01234567 step 12";
        assert_eq!(redact(line), "HTTPError: https://…@host/x HF_TOKEN=… … key … step 12");
    }

    proptest::proptest! {
        #[test]
        fn any_log_is_read(lines: Vec<String>) {
            let words = last_words(&lines);
            proptest::prop_assert!(words.is_none_or(|w| w.text.chars().count() <= MAX_CHARS));
        }
    }
}
