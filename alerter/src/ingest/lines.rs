//! Splits a stream of bytes into lines with a limit on their length. A peer that never sends a
//! newline costs a fixed amount of memory and the line in progress.

use memchr::memchr;

/// A line beyond the limit. It is reported once, and its rest is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

#[derive(Debug)]
pub(crate) struct LineSplitter {
    limit: usize,
    partial: Vec<u8>,
    /// Whether the current line was already reported as too long.
    skipping: bool,
}

impl LineSplitter {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, partial: Vec::new(), skipping: false }
    }

    /// Passes on every line that ends in `chunk`, without its newline, and keeps the rest.
    pub(crate) fn feed(&mut self, mut chunk: &[u8], mut take: impl FnMut(Result<&[u8], TooLong>)) {
        while let Some(at) = memchr(b'\n', chunk) {
            let head = &chunk[..at];
            chunk = &chunk[at + 1..];
            if core::mem::take(&mut self.skipping) {
                continue;
            }
            if self.partial.len() + head.len() > self.limit {
                take(Err(TooLong));
            } else if self.partial.is_empty() {
                take(Ok(head));
            } else {
                self.partial.extend_from_slice(head);
                take(Ok(&self.partial));
            }
            self.partial.clear();
        }
        if self.skipping {
            return;
        }
        if self.partial.len() + chunk.len() > self.limit {
            self.partial.clear();
            self.skipping = true;
            take(Err(TooLong));
        } else {
            self.partial.extend_from_slice(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(limit: usize, chunks: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let mut splitter = LineSplitter::new(limit);
        let mut lines = Vec::new();
        for chunk in chunks {
            splitter.feed(chunk, |line| lines.push(line.ok().map(<[u8]>::to_vec)));
            assert!(splitter.partial.len() <= limit);
        }
        lines
    }

    #[test]
    fn lines_cross_chunks_and_long_ones_are_reported_once() {
        let lines = split(5, &[b"ab\nc", b"d\n", b"123456", b"789\nok\n", b"partial"]);
        let want: [Option<&[u8]>; 5] = [Some(b"ab"), Some(b"cd"), None, Some(b"ok"), None];
        assert_eq!(lines, want.map(|l| l.map(<[u8]>::to_vec)));
    }

    proptest! {
        /// The lines are the same for any segmentation of the bytes.
        #[test]
        fn cutting_does_not_matter(bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
                                   at in 0usize..200, limit in 1usize..40) {
            let at = at.min(bytes.len());
            prop_assert_eq!(split(limit, &[&bytes]), split(limit, &[&bytes[..at], &bytes[at..]]));
        }
    }
}
