//! Sources whose numbers come from a Prometheus by remote write.

/// The prefix of the names of sources that come from a Prometheus by remote write. Such a source
/// misses the steps between two scrapes, so that an exporter that streams takes precedence.
pub const SCRAPED: &str = "remote_write/";

pub(super) fn is_scraped(source: &str) -> bool {
    source.starts_with(SCRAPED)
}

/// Whether `source` may take over what `other` reports: an exporter takes precedence over a copy of
/// its own numbers.
pub(super) fn yields(other: &str, source: &str) -> bool {
    is_scraped(other) && !is_scraped(source)
}

/// The origin of the reports of a source. A writer may name any number of instances, so all of them
/// are one origin.
pub(super) fn origin_of(source: &str) -> &str {
    if is_scraped(source) { SCRAPED.trim_end_matches('/') } else { source }
}
