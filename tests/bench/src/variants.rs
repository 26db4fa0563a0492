//! The same runs as others would have recorded them: fewer lines, other units, other clocks,
//! columns and lines that are gone, repeated or out of order. What is detected must not hang on any
//! of that, as far as it can still be seen.
//!
//! A label of which a variant leaves nothing to be seen is *out of sight* and not counted: none of
//! its lines or signals is there. One that leaves a page a single line is worth a ticket: that it
//! lasted cannot be seen any more.

use crate::label::{Family, Label, Urgency};
use crate::random::Random;
use crate::table::{SPEEDS, TIMESTAMP, Table, digits, number, print};

/// Shortest recording that is judged, in lines.
const SHORTEST: usize = 40;
/// Lines in which a page must be seen to be one.
const LASTING: usize = 2;

/// A way to record.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    pub name: &'static str,
    make: fn(&mut Table, &mut Vec<Label>, &mut Random) -> bool,
    /// Lines are missing that were there.
    thinned: bool,
}

/// A run recorded in another way.
#[derive(Debug)]
pub struct Varied {
    pub table: Table,
    pub labels: Vec<Label>,
    /// Faults that had begun before the first line: to notice them is not required, and not wrong.
    pub under_way: Vec<Label>,
    /// Labels that cannot be seen any more.
    pub out_of_sight: usize,
}

impl Variant {
    /// `None` where the run cannot be recorded that way.
    pub fn record(&self, run: &str, table: &Table, labels: &[Label]) -> Option<Varied> {
        let (mut table, mut labels) = (table.clone(), labels.to_vec());
        let made = (self.make)(&mut table, &mut labels, &mut Random::for_name(run, 0));
        if !made || table.rows.len() < SHORTEST {
            return None;
        }
        let first = table.steps().first().copied().unwrap_or(0);
        let (under_way, labels): (Vec<Label>, Vec<Label>) =
            labels.into_iter().filter(|l| l.end >= first).partition(|l| l.start < first);
        let mut varied = Varied { table, labels, under_way, out_of_sight: 0 };
        varied.out_of_sight = varied.judge_sight(self.thinned);
        Some(varied)
    }
}

impl Varied {
    /// Lowers what cannot be seen as it was; how many labels cannot be seen at all.
    fn judge_sight(&mut self, thinned: bool) -> usize {
        let mut out_of_sight = 0;
        for label in self.labels.iter_mut().filter(|l| l.severity > Urgency::Info) {
            let family = Family::from_class(&label.class);
            let lines = lines(&self.table, label);
            if lines == 0 || !shows(&self.table, family) {
                label.severity = Urgency::Info;
                out_of_sight += 1;
            } else if thinned && lines < LASTING && family != Family::Nonfinite {
                label.severity = Urgency::Warn;
            }
        }
        out_of_sight
    }
}

/// Lines of the label that contain a value.
fn lines(table: &Table, label: &Label) -> usize {
    let of = |row: &usize| (label.start..=label.end).contains(&table.step(*row));
    let has_value = |row: &usize| table.rows[*row][1..].iter().any(|cell| !cell.is_empty());
    (0..table.rows.len()).filter(of).filter(has_value).count()
}

/// Whether a signal is there that labels of the family are seen in.
fn shows(table: &Table, family: Family) -> bool {
    let has = |columns: &[&str]| columns.iter().any(|c| table.column(c).is_some());
    match family {
        Family::Loss => has(&["loss"]),
        Family::Grad => has(&["grad_norm"]),
        Family::Nonfinite | Family::Numerics => has(&["loss", "grad_norm"]),
        Family::Speed => has(&SPEEDS) || has(&[TIMESTAMP]),
        _ => true,
    }
}

const fn variant(name: &'static str, make: fn(&mut Table, &mut Vec<Label>, &mut Random) -> bool) -> Variant {
    Variant { name, make, thinned: false }
}

const fn thinned(name: &'static str, make: fn(&mut Table, &mut Vec<Label>, &mut Random) -> bool) -> Variant {
    Variant { name, make, thinned: true }
}

