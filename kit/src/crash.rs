//! Named crash points at which a test can kill the process, as a power cut would.
//!
//! `STEPWATCH_CRASH_POINT=outbox.sent` kills the process at the first pass of that point,
//! `outbox.sent:3` at the third. In a release build [`point`] is empty and the variable has no
//! effect.

/// Marks a crash point. Call it just before or just after a commit.
#[inline]
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    armed::reached(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    const VARIABLE: &str = "STEPWATCH_CRASH_POINT";

    static ARMED: LazyLock<Option<CrashPoint>> =
        LazyLock::new(|| std::env::var(VARIABLE).ok().as_deref().and_then(CrashPoint::parse));

    pub(super) struct CrashPoint {
        name: String,
        remaining: AtomicU32,
    }

    impl CrashPoint {
        pub(super) fn parse(text: &str) -> Option<Self> {
            let (name, nth) = match text.rsplit_once(':') {
                Some((name, nth)) => (name, nth.parse().ok()?),
                None => (text, 1),
            };
            (nth > 0 && !name.is_empty()).then(|| Self { name: name.into(), remaining: AtomicU32::new(nth) })
        }

        /// Whether this pass is the one at which to kill the process.
        pub(super) fn due(&self, name: &str) -> bool {
            name == self.name && self.remaining.fetch_sub(1, Ordering::Relaxed) == 1
        }
    }

    pub(super) fn reached(name: &str) {
        if ARMED.as_ref().is_some_and(|point| point.due(name)) {
            // SIGKILL to oneself cannot fail, and nothing runs after it: no destructor, no flush.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::armed::CrashPoint;

    #[test]
    fn the_nth_pass_is_the_one() {
        let passes = |spec: &str| {
            let point = CrashPoint::parse(spec).unwrap();
            (1..=5).filter(|_| point.due("store.commit")).count()
        };
        assert_eq!(passes("store.commit"), 1);
        assert_eq!(passes("store.commit:6"), 0);
        assert_eq!(passes("other"), 0);
        let third = CrashPoint::parse("a:3").unwrap();
        assert_eq!((1..=5).map(|_| third.due("a")).collect::<Vec<_>>(), [false, false, true, false, false]);
    }

    #[test]
    fn nonsense_arms_nothing() {
        for bad in ["", ":1", "a:0", "a:x", "a:-1"] {
            assert!(CrashPoint::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn unarmed_points_are_passed() {
        super::point("nobody asked");
    }
}
