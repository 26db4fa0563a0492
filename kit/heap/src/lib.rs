//! How the allocator of the C library spreads memory over threads.
//!
//! A program that is asked by many at once reads requests on many threads. By default each of them
//! keeps what the largest request took, so that what one attacker sends counts many times.

/// What a heap keeps of what is free at its end, in bytes: more than the page of a large node takes
/// while it is made.
#[cfg(target_env = "gnu")]
const SPARE: libc::c_int = 1 << 20;

/// Lets all threads allocate from this many heaps. The default is eight a core: a program of many
/// threads that do little each then holds what is free once for every one of them. And lets each
/// heap keep a megabyte of what is free, where the default is to give it back, and to fetch again
/// what a thread takes and frees every second. To be called before there are threads.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no safe wrapper of the call is among the dependencies")]
pub fn share(heaps: u8) {
    let settings = [
        (libc::M_ARENA_MAX, libc::c_int::from(heaps)),
        (libc::M_TRIM_THRESHOLD, SPARE),
        // Code that sets the other one has to set this one too.
        (libc::M_MMAP_THRESHOLD, SPARE),
    ];
    for (setting, value) in settings {
        // SAFETY: sets a number of the allocator; that it is called early is a matter of effect,
        // not of safety.
        let _ = unsafe { libc::mallopt(setting, value) };
    }
}

/// Gives the pages of the heaps that are free back to the kernel.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no safe wrapper of the call is among the dependencies")]
pub fn trim() {
    // SAFETY: takes the allocator's own locks, and touches nothing that is allocated.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Other C libraries have one heap.
#[cfg(not(target_env = "gnu"))]
pub fn share(_: u8) {}

/// And give back what they do not need by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
