//! Reads files that the kernel fills from the memory of a process: its environment, its arguments,
//! and the list of its mappings.
//!
//! A process controls that memory. If its pages are in a file system that its user serves (FUSE),
//! or a driver holds a lock for minutes, such a read is slow, or hangs in the kernel, where it
//! cannot be ended. So dedicated threads read, one process of a user at a time, and the caller
//! waits at most for a moment. A user whose processes took too long is refused for a while.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::lock::Locked as _;
use crate::roots::Roots;

/// The most reading threads. Each user can make one of them hang.
const MAX_THREADS: usize = 8;
/// The stack of a read is only a few frames deep.
const STACK_BYTES: usize = 64 * 1024;

/// A user has this share of the time for slow reads, after a burst of [`SLOW_BURST`].
const SLOW_SHARE: u32 = 30;
const SLOW_BURST: Duration = Duration::from_secs(1);
/// A read that takes no longer than this is not slow.
const USUAL: Duration = Duration::from_millis(5);

static READERS: Readers = Readers { state: Mutex::new(State::new()), changed: Condvar::new() };

thread_local! {
    static ELSEWHERE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The processor time of other threads that read for this one.
pub(crate) fn time_elsewhere() -> Duration {
    ELSEWHERE.get()
}

/// A file of a process, and the limits for reading it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) most_bytes: u64,
    /// How long the caller waits.
    pub(super) limit: Duration,
}

/// Reads a file of a process in `/proc`. An error if it may not be read, `TimedOut` if it takes too
/// long or its user is refused.
pub(super) fn read(roots: &Roots, pid: u32, part: Part) -> io::Result<Vec<u8>> {
    // The real user cannot change while the file is read, as the effective one can. A process that
    // is gone has none, and is not read for long.
    let user = super::real_user(roots, pid).unwrap_or(u32::MAX);
    READERS.read(roots.proc(pid.to_string()).join(part.name), part, user)
}

#[derive(Debug)]
struct Readers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<SyncSender<Job>>,
    threads: usize,
    jobs: u64,
    /// By user, the job that reads one of its processes, and whether the caller still waits.
    running: BTreeMap<u32, (u64, Waits)>,
    /// When the slow reads of a user have had their share of the time.
    due: BTreeMap<u32, Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Caller,
    Nobody,
}

#[derive(Debug)]
struct Job {
    user: u32,
    path: PathBuf,
    most: u64,
    answer: SyncSender<Answer>,
}

#[derive(Debug)]
struct Answer {
    bytes: io::Result<Vec<u8>>,
    took: Duration,
    processor_time: Duration,
}

impl State {
    const fn new() -> Self {
        Self { idle: Vec::new(), threads: 0, jobs: 0, running: BTreeMap::new(), due: BTreeMap::new() }
    }

    /// Whether a read of this user hangs, or its reads have been too slow.
    fn refuses(&self, user: u32, now: Instant) -> bool {
        let hangs = self.running.get(&user).is_some_and(|(_, waits)| *waits == Waits::Nobody);
        hangs || self.is_over(user, now)
    }

    fn is_over(&self, user: u32, now: Instant) -> bool {
        self.due.get(&user).is_some_and(|due| *due > now + SLOW_BURST * SLOW_SHARE)
    }

    /// Counts a read. Returns whether the user is refused from now on.
    fn count(&mut self, user: u32, now: Instant, took: Duration) -> bool {
        self.due.retain(|_, due| *due > now);
        if took <= USUAL {
            return false;
        }
        let was_over = self.is_over(user, now);
        *self.due.entry(user).or_insert(now) += took * SLOW_SHARE;
        !was_over && self.is_over(user, now)
    }
}

