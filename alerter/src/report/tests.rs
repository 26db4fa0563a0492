use stepwatch_detect::run::{Counts, Energy, TimeState, Totals};
use stepwatch_model::Kind;
use stepwatch_model::time::Ts;
use stepwatch_respond::incident::{Standstill, State};

use super::*;
use crate::postmortem::Loss;
use crate::save_interval::SaveIntervalView;
use crate::save_interval::tests::often;
use crate::store::tests::incident;

const HOURS: i64 = 3_600_000;

/// The hours by state of a run with this number of GPUs, at two dollars.
fn run(name: &str, gpus: i64, hours: &[(TimeState, i64)], interruptions: u32) -> RunTotals {
    let states = hours
        .iter()
        .map(|(state, hours)| (*state, [hours * HOURS, gpus * hours * HOURS], 2.0 * (gpus * hours) as f64));
    let time: i64 = hours.iter().map(|(_, hours)| hours * HOURS).sum();
    // 700 W, plus half of it for the rest of the node, and 400 g per kilowatt-hour.
    let joules = 1.5 * 0.7 * (gpus * time) as f64;
    let energy = Energy { joules, carbon_grams: joules / 3.6e6 * 400.0, gpu_ms: gpus * time };
    let counts = Counts { starts: 2, interruptions, tokens: 2.5e9 * gpus as f64, energy };
    RunTotals { run: name.into(), totals: Totals::from_states(states, counts) }
}

fn period() -> Period {
    Period::around(Ts(100 * HOURS + 5), Ts(268 * HOURS))
}

#[test]
fn a_period_is_whole_hours() {
    assert_eq!(period(), Period { since: Ts(100 * HOURS), until: Ts(268 * HOURS) });
    assert_eq!(Period::around(Ts(1), Ts(2)), Period { since: Ts(0), until: Ts(HOURS) });
}

#[test]
fn the_whole_is_the_sum_of_the_runs() {
    let runs = [
        run("small", 8, &[(TimeState::Productive, 10)], 0),
        run(
            "large",
            1024,
            &[
                (TimeState::Productive, 80),
                (TimeState::Down, 15),
                (TimeState::Starting, 4),
                (TimeState::Unknown, 1),
            ],
            3,
        ),
    ];
    let view = view(period(), None, &runs, &[]);
    assert_eq!(view.total.gpu_hours, Some(80.0 + 102_400.0));
    assert_eq!(view.total.dollars, Some(160.0 + 204_800.0));
    assert_eq!(view.runs.iter().map(|r| &*r.run).collect::<Vec<_>>(), ["large", "small"]);
    // Of the GPU hours, not of the hours: the small run weighs one part in a thousand.
    let goodput = view.total.goodput.unwrap();
    assert!((goodput - (80.0 + 81_920.0) / (80.0 + 102_400.0)).abs() < 1e-9, "{goodput}");
    let large = &view.runs[0];
    assert_eq!((large.goodput, large.goodput_at_most), (Some(0.8), Some(0.81)));
    assert_eq!(large.seconds_between_interruptions, Some(100.0 * 3600.0 / 3.0));
    assert_eq!(large.seconds_to_first_step, Some(2.0 * 3600.0));
    assert_eq!(view.interruptions.len(), 1, "no incident explains them");
    assert_eq!((view.interruptions[0].count, view.interruptions[0].share), (3, 1.0));
}

#[test]
fn it_is_written_for_people() {
    let hours = [
        (TimeState::Productive, 80),
        (TimeState::Saving, 2),
        (TimeState::Down, 15),
        (TimeState::Starting, 3),
    ];
    let runs = [run("llama|<b>", 64, &hours, 3)];
    let view = view(period(), None, &runs, &[]);
    insta::assert_snapshot!(markdown::render(&view));
    let page = html::render(&view);
    assert!(page.contains("llama|&lt;b&gt;") && !page.contains("<b>"), "{page}");
    let nothing = super::view(period(), Some("x".into()), &[], &[]);
    assert!(markdown::render(&nothing).contains("No time of any run is accounted."));
}

#[test]
fn a_size_that_is_not_known_is_no_zero() {
    let states = [(TimeState::Productive, [HOURS, 0], 0.0)];
    let runs = [RunTotals { run: "x".into(), totals: Totals::from_states(states, Counts::default()) }];
    let view = view(period(), None, &runs, &[]);
    assert_eq!((view.total.gpu_hours, view.total.dollars, view.runs_unsized), (None, None, 1));
    assert_eq!(view.total.goodput, Some(1.0), "there is no other run");
    let text = markdown::render(&view);
    assert!(text.contains("size not known") && text.contains("no price is set"), "{text}");
}

