//! Detects that the next checkpoints do not fit on the file system that they are written to.
//!
//! Only for runs whose `ckpt` events have `free_bytes`. A run that keeps its last few checkpoints
//! and deletes the oldest looks as if it filled the file system until the first deletion, and the
//! space may be read before a deletion or after it. So how fast it falls is not judged before the
//! space after 8 checkpoints is known. What is left after the best of the newer four, against the
//! best of the older four, is the fall from save to save. If one of the last four checkpoints took
//! less than half of its size, something was deleted, and nothing is raised. A run that keeps more
//! than it saved since it began to be read looks as if it filled the file system: that is a ticket,
//! and a page only where less than one fits.
//!
//! Fewer than `fits` more saves at this fall are a ticket. Less free space than one checkpoint
//! takes, and than was seen to be enough in the same moment of an earlier save, is a page if the
//! space falls. Where the space is reported when a save begins as well, that moment decides: a run
//! may delete the oldest one just before. If it does not fall, but a save begins with so little, it
//! is a ticket. What others write is no checkpoint, so how fast they fill it makes no page.
//!
//! Before that, less space than the last checkpoint took, and than was ever enough, is a ticket
//! when the next save begins, and after the first checkpoint of all, when there is none yet that
//! could be deleted. Only a run that is seen from its beginning is judged so: one that goes on may
//! delete what it saved before. Nor is one told after its first checkpoint that uploads it, and may
//! then remove it. Once anything was deleted, the 8 are awaited, and the ticket is over. It is over
//! too when one has room again.
//!
//! It is over when the space falls no more, when something was deleted before each of the last two
//! readings, or when one more fits than a ticket asks for. Several directories are judged apart,
//! and only the one that was reported ends the incident.

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::{ENDS_KEPT, Room, RunState, Sort, median};
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

/// Readings in a half of those that are kept.
const HALF: usize = ENDS_KEPT / 2;
/// Shares of a checkpoint: a smaller fall is none, and a fall below the other means that something
/// was deleted. And the share of the space that was enough once below which space is scarcer than
/// then. Engineering limits.
const STEADY: f64 = 0.1;
const DELETED: f64 = 0.5;
const SCARCER: f64 = 0.9;
/// Multiple of a checkpoint from which a fall is named apart from it: others write there too.
const OTHERS: f64 = 1.5;
/// Readings in a row before each of which something was deleted, so that an incident ends.
const ROTATES: usize = 2;

/// None until the free space was judged.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CkptRoom(Option<Box<Found>>);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Found {
    latch: Latch,
    attempt: u32,
    /// Sort, step and moment of the last reading that was judged.
    judged: Option<(u64, i64, bool)>,
    /// The sort that is reported. None after a restart, which may save elsewhere.
    raised: Option<u64>,
}

/// The space that is left, in bytes.
#[derive(Debug, Clone, Copy)]
struct Outlook {
    free: f64,
    /// What a checkpoint takes, if that is known.
    size: Option<f64>,
    /// How much less is left from one checkpoint to the next.
    fall: f64,
    /// The last readings in a row before each of which something was deleted.
    deletions: usize,
    /// Something was deleted before one of the newer half of the readings.
    deletes: bool,
    /// The usual time from one to the next.
    every: Option<Span>,
    /// When the last one ended.
    ended: Option<Ts>,
    begins: bool,
    /// That moment decides whether a save has room.
    decides: bool,
    /// Less space than this was never seen to be enough.
    enough: Option<f64>,
}

impl Outlook {
    /// None until the space after enough checkpoints is known, and if neither their size is nor
    /// that the space falls.
    fn of(sort: &Sort) -> Option<Self> {
        let (last, ends) = (sort.last_room()?, sort.ends());
        if ends.len() < ENDS_KEPT {
            return None;
        }
        let pairs = || ends.iter().zip(ends.iter().skip(1));
        let sizes: Vec<f64> = ends.iter().filter_map(|end| end.bytes).collect();
        let size = (!sizes.is_empty()).then(|| median(sizes.into_iter()));
        let best = |from: usize| ends.iter().skip(from).take(HALF).map(|end| end.free).fold(0.0, f64::max);
        let fall = (best(0) - best(HALF)) / HALF as f64;
        let takes = size.unwrap_or(fall);
        let is_deletion = |fall: f64| fall < DELETED * takes;
        let falls: Vec<f64> = pairs().rev().map(|(before, after)| before.free - after.free).collect();
        let every = median(pairs().map(|(before, after)| (after.at - before.at).as_secs_f64()));
        (takes > 0.0).then(|| Self {
            free: last.free,
            size,
            fall,
            deletions: falls.iter().take_while(|fall| is_deletion(**fall)).count(),
            deletes: falls.iter().take(HALF).any(|fall| is_deletion(*fall)),
            every: (every > 0.0).then(|| Span::from_secs_f64(every)),
            ended: ends.back().map(|end| end.at),
            begins: last.begins,
            decides: last.begins || !sort.tells_beginnings(),
            enough: sort.enough(last.begins),
        })
    }

