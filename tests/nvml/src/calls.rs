//! How often each function was called, in a file beside the script that outlives the process:
//! mapped into memory, so that counting costs no call of the kernel and does not change what is
//! measured.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustc_hash::FxHashMap;

/// Count of what a program that uses the library rightly never does.
pub const MISUSE: &str = "misuse";
/// All calls.
pub const ALL: &str = "*";
/// How often the library is initialised and not shut down.
pub const OPEN: &str = "open.init";
/// Samples that were allocated and not freed.
pub const SAMPLES: &str = "open.samples";
/// Event sets that were created and not freed.
pub const SETS: &str = "open.sets";
/// Calls that have not come back.
pub const HANGING: &str = "hanging";

/// How often it was initialised from nothing.
pub(crate) const GENERATION: &str = "generation";
/// When the world began, in nanoseconds of Unix time.
const EPOCH: &str = "epoch";

const SLOTS: usize = 256;
const NAME: usize = 56;
const SLOT: usize = NAME + size_of::<u64>();

/// What was counted, by name; what never happened is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls(BTreeMap<String, u64>);

impl Calls {
    /// What was counted up to now for a script.
    pub fn read(script: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(path(script))?;
        let slots =
            bytes.chunks_exact(SLOT).map(|slot| slot.split_at(NAME)).take_while(|(name, _)| name[0] != 0);
        let read = slots.filter_map(|(name, count)| {
            let name = name.split(|b| *b == 0).next()?;
            Some((String::from_utf8_lossy(name).into_owned(), u64::from_ne_bytes(count.try_into().ok()?)))
        });
        Ok(Self(read.collect()))
    }

    pub fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The functions that were called, with how often.
    pub fn functions(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0
            .iter()
            .map(|(name, n)| (name.as_str(), *n))
            .filter(|(name, n)| name.starts_with("nvml") && *n > 0)
    }
}

fn path(script: &Path) -> PathBuf {
    let mut name = script.as_os_str().to_owned();
    name.push(".calls");
    name.into()
}

/// The counters of this process.
pub(crate) struct Counters {
    slots: *mut u8,
    /// Which slot is whose.
    known: FxHashMap<&'static str, usize>,
    epoch: Duration,
    /// Locked as long as this process counts.
    file: File,
}

// SAFETY: the mapping is shared memory that is reached through atomics alone, once a slot has its
// name; names are written under the lock of the world.
unsafe impl Send for Counters {}

impl Counters {
    pub(crate) fn open(script: &Path) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path(script))?;
        file.set_len((SLOTS * SLOT) as u64)?;
        // What a process left open that was killed is gone with it. What another process has open
        // stays counted: it would count below zero when it closes it.
        let alone = file.try_lock().is_ok();
        let (slots, known) = (map(&file)?, FxHashMap::default());
        let mut counters = Self { slots, known, epoch: Duration::ZERO, file };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let epoch = counters.count(EPOCH);
        let began = epoch.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        counters.epoch = Duration::from_nanos(began.map_or_else(|already| already, |_| now));
        if alone {
            for open in [OPEN, SAMPLES, SETS, HANGING] {
                counters.count(open).store(0, Ordering::Relaxed);
            }
        }
        counters.file.lock_shared()?;
        Ok(counters)
    }

    /// Seconds since the world began.
    pub(crate) fn seconds(&self) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(self.epoch).as_secs_f64()
    }

    pub(crate) fn count(&mut self, name: &'static str) -> &AtomicU64 {
        let slot = self.known.get(name).copied().unwrap_or_else(|| self.claim(name));
        let at = slot * SLOT + NAME;
        // SAFETY: the slot is inside the mapping, which is never unmapped; 64 and 56 are multiples
        // of the alignment.
        unsafe { AtomicU64::from_ptr(self.slots.add(at).cast()) }
    }

    /// Counts one and returns how many that makes.
    pub(crate) fn one(&mut self, name: &'static str) -> u64 {
        self.count(name).fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Finds the slot with this name, or the first without one. The last is for all that find none.
    fn claim(&mut self, name: &'static str) -> usize {
        let wanted = &name.as_bytes()[..name.len().min(NAME - 1)];
        let is = |slot: usize| {
            // SAFETY: the slot is inside the mapping.
            let found = unsafe { std::slice::from_raw_parts(self.slots.add(slot * SLOT), NAME) };
            found[0] == 0 || (found.starts_with(wanted) && found[wanted.len()] == 0)
        };
        let slot = (0..SLOTS).find(|slot| is(*slot)).unwrap_or(SLOTS - 1);
        // SAFETY: the slot is inside the mapping and the name is shorter than its place.
        unsafe { std::ptr::copy_nonoverlapping(wanted.as_ptr(), self.slots.add(slot * SLOT), wanted.len()) };
        self.known.insert(name, slot);
        slot
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing that points into it outlives the
        // counters.
        unsafe { libc::munmap(self.slots.cast(), SLOTS * SLOT) };
    }
}

fn map(file: &File) -> io::Result<*mut u8> {
    let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of a file that is open and as long as the mapping.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), SLOTS * SLOT, read_write, shared, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process that opened the library set the counts back, and the first one, which gave a
    /// sample back, brought them below zero: the next sample overflowed.
    #[test]
    fn what_another_process_has_open_stays_counted() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("world.json");
        let count = |counters: &mut Counters| counters.count(SAMPLES).load(Ordering::Relaxed);
        let mut first = Counters::open(&script).unwrap();
        first.one(SAMPLES);
        let mut second = Counters::open(&script).unwrap();
        assert_eq!(count(&mut second), 1);
        first.count(SAMPLES).fetch_sub(1, Ordering::Relaxed);
        assert_eq!((second.one(SAMPLES), count(&mut first)), (1, 1));
        drop((first, second));
        assert_eq!(count(&mut Counters::open(&script).unwrap()), 0, "whoever had it open is gone");
    }

    #[test]
    fn counts_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("world.json");
        let mut counters = Counters::open(&script).unwrap();
        assert_eq!((counters.one("nvmlA"), counters.one("nvmlA"), counters.one("nvmlAB")), (1, 2, 1));
        counters.one(OPEN);
        let began = counters.epoch;
        drop(counters);
        let mut counters = Counters::open(&script).unwrap();
        assert_eq!(counters.one("nvmlA"), 3);
        assert_eq!(counters.epoch, began);
        let calls = Calls::read(&script).unwrap();
        assert_eq!(
            (calls.count("nvmlA"), calls.count("nvmlAB"), calls.count("nvmlC"), calls.count(OPEN)),
            (3, 1, 0, 0)
        );
        assert_eq!(calls.functions().collect::<Vec<_>>(), [("nvmlA", 3), ("nvmlAB", 1)]);
    }
}
