//! Determines the version of a request from its headers.

use axum::http::{HeaderMap, header};
use stepwatch_remote_write::decode::Version;

/// The message types of the protocol, as in the `proto` parameter.
const PROTO_V1: &str = "prometheus.WriteRequest";
const PROTO_V2: &str = "io.prometheus.write.v2.Request";

/// The version of a request, or the error in its headers. It is answered with 415, after which a
/// sender falls back to another version.
pub(crate) fn version(headers: &HeaderMap) -> Result<Version, String> {
    let encoding = text(headers, header::CONTENT_ENCODING.as_str());
    if !encoding.trim().eq_ignore_ascii_case("snappy") {
        return Err(format!("content-encoding is {encoding:?}; send snappy"));
    }
    let content_type = text(headers, header::CONTENT_TYPE.as_str());
    let mut parts = content_type.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    if !essence.eq_ignore_ascii_case("application/x-protobuf") {
        return Err(format!("content-type is {essence:?}; send application/x-protobuf"));
    }
    let proto = parts.find_map(|part| part.split_once('=').filter(|(name, _)| name.trim() == "proto"));
    match proto.map(|(_, value)| value.trim().trim_matches('"')) {
        None | Some(PROTO_V1) => Ok(Version::V1),
        Some(PROTO_V2) => Ok(Version::V2),
        Some(other) => Err(format!("proto is {other:?}; send {PROTO_V1} or {PROTO_V2}")),
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    fn of(content_type: &str, encoding: &str) -> Result<Version, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in [("content-type", content_type), ("content-encoding", encoding)] {
            headers.insert(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        version(&headers)
    }

    #[test]
    fn as_the_specification_says() {
        assert_eq!(of("application/x-protobuf", "snappy"), Ok(Version::V1));
        assert_eq!(of("application/x-protobuf;proto=prometheus.WriteRequest", "snappy"), Ok(Version::V1));
        let v2 = "application/x-protobuf; proto=io.prometheus.write.v2.Request";
        assert_eq!(of(v2, "Snappy"), Ok(Version::V2));
        for (content_type, encoding, word) in [
            ("application/x-protobuf", "zstd", "zstd"),
            ("application/x-protobuf", "", "send snappy"),
            ("application/json", "snappy", "application/json"),
            ("application/x-protobuf;proto=io.prometheus.write.v3.Request", "snappy", "v3"),
        ] {
            let why = of(content_type, encoding).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        assert!(version(&HeaderMap::new()).is_err());
    }
}
