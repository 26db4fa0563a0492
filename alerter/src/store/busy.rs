//! In tests on virtual time: the clock stands still while the store is at work.
//!
//! SQLite works on a thread of its own, which Tokio cannot see: with nothing else to do it would
//! take the runtime for idle and jump to the next timer. A blocking task that lives as long as the
//! operation prevents that. Nothing of this is in a program.

#[derive(Debug)]
pub(crate) struct Busy {
    #[cfg(test)]
    _until_dropped: std::sync::mpsc::Sender<()>,
}

impl Busy {
    pub(crate) fn now() -> Self {
        #[cfg(test)]
        {
            let (until_dropped, dropped) = std::sync::mpsc::channel();
            tokio::task::spawn_blocking(move || dropped.recv());
            Self { _until_dropped: until_dropped }
        }
        #[cfg(not(test))]
        Self {}
    }
}
