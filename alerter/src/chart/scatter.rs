//! A scatter chart of two figures of many settings, which shows their trade-off.

use core::fmt::Write as _;

use super::look::{Theme, Tone};
use super::scale::Scale;
use crate::markup::escape;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;
/// The radius of a dot of size 0, and what a size of 1 adds.
const SMALLEST: f64 = 3.0;
const GROWS: f64 = 6.0;

#[derive(Debug, Clone)]
pub struct Scatter {
    pub title: String,
    pub x: String,
    pub y: String,
    pub dots: Vec<Dot>,
}

#[derive(Debug, Clone)]
pub struct Dot {
    pub x: f64,
    pub y: f64,
    /// The size, from 0 to 1.
    pub size: f64,
    /// The tooltip of the dot.
    pub label: String,
    pub kind: DotKind,
}

/// The kind of a dot. Later kinds are drawn above earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DotKind {
    Other,
    Best,
    Now,
}

impl DotKind {
    fn look(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Other => ("info", colour(Tone::Info), "tried"),
            Self::Best => ("over", colour(Tone::Over), "best"),
            Self::Now => ("onset", colour(Tone::Onset), "as it is set now"),
        }
    }
}

fn colour(tone: Tone) -> &'static str {
    Theme::Light.ink().word(tone)
}

pub fn scatter(s: &Scatter) -> String {
    let (x, y) = (Scale::over(s.dots.iter().map(|d| d.x)), Scale::over(s.dots.iter().map(|d| d.y)));
    let x_of = |v: f64| LEFT + x.at(v) * (WIDTH - LEFT - RIGHT);
    let y_of = |v: f64| TOP + (1.0 - y.at(v)) * (HEIGHT - TOP - BOTTOM);
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" \
         aria-label=\"{0}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"11\">\n<title>{0}</title>\n",
        escape(&s.title)
    );
    for (v, text) in y.ticks(5) {
        let at = y_of(v);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#d9dde2\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#5b6570\">{text}</text>",
            LEFT - 7.0,
            at + 4.0
        );
    }
    for (v, text) in x.ticks(7) {
        let at = x_of(v);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#d9dde2\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#5b6570\">{text}</text>",
            bottom + 16.0
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"name\" x=\"{right}\" y=\"{}\" text-anchor=\"end\" fill=\"#5b6570\">{}</text>\
         <text class=\"name\" x=\"{LEFT}\" y=\"16\" fill=\"#5b6570\">{}</text>",
        bottom + 34.0,
        escape(&s.x),
        escape(&s.y)
    );
    let mut dots: Vec<&Dot> = s.dots.iter().collect();
    dots.sort_by_key(|d| d.kind);
    for d in dots {
        let (class, colour, _) = d.kind.look();
        let _ = writeln!(
            out,
            "<circle class=\"span {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"0.7\"><title>{}</title></circle>",
            x_of(d.x),
            y_of(d.y),
            SMALLEST + GROWS * d.size.clamp(0.0, 1.0),
            escape(&d.label)
        );
    }
    let mut at = WIDTH / 2.0;
    for kind in [DotKind::Now, DotKind::Best, DotKind::Other] {
        let (class, colour, word) = kind.look();
        let _ = writeln!(
            out,
            "<circle class=\"span {class}\" cx=\"{at}\" cy=\"12\" r=\"5\" fill=\"{colour}\" fill-opacity=\"0.7\"/>\
             <text class=\"tick\" x=\"{}\" y=\"16\" fill=\"#5b6570\">{word}</text>",
            at + 9.0
        );
        at += 30.0 + 7.0 * word.len() as f64;
    }
    out.push_str("</svg>\n");
    out
}
