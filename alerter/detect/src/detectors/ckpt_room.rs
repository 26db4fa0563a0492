//! Detects that the next checkpoints do not fit on the file system that they are written to.
//!
//! Only for runs whose `ckpt` events have `free_bytes`. What a checkpoint takes is its usual size,
//! or the fall of the free space from one to the next, if that is more: the median of the last 8,
//! once three falls are known. A run that keeps its last few checkpoints and deletes the oldest has
//! a steady free space, so it is not judged by the free space alone: fewer than `fits` more must
//! fit at the fall that is left beside what is deleted. That is a ticket.
//!
//! Less than one is a ticket at once, if the last one was not made up for by a deletion. It is a
//! page when a save begins with so little, or when it ended so and nothing was deleted between the
//! last ones. A run may delete the oldest checkpoint before or after it writes one, so less space
//! than was seen to be enough in the same moment of an earlier save is asked for.
//!
//! It is over when the free space stays as it is, or when one more fits than a ticket asks for.

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::{Room, RunState, Sort, median};
use crate::stats::latch::Latch;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Change, Finding, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// How many more checkpoints must fit: an engineering limit, the time to make room.
    pub fits: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, fits: 3.0 }
    }
}

/// Falls of the free space from which the usual one is known.
const FALLS: usize = 3;
/// Shares of a checkpoint: a smaller fall is none, and a fall below the other means that something
/// was deleted. And the share of the space that was enough once below which space is scarcer than
/// then. Engineering limits.
const STEADY: f64 = 0.1;
const DELETED: f64 = 0.5;
const SCARCER: f64 = 0.9;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CkptRoom {
    latch: Latch,
    /// Step and moment of the last reading that was judged.
    judged: Option<Box<(i64, bool)>>,
}

/// The space that is left, in bytes.
#[derive(Debug, Clone, Copy)]
struct Outlook {
    free: f64,
    /// What the next checkpoint takes.
    takes: f64,
    /// The usual fall from one checkpoint to the next, once it is known.
    fall: Option<f64>,
    falls: usize,
    /// The fall to the last one.
    last_fall: f64,
    /// Something was deleted between two of them.
    deletes: bool,
    /// The usual time from one to the next.
    every: Option<Span>,
    /// When the last one ended.
    ended: Option<Ts>,
    begins: bool,
    /// Less space than this was never seen to be enough.
    enough: Option<f64>,
}

impl Outlook {
    /// None if the size of a checkpoint is unknown.
    fn of(sort: &Sort) -> Option<Self> {
        let last = *sort.rooms().back()?;
        let ends: Vec<&Room> = sort.rooms().iter().filter(|room| !room.begins).collect();
        let pairs = || ends.iter().zip(ends.iter().skip(1));
        let falls: Vec<f64> = pairs().map(|(before, after)| before.free - after.free).collect();
        let size = median(ends.iter().filter_map(|end| end.bytes));
        let fall = (falls.len() >= FALLS).then(|| median(falls.iter().copied()));
        let takes = size.max(fall.unwrap_or(0.0));
        let every = median(pairs().map(|(before, after)| (after.at - before.at).as_secs_f64()));
        (takes > 0.0).then(|| Self {
            free: last.free,
            takes,
            fall,
            falls: falls.len(),
            last_fall: falls.last().copied().unwrap_or(0.0),
            deletes: falls.iter().any(|fall| *fall < DELETED * takes),
            every: (every > 0.0).then(|| Span::from_secs_f64(every)),
            ended: ends.last().map(|end| end.at),
            begins: last.begins,
            enough: sort.enough(last.begins),
        })
    }

    /// Whether less than one more fits, and less space is left than was ever enough.
    fn lacks(&self) -> bool {
        self.free < self.takes && self.enough.is_none_or(|enough| self.free < SCARCER * enough)
    }

    /// The usual fall, if the file system fills.
    fn filling(&self) -> Option<f64> {
        self.fall.filter(|fall| *fall > STEADY * self.takes)
    }

    /// How many more fit.
    fn more(&self) -> f64 {
        self.free / self.filling().unwrap_or(self.takes)
    }

    fn severity(&self, c: &Config) -> Option<Severity> {
        if self.lacks() {
            let fills = self.filling().is_some() && !self.deletes;
            if self.begins || fills {
                return Some(Severity::Page);
            }
            if self.last_fall >= DELETED * self.takes {
                return Some(Severity::Ticket);
            }
        }
        (self.filling().is_some() && self.more() < c.fits).then_some(Severity::Ticket)
    }

