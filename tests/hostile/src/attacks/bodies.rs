//! Bodies that are sent except for their last byte: 500 large ones, and as many small ones as there
//! are connections. Also complete bodies of lines, each of which must be parsed.

use std::io::Write as _;

use crate::attack::{Attack, Target, open, post};

pub(crate) const ATTACK: Attack =
    Attack::new("held-bodies", |target| hold(target, &[("/v1/metrics", 4 << 20), ("/v1/events", 1 << 20)]));
pub(crate) const SMALL: Attack =
    Attack::new("small-bodies", |target| hold(target, &[("/v1/metrics", 64 << 10)]));

pub(crate) const LINES: Attack = Attack::new("lines-by-http", |target| {
    lines(target);
    Ok(())
});

const HELD: usize = 500;
/// A line, and the number of lines of a body that is just below the limits of size and lines.
const LINE: &str = r#"{"k":"step","run":"lines","step":1,"m":{"loss":2.5,"grad_norm":0.5,"lr":0.0003}}  "#;
const LINES_OF_BODY: usize = 9_999;
const SENDERS: usize = 24;

fn hold(target: &Target, kinds: &[(&str, usize)]) -> anyhow::Result<()> {
    let part = vec![b' '; (4 << 20) - 1];
    // A refused or closed connection is opened again.
    loop {
        let mut held = Vec::new();
        for (path, size) in kinds.iter().cycle().take(HELD) {
            let Ok(mut stream) = open(target.exporter) else { continue };
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n",
                target.exporter
            );
            let sent = stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(part.get(..size - 1).unwrap_or_default()));
            if sent.is_ok() {
                held.push(stream);
            }
        }
    }
}

fn lines(target: &Target) {
    let body = format!("{LINE}\n").repeat(LINES_OF_BODY);
    let body = body.as_bytes();
    std::thread::scope(|threads| {
        for _ in 0..SENDERS {
            threads.spawn(|| {
                loop {
                    let _ = post(target.exporter, "/v1/events", "", body);
                }
            });
        }
    });
}
