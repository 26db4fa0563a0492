//! Content lines of RFC 5545, 3.1: unfolded, and cut into name, parameters and value.

use stepwatch_wire::words;

/// The most bytes of a line after it is unfolded: a thousand dates have room. The rest is not read.
const MAX_LINE: usize = 32 << 10;
/// The most parameters of a line; the rest is not read.
const MAX_PARAMETERS: usize = 32;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The name in upper case.
    pub(super) name: String,
    parameters: Vec<(String, String)>,
    pub(super) value: String,
    /// The line is longer than what is read.
    pub(super) over: bool,
}

/// The error for a line that is `over`.
pub(super) fn too_long() -> String {
    format!("more than {MAX_LINE} bytes or {MAX_PARAMETERS} parameters")
}

/// The content lines of a text. Anything else is left out.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Line> {
    let mut raw = text.split('\n').map(|l| l.strip_suffix('\r').unwrap_or(l)).peekable();
    core::iter::from_fn(move || {
        let whole = raw.next()?;
        let mut line = whole[..whole.floor_char_boundary(MAX_LINE)].to_owned();
        let mut over = line.len() < whole.len();
        while let Some(more) = raw.next_if(|next| next.starts_with([' ', '\t'])) {
            over |= line.len() + more.len() > MAX_LINE;
            if !over {
                line.push_str(&more[1..]);
            }
        }
        Some((line, over))
    })
    .filter_map(|(line, over)| Line::parse(&line, over))
}

impl Line {
    fn parse(line: &str, mut over: bool) -> Option<Self> {
        let mut quoted = false;
        let mut parts = Vec::new();
        let mut begin = 0;
        let mut colon = None;
        for (at, c) in line.char_indices() {
            match c {
                '"' => quoted = !quoted,
                // The name is a part too.
                ';' if !quoted && parts.len() >= MAX_PARAMETERS => over = true,
                ';' if !quoted => {
                    parts.push(&line[begin..at]);
                    begin = at + 1;
                }
                ':' if !quoted => {
                    colon = Some(at);
                    break;
                }
                _ => {}
            }
        }
        let colon = colon.or_else(|| over.then_some(line.len()))?;
        parts.push(&line[begin..colon]);
        let (name, parameters) = parts.split_first()?;
        let named = |p: &&str| {
            let (key, value) = p.split_once('=')?;
            Some((key.trim().to_ascii_uppercase(), value.trim_matches('"').to_owned()))
        };
        let name = name.trim().to_ascii_uppercase();
        let value = line.get(colon + 1..).unwrap_or_default().to_owned();
        (!name.is_empty()).then(|| Self {
            name,
            parameters: parameters.iter().filter_map(named).collect(),
            value,
            over,
        })
    }

    pub(super) fn parameter(&self, key: &str) -> Option<&str> {
        self.parameters.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The value as text, with its escapes resolved.
    pub(super) fn text(&self) -> String {
        let mut text = String::with_capacity(self.value.len());
        let mut chars = self.value.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some('n' | 'N') => text.push(' '),
                    Some(c) => text.push(c),
                    None => {}
                },
                c => text.push(c),
            }
        }
        words::line(text.trim()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_quoted_and_escaped() {
        let text = "BEGIN:VCALENDAR\r\nattendee;CN=\"Smith: Alice; Inc\";ROLE=x:mailto:al\r\n ice@\r\n\texample.com\nno colon\nSUMMARY:a\\, b\\nc\\\\d\n";
        let got: Vec<Line> = lines(text).collect();
        assert_eq!(got.len(), 3);
        assert_eq!((got[1].name.as_str(), got[1].value.as_str()), ("ATTENDEE", "mailto:alice@example.com"));
        assert_eq!(got[1].parameter("CN"), Some("Smith: Alice; Inc"));
        assert_eq!(got[2].text(), "a, b c\\d");
    }
}
