//! Tests of files that are renamed, truncated, deleted and recreated.

use super::*;

#[test]
fn rename_and_create_finishes_the_old_file_first() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    b.steps("run.log", 3..5);
    fs::rename(b.path("run.log"), b.path("run.log.1")).unwrap();
    b.steps("run.log", 6..8);
    b.append("run.log.1", &step(5));
    assert_eq!(b.poll_steps(), [3, 4, 5, 6, 7]);
}

#[test]
fn a_writer_that_keeps_the_renamed_file_open_is_heard() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    b.poll();
    fs::rename(b.path("run.log"), b.path("run.log.1")).unwrap();
    b.append("run.log", "");
    assert_eq!(b.poll_steps(), NONE);
    b.wait(Duration::from_mins(5));
    b.append("run.log.1", &step(3));
    assert_eq!(b.poll_steps(), [3]);
    // Its last line has no newline. After a long pause it is used as it is.
    b.append("run.log.1", step(4).trim_end());
    assert_eq!(b.poll_steps(), NONE);
    b.wait(DRAIN);
    assert_eq!(b.poll_steps(), [4]);
}

#[test]
fn copytruncate_and_truncation() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..100);
    assert_eq!(b.poll_steps().len(), 99);
    fs::copy(b.path("run.log"), b.path("run.log.1")).unwrap();
    fs::write(b.path("run.log"), "").unwrap();
    b.steps("run.log", 100..102);
    assert_eq!(b.poll_steps(), [100, 101]);
    assert_eq!(b.dropped("truncated"), Some(1.0));
    assert_eq!(b.poll_steps(), NONE);
    // The log is truncated, and longer than before at the next poll.
    fs::write(b.path("run.log"), "").unwrap();
    b.steps("run.log", 200..205);
    assert_eq!(b.poll_steps(), range(200..205));
    assert_eq!(b.dropped("truncated"), Some(2.0));
}

/// Nothing may follow, so the last lines of a writer must be read without another one.
#[test]
fn a_log_that_is_cut_and_written_to_the_same_length_is_read() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..4);
    assert_eq!(b.poll_steps(), [1, 2, 3]);
    assert_eq!(b.poll_steps(), NONE);
    fs::write(b.path("run.log"), "").unwrap();
    b.steps("run.log", 4..7);
    assert_eq!(b.poll_steps(), [4, 5, 6]);
    assert_eq!(b.dropped("truncated"), Some(1.0));
    assert_eq!(b.poll_steps(), NONE);
    // The log is touched without a write.
    b.append("run.log", "");
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.dropped("truncated"), Some(1.0));
}

#[test]
fn copytruncate_under_a_writer_that_does_not_append_leaves_a_hole() {
    let mut b = Bench::new("run.log");
    let mut writer = fs::File::create(b.path("run.log")).unwrap();
    for n in 1..50_000 {
        writer.write_all(step(n).as_bytes()).unwrap();
    }
    assert_eq!(b.poll_steps().len(), 49_999);
    OpenOptions::new().write(true).open(b.path("run.log")).unwrap().set_len(0).unwrap();
    assert_eq!(b.poll_steps(), NONE);
    writer.write_all(step(50_000).as_bytes()).unwrap();
    writer.write_all(step(50_001).as_bytes()).unwrap();
    assert_eq!(b.poll_steps(), [50_000, 50_001]);
}

#[test]
fn deletion_and_creation() {
    let mut b = Bench::new("run.log");
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    fs::remove_file(b.path("run.log")).unwrap();
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(0.0));
    b.steps("run.log", 1..4);
    assert_eq!(b.poll_steps(), [1, 2, 3]);
}

#[test]
fn patterns_find_new_files_and_leave_rotated_ones() {
    let mut b = Bench::new("*/out.log");
    for job in ["a", "b"] {
        fs::create_dir(b.path(job)).unwrap();
        b.append(&format!("{job}/out.log"), &step(1));
    }
    b.append("a/out.log.1", &step(99));
    let runs = |events: Vec<Event>| events.into_iter().map(|e| e.run.unwrap()).collect::<Vec<_>>();
    assert_eq!(runs(b.poll()), ["a", "b"], "named after their directories");
    fs::create_dir(b.path("c")).unwrap();
    b.append("c/out.log", &step(1));
    assert_eq!(runs(b.poll()), [""; 0]);
    b.wait(SCAN_EVERY);
    assert_eq!(runs(b.poll()), ["c"]);
    fs::remove_file(b.path("a/out.log")).unwrap();
    b.poll();
    b.wait(DRAIN);
    b.poll();
    assert_eq!(b.tail.as_ref().unwrap().files.len(), 2, "a deleted file is forgotten after a while");
}

#[test]
fn too_many_files_are_counted() {
    let mut b = Bench::new("*.log");
    for n in 0..MAX_FILES + 3 {
        b.append(&format!("{n}.log"), "");
    }
    b.poll();
    b.wait(SCAN_EVERY);
    b.poll();
    assert_eq!(b.dropped("too_many_files"), Some(3.0));
}

#[test]
fn what_is_not_a_file() {
    let mut b = Bench::new("dir");
    fs::create_dir(b.path("dir")).unwrap();
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(0.0));
}
