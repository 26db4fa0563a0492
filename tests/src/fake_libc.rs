//! Changes the machine under a program: sets the wall clock, as an operator or NTP does, and lets
//! the disk hang. The monotonic clock is not changed.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use crate::bins;

/// The variable that names the file to the preloaded library.
const VARIABLE: &str = "STEPWATCH_FAKE_LIBC";
/// The offsets of the two numbers in the file.
const AHEAD_AT: u64 = 0;
const HANGS_AT: u64 = 8;

/// A simulated machine. Clones refer to the same one.
#[derive(Debug, Clone)]
pub struct FakeLibc {
    path: PathBuf,
    file: Arc<File>,
}

impl FakeLibc {
    /// Creates the file in `dir`, with a correct clock and a working disk.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("fake-libc");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let machine = Self { path, file: Arc::new(file) };
        machine.put(HANGS_AT, 0)?;
        machine.set_clock(0)?;
        Ok(machine)
    }

    /// Sets the clock ahead by this many seconds, from the next reading on.
    pub fn set_clock(&self, ahead: i64) -> anyhow::Result<()> {
        self.put(AHEAD_AT, ahead)
    }

    /// Makes fsyncs hang until the disk works again.
    pub fn hang_disk(&self, hangs: bool) -> anyhow::Result<()> {
        self.put(HANGS_AT, i64::from(hangs))
    }

    /// Makes reads of a database hang too, until the disk works again.
    pub fn hang_reads(&self) -> anyhow::Result<()> {
        self.put(HANGS_AT, 2)
    }

    fn put(&self, at: u64, number: i64) -> anyhow::Result<()> {
        // One write of eight aligned bytes, so that a reader sees the old or the new number.
        Ok(self.file.write_all_at(&number.to_ne_bytes(), at)?)
    }

    /// The environment that makes a program use this machine.
    pub fn env(&self) -> anyhow::Result<Vec<(String, OsString)>> {
        let library = bins::fake_libc()?;
        Ok(vec![("LD_PRELOAD".into(), library.into()), (VARIABLE.into(), self.path.clone().into())])
    }
}
