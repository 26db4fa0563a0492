//! The terminal output: a timeline of events, and one status line that is rewritten.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The interval at which the status line is printed if the output is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(5);
const WIDTH: usize = 108;
/// The number of columns before the text of an event.
const INDENT: usize = 21;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Colour {
    Plain,
    Dim,
    Red,
    Yellow,
    Green,
    Blue,
}

impl Colour {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Dim => "2",
            Self::Red => "1;31",
            Self::Yellow => "1;33",
            Self::Green => "1;32",
            Self::Blue => "1;34",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Screen {
    started: Instant,
    terminal: bool,
    /// Whether the status line is on the terminal and must be cleared before other output.
    living: bool,
    last_plain: Option<Instant>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let terminal = std::io::stdout().is_terminal();
        Self { started: Instant::now(), terminal, living: false, last_plain: None }
    }

    /// Starts the clock of the timeline.
    pub(crate) fn start_clock(&mut self) {
        self.started = Instant::now();
    }

    pub(crate) fn title(&mut self, name: &str, what: &str) {
        let text = format!("\n  {}  {}\n", self.paint(Colour::Blue, name), what);
        self.print(&text);
    }

    /// Prints a preparation step, before the timeline starts.
    pub(crate) fn progress(&mut self, what: &str) {
        let text = self.paint(Colour::Dim, &format!("  · {what}"));
        self.print(&text);
    }

    pub(crate) fn note(&mut self, what: &str) {
        let text = self.paint(Colour::Dim, &format!("\n  {what}"));
        self.print(&text);
    }

    pub(crate) fn links(&mut self, links: &[(&str, &str, &str)]) {
        let mut text = String::from("\n");
        for (name, url, what) in links {
            let what = self.paint(Colour::Dim, what);
            let _ = writeln!(text, "  {name:<10} {url:<34} {what}");
        }
        self.print(&text);
    }

    /// Prints one entry of the timeline; further lines of `text` are indented.
    pub(crate) fn event(&mut self, colour: Colour, label: &str, text: &str) {
        let at = format!("{:>7.2}s", self.started.elapsed().as_secs_f64());
        let mut lines = text.lines().flat_map(|l| wrap(l, WIDTH - INDENT));
        let first = lines.next().unwrap_or_default();
        let label = self.paint(colour, &format!("{label:<10}"));
        let mut out = format!("{} {label}  {first}", self.paint(Colour::Dim, &at));
        for line in lines {
            let _ = write!(out, "\n{:INDENT$}{line}", "");
        }
        self.print(&out);
    }

    /// Prints the status line: rewritten on a terminal, printed at intervals elsewhere.
    pub(crate) fn live(&mut self, text: &str) {
        let at = format!("{:>7.2}s", self.started.elapsed().as_secs_f64());
        let line = self.paint(Colour::Dim, &format!("{at}             {text}"));
        let mut out = std::io::stdout().lock();
        if self.terminal {
            let _ = write!(out, "\r\x1b[2K{line}");
            let _ = out.flush();
            self.living = true;
        } else if self.last_plain.is_none_or(|t| t.elapsed() >= PLAIN_EVERY) {
            let _ = writeln!(out, "{line}");
            self.last_plain = Some(Instant::now());
        }
    }

    fn print(&mut self, text: &str) {
        let mut out = std::io::stdout().lock();
        if std::mem::take(&mut self.living) {
            let _ = write!(out, "\r\x1b[2K");
        }
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }

    fn paint(&self, colour: Colour, text: &str) -> String {
        if self.terminal && std::env::var_os("NO_COLOR").is_none() {
            format!("\x1b[{}m{text}\x1b[0m", colour.code())
        } else {
            text.to_owned()
        }
    }
}

/// Breaks a line at spaces, and keeps its indentation.
pub(crate) fn wrap(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width {
        return vec![line.to_owned()];
    }
    let words = line.trim_start_matches(' ');
    let mut out = vec![" ".repeat(line.len() - words.len())];
    for word in words.split(' ') {
        let fits = |l: &String| l.trim().is_empty() || l.chars().count() + word.chars().count() < width;
        match out.last_mut().filter(|l| fits(l)) {
            Some(l) => {
                if !l.trim().is_empty() {
                    l.push(' ');
                }
                l.push_str(word);
            }
            None => out.push(word.to_owned()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_at_spaces() {
        assert_eq!(wrap("aa bb cc", 6), ["aa bb", "cc"]);
        assert_eq!(wrap("aaaaaaaaaa b", 6), ["aaaaaaaaaa", "b"]);
        assert_eq!(wrap("  a  b", 6), ["  a  b"], "what fits stays as it is");
        assert_eq!(wrap("  aa bb", 6), ["  aa", "bb"]);
    }
}
