//! A drawing, as text: lines, dots and words, and nothing else.

use std::fmt::Write as _;

pub const INK: &str = "#24292f";
pub const FAINT: &str = "#d0d7de";
pub const GREY: &str = "#6e7781";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture under way; what is drawn later lies above.
#[derive(Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{width}"/>"#
        ));
    }

    pub fn path(&mut self, points: &[(f64, f64)], colour: &str, width: f64) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.put(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#,
            points.join(" ")
        ));
    }

    pub fn dot(&mut self, at: (f64, f64), radius: f64, colour: &str) {
        let (x, y) = at;
        self.put(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{colour}"/>"#));
    }

    pub fn area(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        let ((x, y), (w, h)) = (from, (to.0 - from.0, to.1 - from.1));
        self.put(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" fill="{colour}"/>"#
        ));
    }

    pub fn text(&mut self, at: (f64, f64), size: f64, colour: &str, anchor: Anchor, words: &str) {
        let (x, y) = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.put(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{}</text>"#,
            escape(words)
        ));
    }

    pub fn finish(self) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_escaped_and_the_picture_is_closed() {
        let mut svg = Svg::new(10.0, 20.0);
        svg.text((1.0, 2.0), 9.0, INK, Anchor::End, "a < b & c");
        svg.path(&[(0.0, 0.0), (1.25, 3.0)], GREY, 1.5);
        let text = svg.finish();
        assert!(text.contains("a &lt; b &amp; c") && text.contains("points=\"0.0,0.0 1.2,3.0\""));
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }
}
