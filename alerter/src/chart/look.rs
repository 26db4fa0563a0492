//! The appearance of a chart: its colours and sizes. The content is the same in all of them.

/// The colours of a chart. The hues are those of Okabe and Ito, which people with any kind of
/// colour vision can distinguish; hues too faint for their background are darker here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Theme {
    #[default]
    Light,
    Dark,
}

/// A place where charts are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// For a page or a document: as high as the panels need.
    #[default]
    Wide,
    /// For a chat, where a phone shows it 360 pixels wide: 16 : 9, one panel, large text.
    Card,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Look {
    pub size: Size,
    pub theme: Theme,
}

/// Colours as attributes. Text has a contrast of at least 4.5 : 1 to `paper`, marks of 3 : 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ink {
    pub(super) paper: &'static str,
    pub(super) text: &'static str,
    pub(super) soft: &'static str,
    pub(super) grid: &'static str,
    /// The colours of the signal and of the usual range behind it.
    pub(super) line: &'static str,
    pub(super) expected: &'static str,
    /// For each tone, the colour of a mark and of its text.
    pub(super) tones: [(&'static str, &'static str); TONES],
}

/// The meaning of a mark or a range of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Onset,
    Info,
    Ticket,
    Page,
    Over,
    /// An event of the run itself: a checkpoint, a restart, an evaluation.
    Note,
}

const TONES: usize = 6;

const LIGHT: Ink = Ink {
    paper: "#ffffff",
    text: "#1c2127",
    soft: "#5b6570",
    grid: "#d9dde2",
    line: "#0072b2",
    expected: "#22272e",
    tones: [
        ("#cc79a7", "#9c4573"),
        ("#55636e", "#55636e"),
        ("#a06a00", "#8f5f00"),
        ("#d55e00", "#b34f00"),
        ("#009e73", "#00714f"),
        ("#5b6570", "#5b6570"),
    ],
};

const DARK: Ink = Ink {
    paper: "#1a1d21",
    text: "#e6ebf0",
    soft: "#9aa5b1",
    grid: "#39414a",
    line: "#56b4e9",
    expected: "#f2f5f8",
    tones: [
        ("#cc79a7", "#e09fc2"),
        ("#aab4be", "#aab4be"),
        ("#f0e442", "#f0e442"),
        ("#e69f00", "#e69f00"),
        ("#009e73", "#2fbf94"),
        ("#9aa5b1", "#9aa5b1"),
    ],
};

/// Sizes in pixels of the drawing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measures {
    pub(super) width: f64,
    /// The height of the whole drawing; `None` if the panels determine it.
    pub(super) height: Option<f64>,
    /// The margin for the labels of the value axis, and the margin after the last step.
    pub(super) left: f64,
    pub(super) right: f64,
    /// The margin between the upper edge and the first element.
    pub(super) top: f64,
    pub(super) lead_height: f64,
    pub(super) other_height: f64,
    pub(super) panels: usize,
    /// The text size of names and the title, and of numbers and captions.
    pub(super) text: f64,
    pub(super) small: f64,
    pub(super) line: f64,
    /// The number of rows for captions of marks.
    pub(super) mark_rows: usize,
    /// The approximate number of ticks: of the lead panel, of other panels, and of the axis of
    /// steps.
    pub(super) ticks: (usize, usize, usize),
    /// The most lines of the title.
    pub(super) title_lines: usize,
    /// Whether suspects are drawn below the panels.
    pub(super) bars: bool,
}

const WIDE: Measures = Measures {
    width: 960.0,
    height: None,
    left: 64.0,
    right: 14.0,
    top: 6.0,
    lead_height: 200.0,
    other_height: 72.0,
    panels: 5,
    text: 12.0,
    small: 11.0,
    line: 1.5,
    mark_rows: 4,
    ticks: (5, 2, 8),
    title_lines: 3,
    bars: true,
};

const CARD: Measures = Measures {
    width: 720.0,
    height: Some(405.0),
    left: 86.0,
    right: 18.0,
    top: 8.0,
    lead_height: 0.0,
    other_height: 0.0,
    panels: 1,
    text: 20.0,
    small: 20.0,
    line: 3.0,
    mark_rows: 2,
    ticks: (2, 2, 2),
    title_lines: 2,
    bars: false,
};

impl Theme {
    pub(super) fn ink(self) -> &'static Ink {
        match self {
            Self::Light => &LIGHT,
            Self::Dark => &DARK,
        }
    }
}

impl Size {
    pub(super) fn measures(self) -> &'static Measures {
        match self {
            Self::Wide => &WIDE,
            Self::Card => &CARD,
        }
    }
}

impl Look {
    /// The look for a chat.
    pub const CARD: Self = Self { size: Size::Card, theme: Theme::Light };
}

impl Ink {
    pub(super) fn mark(&self, tone: Tone) -> &'static str {
        self.tones[tone as usize].0
    }

    pub(super) fn word(&self, tone: Tone) -> &'static str {
        self.tones[tone as usize].1
    }
}

impl Measures {
    pub(super) fn inner(&self) -> f64 {
        self.width - self.left - self.right
    }

    /// The height of a row of captions.
    pub(super) fn mark_height(&self) -> f64 {
        self.small + 4.0
    }

    /// The space above a panel for its name.
    pub(super) fn name_height(&self) -> f64 {
        self.text + 8.0
    }

    pub(super) fn axis_height(&self) -> f64 {
        2.0 * self.small + 12.0
    }

    /// The height of the strip that shows non-finite values.
    pub(super) fn strip(&self) -> f64 {
        4.0 + 2.0 * self.line
    }
}

/// The approximate width of text, because the font is unknown. The widths are those of DejaVu Sans,
/// one of the widest common fonts.
pub(super) fn width_of(text: &str, size: f64, bold: bool) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '|' | '\'' | ' ' => 0.33,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | '-' => 0.41,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.92,
        c if c.is_uppercase() => 0.69,
        _ => 0.62,
    };
    let em: f64 = text.chars().map(em).sum();
    em * size * if bold { 1.12 } else { 1.0 }
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Onset => "onset",
            Self::Info => "info",
            Self::Ticket => "ticket",
            Self::Page => "page",
            Self::Over => "over",
            Self::Note => "note",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative luminance as WCAG 2.2 defines it.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let v = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn contrast_is_that_of_the_standard() {
        assert!((contrast("#000000", "#ffffff") - 21.0).abs() < 1e-9);
        assert!((contrast("#777777", "#ffffff") - 4.48).abs() < 0.01);
    }

    #[test]
    fn text_and_marks_stand_out() {
        for theme in [Theme::Light, Theme::Dark] {
            let ink = theme.ink();
            let words = ink.tones.iter().map(|(_, word)| *word).chain([ink.text, ink.soft]);
            for word in words {
                assert!(contrast(word, ink.paper) >= 4.5, "{theme:?} {word}: {}", contrast(word, ink.paper));
            }
            let marks = ink.tones.iter().map(|(mark, _)| *mark).chain([ink.line, ink.expected]);
            for mark in marks {
                assert!(contrast(mark, ink.paper) >= 3.0, "{theme:?} {mark}: {}", contrast(mark, ink.paper));
            }
        }
    }
}
