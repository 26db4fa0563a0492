//! Runs work that may never return on a thread of its own, one piece at a time.
//!
//! The kernel log matters most when the disk with the saved position hangs, or the driver that
//! lists the GPUs. Neither may block the reading of the log.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// At most one running piece of work.
#[derive(Debug)]
pub(super) struct Aside<T>(Option<Receiver<T>>);

impl<T> Default for Aside<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Send + 'static> Aside<T> {
    pub(super) fn busy(&self) -> bool {
        self.0.is_some()
    }

    /// Starts the work, unless the previous one still runs. Returns whether it started.
    pub(super) fn start(&mut self, name: &str, work: impl FnOnce() -> T + Send + 'static) -> bool {
        if self.busy() {
            return false;
        }
        let (done, result) = sync_channel(1);
        let thread = std::thread::Builder::new().name(name.to_owned());
        // A caller that no longer waits for the result does not need it.
        let began = thread.spawn(move || drop(done.send(work()))).is_ok();
        self.0 = began.then_some(result);
        began
    }

    /// Waits at most `most` for the result. `None` if the work still runs, or has panicked.
    pub(super) fn finished(&mut self, most: Duration) -> Option<T> {
        match self.0.as_ref()?.recv_timeout(most) {
            Ok(result) => {
                self.0 = None;
                Some(result)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.0 = None;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_piece_at_a_time_and_no_caller_waits_for_ever() {
        let mut aside = Aside::default();
        let (go, wait) = sync_channel::<()>(0);
        assert!(aside.start("t", move || wait.recv().is_ok()));
        assert!(!aside.start("t", || true) && aside.busy());
        assert_eq!(aside.finished(Duration::ZERO), None);
        go.send(()).unwrap();
        assert_eq!(aside.finished(Duration::from_mins(1)), Some(true));
        assert!(!aside.busy());
        assert!(aside.start("t", || panic!("of no consequence")));
        assert_eq!(aside.finished(Duration::from_mins(1)), None);
        assert!(!aside.busy());
    }
}
