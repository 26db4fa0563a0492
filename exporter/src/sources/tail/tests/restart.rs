//! Tests of exporters that are killed and restarted.

use proptest::prelude::*;

use super::*;

#[test]
fn a_partial_line_survives_a_restart() {
    let mut b = Bench::new("run.log");
    b.append("run.log", &step(7)[..40]);
    assert_eq!(b.poll_steps(), NONE);
    b.kill();
    b.append("run.log", &step(7)[40..]);
    assert_eq!(b.poll_steps(), [7]);
}

#[test]
fn goes_on_after_a_kill_without_loss_or_repetition() {
    let mut b = Bench::new("run.log");
    let mut seen = Vec::new();
    for n in 0..40 {
        b.steps("run.log", n * 3..n * 3 + 3);
        if n % 4 == 1 {
            b.append("run.log", "half a l");
        } else if n % 4 == 2 {
            b.append("run.log", "ine\n");
        }
        seen.extend(b.poll_steps());
        if n % 3 == 0 {
            b.kill();
        }
    }
    // `half a l` absorbs the following step line, as it would without a restart.
    let swallowed: Vec<i64> = (0..40).filter(|n| n % 4 == 2).map(|n| n * 3).collect();
    assert_eq!(seen, (0..120).filter(|s| !swallowed.contains(s)).collect::<Vec<_>>());
}

#[test]
fn what_was_published_before_a_crash_is_not_published_again() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    b.poll();
    b.steps("run.log", 3..6);
    assert_eq!(b.poll_steps(), [3, 4, 5]);
    b.kill_before_saving();
    b.steps("run.log", 6..8);
    assert_eq!(b.poll_steps(), [6, 7]);
    assert_eq!(b.dropped("read_again"), Some(3.0));
}

#[test]
fn what_is_refused_for_too_many_runs_waits() {
    let mut b = Bench::new("run.log");
    *b.list.full.lock().unwrap() = true;
    b.steps("run.log", 1..4);
    assert_eq!(b.poll_steps(), NONE);
    b.kill();
    b.steps("run.log", 4..6);
    assert_eq!(b.poll_steps(), NONE, "a restart changes nothing");
    *b.list.full.lock().unwrap() = false;
    assert_eq!(b.poll_steps(), NONE, "it does not ask all the time");
    b.wait(file::RETRY_EVERY);
    assert_eq!(b.poll_steps(), range(1..6));
    b.steps("run.log", 6..8);
    assert_eq!(b.poll_steps(), [6, 7]);
    b.kill();
    assert_eq!(b.poll_steps(), NONE);
}

#[test]
fn rotation_while_the_exporter_is_down() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    b.kill();
    b.steps("run.log", 3..5);
    fs::rename(b.path("run.log"), b.path("run.log.1")).unwrap();
    b.steps("run.log", 5..7);
    assert_eq!(b.poll_steps(), [3, 4, 5, 6]);
    b.kill();
    b.append("run.log.1", &step(7));
    b.steps("run.log", 8..9);
    assert_eq!(b.poll_steps(), [7, 8], "the drain goes on after a second restart");
    b.kill();
    fs::write(b.path("run.log"), step(100)).unwrap();
    assert_eq!(b.poll_steps(), [100], "cut while nobody looked");
}

#[test]
fn cut_and_then_renamed_while_nobody_looked() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..30);
    assert_eq!(b.poll_steps().len(), 29);
    b.kill();
    fs::write(b.path("run.log"), "").unwrap();
    b.steps("run.log", 30..32);
    fs::rename(b.path("run.log"), b.path("run.log.1")).unwrap();
    b.steps("run.log", 32..34);
    assert_eq!(b.poll_steps(), range(30..34));
    assert_eq!(b.dropped("truncated"), Some(1.0));
}

