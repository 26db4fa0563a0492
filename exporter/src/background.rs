//! Lowers the priority of work that can wait for trainers, the ingest and scrapes.

/// With this share a woken thread still runs at once if every core is busy, but takes little time
/// from trainers: a tenth of their share is far more than needed.
const NICER: i32 = 5;

/// Lowers the priority of the calling thread, and of the threads that it starts.
///
/// Do not call this on the NVML thread, which may hold a lock of the driver that a trainer waits
/// for, and must finish soon.
pub(crate) fn yield_to_others() {
    // Linux has niceness for each thread. If it may not be changed, all stay equal.
    let _ = rustix::process::nice(NICER);
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    #[test]
    fn one_thread_yields_and_the_others_do_not() {
        let before = getpriority_process(None).unwrap();
        let lowered = std::thread::spawn(|| {
            super::yield_to_others();
            getpriority_process(None).unwrap()
        });
        assert_eq!(lowered.join().unwrap(), (before + super::NICER).min(19));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
