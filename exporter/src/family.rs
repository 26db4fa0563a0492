//! A metric family: its name, type, unit, labels and help, declared once as a constant beside the
//! source that fills it.
//!
//! The exposition, the `metrics` reference and the check of dashboards all read these constants.

/// The type of a family in the exposition format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FamilyType {
    Counter,
    Gauge,
    Histogram,
    /// For families that a file declares without a type.
    Unknown,
}

#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct Family {
    /// The whole name, with unit and `_total`, so that it can be searched for.
    pub name: &'static str,
    pub kind: FamilyType,
    /// The base unit; empty for a count or a dimensionless value. It is part of the name.
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    /// The help without a full stop, because the encoder adds one.
    pub help: &'static str,
    pub shown: Shown,
}

/// Whether a family of a collector is exported by default. `collectors.X.metrics` overrides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shown {
    Always,
    /// Without the series that are zero, which most are while nothing is wrong.
    UnlessZero,
    /// Only if the configuration requests it.
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

    /// Leaves out the series that are zero.
    pub const fn unless_zero(self) -> Self {
        Self { shown: Shown::UnlessZero, ..self }
    }

    /// Leaves the family out unless the configuration requests it.
    pub const fn on_request(self) -> Self {
        Self { shown: Shown::OnRequest, ..self }
    }

    /// The name of the family in OpenMetrics: that of a counter has no suffix.
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
