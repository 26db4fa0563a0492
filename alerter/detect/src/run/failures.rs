//! The ranks of a run that failed, in the order in which they did.
//!
//! A failure is a process that is gone, a `bye` with a non-zero code and its last words, or
//! torchelastic's `error.json`. Failures whose text shows that they only followed come after the
//! others: the peers of a dead rank report a connection that was reset, a collective that timed
//! out, or the signal by which the launcher ended them, and their report may arrive before that of
//! the rank itself.

use stepwatch_model::{Course, Observation, Suspect, Target, Ts};

use super::{Report, RunState, Topic};

/// Texts, in lower case, of ranks that only followed another failure.
const FOLLOWED: [&str; 12] = [
    "connection reset",
    "connection closed",
    "broken pipe",
    "watchdog",
    "timed out",
    "timeout",
    "remote process exited",
    "sigterm",
    "code -15",
    "signal 15",
    "peer closed",
    "aborted by",
];
/// The failure of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) place: Target,
    pub(crate) at: Ts,
    pub(crate) text: String,
    pub(crate) course: Course,
}

/// How a process ended, by its last words: text of the process itself, or of the program that saw
/// it end.
pub(crate) fn course(words: &str) -> Course {
    let text = words.to_lowercase();
    if FOLLOWED.iter().any(|word| text.contains(word)) { Course::Followed } else { Course::Broke }
}

impl Report {
    pub(crate) fn course(&self) -> Course {
        match self.topic {
            Topic::LauncherDead => Course::Silent,
            _ => course(&self.text),
        }
    }
}

impl Failure {
    /// The failure as a suspect with evidence.
    pub(crate) fn died(self) -> Suspect {
        let Self { place, at, text, course } = self;
        Suspect::new(place, Observation::Died { at, words: text, course })
    }
}

/// All failures since the run last made a step, in order.
pub(crate) fn failures(f: &RunState) -> Vec<Failure> {
    let mut all: Vec<Failure> = Vec::new();
    for (rank, d) in &f.deaths {
        let (place, text) = (f.rank_target(*rank), d.text.clone());
        all.push(Failure { place, at: d.when, text, course: d.course });
    }
    for r in f.reports.about(Topic::TorchelasticError).filter(|r| r.at >= f.last_progress) {
        let place = r.rank.map_or_else(|| r.place(), |rank| f.rank_target(rank));
        match all.iter_mut().find(|had| had.place == place) {
            // The exception is more informative than the exit code.
            Some(had) => {
                had.at = had.at.min(r.when);
                had.text.clone_from(&r.text);
                had.course = r.course();
            }
            None => all.push(Failure { place, at: r.when, text: r.text.clone(), course: r.course() }),
        }
    }
    all.sort_by_cached_key(|x| (x.course, x.at, x.place.to_string()));
    // A failure without last words that came well before all others is the first one: the process
    // had no time to write any.
    if let Some(silent) = all.iter().position(|x| x.course == Course::Silent) {
        let others = all.iter().enumerate().filter(|(i, _)| *i != silent).map(|(_, x)| x.at).min();
        if others.is_some_and(|at| all[silent].at < at) {
            let first = all.remove(silent);
            all.insert(0, first);
        }
    }
    all
}
