//! Parses `/proc/PID/stat`.

use crate::roots::{self, Roots};

/// Clock ticks of `/proc/PID/stat` in a second. It is a constant of the kernel's interface on every
/// architecture that trains.
const TICKS_PER_SECOND: f64 = 100.0;
/// The flag of a process that has begun to exit, whatever its state.
const PF_EXITING: u64 = 0x4;

/// The fields of `/proc/PID/stat` that are used.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stat {
    pub(crate) command: String,
    pub(crate) state: char,
    pub(crate) flags: u64,
    pub(crate) major_faults: u64,
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
    pub(crate) threads: u64,
    /// The start time in seconds after boot.
    pub(crate) started: f64,
}

impl Stat {
    /// Whether the process waits in the kernel and cannot be killed. Lustre waits in the state of
    /// idle kernel threads, so that it does not count as load; a process is in that state for no
    /// other reason.
    pub(crate) fn is_uninterruptible(&self) -> bool {
        matches!(self.state, 'D' | 'I')
    }

    /// Whether the process has exited or begun to exit, which closes its files.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, 'Z' | 'X') || self.flags & PF_EXITING != 0
    }

    /// The start time in clock ticks after boot, which together with the pid identifies a process.
    pub(crate) fn start_ticks(&self) -> u64 {
        (self.started * TICKS_PER_SECOND).round() as u64
    }
}

pub(crate) fn read_stat(roots: &Roots, pid: u32) -> Option<Stat> {
    parse_stat(&roots::read(&roots.proc(pid.to_string()).join("stat"))?)
}

/// Parses the fields after the last parenthesis: the command before it may contain anything.
pub(crate) fn parse_stat(text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(')')?;
    let command = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = tail.split_whitespace().collect();
    // `man proc_pid_stat` counts from 1, and the state is the third field.
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
