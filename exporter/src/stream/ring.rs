//! The bounded ring of records.
//!
//! Publishers wait for each other while a record is made. The lock that readers share is held for a
//! push and a wake-up, and by a reader to clone reference counts, so neither waits for the other's
//! work. If the ring is kept in a journal, all but the latest records are read back from there:
//! only a reader that comes back after minutes needs them. With 8 ranks at 20 steps per second of
//! 250 bytes the default 8 MiB hold three and a half minutes, at one step per second more than an
//! hour: longer than an alerter takes to come back.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use stepwatch_wire::{Cursor, Event, Kind, Value};
use tokio::sync::watch;

use super::journal::{Appended, Journal, Mark};
use super::lanes::{Lanes, Piece, Taken};
use crate::lock::Locked as _;
use crate::principal::Principal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub records: usize,
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { records: 65_536, bytes: 8 * 1024 * 1024 }
    }
}

/// The usual size of a record in bytes, for buffers.
const RECORD_BYTES: usize = 512;

#[derive(Debug)]
pub struct Ring {
    boot: String,
    limits: Limits,
    writer: Mutex<Writer>,
    lanes: Mutex<Lanes>,
    head: watch::Sender<u64>,
    journal_failures: AtomicU64,
}

/// The state of the publishers, under one lock.
#[derive(Debug)]
struct Writer {
    /// The number of the next record.
    next: u64,
    journal: Option<Journal>,
}

/// Records that are published together.
#[derive(Debug)]
pub struct Gathered<'a> {
    ring: &'a Ring,
    writer: MutexGuard<'a, Writer>,
    text: String,
    /// The end of each record in the text, and its sender.
    ends: Vec<(usize, Principal)>,
}

/// The place in the stream where a reader begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Start {
    /// The number of the last record that the reader has, or that a gap record skipped.
    pub after: u64,
    /// The gap record to send first.
    pub gap: Option<Gap>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Gap {
    pub lost: u64,
    pub why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The reader was away for longer than the ring holds records.
    FellOff,
    /// The cursor is from another start of this exporter, so more records may be lost than the
    /// count says.
    OtherBoot,
    /// This start of the exporter never issued the cursor: it is damaged, or from another exporter.
    Ahead,
}

#[derive(Debug)]
pub enum Read {
    /// Whole records, newline included, and the number of the last one.
    Records {
        chunk: Bytes,
        last: u64,
    },
    Nothing,
    /// Records after the reader's last one are gone; the reader continues after this number.
    Lost {
        gap: Gap,
        after: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Records published since the journal began, not since this start.
    pub published: u64,
    pub evicted: u64,
    pub records: usize,
    pub bytes: usize,
    pub journal_failures: u64,
}

impl Ring {
    /// Creates a ring in memory. `boot` identifies it in cursors, so it must be random.
    pub fn new(boot: String, limits: Limits) -> Self {
        Self {
            boot,
            limits,
            writer: Mutex::new(Writer { next: 1, journal: None }),
            lanes: Mutex::new(Lanes::after(1, std::collections::VecDeque::new())),
            head: watch::Sender::new(0),
            journal_failures: AtomicU64::new(0),
        }
    }

    /// Opens the ring that is kept at `path` and continues with the records that earlier processes
    /// left there. `boot` is its id if there were none.
    pub fn kept(boot: String, limits: Limits, path: &Path, kernel_boot: &str) -> io::Result<Self> {
        let (journal, kept) = Journal::open(path, kernel_boot, boot, limits.bytes)?;
        let next = kept.first + kept.records.len() as u64;
        let boot = journal.boot().to_owned();
        let mut lanes = Lanes::after(kept.first, kept.records);
        lanes.evict(limits);
        Ok(Self {
            writer: Mutex::new(Writer { next, journal: Some(journal) }),
            lanes: Mutex::new(lanes),
            head: watch::Sender::new(next - 1),
            ..Self::new(boot, limits)
        })
    }

    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Appends the event and drops records that no longer fit. Any thread may call this; it never
    /// waits for a reader.
    pub fn push(&self, sender: Principal, event: &Event) {
        let mut batch = self.batch(1);
        batch.add(sender, event);
        batch.publish(None);
    }

