//! Tests of files of records.

use proptest::prelude::*;

use super::open::REST;
use super::*;

const EVENTS: &str = "exp1/events.out.tfevents.1780026765.n1.7.0";

/// Castagnoli's CRC, computed bit by bit, with TensorFlow's mask.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    let crc = !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { (c >> 1) ^ 0x82F6_3B78 } else { c >> 1 })
    });
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn record(data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u64).to_le_bytes();
    [&len[..], &masked_crc(&len), data, &masked_crc(data)].concat()
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat()
}

/// One scalar of a step, as a TensorBoard writer encodes it.
fn scalar(step: u8, tag: &str, value: f32) -> Vec<u8> {
    let value = [field(1, tag.as_bytes()), [&[0x15][..], &value.to_le_bytes()].concat()].concat();
    let wall = (UNIX - 100.0 + f64::from(step)).to_le_bytes();
    record(&[&[0x09][..], &wall, &[0x10, step], &field(5, &field(1, &value))].concat())
}

/// A step as two records.
fn step_of(step: u8) -> Vec<u8> {
    [scalar(step, "train/loss", 2.0 + f32::from(step)), scalar(step, "train/grad_norm", 0.5)].concat()
}

fn version() -> Vec<u8> {
    record(&[&[0x09][..], &0f64.to_le_bytes(), &field(3, b"brain.Event:2")].concat())
}

impl Bench {
    /// Runs, steps, losses and gradient norms that are published once the file is at rest.
    fn rested(&mut self) -> Vec<(String, i64, Option<f64>, Option<f64>)> {
        let mut events = self.poll();
        self.wait(REST);
        events.extend(self.poll());
        let steps = events.into_iter().filter(|e| e.kind == Kind::Step);
        steps.map(|e| (e.run.unwrap(), e.step.unwrap(), e.m.get("loss"), e.m.get("grad_norm"))).collect()
    }
}

/// A bench with a directory of event files.
fn bench() -> Bench {
    let b = Bench::new("exp1");
    fs::create_dir(b.path("exp1")).unwrap();
    b
}

fn exp1(steps: std::ops::Range<u8>) -> Vec<(String, i64, Option<f64>, Option<f64>)> {
    steps.map(|n| ("exp1".to_owned(), i64::from(n), Some(2.0 + f64::from(n)), Some(0.5))).collect()
}

#[test]
fn event_files_are_followed() {
    let mut b = bench();
    b.append_bytes(EVENTS, &version());
    b.append_bytes(EVENTS, &step_of(1));
    assert_eq!(b.rested(), exp1(1..2), "one event of both records, named after the directory");
    assert_eq!(b.list.events.lock().unwrap().len(), 0);
    let bytes = [step_of(2), step_of(3)].concat();
    b.append_bytes(EVENTS, &bytes[..bytes.len() - 20]);
    assert_eq!(b.poll_steps(), [2], "the third is not complete");
    b.kill();
    b.append_bytes(EVENTS, &bytes[bytes.len() - 20..]);
    assert_eq!(b.rested(), exp1(3..4));
    let mut damaged = step_of(4);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    b.append_bytes(EVENTS, &damaged);
    b.append_bytes(EVENTS, &step_of(5));
    assert_eq!(b.rested().len(), 2, "what is left of the fourth, and the fifth");
    assert_eq!(b.dropped("bad_record"), Some(1.0));
    assert_eq!(b.page().get(&UP, &[&b.config.path, "tail"]), Some(1.0));
}

#[test]
fn records_are_as_exact_as_it_gets() {
    let mut b = bench();
    b.append_bytes(EVENTS, &[version(), step_of(1), step_of(2)].concat());
    b.wait(Duration::from_secs(1));
    let mut tail = new_tail(&b.config, &b.list, &b.dir.path().join("state"));
    tail.poll(b.now, b.unix);
    let events = b.list.events.lock().unwrap();
    assert_eq!((events[0].0, events[0].1.ts), (Priority::File, Some(UNIX - 99.0)));
}

#[test]
fn several_writers_of_one_directory_are_one_run() {
    let mut b = bench();
    let other = "exp1/events.out.tfevents.1780026766.n2.9.0";
    for (file, step) in [(EVENTS, 1), (other, 2)] {
        b.append_bytes(file, &[version(), step_of(step)].concat());
    }
    assert_eq!(b.rested(), exp1(1..3));
    b.append_bytes(other, &step_of(4));
    b.append_bytes(EVENTS, &step_of(3));
    assert_eq!(b.rested(), exp1(3..5));
}