impl Readers {
    fn read(&'static self, path: PathBuf, part: Part, user: u32) -> io::Result<Vec<u8>> {
        let (number, reader) = self.reader(Instant::now() + part.limit, user)?;
        let (answer, answered) = sync_channel(1);
        let sending = reader.send(Job { user, path, most: part.most_bytes, answer });
        if sending.is_err() {
            self.done(user);
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let answer = match answered.recv_timeout(part.limit) {
            Err(RecvTimeoutError::Timeout) if self.abandon(number, user) => None,
            // The answer has just arrived.
            Err(_) => answered.recv().ok(),
            Ok(answer) => Some(answer),
        };
        let took = answer.as_ref().map_or(part.limit, |answer| answer.took);
        let is_over = self.state.locked().count(user, Instant::now(), took);
        if is_over || answer.is_none() {
            tracing::warn!(
                uid = user,
                "reading the memory of this user's processes takes too long: they are not looked at for now"
            );
        }
        let answer = answer.ok_or_else(refused)?;
        ELSEWHERE.set(ELSEWHERE.get() + answer.processor_time);
        answer.bytes
    }

    /// An idle reading thread, once no other process of the user is being read.
    fn reader(&'static self, deadline: Instant, user: u32) -> io::Result<(u64, SyncSender<Job>)> {
        let mut state = self.state.locked();
        loop {
            let now = Instant::now();
            let all_hang = state.running.len() >= MAX_THREADS
                && state.running.values().all(|(_, waits)| *waits == Waits::Nobody);
            if state.refuses(user, now) || all_hang || now >= deadline {
                return Err(refused());
            }
            if !state.running.contains_key(&user) {
                let reader = match state.idle.pop() {
                    Some(reader) => Some(reader),
                    None if state.threads < MAX_THREADS => {
                        let reader = self.start()?;
                        state.threads += 1;
                        Some(reader)
                    }
                    None => None,
                };
                if let Some(reader) = reader {
                    state.jobs += 1;
                    let number = state.jobs;
                    state.running.insert(user, (number, Waits::Caller));
                    return Ok((number, reader));
                }
            }
            let waited = self.changed.wait_timeout(state, deadline.saturating_duration_since(now));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn start(&'static self) -> io::Result<SyncSender<Job>> {
        let (jobs, waiting) = sync_channel(1);
        let thread = std::thread::Builder::new().name("processes".into()).stack_size(STACK_BYTES);
        let own = jobs.clone();
        thread.spawn(move || self.serve(&own, &waiting))?;
        Ok(jobs)
    }

    fn serve(&self, own: &SyncSender<Job>, waiting: &Receiver<Job>) {
        while let Ok(Job { user, path, most, answer }) = waiting.recv() {
            let (began, start) = (Instant::now(), thread_time());
            let mut read = Vec::new();
            let bytes = File::open(path).and_then(|file| file.take(most).read_to_end(&mut read));
            let (took, processor_time) = (began.elapsed(), thread_time().saturating_sub(start));
            self.state.locked().idle.push(own.clone());
            self.done(user);
            // The caller may have stopped waiting.
            let _ = answer.send(Answer { bytes: bytes.map(|_| read), took, processor_time });
        }
    }

    fn done(&self, user: u32) {
        self.state.locked().running.remove(&user);
        self.changed.notify_all();
    }

    /// Records that the caller stopped waiting; false if the job has ended.
    fn abandon(&self, number: u64, user: u32) -> bool {
        let mut state = self.state.locked();
        match state.running.get_mut(&user) {
            Some((running, waits)) if *running == number => {
                *waits = Waits::Nobody;
                drop(state);
                self.changed.notify_all();
                true
            }
            _ => false,
        }
    }
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "reading processes of its user takes too long")
}

fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rustix::fs::{CWD, Mode, mknodat};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Readers that live as long as the tests.
    fn readers() -> &'static Readers {
        Box::leak(Box::new(Readers { state: Mutex::new(State::new()), changed: Condvar::new() }))
    }

