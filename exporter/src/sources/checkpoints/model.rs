//! Reads the model of a checkpoint from the `config.json` of Hugging Face in it, or in the
//! directory of checkpoints.

use std::io::Read as _;
use std::path::Path;

use stepwatch_formats::FileReader;
use stepwatch_wire::Event;

use crate::reach::Reach;

/// The most bytes of the file. It may contain a vocabulary of labels.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

pub(super) fn hello(checkpoint: &Path, reach: &Reach) -> Option<Event> {
    let places = [Some(checkpoint), checkpoint.parent()];
    places.into_iter().flatten().find_map(|dir| read(&dir.join("config.json"), reach))
}

fn read(path: &Path, reach: &Reach) -> Option<Event> {
    let found = reach.find(path).ok().filter(|found| found.metadata.len() <= MAX_BYTES)?;
    let mut bytes = Vec::new();
    found.open().ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let mut events = Vec::new();
    FileReader::new(path, &bytes)?.push(&bytes, true, &mut events);
    events.pop()
}
