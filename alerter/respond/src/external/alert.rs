//! One alert, as small as it can be kept: tens of thousands may fire at once.

use core::fmt;
use core::ops::Range;
use std::borrow::Cow;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stepwatch_wire::words;

use super::fit;
use crate::matcher::Labels;
use stepwatch_model::{Ts, fingerprint, hash_byte, hash_label};

/// Labels that one has, for which room is made at first.
const PAIRS_USUAL: usize = 12;

/// What is kept of an alert; what is beyond is cut (`fit.rs`), and the alert taken all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Labels, and annotations.
    pub pairs: usize,
    /// Characters of a name, and of a label's value.
    pub text: usize,
    /// Characters of an annotation.
    pub annotation: usize,
}

/// Names and values in the order of the names, each once, none empty.
///
/// One text, and where its parts end: alerts come by the thousand, and of a text for each part most
/// of the time and the memory goes to the allocator.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LabelSet {
    text: Box<str>,
    /// Of each name and each value, in turn. A request has few megabytes.
    ends: Box<[u32]>,
}

/// A text of a document, as it stands there if it can.
struct Text<'de>(Cow<'de, str>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// Of its labels: what makes it this alert and no other.
    pub fingerprint: u64,
    pub labels: LabelSet,
    pub annotations: LabelSet,
    /// Of its labels, those beyond which its reporter has no say: `run` and `team`, with their
    /// values. Empty of one without limits.
    pub within: LabelSet,
    /// The name of the token that posted it, where that is limited; empty otherwise.
    pub sender: Box<str>,
    pub starts_at: Ts,
    pub generator_url: Box<str>,
}

/// Why one is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AlertError {
    #[error("at least one label pair required")]
    NoLabels,
    #[error("start time must be before end time")]
    EndsBeforeStart,
    #[error("invalid label set: {0} is not a name")]
    BadName(String),
}

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

    fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.ends)
    }

    pub fn to_labels(&self) -> Labels {
        self.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// With values that are fit to be shown. Nearly always they are, which is seen of all of them
    /// at once.
    fn with(self, words: impl Fn(&str) -> Cow<'_, str>) -> Self {
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

    /// Of a name that comes twice the last value counts; an empty value is none.
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

impl Alert {
    /// Checks what was posted, and cuts what is too long.
    pub fn new(
        labels: LabelSet,
        annotations: LabelSet,
        starts_at: Ts,
        generator_url: impl Into<Box<str>>,
        limits: &Limits,
    ) -> Result<Self, AlertError> {
        Self::fitted(labels, annotations, starts_at, generator_url, limits).map(|(alert, _)| alert)
    }

    /// The same, and how many of its texts were cut or left out.
    pub fn fitted(
        labels: LabelSet,
        annotations: LabelSet,
        starts_at: Ts,
        generator_url: impl Into<Box<str>>,
        limits: &Limits,
    ) -> Result<(Self, u64), AlertError> {
        if labels.is_empty() {
            return Err(AlertError::NoLabels);
        }
        if let Some((name, _)) = labels.iter().find(|(name, _)| !is_name(name)) {
            return Err(AlertError::BadName(format!("{:?}", name.chars().take(40).collect::<String>())));
        }
        let (labels, annotations) = (labels.with(words::line), annotations.with(words::clean));
        if labels.is_empty() {
            return Err(AlertError::NoLabels);
        }
        let (labels, labels_cut) = fit::labels(labels, limits);
        let (annotations, annotations_cut) = fit::annotations(annotations, limits);
        let mut generator_url = generator_url.into();
        // Half an address leads nowhere.
        let address =
            generator_url.len() <= limits.annotation && words::line(&generator_url) == *generator_url;
        if !address {
            generator_url = Box::default();
        }
        let alert = Self {
            fingerprint: fingerprint(labels.iter()),
            labels,
            annotations,
            within: LabelSet::default(),
            sender: Box::default(),
            starts_at,
            generator_url,
        };
        Ok((alert, labels_cut + annotations_cut + u64::from(!address)))
    }

    /// Posted with a token that is limited to these labels. It is another alert than the one with
    /// the same labels that is posted without limits, so that neither ends or prolongs the other.
    #[must_use]
    pub fn within(mut self, within: LabelSet) -> Self {
        self.fingerprint = fingerprint_within(&self.labels, &within);
        self.within = within;
        self
    }

    /// Posted with a limited token of this name.
    #[must_use]
    pub fn sent_by(self, token: &str) -> Self {
        Self { sender: token.into(), ..self }
    }

    /// What makes it another than those beside it: its labels but for the severity, which is only
    /// how bad the same condition is.
    pub(super) fn identity(&self) -> u64 {
        let labels = self.labels.iter().filter(|(name, _)| *name != "severity");
        self.within.iter().fold(hash_byte(fingerprint(labels), 254), hash_label)
    }

    /// What its texts take.
    pub(super) fn bytes(&self) -> usize {
        let sets = [&self.labels, &self.annotations, &self.within];
        sets.map(LabelSet::bytes).iter().sum::<usize>() + self.generator_url.len() + self.sender.len()
    }

    /// The name that its rule gave it.
    pub fn name(&self) -> &str {
        self.labels.get("alertname").unwrap_or("alert")
    }

    /// What its rule says of it, in one sentence if there is one.
    pub fn text(&self) -> Option<&str> {
        ["summary", "description", "message"].iter().find_map(|key| self.annotations.get(key))
    }

    /// What its rule says beyond [`Self::text`].
    pub fn description(&self) -> Option<&str> {
        let said = self.text();
        ["description", "message"]
            .iter()
            .find_map(|key| self.annotations.get(key))
            .filter(|text| Some(*text) != said)
    }

    /// Where its rule says what to do.
    pub fn runbook(&self) -> Option<&str> {
        let named = ["runbook_url", "runbook"].iter().filter_map(|key| self.annotations.get(key));
        let is_web = |url: &&str| url.starts_with("https://") || url.starts_with("http://");
        named.map(str::trim).find(is_web)
    }

    /// When it began is not asked: a sender that restarts does not know.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.annotations == other.annotations
            && self.generator_url == other.generator_url
            && self.starts_at <= other.starts_at
    }
}

pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && words::line(name) == name
}

/// The fingerprint of an alert that is posted within these limits.
pub fn fingerprint_within(labels: &LabelSet, within: &LabelSet) -> u64 {
    let plain = fingerprint(labels.iter());
    // A byte that is in no text: no other labels come to the same.
    if within.is_empty() { plain } else { within.iter().fold(hash_byte(plain, 254), hash_label) }
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
