use std::sync::Arc;

use super::*;
use crate::detectors::testing::{healthy, open, pages, raised};
use crate::detectors::{Detectors, DetectorsConfig};
use stepwatch_model::Finding;
use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

const NOTHING: Expect = Expect { run: String::new(), mfu: None, tokens_per_second: None, step_time: None };

fn at_least(run: &str, mfu: f64) -> Expect {
    Expect { run: run.into(), mfu: Some(mfu), ..NOTHING }
}

fn config(expect: Vec<Expect>) -> DetectorsConfig {
    DetectorsConfig {
        below_expectation: Config { expect, ..Config::default() },
        ..DetectorsConfig::default()
    }
}

fn detectors(config: DetectorsConfig) -> Detectors {
    let mut detectors = Detectors::new(&Arc::new(config));
    detectors.named("llama-70b");
    detectors
}

fn all(detectors: &mut Detectors, run: &[StepSample]) -> Vec<Finding> {
    let mut out = Vec::new();
    run.iter().for_each(|s| detectors.step(s, &mut out));
    out
}

fn judge(expect: Expect, run: &[StepSample]) -> Vec<Finding> {
    all(&mut detectors(config(vec![expect])), run)
}

/// A run of steps of two seconds whose MFU is 40 % times a factor.
fn with_mfu(n: i64, factor: impl Fn(i64) -> f64) -> Vec<StepSample> {
    let mut run = healthy(131, n);
    run.iter_mut().for_each(|s| s.mfu = s.step_time.map(|t| 0.8 * factor(s.step) / t));
    run
}

#[test]
fn a_run_that_never_was_fast_enough_is_a_ticket_after_its_first_minutes() {
    let findings = judge(at_least("llama-*", 0.40), &with_mfu(1000, |_| 0.95));
    assert_eq!(raised(&findings), [(Kind::BelowExpectation, Severity::Ticket, 211)]);
    let found = &findings[0];
    assert_eq!((&*found.signal, found.start_step), ("mfu", 62));
    assert!((found.value - 0.38).abs() < 0.002 && (found.expected - 0.40).abs() < 1e-9, "{found:?}");
    let why = found.why.to_string();
    assert!(why.contains("at least 0.4 is expected of this run: ") && why.contains(" % less"), "{why}");
    assert!(why.contains("since step 62; "), "{why}");
}

#[test]
fn ten_percent_for_five_minutes_are_a_page_and_so_are_ten_minutes_lost() {
    let findings = judge(at_least("llama-70b", 0.40), &with_mfu(1000, |_| 0.85));
    assert_eq!(raised(&findings), [(Kind::BelowExpectation, Severity::Page, 211)]);
    let findings = judge(at_least("*", 0.40), &with_mfu(7000, |_| 0.95));
    let found = pages(&findings);
    assert!(matches!(found[..], [(Kind::BelowExpectation, 5900..6300)]), "{found:?}");
}

#[test]
fn what_is_nearly_enough_and_what_nobody_expects_is_nothing() {
    for factor in [0.985, 1.0, 1.2] {
        assert!(judge(at_least("llama-*", 0.40), &with_mfu(1000, |_| factor)).is_empty(), "{factor}");
    }
    assert!(judge(at_least("gpt-*", 0.40), &with_mfu(1000, |_| 0.5)).is_empty());
    let two = vec![at_least("llama-*", 0.30), at_least("*", 0.40)];
    let first = all(&mut detectors(config(two)), &with_mfu(1000, |_| 0.9));
    assert!(first.is_empty(), "the first that matches decides: {first:?}");
    let mut teraflops = with_mfu(1000, |_| 1.0);
    teraflops.iter_mut().for_each(|s| s.mfu = Some(412.0));
    assert!(judge(at_least("*", 0.40), &teraflops).is_empty());
}

#[test]
fn it_ends_when_the_median_is_back_and_when_the_limit_is_gone() {
    let slow_until = |end: i64| with_mfu(1000, move |step| if step < end { 0.95 } else { 1.0 });
    let findings = judge(at_least("*", 0.40), &slow_until(500));
    assert_eq!(raised(&findings).len(), 1, "{findings:?}");
    assert!(open(&findings).is_empty(), "{findings:?}");
    let run = slow_until(1000);
    let mut detectors = detectors(config(vec![at_least("*", 0.40)]));
    let mut findings = all(&mut detectors, &run[..400]);
    assert_eq!(open(&findings), [Kind::BelowExpectation]);
    detectors.configure(&Arc::default());
    detectors.named("llama-70b");
    findings.extend(all(&mut detectors, &run[400..401]));
    assert!(open(&findings).is_empty(), "{findings:?}");
}