#[test]
fn of_an_old_event_file_only_what_is_added_is_published() {
    let mut b = bench();
    b.config.from = From::End;
    b.append_bytes(EVENTS, &[version(), step_of(1), step_of(2)].concat());
    assert_eq!(b.rested(), []);
    b.append_bytes(EVENTS, &[step_of(3), step_of(4)].concat());
    assert_eq!(b.rested(), exp1(3..5));
}

/// A record without a step, such as a graph.
fn long(bytes: usize) -> Vec<u8> {
    let length = [bytes as u8 | 0x80, (bytes >> 7) as u8 | 0x80, (bytes >> 14) as u8];
    record(&[&[0x1a][..], &length, &vec![b'x'; bytes]].concat())
}

#[test]
fn a_long_record_is_read_when_it_is_complete() {
    let mut b = bench();
    b.append_bytes(EVENTS, &[version(), step_of(1)].concat());
    assert_eq!(b.rested(), exp1(1..2));
    let bytes = [step_of(2), long(1_000_000), step_of(3)].concat();
    for (i, piece) in bytes.chunks(90_000).enumerate() {
        b.append_bytes(EVENTS, piece);
        assert_eq!(
            b.rested(),
            if i == 0 { exp1(2..3) } else { exp1(if i == 11 { 3..4 } else { 0..0 }) },
            "{i}"
        );
    }
    b.append_bytes(EVENTS, &[long(70_000), step_of(4), long(3_000)[..2_900].to_vec()].concat());
    assert_eq!(b.rested(), exp1(4..5));
    b.append_bytes(EVENTS, &long(3_000)[2_900..]);
    b.append_bytes(EVENTS, &step_of(5));
    assert_eq!(b.rested(), exp1(5..6));
    assert_eq!((b.dropped("bad_record"), b.dropped("damaged"), b.dropped(LIMIT)), (None, None, None));
}

#[test]
fn a_long_record_that_was_there_before_us_goes_on() {
    let mut b = bench();
    b.config.from = From::End;
    let bytes = [version(), step_of(1), long(200_000), step_of(2)].concat();
    b.append_bytes(EVENTS, &bytes[..150_000]);
    assert_eq!(b.rested(), []);
    b.append_bytes(EVENTS, &bytes[150_000..]);
    assert_eq!(b.rested(), exp1(2..3));
    b.append_bytes(EVENTS, &long(100_000)[..50_000]);
    assert_eq!(b.rested(), []);
    b.kill();
    b.append_bytes(EVENTS, &[&long(100_000)[50_000..], &step_of(3)].concat());
    assert_eq!(b.rested(), exp1(3..4));
}

#[test]
fn a_file_that_is_written_anew_is_read_anew() {
    let mut b = Bench::new("gpt");
    fs::create_dir_all(b.path("gpt/checkpoints")).unwrap();
    let (path, next) = (b.path("gpt/checkpoints/latest_checkpointed_iteration.txt"), b.path("next"));
    let saves = |b: &mut Bench, text: &str| -> Vec<(Kind, Option<String>, Option<i64>)> {
        fs::write(&next, text).unwrap();
        fs::rename(&next, &path).unwrap();
        b.wait(SCAN_EVERY);
        b.poll().into_iter().map(|e| (e.kind, e.run, e.step)).collect()
    };
    let saved = |step| vec![(Kind::Ckpt, Some("gpt".to_owned()), Some(step))];
    assert_eq!(saves(&mut b, "100"), saved(100));
    assert_eq!(saves(&mut b, "100"), [], "touched, and the same");
    assert_eq!(saves(&mut b, "200"), saved(200));
    b.kill();
    assert_eq!(saves(&mut b, "200"), [], "known from before");
    assert_eq!(saves(&mut b, "300"), saved(300));
}

/// However often a long file changes, it is read only as often as its length allows.
#[test]
fn a_long_file_that_is_written_anew_rests() {
    let mut b = Bench::new("trainer_state.json");
    let history = |steps: i64| {
        let entries: Vec<String> = (1..=steps).map(|n| format!("{{\"step\":{n},\"loss\":2.5}}")).collect();
        let space = " ".repeat(16 * 1024 * 1024);
        format!("{{\"log_history\":[{}]{space}}}", entries.join(","))
    };
    fs::write(b.path("trainer_state.json"), history(3000)).unwrap();
    assert_eq!(b.poll_steps(), range(1..3001));
    fs::write(b.path("trainer_state.json"), history(3001)).unwrap();
    assert_eq!(b.poll_steps(), [0; 0]);
    b.wait(Duration::from_secs(2));
    assert_eq!(b.poll_steps(), [3001]);
    fs::write(b.path("trainer_state.json"), " ".repeat(65 * 1024 * 1024)).unwrap();
    b.wait(Duration::from_secs(3));
    assert_eq!(b.poll_steps(), [0; 0]);
    assert_eq!(b.dropped("too_large"), Some(1.0));
}