    fn sentence(&self, now: Ts) -> Sentence {
        let [free, takes] = [self.free, self.takes].map(|bytes| bytes / 1e9);
        let remedy = clause!("delete old checkpoints, or let the trainer keep fewer");
        if self.lacks() {
            let due = self.every.zip(self.ended).map(|(every, ended)| ended + every - now);
            let due = due.filter(|due| !self.begins && *due > Span::ZERO);
            return Sentence::from(clause!(
                "{free_gigabytes} GB are free where the checkpoints are written, and one takes {gigabytes} GB: less \
                 than one fits",
                free_gigabytes = free,
                gigabytes = takes,
            ))
            .and_perhaps(due.map(|due| clause!("the next one is due in {due}", due)))
            .and(remedy);
        }
        let left = self.every.map(|every| {
            let left = Span::from_secs_f64(self.more() * every.as_secs_f64());
            clause!("at one every {every} it is full in {left}", every, left)
        });
        Sentence::from(clause!(
            "{more} more checkpoints fit: {free_gigabytes} GB are free where they are written, and each of the last \
             {checkpoints} left {gigabytes} GB less",
            more = self.more().floor() as i64,
            free_gigabytes = free,
            checkpoints = self.falls,
            gigabytes = self.fall.unwrap_or(self.takes) / 1e9,
        ))
        .and_perhaps(left)
        .and(remedy)
    }

    fn relief(&self) -> Sentence {
        let [free, takes] = [self.free, self.takes].map(|bytes| bytes / 1e9);
        Sentence::from(clause!(
            "{free_gigabytes} GB are free where the checkpoints are written, and one takes {gigabytes} GB",
            free_gigabytes = free,
            gigabytes = takes,
        ))
    }
}

impl CkptRoom {
    fn judge(&mut self, c: &Config, view: RunAt<'_>, sort: &Sort, out: &mut Vec<Finding>) {
        let Some(outlook) = Outlook::of(sort) else { return };
        if let Some(severity) = outlook.severity(c) {
            if self.latch.raise(severity) {
                let why = outlook.sentence(view.now);
                out.push(finding(c, view, Some(&outlook), (Change::Raise, severity), why));
            }
            return;
        }
        // When a save begins, the oldest checkpoint may be gone already, and the next one is not
        // there yet.
        let is_roomy = outlook.filling().is_none() || outlook.more() >= c.fits + 1.0;
        if !outlook.begins && is_roomy && self.latch.clear() {
            let clear = (Change::Clear, Severity::Info);
            out.push(finding(c, view, Some(&outlook), clear, outlook.relief()));
        }
    }
}

impl ClockDetector for CkptRoom {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        let f = view.run;
        if f.ended.is_some() {
            if self.latch.clear() {
                let clear = (Change::Clear, Severity::Info);
                out.push(finding(c, view, None, clear, clause!("the run ended").into()));
            }
            return;
        }
        let Some(sort) = f.checkpoints.sort() else { return };
        let last = sort.rooms().back().map(|room| (room.step, room.begins));
        if last.is_some() && self.judged.as_deref() != last.as_ref() {
            self.judged = last.map(Box::new);
            self.judge(c, view, sort, out);
        }
    }

    fn deadline(&self, _: &Config, _: &RunState) -> Option<Ts> {
        None // each report of a checkpoint makes it look
    }
}