    /// The same until enough of them are known, as if nothing were ever deleted. None if the size
    /// of the last one is not known.
    fn early(sort: &Sort) -> Option<Self> {
        let (last, ends) = (sort.last_room()?, sort.ends());
        let size = ends.iter().rev().find_map(|end| end.bytes).filter(|size| *size > 0.0)?;
        let readings = || ends.iter().copied().chain(Some(last).filter(|last| last.begins));
        let deletes = |(before, after): (Room, Room)| {
            let least = if after.begins { -DELETED } else { DELETED };
            before.free - after.free < least * size
        };
        Some(Self {
            free: last.free,
            size: Some(size),
            fall: size,
            deletions: 0,
            deletes: readings().zip(readings().skip(1)).any(deletes),
            every: None,
            ended: None,
            begins: last.begins,
            decides: false,
            enough: sort.enough(last.begins),
        })
    }

    /// What the next checkpoint takes, as far as that is known.
    fn takes(&self) -> f64 {
        self.size.unwrap_or(self.fall)
    }

    /// Whether less than one more fits, and less space is left than was ever enough.
    fn lacks(&self) -> bool {
        self.size.is_some_and(|size| self.free < size)
            && self.enough.is_none_or(|enough| self.free < SCARCER * enough)
    }

    /// The fall, if the file system fills.
    fn filling(&self) -> Option<f64> {
        Some(self.fall).filter(|fall| *fall > STEADY * self.takes())
    }

    /// How many more fit.
    fn more(&self) -> f64 {
        self.free / self.filling().unwrap_or(self.takes())
    }

    fn severity(&self, c: &Config) -> Option<Severity> {
        let fills = self.filling().is_some() && !self.deletes;
        if self.lacks() && fills && self.decides {
            Some(Severity::Page)
        } else if self.lacks() && self.begins || fills && self.more() < c.fits {
            Some(Severity::Ticket)
        } else {
            None
        }
    }

    fn is_over(&self, c: &Config) -> bool {
        // When a save begins, the oldest checkpoint may be gone already, and the next one is not
        // there yet.
        let is_roomy = self.filling().is_none() || self.more() >= c.fits + 1.0;
        !self.begins && (is_roomy || self.deletions >= ROTATES)
    }

    fn sentence(&self, now: Ts) -> Sentence {
        let (free, fall) = (self.free / 1e9, self.fall / 1e9);
        let fills = self.filling().is_some();
        let lacks = self.size.filter(|_| self.lacks());
        let fit = match lacks.or(self.size.filter(|size| fills && self.fall > OTHERS * size)) {
            Some(size) => clause!(
                "{free_gigabytes} GB are free where the checkpoints are written, and one takes {gigabytes} GB",
                free_gigabytes = free,
                gigabytes = size / 1e9,
            ),
            None => clause!(
                "{more} more checkpoints fit: {free_gigabytes} GB are free where they are written, {gigabytes} GB \
                 less from save to save",
                more = self.more().floor() as i64,
                free_gigabytes = free,
                gigabytes = fall,
            ),
        };
        let due = self.every.zip(self.ended).map(|(every, ended)| ended + every - now);
        let due = due.filter(|due| lacks.is_some() && !self.begins && *due > Span::ZERO);
        let by_others = self.size.is_some_and(|size| fills && self.fall > OTHERS * size);
        let left = self.every.filter(|_| fills && (lacks.is_none() || by_others)).map(|every| {
            let left = Span::from_secs_f64(self.more() * every.as_secs_f64());
            clause!("at one every {every} it is full in {left}", every, left)
        });
        Sentence::from(fit)
            .and_perhaps(lacks.map(|_| clause!("less than one fits")))
            .and_perhaps(due.map(|due| clause!("the next one is due in {due}", due)))
            .and_perhaps(by_others.then(|| {
                clause!("others fill it too: it has {gigabytes} GB less from save to save", gigabytes = fall)
            }))
            .and_perhaps(left)
            .and(clause!("delete old checkpoints, or let the trainer keep fewer"))
    }

