//! The only thread of this process that calls NVML.
//!
//! A call into the driver may never return, and then nothing can end its thread. So only this
//! thread makes calls: other threads submit a [job](Nvml::submit) to it, and wait with a timeout of
//! their own. Every running call is recorded, so that one that does not return can be named. The
//! thread starts with the first job.
//!
//! NVML can be [released](Nvml::release): nothing of the driver stays open, so that a GPU can be
//! reset or repartitioned.

mod gpu;
mod heartbeat;
mod numbering;
mod quarantine;
pub mod routes;
mod session;
mod standing;
mod xid_events;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub use gpu::{Gpu, Identity, Mig};
pub use heartbeat::{Call, Cost, Spent};
pub use quarantine::Aside;
pub use session::{Computing, Live, OpenError, Session};
pub use xid_events::{Heard, Xid};

use crate::clock::unix_now;
use crate::lock::Locked as _;
use heartbeat::{Heartbeat, SLOW_CALL, SLOW_CALLS};

/// A release without a duration ends after this long, in case it is forgotten.
pub const RELEASE: Duration = Duration::from_mins(15);
/// The longest release.
pub const MAX_RELEASE: Duration = Duration::from_hours(4);

/// A handle of the thread; the last one ends it when dropped.
#[derive(Debug, Clone, Default)]
pub struct Nvml(Arc<Owner>);

#[derive(Debug, Default)]
struct Owner(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    heartbeat: Arc<Heartbeat>,
    now: Mutex<Now>,
    /// Notified after each change of `now`.
    changed: Condvar,
}

type Job = Box<dyn FnOnce(&mut Session) + Send>;

#[derive(Default)]
struct Now {
    started: bool,
    /// Whether the thread works on a job, or is closing NVML.
    busy: bool,
    job: Option<Job>,
    /// Whether NVML is open.
    open: bool,
    released: Option<Release>,
    closing: bool,
    ended: bool,
}

/// The end of a requested release of NVML.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Release {
    at: Instant,
    /// The Unix time in seconds of the end.
    pub until: f64,
}

/// The reason why a job was refused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refused {
    Released(Release),
    /// The thread has another job.
    Busy,
}

/// The future answer of a job.
#[derive(Debug)]
pub struct Ticket<T>(Receiver<T>);

