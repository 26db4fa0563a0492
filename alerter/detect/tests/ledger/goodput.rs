//! The ledger beside `ml-goodput-measurement` of Google (MGM), an independent account of the same
//! time. `tests/scripts/goodput_oracle.py` asked it about the logs of `data/goodput`, and the
//! monitor is told the same logs here, event by event.
//!
//! | MGM | ledger |
//! |---|---|
//! | `GOODPUT` | `productive` |
//! | `WASTED_PROGRESS_FROM_DISRUPTION` | `recomputing` |
//! | `UNPRODUCTIVE_CHECKPOINT_SAVE_TIME` | `saving` |
//! | `UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME` | `loading` |
//! | `CUSTOM_BADPUT_EVENTS` of evaluations | `evaluating` |
//! | `INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION` | `down` |
//! | `TPU_INITIALIZATION`, `TRAINING_PREP`, `DATA_LOADING_SYNC` | `starting` |
//! | `PROGRAM_STARTUP`, `OTHER` | `starting` |
//! | none | `slowed`, `stalled`, `idle`, `unknown` |
//!
//! In the logs, what MGM calls `OTHER` is what an attempt does before it initialises. `WASTED` is
//! of the steps that are made again, and MGM takes those of the first time; the ledger takes those
//! of the second. So the seconds agree, but not the moments.
//!
//! Where the two differ, [`LOGS`] says by how much and [`Why`]. What MGM does with a custom event
//! across the edge of a step (drops it), with a restore inside of its preparation (counts it
//! twice), and with several saves of one step (takes their mean) is in no log.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use stepwatch_detect::run::{TimeState, Totals};

use super::log::{Record, play};

/// Seconds by which a row may differ from what is explained: 1 % of one step. Steps take up to
/// 0.04 s more or less than ten.
const NEAR: f64 = 0.1;
/// Of a usual step.
const STEP: f64 = 10.0;
/// From the first record of an attempt to the beginning of its first step, without the load.
const SET_UP: f64 = 62.0;
const LOAD: f64 = 40.0;
/// The first step of an attempt.
const FIRST: f64 = 25.0;
const SAVE: f64 = 25.0;

/// Rows of the comparison: those of a state, and of all time.
const ROWS: &[(&str, &[&str], Option<TimeState>)] = &[
    ("all", &["TOTAL"], None),
    ("productive", &["GOODPUT"], Some(TimeState::Productive)),
    ("recomputing", &["WASTED_PROGRESS_FROM_DISRUPTION"], Some(TimeState::Recomputing)),
    ("saving", &["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"], Some(TimeState::Saving)),
    ("loading", &["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"], Some(TimeState::Loading)),
    ("evaluating", &["CUSTOM_BADPUT_EVENTS"], Some(TimeState::Evaluating)),
    ("down", &["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"], Some(TimeState::Down)),
    (
        "starting",
        &["TPU_INITIALIZATION", "TRAINING_PREP", "DATA_LOADING_SYNC", "PROGRAM_STARTUP", "OTHER"],
        Some(TimeState::Starting),
    ),
    ("slowed", &[], Some(TimeState::Slowed)),
    ("stalled", &[], Some(TimeState::Stalled)),
    ("idle", &[], Some(TimeState::Idle)),
    ("unknown", &[], Some(TimeState::Unknown)),
];

/// A difference by definition.
#[derive(Debug, Clone, Copy)]
enum Why {
    /// The first step of an attempt is `starting`. To MGM it is goodput for as long as the others
    /// of the attempt took on average, with their saves and stalls, and the rest is start-up.
    FirstStep,
    /// The first step of an attempt that made it before. MGM moves the first time to `WASTED`, as
    /// that of every step that is made again. The second time is `starting`, so the first one stays
    /// `productive`.
    FirstStepAgain,
    /// The last step lasts until the end of the job. After it the ledger is `idle`.
    Tail,
    /// A step is goodput however long it takes. What is far beyond the usual is `stalled`.
    Stall,
    /// The time from the last step that was begun is recovery. A hang until it is killed is
    /// `stalled`, but for the usual time of the step that hung.
    Hang,
    /// A job gave its GPUs back, and the next one may have got others: the time between is not the
    /// run's. To MGM it is all one job.
    BetweenJobs,
    /// To MGM a step number that comes again is a restart, and nothing else is. So all between two
    /// steps is goodput where an attempt goes on without a repeat. It is `down`, then `loading` and
    /// `starting`.
    Unseen,
    /// What is goodput for [`Self::Unseen`] is also what its records say. So the states of MGM are
    /// more than the time, and none is left for `OTHER`. Data that is loaded then counts as loaded
    /// beside steps, which is no loss.
    CountedTwice,
    /// MGM has no such state, and counts the time as the row says that has the same reason.
    Ours,
}

use Why::{BetweenJobs, CountedTwice, FirstStep, FirstStepAgain, Hang, Ours, Stall, Tail, Unseen};

/// By how many seconds a row of MGM is more than the ledger's.
type Differences = &'static [(&'static str, f64, Why)];

/// The goodput of a first step by [`FirstStep`]: the mean of so many others, which took so much
/// more together.
const fn mean(others: f64, more: f64) -> f64 {
    STEP + more / others
}

/// From the last step of an attempt that loses nothing to its end, and to the next one.
const GAP: f64 = 1.0 + 200.0;
/// Between two steps where the second attempt makes none again, and the first of its steps.
const UNSEEN: f64 = GAP + SET_UP + LOAD + FIRST;
/// Of all attempts of a log: two of which the first one saved.
const SAVED: f64 = mean(39.0, SAVE) + STEP;
/// Two, which are one to MGM.
const GONE_ON: f64 = mean(78.0, SAVE + UNSEEN - STEP);
/// Four, of which the second and the third are one to MGM.
const ALL_STARTS: f64 = mean(59.0, 2.0 * SAVE + 300.0) + mean(59.0, 2.0 * SAVE + UNSEEN - STEP) + STEP;