/// Every way, in the order of the report.
pub const ALL: &[Variant] = &[
    variant("as recorded", |_, _, _| true),
    thinned("every 2nd line", |t, _, _| every(t, 2)),
    thinned("every 3rd line", |t, _, _| every(t, 3)),
    thinned("every 5th line", |t, _, _| every(t, 5)),
    thinned("every 10th line", |t, _, _| every(t, 10)),
    thinned("means of 3 lines", |t, _, _| means(t, 3)),
    thinned("means of 10 lines", |t, _, _| means(t, 10)),
    variant("first half cut off", |t, _, _| cut(t, 0.5)),
    variant("cut off anywhere", |t, _, random| cut(t, random.between(0.1, 0.7))),
    variant("steps a million later", |t, labels, _| steps(t, labels, |s| s + 1_000_000)),
    variant("7 steps a step", |t, labels, _| steps(t, labels, |s| s * 7)),
    variant("2 digits", |t, _, _| rounded(t, 2)),
    variant("3 digits", |t, _, _| rounded(t, 3)),
    variant("a tenth of the time", |t, _, _| slower(t, 0.1)),
    variant("ten times the time", |t, _, _| slower(t, 10.0)),
    variant("time by timestamps only", |t, _, _| clock(t, |at| format!("{at:.3}"))),
    variant("time by timestamps of whole seconds", |t, _, _| clock(t, |at| format!("{at:.0}"))),
    variant("late timestamps beside step times", |t, _, random| {
        let timed = t.add_time();
        t.change(TIMESTAMP, |_, at| format!("{:.3}", at + random.between(0.0, 2.0)));
        timed
    }),
    variant("loss alone", |t, _, _| t.column("loss").is_some() && t.keep(|c| c == "loss")),
    variant("gradient norm alone", |t, _, _| t.column("grad_norm").is_some() && t.keep(|c| c == "grad_norm")),
    variant("no learning rate", |t, _, _| t.column("lr").is_some() && t.keep(|c| c != "lr")),
    variant("no step time", |t, _, _| t.column(SPEEDS[0]).is_some() && t.keep(|c| c != SPEEDS[0])),
    variant("every 10th line twice", |t, _, _| twice(t)),
    variant("lines out of order", |t, _, random| disorder(t, random)),
    variant("empty lines", |t, _, random| empty(t, random)),
    variant("3 restarts, 25 lines back", |t, _, _| restarts(t)),
    variant("a pause of 6 h", |t, labels, _| pause(t, labels, 0)),
    variant("a pause of 6 h, and a restart", |t, labels, _| pause(t, labels, 25)),
    variant("loss in bits", |t, _, _| unit(t, "loss", std::f64::consts::LOG2_E)),
    variant("loss in thousandths", |t, _, _| unit(t, "loss", 1000.0)),
    variant("gradient norm in thousands", |t, _, _| unit(t, "grad_norm", 1e-3)),
];

fn every(t: &mut Table, n: usize) -> bool {
    t.rows = t.rows.iter().step_by(n).cloned().collect();
    true
}

/// As trainers do that log the mean since the last line.
fn means(t: &mut Table, n: usize) -> bool {
    let averaged: Vec<usize> = SPEEDS.iter().chain(&["loss"]).filter_map(|c| t.column(c)).collect();
    let mean = |rows: &[Vec<String>]| {
        let mut last = rows[n - 1].clone();
        for at in &averaged {
            let cells: Vec<&String> = rows.iter().map(|r| &r[*at]).filter(|c| !c.is_empty()).collect();
            let known: Vec<f64> = cells.iter().filter_map(|c| c.trim().parse().ok()).collect();
            let finest = cells.iter().map(|c| digits(c)).max().unwrap_or(1);
            let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
            last[*at] = match known.len() {
                0 => String::new(),
                _ if mean.is_finite() => print(mean, finest),
                _ => mean.to_string(),
            };
        }
        last
    };
    t.rows = t.rows.chunks_exact(n).map(mean).collect();
    true
}

fn cut(t: &mut Table, share: f64) -> bool {
    t.rows.drain(..(t.rows.len() as f64 * share) as usize);
    true
}

fn steps(t: &mut Table, labels: &mut [Label], f: impl Fn(i64) -> i64) -> bool {
    t.renumber(|_, step| f(step));
    labels.iter_mut().for_each(|l| (l.start, l.end) = (f(l.start), f(l.end)));
    true
}

fn rounded(t: &mut Table, digits: usize) -> bool {
    for name in SPEEDS.iter().chain(&["loss", "grad_norm", "lr"]) {
        t.change(name, |_, v| print(v, digits));
    }
    true
}

fn slower(t: &mut Table, times: f64) -> bool {
    t.change(SPEEDS[0], |cell, v| print(v * times, digits(cell)));
    SPEEDS[1..].iter().for_each(|name| t.change(name, |cell, v| print(v / times, digits(cell))));
    let mut first = None;
    t.change(TIMESTAMP, |_, v| {
        let first = *first.get_or_insert(v);
        format!("{:.3}", first + (v - first) * times)
    });
    true
}

fn clock(t: &mut Table, print: impl Fn(f64) -> String) -> bool {
    let timed = t.add_time();
    t.change(TIMESTAMP, |_, at| print(at));
    timed && t.keep(|c| !SPEEDS.contains(&c))
}

fn twice(t: &mut Table) -> bool {
    let rows = t.rows.iter().enumerate();
    t.rows =
        rows.flat_map(|(i, row)| std::iter::repeat_n(row.clone(), if i % 10 == 0 { 2 } else { 1 })).collect();
    true
}

/// One line in five comes with two others in another order.
fn disorder(t: &mut Table, random: &mut Random) -> bool {
    for three in t.rows.chunks_exact_mut(3) {
        if random.unit() < 0.5 {
            three.rotate_left(1 + random.below(2));
            three[1..].rotate_left(random.below(2));
        }
    }
    true
}

