//! Reads the events of a file of any format.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read as _};
use std::path::Path;

use indicatif::{ProgressBar, ProgressBarIter};
use stepwatch_formats::{FileKind, FileReader, HEAD_BYTES, LogReader, UnknownFormat, kind_of};
use stepwatch_wire::Event;

use super::csv::{Header, Rows};
use super::records::Records;

/// The longest line in bytes; a longer one is skipped.
const MAX_LINE_BYTES: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum InputError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Format(#[from] UnknownFormat),
    #[error("is a directory; name the files in it")]
    Directory,
    #[error("{bytes} bytes; a file of this kind is read as a whole, up to {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    #[error(
        "no training step found; this reads CSV with a header that has `step`, JSON lines, event files of TensorBoard, .wandb files, \
         trainer_state.json, metrics.csv of Lightning, progress.txt of Megatron, and logs: {}",
        formats()
    )]
    NoSteps,
    /// A file of a known format without a step.
    #[error("no training step found; read as {format}: {found}")]
    Known { format: &'static str, found: String },
    /// A line was skipped; reading continues.
    #[error("line {line}: {reason}")]
    Line { line: u64, reason: String },
    /// Records were skipped; reading continues if possible.
    #[error("{0}")]
    Records(String),
}

/// An open file and its reader.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of them at a time")]
pub(super) enum Input {
    Lines(Lines),
    Records(Box<Records<Source>>),
}

/// A file whose beginning was already read, because it may not be seekable. The progress bar
/// advances as it is read.
type Source = ProgressBarIter<Chain<Cursor<Vec<u8>>, File>>;

#[derive(Debug)]
pub(super) struct Lines<R = BufReader<Source>> {
    source: R,
    line: u64,
    text: Vec<u8>,
    kind: Option<Kind>,
}

#[derive(Debug)]
enum Kind {
    Csv(Rows),
    Events,
    Log(Box<LogReader>),
}

impl Input {
    pub(super) fn open(path: &Path, progress: &ProgressBar) -> Result<Self, InputError> {
        let mut file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(InputError::Directory);
        }
        let mut head = Vec::new();
        (&mut file).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        let read_here = kind_of(path, &head) == FileKind::Lines || is_ours(&head);
        // A table to which a trainer appends is read here like any other table.
        let reader = if read_here { None } else { FileReader::new(path, &head) };
        let reader = reader.filter(|reader| reader.name() != "csv");
        let source = progress.wrap_read(Cursor::new(head).chain(file));
        Ok(match reader {
            Some(reader) => Self::Records(Box::new(Records::new(reader, source))),
            None => Self::Lines(Lines::new(BufReader::new(source))),
        })
    }

    /// The format of a file that does not consist of lines.
    pub(super) fn format(&self) -> Option<&'static str> {
        match self {
            Self::Lines(_) => None,
            Self::Records(records) => Some(records.format()),
        }
    }

    /// The next events; `None` at the end. After a bad line or record, the next call continues
    /// after it.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Event>>, InputError> {
        let mut events = match self {
            Self::Lines(lines) => lines.next(),
            Self::Records(records) => records.next(),
        }?;
        events.iter_mut().flatten().for_each(Event::clean);
        Ok(events)
    }
}

/// Whether the beginning is a table in our format, although the file name suggests another one.
fn is_ours(head: &[u8]) -> bool {
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    core::str::from_utf8(line).ok().and_then(Header::parse).is_some_and(|header| header.is_all_ours())
}

fn formats() -> String {
    stepwatch_formats::names().into_iter().filter(|name| *name != "auto").collect::<Vec<_>>().join(", ")
}

impl<R: BufRead> Lines<R> {
    fn new(source: R) -> Self {
        Self { source, line: 0, text: Vec::new(), kind: None }
    }

    /// The events of the next line that has any.
    fn next(&mut self) -> Result<Option<Vec<Event>>, InputError> {
        while self.read_line()? {
            let text = String::from_utf8_lossy(&self.text);
            let text = text.trim_start_matches('\u{feff}').trim_end_matches(['\n', '\r']);
            if text.trim().is_empty() {
                continue;
            }
            let kind = match &mut self.kind {
                Some(kind) => kind,
                none => {
                    let (kind, is_header) = Kind::from_first_line(text)?;
                    let kind = none.insert(kind);
                    if is_header {
                        continue;
                    }
                    kind
                }
            };
            if let Some(events) = kind.read(text, self.line)? {
                return Ok(Some(events));
            }
        }
        Ok(self.kind.as_mut().and_then(Kind::rest))
    }

