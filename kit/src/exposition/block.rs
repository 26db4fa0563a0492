//! A part of a page that is encoded once and stands on every page until its values change.
//!
//! Most of what a node says is what it said a second ago. A page made of blocks costs only what has
//! changed, compressed too: each block is deflated by itself, such that the results put one after
//! the other are one stream.

use std::sync::{Arc, OnceLock};

use flate2::Crc;

use super::deflate::Deflater;
use super::negotiate::Format;
use super::text_004::to_text_004;

/// Without a name or a time; the operating system is unknown.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// A last block with nothing in it.
const DEFLATE_END: [u8; 2] = [3, 0];

/// Whole families, usually one: what is said about them, which differs between the formats, and
/// their samples, which do not.
#[derive(Debug)]
pub struct Block {
    head: Arc<Head>,
    lines: String,
    deflated: [OnceLock<Vec<u8>>; Format::COUNT],
}

/// The metadata of a family in each format; it outlives the samples.
#[derive(Debug)]
pub struct Head([String; Format::COUNT]);

impl Head {
    /// Of the metadata in OpenMetrics.
    pub fn new(openmetrics: String) -> Self {
        Self([to_text_004(&openmetrics), openmetrics])
    }
}

impl Block {
    /// One family and its samples, without time stamps and exemplars.
    pub fn family(head: Arc<Head>, lines: String) -> Self {
        Self { head, lines, deflated: Default::default() }
    }

    /// Anything in OpenMetrics, without the end of a page.
    pub fn openmetrics(text: String) -> Self {
        Self::family(Arc::new(Head::new(text)), String::new())
    }

    /// What a page in OpenMetrics ends with.
    pub(super) fn end() -> Self {
        Self::family(Arc::new(Head([String::new(), super::END.to_owned()])), String::new())
    }

    /// How many bytes its samples take.
    pub fn lines_len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn parts(&self, format: Format) -> [&str; 2] {
        [&self.head.0[format as usize], &self.lines]
    }

    /// Ends on a byte, and refers to nothing before it.
    fn deflated(&self, format: Format, deflater: &mut Deflater) -> &[u8] {
        self.deflated[format as usize].get_or_init(|| deflater.deflate(self.parts(format)))
    }
}

/// The page of these blocks as one member of gzip.
pub(super) fn gzip<'a>(blocks: impl Iterator<Item = &'a Block>, format: Format) -> Vec<u8> {
    let (mut sum, mut deflater) = (Crc::new(), Deflater::default());
    let mut parts = vec![&GZIP_HEADER[..]];
    for block in blocks {
        for part in block.parts(format) {
            sum.update(part.as_bytes());
        }
        parts.push(block.deflated(format, &mut deflater));
    }
    parts.push(&DEFLATE_END);
    let mut out = Vec::with_capacity(parts.iter().map(|part| part.len()).sum::<usize>() + 8);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend(sum.sum().to_le_bytes());
    out.extend(sum.amount().to_le_bytes());
    out
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
        fn what_was_packed_apart_unpacks_as_one(texts in prop::collection::vec("(x_total\\{a=\"[a-z]{0,9}\"\\} 1\n){0,40}", 0..8)) {
            let blocks: Vec<Block> = texts.iter().map(|t| block(t)).collect();
            for _ in 0..2 {
                prop_assert_eq!(unpack(&gzip(blocks.iter(), Format::OpenMetrics)), texts.concat());
            }
        }
    }
}
