use proptest::prelude::*;

use super::*;

/// What is reported of lines with these steps and numbers.
fn reported(lines: &[(i64, f64)]) -> Vec<Option<f64>> {
    let mut tokens = Tokens::default();
    lines.iter().map(|(step, now)| tokens.of_step(*step, *now, None)).collect()
}

#[test]
fn a_counter_is_differenced_from_its_second_value_on() {
    let lines: Vec<_> = (1..6).map(|s| (s, s as f64 * 65536.0)).collect();
    assert_eq!(reported(&lines), [None, Some(65536.0), Some(65536.0), Some(65536.0), Some(65536.0)]);
    let lines: Vec<_> = (1..5).map(|s| (s * 10, s as f64 * 655360.0)).collect();
    assert_eq!(reported(&lines)[1..], [Some(65536.0); 3], "every tenth step is printed");
    let from_zero: Vec<_> = (0..4).map(|s| (s, (s + 1) as f64 * 1024.0)).collect();
    assert_eq!(reported(&from_zero)[1..], [Some(1024.0); 3]);
}

#[test]
fn the_tokens_of_a_step_stay_as_they_are() {
    assert_eq!(reported(&[(1, 65536.0), (2, 65536.0), (3, 65536.0)]), [None, Some(65536.0), Some(65536.0)]);
    let varied = [(1, 60_000.0), (2, 61_000.0), (3, 59_000.0), (4, 64_000.0), (5, 66_000.0)];
    assert_eq!(reported(&varied)[2..], [Some(59_000.0), Some(64_000.0), Some(66_000.0)]);
    // Twice as many by chance: wrong once, by no more than that.
    let twice = [(1, 30_000.0), (2, 58_000.0), (3, 41_000.0), (4, 39_000.0), (5, 45_000.0)];
    assert_eq!(reported(&twice), [None, Some(28_000.0), None, Some(39_000.0), Some(45_000.0)]);
}

/// As after a batch that was doubled, or the counter of a run before.
#[test]
fn what_stays_over_steps_counts_none() {
    let doubled = [32768.0, 65536.0, 65536.0, 65536.0, 65536.0, 65536.0];
    let lines: Vec<_> = (1..).zip(doubled).collect();
    assert_eq!(reported(&lines)[4..], [Some(65536.0); 2]);
    let counted = (1..6).map(|s| (s, s as f64 * 65536.0));
    let lines: Vec<_> = counted.chain((1..7).map(|s| (s, 65536.0))).collect();
    assert_eq!(reported(&lines)[8..], [Some(65536.0); 3]);
}

#[test]
fn a_counter_of_a_run_that_goes_on_is_known_by_equal_increments() {
    let lines: Vec<_> = (0..4).map(|s| (1000 + s, 1e8 + s as f64 * 65536.0)).collect();
    assert_eq!(reported(&lines), [None, None, Some(65536.0), Some(65536.0)]);
    let uneven = [0.0, 61e3, 120e3, 190e3, 255e3, 310e3].map(|n| 1e8 + n);
    let lines: Vec<_> = (1500..).zip(uneven).collect();
    assert_eq!(reported(&lines)[4..], [None, Some(55e3)], "or because it never falls");
    let grows: Vec<_> = (2..9).map(|s| (s, 4096.0 + s as f64 * 8.0)).collect();
    assert_eq!(reported(&grows), [None; 7], "sequences that grow by the same have not gained so much before");
    let huge: Vec<_> = (0..3).map(|s| (1000 + s, 5e12 + s as f64 * 65536.0)).collect();
    assert_eq!(reported(&huge), [None, Some(65536.0), Some(65536.0)], "no step has so many");
}

#[test]
fn after_a_restart() {
    let lines = [(1, 1e3), (2, 2e3), (3, 3e3), (2, 2e3), (3, 3e3), (4, 1e3), (5, 2e3), (6, 3e3)];
    let want = [None, Some(1e3), Some(1e3), None, Some(1e3), None, Some(1e3), Some(1e3)];
    assert_eq!(reported(&lines), want, "back to a checkpoint, and then counting from 0 again");
}

#[test]
fn the_lines_of_other_ranks_count_nothing_twice() {
    let lines = [(1, 1e3), (1, 1e3), (2, 2e3), (2, 2e3), (3, 3e3)];
    assert_eq!(reported(&lines), [None, None, Some(1e3), None, Some(1e3)]);
}

#[test]
fn a_rounded_counter_waits_until_its_digits_suffice() {
    let mut tokens = Tokens::default();
    let mut seen = Vec::new();
    for step in 1..=2000 {
        let all = 0.5e9 + step as f64 * 4e6;
        let printed = (all / 1e8).floor() * 1e8;
        seen.extend(tokens.of_step(step, printed, Some(1e8)));
    }
    assert!(seen.len() >= 2 && seen.iter().all(|n| (n / 4e6 - 1.0).abs() < 0.06), "{seen:?}");
    let mut tokens = Tokens::default();
    let seen: Vec<_> = (1..=30).filter_map(|step| tokens.of_step(step, 1.05e6, Some(1e4))).collect();
    assert_eq!(seen, [1.05e6; 10], "it stays the same");
}

proptest! {
    #[test]
    fn never_reports_a_counter_as_a_step(first in 0i64..100_000, by in 1i64..1000, each in 1.0f64..1e7) {
        let lines: Vec<_> = (0..50).map(|i| first + i * by).map(|s| (s, s as f64 * each)).collect();
        for tokens in reported(&lines).into_iter().flatten() {
            prop_assert!((tokens / each - 1.0).abs() < 1e-3, "{tokens} of {each}");
        }
    }

    #[test]
    fn never_panics(lines in prop::collection::vec((any::<i64>(), any::<f64>(), any::<Option<f64>>()), 0..20)) {
        let mut tokens = Tokens::default();
        for (step, now, quantum) in lines {
            tokens.of_step(step, now, quantum);
        }
    }
}
