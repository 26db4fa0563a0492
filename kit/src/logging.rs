//! Logs go to standard error: text on a terminal, one JSON object a line everywhere else. The
//! filter can be changed while the program runs (`/-/log-level`).

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

const DEFAULT_FILTER: &str = "info";

/// Reads and replaces the filter of the process's log.
#[derive(Debug, Clone)]
pub struct LogControl {
    handle: reload::Handle<EnvFilter, Registry>,
    current: Arc<Mutex<String>>,
    // Keeps the filter reachable when another subscriber won the process: `set` then still answers.
    _layer: Option<Arc<reload::Layer<EnvFilter, Registry>>>,
}

/// Starts logging with the filter of `RUST_LOG`, or `info`. A filter that does not parse falls back
/// to `info` with a warning. In a process that already logs, the returned control is inert.
///
/// Names from outside are among the fields: `clean` takes away what steers a terminal or cannot be
/// seen.
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
    // A second initialisation (tests in one process) is not an error worth dying for.
    let _ = if terminal {
        registry.with(fmt::layer().with_writer(move || Cleaned(io::stderr(), clean))).try_init()
    } else {
        let layer = fmt::layer().json().flatten_event(true);
        registry.with(layer.with_writer(move || Cleaned(io::stderr(), clean))).try_init()
    };
    if let Some(why) = rejected {
        tracing::warn!(%why, "RUST_LOG is not a filter; logging at info");
    }
    LogControl { handle, current: Arc::new(Mutex::new(text)), _layer: None }
}

/// Takes characters out of a text.
pub type Clean = fn(&str) -> Cow<'_, str>;

/// Writes lines without the characters beyond ASCII that are taken out. Those within it, the
/// formatter escapes, and colours a terminal with them.
struct Cleaned<W>(W, Clean);

impl<W: Write> Write for Cleaned<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) if !text.is_ascii() => {
                let kept = |c: &char| c.is_ascii() || !(self.1)(c.encode_utf8(&mut [0; 4])).is_empty();
                let text: String = text.chars().filter(kept).collect();
                self.0.write_all(text.as_bytes())?;
            }
            _ => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl LogControl {
    /// Controls nothing but itself: for services under test.
    pub fn detached() -> Self {
        let (layer, handle) = reload::Layer::new(EnvFilter::new(DEFAULT_FILTER));
        Self { handle, current: Arc::new(Mutex::new(DEFAULT_FILTER.into())), _layer: Some(Arc::new(layer)) }
    }

    /// The filter in force, as it was written.
    pub fn get(&self) -> String {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the filter: `debug`, or `info,stepwatch_exporter=trace`.
    pub fn set(&self, filter: &str) -> Result<(), String> {
        let filter = filter.trim();
        let parsed = parse(filter)?;
        // Held across the reload so that `get` never disagrees with the log.
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
    // A single word is a level to users and a target to the filter, which would then log next to
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
        let mut out = Cleaned(Vec::new(), clean);
        out.write_all("\u{1b}[31mgrö\u{202e}ßer\u{9b}2J\n".as_bytes()).unwrap();
        out.write_all(b"\xff\n").unwrap();
        assert_eq!(out.0, ["\u{1b}[31mgrößer2J\n".as_bytes(), b"\xff\n"].concat());
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
