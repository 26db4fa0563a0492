//! A minimal sender of Prometheus remote write 1.0 and 2.0.

use crate::http;

/// Labels, the time in milliseconds, and the value.
pub type Point<'a> = (&'a [(&'a str, &'a str)], i64, f64);

/// A request with one sample of each series, compressed.
pub fn request(points: &[Point<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for (labels, ts_ms, value) in points {
        let mut series = Vec::new();
        for (name, text) in *labels {
            let mut label = Vec::new();
            field(&mut label, 1, name.as_bytes());
            field(&mut label, 2, text.as_bytes());
            field(&mut series, 1, &label);
        }
        field(&mut series, 2, &sample(*ts_ms, *value));
        field(&mut body, 1, &series);
    }
    compressed(&body)
}

/// A request of 2.0, in which the texts of all labels are in one table.
pub fn request_2(points: &[Point<'_>]) -> Vec<u8> {
    let mut symbols = vec![""];
    let mut body = Vec::new();
    for (labels, ts_ms, value) in points {
        let mut references = Vec::new();
        for text in labels.iter().flat_map(|(name, text)| [*name, *text]) {
            let at = symbols.iter().position(|symbol| *symbol == text).unwrap_or_else(|| {
                symbols.push(text);
                symbols.len() - 1
            });
            varint(&mut references, at as u64);
        }
        let mut series = Vec::new();
        field(&mut series, 1, &references);
        field(&mut series, 2, &sample(*ts_ms, *value));
        field(&mut body, 5, &series);
    }
    symbols.iter().for_each(|symbol| field(&mut body, 4, symbol.as_bytes()));
    compressed(&body)
}

/// A sample, the same in both versions.
fn sample(ts_ms: i64, value: f64) -> Vec<u8> {
    let mut sample = vec![1 << 3 | 1];
    sample.extend(value.to_le_bytes());
    sample.push(2 << 3);
    varint(&mut sample, ts_ms.cast_unsigned());
    sample
}

pub fn compressed(body: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; snap::raw::max_compress_len(body.len())];
    let bytes = snap::raw::Encoder::new().compress(body, &mut packed).unwrap_or_default();
    packed.truncate(bytes);
    packed
}

/// Posts a request to an alerter.
pub async fn write(url: &str, body: Vec<u8>) -> anyhow::Result<reqwest::Response> {
    let request = http::client().post(format!("{url}/api/v1/write"));
    let request =
        request.header("content-type", "application/x-protobuf").header("content-encoding", "snappy");
    let request = request.header("x-prometheus-remote-write-version", "0.1.0");
    Ok(request.body(body).send().await?)
}

fn field(to: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    to.push(number << 3 | 2);
    varint(to, bytes.len() as u64);
    to.extend(bytes);
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}
