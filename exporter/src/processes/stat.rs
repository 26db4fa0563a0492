//! `/proc/PID/stat`.

use crate::roots::{self, Roots};

/// Clock ticks of `/proc/PID/stat` in a second: a constant of the kernel's interface on every
/// machine that trains.
const TICKS_PER_SECOND: f64 = 100.0;
/// Flag of a process that has begun to exit, whatever its state reads.
const PF_EXITING: u64 = 0x4;

/// The fields of `/proc/PID/stat` that we use.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stat {
    pub(crate) command: String,
    pub(crate) state: char,
    pub(crate) flags: u64,
    pub(crate) major_faults: u64,
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
    pub(crate) threads: u64,
    /// Seconds after boot.
    pub(crate) started: f64,
}

impl Stat {
    /// Whether it waits in the kernel and cannot be killed. Lustre waits in the state of idle
    /// threads of the kernel, which a process is never in for another reason, so that it does
    /// not count as load.
    pub(crate) fn is_uninterruptible(&self) -> bool {
        matches!(self.state, 'D' | 'I')
    }

    /// Whether it has ended or has begun to: its files are closed before it leaves the process
    /// table.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, 'Z' | 'X') || self.flags & PF_EXITING != 0
    }

    /// Start time in clock ticks after the boot; together with the pid it identifies a process for
    /// ever.
    pub(crate) fn start_ticks(&self) -> u64 {
        (self.started * TICKS_PER_SECOND).round() as u64
    }
}

pub(crate) fn read_stat(roots: &Roots, pid: u32) -> Option<Stat> {
    parse_stat(&roots::read(&roots.proc(pid.to_string()).join("stat"))?)
}

/// Fields are counted from the last parenthesis: a command may contain anything.
pub(crate) fn parse_stat(text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(')')?;
    let command = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = tail.split_whitespace().collect();
    // `man proc_pid_stat` counts from 1 and the state is its third.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let seconds = |field| number(field).map(|ticks| ticks as f64 / TICKS_PER_SECOND);
    Some(Stat {
        command,
        state: fields.first()?.chars().next()?,
        flags: number(9)?,
        major_faults: number(12)?,
        user_seconds: seconds(14)?,
        system_seconds: seconds(15)?,
        threads: number(20)?,
        started: seconds(22)?,
    })
}
