//! A part of the metrics page that is encoded once and reused until its values change.
//!
//! Most samples of a node equal those of a second ago, so their lines are not encoded again.

use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::negotiate::Format;
use super::text_004::to_text_004;

/// One or more whole families: their metadata, which depends on the format, and their samples,
/// which do not.
#[derive(Debug)]
pub struct Block {
    head: Arc<Head>,
    lines: String,
}

/// The metadata of a family in each format. It is shared by successive blocks of the family.
#[derive(Debug)]
pub struct Head([String; Format::COUNT]);

impl Head {
    /// Converts metadata in OpenMetrics to both formats.
    pub fn new(openmetrics: String) -> Self {
        Self([to_text_004(&openmetrics), openmetrics])
    }
}

impl Block {
    /// Creates a block of one family with its samples, without timestamps and exemplars.
    pub fn family(head: Arc<Head>, lines: String) -> Self {
        Self { head, lines }
    }

    /// Creates a block from any OpenMetrics text without `# EOF`.
    pub fn openmetrics(text: String) -> Self {
        Self::family(Arc::new(Head::new(text)), String::new())
    }

    /// The block that ends a page in OpenMetrics.
    pub(super) fn end() -> Self {
        Self::family(Arc::new(Head([String::new(), super::END.to_owned()])), String::new())
    }

    /// The length of the sample lines in bytes.
    pub fn lines_len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn parts(&self, format: Format) -> [&str; 2] {
        [&self.head.0[format as usize], &self.lines]
    }
}

/// Compresses the page of these blocks as one gzip member. The fastest level makes a page half as
/// large again as the best level, in a fifth of the time.
pub(super) fn gzip<'a>(blocks: impl Iterator<Item = &'a Block>, format: Format) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for part in blocks.flat_map(|block| block.parts(format)) {
        // Writing to a vector cannot fail.
        let _ = encoder.write_all(part.as_bytes());
    }
    encoder.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    fn block(lines: &str) -> Block {
        Block::family(Arc::new(Head::new(String::new())), lines.to_owned())
    }

    fn unpack(packed: &[u8]) -> String {
        let mut text = String::new();
        let mut decoder = flate2::bufread::GzDecoder::new(packed);
        decoder.read_to_string(&mut text).unwrap();
        assert!(decoder.into_inner().is_empty(), "one member, and nothing behind it");
        text
    }

    #[test]
    fn a_large_block_and_one_without_repetition_are_packed_whole() {
        let mut noise = 1u64;
        let lines: String = (0..200_000)
            .map(|_| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                char::from(b' ' + ((noise >> 33) % 90) as u8)
            })
            .collect();
        let blocks = [block(&lines), block(&lines)];
        assert_eq!(unpack(&gzip(blocks.iter(), Format::Text004)), format!("{lines}{lines}"));
    }

    proptest! {
        #[test]
        fn what_was_packed_unpacks_as_one(texts in prop::collection::vec("(x_total\\{a=\"[a-z]{0,9}\"\\} 1\n){0,40}", 0..8)) {
            let blocks: Vec<Block> = texts.iter().map(|t| block(t)).collect();
            prop_assert_eq!(unpack(&gzip(blocks.iter(), Format::OpenMetrics)), texts.concat());
        }
    }
}
