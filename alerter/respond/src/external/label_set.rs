//! The labels or the annotations of an alert, in as little memory as possible, and their limits.

use core::fmt;
use core::ops::Range;
use std::borrow::Cow;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stepwatch_wire::words;

use crate::matcher::Labels;

/// The number of pairs for which room is allocated at first.
const PAIRS_USUAL: usize = 12;

/// The limits of what is kept of an alert. What is beyond them is cut (`truncate.rs`); the alert is
/// accepted all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most labels, and the most annotations.
    pub pairs: usize,
    /// Characters of a name, and of a label's value.
    pub text: usize,
    /// Characters of an annotation.
    pub annotation: usize,
}

/// Names and values in the order of the names, each once, none empty.
///
/// All parts share one allocation: alerts come by the thousand, and with one allocation a part the
/// allocator would take most of the time and the memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LabelSet {
    text: Box<str>,
    /// The end of each name and each value, in turn. A request has at most a few megabytes.
    ends: Box<[u32]>,
}

/// A text of a document, borrowed if possible.
struct Text<'de>(Cow<'de, str>);

impl Default for Limits {
    fn default() -> Self {
        Self { pairs: 64, text: 1024, annotation: 4096 }
    }
}

impl LabelSet {
    pub fn get(&self, name: &str) -> Option<&str> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.part(2 * middle).cmp(name) {
                core::cmp::Ordering::Equal => return Some(self.part(2 * middle + 1)),
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.len()).map(|n| (self.part(2 * n), self.part(2 * n + 1)))
    }

    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.ends)
    }

    pub fn to_labels(&self) -> Labels {
        self.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Replaces values that are not fit to be shown. Nearly always there are none, so all are
    /// checked at once first.
    pub(super) fn with(self, words: impl Fn(&str) -> Cow<'_, str>) -> Self {
        if matches!(words(&self.text), Cow::Borrowed(_)) {
            return self;
        }
        self.iter().map(|(name, value)| (name.into(), words(value).into())).collect()
    }

    fn part(&self, n: usize) -> &str {
        self.text.get(self.place(n)).unwrap_or_default()
    }

    fn place(&self, n: usize) -> Range<usize> {
        let end = |n: usize| self.ends.get(n).map_or(0, |end| *end as usize);
        n.checked_sub(1).map_or(0, end)..end(n)
    }

    /// If a name occurs twice, the last value counts; an empty value means no label.
    fn of(mut pairs: Vec<(Cow<'_, str>, Cow<'_, str>)>) -> Self {
        if !pairs.is_sorted_by(|a, b| a.0 < b.0) {
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            pairs.reverse();
            pairs.dedup_by(|a, b| a.0 == b.0);
            pairs.reverse();
        }
        pairs.retain(|(_, value)| !value.is_empty());
        let size = pairs.iter().map(|(name, value)| name.len() + value.len()).sum();
        let (mut text, mut ends) = (String::with_capacity(size), Vec::with_capacity(2 * pairs.len()));
        for part in pairs.iter().flat_map(|(name, value)| [name, value]) {
            text.push_str(part);
            ends.push(text.len() as u32);
        }
        Self { text: text.into(), ends: ends.into() }
    }
}

impl fmt::Debug for LabelSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl FromIterator<(Box<str>, Box<str>)> for LabelSet {
    fn from_iter<I: IntoIterator<Item = (Box<str>, Box<str>)>>(pairs: I) -> Self {
        let owned = |text: Box<str>| Cow::Owned(text.into());
        Self::of(pairs.into_iter().map(|(name, value)| (owned(name), owned(value))).collect())
    }
}

pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && words::line(name) == name
}

impl Serialize for LabelSet {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.len()))?;
        for (name, value) in self.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for LabelSet {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = LabelSet;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LabelSet, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(PAIRS_USUAL));
                while let Some((name, value)) = map.next_entry::<Text<'de>, Text<'de>>()? {
                    pairs.push((name.0, value.0));
                }
                Ok(LabelSet::of(pairs))
            }
        }

        d.deserialize_map(Pairs)
    }
}

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct AsItStands;

        impl<'de> Visitor<'de> for AsItStands {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        d.deserialize_str(AsItStands)
    }
}
