//! Charts of incidents with faults, in every size and theme.
//!
//! `STEPWATCH_SHOW=DIR` writes the charts to this directory for inspection.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use stepwatch_model::{Clause, Kind, Num, Observation, Severity, Suspect, Target};
use stepwatch_respond::incident::{IncidentRecord, State};

use crate::chart::curve::{BandPoint, Curve, CurvePoint, Deed, Seen, What};
use crate::chart::{Look, Size, Theme, incident, png, svg};
use crate::store::tests::incident as record;

const FIRST: i64 = 41_200;

/// A deterministic pseudo-random number in 0..1.
fn noise(i: i64) -> f64 {
    let x = (i as f64 * 12.9898).sin() * 43_758.545_3;
    x - x.floor()
}

fn point(step: i64, attempt: u32, v: f64) -> CurvePoint {
    let v = Some(v).filter(|v| v.is_finite());
    CurvePoint { from: step, to: step, attempt, min: v, max: v, last: v, nonfinite: u32::from(v.is_none()) }
}

fn curve(signal: &str, steps: i64, value: impl Fn(i64) -> f64, band: Option<(f64, f64)>) -> Curve {
    Curve {
        signal: signal.into(),
        points: (0..steps).map(|i| point(FIRST + i, 0, value(i))).collect(),
        band: band.map_or_else(Vec::new, |(low, high)| {
            (0..steps).step_by(8).map(|i| BandPoint { step: FIRST + i, low, high }).collect()
        }),
    }
}

struct Case {
    name: &'static str,
    record: IncidentRecord,
    seen: Seen,
}

#[expect(clippy::too_many_arguments, reason = "a table of faults")]
fn case(
    name: &'static str,
    kind: Kind,
    severity: Severity,
    signal: &str,
    (start, opened, detected, end): (i64, i64, i64, Option<i64>),
    (value, expected): (f64, f64),
    summary: &str,
    curves: Vec<Curve>,
) -> Case {
    let mut r = record(name, if end.is_some() { State::Resolved } else { State::Open });
    (r.kind, r.severity, r.signal, r.run) = (kind, severity, signal.into(), "llama-70b".into());
    (r.start_step, r.opened_step, r.detected_step) = (FIRST + start, FIRST + opened, FIRST + detected);
    r.end_step = end.map(|end| FIRST + end);
    (r.value, r.expected, r.summary) = (value, expected, Clause::words(summary).into());
    r.suspects.clear();
    let marks = vec![Deed { step: FIRST + 40, what: What::Checkpoint }];
    Case { name, record: r, seen: Seen { curves, marks } }
}

/// The usual band of the loss.
const NEAR: Option<(f64, f64)> = Some((2.27, 2.35));

fn loss(i: i64) -> f64 {
    2.31 - 0.0002 * i as f64 + 0.02 * (noise(i) - 0.5)
}

fn norm(i: i64) -> f64 {
    0.62 + 0.1 * noise(i + 7)
}

fn step(i: i64) -> f64 {
    4.2 + 0.12 * noise(i + 3) + if i % 50 == 0 { 0.6 } else { 0.0 }
}

fn straggling() -> Case {
    let slow = |i: i64| if i > 90 { step(i) * 1.38 } else { step(i) };
    let straggler =
        Observation::ComputesLonger { value: Num(1.42), others: 511, stage: None, since_step: FIRST + 90 };
    let mut straggling = case(
        "straggler",
        Kind::Straggler,
        Severity::Page,
        "compute_time",
        (91, 104, 112, None),
        (1.42, 1.0),
        "rank 217 on gpu-027 computes 1.42 times as long as the others since step 41291; all 512 ranks wait for it",
        vec![
            curve("step_time", 150, slow, Some((4.0, 4.6))),
            curve("mfu", 150, |i| 0.45 * 4.25 / slow(i), None),
        ],
    );
    let rank = Target::Rank { rank: Some(217), local_rank: None, node: Some("gpu-027".into()) };
    straggling.record.suspects = vec![Suspect::new(rank, straggler)];
    straggling
}

fn diverging() -> Case {
    let mut restarted = case(
        "divergence",
        Kind::Divergence,
        Severity::Page,
        "loss",
        (100, 112, 130, None),
        (6.8, 2.3),
        "the loss has risen to 6.8 in thirty steps and does not come back",
        vec![curve("loss", 140, |i| if i < 100 { loss(i) } else { loss(i) + 0.11 * (i - 100) as f64 }, NEAR)],
    );
    restarted.seen.curves[0].points.extend((90..118).map(|i| point(FIRST + i, 1, loss(i))));
    restarted.seen.marks.push(Deed { step: FIRST + 90, what: What::Restart });
    restarted
}

fn of_numbers() -> Vec<Case> {
    let (page, ticket) = (Severity::Page, Severity::Ticket);
    let nan = |i: i64| if i < 118 { loss(i) } else { f64::NAN };
    let spike = |i: i64| if (120..132).contains(&i) { 9.4 - 0.55 * (i - 120) as f64 } else { loss(i) };
    let burst = |i: i64| if (96..103).contains(&i) { 380.0 / (1.0 + (i - 96) as f64) } else { norm(i) };
    vec![
        case(
            "nonfinite",
            Kind::Nonfinite,
            page,
            "loss",
            (118, 118, 118, None),
            (f64::NAN, 2.29),
            "the loss is NaN since step 41318: it will not come back by itself",
            vec![curve("loss", 126, nan, NEAR), curve("grad_norm", 126, norm, None)],
        ),
        case(
            "loss_spike",
            Kind::LossSpike,
            ticket,
            "loss",
            (120, 122, 122, Some(133)),
            (8.3, 2.29),
            "the loss rose from 2.29 to 8.3 within two steps; the gradient norm did not",
            vec![
                curve("loss", 160, spike, NEAR),
                curve("grad_norm", 160, norm, Some((0.6, 0.75))),
                curve("step_time", 160, step, None),
            ],
        ),
        case(
            "grad_spike",
            Kind::GradSpike,
            page,
            "grad_norm",
            (96, 97, 97, None),
            (380.0, 0.67),
            "the gradient norm is 380, 567 times what is usual, while the loss stays at 2.29",
            vec![curve("grad_norm", 110, burst, Some((0.6, 0.75))), curve("loss", 110, loss, NEAR)],
        ),
    ]
}

