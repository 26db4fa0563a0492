//! How the allocator of the C library spreads memory over threads.

/// Lets all threads allocate from this many heaps. The default is eight a core: a program of many threads that do little each
/// then holds what is free once for every one of them. To be called before there are threads.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no safe wrapper of the call is among the dependencies")]
pub fn share(heaps: u8) {
    // SAFETY: sets a number of the allocator; that it is called early is a matter of effect, not of safety.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, libc::c_int::from(heaps)) };
}

/// Other C libraries have one heap.
#[cfg(not(target_env = "gnu"))]
pub fn share(_: u8) {}