impl Nvml {
    /// Submits a job to the thread, if it has none. `library` is the path of NVML, if not the
    /// loader's choice.
    pub fn submit<T: Send + 'static>(
        &self,
        library: Option<&Path>,
        job: impl FnOnce(&mut Session) -> T + Send + 'static,
    ) -> Result<Ticket<T>, Refused> {
        let shared = &self.0.0;
        let mut now = shared.now.locked();
        if let Some(release) = now.release() {
            return Err(Refused::Released(release));
        }
        if now.busy || now.job.is_some() || now.closing {
            return Err(Refused::Busy);
        }
        if !now.started {
            now.started = self.start(library.map(Path::to_owned));
        }
        let (answer, ticket) = sync_channel(1);
        now.job = Some(Box::new(move |session| {
            // The caller may have stopped waiting.
            let _ = answer.send(job(session));
        }));
        shared.changed.notify_all();
        Ok(Ticket(ticket))
    }

    /// Submits a job once the thread has none, and waits for the answer, at most `wait` in total.
    pub fn ask<T: Send + 'static>(
        &self,
        library: Option<&Path>,
        wait: Duration,
        job: impl FnOnce(&mut Session) -> T + Send + 'static,
    ) -> Option<T> {
        let until = Instant::now() + wait;
        self.wait_for(wait, |now| !now.busy && now.job.is_none());
        let ticket = self.submit(library, job).ok()?;
        ticket.wait(until.saturating_duration_since(Instant::now()))
    }

    fn start(&self, library: Option<PathBuf>) -> bool {
        let shared = Arc::clone(&self.0.0);
        let session = move || Session::new(library, Arc::clone(&shared.heartbeat));
        let shared = Arc::clone(&self.0.0);
        let thread = std::thread::Builder::new().name("nvml".into());
        match thread.spawn(move || shared.run(session())) {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(%error, "cannot start the thread that talks to NVML");
                false
            }
        }
    }

    /// The running call.
    pub fn call(&self) -> Option<Call> {
        self.0.0.heartbeat.call()
    }

    /// The running call, if it takes longer than `deadline`, or than such calls are expected to
    /// take.
    pub fn stuck(&self, deadline: Duration) -> Option<Call> {
        self.call().filter(|call| {
            let slow = SLOW_CALLS.contains(&call.function);
            call.since.elapsed() > if slow { deadline.max(SLOW_CALL) } else { deadline }
        })
    }

    /// The GPU whose calls have taken longest since its turn began, including the running one.
    pub fn slowest(&self) -> Option<(u32, Spent)> {
        self.0.0.heartbeat.slowest()
    }

    /// Runs `work` as if it were a call.
    #[cfg(test)]
    pub(crate) fn pretend<T>(&self, function: &'static str, gpu: Option<u32>, work: impl FnOnce() -> T) -> T {
        use stepwatch_sys::nvml::Watch as _;
        self.0.0.heartbeat.begins(function, gpu);
        let done = work();
        self.0.0.heartbeat.ends();
        done
    }

    /// The cost of calls so far, one entry a function.
    pub fn costs(&self) -> Vec<(&'static str, Cost)> {
        self.0.0.heartbeat.costs()
    }

    pub fn released(&self) -> Option<Release> {
        self.0.0.now.locked().release()
    }

    /// Closes NVML and keeps it closed for `period`. Returns true once nothing of the driver is
    /// held, and false if a call does not return within `wait`; then NVML is closed when the call
    /// returns.
    pub fn release(&self, period: Duration, wait: Duration) -> bool {
        let period = period.min(MAX_RELEASE);
        let release = Release { at: Instant::now() + period, until: unix_now() + period.as_secs_f64() };
        self.0.0.now.locked().released = Some(release);
        self.0.0.changed.notify_all();
        self.wait_for(wait, |now| !now.open && !now.busy)
    }

    /// Ends a release early. Returns whether there was one.
    pub fn acquire(&self) -> bool {
        let ended = self.0.0.now.locked().released.take().is_some_and(|r| r.at > Instant::now());
        self.0.0.changed.notify_all();
        ended
    }

    /// Closes NVML for good before the process exits: a driver that is abandoned during a call may
    /// take the GPU with it.
    pub fn close(&self, wait: Duration) {
        let started = {
            let mut now = self.0.0.now.locked();
            now.closing = true;
            now.started
        };
        self.0.0.changed.notify_all();
        if started && !self.wait_for(wait, |now| now.ended) {
            let call = self.call().map(|c| c.to_string());
            tracing::warn!(call, "NVML does not return; leaving it as it is");
        }
    }

    /// Waits until the condition holds. Returns whether it did in time.
    fn wait_for(&self, wait: Duration, so: impl Fn(&Now) -> bool) -> bool {
        let guard = self.0.0.now.locked();
        let waited = self.0.0.changed.wait_timeout_while(guard, wait, |now| !so(now));
        waited.is_ok_and(|(_, timeout)| !timeout.timed_out())
    }
}

impl Now {
    fn release(&self) -> Option<Release> {
        self.released.filter(|r| r.at > Instant::now())
    }
}

impl std::fmt::Debug for Now {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Now").field("busy", &self.busy).field("open", &self.open).finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.now.locked().closing = true;
        self.0.changed.notify_all();
    }
}

enum Work {
    Do(Job),
    Release,
    End,
}

