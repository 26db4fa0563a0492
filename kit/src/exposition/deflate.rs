//! Deflate (RFC 1951) for metrics: lines of text that repeat the lines before them.
//!
//! Not a general compressor. It looks for one earlier place of each four bytes and writes the fixed
//! codes, which makes the page a little larger than the best that the format can do, at a tenth of
//! the time: nothing is set up or cleared between one text and the next, and a family of three
//! lines costs as little as three lines should. What reads it is any gunzip there is.

/// Places of four bytes that are remembered.
const SLOTS: usize = 1 << 12;
/// How far back a repetition may begin.
const WINDOW: usize = 32 * 1024;
const SHORTEST: usize = 4;
const LONGEST: usize = 258;
/// An empty stored block: what a text ends with, so that the next begins on a byte.
const SYNC: [u8; 4] = [0, 0, 0xff, 0xff];

/// Which code a length has: first length, and how many more bits tell it exactly.
const LENGTHS: [(u16, u8); 29] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
];
const END_OF_BLOCK: usize = 256;

/// A code as it is written, its first bit lowest, and how many bits it has.
#[derive(Clone, Copy)]
struct Code(u32, u32);

/// The fixed codes of literals and lengths.
const CODES: [Code; 288] = {
    let mut codes = [Code(0, 0); 288];
    let mut symbol = 0;
    while symbol < codes.len() {
        let (code, bits) = match symbol {
            0..=143 => (0x30 + symbol, 8),
            144..=255 => (0x190 + symbol - 144, 9),
            256..=279 => (symbol - 256, 7),
            _ => (0xc0 + symbol - 280, 8),
        };
        codes[symbol] = Code((code as u32).reverse_bits() >> (32 - bits), bits);
        symbol += 1;
    }
    codes
};

/// The code of each length from [`SHORTEST`] less one on, with the bits behind it.
const LENGTH_CODES: [Code; LONGEST + 1] = {
    let mut codes = [Code(0, 0); LONGEST + 1];
    let (mut length, mut nth) = (3, 0);
    while length <= LONGEST {
        if nth + 1 < LENGTHS.len() && length >= LENGTHS[nth + 1].0 as usize {
            nth += 1;
        }
        let (first, more) = LENGTHS[nth];
        let Code(code, bits) = CODES[END_OF_BLOCK + 1 + nth];
        codes[length] = Code(code | (length as u32 - first as u32) << bits, bits + more as u32);
        length += 1;
    }
    codes
};

/// Where bytes were last seen. It is kept from text to text, and what it says of those before is
/// known by its number.
#[derive(Debug)]
pub(super) struct Deflater {
    seen: Vec<u32>,
    /// Number of the first byte of this text.
    base: u32,
}

impl Default for Deflater {
    fn default() -> Self {
        Self { seen: Vec::new(), base: 1 }
    }
}

impl Deflater {
    /// These parts as one text: blocks that refer to nothing before them, and end on a byte.
    pub(super) fn deflate(&mut self, parts: [&str; 2]) -> Vec<u8> {
        let text = parts.concat();
        let text = text.as_bytes();
        if text.is_empty() {
            return Vec::new();
        }
        self.make_room(text.len());
        let mut bits = Bits { out: Vec::with_capacity(text.len() / 6 + 64), held: 0, count: 0 };
        bits.put(Code(0b010, 3));
        let mut at = 0;
        while at < text.len() {
            if let Some((from, length)) = self.repetition(text, at) {
                bits.put(LENGTH_CODES[length]);
                bits.put(distance(at - from));
                for inside in at + 1..at + length {
                    self.look(text, inside);
                }
                at += length;
            } else {
                bits.put(CODES[usize::from(text[at])]);
                at += 1;
            }
        }
        self.base += text.len() as u32;
        bits.put(CODES[END_OF_BLOCK]);
        let mut out = bits.finish();
        out.shrink_to_fit();
        out
    }

    fn make_room(&mut self, length: usize) {
        // Pages are far below 4 GiB; what was seen of earlier ones is forgotten before the numbers
        // run out.
        if self.seen.is_empty() || u32::try_from(length).is_ok_and(|l| self.base.checked_add(l).is_none()) {
            self.seen = vec![0; SLOTS];
            self.base = 1;
        }
    }

