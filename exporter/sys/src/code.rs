//! Releases memory of the program's own code.

use std::ffi::{c_int, c_void};

/// Releases the pages of code and constants used so far, because the start uses many that are never
/// used again. Pages that are used again come from the kernel's cache of the file, sixteen at a
/// time.
///
/// A debugger has to set its breakpoints again afterwards.
pub fn let_go() {
    let mut segments: Vec<Segment> = Vec::new();
    #[expect(unsafe_code, reason = "no safe wrapper of the call is among the dependencies")]
    // SAFETY: the function is called before this call returns, with the pointer given here, which
    // is to a local vector.
    let _ = unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut segments).cast()) };
    for Segment { start, length } in segments {
        #[expect(unsafe_code, reason = "no safe wrapper of the call is among the dependencies")]
        // SAFETY: the range is whole pages of a mapping of a file that nobody may write to, so
        // later reads return the same bytes.
        let _ = unsafe { libc::madvise(start as *mut c_void, length, libc::MADV_DONTNEED) };
    }
}

/// A range of whole pages.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    start: usize,
    length: usize,
}

impl Segment {
    fn new(start: usize, bytes: usize) -> Self {
        const LARGEST_PAGE: usize = 64 << 10;
        let (first, end) =
            (start.next_multiple_of(LARGEST_PAGE), (start + bytes) / LARGEST_PAGE * LARGEST_PAGE);
        Self { start: first, length: end.saturating_sub(first) }
    }
}

/// Collects the read-only segments of the program. The loader lists the program first; the
/// libraries after it are shared with other processes.
#[expect(unsafe_code, reason = "called by the C library with what only it can vouch for")]
unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: libc::size_t, found: *mut c_void) -> c_int {
    // SAFETY: this is the pointer given to the call above; nothing else uses its vector meanwhile.
    let found = unsafe { &mut *found.cast::<Vec<Segment>>() };
    // SAFETY: the C library passes a whole entry that is valid for as long as this function runs.
    let info = unsafe { &*info };
    // SAFETY: the address has this many headers, for as long as the program is loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let fixed = headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W == 0);
    found.extend(fixed.map(|h| Segment::new((info.dlpi_addr + h.p_vaddr) as usize, h.p_memsz as usize)));
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages() {
        assert_eq!(Segment::new(0x1_0000, 0x2_0000), Segment { start: 0x1_0000, length: 0x2_0000 });
        assert_eq!(Segment::new(0x1_0001, 0x2_ffff), Segment { start: 0x2_0000, length: 0x2_0000 });
        assert_eq!(Segment::new(0x1_0001, 0x100).length, 0);
    }

    #[test]
    fn the_program_goes_on_with_less() {
        let mut numbers: Vec<u64> = (0..1000).rev().collect();
        for _ in 0..3 {
            let_go();
            numbers.sort_unstable();
            assert_eq!(format!("{:?}", &numbers[..3]), "[0, 1, 2]");
            numbers.reverse();
        }
    }
}
