//! The wall clock of a program under test, which a test sets as an operator or NTP does. The
//! monotonic clock stays as it is.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use crate::bins;

/// Names the file to the preloaded library.
const VARIABLE: &str = "STEPWATCH_FAKE_CLOCK";

/// By how much a wall clock is wrong; clones set the same one.
#[derive(Debug, Clone)]
pub struct WallClock {
    path: PathBuf,
    file: Arc<File>,
}

impl WallClock {
    /// One that is right, kept in `dir`.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("clock");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let clock = Self { path, file: Arc::new(file) };
        clock.set(0)?;
        Ok(clock)
    }

    /// From the next reading on, the clock is this many seconds ahead.
    pub fn set(&self, ahead: i64) -> anyhow::Result<()> {
        // One write of eight aligned bytes: whoever reads sees the old number or the new one.
        Ok(self.file.write_all_at(&ahead.to_ne_bytes(), 0)?)
    }

    /// What makes a program read this clock.
    pub fn env(&self) -> anyhow::Result<Vec<(String, OsString)>> {
        let library = bins::fake_clock()?;
        Ok(vec![("LD_PRELOAD".into(), library.into()), (VARIABLE.into(), self.path.clone().into())])
    }
}