    fn relief(&self) -> Sentence {
        let size = self.size.map(|size| clause!("one takes {gigabytes} GB", gigabytes = size / 1e9));
        Sentence::from(clause!(
            "{free_gigabytes} GB are free where the checkpoints are written",
            free_gigabytes = self.free / 1e9,
        ))
        .and_perhaps(size)
    }
}

impl Found {
    fn judge(&mut self, c: &Config, view: RunAt<'_>, sort: &Sort, out: &mut Vec<Finding>) {
        let Some(outlook) = Outlook::of(sort) else { return self.judge_early(c, view, sort, out) };
        if let Some(severity) = outlook.severity(c) {
            if self.latch.raise(severity) {
                self.raised = Some(sort.key());
                let why = outlook.sentence(view.now);
                out.push(finding(c, view, Some(&outlook), (Change::Raise, severity), why));
            }
            return;
        }
        if outlook.is_over(c) {
            self.end(c, view, sort, &outlook, out);
        }
    }

    /// The same while it is not known how fast the space falls.
    fn judge_early(&mut self, c: &Config, view: RunAt<'_>, sort: &Sort, out: &mut Vec<Finding>) {
        let Some(outlook) = Outlook::early(sort) else { return };
        if outlook.deletes || !outlook.lacks() {
            self.end(c, view, sort, &outlook, out);
        } else if is_followed(view.run) && (outlook.begins || is_first(view.run, sort)) {
            let severity = Severity::Ticket;
            if self.latch.raise(severity) {
                self.raised = Some(sort.key());
                let why = outlook.sentence(view.now);
                out.push(finding(c, view, Some(&outlook), (Change::Raise, severity), why));
            }
        }
    }

    /// What was raised of this sort is over.
    fn end(&mut self, c: &Config, view: RunAt<'_>, sort: &Sort, outlook: &Outlook, out: &mut Vec<Finding>) {
        // A sort that was crowded out is not heard of again.
        let knows = |key: u64| view.run.checkpoints.sizes().is_some_and(|sizes| sizes.knows(key));
        let is_it = self.raised.is_none_or(|raised| raised == sort.key() || !knows(raised));
        if is_it && self.latch.clear() {
            let clear = (Change::Clear, Severity::Info);
            out.push(finding(c, view, Some(outlook), clear, outlook.relief()));
        }
    }
}

/// Whether the run is seen from its beginning, so that it has no checkpoint that was not seen.
fn is_followed(f: &RunState) -> bool {
    let first = f.attempts.past.front().map_or(f.attempts.first_step, |attempt| attempt.first_step);
    f.is_first_step(first)
}

/// Whether the last checkpoint is the first one of the run, and stays.
fn is_first(f: &RunState, sort: &Sort) -> bool {
    sort.ends().len() == 1 && f.checkpoints.steps.len() <= 1 && !f.checkpoints.are_uploaded()
}

