//! Tests of directories that are searched.

use super::*;

fn runs(events: Vec<Event>) -> Vec<(String, i64)> {
    let mut runs: Vec<_> = events.into_iter().filter_map(|e| Some((e.run?, e.step?))).collect();
    runs.sort();
    runs
}

fn names(pairs: &[(&str, i64)]) -> Vec<(String, i64)> {
    pairs.iter().map(|(run, step)| ((*run).to_owned(), *step)).collect()
}

#[test]
fn what_appears_in_a_directory_is_followed() {
    let mut b = Bench::new("runs");
    fs::create_dir_all(b.path("runs/a")).unwrap();
    b.steps("runs/a/train.log", 1..2);
    b.append("runs/a/model.bin", "not for us");
    assert_eq!(runs(b.poll()), names(&[("a", 1)]));
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(1.0));
    fs::create_dir_all(b.path("runs/b/c")).unwrap();
    b.append("runs/b/c/metrics.jsonl", "{\"step\":7,\"loss\":1}\n");
    b.steps("runs/a/train.log", 2..3);
    assert_eq!(runs(b.poll()), names(&[("a", 2)]));
    b.wait(SCAN_EVERY);
    assert_eq!(runs(b.poll()), names(&[("c", 7)]));
    fs::remove_dir_all(b.path("runs/b")).unwrap();
    b.poll();
    b.wait(DRAIN);
    b.poll();
    assert_eq!(b.tail.as_ref().unwrap().files.len(), 1);
}

#[test]
fn a_directory_that_is_not_there_yet() {
    let mut b = Bench::new("later");
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(0.0));
    fs::create_dir(b.path("later")).unwrap();
    b.steps("later/run.log", 1..3);
    b.wait(SCAN_EVERY);
    assert_eq!(b.poll_steps(), [1, 2]);
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(1.0));
}

#[test]
fn hundreds_of_files_are_one_line_on_the_page() {
    let mut b = Bench::new("many");
    fs::create_dir(b.path("many")).unwrap();
    for n in 0..MAX_FILES + 5 {
        b.steps(&format!("many/{n:04}.log"), 1..2);
    }
    assert_eq!(b.poll_steps().len(), MAX_FILES);
    assert_eq!(b.dropped("too_many_files"), Some(5.0));
    let sources = b.page().iter().filter(|s| s.family == &UP).count();
    assert_eq!(sources, 1, "a source is an entry, not a file");
}

#[test]
fn what_is_over_makes_room() {
    let mut b = Bench::new("many");
    fs::create_dir(b.path("many")).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs_f64(UNIX - 90_000.0);
    for n in 0..MAX_FILES {
        let name = format!("many/{n:04}.log");
        b.steps(&name, 1..2);
        OpenOptions::new().append(true).open(b.path(&name)).unwrap().set_modified(old).unwrap();
    }
    assert_eq!(b.poll_steps().len(), MAX_FILES);
    b.steps("many/new.log", 1..2);
    b.wait(SCAN_EVERY);
    let now = std::time::UNIX_EPOCH + Duration::from_secs_f64(b.unix);
    OpenOptions::new().append(true).open(b.path("many/new.log")).unwrap().set_modified(now).unwrap();
    assert_eq!(runs(b.poll()), names(&[("new", 1)]));
    assert_eq!(b.dropped("too_many_files"), None);
}

