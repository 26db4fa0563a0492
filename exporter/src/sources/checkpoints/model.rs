//! What a checkpoint tells of its model: the `config.json` of Hugging Face in it, or in the directory of checkpoints.

use std::fs;
use std::path::Path;

use stepwatch_formats::FileReader;
use stepwatch_wire::Event;

/// Larger than any: a vocabulary of labels may be in it.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

pub(super) fn hello(checkpoint: &Path) -> Option<Event> {
    let places = [Some(checkpoint), checkpoint.parent()];
    places.into_iter().flatten().find_map(|dir| read(&dir.join("config.json")))
}

fn read(path: &Path) -> Option<Event> {
    let small = |m: &fs::Metadata| m.is_file() && m.len() <= MAX_BYTES;
    fs::metadata(path).ok().filter(small)?;
    let bytes = fs::read(path).ok()?;
    let mut events = Vec::new();
    FileReader::new(path, &bytes)?.push(&bytes, true, &mut events);
    events.pop()
}
