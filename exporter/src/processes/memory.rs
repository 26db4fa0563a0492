//! What the kernel reads from the memory of a process: its environment, its arguments, the list of
//! what it maps.
//!
//! A process decides what that memory is. Pages of a file system that its user serves (FUSE), or a
//! lock that a driver holds for minutes, keep such a read in the kernel, where it cannot be ended.
//! So reads are made by threads of their own, and the caller waits for a moment at most. A user
//! with a process that hangs is not looked at until the thread is free again.

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

/// Threads that read. Each user can make one of them hang.
const MAX_THREADS: usize = 8;
/// The stack of a read is only a few frames deep.
const STACK_BYTES: usize = 64 * 1024;

/// How long a user is not looked at after one of its processes did not answer.
const PENALTY: Duration = Duration::from_secs(30);

static READERS: Readers =
    Readers { penalty: PENALTY, state: Mutex::new(State::new()), changed: Condvar::new() };

thread_local! {
    static ELSEWHERE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Processor time of other threads that read for this one.
pub(crate) fn time_elsewhere() -> Duration {
    ELSEWHERE.get()
}

/// A file of a process, and what reading it may cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) most_bytes: u64,
    /// How long the caller waits.
    pub(super) limit: Duration,
}

/// Reads a part of what `/proc` shows of a process. An error where we may not look, or where it
/// takes too long.
pub(super) fn read(roots: &Roots, pid: u32, part: Part) -> io::Result<Vec<u8>> {
    let path = roots.proc(pid.to_string()).join(part.name);
    READERS.read(path, part, || super::user(roots, pid).unwrap_or(u32::MAX))
}

#[derive(Debug)]
struct Readers {
    penalty: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<SyncSender<Job>>,
    threads: usize,
    jobs: u64,
    /// By job, the user whose process it waits for, once nobody waits for the job.
    running: BTreeMap<u64, Option<u32>>,
    /// Users that are not looked at, and until when.
    penalties: BTreeMap<u32, Instant>,
}

#[derive(Debug)]
struct Job {
    number: u64,
    path: PathBuf,
    most: u64,
    answer: SyncSender<Answer>,
}

#[derive(Debug)]
struct Answer {
    bytes: io::Result<Vec<u8>>,
    took: Duration,
}

impl State {
    const fn new() -> Self {
        Self { idle: Vec::new(), threads: 0, jobs: 0, running: BTreeMap::new(), penalties: BTreeMap::new() }
    }

    fn hanging(&self) -> impl Iterator<Item = u32> {
        self.running.values().copied().flatten()
    }
}

impl Readers {
    fn read(&'static self, path: PathBuf, part: Part, user: impl Fn() -> u32) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + part.limit;
        let reader = self.reader(deadline, &user)?;
        let (answer, answered) = sync_channel(1);
        let number = {
            let mut state = self.state.locked();
            state.jobs += 1;
            let number = state.jobs;
            state.running.insert(number, None);
            number
        };
        reader
            .send(Job { number, path, most: part.most_bytes, answer })
            .map_err(|_| io::ErrorKind::BrokenPipe)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = match answered.recv_timeout(left) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) if self.abandon(number, &user) => return Err(hangs()),
            // It was read just now.
            Err(_) => answered.recv().map_err(|_| io::ErrorKind::BrokenPipe)?,
        };
        ELSEWHERE.set(ELSEWHERE.get() + answer.took);
        answer.bytes
    }

    /// A thread that has nothing to do.
    fn reader(&'static self, deadline: Instant, user: &impl Fn() -> u32) -> io::Result<SyncSender<Job>> {
        let mut state = self.state.locked();
        let now = Instant::now();
        state.penalties.retain(|_, until| *until > now);
        let has_suspects = !state.penalties.is_empty() || state.hanging().next().is_some();
        if has_suspects {
            let user = user();
            if state.penalties.contains_key(&user) || state.hanging().any(|of| of == user) {
                return Err(hangs());
            }
        }
        loop {
            if let Some(reader) = state.idle.pop() {
                return Ok(reader);
            }
            if state.threads < MAX_THREADS {
                let (jobs, waiting) = sync_channel(1);
                let thread = std::thread::Builder::new().name("processes".into()).stack_size(STACK_BYTES);
                let own = jobs.clone();
                thread.spawn(move || self.serve(&own, &waiting))?;
                state.threads += 1;
                return Ok(jobs);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.hanging().count() >= MAX_THREADS {
                return Err(hangs());
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn serve(&self, own: &SyncSender<Job>, waiting: &Receiver<Job>) {
        while let Ok(Job { number, path, most, answer }) = waiting.recv() {
            let start = thread_time();
            let mut read = Vec::new();
            let bytes = File::open(path).and_then(|file| file.take(most).read_to_end(&mut read));
            let took = thread_time().saturating_sub(start);
            let mut state = self.state.locked();
            state.running.remove(&number);
            state.idle.push(own.clone());
            drop(state);
            self.changed.notify_one();
            // Whoever asked may not wait any more.
            let _ = answer.send(Answer { bytes: bytes.map(|_| read), took });
        }
    }

    /// Nobody waits for a job any more; false if it is over.
    fn abandon(&self, number: u64, user: &impl Fn() -> u32) -> bool {
        let user = user();
        let mut state = self.state.locked();
        let Some(running) = state.running.get_mut(&number) else { return false };
        *running = Some(user);
        state.penalties.insert(user, Instant::now() + self.penalty);
        tracing::warn!(
            uid = user,
            "the memory of a process of this user cannot be read in time: its processes are not looked at for now"
        );
        true
    }
}

fn hangs() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "a process of its user hangs")
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
        let changed = Condvar::new();
        Box::leak(Box::new(Readers { penalty: Duration::ZERO, state: Mutex::new(State::new()), changed }))
    }

    /// A file whose reader waits in the kernel for somebody who writes.
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
        readers.read(path.to_owned(), part, || uid).map_err(|error| error.kind())
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
        assert_eq!(readers.state.locked().hanging().count(), 1);
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
        while read(readers, &good, 1, PATIENCE).is_err() {
            assert!(began.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
    }

    #[test]
    fn when_every_thread_hangs_nobody_waits() {
        let dir = tempfile::tempdir().unwrap();
        let hung = fifo(dir.path(), "hung");
        let readers = readers();
        for uid in 0..2 * MAX_THREADS as u32 {
            assert_eq!(read(readers, &hung, uid, SOON), Err(io::ErrorKind::TimedOut));
        }
        let state = readers.state.locked();
        assert_eq!((state.threads, state.hanging().count()), (MAX_THREADS, MAX_THREADS));
    }

    #[test]
    fn what_is_read_elsewhere_is_counted_for_who_asked() {
        let before = time_elsewhere();
        let own = super::super::environ(&Roots::default(), std::process::id());
        assert!(own.is_ok() && time_elsewhere() > before);
    }
}
