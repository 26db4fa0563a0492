//! What a metric family is: the name a user queries, its type, unit, labels and help, declared once as a constant
//! beside the source that fills it.
//!
//! The page, the `metrics` reference and the check that dashboards name only what exists all read these constants.

/// Type of a family, as the exposition format calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// Of what others wrote, who did not say.
    Unknown,
}

#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct Family {
    /// The whole name, unit and `_total` included: what one greps for.
    pub name: &'static str,
    pub kind: Kind,
    /// Base unit, or empty for a count or a dimensionless value. Part of the name.
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    /// Without a full stop: the encoder adds one.
    pub help: &'static str,
}

impl Family {
    pub const fn gauge(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Gauge, unit, labels, help }
    }

    pub const fn counter(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Counter, unit, labels, help }
    }

    pub const fn histogram(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Histogram, unit, labels, help }
    }

    /// The name without the parts that the encoder appends by itself.
    pub fn base_name(&self) -> &'static str {
        let name = match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram | Kind::Unknown => self.name,
        };
        match name.strip_suffix(self.unit) {
            Some(base) if !self.unit.is_empty() => base.strip_suffix('_').unwrap_or(name),
            _ => name,
        }
    }
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoder_gets_the_name_without_what_it_appends() {
        for (family, base) in [
            (Family::counter("train_tokens_total", "", &[], ""), "train_tokens"),
            (Family::counter("cpu_seconds_total", "seconds", &[], ""), "cpu"),
            (Family::gauge("train_loss", "", &[], ""), "train_loss"),
            (Family::gauge("train_mfu_ratio", "ratio", &[], ""), "train_mfu"),
            (Family::histogram("train_step_duration_seconds", "seconds", &[], ""), "train_step_duration"),
        ] {
            assert_eq!(family.base_name(), base);
        }
    }
}