const LOGS: &[(&str, Differences)] = &[
    (
        "begin_to_end",
        &[
            ("productive", STEP, FirstStep),
            ("productive", 6.0, Tail),
            ("starting", -STEP, FirstStep),
            ("idle", -6.0, Ours),
        ],
    ),
    (
        "saves_and_evaluations",
        &[
            ("productive", mean(98.0, 4.0 * SAVE), FirstStep),
            ("productive", 6.0, Tail),
            ("starting", -mean(98.0, 4.0 * SAVE), FirstStep),
            ("idle", -6.0, Ours),
        ],
    ),
    (
        "stall",
        &[
            ("productive", mean(58.0, 300.0), FirstStep),
            ("productive", 300.0, Stall),
            ("productive", 6.0, Tail),
            ("starting", -mean(58.0, 300.0), FirstStep),
            ("stalled", -300.0, Ours),
            ("idle", -6.0, Ours),
        ],
    ),
    (
        "crash",
        &[
            ("productive", SAVED, FirstStep),
            ("productive", -STEP, FirstStepAgain),
            ("productive", 6.0, Tail),
            ("recomputing", STEP, FirstStepAgain),
            ("starting", -SAVED, FirstStep),
            ("idle", -6.0, Ours),
        ],
    ),
    (
        "hang_until_killed",
        &[
            ("productive", SAVED, FirstStep),
            ("productive", -STEP, FirstStepAgain),
            ("productive", 6.0, Tail),
            ("recomputing", STEP, FirstStepAgain),
            ("starting", -SAVED, FirstStep),
            ("down", 900.0 - STEP, Hang),
            ("stalled", -(900.0 - STEP), Ours),
            ("idle", -6.0, Ours),
        ],
    ),
    (
        "resume_without_overlap",
        &[
            ("productive", GONE_ON, FirstStep),
            ("productive", UNSEEN, Unseen),
            ("productive", 6.0, Tail),
            ("down", -GAP, Unseen),
            ("starting", -GONE_ON, FirstStep),
            ("starting", -FIRST, Unseen),
            // Of two attempts, and the data of the second.
            ("starting", -(4.0 + 4.0 + 8.0), CountedTwice),
            ("idle", -6.0, Ours),
        ],
    ),
    (
        "next_job",
        &[
            ("all", 3600.0, BetweenJobs),
            ("productive", SAVED, FirstStep),
            ("productive", -STEP, FirstStepAgain),
            ("productive", 6.0, Tail),
            ("recomputing", STEP, FirstStepAgain),
            ("starting", -SAVED, FirstStep),
            ("down", 3600.0, BetweenJobs),
            ("idle", -6.0, Ours),
        ],
    ),
    (
        "everything",
        &[
            ("all", 3600.0, BetweenJobs),
            ("productive", ALL_STARTS, FirstStep),
            ("productive", -2.0 * STEP, FirstStepAgain),
            ("productive", 300.0, Stall),
            ("productive", UNSEEN, Unseen),
            ("productive", 6.0, Tail),
            ("recomputing", 2.0 * STEP, FirstStepAgain),
            ("starting", -ALL_STARTS, FirstStep),
            ("starting", -FIRST, Unseen),
            // Of four attempts.
            ("starting", -4.0 * 4.0, CountedTwice),
            ("down", -GAP, Unseen),
            ("down", 900.0 - STEP, Hang),
            ("down", 3600.0, BetweenJobs),
            ("stalled", -(300.0 + 900.0 - STEP), Ours),
            ("idle", -6.0, Ours),
        ],
    ),
];

#[derive(Deserialize)]
struct Oracle {
    answers: BTreeMap<String, BTreeMap<String, f64>>,
}

#[expect(clippy::disallowed_methods, reason = "it reads the fixtures, not the engine")]
fn read(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goodput").join(name);
    std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

fn totals(log: &str) -> Totals {
    let text = read(&format!("{log}.jsonl"));
    let records: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    play(&records)
}

fn answers() -> BTreeMap<String, BTreeMap<String, f64>> {
    serde_json::from_str::<Oracle>(&read("mgm.json")).unwrap().answers
}

#[test]
fn every_state_is_that_of_google_but_for_what_is_explained() {
    let answers = answers();
    let named: Vec<_> = LOGS.iter().map(|(log, _)| *log).collect();
    assert!(answers.keys().all(|log| named.contains(&log.as_str())), "{:?}", answers.keys());
    let mut wrong = Vec::new();
    for (log, differences) in LOGS {
        let (totals, answer) = (totals(log), &answers[*log]);
        for (row, kinds, state) in ROWS {
            let mgm: f64 = kinds.iter().filter_map(|kind| answer.get(*kind)).sum();
            let ours = state.map_or_else(|| totals.total(), |state| totals.seconds(state));
            let explained: Vec<_> = differences.iter().filter(|(of, ..)| of == row).collect();
            let sum: f64 = explained.iter().map(|(_, seconds, _)| seconds).sum();
            println!("{log:24} {row:12} {mgm:9.2} {ours:9.2} {:9.2} {sum:9.2}", mgm - ours);
            if (mgm - ours - sum).abs() > NEAR {
                wrong.push(format!("{log}, {row}: MGM {mgm}, ours {ours}, explained {explained:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
