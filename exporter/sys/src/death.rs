//! A program that the kernel ends together with the thread that started it.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Lets the kernel send a signal to the program when the thread that starts it ends, however that
/// happens.
pub fn with_parent(command: &mut Command, signal: Signal) {
    let parent = getpid();
    let before = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(signal))?;
        // It may have died before the call.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    #[expect(unsafe_code, reason = "the call has to be made in the new process")]
    // SAFETY: the closure makes system calls only; it neither allocates nor takes a lock.
    let _: &mut Command = unsafe { command.pre_exec(before) };
}
