//! Stops the virtual clock of tests while the store works.
//!
//! SQLite runs on its own thread, which Tokio cannot see: without other work it would consider the
//! runtime idle and jump to the next timer. A blocking task that lasts as long as the operation
//! prevents that. This module is not part of any program.

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