fn finding(
    c: &Config,
    view: RunAt<'_>,
    outlook: Option<&Outlook>,
    (change, severity): (Change, Severity),
    why: Sentence,
) -> Finding {
    let more = outlook.map_or(0.0, Outlook::more);
    Finding {
        value: more,
        expected: c.fits,
        score: if more > 0.0 { c.fits / more } else { c.fits },
        why,
        ..view.finding(Kind::CkptRoom, "checkpoint_room", change, severity)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Run;
    use stepwatch_wire::Event;

    /// A trainer that saves 100 GB every 100 steps, or every 100 s.
    struct Trainer {
        run: Run,
        step: i64,
        out: Vec<Finding>,
    }

    impl Trainer {
        fn new() -> Self {
            let mut trainer = Self { run: Run::new("r", Ts(0), &Arc::default()), step: 0, out: Vec::new() };
            trainer.say(r#""k":"hello","world":8"#);
            trainer
        }

        fn say(&mut self, what: &str) {
            let mut e = Event::parse(format!(r#"{{"run":"r","rank":0,{what}}}"#).as_bytes()).unwrap();
            let now = Ts(1000 * self.step);
            e.ts = Some(now.as_secs_f64());
            self.run.event(now, "n:1", &e, &mut self.out);
        }

        fn moves(&mut self) -> &mut Self {
            self.step += 100;
            self.say(&format!(r#""k":"step","step":{},"m":{{"loss":2.0}}"#, self.step));
            self
        }

        /// The save of this step begins or ends with so many GB free.
        fn save(&mut self, phase: &str, free: f64) -> &mut Self {
            let (step, free) = (self.step, free * 1e9);
            self.say(&format!(
                r#""k":"ckpt","phase":"{phase}","step":{step},"path":"/c/{step}","bytes":1e11,"free_bytes":{free}"#
            ));
            self
        }

        /// The next saves end with so many GB free.
        fn ends(&mut self, free: &[f64]) -> &mut Self {
            for free in free {
                self.moves().save("end", *free);
            }
            self
        }

        fn found(&self) -> Vec<(Change, Severity, String)> {
            let found = self.out.iter().filter(|v| v.kind == Kind::CkptRoom);
            found.map(|v| (v.change, v.severity, v.why.to_string())).collect()
        }

        fn changes(&self) -> Vec<(Change, Severity)> {
            self.found().into_iter().map(|(change, severity, _)| (change, severity)).collect()
        }
    }

    const TICKET: (Change, Severity) = (Change::Raise, Severity::Ticket);
    const PAGE: (Change, Severity) = (Change::Raise, Severity::Page);
    const CLEAR: (Change, Severity) = (Change::Clear, Severity::Info);

    #[test]
    fn a_file_system_that_fills_is_a_ticket_and_then_a_page() {
        let mut t = Trainer::new();
        t.ends(&[750.0, 650.0, 550.0, 450.0, 350.0]);
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.ends(&[250.0]);
        assert_eq!(t.changes(), [TICKET]);
        assert_eq!(
            t.found()[0].2,
            "2 more checkpoints fit: 250 GB are free where they are written, and each of the last 5 left 100 GB \
             less; at one every 1m 40s it is full in 4m 10s; delete old checkpoints, or let the trainer keep fewer"
        );
        t.ends(&[150.0]);
        assert_eq!(t.changes(), [TICKET]);
        t.ends(&[50.0]);
        assert_eq!(t.changes(), [TICKET, PAGE]);
        assert_eq!(
            t.found()[1].2,
            "50 GB are free where the checkpoints are written, and one takes 100 GB: less than one fits; the \
             next one is due in 1m 40s; delete old checkpoints, or let the trainer keep fewer"
        );
        let page = t.out.iter().rev().find(|v| v.kind == Kind::CkptRoom).unwrap();
        assert_eq!((page.value, page.expected), (0.5, 3.0));
        t.ends(&[850.0]);
        assert_eq!(t.changes(), [TICKET, PAGE, CLEAR]);
    }

    #[test]
    fn a_run_that_deletes_the_oldest_has_room() {
        let mut t = Trainer::new();
        t.ends(&[700.0, 600.0, 500.0, 500.0, 500.0, 500.0, 495.0, 503.0, 500.0, 500.0]);
        assert!(t.found().is_empty(), "{:?}", t.found());
        // It deletes the oldest after it has written one: 20 GB are left in between.
        let mut t = Trainer::new();
        for _ in 0..8 {
            t.moves().save("start", 120.0).save("end", 20.0);
        }
        assert!(t.found().is_empty(), "{:?}", t.found());
    }

    #[test]
    fn what_was_enough_before_is_enough() {
        // It deletes the oldest before it writes one.
        let mut t = Trainer::new();
        for _ in 0..8 {
            t.moves().save("end", 60.0);
        }
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.ends(&[2.0]);
        assert_eq!(t.changes(), [TICKET], "58 GB more are gone");
    }

    #[test]
    fn a_save_that_begins_without_room_is_a_page() {
        let mut t = Trainer::new();
        t.moves().save("start", 390.0).save("end", 290.0);
        t.moves().save("start", 290.0).save("end", 190.0);
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.moves().save("start", 70.0);
        assert_eq!(t.changes(), [PAGE]);
        let why = &t.found()[0].2;
        assert!(why.starts_with("70 GB are free") && !why.contains("due in"), "{why}");
        t.save("end", 300.0);
        assert_eq!(t.changes(), [PAGE, CLEAR]);
    }

    #[test]
    fn less_than_one_is_a_ticket_until_it_is_known_whether_the_oldest_is_deleted() {
        let mut t = Trainer::new();
        t.ends(&[150.0, 50.0]);
        assert_eq!(t.changes(), [TICKET]);
        t.ends(&[50.0]);
        assert_eq!(t.changes(), [TICKET, CLEAR]);
    }

    #[test]
    fn it_ends_with_the_run_and_outlives_a_restart() {
        let mut t = Trainer::new();
        t.ends(&[550.0, 450.0, 350.0, 250.0]);
        assert_eq!(t.changes(), [TICKET]);
        t.step = 100;
        t.moves();
        assert_eq!((t.run.state.attempt, t.changes()), (1, vec![TICKET]));
        t.say(r#""k":"bye","code":0"#);
        assert_eq!(t.changes(), [TICKET, CLEAR]);
    }

    #[test]
    fn what_is_no_number_is_not_judged() {
        let mut t = Trainer::new();
        for _ in 0..5 {
            t.moves();
            for free in ["\"NaN\"", "-1", "null", "\"much\"", "[1]"] {
                let step = t.step;
                let what = r#""k":"ckpt","phase":"end","path":"/c""#;
                t.say(&format!(r#"{what},"step":{step},"bytes":1e11,"free_bytes":{free}"#));
            }
        }
        assert!(t.found().is_empty(), "{:?}", t.found());
    }
}
