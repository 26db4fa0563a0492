//! What a metric family is: the name a user queries, its type, unit, labels and help, declared once
//! as a constant beside the source that fills it.
//!
//! The page, the `metrics` reference and the check that dashboards name only what exists all read
//! these constants.

/// Type of a family, as the exposition format calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FamilyType {
    Counter,
    Gauge,
    Histogram,
    /// For families that others wrote without a type.
    Unknown,
}

#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct Family {
    /// The whole name, unit and `_total` included: what one greps for.
    pub name: &'static str,
    pub kind: FamilyType,
    /// Base unit, or empty for a count or a dimensionless value. Part of the name.
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    /// Without a full stop: the encoder adds one.
    pub help: &'static str,
    pub shown: Shown,
}

/// Whether a family of a collector is on the page by default; `collectors.X.metrics` says
/// otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shown {
    Always,
    /// Without the series that are zero, of which most are while nothing is wrong.
    UnlessZero,
    /// Only where the configuration asks for it.
    OnRequest,
}

impl Family {
    pub const fn gauge(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: FamilyType::Gauge, unit, labels, help, shown: Shown::Always }
    }

    pub const fn counter(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: FamilyType::Counter, unit, labels, help, shown: Shown::Always }
    }

    pub const fn histogram(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: FamilyType::Histogram, unit, labels, help, shown: Shown::Always }
    }

    /// Leaves series that are zero out of the page.
    pub const fn unless_zero(self) -> Self {
        Self { shown: Shown::UnlessZero, ..self }
    }

    /// Leaves it out of the page unless the configuration asks for it.
    pub const fn on_request(self) -> Self {
        Self { shown: Shown::OnRequest, ..self }
    }

    /// What OpenMetrics calls the family as a whole: the name of a counter is that of its series
    /// without the ending.
    pub fn metadata_name(&self) -> &'static str {
        match self.kind {
            FamilyType::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            FamilyType::Gauge | FamilyType::Histogram | FamilyType::Unknown => self.name,
        }
    }
}

impl FamilyType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Unknown => "unknown",
        }
    }
}
