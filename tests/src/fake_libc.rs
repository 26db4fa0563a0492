//! What a test does to the machine under a program: it sets the wall clock, as an operator or NTP
//! does, and lets the disk hang. The monotonic clock stays as it is.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use crate::bins;

/// Names the file to the preloaded library.
const VARIABLE: &str = "STEPWATCH_FAKE_LIBC";
/// Where the file has the two numbers.
const AHEAD_AT: u64 = 0;
const HANGS_AT: u64 = 8;

/// Clones are of the same machine.
#[derive(Debug, Clone)]
pub struct FakeLibc {
    path: PathBuf,
    file: Arc<File>,
}

impl FakeLibc {
    /// With a clock that is right and a disk that works, kept in `dir`.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("fake-libc");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let machine = Self { path, file: Arc::new(file) };
        machine.put(HANGS_AT, 0)?;
        machine.set_clock(0)?;
        Ok(machine)
    }

    /// From the next reading on, the clock is this many seconds ahead.
    pub fn set_clock(&self, ahead: i64) -> anyhow::Result<()> {
        self.put(AHEAD_AT, ahead)
    }

    /// Nothing that is to survive a loss of power is written to the end, until the disk works
    /// again.
    pub fn hang_disk(&self, hangs: bool) -> anyhow::Result<()> {
        self.put(HANGS_AT, i64::from(hangs))
    }

    /// Nothing of a database can be read either, until the disk works again.
    pub fn hang_reads(&self) -> anyhow::Result<()> {
        self.put(HANGS_AT, 2)
    }

    fn put(&self, at: u64, number: i64) -> anyhow::Result<()> {
        // One write of eight aligned bytes: a reader sees the old number or the new one.
        Ok(self.file.write_all_at(&number.to_ne_bytes(), at)?)
    }

    /// The environment that makes a program run on this machine.
    pub fn env(&self) -> anyhow::Result<Vec<(String, OsString)>> {
        let library = bins::fake_libc()?;
        Ok(vec![("LD_PRELOAD".into(), library.into()), (VARIABLE.into(), self.path.clone().into())])
    }
}
