//! Queries paths that may never answer: with one thread for each, which is used again only after it
//! has answered.
//!
//! A call on a dead server waits in the kernel, where it cannot be ended. The caller waits only for
//! a moment, and learns how long each answer has been pending. A stuck thread is never replaced,
//! and the number of threads is limited for the whole process, across all callers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::lock::Locked as _;

/// The most threads of all probers together.
const MAX_THREADS: usize = 128;
/// The stack of a probe is only a few frames deep.
const STACK_BYTES: usize = 256 * 1024;

static THREADS: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Prober<T, P = PathBuf> {
    look: Look<T, P>,
    workers: BTreeMap<String, Arc<Worker<T, P>>>,
}

type Look<T, P> = Arc<dyn Fn(&P) -> T + Send + Sync>;

/// The state of one path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProbeState<T> {
    /// How long the answer has been pending; `None` if it has arrived.
    pub(crate) owed: Option<Duration>,
    /// The last answer and its duration.
    pub(crate) last: Option<(T, Duration)>,
}

struct Worker<T, P> {
    path: P,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    asked: Option<Instant>,
    last: Option<(T, Duration)>,
    /// Whether the thread has to end, because no further query comes.
    over: bool,
}

/// Counts a thread while it lives.
struct Counted;

impl<T, P> std::fmt::Debug for Prober<T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prober").field("paths", &self.workers.keys()).finish_non_exhaustive()
    }
}

impl<T: Clone + Send + 'static, P: Clone + Send + Sync + 'static> Prober<T, P> {
    pub(crate) fn new(look: impl Fn(&P) -> T + Send + Sync + 'static) -> Self {
        Self { look: Arc::new(look), workers: BTreeMap::new() }
    }

    /// Queries all of these paths, waits at most `patience` for those that were not pending
    /// already, and returns the state of each. A path for which no thread can be started is left
    /// out. Paths are distinguished by their keys; others are forgotten once they have answered.
    pub(crate) fn ask(
        &mut self,
        paths: &[(String, P)],
        patience: Duration,
    ) -> BTreeMap<String, ProbeState<T>> {
        self.workers.retain(|key, worker| {
            let wanted = paths.iter().any(|(k, _)| k == key);
            let keep = wanted || worker.state.locked().asked.is_some();
            if !keep {
                worker.end();
            }
            keep
        });
        let deadline = Instant::now() + patience;
        let mut waiting = Vec::new();
        for (key, path) in paths {
            let Some(worker) = self.worker(key, path) else { continue };
            let mut state = worker.state.locked();
            if state.asked.is_none() {
                state.asked = Some(Instant::now());
                worker.changed.notify_all();
                waiting.push(Arc::clone(&worker));
            }
        }
        for worker in waiting {
            let left = deadline.saturating_duration_since(Instant::now());
            let state = worker.state.locked();
            drop(worker.changed.wait_timeout_while(state, left, |s| s.asked.is_some()));
        }
        let states =
            paths.iter().filter_map(|(key, _)| Some((key.clone(), self.workers.get(key)?.probe_state())));
        states.collect()
    }

    fn worker(&mut self, key: &str, path: &P) -> Option<Arc<Worker<T, P>>> {
        if let Some(worker) = self.workers.get(key) {
            return Some(Arc::clone(worker));
        }
        let counted = Counted::take()?;
        let state = Mutex::new(State { asked: None, last: None, over: false });
        let worker = Arc::new(Worker { path: path.clone(), state, changed: Condvar::new() });
        let (its, look) = (Arc::clone(&worker), Arc::clone(&self.look));
        let thread = std::thread::Builder::new().name("probe".into()).stack_size(STACK_BYTES);
        thread
            .spawn(move || {
                let _counted = counted;
                its.run(&look);
            })
            .ok()?;
        self.workers.insert(key.to_owned(), Arc::clone(&worker));
        Some(worker)
    }
}

impl<T, P> Drop for Prober<T, P> {
    fn drop(&mut self) {
        for worker in self.workers.values() {
            worker.end();
        }
    }
}

impl<T, P> Worker<T, P> {
    fn run(&self, look: &Look<T, P>) {
        loop {
            let state = self.state.locked();
            let state = self.changed.wait_while(state, |s| s.asked.is_none() && !s.over);
            let asked = {
                let state = state.unwrap_or_else(PoisonError::into_inner);
                let Some(asked) = state.asked.filter(|_| !state.over) else { return };
                asked
            };
            let answer = look(&self.path);
            let mut state = self.state.locked();
            state.last = Some((answer, asked.elapsed()));
            state.asked = None;
            self.changed.notify_all();
        }
    }

    fn end(&self) {
        self.state.locked().over = true;
        self.changed.notify_all();
    }
}

impl<T: Clone, P> Worker<T, P> {
    fn probe_state(&self) -> ProbeState<T> {
        let state = self.state.locked();
        ProbeState { owed: state.asked.map(|asked| asked.elapsed()), last: state.last.clone() }
    }
}

impl Counted {
    fn take() -> Option<Self> {
        let more = |n| (n < MAX_THREADS).then_some(n + 1);
        THREADS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn paths(names: &[&str]) -> Vec<(String, PathBuf)> {
        names.iter().map(|n| ((*n).to_owned(), PathBuf::from(n))).collect()
    }

    #[test]
    fn one_that_does_not_answer_does_not_block_others_and_is_never_asked_twice() {
        let (let_go, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let mut prober = Prober::new(move |path: &PathBuf| {
            if path == Path::new("/stuck") {
                count.fetch_add(1, Ordering::Relaxed);
                let _ = held.locked().recv();
            }
            path.clone()
        });
        let both = paths(&["/good", "/stuck"]);
        for _ in 0..3 {
            let states = prober.ask(&both, Duration::from_millis(50));
            assert!(states["/stuck"].owed.is_some() && states["/stuck"].last.is_none());
        }
        // The timeout exceeds the time to schedule a thread; the stuck thread is not awaited.
        let states = prober.ask(&paths(&["/good"]), PATIENCE);
        assert_eq!(states["/good"].last.as_ref().unwrap().0, PathBuf::from("/good"));
        assert_eq!(asked.load(Ordering::Relaxed), 1, "no longer wanted, but its thread is known");
        assert_eq!(prober.workers.len(), 2);
        let_go.send(()).unwrap();
        let began = Instant::now();
        loop {
            let states = prober.ask(&both, Duration::from_millis(10));
            if states["/stuck"].last.is_some() {
                break;
            }
            assert!(began.elapsed() < PATIENCE);
        }
        drop(let_go);
        prober.ask(&paths(&["/good"]), PATIENCE);
        let settled = || prober.workers.get("/stuck").is_none_or(|w| w.state.locked().asked.is_none());
        while !settled() {
            assert!(began.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        prober.ask(&paths(&["/good"]), PATIENCE);
        assert_eq!(prober.workers.len(), 1, "it has answered and is forgotten");
    }
}
