//! The files that pages load: our style sheet and script, and those of other projects
//! (`assets/VENDORED.md`).
//!
//! The URL of a file has a hash of its content, so that browsers cache it permanently and request
//! another one after an upgrade. Each file is compressed once, when it is first requested.

use std::io::Write as _;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

use crate::signed_paths::ASSETS;

/// The number of bytes of the hash in a URL.
const HASH_BYTES: usize = 8;
const FOREVER: &str = "public, max-age=31536000, immutable";

const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

const FILES: &[(&str, &str, &[u8])] = &[
    ("app.js", JS, include_bytes!("assets/app.js")),
    ("charts.js", JS, include_bytes!("assets/charts.js")),
    ("style.css", CSS, include_bytes!("assets/style.css")),
    ("icon.svg", "image/svg+xml", include_bytes!("assets/icon.svg")),
    ("htmx.min.js", JS, include_bytes!("assets/htmx.min.js")),
    ("uPlot.iife.min.js", JS, include_bytes!("assets/uPlot.iife.min.js")),
    ("uPlot.min.css", CSS, include_bytes!("assets/uPlot.min.css")),
];

static SERVED: LazyLock<Vec<Asset>> = LazyLock::new(|| FILES.iter().map(Asset::new).collect());

#[derive(Debug)]
struct Asset {
    name: &'static str,
    content_type: &'static str,
    hash: String,
    url: String,
    plain: Bytes,
    gzip: Bytes,
}

impl Asset {
    fn new((name, content_type, bytes): &(&'static str, &'static str, &'static [u8])) -> Self {
        let hash = hex::encode(&Sha256::digest(bytes)[..HASH_BYTES]);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let compressed = encoder.write_all(bytes).and_then(|()| encoder.finish());
        Self {
            name,
            content_type,
            url: format!("{ASSETS}{hash}/{name}"),
            hash,
            plain: Bytes::from_static(bytes),
            gzip: compressed.expect("memory takes every write").into(),
        }
    }
}

/// The URL of a file; empty if there is no such file.
pub(crate) fn url(name: &str) -> &'static str {
    SERVED.iter().find(|asset| asset.name == name).map_or("", |asset| asset.url.as_str())
}

/// `GET /assets/{hash}/{name}`.
pub(super) async fn serve(Path((hash, name)): Path<(String, String)>, headers: HeaderMap) -> Response {
    let Some(asset) = SERVED.iter().find(|asset| asset.name == name && asset.hash == hash) else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let gzip = takes_gzip(&headers);
    let mut response = if gzip { asset.gzip.clone() } else { asset.plain.clone() }.into_response();
    let given = response.headers_mut();
    // This replaces the default type of a body of bytes.
    given.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    given.insert(CACHE_CONTROL, HeaderValue::from_static(FOREVER));
    given.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    given.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if gzip {
        given.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let weight = weight.trim().strip_prefix("q=").and_then(|q| q.parse::<f32>().ok()).unwrap_or(0.0);
        name.trim().eq_ignore_ascii_case("gzip") && weight > 0.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most bytes that a page may load, compressed.
    const BUDGET: usize = 150_000;

    #[test]
    fn vendored_files_are_those_of_the_list() {
        let list = include_str!("assets/VENDORED.md");
        let rows = list.lines().filter_map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            (cells.len() == 8 && cells[1].contains(".min.")).then(|| (cells[1], cells[5]))
        });
        let rows: Vec<_> = rows.collect();
        let ours = ["app.js", "charts.js", "style.css", "icon.svg"];
        let vendored: Vec<_> = FILES.iter().filter(|(name, ..)| !ours.contains(name)).collect();
        assert_eq!(rows.len(), vendored.len(), "{rows:?}");
        for (name, _, bytes) in vendored {
            let (_, hash) = rows.iter().find(|(listed, _)| listed == name).expect(name);
            assert_eq!(hex::encode(Sha256::digest(bytes)), *hash, "{name}");
        }
    }

    #[test]
    fn all_of_it_is_small() {
        let sent: usize = SERVED.iter().map(|asset| asset.gzip.len()).sum();
        assert!(sent < BUDGET / 2, "{sent} bytes leave too little for a page");
    }

    #[tokio::test]
    async fn a_file_is_served_for_good_and_compressed_for_those_who_take_it() {
        let ask = async |accept: &str| {
            let asset = SERVED.iter().find(|a| a.name == "style.css").unwrap();
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, accept.parse().unwrap())]);
            serve(Path((asset.hash.clone(), asset.name.to_owned())), headers).await
        };
        for (accept, gzip) in
            [("gzip, br", true), ("br;q=1, GZIP;q=0.5", true), ("gzip;q=0", false), ("", false)]
        {
            let response = ask(accept).await;
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers().get(CONTENT_ENCODING).is_some(), gzip, "{accept}");
            assert_eq!(response.headers()[CACHE_CONTROL], FOREVER);
            let types: Vec<_> = response.headers().get_all(CONTENT_TYPE).iter().collect();
            assert_eq!(types, [CSS], "one, and not that of any bytes");
        }
        let wrong = serve(Path(("0".repeat(16), "style.css".into())), HeaderMap::new()).await;
        assert_eq!(wrong.status(), 404, "another version");
    }
}
