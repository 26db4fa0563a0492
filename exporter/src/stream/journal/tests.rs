use proptest::prelude::*;

use super::*;
use crate::principal::Principal;
use crate::stream::{Limits, Read, Ring};
use stepwatch_wire::{Cursor, Event};

const KERNEL: &str = "0b0t-1";
const LIMITS: Limits = Limits { records: 1000, bytes: 100_000 };

fn open(dir: &Path, boot: &str, kernel: &str, limits: Limits) -> Ring {
    Ring::kept(boot.to_owned(), limits, &dir.join("stream.journal"), kernel).unwrap()
}

fn steps_after(ring: &Ring, cursor: Option<&Cursor>) -> Vec<i64> {
    let start = ring.start(cursor);
    assert!(start.gap.is_none(), "{start:?}");
    let (mut after, mut steps) = (start.after, Vec::new());
    while let Read::Records { chunk, last } = ring.read(after) {
        let text = String::from_utf8(chunk.to_vec()).unwrap();
        steps.extend(text.lines().map(|l| Event::parse_record(l.as_bytes()).unwrap().step.unwrap()));
        after = last;
    }
    steps
}

fn cursor(boot: &str, seq: u64) -> Cursor {
    Cursor { boot: boot.into(), seq }
}

fn push(ring: &Ring, steps: Range<i64>, mark: Option<(&str, &str)>) -> bool {
    let mut batch = ring.batch(1);
    steps.for_each(|step| batch.add(Principal::Exporter, &Event::step("r", step)));
    batch.publish(mark.map(|(key, value)| Mark { key, value }))
}

#[test]
fn a_reader_goes_on_by_its_cursor_over_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let ring = open(dir.path(), "one", KERNEL, LIMITS);
    assert!(push(&ring, 1..4, Some(("f", "{\"at\":3}"))));
    ring.push(Principal::Exporter, &Event::step("r", 4));
    assert!(!push(&ring, 5..6, None), "there was no mark to keep");
    drop(ring);
    let ring = open(dir.path(), "two", KERNEL, LIMITS);
    assert_eq!(ring.boot(), "one", "the ring is the same");
    assert_eq!(steps_after(&ring, Some(&cursor("one", 2))), [3, 4, 5]);
    assert_eq!(ring.mark("f").as_deref(), Some("{\"at\":3}"));
    push(&ring, 6..8, Some(("f", "")));
    assert_eq!(steps_after(&ring, Some(&cursor("one", 5))), [6, 7], "numbers go on");
    drop(ring);
    let ring = open(dir.path(), "three", KERNEL, LIMITS);
    assert_eq!((ring.mark("f"), steps_after(&ring, None).len()), (None, 7));
}

#[test]
fn a_reboot_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    push(&open(dir.path(), "one", KERNEL, LIMITS), 1..4, Some(("f", "x")));
    let ring = open(dir.path(), "two", "0b0t-2", LIMITS);
    assert_eq!((ring.boot(), ring.mark("f"), steps_after(&ring, None).len()), ("two", None, 0));
}

#[test]
fn it_is_no_larger_than_two_rings_and_keeps_marks_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { records: 1_000_000, bytes: 5_000 };
    let ring = open(dir.path(), "one", KERNEL, limits);
    push(&ring, 0..1, Some(("first", "kept")));
    for n in 1..2_000 {
        push(&ring, n..n + 1, Some(("last", &n.to_string())));
    }
    let size: u64 = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(size < 16_000, "{size}");
    let before = steps_after(&ring, None);
    drop(ring);
    let ring = open(dir.path(), "two", KERNEL, limits);
    assert_eq!(steps_after(&ring, None), before);
    assert_eq!((ring.mark("first").as_deref(), ring.mark("last").as_deref()), (Some("kept"), Some("1999")));
}

#[test]
fn nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { records: 1_000_000, bytes: 5_000 };
    let ring = open(dir.path(), "one", KERNEL, limits);
    for n in 0..300 {
        push(&ring, n..n + 1, None);
    }
    drop(ring);
    let files: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 2);
    files.iter().for_each(|f| fs::set_permissions(f, fs::Permissions::from_mode(0o644)).unwrap());
    let _ring = open(dir.path(), "two", KERNEL, limits);
    for file in files {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }
}

#[test]
fn what_cannot_be_kept_is_not_taken_for_kept() {
    let dir = tempfile::tempdir().unwrap();
    let ring = open(dir.path(), "one", KERNEL, LIMITS);
    assert!(!push(&ring, 1..2, Some(("a key", "x"))));
    assert!(!push(&ring, 2..3, Some(("k", "two\nlines"))));
    assert!(!push(&ring, 3..4, Some(("k", &"x".repeat(MAX_MARK_BYTES)))));
    assert_eq!(steps_after(&ring, None), [1, 2, 3], "the events are");
    assert!(Ring::kept("b".into(), LIMITS, Path::new("/proc/none/stream.journal"), KERNEL).is_err());
}

