//! A terminal screen that a command redraws.

use std::io::{self, IsTerminal as _, Stdout, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anstyle::Style;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue};
use tokio::sync::mpsc;

/// How long the key thread waits before it checks whether the screen was closed.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// The most keys that wait for the screen to be drawn.
const KEYS: usize = 16;
/// The terminal size if it is unknown.
const USUAL: (u16, u16) = (80, 24);

/// A person's input at the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    /// The terminal was resized, or a key without a meaning was pressed: redraw.
    Draw,
}

/// The alternate screen of a terminal, without a cursor. Dropping it restores the terminal.
#[derive(Debug)]
pub(super) struct Screen {
    keys: mpsc::Receiver<Key>,
    closed: Arc<AtomicBool>,
}

/// Whether input and output are a terminal that can be drawn on.
pub(super) fn is_terminal() -> bool {
    io::stdout().is_terminal() && io::stdin().is_terminal()
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let (sender, keys) = mpsc::channel(KEYS);
        let closed = Arc::new(AtomicBool::new(false));
        // From here on, every error drops the screen.
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

    /// The next key; a terminal that is gone counts as [`Key::Quit`].
    pub(super) async fn key(&mut self) -> Key {
        self.keys.recv().await.unwrap_or(Key::Quit)
    }

    /// The number of columns and rows.
    pub(super) fn size() -> (usize, usize) {
        let (columns, rows) = terminal::size().unwrap_or(USUAL);
        (usize::from(columns), usize::from(rows))
    }

    /// Draws as many lines as there are rows. Each line must fit the width of the terminal.
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
        // An error is ignored, because nothing can be done about it.
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

/// Standard output for commands that print once. It has no colours if it is not a terminal or
/// `NO_COLOR` is set.
pub(super) fn stdout() -> anstream::AutoStream<Stdout> {
    anstream::stdout()
}

/// A line of text in a style, truncated to `columns` columns.
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
