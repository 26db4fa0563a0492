//! The state of the kernel's clock, by `adjtimex(2)`. The call only reads here: nothing is
//! adjusted, and no privilege is needed.

use std::io;

/// The state of the kernel's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Clock {
    /// Whether a program disciplines the clock; the kernel resets this after some hours without
    /// one.
    pub synced: bool,
    /// The correction that is still to be made, in seconds.
    pub offset: f64,
    /// The upper bound of the error, in seconds. It grows up to sixteen seconds while the clock is
    /// not disciplined.
    pub max_error: f64,
    pub estimated_error: f64,
    /// The correction of the rate: 1.000 001 for a clock that is a millionth too slow by itself.
    pub frequency_ratio: f64,
    /// TAI minus UTC in seconds, if it was set in the kernel.
    pub tai_offset: Option<i64>,
}

/// The state of a clock that is not disciplined, as the kernel returns it.
const TIME_ERROR: i32 = 5;
/// The unit of the frequency: parts per million with a fraction of 16 bits.
const FREQUENCY_UNIT: f64 = 65_536_000_000.0;

/// Reads the state of the clock.
pub fn read() -> io::Result<Clock> {
    #[expect(
        unsafe_code,
        reason = "a structure of plain numbers, whose all-zero value asks for nothing to be changed"
    )]
    // SAFETY: `timex` consists of integers and padding, for which all bits zero is a value.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    #[expect(unsafe_code, reason = "no safe wrapper of the call is among the dependencies")]
    // SAFETY: the pointer is to a whole local `timex`, which the kernel fills in. `modes` is 0, so
    // the call changes nothing.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(clock(&timex, state))
}

fn clock(timex: &libc::timex, state: i32) -> Clock {
    let micro = |v: libc::c_long| v as f64 * 1e-6;
    let nanoseconds = timex.status & libc::STA_NANO != 0;
    Clock {
        synced: timex.status & libc::STA_UNSYNC == 0 && state != TIME_ERROR,
        offset: timex.offset as f64 * if nanoseconds { 1e-9 } else { 1e-6 },
        max_error: micro(timex.maxerror),
        estimated_error: micro(timex.esterror),
        frequency_ratio: 1.0 + timex.freq as f64 / FREQUENCY_UNIT,
        tai_offset: Some(i64::from(timex.tai)).filter(|tai| *tai != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers() {
        let clock = read().unwrap();
        assert!(clock.max_error >= 0.0 && clock.max_error < 3600.0, "{clock:?}");
        assert!((clock.frequency_ratio - 1.0).abs() < 0.01, "{clock:?}");
    }

    #[test]
    fn units() {
        #[expect(unsafe_code, reason = "as above")]
        // SAFETY: as above.
        let mut timex: libc::timex = unsafe { std::mem::zeroed() };
        timex.offset = -1_500_000;
        timex.maxerror = 250_000;
        timex.esterror = 16;
        timex.freq = 65_536 * 10;
        timex.tai = 37;
        timex.status = libc::STA_NANO;
        let read = clock(&timex, 0);
        assert!((read.offset + 0.0015).abs() < 1e-12 && (read.max_error - 0.25).abs() < 1e-12, "{read:?}");
        assert!((read.frequency_ratio - 1.000_01).abs() < 1e-12 && read.synced, "{read:?}");
        assert_eq!((read.estimated_error, read.tai_offset), (16.0 * 1e-6, Some(37)));
        timex.status = 0;
        assert!((clock(&timex, 0).offset + 1.5).abs() < 1e-12, "microseconds");
        assert!(!clock(&timex, TIME_ERROR).synced, "the kernel's own verdict");
        timex.status = libc::STA_UNSYNC;
        assert!(!clock(&timex, 0).synced);
    }
}