#[test]
fn what_is_not_at_hand_is_read_back_while_files_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { records: 1_000_000, bytes: 20_000 };
    let ring = open(dir.path(), "one", KERNEL, limits);
    let plain = Ring::new("one".into(), limits);
    for n in 0..3_000 {
        let mark = (n % 7 == 0).then_some(("k", "v"));
        push(&ring, 3 * n..3 * n + 1 + n % 3, mark);
        push(&plain, 3 * n..3 * n + 1 + n % 3, mark);
        if n % 100 == 0 {
            assert_eq!(steps_after(&ring, None), steps_after(&plain, None));
        }
    }
    let counted = |ring: &Ring| (ring.stats().records, ring.stats().bytes, ring.stats().evicted);
    assert_eq!(counted(&ring), counted(&plain));
    fs::remove_dir_all(dir.path()).unwrap();
    assert_eq!(steps_after(&ring, None), steps_after(&plain, None), "a file without a name is there");
}

#[test]
fn the_records_of_others_hold_no_file_that_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { records: 1_000_000, bytes: 20_000 };
    let ring = open(dir.path(), "one", KERNEL, limits);
    for n in 0..2_000 {
        let sender = if n % 100 == 0 { Principal::User(2) } else { Principal::User(1) };
        ring.push(sender, &Event::step("r", n));
    }
    let (mut after, mut steps) = (0, Vec::new());
    loop {
        match ring.read(after) {
            Read::Nothing => break,
            Read::Lost { after: next, .. } => after = next,
            Read::Records { chunk, last } => {
                let text = String::from_utf8(chunk.to_vec()).unwrap();
                steps.extend(text.lines().map(|l| Event::parse_record(l.as_bytes()).unwrap().step.unwrap()));
                after = last;
            }
        }
    }
    let others: Vec<_> = steps.iter().copied().filter(|step| step % 100 == 0).collect();
    assert_eq!(others, (0..2_000).step_by(100).collect::<Vec<_>>());
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = files.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(dir.path()))).count();
    assert_eq!(open, 2, "two files take turns");
}

#[test]
fn what_cannot_be_read_back_is_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let ring = open(dir.path(), "one", KERNEL, LIMITS);
    push(&ring, 1..101, None);
    push(&ring, 101..102, None);
    let file = OpenOptions::new().write(true).open(dir.path().join("stream.journal")).unwrap();
    file.set_len(100).unwrap();
    let Read::Lost { gap, after } = ring.read(0) else { panic!("the first are not at hand") };
    assert!(gap.lost == after && gap.lost > 50, "{gap:?}");
    let Read::Records { last, .. } = ring.read(after) else { panic!("the rest is at hand") };
    let stats = ring.stats();
    assert_eq!((last, stats.journal_failures), (101, 1));
    assert_eq!(stats.records as u64 + stats.evicted, 101);
}

#[test]
fn a_directory_that_vanishes_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ring = open(&dir.path().join("."), "one", KERNEL, Limits { bytes: 500, ..LIMITS });
    fs::remove_dir_all(dir.path()).unwrap();
    for n in 1..50 {
        push(&ring, n..n + 1, Some(("k", "v")));
    }
    assert_eq!(ring.stats().journal_failures, 1);
    assert_eq!((ring.stats().published, ring.mark("k")), (49, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A kill in the middle of a write may cut the file anywhere: whole batches are kept, each with
    /// its mark.
    #[test]
    fn a_torn_batch_was_never_there(cut in 0usize..6_000, sizes in prop::collection::vec(1i64..5, 1..12)) {
        let dir = tempfile::tempdir().unwrap();
        let ring = open(dir.path(), "one", KERNEL, LIMITS);
        let (mut next, mut ends) = (0, vec![0]);
        for size in sizes {
            push(&ring, next..next + size, Some(("k", &(next + size).to_string())));
            next += size;
            ends.push(next);
        }
        drop(ring);
        let path = dir.path().join("stream.journal");
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..cut.min(text.len())]).unwrap();
        let ring = open(dir.path(), "two", KERNEL, LIMITS);
        let steps = steps_after(&ring, None);
        let last = steps.last().map_or(0, |s| s + 1);
        prop_assert_eq!(&steps, &(0..last).collect::<Vec<_>>());
        prop_assert!(ends.contains(&last));
        prop_assert_eq!(ring.mark("k").map_or(0, |m| m.parse().unwrap()), last);
    }

    /// Opening a journal with arbitrary bytes does not panic.
    #[test]
    fn any_bytes_are_survived(bytes: Vec<u8>, at in 0usize..200, byte: u8) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stream.journal");
        fs::write(&path, &bytes).unwrap();
        let ring = open(dir.path(), "one", KERNEL, LIMITS);
        push(&ring, 1..4, Some(("k", "v")));
        drop(ring);
        let mut text = fs::read(&path).unwrap();
        let at = at % text.len();
        text[at] = byte;
        fs::write(&path, text).unwrap();
        drop(open(dir.path(), "two", KERNEL, LIMITS));
    }
}
