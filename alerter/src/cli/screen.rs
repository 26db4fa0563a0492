//! A terminal that a command draws anew again and again.

use std::io::{self, IsTerminal as _, Stdout, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anstyle::Style;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue};
use tokio::sync::mpsc;

/// How long the thread that reads the keys waits before it looks whether it is to end.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// Keys that wait until the screen is drawn; who presses more waits.
const KEYS: usize = 16;
/// Where the size of the terminal is unknown.
const USUAL: (u16, u16) = (80, 24);

/// What a person did at the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    /// The terminal has another size now, or something was pressed that has no meaning: draw anew.
    Draw,
}

/// The other screen of a terminal, without a cursor. When it is dropped the terminal is as before.
#[derive(Debug)]
pub(super) struct Screen {
    keys: mpsc::Receiver<Key>,
    closed: Arc<AtomicBool>,
}

/// Whether standard output is a terminal that can be drawn on.
pub(super) fn is_terminal() -> bool {
    io::stdout().is_terminal() && io::stdin().is_terminal()
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let (sender, keys) = mpsc::channel(KEYS);
        let closed = Arc::new(AtomicBool::new(false));
        // Dropped on every error from here on.
        let screen = Self { keys, closed: Arc::clone(&closed) };
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        std::thread::Builder::new().name("keys".into()).spawn(move || {
            while !closed.load(Ordering::Relaxed) {
                let key = match event::poll(KEY_WAIT) {
                    Ok(true) => event::read().map_or(Key::Quit, |event| meaning(&event)),
                    Ok(false) => continue,
                    Err(_) => Key::Quit,
                };
                if sender.blocking_send(key).is_err() || key == Key::Quit {
                    return;
                }
            }
        })?;
        Ok(screen)
    }

    /// What is done next; a terminal that is gone is left.
    pub(super) async fn key(&mut self) -> Key {
        self.keys.recv().await.unwrap_or(Key::Quit)
    }

    /// Columns and rows.
    pub(super) fn size() -> (usize, usize) {
        let (columns, rows) = terminal::size().unwrap_or(USUAL);
        (usize::from(columns), usize::from(rows))
    }

    /// Shows as many of these lines as there are rows, each of which must be as wide as the
    /// terminal at most.
    pub(super) fn draw(lines: &[String]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        let rows = Self::size().1;
        for (i, line) in lines.iter().take(rows).enumerate() {
            if i > 0 {
                out.write_all(b"\r\n")?;
            }
            out.write_all(line.as_bytes())?;
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        // The process ends or goes on without the screen: nothing can be done about an error.
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

fn meaning(event: &Event) -> Key {
    match event {
        Event::Key(KeyEvent { code: KeyCode::Char('q') | KeyCode::Esc, .. }) => Key::Quit,
        Event::Key(KeyEvent { code: KeyCode::Char('c' | 'd'), modifiers, .. })
            if modifiers.contains(KeyModifiers::CONTROL) =>
        {
            Key::Quit
        }
        _ => Key::Draw,
    }
}

/// Standard output for commands that print once: without colours where it is no terminal, and
/// where `NO_COLOR` is set.
pub(super) fn stdout() -> anstream::AutoStream<Stdout> {
    anstream::stdout()
}

/// One line of text in a style, cut to so many columns.
pub(super) fn line(text: &str, style: Style, columns: usize) -> String {
    let text: String = super::table::plain(text).chars().take(columns).collect();
    format!("{style}{text}{style:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_control_c_end_it() {
        let key = |code, modifiers| meaning(&Event::Key(KeyEvent::new(code, modifiers)));
        for quit in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(key(quit, KeyModifiers::NONE), Key::Quit);
        }
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Key::Quit);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), Key::Draw);
        assert_eq!(meaning(&Event::Resize(100, 40)), Key::Draw);
    }

    #[test]
    fn a_line_is_cut_and_steers_no_terminal() {
        let bold = Style::new().bold();
        assert_eq!(line("a\u{1b}[2Jbcdef", bold, 6), format!("{bold}a[2Jbc{bold:#}"));
    }
}
