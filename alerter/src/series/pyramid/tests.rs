use super::*;
use proptest::prelude::*;

/// A pyramid with a value for every step, computed from its number.
fn filled(steps: impl IntoIterator<Item = i64>, value: impl Fn(i64) -> f64) -> Pyramid {
    let mut p = Pyramid::default();
    steps.into_iter().for_each(|step| p.push(0, step, value(step), None));
    p
}

fn everything(p: &Pyramid, points: usize) -> Vec<Bucket> {
    p.window(i64::MIN, i64::MAX, points)
}

/// The number of finite and other values.
fn counts(buckets: &[Bucket]) -> (u64, u64) {
    let sum = |of: fn(&Bucket) -> u32| buckets.iter().map(|b| u64::from(of(b))).sum();
    (sum(|b| b.count), sum(|b| b.nonfinite))
}

/// The number of steps in a month at one a second.
const MONTH: i64 = 2_592_000;

#[test]
fn a_month_keeps_every_spike_in_64_kib() {
    let spikes = [5, 1_000_003, 2_000_077, MONTH - 100_000, MONTH - 3];
    let p = filled(0..MONTH, |step| if spikes.contains(&step) { 1e6 + step as f64 } else { 2.0 });
    assert!(p.bytes() <= MAX_BYTES, "{} B", p.bytes());
    assert!(p.is_sound());
    for points in [1, 2, 300, 1024, 4096] {
        let month = everything(&p, points);
        assert!(month.len() <= points);
        assert_eq!(counts(&month), (MONTH as u64, 0));
        let top = month.iter().map(|b| b.max).fold(0.0, f32::max);
        assert_eq!(top, (1e6 + (MONTH - 3) as f64) as f32);
    }
    let high = everything(&p, 1024).iter().filter(|b| b.max > 1e5).count();
    assert_eq!(high, spikes.len());
    assert!(everything(&p, 1024).len() > 300);
}

#[test]
fn the_last_4096_values_are_as_they_came() {
    let p = filled(0..20_000, |step| (step % 97) as f64);
    let last = p.window(20_000 - 4000, i64::MAX, 4096);
    assert_eq!(last.len(), 4000);
    assert!(last.iter().zip(16_000..).all(|(b, step)| b.first == step && b.last == (step % 97) as f32));
    let few = p.window(19_990, 19_992, 4096);
    assert_eq!(few.iter().map(|b| b.first).collect::<Vec<_>>(), [19_990, 19_991, 19_992]);
}

#[test]
fn nothing_is_there_before_the_first_and_after_the_last_step() {
    let p = filled(100..200, |_| 1.0);
    assert!(p.window(300, 400, 10).is_empty() && p.window(0, 99, 10).is_empty());
    assert!(p.window(150, 140, 10).len() <= 1);
    assert!(Pyramid::default().window(i64::MIN, i64::MAX, 10).is_empty());
}

#[test]
fn a_later_attempt_overwrites_what_it_does_again() {
    let mut p = filled(0..3_000, |_| 1.0);
    (2_000..2_500).for_each(|step| p.push(1, step, 7.0, None));
    let all = everything(&p, 4096);
    assert_eq!(counts(&all), (2_500, 0));
    assert!(all.iter().all(|b| b.last == if b.first < 2_000 { 1.0 } else { 7.0 }));
    // The new attempt continues beyond the end of the first one.
    (2_500..3_100).for_each(|step| p.push(1, step, 7.0, None));
    assert_eq!(counts(&everything(&p, 4096)), (3_100, 0));
    assert!(p.is_sound());
}

#[test]
fn a_bucket_in_which_the_restart_lies_is_kept_whole() {
    let mut p = filled(0..100_000, |_| 1.0);
    p.push(1, 50_010, 7.0, None);
    let all = everything(&p, 4096);
    let last = all[all.len() - 2];
    assert!(last.first <= 50_010 && last.first + 512 > 50_010, "{last:?}");
    assert_eq!((all[all.len() - 1].first, all[all.len() - 1].last), (50_010, 7.0));
    assert!(p.is_sound());
}

#[test]
fn values_that_are_no_numbers_are_counted_and_are_in_no_other_number() {
    let mut p = filled(0..1000, |step| if step % 10 == 3 { f64::NAN } else { 4.0 });
    p.push(0, 500, f64::INFINITY, None); // another rank, of a step that had a number
    p.push(0, 501, 9.0, None); // a second report of a step changes nothing
    let one = everything(&p, 1)[0];
    assert_eq!((one.count, one.nonfinite, one.min, one.max, one.mean), (899, 101, 4.0, 4.0, 4.0));
    let mut long = filled(0..10_000, |_| 4.0);
    long.push(0, 17, f64::NAN, None);
    assert_eq!(counts(&everything(&long, 9)), (10_000, 1));
    let broken = filled(0..9000, |_| f64::NAN);
    assert_eq!(counts(&everything(&broken, 5)), (0, 9000));
    assert!(broken.is_sound());
    assert_eq!(broken.last_value().filter(|v| v.is_finite()), None);
}

#[test]
fn what_was_expected_is_kept_with_the_values() {
    let mut p = Pyramid::default();
    for step in 0..30_000 {
        let level = 10.0 - f64::from(step as i32) / 10_000.0;
        let e = Expectation { expected: level, low: level - 0.5, high: level + 1.5 };
        p.push(0, step, level, (step % 8 == 0).then_some(e));
    }
    for bucket in everything(&p, 100) {
        let e = bucket.band.expectation().unwrap();
        assert!((e.expected - f64::from(bucket.mean)).abs() < 0.1, "{bucket:?}");
        assert!((e.expected - e.low - 0.5).abs() < 0.01 && (e.high - e.expected - 1.5).abs() < 0.02);
    }
    assert!(filled(0..10, |_| 1.0).expectation().is_none());
}

proptest! {
    /// For irregular steps, restarts and any values, the buckets stay in order and within their
    /// limits, and all steps of the last attempt are there.
    #[test]
    fn whatever_comes(
        moves in prop::collection::vec((0u8..200, 1i64..5_000, -1e300f64..1e300), 1..3_000),
        points in 1usize..3_000,
    ) {
        let mut p = Pyramid::default();
        let (mut attempt, mut step) = (0, 0);
        for (what, by, value) in moves {
            match what {
                0 => (attempt, step) = (attempt + 1, step - 40 * by),
                1 => step += by * 1_000_000_000,
                _ => step += if what < 100 { 1 } else { by },
            }
            p.push(attempt, step, if what == 7 { f64::NAN } else { value }, None);
        }
        prop_assert!(p.is_sound());
        prop_assert!(p.bytes() <= MAX_BYTES);
        let all = everything(&p, points);
        prop_assert!(!all.is_empty() && all.len() <= points);
        prop_assert!(all.is_sorted_by(|a, b| a.first < b.first));
        prop_assert_eq!(p.last_step(), Some(step));
        let back: Pyramid = postcard::from_bytes(&postcard::to_allocvec(&p).unwrap()).unwrap();
        prop_assert_eq!(everything(&back, points).len(), all.len());
        prop_assert!(back.is_sound());
    }
}
