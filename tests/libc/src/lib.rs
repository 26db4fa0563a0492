//! The machine under a program, as a test wants it: preloaded (`LD_PRELOAD`), it shifts what the
//! program reads as the time of day, from one reading to the next, as an operator or NTP does, and
//! lets `fsync(2)` hang, and `read(2)` of a database too, as a disk or its controller does that
//! answers no more.
//!
//! The file that `STEPWATCH_FAKE_LIBC` names holds two native `i64` and is mapped, so that writing
//! to it reaches a program that runs: by how many seconds the wall clock is ahead, and whether the
//! disk hangs (1: nothing is written to the end; 2: nothing is read either). Only the wall is
//! shifted: the monotonic clock is the kernel's, as it is when a real clock is set.
//!
//! It must stand in the C library's place and answer by C's rules, which is why it is `unsafe` and
//! a crate of its own; the kernel is asked by its number, so that nothing here can call itself.
//! Nothing links to it but the dynamic loader.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use libc::{c_int, c_long, c_void, clockid_t, off64_t, size_t, ssize_t, time_t, timespec, timeval};

/// Names the file. Without it everything is as it is.
const FILE: &str = "STEPWATCH_FAKE_LIBC";
/// How much the disk hangs if nothing can be written to the end, and if nothing can be read either.
const WRITES: i64 = 1;
const READS: i64 = 2;
/// Between two looks of a thread that waits for a disk that hangs.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What the file holds.
#[repr(C)]
struct Machine {
    ahead: AtomicI64,
    hangs: AtomicI64,
}

/// For the life of the process.
fn mapped() -> Option<&'static Machine> {
    let file = File::open(std::env::var_os(FILE)?).ok()?;
    let size = size_of::<Machine>();
    if file.metadata().ok()?.len() < size as u64 {
        return None;
    }
    // SAFETY: a new mapping of a file that is open and long enough; the kernel chooses where.
    let at =
        unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    // SAFETY: it was mapped just now, is aligned to a page, is never unmapped, and each number is
    // only ever read whole.
    (at != libc::MAP_FAILED).then(|| unsafe { &*at.cast::<Machine>() })
}

fn machine() -> Option<&'static Machine> {
    static MACHINE: OnceLock<Option<&'static Machine>> = OnceLock::new();
    *MACHINE.get_or_init(mapped)
}

fn shift() -> i64 {
    machine().map_or(0, |machine| machine.ahead.load(Ordering::Relaxed))
}

/// Waits while the disk hangs so much or more.
fn wait_for_the_disk(hangs: i64) {
    while machine().is_some_and(|machine| machine.hangs.load(Ordering::Relaxed) >= hangs) {
        std::thread::park_timeout(LOOK_AGAIN);
    }
}

/// A database and its log, whose names contain `.db`: sockets and pipes are read through the same
/// calls and never hang.
fn wait_to_read(file: c_int) {
    let hangs = machine().is_some_and(|machine| machine.hangs.load(Ordering::Relaxed) >= READS);
    if hangs
        && std::fs::read_link(format!("/proc/self/fd/{file}"))
            .is_ok_and(|path| path.to_string_lossy().contains(".db"))
    {
        wait_for_the_disk(READS);
    }
}

/// # Safety
/// As `read(2)`: `to` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(file: c_int, to: *mut c_void, size: size_t) -> ssize_t {
    wait_to_read(file);
    // SAFETY: the arguments are the caller's, and the kernel checks them.
    unsafe { libc::syscall(libc::SYS_read, c_long::from(file), to, size) as ssize_t }
}

/// # Safety
/// As `pread(2)`: `to` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread64(file: c_int, to: *mut c_void, size: size_t, at: off64_t) -> ssize_t {
    wait_to_read(file);
    // SAFETY: the arguments are the caller's, and the kernel checks them.
    unsafe { libc::syscall(libc::SYS_pread64, c_long::from(file), to, size, at) as ssize_t }
}

/// # Safety
/// As `pread(2)`: `to` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(file: c_int, to: *mut c_void, size: size_t, at: off64_t) -> ssize_t {
    // SAFETY: the same call.
    unsafe { pread64(file, to, size, at) }
}

/// # Safety
/// As `fsync(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(file: c_int) -> c_int {
    wait_for_the_disk(WRITES);
    // SAFETY: the argument is the caller's, and the kernel checks it.
    unsafe { libc::syscall(libc::SYS_fsync, c_long::from(file)) as c_int }
}

/// # Safety
/// As `fdatasync(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(file: c_int) -> c_int {
    wait_for_the_disk(WRITES);
    // SAFETY: the argument is the caller's, and the kernel checks it.
    unsafe { libc::syscall(libc::SYS_fdatasync, c_long::from(file)) as c_int }
}

/// The kernel's time, with the wall clock shifted.
///
/// # Safety
/// As `clock_gettime(2)`: `at` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, at: *mut timespec) -> c_int {
    // SAFETY: the arguments are the caller's, and the kernel checks them.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), at) } as c_int;
    if answer == 0 && matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) {
        // SAFETY: the kernel has just written there.
        unsafe { (*at).tv_sec += shift() };
    }
    answer
}

/// # Safety
/// As `gettimeofday(2)`: `at` and `zone` are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(at: *mut timeval, zone: *mut c_void) -> c_int {
    // SAFETY: the arguments are the caller's, and the kernel checks them.
    let answer = unsafe { libc::syscall(libc::SYS_gettimeofday, at, zone) } as c_int;
    if answer == 0 && !at.is_null() {
        // SAFETY: the kernel has just written there.
        unsafe { (*at).tv_sec += shift() };
    }
    answer
}

/// # Safety
/// As `time(2)`: `at` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(at: *mut time_t) -> time_t {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is ours.
    unsafe { clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    if !at.is_null() {
        // SAFETY: the caller guarantees that it may be written to.
        unsafe { *at = now.tv_sec };
    }
    now.tv_sec
}
