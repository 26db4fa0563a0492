//! Files made here byte by byte; files of real writers are in `tests/binary.rs`.

use std::path::Path;

use proptest::prelude::*;
use stepwatch_wire::{Event, Kind, MAX_EVENT_BYTES};

use super::masked_crc;
use crate::{FileKind, FileReader, MAX_PENDING_BYTES, MAX_RECORD_BYTES, Pushed};

fn varint(mut v: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
    out
}

fn bytes(field: u8, data: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2][..], &varint(data.len() as u64), data].concat()
}

fn record(data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u64).to_le_bytes();
    [&len[..], &masked_crc(&len).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

fn event(step: i64, field: u8, content: &[u8]) -> Vec<u8> {
    let time = [&[0x09][..], &(1.7e9 + step as f64).to_le_bytes()].concat();
    let step = [&[0x10][..], &varint(step as u64)].concat();
    record(&[time, step, bytes(field, content)].concat())
}

fn simple(tag: &str, value: f32) -> Vec<u8> {
    bytes(1, &[bytes(1, tag.as_bytes()), [&[0x15][..], &value.to_le_bytes()].concat()].concat())
}

fn scalar(step: i64, tag: &str, value: f32) -> Vec<u8> {
    event(step, 5, &simple(tag, value))
}

/// A scalar of the new style; its metadata is only in the first of a tag.
fn tensor(step: i64, tag: &str, value: f32, plugin: Option<&str>) -> Vec<u8> {
    let t = [&[0x08, 1][..], &bytes(2, &[]), &bytes(5, &value.to_le_bytes())].concat();
    let metadata = plugin.map_or_else(Vec::new, |p| bytes(9, &bytes(1, &bytes(1, p.as_bytes()))));
    event(step, 5, &bytes(1, &[bytes(1, tag.as_bytes()), bytes(8, &t), metadata].concat()))
}

fn reader() -> FileReader {
    FileReader::new(Path::new("events.out.tfevents.1795226853.host.1.0"), b"").unwrap()
}

fn push(r: &mut FileReader, data: &[u8], at_rest: bool) -> (Vec<Event>, Pushed) {
    let mut out = Vec::new();
    let pushed = r.push(data, at_rest, &mut out);
    (out, pushed)
}

/// Step and loss of every step event of a whole file.
fn losses(data: &[u8]) -> Vec<(i64, f64)> {
    let (events, _) = push(&mut reader(), data, true);
    steps(&events)
}

fn steps(events: &[Event]) -> Vec<(i64, f64)> {
    let steps = events.iter().filter(|e| e.kind == Kind::Step);
    steps.map(|e| (e.step.unwrap(), e.m.get("loss").unwrap_or(-1.0))).collect()
}

fn file() -> Vec<u8> {
    let mut out = record(&[&[0x09][..], &1.7e9f64.to_le_bytes(), &bytes(3, b"brain.Event:2")].concat());
    for step in 1..=5i64 {
        out.extend(scalar(step, "lm loss", 1.0 / step as f32));
        out.extend(scalar(step, "grad-norm", 0.5));
        out.extend(event(step, 5, &bytes(1, &[bytes(1, b"weights"), bytes(5, &[0; 300])].concat())));
        out.extend(scalar(step, "lm loss vs samples", 1.0 / step as f32));
        out.extend(tensor(step, "lr", 0.1, (step == 1).then_some("scalars")));
    }
    out
}

#[test]
fn seconds_at_every_step_end_no_run() {
    let step = |n: i64, loss: f32| {
        let tags =
            [("train/loss", loss), ("train/train_runtime", 12.5), ("train/train_tokens_per_second", 456.0)];
        tags.map(|(tag, value)| scalar(n, tag, value)).concat()
    };
    // The numbers of the run are at its last step.
    let end =
        [("train/train_runtime", 60.0), ("train/train_samples_per_second", 5.0), ("train/train_loss", 2.0)];
    let end = end.map(|(tag, value)| scalar(20, tag, value)).concat();
    let (events, _) = push(&mut reader(), &[step(10, 2.5), step(20, f32::NAN), end].concat(), true);
    let seen: Vec<_> = events.iter().map(|e| (e.kind, e.step)).collect();
    assert_eq!(seen, [(Kind::Step, Some(10)), (Kind::Step, Some(20)), (Kind::Bye, Some(20))]);
    assert!(events[1].m.get("loss").unwrap().is_nan());
}

#[test]
fn a_step_is_gathered_from_its_records() {
    let (events, pushed) = push(&mut reader(), &file(), true);
    assert_eq!(steps(&events), [(1, 1.0), (2, 0.5), (3, 0.33333334), (4, 0.25), (5, 0.2)]);
    let first: Vec<_> = events[0].m.iter().collect();
    assert_eq!(first, [("loss", 1.0), ("grad_norm", 0.5), ("lr", 0.1)]);
    assert_eq!((events[0].ts, events[4].ts), (Some(1.7e9 + 1.0), Some(1.7e9 + 5.0)));
    assert_eq!(pushed, Pushed { consumed: file().len(), ..Pushed::default() });
    assert!(events.iter().all(|e| e.q.is_empty()), "binary numbers are not printed");
}

#[test]
fn a_step_is_given_out_once_the_next_begins_or_the_file_rests() {
    let mut r = reader();
    let first = scalar(1, "loss", 1.0);
    assert!(push(&mut r, &first, false).0.is_empty());
    assert_eq!((r.position(), r.kind(), r.name()), (0, FileKind::Records, "tfevents"));
    let (events, _) = push(&mut r, &scalar(2, "loss", 2.0), false);
    assert_eq!((steps(&events), r.position()), (vec![(1, 1.0)], first.len() as u64));
    let (events, _) = push(&mut r, &[], true);
    assert_eq!((steps(&events), r.position()), (vec![(2, 2.0)], 2 * first.len() as u64));
    assert!(push(&mut r, &[], true).0.is_empty(), "once");
    let (events, _) = push(&mut r, &scalar(2, "lr", 0.5), true);
    assert_eq!(events[0].m.get("lr"), Some(0.5), "more about the same step may come late");
}

#[test]
fn nothing_is_lost_or_doubled_wherever_a_new_life_begins() {
    let data = file();
    for cut in 0..=data.len() {
        for at_rest in [false, true] {
            let mut first = reader();
            let (before, _) = push(&mut first, &data[..cut], at_rest);
            let mut second = reader();
            let at = first.position();
            second.resume(at, before.last().and_then(|e| e.step));
            let (after, _) = push(&mut second, &data[usize::try_from(at).unwrap()..], true);
            let mut values = BTreeValues::default();
            before.iter().chain(&after).for_each(|e| values.add(e));
            assert_eq!(values.0.len(), 15, "cut at {cut}: {:?}", values.0);
        }
    }
}

/// Every value published, each once.
#[derive(Default)]
struct BTreeValues(std::collections::BTreeMap<(i64, String), f64>);

impl BTreeValues {
    fn add(&mut self, e: &Event) {
        for (name, v) in e.m.iter() {
            assert_eq!(self.0.insert((e.step.unwrap(), name.to_owned()), v), None, "{name} twice");
        }
    }
}

#[test]
fn damage() {
    let (a, b, c) = (scalar(1, "loss", 1.0), scalar(2, "loss", 2.0), scalar(3, "loss", 3.0));
    let mut bad = b.clone();
    bad[20] ^= 1;
    let (events, pushed) = push(&mut reader(), &[&a[..], &bad, &c].concat(), true);
    assert_eq!((steps(&events), pushed.bad_records), (vec![(1, 1.0), (3, 3.0)], 1));
    let mut lost = b.clone();
    lost[3] ^= 1;
    let mut r = reader();
    let data = [&a[..], &lost, &c].concat();
    let (events, pushed) = push(&mut r, &data, false);
    assert_eq!((steps(&events), pushed.consumed), (vec![(1, 1.0)], data.len()));
    assert_eq!(pushed.stop, Some("the length of a record has a wrong checksum"));
    assert_eq!(r.position(), a.len() as u64);
    assert!(push(&mut r, &c, true).1.stop.is_some(), "for good");
}

#[test]
fn what_is_not_written_yet_is_waited_for() {
    let a = scalar(1, "loss", 1.0);
    let mut r = reader();
    for end in [0, 5, 12, 30, a.len() - 1] {
        assert_eq!(push(&mut r, &a[..end], true), (vec![], Pushed::default()));
    }
    assert_eq!(push(&mut r, &[0; 4096], true).1, Pushed::default(), "a hole");
    assert_eq!(steps(&push(&mut r, &a, true).0), [(1, 1.0)]);
    assert!(push(&mut r, &[&[0; 64][..], &a].concat(), true).1.stop.is_some(), "it was no hole");
}

#[test]
fn a_long_record_is_passed_over_piece_by_piece() {
    let image = event(1, 5, &bytes(1, &[bytes(1, b"image"), bytes(4, &vec![7; MAX_RECORD_BYTES])].concat()));
    let data = [scalar(1, "loss", 1.0), image, scalar(1, "lr", 0.5), scalar(2, "loss", 2.0)].concat();
    let mut r = reader();
    let (mut events, mut pending, mut oversized) = (Vec::new(), Vec::new(), 0);
    for piece in data.chunks(100_000) {
        pending.extend_from_slice(piece);
        let pushed = r.push(&pending, false, &mut events);
        pending.drain(..pushed.consumed);
        assert!(pending.len() < 200, "nothing of it is kept");
        assert_eq!(
            r.position(),
            if events.is_empty() { 0 } else { data.len() as u64 - scalar(2, "loss", 2.0).len() as u64 }
        );
        oversized += pushed.oversized;
    }
    push(&mut r, &[], true).0.into_iter().for_each(|e| events.push(e));
    assert_eq!((steps(&events), oversized), (vec![(1, 1.0), (2, 2.0)], 1));
    assert_eq!(events[0].m.get("lr"), Some(0.5));
}

#[test]
fn other_plugins_are_no_scalars() {
    let data = [
        tensor(1, "accuracy", 0.5, None),
        tensor(1, "_hparams_/session_start_info", 0.5, Some("hparams")),
        tensor(2, "_hparams_/session_start_info", 0.5, None),
        tensor(2, "loss", f32::NAN, Some("scalars")),
    ];
    let (events, _) = push(&mut reader(), &data.concat(), true);
    assert_eq!(events[0].m.iter().collect::<Vec<_>>(), [("accuracy", 0.5)]);
    assert_eq!(events[1].m.len(), 1);
    assert!(events[1].m.get("loss").unwrap().is_nan());
}

#[test]
fn results_of_hyperparameters_are_no_training() {
    let session = tensor(0, "_hparams_/session_start_info", 0.5, Some("hparams"));
    let data = [session, scalar(0, "hparam/accuracy", 0.5)].concat();
    let (events, pushed) = push(&mut reader(), &data, true);
    assert_eq!((events.len(), pushed.unmatched), (0, 1));
    let lightning = [data, scalar(0, "train_loss", 2.5), scalar(1, "train_loss", 1.5)].concat();
    assert_eq!(losses(&lightning), [(0, 2.5), (1, 1.5)]);
}

#[test]
fn restarts() {
    let loss = |step| scalar(step, "loss", step as f32);
    let start = event(15, 7, &[0x08, 1]);
    let back = [loss(10), loss(20), loss(15), loss(16)].concat();
    assert_eq!(losses(&back), [(10, 10.0), (20, 20.0), (15, 15.0), (16, 16.0)]);
    let combined = [loss(10), loss(20), start, scalar(15, "grad_norm", 1.0), loss(16)].concat();
    assert_eq!(
        losses(&combined),
        [(10, 10.0), (20, 20.0), (15, -1.0), (16, 16.0)],
        "a name that is new may follow"
    );
}

#[test]
fn scalars_of_other_axes_are_not_steps() {
    let mut data = Vec::new();
    for epoch in 0..4i64 {
        for step in 1..=3 {
            data.extend(scalar(epoch * 30 + step * 10, "train/loss", 1.0));
        }
        data.extend(scalar(epoch, "train_loss", 2.0));
        data.extend(scalar(epoch, "accuracy", 0.5));
        data.extend(scalar(epoch, "val_loss", 3.0));
    }
    let (events, pushed) = push(&mut reader(), &data, true);
    let want: Vec<_> = (1..=12).map(|n| (n * 10, 1.0)).collect();
    assert_eq!((steps(&events), pushed.unmatched), (want, 8));
    assert_eq!(events.iter().filter(|e| e.kind == Kind::Eval).count(), 4);
}

#[test]
fn deepspeed_counts_samples() {
    let mut data = Vec::new();
    for step in 0..3i64 {
        data.extend(scalar(step * 32, "Train/Samples/train_loss", step as f32));
        data.extend(scalar((step + 1) * 32, "Train/Samples/lr", 0.1));
        data.extend(scalar((step + 1) * 32, "Train/Samples/elapsed_time_ms_forward", 250.0));
    }
    let mut r = reader();
    let (held, _) = push(&mut r, &data[..scalar(0, "Train/Samples/train_loss", 0.0).len()], true);
    assert_eq!((held.len(), r.position()), (0, 0), "the batch is not known yet");
    let (events, _) = push(&mut reader(), &data, true);
    assert_eq!(steps(&events), [(1, 0.0), (2, 1.0), (3, 2.0)]);
    assert_eq!((events[0].m.get("lr"), events[0].t.get("forward")), (Some(0.1), Some(0.25)));
}

#[test]
fn many_tags_and_many_values_are_bounded() {
    let mut data = Vec::new();
    for i in 0..6000 {
        data.extend(scalar(1, &format!("layer {i}"), 1.0));
    }
    let (events, pushed) = push(&mut reader(), &data, true);
    assert_eq!(pushed.unmatched, 6000 - 4096);
    assert!(events.iter().all(|e| e.to_json().len() <= MAX_EVENT_BYTES));
    let kept: usize = events.iter().map(|e| e.m.len() + e.dropped as usize).sum();
    assert_eq!(kept, 4096);
}

proptest! {
    /// Whatever happens to a file, and however it arrives: no panic, the same events, and never
    /// more than one record held.
    #[test]
    fn mutated_files_in_pieces(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        sizes in proptest::collection::vec(1usize..200, 1..20),
    ) {
        let mut data = file();
        for (at, with) in flips {
            let at = at.index(data.len());
            data[at] = with;
        }
        let (whole, whole_pushed) = push(&mut reader(), &data, true);
        let mut r = reader();
        let (mut events, mut pending, mut rest) = (Vec::new(), Vec::new(), &data[..]);
        let mut bad = 0;
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            rest = after;
            pending.extend_from_slice(piece);
            let pushed = r.push(&pending, rest.is_empty(), &mut events);
            prop_assert!(pushed.consumed <= pending.len());
            pending.drain(..pushed.consumed);
            bad += pushed.bad_records;
            prop_assert!(pending.len() < MAX_PENDING_BYTES);
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(format!("{events:?}"), format!("{whole:?}"));
        prop_assert_eq!(bad, whole_pushed.bad_records);
    }

    #[test]
    fn never_panics(data: Vec<u8>, at_rest: bool) {
        let (events, pushed) = push(&mut reader(), &record(&data), at_rest);
        prop_assert!(pushed.consumed <= data.len() + 16);
        prop_assert!(events.iter().all(|e| e.to_json().len() <= MAX_EVENT_BYTES));
    }
}

#[test]
fn scalars_of_a_group_are_distinguished_by_their_directory() {
    let data: Vec<u8> = (1..4).flat_map(|step| scalar(step, "loss", 2.5)).collect();
    let kinds = |directory: &str| {
        let path = Path::new("/runs/a").join(directory).join("events.out.tfevents.1795226853.host.1.1");
        let (events, _) = push(&mut FileReader::new(&path, b"").unwrap(), &data, true);
        events.iter().map(|e| (e.kind, e.m.get("loss"))).collect::<Vec<_>>()
    };
    assert_eq!(kinds("loss_train"), [(Kind::Step, Some(2.5)); 3]);
    assert_eq!(kinds("loss_val"), [(Kind::Eval, Some(2.5)); 3]);
}
