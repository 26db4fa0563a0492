//! What is wrong with a configuration file, in the form `file:line:column: what`, the line and a caret.

use std::fmt;

use serde_saphyr::{Location, RenderOptions, SnippetMode, UserMessageFormatter};

/// Everything that is wrong with one configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    problems: Vec<Problem>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    message: String,
    place: Option<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// From 1.
    line: u64,
    /// In characters, from 1.
    column: u64,
    source_line: String,
    /// Characters under which the caret is drawn.
    width: usize,
}

impl ConfigError {
    /// A mistake that has no single place in the file.
    pub fn new(file: impl Into<String>, message: impl Into<String>) -> Self {
        Self::many(file, vec![message.into()])
    }

    /// Mistakes across fields: all of them at once, not the first.
    pub fn many(file: impl Into<String>, messages: Vec<String>) -> Self {
        let problems = messages.into_iter().map(|message| Problem { message, place: None }).collect();
        Self { file: file.into(), problems }
    }

    pub(super) fn at_caret(file: &str, text: &str, err: &serde_saphyr::Error) -> Self {
        let mut options = RenderOptions::new(&UserMessageFormatter);
        options.snippets = SnippetMode::Off;
        let place = err.location().and_then(|location| Place::find(text, location));
        let mut message = err.without_snippet().render_with_options(options);
        if let Some(location) = err.location() {
            // The renderer appends the place in words; it already stands in front.
            let suffix = format!(" at line {}, column {}", location.line(), location.column());
            message.truncate(message.strip_suffix(&suffix).unwrap_or(&message).len());
        }
        Self { file: file.into(), problems: vec![Problem { message, place }] }
    }
}

impl Place {
    fn find(text: &str, location: Location) -> Option<Self> {
        let index = usize::try_from(location.line()).ok()?.checked_sub(1)?;
        let source_line = text.lines().nth(index)?.to_owned();
        let room = source_line.chars().count().saturating_sub(location.column().saturating_sub(1) as usize);
        let width = (location.span().len() as usize).clamp(1, room.max(1));
        Some(Self { line: location.line(), column: location.column(), source_line, width })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            match &problem.place {
                None => write!(f, "{}: {}", self.file, problem.message)?,
                Some(place) => write!(f, "{}:{place}", self.file, place = Placed(place, &problem.message))?,
            }
        }
        Ok(())
    }
}

struct Placed<'a>(&'a Place, &'a str);

impl fmt::Display for Placed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Place { line, column, source_line, width }, message) = self;
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        // Tabs before the caret are kept, so that it stands under its column however wide a tab is.
        let indent: String = source_line
            .chars()
            .take(column.saturating_sub(1) as usize)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        writeln!(f, "{line}:{column}: {message}")?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{number} | {source_line}")?;
        write!(f, "{margin} | {indent}{}", "^".repeat(*width))
    }
}

impl std::error::Error for ConfigError {}