impl Shared {
    fn run(&self, mut session: Session) {
        loop {
            match self.next() {
                Work::Do(job) => {
                    // After a panic, later jobs must not wait for ever, so the session is reopened.
                    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(&mut session)));
                    if done.is_err() {
                        session.close();
                    }
                }
                Work::Release => session.close(),
                Work::End => break,
            }
            self.rest(session.is_open());
        }
        session.close();
        let mut now = self.now.locked();
        now.ended = true;
        now.open = false;
        drop(now);
        self.changed.notify_all();
    }

    fn next(&self) -> Work {
        let mut now = self.now.locked();
        loop {
            let work = if now.closing {
                Some(Work::End)
            } else if now.release().is_some() {
                now.job = None;
                now.open.then_some(Work::Release)
            } else {
                now.job.take().map(Work::Do)
            };
            if let Some(work) = work {
                now.busy = true;
                return work;
            }
            now = self.changed.wait(now).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    fn rest(&self, open: bool) {
        let mut now = self.now.locked();
        now.busy = false;
        now.open = open;
        drop(now);
        self.changed.notify_all();
    }
}

impl<T> Ticket<T> {
    /// The answer, if it comes within `wait`.
    pub fn wait(&self, wait: Duration) -> Option<T> {
        self.0.recv_timeout(wait).ok()
    }

    /// Whether there will be no answer, because the job was dropped.
    pub fn is_void(&self) -> bool {
        matches!(self.0.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Disconnected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(20);

    fn idle(nvml: &Nvml) {
        assert!(nvml.wait_for(LONG, |now| !now.busy && now.job.is_none()));
    }

    #[test]
    fn jobs_run_one_at_a_time_and_answer() {
        let nvml = Nvml::default();
        let (go, wait) = channel::<()>();
        let first = nvml.submit(None, move |_| wait.recv().is_ok()).unwrap();
        assert_eq!(nvml.submit(None, |_| ()).unwrap_err(), Refused::Busy);
        assert_eq!(
            nvml.ask(None, Duration::from_millis(5), |_| ()),
            None,
            "no waiting beyond the time given"
        );
        assert_eq!(first.wait(Duration::ZERO), None);
        go.send(()).unwrap();
        assert_eq!(first.wait(LONG), Some(true));
        assert_eq!(nvml.ask(None, LONG, |_| 7), Some(7));
    }

    #[test]
    fn a_job_that_panics_takes_nothing_with_it() {
        let nvml = Nvml::default();
        let ticket = nvml.submit(None, |_| panic!("of the driver")).unwrap();
        idle(&nvml);
        assert_eq!(ticket.wait(LONG), None::<()>);
        assert!(ticket.is_void());
        assert_eq!(nvml.ask(None, LONG, |_| 7), Some(7));
    }

    #[test]
    fn released_until_its_time_or_until_it_is_taken_back() {
        let nvml = Nvml::default();
        assert!(nvml.release(RELEASE, LONG), "nothing was open");
        assert!(matches!(nvml.submit(None, |_| ()), Err(Refused::Released(_))));
        assert!(nvml.acquire());
        assert!(!nvml.acquire(), "there is no release any more");
        assert_eq!(nvml.ask(None, LONG, |_| 1), Some(1));
        assert!(nvml.release(Duration::ZERO, LONG));
        assert_eq!(nvml.released(), None);
        assert_eq!(nvml.ask(None, LONG, |_| 2), Some(2));
    }

    #[test]
    fn a_release_waits_for_the_call_that_runs_and_says_when_it_gave_up() {
        let nvml = Nvml::default();
        let (go, wait) = channel::<()>();
        let ticket = nvml.submit(None, move |_| wait.recv().is_ok()).unwrap();
        assert!(nvml.wait_for(LONG, |now| now.busy));
        assert!(!nvml.release(RELEASE, Duration::from_millis(5)));
        go.send(()).unwrap();
        assert_eq!(ticket.wait(LONG), Some(true));
        assert!(nvml.release(RELEASE, LONG));
    }

    #[test]
    fn the_thread_ends_when_it_is_closed_and_with_the_last_handle() {
        let nvml = Nvml::default();
        assert_eq!(nvml.ask(None, LONG, |_| 1), Some(1));
        let shared = Arc::clone(&nvml.0.0);
        drop(nvml);
        let guard = shared.now.locked();
        assert!(!shared.changed.wait_timeout_while(guard, LONG, |now| !now.ended).unwrap().1.timed_out());
        let nvml = Nvml::default();
        nvml.ask(None, LONG, |_| ());
        nvml.close(LONG);
        assert!(nvml.0.0.now.locked().ended);
    }
}
