//! Reads the errors of PCIe advanced error reporting: one file for each severity, with a line for
//! each kind of error.

use std::collections::BTreeMap;
use std::path::Path;

use crate::roots;

/// The most kinds of errors of one severity; the registers have 32 bits.
const MAX_KINDS: usize = 64;
const MAX_NAME: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// The link repeated the lost data.
    Correctable,
    /// Data was lost, and the link continues.
    Nonfatal,
    /// The link is no longer reliable.
    Fatal,
}

impl Severity {
    pub(super) const ALL: [Self; 3] = [Self::Correctable, Self::Nonfatal, Self::Fatal];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Correctable => "correctable",
            Self::Nonfatal => "nonfatal",
            Self::Fatal => "fatal",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Aer {
    pub(super) total: u64,
    kinds: BTreeMap<String, u64>,
}

impl Aer {
    /// `None` for a device without error reporting.
    pub(super) fn read(dir: &Path, severity: Severity) -> Option<Self> {
        Self::parse(&roots::read(&dir.join(format!("aer_dev_{}", severity.as_str())))?)
    }

    /// Parses lines such as `RxErr 0`. The last line is the total, such as `TOTAL_ERR_COR 0`; older
    /// kernels have none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (mut kinds, mut total) = (BTreeMap::new(), None);
        for line in text.lines().take(MAX_KINDS) {
            let Some((name, count)) = line.trim().rsplit_once(' ') else { continue };
            let (name, Ok(count)) = (name.trim(), count.parse::<u64>()) else { continue };
            let plain = name.len() <= MAX_NAME && name.bytes().all(|b| b.is_ascii_graphic());
            if name.starts_with("TOTAL_ERR") {
                total = Some(count);
            } else if plain && !name.is_empty() {
                kinds.insert(name.to_owned(), count);
            }
        }
        if kinds.is_empty() && total.is_none() {
            return None;
        }
        let sum = || kinds.values().fold(0u64, |sum, n| sum.saturating_add(*n));
        Some(Self { total: total.unwrap_or_else(sum), kinds })
    }

    pub(super) fn happened(&self) -> impl Iterator<Item = (&str, u64)> {
        self.kinds.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (name.as_str(), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "RxErr 0\nBadTLP 3\nBadDLLP 1\nRollover 0\nTimeout 0\nNonFatalErr 0\nCorrIntErr 0\nHeaderOF 0\nTOTAL_ERR_COR 4\n";

    #[test]
    fn the_kernels_lines() {
        let aer = Aer::parse(TEXT).unwrap();
        assert_eq!(aer.total, 4);
        assert_eq!(aer.happened().collect::<Vec<_>>(), [("BadDLLP", 1), ("BadTLP", 3)]);
        assert_eq!(Aer::parse("RxErr 2\nBadTLP 3").unwrap().total, 5, "no total line");
        assert_eq!((Aer::parse(""), Aer::parse("no numbers\nhere at all")), (None, None));
    }

    proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = Aer::parse(&text);
        }

        #[test]
        fn mutated(at in 0usize..TEXT.len(), byte in 0u8..128, cut in 0usize..=TEXT.len()) {
            let mut text = TEXT.as_bytes().to_vec();
            text[at] = byte;
            let text = String::from_utf8(text[..cut].to_vec()).unwrap();
            if let Some(aer) = Aer::parse(&text) {
                prop_assert!(aer.kinds.len() <= MAX_KINDS && aer.kinds.keys().all(|k| !k.contains(char::is_whitespace)));
            }
        }

        #[test]
        fn counts_read_back(counts in prop::collection::btree_map("[A-Za-z]{1,16}", any::<u64>(), 1..20)) {
            let lines: Vec<String> = counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
            prop_assert_eq!(Aer::parse(&lines.join("\n")).unwrap().kinds, counts);
        }
    }
}
