use super::*;
use crate::detectors::testing::{Noise, healthy, judge, open, pages, raised};
use proptest::prelude::*;
use stepwatch_model::Change;

/// BLOOM-176B, steps 31214 to 31222: gradient norm and loss as logged (BigScience chronicles,
/// 2022-04-12, CC-BY-4.0).
const BLOOM: [(f64, f64); 9] = [
    (0.242, 2.198845),
    (0.947, 2.220424),
    (2.390, 2.595213),
    (15.886, 2.241558),
    (145.119, 2.345279),
    (960.351, 5.098124),
    (353.201, 3.492029),
    (379.330, 3.213059),
    (650.246, 2.804948),
];

fn bloom() -> Vec<StepSample> {
    let mut run = healthy(31, 700);
    for (s, (grad, loss)) in run[500..].iter_mut().zip(BLOOM) {
        (s.grad_norm, s.loss) = (Some(grad), Some(loss));
    }
    run
}

#[test]
fn blooms_run_up_pages_before_the_loss_jumps() {
    let findings = judge(&bloom());
    let first = pages(&findings)[0];
    assert_eq!(first, (Kind::GradSpike, 504), "{findings:?}");
    let why = &findings.iter().find(|v| v.severity == Severity::Page).unwrap().why;
    assert!(why.to_string().starts_with("grad norm rose 3 samples in a row to 15.89, 6"), "{why}");
    assert!(
        !findings.iter().any(|v| v.change == Change::Note),
        "one episode, not a note and a page: {findings:?}"
    );
    assert!(open(&findings).is_empty(), "{findings:?}");
}

#[test]
fn six_spikes_close_together_page_and_then_clear() {
    let mut run = healthy(32, 600);
    (0..6).for_each(|i| run[400 + 2 * i].grad_norm = Some(1.5));
    let findings = judge(&run);
    assert_eq!(raised(&findings)[0], (Kind::GradSpike, Severity::Ticket, 403));
    assert_eq!(pages(&findings)[0], (Kind::GradSpike, 407));
    assert!(open(&findings).is_empty());
}

#[test]
fn a_lone_spike_in_a_sparse_log_is_a_ticket() {
    let mut run = healthy(33, 300);
    for s in &mut run {
        (s.step, s.interval) = (s.step * 100, 100);
    }
    for norm in [5.0, 0.7] {
        run[200].grad_norm = Some(norm);
        assert_eq!(raised(&judge(&run)), [(Kind::GradSpike, Severity::Ticket, 20_100)], "{norm}");
    }
}

#[test]
fn excursions_are_counted_although_they_widen_the_scale() {
    // Noisy both ways, and tenfold up at every 9th sample, then at every 4th.
    let wild = |n: usize, often: bool| {
        let (mut noise, mut run) = (Noise::new(36), healthy(36, n as i64));
        for (i, s) in run.iter_mut().enumerate() {
            let up = often && if i < 800 { i % 9 == 8 } else { i % 4 == 0 };
            s.grad_norm = Some((0.3 * noise.normal()).exp() * if up { 10.0 } else { 1.0 });
        }
        run
    };
    assert!(raised(&judge(&wild(2000, false))).is_empty(), "noise both ways is noise");
    let (mut detector, mut shared) = (GradSpike::default(), Shared::default());
    for s in wild(1000, true) {
        shared.observe(&s);
        let mut step = JudgedStep { sample: &s, out: &mut Vec::new() };
        detector.step(&Config::default(), &mut step, &mut shared);
    }
    let (upward, hits) = (detector.upward.count_last(64), detector.hits.count_last(64));
    assert!(upward >= 8 && hits <= upward / 2, "{hits} of all, {upward} of the lower half");
}

#[test]
fn spikes_that_come_ever_more_often_are_instability() {
    let mut run = healthy(34, 3000);
    (0..12).for_each(|i| run[2500 + 20 * i].grad_norm = Some(2.0));
    let found = raised(&judge(&run));
    assert!(found.iter().any(|(k, s, _)| *k == Kind::GradInstability && *s == Severity::Page), "{found:?}");
}

#[test]
fn a_burst_during_warm_up_is_a_ticket() {
    let mut run = healthy(35, 400);
    run.iter_mut().for_each(|s| s.lr = Some(1e-6 * s.step as f64));
    (0..6).for_each(|i| run[200 + i].grad_norm = Some(3.0));
    let found = raised(&judge(&run));
    assert!(
        found.iter().any(|f| f.0 == Kind::GradSpike) && found.iter().all(|f| f.1 == Severity::Ticket),
        "{found:?}"
    );
}

proptest! {
    #[test]
    fn a_single_spike_is_never_more_than_a_note(seed: u64, at in 60usize..580, factor in 3.0f64..1e9) {
        let mut run = healthy(seed, 600);
        run[at].grad_norm = run[at].grad_norm.map(|g| g * factor);
        let findings = judge(&run);
        prop_assert!(raised(&findings).is_empty(), "{findings:?}");
        prop_assert!(findings.len() == 1 && findings[0].kind == Kind::GradSpike, "{findings:?}");
    }

    #[test]
    fn the_unit_of_the_norm_does_not_matter(seed: u64, exponent in -20i32..20) {
        let mut run = bloom();
        run.extend(healthy(seed, 300).into_iter().map(|s| StepSample { step: s.step + 700, ..s }));
        let before = raised(&judge(&run));
        // A power of two changes no mantissa, so nothing may change at all.
        run.iter_mut().for_each(|s| s.grad_norm = s.grad_norm.map(|g| g * f64::from(exponent).exp2()));
        prop_assert_eq!(raised(&judge(&run)), before);
    }
}
