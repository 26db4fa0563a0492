use std::sync::Arc;

use super::*;
use crate::detectors::testing::{healthy, judge, open, pages, raised};
use crate::detectors::{Detectors, DetectorsConfig};
use proptest::prelude::*;

fn slowed(n: i64, factor: impl Fn(i64) -> f64) -> Vec<StepSample> {
    let mut run = healthy(81, n);
    run.iter_mut().for_each(|s| s.step_time = s.step_time.map(|t| t * factor(s.step)));
    run
}

/// Steps take two seconds: 150 are five minutes.
#[test]
fn an_abrupt_slow_down_pages_after_five_minutes_and_clears() {
    for percent in [12.0, 40.0] {
        let run = slowed(2000, |step| if (1000..1400).contains(&step) { 1.0 + percent / 100.0 } else { 1.0 });
        let findings = judge(&run);
        let found = pages(&findings);
        assert_eq!(found.len(), 1, "{percent} %: {findings:?}");
        assert!(found[0].0 == Kind::ThroughputDrop && (1136..=1170).contains(&found[0].1), "{found:?}");
        assert!(open(&findings).is_empty());
    }
    let short = slowed(2000, |step| if (1000..1100).contains(&step) { 1.12 } else { 1.0 });
    assert!(raised(&judge(&short)).is_empty(), "24 s lost are nobody's ticket");
}

#[test]
fn five_percent_are_a_ticket_and_a_page_when_ten_minutes_are_lost() {
    let found = raised(&judge(&slowed(9000, |step| if step > 1000 { 1.05 } else { 1.0 })));
    assert!(
        matches!(found[..], [(_, Severity::Ticket, 1560..1680), (_, Severity::Page, 6800..8800)]),
        "{found:?}"
    );
}

#[test]
fn two_and_a_half_percent_are_a_ticket_and_one_nothing() {
    let at = |f: f64| raised(&judge(&slowed(3000, |step| if step > 500 { f } else { 1.0 })));
    let found = at(1.025);
    assert!(matches!(found[..], [(_, Severity::Ticket, 1650..1900)]), "{found:?}");
    assert!(at(1.01).is_empty());
}

#[test]
fn where_money_is_known_it_decides() {
    let run = slowed(3000, |step| if step > 1000 { 1.4 } else { 1.0 });
    let pages_at = |limit: f64| {
        let mut config = DetectorsConfig { cost_per_gpu_hour: Some(2.0), ..DetectorsConfig::default() };
        config.mfu_droop.page_when_lost = Some(limit);
        let mut detectors = Detectors::new(&Arc::new(config));
        let mut out = Vec::new();
        detectors.price(Some(1000));
        run.iter().for_each(|s| detectors.step(s, &mut out));
        (pages(&out), out)
    };
    // 0.57 s of each two are lost, of $2,000 an hour: 32 cents a step.
    let (found, out) = pages_at(100.0);
    assert!(matches!(found[..], [(Kind::ThroughputDrop, 1300..1340)]), "{found:?}");
    let page = out.iter().find(|v| v.severity == Severity::Page).unwrap();
    assert!(
        page.why.to_string().contains(" ($1") && page.why.to_string().contains("of the run lost so far"),
        "{}",
        page.why
    );
    assert!(pages_at(5000.0).0.is_empty());
}

/// A limit in dollars is no limit for a run of unknown size.
#[test]
fn where_the_size_is_unknown_time_decides() {
    let run = slowed(3000, |step| if step > 1000 { 1.4 } else { 1.0 });
    let mut config = DetectorsConfig { cost_per_gpu_hour: Some(2.0), ..DetectorsConfig::default() };
    config.mfu_droop.page_when_lost = Some(1e6);
    let pages_of = |gpus: Option<u32>| {
        let mut detectors = Detectors::new(&Arc::new(config.clone()));
        let mut out = Vec::new();
        detectors.price(gpus);
        run.iter().for_each(|s| detectors.step(s, &mut out));
        assert!(gpus.is_some() || out.iter().all(|v| !v.why.to_string().contains('$')), "{out:?}");
        pages(&out)
    };
    assert!(pages_of(Some(1000)).is_empty());
    assert!(matches!(pages_of(None)[..], [(Kind::ThroughputDrop, 1100..1200)]), "{:?}", pages_of(None));
}