#[test]
fn incidents_of_runs_of_unknown_size_stand_last_and_have_no_price() {
    let costed = |id: &str, hours: f64, gpus: Option<u32>| {
        let gpu_hours = gpus.map(|gpus| f64::from(gpus) * hours);
        let dollars = gpu_hours.map(|gpu_hours| 2.0 * gpu_hours);
        let (seconds, how) = (3600.0 * hours, String::new());
        let impact = Impact {
            lasted_seconds: seconds,
            gpus,
            gpu_hours,
            dollars_per_gpu_hour: gpus.map(|_| 2.0),
            dollars,
            lost: vec![Loss { what: "Stalled".into(), seconds, gpu_hours, dollars, how }],
            at_risk: None,
        };
        let mut record = incident(id, State::Open);
        (record.kind, record.cause) = (Kind::Hang, Cause::Progress);
        Costed { record, impact: Some(impact) }
    };
    let incidents = [costed("01A", 1.0, None), costed("01B", 2.0, None), costed("01C", 0.5, Some(8))];
    let runs = [run("x", 8, &[(TimeState::Productive, 10)], 3)];
    let view = view(period(), None, &runs, &incidents);
    let listed: Vec<_> = view.costliest.iter().map(|c| (&*c.id, c.lost_gpu_hours, c.lost_dollars)).collect();
    assert_eq!(listed, [("01C", Some(4.0), Some(8.0)), ("01B", None, None), ("01A", None, None)]);
    assert_eq!(view.interruptions[0].lost_gpu_hours, None, "of two of the three nobody knows it");
    let text = markdown::render(&view);
    assert!(text.contains("| size not known | \\- |"), "{text}");
}

#[test]
fn saves_are_listed_with_the_best_interval_those_first_that_would_save_most() {
    let saves = |run: &str, gpus: Option<u32>| SavesView {
        run: run.into(),
        interval: SaveIntervalView::new(&often(), gpus, Some(2.0)),
    };
    let listed = listed(vec![saves("unknown", None), saves("small", Some(8)), saves("large", Some(512))]);
    assert_eq!(listed.iter().map(|s| &*s.run).collect::<Vec<_>>(), ["large", "small", "unknown"]);
    let many = super::listed((0..50).map(|n| saves(&format!("r{n:02}"), None)).collect());
    assert_eq!((many.len(), &*many[0].run), (20, "r00"));
    let runs = [run("large", 512, &[(TimeState::Productive, 10)], 0)];
    let view = ReportView { saves: listed, ..view(period(), None, &runs, &[]) };
    let text = markdown::render(&view);
    let row = "| large | every 125 steps (8m 20s) | 30s | 6h, from 5 of the run | 6.8 % | every 280 steps (18m 38s) | 5.1 % | 198.9 GPU hours ($397.81) |";
    assert!(text.contains(row), "{text}");
    let unknown = "| 6.8 % | every 280 steps (18m 38s) | 5.1 % | \\- |";
    assert!(text.contains(unknown), "{text}");
}

/// As Llama 3's table of interruptions: by component, and hardware, software or unknown.
#[test]
fn interruptions_are_counted_by_what_was_suspected_first() {
    use stepwatch_model::{Observation, Storage, Suspect, Target};
    let gpu = || Target::Gpu { node: "n1".into(), index: Some(3), uuid: "GPU-1".into(), pci: String::new() };
    let link = Target::Link { node: "n2".into(), name: "mlx5_0/1".into(), medium: "infiniband".into() };
    let of = |kind: Kind, cause: Cause, target: Option<Target>| {
        let suspect = |target| Suspect::new(target, Observation::Stated { words: "so".into() });
        let mut record = incident("01A", State::Resolved);
        (record.kind, record.cause) = (kind, cause);
        record.suspects = target.map(suspect).into_iter().collect();
        Costed { record, impact: None }
    };
    let stood_still = |mut costed: Costed| {
        costed.record.standstill = Some(Standstill { before: Span::secs(60), since: None });
        costed
    };
    let incidents = [
        of(Kind::Hang, Cause::Progress, Some(gpu())),
        of(Kind::Hang, Cause::Progress, Some(gpu())),
        of(Kind::RankDead, Cause::Progress, Some(gpu())),
        of(Kind::Hang, Cause::Progress, Some(link)),
        of(Kind::RankDead, Cause::Progress, Some(Target::node("n3"))),
        of(Kind::Hang, Cause::Progress, Some(Target::Storage(Storage::OfNodes))),
        of(Kind::RankDead, Cause::Progress, Some(Target::rank(5, None))),
        of(Kind::Hang, Cause::Progress, None),
        // The run died of it, and the GPU fault names the incident.
        stood_still(of(Kind::GpuFault, Cause::Hardware, Some(gpu()))),
        // None of these stops a run.
        of(Kind::Nonfinite, Cause::Numerics, Some(gpu())),
        of(Kind::MfuDroop, Cause::Speed, Some(gpu())),
        of(Kind::GpuFault, Cause::Hardware, Some(gpu())),
    ];
    let rows = interruptions(10, 36_000.0, &incidents);
    assert_eq!((rows[0].count, rows[0].seconds_between), (2, 18_000.0));
    let rows: Vec<_> = rows.iter().map(|r| (&*r.component, &*r.class, &*r.what, r.count)).collect();
    let (hang, dead) = (Kind::Hang.title(), Kind::RankDead.title());
    let not_explained = (text::NOT_EXPLAINED, "unknown", "restart without an incident", 1);
    let expected = [
        ("GPU", "hardware", hang, 2),
        ("GPU", "hardware", dead, 1),
        ("network", "hardware", hang, 1),
        ("node", "hardware", dead, 1),
        ("storage", "hardware", hang, 1),
        ("rank", "software", dead, 1),
        ("unknown", "unknown", hang, 1),
        ("GPU", "hardware", Kind::GpuFault.title(), 1),
        not_explained,
    ];
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    assert!(expected.iter().all(|row| rows.contains(row)), "{rows:?}");
    assert!(rows.windows(2).all(|pair| pair[0].3 >= pair[1].3), "{rows:?}");
    let shares: f64 = interruptions(10, 36_000.0, &incidents).iter().map(|row| row.share).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
}
