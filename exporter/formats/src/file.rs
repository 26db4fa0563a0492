//! Files that are not lines: what a file is, and the readers of those that hold records or are
//! written anew as a whole.
//!
//! * [`FileKind::Lines`] is for [`crate::LogReader`].
//! * [`FileKind::Records`] grow at the end: TensorBoard event files, W&B transaction logs. Offer
//!   every byte once, in order. What `push` does not consume (the beginning of a record, never more
//!   than [`MAX_PENDING_BYTES`]) is offered again with more behind it.
//! * [`FileKind::Whole`] are rewritten: offer the entire content each time it changed, by
//!   [`FileReader::read`], which takes a part a turn; what was published before is not published
//!   again. Nothing is consumed of one that was caught half written: offer it again when it
//!   changed, or as `at_rest` once it stays so.
//!   `at_rest` once it stays so.
//!
//! Two positions are kept apart. `consumed` is what the caller may forget, [`FileReader::position`]
//! is what it may *save*: a TensorBoard step is spread over several records, and while one is being
//! gathered the position stays before it. Handed to [`FileReader::resume`] in a later life, nothing
//! is lost and no other state is needed. Of `Records` it is the offset in the file to go on reading
//! at; of `Whole` it counts entries, and the whole file is offered again.

use std::io;
use std::path::Path;

use stepwatch_wire::{Event, Kind};

use crate::absent::Absent;
use crate::csv_log::{self, CsvLog};
use crate::error_json::ErrorJson;
use crate::file_format::{Chunk, FileFormat, MAX_RECORD_BYTES, Pushed, Whole};
use crate::flight_recorder::{self, FlightRecorder};
use crate::format::Out;
use crate::hf_config::{self, HfConfig};
use crate::latest::Latest;
use crate::lightning_csv::{LightningCsv, is_lightning};
use crate::number::Resolution;
use crate::tfevents::{self, TfEvents};
use crate::trainer_state::{self, TrainerState};
use crate::wandb::{self, WandbLog};

/// With this much offered, `push` consumes something: the most that a caller of `Records` must
/// hold.
pub const MAX_PENDING_BYTES: usize = MAX_RECORD_BYTES + 64 * 1024;
/// How much of the beginning of a file is needed to recognise what it is.
pub const HEAD_BYTES: usize = 256 * 1024;
/// The largest file that is read anew when it changed: a caller leaves a larger one alone and
/// counts it.
pub const MAX_WHOLE_BYTES: u64 = 64 * 1024 * 1024;

/// How a file is written, recognised by its name and first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Text that grows by lines.
    Lines,
    /// Records that grow at the end.
    Records,
    /// Written anew each time: read from its start when it changed.
    Whole,
}

/// Reads one file of records or one that is written as a whole.
#[derive(Debug)]
pub struct FileReader {
    kind: FileKind,
    format: Box<dyn FileFormat>,
    resolution: Resolution,
    absent: Absent,
    /// The goodbye, once the file has one and no step came after it.
    ended: Option<Event>,
}

/// Looks at the name and the first bytes: `head` may be shorter than the file, or empty when it was
/// not read yet.
pub fn kind_of(path: &Path, head: &[u8]) -> FileKind {
    recognise(path, head).map_or(FileKind::Lines, |known| known.kind)
}

/// Whether a file of this name is something that a search of a directory should follow.
pub fn known_name(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else { return false };
    let ends = |suffixes: &[&str]| suffixes.iter().any(|s| name.ends_with(s));
    recognise(path, &[]).is_some()
        || name == "progress.txt"
        || ends(&[".jsonl", ".log", ".out", ".err"])
        || (name.starts_with("log_") && ends(&[".txt"]))
}

/// Whether a file is a table, as far as its name says.
fn is_csv(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv"))
}

/// Whether a file that a search found may be followed, by its beginning: a table may be of data.
pub fn is_followed(path: &Path, head: &[u8]) -> bool {
    !is_csv(path) || path.ends_with("metrics.csv") || csv_log::is_one(head)
}

/// A reader of one kind of file, before it is made.
struct Known {
    kind: FileKind,
    new: fn(&Path, &[u8]) -> Box<dyn FileFormat>,
}

