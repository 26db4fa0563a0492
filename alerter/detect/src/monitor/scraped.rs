//! Sources whose numbers a Prometheus scraped and sends on.

/// What the names of sources begin with whose numbers a Prometheus scraped and sends on. It misses
/// the steps between two scrapes: what an exporter streams by itself goes before it.
pub const SCRAPED: &str = "remote_write/";

pub(super) fn is_scraped(source: &str) -> bool {
    source.starts_with(SCRAPED)
}

/// Whether what `other` holds is free for `source`: an exporter does not wait for a copy of its own
/// numbers.
pub(super) fn yields(other: &str, source: &str) -> bool {
    is_scraped(other) && !is_scraped(source)
}

/// Who answers for what a source reports. Whoever writes may name any number of instances.
pub(super) fn origin_of(source: &str) -> &str {
    if is_scraped(source) { SCRAPED.trim_end_matches('/') } else { source }
}