/// Means of 10 steps, one line every 20 s.
#[test]
fn lines_of_many_steps_page_within_five_minutes() {
    let line = |i: i64| StepSample {
        step: 10 * i,
        ts: Ts(20_000 * i),
        interval: 10,
        step_time: Some(if (400..418).contains(&i) { 2.5 } else { 2.0 + 0.01 * (i % 3) as f64 }),
        ..StepSample::default()
    };
    let run: Vec<_> = (1..600).map(line).collect();
    let findings = judge(&run);
    assert!(matches!(pages(&findings)[..], [(_, 4070..=4150)]), "{findings:?}");
    assert!(open(&findings).is_empty());
}

#[test]
fn a_creeping_slow_down_is_a_droop() {
    let run = slowed(1500, |step| 1.0 + 0.15 * ((step as f64 - 500.0) / 500.0).clamp(0.0, 1.0));
    let findings = judge(&run);
    let found = pages(&findings);
    assert!(found[0].0 == Kind::MfuDroop && found[0].1 < 1100, "{found:?}");
    let v = findings.iter().find(|v| v.severity == Severity::Page).unwrap();
    assert!(v.why.to_string().contains("slower bit by bit since step"), "{}", v.why);
}

#[test]
fn pauses_are_no_droop() {
    let run = slowed(3000, |step| match step {
        _ if step % 250 == 0 => 60.0,
        _ if step % 10 == 0 => 5.0,
        _ => 1.0,
    });
    assert!(raised(&judge(&run)).iter().all(|(k, ..)| *k != Kind::MfuDroop && *k != Kind::ThroughputDrop));
}

#[test]
fn a_sawtooth_becomes_one_incident_that_says_so() {
    let run = slowed(8000, |step| 1.0 + 0.14 * (step % 1000) as f64 / 1000.0);
    let findings = judge(&run);
    let last = findings
        .iter()
        .rfind(|v| v.kind == Kind::MfuDroop && v.change == stepwatch_model::Change::Raise)
        .unwrap();
    assert!(
        last.why.to_string().contains("a restart cures it, for a while; it costs about 1"),
        "{}",
        last.why
    );
    assert!(
        last.step < 4000 && open(&findings) == [Kind::MfuDroop],
        "one incident once it is known: {findings:?}"
    );
}

#[test]
fn a_run_that_comes_back_slower_is_seen() {
    let mut run = slowed(1200, |step| if step > 600 { 1.12 } else { 1.0 });
    run[600..].iter_mut().for_each(|s| s.attempt = 1);
    let found = pages(&judge(&run));
    assert!(matches!(found[..], [(_, 740..780)]), "{found:?}");
}

#[test]
fn throughput_is_judged_where_there_is_no_step_time() {
    let mut run = slowed(1000, |step| if step > 600 { 1.12 } else { 1.0 });
    for s in &mut run {
        s.tokens_per_second = s.step_time.take().map(|t| 4e6 / t);
    }
    let findings = judge(&run);
    assert_eq!(pages(&findings).len(), 1);
    let v = findings.iter().find(|v| v.severity == Severity::Page).unwrap();
    assert!(v.signal == "tokens_per_second" && v.value < v.expected, "{v:?}");
}

proptest! {
    #[test]
    fn the_unit_of_time_does_not_matter(exponent in -6i32..6) {
        let mut run = slowed(900, |step| if step > 500 { 1.1 } else { 1.0 });
        let before: Vec<_> = pages(&judge(&run));
        run.iter_mut().for_each(|s| s.step_time = s.step_time.map(|t| t * f64::from(exponent).exp2()));
        prop_assert_eq!(pages(&judge(&run)), before);
    }
}