/// The one list of them.
fn recognise(path: &Path, head: &[u8]) -> Option<Known> {
    let name = path.file_name()?.to_str()?;
    let records = |new| Some(Known { kind: FileKind::Records, new });
    let whole = |new| Some(Known { kind: FileKind::Whole, new });
    match name {
        "latest_checkpointed_iteration.txt" => whole(|path, _| Box::new(Latest::new(path))),
        "trainer_state.json" => whole(|path, _| Box::new(TrainerState::new(path))),
        "config.json" if hf_config::is_one(path, head) => whole(|_, _| Box::new(HfConfig::default())),
        "error.json" => whole(|path, _| Box::new(ErrorJson::new(path))),
        _ if flight_recorder::rank_of(path).is_some() => whole(|path, _| Box::new(FlightRecorder::new(path))),
        "metrics.csv" if !head.contains(&b'\n') || is_lightning(head) => {
            whole(|_, _| Box::new(LightningCsv::new()))
        }
        // Beside a profile lies an empty event file that only marks the directory.
        _ if name.contains("tfevents") && !name.ends_with(".profile-empty") => {
            records(|path, _| Box::new(TfEvents::new(path)))
        }
        // A copy of it under another name.
        _ if (path.extension().is_some_and(|e| e == "json") || name.contains("trainer_state"))
            && trainer_state::is_one(head) =>
        {
            whole(|path, _| Box::new(TrainerState::new(path)))
        }
        _ if path.extension().is_some_and(|e| e == "wandb") || wandb::is_one(head) => {
            records(|_, head| Box::new(WandbLog::new(head)))
        }
        // One that was renamed: no text begins with a length and its checksum.
        _ if tfevents::is_one(head) => records(|path, _| Box::new(TfEvents::new(path))),
        _ if csv_log::is_one(head) || is_csv(path) && csv_log::may_be_one(head) => {
            records(|_, head| Box::new(CsvLog::new(head)))
        }
        _ => None,
    }
}

impl FileReader {
    /// `None` for a file of lines. `head` is the beginning of the file, [`HEAD_BYTES`] of it if
    /// there are so many: it may contain the name of the run, which a reader that goes on in the
    /// middle needs.
    pub fn new(path: &Path, head: &[u8]) -> Option<Self> {
        let known = recognise(path, head)?;
        let format = (known.new)(path, head);
        let absent = if format.has_rows() { Absent::of_rows() } else { Absent::of_records() };
        Some(Self { kind: known.kind, format, resolution: Resolution::default(), absent, ended: None })
    }

    pub fn kind(&self) -> FileKind {
        self.kind
    }

    pub fn name(&self) -> &'static str {
        self.format.name()
    }

    /// Reads bytes and appends their events to `out`. `at_rest` means that nothing was appended for
    /// a while: what was being gathered is published.
    pub fn push(&mut self, bytes: &[u8], at_rest: bool, out: &mut Vec<Event>) -> Pushed {
        let first = out.len();
        let mut collected = Out::new(out, &mut self.resolution, Some(&mut self.absent));
        let pushed = self.format.push(Chunk { bytes, at_rest }, &mut collected);
        self.keep_ended(first, out);
        pushed
    }

    /// Reads a file that is written as a whole, or as much of it as is enough for one turn: ask
    /// again while there is `more`. Neither the file nor all its events are held at once.
    pub fn read(&mut self, whole: &Whole<'_>, out: &mut Vec<Event>) -> io::Result<Pushed> {
        let first = out.len();
        let mut collected = Out::new(out, &mut self.resolution, Some(&mut self.absent));
        let pushed = self.format.read(whole, &mut collected);
        self.keep_ended(first, out);
        pushed
    }

    /// A trainer may evaluate once more after it logged that training is done. The last event of a
    /// run must stay the goodbye, or the silence after it would look like a hang.
    fn keep_ended(&mut self, first: usize, out: &mut Vec<Event>) {
        for e in &out[first..] {
            match e.kind {
                Kind::Bye => self.ended = Some(e.clone()),
                Kind::Step => self.ended = None,
                _ => {}
            }
        }
        let last = out[first..].last().filter(|e| e.kind != Kind::Bye);
        if let (Some(bye), Some(last)) = (&self.ended, last) {
            out.push(Event { ts: last.ts, ..bye.clone() });
        }
    }

    /// Whether the times of the last events are local, of an unknown zone, given as if UTC.
    pub fn has_local_times(&self) -> bool {
        self.format.has_local_times()
    }

    /// The time of a row that has no zone, as if it were UTC.
    pub fn local_stamp(&self, row: &str) -> Option<f64> {
        self.format.local_stamp(row)
    }

    /// How many bytes must be there before `push` consumes any of `rest`, which it did not consume:
    /// who can read them again need not hold them, and need not offer fewer.
    pub fn needs(&self, rest: &[u8]) -> u64 {
        self.format.needs(rest)
    }

    /// Memory that an unfinished record takes which was consumed.
    pub fn pending_bytes(&self) -> usize {
        self.format.pending_bytes()
    }

    /// Passes over that record.
    pub fn give_up_pending(&mut self) {
        self.format.give_up_pending();
    }

    /// The position to save once the events so far were published.
    pub fn position(&self) -> u64 {
        self.format.position()
    }

    /// Goes on where an earlier process stopped, before anything is pushed. `last_step` is the last
    /// step that is known of the run: a file that repeats the whole history, as
    /// `trainer_state.json` does, yields only what came after it.
    pub fn resume(&mut self, position: u64, last_step: Option<i64>) {
        self.format.resume(position, last_step);
    }

    /// How finely the metrics of this file are printed; empty for binary numbers.
    pub fn resolution(&self) -> &Resolution {
        &self.resolution
    }
}