    /// Where the four bytes here were before; they are here from now on.
    fn look(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let word = u32::from_le_bytes(*text.get(at..)?.first_chunk()?);
        // The upper bits of the product depend on all of the word.
        let slot = &mut self.seen[(word.wrapping_mul(0x9e37_79b1) >> 20) as usize % SLOTS];
        let before = std::mem::replace(slot, self.base + at as u32);
        before.checked_sub(self.base).map(|at| at as usize)
    }

    /// What is here and was before: where, and how much of it.
    fn repetition(&mut self, text: &[u8], at: usize) -> Option<(usize, usize)> {
        let from = self.look(text, at).filter(|from| at - from <= WINDOW)?;
        let length = common(&text[from..], &text[at..]);
        (length >= SHORTEST).then_some((from, length))
    }
}

/// How many bytes two texts begin with that are the same.
fn common(a: &[u8], b: &[u8]) -> usize {
    let most = a.len().min(b.len()).min(LONGEST);
    let (a, b) = (&a[..most], &b[..most]);
    let mut same = 0;
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return same + (differ.trailing_zeros() / 8) as usize;
        }
        same += 8;
    }
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

/// Two codes for each power of two, and the rest as it is.
fn distance(distance: usize) -> Code {
    let less = distance as u32 - 1;
    if less < 4 {
        return Code(less.reverse_bits() >> 27, 5);
    }
    let more = less.ilog2() - 1;
    let code = 2 * more + (less >> more);
    Code(code.reverse_bits() >> 27 | (less & ((1 << more) - 1)) << 5, 5 + more)
}

/// Bytes that are written bit by bit, the lowest first.
struct Bits {
    out: Vec<u8>,
    held: u64,
    count: u32,
}

impl Bits {
    fn put(&mut self, Code(code, bits): Code) {
        self.held |= u64::from(code) << self.count;
        self.count += bits;
        if self.count >= 32 {
            self.out.extend_from_slice(&(self.held as u32).to_le_bytes());
            self.held >>= 32;
            self.count -= 32;
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.put(Code(0, 3));
        let bytes = self.count.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.held.to_le_bytes()[..bytes]);
        self.out.extend_from_slice(&SYNC);
        self.out
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    /// As every scraper does.
    fn inflated(deflated: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        let whole = [deflated, &[3, 0]].concat();
        flate2::read::DeflateDecoder::new(&whole[..]).read_to_end(&mut text).unwrap();
        text
    }

    #[test]
    fn every_length_and_every_distance() {
        let mut deflater = Deflater::default();
        let mut noise = 1u32;
        let mut letter = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'!' + (noise >> 24) as u8 % 90)
        };
        for gap in [0, 1, 3, 5, 30, 200, 1000, 4000, 20_000, WINDOW - 300, WINDOW, 2 * WINDOW] {
            let between: String = (0..gap).map(|_| letter()).collect();
            for length in (1..40).chain(250..270) {
                let repeated: String = (0..length).map(|_| letter()).collect();
                let text = format!("{repeated}{between}{repeated}{repeated}");
                assert!(inflated(&deflater.deflate([&text, ""])) == text.as_bytes(), "{gap} {length}");
            }
        }
    }

    #[test]
    fn numbers_that_run_out_begin_anew() {
        let mut deflater = Deflater::default();
        let text = "gpu_power_watts 1\\n".repeat(40);
        for base in [u32::MAX - 2000, u32::MAX - 720, u32::MAX - 700, u32::MAX] {
            deflater.deflate([&text, ""]);
            deflater.base = base;
            for _ in 0..3 {
                assert_eq!(inflated(&deflater.deflate([&text, &text])), [text.as_bytes(); 2].concat());
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_goes_in_comes_out(texts in prop::collection::vec(("[ab]{0,600}|.{0,40}", "(x_total\\{a=\"[a-c]\"\\} [0-9]{1,9}\n){0,40}"), 1..6)) {
            let mut deflater = Deflater::default();
            for (head, lines) in &texts {
                prop_assert_eq!(inflated(&deflater.deflate([head, lines])), [head.as_bytes(), lines.as_bytes()].concat());
            }
        }
    }
}
