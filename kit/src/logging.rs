//! Logs to standard error: text on a terminal, otherwise one JSON object per line. The filter can
//! be changed at run time (`/-/log-level`).

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

const DEFAULT_FILTER: &str = "info";

/// Reads and replaces the log filter of the process.
#[derive(Debug, Clone)]
pub struct LogControl {
    handle: reload::Handle<EnvFilter, Registry>,
    current: Arc<Mutex<String>>,
    // Keeps the filter alive when another subscriber is installed, so that `set` still works.
    _layer: Option<Arc<reload::Layer<EnvFilter, Registry>>>,
}

/// Starts logging with the filter of `RUST_LOG`, or `info`. An invalid filter is replaced by `info`
/// with a warning. If the process already logs, the returned control has no effect on the log.
///
/// Fields may contain names from outside. `clean` removes the characters of them that control a
/// terminal or are invisible.
pub fn init(clean: Clean) -> LogControl {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| !text.trim().is_empty());
    let (filter, text, rejected) = match wanted.as_deref().map(parse) {
        Some(Ok(filter)) => (filter, wanted.unwrap_or_default(), None),
        Some(Err(why)) => (EnvFilter::new(DEFAULT_FILTER), DEFAULT_FILTER.to_owned(), Some(why)),
        None => (EnvFilter::new(DEFAULT_FILTER), DEFAULT_FILTER.to_owned(), None),
    };
    let (layer, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(layer);
    let terminal = io::stderr().is_terminal();
    // A second initialisation (tests in one process) is not worth a panic.
    let _ = if terminal {
        let writer = move || Cleaned { out: io::stderr(), clean, json: false };
        registry.with(fmt::layer().with_writer(writer)).try_init()
    } else {
        let layer = fmt::layer().json().flatten_event(true);
        registry.with(layer.with_writer(move || Cleaned { out: io::stderr(), clean, json: true })).try_init()
    };
    if let Some(why) = rejected {
        tracing::warn!(%why, "RUST_LOG is not a filter; logging at info");
    }
    LogControl { handle, current: Arc::new(Mutex::new(text)), _layer: None }
}

/// Removes characters from a text.
pub type Clean = fn(&str) -> Cow<'_, str>;

/// Writes lines without the characters that `clean` removes.
///
/// In text only non-ASCII characters are removed: the formatter escapes the others, and uses ASCII
/// to colour a terminal. In JSON all are removed: an escaped control character would be decoded by
/// the reader of the value. Line breaks and tabs stay, because they are harmless in a value.
struct Cleaned<W> {
    out: W,
    clean: Clean,
    json: bool,
}

impl<W> Cleaned<W> {
    fn keeps(&self, c: char) -> bool {
        !(self.clean)(c.encode_utf8(&mut [0; 4])).is_empty()
    }

    fn text(&self, line: &str) -> String {
        line.chars().filter(|c| c.is_ascii() || self.keeps(*c)).collect()
    }

    fn json(&self, line: &str) -> String {
        let mut out = String::with_capacity(line.len());
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            let (length, stands_for) = match c {
                '\\' => escape(rest),
                _ => (c.len_utf8(), c),
            };
            let (this, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
            if matches!(stands_for, '\n' | '\t') || self.keeps(stands_for) {
                out.push_str(this);
            }
            rest = after;
        }
        out
    }
}

/// The length in bytes of the escape sequence at the start of a text, and its character.
fn escape(text: &str) -> (usize, char) {
    let code = || {
        let code = u32::from_str_radix(text.get(2..6)?, 16).ok()?;
        // Half of a surrogate pair is not a character, and not a control character.
        Some((6, char::from_u32(code).unwrap_or(' ')))
    };
    match text.as_bytes().get(1) {
        Some(b'u') => code().unwrap_or((1, ' ')),
        Some(b'b') => (2, '\u{8}'),
        Some(b'f') => (2, '\u{c}'),
        Some(b'r') => (2, '\r'),
        Some(b'"' | b'\\' | b'/' | b'n' | b't') => (2, ' '),
        _ => (1, ' '),
    }
}