    fn read_line(&mut self) -> Result<bool, InputError> {
        self.text.clear();
        self.line += 1;
        let n = (&mut self.source).take(MAX_LINE_BYTES).read_until(b'\n', &mut self.text)?;
        if n as u64 == MAX_LINE_BYTES && self.text.last() != Some(&b'\n') {
            self.skip_line()?;
            return Err(self.bad(format!("longer than {MAX_LINE_BYTES} bytes")));
        }
        Ok(n > 0)
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let (found, n) = match self.source.fill_buf()? {
                [] => return Ok(()),
                bytes => {
                    bytes.iter().position(|b| *b == b'\n').map_or((false, bytes.len()), |at| (true, at + 1))
                }
            };
            self.source.consume(n);
            if found {
                return Ok(());
            }
        }
    }

    fn bad(&self, reason: String) -> InputError {
        InputError::Line { line: self.line, reason }
    }
}

impl Kind {
    /// The format of a file that begins with this line, and whether the line is only a header.
    fn from_first_line(first: &str) -> Result<(Self, bool), InputError> {
        if let Some(header) = Header::parse(first) {
            return Ok((Self::Csv(Rows::new(header)), true));
        }
        if first.trim_start().starts_with('{') && Event::parse(first.as_bytes()).is_ok() {
            return Ok((Self::Events, false));
        }
        Ok((Self::Log(Box::new(LogReader::new(None)?)), false))
    }

    fn read(&mut self, text: &str, line: u64) -> Result<Option<Vec<Event>>, InputError> {
        let bad = |reason| InputError::Line { line, reason };
        let events = match self {
            Self::Csv(rows) => rows.events(text).map_err(bad)?,
            Self::Events => vec![Event::parse(text.as_bytes()).map_err(|e| bad(e.to_string()))?],
            Self::Log(reader) => {
                let mut events = Vec::new();
                reader.line(text, &mut events);
                events
            }
        };
        Ok(Some(events).filter(|e| !e.is_empty()))
    }

    /// The unfinished record of several lines at the end of the file.
    fn rest(&mut self) -> Option<Vec<Event>> {
        let Self::Log(reader) = self else { return None };
        let mut events = Vec::new();
        reader.rest(&mut events);
        Some(events).filter(|e| !e.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all(text: &[u8]) -> (Vec<Event>, Vec<(u64, String)>) {
        let mut input = Lines::new(text);
        let (mut events, mut bad) = (Vec::new(), Vec::new());
        loop {
            match input.next() {
                Ok(Some(more)) => events.extend(more),
                Ok(None) => return (events, bad),
                Err(InputError::Line { line, reason }) => bad.push((line, reason)),
                Err(e) => panic!("{e}"),
            }
        }
    }

    #[test]
    fn finds_out_what_a_file_is() {
        let (csv, _) = read_all(b"\xef\xbb\xbfstep,loss\n1,2.5\n\n2,nan\n");
        assert_eq!(csv.len(), 2);
        assert!(csv[1].m.get("loss").unwrap().is_nan());
        let (jsonl, bad) = read_all(b"{\"k\":\"step\",\"step\":1,\"m\":{\"loss\":2.5}}\n{\"k\":\"step\"}\n");
        assert_eq!((jsonl.len(), bad.len()), (1, 1));
        assert_eq!(bad[0], (2, "field \"step\": is required".to_owned()));
        let log = b" iteration 7/ 100 | elapsed time per iteration (ms): 1500.0 | lm loss: 2.5E+00 |\n";
        let (log, _) = read_all(log);
        assert_eq!(log[0].step, Some(7));
        let (log, _) = read_all(b"[batch=1/9]:\n\tTrain loss/train/total: 2.5\n");
        assert_eq!((log.len(), log[0].m.get("loss")), (1, Some(2.5)), "the record that the file ends with");
    }

    #[test]
    fn a_bad_line_is_named_and_left_out() {
        let mut text = b"step,loss\n1,2\nx,3\n".to_vec();
        text.extend(vec![b'9'; 100_000]);
        text.extend(b"\n2,2\n");
        let (events, bad) = read_all(&text);
        assert_eq!(events.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(bad.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 4]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_the_end(bytes: Vec<u8>) {
            read_all(&bytes);
        }

        #[test]
        fn a_damaged_file_is_read_to_the_end(at in 0usize..200, byte: u8) {
            let mut text = b"step,loss,grad_norm,timestamp\n".to_vec();
            for i in 0..10 {
                text.extend(format!("{i},2.{i},0.5,{}\n", 1000 + i).bytes());
            }
            let at = at % text.len();
            text[at] = byte;
            read_all(&text);
        }
    }
}
