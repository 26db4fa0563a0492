//! Lines of which the loss is gone.

use super::auto;

/// What the lines behind forty others miss.
fn missed(line: &dyn Fn(u32) -> String, then: &[&str]) -> Vec<i64> {
    let lines: Vec<String> = (1..=40).map(line).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).chain(then.iter().copied()).collect();
    let missing = auto(&lines).into_iter().filter(|e| e.missing.iter().any(|m| m == "loss"));
    missing.map(|e| e.step.unwrap()).collect()
}

#[test]
fn a_line_of_which_step_and_rate_are_left_is_missed() {
    let line = |s: u32| format!("step: {s} | loss: 2.5 | lr: 1e-{}", s % 9);
    assert_eq!(missed(&line, &["step: 41 | lr: 0.0001"]), [41]);
    assert_eq!(
        missed(&line, &["step: 41 | lr: 1e-4", "step: 42 | lr: 1e-4", "step: 43 | lr: 1e-4"]),
        [41, 42, 43]
    );
    assert_eq!(missed(&line, &["step: 41 | lr: 1e-4", "step: 42 | loss: 2.5 | lr: 1e-4"]), [41]);
    let logged =
        |s: u32| format!("2026-01-01 10:00:{:02} INFO epoch 1 | step {s} | lr 0.1 | loss 1.25", s % 60);
    assert_eq!(missed(&logged, &["2026-01-01 10:00:41 INFO epoch 1 | step 41 | lr 0.1"]), [41]);
    let own = |s: u32| format!("step {s}, nll_loss 2.5, time/iter: 0.5s");
    assert_eq!(missed(&own, &["step 41, time/iter: 0.5s"]), [41]);
}

#[test]
fn lines_of_a_schedule_are_no_steps() {
    let line = |s: u32| format!("step: {s} | loss: 2.5 | lr: 1e-4");
    for then in [
        &["step: 40 | lr: 1e-4"][..],
        &["step: 40 | lr: 1e-4", "step: 41 | loss: 2.5 | lr: 1e-4", "step: 42 | lr: 1e-4"],
        &["step: 50 | lr: 1e-4"],
        &["step: 41 | temperature: 0.5"],
        &["eval step: 41 | lr: 1e-4"],
        &["scheduler: step: 41 | lr: 1e-4"],
        &["step: 41 | lr: 1e-4 | val_loss: 2.5"],
        &["step: 41 | new lr: 1e-4"],
    ] {
        assert_eq!(missed(&line, then), [0; 0], "{then:?}");
    }
    for every in [5, 10, 19, 30] {
        let with = |s: u32| match s {
            s if s % every == 0 => format!("{}\nstep: {s} | lr: 1e-4", line(s)),
            s => line(s),
        };
        let log: Vec<String> = (1..200).map(with).collect();
        let log = log.join("\n");
        assert!(auto(&log.lines().collect::<Vec<_>>()).iter().all(|e| e.missing.is_empty()), "{every}");
    }
    let seldom = |s: u32| if s.is_multiple_of(10) { line(s) } else { format!("step: {s} | lr: 1e-4") };
    let log: Vec<String> = (1..200).map(seldom).collect();
    let log: Vec<&str> = log.iter().map(String::as_str).collect();
    assert!(auto(&log).iter().all(|e| e.missing.is_empty()), "the loss of every tenth step");
}

/// A run that resumes is broken from its first step on.
#[test]
fn a_loss_that_is_none_after_steps_fell_back_is_missed() {
    for line in [
        |s: u32, loss: &str| format!("step: {s} | loss: {loss} | grad norm: {loss} | lr: 1e-4"),
        |s: u32, loss: &str| format!("step {s} loss {loss} grad_norm {loss}"),
        |s: u32, loss: &str| format!("{{'step': {s}, 'loss': {loss}, 'grad_norm': {loss}, 'lr': 0.0001}}"),
    ] {
        let usual = |s: u32| line(s, "2.5");
        let [back, next] = [31, 32].map(|s| line(s, "None"));
        assert_eq!(missed(&usual, &[&back, &next]), [31, 32], "{back}");
    }
}