#[test]
fn pauses_warm_up_and_evaluations_do_not_count() {
    let pauses = with_mfu(1000, |step| if step % 7 == 0 { 0.2 } else { 1.0 });
    assert!(judge(at_least("*", 0.40), &pauses).is_empty());
    let warm_up = with_mfu(1000, |step| if step <= 61 { 0.2 } else { 1.0 });
    assert!(judge(at_least("*", 0.40), &warm_up).is_empty());
    let mut evaluations = with_mfu(1000, |step| if (300..600).contains(&step) { 0.2 } else { 1.0 });
    evaluations[299..599].iter_mut().for_each(|s| s.class = StepClass::Eval);
    assert!(judge(at_least("*", 0.40), &evaluations).is_empty());
}

#[test]
fn a_restart_is_judged_by_its_own_steps() {
    let mut run = with_mfu(1000, |step| if step < 500 { 0.95 } else { 1.0 });
    run[499..].iter_mut().for_each(|s| s.attempt = 1);
    let findings = judge(at_least("*", 0.40), &run);
    let ends: Vec<_> = findings.iter().filter(|v| v.change.ends()).map(|v| v.step).collect();
    assert!(matches!(ends[..], [700..720]), "{findings:?}");
}

#[test]
fn a_step_time_has_a_ceiling() {
    let expect = Expect { run: "*".into(), step_time: Some(1.9), ..NOTHING };
    let findings = judge(expect, &healthy(132, 600));
    assert_eq!(raised(&findings), [(Kind::BelowExpectation, Severity::Ticket, 211)]);
    let why = findings[0].why.to_string();
    assert!(why.starts_with("step_time is ") && why.contains("at most 1.9 is expected"), "{why}");
}

#[test]
fn one_slow_down_pages_once() {
    let mut run = with_mfu(6000, |step| if step < 1000 { 1.0 } else { 1.0 / 1.2 });
    run[999..].iter_mut().for_each(|s| s.step_time = s.step_time.map(|t| t * 1.2));
    let found = pages(&judge(at_least("*", 0.36), &run));
    assert!(matches!(found[..], [(Kind::ThroughputDrop, 1100..1200)]), "{found:?}");
}

#[test]
fn dollars_decide_only_where_the_size_of_the_run_is_known() {
    let found = |gpus: Option<u32>| {
        let mut config = config(vec![at_least("*", 0.40)]);
        config.cost_per_gpu_hour = Some(2.0);
        config.below_expectation.page_when_lost = Some(1e6);
        let mut detectors = detectors(config);
        detectors.price(gpus);
        let findings = all(&mut detectors, &with_mfu(1000, |_| 0.85));
        (raised(&findings), findings[0].why.to_string())
    };
    let (known, why) = found(Some(1000));
    assert_eq!(known, [(Kind::BelowExpectation, Severity::Ticket, 211)]);
    assert!(why.contains('$'), "{why}");
    let (unknown, why) = found(None);
    assert_eq!(unknown, [(Kind::BelowExpectation, Severity::Page, 211)]);
    assert!(!why.contains('$'), "{why}");
}

#[test]
fn a_snapshot_changes_nothing() {
    let expect = || config(vec![at_least("*", 0.40)]);
    let run = with_mfu(900, |step| if (200..500).contains(&step) { 0.85 } else { 1.0 });
    let straight = all(&mut detectors(expect()), &run);
    assert!(!straight.is_empty() && open(&straight).is_empty(), "{straight:?}");
    for at in [100, 230, 480, 600] {
        let mut before = detectors(expect());
        let mut out = all(&mut before, &run[..at]);
        let bytes = postcard::to_stdvec(&before).unwrap();
        let mut after: Detectors = postcard::from_bytes(&bytes).unwrap();
        after.configure(&Arc::new(expect()));
        after.named("llama-70b");
        out.extend(all(&mut after, &run[at..]));
        assert_eq!(format!("{out:?}"), format!("{straight:?}"), "{at}");
    }
}

#[test]
fn the_name_of_the_run_chooses_its_limit() {
    let config = Arc::new(config(vec![at_least("llama-*", 0.40)]));
    let found = |name: &str| {
        let mut run = crate::Run::new(name, Ts(0), &Arc::default());
        run.configure(&config);
        let mut out = Vec::new();
        for s in with_mfu(300, |_| 0.9) {
            let mut e = Event::step(name, s.step);
            (e.rank, e.ts) = (Some(0), Some(s.ts.as_secs_f64()));
            e.m.set(metric::STEP_TIME, s.step_time.unwrap());
            e.m.set(metric::MFU_REPORTED, s.mfu.unwrap());
            run.event(s.ts, "n:1", &e, &mut out);
        }
        raised(&out).into_iter().filter(|(kind, ..)| *kind == Kind::BelowExpectation).count()
    };
    assert_eq!((found("llama-70b"), found("gpt")), (1, 0));
}
