//! Tests of lines, their ends, and their times.

use super::*;

#[test]
fn follows_a_growing_file() {
    let mut b = Bench::new("run.log");
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(0.0), "the file is not there");
    b.steps("run.log", 1..4);
    assert_eq!(b.poll_steps(), [1, 2, 3]);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(1.0));
    b.append("run.log", "noise\n");
    b.steps("run.log", 4..5);
    assert_eq!(b.poll_steps(), [4]);
    assert_eq!(b.page().get(&UNMATCHED, &[&b.config.path, "tail"]), Some(1.0));
    assert_eq!(b.page().get(&RESOLUTION, &[&b.config.path, "loss"]), Some(0.1));
    assert_eq!(b.poll_steps(), NONE);
}

#[test]
fn a_partial_line_waits_for_its_end() {
    let mut b = Bench::new("run.log");
    let line = step(7);
    for (i, c) in line.char_indices() {
        assert_eq!(b.poll_steps(), NONE, "{i}");
        b.append("run.log", &c.to_string());
    }
    assert_eq!(b.poll_steps(), [7]);
}

#[test]
fn a_line_without_end_is_cut_and_counted() {
    let mut b = Bench::new("run.log");
    b.append("run.log", step(1).trim_end());
    b.append("run.log", &"x".repeat(3 * MAX_LINE_BYTES));
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.dropped("line_too_long"), Some(1.0));
    b.wait(Duration::from_secs(5));
    assert_eq!(b.poll_steps(), NONE);
    b.kill();
    b.append("run.log", &format!("{}\n{}", step(2).trim_end(), step(3)));
    assert_eq!(b.poll_steps(), [3], "the rest of the long line is no line");
}

#[test]
fn progress_bars_that_never_end_a_line() {
    let mut b = Bench::new("hf.log");
    for n in 1..=2000 {
        b.append("hf.log", &format!("\r  1%|▏         | {n}/5000 [00:10<08:10,  1.00s/it]"));
    }
    b.append("hf.log", "\r          \r{'loss': 2.5, 'epoch': 0.1}\n");
    assert_eq!(b.poll_steps(), [2000]);
    assert_eq!(b.dropped("line_too_long"), None);
}

#[test]
fn records_are_more_exact_than_logs() {
    for (name, text, priority) in [
        ("a.jsonl", "{\"step\":2,\"loss\":1}\n".to_owned(), Priority::File),
        ("a.log", step(1), Priority::Log),
    ] {
        let mut b = Bench::new(name);
        b.append(name, &text);
        b.wait(Duration::from_millis(1));
        let state = b.dir.path().join("state");
        let mut tail = new_tail(&b.config, &b.list, &state);
        tail.poll(b.now, b.unix);
        assert_eq!(b.list.events.lock().unwrap()[0].0, priority, "{name}");
    }
}

/// Noon, as a logger five hours behind UTC prints it.
const STAMP: &str = "[2030-01-01 07:00:00]";

const NOON: f64 = 1_893_499_200.0;

#[test]
fn the_time_of_a_line() {
    let mut b = Bench::new("run.log");
    b.unix = NOON - 0.25;
    b.append("run.log", "start\n");
    b.poll();
    b.append("run.log", &format!("{STAMP}{}", step(1)));
    b.unix = NOON + 1.0;
    assert_eq!(b.poll()[0].ts, Some(NOON), "a fresh line shows its zone");
    b.append("run.log", &format!("[2030-01-01 07:00:10]{}", step(2)));
    b.unix = NOON + 400.0;
    assert_eq!(b.poll()[0].ts, Some(NOON + 10.0));
    assert_eq!(b.page().get(&LAG, &[&b.config.path, "tail"]), Some(390.25));
    b.append("run.log", &step(3));
    assert_eq!(b.poll()[0].ts, Some(b.unix), "without a stamp, when it came");
    b.append("run.log", &format!("[2031-01-01 07:00:00]{}", step(4)));
    assert_eq!(b.poll()[0].ts, Some(b.unix), "the future is a wrong clock");
}