#[test]
fn what_gave_way_is_known_by_its_state_file_until_it_is_gone() {
    let mut b = Bench::new("many");
    *b.list.marks.lock().unwrap() = Some(BTreeMap::new());
    fs::create_dir(b.path("many")).unwrap();
    let make = |b: &mut Bench, name: &str| {
        b.wait(Duration::from_mins(2));
        (0..MAX_FILES).for_each(|n| b.steps(&format!("many/{name}-{n}.log"), 1..2));
        assert_eq!(b.poll_steps().len(), MAX_FILES);
    };
    let marks = |b: &Bench| {
        let marks = b.list.marks.lock().unwrap();
        marks.iter().flatten().filter(|(_, value)| !value.is_empty()).count()
    };
    make(&mut b, "old");
    make(&mut b, "new");
    assert_eq!(marks(&b), MAX_FILES, "the stream knows only what is followed");
    b.wait(Duration::from_mins(2));
    b.steps("many/old-0.log", 2..3);
    assert_eq!(b.poll_steps(), [2]);
    let state = b.dir.path().join("state");
    let kept = || fs::read_dir(state.join("tails")).unwrap().count();
    assert_eq!(kept(), 2 * MAX_FILES);
    // The state file may belong to a file system that is not mounted.
    let store = state::Store::new(&state, &b.path("many/old-1.log"));
    let file = state.join("tails").join(format!("{}.json", store.key()));
    let dev = std::os::unix::fs::MetadataExt::dev(&fs::metadata(b.path("many")).unwrap());
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace(&format!("\"dev\":{dev},"), "\"dev\":4711,")).unwrap();
    (1..MAX_FILES).for_each(|n| fs::remove_file(b.path(&format!("many/old-{n}.log"))).unwrap());
    let mut sweep = sweep::Sweep::new(&state, Box::new(b.list.clone()));
    let mut pass = |b: &mut Bench, age: Duration| {
        b.wait(sweep::EVERY);
        for _ in 0..3 {
            sweep.go_on(b.now, crate::clock::unix_now() + age.as_secs_f64());
        }
        kept()
    };
    assert_eq!(pass(&mut b, Duration::ZERO), 2 * MAX_FILES, "they may be renamed, and be read on");
    assert_eq!(pass(&mut b, DRAIN), MAX_FILES + 2);
    assert_eq!(pass(&mut b, Duration::from_hours(24 * 8)), MAX_FILES + 1);
    assert_eq!(marks(&b), MAX_FILES);
    fs::remove_dir_all(b.path("many")).unwrap();
    assert_eq!(pass(&mut b, DRAIN), 0);
    assert_eq!(marks(&b), 0, "nor does the stream know them any more");
}

#[test]
fn trees_that_are_too_deep_are_counted_once() {
    let mut b = Bench::new("deep");
    fs::create_dir_all(b.path("deep/1/2/3/4/5/6/7/8")).unwrap();
    b.steps("deep/run.log", 1..2);
    assert_eq!(b.poll_steps(), [1]);
    b.wait(SCAN_EVERY);
    b.poll();
    assert_eq!(b.dropped("search_limit"), Some(1.0));
}

/// W&B links its latest run beside the runs themselves.
#[test]
fn a_file_that_a_link_leads_to_as_well_is_read_once() {
    let mut b = Bench::new("*/*.log");
    for dir in ["run-1", "run-2"] {
        fs::create_dir(b.path(dir)).unwrap();
    }
    std::os::unix::fs::symlink("run-1", b.path("latest-run")).unwrap();
    b.steps("run-1/a.log", 1..4);
    assert_eq!(b.poll_steps(), range(1..4));
    b.kill();
    b.steps("run-1/a.log", 4..6);
    assert_eq!(b.poll_steps(), range(4..6));
    fs::remove_file(b.path("latest-run")).unwrap();
    std::os::unix::fs::symlink("run-2", b.path("latest-run")).unwrap();
    b.steps("run-2/b.log", 6..8);
    b.wait(SCAN_EVERY);
    assert_eq!(b.poll_steps(), range(6..8));
}

