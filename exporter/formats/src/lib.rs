//! What training frameworks print, read line by line: text goes in, [`stepwatch_wire::Event`]s come
//! out.
//!
//! A framework is one [`Format`]: one file, and one line in the list of `line_formats.rs`. A format
//! sees one complete line at a time with everything stripped that launchers put round it (ranks,
//! ANSI colours, container runtimes, time stamps, progress bars that redraw themselves), and may
//! remember what a few numbers of earlier lines were. [`LogReader`] holds them together: it strips
//! the line, asks the format that the configuration names or finds out which one the file is
//! written in, and counts. What loggers put before a message is taken off where no format reads the
//! line with it.
//!
//! Pure: no file, clock, thread or socket. The exporter's tails and the alerter's `backtest` read
//! the same logs through the same code.
//!
//! ```
//! let mut reader = stepwatch_formats::LogReader::new(None)?;
//! let mut events = Vec::new();
//! let line = "3: iteration 7/ 100 | elapsed time per iteration (ms): 1500.0 | lm loss: 2.5E+00 |";
//! reader.line(line, &mut events);
//! assert_eq!((events[0].step, events[0].m.get("loss")), (Some(7), Some(2.5)));
//! assert_eq!(reader.name(), "megatron");
//! # Ok::<(), stepwatch_formats::UnknownFormat>(())
//! ```

mod absent;
mod axis;
mod background;
mod clean;
mod course;
mod file;
mod file_format;
mod format;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod json_scan;
mod last_words;
mod line_formats;
mod number;
mod own_loss;
mod pause;
pub mod protobuf;
mod python;
mod reader;
mod rule;
mod scalars;
mod start_lines;
mod tags;
mod time;
mod tokens;
mod tqdm;
mod word_meaning;

mod csv_cells;
mod csv_log;
mod error_json;
mod flight_recorder;
mod hf_config;
mod latest;
mod lightning_csv;
mod tfevents;
mod trainer_state;
mod wandb;

pub use absent::{Absent, Nothing};
pub use clean::{KEPT_BYTES, MAX_JOINED_BYTES};
pub use file::{
    FileKind, FileReader, HEAD_BYTES, MAX_PENDING_BYTES, MAX_WHOLE_BYTES, is_followed, kind_of, known_name,
};
pub use file_format::{MAX_RECORD_BYTES, Pushed, TURN_EVENTS, Whole};
pub use flight_recorder::{DUMP_EVENT, dump_event};
pub use format::{Format, Line, Out, Outcome};
pub use last_words::written_by_models;
pub use line_formats::names;
pub use number::Resolution;
pub use own_loss::{Likeness, own_loss};
pub use reader::{Counters, LogReader, MAX_KEYS, UnknownFormat};
pub use rule::{Rule, RuleError, RuleKind, Unit};
pub use tags::{Tag, canonical};

/// A line without colours, and without what launchers and container runtimes put before it; nor
/// what loggers do before an error, so that an exception which was logged stands at the start.
pub fn plain(line: &str) -> String {
    let line = clean::strip_ansi(line);
    let text = clean::strip(&line).text;
    clean::behind_error(text).unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_exception_that_was_logged_stands_at_the_start_of_the_plain_line() {
        for (line, plain) in [
            ("0: 2026-01-01 10:00:00 | ERROR | sample_trainer | RuntimeError: x", "RuntimeError: x"),
            (
                "\u{1b}[31m2024-01-01 10:00:00.123 | ERROR    | __main__:main:12 - OSError: x\u{1b}[0m",
                "OSError: x",
            ),
            ("2024-01-01 10:00:00,123 INFO RuntimeError: x", "INFO RuntimeError: x"),
            ("[rank3]: RuntimeError: x", "RuntimeError: x"),
        ] {
            assert_eq!(super::plain(line), plain);
        }
    }
}
