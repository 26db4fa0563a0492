mod faults;

use proptest::prelude::*;

use super::curve::BandPoint;
use super::scatter::{Dot, DotKind, Scatter, scatter};
use super::track::Track;
use super::*;

fn track(values: impl IntoIterator<Item = (i64, f64)>) -> Track {
    let mut track = Track::default();
    values.into_iter().for_each(|(step, v)| track.push(0, step, v));
    track
}

fn panel<'a>(label: &str, track: &'a Track) -> Panel<'a> {
    incident::panel(label, track.points())
}

fn mark(step: i64, label: &str, tone: Tone) -> Mark {
    Mark { step, label: label.into(), tone, href: None }
}

/// Every element is closed, and text is escaped.
fn well_formed(svg: &str) {
    let mut open = Vec::new();
    for piece in svg.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').unwrap_or_else(|| panic!("no end of <{piece}"));
        // Text may contain NaN, but coordinates must not.
        assert!(!tag.contains("NaN,") && !tag.contains("\"inf") && !tag.contains("\"NaN\""), "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "in {svg}");
        } else if !tag.ends_with('/') {
            open.push(tag.split([' ', '\n']).next().unwrap());
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn a_chart_as_it_is_written() {
    let loss = track([(1, 2.5), (2, 2.4), (3, 9.0), (4, f64::NAN), (5, 2.4), (4, 2.3), (5, 2.2)]);
    let norm = track((1..=5).map(|i| (i, 10f64.powi(i as i32))));
    let chart = Chart {
        heading: None,
        bars: Vec::new(),
        title: "loss spike at step 3".into(),
        description: "loss from step 1 to 5".into(),
        steps: (1, 5),
        panels: vec![
            Panel {
                usual: Some((2.3, 2.6)),
                expected: Some(Expected { value: 2.4, from: 3 }),
                leads: true,
                ..panel("loss", &loss)
            },
            panel("grad_norm", &norm),
        ],
        marks: vec![mark(3, "onset, page 3", Tone::Page), mark(5, "over 5", Tone::Over)],
        spans: vec![Span { from: 3, to: 5, tone: Tone::Page }],
    };
    let drawn = svg(&chart, Look::default());
    well_formed(&drawn);
    insta::assert_snapshot!(drawn);
}

#[test]
fn a_panel_without_numbers_says_so() {
    let (none, nan) = (Track::default(), track([(1, f64::NAN)]));
    let chart = Chart {
        heading: None,
        bars: Vec::new(),
        title: String::new(),
        description: String::new(),
        steps: (0, 9),
        panels: vec![panel("loss", &none), panel("lr", &nan)],
        marks: Vec::new(),
        spans: Vec::new(),
    };
    let drawn = svg(&chart, Look::default());
    well_formed(&drawn);
    assert!(drawn.contains("nothing was reported here") && drawn.contains("no finite value"), "{drawn}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn anything_can_be_drawn(
        samples in prop::collection::vec((any::<i64>(), any::<f64>()), 0..60),
        steps in (any::<i64>(), any::<i64>()),
        marks in prop::collection::vec((any::<i64>(), ".{0,12}"), 0..12),
        usual in any::<Option<(f64, f64)>>(),
        expected in any::<(f64, i64)>(),
        label in ".{0,20}",
        band in prop::collection::vec(any::<(i64, f64, f64)>(), 0..6),
    ) {
        let track = track(samples);
        let chart = Chart {
            heading: Some(Heading { tag: label.clone(), tone: Tone::Page, sentence: label.repeat(9) }),
            bars: vec![Bar { label: label.clone(), text: label.clone(), value: expected.0, expected: 1.0 }],
            title: label.clone(),
            description: label.clone(),
            steps: (steps.0.min(steps.1), steps.0.max(steps.1)),
            panels: vec![Panel {
                usual,
                expected: Some(Expected { value: expected.0, from: expected.1 }),
                leads: true,
                band: band.iter().map(|&(step, low, high)| BandPoint { step, low, high }).collect(),
                ..panel(&label, &track)
            }],
            spans: marks.iter().map(|(step, _)| Span { from: *step, to: expected.1, tone: Tone::Ticket }).collect(),
            marks: marks.into_iter().map(|(step, label)| Mark { href: Some(label.clone()), ..mark(step, &label, Tone::Info) }).collect(),
        };
        for (size, theme) in [(Size::Wide, Theme::Light), (Size::Card, Theme::Dark)] {
            let drawn = svg(&chart, Look { size, theme });
            well_formed(&drawn);
        }
    }

    #[test]
    fn any_trade_off_can_be_drawn(dots in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>()), 0..9), label in ".{0,9}") {
        let dot = |(x, y, size)| Dot { x, y, size, label: label.clone(), kind: DotKind::Best };
        let dots = dots.into_iter().map(dot).collect();
        well_formed(&scatter(&Scatter { title: label.clone(), x: label.clone(), y: label.clone(), dots }));
    }
}

proptest! {
    // Rendering pixels takes longer than text.
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn any_words_become_pixels(label in ".{0,40}", value in any::<f64>()) {
        let track = track([(1, 1.0), (2, value), (3, 2.0)]);
        let chart = Chart {
            heading: Some(Heading { tag: label.clone(), tone: Tone::Page, sentence: label.clone() }),
            bars: Vec::new(),
            title: label.clone(),
            description: label.clone(),
            steps: (1, 3),
            panels: vec![Panel { leads: true, ..panel(&label, &track) }],
            marks: vec![mark(2, &label, Tone::Page)],
            spans: Vec::new(),
        };
        prop_assert!(png::png(&svg(&chart, Look::CARD)).is_ok());
    }
}