#[test]
fn a_file_system_that_is_mounted_late_or_lost_for_a_while() {
    let mut b = Bench::new("mount/run.log");
    let (mount, away) = (b.path("mount"), b.path("away"));
    fs::create_dir(&mount).unwrap();
    b.steps("mount/run.log", 1..4);
    assert_eq!(b.poll_steps(), [1, 2, 3]);
    b.kill();
    b.steps("mount/run.log", 4..5);
    fs::rename(&mount, &away).unwrap();
    assert_eq!(b.poll_steps(), NONE);
    b.kill();
    assert_eq!(b.poll_steps(), NONE, "the position outlives a second start without the file");
    fs::rename(&away, &mount).unwrap();
    assert_eq!(b.poll_steps(), [4]);
}

#[test]
fn a_parser_goes_on_knowing_what_it_knew() {
    let mut b = Bench::new("run.log");
    let line = |n: i64, rest: &str| format!(" iteration {n}/ 1000 | consumed tokens: {} |{rest}\n", n * 500);
    b.append("run.log", &line(100, " lm loss: 2.0 |"));
    b.poll();
    b.kill();
    // Either all 100 iterations since the last line were skipped, or 99 of them: only the last line
    // shows which.
    b.append("run.log", &line(200, " number of skipped iterations: 99 |"));
    let e = b.poll();
    assert_eq!(
        (e[0].m.get("tokens"), e[0].missing.as_slice()),
        (Some(500.0), ["loss".to_owned()].as_slice())
    );
    // Counted steps continue too.
    let mut b = Bench::new("hf.log");
    let dict = "{'loss': 2.0, 'learning_rate': 0.1, 'epoch': 0.1}\n";
    b.append("hf.log", &dict.repeat(3));
    assert_eq!(b.poll_steps(), [1, 2, 3]);
    b.kill();
    b.append("hf.log", dict);
    assert_eq!(b.poll_steps(), [4]);
}

/// An event in the life of a log and its reader.
#[derive(Debug, Clone)]
enum Happens {
    Written(usize),
    Polled,
    Killed,
    KilledBeforeSaving,
    Rotated,
}

fn history() -> impl Strategy<Value = Vec<Happens>> {
    let one = prop_oneof![
        6 => (1usize..200).prop_map(Happens::Written),
        4 => Just(Happens::Polled),
        1 => Just(Happens::Killed),
        1 => Just(Happens::KilledBeforeSaving),
        1 => Just(Happens::Rotated),
    ];
    proptest::collection::vec(one, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In any history, every step is published once and in order.
    #[test]
    fn any_history_loses_and_doubles_nothing(history in history()) {
        let mut b = Bench::new("run.log");
        let text: String = (1..200).map(step).collect();
        let (mut written, mut rotations, mut seen) = (0, 0, Vec::new());
        let save = |b: &mut Bench, written: &mut usize, upto: usize| {
            let upto = upto.min(text.len());
            b.append("run.log", &text[*written..upto]);
            *written = upto;
        };
        for what in history {
            match what {
                Happens::Written(n) => {
                    let upto = written + n;
                    save(&mut b, &mut written, upto);
                }
                Happens::Polled => seen.extend(b.poll_steps()),
                Happens::Killed => b.kill(),
                Happens::KilledBeforeSaving => {
                    b.list.saved.lock().unwrap().1 = None;
                    seen.extend(b.poll_steps());
                    b.kill_before_saving();
                }
                Happens::Rotated => {
                    // A logger rotates between lines. Two rotations between two polls would hide a
                    // file.
                    let end = text[written..].find('\n').map_or(written, |i| written + i + 1);
                    save(&mut b, &mut written, end);
                    seen.extend(b.poll_steps());
                    rotations += 1;
                    fs::rename(b.path("run.log"), b.path(&format!("run.log.{rotations}"))).unwrap();
                    b.append("run.log", "");
                    seen.extend(b.poll_steps());
                    b.wait(DRAIN);
                }
            }
        }
        seen.extend(b.poll_steps());
        let complete = text[..written].matches('\n').count() as i64;
        prop_assert_eq!(seen, range(1..complete + 1));
    }
}

#[test]
fn a_state_directory_that_cannot_be_written_stops_nothing() {
    let mut b = Bench::new("run.log");
    fs::write(b.dir.path().join("state"), "in the way").unwrap();
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    assert_eq!(b.dropped("position_not_saved"), Some(2.0), "before the first step, and after the second");
}
