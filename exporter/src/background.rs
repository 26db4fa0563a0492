//! Work that can wait a moment for a trainer, for the ingest and for a scrape.

/// A share that is enough for a woken thread to run at once where every core is busy, and too
/// little to take time from trainers: a tenth of their share is far more than is needed.
const NICER: i32 = 5;

/// Lowers the priority of the calling thread, and of those that it starts.
///
/// Not for the thread that calls into NVML: in there it may hold a lock of the driver that a
/// trainer waits for, and must be done with it soon.
pub(crate) fn yield_to_others() {
    // Linux counts niceness by the thread. Where it may not be changed, all are equal.
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