#[test]
fn the_time_of_lines_that_were_there_before() {
    let written = std::time::UNIX_EPOCH + Duration::from_secs_f64(NOON + 5.0);
    let mut b = Bench::new("run.log");
    b.unix = NOON + 7200.0;
    b.append("run.log", &format!("{}{STAMP}{}", step(1), step(2)));
    OpenOptions::new().append(true).open(b.path("run.log")).unwrap().set_modified(written).unwrap();
    let ts: Vec<_> = b.poll().iter().map(|e| e.ts.unwrap()).collect();
    assert_eq!(
        ts,
        [NOON + 5.0, NOON],
        "not later than the file was written; in the zone that its last line shows"
    );
}

/// The number of bytes of holes that were skipped.
fn skipped(b: &Bench) -> u64 {
    b.page().get(&SKIPPED, &[&b.config.path, "tail"]).unwrap_or(0.0) as u64
}

#[test]
fn holes_of_terabytes_are_skipped() {
    const HOLE: u64 = 4 << 40;
    let mut b = Bench::new("run.log");
    let grow = |b: &Bench, by: u64| {
        let file = OpenOptions::new().create(true).append(true).open(b.path("run.log")).unwrap();
        file.set_len(file.metadata().unwrap().len() + by).unwrap();
    };
    grow(&b, HOLE);
    b.append("run.log", &step(1));
    assert_eq!(b.poll_steps(), [1], "behind a hole that the file begins with");
    b.append("run.log", "half a line");
    grow(&b, HOLE);
    b.append("run.log", &step(2));
    assert_eq!(b.poll_steps(), [2], "no line goes on behind a hole");
    grow(&b, HOLE);
    assert_eq!(b.poll_steps(), NONE, "one at the end");
    b.append("run.log", &step(3));
    assert_eq!(b.poll_steps(), [3]);
    assert!((3 * HOLE - (1 << 20)..=3 * HOLE).contains(&skipped(&b)), "{}", skipped(&b));
    b.kill();
    b.append("run.log", &step(4));
    assert_eq!(b.poll_steps(), [4]);
}

#[test]
fn zeros_that_somebody_wrote_are_not_read_for_ever() {
    let mut b = Bench::new("run.log");
    b.append("run.log", &step(1));
    assert_eq!(b.poll_steps(), [1]);
    let zeros = vec![0; MAX_ZEROS as usize + (8 << 20)];
    b.append_bytes("run.log", &zeros);
    b.append("run.log", &step(2));
    assert_eq!(b.poll_steps(), [2]);
    assert!(skipped(&b) > MAX_ZEROS);
    // A few zeros are left by a writer within a line.
    b.append_bytes("run.log", &step(3).replacen(" iteration", " \0\0iteration", 1).into_bytes());
    b.append("run.log", &step(4));
    assert_eq!(b.poll_steps().last(), Some(&4));
}

/// Half of the budget for all of them, which have one owner, and an ordinary line beside it.
#[test]
fn unfinished_lines_have_a_budget() {
    let mut b = Bench::new("*.jsonl");
    let (line, rest) = ("{\"step\": 5, \"loss\": 2.5, \"more\": \"", "x".repeat(60_000));
    for n in 0..200 {
        b.append(&format!("{n}.jsonl"), &format!("{line}{rest}"));
    }
    while !b.poll().is_empty() {}
    let lost = b.dropped(LIMIT).unwrap();
    assert!((40.0..100.0).contains(&lost), "{lost} of 200");
    b.append("0.jsonl", "\"}\n{\"step\": 6, \"loss\": 2.5");
    assert_eq!(b.poll_steps(), [5]);
    b.append("0.jsonl", "}\n");
    assert_eq!(b.poll_steps(), [6]);
    b.append("99.jsonl", "\"}\n{\"step\": 6, \"loss\": 2.5");
    b.append("99.jsonl", "}\n");
    assert_eq!(b.poll_steps(), [6], "the line that was given up has no end");
}