    /// A file whose reader waits in the kernel for a writer.
    fn fifo(dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        mknodat(CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }

    const SOON: Duration = Duration::from_millis(20);

    fn read(
        readers: &'static Readers,
        path: &Path,
        uid: u32,
        limit: Duration,
    ) -> Result<Vec<u8>, io::ErrorKind> {
        let part = Part { name: "environ", most_bytes: 100, limit };
        readers.read(path.to_owned(), part, uid).map_err(|error| error.kind())
    }

    #[test]
    fn a_process_that_hangs_costs_its_user_one_thread_and_nobody_else_anything() {
        let dir = tempfile::tempdir().unwrap();
        let (hung, good) = (fifo(dir.path(), "hung"), dir.path().join("good"));
        fs::write(&good, "A=1").unwrap();
        let readers = readers();
        assert_eq!(read(readers, &hung, 1, SOON), Err(io::ErrorKind::TimedOut));
        for _ in 0..3 * MAX_THREADS {
            assert_eq!(read(readers, &hung, 1, PATIENCE), Err(io::ErrorKind::TimedOut), "at once");
            assert_eq!(read(readers, &good, 1, PATIENCE), Err(io::ErrorKind::TimedOut), "nor another");
        }
        assert_eq!(readers.state.locked().threads, 1);
        assert_eq!(read(readers, &good, 2, PATIENCE).unwrap(), b"A=1");
    }

    #[test]
    fn a_user_is_looked_at_again_when_the_process_answers() {
        let dir = tempfile::tempdir().unwrap();
        let (hung, good) = (fifo(dir.path(), "hung"), dir.path().join("good"));
        fs::write(&good, "A=1").unwrap();
        let readers = readers();
        assert_eq!(read(readers, &hung, 1, SOON), Err(io::ErrorKind::TimedOut));
        fs::write(&hung, "late").unwrap();
        let began = Instant::now();
        // At first the thread still reads what was written.
        while read(readers, &good, 1, PATIENCE).is_err() {
            assert!(began.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
    }

    #[test]
    fn when_every_thread_hangs_nobody_waits() {
        let dir = tempfile::tempdir().unwrap();
        let (hung, good) = (fifo(dir.path(), "hung"), dir.path().join("good"));
        fs::write(&good, "A=1").unwrap();
        let readers = readers();
        for uid in 0..MAX_THREADS as u32 {
            assert_eq!(read(readers, &hung, uid, SOON), Err(io::ErrorKind::TimedOut));
        }
        for uid in 100..200 {
            // A hundred times the patience would be an hour.
            assert_eq!(read(readers, &good, uid, PATIENCE), Err(io::ErrorKind::TimedOut));
        }
        assert_eq!(readers.state.locked().threads, MAX_THREADS);
    }

    #[test]
    fn reads_of_one_user_wait_for_each_other_and_those_of_others_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let (hung, good) = (fifo(dir.path(), "hung"), dir.path().join("good"));
        fs::write(&good, "A=1").unwrap();
        let readers = readers();
        std::thread::scope(|threads| {
            let first = threads.spawn(|| read(readers, &hung, 1, PATIENCE));
            let began = Instant::now();
            while readers.state.locked().running.is_empty() {
                assert!(began.elapsed() < PATIENCE);
                std::thread::yield_now();
            }
            assert_eq!(read(readers, &good, 1, SOON), Err(io::ErrorKind::TimedOut), "it waited");
            assert!(!readers.state.locked().refuses(1, Instant::now()), "which is nobody's fault");
            assert_eq!(read(readers, &good, 2, PATIENCE).unwrap(), b"A=1");
            fs::write(&hung, "late").unwrap();
            assert_eq!(first.join().unwrap().unwrap(), b"late");
        });
        assert_eq!(readers.state.locked().threads, 2);
    }

    #[test]
    fn a_user_whose_reads_are_slow_is_refused_for_a_while() {
        let (mut state, start) = (State::new(), Instant::now());
        let slow = Duration::from_millis(400);
        let after = |secs| start + Duration::from_secs(secs);
        assert!(!state.count(1, start, slow) && !state.count(1, start, slow));
        assert!(state.count(1, start, slow), "more than a second");
        assert!(!state.count(1, start, slow), "the log has it once");
        assert!(state.refuses(1, start) && !state.refuses(2, start));
        assert!(state.refuses(1, after(17)) && !state.refuses(1, after(19)));
        (0..100_000).for_each(|_| assert!(!state.count(2, start, USUAL)));
        assert!(!state.refuses(2, start), "what is usual costs nothing");
        state.count(2, after(60), USUAL);
        assert!(state.due.is_empty());
    }

    #[test]
    fn what_is_read_elsewhere_is_counted_for_who_asked() {
        let dir = tempfile::tempdir().unwrap();
        let good = dir.path().join("good");
        fs::write(&good, "A=1").unwrap();
        let before = time_elsewhere();
        assert!(read(readers(), &good, 1, PATIENCE).is_ok() && time_elsewhere() > before);
    }
}