#[test]
fn what_has_no_time_of_its_own_is_as_old_as_its_file() {
    let mut b = Bench::new("gpt");
    let written = b.unix - 36_000.0;
    let at = std::time::UNIX_EPOCH + Duration::from_secs_f64(written);
    fs::create_dir_all(b.path("gpt")).unwrap();
    fs::write(b.path("gpt/metrics.csv"), "epoch,step,train_loss\n0,1,2.5\n0,2,2.25\n").unwrap();
    fs::write(b.path("gpt/console.log"), "[batch=1/2]:\n\t Train loss/train/total: 10.5\n").unwrap();
    for file in ["metrics.csv", "console.log"] {
        OpenOptions::new().append(true).open(b.path("gpt").join(file)).unwrap().set_modified(at).unwrap();
    }
    let mut steps = b.poll();
    b.wait(Duration::from_secs(30));
    steps.extend(b.poll());
    let ages: Vec<_> =
        steps.iter().filter(|e| e.kind == Kind::Step).map(|e| e.ts.unwrap() - written).collect();
    assert_eq!(ages, [0.0; 3], "{steps:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However the bytes arrive, and whenever the exporter dies, every step is published once and
    /// complete.
    #[test]
    fn any_history_loses_and_doubles_nothing(history in prop::collection::vec((1usize..150, 0u8..6), 1..40), kept: bool) {
        let mut b = bench();
        if kept {
            *b.list.marks.lock().unwrap() = Some(BTreeMap::new());
        }
        let bytes: Vec<u8> = core::iter::once(version()).chain((1..60).map(step_of)).flatten().collect();
        let (mut written, mut seen) = (0, Vec::new());
        b.append_bytes(EVENTS, &[]);
        for (len, then) in history {
            let upto = bytes.len().min(written + len);
            b.append_bytes(EVENTS, &bytes[written..upto]);
            written = upto;
            match then {
                0..3 => seen.extend(b.poll()),
                3 => {
                    b.kill();
                    seen.extend(b.poll());
                }
                4 if !kept => {
                    b.list.saved.lock().unwrap().1 = None;
                    seen.extend(b.poll());
                    b.kill_before_saving();
                }
                _ => {}
            }
        }
        b.append_bytes(EVENTS, &bytes[written..]);
        seen.extend(b.poll());
        b.wait(REST);
        seen.extend(b.poll());
        let seen: Vec<_> = seen.iter().map(|e| (e.step.unwrap(), e.m.iter().count())).collect();
        prop_assert_eq!(seen, (1..60).map(|n| (n, 2)).collect::<Vec<_>>());
    }
}

#[test]
fn a_table_caught_while_it_is_written_anew_is_published_once() {
    let mut b = Bench::new("metrics.csv");
    let (short, long) = ("step,loss\n1,2.5\n2,1.5\n", "epoch,step,loss\n0,1,2.5\n0,2,1.5\n0,3,1.25\n");
    let mut becomes = |text: &str| {
        fs::write(b.path("metrics.csv"), text).unwrap();
        b.wait(SCAN_EVERY);
        let at_once = b.poll_steps();
        b.wait(REST);
        (at_once, b.poll_steps())
    };
    assert_eq!(becomes(short), (vec![1, 2], vec![]));
    assert_eq!(becomes(long), (vec![3], vec![]));
    assert_eq!(becomes("step,loss\n1,2.25\n"), (vec![], vec![1]), "it stays so: another run");
    fs::write(b.path("metrics.csv"), "step,lo").unwrap();
    assert!(b.poll_steps().is_empty());
    fs::write(b.path("metrics.csv"), "step,loss\n1,2.25\n2,2.0\n").unwrap();
    b.wait(REST);
    assert_eq!(b.poll_steps(), [2]);
}

#[test]
fn a_hole_of_terabytes_in_the_place_of_records_ends_the_file() {
    for (name, head) in [(EVENTS, version()), ("exp1/run-x.wandb", b":W&B\xe1\xbe\x00".to_vec())] {
        let mut b = Bench::new(name);
        fs::create_dir(b.path("exp1")).unwrap();
        b.append_bytes(name, &head);
        OpenOptions::new().write(true).open(b.path(name)).unwrap().set_len(4 << 40).unwrap();
        assert!(b.poll().is_empty());
        b.wait(REST);
        b.append_bytes(name, b"more");
        assert!(b.poll().is_empty());
        assert_eq!(b.dropped("damaged"), Some(1.0), "{name}");
    }
}

#[test]
fn a_table_that_a_trainer_appends_to() {
    for head in ["step,loss,lr\n", ""] {
        let mut b = Bench::new("train_log.csv");
        b.append_bytes("train_log.csv", head.as_bytes());
        assert_eq!(b.poll_steps(), [0; 0]);
        let header = if head.is_empty() { "step,loss,lr\n" } else { "" };
        b.append_bytes("train_log.csv", format!("{header}1,2.5,0.1\n2,2.25").as_bytes());
        assert_eq!(b.poll_steps(), [1]);
        b.append_bytes("train_log.csv", b",0.1\n3,nan,0.1\n");
        let e = b.poll();
        assert_eq!(e.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [2, 3]);
        assert!(e[1].m.get("loss").unwrap().is_nan());
        b.kill();
        b.append_bytes("train_log.csv", b"4,2.0,0.1\n");
        assert_eq!(b.poll_steps(), [4], "the header is known after a restart");
        b.append_bytes("train_log.csv", b"step,nll_loss\n1,2.5\n");
        let e = b.poll();
        assert_eq!((e[0].step, e[0].m.get("loss")), (Some(1), Some(2.5)), "another run");
    }
}

/// The ages of rows whose times have no zone. [`UNIX`] is 2096-10-02 07:06:40 in UTC.
fn ages(b: &mut Bench, rows: &str) -> Vec<f64> {
    b.append("log.csv", rows);
    b.poll().iter().map(|e| UNIX - e.ts.unwrap()).collect()
}

#[test]
fn times_of_a_table_are_utc_until_a_fresh_row_shows_another_zone() {
    let mut b = Bench::new("log.csv");
    let rows = "step,loss,timestamp\n1,2.5,2096-10-02 05:01:40\n2,2.5,2096-10-02 05:01:50.500\n";
    assert_eq!(ages(&mut b, rows), [7500.0, 7489.5], "they were there before");
    assert_eq!(ages(&mut b, "3,2.5,2096-10-02 07:06:30\n"), [10.0]);
    let local = "4,2.5,2096-10-02 02:06:35\n5,2.5,2096-10-02 02:06:38\n";
    assert_eq!(ages(&mut b, local), [5.0, 2.0], "local time of a zone five hours behind");
    assert_eq!(ages(&mut b, "6,2.5,2096-10-02 07:06:39Z\n"), [1.0], "a time with its zone");
}

/// A step that seems to have taken hours would look like a stall.
#[test]
fn the_zone_of_a_table_is_known_before_its_first_row_is_published() {
    let mut b = Bench::new("log.csv");
    let rows = "step,loss,timestamp\n1,2.5,2096-10-01 23:06:20\n2,2.5,2096-10-01 23:06:30\n";
    assert_eq!(ages(&mut b, rows), [20.0, 10.0], "eight hours behind, by when the file was written");
    b.kill();
    assert_eq!(ages(&mut b, "3,2.5,2096-10-01 23:06:40\n"), [0.0], "and after a restart");
}

#[test]
fn rows_that_show_no_zone_and_seem_to_be_hours_old_arrive_now() {
    let mut b = Bench::new("log.csv");
    assert_eq!(ages(&mut b, "step,loss,timestamp\n"), [0.0; 0]);
    let late = ages(&mut b, "1,2.5,2096-10-01 23:05:10\n");
    assert!(late[0].abs() <= 1.0, "90 s late, eight hours behind: {late:?}");
    let row = |n: u32| format!("{n},2.5,2096-10-02 06:{n}:40\n");
    let old: String = (40..60).map(row).collect();
    let want: Vec<f64> = (40..60).map(|n| f64::from(66 - n) * 60.0).collect();
    assert_eq!(ages(&mut b, &old), want, "one of them is a quarter of an hour old");
}

#[test]
fn of_the_tables_in_a_directory_those_of_training_are_followed() {
    let mut b = Bench::new("exp1");
    fs::create_dir(b.path("exp1")).unwrap();
    b.append_bytes("exp1/train_log.csv", b"step,nll_loss\n1,2.5\n");
    b.append_bytes("exp1/data.csv", b"text,label\nstep: 1 loss: 2.5,1\nstep: 2 loss: 2.5,1\n");
    let e = b.poll();
    assert_eq!(e.iter().map(|e| (e.step, e.m.get("loss"))).collect::<Vec<_>>(), [(Some(1), Some(2.5))]);
}