fn of_speed() -> Vec<Case> {
    let (page, ticket) = (Severity::Page, Severity::Ticket);
    let stall = |i: i64| if (110..116).contains(&i) { 96.0 - 4.0 * (i - 110) as f64 } else { step(i) };
    let mfu = |i: i64| 0.452 - if i > 60 { 0.0011 * (i - 60) as f64 } else { 0.0 } + 0.004 * noise(i);
    vec![
        case(
            "stall",
            Kind::Stall,
            page,
            "step_time",
            (110, 111, 112, Some(117)),
            (96.0, 4.26),
            "a step took 96 s instead of 4.26 s: 22 times as long as usual for this run",
            vec![curve("step_time", 150, stall, Some((4.1, 4.9)))],
        ),
        case(
            "mfu_droop",
            Kind::MfuDroop,
            ticket,
            "mfu",
            (61, 118, 118, None),
            (0.386, 0.452),
            "MFU has sunk from 45.2 % to 38.6 % over the last 60 steps",
            vec![
                curve("mfu", 140, mfu, Some((0.445, 0.459))),
                curve("step_time", 140, |i| 4.2 * 0.452 / mfu(i), None),
            ],
        ),
    ]
}

fn cases() -> Vec<Case> {
    let mut all = of_numbers();
    all.extend(of_speed());
    all.extend([straggling(), diverging()]);
    all
}

fn looks() -> [(&'static str, Look); 4] {
    let look = |size, theme| Look { size, theme };
    [
        ("card", Look::CARD),
        ("card-dark", look(Size::Card, Theme::Dark)),
        ("wide", Look::default()),
        ("wide-dark", look(Size::Wide, Theme::Dark)),
    ]
}

#[test]
fn every_fault_has_a_picture() {
    let show = std::env::var_os("STEPWATCH_SHOW").map(std::path::PathBuf::from);
    for Case { name, record, seen } in cases() {
        let chart = incident::of_seen(&record, &seen).unwrap();
        for (suffix, look) in looks() {
            let drawn = svg(&chart, look);
            super::well_formed(&drawn);
            // The other looks differ only in numbers and colours, and rendering is slow.
            if look != Look::CARD && show.is_none() {
                continue;
            }
            let pixels = png::png(&drawn).unwrap();
            assert!(pixels.len() < 300 * 1024, "{name} {suffix}: {} bytes", pixels.len());
            if let Some(dir) = &show {
                std::fs::write(dir.join(format!("{name}-{suffix}.png")), pixels).unwrap();
            }
        }
    }
}

#[test]
fn charts_of_faults_as_they_are_written() {
    for Case { name, record, mut seen } in cases() {
        // Every fifth sample suffices to show the change.
        for curve in &mut seen.curves {
            curve
                .points
                .retain(|p| p.from % 5 == 0 || p.from >= record.start_step && p.from < record.start_step + 4);
        }
        let chart = incident::of_seen(&record, &seen).unwrap();
        insta::assert_snapshot!(name, svg(&chart, Look::CARD));
    }
}

#[test]
fn an_incident_of_nothing_that_was_seen_has_no_chart() {
    let r = record("i1", State::Open);
    assert!(incident::of_seen(&r, &Seen::default()).is_none());
    let empty = Seen { curves: vec![Curve { signal: "loss".into(), ..Curve::default() }], marks: Vec::new() };
    assert!(incident::of_seen(&r, &empty).is_none());
}

#[test]
fn a_share_is_drawn_in_per_cent_with_all_that_belongs_to_it() {
    let case = cases().into_iter().find(|case| case.name == "mfu_droop").unwrap();
    let chart = incident::of_seen(&case.record, &case.seen).unwrap();
    let lead = &chart.panels[0];
    assert_eq!(lead.label, "MFU (%)");
    assert!((lead.expected.unwrap().value - 45.2).abs() < 1e-9);
    assert!((lead.band[0].low - 44.5).abs() < 1e-9);
    assert!(lead.points.iter().all(|p| (30.0..50.0).contains(&p.low)));
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Prints the cost of one chart, for BENCHMARKS.md. The limit is far above it, so that it holds
/// without optimisation.
#[test]
fn what_a_picture_costs() {
    let case = cases().into_iter().find(|case| case.name == "loss_spike").unwrap();
    let drawn = svg(&incident::of_seen(&case.record, &case.seen).unwrap(), Look::CARD);
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = peak();
    let mut bytes = 0;
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let began = processor_time();
            bytes = png::png(&drawn).unwrap().len();
            processor_time().saturating_sub(began)
        })
        .collect();
    times.sort();
    println!(
        "one PNG: median {:?}, worst {:?}, {bytes} bytes, peak memory + {} KiB",
        times[4],
        times[8],
        peak() - before
    );
    assert!(times[4] < Duration::from_secs(5), "{times:?}");
}