fn empty(t: &mut Table, random: &mut Random) -> bool {
    for row in &mut t.rows {
        if random.unit() < 0.02 {
            row[1..].iter_mut().for_each(String::clear);
        }
    }
    true
}

fn restarts(t: &mut Table) -> bool {
    let quarter = t.rows.len() / 4;
    let parts = (0..4).map(|i| {
        let from = (i * quarter).saturating_sub(if i > 0 { 25 } else { 0 });
        from..if i == 3 { t.rows.len() } else { (i + 1) * quarter }
    });
    let mut rows: Vec<Vec<String>> = parts.flat_map(|part| t.rows[part].to_vec()).collect();
    if let Some(at) = t.column(TIMESTAMP) {
        let (mut ahead, mut last) = (0.0, f64::NEG_INFINITY);
        for row in &mut rows {
            let Some(logged) = number(&row[at]) else { continue };
            if logged + ahead < last {
                ahead = last - logged + 60.0;
            }
            last = logged + ahead;
            row[at] = format!("{last:.3}");
        }
    }
    t.rows = rows;
    true
}

/// Half way, in the night; the run goes on so many lines before where it stood.
fn pause(t: &mut Table, labels: &mut Vec<Label>, back: usize) -> bool {
    if !t.add_time() {
        return false;
    }
    let (half, at) = (t.rows.len() / 2, t.header.len() - 1);
    let Some(at) = t.column(TIMESTAMP).or(Some(at)) else { return false };
    let mut late: Vec<Vec<String>> = t.rows[half.saturating_sub(back)..].to_vec();
    for row in &mut late {
        if let Some(v) = number(&row[at]) {
            row[at] = format!("{:.3}", v + 21_600.0);
        }
    }
    let end = t.step(half);
    labels.push(Label {
        class: "truncated".into(),
        start: t.step(half.saturating_sub(back)),
        end,
        severity: Urgency::Warn,
    });
    t.rows.truncate(half);
    t.rows.extend(late);
    true
}

fn unit(t: &mut Table, name: &str, times: f64) -> bool {
    t.change(name, |cell, v| print(v * times, digits(cell)));
    t.column(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |i: i64| vec![i.to_string(), format!("{:.3}", 2.0 + i as f64 * 1e-3), "1.5".into()];
        Table {
            header: ["step", "loss", SPEEDS[0]].map(str::to_owned).to_vec(),
            rows: (0..500).map(row).collect(),
        }
    }

    fn label(class: &str, start: i64, end: i64) -> Label {
        Label { class: class.into(), start, end, severity: Urgency::Page }
    }

    fn of(name: &str, labels: &[Label]) -> Varied {
        let variant = ALL.iter().find(|v| v.name == name).unwrap();
        variant.record("r", &table(), labels).unwrap()
    }

    #[test]
    fn what_leaves_no_line_is_out_of_sight_and_what_leaves_one_is_no_page() {
        let labels =
            [label("loss_spike", 101, 104), label("loss_spike", 100, 109), label("loss_spike", 50, 80)];
        let v = of("every 10th line", &labels[..1]);
        assert!(v.out_of_sight == 1 && v.labels[0].severity == Urgency::Info);
        let v = of("every 5th line", &labels);
        let severities: Vec<_> = v.labels.iter().map(|l| l.severity).collect();
        assert_eq!((v.out_of_sight, severities), (1, vec![Urgency::Info, Urgency::Page, Urgency::Page]));
        assert_eq!(of("as recorded", &labels).out_of_sight, 0);
    }

    #[test]
    fn what_had_begun_before_the_first_line_excuses_and_obliges_nobody() {
        let labels = [label("droop", 20, 480), label("droop", 20, 30), label("droop", 320, 330)];
        let v = of("first half cut off", &labels);
        assert_eq!((v.labels.len(), v.under_way.len(), v.out_of_sight), (1, 1, 0));
    }

    #[test]
    fn a_signal_that_is_gone_takes_its_labels_along() {
        let v = of("loss alone", &[label("droop", 50, 80), label("loss_spike", 50, 80)]);
        assert_eq!((v.out_of_sight, v.table.header.len()), (1, 2));
    }

    #[test]
    fn every_variant_leaves_lines_that_are_whole() {
        for variant in ALL {
            let Some(v) = variant.record("r", &table(), &[label("loss_spike", 50, 80)]) else { continue };
            assert!(v.table.rows.iter().all(|r| r.len() == v.table.header.len()), "{}", variant.name);
            assert!(v.labels.iter().chain(&v.under_way).all(|l| l.start <= l.end), "{}", variant.name);
        }
        let v = of("3 restarts, 25 lines back", &[]);
        assert_eq!((v.table.rows.len(), v.table.steps().len()), (575, 500));
    }
}