impl ClockDetector for CkptRoom {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        let f = view.run;
        if f.ended.is_some() {
            if self.0.take().is_some_and(|mut found| found.latch.clear()) {
                let clear = (Change::Clear, Severity::Info);
                out.push(finding(c, view, None, clear, clause!("the run ended").into()));
            }
            return;
        }
        let Some(sort) = f.checkpoints.sort() else { return };
        let Some(last) = sort.last_room().map(|room| (sort.key(), room.step, room.begins)) else { return };
        let found = self.0.get_or_insert_with(|| Box::new(Found { attempt: f.attempt, ..Found::default() }));
        if found.attempt != f.attempt {
            (found.attempt, found.raised) = (f.attempt, None);
        }
        if found.judged != Some(last) {
            found.judged = Some(last);
            found.judge(c, view, sort, out);
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
    use super::*;
    use crate::detectors::testing::Saver;

    fn trainer() -> Saver {
        Saver::new(Kind::CkptRoom)
    }

    /// The same of a run that goes on, and has older checkpoints.
    fn resumed() -> Saver {
        let mut t = trainer();
        t.run.state.attempts.first_step = Some(5001);
        t
    }

    /// It saves 100 GB.
    impl Saver {
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
    }

    const TICKET: (Change, Severity) = (Change::Raise, Severity::Ticket);
    const PAGE: (Change, Severity) = (Change::Raise, Severity::Page);
    const CLEAR: (Change, Severity) = (Change::Clear, Severity::Info);

    #[test]
    fn a_file_system_that_fills_is_a_ticket_and_then_a_page() {
        let mut t = trainer();
        t.ends(&[1050.0, 950.0, 850.0, 750.0, 650.0, 550.0, 450.0, 350.0]);
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.ends(&[250.0]);
        assert_eq!(t.changes(), [TICKET]);
        assert_eq!(
            t.found()[0].1,
            "2 more checkpoints fit: 250 GB are free where they are written, 100 GB less from save to save; at \
             one every 1m 40s it is full in 4m 10s; delete old checkpoints, or let the trainer keep fewer"
        );
        t.ends(&[150.0]);
        assert_eq!(t.changes(), [TICKET]);
        t.ends(&[50.0]);
        assert_eq!(t.changes(), [TICKET, PAGE]);
        assert_eq!(
            t.found()[1].1,
            "50 GB are free where the checkpoints are written, and one takes 100 GB; less than one fits; the \
             next one is due in 1m 40s; delete old checkpoints, or let the trainer keep fewer"
        );
        let page = t.out.iter().rev().find(|v| v.kind == Kind::CkptRoom).unwrap();
        assert_eq!((page.value, page.expected), (0.5, 3.0));
        t.ends(&[1050.0]);
        assert_eq!(t.changes(), [TICKET, PAGE, CLEAR]);
    }

    #[test]
    fn a_run_that_deletes_the_oldest_has_room() {
        for free in [
            // It keeps five, or three. The space is read before the deletion, after it, or either.
            [550.0, 450.0, 350.0, 250.0, 150.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0],
            [550.0, 450.0, 350.0, 250.0, 150.0, 150.0, 150.0, 150.0, 150.0, 150.0, 150.0, 150.0],
            [350.0, 250.0, 150.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0],
            [350.0, 250.0, 150.0, 150.0, 150.0, 150.0, 150.0, 150.0, 150.0, 150.0, 150.0, 150.0],
            [350.0, 250.0, 150.0, 250.0, 150.0, 250.0, 150.0, 250.0, 150.0, 150.0, 250.0, 150.0],
            [350.0, 250.0, 150.0, 50.0, 150.0, 50.0, 150.0, 50.0, 50.0, 150.0, 50.0, 150.0],
            [700.0, 600.0, 500.0, 500.0, 500.0, 500.0, 495.0, 503.0, 500.0, 500.0, 499.0, 501.0],
        ] {
            let mut t = trainer();
            t.ends(&free);
            assert!(t.found().is_empty(), "{free:?}: {:?}", t.found());
        }
        // It deletes the oldest after it has written one: 20 GB are left in between.
        let mut t = resumed();
        for _ in 0..12 {
            t.moves().save("start", 120.0).save("end", 20.0);
        }
        assert!(t.found().is_empty(), "{:?}", t.found());
    }

    #[test]
    fn the_second_save_that_does_not_fit_is_told_after_the_first_one() {
        let mut t = trainer();
        t.moves().save("start", 140.0).save("end", 40.0);
        assert_eq!(t.changes(), [TICKET]);
        assert_eq!(
            t.found()[0].1,
            "40 GB are free where the checkpoints are written, and one takes 100 GB; less than one fits; delete \
             old checkpoints, or let the trainer keep fewer"
        );
        let ticket = t.out.iter().find(|v| v.kind == Kind::CkptRoom).unwrap();
        assert_eq!((ticket.value, ticket.expected), (0.4, 3.0));
        t.moves().save("start", 40.0);
        assert_eq!(t.changes(), [TICKET], "nothing is said twice");
        t.save("end", 340.0);
        assert_eq!(t.changes(), [TICKET, CLEAR], "somebody made room");
        t.moves().save("start", 60.0);
        assert_eq!(t.changes(), [TICKET, CLEAR], "and may do so again");
    }

    #[test]
    fn a_run_that_uploads_its_first_checkpoint_may_remove_it() {
        let mut t = trainer();
        let step = t.moves().step;
        t.say(&format!(
            r#""k":"ckpt","phase":"start","stage":"upload","step":{step},"path":"s3://b/{step}""#
        ));
        t.save("end", 40.0);
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.moves().save("start", 40.0);
        assert_eq!(t.changes(), [TICKET], "it did not");
    }

    #[test]
    fn a_later_save_that_does_not_fit_is_told_when_it_begins() {
        let mut t = trainer();
        t.moves().save("end", 140.0).moves().save("start", 140.0).save("end", 40.0);
        assert!(t.found().is_empty(), "it may delete the oldest now: {:?}", t.found());
        t.moves().save("start", 40.0);
        assert_eq!(t.changes(), [TICKET]);
        // It keeps two, and deletes the oldest after a save.
        let mut t = trainer();
        t.moves().save("end", 140.0);
        for _ in 0..4 {
            t.moves().save("start", 140.0).save("end", 40.0);
        }
        assert!(t.found().is_empty(), "{:?}", t.found());
        // A run that goes on may delete what it saved before.
        let mut t = resumed();
        t.moves().save("end", 40.0).moves().save("start", 40.0).save("end", 40.0).moves().save("start", 40.0);
        assert!(t.found().is_empty(), "{:?}", t.found());
        // The size is not known.
        let mut t = trainer();
        t.moves();
        t.say(r#""k":"ckpt","phase":"end","step":100,"path":"/c/100","free_bytes":1e9"#);
        assert!(t.found().is_empty(), "{:?}", t.found());
    }

    #[test]
    fn a_save_that_begins_without_room_is_a_page_if_the_space_falls() {
        let mut t = trainer();
        t.moves().save("end", 900.0);
        for free in [900.0, 800.0, 700.0, 600.0, 500.0, 400.0, 300.0] {
            t.moves().save("start", free).save("end", free - 100.0);
        }
        assert_eq!(t.changes(), [TICKET], "200 GB are left");
        t.moves().save("start", 200.0).save("end", 90.0);
        assert_eq!(t.changes(), [TICKET], "the oldest may be deleted before the next one");
        t.moves().save("start", 90.0);
        assert_eq!(t.changes(), [TICKET, PAGE]);
        let why = &t.found()[1].1;
        assert!(why.starts_with("90 GB are free") && !why.contains("due in"), "{why}");
        // It deletes the oldest before it writes one, and 58 GB more are gone.
        let mut t = resumed();
        t.moves().save("end", 60.0);
        for _ in 0..8 {
            t.moves().save("start", 60.0).save("end", 60.0);
        }
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.moves().save("start", 2.0);
        assert_eq!(t.changes(), [TICKET]);
    }

    #[test]
    fn what_others_fill_is_no_page() {
        let mut t = trainer();
        t.ends(&[56_000.0, 49_000.0, 42_000.0, 35_000.0, 28_000.0, 21_000.0, 14_000.0, 3500.0]);
        assert_eq!(t.changes(), [TICKET]);
        assert_eq!(
            t.found()[0].1,
            "3500 GB are free where the checkpoints are written, and one takes 100 GB; others fill it too: it \
             has 7000 GB less from save to save; at one every 1m 40s it is full in 50s; delete old checkpoints, \
             or let the trainer keep fewer"
        );
    }

    #[test]
    fn each_directory_is_judged_by_itself() {
        let mut t = trainer();
        for free in [1050.0, 950.0, 850.0, 750.0, 650.0, 550.0, 450.0, 350.0, 250.0, 150.0] {
            t.moves();
            for (path, free) in [("/scratch", 9000.0), ("/c", free)] {
                let (step, free) = (t.step, free * 1e9);
                t.say(&format!(
                    r#""k":"ckpt","phase":"end","step":{step},"path":"{path}/{step}","bytes":1e11,"free_bytes":{free}"#
                ));
            }
        }
        assert_eq!(t.changes(), [TICKET], "the other has room: {:?}", t.found());
        assert_eq!(t.found()[0].1.split(':').next(), Some("2 more checkpoints fit"));
    }

    #[test]
    fn what_is_found_late_is_no_room_before_a_save() {
        let mut t = trainer();
        for n in 0..10_i32 {
            t.moves();
            for (phase, free) in [("start", 30.0), ("end", 900.0 - f64::from(n))] {
                let (step, free) = (t.step, free * 1e9);
                t.say(&format!(
                    r#""k":"ckpt","phase":"{phase}","step":{step},"path":"/c/{step}","seen":true,"bytes":1e11,"free_bytes":{free}"#
                ));
            }
        }
        assert!(t.found().is_empty(), "{:?}", t.found());
    }

    #[test]
    fn it_ends_with_the_run_and_outlives_a_restart() {
        let mut t = trainer();
        t.ends(&[950.0, 850.0, 750.0, 650.0, 550.0, 450.0, 350.0, 250.0]);
        assert_eq!(t.changes(), [TICKET]);
        t.step = 100;
        t.moves();
        assert_eq!((t.run.state.attempt, t.changes()), (1, vec![TICKET]));
        t.say(r#""k":"bye","code":0"#);
        assert_eq!(t.changes(), [TICKET, CLEAR]);
    }

    #[test]
    fn what_is_no_number_is_not_judged() {
        let mut t = trainer();
        for _ in 0..10 {
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
