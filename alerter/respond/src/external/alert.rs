//! One alert, in as little memory as possible, because tens of thousands may fire at once.

use stepwatch_wire::words;

use super::label_set::{LabelSet, Limits, is_name};
use super::truncate;
use stepwatch_model::{Ts, fingerprint, hash_byte, hash_label};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// The hash of its labels, which identifies it.
    pub fingerprint: u64,
    pub labels: LabelSet,
    pub annotations: LabelSet,
    /// The labels `run` and `team` to which its sender's token is limited, with their values. Empty
    /// without a limit.
    pub within: LabelSet,
    /// The name of the token that posted it, if that token is limited; empty otherwise.
    pub sender: Box<str>,
    pub starts_at: Ts,
    pub generator_url: Box<str>,
}

/// Why an alert is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AlertError {
    #[error("at least one label pair required")]
    NoLabels,
    #[error("start time must be before end time")]
    EndsBeforeStart,
    #[error("invalid label set: {0} is not a name")]
    BadName(String),
}

impl Alert {
    /// Checks a posted alert, and cuts texts that are too long.
    pub fn new(
        labels: LabelSet,
        annotations: LabelSet,
        starts_at: Ts,
        generator_url: impl Into<Box<str>>,
        limits: &Limits,
    ) -> Result<Self, AlertError> {
        Self::fitted(labels, annotations, starts_at, generator_url, limits).map(|(alert, _)| alert)
    }

    /// As `new`, and returns how many of its texts were cut or left out.
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
        let (labels, labels_cut) = truncate::labels(labels, limits);
        let (annotations, annotations_cut) = truncate::annotations(annotations, limits);
        let mut generator_url = generator_url.into();
        // A cut address would lead nowhere.
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

    /// Marks it as posted with a token that is limited to these labels. It is then a different
    /// alert from one with the same labels that is posted without limits, so that neither ends or
    /// prolongs the other.
    #[must_use]
    pub fn within(mut self, within: LabelSet) -> Self {
        self.fingerprint = fingerprint_within(&self.labels, &within);
        self.within = within;
        self
    }

    /// Marks it as posted with a limited token of this name.
    #[must_use]
    pub fn sent_by(self, token: &str) -> Self {
        Self { sender: token.into(), ..self }
    }

    /// The hash of its labels without the severity, which is only how bad the same condition is.
    pub(super) fn identity(&self) -> u64 {
        let labels = self.labels.iter().filter(|(name, _)| *name != "severity");
        self.within.iter().fold(hash_byte(fingerprint(labels), 254), hash_label)
    }

    /// Bytes of its texts.
    pub(super) fn bytes(&self) -> usize {
        let sets = [&self.labels, &self.annotations, &self.within];
        sets.map(LabelSet::bytes).iter().sum::<usize>() + self.generator_url.len() + self.sender.len()
    }

    /// The name that its rule gave it.
    pub fn name(&self) -> &str {
        self.labels.get("alertname").unwrap_or("alert")
    }

    /// Its text by its rule, in one sentence if there is one.
    pub fn text(&self) -> Option<&str> {
        ["summary", "description", "message"].iter().find_map(|key| self.annotations.get(key))
    }

    /// The text of its rule beyond [`Self::text`].
    pub fn description(&self) -> Option<&str> {
        let said = self.text();
        ["description", "message"]
            .iter()
            .find_map(|key| self.annotations.get(key))
            .filter(|text| Some(*text) != said)
    }

    /// The address of the runbook that its rule names.
    pub fn runbook(&self) -> Option<&str> {
        let named = ["runbook_url", "runbook"].iter().filter_map(|key| self.annotations.get(key));
        let is_web = |url: &&str| url.starts_with("https://") || url.starts_with("http://");
        named.map(str::trim).find(is_web)
    }

    /// Whether only the times differ. A later start is ignored, because a sender that restarts does
    /// not know when the alert began.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.annotations == other.annotations
            && self.generator_url == other.generator_url
            && self.starts_at <= other.starts_at
    }
}

/// The fingerprint of an alert that is posted within these limits.
pub fn fingerprint_within(labels: &LabelSet, within: &LabelSet) -> u64 {
    let plain = fingerprint(labels.iter());
    // This byte is in no text, so that no other labels give the same hash.
    if within.is_empty() { plain } else { within.iter().fold(hash_byte(plain, 254), hash_label) }
}