/// Root can change the owner of files, so only the owner's share limits them. Any other user has
/// one share, in which the last written files stay.
#[test]
fn twenty_thousand_logs_leave_room_for_one_of_somebody_else() {
    let mut b = Bench::new("shared");
    fs::create_dir(b.path("shared")).unwrap();
    for n in 0..20_000 {
        b.append(&format!("shared/{n:05}.log"), "flood\n");
    }
    assert_eq!(b.poll_steps(), NONE);
    assert_eq!(b.tail.as_ref().unwrap().files.len(), MAX_FILES);
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        b.wait(Duration::from_mins(2));
    }
    b.steps("shared/genuine.log", 7..8);
    if is_root {
        std::os::unix::fs::chown(b.path("shared/genuine.log"), Some(65_534), None).unwrap();
    }
    b.wait(SCAN_EVERY);
    assert_eq!(b.poll_steps(), [7]);
    b.steps("shared/genuine.log", 8..9);
    b.wait(SCAN_EVERY);
    assert_eq!(b.poll_steps(), [8]);
    assert_eq!(b.tail.as_ref().unwrap().files.len(), MAX_FILES);
    assert!(b.dropped("too_many_files").unwrap() > 0.0);
}

#[test]
fn a_link_of_somebody_else_is_not_followed_out_of_what_is_theirs() {
    let mut b = Bench::new("*.log");
    let private = b.dir.path().join("private.txt");
    fs::write(&private, step(777)).unwrap();
    std::os::unix::fs::symlink(&private, b.path("stolen.log")).unwrap();
    b.steps("own.log", 1..2);
    if crate::testing::is_root() {
        std::os::unix::fs::lchown(b.path("stolen.log"), Some(65_534), None).unwrap();
        assert_eq!(b.poll_steps(), [1]);
        assert_eq!(b.dropped(NOT_OWNER), Some(1.0));
        // The result is the same if the link replaced a followed log.
        fs::remove_file(b.path("own.log")).unwrap();
        fs::rename(b.path("stolen.log"), b.path("own.log")).unwrap();
        assert_eq!(b.poll_steps(), NONE);
        assert_eq!(b.dropped(NOT_OWNER), Some(2.0));
        fs::remove_file(b.path("own.log")).unwrap();
        b.steps("own.log", 2..3);
        b.wait(Duration::from_secs(5));
        assert_eq!(b.poll_steps(), [2], "a log again");
    } else {
        // Links of the exporter's user may lead anywhere that it may read.
        let mut steps = b.poll_steps();
        steps.sort_unstable();
        assert_eq!((steps, b.dropped(NOT_OWNER)), (vec![1, 777], None));
    }
}

#[test]
fn a_directory_behind_a_link_of_somebody_else_is_not_searched() {
    if !crate::testing::is_root() {
        return;
    }
    let mut b = Bench::new("*/run.log");
    let private = b.dir.path().join("elsewhere");
    fs::create_dir(&private).unwrap();
    fs::write(private.join("run.log"), step(777)).unwrap();
    std::os::unix::fs::symlink(&private, b.path("stolen")).unwrap();
    std::os::unix::fs::lchown(b.path("stolen"), Some(65_534), None).unwrap();
    fs::create_dir(b.path("own")).unwrap();
    b.steps("own/run.log", 1..2);
    assert_eq!(b.poll_steps(), [1]);
    b.wait(SCAN_EVERY);
    b.poll();
    assert_eq!(b.dropped(NOT_OWNER), Some(1.0), "once, and not at every search");
    // Files of that user are found, on their share.
    for path in [private.join("run.log"), private] {
        std::os::unix::fs::chown(path, Some(65_534), None).unwrap();
    }
    b.wait(SCAN_EVERY);
    assert_eq!(b.poll_steps(), [777]);
}

#[test]
fn the_operator_may_name_a_link() {
    let mut b = Bench::new("named.log");
    let elsewhere = b.dir.path().join("elsewhere.txt");
    fs::write(&elsewhere, step(1)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, b.path("named.log")).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(b.path("named.log"), Some(65_534), None).unwrap();
    }
    assert_eq!((b.poll_steps(), b.dropped(NOT_OWNER)), (vec![1], None));
}
