//! The kernel log as a file: one record at a time. Only `wait` blocks.
//!
//! The device gives one record to a `read`, from the oldest that it still has, and `EPIPE` if
//! records were overwritten before they were read. A regular file or a pipe with the same text also
//! works, on machines without the device and in tests.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// The kernel refuses a read into a buffer smaller than the record: 8 KiB hold any.
const BUFFER_BYTES: usize = 8 * 1024;
/// The most bytes of one record from a plain file; the rest of a longer one is dropped.
const MAX_RECORD_BYTES: usize = BUFFER_BYTES;

#[derive(Debug)]
pub(super) struct Log {
    file: File,
    kind: LogSource,
    buffer: Vec<u8>,
    /// Bytes read from a plain file; those not yet returned begin at `start`.
    pending: Vec<u8>,
    start: usize,
    /// Whether the rest of a record that is too long is being skipped.
    skipping: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogSource {
    /// The kernel's device, which gives one record per read.
    Device,
    /// A pipe, which gives lines as they arrive.
    Pipe,
    Plain,
}

/// The result of one read of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    Record(&'a [u8]),
    /// Records were overwritten; the next record shows how many.
    Overwritten,
    /// There is no record now.
    Empty,
}

impl Log {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
        let kind = file.metadata()?.file_type();
        let kind = match () {
            () if kind.is_char_device() => LogSource::Device,
            () if kind.is_fifo() => LogSource::Pipe,
            () => LogSource::Plain,
        };
        Ok(Self { file, kind, buffer: vec![0; BUFFER_BYTES], pending: Vec::new(), start: 0, skipping: false })
    }

    pub(super) fn next(&mut self) -> io::Result<Next<'_>> {
        match self.kind {
            LogSource::Device => self.read_record(),
            LogSource::Pipe | LogSource::Plain => self.read_lines(),
        }
    }

    fn read_record(&mut self) -> io::Result<Next<'_>> {
        loop {
            return match self.file.read(&mut self.buffer) {
                Ok(0) => Ok(Next::Empty),
                Ok(n) => Ok(Next::Record(&self.buffer[..n])),
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::AGAIN) => Ok(Next::Empty),
                    Some(Errno::PIPE) => Ok(Next::Overwritten),
                    Some(Errno::INTR) => continue,
                    _ => Err(e),
                },
            };
        }
    }

    fn read_lines(&mut self) -> io::Result<Next<'_>> {
        loop {
            if let Some(range) = self.whole() {
                return Ok(Next::Record(&self.pending[range]));
            }
            self.pending.drain(..self.start);
            self.start = 0;
            if self.pending.len() > MAX_RECORD_BYTES && !self.skipping {
                // The beginning is used as a record, and the rest is skipped.
                self.skipping = true;
                self.start = self.pending.len();
                return Ok(Next::Record(&self.pending[..MAX_RECORD_BYTES]));
            }
            match self.file.read(&mut self.buffer) {
                Ok(0) => return Ok(Next::Empty),
                Ok(n) => self.take(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Next::Empty),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn take(&mut self, n: usize) {
        let mut bytes = &self.buffer[..n];
        if self.skipping {
            let Some(end) = memchr::memchr(b'\n', bytes) else { return };
            self.skipping = false;
            bytes = &bytes[end + 1..];
        }
        self.pending.extend_from_slice(bytes);
    }

    /// The next complete line. Continuation lines are returned as lines too; they do not parse, and
    /// are not needed.
    fn whole(&mut self) -> Option<core::ops::Range<usize>> {
        let length = memchr::memchr(b'\n', &self.pending[self.start..])?;
        let range = self.start..self.start + length.min(MAX_RECORD_BYTES);
        self.start += length + 1;
        Some(range)
    }

    /// Waits at most `most` for more. Returns false if waiting is useless: a plain file is always
    /// ready, and a pipe without writers is always hung up.
    pub(super) fn wait(&self, most: Duration) -> bool {
        if self.kind == LogSource::Plain {
            return false;
        }
        let Ok(most) = Timespec::try_from(most) else { return false };
        let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
        match poll(&mut fds, Some(&most)) {
            Ok(0) | Err(_) => false,
            Ok(_) => fds[0].revents().intersects(PollFlags::IN | PollFlags::ERR | PollFlags::PRI),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn all(log: &mut Log) -> Vec<String> {
        let mut all = Vec::new();
        while let Next::Record(bytes) = log.next().unwrap() {
            all.push(String::from_utf8_lossy(bytes).into_owned());
        }
        all
    }

    #[test]
    fn a_file_that_grows() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut log = Log::open(file.path()).unwrap();
        assert_eq!(log.next().unwrap(), Next::Empty);
        file.write_all(b"6,1,2,-;one\n KEY=v\n6,2,3,-;tw").unwrap();
        assert_eq!(all(&mut log), ["6,1,2,-;one", " KEY=v"]);
        file.write_all(b"o\n").unwrap();
        assert_eq!(all(&mut log), ["6,2,3,-;two"]);
        assert!(!log.wait(Duration::from_mins(1)), "a plain file is not waited for");
    }

    #[test]
    fn a_line_that_is_too_long_costs_its_end_only() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for n in [MAX_RECORD_BYTES - 1, MAX_RECORD_BYTES, 3 * MAX_RECORD_BYTES] {
            file.write_all(&vec![b'x'; n]).unwrap();
            file.write_all(b"\nnext\n").unwrap();
        }
        let mut log = Log::open(file.path()).unwrap();
        let lengths: Vec<_> = all(&mut log).iter().map(String::len).collect();
        assert_eq!(lengths, [MAX_RECORD_BYTES - 1, 4, MAX_RECORD_BYTES, 4, MAX_RECORD_BYTES, 4]);
    }

    #[test]
    fn the_device_itself_where_there_is_one() {
        // The device may be missing or unreadable here. If it can be read, its records must parse.
        let Ok(mut log) = Log::open(Path::new("/dev/kmsg")) else { return };
        if let Next::Record(bytes) = log.next().unwrap() {
            assert!(super::super::record::Record::parse(bytes).is_some());
        }
    }
}
