//! What the bytes of a fuzzer mean to the file readers. The ordinary test that replays the corpus
//! includes this file too.
//!
//! The first byte chooses the kind of file, the second the pieces in which it arrives. With its
//! highest bit set, the rest is records, each behind a byte with its length, which get the
//! checksums that no fuzzer guesses; without, it is the file as it is.

use std::path::Path;

use stepwatch_formats::{FileKind, FileReader, MAX_PENDING_BYTES};
use stepwatch_wire::{Event, MAX_EVENT_BYTES};

/// One name a kind.
pub(crate) const NAMES: &[&str] = &[
    "events.out.tfevents.1795226853.vm",
    "run-1.wandb",
    "checkpoint-5/trainer_state.json",
    "metrics.csv",
    "attempt_0/3/error.json",
    "latest_checkpointed_iteration.txt",
];

/// Reads an input as the kind it chooses. Returns which kind that is, and what was read.
pub(crate) fn read(data: &[u8]) -> (usize, Vec<Event>) {
    let [kind, pieces, rest @ ..] = data else { return (0, Vec::new()) };
    let kind = usize::from(*kind) % NAMES.len();
    let file = match (kind, pieces & 0x80 != 0) {
        (0, true) => records(rest).iter().flat_map(|r| tfevents(r)).collect(),
        (1, true) => {
            b":W&B\xe1\xbe\x00".iter().copied().chain(records(rest).iter().flat_map(|r| wandb(r))).collect()
        }
        _ => rest.to_vec(),
    };
    (kind, in_pieces(NAMES[kind], &file, usize::from(pieces & 0x7f) * 16 + 1))
}

/// Reads a file as it grows by `size` bytes, and checks what holds of any file.
pub(crate) fn in_pieces(name: &str, file: &[u8], size: usize) -> Vec<Event> {
    let mut reader = FileReader::new(Path::new(name), b"").expect("every name is known");
    let (mut events, mut pending) = (Vec::new(), Vec::new());
    for piece in file.chunks(size) {
        pending.extend_from_slice(piece);
        let pushed = reader.push(&pending, false, &mut events);
        assert!(pushed.consumed <= pending.len());
        if reader.kind() == FileKind::Records {
            pending.drain(..pushed.consumed);
            assert!(pending.len() < MAX_PENDING_BYTES && reader.position() <= file.len() as u64);
        }
    }
    reader.push(&pending, true, &mut events);
    for event in &events {
        let json = event.to_json();
        assert!(json.len() <= MAX_EVENT_BYTES && Event::parse(json.as_bytes()).is_ok(), "{json}");
    }
    events
}

fn records(mut rest: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    while let Some((len, after)) = rest.split_first() {
        let (record, after) = after.split_at(usize::from(*len).min(after.len()));
        out.push(record);
        rest = after;
    }
    out
}

fn tfevents(record: &[u8]) -> Vec<u8> {
    let masked = |b: &[u8]| crc32c::crc32c(b).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let len = (record.len() as u64).to_le_bytes();
    [&len[..], &masked(&len), record, &masked(record)].concat()
}

/// A whole piece; the inputs are too short for a second block.
fn wandb(record: &[u8]) -> Vec<u8> {
    let crc = crc32fast::hash(&[&[1], record].concat()).to_le_bytes();
    [&crc[..], &(record.len() as u16).to_le_bytes(), &[1], record].concat()
}