    /// Begins a batch of about so many records. Nobody else can publish until it is published or
    /// dropped.
    pub fn batch(&self, records: usize) -> Gathered<'_> {
        Gathered {
            ring: self,
            writer: self.writer.locked(),
            text: String::with_capacity(records * RECORD_BYTES),
            ends: Vec::with_capacity(records),
        }
    }

    fn keep(&self, writer: &mut Writer, text: &[u8], mark: Option<Mark<'_>>) -> Option<Appended> {
        let journal = writer.journal.as_mut()?;
        match journal.append(writer.next, text, mark) {
            Ok(appended) => Some(appended),
            Err(error) => {
                tracing::error!(%error, "cannot keep the stream: a crash of this exporter may lose or repeat events now");
                journal.discard();
                writer.journal = None;
                self.journal_failures.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// The mark last kept under `key`, by this process or an earlier one.
    pub fn mark(&self, key: &str) -> Option<String> {
        self.writer.locked().journal.as_ref()?.mark(key).map(str::to_owned)
    }

    /// Counts that the journal could not be opened.
    pub fn not_kept(&self) {
        self.journal_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// One line of the stream that is not in the ring: a gap or a heartbeat.
    pub fn aside(&self, seq: u64, event: &Event) -> Bytes {
        let mut text = String::with_capacity(RECORD_BYTES);
        event.write_record(&self.boot, seq, &mut text);
        text.push('\n');
        text.into()
    }

    /// The place to begin for a reader that has every record up to `cursor`, or none.
    pub fn start(&self, cursor: Option<&Cursor>) -> Start {
        let lanes = self.lanes.locked();
        let oldest = lanes.first() - 1;
        match cursor {
            None => Start { after: oldest, gap: None },
            Some(c) if c.boot == self.boot && c.seq <= lanes.head() => {
                let lost = oldest.saturating_sub(c.seq);
                let gap = (lost > 0).then_some(Gap { lost, why: Why::FellOff });
                Start { after: c.seq.max(oldest), gap }
            }
            Some(c) => {
                let why = if c.boot == self.boot { Why::Ahead } else { Why::OtherBoot };
                Start { after: oldest, gap: Some(Gap { lost: oldest, why }) }
            }
        }
    }

    /// The senders whose records after this number made room for later ones, as text; empty if
    /// there are none.
    pub fn given_up_after(&self, after: u64) -> String {
        const NAMED: usize = 4;
        let senders = self.lanes.locked().given_up_after(after);
        let named = senders.iter().take(NAMED).map(Principal::to_string);
        let mut words = named.collect::<Vec<_>>().join(", ");
        if senders.len() > NAMED {
            words.push_str(", and of others");
        }
        words
    }

    pub fn read(&self, after: u64) -> Read {
        let taken = self.lanes.locked().take(after);
        let mut pieces = match taken {
            Taken::Nothing => return Read::Nothing,
            Taken::Lost(lost) => {
                return Read::Lost { gap: Gap { lost, why: Why::FellOff }, after: after + lost };
            }
            Taken::Records(pieces) => pieces,
        };
        let last = after + pieces.len() as u64;
        // A single record in memory is returned without a copy.
        if let [Piece::Text(_)] = pieces[..]
            && let Some(Piece::Text(chunk)) = pieces.pop()
        {
            return Read::Records { chunk, last };
        }
        let mut text = Vec::with_capacity(pieces.iter().map(Piece::len).sum());
        for piece in &pieces {
            let read = match piece {
                Piece::Text(record) => {
                    text.extend_from_slice(record);
                    Ok(())
                }
                Piece::Kept(place) => place.read(&mut text),
            };
            if let Err(error) = read {
                self.forget_kept(&error);
                return self.read(after);
            }
        }
        Read::Records { chunk: text.into(), last }
    }

    /// Drops the records that cannot be read back; readers get a gap record.
    fn forget_kept(&self, error: &io::Error) {
        tracing::error!(%error, "cannot read what was kept of the stream; records that a reader still wanted are lost");
        self.journal_failures.fetch_add(1, Ordering::Relaxed);
        self.lanes.locked().forget_kept();
    }

    /// A receiver that changes whenever a record is published.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    pub fn stats(&self) -> Stats {
        let lanes = self.lanes.locked();
        Stats {
            published: lanes.head(),
            evicted: lanes.evicted(),
            records: lanes.records(),
            bytes: lanes.bytes(),
            journal_failures: self.journal_failures.load(Ordering::Relaxed),
        }
    }
}

impl Gathered<'_> {
    pub fn add(&mut self, sender: Principal, event: &Event) {
        let seq = self.writer.next + self.ends.len() as u64;
        event.write_record(&self.ring.boot, seq, &mut self.text);
        self.text.push('\n');
        self.ends.push((self.text.len(), sender));
    }

    /// Appends all records. With a journal, records and mark are written together. Returns whether
    /// the mark was kept.
    pub fn publish(mut self, mark: Option<Mark<'_>>) -> bool {
        if self.ends.is_empty() && mark.is_none() {
            return false;
        }
        // Written before any reader sees the records: a number that a reader has must mean the same
        // record for ever.
        let appended = self.ring.keep(&mut self.writer, self.text.as_bytes(), mark);
        let mark_is_kept = appended.as_ref().is_some_and(|appended| appended.mark);
        if self.ends.is_empty() {
            return mark_is_kept;
        }
        self.writer.next += self.ends.len() as u64;
        self.text.shrink_to_fit();
        let text = Bytes::from(self.text);
        let mut lanes = self.ring.lanes.locked();
        let mut start = 0;
        for (end, sender) in self.ends {
            let place = appended.as_ref().map(|appended| appended.place(start..end));
            lanes.push(sender, text.slice(start..end), place);
            start = end;
        }
        lanes.evict(self.ring.limits);
        if let Some(files) = appended.and_then(|appended| appended.files) {
            lanes.leave_files_but(&files);
        }
        drop(lanes);
        self.ring.head.send_replace(self.writer.next - 1);
        mark_is_kept
    }
}

impl Gap {
    pub fn event(&self) -> Event {
        let text = match self.why {
            Why::FellOff => "the records fell off the ring before they were read",
            Why::OtherBoot => {
                "the cursor is of an earlier start of this exporter; records of that start are lost as well"
            }
            Why::Ahead => {
                "the cursor is ahead of everything that this exporter has published; it begins anew"
            }
        };
        let mut event = Event { lost: Some(self.lost), text: Some(text.into()), ..Event::new(Kind::Gap) };
        if self.why == Why::OtherBoot {
            // `lost` does not include what was lost of the other start, because that number is
            // unknown.
            event.extra.insert("boot_changed".into(), Value::Bool(true));
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring(records: usize, bytes: usize) -> Ring {
        Ring::new("b00t".into(), Limits { records, bytes })
    }

    fn fill(ring: &Ring, n: i64) {
        for step in 1..=n {
            ring.push(Principal::Exporter, &Event::step("r", step));
        }
    }

    fn steps(read: Read) -> (Vec<i64>, u64) {
        let Read::Records { chunk, last } = read else { panic!("{read:?}") };
        let text = String::from_utf8(chunk.to_vec()).unwrap();
        (text.lines().map(|l| Event::parse(l.as_bytes()).unwrap().step.unwrap()).collect(), last)
    }

    #[test]
    fn records_carry_their_cursor() {
        let ring = ring(10, 10_000);
        fill(&ring, 2);
        let Read::Records { chunk, last: 2 } = ring.read(1) else { panic!() };
        insta::assert_snapshot!(core::str::from_utf8(&chunk).unwrap(), @r#"{"c":"b00t:2","v":1,"k":"step","run":"r","step":2}"#);
        assert!(matches!(ring.read(2), Read::Nothing));
    }

    #[test]
    fn a_cursor_resumes_exactly_and_one_that_fell_off_says_how_much() {
        let ring = ring(4, 10_000);
        fill(&ring, 10);
        assert_eq!(steps(ring.read(6)), (vec![7, 8, 9, 10], 10));
        let Read::Lost { gap: Gap { lost: 1, .. }, after: 6 } = ring.read(5) else { panic!() };
        let at = |seq| Cursor { boot: "b00t".into(), seq };
        assert_eq!(ring.start(Some(&at(8))), Start { after: 8, gap: None });
        assert_eq!(ring.start(None), Start { after: 6, gap: None });
        let gap = |lost, why| Some(Gap { lost, why });
        assert_eq!(ring.start(Some(&at(2))), Start { after: 6, gap: gap(4, Why::FellOff) });
        let other = Cursor { boot: "old".into(), seq: 99 };
        assert_eq!(ring.start(Some(&other)), Start { after: 6, gap: gap(6, Why::OtherBoot) });
        assert_eq!(ring.start(Some(&at(11))).gap, gap(6, Why::Ahead), "a cursor from the future");
        let changed = |why| Gap { lost: 6, why }.event().extra.contains_key("boot_changed");
        assert_eq!([Why::FellOff, Why::OtherBoot, Why::Ahead].map(changed), [false, true, false]);
    }

    #[test]
    fn the_byte_limit_holds() {
        let ring = ring(1_000_000, 1_000);
        fill(&ring, 1_000);
        let stats = ring.stats();
        assert!(stats.bytes <= 1_000 && stats.records > 10, "{stats:?}");
        assert_eq!(stats.published, 1_000);
        assert_eq!(stats.evicted + stats.records as u64, 1_000);
    }

    #[test]
    fn whoever_floods_the_ring_pushes_out_nobody_else() {
        let ring = ring(100, 1_000_000);
        let (flood, other) = (Principal::User(1), Principal::User(2));
        for step in 1..=5 {
            ring.push(other, &Event::step("other", step));
            (0..1_000).for_each(|_| ring.push(flood, &Event::step("flood", 0)));
        }
        let (mut after, mut steps, mut lost) = (0, Vec::new(), 0);
        loop {
            match ring.read(after) {
                Read::Nothing => break,
                Read::Lost { gap, after: next } => {
                    lost += gap.lost;
                    after = next;
                }
                Read::Records { chunk, last } => {
                    let text = String::from_utf8(chunk.to_vec()).unwrap();
                    let events = text.lines().map(|l| Event::parse_record(l.as_bytes()).unwrap());
                    steps.extend(events.filter_map(|e| e.step.filter(|step| *step > 0)));
                    after = last;
                }
            }
        }
        assert_eq!(steps, [1, 2, 3, 4, 5]);
        assert_eq!((lost, ring.stats().evicted), (5_005 - 100, 5_005 - 100));
        assert_eq!((ring.given_up_after(0).as_str(), ring.given_up_after(5_000).as_str()), ("uid 1", ""));
    }

    #[test]
    fn publishing_wakes_whoever_watches() {
        let ring = ring(10, 10_000);
        let mut head = ring.watch();
        assert!(!head.has_changed().unwrap());
        fill(&ring, 3);
        assert!(head.has_changed().unwrap());
        assert_eq!(*head.borrow_and_update(), 3);
    }

    proptest! {
        /// For all limits, a reader that keeps up sees every record once and in order.
        #[test]
        fn no_record_twice_none_skipped(n in 1i64..400, records in 1usize..50, every in 1i64..20) {
            let ring = ring(records, 100_000);
            let (mut after, mut seen) = (0, Vec::new());
            for step in 1..=n {
                ring.push(Principal::Exporter, &Event::step("r", step));
                if step % every == 0 {
                    loop {
                        match ring.read(after) {
                            Read::Nothing => break,
                            Read::Lost { gap, after: next } => {
                                seen.extend((0..gap.lost).map(|_| None));
                                after = next;
                            }
                            read @ Read::Records { .. } => {
                                let (steps, last) = steps(read);
                                seen.extend(steps.into_iter().map(Some));
                                after = last;
                            }
                        }
                    }
                }
            }
            for (i, s) in seen.iter().enumerate() {
                prop_assert!(s.is_none_or(|s| s == i as i64 + 1), "{seen:?}");
            }
        }
    }
}
