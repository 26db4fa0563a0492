//! The text of what is observed of saves and loads of checkpoints.

use core::fmt;

use crate::evidence::{Observation, SavePart, SaveStage};
use crate::number::{Num, number};
use crate::time::Span;

/// Text of the observations about loads, and about what saves do to the steps.
pub(super) fn of_saves(o: &Observation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use Observation as O;
    let percent = |share: f64| number((100.0 * share).round());
    match o {
        O::LoadsLonger { value, expected, runs, rates } => {
            loads_longer([*value, *expected], *runs, *rates, f)
        }
        O::SlowerWhileSaving { stage, value, expected, slower, windows } => {
            let doing = match stage {
                SaveStage::Write => "written",
                SaveStage::Upload => "uploaded",
            };
            let s = if *windows == 1 { "" } else { "s" };
            write!(
                f,
                "steps take {value} s while a checkpoint is {doing}, otherwise {expected} s, in {slower} of \
                 {windows} time{s}"
            )
        }
        O::EachSaveSlower { saves, value, expected } => write!(
            f,
            "steps took longer after each of the last {saves} saves, from {expected} s to {value} s, and \
             the same between the saves: a restart may set it back"
        ),
        O::FullWhileSaving { part, nodes, known, saving, value, expected } => {
            let usual = percent(expected.0);
            let full = percent(value.0);
            match part {
                SavePart::Interface => {
                    write!(f, "an interface of {nodes} of {known} nodes sends at {full} % of its speed")?;
                }
                SavePart::Disk => {
                    write!(f, "a disk of {nodes} of {known} nodes is busy {full} % of the time")?;
                }
            }
            // Where one rank reports the saves of all, it is not known how many nodes save.
            if u64::from(*saving) >= *nodes {
                write!(f, ", usually {usual} %, while {saving} nodes save at once")
            } else {
                write!(f, ", usually {usual} %, while a checkpoint is saved")
            }
        }
        O::SlowerTogether { nodes, fewer, value, expected } => write!(
            f,
            "a rank saves {} MB/s while {nodes} nodes save at once, and {} MB/s while {fewer} do",
            number(value.0 / 1e6),
            number(expected.0 / 1e6),
        ),
        _ => Ok(()),
    }
}

/// The time and the rate of a load, each beside the usual one.
fn loads_longer(
    secs: [Num; 2],
    runs: bool,
    rates: Option<[Num; 2]>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let [took, usual] = secs.map(|secs| Span::from_secs_f64(secs.0));
    let verb = if runs { "has been loading the checkpoint for" } else { "loaded the checkpoint in" };
    write!(f, "{verb} {took}, {usual} is usual")?;
    let Some([own, peers]) = rates.map(|rates| rates.map(|rate| number(rate.0 / 1e9))) else {
        return Ok(());
    };
    let [most, so_far] = if runs { ["at most ", " so far"] } else { [""; 2] };
    write!(f, ": {most}{own} GB/s{so_far}, usually {peers} GB/s")
}
