//! A loss that turns null or is left out of its line is an event in every format of lines.

use stepwatch_wire::{Event, Kind};

use super::Written;
use crate::LogReader;
use crate::line_formats::FORMATS;

/// Lines that had the loss before it is missed, as `absent.rs` has it.
const USUAL: i64 = 20;
/// Formats that write no steps: a file that has checkpoints only.
const WITHOUT: &[&str] = &["megatron-progress"];

/// A format and a way in which it writes a step.
struct Way {
    format: &'static str,
    written: Written,
}

fn ways() -> impl Iterator<Item = Way> {
    FORMATS.iter().flat_map(|f| f.samples.written.iter().map(|w| Way { format: f.name, written: *w }))
}

impl Way {
    fn step(&self, step: i64, loss: &str) -> String {
        let parts: Vec<_> = self.written.line.split(['⟨', '⟩']).collect();
        let line = match parts[..] {
            [head, _, rest] if loss.is_empty() => [head, rest].concat(),
            _ => parts.concat(),
        };
        line.replace('§', &(100 + step).to_string()).replace('¤', loss)
    }

    fn read(&self, losses: &[&str]) -> Vec<Event> {
        let mut events = Vec::new();
        let found = LogReader::new(None).map(|mut reader| {
            for (step, loss) in (1..).zip(losses) {
                for line in self.step(step, loss).lines().chain(self.written.end) {
                    reader.line(line, &mut events);
                }
            }
            reader.name()
        });
        assert_eq!(found, Ok(self.format), "{}", self.written.line);
        events
    }

    /// The steps that lack something, and what, of a log whose losses are these.
    fn missing(&self, losses: &[&str]) -> Vec<(Option<i64>, Vec<String>)> {
        let events = self.read(losses);
        let steps = events.iter().filter(|e| e.kind == Kind::Step && !e.missing.is_empty());
        steps.map(|e| (e.step, e.missing.clone())).collect()
    }

    /// Steps are counted from 101, and where the log has none, from 1.
    fn at(&self, step: i64) -> i64 {
        if self.written.line.contains('§') { 100 + step } else { step }
    }
}

/// Losses, each another, of so many steps.
fn losses(n: i64) -> Vec<String> {
    (0..n).map(|i| format!("{:.4}", 9.5 - 0.0625 * i as f64)).collect()
}

fn and<'a>(losses: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    losses.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

/// All that is not as it should be.
fn none_differs(of: impl Fn(&Way) -> Option<String>) {
    let differs = |way: Way| Some(format!("{}\n    {}", way.written.line, of(&way)?));
    let wrong: Vec<_> = ways().filter_map(differs).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_format_says_how_it_writes_a_step() {
    for f in FORMATS {
        assert_eq!(f.samples.written.is_empty(), WITHOUT.contains(&f.name), "{}", f.name);
    }
    none_differs(|way| {
        let marks: String = way.written.line.chars().filter(|c| "⟨¤⟩".contains(*c)).collect();
        (marks != "⟨¤⟩").then_some(marks)
    });
}

#[test]
fn a_loss_that_vanishes_from_its_line_is_missing_in_every_format() {
    let usual = losses(USUAL + 2);
    none_differs(|way| {
        let last = way.at(USUAL + 3);
        let more: &[&str] = if way.written.bare { &["", ""] } else { &[""] };
        let want: Vec<_> =
            (last..).take(more.len()).map(|step| (Some(step), vec!["loss".to_owned()])).collect();
        let found = way.missing(&and(&usual, more));
        (found != want).then(|| format!("{found:?}"))
    });
}

#[test]
fn a_loss_that_turns_into_a_word_is_missing_in_every_format() {
    let usual = losses(3);
    none_differs(|way| {
        let found = way.missing(&and(&usual, &[way.written.word?]));
        let want = [(Some(way.at(4)), vec!["loss".to_owned()])];
        (found != want).then(|| format!("{found:?}"))
    });
}

#[test]
fn a_loss_of_nan_is_a_number_that_is_not_finite_in_every_format() {
    let usual = losses(3);
    none_differs(|way| {
        let events = way.read(&and(&usual, &[way.written.nan]));
        let last = events.iter().rfind(|e| e.kind == Kind::Step);
        let lost = last.is_some_and(|e| e.m.get("loss").is_some_and(f64::is_nan));
        (!lost).then(|| format!("{last:?}"))
    });
}

#[test]
fn a_metric_of_its_own_that_turns_into_a_word_is_missing() {
    let usual = losses(USUAL);
    for f in FORMATS {
        for written in f.samples.own {
            let way = Way { format: f.name, written: *written };
            let want = [(Some(way.at(USUAL + 1)), vec!["reward".to_owned()])];
            let word = written.word.unwrap();
            assert_eq!(way.missing(&and(&usual, &[word])), want, "{}", written.line);
        }
    }
}

/// What is logged only now and then is not missed, however long.
#[test]
fn a_loss_of_every_other_line_is_not_missed() {
    let all = losses(90);
    for every in [2, 3, 10] {
        let some: Vec<_> =
            (0..).zip(&all).map(|(i, l)| if i < 2 || i % every == 0 { l.as_str() } else { "" }).collect();
        none_differs(|way| {
            let found = if way.written.always { Vec::new() } else { way.missing(&some) };
            (!found.is_empty()).then(|| format!("every {every}: {found:?}"))
        });
    }
}