impl<W: Write> Write for Cleaned<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) if self.json && line.iter().any(|b| matches!(b, b'\\' | 0x7f..)) => {
                self.out.write_all(self.json(text).as_bytes())?;
            }
            Ok(text) if !text.is_ascii() => self.out.write_all(self.text(text).as_bytes())?,
            _ => self.out.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl LogControl {
    /// A control that is connected to no log, for services under test.
    pub fn detached() -> Self {
        let (layer, handle) = reload::Layer::new(EnvFilter::new(DEFAULT_FILTER));
        Self { handle, current: Arc::new(Mutex::new(DEFAULT_FILTER.into())), _layer: Some(Arc::new(layer)) }
    }

    /// The current filter, as it was written.
    pub fn get(&self) -> String {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the filter by one such as `debug` or `info,stepwatch_exporter=trace`.
    pub fn set(&self, filter: &str) -> Result<(), String> {
        let filter = filter.trim();
        let parsed = parse(filter)?;
        // Held across the reload, so that `get` always agrees with the log.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        self.handle.reload(parsed).map_err(|err| format!("logging is not under this control: {err}"))?;
        filter.clone_into(&mut current);
        Ok(())
    }
}

fn parse(text: &str) -> Result<EnvFilter, String> {
    if text.trim().is_empty() {
        return Err(
            "an empty filter; expected a level (off error warn info debug trace) or target=level".into()
        );
    }
    // Users mean a single word as a level. The filter would take it as a target, and log next to
    // nothing.
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains(['=', '[']));
    if let Some(word) = words.into_iter().find(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(format!(
            "{word:?} is no level; expected off, error, warn, info, debug or trace, or target=level,..."
        ));
    }
    EnvFilter::builder().parse(text.trim()).map_err(|err| {
        format!("{text:?}: {err}; expected a level (off error warn info debug trace) or target=level,...")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_hidden_characters() {
        let clean: Clean = |text| Cow::Owned(text.replace(['\u{9b}', '\u{202e}'], ""));
        let mut text = Cleaned { out: Vec::new(), clean, json: false };
        text.write_all("\u{1b}[31mgrö\u{202e}ßer\u{9b}2J\n".as_bytes()).unwrap();
        text.write_all(b"\xff\n").unwrap();
        assert_eq!(text.out, ["\u{1b}[31mgrößer2J\n".as_bytes(), b"\xff\n"].concat());
    }

    #[test]
    fn a_value_of_json_has_no_hidden_characters_when_it_is_read() {
        let clean: Clean = |text| {
            let hidden = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            Cow::Owned(text.replace(hidden, ""))
        };
        let hostile = "a\u{1b}[31m\u{202e}\u{7f}\u{0}\r\u{8}\u{c}b \"größer\" \\u001b \\\\u001b\tc\nd 🚀";
        let line = serde_json::json!({"path": hostile}).to_string() + "\n";
        let mut json = Cleaned { out: Vec::new(), clean, json: true };
        json.write_all(line.as_bytes()).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&json.out).unwrap();
        assert_eq!(read["path"], "a[31mb \"größer\" \\u001b \\\\u001b\tc\nd 🚀");
    }

    proptest::proptest! {
        #[test]
        fn json_stays_json(value: String) {
            let clean: Clean = |text| Cow::Owned(text.replace(char::is_control, ""));
            let mut json = Cleaned { out: Vec::new(), clean, json: true };
            json.write_all(serde_json::json!(value).to_string().as_bytes()).unwrap();
            let read: String = serde_json::from_slice(&json.out).unwrap();
            let kept = value.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "");
            proptest::prop_assert_eq!(read, kept);
        }
    }

    #[test]
    fn a_filter_is_replaced_or_kept() {
        let log = LogControl::detached();
        assert_eq!(log.get(), "info");
        log.set("  warn,stepwatch_kit=trace\n").unwrap();
        assert_eq!(log.get(), "warn,stepwatch_kit=trace");
        for bad in ["", "kit=loudly", "a=b=c", "debgu", "info,debgu"] {
            assert!(log.set(bad).is_err(), "{bad}");
        }
        assert_eq!(log.get(), "warn,stepwatch_kit=trace");
    }
}
